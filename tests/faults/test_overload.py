"""More than there is room for, and the end of the service in the middle of writes."""

import itertools
import json
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import trio.testing

from actors.errors import MailboxFull
from actors.mailbox import Mailbox
from actors.messages import RememberLong
from storage import limits
from tests.faults.foreign import ForeignProcess
from tests.faults.open_loop import Load, Plan, Running, load
from tests.faults.scale import LONG, scaled, seeded
from tests.support import Service, eventually, family, fresh_database, rows, rss_bytes, serving

BOUND = 4
SMALL_MAILBOX = f"from storage import limits; limits.WRITER_MAILBOX_MAX = {BOUND}"
SENDERS = ("sol", "mira", "atlas", "ace")
"""Each has a quarter of the room."""

MANY = tuple(f"agent-{number}" for number in range(40))
FACTS = 400
_PLACES = ("gateway", "relay", "greenhouse", "workshop", "archive", "harbour", "kitchen", "observatory")
_THINGS = ("port", "key", "lamp", "pump", "ledger", "sensor", "valve", "battery", "antenna", "clock")
QUESTIONS = tuple(f"where is the {thing} of the {place}" for place in _PLACES for thing in _THINGS)

CLOSED_CONNECTIONS = 16
OPEN_CONNECTIONS = 64
WRITE_SHARE = 0.2
CAPACITY_S = scaled(1.5, 3.0)
OVERLOAD_S = scaled(3.0, 60.0)
LEAST_GOODPUT = 0.6
LIVE_PATH = "/health/live"
LIVE_P99_MS = scaled(5_000, 500)
RSS_WITHIN = 0.1
NORMAL_WITHIN_S = 5.0


async def test_full_mailbox_answers_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """On trio's own clock: not a moment passes."""
    mailbox = Mailbox("writer", BOUND)
    for sender in SENDERS:
        mailbox.post(RememberLong(agent=sender, fact="x"), within_s=12)
    began = trio.current_time()
    with pytest.raises(MailboxFull):
        await mailbox.ask(RememberLong(agent="main", fact="one too many"), within_s=12)
    assert trio.current_time() == began
    mailbox.close()


def test_overload_is_an_answer(database: Path) -> None:
    """One write in hand, four in the mailbox: the next is refused at once, and the five are not lost."""
    with serving(database, fault=SMALL_MAILBOX) as service, ForeignProcess(database) as other:
        other.hold(2.0)
        with ThreadPoolExecutor(BOUND + 1) as threads:
            first = threads.submit(_status, service, "in hand", "or")
            eventually(lambda: _in_flight(service) == 1)
            queued = [threads.submit(_status, service, "queued", sender) for sender in SENDERS]
            eventually(lambda: _depth(service) == BOUND)
            began_s = time.monotonic()
            answer = service.http.post(f"{service.url}/v1/long", json={"agent": "main", "fact": "one too many"})
            is_error, body = service.mcp("remember_long", {"agent": "main", "fact": "one too many"})
            assert time.monotonic() - began_s < 0.5
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert answer.headers["Retry-After"] == "1"
            assert (is_error, body["error"]["code"]) == (True, "overloaded")
            assert service.rest("GET", "/v1/recall", agent="sol", q="hand")[0] == 200
            statuses = [first.result(), *(write.result() for write in queued)]
    acknowledged = statuses.count(201)
    assert acknowledged >= BOUND, statuses  # the janitor may have taken one place
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(acknowledged,)]


def _status(service: Service, fact: str, agent: str = "sol") -> int:
    return service.rest("POST", "/v1/long", {"agent": agent, "fact": fact})[0]


def _depth(service: Service) -> int:
    return int(service.stats()["actors"]["writer"]["depth"])


def _in_flight(service: Service) -> int:
    return int(service.stats()["writes"]["long"]["in_flight"])


@pytest.mark.parametrize("locked", [False, True], ids=["at full speed", "behind a foreign lock"])
def test_sigterm_during_writes_loses_nothing(database: Path, locked: bool) -> None:
    """The service ends within 10 s with exit code 0; what it acknowledged is on disk, once."""
    acknowledged: list[str] = []
    numbers = itertools.count()
    with serving(database) as service, ForeignProcess(database) as other, ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(_write_until_gone, service.url, numbers, acknowledged) for _ in range(4)]
        eventually(lambda: len(acknowledged) > 20)
        if locked:
            other.hold(1.5)
            threading.Event().wait(0.2)
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 10
        for writer in writers:
            writer.result(10)
        assert service.events("stopped")
    on_disk = [fact for (fact,) in rows(database, "SELECT fact FROM memory_longterm")]
    assert len(on_disk) == len(set(on_disk))
    assert set(acknowledged) <= set(on_disk)
    assert len(set(on_disk) - set(acknowledged)) <= 4, (
        "at most the last write of each client was left without its answer"
    )


def _write_until_gone(url: str, numbers: "itertools.count[int]", acknowledged: list[str]) -> None:
    """Write until the service refuses or is gone."""
    with httpx2.Client(timeout=20) as http:
        while True:
            fact = f"fact {next(numbers)}"
            try:
                answer = http.post(f"{url}/v1/long", json={"agent": "sol", "fact": fact})
            except httpx2.TransportError:
                return
            if answer.status_code != 201:
                assert answer.status_code == 503, answer.text
                return
            acknowledged.append(fact)


def filled(folder: Path, agents: tuple[str, ...]) -> Path:
    """A database of some hundred facts, shared evenly among agents, that QUESTIONS find."""
    database = fresh_database(folder, agents=agents)
    facts = [
        (agents[n % len(agents)], f"The {_THINGS[n % len(_THINGS)]} of the {_PLACES[n % len(_PLACES)]} is in box {n}.")
        for n in range(FACTS)
    ]
    insert = """INSERT INTO memory_longterm(agent, topic, fact, created_at)
                SELECT value ->> 0, 'load', value ->> 1, 1.7e9 FROM json_each(?)"""
    rows(database, insert, json.dumps(facts))
    return database


def wrong_answers(load: Load) -> list[str]:
    """What was no answer and no 503 with Retry-After; and, where answers are missing, that they are."""
    missing = load.asked - sum(load.answers.values()) - load.bad_count
    return [*load.bad, *([f"{missing} requests without an answer"] if missing > 0 else [])]


def test_twice_the_capacity_is_served_at_its_pace(tmp_path: Path) -> None:
    """Capacity first, then twice as much as an open loop: it goes on at its pace, stays alive, and recovers."""
    seed = seeded().randrange(10**6)
    with serving(filled(tmp_path, MANY)) as service:
        load(Plan(service.port, 0.5, CLOSED_CONNECTIONS, MANY, QUESTIONS, WRITE_SHARE, seed=seed))  # warm
        eventually(lambda: _recall_processes(service) == limits.READERS, within_s=30)
        peak = load(Plan(service.port, CAPACITY_S, CLOSED_CONNECTIONS, MANY, QUESTIONS, WRITE_SHARE, seed=seed + 1))
        before_ms = _median_recall_ms(service)
        rate = 2 * peak.good_per_s
        plan = Plan(service.port, OVERLOAD_S, OPEN_CONNECTIONS, MANY, QUESTIONS, WRITE_SHARE, rate, seed=seed + 2)
        overload = Running(plan)
        probe = Running(Plan(service.port, OVERLOAD_S, 1, path=LIVE_PATH, pause_s=(0.02, 0.05)))
        rss = _rss_until(overload, service.process.pid)
        over, live = overload.result(), probe.result()
        ended_s = time.monotonic()
        normal_ms = 3 * before_ms + 20
        after_ms = _median_recall_ms(service)
        while after_ms > normal_ms and time.monotonic() - ended_s < NORMAL_WITHIN_S:
            after_ms = _median_recall_ms(service)
        normal_after_s = time.monotonic() - ended_s
        stats, health = service.stats(), service.rest("GET", "/health")[1]
    goodput, growth = over.good_per_s / peak.good_per_s, _growth(rss)
    print(f"\ncapacity: {peak}\ntwice it, {rate:.0f}/s: {over}\ngoodput: {goodput:.0%} of the peak")
    print(f"{LIVE_PATH}: {live}\nRSS {rss[0] >> 20} to {rss[-1] >> 20} MiB, last third to first {growth:+.1%}")
    print(f"recall p50 before {before_ms:.1f} ms, after {after_ms:.1f} ms, {normal_after_s:.2f} s after the end")
    print(f"actors {stats['actors']}, health {health}")
    for part in (peak, over, live):
        assert wrong_answers(part) == []
    assert set(live.answers) == {"200"}, "that it lives is never refused"
    assert live.p99_ms <= LIVE_P99_MS
    assert over.unsent > 0, "the load was no overload"
    if LONG:
        assert goodput >= LEAST_GOODPUT
        assert abs(growth) <= RSS_WITHIN
        assert after_ms <= normal_ms
    assert goodput > LEAST_GOODPUT / 5
    assert after_ms <= 5 * normal_ms


def _median_recall_ms(service: Service) -> float:
    """Of 20 recalls, one after the other."""
    took = []
    for number in range(20):
        began_s = time.perf_counter()
        service.recall(MANY[number], QUESTIONS[number])
        took.append((time.perf_counter() - began_s) * 1000)
    return statistics.median(took)


def _recall_processes(service: Service) -> int:
    """Its processes for recalls, after some recalls more: a reader gets one when it was asked enough."""
    _median_recall_ms(service)
    return len(family(service.process.pid)) - 1


def _rss_until(running: Running, pid: int) -> list[int]:
    """The service's resident bytes, with its processes for recalls, ten times a second until the load has ended."""
    samples = []
    while running.process.poll() is None:
        samples.append(rss_bytes(pid))
        threading.Event().wait(0.1)
        assert len(samples) < 10 * (OVERLOAD_S + 60), "the load did not end"
    return samples


def _growth(samples: list[int]) -> float:
    """By how much the last third's mean is above the first third's."""
    third = len(samples) // 3
    return statistics.mean(samples[-third:]) / statistics.mean(samples[:third]) - 1
