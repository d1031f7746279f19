"""Making databases: a fresh one, and the demo that `make serve` shows."""

import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from storage.database import close, fetch
from storage.errors import ConfigurationError
from storage.schema import create_fresh

DEMO_AGENTS = ("sol", "mira", "atlas", "ace", "tam")


def create_database(path: Path, agents: Sequence[str]) -> None:
    """Make a fresh database with these agents registered.

    Raises:
        ConfigurationError: the path exists (an existing file is never replaced), or it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(exist_ok=False)
    except FileExistsError as error:
        raise ConfigurationError(f"{path} exists already; it was left as it is.") from error
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be made: {error}.") from error
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        fetch(db, "PRAGMA journal_mode = wal")
        create_fresh(db, agents, time.time())
    finally:
        close(db)
