"""What a backup's manifest says of its files, and how a copy is looked at."""

import json
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import apsw

from storage.copies.staging import sha256_of
from storage.database import fetch, quote
from storage.errors import ConfigurationError, StorageDamaged

MANIFEST = "manifest.json"
DATABASE = "database.db"
STATE = "state.db"
"""The names of a backup's files."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Copy:
    """A database file of a backup."""

    bytes: int
    """Its size."""
    sha256: str
    """Its digest, in hex."""
    rows: dict[str, int]
    """Rows by table."""
    schema: tuple[str, ...]
    """The statements that made its tables, indexes, triggers and views."""

    @property
    def total(self) -> int:
        """Rows of all tables."""
        return sum(self.rows.values())


@dataclass(frozen=True, slots=True)
class Manifest:
    """What lies in a backup."""

    at: str
    """The instant that it shows: ISO 8601, UTC."""
    source: str
    """The database that it was taken from."""
    database: Copy
    """The fleet's database."""
    state: Copy | None
    """Our state.db; None where there was none."""

    @property
    def bytes(self) -> int:
        """The size of both files."""
        return self.database.bytes + (self.state.bytes if self.state else 0)

    def write(self, folder: Path) -> None:
        """Write the manifest into the backup's folder."""
        text = json.dumps({"format": _FORMAT, **asdict(self)}, indent=2, ensure_ascii=False)
        (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a backup.

    Raises:
        ConfigurationError: the folder holds no backup, or one that this program cannot read.
    """
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if found["format"] != _FORMAT:
            raise ConfigurationError(f"{folder} is a backup of format {found['format']!r}; upgrade this program.")
        state = found["state"]
        return Manifest(
            str(found["at"]), str(found["source"]), _copy(found["database"]), None if state is None else _copy(state)
        )
    except OSError as error:
        raise ConfigurationError(f"{folder} holds no backup that can be read: {error}.") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{folder / MANIFEST} is no manifest of a backup ({error!r}).") from error


def _copy(found: dict[str, Any]) -> Copy:
    rows = {str(table): int(count) for table, count in found["rows"].items()}
    return Copy(int(found["bytes"]), str(found["sha256"]), rows, tuple(str(sql) for sql in found["schema"]))


def rows_by_table(db: apsw.Connection) -> dict[str, int]:
    """How many rows each table holds that has pages of its own."""
    names = fetch(db, "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 ORDER BY name")
    return {name: int(fetch(db, f"SELECT count(*) FROM {quote(name)}")[0][0]) for (name,) in names}


def look_at(path: Path) -> Copy:
    """Read all of a database file that nobody writes, and say what it holds.

    Raises:
        StorageDamaged: integrity_check found something.
    """
    # immutable: the file's header says WAL, and a plain connection would leave -wal and -shm files beside it.
    uri = f"{path.absolute().as_uri()}?immutable=1"
    with closing(apsw.Connection(uri, flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)) as db:
        problems = [str(row[0]) for row in fetch(db, "PRAGMA integrity_check(5)")]
        if problems != ["ok"]:
            raise StorageDamaged(f"The copy {path.name} fails its integrity check: {'; '.join(problems)}.")
        statements = fetch(db, "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type, name")
        rows = rows_by_table(db)
    return Copy(path.stat().st_size, sha256_of(path), rows, tuple(str(sql) for (sql,) in statements))
