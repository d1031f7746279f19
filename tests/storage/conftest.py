"""A writing and a reading store over a fresh database, with a clock that tests move."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.paths import Paths
from storage.reading import ReadingStore
from storage.writing import WritingStore
from tests.support import fresh_database


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1_780_000_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """The clock of the stores."""
    return Clock()


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """Where a fresh database lies."""
    return Paths(fresh_database(tmp_path))


@pytest.fixture
def store(paths: Paths, clock: Clock) -> Iterator[WritingStore]:
    """The writer's store; it fails the test that leaves a transaction open."""
    opened = WritingStore(paths, clock=clock)
    yield opened
    assert not opened._db.in_transaction
    opened.close()


@pytest.fixture
def reading(store: WritingStore, paths: Paths, clock: Clock) -> Iterator[ReadingStore]:
    """A reader's store beside it."""
    opened = ReadingStore(paths, clock=clock)
    yield opened
    opened.close()
