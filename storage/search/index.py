"""The index file: FTS5 tables, one per tier, that follow the database's tables.

A cache. Its high-water marks lie in the same file and the same transactions as its rows, so that after a crash it
knows how far it has come. `documents` holds of each row what the index must know without the database: author, time,
and the digest that tells a changed row.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from storage.database import FileIdentity, fetch, open_own, transaction
from storage.errors import is_damage
from storage.records import Tier
from storage.rows import SEARCHED, Row
from storage.times import SQLValue

FORMAT = 1
Identity = tuple[int, int]
"""Device and inode: which file of the path's history is meant."""
"""Of the file; another number in it means a rebuild."""

_TOKENIZE = "porter unicode61 remove_diacritics 2"
_TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE high_water (tier TEXT PRIMARY KEY, row INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE counts (tier TEXT, agent TEXT, rows INTEGER NOT NULL, PRIMARY KEY (tier, agent)) WITHOUT ROWID",
    "CREATE TABLE documents (tier TEXT, row INTEGER, agent TEXT NOT NULL, created_s REAL, digest INTEGER NOT NULL, "
    "PRIMARY KEY (tier, row)) WITHOUT ROWID",
    *(
        f"CREATE VIRTUAL TABLE {tier}_fts USING fts5(text, content='', contentless_delete=1, tokenize='{_TOKENIZE}')"
        for tier in SEARCHED
    ),
)


class IndexFailure(Exception):
    """The index file could not be used. It is never an error of the database, and never an empty result."""

    def __init__(self, cause: apsw.Error) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.damaged = is_damage(cause)
        """True where the file itself cannot be used, so that it has to be made anew."""


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except apsw.InterruptError:
        raise
    except apsw.Error as error:
        raise IndexFailure(error) from error


class Index:
    """A connection to the index file. The writer's may add and remove; a reader's only asks.

    Not thread-safe: each thread has its own.
    """

    def __init__(self, path: Path, *, writable: bool) -> None:
        """Open the file; the writer's makes it where it is missing, damaged or of another format.

        Raises:
            IndexFailure: a reader found no usable file, or none can be made.
        """
        self.path = path
        self.rebuilt = False
        with _failures():
            self._db = self._open_or_remake() if writable else _open_reader(path)
        self._identity = FileIdentity(path)

    def _open_or_remake(self) -> apsw.Connection:
        with suppress(apsw.Error):
            db = open_own(self.path, durable=False)
            with suppress(apsw.Error):
                if fetch(db, "SELECT value FROM meta WHERE name = 'format'") == [(FORMAT,)]:
                    return db
            db.close()
        return self._remake()

    def _remake(self) -> apsw.Connection:
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        db = open_own(self.path, durable=False)
        with transaction(db):
            for statement in _TABLES:
                db.execute(statement)
            db.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
        self.rebuilt = True
        return db

    def remake(self) -> None:
        """Throw the file away and begin an empty one; the caller then catches up from nothing."""
        self._db.close()
        with _failures():
            self._db = self._remake()
        self._identity = FileIdentity(self.path)

    @property
    def identity(self) -> Identity | None:
        """Which file is open."""
        return self._identity.opened

    @property
    def unchanged(self) -> bool:
        """False when the file was deleted or replaced since it was opened."""
        return self._identity.unchanged

    def interrupt(self) -> None:
        """Cut the statement that runs now, from any thread."""
        with suppress(apsw.Error):  # closed by its thread in this moment
            self._db.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    # --- what the writer does ---

    def follow(self, rows: Iterable[Row], marks: dict[Tier, int]) -> None:
        """Add or refresh rows and move the high-water marks, in one transaction."""
        with _failures(), transaction(self._db):
            for row in rows:
                self._put(row)
            for tier, mark in marks.items():
                self._db.execute("INSERT OR REPLACE INTO high_water VALUES (?, ?)", (tier, mark))

    def forget(self, tier: Tier, rows: Iterable[int]) -> None:
        """Remove rows that are gone from the table."""
        with _failures(), transaction(self._db):
            for row in rows:
                self._drop(tier, row)

    def _put(self, row: Row) -> None:
        digest = row.digest
        known = self._known(row.tier, row.row)
        if known is not None:
            if known == digest:
                return
            self._drop(row.tier, row.row)
        db = self._db
        db.execute(
            "INSERT INTO documents VALUES (?, ?, ?, ?, ?)", (row.tier, row.row, row.agent, row.created_s, digest)
        )
        db.execute(f"INSERT INTO {row.tier}_fts (rowid, text) VALUES (?, ?)", (row.row, row.searchable))
        db.execute(
            "INSERT INTO counts VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET rows = rows + 1", (row.tier, row.agent)
        )

    def _drop(self, tier: Tier, row: int) -> None:
        db = self._db
        gone = fetch(db, "DELETE FROM documents WHERE tier = ? AND row = ? RETURNING agent", (tier, row))
        if gone:
            db.execute(f"DELETE FROM {tier}_fts WHERE rowid = ?", (row,))
            db.execute("UPDATE counts SET rows = rows - 1 WHERE tier = ? AND agent = ?", (tier, gone[0][0]))

    def mark_complete(self) -> None:
        """Note that the index has once followed the tables to their end."""
        if self.complete:
            return
        with _failures():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('complete', 1)")

    # --- what both ask ---

    def _ask(self, statement: str, bindings: Sequence[SQLValue] = ()) -> list[tuple[Any, ...]]:
        with _failures():
            return fetch(self._db, statement, bindings)

    @property
    def complete(self) -> bool:
        """False from a rebuild's beginning to its end."""
        return bool(self._ask("SELECT 1 FROM meta WHERE name = 'complete'"))

    def _known(self, tier: Tier, row: int) -> int | None:
        found = self._ask("SELECT digest FROM documents WHERE tier = ? AND row = ?", (tier, row))
        return int(found[0][0]) if found else None

    def current(self, row: Row) -> bool:
        """Whether the index knows this row with just this content."""
        return self._known(row.tier, row.row) == row.digest

    def high_water(self, tier: Tier) -> int:
        """The highest row id of a tier up to which the index has followed the table."""
        found = self._ask("SELECT row FROM high_water WHERE tier = ?", (tier,))
        return int(found[0][0]) if found else 0

    def count(self, tier: Tier, agent: str | None) -> int:
        """How many rows of a tier the index holds, of one author or of all."""
        own = "" if agent is None else " AND agent = ?"
        bindings = (tier,) if agent is None else (tier, agent)
        found = self._ask(f"SELECT total(rows) FROM counts WHERE tier = ?{own}", bindings)
        return int(found[0][0])

    def matches(self, tier: Tier, expression: str) -> Iterator[tuple[float, int]]:
        """(score, row id) of the rows that satisfy an FTS5 expression, best first; newest first on ties."""
        with _failures():
            found = self._db.execute(
                f"SELECT -rank, rowid FROM {tier}_fts WHERE {tier}_fts MATCH ? ORDER BY rank, rowid DESC", (expression,)
            )
        while True:
            with _failures():
                match = next(found, None)
            if match is None:
                return
            yield match

    def any_match(self, tier: Tier, expression: str) -> bool:
        """Whether any row satisfies an FTS5 expression."""
        found = self._ask(f"SELECT 1 FROM {tier}_fts WHERE {tier}_fts MATCH ? LIMIT 1", (expression,))
        return bool(found)

    @property
    def bytes(self) -> int:
        """The size of the file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def _open_reader(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(1_000)
    return db
