"""Another database in the place of the served one is known as such; the same one, edited or emptied, is not."""

from contextlib import closing
from pathlib import Path

import pytest

from storage.batch import Write
from storage.paths import Paths
from storage.records import Remembered
from storage.writing import WritingStore
from tests.storage.writes import episode, fact, one, short
from tests.support import fresh_database, rows

KEY: Write[Remembered] = short(value="first", request_id="r1")


def opened(paths: Paths) -> bool:
    """Whether it counts as another one when it is opened; its index follows it then."""
    with closing(WritingStore(paths)) as store:
        store.catch_up(10)
        return store.report.another_database


def _replace(paths: Paths, tmp_path: Path, *facts: str) -> None:
    (tmp_path / "other").mkdir()
    other = fresh_database(tmp_path / "other")
    for text in facts:
        rows(other, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', ?, 1.7e9)", text)
    other.rename(paths.database)


@pytest.mark.parametrize("others", [(), ("other",), tuple(f"other {n}" for n in range(30))])
@pytest.mark.parametrize("ours", [1, 5, 100])
def test_another_is_told_from_its_rows_however_few(
    paths: Paths, tmp_path: Path, ours: int, others: tuple[str, ...]
) -> None:
    with closing(WritingStore(paths)) as store:
        for number in range(ours):
            one(store, fact("mira", f"zebra {number}"))
    _replace(paths, tmp_path, *others)
    assert opened(paths)
    assert not opened(paths)


@pytest.mark.parametrize(
    "edit",
    [
        "UPDATE memory_longterm SET fact = 'edited by hand'",
        "UPDATE memory_longterm SET topic = 'edited', confidence = 0.5, tags = '[]'",
        "DELETE FROM memory_longterm WHERE id > 1",
        "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'foreign', 1)",
    ],
)
@pytest.mark.parametrize("ours", [1, 2, 100])
def test_the_same_one_is_not_whatever_was_edited_in_it(paths: Paths, ours: int, edit: str) -> None:
    with closing(WritingStore(paths)) as store:
        for number in range(ours):
            one(store, fact("mira", f"zebra {number}", tags=("t",)))
        one(store, episode("mira", "fed the zebra"))
    rows(paths.database, edit)
    assert not opened(paths)


def test_a_short_key_that_another_database_never_held_is_written_to_it(paths: Paths, tmp_path: Path) -> None:
    """Its request was settled, and its caller may send it again: `replayed` would be a row that is nowhere."""
    with closing(WritingStore(paths)) as store:
        one(store, fact("mira", "zebra"))
        one(store, KEY)
    _replace(paths, tmp_path, "other")
    with closing(WritingStore(paths)) as store:
        assert store.report.another_database
        assert not one(store, KEY).replayed
        assert one(store, KEY).replayed
    assert rows(paths.database, "SELECT agent, value FROM memory_short") == [("mira", "first")]


def test_the_first_one_that_comes_back_still_knows_its_short_keys(paths: Paths, tmp_path: Path) -> None:
    with closing(WritingStore(paths)) as store:
        one(store, fact("mira", "zebra"))
        one(store, KEY)
    paths.database.rename(tmp_path / "away.db")
    _replace(paths, tmp_path, "other")
    assert opened(paths)
    (tmp_path / "away.db").rename(paths.database)
    with closing(WritingStore(paths)) as store:
        assert one(store, KEY).replayed


def test_an_edit_brings_no_older_value_of_a_short_key_back(paths: Paths) -> None:
    """With one fact, edited while nothing served: a retry of what was overwritten since is answered, not written."""
    with closing(WritingStore(paths)) as store:
        one(store, fact("mira", "zebra"))
        one(store, KEY)
        one(store, short(value="second"))
    rows(paths.database, "UPDATE memory_longterm SET fact = 'edited by hand'")
    with closing(WritingStore(paths)) as store:
        assert one(store, KEY).replayed
    assert rows(paths.database, "SELECT value FROM memory_short") == [("second",)]
