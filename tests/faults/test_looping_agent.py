"""One agent that loops, and ten that behave: what it may hold, and what they keep."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.foreign import ForeignProcess
from tests.faults.open_loop import Plan, Running, load
from tests.faults.scale import LONG, scaled, seeded
from tests.faults.test_overload import QUESTIONS, filled, wrong_answers
from tests.support import Service, eventually, rows, serving

LOOPER = "looper"
CONNECTIONS_OF_LOOPER = 64
WELL_BEHAVED = tuple(f"calm-{number}" for number in range(10))
PAUSE_S = (0.05, 0.1)
SECONDS = scaled(2.0, 20.0)
LEAST_SHARE = 0.8

ROOM = 16
QUARTER = 4
SMALL_MAILBOX = f"from storage import limits; limits.WRITER_MAILBOX_MAX = {ROOM}"
HELD_S = 2.5


@pytest.mark.parametrize("write_share", [1.0, 0.0], ids=["of writes", "of recalls"])
def test_ten_agents_keep_their_throughput_beside_a_loop(tmp_path: Path, write_share: float) -> None:
    """Each of them calls, pauses, and calls again; first alone, then beside 64 connections that never pause."""
    database = filled(tmp_path, (LOOPER, *WELL_BEHAVED))
    seed = seeded().randrange(10**6)
    with serving(database) as service:
        calm = Plan(service.port, SECONDS, 10, WELL_BEHAVED, QUESTIONS, 0.2, pause_s=PAUSE_S, seed=seed)
        load(Plan(service.port, 0.5, 10, WELL_BEHAVED, QUESTIONS, 0.2, seed=seed))  # warm
        alone = load(calm)
        loop = Plan(service.port, SECONDS + 0.5, CONNECTIONS_OF_LOOPER, (LOOPER,), QUESTIONS, write_share, seed=seed)
        looping = Running(loop)
        eventually(lambda: service.stats()["actors"]["writer" if write_share else "readers"]["depth"] > 0)
        beside = load(calm)
        looped = looping.result()
        what = _standing(service)
    share = beside.good_per_s / alone.good_per_s
    print(f"\nten alone:  {alone}\nten beside: {beside}\nthe looper: {looped}\nkept: {share:.0%}; {what}")
    for part in (alone, beside, looped):
        assert wrong_answers(part) == []
    assert set(alone.answers) <= {"200", "201"}
    assert set(beside.answers) <= {"200", "201"}, "no call of a well-behaved agent is refused because another loops"
    assert looped.good_per_s > 0
    assert share >= (LEAST_SHARE if LONG else LEAST_SHARE / 4)


def _standing(service: Service) -> str:
    stats = service.stats()
    return f"actors {stats['actors']}, health {service.rest('GET', '/health')[1]}"


def test_one_agent_fills_its_quarter_and_no_more(database: Path) -> None:
    """A foreign lock holds the writer: one agent's fifth waiting write is refused by name, another agent's is taken."""
    with (
        serving(database, fault=SMALL_MAILBOX) as service,
        ForeignProcess(database) as other,
        ThreadPoolExecutor(ROOM + 1) as threads,
    ):
        other.hold(HELD_S)
        began_s = time.monotonic()
        loop = [threads.submit(_status, service, "sol", f"number {number}") for number in range(ROOM)]
        # Upkeep may hold the writer before the first of them, and a batch may take a quarter out of the box once.
        eventually(lambda: QUARTER <= _in_flight(service) == ROOM - _done(loop) <= 2 * QUARTER + 1)
        fact = {"agent": "sol", "fact": "one too many"}
        answer = service.http.post(f"{service.url}/v1/long", json=fact)
        is_error, refused = service.mcp("remember_long", fact)
        mira = threads.submit(_status, service, "mira", "of another")
        assert service.rest("GET", "/v1/recall", agent="sol", q="hand")[0] == 200
        assert time.monotonic() - began_s < HELD_S, "the lock was gone before all was asked"
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
        assert answer.headers["Retry-After"] == "1"
        assert "'sol'" in answer.json()["error"]["detail"]
        assert (is_error, refused["error"]["code"]) == (True, "overloaded")
        assert mira.result(20) == 201
        statuses = [write.result(20) for write in loop]
        assert set(statuses) == {201, 503}
        assert service.rest("POST", "/v1/long", fact)[0] == 201, "its room is its own again"
    held = dict(rows(database, "SELECT agent, count(*) FROM memory_longterm GROUP BY agent"))
    assert held == {"mira": 1, "sol": statuses.count(201) + 1}


def test_turns_go_round_among_those_who_wait(database: Path) -> None:
    """Behind one agent's full quarter another's write is the second to be on disk, not the fifth."""
    with (
        serving(database, fault=f"{SMALL_MAILBOX}; limits.BATCH_MESSAGES_MAX = 1") as service,
        ForeignProcess(database) as other,
        ThreadPoolExecutor(QUARTER + 2) as threads,
    ):
        other.hold(HELD_S)
        writes = [threads.submit(_status, service, "atlas", "in hand")]
        eventually(lambda: _in_flight(service) == 1)
        writes += [threads.submit(_status, service, "sol", f"queued {number}") for number in range(QUARTER)]
        eventually(lambda: _in_flight(service) == 1 + QUARTER)
        writes.append(threads.submit(_status, service, "mira", "of another"))
        assert [write.result(20) for write in writes] == [201] * (QUARTER + 2)
    order = [agent for (agent,) in rows(database, "SELECT agent FROM memory_longterm ORDER BY id")]
    assert order == ["atlas", "sol", "mira", "sol", "sol", "sol"]


def _status(service: Service, agent: str, fact: str) -> int:
    return service.rest("POST", "/v1/long", {"agent": agent, "fact": fact})[0]


def _done(writes: "list[Future[int]]") -> int:
    return sum(write.done() for write in writes)


def _in_flight(service: Service) -> int:
    return int(service.stats()["writes"]["long"]["in_flight"])
