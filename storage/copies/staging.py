"""Files that are there whole or not at all: made in a folder of their own beside the target, synced, then moved."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import apsw

from storage.errors import ConfigurationError, StorageFull, StorageUnavailable, rejection_of

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def staged(target: Path) -> Iterator[Path]:
    """A new folder beside the target, readable by its owner alone, on the same volume.

    It is removed at the end of the block, however that ends; what the block moved out of it stays. What a killed
    predecessor left for the same target is removed first.

    Raises:
        ConfigurationError: the target exists; nothing is ever replaced.
        StorageFull: the disk is full.
        Rejection: something else cannot be read or written; the text names the target.
    """
    refuse_existing(target)
    staging = target.with_name(f".{target.name}.partial-{os.getpid()}")
    try:
        with translated_at(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            _sweep(target)
            staging.mkdir(mode=0o700)
            yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def refuse_existing(*targets: Path) -> None:
    """Refuse to write over anything.

    Raises:
        ConfigurationError: one of the targets exists.
    """
    for target in targets:
        if os.path.lexists(target):
            raise ConfigurationError(f"{target} exists already; it was left as it is. Name a new path.")


@contextmanager
def translated_at(target: Path) -> Iterator[None]:
    """Run the block and raise the `Rejection` for an error in it that names the target; a full disk is the target's."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise _full(target) from error
        raise StorageUnavailable(f"{target} cannot be made ({type(error).__name__}: {error}).") from error
    except apsw.FullError as error:
        raise _full(target) from error
    except apsw.Error as error:
        rejection = rejection_of(error)
        if rejection is None:
            raise
        raise type(rejection)(f"{target} cannot be made. {rejection.detail}") from error


def _full(target: Path) -> StorageFull:
    return StorageFull(f"The disk of {target.parent} is full; nothing was left at {target}.")


def _sweep(target: Path) -> None:
    """Remove what processes left that were killed while they made this target."""
    prefix = f".{target.name}.partial-"
    for left in target.parent.glob(f"{_literal(prefix)}*"):
        owner = left.name.removeprefix(prefix)
        if owner.isdecimal() and not _alive(int(owner)):
            shutil.rmtree(left, ignore_errors=True)


def _literal(name: str) -> str:
    return "".join(f"[{character}]" if character in "*?[" else character for character in name)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def place(made: Path, target: Path) -> None:
    """Give a finished file its name, never over another one.

    Raises:
        ConfigurationError: something of that name has come there meanwhile.
    """
    sync(made)
    try:
        os.link(made, target)  # unlike a rename it does not replace what is there
    except FileExistsError as error:
        raise ConfigurationError(f"{target} exists already; it was left as it is. Name a new path.") from error
    sync(target.parent)


def place_folder(made: Path, target: Path) -> None:
    """Give a finished folder its name; what lies in it is synced first.

    Raises:
        ConfigurationError: something of that name has come there meanwhile.
    """
    for path in (*made.iterdir(), made):
        sync(path)
    try:
        made.rename(target)
    except OSError as error:
        if os.path.lexists(target):
            raise ConfigurationError(f"{target} exists already; it was left as it is. Name a new path.") from error
        raise
    sync(target.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a small file at once: a reader sees the old text or the new one."""
    made = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        made.write_text(text, encoding="utf-8")
        sync(made)
        made.replace(path)
    finally:
        with suppress(FileNotFoundError):
            made.unlink()
    sync(path.parent)


def sha256_of(path: Path) -> str:
    """The digest of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
