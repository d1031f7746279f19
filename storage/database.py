"""SQLite access: one writable connection, read-only ones beside it, and the transaction that a write is."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from storage import limits
from storage.errors import ConfigurationError, StorageUnavailable
from storage.times import SQLValue

_SQLITE_MAGIC = b"SQLite format 3\x00"


def check_database_file(path: Path) -> None:
    """Refuse, without touching it, a path that holds no SQLite database.

    Raises:
        ConfigurationError: the path is missing, no regular file, or no SQLite file.
    """
    if not path.exists():
        raise ConfigurationError(
            f"The database {path} does not exist. Check SOLOS_MEMORY_DB or --db; `--create` makes a fresh one."
        )
    if not path.is_file():
        raise ConfigurationError(f"The database {path} is not a regular file.")
    try:
        with path.open("rb") as file:
            head = file.read(len(_SQLITE_MAGIC))
    except OSError as error:
        raise ConfigurationError(f"The database {path} cannot be read: {error}.") from error
    if not head:
        raise ConfigurationError(f"The database {path} is an empty file: is the path right? It was left so.")
    if head != _SQLITE_MAGIC:
        raise ConfigurationError(f"The file {path} is not an SQLite database (damaged header); it was left untouched.")


def open_writer(path: Path) -> apsw.Connection:
    """Open the only connection of this process that may write the database. The file must exist.

    synchronous=FULL: a write is answered when it is on disk. A WAL that has grown beyond WAL_BYTES_KEPT is cut when
    this connection is the first that writes after all of it was copied back. Pinned by
    test_wal_is_cut_by_the_write_that_uses_it_anew.
    """
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    db.set_busy_timeout(limits.BUSY_TIMEOUT_MS)
    db.execute("PRAGMA synchronous = FULL")
    fetch(db, f"PRAGMA journal_size_limit = {limits.WAL_BYTES_KEPT}")
    return db


def open_reader(path: Path) -> apsw.Connection:
    """Open a connection that cannot write."""
    db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    db.set_busy_timeout(limits.BUSY_TIMEOUT_MS)
    db.execute("PRAGMA query_only = ON")
    return db


def open_own(path: Path, *, durable: bool) -> apsw.Connection:
    """Open or create a file of our own in WAL mode.

    `durable` files are synced at every commit; a cache is synced at checkpoints only: after a power cut it is
    consistent and behind, and catches up.
    """
    db = apsw.Connection(str(path))
    db.set_busy_timeout(limits.BUSY_TIMEOUT_MS)
    fetch(db, "PRAGMA journal_mode = wal")
    db.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
    return db


def ensure_wal(db: apsw.Connection) -> tuple[str, str]:
    """Switch the database to WAL where it is in another mode; return (mode found, mode now).

    A mode that cannot be changed (another process holds the file, a read-only medium) stays as it is: health says so.
    """
    found = str(db.pragma("journal_mode"))
    if found == "wal":
        return found, found
    with suppress(apsw.BusyError, apsw.LockedError, apsw.ReadOnlyError):
        return found, str(fetch(db, "PRAGMA journal_mode = wal")[0][0])
    return found, found


@contextmanager
def transaction(db: apsw.Connection) -> Iterator[None]:
    """Run the block in one write transaction.

    Not `with db:`. APSW's own context manager holds the GIL while it begins and commits, so a busy wait or an fsync
    there stops the whole event loop (a lock held for 1 s: 1.04 s against 0.013 s). Pinned by
    test_busy_wait_leaves_the_event_loop_alone.
    IMMEDIATE, because a deferred transaction that has read fails at once with BUSY_SNAPSHOT when another process
    writes in between; busy_timeout does not apply. Pinned by test_unit_waits_for_foreign_writer.
    """
    assert not db.in_transaction
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # SQLite has already rolled back after some errors
            db.execute("ROLLBACK")
        raise


def prove_writable(db: apsw.Connection) -> None:
    """Write the head of the file as it is: the smallest write, which changes nothing and shows that one works."""
    with transaction(db):
        version = int(fetch(db, "PRAGMA user_version")[0][0])
        fetch(db, f"PRAGMA user_version = {version}")


@contextmanager
def savepoint(db: apsw.Connection) -> Iterator[None]:
    """Run the block as a part of the transaction that can be undone by itself."""
    db.execute("SAVEPOINT message")
    try:
        yield
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK TO message")
            db.execute("RELEASE message")
        raise
    db.execute("RELEASE message")


def passive_checkpoint(db: apsw.Connection) -> tuple[int, int]:
    """Copy what readers allow from the WAL into the database: (pages in use, those of them that are copied).

    (-1, -1) where the database is in another mode, or another process copies in this moment. Never TRUNCATE: the file
    is shared.
    """
    _, used, copied = fetch(db, "PRAGMA wal_checkpoint(PASSIVE)")[0]
    return int(used), int(copied)


def close(db: apsw.Connection) -> None:
    """Close a connection without a long hold of the GIL.

    `db.close()` checkpoints the WAL holding the GIL, so a PASSIVE checkpoint goes first. Never TRUNCATE: other
    processes use the file. Pinned by test_close_checkpoints_first.
    """
    with suppress(apsw.Error):
        fetch(db, "PRAGMA wal_checkpoint(PASSIVE)")
    db.close()


def close_opened(db: apsw.Connection, identity: "FileIdentity", logs: "LogFiles") -> Path | None:
    """Close the last connection to a file that may have been moved; where its WAL was set aside to, if it was.

    It is set aside where another file has come in the place of the one that was open, and where nothing is there and
    the WAL holds nothing more than the file that went.
    """
    copied = False
    with suppress(apsw.Error):
        used, done = passive_checkpoint(db)
        copied = 0 <= used == done
    db.close()
    if identity.unchanged or not (copied or identity.exists):
        return None
    return logs.set_aside()


def open_alone(path: Path) -> apsw.Connection:
    """Open a database file for reading as it is, without what lies beside it: that may be another database's WAL."""
    return apsw.Connection(
        f"{path.absolute().as_uri()}?immutable=1", flags=apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    )


class FileIdentity:
    """Tells whether a path still names the file that was opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.opened = self._now()
        """Device and inode of the file that was opened; None where there was none."""

    def _now(self) -> tuple[int, int] | None:
        try:
            status = os.stat(self._path)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @property
    def exists(self) -> bool:
        """Whether the path names any file."""
        return self._now() is not None

    @property
    def unchanged(self) -> bool:
        """True while the path names the file that was opened."""
        return self._now() == self.opened

    def require(self) -> None:
        """Refuse to go on with a file that others can no longer see.

        Raises:
            StorageUnavailable: the path was removed or names another file.
        """
        if not self.unchanged:
            raise StorageUnavailable(
                "The database file was removed or replaced while the service had it open; when it is back, or a sound "
                "one is in its place, that is served without a restart."
            )


class LogFiles:
    """The `-wal` and `-shm` of a database that is open in WAL mode. SQLite itself never looks whether they are there.

    It goes on in files that nobody else sees: what is written then is lost with the process, and another process makes
    files of its own beside them.
    """

    def __init__(self, database: Path) -> None:
        self._wal = database.with_name(database.name + "-wal")
        self._shm = database.with_name(database.name + "-shm")
        self._opened = FileIdentity(self._wal), FileIdentity(self._shm)

    @property
    def unchanged(self) -> bool:
        """False when one of them was removed or replaced since this was made."""
        return all(file.unchanged for file in self._opened)

    @property
    def is_ours_in_place(self) -> bool:
        """Whether the path of the WAL names the one that is open."""
        return self._opened[0].opened is not None and self._opened[0].unchanged

    def require(self) -> None:
        """Refuse to write where a log is gone.

        Raises:
            StorageUnavailable: one of them was removed or replaced.
        """
        if not self.unchanged:
            raise StorageUnavailable(
                "A file beside the database (-wal or -shm) was removed while the service had it open; the database is "
                "being opened anew."
            )

    def set_aside(self) -> Path | None:
        """Take them out of the way of the database that is now in the place of theirs; where the WAL is then, if any.

        SQLite would copy this WAL into whatever database lies beside it, and damage it.
        """
        aside = None
        if self.is_ours_in_place:
            aside = self._wal.with_name(f"{self._wal.name}.of-replaced-{time.time_ns() // 1_000_000}")
            self._wal.rename(aside)
            if not aside.stat().st_size:
                aside.unlink()
                aside = None
        if self._opened[1].opened is not None and self._opened[1].unchanged:
            self._shm.unlink()
        return aside


def fetch(db: apsw.Connection, statement: str, bindings: Sequence[SQLValue] = ()) -> list[tuple[Any, ...]]:
    """Run one statement to its end and return its rows.

    APSW's execute is lazy: what is not stepped has not run, and an abandoned cursor keeps its read transaction open.
    """
    return list(db.execute(statement, tuple(bindings)))


def quote(name: str) -> str:
    """An SQL identifier of a name found by introspection."""
    return '"' + name.replace('"', '""') + '"'
