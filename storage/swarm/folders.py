"""Files below a root, opened relative to handles of their folders: no link is followed, nothing is half written.

Appending is one write of one record and its fsync; what cannot be written whole is cut off again. Replacing goes by a
temporary file in the same folder, which takes the page's place in one step; what came out is left in the temporary
file, to be looked at: a person may have saved the page meanwhile.
"""

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple

from storage.errors import NoFileOfOurs, Rejection, TooLarge
from storage.swarm.failing import failures
from storage.swarm.layout import Folder, Roots
from storage.swarm.making import make_root, step
from storage.swarm.renames import EXCHANGE, NO_REPLACE, Temporary, hash_of, rename, temporary_name
from storage.swarm.writing import give, write_all
from storage.times import iso_of_file

FILE_BYTES_MAX: Final = 8 * 1_048_576
"""Of a page that is read whole."""
TEMPORARY: Final = ".solos-"
"""How the names of our temporary files begin."""
_MODE_FILE: Final = 0o644
_HELD: Final = os.O_NOFOLLOW | os.O_CLOEXEC


class Version(NamedTuple):
    """What tells that a file is another one, or was written since."""

    inode: int
    size: int
    mtime_ns: int

    @property
    def written_at(self) -> str:
        """When it was last written: ISO 8601 with milliseconds, UTC."""
        return iso_of_file(self.mtime_ns)


class Seen(NamedTuple):
    """A file as it was read."""

    content: bytes
    version: Version


class Placed(NamedTuple):
    """What `exchange` did."""

    version: Version
    """Of the file that is in the page's place."""
    temporary: str
    """The name of the file that came out of it."""


class FolderHandle:
    """A handle of one folder. Close it, or use it as a context manager."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = fd
        self.name = name
        """For messages."""

    def __enter__(self) -> "FolderHandle":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

    # --- reading ---

    def names(self) -> list[str]:
        """The names of what lies in it but our temporary files, in their order."""
        with failures(self.name):
            return sorted(name for name in os.listdir(self.fd) if not name.startswith(TEMPORARY))

    def read(self, name: str, at_most: int = FILE_BYTES_MAX) -> Seen | None:
        """A regular file as it is; None where there is none.

        Raises:
            NoFileOfOurs: it is a link or no regular file.
            TooLarge: it is larger than `at_most` bytes.
        """
        with self._reading(name) as (fd, state):
            if state is None:
                return None
            if state.st_size > at_most:
                raise TooLarge(f"{self._what(name)}: is larger than {at_most:,} bytes.")
            parts = []
            while part := os.read(fd, 1 << 20):
                parts.append(part)
            return Seen(b"".join(parts), _version(state))

    def part(self, name: str, bytes_max: int, *, end: bool = False) -> Seen | None:
        """As `read`, of a file of any size: its beginning or its end. The version has the size of the whole."""
        with self._reading(name) as (fd, state):
            if state is None:
                return None
            start = max(state.st_size - bytes_max, 0) if end else 0
            return Seen(os.pread(fd, min(bytes_max, state.st_size), start), _version(state))

    @contextmanager
    def _reading(self, name: str) -> Iterator[tuple[int, os.stat_result | None]]:
        """(a handle of a file, what it is); None where there is none."""
        with failures(self._what(name)):
            try:
                fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _HELD, dir_fd=self.fd)
            except FileNotFoundError:
                yield -1, None
                return
            try:
                yield fd, self._require_own(os.fstat(fd), name)
            finally:
                os.close(fd)

    def version(self, name: str) -> Version | None:
        """What a file is now; None where there is none."""
        with failures(self._what(name)):
            state = self._stat(name)
            return None if state is None else _version(state)

    def _stat(self, name: str) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def _require_own(self, state: os.stat_result, name: str) -> os.stat_result:
        if not stat.S_ISREG(state.st_mode) or state.st_nlink > 1:
            raise NoFileOfOurs(f"{self._what(name)}: is no file of its own (a link, a folder, a device or a pipe).")
        return state

    def _what(self, name: str) -> str:
        return f"{self.name}/{name}".encode("utf-8", "backslashreplace").decode()

    # --- appending ---

    def append(self, name: str, record: bytes) -> Version:
        """Add a record at the end, durably; the file is made where it is missing. Returns what it is then.

        Raises:
            StorageFull, FileFailed: nothing of the record is in the file.
        """
        with failures(self._what(name)):
            fd, made = self._open_end(name)
            try:
                before = self._require_own(os.fstat(fd), name).st_size
                try:
                    write_all(fd, record)
                    os.fsync(fd)
                    if before == 0:
                        os.fsync(self.fd)
                except OSError:
                    self._take_off(fd, before, record)
                    if made:
                        self._take_away(name, os.fstat(fd).st_ino)
                    raise
                return _version(os.fstat(fd))
            finally:
                os.close(fd)

    def _open_end(self, name: str) -> tuple[int, bool]:
        """(the file, whether it was made)."""
        flags = os.O_RDWR | os.O_APPEND | os.O_NONBLOCK | _HELD
        try:
            return os.open(name, flags, dir_fd=self.fd), False
        except FileNotFoundError:
            try:
                return os.open(name, flags | os.O_CREAT | os.O_EXCL, _MODE_FILE, dir_fd=self.fd), True
            except FileExistsError:  # made by somebody else in between
                return os.open(name, flags, dir_fd=self.fd), False

    def _take_off(self, fd: int, before: int, record: bytes) -> None:
        """Cut what was written of a record, unless another program has written behind it."""
        with suppress(OSError):
            size = os.fstat(fd).st_size
            if record.startswith(os.pread(fd, size - before, before)):
                os.ftruncate(fd, before)

    def _take_away(self, name: str, inode: int) -> None:
        """Remove an empty file that we made, unless another one is in its place."""
        with suppress(OSError):
            state = self._stat(name)
            if state is not None and state.st_ino == inode and state.st_size == 0:
                os.unlink(name, dir_fd=self.fd)

    def cut(self, name: str, size: int, of: int) -> Version:
        """Shorten a file of `of` bytes to its first `size`; a longer one stays. Returns what it is then."""
        with failures(self._what(name)):
            fd = os.open(name, os.O_RDWR | os.O_NONBLOCK | _HELD, dir_fd=self.fd)
            try:
                if self._require_own(os.fstat(fd), name).st_size == of:
                    os.ftruncate(fd, size)
                    os.fsync(fd)
                return _version(os.fstat(fd))
            finally:
                os.close(fd)

    # --- replacing ---

    def create(self, name: str, content: bytes) -> Version | None:
        """Make a file, durably; None where there is something already, which is left as it is."""
        with failures(self._what(name)):
            if self._stat(name) is not None:
                return None
            temporary, version = self._write_new(name, content, _MODE_FILE)
            try:
                rename(self.fd, temporary, name, NO_REPLACE)
            except OSError as error:
                self._discard(temporary)
                if isinstance(error, FileExistsError):
                    return None
                raise
            try:
                os.fsync(self.fd)
            except OSError:
                self._take_back(name, temporary, version)
                raise
            return version

    def exchange(self, name: str, content: bytes, seen: Seen | None) -> Placed | None:
        """Put new content in a file's place, durably; what was there is in a temporary file then.

        `seen` is what was read there; without it, whatever is there may go. None where another version is there by now,
        or nothing: nothing was done then. A save in the very moment shows as ours for some microseconds.

        Raises:
            NoFileOfOurs: a link, a folder or another file that is no page of ours is there, and stays.
        """
        with failures(self._what(name)):
            if (there := self._stat(name)) is None:
                return None
            self._require_own(there, name)
            temporary, version = self._write_new(name, content, stat.S_IMODE(there.st_mode), there)
            try:
                if seen is not None:
                    temporary = self._tagged(temporary, name, content, seen.content)
                    if self.version(name) != seen.version:
                        self._discard(temporary)
                        return None
                rename(self.fd, temporary, name, EXCHANGE)
            except (OSError, Rejection):
                self._discard(temporary)
                if self._stat(name) is None:
                    return None
                raise
            edited = True
            try:
                out = None if seen is None else self.read(temporary, max(FILE_BYTES_MAX, len(seen.content)))
                edited = seen is not None and out is not None and out.content != seen.content
                if edited:
                    self._put_back(temporary, name, version, edited=True)
                    return None
                os.fsync(self.fd)
            except (OSError, Rejection):
                self._put_back(temporary, name, version, edited=edited)
                raise
            return Placed(version, temporary)

    def _put_back(self, temporary: str, name: str, version: Version, *, edited: bool) -> None:
        """Put back what came out. A save on top of ours stays; an edit that it excludes is kept beside it."""
        with suppress(OSError, Rejection):
            back = False
            with suppress(FileNotFoundError):  # ours was removed meanwhile
                rename(self.fd, temporary, name, EXCHANGE)
                if not (back := self.version(temporary) == version):
                    rename(self.fd, temporary, name, EXCHANGE)
            if edited and not back:
                self.keep(temporary, name)
            else:
                self._discard(temporary)

    def keep(self, temporary: str, page: str) -> None:
        """Keep a version of a page that cannot be merged beside it, as `PAGE.conflict-<time>`; needs no space."""
        at_ms = time.time_ns() // 1_000_000
        with failures(self._what(page)):
            while True:
                try:
                    rename(self.fd, temporary, f"{page}.conflict-{at_ms}", NO_REPLACE)
                    break
                except FileExistsError:
                    at_ms += 1
            os.fsync(self.fd)

    def remove(self, name: str) -> None:
        """Remove a file; one that is gone is no error."""
        with failures(self._what(name)), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def temporaries(self) -> list[Temporary]:
        """Temporary files of ours, of this process and of dead ones."""
        with failures(self.name):
            names = sorted(name for name in os.listdir(self.fd) if name.startswith(TEMPORARY))
        return [found for name in names if (found := Temporary.of(name)) is not None]

    def _write_new(
        self, page: str, content: bytes, mode: int, owner: os.stat_result | None = None
    ) -> tuple[str, Version]:
        """Write a temporary file, durably. Returns its name and what it is."""
        while True:
            name = temporary_name(page)
            try:
                fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _HELD, _MODE_FILE, dir_fd=self.fd)
                break
            except FileExistsError:  # of a dead process that had our number; it may hold a person's edit
                continue
        try:
            try:
                if owner is not None:
                    give(fd, mode, owner)
                write_all(fd, content)
                os.fsync(fd)
                return name, _version(os.fstat(fd))
            finally:
                os.close(fd)
        except OSError:
            self._discard(name)
            raise

    def _tagged(self, temporary: str, page: str, content: bytes, expected: bytes) -> str:
        """Give a temporary file that is whole the name that tells what it may hold."""
        tagged = temporary_name(page, hash_of(content), hash_of(expected))
        rename(self.fd, temporary, tagged, NO_REPLACE)
        return tagged

    def _discard(self, temporary: str) -> None:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=self.fd)

    def _take_back(self, name: str, temporary: str, version: Version) -> None:
        """Remove the file that we made, unless somebody has written it since."""
        with suppress(OSError, Rejection):
            rename(self.fd, name, temporary, NO_REPLACE)
            if self.version(temporary) != version:
                rename(self.fd, temporary, name, NO_REPLACE)
            else:
                os.unlink(temporary, dir_fd=self.fd)


def open_folder(root: Path, parts: Sequence[str], *, make: bool = False) -> FolderHandle | None:
    """A folder below a root, each step by a handle of the one before; None where it is missing and not to be made.

    Raises:
        NoFileOfOurs: a link stands in its path, or the root has become one.
        FileFailed, StorageFull: it cannot be opened or made.
    """
    what = "/".join(parts) or str(root)
    with failures(what):
        try:
            if make:
                make_root(root)
            fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | _HELD)
            for part in parts:
                try:
                    below = step(fd, part, make=make)
                finally:
                    os.close(fd)
                fd = below
        except FileNotFoundError:
            if make:
                raise
            return None
    return FolderHandle(fd, what)


def opened(roots: Roots, place: Folder) -> FolderHandle | None:
    """A folder of the swarm; None where it is missing. Raises as `open_folder` does."""
    return open_folder(roots.of(place.root), place.parts)


def made(roots: Roots, place: Folder) -> FolderHandle:
    """A folder of the swarm, which is made where it is missing. Raises as `open_folder` does."""
    folder = open_folder(roots.of(place.root), place.parts, make=True)
    assert folder is not None
    return folder


def _version(state: os.stat_result) -> Version:
    return Version(state.st_ino, state.st_size, state.st_mtime_ns)
