"""What doctor sees of a database, read-only: integrity, mapping, mode, clock, our files beside it, lock."""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import apsw

from storage.database import check_database_file, fetch, open_reader
from storage.errors import ConfigurationError, rejection_of
from storage.paths import Paths
from storage.records import Tier
from storage.rows import SEARCHED, any_text, decoded, table_of
from storage.schema import ROLES, Schema, Table, introspect
from storage.search.failures import IndexFailure
from storage.search.index import Index
from storage.search.tables import FORMAT
from storage.times import instant, iso, iso_or_none

Seen = tuple[Literal["ok", "WARN", "FATAL"], str, str, str]
"""Level, subject, what was seen, the next step."""

_CLOCKS_BEFORE_ARE_WRONG_S = 1_735_689_600.0  # 2025-01-01: this program is younger
_AHEAD_S = 86_400.0
_NEWEST_ROWS = 1_000


def inspect_database(path: Path, clock: Callable[[], float] = time.time) -> Iterator[Seen]:
    """Look at a database and at our folder beside it; `clock` tells the seconds since 1970.

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
        yield "ok", "database", _sizes(paths), ""
        yield from _integrity(db)
        schema = introspect(db, paths.database)
        yield from (_mapping(table) for table in (schema.registry, schema.durable, schema.long, schema.episodic))
        yield from _files(db, schema, paths)
        yield _clock(db, schema, paths, clock())
    except apsw.Error as error:
        reason = rejection_of(error) or error
        raise ConfigurationError(f"{paths.database} cannot be read: {reason}") from error
    finally:
        db.close()


def _sizes(paths: Paths) -> str:
    file, *log = _with_log(paths.database)
    beside = "".join(f", {path.stat().st_size:,} more in its log" for path in log)
    return f"{file}, {file.stat().st_size:,} bytes{beside}"


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
    holder = lock_holder(paths)
    yield _index(db, schema, paths, serving=holder is not None)
    yield from _state(paths)
    yield "ok", "lock", f"held by {holder}" if holder else "free", ""


# --- the clock ---


def _clock(db: apsw.Connection, schema: Schema, paths: Paths, now_s: float) -> Seen:
    """The system's clock beside the times of the newest rows and of the file."""
    now = iso(now_s)
    times = _newest_times(db, schema)
    ahead = sum(at_s > now_s + _AHEAD_S for at_s in times)
    newest = iso_or_none(max(times, default=None)) or "unknown"
    changed_s = max(path.stat().st_mtime for path in _with_log(paths.database))
    seen = f"it is {now}; the newest row is of {newest}, the file was changed at {iso(changed_s)}"
    if now_s < _CLOCKS_BEFORE_ARE_WRONG_S:
        return "WARN", "clock", seen, "The system's clock is wrong: set it before anything is written (timedatectl)."
    if ahead:
        step = "Compare this host's clock and those of the writers: such rows are newer than all others until then."
        return "WARN", "clock", f"{seen}; {ahead} of the newest rows are more than a day in the future", step
    if changed_s > now_s + _AHEAD_S:
        return "WARN", "clock", seen, "The system's clock was set back, or the file's time was: compare (timedatectl)."
    return "ok", "clock", seen, ""


def _with_log(file: Path) -> Iterator[Path]:
    """A database's file and its write-ahead log; an empty log is what our own look has made."""
    yield file
    log = file.with_name(file.name + "-wal")
    if log.exists() and log.stat().st_size:
        yield log


def _newest_times(db: apsw.Connection, schema: Schema) -> list[float]:
    """When the rows that were inserted last say that they were written."""
    times: list[float] = []
    for table in (schema.long, schema.episodic):
        column = any_text(table.sql("created_at"), schema)
        found = fetch(db, f"SELECT {column} FROM {table.quoted} ORDER BY rowid DESC LIMIT {_NEWEST_ROWS}")
        times += [at_s for (stored,) in found if (at_s := instant(decoded(stored))) is not None]
    return times


# --- our files beside it ---


def _index(db: apsw.Connection, schema: Schema, paths: Paths, *, serving: bool) -> Seen:
    """The search index: whether it is there, sound and complete, its size, and how far it follows the tables."""
    if not paths.index.exists():
        return "ok", "index", "not built yet; the service builds it at start", ""
    size = f"{sum(path.stat().st_size for path in _with_log(paths.index)):,} bytes"
    again = "No memory is lost: stop the service and run `solos-memory reindex`."
    try:
        if problem := _damage(paths.index):
            return "WARN", "index", f"{size}, damaged ({problem})", again
        index = Index(paths.index, writable=False)
    except (IndexFailure, apsw.Error) as error:
        return "WARN", "index", f"{size}, cannot be read ({error})", again
    try:
        return _followed(db, schema, index, size, serving=serving)
    except IndexFailure as error:
        return "WARN", "index", f"{size}, cannot be read ({error})", again
    finally:
        index.close()


def _damage(path: Path) -> str:
    """What is wrong with the file of an index; empty where nothing is."""
    db = open_reader(path)
    try:
        if fetch(db, "SELECT value FROM meta WHERE name = 'format'") != [(FORMAT,)]:
            return "of another version's format"
        found = str(fetch(db, "PRAGMA quick_check(1)")[0][0])
    finally:
        db.close()
    return "" if found == "ok" else found


def _followed(db: apsw.Connection, schema: Schema, index: Index, size: str, *, serving: bool) -> Seen:
    behind = {tier: count for tier in SEARCHED if (count := _rows_beyond(db, schema, tier, index.high_water(tier)))}
    held = sum(index.count(tier, None) for tier in SEARCHED)
    complete = "complete" if index.complete else "not complete"
    seen = f"{size}, {complete}, {held:,} rows"
    if not behind:
        return "ok", "index", f"{seen}; it follows the tables to their end", ""
    seen += "; behind by " + ", ".join(f"{count:,} of {tier}" for tier, count in behind.items())
    if serving:
        return "WARN", "index", seen, "The service is at it: look again; if it stays so, see runbooks/health.md."
    return "ok", "index", f"{seen}; the service catches up at start", ""


def _rows_beyond(db: apsw.Connection, schema: Schema, tier: Tier, mark: int) -> int:
    """How many rows of a tier lie after a row id."""
    table = table_of(schema, tier)
    if not fetch(db, "SELECT 1 FROM sqlite_master WHERE name = ?", (table.name,)):
        return 0  # memory_short, before the first start
    return int(fetch(db, f"SELECT count(*) FROM {table.quoted} WHERE rowid > ?", (mark,))[0][0])


def _state(paths: Paths) -> Iterator[Seen]:
    if not paths.folder.exists():
        return
    step = "Restore it from a backup, or accept that old retries write anew."
    if not paths.state.exists():
        yield "WARN", "state", f"{paths.state} is missing", step
        return
    try:
        db = open_reader(paths.state)
        try:
            found = str(fetch(db, "PRAGMA quick_check(1)")[0][0])
        finally:
            db.close()
    except apsw.Error as error:
        found = str(error)
    if found == "ok":
        yield "ok", "state", f"{paths.state.stat().st_size:,} bytes, sound", ""
    else:
        yield "FATAL", "state", f"{paths.state} is damaged ({found})", "Restore it from a backup."


def lock_holder(paths: Paths) -> str | None:
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
