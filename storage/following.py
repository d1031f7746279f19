"""How the index follows the tables: new rows at once, changed and deleted ones by a sweep in slices.

Reads the database outside of any transaction, so that it needs no lock that another process may hold.
"""

import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

import apsw

from storage import limits
from storage.database import fetch
from storage.errors import Rejection, translated
from storage.records import Tier
from storage.rows import SEARCHED, Row, select_digests, select_rows, table_of
from storage.schema import Schema
from storage.search.analyst import Analyst
from storage.search.contents import Contents, contents_of
from storage.search.index import BEFORE_ALL_ROWS, Index
from storage.search.text import analyse
from storage.state import State

_NEWEST_CHECKED = 16
_SAMPLED = 64
_SLICES_AHEAD = 3
_AFTER_ALL_ROWS = 2**63 - 1


class Follower:
    """Brings one index up to one database. Used by the writer's thread alone."""

    def __init__(
        self,
        db: apsw.Connection,
        schema: Schema,
        state: State,
        index: Index,
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.foreign_change_at_s: float | None = None
        """When it was last noticed that another process had written; None where none has since this was made."""
        self._clock = clock
        self._version_seen: int | None = None
        self._db = db
        self._schema = schema
        self._state = state
        self.index = index
        self._newest_checked_at = -1
        self._swept_at = -1
        """The data_version at which the last whole sweep began: nothing foreign was written before it unseen."""
        self._sweep: _Sweep | None = None
        self._slices: deque[_Slice] = deque()
        self._rows_read = 0
        """Since the index was last caught up."""
        self._analyst: Analyst | None = None

    def _version(self) -> int:
        """Changes when another connection, of whatever process, has committed."""
        version = int(fetch(self._db, "PRAGMA data_version")[0][0])
        if version != self._version_seen:
            if self._version_seen is not None:
                self.foreign_change_at_s = self._clock()
            self._version_seen = version
        return version

    # --- new rows ---

    def catch_up(self, until: float) -> bool:
        """Index what the tables hold beyond the high-water marks, until a time; True when nothing is left."""
        version = self._version_seen
        if self._version() != version:  # a long catch-up must not hide for minutes that others write
            self._slices.clear()
        if not self.index.unchanged:
            self.index.remake()
        with self.index.changing():
            while (following := self._next_slice()) is not None:
                self.index.follow(following.tier, following.contents(), following.mark)
                if time.monotonic() >= until:
                    return False
        self._end_analyst()
        self._check_newest()
        self.index.mark_complete()
        return True

    def _next_slice(self) -> "_Slice | None":
        if self._slices and self._slices[0].after != self.index.high_water(self._slices[0].tier):
            self._slices.clear()  # the index was made anew or rolled back since
        ahead = 1 if self._analyst is None else _SLICES_AHEAD  # read for the process that helps, if there is one
        while len(self._slices) < ahead and (read := self._read_slice()) is not None:
            self._slices.append(read)
        return self._slices.popleft() if self._slices else None

    def _read_slice(self) -> "_Slice | None":
        """The next rows that neither the index nor a slice read ahead has; None where there are none.

        Translated here: an error of the database in the middle of the index's transaction is none of the index.
        Pinned by test_damage_is_named_and_what_is_sound_goes_on.
        """
        for tier in SEARCHED:
            after = max([self.index.high_water(tier), *(ahead.mark for ahead in self._slices if ahead.tier == tier)])
            with translated():
                if (last := self.last_row(tier)) <= after:
                    continue
                rows = self._in_sessions(self._rows_after(tier, after))
            return _Slice(tier, after, rows[-1].row if rows else last, rows, self._begun(rows))
        return None

    def _rows_after(self, tier: Tier, after: int) -> list[Row]:
        """The next rows of a slice: CATCH_UP_ROWS, or fewer where their texts are long."""
        where = "WHERE t.rowid > ? ORDER BY t.rowid LIMIT ?"
        found: list[Row] = []
        chars = 0
        for row in select_rows(self._db, self._schema, tier, where, (after, limits.CATCH_UP_ROWS)):
            found.append(row)
            chars += len(row.text)
            if chars >= limits.CATCH_UP_CHARS:
                break
        return found

    def _begun(self, rows: Sequence[Row]) -> "Future[list[Contents]] | None":
        """The contents of rows as another process computes them, once this has gone on for long enough."""
        self._rows_read += len(rows)
        if self._analyst is None and self._rows_read >= limits.ANALYST_FROM_ROWS:
            with suppress(OSError):  # the system has no process for us: it goes on without
                self._analyst = Analyst()
        return None if self._analyst is None else self._analyst.begin([row.parts for row in rows])

    def _end_analyst(self) -> None:
        self._rows_read = 0
        if self._analyst is not None:
            self._analyst.close()
            self._analyst = None

    def close(self) -> None:
        """End the process that helps, if there is one."""
        self._slices.clear()
        self._end_analyst()

    def _check_newest(self) -> None:
        """Look at the newest rows after a foreign commit: an id that was used before tells nothing by itself."""
        version = self._version()
        if version == self._newest_checked_at:
            return
        for tier in SEARCHED:
            where = "ORDER BY t.rowid DESC LIMIT ?"
            for row, digest in select_digests(self._db, self._schema, tier, where, (_NEWEST_CHECKED,)):
                if self.index.digest_of(tier, row) != digest:
                    self.refresh([(tier, row)])
        self._newest_checked_at = version

    def refresh(self, touched: Sequence[tuple[Tier, int]]) -> None:
        """Index these rows as they are now; those that are gone are forgotten."""
        self._slices.clear()  # they may hold these rows as they were
        for tier in SEARCHED:
            wanted = list(dict.fromkeys(row for of, row in touched if of == tier))
            found = [row for number in wanted if (row := self.row_at(tier, number)) is not None]
            if gone := set(wanted) - {row.row for row in found}:
                self.index.forget(tier, gone)
            if found:
                self.index.follow(tier, [(row, contents_of(row.parts)) for row in self._in_sessions(found)])

    def row_at(self, tier: Tier, row: int) -> Row | None:
        """The row with this id as it is now."""
        return next(select_rows(self._db, self._schema, tier, "WHERE t.rowid = ?", (row,)), None)

    def last_row(self, tier: Tier) -> int:
        """The highest row id of a tier's table."""
        highest = fetch(self._db, f"SELECT max(rowid) FROM {table_of(self._schema, tier).quoted}")[0][0]
        return BEFORE_ALL_ROWS if highest is None else int(highest)

    def _in_sessions(self, rows: Sequence[Row]) -> list[Row]:
        """The rows with the sessions that state.db knows of; where the table has a column, they have them already."""
        if not rows or "session" in table_of(self._schema, rows[0].tier).columns:
            return list(rows)
        ids = [row.row for row in rows]
        known: dict[int, tuple[int, str]] = {}
        with suppress(Rejection):  # without state.db rows stand alone; they are found all the same
            known = self._state.sessions(rows[0].tier, min(ids), max(ids))
        return [_in_session(row, known.get(row.row)) for row in rows]

    # --- changed and deleted rows ---

    def sweep(self, until: float) -> bool:
        """Compare a slice of the tables with the index; True when there is nothing to look for any more.

        A sweep begins at the start and after each foreign commit, and looks at every row once.
        """
        if self._sweep is None:
            version = self._version()
            if version == self._swept_at:
                return True
            self._sweep = _Sweep(version)
        while self._sweep is not None and time.monotonic() < until:
            self._sweep_slice(self._sweep)
        return False

    def _sweep_slice(self, sweep: "_Sweep") -> None:
        tier = SEARCHED[sweep.tier]
        where = "WHERE t.rowid > ? AND t.rowid <= ? ORDER BY t.rowid LIMIT ?"
        bindings = (sweep.row, self.index.high_water(tier), limits.CATCH_UP_ROWS)
        there = dict(select_digests(self._db, self._schema, tier, where, bindings))
        whole = len(there) < limits.CATCH_UP_ROWS
        last = _AFTER_ALL_ROWS if whole else max(there)
        known = self.index.rows_after(tier, sweep.row, last, limits.CATCH_UP_ROWS)
        if len(known) == limits.CATCH_UP_ROWS and max(known) < last:  # others deleted so many in one place
            whole, last = False, max(known)
            there = {row: digest for row, digest in there.items() if row <= last}
        if differing := [row for row in there.keys() | known.keys() if there.get(row) != known.get(row)]:
            self.refresh([(tier, row) for row in differing])
        sweep.row = last
        if whole:
            sweep.tier += 1
            sweep.row = BEFORE_ALL_ROWS
            if sweep.tier == len(SEARCHED):
                self._swept_at = sweep.version
                self._sweep = None

    def follows_another(self, seed: int) -> bool:
        """Whether the index is that of another database: of rows picked at random it knows most as another's.

        Such an index would leave rows out without a word, until a sweep has found them all. A row that was edited is
        still known; where the tables hold no row at all, an index of some is another's.
        """
        picked = list(self._picked(random.Random(seed)))  # noqa: S311 (a sample, not a secret)
        if not picked:
            return any(self.index.size(tier)[0] for tier in SEARCHED)
        return 2 * sum(not self.index.knows(row) for row in picked) > len(picked)

    def _picked(self, pick: random.Random) -> Iterator[Row]:
        """Rows of the tables, of those that the index has followed."""
        for tier in SEARCHED:
            with translated():
                last = min(self.index.high_water(tier), self.last_row(tier))
                for _ in range(_SAMPLED if last > 0 else 0):
                    where = "WHERE t.rowid BETWEEN ? AND ? ORDER BY t.rowid LIMIT 1"
                    yield from select_rows(self._db, self._schema, tier, where, (pick.randint(1, last), last))

    def sampled_damage(self, seed: int) -> bool:
        """Whether any of some rows picked at random is not found by a term of its own: the index is damaged."""
        pick = random.Random(seed)  # noqa: S311 (a sample, not a secret)
        for tier in SEARCHED:
            mark = self.index.high_water(tier)
            for _ in range(_SAMPLED if mark > 0 else 0):
                row = next(
                    select_rows(self._db, self._schema, tier, "WHERE t.rowid >= ? LIMIT 1", (pick.randint(1, mark),)),
                    None,
                )
                if row is not None and self.index.current(row) and not self._found(row):
                    return True
        return False

    def _found(self, row: Row) -> bool:
        terms = analyse(*row.parts)
        return not terms or self.index.holds(row.tier, row.row, max(terms, key=len))


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows that were read to be indexed: all of a tier after one row id up to another."""

    tier: Tier
    after: int
    mark: int
    rows: Sequence[Row]
    begun: Future[list[Contents]] | None
    """Where another process takes them apart."""

    def contents(self) -> list[tuple[Row, Contents]]:
        """Each row with its contents."""
        if self.begun is not None:
            return list(zip(self.rows, self.begun.result(), strict=True))
        return [(row, contents_of(row.parts)) for row in self.rows]


class _Sweep:
    """How far a sweep has come."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.tier = 0
        self.row = BEFORE_ALL_ROWS


def _in_session(row: Row, link: tuple[int, str] | None) -> Row:
    return replace(row, session=link[1]) if link is not None and link[0] == row.content else row
