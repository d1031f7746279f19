"""What it means that the index file cannot be used."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from storage.errors import is_damage


class IndexFailure(Exception):
    """The index file could not be used. It is never an error of the database, and never an empty result."""

    def __init__(self, reason: str, damaged: bool) -> None:
        super().__init__(reason, damaged)  # as its arguments: it also comes from another process
        self.damaged = damaged
        """True where the file itself cannot be used, so that it has to be made anew."""

    def __str__(self) -> str:
        return str(self.args[0])


@contextmanager
def index_failures() -> Iterator[None]:
    """Run the block and raise an IndexFailure for whatever the file makes of it.

    SQLite has no checksums: flipped bytes also show as text that is no text and numbers that are none.
    """
    try:
        yield
    except apsw.InterruptError:
        raise
    except apsw.Error as error:
        # Closed: it was being made anew, and that failed.
        damaged = is_damage(error) or isinstance(error, apsw.ConnectionClosedError)
        raise IndexFailure(_told(error), damaged and descriptors_left()) from error
    except (OSError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise IndexFailure(_told(error), descriptors_left()) from error


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def descriptors_left() -> bool:
    """Whether a file can be opened at all: where none can, a file that cannot be opened may be whole."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        return False
    return True
