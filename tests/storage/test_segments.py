"""The posting lists are kept in few pieces, slice by slice, and say the same."""

import time

import pytest

from storage.reading import ReadingStore
from storage.search import segments
from storage.writing import WritingStore
from tests.storage.writes import ask, fact, one

FACTS = 30


@pytest.fixture
def pieces(store: WritingStore, monkeypatch: pytest.MonkeyPatch) -> segments.Segments:
    """Those of the tier of facts, more than there may be."""
    monkeypatch.setattr(segments, "SEGMENTS_MAX", 1)
    monkeypatch.setattr(segments, "_PAGES", 1)
    for number in range(FACTS):
        one(store, fact("mira", f"the zebra {number} sleeps"))
    _, long, _ = store._index._segments
    assert long.count > 1
    return long


def found(reading: ReadingStore) -> set[str]:
    """All the facts that are found by their common word."""
    return {memory.text for memory in ask(reading, "zebra", k=50)}


def test_they_are_joined_into_one_and_every_row_is_still_found(
    store: WritingStore, reading: ReadingStore, pieces: segments.Segments
) -> None:
    before = found(reading)
    assert store.join_segments(5.0) is True
    assert pieces.count == 1
    assert found(reading) == before == {f"the zebra {number} sleeps" for number in range(FACTS)}
    assert store.join_segments(5.0) is True


def test_a_slice_that_has_no_time_begins_and_the_next_ones_go_on_whatever_is_written_between(
    store: WritingStore, reading: ReadingStore, pieces: segments.Segments
) -> None:
    assert pieces.join(time.monotonic()) is False
    rounds = 0
    while not pieces.join(time.monotonic() + 0.0001):
        one(store, fact("mira", f"the zebra {FACTS + rounds} sleeps"))
        rounds += 1
        assert rounds < 500
    assert pieces.count < 8
    assert len(found(reading)) == min(FACTS + rounds, 50)


def test_few_pieces_are_left_alone(store: WritingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    one(store, fact("mira", "the zebra sleeps"))
    monkeypatch.setattr(segments.Segments, "_step", None)
    assert store.join_segments(5.0) is True
