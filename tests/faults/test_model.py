"""The service is what a plain model says, whatever happens to it: model_machine.py drives both."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.faults.model_machine import Memory
from tests.faults.scale import LONG, scaled, seeded

EXAMPLES, STEPS = scaled((4, 40), (40, 50))


def run(machine: type[Memory], number: int, examples: int, steps: int) -> None:
    """Run a machine with a seed. Nothing is shrunk: steps take real time, and the seed replays them."""
    options = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        print_blob=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(seed(number)(machine), settings=options)


def test_the_service_is_what_the_model_says() -> None:
    class Sound(Memory):
        fault = "from storage import limits; limits.RECALLER_FROM_LOOKS = 1"  # as of a busy service
        steps: ClassVar[Counter[str]] = Counter()

    run(Sound, seeded().randrange(2**32), EXAMPLES, STEPS)
    print(f"steps: {dict(Sound.steps.most_common())}")
    done = {"remember_long", "remember_short", "recalled", "agreed"}
    everything = {"sent again", "forgotten", "purged", "gone", "read by id", "listed", "waited", "stopped"}
    foreign = {"foreign insert", "foreign edit", "foreign delete", "replayed after a kill"}
    assert Sound.steps.keys() >= done | (everything | foreign if LONG else set())


FAULTS = {
    "a write that is acknowledged and not there": (
        "import storage.write_units as w\n"
        "whole = w.WriteUnits.remember_long\n"
        "def half(self, *a, **k):\n"
        "    reply = whole(self, *a, **k)\n"
        "    if int(reply.id[5:]) % 2 == 0: self.db.execute('UPDATE memory_longterm SET fact = ? WHERE id = ?', "
        "('half', int(reply.id[5:])))\n"
        "    return reply\n"
        "w.WriteUnits.remember_long = half"
    ),
    "a key that outlives its end": (
        "import storage.short_term as s, storage.reading as r\n"
        "s._LIVE = '(expires_at IS NULL OR expires_at > ? - 3600)'"
    ),
    "a foreign edit that is not seen": (
        "import storage.following as f\n"
        "f.Follower.sweep = lambda self, until: True\n"
        "f.Follower._check_newest = lambda self: None\n"
        "f.Follower.refresh = lambda self, touched: None"
    ),
    "a retry that writes twice": "import storage.batch as b\nb.Batch._replayed = lambda *_: None",
}
"""Faults in the product that the machine has to notice."""


class Toured(Memory):
    """The machine, driven by hand."""

    steps: ClassVar[Counter[str]] = Counter()


@contextlib.contextmanager
def touring(fault: str = "") -> Iterator[Toured]:
    """A machine whose processes are ended."""
    Toured.fault, Toured.found_within_s = fault, 2.0 if fault else 60.0
    memory = Toured()
    try:
        yield memory
    finally:
        memory.close()


def tour(memory: Toured) -> None:
    """Every step that reads, after those that change what it reads."""
    memory.begin("the gateway")
    memory.remember_short("mcp", "or", "brief", False, ("a", 1.0))
    for number in range(6):
        memory.recall("rest", "sol", number)
        memory.send_again("mcp", number)
    memory.wait_for_an_expiry()
    memory.list_keys("mcp", "sol", "or")
    memory.recall_what_is_gone("rest", "sol", 0)
    memory.foreign_edit(0, "edited")
    memory.read_by_id("mcp", "atlas", 0)
    for number in range(6):
        memory.recall("mcp", "mira", number)
    memory.agree()


def test_each_step_by_hand() -> None:
    with touring() as memory:
        tour(memory)
        memory.kill_in_the_middle(5, "killed")
        memory.foreign_insert("mira", "foreign", "short")
        memory.foreign_delete(1)
        memory.forget("rest", 0)
        memory.purge()
        memory.stop_and_start()
        memory.refused("mcp", "no")
        tour(memory)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_service_is_not_what_the_model_says(fault: str) -> None:
    with touring(FAULTS[fault]) as memory, pytest.raises(AssertionError):
        tour(memory)
