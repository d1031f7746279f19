"""The index over the words of the swarm's files: an SQLite file of our own, and what of it is kept in memory.

A cache: it may be deleted or damaged at any time, and is then made anew. It does not know whether a file has changed
since: who asks it compares `State`. Each piece of a file is a row of an FTS5 table; its first term is a facet, which
stands for the file's scope and worker.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw
import numpy as np
from numpy.typing import NDArray

from storage.database import FileIdentity, close, fetch, transaction
from storage.search.failures import IndexFailure, index_failures
from storage.search.text import match_any
from storage.swarm.layout import Folder
from storage.swarm.search.searched import SORTS, Piece, Place, Reading, Searched, State, scope_of, sort_of

FORMAT: Final = 1
"""Of the cache file, the analysis included: another number in it means that it is made anew."""
_MEMORY = ":memory:"
_BUSY_MS: Final = 200
_CACHE_KIB: Final = 65_536
_ROWS_SPENT_MAX: Final = 4_000_000
_FACETS_ASKED: Final = 8
_NS_MAX: Final = 2**63 - 1
"""In the year 2262; a file system may name a later one."""
# Every character but the space belongs to a token: storage/search/text.py has decided already.
_TOKENIZE = apsw.format_sql_value(
    "ascii tokenchars " + apsw.format_sql_value("".join(map(chr, range(1, 128))).replace(" ", ""))
)
_TABLES = (
    "CREATE TABLE meta (format INTEGER NOT NULL)",
    "CREATE TABLE files (number INTEGER PRIMARY KEY, root TEXT NOT NULL, folder TEXT NOT NULL, name TEXT NOT NULL, "
    "state TEXT NOT NULL)",
    "CREATE TABLE pieces (row INTEGER PRIMARY KEY, file INTEGER NOT NULL, start INTEGER NOT NULL, "
    "size INTEGER NOT NULL, line INTEGER NOT NULL, digest BLOB NOT NULL)",
    f"CREATE VIRTUAL TABLE words USING fts5(terms, content='', contentless_delete=1, tokenize={_TOKENIZE})",
)

Numbers = NDArray[np.int64]


@dataclass(slots=True)
class Entry:
    """A file as it is in the index."""

    number: int
    place: Place
    state: State
    sure: bool
    """False where it was so young when it was read that it must be read again."""
    rows: dict[int, Piece]


class FileIndex:
    """The index, and what of it is kept in memory. Not thread-safe.

    Every method but `remake` and `close` raises IndexFailure when the file cannot be used; then `remake` it.
    """

    def __init__(self, path: Path) -> None:
        """Open the file; made anew where it is missing, damaged or of another format.

        Where none can be made, or another process has it open, the index is kept in memory.
        """
        self._path = path
        self._reset()
        try:
            with index_failures():
                self._identity: FileIdentity | None = FileIdentity(path)
                path.parent.mkdir(parents=True, exist_ok=True)
                self._db = _connected(str(path))
                self._load()
        except IndexFailure as failure:
            self.close()
            if isinstance(failure.__cause__, apsw.BusyError):
                self._make(_MEMORY)
            else:
                self.remake()

    def _reset(self) -> None:
        self.entries: dict[Place, Entry] = {}
        self.by_number: dict[int, Entry] = {}
        self.mtimes_ns = np.zeros(1024, np.int64)
        """By file number; a time that needs more bits is the nearest that does not."""
        self.sizes = np.zeros(1024, np.int64)
        """By file number, in bytes."""
        self.sorts = np.full(1024, -1, np.int64)
        """By file number, the place of its sort in SORTS; -1 where it has none."""
        self._facets = np.full(1024, -1, np.int64)
        self._facet_numbers: dict[str, int] = {}
        self._files_of_rows = np.full(1024, -1, np.int64)
        self._free: list[int] = []
        self._next_row = 1

    def remake(self, *, in_memory: bool = False) -> None:
        """Throw the file away and begin an empty one, or one in memory."""
        in_memory = in_memory or self._identity is None
        self.close()
        if not in_memory:
            with suppress(IndexFailure), index_failures():
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
                self._make(str(self._path))
                return
            self.close()
        self._make(_MEMORY)

    def _make(self, where: str) -> None:
        self._reset()
        self._db = _connected(where)
        with transaction(self._db):
            for statement in _TABLES:
                self._db.execute(statement)
            self._db.execute("INSERT INTO meta VALUES (?)", (FORMAT,))
        self._identity = None if where == _MEMORY else FileIdentity(self._path)

    def _load(self) -> None:
        if fetch(self._db, "SELECT format FROM meta") != [(FORMAT,)]:
            raise ValueError("another format")
        for number, root, folder, name, state in fetch(self._db, "SELECT * FROM files ORDER BY number"):
            *known, sure = map(int, state.split())
            place = Place(Folder(root, tuple(folder.split("/"))), name)
            self._enter(Entry(number, place, State(*known), bool(sure), {}))
        for row, file, *piece in fetch(self._db, "SELECT * FROM pieces ORDER BY row"):
            self.by_number[file].rows[row] = Piece(*piece)
            self._number_row(row, file)
        if self._next_row > _ROWS_SPENT_MAX:
            raise ValueError("row numbers are spent")
        self._free = [number for number in range(max(self.by_number, default=-1)) if number not in self.by_number]

    @property
    def unchanged(self) -> bool:
        """False when the file was deleted, replaced or emptied since it was opened."""
        if self._identity is None:
            return True
        with suppress(OSError):
            return self._identity.unchanged and self._path.stat().st_size > 0
        return False

    def close(self) -> None:
        """Close the connection."""
        db: apsw.Connection | None = getattr(self, "_db", None)
        if db is not None:
            with suppress(apsw.Error):
                close(db)

    # --- changes ---

    def apply(self, readings: Sequence[Reading]) -> None:
        """Put files into the index as they were read, in one transaction."""
        with index_failures(), transaction(self._db):
            for reading in readings:
                entry = self.entries.get(reading.place)
                if reading.state is not None:
                    self._put(reading, reading.state, entry)
                elif entry is not None:
                    self._remove(entry)

    def _put(self, reading: Reading, state: State, entry: Entry | None) -> None:
        rows = {} if entry is None else {piece: row for row, piece in entry.rows.items()}
        if any(terms is None and piece not in rows for piece, terms in reading.pieces):
            return  # another thread has put another reading of it meanwhile; its state tells that it must be read again
        if entry is None:
            number = self._free.pop() if self._free else len(self.by_number)
            entry = Entry(number, reading.place, state, reading.sure, {})
        entry.state, entry.sure = state, reading.sure
        self._enter(entry)
        (root, parts), name = reading.place
        packed = " ".join(map(str, (*state, int(entry.sure))))
        file = (entry.number, root, "/".join(parts), name, packed)
        self._db.execute("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)", file)
        for piece in rows.keys() - {piece for piece, _ in reading.pieces}:
            self._drop(entry, rows[piece])
        for piece, terms in reading.pieces:
            if terms is not None and piece not in rows:
                row = self._next_row
                words = f"{_facet(reading.place)} {terms}"
                self._db.execute("INSERT INTO pieces VALUES (?, ?, ?, ?, ?, ?)", (row, entry.number, *piece))
                self._db.execute("INSERT INTO words (rowid, terms) VALUES (?, ?)", (row, words))
                entry.rows[row] = piece
                self._number_row(row, entry.number)

    def _remove(self, entry: Entry) -> None:
        for row in list(entry.rows):
            self._drop(entry, row)
        self._db.execute("DELETE FROM files WHERE number = ?", (entry.number,))
        del self.entries[entry.place], self.by_number[entry.number]
        self._facets[entry.number] = self.sorts[entry.number] = -1
        self._free.append(entry.number)

    def _drop(self, entry: Entry, row: int) -> None:
        self._db.execute("DELETE FROM pieces WHERE row = ?", (row,))
        self._db.execute("DELETE FROM words WHERE rowid = ?", (row,))
        del entry.rows[row]
        self._files_of_rows[row] = -1

    def _enter(self, entry: Entry) -> None:
        number, facet = entry.number, _facet(entry.place)
        self.entries[entry.place] = self.by_number[number] = entry
        while number >= len(self.mtimes_ns):
            self.mtimes_ns = _doubled(self.mtimes_ns, 0)
            self.sizes = _doubled(self.sizes, 0)
            self.sorts = _doubled(self.sorts, -1)
            self._facets = _doubled(self._facets, -1)
        self.mtimes_ns[number] = min(max(entry.state.mtime_ns, -_NS_MAX), _NS_MAX)
        self.sizes[number] = entry.state.size
        self.sorts[number] = -1 if (sort := sort_of(entry.place)) is None else SORTS.index(sort)
        self._facets[number] = self._facet_numbers.setdefault(facet, len(self._facet_numbers))

    def _number_row(self, row: int, file: int) -> None:
        while row >= len(self._files_of_rows):
            self._files_of_rows = _doubled(self._files_of_rows, -1)
        self._files_of_rows[row] = file
        self._next_row = row + 1

    # --- questions ---

    def within(self, scope: Searched) -> NDArray[np.bool_]:
        """By file number, whether a file is searched."""
        facets = [number for facet, number in self._facet_numbers.items() if scope.covers(facet)]
        return np.isin(self._facets, facets)

    def owners(self) -> tuple[list[str], Numbers]:
        """(the workers that have files, by file number whose of them a file is; -1 for shared memory)."""
        of_facets = [facet.partition(":")[2] for facet in self._facet_numbers]
        live = {of_facets[number] for number in np.unique(self._facets).tolist() if number >= 0}
        workers = sorted(live - {""})
        places = {worker: at for at, worker in enumerate(workers)}
        table = np.array([*(places.get(worker, -1) for worker in of_facets), -1], np.int64)
        return workers, table[self._facets]

    def rows(self, expression: str, scope: Searched, at_most: int) -> Numbers:
        """Rows that satisfy an FTS5 expression, ascending; perhaps some that the scope leaves out. 0.15 µs for each."""
        facets = [facet for facet in self._facet_numbers if scope.covers(facet)]
        if not facets:
            return np.empty(0, np.int64)
        if len(facets) <= _FACETS_ASKED and len(facets) < len(self._facet_numbers):
            expression = f"({expression}) AND ({match_any(facets)})"
        return self.rows_of_all(expression, at_most)

    def rows_of_all(self, expression: str, at_most: int) -> Numbers:
        """Rows that satisfy an FTS5 expression, ascending, whose files they may be."""
        # One row of all: a step gives the interpreter away, and gets it back late while another thread is busy.
        asked = "SELECT group_concat(rowid, ' ') FROM (SELECT rowid FROM words WHERE words MATCH ? LIMIT ?)"
        with index_failures():
            found = fetch(self._db, asked, (expression, at_most))[0][0]
            return np.fromstring(found or "", np.int64, sep=" ")

    def files_of(self, rows: Numbers) -> NDArray[np.bool_]:
        """By file number, whether one of the rows is of that file."""
        marks = np.zeros(len(self.mtimes_ns) + 1, np.bool_)
        marks[self._files_of_rows[rows[rows < len(self._files_of_rows)]]] = True  # -1, a row of no file, is the last
        return marks[:-1]


def _doubled(numbers: Numbers, more: int) -> Numbers:
    """Twice as many numbers, the rest all the same."""
    return np.concatenate([numbers, np.full_like(numbers, more)])


def _connected(where: str) -> apsw.Connection:
    db = apsw.Connection(where)
    db.set_busy_timeout(_BUSY_MS)
    # A second process that wrote to it would number its rows as this one does.
    fetch(db, "PRAGMA locking_mode = EXCLUSIVE")
    fetch(db, "PRAGMA journal_mode = wal")
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    return db


def _facet(place: Place) -> str:
    """A term that no text has, for a file's scope and worker."""
    scope = scope_of(place.folder)
    if scope is None:
        raise ValueError(f"{place} is not searched")
    return "\x01shared" if scope == "shared" else f"\x01{scope}:{place.folder.parts[0]}"
