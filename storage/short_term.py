"""Short-term keys with a time to live. A row expires at its instant: every read looks at the clock, none extends it."""

from collections.abc import Sequence

import apsw

from storage.database import fetch
from storage.errors import NotFound
from storage.records import ShortEntries, ShortEntry
from storage.rows import Row, select_rows, stored_tags
from storage.schema import Schema
from storage.times import iso_or_none

_LIVE = "(expires_at IS NULL OR expires_at > ?)"


def upsert_short(
    db: apsw.Connection, *, agent: str, key: str, value: str, ttl_s: float | None, tags: Sequence[str], at_s: float
) -> tuple[int, float | None]:
    """Write a key whole, and return its row id and expiry.

    Without ttl_s the expiry is cleared; tags that are not given are gone. An upsert after expiry is a fresh row.
    Runs in the writer's thread, inside its transaction.
    """
    expires_at = None if ttl_s is None else at_s + ttl_s
    db.execute(f"DELETE FROM memory_short WHERE agent = ? AND key = ? AND NOT {_LIVE}", (agent, key, at_s))
    db.execute(
        "INSERT INTO memory_short (agent, key, value, tags, created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?) "
        "ON CONFLICT (agent, key) DO UPDATE SET value = excluded.value, tags = excluded.tags, "
        "created_at = excluded.created_at, expires_at = excluded.expires_at",
        (agent, key, value, stored_tags(tags), at_s, expires_at),
    )
    found = fetch(db, "SELECT id FROM memory_short WHERE agent = ? AND key = ?", (agent, key))
    return int(found[0][0]), expires_at


def read_short(db: apsw.Connection, schema: Schema, *, owner: str, key: str, now_s: float) -> ShortEntry:
    """One live key of an owner.

    Raises:
        NotFound: the owner has no such key, or it has expired.
    """
    for row in select_rows(db, schema, "short", f"WHERE agent = ? AND key = ? AND {_LIVE}", (owner, key, now_s)):
        return _entry(row)
    raise NotFound(f"{owner!r} has no live short memory under key {key!r}.")


def list_short(
    db: apsw.Connection, schema: Schema, *, owner: str, after: str | None, limit: int, now_s: float
) -> ShortEntries:
    """The live keys of an owner in the order of their names, after a given one."""
    where = f"WHERE agent = ? AND {_LIVE} AND key > ?"
    bindings = (owner, now_s, after or "")
    entries = tuple(
        _entry(row) for row in select_rows(db, schema, "short", f"{where} ORDER BY key LIMIT ?", (*bindings, limit))
    )
    total = int(fetch(db, f"SELECT count(*) FROM memory_short {where}", bindings)[0][0])
    return ShortEntries(owner=owner, entries=entries, more=max(total - len(entries), 0))


def forget_short(db: apsw.Connection, *, agent: str, key: str, at_s: float) -> int:
    """Delete one's own live key and return the row id it had. Runs inside the writer's transaction.

    Raises:
        NotFound: there was no such live key.
    """
    gone = fetch(
        db, f"DELETE FROM memory_short WHERE agent = ? AND key = ? AND {_LIVE} RETURNING id", (agent, key, at_s)
    )
    if not gone:
        raise NotFound(f"{agent!r} has no live short memory under key {key!r}.")
    return int(gone[0][0])


def purge_short(db: apsw.Connection, *, at_s: float, rows_max: int) -> list[int]:
    """Delete up to so many expired rows and return their row ids. Runs inside the writer's transaction."""
    rows = fetch(db, f"SELECT id FROM memory_short WHERE NOT {_LIVE} LIMIT ?", (at_s, rows_max))
    db.executemany("DELETE FROM memory_short WHERE id = ?", rows)
    return [int(row) for (row,) in rows]


def count_short(db: apsw.Connection, *, owner: str | None, now_s: float) -> int:
    """How many live rows there are, of one owner or of all."""
    own = "" if owner is None else "agent = ? AND "
    bindings = (now_s,) if owner is None else (owner, now_s)
    return int(fetch(db, f"SELECT count(*) FROM memory_short WHERE {own}{_LIVE}", bindings)[0][0])


def _entry(row: Row) -> ShortEntry:
    return ShortEntry(
        id=row.id,
        agent=row.agent,
        key=row.topic or "",
        value=row.text,
        tags=row.tags,
        created_at=iso_or_none(row.created_at),
        expires_at=iso_or_none(row.expires_at),
    )
