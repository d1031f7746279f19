"""What it means that the index file cannot be used."""

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

from storage.errors import is_damage


class IndexFailure(Exception):
    """The index file could not be used. It is never an error of the database, and never an empty result."""

    def __init__(self, cause: Exception, *, damaged: bool) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.damaged = damaged
        """True where the file itself cannot be used, so that it has to be made anew."""


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
        raise IndexFailure(error, damaged=is_damage(error)) from error
    except (OSError, ValueError, TypeError, IndexError, OverflowError) as error:
        raise IndexFailure(error, damaged=True) from error
