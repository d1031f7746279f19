"""Export: every row as a line of JSON, ordered by time, author and text, in memory that does not grow with the rows."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from storage.copies.exchange import FIELDS, Values, line_of
from storage.copies.odd_values import RawText, Value, micros_of, text_of
from storage.copies.snapshot import Snapshot, snapshot
from storage.copies.staging import place, staged
from storage.database import fetch, quote, transaction
from storage.durable import PERSONA
from storage.errors import StorageFull, translated
from storage.paths import Paths
from storage.records import Tier
from storage.rows import SEARCHED, any_text, select_rows, table_of
from storage.schema import Schema, introspect
from storage.times import SQLValue

_SLICE_ROWS = 500
_LINES = "CREATE TABLE lines (at_us INTEGER, agent BLOB, text BLOB, line TEXT)"
_SORTED = "SELECT line FROM lines ORDER BY at_us, agent, text, line"


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote, and what it cannot carry."""

    lines: int
    """How many lines: one for each row."""
    left_out: tuple[str, ...]
    """Columns (table.column) that hold values and play no role we know, such as embeddings: they are in no line."""


def export(paths: Paths, write: Callable[[bytes], object], *, durable: bool) -> Exported:
    """Write the lines of every short, long and episodic row, and of every durable one where asked.

    Reads one instant of the database, changes nothing, and may run beside the service. The same rows give the same
    bytes. Expired short rows that were not purged yet are there, too: the clock plays no part.

    Raises:
        ConfigurationError: the path holds no database of ours.
        StorageFull: there is no room for the sorted lines in the folder for temporary files.
        Rejection: the database cannot be read.
    """
    tiers: tuple[Tier, ...] = (*SEARCHED, "durable") if durable else SEARCHED
    with closing(apsw.Connection("")) as sorting:  # "": a file of its own that SQLite removes
        with snapshot(paths) as seen, translated():
            schema = introspect(seen.db, paths.database)
            _collect(sorting, seen, schema, tiers)
            left_out = tuple(name for tier in tiers for name in _unmapped(seen.db, schema, tier))
        lines = 0
        for line in _sorted(sorting):
            write(line)
            lines += 1
    return Exported(lines, left_out)


def export_file(paths: Paths, target: Path, *, durable: bool) -> Exported:
    """Export into a new file, which appears when it is whole; what `export` raises, and

    Raises:
        ConfigurationError: the file exists.
        StorageFull: its disk is full.
    """
    target = target.expanduser().absolute()
    with staged(target) as staging:
        made = staging / target.name
        with made.open("wb") as file:
            exported = export(paths, file.write, durable=durable)
        place(made, target)
    return exported


def _collect(sorting: apsw.Connection, seen: Snapshot, schema: Schema, tiers: Sequence[Tier]) -> None:
    with _room(), transaction(sorting):
        sorting.execute(_LINES)
        for tier in tiers:
            rows = ((*_key(values), line_of(tier, values)) for _, values in stored_rows(seen, schema, tier))
            sorting.executemany("INSERT INTO lines VALUES (?, ?, ?, ?)", rows)


def _sorted(sorting: apsw.Connection) -> Iterator[bytes]:
    with _room():
        for (line,) in sorting.execute(_SORTED):
            yield line.encode("utf-8") + b"\n"


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except apsw.FullError as error:
        raise StorageFull("There is no room to sort the lines: set SQLITE_TMPDIR to a folder with space.") from error


def _key(values: Values) -> tuple[SQLValue, SQLValue, SQLValue]:
    return micros_of(values["created_at"]), _sortable(values["agent"]), _sortable(values["text"])


def _sortable(value: Value) -> SQLValue:
    """Text in the order of its characters, whatever type the column gave it; other bytes after it."""
    if isinstance(value, RawText):
        return value.utf8
    return value if isinstance(value, str | bytes | None) else str(value)


# --- rows as they are stored ---


def stored_rows(seen: Snapshot, schema: Schema, tier: Tier) -> Iterator[tuple[int, Values]]:
    """(row id, values by role) of every row of a tier, by row id, with the sessions that state.db knows."""
    if tier == "short" and not fetch(seen.db, "SELECT 1 FROM sqlite_master WHERE name = 'memory_short'"):
        return
    after: int | None = None
    while rows := _slice(seen.db, schema, tier, after):
        if _keeps_sessions_elsewhere(schema, tier):
            _add_sessions(seen, schema, tier, rows)
        yield from rows
        after = rows[-1][0]


def stored_row(db: apsw.Connection, schema: Schema, tier: Tier, row: int) -> Values | None:
    """What one row holds in its table, by role; None where it is gone."""
    return next((values for _, values in _select(db, schema, tier, "WHERE t.rowid = ?", (row,))), None)


def _slice(db: apsw.Connection, schema: Schema, tier: Tier, after: int | None) -> list[tuple[int, Values]]:
    where = "" if after is None else "WHERE t.rowid > ?"
    bindings = (_SLICE_ROWS,) if after is None else (after, _SLICE_ROWS)
    return list(_select(db, schema, tier, f"{where} ORDER BY t.rowid LIMIT ?", bindings))


def _select(
    db: apsw.Connection, schema: Schema, tier: Tier, where: str, bindings: Sequence[SQLValue]
) -> Iterator[tuple[int, Values]]:
    """The rows with their columns' own types: text comes as bytes (`any_text`), and its type beside it."""
    table = table_of(schema, tier)
    roles = [field.role for field in FIELDS[tier]]
    types = " || ".join(f"substr(typeof({table.sql(role)}), 1, 1)" for role in roles)
    columns = ", ".join(any_text(table.sql(role), schema) for role in roles)
    statement = f"SELECT t.rowid, {types}, {columns} FROM {table.quoted} AS t {where}"
    for row, letters, *found in db.execute(statement, tuple(bindings)):
        values = {role: _typed(letter, value) for role, letter, value in zip(roles, letters, found, strict=True)}
        if tier == "durable":
            values["agent"] = _owner(values["topic"])
        yield row, values


def _typed(letter: str, value: Any) -> Value:
    found: Value = text_of(value) if letter == "t" and isinstance(value, bytes) else value
    return found


def _owner(key: Value) -> Value:
    """A durable row has no author's column; its key may name one."""
    return key.removeprefix(PERSONA) if isinstance(key, str) and key.startswith(PERSONA) else None


def _keeps_sessions_elsewhere(schema: Schema, tier: Tier) -> bool:
    return "session" in {field.role for field in FIELDS[tier]} and "session" not in table_of(schema, tier).columns


def _add_sessions(seen: Snapshot, schema: Schema, tier: Tier, rows: list[tuple[int, Values]]) -> None:
    known = _sessions(seen.state, tier, rows[0][0], rows[-1][0])
    if not known:
        return
    where = "WHERE t.rowid BETWEEN ? AND ?"
    contents = {row.row: row.content for row in select_rows(seen.db, schema, tier, where, (rows[0][0], rows[-1][0]))}
    for row, values in rows:
        digest, session = known.get(row, (None, None))
        if digest is not None and digest == contents[row]:  # else the record is of an earlier row of this id
            values["session"] = session


def _sessions(state: apsw.Connection | None, tier: Tier, first: int, last: int) -> dict[int, tuple[int, str]]:
    if state is None or not fetch(state, "SELECT 1 FROM sqlite_master WHERE name = 'sessions'"):
        return {}
    statement = "SELECT row, digest, session FROM sessions WHERE tier = ? AND row BETWEEN ? AND ?"
    return {row: (digest, session) for row, digest, session in fetch(state, statement, (tier, first, last))}


def _unmapped(db: apsw.Connection, schema: Schema, tier: Tier) -> Iterator[str]:
    """Columns that hold something and play no role; a row id, and when a row was last changed, are not missed."""
    table = table_of(schema, tier)
    for name, declared, key in fetch(db, "SELECT name, type, pk FROM pragma_table_info(?)", (table.name,)):
        is_row_id = key == 1 and declared.upper() == "INTEGER"
        if is_row_id or name in table.columns.values():
            continue
        if fetch(db, f"SELECT 1 FROM {table.quoted} WHERE {quote(name)} IS NOT NULL LIMIT 1"):
            yield f"{table.name}.{name}"
