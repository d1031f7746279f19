"""The legacy schema, found by introspection: which table and column plays which role.

The schema is not ours, and fleets name their columns differently: they are found by name and mapped to roles. We create
`memory_short` exactly as the spec gives it, and nothing else, ever.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from storage.database import fetch, quote, transaction
from storage.errors import ConfigurationError
from storage.times import TimeForm, form_of

MEMORY_SHORT = """CREATE TABLE IF NOT EXISTS memory_short (
  id INTEGER PRIMARY KEY,
  agent TEXT NOT NULL,
  key TEXT NOT NULL,
  value TEXT NOT NULL,
  tags TEXT,
  created_at REAL NOT NULL,
  expires_at REAL,
  UNIQUE(agent, key)           -- upsert semantics
)"""
IX_MEMORY_SHORT = "CREATE INDEX IF NOT EXISTS ix_memory_short_agent ON memory_short(agent, expires_at)"

FRESH_TABLES = (
    "CREATE TABLE agent_registry (agent_id TEXT PRIMARY KEY, role TEXT, created_at REAL)",
    "CREATE TABLE memory_durable (id INTEGER PRIMARY KEY, key TEXT UNIQUE, value TEXT, updated_at REAL)",
    "CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent TEXT NOT NULL, topic TEXT, fact TEXT NOT NULL, "
    "source TEXT, confidence REAL, tags TEXT, embedding BLOB, created_at REAL, updated_at REAL)",
    "CREATE TABLE memory_episodic (id INTEGER PRIMARY KEY, agent TEXT NOT NULL, event_type TEXT, "
    "summary TEXT NOT NULL, details TEXT, outcome TEXT, duration_s REAL, created_at REAL)",
)
"""What `init` makes: the tables that a fleet's database has, in their plainest form."""


@dataclass(frozen=True, slots=True)
class Role:
    """One meaning that a column may have, and the names it has been seen under, best first."""

    name: str
    seen_as: tuple[str, ...]
    required: bool = False


_AGENT = Role("agent", ("agent", "agent_id", "agent_name", "name"), required=True)
_CREATED = Role("created_at", ("created_at", "ts", "timestamp"), required=True)
_UPDATED = Role("updated_at", ("updated_at",))
_SESSION = Role("session", ("session", "session_id"))

ROLES: dict[str, tuple[Role, ...]] = {
    "agent_registry": (Role("agent", ("agent_id", "id", "name"), required=True),),
    "memory_durable": (
        Role("topic", ("key", "name", "topic"), required=True),
        Role("text", ("value", "content", "text"), required=True),
        Role("created_at", ("updated_at", "created_at", "ts", "timestamp")),
    ),
    "memory_longterm": (
        _AGENT,
        Role("text", ("fact", "content", "value", "text"), required=True),
        Role("topic", ("topic", "key", "category")),
        Role("source", ("source",)),
        Role("confidence", ("confidence",)),
        Role("tags", ("tags",)),
        _CREATED,
        _UPDATED,
        _SESSION,
    ),
    "memory_episodic": (
        _AGENT,
        Role("text", ("summary", "content", "value", "text"), required=True),
        Role("topic", ("event_type", "event", "type", "kind")),
        Role("details", ("details", "detail")),
        Role("outcome", ("outcome", "result")),
        Role("duration_s", ("duration_s", "duration")),
        _CREATED,
        _UPDATED,
        _SESSION,
    ),
}


@dataclass(frozen=True, slots=True)
class Table:
    """A legacy table and the columns that play its roles."""

    name: str
    columns: dict[str, str]
    """Column name by role; a role that the table lacks is absent."""
    time_form: TimeForm
    """How the newest row stores `created_at`; writes follow it."""

    def sql(self, role: str) -> str:
        """The quoted column of a role, or the literal NULL where the table has none."""
        column = self.columns.get(role)
        return "NULL" if column is None else quote(column)

    @property
    def quoted(self) -> str:
        """The quoted name of the table."""
        return quote(self.name)


@dataclass(frozen=True, slots=True)
class Schema:
    """Where this database keeps what."""

    registry: Table
    durable: Table
    long: Table
    episodic: Table
    utf8: bool
    """Whether text is stored as UTF-8; a database may also be UTF-16."""
    selects: dict[str, str] = field(default_factory=dict, compare=False)
    """The statements that read a whole row, by tier, kept by those who made them."""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    declared: str
    not_null: bool
    default: object
    primary_key: int
    generated: bool


def _columns(db: apsw.Connection, table: str) -> list[_Column]:
    rows = db.execute(
        'SELECT name, type, "notnull", dflt_value, pk, hidden FROM pragma_table_xinfo(?) WHERE hidden <> 1', (table,)
    )
    return [_Column(n, t or "", bool(nn), d, pk, hidden in (2, 3)) for n, t, nn, d, pk, hidden in rows]


def introspect(db: apsw.Connection, path: Path) -> Schema:
    """Map the tables' columns to their roles. Reads only; `path` is named where they cannot be mapped.

    Raises:
        ConfigurationError: a table is missing, a required role has no column, or a column that we would leave
            empty is NOT NULL without a default; the message names it.
    """
    try:
        return Schema(
            registry=_map(db, "agent_registry", written=False),
            durable=_map(db, "memory_durable", written=False),
            long=_map(db, "memory_longterm", written=True),
            episodic=_map(db, "memory_episodic", written=True),
            utf8=str(db.pragma("encoding")) == "UTF-8",
        )
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _map(db: apsw.Connection, table: str, *, written: bool) -> Table:
    columns = _columns(db, table)
    if not columns:
        raise ConfigurationError(f"The database has no table {table}; is this the fleet's database?")
    roles = _assign(table, columns)
    if written:
        _require_writable(db, table, columns, set(roles.values()))
    return Table(table, roles, _time_form(db, table, columns, roles))


def _assign(table: str, columns: Sequence[_Column]) -> dict[str, str]:
    by_name = {column.name.lower(): column for column in columns if not column.generated}
    if table == "agent_registry" and "INT" in getattr(by_name.get("id"), "declared", "").upper():
        by_name.pop("id")  # a number is no agent's name
    roles: dict[str, str] = {}
    for role in ROLES[table]:
        found = next((by_name.pop(name) for name in role.seen_as if name in by_name), None)
        if found is not None:
            roles[role.name] = found.name
        elif role.required:
            raise ConfigurationError(
                f"{table} has no column for the role '{role.name}' (known names: {', '.join(role.seen_as)}; "
                f"found: {', '.join(column.name for column in columns)})."
            )
    return roles


def _require_writable(db: apsw.Connection, table: str, columns: Sequence[_Column], mapped: set[str]) -> None:
    for column in columns:
        is_row_id = column.primary_key == 1 and column.declared.upper() == "INTEGER"
        if column.not_null and column.default is None and column.name not in mapped and not is_row_id:
            raise ConfigurationError(
                f"{table}.{column.name} is NOT NULL without a default and plays no role we know; "
                "we cannot write rows into this table."
            )
    try:
        fetch(db, f"SELECT rowid FROM {quote(table)} LIMIT 1")
    except apsw.SQLError as error:
        raise ConfigurationError(f"{table} has no row ids (WITHOUT ROWID or a view): {error}.") from error


def _time_form(db: apsw.Connection, table: str, columns: Sequence[_Column], roles: dict[str, str]) -> TimeForm:
    name = roles.get("created_at")
    if name is None:
        return TimeForm.SECONDS
    # Its text is not read: others may have written what is no UTF-8, and any text is the same form.
    column = quote(name)
    newest = db.execute(
        f"SELECT CASE typeof({column}) WHEN 'text' THEN '' ELSE {column} END "
        f"FROM (SELECT * FROM {quote(table)} ORDER BY rowid DESC LIMIT 50) WHERE {column} IS NOT NULL LIMIT 1"
    ).fetchone()
    declared = next(column.declared for column in columns if column.name == name)
    return form_of(newest[0] if newest else None, declared)


def ensure_short(db: apsw.Connection) -> bool:
    """Create `memory_short` and its index where they are missing; True when something was created.

    Raises:
        ConfigurationError: a memory_short of another shape is there; it is left as it is.
    """
    found = _columns(db, "memory_short")
    if found:
        _require_spec_shape(db, found)
    has_index = db.execute("SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'ix_memory_short_agent'")
    if found and has_index.fetchone():
        return False
    with transaction(db):
        db.execute(MEMORY_SHORT)
        db.execute(IX_MEMORY_SHORT)
    return True


def _require_spec_shape(db: apsw.Connection, found: Sequence[_Column]) -> None:
    with_spec = apsw.Connection(":memory:")
    try:
        with_spec.execute(MEMORY_SHORT)
        expected = _columns(with_spec, "memory_short")
    finally:
        with_spec.close()
    if list(found) != expected or ["agent", "key"] not in _unique_keys(db, "memory_short"):
        raise ConfigurationError(
            "The database has a memory_short of another shape than the spec's; it was left as it is. "
            "Rename that table, or use another database."
        )


def _unique_keys(db: apsw.Connection, table: str) -> list[list[str]]:
    indexes = db.execute('SELECT name FROM pragma_index_list(?) WHERE "unique" = 1 AND partial = 0', (table,))
    return [
        [column for (column,) in db.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,))]
        for (name,) in indexes.fetchall()
    ]


def create_fresh(db: apsw.Connection, agents: Sequence[str], now_s: float) -> None:
    """Make the tables of an empty database and register the agents."""
    with transaction(db):
        for statement in FRESH_TABLES:
            db.execute(statement)
        db.execute(MEMORY_SHORT)
        db.execute(IX_MEMORY_SHORT)
        for agent in agents:
            db.execute("INSERT INTO agent_registry(agent_id, role, created_at) VALUES (?, 'agent', ?)", (agent, now_s))
