"""Folders of notes as wholes, by handles alone: listed, walked, removed, moved. No link is followed."""

import ctypes
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from storage.errors import Rejection, TooLarge
from storage.swarm.failing import failures
from storage.swarm.folders import FolderHandle
from storage.swarm.making import step
from storage.swarm.notes.showing import ENTRIES_MAX, Entry, is_listed
from storage.swarm.renames import NO_REPLACE

DEPTH_WALKED_MAX: Final = 64
"""How deep a folder that a person made may be nested for us to remove or move it."""
_TRIES_MAX: Final = 3
_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_THERE: Final = (errno.EEXIST, errno.ENOTEMPTY)
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)

Parts = tuple[str, ...]


def state_of(folder: FolderHandle, name: str) -> os.stat_result | None:
    """What lies in a folder under a name, a link itself; None where there is nothing."""
    with failures(f"{folder.name}/{name}"):
        try:
            return os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None


def is_folder(state: os.stat_result | None) -> bool:
    """Whether what was found is a folder, and no link to one."""
    return state is not None and stat.S_ISDIR(state.st_mode)


@contextmanager
def entered(folder: FolderHandle, name: str) -> Iterator[FolderHandle]:
    """The folder of that name in a folder.

    Raises:
        NoFileOfOurs, FileFailed: it is a link or no folder, or is gone.
    """
    with failures(f"{folder.name}/{name}"):
        fd = step(folder.fd, name, make=False)
    with FolderHandle(fd, f"{folder.name}/{name}") as inner:
        yield inner


def listed(folder: FolderHandle, levels: int) -> list[Entry]:
    """The files and folders in a folder and so many levels below, each folder before what is in it.

    Links and what is neither are passed over. At most one more than is shown.
    """
    found: list[Entry] = []
    _list(folder, "", levels, found)
    return found


def _list(folder: FolderHandle, before: str, levels: int, found: list[Entry]) -> None:
    for name in folder.names():
        if len(found) > ENTRIES_MAX:
            return
        state = state_of(folder, name) if is_listed(name) else None
        if state is None:
            continue
        path = before + _shown(name)
        if stat.S_ISREG(state.st_mode):
            found.append(Entry(path, state.st_size))
        elif is_folder(state):
            found.append(Entry(f"{path}/", state.st_size))
            if levels > 1:
                with suppress(Rejection), entered(folder, name) as inner:  # else closed to us, or gone by now
                    _list(inner, f"{path}/", levels - 1, found)


def _shown(name: str) -> str:
    """A name that a person gave; one that would break the listing's lines is shown without what breaks them."""
    text = os.fsencode(name).decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def walk(folder: FolderHandle, name: str) -> list[tuple[Parts, bool]]:
    """(path from the folder `name` on, whether it is a folder) of all that is below it.

    Raises:
        TooLarge: it is nested deeper than 64 folders.
    """
    found: list[tuple[Parts, bool]] = []
    _walk(folder, name, (), found)
    return found


def _walk(folder: FolderHandle, name: str, path: Parts, found: list[tuple[Parts, bool]]) -> None:
    if len(path) > DEPTH_WALKED_MAX:
        raise TooLarge(f"{folder.name}: is nested deeper than {DEPTH_WALKED_MAX} folders; remove it by hand.")
    with entered(folder, name) as inner:
        for child in inner.names():
            below = is_folder(state_of(inner, child))
            found.append(((*path, child), below))
            if below:
                _walk(inner, child, (*path, child), found)


def remove(fd: int, name: str) -> None:
    """Remove an entry of the folder of a handle, a folder with all that is in it. Durable once `fd` is synced.

    Raises:
        OSError: not all of it could be removed.
    """
    if not is_folder(os.stat(name, dir_fd=fd, follow_symlinks=False)):
        os.unlink(name, dir_fd=fd)
        return
    for _ in range(_TRIES_MAX):
        _empty(fd, name)
        try:
            os.rmdir(name, dir_fd=fd)
            break
        except OSError as error:  # somebody has put a file into it meanwhile
            if error.errno not in _THERE:
                raise
    else:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)


def _empty(fd: int, name: str) -> None:
    inner = step(fd, name, make=False)
    try:
        for child in os.listdir(inner):
            with suppress(FileNotFoundError):  # removed by somebody else
                remove(inner, child)
    finally:
        os.close(inner)


def move(source: FolderHandle, name: str, target: FolderHandle, new: str) -> bool:
    """Move an entry to another folder or name, durably; False where there is something already, which stays.

    Raises:
        FileFailed, StorageFull: it is where it was.
    """
    with failures(f"{source.name}/{name}"):
        try:
            _rename(source.fd, name, target.fd, new)
        except OSError as error:
            if error.errno in _THERE:
                return False
            raise
        try:
            os.fsync(target.fd)
            os.fsync(source.fd)
        except OSError:
            with suppress(OSError):
                _rename(target.fd, new, source.fd, name)
            raise
    return True


def _rename(source: int, name: str, target: int, new: str) -> None:
    """renameat2(2) that replaces nothing; without it, by a hard link, and of a folder by rename(2).

    That replaces nothing either but an empty folder.
    """
    if _renameat2 is not None:
        if _renameat2(source, os.fsencode(name), target, os.fsencode(new), NO_REPLACE) == 0:
            return
        code = ctypes.get_errno()
        if code not in _UNKNOWN:
            raise OSError(code, os.strerror(code), new)
    if is_folder(os.stat(name, dir_fd=source, follow_symlinks=False)):
        os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
    else:
        os.link(name, new, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
        os.unlink(name, dir_fd=source)
