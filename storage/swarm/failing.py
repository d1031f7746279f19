"""What an error of the operating system means for the swarm's files."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from storage.errors import FileFailed, NoFileOfOurs, StorageFull

_NOT_OURS: Final = (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def failures(what: str) -> Iterator[None]:
    """Raise the rejection that stands for an OSError of the block.

    Raises:
        NoFileOfOurs: a link, a folder or a pipe stands where a file or folder of ours should.
        StorageFull: the disk or a quota is full.
        FileFailed: anything else.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _NOT_OURS:
            raise NoFileOfOurs(f"{what}: a link, or what is no file or folder of ours, stands in its path.") from error
        if error.errno in _FULL:
            raise StorageFull(f"{what}: the disk is full; nothing was changed.") from error
        raise FileFailed(f"{what}: {os.strerror(error.errno or 0)}; nothing was changed.") from error
