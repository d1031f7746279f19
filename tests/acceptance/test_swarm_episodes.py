"""Events that are episodes, too: with the setting each once, whatever is sent again, killed or locked."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.swarm_files import memory_of, post
from tests.faults.foreign import ForeignProcess
from tests.support import Service, eventually, fresh_database, rows, serving

SETTINGS = {"SOLOS_MEMORY_SWARM_EPISODES": "1", "SOLOS_MEMORY_SWARM_WORKERS": "swarm5=mira"}
HOOKS = ("dispatch", "checkpoint", "handoff-requested", "handoff-written", "resume", "blocked", "complete")
HELD_S = 2.0
KILLED_WITHIN_S = 0.2


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fleet with the setting, in which worker swarm5 is the agent mira."""
    with serving(fresh_database(tmp_path_factory.mktemp("fleet")), env=SETTINGS) as running:
        yield running


def episodes(database: Path | None, agent: str | None = None, **like: str) -> list[dict[str, Any]]:
    """The rows of the episodic memory, by another process's eyes; `like` keeps those that hold a text."""
    assert database is not None
    names = ("agent", "event_type", "summary", "details", "outcome")
    found = [
        dict(zip(names, row, strict=True))
        for row in rows(database, f"SELECT {', '.join(names)} FROM memory_episodic ORDER BY id")
    ]
    of_agent = [one for one in found if agent in (None, one["agent"])]
    return [one for one in of_agent if all(text in (one[name] or "") for name, text in like.items())]


def recalled(service: Service, q: str) -> list[tuple[str, str]]:
    """(agent, event type) of the episodes that another agent, sol, recalls."""
    return [(one["agent"], one["event_type"]) for one in service.recall("sol", q, tiers="episodic", k=50)]


def by_mcp(service: Service, **arguments: Any) -> dict[str, Any]:
    """The answer of a write by the worker itself, which must succeed."""
    is_error, answer = service.mcp("swarm_write", {"agent": "mira", **arguments})
    assert (is_error, answer["ok"]) == (False, True), answer
    return answer


# --- each event ---


def test_an_event_over_mcp_is_one_episode_that_others_recall_at_once(fleet: Service) -> None:
    event = {"state": "REVIEW", "filesTouched": ["bilby.py"], "nextAction": "feed the bilby"}
    sent = {"kind": "mission", "mission": "m", "event_type": "checkpoint", "assignment": "a-1", "request_id": "bilby"}
    for replayed in (False, True, True):
        answer = by_mcp(fleet, **sent, summary="the bilby digs", content="all of it", event=event)
        assert (answer["replayed"], answer.get("degradedReasons", [])) == (replayed, [])
        assert recalled(fleet, "bilby digs") == [("mira", "checkpoint")]
    (row,) = episodes(fleet.database, summary="bilby")
    assert (row["agent"], row["summary"], row["outcome"]) == ("mira", "the bilby digs", "REVIEW")
    for told in (
        "Mission: m",
        "Assignment: a-1",
        "Files touched: bilby.py",
        "Next action: feed the bilby",
        "all of it",
    ):
        assert told in row["details"]


def test_an_event_without_a_mission_is_one_episode(fleet: Service) -> None:
    for _ in range(2):
        by_mcp(fleet, kind="episodic", summary="the numbat sleeps", request_id="numbat")
    assert recalled(fleet, "numbat") == [("mira", "note")]
    by_mcp(fleet, kind="episodic", summary="the numbat sleeps")
    assert len(episodes(fleet.database, "mira", summary="numbat")) == 2


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_is_one_episode(fleet: Service, hook: str) -> None:
    sent = {"workerId": "swarm5", "missionId": "hooks", "summary": f"echidna by {hook}", "requestId": f"echidna {hook}"}
    content = {"content": "# Handoff"} if hook == "handoff-written" else {}
    for _ in range(2):
        post(fleet, f"/hooks/{hook}", **sent, **content)
    assert [one["event_type"] for one in episodes(fleet.database, "mira", summary=f"echidna by {hook}")] == [hook]
    assert ("mira", hook) in recalled(fleet, f"echidna by {hook}")


def test_each_step_of_a_renewal_is_one_episode(fleet: Service) -> None:
    of = {"workerId": "swarm5", "missionId": "renewal"}
    for step, more in (("request", {}), ("written", {"content": "# Handoff of the wallaby"}), ("resume", {})):
        for _ in range(2):
            post(fleet, "/renew", **of, step=step, summary=f"wallaby {step}", requestId=f"wallaby {step}", **more)
    found = [(one["event_type"], one["summary"]) for one in episodes(fleet.database, "mira", summary="wallaby")]
    steps = [("handoff-requested", "request"), ("handoff-written", "written"), ("resume", "resume")]
    assert found == [(kind, f"wallaby {step}") for kind, step in steps]
    assert len(recalled(fleet, "wallaby")) == 3


def test_a_handoff_with_a_request_id_is_one_episode_and_pages_are_none(fleet: Service) -> None:
    before = len(episodes(fleet.database))
    for _ in range(2):
        by_mcp(fleet, kind="handoff", mission="told", content="# Handoff of the potoroo", request_id="potoroo")
    by_mcp(fleet, kind="handoff", mission="untold", content="# Handoff of the potoroo")
    by_mcp(fleet, kind="profile", content="- the potoroo\n")
    post(fleet, workerId="swarm5", scaffold=True)
    post(fleet, "/promote", workerId="swarm5", lesson="Potoroos bite.", missionId="told")
    added = episodes(fleet.database)[before:]
    assert [(one["agent"], one["event_type"]) for one in added] == [("mira", "handoff-written")]


def test_a_refused_event_is_no_episode(fleet: Service) -> None:
    before = episodes(fleet.database)
    by_mcp(fleet, kind="mission", mission="refused", summary="first", request_id="once")
    is_error, answer = fleet.mcp(
        "swarm_write",
        {"agent": "mira", "kind": "mission", "mission": "refused", "summary": "another", "request_id": "once"},
    )
    assert (is_error, answer["error"]["code"]) == (False, "conflict")
    assert len(episodes(fleet.database)) == len(before) + 1


# --- of whom ---


def test_a_worker_that_is_no_registered_agent_has_no_episodes(fleet: Service) -> None:
    before = episodes(fleet.database)
    for worker in ("stranger", "mira"):  # the worker mira is nobody: the agent mira is swarm5
        answer = post(fleet, "/hooks/checkpoint", workerId=worker, missionId="m", summary=f"seen by {worker}")
        assert answer["degradedReasons"] == []
    assert episodes(fleet.database) == before
    post(fleet, "/hooks/checkpoint", workerId="atlas", missionId="m", summary="seen by atlas")
    assert [one["agent"] for one in episodes(fleet.database)[len(before) :]] == ["atlas"]


def test_without_the_setting_no_event_is_an_episode(database: Path) -> None:
    with serving(database, env={"SOLOS_MEMORY_SWARM_WORKERS": "swarm5=mira"}) as service:
        by_mcp(service, kind="mission", mission="m", summary="quiet", request_id="r")
        by_mcp(service, kind="episodic", summary="quiet")
        for hook in HOOKS:
            post(service, f"/hooks/{hook}", workerId="swarm5", missionId="m", content="quiet")
        assert b"episodeOf" not in (memory_of(service, "swarm5") / "missions" / "m" / "events.jsonl").read_bytes()
    assert episodes(database) == []
    with serving(database, env=SETTINGS) as service:
        post(service, "/hooks/checkpoint", workerId="swarm5", missionId="m", summary="loud")
        assert by_mcp(service, kind="mission", mission="m", summary="quiet", request_id="r")["replayed"] is True
    assert [one["summary"] for one in episodes(database)] == ["loud"]


# --- whatever breaks down ---


class Reporter:
    """One client that reports events until the service is gone, and again what was not answered."""

    def __init__(self, name: str) -> None:
        self.answered: list[str] = []
        self.open: list[str] = []
        self._name = name

    def report(self, service: Service) -> None:
        """One event after the other, of all kinds."""
        for number in range(len(self.answered) + len(self.open), 10**6):
            self.open.append(f"{self._name} {number}")
            try:
                self.again(service)
            except httpx2.TransportError:
                return

    def again(self, service: Service) -> None:
        """Send what is not answered, by its own request id."""
        while self.open:
            name = self.open[0]
            said = {"summary": name, "requestId": name}
            match int(name.split()[-1]) % 3:
                case 0:
                    post(service, "/hooks/checkpoint", workerId="swarm5", missionId=self._name, **said)
                case 1:
                    by_mcp(service, kind="episodic", summary=name, request_id=name)
                case _:
                    post(service, kind="mission", workerId="swarm5", missionId=self._name, eventType="note", **said)
            self.answered.append(self.open.pop(0))


def reported(database: Path, reporters: list[Reporter]) -> Counter[str]:
    """How often each reported event is an episode."""
    names = {name for one in reporters for name in (*one.answered, *one.open)}
    return Counter(one["summary"] for one in episodes(database, "mira") if one["summary"] in names)


def test_kill_9_leaves_no_event_untold_and_none_told_twice(database: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    print(f"seed {seed}")
    chance = random.Random(seed)
    reporters = [Reporter(name) for name in ("one", "two", "three")]
    for _ in range(3):
        with serving(database, env=SETTINGS) as service, ThreadPoolExecutor(len(reporters)) as threads:
            for one in reporters:
                one.again(service)
            running = [threads.submit(one.report, service) for one in reporters]
            threading.Event().wait(chance.uniform(0.02, KILLED_WITHIN_S))
            service.process.kill()
            for thread in running:
                thread.result(20)
        found = reported(database, reporters)
        assert max(found.values(), default=1) == 1
        assert set(found) >= {name for one in reporters for name in one.answered}
    with serving(database, env=SETTINGS) as service:
        for one in reporters:
            one.again(service)
        everything = [name for one in reporters for name in one.answered]
        assert reported(database, reporters) == Counter(everything)
        assert recalled(service, everything[-1])[:1] != []
    assert len(everything) > 9


def test_events_that_were_answered_while_the_database_was_locked_survive_kill_9(database: Path) -> None:
    """They are on disk, and owed: the next process tells them, even if nobody sends them again."""
    owed = [
        {"kind": "mission", "mission": "m", "summary": "the owed dunnart of a mission", "request_id": "owed 1"},
        {"kind": "episodic", "summary": "the owed dunnart of none", "request_id": "owed 2"},
    ]
    with serving(database, env=SETTINGS) as service, ForeignProcess(database) as other:
        other.hold(30.0)
        answers = [by_mcp(service, **sent) for sent in owed]
        assert [answer["degradedReasons"] for answer in answers] == [["episode_owed"]] * 2
        service.process.kill()
    assert episodes(database) == []
    with serving(database, env=SETTINGS) as service:
        eventually(lambda: len(episodes(database)) == 2)
        assert len(recalled(service, "dunnart")) == 2
        assert [by_mcp(service, **sent)["replayed"] for sent in owed] == [True, True]
    assert sorted(one["summary"] for one in episodes(database, "mira")) == [sent["summary"] for sent in owed]


def test_a_lock_that_another_process_holds_delays_episodes_and_loses_none(database: Path) -> None:
    with serving(database, env=SETTINGS) as service, ForeignProcess(database) as other:
        post(service, "/hooks/dispatch", workerId="swarm5", missionId="m", summary="before the lock")
        other.hold(HELD_S)
        held = [f"under the lock {number}" for number in range(4)]
        answers = [
            post(service, "/hooks/checkpoint", workerId="swarm5", missionId="m", summary=summary, requestId=summary)
            for summary in held[:3]
        ]
        answers += [by_mcp(service, kind="episodic", summary=summary, request_id=summary) for summary in held[3:]]
        log = memory_of(service, "swarm5") / "missions" / "m" / "events.jsonl"
        assert [json.loads(line)["summary"] for line in log.read_text("utf-8").splitlines()][1:] == held[:3]
        assert [answer["degradedReasons"] for answer in answers] == [["episode_owed"]] * 4
        assert by_mcp(service, kind="profile", content="- no event\n").get("degradedReasons", []) == []
        assert recalled(service, "under the lock") == [("mira", "dispatch")]
        retried = post(
            service, "/hooks/checkpoint", workerId="swarm5", missionId="m", summary=held[0], requestId=held[0]
        )
        assert retried["replayed"] is True
        eventually(lambda: len(episodes(database)) == 5, within_s=10)
        assert [one["summary"] for one in episodes(database)] == ["before the lock", *held]
        after = post(service, "/hooks/checkpoint", workerId="swarm5", missionId="m", summary="after the lock")
        assert after["degradedReasons"] == []
        assert len(recalled(service, "lock")) == 6
    assert len(episodes(database)) == 6
