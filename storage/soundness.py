"""What reads and writes of the database have met, as `/health` tells it, and what the last check of it said."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from storage.errors import StorageDamaged, StorageFailed, StorageFull
from storage.records import Record

Failure = StorageDamaged | StorageFailed | StorageFull
"""What is wrong with the database or its disk, and not with one call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Integrity(Record):
    """What the last check of the database said."""

    checked_at: str
    """When it ended: ISO 8601, UTC."""
    whole: bool
    """True where all of the file was read; of a large one a sample is, until something is found wrong."""
    sound: bool
    """False where it found damage: see runbooks/errors.md#storage_damaged."""
    problem: str | None
    """What it found, in SQLite's words; null where it is sound."""


class Side:
    """The reads of one connection, or its writes: whether the last one worked, and what one has failed by.

    A failure stays until clear(), for the next read may go to another page; `mends` says that one which works takes
    back all but damage. One thread at a time changes it; any may look.
    """

    def __init__(self, *, mends: bool) -> None:
        self._mends = mends
        self.works = True
        """False where the last one failed."""
        self.failure: Failure | None = None
        """The first that has failed and was not cleared, or the first damage."""

    @property
    def damaged(self) -> bool:
        """Whether one has met damage."""
        return isinstance(self.failure, StorageDamaged)

    def met(self, error: BaseException | None) -> None:
        """Note how one ended that did not work; what is no failure of the database's tells nothing."""
        if isinstance(error, Failure):
            self.works = False
            if self.failure is None or (isinstance(error, StorageDamaged) and not self.damaged):
                self.failure = type(error)(error.detail)  # without its traceback, which holds what was read

    def worked(self) -> None:
        """Note that one has worked."""
        self.works = True
        if self._mends and not self.damaged:
            self.failure = None

    def clear(self) -> None:
        """Forget the failure: a check has found nothing wrong."""
        self.works = True
        self.failure = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Run the block, which raises rejections, and note how it ends."""
        try:
            yield
        except BaseException as error:
            self.met(error)
            raise
        self.worked()
