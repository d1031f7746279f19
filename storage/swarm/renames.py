"""Renaming within one folder as pages need it, and the names of temporary files."""

import ctypes
import errno
import hashlib
import itertools
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

NO_REPLACE: Final = 1
"""RENAME_NOREPLACE of renameat2(2): fails where the target exists."""
EXCHANGE: Final = 2
"""RENAME_EXCHANGE of renameat2(2): both change places."""
_DISCARD: Final = "w"
_DIGITS: Final = 16
_NAME: Final = re.compile(rf"\.solos-\d+-\d+-({_DISCARD}|[0-9a-f]{{{2 * _DIGITS}}})-(.+)", re.DOTALL)
_UNKNOWN: Final = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_numbers = itertools.count()
_renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def hash_of(content: bytes) -> str:
    """The hash that `baseHash` is compared with: SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class Temporary:
    """A temporary file of ours, as its name tells."""

    name: str
    page: str
    """The page that it is for."""
    known: tuple[str, ...] | None
    """The beginnings of the hashes of what we put and of what should have come out; None: it is worth nothing."""

    @classmethod
    def of(cls, name: str) -> "Temporary | None":
        """From a file's name; None where it is none of ours."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        tag, page = found.groups()
        return cls(name, page, None if tag == _DISCARD else (tag[:_DIGITS], tag[_DIGITS:]))

    def may_hold(self, hash_: str) -> bool:
        """Whether what has this hash is what its name tells, and so no edit of a person's."""
        return self.known is None or hash_[:_DIGITS] in self.known


def temporary_name(page: str, *hashes: str) -> str:
    """A fresh name for a temporary file.

    Without hashes, it may be removed whatever it holds. With those of what we put into the page's place and of what
    should come out, anything else that it holds is a person's edit.
    """
    tag = "".join(hash_[:_DIGITS] for hash_ in hashes) or _DISCARD
    return f".solos-{os.getpid()}-{next(_numbers)}-{tag}-{page}"


def rename(fd: int, source: str, target: str, how: int) -> None:
    """renameat2(2) within a folder; where the file system or the C library has no such thing, by way of a hard link."""
    if _renameat2 is not None:
        if _renameat2(fd, os.fsencode(source), fd, os.fsencode(target), how) == 0:
            return
        code = ctypes.get_errno()
        if code not in _UNKNOWN:
            raise OSError(code, os.strerror(code), target)
    if how == NO_REPLACE:
        os.link(source, target, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
        os.unlink(source, dir_fd=fd)
    else:
        _exchange_by_links(fd, source, target)


def _exchange_by_links(fd: int, source: str, target: str) -> None:
    """Between its last two steps a save by renaming is lost: there is no better way without EXCHANGE."""
    kept = f"{source}-{next(_numbers)}"
    os.link(target, kept, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
    try:
        os.rename(source, target, src_dir_fd=fd, dst_dir_fd=fd)
    except OSError:
        with suppress(OSError):
            os.unlink(kept, dir_fd=fd)
        raise
    os.rename(kept, source, src_dir_fd=fd, dst_dir_fd=fd)
