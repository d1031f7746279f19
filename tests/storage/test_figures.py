"""What storage tells of itself: how far the index is behind, when others wrote, when the last backup was."""

import json

import pytest

from storage.copies.backup_record import LastBackup, last_backup, record_path
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.writes import fact
from tests.support import rows

FOREIGN = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'Foreign.', 1.7e9)"


def behind(reading: ReadingStore) -> tuple[float, int]:
    """The part that the index has followed, and the rows that it has not."""
    state = reading.state(owner=None)
    return state.index_share, state.index_rows_behind


def test_rows_of_others_are_behind_until_the_index_follows(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    store.apply([fact(text="Ours.")])
    assert behind(reading) == (1.0, 0)
    for _ in range(3):
        rows(paths.database, FOREIGN)
    assert behind(reading) == (0.25, 3)
    assert store.catch_up()
    assert behind(reading) == (1.0, 0)


def test_row_that_went_from_the_end_is_not_behind(store: WritingStore, reading: ReadingStore, paths: Paths) -> None:
    store.apply([fact(text="One."), fact(text="Two.")])
    rows(paths.database, "DELETE FROM memory_longterm WHERE fact = 'Two.'")
    assert behind(reading) == (1.0, 0)


def test_without_an_index_every_row_is_behind(store: WritingStore, paths: Paths, clock: Clock) -> None:
    store.apply([fact(text="One."), fact(text="Two.")])
    for file in paths.cache.iterdir():
        file.unlink()
    without = ReadingStore(paths, clock=clock)
    assert behind(without) == (0.0, 2)
    without.close()


def test_foreign_change_is_when_it_was_noticed(store: WritingStore, paths: Paths, clock: Clock) -> None:
    store.catch_up()
    store.apply([fact(text="Ours.")])
    store.catch_up()
    assert store.foreign_change_at_s is None, "neither the opening nor our own writes are foreign"
    rows(paths.database, FOREIGN)
    clock.now_s += 7
    noticed_s = clock.now_s
    store.catch_up()
    assert store.foreign_change_at_s == noticed_s
    clock.now_s += 60
    store.catch_up()
    store.apply([fact(text="Ours again.")])
    assert store.foreign_change_at_s == noticed_s, "nothing foreign since"
    rows(paths.database, "UPDATE memory_longterm SET fact = 'Changed.' WHERE fact = 'Foreign.'")
    store.apply([fact(text="And again.")])
    assert store.foreign_change_at_s == clock.now_s, "a write of ours notices it, too"


def test_foreign_change_is_noticed_in_the_middle_of_a_long_catch_up(
    store: WritingStore, paths: Paths, clock: Clock
) -> None:
    store.catch_up()
    rows(paths.database, FOREIGN)
    store.catch_up(0.0)
    assert store.foreign_change_at_s == clock.now_s


@pytest.mark.parametrize("at", ["2026-09-28T03:00:00.000Z", 1_790_564_400.0, "2026-09-28T05:00:00+02:00"])
def test_last_backup_is_read_whatever_form_its_instant_has(store: WritingStore, paths: Paths, at: float | str) -> None:
    assert last_backup(paths) is None
    record_path(paths).write_text(json.dumps({"at": at, "to": "/backups/one", "bytes": 4096}))
    assert last_backup(paths) == LastBackup("2026-09-28T03:00:00.000Z", "/backups/one", 4096)
