"""What a file that is being written needs of the operating system."""

import os
from contextlib import suppress

from storage.errors import FileFailed


def write_all(fd: int, content: bytes) -> None:
    """Write all of it, in as many writes as that takes.

    Raises:
        OSError: less than that is in the file.
        FileFailed: as above, and the system does not say why.
    """
    written = 0
    while written < len(content):
        count = os.write(fd, memoryview(content)[written:])
        if count == 0:
            raise FileFailed("A write took no byte; nothing was changed.")
        written += count


def give(fd: int, mode: int, owner: os.stat_result) -> None:
    """Let a new page keep the mode of the old one and, where we may, its owner."""
    os.fchmod(fd, mode)
    own = os.fstat(fd)
    if (own.st_uid, own.st_gid) != (owner.st_uid, owner.st_gid):
        with suppress(PermissionError):
            os.fchown(fd, owner.st_uid, owner.st_gid)
