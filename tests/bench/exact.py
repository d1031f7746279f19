"""Exact BM25 over all that a question says: no budget, no tiers, no rules. The plan of a recall is measured by it.

One FTS5 table over the facts and episodes of a database, with the service's own analysis of rows and questions. It is
kept beside the database and made anew where the analysis or the rows have changed.
"""

import contextlib
import hashlib
import inspect
import json
from collections.abc import Iterator
from pathlib import Path

import apsw

from storage import rows
from storage.records import Tier
from storage.schema import introspect
from storage.search import text

TIERS: tuple[Tier, ...] = ("long", "episodic")
# Every character but the space belongs to a token: the analysis has decided already.
_TOKENIZE = apsw.format_sql_value(
    "ascii tokenchars " + apsw.format_sql_value("".join(map(chr, range(1, 128))).replace(" ", ""))
)
_TABLES = (
    f"CREATE VIRTUAL TABLE rows USING fts5 (terms, content='', tokenize={_TOKENIZE})",
    "CREATE TABLE made_from (fingerprint TEXT)",
)


class Exact:
    """Asks the one table."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db

    def best(self, q: str, k: int) -> list[str]:
        """The ids of the k best rows by bm25() over an OR of all terms of a question."""
        terms = list(dict.fromkeys(term for clause in text.clauses_of(q) for term in sorted(clause.terms)))
        if not terms:
            return []
        sql = "SELECT rowid FROM rows WHERE rows MATCH ? ORDER BY rank LIMIT ?"
        return [_id_of(number) for (number,) in self._db.execute(sql, (text.match_any(terms), k))]


@contextlib.contextmanager
def exact(database: Path) -> Iterator[Exact]:
    """Open the table of a database, made first where it is missing or old."""
    path = Path(f"{database}.exact.db")
    with contextlib.closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as source:
        fingerprint = _fingerprint(source)
        if not _is_made_from(path, fingerprint):
            path.unlink(missing_ok=True)
            _make(path, source, database, fingerprint)
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        yield Exact(db)


def _fingerprint(source: apsw.Connection) -> str:
    highest = [
        source.execute(f"SELECT max(id), count(*) FROM {table}").get for table in ("memory_longterm", "memory_episodic")
    ]
    return hashlib.sha256(
        (inspect.getsource(text) + inspect.getsource(rows) + json.dumps(highest)).encode()
    ).hexdigest()


def _is_made_from(path: Path, fingerprint: str) -> bool:
    if not path.exists():
        return False
    with contextlib.closing(apsw.Connection(str(path))) as db, contextlib.suppress(apsw.SQLError):
        return bool(db.execute("SELECT fingerprint FROM made_from").get == fingerprint)
    return False


def _make(path: Path, source: apsw.Connection, database: Path, fingerprint: str) -> None:
    with contextlib.closing(apsw.Connection(str(path))) as db:
        db.pragma("journal_mode", "off")
        for statement in _TABLES:
            db.execute(statement)
        with db:
            for number, terms in _rows(source, database):
                db.execute("INSERT INTO rows (rowid, terms) VALUES (?, ?)", (number, " ".join(terms)))
            db.execute("INSERT INTO made_from VALUES (?)", (fingerprint,))


def _rows(source: apsw.Connection, database: Path) -> Iterator[tuple[int, list[str]]]:
    """What the service indexes of each row, and the row's number in the one table."""
    schema = introspect(source, database)
    for parity, tier in enumerate(TIERS):
        for row in rows.select_rows(source, schema, tier, "ORDER BY t.rowid"):
            yield 2 * row.row + parity, text.analyse(*row.parts)


def _id_of(number: int) -> str:
    return f"{TIERS[number % 2]}:{number // 2}"
