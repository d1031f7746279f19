"""A second look at the tables, past the service: what its answers are checked against. Read-only."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import apsw

from storage.agents import registered
from storage.database import check_database_file, fetch, open_reader
from storage.durable import PERSONA, select_personas
from storage.errors import ConfigurationError, translated
from storage.records import Tier
from storage.rows import Row, select_rows, table_of
from storage.schema import introspect

MARKED_TIERS: tuple[Tier, ...] = ("long", "episodic")
"""The tiers whose rows are looked through for a mark."""


@dataclass(frozen=True, slots=True)
class Tally:
    """The rows of one table at one moment."""

    rows: int
    last: int
    """The highest row id."""


@dataclass(frozen=True, slots=True)
class Growth:
    """What happened to one table since a tally."""

    rows: int
    """How many more rows there are; negative where there are fewer."""
    marked: tuple[Row, ...]
    """New rows whose text holds the mark."""
    others: int
    """New rows that do not."""

    @property
    def unexplained(self) -> int:
        """Rows that came (positive) or went (negative) without a new id at the table's end."""
        return self.rows - len(self.marked) - self.others


class Witness:
    """A connection of its own to a fleet's database, which another process serves."""

    def __init__(self, path: Path) -> None:
        """Open the database.

        Raises:
            ConfigurationError: it is missing, cannot be read, or its tables cannot be mapped.
        """
        path = path.expanduser().resolve()
        check_database_file(path)
        try:
            self._db = open_reader(path)
            self._schema = introspect(self._db, path)
        except apsw.Error as error:
            raise ConfigurationError(f"{path} cannot be read: {error}.") from error

    def close(self) -> None:
        """Close the connection."""
        self._db.close()

    def agents(self) -> list[str]:
        """Every registered agent.

        Raises:
            Rejection: here and below, the database cannot answer now.
        """
        with translated():
            return registered(self._db, self._schema.registry)

    def keeps(self, tier: Tier, role: str) -> bool:
        """Whether a tier's table has a column for a role; a write that carries more is refused."""
        return role in table_of(self._schema, tier).columns

    def tally(self, tier: Tier) -> Tally:
        """Count a table's rows."""
        table = table_of(self._schema, tier).quoted
        with translated():
            rows, last = fetch(self._db, f"SELECT (SELECT count(*) FROM {table}), (SELECT max(rowid) FROM {table})")[0]
        return Tally(rows, last or 0)

    def growth(self, tier: Tier, before: Tally, mark: str) -> Growth:
        """What happened to a table since a tally, all seen in one moment."""
        with self._one_moment():
            now = self.tally(tier)
            marked, others = [], 0
            for row in select_rows(self._db, self._schema, tier, "WHERE t.rowid > ?", (before.last,)):
                if mark in row.text:
                    marked.append(row)
                else:
                    others += 1
        return Growth(now.rows - before.rows, tuple(marked), others)

    @contextmanager
    def _one_moment(self) -> Iterator[None]:
        """Let every statement of the block see the same state of the database."""
        with translated():
            self._db.execute("BEGIN")
            try:
                yield
            finally:
                self._db.execute("ROLLBACK")

    def row(self, memory_id: str) -> Row | None:
        """The row of an id as the service gives it, `tier:row`; None where there is none."""
        tier, _, number = memory_id.partition(":")
        named: Tier | None = next((known for known in MARKED_TIERS if known == tier), None)
        if named is None or not number.removeprefix("-").isdecimal() or not -(2**63) <= int(number) < 2**63:
            return None
        with translated():
            return next(select_rows(self._db, self._schema, named, "WHERE t.rowid = ?", (int(number),)), None)

    def personas(self, *, but: str, at_most: int) -> list[Row]:
        """Some agents' personas; not that of `but`."""
        where = f"WHERE substr({self._schema.durable.sql('topic')}, 1, {len(PERSONA)}) = ?"
        with translated():
            found = select_personas(self._db, self._schema, where, PERSONA)
        return [row for row in found if row.agent != but][:at_most]
