"""Another process holds the database's write lock: reads go on, writes wait for it or say why they cannot."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage import limits
from tests.faults.foreign import ForeignProcess
from tests.support import Service, eventually, rows, serving

READ_WITHIN_S = 1.0
FOREIGN = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('mira', 'a foreign gateway', 1.7e9)"


@dataclass
class Reads:
    """What a reader saw while others wrote."""

    slowest_s: float = 0.0
    texts: list[set[str]] = field(default_factory=list)


@contextmanager
def reading(service: Service) -> Iterator[Reads]:
    """A client that recalls again and again, for as long as the block runs."""
    reads, over = Reads(), threading.Event()

    def read() -> None:
        while not over.wait(0.02):
            began_s = time.monotonic()
            reads.texts.append({memory["text"] for memory in service.recall("sol", "gateway", k=50)})
            reads.slowest_s = max(reads.slowest_s, time.monotonic() - began_s)

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(read)
        try:
            yield reads
        finally:
            over.set()
        running.result(10)


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


def test_lock_of_a_second_is_waited_for(database: Path) -> None:
    with serving(database) as service, ForeignProcess(database) as other, ThreadPoolExecutor(8) as threads:
        service.long("sol", "the gateway")
        other.hold(1.0)
        with reading(service) as reads:
            answers = list(threads.map(lambda number: timed_write(service, f"fact {number}"), range(8)))
        assert [answer.status_code for _, answer in answers] == [201] * 8
        assert 0.5 < max(took_s for took_s, _ in answers) < 3.0
        assert reads.slowest_s < READ_WITHIN_S
        assert all(texts == {"the gateway"} for texts in reads.texts)
        assert service.stats()["refused"] == 0
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(9,)]


def test_lock_of_fifteen_seconds_is_reported(database: Path) -> None:
    """Writes are refused with the reason when their budget is spent; nothing of them is written then or later."""
    with serving(database) as service, ForeignProcess(database) as other, ThreadPoolExecutor(8) as threads:
        service.long("sol", "the gateway")
        other.execute(FOREIGN)
        other.hold(15.0)
        released_s = time.monotonic() + 15.0
        with reading(service) as reads:
            writes = [threads.submit(timed_write, service, f"refused {number}") for number in range(4)]
            tool_call = threads.submit(timed_tool_call, service, "refused too")
            eventually(lambda: "storage_busy" in _health(service)["reasons"], within_s=8)
            eventually(lambda: reads.texts[-1] == {"the gateway", "a foreign gateway"})
            for took_s, answer in [write.result() for write in writes]:
                assert (answer.status_code, answer.json()["error"]["code"]) == (503, "storage_busy")
                assert "lock" in answer.json()["error"]["detail"]
                assert int(answer.headers["Retry-After"]) > 0
                assert limits.WRITE_BUDGET_S - 1 < took_s < limits.WRITE_BUDGET_S + limits.ANSWER_GRACE_S
            took_s, is_error, body = tool_call.result()
            assert (is_error, body["error"]["code"]) == (True, "storage_busy")
            assert took_s < limits.WRITE_BUDGET_S + limits.ANSWER_GRACE_S
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
