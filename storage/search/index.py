"""The index file: for each tier an FTS5 table and a table of documents that follow the database's table.

A cache. Its high-water marks lie in the same file and the same transactions as its rows, so that after a crash it
knows how far it has come. A document is what must be known of a row without reading the database: author, session
and time, the digests that tell a changed row and the same sentence, and its terms (16 bits of a hash for each, with how
often they occur) to score it by. So the FTS5 tables keep posting lists and nothing else (`detail=none`): no positions,
no bm25(). Author, topic and tags are terms of their own there (documents.facet).
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from storage.database import FileIdentity, fetch, open_own, transaction
from storage.records import Tier
from storage.rows import SEARCHED, Row
from storage.search.contents import Contents
from storage.search.documents import DOCUMENT, Document, Filters, facet, length_of
from storage.search.failures import index_failures
from storage.search.postings import GATHERED, Postings
from storage.search.segments import segments_of
from storage.search.tables import FORMAT, create_tables
from storage.search.text import quoted
from storage.times import SQLValue

BEFORE_ALL_ROWS = -(2**63)
"""The high-water mark of a tier that nothing of has been followed."""
Identity = tuple[int, int]
"""Device and inode: which file of the path's history is meant."""

_BUSY_MS = 1_000
_NUMBERS_CACHED = 10_000
_CACHE_KIB = 65_536


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
        self._numbers: dict[str, int] = {}
        self._marks: dict[Tier, int] | None = {} if writable else None
        """The high-water marks, which nobody but the writer's index moves."""
        self._bytes_seen = 0
        self._identity = FileIdentity(path)  # before it is opened: a file put there in between must be noticed
        with index_failures():
            self._db = self._open_or_remake() if writable else _open_reader(path)
            self._segments = segments_of(self._db)
        if self.rebuilt or (writable and self._identity.opened is None):
            self._identity = FileIdentity(path)

    def _open_or_remake(self) -> apsw.Connection:
        with suppress(apsw.Error):
            db = open_own(self.path, durable=False)
            db.set_busy_timeout(_BUSY_MS)
            with suppress(apsw.Error):
                if fetch(db, "SELECT value FROM meta WHERE name = 'format'") == [(FORMAT,)]:
                    return db
            db.close()
        return self._remake()

    def _remake(self) -> apsw.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        for suffix in ("", "-wal", "-shm"):
            self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)
        db = open_own(self.path, durable=False)
        with transaction(db):
            create_tables(db)
        self.rebuilt = True
        return db

    def remake(self) -> None:
        """Throw the file away and begin an empty one; the caller then catches up from nothing."""
        self._db.close()
        self._forget_read()
        with index_failures():
            self._db = self._remake()
            self._segments = segments_of(self._db)
        self._identity = FileIdentity(self.path)
        self._bytes_seen = 0

    @property
    def identity(self) -> Identity | None:
        """Which file is open."""
        return self._identity.opened

    @property
    def unchanged(self) -> bool:
        """False when the file was deleted, replaced or cut short since it was opened: by itself it only ever grows."""
        if not self._identity.unchanged or self.bytes < self._bytes_seen:
            return False
        self._bytes_seen = self.bytes
        return True

    def interrupt(self) -> None:
        """Cut the statement that runs now, from any thread."""
        with suppress(apsw.Error):  # closed by its thread in this moment
            self._db.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    # --- what the writer does ---

    def follow(self, tier: Tier, rows: Sequence[tuple[Row, Contents]], mark: int | None = None) -> None:
        """Add or refresh rows of a tier and move its high-water mark, in one transaction."""
        with self.changing():
            known = self._digests(tier, [row.row for row, _ in rows])
            new = [(row, contents) for row, contents in rows if known.get(row.row) != row.digest]
            for row, _ in new:
                if row.row in known:
                    self._drop(tier, row.row)
            self._put(tier, new)
            if mark is not None:
                self._db.execute("INSERT OR REPLACE INTO high_water VALUES (?, ?)", (tier, mark))
                if self._marks is not None:
                    self._marks[tier] = mark

    def forget(self, tier: Tier, rows: Iterable[int]) -> None:
        """Remove rows that are gone from the table."""
        with self.changing():
            for row in rows:
                self._drop(tier, row)

    @contextmanager
    def changing(self) -> Iterator[None]:
        """One transaction for all that the block adds and removes; a block in a block belongs to the outer one."""
        if self._db.in_transaction:
            yield
            return
        try:
            with index_failures(), transaction(self._db):
                yield
        except BaseException:
            self._forget_read()  # a name that was numbered in the transaction has no number now
            raise

    def _forget_read(self) -> None:
        self._numbers.clear()
        if self._marks is not None:
            self._marks.clear()

    def _put(self, tier: Tier, rows: Sequence[tuple[Row, Contents]]) -> None:
        """Add rows that the index does not hold."""
        documents: list[tuple[SQLValue | bytes, ...]] = []
        postings: list[tuple[int, str]] = []
        added: Counter[str] = Counter()
        lengths: Counter[str] = Counter()
        for row, contents in rows:
            agent = self._name(row.agent)
            session = None if row.session is None else self._name(row.session)
            times = (row.created_s, row.expires_at)
            documents.append((row.row, agent, session, *times, row.digest, row.sentence, contents.packed))
            postings.append((row.row, " ".join([*self._facets(row, agent), contents.terms])))
            added[row.agent] += 1
            lengths[row.agent] += length_of(contents.packed)
        self._db.executemany(f"INSERT INTO {tier}_documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", documents)
        self._db.executemany(f"INSERT INTO {tier}_fts (rowid, terms) VALUES (?, ?)", postings)
        for author, count in added.items():
            self._count(tier, author, count, lengths[author])

    def _facets(self, row: Row, agent: int) -> list[str]:
        """The terms of what narrows a recall to the row."""
        facets = [facet("agent", agent), *(facet("tag", self._name(tag)) for tag in row.tags)]
        if row.topic is not None:
            facets.append(facet("topic", self._name(row.topic)))
        return facets

    def _drop(self, tier: Tier, row: int) -> None:
        gone = fetch(
            self._db,
            f"DELETE FROM {tier}_documents WHERE row = ? RETURNING (SELECT name FROM names WHERE id = agent), terms",
            (row,),
        )
        if gone:
            agent, terms = gone[0]
            self._db.execute(f"DELETE FROM {tier}_fts WHERE rowid = ?", (row,))
            self._count(tier, agent, -1, -length_of(terms))

    def _count(self, tier: Tier, agent: str, rows: int, terms: int) -> None:
        self._db.execute(
            "INSERT INTO counts VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET rows = rows + excluded.rows, terms = terms + excluded.terms",
            (tier, agent, rows, terms),
        )

    def _name(self, name: str) -> int:
        """The number of a name, given at its first use."""
        number = self.number(name)
        if number is None:
            self._db.execute("INSERT INTO names (name) VALUES (?)", (name,))
            number = self._db.last_insert_rowid()
        return number

    def join_segments(self, until: float) -> bool:
        """Join the segments of the posting lists for a while; see Segments.join()."""
        with index_failures():
            return all(segments.join(until) for segments in self._segments)

    def mark_complete(self) -> None:
        """Note that the index has once followed the tables to their end."""
        if self.complete:
            return
        with index_failures():
            self._db.execute("INSERT OR REPLACE INTO meta VALUES ('complete', 1)")

    # --- what both ask ---

    def _ask(self, statement: str, bindings: Sequence[SQLValue] = ()) -> list[tuple[Any, ...]]:
        with index_failures():
            return fetch(self._db, statement, bindings)

    def _number(self, statement: str, bindings: Sequence[SQLValue] = ()) -> int | None:
        """The number that a statement answers with; None for no row and for NULL."""
        with index_failures():
            found = fetch(self._db, statement, bindings)
            return int(found[0][0]) if found and found[0][0] is not None else None

    @property
    def complete(self) -> bool:
        """False from a rebuild's beginning to its end."""
        return bool(self._ask("SELECT 1 FROM meta WHERE name = 'complete'"))

    def digest_of(self, tier: Tier, row: int) -> int | None:
        """The digest of a document; None where the index has none of the row."""
        return self._number(f"SELECT digest FROM {tier}_documents WHERE row = ?", (row,))

    def current(self, row: Row) -> bool:
        """Whether the index knows this row with just this content."""
        return self.digest_of(row.tier, row.row) == row.digest

    def knows(self, row: Row) -> bool:
        """Whether the index has a document of this row, perhaps from before an edit: with its author and its time."""
        sql = f"SELECT digest, created_s, name FROM {row.tier}_documents JOIN names ON id = agent WHERE row = ?"
        found = self._ask(sql, (row.row,))
        return found[0][0] == row.digest or found[0][1:] == (row.created_s, row.agent) if found else False

    def _digests(self, tier: Tier, rows: Sequence[int]) -> dict[int, int]:
        """The digests of those rows that the index holds."""
        sql = f"SELECT row, digest FROM json_each(?) JOIN {tier}_documents ON row = value"
        return dict(self._ask(sql, (json.dumps(rows),)))

    def rows_after(self, tier: Tier, before: int, last: int, at_most: int = -1) -> dict[int, int]:
        """The digests of the documents after one row id up to another, by row id; the first `at_most` where given."""
        statement = f"SELECT row, digest FROM {tier}_documents WHERE row > ? AND row <= ? ORDER BY row LIMIT ?"
        return dict(self._ask(statement, (before, last, at_most)))

    def holds(self, tier: Tier, row: int, term: str) -> bool:
        """Whether a row is found by a term."""
        statement = f"SELECT 1 FROM {tier}_fts WHERE {tier}_fts MATCH ? AND rowid = ?"
        return bool(self._ask(statement, (quoted(term), row)))

    def number(self, name: str) -> int | None:
        """The number of an author's, session's, topic's or tag's name; None where no document has it."""
        known = self._numbers.get(name)
        if known is None:
            known = self._number("SELECT id FROM names WHERE name = ?", (name,))
            if known is not None:
                self._numbers[name] = known
            if len(self._numbers) > _NUMBERS_CACHED:
                self._numbers.clear()
        return known

    def high_water(self, tier: Tier) -> int:
        """The highest row id of a tier up to which the index has followed the table."""
        if self._marks is not None and tier in self._marks:
            return self._marks[tier]
        mark = self._number("SELECT row FROM high_water WHERE tier = ?", (tier,))
        mark = BEFORE_ALL_ROWS if mark is None else mark
        if self._marks is not None:
            self._marks[tier] = mark
        return mark

    def count(self, tier: Tier, agent: str | None) -> int:
        """How many rows of a tier the index holds, of one author or of all."""
        own = "" if agent is None else " AND agent = ?"
        bindings = (tier,) if agent is None else (tier, agent)
        return self._number(f"SELECT total(rows) FROM counts WHERE tier = ?{own}", bindings) or 0

    def size(self, tier: Tier) -> tuple[int, float]:
        """(documents, terms of an average document) of a tier."""
        rows = self._number("SELECT total(rows) FROM counts WHERE tier = ?", (tier,)) or 0
        terms = self._number("SELECT total(terms) FROM counts WHERE tier = ?", (tier,)) or 0
        return rows, terms / rows if rows else 1.0

    def version(self) -> int:
        """Another number after each change that another connection has made to the file."""
        return self._number("PRAGMA data_version") or 0

    # --- postings and documents ---

    def postings(self, tier: Tier, expression: str, at_most: int) -> int:
        """How many documents satisfy an FTS5 expression; counting stops at `at_most`."""
        counted = f"SELECT 1 FROM {tier}_fts WHERE {tier}_fts MATCH ? LIMIT ?"
        return self._number(f"SELECT count(*) FROM ({counted})", (expression, at_most)) or 0

    def frequency(self, tier: Tier, term: str) -> int:
        """How many documents hold a term, counted to the end: 3 ms for a common one."""
        return self._number(f"SELECT doc FROM temp.{tier}_terms WHERE term = ?", (term,)) or 0

    def terms_from(self, tier: Tier, prefix: str, at_most: int) -> list[str]:
        """Terms of the index that begin with a prefix."""
        found = self._ask(
            f"SELECT term FROM temp.{tier}_terms WHERE term >= ? AND term < ? LIMIT ?",
            (prefix, prefix + "\U0010ffff", at_most),
        )
        return [term for (term,) in found]

    def matching(self, tier: Tier, expression: str, filters: Filters, at_most: int, *, whole: bool = False) -> Postings:
        """The newest rows that satisfy an FTS5 expression and the times of the filters, with their terms.

        Costs 1.5 µs for each. Those that the times exclude cost the same: so no more than `at_most` are looked at,
        unless the whole list is to be.
        """
        times, bindings = filters.conditions()
        found = (
            f"(SELECT rowid AS row FROM {tier}_fts WHERE {tier}_fts MATCH ? ORDER BY rowid DESC LIMIT ?) AS some "
            f"CROSS JOIN {tier}_documents AS d ON d.row = some.row WHERE 1{times}"
        )
        if whole:
            some = f"(SELECT d.row, d.terms FROM {found} LIMIT ?) AS d"
            return self._gather(some, (expression, -1, *bindings, at_most))
        return self._gather(found, (expression, at_most, *bindings))

    def _gather(self, documents: str, bindings: Sequence[SQLValue]) -> Postings:
        """The postings of what a FROM clause says of documents `d`."""
        with index_failures():
            ((rows, sizes, terms),) = fetch(self._db, f"SELECT {GATHERED} FROM {documents}", bindings)
            return Postings.gathered(rows, sizes, terms)

    def timed(self, tier: Tier, filters: Filters, at_most: int) -> list[int]:
        """Rows that the times of the filters leave, the newest first."""
        times, bindings = filters.conditions()
        found = self._ask(
            f"SELECT d.row FROM {tier}_documents AS d WHERE 1{times} ORDER BY d.created_s DESC LIMIT ?",
            (*bindings, at_most),
        )
        return [row for (row,) in found]

    def among(self, tier: Tier, rows: Sequence[int], expression: str | None, filters: Filters) -> Postings:
        """Those of the rows that satisfy an FTS5 expression, if there is one, and the filters' times."""
        if not rows:
            return Postings.none()
        if expression is not None:
            span = f"{tier}_fts MATCH ? AND rowid BETWEEN ? AND ?"
            held = self._ask(f"SELECT rowid FROM {tier}_fts WHERE {span}", (expression, min(rows), max(rows)))
            rows = sorted({row for (row,) in held}.intersection(rows))
        times, bindings = filters.conditions()
        found = f"json_each(?) JOIN {tier}_documents AS d ON d.row = value WHERE 1{times}"
        return self._gather(found, (json.dumps(rows), *bindings))

    def documents(self, tier: Tier, rows: Sequence[int]) -> list[Document]:
        """The documents of these rows; those that are gone are left out."""
        if not rows:
            return []
        sql = f"SELECT '{tier}', {DOCUMENT} FROM json_each(?) JOIN {tier}_documents AS d ON d.row = value"
        return list(map(Document._make, self._ask(sql, (json.dumps(rows),))))

    def session(self, tier: Tier, session: int, at_most: int) -> list[Document]:
        """The documents of a session in their order."""
        sql = f"SELECT '{tier}', {DOCUMENT} FROM {tier}_documents AS d WHERE d.session = ? ORDER BY d.row LIMIT ?"
        return list(map(Document._make, self._ask(sql, (session, at_most))))

    def authors(self) -> list[str]:
        """Every author of an indexed row."""
        return [agent for (agent,) in self._ask("SELECT DISTINCT agent FROM counts WHERE rows > 0")]

    @property
    def bytes(self) -> int:
        """The size of the file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def _open_reader(path: Path) -> apsw.Connection:
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(_BUSY_MS)
    # No mmap: a file that is cut short under a mapping ends the process (SIGBUS).
    db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    for tier in SEARCHED:
        db.execute(f"CREATE VIRTUAL TABLE temp.{tier}_terms USING fts5vocab(main, {tier}_fts, row)")
    return db
