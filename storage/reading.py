"""The reader's side of storage: each method is one short synchronous unit on read-only connections.

The database is the truth: the index only proposes row ids, and what is shown is read from the table at that moment.
"""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Literal

from storage.agents import is_registered, registered, require_registered
from storage.copies.backup_record import last_backup
from storage.database import FileIdentity, fetch, open_reader
from storage.durable import own_persona, require_own, select_personas
from storage.errors import Forbidden, InvalidRequest, NotFound, UnknownAgent, translated
from storage.paths import Paths
from storage.recalling import Question, Recollection, fitted
from storage.records import Memory, Recalled, RowCounts, Scope, ShortEntries, StoreState, Tier
from storage.rows import SEARCHED, Row, select_digests, select_rows, table_of
from storage.schema import introspect
from storage.search.failures import IndexFailure, descriptors_left
from storage.search.index import Identity, Index
from storage.search.searching import Searcher
from storage.short_term import count_short, list_short, read_short
from storage.soundness import Side

IndexLag = Literal["index_behind", "index_rebuilding"]


@dataclass(frozen=True, slots=True)
class Found:
    """A recall's answer, and what the index did not know."""

    recalled: Recalled
    lag: IndexLag | None
    """Whether the index was behind the tables."""
    stale: tuple[tuple[Tier, int], ...]
    """Rows that changed or went since they were indexed: they were not shown; the writer should look at them."""
    admitted: bool = True
    """Whether the registry holds the agent that asked."""


class ReadingStore:
    """Read-only connections to the database and the index. One thread at a time; `interrupt()` from any."""

    def __init__(
        self, paths: Paths, *, refuse_unregistered: bool = False, clock: Callable[[], float] = time.time
    ) -> None:
        """Open both files; the writer has made them. `refuse_unregistered`: see admitted().

        Raises:
            Rejection: the database cannot be read at the moment.
        """
        self._paths = paths
        self._refuse_unregistered = refuse_unregistered
        self._clock = clock
        self._identity = FileIdentity(paths.database)  # before it is opened: a replacement in between must be noticed
        with translated():
            self._db = open_reader(paths.database)
            self._schema = introspect(self._db, paths.database)
        self._index_file: Index | None = None
        self._searcher: Searcher | None = None
        self._followed_version = -1
        self.reads = Side(mends=False)
        """How reads of the database ended."""

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Run a block that reads the database; raise the rejection that an SQLite error stands for, and note it.

        Raises:
            StorageUnavailable: the path no longer names the file that is open.
        """
        self._identity.require()
        with self.reads.noted(), translated():
            yield

    def close(self) -> None:
        """Close both connections."""
        if self._index_file is not None:
            self._index_file.close()
        self._db.close()

    def interrupt(self) -> None:
        """Cut the statement that runs now. Called from the event loop at a read's deadline."""
        self._db.interrupt()
        if self._index_file is not None:
            self._index_file.interrupt()

    def now_s(self) -> float:
        """The instant by which expiry and relative dates are told, in unix seconds."""
        return self._clock()

    def is_registered(self, agent: str) -> bool:
        """Whether the registry holds this agent now."""
        with self._in_use():
            return is_registered(self._db, self._schema.registry, agent)

    def admitted(self, agent: str) -> bool:
        """Whether the registry holds an agent that reads.

        Raises:
            UnknownAgent: it does not, and the reads of others are refused here.
        """
        if self.is_registered(agent):
            return True
        if self._refuse_unregistered:
            raise UnknownAgent(f"The agent {agent[:80]!r} is not in agent_registry, and its reads are refused here.")
        return False

    def require_registered(self, agent: str) -> None:
        """Refuse an agent that the registry does not hold.

        Raises:
            UnknownAgent: it does not.
        """
        with self._in_use():
            require_registered(self._db, self._schema.registry, agent)

    def registered(self) -> list[str]:
        """Every registered agent."""
        with self._in_use():
            return registered(self._db, self._schema.registry)

    # --- recall ---

    def index_lag(self) -> IndexLag | None:
        """Whether the tables hold rows that the index has not followed yet; None where it is up to them.

        Cheap where nothing was written since the last look (data_version).
        """
        with self._in_use():
            try:
                return self._index_lag()
            except IndexFailure:
                return "index_rebuilding"

    def _index_lag(self) -> IndexLag | None:
        version = int(fetch(self._db, "PRAGMA data_version")[0][0])
        index = self._index()
        if index is None:
            return "index_rebuilding"
        if version == self._followed_version:
            return None
        if all(self._followed(index, tier) for tier in SEARCHED):
            self._followed_version = version
            return None
        return "index_behind" if index.complete else "index_rebuilding"

    def _followed(self, index: Index, tier: Tier) -> bool:
        """Whether the index knows the newest row of a tier as it is: its id alone may have been used before."""
        newest = select_digests(self._db, self._schema, tier, "ORDER BY t.rowid DESC LIMIT 1")
        if not newest:
            return True
        row, digest = newest[0]
        return row <= index.high_water(tier) and index.digest_of(tier, row) == digest

    def _index_share(self, index: Index) -> float:
        """The part of the row ids that the index has followed, rounded down."""
        total = sum(max(self._max_row(tier), 0) for tier in SEARCHED)
        followed = sum(max(index.high_water(tier), 0) for tier in SEARCHED)
        return 1.0 if followed >= total else math.floor(10_000 * followed / total) / 10_000

    def _rows_behind(self, index: Index) -> int:
        """Row ids beyond those that the index has followed."""
        return sum(max(self._max_row(tier) - max(index.high_water(tier), 0), 0) for tier in SEARCHED)

    def _max_row(self, tier: Tier) -> int:
        table = table_of(self._schema, tier)
        return int(fetch(self._db, f"SELECT max(rowid) FROM {table.quoted}")[0][0] or 0)

    def _index(self) -> Index | None:
        """The index as it is on disk now; None while there is none that can be read."""
        if self._index_file is not None and self._index_file.unchanged:
            return self._index_file
        if self._index_file is not None:
            self._index_file.close()
        self._index_file = self._searcher = None
        self._followed_version = -1
        with suppress(IndexFailure):
            self._index_file = Index(self._paths.index, writable=False)
            self._searcher = Searcher(self._index_file)
        return self._index_file

    def recall(self, question: Question, lag: IndexLag | None) -> Found:
        """Answer a question from what the index proposes; `lag` is what the last look at the index said.

        Raises:
            InvalidRequest: a date is none.
            Forbidden: it asks for another agent's persona.
            IndexFailure: the index cannot be read.
            Rejection: the database cannot answer; never an empty result instead.
        """
        if "durable" in question.tiers:
            require_own(question.q, question.agent)
        index = self._index()
        if index is None or self._searcher is None:
            raise IndexFailure("No index file can be read.", descriptors_left())
        recollection = Recollection(self._db, self._schema, self._searcher, question, self._clock())
        with self.reads.noted(), translated():
            results = fitted(recollection.results(), full=question.full)
            reasons = ("no_embedder", *([lag] if lag else []))
            recalled = Recalled(
                degraded=True,
                degraded_reasons=reasons,
                relaxed=recollection.relaxed,
                index_share=self._index_share(index) if lag == "index_rebuilding" else None,
                results=results,
            )
        return Found(recalled, lag, tuple(recollection.stale))

    def look(self, question: Question, *, may_wait: bool) -> Found | None:
        """Answer a question from the index as it is; None where it is behind the tables and `may_wait` says so.

        Raises:
            UnknownAgent: see admitted().
            InvalidRequest, Forbidden, IndexFailure, Rejection: see recall().
        """
        admitted = self.admitted(question.agent)
        lag = self.index_lag()
        return None if lag and may_wait else replace(self.recall(question, lag), admitted=admitted)

    @property
    def database_in_place(self) -> bool:
        """False when the database's path no longer names the file that is open."""
        return self._identity.unchanged

    @property
    def index_identity(self) -> Identity | None:
        """Which file is the index now: the one to be made anew where it turned out to be damaged."""
        return FileIdentity(self._paths.index).opened

    # --- one memory, short keys, counts ---

    def memory(self, *, agent: str, tier: Tier, row: int, scope: Scope) -> Memory:
        """One memory whole.

        Raises:
            NotFound: there is none, it has expired, or scope=own hides it.
            Forbidden: it is another agent's persona.
        """
        with self._in_use():
            found = self._durable(agent, row) if tier == "durable" else self._row(tier, row)
        if found is None or not found.live(self._clock()) or (scope == "own" and found.agent != agent):
            raise NotFound(f"There is no memory {tier}:{row} that {agent!r} can read with scope={scope}.")
        return found.memory()

    def persona(self, agent: str) -> Memory | None:
        """An agent's own persona, whole; None where it has none."""
        with self._in_use():
            row = own_persona(self._db, self._schema, agent)
        return None if row is None else row.memory()

    def _row(self, tier: Tier, row: int) -> Row | None:
        return next(select_rows(self._db, self._schema, tier, "WHERE t.rowid = ?", (row,)), None)

    def _durable(self, agent: str, row: int) -> Row | None:
        own = own_persona(self._db, self._schema, agent)
        if own is not None and own.row == row:
            return own
        if select_personas(self._db, self._schema, "WHERE t.rowid = ?", row):
            raise Forbidden(f"durable:{row} is not {agent!r}'s persona; a persona is readable by its own agent alone.")
        return None

    def short(
        self, *, agent: str, owner: str | None, key: str | None, after: str | None, limit: int, scope: Scope
    ) -> ShortEntries:
        """One live key of an owner, or its live keys in order.

        Raises:
            NotFound: the named key is not there or has expired.
            InvalidRequest: scope=own with somebody else's keys.
        """
        whose = owner or agent
        if scope == "own" and whose != agent:
            raise InvalidRequest(f"owner: with scope=own only {agent!r}'s own keys can be read.")
        with self._in_use():
            if key is not None:
                entry = read_short(self._db, self._schema, owner=whose, key=key, now_s=self._clock())
                return ShortEntries(owner=whose, entries=(entry,))
            return list_short(self._db, self._schema, owner=whose, after=after, limit=limit, now_s=self._clock())

    def _followed_part(self, index: Index | None) -> tuple[float, int]:
        """The part of the tables that the index has followed, and the row ids that it has not."""
        if index is not None:
            with suppress(IndexFailure):
                return self._index_share(index), self._rows_behind(index)
        return 0.0, sum(max(self._max_row(tier), 0) for tier in SEARCHED)

    def _count(self, tier: Tier, owner: str | None) -> int:
        """Rows of a tier: from the index, which keeps the number, or counted in the table where there is none."""
        index = self._index()
        if index is not None:
            with suppress(IndexFailure):
                return index.count(tier, owner)
        table = table_of(self._schema, tier)
        own = "" if owner is None else f" WHERE {table.sql('agent')} = ?"
        bindings = () if owner is None else (owner,)
        return int(fetch(self._db, f"SELECT count(*) FROM {table.quoted}{own}", bindings)[0][0])

    def state(self, *, owner: str | None) -> StoreState:
        """Counts by tier, of one owner or of all, and the state of the files."""
        index = self._index()
        with self._in_use():
            counts = RowCounts(
                short=count_short(self._db, owner=owner, now_s=self._clock()),
                long=self._count("long", owner),
                episodic=self._count("episodic", owner),
            )
            share, behind = self._followed_part(index)
            backup = last_backup(self._paths)
            return StoreState(
                rows=counts,
                index_share=share,
                index_rows_behind=behind,
                index_bytes=index.bytes if index else 0,
                wal_bytes=_size(self._paths.database.name + "-wal", self._paths),
                journal_mode=str(self._db.pragma("journal_mode")),
                last_backup_at=None if backup is None else backup.at,
            )


def _size(name: str, paths: Paths) -> int:
    try:
        return paths.database.with_name(name).stat().st_size
    except OSError:
        return 0
