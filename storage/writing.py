"""The writer's side of storage: one transaction for a batch of messages, and the index that follows it.

Everything here runs in one thread at a time and knows nothing of actors.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from storage import limits
from storage.agents import require_registered
from storage.batch import Batch, Outcome, RolledBack, Write, as_answer
from storage.checks import require_readable
from storage.database import check_database_file, ensure_wal, open_writer, passive_checkpoint, prove_writable
from storage.errors import ConfigurationError, Rejection, StorageDamaged, translated
from storage.following import Follower
from storage.paths import Paths
from storage.records import Tier
from storage.rows import SEARCHED
from storage.schema import Schema, ensure_short, introspect
from storage.search.failures import IndexFailure
from storage.search.index import Identity, Index
from storage.soundness import Side
from storage.standing import Place, Standing
from storage.state import State
from storage.wal import WriteAheadLog
from storage.write_units import WriteUnits

_CHECKPOINT_PAGES = 1_000
"""SQLite's own default: a COMMIT that leaves a longer WAL copies it back."""

_PROOF_BUSY_MS = 200


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What opening the store found and did; the log and doctor show it."""

    journal_found: str
    journal_mode: str
    short_created: bool
    state_created: bool
    index_rebuilt: bool
    intents_settled: int
    intents_dropped: int
    another_database: bool = False
    """Whether the database is another one than the index followed: it was made anew, and no intent was settled."""


class WritingStore:
    """The one writable connection, state.db and the index. Opened and used by the writer alone."""

    def __init__(self, paths: Paths, *, clock: Callable[[], float] = time.time) -> None:
        """Open the database additively: nothing but memory_short is ever created in it.

        Raises:
            ConfigurationError: the database cannot serve as it is; it was left untouched.
            Rejection: it cannot be read at the moment.
        """
        check_database_file(paths.database)
        paths.make_folders()
        self._clock = clock
        self._place = Place(paths.database)
        try:
            with translated():
                self._db = open_writer(paths.database)
                self.integrity = require_readable(self._db, paths.database)
                """What the last check of the database said; whoever makes the next one notes it here."""
                self.schema: Schema = introspect(self._db, paths.database)
                found, self.journal_mode = ensure_wal(self._db)
                created = ensure_short(self._db)
        except StorageDamaged as damaged:
            raise ConfigurationError(f"{paths.database}: {damaged.detail} It was left untouched.") from damaged
        if self.journal_mode == "wal":
            self._place.watch_logs()
        self.writes = Side(mends=True)
        """How writes ended."""
        self.reads = Side(mends=False)
        """How the writer's own reading of the tables ended, as the index follows them."""
        self.wal = WriteAheadLog(paths.database)
        self._units = WriteUnits(self._db, self.schema, clock)
        self._state = State(paths.state, first_start=paths.first_start, now_s=clock())
        paths.finish()
        self._index = Index(paths.index, writable=True)
        self._follower = Follower(self._db, self.schema, self._state, self._index, clock=clock)
        self._index_errors: dict[str, Exception] = {}
        """How work on the index failed, by its kind: a sweep that finds nothing to write says nothing of new rows."""
        another = self._follows_another()
        settled, dropped = (0, 0) if another else self._settle_open_intents()
        self.report = OpenReport(
            found, self.journal_mode, created, self._state.created, self._index.rebuilt, settled, dropped, another
        )

    def _follows_another(self) -> bool:
        """Whether the index is another database's; then it is made anew.

        Intents stay open then: whether they happened is told by the database that they were made for, if it comes
        back. Until then each is void, for its row is not there. Those of short keys that were settled are open again:
        they would be answered whatever this database holds.
        """
        with suppress(IndexFailure):
            if self._follower.follows_another(seed=0):
                self._state.open_again("short")
                self._index.remake()
                return True
        return False

    def close(self) -> Path | None:
        """Checkpoint passively and close; the order is the opening's read backwards.

        Where another database has come in place of this one, its WAL is set aside; where to, is the answer.
        """
        try:
            self._follower.close()
            self._index.close()
            self._state.close()
        finally:
            aside = self._place.close(self._db)
        return aside

    @property
    def database_in_place(self) -> bool:
        """False when the database's path no longer names the file that is open."""
        return self._place.database_unchanged

    @property
    def logs_in_place(self) -> bool:
        """False when the -wal or -shm beside the database was removed or replaced; then no write is begun."""
        return self._place.logs_unchanged

    @property
    def state_in_place(self) -> bool:
        """False when state.db was removed or replaced; then a write with a request id is refused."""
        return self._state.in_place

    @property
    def state_works(self) -> bool:
        """False from a use of state.db that failed until a write of it works."""
        return self._state.works

    def standing(self) -> Standing:
        """Whether the files are still those that are open. From any thread."""
        return self._place.standing(self._state)

    def may_be_closed(self) -> bool:
        """Whether nothing that was acknowledged is lost by closing.

        Raises:
            Rejection: that cannot be told at the moment.
        """
        return self._place.may_be_closed(self._db)

    @property
    def index_error(self) -> Exception | None:
        """Why the index could not follow; None while it can."""
        return next(iter(self._index_errors.values()), None)

    @property
    def foreign_change_at_s(self) -> float | None:
        """When it was last noticed that another process had written the database; None where none has since opening."""
        return self._follower.foreign_change_at_s

    def require_registered(self, agent: str) -> None:
        """Refuse an agent that the registry does not hold.

        Raises:
            UnknownAgent: it does not.
        """
        with translated():
            require_registered(self._db, self.schema.registry, agent)

    # --- batches ---

    @property
    def requests_known_from_s(self) -> float:
        """The instant before which request ids may be unknown, in unix seconds."""
        return self._state.known_from_s

    def apply(self, writes: Sequence[Write[Any]], *, wait_s: float = limits.BUSY_TIMEOUT_MS / 1000) -> list[Outcome]:
        """Run a batch in one transaction and return the outcomes of its first writes, at least one.

        Waits up to `wait_s` for a write lock that another process holds.

        Those that did not fit into BATCH_S_MAX are not begun: call again with them. An outcome is returned after
        COMMIT (synchronous=FULL): a reply means that the row is on disk. Where SQLite rolled the transaction back by
        itself, nothing of the batch is acknowledged and it runs again one write at a time.

        Raises:
            StorageBusy: another process holds the write lock; nothing was begun.
            StorageUnavailable: the database's path no longer names the file that is open, or its WAL is gone; nothing
                was begun.
        """
        try:
            outcomes = self._apply(writes, wait_s)
        except Rejection as refusal:
            self.writes.met(refusal)
            raise
        for outcome in outcomes:
            if outcome.error is not None:
                self.writes.met(outcome.error)
            elif not outcome.replayed:
                self.writes.worked()
        return outcomes

    def _apply(self, writes: Sequence[Write[Any]], wait_s: float) -> list[Outcome]:
        self._place.require()
        self._db.wal_autocheckpoint(0 if self.wal.is_held else _CHECKPOINT_PAGES)  # a held one is copied back aside
        self._db.set_busy_timeout(int(wait_s * 1000))
        try:
            return self._transact(writes)
        except RolledBack as rolled_back:
            if len(writes) == 1:
                return [Outcome(error=as_answer(rolled_back.cause))]
        return self._one_by_one(writes, time.monotonic() + wait_s)

    def _one_by_one(self, writes: Sequence[Write[Any]], until: float) -> list[Outcome]:
        outcomes: list[Outcome] = []
        for write in writes:
            if outcomes and time.monotonic() >= until:
                break
            try:
                outcomes += self._transact([write])
            except RolledBack as rolled_back:
                outcomes.append(Outcome(error=as_answer(rolled_back.cause)))
            except Rejection:  # the lock went to another process in between: the rest waits for it anew
                if not outcomes:
                    raise
                break
        return outcomes

    def _transact(self, writes: Sequence[Write[Any]]) -> list[Outcome]:
        """BEGIN first, so that a lock held elsewhere leaves no intents behind; then rows, intents, COMMIT, settling."""
        db = self._db
        with translated():
            db.execute("BEGIN IMMEDIATE")
        try:
            self._place.require()  # again: the wait for the lock may have been long
            batch = Batch(self._units, self._state, writes)
            batch.run(limits.BATCH_S_MAX)
            try:
                db.execute("COMMIT")
            except apsw.Error as error:
                raise RolledBack(error) from error
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
        batch.settle()
        self._follow(batch)
        return batch.outcomes

    # --- the index follows ---

    def _follow(self, batch: Batch) -> None:
        """Bring the index up to the batch before it is answered. A failure here never fails the memory's write."""
        try:
            before = {tier: self._index.high_water(tier) for tier in SEARCHED}
            with translated():
                self._follower.catch_up(time.monotonic() + limits.CATCH_UP_SLICE_S)
            self.refresh(
                [
                    (tier, row)
                    for tier, row in batch.touched
                    if row <= before[tier] or row > self._index.high_water(tier)
                ]
            )
        except Exception as error:  # whatever it is: the rows are on disk, and their writers are told so
            self._index_errors["follow"] = error
            batch.mark_index_behind()

    def refresh(self, touched: Sequence[tuple[Tier, int]]) -> None:
        """Index these rows as they are now; those that are gone are forgotten.

        Raises:
            IndexFailure: the index could not be written.
        """
        with translated():
            self._follower.refresh(touched)

    def catch_up(self, budget_s: float = limits.CATCH_UP_SLICE_S) -> bool:
        """Index what the tables hold beyond the high-water marks, for about `budget_s`; True when nothing is left."""
        return self._with_index("follow", lambda: self._follower.catch_up(time.monotonic() + budget_s))

    def sweep(self, budget_s: float = limits.CATCH_UP_SLICE_S) -> bool:
        """Look for rows that others changed or deleted, for about `budget_s`; True when none is left to look at."""
        return self._with_index("sweep", lambda: self._follower.sweep(time.monotonic() + budget_s))

    def join_segments(self, budget_s: float = limits.CATCH_UP_SLICE_S) -> bool:
        """Keep the index's posting lists in few pieces, for about `budget_s`; True when there is nothing to join."""
        return self._with_index("join", lambda: self._index.join_segments(time.monotonic() + budget_s))

    def check_index(self, seed: int) -> bool:
        """Look up a sample of rows; where one is not found, the index is thrown away. True when it was sound."""

        def check() -> bool:
            if not self._follower.sampled_damage(seed):
                return True
            self._index.remake()
            return False

        return self._with_index("check", check)

    def _with_index(self, kind: str, work: Callable[[], bool]) -> bool:
        """Do something with the index; a damaged one is made anew, and False is the answer.

        Raises:
            Rejection: the tables cannot be read; nothing is made beside a database that is gone.
        """
        self._place.require_database()
        try:
            with self.reads.noted(), translated():
                done = work()
        except IndexFailure as failure:
            self._index_errors[kind] = failure
            if failure.damaged:
                with suppress(IndexFailure, OSError):  # the next look tries again
                    self._index.remake()
            return False
        self._index_errors.pop(kind, None)
        return done

    def remake_index(self) -> None:
        """Throw the index away; catch_up() builds it anew, slice by slice."""
        self._index.remake()

    def remake_broken_index(self, broken: Identity | None) -> None:
        """Make the index anew if this file is still the one in use, and build a first slice of it.

        Two readers may have found the same damage; and what one of them could not open may be there by now.
        """
        if broken == self._index.identity or not self._index.unchanged:
            with suppress(IndexFailure, OSError):
                self._index.remake()
        self.catch_up()

    def rows_to_index(self) -> int:
        """How far the tables reach, as the sum of their highest row ids."""
        return sum(max(self._follower.last_row(tier), 0) for tier in SEARCHED)

    def rows_held(self) -> int:
        """How many rows the index holds."""
        return sum(self._index.size(tier)[0] for tier in SEARCHED)

    def rows_indexed(self) -> int:
        """How far of that the index has followed."""
        return sum(max(self._index.high_water(tier), 0) for tier in SEARCHED)

    def share_indexed(self) -> float:
        """The part of the tables' row ids that the index has followed.

        Raises:
            IndexFailure, Rejection: the index, or the tables, cannot be read.
        """
        with self.reads.noted(), translated():
            total = self.rows_to_index()
            return round(self.rows_indexed() / total, 3) if total else 1.0

    # --- upkeep ---

    def checkpoint(self) -> None:
        """Copy a WAL that nobody holds back to its end, so that the next write uses it anew; see storage/wal.py.

        After a write that failed, see whether one works again.
        """
        self._place.require()
        if self.writes.failure is not None:
            self._prove_writable()
        if not self._state.works:
            self._state.prove_writable()
        if not self.wal.is_held:
            with translated():
                passive_checkpoint(self._db)

    def _prove_writable(self) -> None:
        self._db.set_busy_timeout(_PROOF_BUSY_MS)
        with self.writes.noted(), translated():
            prove_writable(self._db)

    def expire_requests(self) -> int:
        """Forget request ids that are older than REQUEST_ID_KEPT_S."""
        with translated():
            return self._state.expire(self._clock() - limits.REQUEST_ID_KEPT_S)

    def _settle_open_intents(self) -> tuple[int, int]:
        """After a crash: each open intent either has its row, or never happened. Return how many of each."""
        intents = self._state.open_intents()
        done = {intent.request for intent in intents if self._units.happened(intent)}
        dropped = [intent.request for intent in intents if intent.request not in done]
        if intents:
            self._state.settle(done, dropped)
        return len(done), len(dropped)
