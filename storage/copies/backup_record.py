"""The record of the last backup, beside the database: a backup writes it, statistics and doctor read it."""

import json
from dataclasses import dataclass
from pathlib import Path

from storage.paths import Paths
from storage.times import iso_or_none


@dataclass(frozen=True, slots=True)
class LastBackup:
    """A backup that ended well."""

    at: str
    """When it ended: ISO 8601, UTC."""
    to: str
    """Where it lies."""
    bytes: int
    """Its size."""


def record_path(paths: Paths) -> Path:
    """Where the record lies: {"at", "to", "bytes"} as JSON."""
    return paths.folder / "last-backup.json"


def last_backup(paths: Paths) -> LastBackup | None:
    """The last backup that is recorded.

    None where there is none, and where its record cannot be read or is none: a backup that cannot be told of is not
    relied on, so whoever watches for its age is warned as if there were none.
    """
    try:
        record = json.loads(record_path(paths).read_text(encoding="utf-8"))
        at = iso_or_none(record["at"])
        return None if at is None else LastBackup(at, str(record["to"]), int(record["bytes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
