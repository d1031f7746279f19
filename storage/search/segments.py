"""The segments that FTS5 keeps posting lists in.

Each write adds one, and FTS5 joins some of them now and then. A term is looked up in each of them: with 13 of them a
recall on 500,000 rows took 2.5 ms, with one 2.1. To join them takes a second there; so it is done in slices.
"""

import time

import apsw

from storage.database import fetch
from storage.rows import SEARCHED

SEGMENTS_MAX = 8
_PAGES = 64
"""Of the index that one step writes: 5 ms at the median, up to 90."""
_CHANGES_OF_ITS_OWN = 2
"""What the command changes when there is nothing to join."""


class Segments:
    """Those of one FTS5 table. Used by the writer alone."""

    def __init__(self, db: apsw.Connection, table: str) -> None:
        self._db = db
        self._table = table
        self._joining = False

    @property
    def count(self) -> int:
        """How many there are."""
        return int(fetch(self._db, f"SELECT count(DISTINCT segid) FROM {self._table}_idx")[0][0])

    def join(self, until: float) -> bool:
        """Join them into one where they are more than SEGMENTS_MAX, until an instant of time.monotonic().

        True when there is nothing to join. A step that has begun is finished; each is a transaction of its own. What
        was begun goes on at the next call, whatever was written in between.
        """
        if not self._joining and self.count > SEGMENTS_MAX:
            self._step(-_PAGES)  # a negative number begins with all of them
            self._joining = True
        while self._joining and time.monotonic() < until:
            self._joining = self._step(_PAGES)
        return not self._joining

    def _step(self, pages: int) -> bool:
        before = self._db.total_changes()
        self._db.execute(f"INSERT INTO {self._table} ({self._table}, rank) VALUES ('merge', {pages})")
        return self._db.total_changes() - before >= _CHANGES_OF_ITS_OWN


def segments_of(db: apsw.Connection) -> list[Segments]:
    """The segments of every tier of an index."""
    return [Segments(db, f"{tier}_fts") for tier in SEARCHED]
