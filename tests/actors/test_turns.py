"""Short units of readers one after the other, and none behind a slow one."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from actors.turns import Turns
from storage import limits

ENDS_WITHIN_S = 10


def test_short_units_run_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.turns.SHORT_S", ENDS_WITHIN_S)  # however slow this machine is, they are short
    turns, inside, most = Turns(), 0, 0

    def unit(_: int) -> None:
        nonlocal inside, most
        with turns.turn():
            inside += 1
            most = max(most, inside)
            threading.Event().wait(0.002)
            inside -= 1

    with ThreadPoolExecutor(limits.READERS) as threads:
        list(threads.map(unit, range(20)))
    assert most == 1


def test_no_unit_waits_for_the_end_of_a_slow_one() -> None:
    turns, begun, over = Turns(), threading.Event(), threading.Event()

    def slow() -> None:
        with turns.turn():
            begun.set()
            assert over.wait(ENDS_WITHIN_S)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(slow)
        assert begun.wait(ENDS_WITHIN_S)
        for _ in range(3):
            with turns.turn():
                assert not running.done()
        over.set()
        running.result(ENDS_WITHIN_S)


def test_a_unit_that_fails_ends_its_turn() -> None:
    turns = Turns()
    with pytest.raises(RuntimeError), turns.turn():
        raise RuntimeError
    assert not turns._running.locked()
