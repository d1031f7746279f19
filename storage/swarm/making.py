"""Folders that are made, durably: a file is no safer than the entry of the folder that it lies in."""

import os
from contextlib import suppress
from pathlib import Path

_MODE_FOLDER = 0o755


def make_root(root: Path) -> None:
    """Make a root and the folders above it that are missing, durably."""
    missing = [path for path in (root, *root.parents) if not path.exists()]
    for path in reversed(missing):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _make(parent, path.name)
        finally:
            os.close(parent)


def step(fd: int, part: str, *, make: bool) -> int:
    """A handle of the folder `part` below the one of `fd`; no link is followed.

    Raises:
        FileNotFoundError: it is missing, and not to be made.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(part, flags, dir_fd=fd)
    except FileNotFoundError:
        if not make:
            raise
    _make(fd, part)
    return os.open(part, flags, dir_fd=fd)


def _make(fd: int, part: str) -> None:
    """Make a folder, durably; one that is not durable is no folder: it would not be synced the next time."""
    with suppress(FileExistsError):
        os.mkdir(part, _MODE_FOLDER, dir_fd=fd)
        try:
            os.fsync(fd)
        except OSError:
            with suppress(OSError):
                os.rmdir(part, dir_fd=fd)
            raise
