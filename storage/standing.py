"""Whether the files that are open are still those that others see, and what is to be done where they are not."""

from dataclasses import dataclass
from pathlib import Path

import apsw

from storage.checks import refusal_of
from storage.database import FileIdentity, LogFiles, close_opened, passive_checkpoint
from storage.errors import translated
from storage.state import State


@dataclass(frozen=True, slots=True)
class Standing:
    """What a look at the files has found."""

    reopen: str | None = None
    """Why the database is to be opened anew now: what is in place can be served. None where it is not to be."""
    refused: str | None = None
    """Why the file that has come in the place of the open one cannot be served."""


class Place:
    """The path of the open database, and those of its -wal and -shm. Any thread may look."""

    def __init__(self, database: Path) -> None:
        """Before the database is opened: a replacement in between must be noticed."""
        self._database = database
        self._identity = FileIdentity(database)
        self._logs: LogFiles | None = None
        self._successor: tuple[tuple[int, ...], str | None] | None = None
        """The stamp of the file that has come in place of the open one, when looked at, and why it was refused."""

    def watch_logs(self) -> None:
        """From now on its logs must stay: it was opened, is in WAL mode, and was read."""
        self._logs = LogFiles(self._database)

    @property
    def database_unchanged(self) -> bool:
        """False when the path no longer names the file that is open."""
        return self._identity.unchanged

    @property
    def logs_unchanged(self) -> bool:
        """False when the -wal or -shm was removed or replaced."""
        return self._logs is None or self._logs.unchanged

    def require(self) -> None:
        """Refuse to write what nobody else would see.

        Raises:
            StorageUnavailable: the database or one of its logs is not what was opened.
        """
        self._identity.require()
        if self._logs is not None:
            self._logs.require()

    def require_database(self) -> None:
        """Refuse to work for a database that nobody else would see.

        Raises:
            StorageUnavailable: its path names another file, or none.
        """
        self._identity.require()

    def standing(self, state: State) -> Standing:
        """Whether all is as it was opened. Some stat() calls; a check of the file where a new one has come.

        A file that is gone is waited for: what is open is all that is left of it. A sound one in its place is opened.
        """
        if not self.database_unchanged:
            refused = self._refusal_of_successor()
            return Standing(refused=refused) if refused else Standing(reopen="Another database is in its place.")
        if not self.logs_unchanged:
            return Standing(reopen="A file beside the database (-wal or -shm) was removed.")
        if (state.damaged or not state.in_place) and state.may_be_reopened:
            return Standing(reopen="A sound state.db has come, or a file beside it has gone.")
        return Standing()

    def _refusal_of_successor(self) -> str | None:
        """Why what is at the path now cannot be served; looked at anew when it has changed."""
        try:
            status = self._database.stat()
        except OSError as error:
            return f"The database {self._database} is gone ({error.strerror})."
        stamp = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
        if self._successor is None or self._successor[0] != stamp:
            alone = self._logs is not None and self._logs.is_ours_in_place
            self._successor = stamp, refusal_of(self._database, alone=alone)
        return self._successor[1]

    def may_be_closed(self, db: apsw.Connection) -> bool:
        """Whether nothing that was acknowledged is lost by closing: a WAL that was removed holds it until it is copied.

        False while a reader, of whatever process, keeps it from being copied.
        """
        if self.logs_unchanged:
            return True
        with translated():
            used, copied = passive_checkpoint(db)
        return 0 <= used == copied  # -1 where another process copies in this moment: nothing is told then

    def close(self, db: apsw.Connection) -> Path | None:
        """Close the writer's connection; where its WAL was set aside to, since it must not lie beside another file."""
        if self._logs is None:
            db.close()
            return None
        return close_opened(db, self._identity, self._logs)
