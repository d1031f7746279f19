"""Is this file a database that can be read? What can be told of it within the start's time."""

from contextlib import suppress
from pathlib import Path

import apsw

from storage import limits
from storage.database import fetch, quote
from storage.errors import ConfigurationError


def require_readable(db: apsw.Connection, path: Path) -> None:
    """Refuse a database that SQLite cannot read, as far as can be told within the start's time.

    A file of up to QUICK_CHECK_BYTES_MAX is checked whole; of a larger one the schema, the length, and the ends of
    each table are read (`doctor` reads all of it).

    Raises:
        ConfigurationError: it is damaged; it was left untouched.
    """
    try:
        if path.stat().st_size <= limits.QUICK_CHECK_BYTES_MAX:
            problems = [str(row[0]) for row in fetch(db, "PRAGMA quick_check(3)")]
        else:
            problems = _sampled_problems(db, path)
    except (apsw.CorruptError, apsw.NotADBError) as error:
        problems = [str(error)]
    if problems != ["ok"]:
        raise ConfigurationError(
            f"The database {path} is damaged ({'; '.join(problems)}); it was left untouched. "
            "Restore a backup: runbooks/errors.md#storage_damaged."
        )


def _sampled_problems(db: apsw.Connection, path: Path) -> list[str]:
    pages, page_bytes = db.pragma("page_count"), db.pragma("page_size")
    if path.stat().st_size < pages * page_bytes and not path.with_name(path.name + "-wal").exists():
        return [f"the file is shorter than its {pages} pages of {page_bytes} bytes"]
    for (name,) in fetch(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0"):
        for order in ("ASC", "DESC"):
            with suppress(apsw.SQLError):  # WITHOUT ROWID
                fetch(db, f"SELECT * FROM {quote(name)} ORDER BY rowid {order} LIMIT 1")
    return ["ok"]
