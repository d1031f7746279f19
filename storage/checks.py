"""Is this file a database that can be read? What can be told at a start within its time, and of one that is served."""

import time
from contextlib import closing, suppress
from pathlib import Path

import apsw

from storage import limits
from storage.database import fetch, open_alone, open_reader, quote
from storage.errors import ConfigurationError, Rejection, translated
from storage.schema import introspect
from storage.soundness import Integrity
from storage.times import iso


def require_readable(db: apsw.Connection, path: Path) -> Integrity:
    """Refuse a database that SQLite cannot read, as far as can be told within the start's time.

    A file of up to QUICK_CHECK_BYTES_MAX is checked whole; of a larger one the schema, the length, and the ends of
    each table are read (`doctor` reads all of it).

    Raises:
        ConfigurationError: it is damaged; it was left untouched.
    """
    integrity = _looked_at(db, path)
    if not integrity.sound:
        raise ConfigurationError(
            f"The database {path} is damaged ({integrity.problem}); it was left untouched. "
            "Restore a backup: runbooks/errors.md#storage_damaged."
        )
    return integrity


def check_served(path: Path, *, thorough: bool) -> Integrity:
    """Look for damage in a database that is in use, on a connection of its own.

    `thorough` reads all of it, tables against their indexes too, whatever its size; else as at start.

    Raises:
        Rejection: it cannot be read at the moment.
    """
    with translated(), closing(open_reader(path)) as db:
        return _looked_at(db, path, thorough=thorough)


def refusal_of(path: Path, *, alone: bool) -> str | None:
    """Why the file that is now at a database's path cannot be served; None where it can be, as far as is told here.

    `alone`: the WAL beside it is that of the file that was there before, so only the file itself is read. Nothing but
    SQLite opens it: closing a file drops the locks of the whole process on it, and it may be the open one again by now.
    """
    try:
        if not path.is_file():
            return f"{path} is no file; it was left so."
        if not path.stat().st_size:
            return f"{path} is an empty file; it was left so."
        with translated(), closing(open_alone(path) if alone else open_reader(path)) as db:
            require_readable(db, path)
            introspect(db, path)
    except (ConfigurationError, Rejection, OSError) as refusal:
        return str(refusal)
    return None


def _looked_at(db: apsw.Connection, path: Path, *, thorough: bool = False) -> Integrity:
    whole = thorough or path.stat().st_size <= limits.QUICK_CHECK_BYTES_MAX
    try:
        if whole:
            check = "integrity_check" if thorough else "quick_check"
            problems = [str(row[0]) for row in fetch(db, f"PRAGMA {check}(3)")]
        else:
            problems = _sampled_problems(db, path)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        problems = [str(error)]
    sound = problems == ["ok"]
    problem = None if sound else "; ".join(problems)
    return Integrity(checked_at=iso(time.time()), whole=whole, sound=sound, problem=problem)


def _sampled_problems(db: apsw.Connection, path: Path) -> list[str]:
    pages, page_bytes = db.pragma("page_count"), db.pragma("page_size")
    if path.stat().st_size < pages * page_bytes and not path.with_name(path.name + "-wal").exists():
        return [f"the file is shorter than its {pages} pages of {page_bytes} bytes"]
    for (name,) in fetch(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"):
        for order in ("ASC", "DESC"):
            with suppress(apsw.SQLError):  # WITHOUT ROWID
                fetch(db, f"SELECT * FROM {quote(name)} ORDER BY rowid {order} LIMIT 1")
    return ["ok"]
