"""Import: lines of JSON become rows, through the writer's own batches, each exactly as its line says or not at all."""

import hashlib
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import apsw

from storage import limits
from storage.agents import require_registered
from storage.batch import Outcome, Write
from storage.copies.exchange import FIELDS, Values, differing_field, line_of, parse_line
from storage.copies.exporting import stored_row, stored_rows
from storage.copies.odd_values import Instant, RawText, Value, micros_of, stored_instant
from storage.copies.snapshot import snapshot
from storage.database import fetch, transaction
from storage.errors import (
    Conflict,
    Forbidden,
    InvalidRequest,
    NotFound,
    Rejection,
    StorageBusy,
    StorageUnavailable,
    TooLarge,
    UnknownAgent,
    translated,
)
from storage.paths import Paths
from storage.records import Remembered, Tier
from storage.rows import SEARCHED, table_of
from storage.schema import Schema, Table
from storage.times import SQLValue, iso_or_none
from storage.write_units import WriteUnits
from storage.writing import WritingStore

LINE_BYTES_MAX = 16 * limits.BODY_BYTES_MAX
"""A longer line is refused unread, so that no file can fill the memory."""
_ROUNDED_BY_US_MAX = 1_000_000
_BOM = b"\xef\xbb\xbf"
_OF_THE_LINE = (Conflict, Forbidden, InvalidRequest, NotFound, TooLarge, UnknownAgent)
"""Refusals of one line; any other stops the import, since the next line would meet it, too."""


@dataclass(slots=True)
class Tally:
    """How far an import is."""

    line: int = 0
    """The last line that was read, counted from 1."""
    imported: int = 0
    """Rows that were added."""
    already_there: int = 0
    """Lines whose rows were there."""
    refused: int = 0
    """Lines that were refused, each reported."""
    rounded: int = 0
    """Rows whose instants are finer than what their table holds: cut off to its unit."""


def import_lines(
    paths: Paths, file: BinaryIO, *, refused: Callable[[int, str], None], progress: Callable[[Tally], None]
) -> Tally:
    """Write what a file holds and the database does not, until the search index has followed.

    The caller holds the lock: the service is stopped. Other processes may write between the transactions, each of
    which is as short as those of the service. `refused` is called with the number and the reason of each line that is
    refused, `progress` after each transaction, which is then on disk: an import that was ended may be run again.

    Raises:
        ConfigurationError: the database cannot be served as it is.
        Rejection: the database or its index cannot be written now.
    """
    store = WritingStore(paths)
    known = Known()
    try:
        known.look(paths, store.schema)
        return _Import(store, known, refused, progress).run(file)
    finally:
        known.close()
        store.close()


class Known:
    """How often each line is there already, in a temporary file: a database may hold more lines than fit in memory."""

    def __init__(self) -> None:
        self._db = apsw.Connection("")
        self._db.execute("CREATE TABLE there (line BLOB PRIMARY KEY, rows INTEGER NOT NULL) WITHOUT ROWID")

    def close(self) -> None:
        """Close and remove the file."""
        self._db.close()

    def look(self, paths: Paths, schema: Schema) -> None:
        """Count the lines that the database holds."""
        with snapshot(paths) as seen, translated(), transaction(self._db):
            for tier in SEARCHED:
                lines = ((_digest(line_of(tier, values)),) for _, values in stored_rows(seen, schema, tier))
                self._db.executemany(
                    "INSERT INTO there VALUES (?, 1) ON CONFLICT (line) DO UPDATE SET rows = rows + 1", lines
                )

    def take(self, line: str) -> bool:
        """Whether a row with this line is there that no earlier line of the file stands for."""
        fetch(self._db, "UPDATE there SET rows = rows - 1 WHERE line = ? AND rows > 0", (_digest(line),))
        return self._db.changes() == 1


def _digest(line: str) -> bytes:
    return hashlib.blake2b(line.encode("utf-8"), digest_size=16).digest()


@dataclass(slots=True)
class _Pending:
    """Lines that wait for a transaction."""

    lines: list["_Line"] = field(default_factory=list)
    bytes: int = 0

    @property
    def full(self) -> bool:
        return len(self.lines) >= limits.BATCH_MESSAGES_MAX or self.bytes >= limits.BATCH_BYTES_MAX

    def add(self, line: "_Line", line_bytes: int) -> None:
        self.lines.append(line)
        self.bytes += line_bytes

    def drop(self, count: int) -> None:
        del self.lines[:count]
        if not self.lines:
            self.bytes = 0


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    write: Write[Any]
    rounded: bool


class _Import:
    """One run over one file."""

    def __init__(
        self,
        store: WritingStore,
        known: Known,
        refused: Callable[[int, str], None],
        progress: Callable[[Tally], None],
    ) -> None:
        self._store = store
        self._known = known
        self._refused = refused
        self._progress = progress
        self._pending = _Pending()
        self.tally = Tally()

    def run(self, file: BinaryIO) -> Tally:
        for number, line in _lines(file):
            self.tally.line = number
            self._read(number, line)
            if self._pending.full:
                self._write()
        while self._pending.lines:
            self._write()
        self._follow()
        return self.tally

    def _read(self, number: int, line: bytes | None) -> None:
        try:
            if line is None:
                raise TooLarge(f"The line is longer than {LINE_BYTES_MAX:,} bytes.")
            tier, values = parse_line(line)
            if tier == "durable":
                raise Forbidden("tier: durable rows are never imported; a persona is its keeper's alone to change.")
            self._keep(number, tier, values)
        except Rejection as refusal:
            self._refuse(number, refusal)

    def _keep(self, number: int, tier: Tier, values: Values) -> None:
        """Queue a line's row, unless it is there: as the line says, or as this table would hold it."""
        schema = self._store.schema
        line = line_of(tier, values)
        if self._known.take(line):
            self.tally.already_there += 1
            return
        held = _held(table_of(schema, tier), tier, values)
        rounded = line_of(tier, held) != line
        if rounded and self._known.take(line_of(tier, held)):
            self.tally.already_there += 1
            return
        write = Write(lambda units, at_s: insert_line(units, schema, tier, held, at_s))
        self._pending.add(_Line(number, write, rounded), len(line))

    def _write(self) -> None:
        """Run one transaction, and look how each of its lines ended."""
        outcomes = self._apply()
        for line, outcome in zip(self._pending.lines, outcomes, strict=False):
            if outcome.error is None:
                self.tally.imported += 1
                self.tally.rounded += line.rounded
            elif isinstance(outcome.error, _OF_THE_LINE):
                self._refuse(line.number, outcome.error)
            else:
                raise outcome.error
        self._pending.drop(len(outcomes))
        self._progress(self.tally)

    def _apply(self) -> list[Outcome]:
        """One transaction; waits for another process's lock as long as any write does."""
        until = time.monotonic() + limits.WRITE_BUDGET_S
        while True:
            try:
                return self._store.apply([line.write for line in self._pending.lines])
            except StorageBusy:
                if time.monotonic() >= until:
                    raise
                time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (spreads retries)

    def _refuse(self, number: int, refusal: Rejection) -> None:
        self.tally.refused += 1
        self._refused(number, refusal.detail)

    def _follow(self) -> None:
        while not self._store.catch_up():
            self._progress(self.tally)
            if self._store.index_error is not None:
                raise StorageUnavailable(
                    f"The rows are on disk, but the search index cannot be written ({self._store.index_error})."
                )


def _lines(file: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """The lines that hold something, with their numbers; None for one that is too long."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        too_long = len(line) > LINE_BYTES_MAX
        while too_long and line and not line.endswith(b"\n"):
            line = file.readline(LINE_BYTES_MAX)
        if number == 1:
            line = line.removeprefix(_BOM)
        if too_long:
            yield number, None
        elif line.strip():
            yield number, line


# --- one row, in the writer's transaction ---


def _held(table: Table, tier: Tier, values: Values) -> Values:
    """What the table would hold: its instants in its own form.

    Raises:
        InvalidRequest: that form would say another time, such as seconds that are read as milliseconds.
    """
    held = dict(values)
    for given in FIELDS[tier]:
        value = values[given.role]
        if isinstance(value, Instant):
            stored = stored_instant(table.time_form, value.us)
            read_us = micros_of(stored)
            if read_us is None or abs(read_us - value.us) >= _ROUNDED_BY_US_MAX:
                raise InvalidRequest(f"{given.name}: {table.name} of this database cannot hold this time.")
            held[given.role] = stored
    return held


def insert_line(units: WriteUnits, schema: Schema, tier: Tier, values: Values, at_s: float) -> Remembered:
    """Insert the row of a line and look that it says what the line says. Runs inside the writer's transaction.

    Raises:
        UnknownAgent: the author is not registered.
        InvalidRequest: the table has no column for a field, or a column that changes the value.
        Conflict: a live short key holds something else, or the database refused the row.
    """
    agent = values["agent"]
    if not isinstance(agent, str):
        raise UnknownAgent("The line names no agent that could be registered.")
    require_registered(units.db, schema.registry, agent)
    if tier == "short":
        _free_key(units, agent, values["topic"], at_s)
    row = _insert(units, table_of(schema, tier), tier, values)
    units.touched.append((tier, row))
    _require_same(units, schema, tier, row, values)
    return Remembered(id=f"{tier}:{row}", tier=tier, agent=agent, created_at=iso_or_none(_plain(values)) or "")


def _plain(values: Values) -> SQLValue:
    created_at = values["created_at"]
    return None if isinstance(created_at, RawText | Instant) else created_at


def _insert(units: WriteUnits, table: Table, tier: Tier, values: Values) -> int:
    """Insert by roles. A NULL is written as such: a column's default would be a value that the line does not have."""
    written: dict[str, Value] = {}
    for given in FIELDS[tier]:
        value = values[given.role]
        if given.role in table.columns:
            written[given.role] = value
        elif given.role == "session" and isinstance(value, str | None):
            units.session = value
        elif value is not None:
            raise InvalidRequest(f"{given.name}: {table.name} of this database has no column for it.")
    if "updated_at" in table.columns:
        written["updated_at"] = values["created_at"]
    names = ", ".join(table.sql(role) for role in written)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, RawText) else "?" for value in written.values())
    # OR ABORT: a UNIQUE constraint of theirs with ON CONFLICT REPLACE would delete another row in silence.
    try:
        units.db.execute(
            f"INSERT OR ABORT INTO {table.quoted} ({names}) VALUES ({marks})",
            tuple(_bindable(value) for value in written.values()),
        )
    except apsw.MismatchError as error:  # a role's column is their INTEGER PRIMARY KEY
        raise Conflict(f"{table.name} refused the row ({error}).") from error
    if units.db.changes() != 1:
        raise Conflict(f"A trigger of {table.name} ignored the row; nothing was written.")
    return units.db.last_insert_rowid()


def _bindable(value: Value) -> SQLValue:
    assert not isinstance(value, Instant)
    return value.utf8 if isinstance(value, RawText) else value


def _require_same(units: WriteUnits, schema: Schema, tier: Tier, row: int, values: Values) -> None:
    """Refuse the row unless an export would give the same line: else it would be added again by the next import."""
    stored = stored_row(units.db, schema, tier, row)
    if stored is None:
        raise Conflict("A trigger of the table removed the row; nothing was written.")
    if units.session is not None:
        stored["session"] = units.session
    name = differing_field(tier, values, stored)
    if name is not None:
        raise InvalidRequest(f"{name}: {table_of(schema, tier).name} of this database would hold another value.")


def _free_key(units: WriteUnits, agent: str, key: Value, at_s: float) -> None:
    """Make room for a short key: what has expired under it goes, what lives stays.

    Raises:
        Conflict: a live value is there; it is never written over.
    """
    mark = "CAST(? AS TEXT)" if isinstance(key, RawText) else "?"
    found = fetch(
        units.db,
        f"SELECT id, expires_at IS NOT NULL AND expires_at <= ? FROM memory_short WHERE agent = ? AND key = {mark}",
        (at_s, agent, _bindable(key)),
    )
    for row, expired in found:
        if not expired:
            raise Conflict(f"key: {agent!r} holds another value under this key; it was kept.")
        units.db.execute("DELETE FROM memory_short WHERE id = ?", (row,))
        units.touched.append(("short", row))
