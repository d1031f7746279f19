"""The database and state.db as they were at one instant, read for as long as it takes while others write."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import apsw

from storage import limits
from storage.database import check_database_file, fetch, open_reader
from storage.errors import StorageBusy, translated
from storage.paths import Paths


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Two connections in read transactions that began at the same instant."""

    db: apsw.Connection
    state: apsw.Connection | None
    """None where there is no state.db: the database was never served, or the file was removed."""


@contextmanager
def snapshot(paths: Paths, *, within_s: float = limits.WRITE_BUDGET_S) -> Iterator[Snapshot]:
    """Open both files at one instant, and see nothing newer until the end of the block.

    Takes no lock that a writer of a database in WAL mode waits for; meanwhile the WAL cannot be reset and grows. In
    another mode writers wait until the end of the block.

    Raises:
        ConfigurationError: the path holds no database.
        StorageBusy: state.db was written so often that no instant was found `within_s`.
        Rejection: a file cannot be read.
    """
    check_database_file(paths.database)
    with ExitStack() as opened:
        with translated():
            db = open_reader(paths.database)
            opened.callback(db.close)
            state = open_reader(paths.state) if _is_there(paths) else None
            if state is not None:
                opened.callback(state.close)
            _pin(db, state, within_s)
        yield Snapshot(db, state)


def _is_there(paths: Paths) -> bool:
    return paths.state.exists() and paths.state.stat().st_size > 0


def _pin(db: apsw.Connection, state: apsw.Connection | None, within_s: float) -> None:
    """Begin both read transactions at one instant: that of the database's, around which state.db did not change.

    Why one instant. A write with a request id commits its intent to state.db, then its row, then that it is settled
    (ADR 0005). With the rows older, state.db has settled requests whose rows are missing: a retry of a short key
    would be answered as written and is not. With state.db older, rows are there whose request ids it does not know:
    a retry writes them twice, and their sessions are lost. At one instant the pair is what a kill -9 at that instant
    would leave, which every start settles. Pinned by test_pair_is_of_one_instant.
    """
    fetch(db, "SELECT count(*) FROM sqlite_master")  # reads the schema now, so that the two beginnings lie close
    until = time.monotonic() + within_s
    while True:
        before = _version(state)
        _begin(db)
        if state is not None:
            _begin(state)
        if _version(state) == before:
            return
        for connection in (db, state):
            if connection is not None:
                connection.execute("ROLLBACK")
        if time.monotonic() >= until:
            raise StorageBusy("state.db was written all the time; no instant was found at which to read both files.")


def _begin(db: apsw.Connection) -> None:
    db.execute("BEGIN")
    fetch(db, "SELECT count(*) FROM sqlite_master")  # a deferred transaction sees nothing before its first read


def _version(state: apsw.Connection | None) -> int | None:
    """Changes when another connection, of whatever process, has committed."""
    return None if state is None else int(fetch(state, "PRAGMA data_version")[0][0])
