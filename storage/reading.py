"""The reader's side of storage: each method is one short synchronous unit on read-only connections.

The database is the truth: the index only proposes row ids, and what is shown is read from the table at that moment.
"""

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

import apsw

from storage import limits
from storage.agents import is_registered, registered
from storage.database import FileIdentity, fetch, open_reader
from storage.durable import own_persona, require_own, select_personas
from storage.errors import Forbidden, InvalidRequest, NotFound, translated
from storage.paths import Paths
from storage.records import Memory, Recalled, RowCounts, Scope, ShortEntries, StoreState, Tier
from storage.rows import SEARCHED, Row, select_rows, table_of
from storage.schema import Schema, introspect
from storage.search.index import Identity, Index, IndexFailure
from storage.search.text import match_all, match_any, terms_of
from storage.short_term import count_short, list_short, read_short
from storage.times import parse_bound

IndexLag = Literal["index_behind", "index_rebuilding"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a recall asks."""

    agent: str
    q: str
    k: int
    scope: Scope
    tiers: tuple[Tier, ...]
    topic: str | None
    tags: tuple[str, ...]
    since: str | None
    until: str | None
    full: bool


@dataclass(frozen=True, slots=True)
class Found:
    """A recall's answer, and what the index did not know."""

    recalled: Recalled
    stale: tuple[tuple[Tier, int], ...]
    """Rows that changed or went since they were indexed: they were not shown; the writer should look at them."""


class ReadingStore:
    """Read-only connections to the database and the index. One thread at a time; `interrupt()` from any."""

    def __init__(self, paths: Paths, *, clock: Callable[[], float] = time.time) -> None:
        """Open both files; the writer has made them.

        Raises:
            Rejection: the database cannot be read at the moment.
        """
        self._paths = paths
        self._clock = clock
        with translated():
            self._db = open_reader(paths.database)
            self._schema = introspect(self._db)
        self._identity = FileIdentity(paths.database)
        self._index_file: Index | None = None
        self._followed_version = -1

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

    def is_registered(self, agent: str) -> bool:
        """Whether the registry holds this agent now."""
        self._identity.require()
        with translated():
            return is_registered(self._db, self._schema.registry, agent)

    def registered(self) -> list[str]:
        """Every registered agent."""
        self._identity.require()
        with translated():
            return registered(self._db, self._schema.registry)

    # --- recall ---

    def index_lag(self) -> IndexLag | None:
        """Whether the tables hold rows that the index has not followed yet; None where it is up to them.

        Cheap where nothing was written since the last look (data_version).
        """
        self._identity.require()
        with translated():
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
        if all(self._max_row(tier) <= index.high_water(tier) for tier in SEARCHED):
            self._followed_version = version
            return None
        return "index_behind" if index.complete else "index_rebuilding"

    def _max_row(self, tier: Tier) -> int:
        table = table_of(self._schema, tier)
        return int(fetch(self._db, f"SELECT max(rowid) FROM {table.quoted}")[0][0] or 0)

    def _index(self) -> Index | None:
        """The index as it is on disk now; None while there is none that can be read."""
        if self._index_file is not None and self._index_file.unchanged:
            return self._index_file
        if self._index_file is not None:
            self._index_file.close()
        self._index_file = None
        self._followed_version = -1
        with suppress(IndexFailure):
            self._index_file = Index(self._paths.index, writable=False)
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
        if index is None:
            raise IndexFailure(apsw.CantOpenError("there is no index file that can be read"))
        search = _Search(self._db, self._schema, index, question, self._clock())
        with translated():
            results = search.run()
            relaxed = bool(results) and search.relaxed()
        return Found(_recalled(_fitted(results, full=question.full), lag, relaxed=relaxed), tuple(search.stale))

    @property
    def index_identity(self) -> Identity | None:
        """Which index file is open: the one to be made anew where it turned out to be damaged."""
        return self._index_file.identity if self._index_file is not None else None

    # --- one memory, short keys, counts ---

    def memory(self, *, agent: str, tier: Tier, row: int, scope: Scope) -> Memory:
        """One memory whole.

        Raises:
            NotFound: there is none, it has expired, or scope=own hides it.
            Forbidden: it is another agent's persona.
        """
        self._identity.require()
        with translated():
            found = self._durable(agent, row) if tier == "durable" else self._row(tier, row)
        if found is None or not found.live(self._clock()) or (scope == "own" and found.agent != agent):
            raise NotFound(f"There is no memory {tier}:{row} that {agent!r} can read with scope={scope}.")
        return found.memory()

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
        self._identity.require()
        with translated():
            if key is not None:
                entry = read_short(self._db, self._schema, owner=whose, key=key, now_s=self._clock())
                return ShortEntries(owner=whose, entries=(entry,))
            return list_short(self._db, self._schema, owner=whose, after=after, limit=limit, now_s=self._clock())

    def state(self, *, owner: str | None) -> StoreState:
        """Counts by tier, of one owner or of all, and the state of the files."""
        self._identity.require()
        index = self._index()
        with translated():
            counts = RowCounts(
                short=count_short(self._db, owner=owner, now_s=self._clock()),
                long=index.count("long", owner) if index else 0,
                episodic=index.count("episodic", owner) if index else 0,
            )
            total = sum(self._max_row(tier) for tier in SEARCHED)
            followed = sum(index.high_water(tier) for tier in SEARCHED) if index else 0
            return StoreState(
                rows=counts,
                index_share=1.0 if followed >= total else math.floor(10_000 * followed / total) / 10_000,
                index_bytes=index.bytes if index else 0,
                wal_bytes=_size(self._paths.database.name + "-wal", self._paths),
                journal_mode=str(self._db.pragma("journal_mode")),
            )


def _recalled(results: Sequence[Memory], lag: IndexLag | None, *, relaxed: bool = False) -> Recalled:
    reasons = ("no_embedder", *([lag] if lag else []))
    return Recalled(degraded=True, degraded_reasons=reasons, relaxed=relaxed, results=tuple(results))


def _size(name: str, paths: Paths) -> int:
    try:
        return paths.database.with_name(name).stat().st_size
    except OSError:
        return 0


class _Search:
    """One recall: candidates in the order of their scores, read from the table, filtered, until k are found."""

    def __init__(self, db: apsw.Connection, schema: Schema, index: Index, question: Question, now_s: float) -> None:
        self._db = db
        self._schema = schema
        self._index = index
        self._question = question
        self._now_s = now_s
        self._since_s = _bound("since", question.since, now_s)
        self._until_s = _bound("until", question.until, now_s)
        self._terms = terms_of(question.q)
        self._indexed = [tier for tier in SEARCHED if tier in question.tiers] if self._terms else []
        self.stale: list[tuple[Tier, int]] = []

    def run(self) -> list[Memory]:
        """The results, best first."""
        found: list[Memory] = []
        streams = [self._candidates(tier) for tier in self._indexed]
        persona = self._persona()
        if persona is not None:
            streams.append(iter([persona]))
        for score, row in heapq.merge(*streams, key=lambda candidate: -candidate[0]):
            if self._allows(row):
                found.append(row.memory(score=float(f"{score:.4g}")))
                if len(found) == self._question.k:
                    break
        return found

    def relaxed(self) -> bool:
        """Whether no row holds all the question's terms."""
        if len(self._terms) <= 1:
            return False
        return not any(self._index.any_match(tier, match_all(self._terms)) for tier in self._indexed)

    def _candidates(self, tier: Tier) -> Iterator[tuple[float, Row]]:
        for score, row_id in self._index.matches(tier, match_any(self._terms)):
            row = next(select_rows(self._db, self._schema, tier, "WHERE t.rowid = ?", (row_id,)), None)
            if row is not None and self._index.current(row):
                yield score, row
            else:
                self.stale.append((tier, row_id))

    def _persona(self) -> tuple[float, Row] | None:
        if "durable" not in self._question.tiers:
            return None
        row = own_persona(self._db, self._schema, self._question.agent)
        if row is None:
            return None
        words = set(terms_of(row.searchable))
        matched = sum(term in words for term in self._terms)
        return (float(matched), row) if matched else None

    def _allows(self, row: Row) -> bool:
        question = self._question
        if question.scope == "own" and row.agent != question.agent:
            return False
        if question.topic is not None and row.topic != question.topic:
            return False
        if not set(question.tags) <= set(row.tags):
            return False
        return row.live(self._now_s) and self._in_time(row)

    def _in_time(self, row: Row) -> bool:
        if self._since_s is None and self._until_s is None:
            return True
        at_s = row.created_s
        if at_s is None:
            return False
        return (self._since_s is None or at_s >= self._since_s) and (self._until_s is None or at_s <= self._until_s)


def _bound(name: str, text: str | None, now_s: float) -> float | None:
    if text is None:
        return None
    at_s = parse_bound(text, now_s, end_of_day=name == "until")
    if at_s is None:
        raise InvalidRequest(
            f"{name}: unrecognised date {text[:40]!r}; give an ISO 8601 date or instant (UTC unless it has an offset), "
            "or -3d, -12h, -30m."
        )
    return at_s


def _fitted(results: Sequence[Memory], *, full: bool) -> tuple[Memory, ...]:
    """The results with previews that shrink as their number grows, or with whole texts if `full`."""
    if full or not results:
        return tuple(results)
    share = limits.PREVIEWS_CHARS // len(results)
    chars = max(limits.PREVIEW_CHARS_MIN, min(limits.PREVIEW_CHARS_MAX, share))
    return tuple(_preview(memory, chars) for memory in results)


def _preview(memory: Memory, chars: int) -> Memory:
    if len(memory.text) <= chars:
        return memory
    return replace(memory, text=memory.text[: chars - 1].rstrip() + "…", cut=True)
