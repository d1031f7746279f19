"""One shape for the rows of every tier, however the legacy table names and types its columns.

Legacy rows are read as they are: NULLs, odd confidences, tags that are no JSON, BLOBs where text should be. None of
them hides a row.
"""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import apsw

from storage.errors import Conflict, InvalidRequest
from storage.records import Also, Memory, Tier
from storage.schema import Schema, Table
from storage.times import SQLValue, TimeForm, instant, iso_or_none

SHORT = Table(
    "memory_short",
    {
        "agent": "agent",
        "topic": "key",
        "text": "value",
        "tags": "tags",
        "created_at": "created_at",
        "expires_at": "expires_at",
    },
    TimeForm.SECONDS,
)
"""memory_short in the roles of the other tables. Its shape is ours, so it needs no introspection."""

_ROLES = (
    "agent",
    "topic",
    "text",
    "details",
    "source",
    "confidence",
    "outcome",
    "duration_s",
    "tags",
    "created_at",
    "expires_at",
    "session",
)
SEARCHED: tuple[Tier, ...] = ("short", "long", "episodic")
"""The tiers that have rows of their own in the index."""


def table_of(schema: Schema, tier: Tier) -> Table:
    """The table that holds a tier's rows."""
    match tier:
        case "short":
            return SHORT
        case "long":
            return schema.long
        case "episodic":
            return schema.episodic
        case "durable":
            return schema.durable


@dataclass(frozen=True, slots=True)
class Row:
    """A row of any tier, as stored."""

    tier: Tier
    row: int
    agent: str
    topic: str | None
    """Topic, event type or key."""
    text: str
    """Body, followed by an episode's details."""
    source: str | None
    confidence: float | str | None
    outcome: str | None
    duration_s: float | str | None
    tags: tuple[str, ...]
    created_at: SQLValue
    expires_at: float | None
    session: str | None = None
    """What links it with the rows before and after it; None where it stands alone."""
    digest: int = 0
    """64 bits of all its columns that play a role, to tell a changed row and a reused row id."""

    @property
    def id(self) -> str:
        """The public id, `tier:row`."""
        return f"{self.tier}:{self.row}"

    @property
    def parts(self) -> tuple[str, ...]:
        """What the row is found by: its text, and what names it."""
        named = (self.topic, self.outcome, " ".join(self.tags), self.agent)
        return (self.text, *(part for part in named if part))

    @property
    def content(self) -> int:
        """64 bits of what the author wrote: a row with another content is another memory.

        Neither the time nor the other columns count: a trigger or another process may set those.
        """
        return _hash(f"{self.agent}\x1f{self.text}".encode("utf-8", "surrogatepass"), size_bytes=8)

    @property
    def sentence(self) -> int:
        """32 bits of the text alone: two authors may have written the same."""
        return _hash(self.text.strip().encode("utf-8", "surrogatepass"), size_bytes=4)

    @property
    def created_s(self) -> float | None:
        """Seconds since 1970, None where the row has no readable time."""
        return instant(self.created_at)

    def live(self, now_s: float) -> bool:
        """False from the instant of expiry on."""
        return self.expires_at is None or self.expires_at > now_s

    def memory(
        self, *, score: float | None = None, also: tuple[Also, ...] = (), parts: dict[str, float] | None = None
    ) -> Memory:
        """The row as an answer, with its whole text."""
        return Memory(
            id=self.id,
            tier=self.tier,
            agent=self.agent,
            text=self.text,
            topic=self.topic if self.tier == "long" else None,
            event_type=self.topic if self.tier == "episodic" else None,
            key=self.topic if self.tier in ("short", "durable") else None,
            source=self.source,
            confidence=self.confidence,
            outcome=self.outcome,
            duration_s=self.duration_s,
            tags=self.tags,
            created_at=iso_or_none(self.created_at),
            expires_at=iso_or_none(self.expires_at),
            score=score,
            also=also,
            parts=parts,
        )


def select_rows(
    db: apsw.Connection, schema: Schema, tier: Tier, where: str, bindings: Sequence[SQLValue] = ()
) -> Iterator[Row]:
    """The rows of a tier that a WHERE clause (with ORDER BY and LIMIT, over `t`) picks, read as they are."""
    for row, *values in _stored(db, schema, tier, where, bindings):
        yield _row(tier, row, values)


def select_digests(
    db: apsw.Connection, schema: Schema, tier: Tier, where: str, bindings: Sequence[SQLValue] = ()
) -> list[tuple[int, int]]:
    """(row id, digest) of the rows that a WHERE clause picks; a third of the cost of reading them."""
    return [(row, _digest(values)) for row, *values in _stored(db, schema, tier, where, bindings)]


def _stored(
    db: apsw.Connection, schema: Schema, tier: Tier, where: str, bindings: Sequence[SQLValue]
) -> Iterator[tuple[Any, ...]]:
    return iter(db.execute(f"{_select(schema, tier)} {where}", tuple(bindings)))


def _select(schema: Schema, tier: Tier) -> str:
    """The columns of a tier's table `t` in the order of the roles; put together once for each database."""
    if tier not in schema.selects:
        table = table_of(schema, tier)
        columns = ", ".join(any_text(table.sql(role), schema) for role in _ROLES)
        schema.selects[tier] = f"SELECT t.rowid, {columns} FROM {table.quoted} AS t"
    return schema.selects[tier]


def _digest(values: Sequence[SQLValue]) -> int:
    return _hash(b"\x1f".join([value if isinstance(value, bytes) else str(value).encode() for value in values]), 8)


def _hash(content: bytes, size_bytes: int) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=size_bytes).digest(), "big", signed=True)


def any_text(column: str, schema: Schema) -> str:
    """The SQL that reads a column even where its text is no valid UTF-8: as bytes, which `decoded` reads.

    Any process with the C API can write such text; read as text it raises UnicodeDecodeError, and one row of it
    stopped the index for all.
    """
    return f"CASE typeof({column}) WHEN 'text' THEN CAST({column} AS BLOB) ELSE {column} END" if schema.utf8 else column


def decoded(value: SQLValue) -> float | str | None:
    """Bytes as text, with what cannot be read replaced; everything else as it is."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _row(tier: Tier, row: int, values: Sequence[SQLValue]) -> Row:
    stored = dict(zip(_ROLES, map(decoded, values), strict=True))
    body = [part for part in (_text(stored["text"]), _text(stored["details"])) if part]
    return Row(
        tier=tier,
        row=row,
        agent=_text(stored["agent"]) or "",
        topic=_text(stored["topic"]),
        text="\n".join(body),
        source=_text(stored["source"]),
        confidence=_finite(stored["confidence"]),
        outcome=_text(stored["outcome"]),
        duration_s=_finite(stored["duration_s"]),
        tags=tags_of(_text(stored["tags"])),
        created_at=stored["created_at"],
        expires_at=instant(stored["expires_at"]),
        session=_text(stored["session"]),
        digest=_digest(values),
    )


def _finite(value: float | str | None) -> float | str | None:
    """A number that JSON can hold, or its text."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _text(value: SQLValue) -> str | None:
    return None if value is None else str(value)


def tags_of(stored: str | None) -> tuple[str, ...]:
    """The tags of a stored value: a JSON list, or text with commas as older writers left it."""
    text = (stored or "").strip()
    if not text:
        return ()
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        parsed = None
    if isinstance(parsed, list):
        return tuple(
            _encodable(item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)) for item in parsed
        )
    return tuple(tag for part in text.split(",") if (tag := part.strip()))


def _encodable(text: str) -> str:
    """The text with what UTF-8 cannot hold replaced: JSON may name lone surrogates, and the index stopped at one."""
    return text.encode("utf-8", "replace").decode("utf-8")


def stored_tags(tags: Sequence[str]) -> str | None:
    """Tags as we write them: a JSON list, NULL where there are none."""
    return json.dumps(list(tags), ensure_ascii=False) if tags else None


def insert_row(db: apsw.Connection, table: Table, values: dict[str, SQLValue], *, topic_field: str = "topic") -> int:
    """Insert one row by roles and return its row id. Runs in the writer's thread, inside its transaction.

    `topic_field` is what callers of this tier call the role `topic`.

    Raises:
        InvalidRequest: the table has no column for a role that carries a value; it would be lost.
        Conflict: a trigger of the table swallowed the row.
    """
    given = {role: value for role, value in values.items() if value is not None}
    for role in given:
        if role not in table.columns and role != "updated_at":
            field = topic_field if role == "topic" else role
            raise InvalidRequest(f"{field}: {table.name} of this database has no column for it; leave it out.")
    columns = [role for role in given if role in table.columns]
    names = ", ".join(table.sql(role) for role in columns)
    marks = ", ".join("?" * len(columns))
    # OR ABORT: a UNIQUE constraint of theirs with ON CONFLICT REPLACE would delete another agent's row in silence.
    db.execute(
        f"INSERT OR ABORT INTO {table.quoted} ({names}) VALUES ({marks})", tuple(given[role] for role in columns)
    )
    if db.changes() != 1:
        raise Conflict(f"A trigger of {table.name} ignored the row; nothing was written.")
    return db.last_insert_rowid()
