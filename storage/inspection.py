"""What doctor sees of a database, read-only: mapping, integrity, mode, index, lock."""

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import apsw

from storage.database import check_database_file, fetch, open_reader
from storage.errors import ConfigurationError, rejection_of
from storage.paths import Paths
from storage.schema import ROLES, Schema, Table, introspect

Seen = tuple[Literal["ok", "WARN", "FATAL"], str, str, str]
"""Level, subject, what was seen, the next step."""


def inspect_database(path: Path) -> Iterator[Seen]:
    """Look at a database and at our folder beside it.

    Raises:
        ConfigurationError: it cannot be served; says why.
    """
    paths = Paths(path)
    check_database_file(paths.database)
    try:
        db = open_reader(paths.database)
    except apsw.Error as error:
        raise ConfigurationError(f"{paths.database} cannot be opened: {error}.") from error
    try:
        yield from _integrity(db)
        schema = introspect(db, paths.database)
        yield from (_mapping(table) for table in (schema.registry, schema.durable, schema.long, schema.episodic))
        yield from _files(db, schema, paths)
    except apsw.Error as error:
        reason = rejection_of(error) or error
        raise ConfigurationError(f"{paths.database} cannot be read: {reason}") from error
    finally:
        db.close()


def _integrity(db: apsw.Connection) -> Iterator[Seen]:
    problems = [str(row[0]) for row in fetch(db, "PRAGMA quick_check(5)")]
    if problems == ["ok"]:
        yield "ok", "integrity", "quick_check found nothing", ""
    else:
        yield "FATAL", "integrity", "; ".join(problems), "Restore a backup: runbooks/errors.md#storage_damaged."


def _mapping(table: Table) -> Seen:
    roles = [f"{role.name}={table.columns.get(role.name, '-')}" for role in ROLES[table.name]]
    times = (
        f"; times are written as {table.time_form.value}"
        if table.name in ("memory_longterm", "memory_episodic")
        else ""
    )
    return "ok", table.name, ", ".join(roles) + times, ""


def _files(db: apsw.Connection, schema: Schema, paths: Paths) -> Iterator[Seen]:
    mode = str(db.pragma("journal_mode"))
    if mode == "wal":
        yield "ok", "journal", "wal", ""
    else:
        yield (
            "WARN",
            "journal",
            f"{mode}, not wal",
            "The service switches it at start, unless another process holds it.",
        )
    short = fetch(db, "SELECT 1 FROM sqlite_master WHERE name = 'memory_short'")
    yield "ok", "memory_short", "there" if short else "not there yet; the service creates it at start", ""
    agents = fetch(db, f"SELECT count(*) FROM {schema.registry.quoted}")[0][0]
    if agents:
        yield "ok", "agents", f"{agents} registered", ""
    else:
        yield "WARN", "agents", "none is registered", "Every write will be refused until agent_registry has rows."
    yield "ok", "index", f"{paths.index.stat().st_size:,} bytes" if paths.index.exists() else "not built yet", ""
    if paths.folder.exists() and not paths.state.exists():
        yield (
            "WARN",
            "state",
            f"{paths.state} is missing",
            "Restore it from a backup, or accept that old retries write anew.",
        )
    holder = _lock_holder(paths)
    yield "ok", "lock", f"held by {holder}" if holder else "free", ""


def _lock_holder(paths: Paths) -> str | None:
    """Who serves the database; None where nobody does."""
    try:
        fd = os.open(paths.lock, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return os.pread(fd, 200, 0).decode("utf-8", "replace").strip() or "an unknown process"
    else:
        return None
    finally:
        os.close(fd)
