"""Another process holds the database's write lock: reads go on, writes wait for it or say why they cannot."""

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults import lag
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import LONG, scaled
from tests.support import Service, eventually, rows, serving

READ_WITHIN_S = 1.0
FOREIGN = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('mira', 'a foreign gateway', 1.7e9)"
HOLDS_S = scaled((1.0, 6.0), (1.0, 6.0, 30.0))
WATCHDOG_S = 8.0  # more than one attempt at the lock, which lasts 5 s
WITHOUT_S = scaled(1.0, 10.0)
WRITERS = 4
PAUSE_S = 0.02


@dataclass
class Reads:
    """What a reader saw while others wrote."""

    slowest_s: float = 0.0
    texts: list[set[str]] = field(default_factory=list)
    took_s: list[tuple[float, float]] = field(default_factory=list)
    """When each recall began, and how long it took."""

    def p95_s(self, since_s: float, until_s: float) -> float:
        """Of those that began within a time."""
        took = sorted(took_s for began_s, took_s in self.took_s if since_s <= began_s < until_s)
        assert len(took) >= 10, "too few recalls: they did not go on"
        return took[int(0.95 * len(took))]


@contextmanager
def reading(service: Service) -> Iterator[Reads]:
    """A client that recalls again and again, for as long as the block runs."""
    reads, over = Reads(), threading.Event()

    def read() -> None:
        while not over.wait(PAUSE_S):
            began_s = time.monotonic()
            reads.texts.append({memory["text"] for memory in service.recall("sol", "gateway", k=50)})
            reads.took_s.append((began_s, time.monotonic() - began_s))
            reads.slowest_s = max(reads.slowest_s, time.monotonic() - began_s)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(read)
        try:
            yield reads
        finally:
            over.set()
        running.result(10)


@dataclass
class Writes:
    """What became of the writes of several clients."""

    acknowledged: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    slowest_s: float = 0.0


@contextmanager
def writing(service: Service) -> Iterator[Writes]:
    """Clients that write again and again, for as long as the block runs. What is not acknowledged is well refused."""
    writes, over = Writes(), threading.Event()

    def write(writer: int) -> None:
        with httpx2.Client(timeout=30) as http:
            for number in itertools.count():
                if over.wait(PAUSE_S):
                    return
                fact, began_s = f"fact {number} of writer {writer}", time.monotonic()
                answer = http.post(f"{service.url}/v1/long", json={"agent": "mira", "fact": fact})
                writes.slowest_s = max(writes.slowest_s, time.monotonic() - began_s)
                if answer.status_code == 201:
                    writes.acknowledged.append(fact)
                else:
                    busy(answer)
                    writes.refused.append(fact)

    with ThreadPoolExecutor(WRITERS) as threads:
        running = [threads.submit(write, number) for number in range(WRITERS)]
        try:
            yield writes
        finally:
            over.set()
        for one in running:
            one.result(30)


def busy(answer: httpx2.Response) -> None:
    """The answer refuses with the reason, and says when to come again."""
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_busy"), answer.text
    assert "lock" in answer.json()["error"]["detail"]
    assert int(answer.headers["Retry-After"]) > 0


@contextmanager
def watchdog(folder: Path) -> Iterator[tuple[dict[str, str], list[float]]]:
    """(the variables of a service that a manager watches, when it was fed)."""
    fed: list[float] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notified:
        notified.bind(str(folder / "notify"))

        def listen() -> None:
            with suppress(OSError):
                while message := notified.recv(4_096):
                    if b"WATCHDOG=1" in message:
                        fed.append(time.monotonic())

        listener = threading.Thread(target=listen)
        listener.start()
        try:
            yield {"NOTIFY_SOCKET": str(folder / "notify"), "WATCHDOG_USEC": str(int(WATCHDOG_S * 1e6))}, fed
        finally:
            notified.shutdown(socket.SHUT_RDWR)
            listener.join(5)


def timed_write(service: Service, fact: str) -> tuple[float, Any]:
    """How long a write took, and its answer."""
    began_s = time.monotonic()
    answer = service.http.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": fact})
    return time.monotonic() - began_s, answer


def timed_tool_call(service: Service, fact: str) -> tuple[float, bool, dict[str, Any]]:
    """How long a tool call took, isError, and what it said."""
    began_s = time.monotonic()
    is_error, body = service.mcp("remember_long", {"agent": "sol", "fact": fact})
    return time.monotonic() - began_s, is_error, body


@pytest.mark.parametrize("hold_s", HOLDS_S)
def test_lock_stops_neither_recalls_nor_the_event_loop_and_no_write_is_lost(
    database: Path, tmp_path: Path, hold_s: float
) -> None:
    ours, control = tmp_path / "ours", tmp_path / "control"
    with (
        watchdog(tmp_path) as (watched, fed),
        serving(database, env=watched, fault=lag.fault(ours)) as service,
        lag.control(control),
        ForeignProcess(database) as other,
    ):
        service.long("sol", "the gateway")
        with reading(service) as reads, writing(service) as writes:
            eventually(lambda: len(reads.took_s) > 20 and len(writes.acknowledged) > 20)  # warm
            free_s = time.monotonic()
            time.sleep(WITHOUT_S)
            other.hold(hold_s)
            locked_s, released_s = time.monotonic(), time.monotonic() + hold_s
            time.sleep(hold_s)
            written = len(writes.acknowledged)
            eventually(lambda: len(writes.acknowledged) >= written + 2 * WRITERS, within_s=20)
        without_s, during_s = reads.p95_s(free_s, locked_s), reads.p95_s(locked_s, released_s)
        ours_s, control_s = (lag.quantile_s(path, 0.999, locked_s, released_s) for path in (ours, control))
        gap_s = max(after - before for before, after in itertools.pairwise([*fed, time.monotonic()]))
        print(
            f"lock {hold_s:.0f} s: recall p95 {without_s * 1000:.1f} ms without, {during_s * 1000:.1f} ms with, "
            f"slowest {reads.slowest_s * 1000:.0f} ms; loop p99.9 {ours_s * 1000:.1f} ms, control "
            f"{control_s * 1000:.1f} ms; {len(writes.acknowledged)} writes acknowledged, {len(writes.refused)} "
            f"refused, slowest {writes.slowest_s:.2f} s; watchdog fed every {gap_s:.2f} s"
        )
        assert all("the gateway" in texts for texts in reads.texts)
        assert during_s <= (2 * without_s if LONG else READ_WITHIN_S)
        assert ours_s <= control_s + scaled(0.5, 0.05)
        assert gap_s < WATCHDOG_S
        assert not service.events("watchdog_starved")
        assert bool(writes.refused) == (hold_s > 12.0)
        eventually(lambda: _health(service)["status"] == "ok")
        counts = service.stats()["writes"]["long"]
        assert (counts["acknowledged"], counts["refused"], counts["unknown"]) == (
            len(writes.acknowledged) + 1,
            len(writes.refused),
            0,
        )
    facts = [fact for (fact,) in rows(database, "SELECT fact FROM memory_longterm")]
    assert sorted(facts) == sorted(["the gateway", *writes.acknowledged])


BUDGET_S, GRACE_S = scaled(3.0, 12.0), 2.0
SOONER = f"""
from storage import limits
limits.WRITE_BUDGET_S, limits.BUSY_TIMEOUT_MS = {BUDGET_S}, {int(BUDGET_S * 1000 / 2.4)}
"""


def test_lock_that_outlasts_the_budget_is_reported(database: Path) -> None:
    """Writes are refused with the reason when their budget is spent; nothing of them is written then or later."""
    hold_s = BUDGET_S + 2.5
    with (
        serving(database, fault=SOONER) as service,
        ForeignProcess(database) as other,
        ThreadPoolExecutor(8) as threads,
    ):
        service.long("sol", "the gateway")
        other.execute(FOREIGN)
        other.hold(hold_s)
        released_s = time.monotonic() + hold_s
        with reading(service) as reads:
            writes = [threads.submit(timed_write, service, f"refused {number}") for number in range(4)]
            tool_call = threads.submit(timed_tool_call, service, "refused too")
            eventually(lambda: "storage_busy" in _health(service)["reasons"], within_s=8)
            eventually(lambda: reads.texts[-1] == {"the gateway", "a foreign gateway"})
            for took_s, answer in [write.result() for write in writes]:
                busy(answer)
                assert BUDGET_S - 1 < took_s < BUDGET_S + GRACE_S
            took_s, is_error, body = tool_call.result()
            assert (is_error, body["error"]["code"]) == (True, "storage_busy")
            assert took_s < BUDGET_S + GRACE_S
            took_s, answer = timed_write(service, "as soon as it is free")
            assert answer.status_code == 201
            assert time.monotonic() > released_s - 0.5
        assert reads.slowest_s < READ_WITHIN_S
        eventually(lambda: _health(service)["status"] == "ok")
        long = service.stats()["writes"]["long"]
        assert (long["issued"], long["acknowledged"], long["refused"], long["unknown"]) == (7, 2, 5, 0)
    assert rows(database, "SELECT fact FROM memory_longterm ORDER BY id") == [
        ("the gateway",),
        ("a foreign gateway",),
        ("as soon as it is free",),
    ]


def _health(service: Service) -> dict[str, Any]:
    return service.rest("GET", "/health")[1]
