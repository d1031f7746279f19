"""The supervisor: a few restarts with backoff, then the end."""

from collections.abc import Callable

import pytest
import trio
import trio.testing

from actors.errors import ActorGaveUp
from actors.supervisor import supervise
from storage.errors import ConfigurationError


class Fragile:
    """An actor that fails a number of times."""

    name = "fragile"

    def __init__(self, failures: int, *, lives_s: float = 0.0, error: Exception | None = None) -> None:
        self.restarts = 0
        self.runs = 0
        self._failures = failures
        self._lives_s = lives_s
        self._error = error or OSError("no")

    async def run(self, opened: Callable[[], None]) -> None:
        self.runs += 1
        opened()
        await trio.sleep(self._lives_s)
        if self.runs <= self._failures:
            raise self._error


async def test_an_actor_that_fails_is_restarted(autojump_clock: trio.testing.MockClock) -> None:
    actor = Fragile(3)
    await supervise(actor)
    assert (actor.runs, actor.restarts) == (4, 3)


async def test_an_actor_that_goes_on_failing_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    actor = Fragile(10)
    with pytest.raises(ActorGaveUp, match="failed 4 times"):
        await supervise(actor)
    assert actor.restarts == 3


async def test_failures_far_apart_are_forgiven(autojump_clock: trio.testing.MockClock) -> None:
    actor = Fragile(10, lives_s=30.0)
    await supervise(actor)
    assert actor.restarts == 10


async def test_a_bad_configuration_is_not_tried_again() -> None:
    actor = Fragile(1, error=ConfigurationError("no such file"))
    with pytest.raises(ConfigurationError):
        await supervise(actor)
    assert actor.restarts == 0


async def test_opening_is_reported_once(autojump_clock: trio.testing.MockClock) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(supervise, Fragile(2))
