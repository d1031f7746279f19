"""Events that are also episodes of agents: each once, whatever is repeated, locked or breaks down."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from storage import limits
from storage.batch import Outcome
from storage.errors import Rejection, StorageBusy, StorageFull, StorageUnavailable
from storage.paths import Paths
from storage.store import create_database
from storage.swarm.layout import Roots
from storage.swarm.memory import SwarmMemory
from storage.swarm.telling import Telling
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.swarm.files import MISSION, WORKER, asked
from tests.support import rows

AGENTS = ("mira", "swarm6")


class Fleet:
    """A database and the swarm's files, as one process has them."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.database = folder / "solos.db"
        create_database(self.database, AGENTS)
        self._paths = Paths(self.database)
        self._paths.make_folders()
        self._clock = clock
        self.roots = Roots(profiles=folder / "profiles", shared=folder / "shared")
        self.start()

    def start(self) -> None:
        self.telling = Telling(self.roots, lambda worker: {WORKER: "mira"}.get(worker, worker), clock=self._clock)
        self.memory = SwarmMemory(self.roots, clock=self._clock, telling=self.telling)
        self.store = WritingStore(self._paths, clock=self._clock)
        self.telling.known_from_s = self.store.requests_known_from_s
        self.memory.reconcile()

    def crash(self) -> None:
        """End without anything that an orderly end does to the files, and start again."""
        self.start_anew()

    def start_anew(self) -> None:
        self.store.close()
        self._paths = Paths(self.database)
        self._paths.make_folders()
        self.start()

    def pay(self) -> None:
        """Write what is owed, to the end."""
        while self.telling:
            if writes := self.telling.writes(2):
                assert self.telling.settle(self.store.apply(writes, wait_s=0.0)) == []

    def episodes(self) -> list[tuple[str, str]]:
        found = rows(self.database, "SELECT agent, summary FROM memory_episodic ORDER BY rowid")
        return [(str(agent), str(summary)) for agent, summary in found]


@pytest.fixture
def fleet(tmp_path: Path, clock: Clock) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path, clock)
    yield fleet
    fleet.store.close()


def test_an_event_is_an_episode_of_its_worker_s_agent(fleet: Fleet) -> None:
    told = {"decisions": ["tin"], "filesTouched": ["a.py", "b.py"], "nextAction": "go on", "result": "done"}
    fleet.memory.write_event(asked("soldered", assignment="as-1", content="At length.", detail=told))
    fleet.pay()
    ((agent, kind, summary, details, outcome),) = rows(
        fleet.database, "SELECT agent, event_type, summary, details, outcome FROM memory_episodic"
    )
    assert (agent, kind, summary, outcome) == ("mira", "checkpoint", "soldered", "done")
    assert str(details).splitlines() == [
        f"Mission: {MISSION}",
        "Assignment: as-1",
        "Decisions: tin",
        "Files touched: a.py, b.py",
        "Next action: go on",
        "At length.",
    ]
    assert not fleet.telling


def test_an_event_that_says_nothing_is_told_by_what_it_is(fleet: Fleet) -> None:
    fleet.memory.write_event(asked("", type="dispatch"))
    fleet.memory.write_event(asked("", type="note", mission=None, content="first line\nsecond"))
    fleet.pay()
    assert [summary for _, summary in fleet.episodes()] == [f"dispatch of mission {MISSION}", "first line"]


@pytest.mark.parametrize("mission", [MISSION, None])
def test_a_retry_tells_nothing_twice(fleet: Fleet, mission: str | None) -> None:
    event = asked("built it", mission=mission, request_id="r1")
    assert fleet.memory.write_event(event).replayed is False
    assert fleet.memory.write_event(event).replayed is True
    fleet.pay()
    assert fleet.memory.write_event(event).replayed is True
    fleet.pay()
    fleet.crash()
    assert fleet.memory.write_event(event).replayed is True
    fleet.pay()
    assert fleet.episodes() == [("mira", "built it")]


def test_what_a_crash_left_untold_is_told_at_the_next_start(fleet: Fleet) -> None:
    fleet.memory.write_event(asked("one"))
    fleet.pay()
    fleet.memory.write_event(asked("two"))
    fleet.crash()
    fleet.pay()
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", "one"), ("mira", "two")]


def test_events_older_than_their_request_ids_are_not_told_again(fleet: Fleet, clock: Clock) -> None:
    fleet.memory.write_event(asked("long ago"))
    fleet.pay()
    clock.now_s += limits.REQUEST_ID_KEPT_S
    fleet.store.expire_requests()
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", "long ago")]


def test_a_locked_database_leaves_the_event_owed(fleet: Fleet) -> None:
    foreign = apsw.Connection(str(fleet.database))
    foreign.execute("BEGIN IMMEDIATE")
    written = fleet.memory.write_event(asked("meanwhile"))
    with pytest.raises(StorageBusy):
        fleet.store.apply(fleet.telling.writes(8), wait_s=0.0)
    assert fleet.telling.owes(WORKER, written.at)
    assert fleet.memory.behind
    foreign.execute("COMMIT")
    foreign.close()
    fleet.pay()
    assert fleet.episodes() == [("mira", "meanwhile")]


@pytest.mark.parametrize("error", [StorageBusy, StorageFull, StorageUnavailable])
def test_what_the_database_cannot_take_now_stays_with_what_comes_behind(fleet: Fleet, error: type[Rejection]) -> None:
    first, second, third = (fleet.memory.write_event(asked(f"event {number}")) for number in range(3))
    (taken,) = fleet.store.apply(fleet.telling.writes(1))
    with pytest.raises(error):
        fleet.telling.settle([taken, Outcome(error=error("")), Outcome(error=error(""))])
    assert not fleet.telling.owes(WORKER, first.at)
    assert fleet.telling.owes(WORKER, second.at)
    assert fleet.telling.owes(WORKER, third.at)


def test_an_event_without_a_mission_that_was_answered_as_owed_survives_a_crash(fleet: Fleet) -> None:
    fleet.memory.write_event(asked("in between", mission=None))
    fleet.telling.keep()
    fleet.crash()
    fleet.pay()
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", "in between")]
    episodes = fleet.roots.profiles / WORKER / "memory" / "episodes"
    assert not list(episodes.glob(".owed-*"))


def test_a_worker_that_is_no_registered_agent_has_no_episodes(fleet: Fleet) -> None:
    fleet.memory.write_event(asked("by nobody", worker="stranger"))
    fleet.memory.write_event(asked("by six", worker="swarm6"))
    fleet.pay()
    assert fleet.episodes() == [("swarm6", "by six")]


def test_a_line_that_names_another_agent_is_not_believed(fleet: Fleet) -> None:
    fleet.memory.write_event(asked("real"))
    fleet.pay()
    log = fleet.roots.profiles / WORKER / "memory" / "missions" / MISSION / "events.jsonl"
    line = {"at": "2026-05-28T20:26:41.000Z", "type": "note", "summary": "forged", "episodeOf": "swarm6"}
    with log.open("a") as end:
        end.write(json.dumps(line) + "\n")
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", "real")]


def test_a_retry_under_a_name_that_a_hand_put_into_the_log_is_not_believed(fleet: Fleet) -> None:
    event = asked("real", request_id="r1")
    fleet.memory.write_event(event)
    fleet.pay()
    log = fleet.roots.profiles / WORKER / "memory" / "missions" / MISSION / "events.jsonl"
    log.write_text(log.read_text().replace('"episodeOf": "mira"', '"episodeOf": "swarm6"'))
    fleet.crash()
    assert fleet.memory.write_event(event).replayed is True
    fleet.pay()
    assert fleet.episodes() == [("mira", "real")]


def test_a_retry_after_its_request_id_was_forgotten_tells_nothing_twice(fleet: Fleet, clock: Clock) -> None:
    event = asked("once", request_id="r1")
    fleet.memory.write_event(event)
    fleet.pay()
    clock.now_s += limits.REQUEST_ID_KEPT_S + 1
    fleet.store.expire_requests()
    assert fleet.memory.write_event(event).replayed is True
    fleet.pay()
    assert fleet.episodes() == [("mira", "once")]


def test_a_state_that_was_made_anew_tells_nothing_twice(fleet: Fleet, clock: Clock) -> None:
    for number in range(3):
        fleet.memory.write_event(asked(f"event {number}"))
    fleet.pay()
    clock.now_s += 3_600
    fleet.store.close()
    shutil.rmtree(Paths(fleet.database).folder)
    for _ in range(2):
        fleet.start_anew()
        fleet.memory.write_event(asked("after it"))
        fleet.pay()
    assert [summary for _, summary in fleet.episodes()] == ["event 0", "event 1", "event 2", "after it", "after it"]


def test_all_of_a_long_log_that_a_crash_left_untold_is_told(fleet: Fleet) -> None:
    for number in range(20):
        fleet.memory.write_event(asked(f"event {number}", content="x" * 120_000))
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", f"event {number}") for number in range(20)]


def test_more_than_memory_holds_is_read_from_the_logs_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.swarm.telling.OWED_MAX", 3)
    for number in range(7):
        fleet.memory.write_event(asked(f"event {number}"))
    fleet.pay()
    assert sorted(fleet.episodes()) == [("mira", f"event {number}") for number in range(7)]


def test_without_the_setting_a_line_names_no_agent(tmp_path: Path, clock: Clock) -> None:
    roots = Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared")
    SwarmMemory(roots, clock=clock).write_event(asked())
    log = roots.profiles / WORKER / "memory" / "missions" / MISSION / "events.jsonl"
    assert "episodeOf" not in log.read_text()


def test_a_state_that_was_made_by_a_clock_ahead_hinders_nothing(fleet: Fleet, clock: Clock) -> None:
    fleet.store.close()
    shutil.rmtree(Paths(fleet.database).folder)
    clock.now_s += 86_400
    fleet.start_anew()
    clock.now_s -= 86_400
    fleet.memory.write_event(asked("one"))
    fleet.pay()
    fleet.memory.write_event(asked("two"))
    fleet.crash()
    fleet.pay()
    assert fleet.episodes() == [("mira", "one"), ("mira", "two")]
