"""A long build of the index: read ahead, helped by a second process, and none the worse for what happens meanwhile."""

import gc
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import limits
from storage.collection import collect_seldom
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search.analyst import Analyst
from storage.search.contents import contents_of
from storage.writing import WritingStore
from tests.storage.writes import ask, fact
from tests.support import eventually, rows

ROWS = 2_000


@pytest.fixture
def analyst() -> Iterator[Analyst]:
    """A second process, ended with the test."""
    started = Analyst()
    yield started
    started.close()


@pytest.fixture
def many(paths: Paths, store: WritingStore, monkeypatch: pytest.MonkeyPatch) -> WritingStore:
    """A store over rows that another process wrote, of which none is indexed; the second process helps early."""
    monkeypatch.setattr(limits, "ANALYST_FROM_ROWS", 500)
    store.catch_up()
    rows(
        paths.database,
        "INSERT INTO memory_longterm(agent, fact, created_at) WITH RECURSIVE n(x) AS "
        "(SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < ?) "
        "SELECT 'sol', 'Gauge number ' || x || ' reads word' || (x % 7), 1.7e9 + x FROM n",
        ROWS,
    )
    return store


def helper(store: WritingStore) -> int | None:
    """The process id of the one that helps now."""
    analyst = store._follower._analyst
    return None if analyst is None else analyst.pid


def slice_by_slice(store: WritingStore) -> Iterator[None]:
    """Build, and stop after each slice."""
    while not store.catch_up(0.0):
        assert store.index_error is None
        yield


def assert_whole(store: WritingStore, reading: ReadingStore) -> None:
    """Every row is indexed, once, as it is in the table."""
    assert store.rows_held() == ROWS
    for number in (1, 250, 251, 499, 750, 1_250, ROWS):
        assert [memory.text for memory in ask(reading, f"gauge {number}", k=1)] == [
            f"Gauge number {number} reads word{number % 7}"
        ]


@given(texts=st.lists(st.lists(st.text(), max_size=3), max_size=20))
def test_the_second_process_answers_as_this_one(texts: list[list[str]], shared_analyst: Analyst) -> None:
    """Whatever the texts are, lone surrogates and NULs too."""
    assert shared_analyst.begin(texts).result() == [contents_of(parts) for parts in texts]


@pytest.fixture(scope="module")
def shared_analyst() -> Iterator[Analyst]:
    """One process for all examples of a property."""
    started = Analyst()
    yield started
    started.close()


def test_answers_come_in_order(analyst: Analyst) -> None:
    asked = [analyst.begin([[f"text{number}"]]) for number in range(50)]
    assert [future.result() for future in asked] == [[contents_of([f"text{number}"])] for number in range(50)]


def test_a_killed_process_costs_nothing_but_time(analyst: Analyst) -> None:
    before = analyst.begin([["alpha beta"]]).result()
    os.kill(analyst.pid, signal.SIGKILL)
    assert analyst.begin([["alpha beta"]]).result() == before
    assert analyst.begin([["gamma"]]).result() == [contents_of(["gamma"])]


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """Even one that is killed: nobody is left who could end it."""
    script = textwrap.dedent("""
        import os, signal
        from storage.search.analyst import Analyst
        analyst = Analyst()
        analyst.begin([["a"]]).result()
        print(analyst.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    pid = int(done.stdout)
    eventually(lambda: not _running(pid))


def test_a_long_build_is_helped_and_ends_its_helper(many: WritingStore, reading: ReadingStore) -> None:
    helped = {helper(many) for _ in slice_by_slice(many)} - {None}
    assert len(helped) == 1
    assert helper(many) is None
    (pid,) = helped
    assert pid is not None
    assert not _running(pid)
    assert_whole(many, reading)


def test_a_short_catch_up_is_not_helped(store: WritingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, one after the other: what counts is what one of them has to do."""
    monkeypatch.setattr(limits, "ANALYST_FROM_ROWS", 5)
    for number in range(10):
        store.apply([fact(text=f"Fact {number}.")])
        assert helper(store) is None


def test_without_a_process_the_build_goes_on(
    many: WritingStore, reading: ReadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> Analyst:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("storage.following.Analyst", refused)
    for _ in slice_by_slice(many):
        assert helper(many) is None
    assert_whole(many, reading)


def test_closing_in_the_middle_ends_the_helper(paths: Paths, many: WritingStore) -> None:
    slices = slice_by_slice(many)
    while helper(many) is None:
        next(slices)
    pid = helper(many)
    assert pid is not None
    many._follower.close()
    assert not _running(pid)


def test_the_index_made_anew_in_the_middle_misses_no_row(many: WritingStore, reading: ReadingStore) -> None:
    """What was read ahead of the old one is not what the new one needs first."""
    for slices, _ in enumerate(slice_by_slice(many)):
        if slices == 3:
            many.remake_index()
    assert_whole(many, reading)


def test_a_slice_rolled_back_is_read_again(
    many: WritingStore, reading: ReadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slices after it were read already; none of them stands in for it."""
    put, failures = type(many._index)._put, [3]

    def failing(*given: object) -> None:
        put(*given)  # type: ignore[arg-type]
        failures[0] -= 1
        if failures[0] == 0:
            raise apsw.FullError("database or disk is full")

    monkeypatch.setattr(type(many._index), "_put", failing)
    assert not many.catch_up(10.0)
    assert many.index_error is not None
    assert many.rows_held() == 0
    assert many.catch_up(10.0)
    assert_whole(many, reading)


def test_a_row_written_while_it_was_read_ahead_is_found_as_it_is(
    many: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    """By another process and by our own batch: neither the old text is shown nor the new one missed."""
    slices = slice_by_slice(many)
    next(slices)
    rows(paths.database, "UPDATE memory_longterm SET fact = 'A foreign ferret' WHERE id = 300")
    next(slices)
    many._db.execute("UPDATE memory_longterm SET fact = 'A later lynx' WHERE id = 800")  # as a batch of ours does
    many.refresh([("long", 800)])
    for _ in slices:
        pass
    assert [memory.id for memory in ask(reading, "foreign ferret", k=1)] == ["long:300"]
    assert [memory.id for memory in ask(reading, "later lynx", k=1)] == ["long:800"]
    assert many.rows_held() == ROWS


def test_cycles_are_looked_for_seldom() -> None:
    before = gc.get_threshold()
    try:
        collect_seldom()
        assert gc.get_freeze_count() > 0
        assert gc.get_threshold()[0] == 50_000
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)


def _running(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
