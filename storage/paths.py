"""Where our own files lie beside a database, and the lock that makes this process the only one."""

import fcntl
import os
from pathlib import Path

from storage.errors import ConfigurationError


class Paths:
    """The folder `<db>.solos-memory/` and what is in it. The database's own path is resolved once."""

    def __init__(self, database: Path) -> None:
        self.database = database.expanduser().resolve()
        self.folder = self.database.with_name(self.database.name + ".solos-memory")
        self.state = self.folder / "state.db"
        self.cache = self.folder / "cache"
        self.index = self.cache / "index.db"
        self.swarm_index = self.cache / "swarm.db"
        self.lock = self.folder / "lock"
        self._unfinished = self.folder / "unfinished"
        """Lies in our folder from its making until state.db is in it."""

    @property
    def first_start(self) -> bool:
        """True from the making of our folder until state.db is in it, however many starts fail or are killed before."""
        return self._unfinished.exists()

    def make_folders(self) -> None:
        """Make our folder; what lies in it is kept."""
        try:
            if not self.folder.exists():
                self._make_unfinished()
            self.cache.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"Our folder {self.folder} cannot be made: {error}.") from error

    def _make_unfinished(self) -> None:
        """Make the folder with its mark in one step: without the mark, a missing state.db is a lost one."""
        beside = self.folder.with_name(self.folder.name + ".new")
        beside.mkdir(parents=True, exist_ok=True)
        (beside / self._unfinished.name).touch()
        try:
            beside.rename(self.folder)
        except OSError:
            if not self.folder.exists():  # else another process has made it in this moment
                raise

    def finish(self) -> None:
        """Note that state.db is in our folder: from now on it must not be missing."""
        self._unfinished.unlink(missing_ok=True)


class ProcessLock:
    """Holds `lock` while this process owns the database's memory service. Released by the kernel when we die."""

    def __init__(self, paths: Paths) -> None:
        """Take the lock.

        Raises:
            ConfigurationError: another process holds it; the message says which.
        """
        try:
            self._fd = os.open(paths.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(f"The lock file {paths.lock} cannot be opened: {error}.") from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 200, 0).decode("utf-8", "replace").strip()
            os.close(self._fd)
            raise ConfigurationError(
                f"Another solos-memory process ({holder or 'unknown'}) serves {paths.database}. "
                "Stop it first, or talk to it with --url."
            ) from error
        try:
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"pid {os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(self._fd)
            raise ConfigurationError(f"The lock file {paths.lock} cannot be written: {error}.") from error

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._fd)
