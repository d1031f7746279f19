"""The cases about others at the same database, and about stopping while writing."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests import support
from tests.support import Service, eventually, foreign_lock, rows, serving


def count(database: Path) -> int:
    """How many facts another process sees."""
    return rows(database, "SELECT count(*) FROM memory_longterm")[0][0]


# --- C042, C043, C045: others at the same database ---

FOREIGN_WRITER = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=30, isolation_level=None)
for number in range(int(sys.argv[2])):
    db.execute("INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('mira', ?, 1.7e9)", (f"foreign {number}",))
"""


def in_parallel(threads: int, work: Callable[[int], list[tuple[int, dict[str, Any]]]]) -> list[tuple[int, dict]]:
    """The answers of some threads' work, together."""
    with ThreadPoolExecutor(threads) as pool:
        return [answer for answers in pool.map(work, range(threads)) for answer in answers]


def test_c042_ten_writers_and_ten_readers(service: Service) -> None:
    """Twenty threads for six seconds: no caller is told that the database is locked, and rows = acknowledgements."""
    until = time.monotonic() + 6

    def work(number: int) -> list[tuple[int, dict[str, Any]]]:
        answers = []
        while time.monotonic() < until:
            if number % 2:
                body = {"agent": "sol", "fact": f"stampede {number} {len(answers)}"}
                answers.append(service.rest("POST", "/v1/long", body))
            else:
                answers.append(service.rest("GET", "/v1/recall", agent="mira", q=f"stampede {number}"))
        return answers

    answers = in_parallel(20, work)
    assert {status for status, _ in answers} == {200, 201}
    acknowledged = [body["id"] for status, body in answers if status == 201]
    assert len(acknowledged) > 100
    assert len(set(acknowledged)) == len(acknowledged) == count(service.database)
    assert rows(service.database, "PRAGMA journal_mode") == [("wal",)]
    assert service.stats()["bounds"]["busy_timeout_ms"] == 5_000


def test_c043_second_service_refuses_to_start(service: Service) -> None:
    """A second process on the same database ends with 78 and names the first; the first serves on."""
    second = subprocess.run(
        [*support.PROGRAM, "serve", "--db", str(service.database), "--bind", "127.0.0.1:0"],
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert second.returncode == 78
    said = second.stdout.decode() + second.stderr.decode()
    assert f"pid {service.process.pid}" in said
    assert str(service.database) in said
    service.long("sol", "the first goes on")


def test_c043_service_and_foreign_process_write_at_once(service: Service) -> None:
    """500 rows by the service and 500 by another process at the same time: 1,000 in the table, 500 acknowledged."""
    foreign = subprocess.Popen([sys.executable, "-c", FOREIGN_WRITER, str(service.database), "500"])

    def work(number: int) -> list[tuple[int, dict[str, Any]]]:
        facts = [f"service {number} {step}" for step in range(50)]
        return [service.rest("POST", "/v1/long", {"agent": "sol", "fact": fact}) for fact in facts]

    answers = in_parallel(10, work)
    assert foreign.wait(60) == 0
    assert [status for status, _ in answers] == [201] * 500
    assert len({body["id"] for _, body in answers}) == 500
    by_agent = dict(rows(service.database, "SELECT agent, count(*) FROM memory_longterm GROUP BY agent"))
    assert by_agent == {"sol": 500, "mira": 500}
    eventually(lambda: service.stats()["store"]["rows"]["long"] == 1_000)
    assert service.stats()["writes"]["long"]["acknowledged"] == 500


def test_c045_foreign_lock_stops_writes_but_no_read(service: Service) -> None:
    """While another process holds the write lock recalls answer quickly; a write waits, then is 503 with its reason."""
    written = service.long("mira", "readable under the lock")
    answer: list[tuple[int, dict[str, Any]]] = []
    writer = threading.Thread(
        target=lambda: answer.append(service.rest("POST", "/v1/long", {"agent": "sol", "fact": "locked out"}))
    )
    began = time.monotonic()
    with foreign_lock(service.database):
        writer.start()
        slowest_s, reads = 0.0, 0
        while not answer and time.monotonic() - began < 20:
            asked = time.monotonic()
            (found,) = service.recall("sol", "readable under the lock")
            assert found["id"] == written["id"]
            assert service.rest("GET", "/v1/short", agent="sol")[0] == 200
            slowest_s = max(slowest_s, time.monotonic() - asked)
            reads += 1
            threading.Event().wait(0.05)
        took_s = time.monotonic() - began
        writer.join(5)
    ((status, body),) = answer
    assert (status, body["error"]["code"]) == (503, "storage_busy")
    assert "lock" in body["error"]["detail"]
    assert body["error"]["retry_after_s"] > 0
    assert 11 < took_s < 16, "the budget of a write is 12 s"
    assert reads > 50
    assert slowest_s < 1.0
    assert count(service.database) == 1
    service.long("sol", "after the lock")


# --- C053: stopping while writing ---


def test_c053_stop_during_writes_loses_nothing_acknowledged(database: Path) -> None:
    """SIGTERM in the middle of writes: each is finished or refused; what was acknowledged is there after a restart."""
    service = Service(database).wait()
    acknowledged: list[str] = []
    refused: list[int] = []

    def write(number: int) -> None:
        with contextlib.suppress(Exception):  # connections that the stop closed
            for step in range(10_000):
                status, body = service.rest("POST", "/v1/long", {"agent": "sol", "fact": f"stopping {number} {step}"})
                (acknowledged if status == 201 else refused).append(body["id"] if status == 201 else status)

    writers = [threading.Thread(target=write, args=(number,)) for number in range(8)]
    for writer in writers:
        writer.start()
    eventually(lambda: len(acknowledged) > 200)
    began = time.monotonic()
    code = service.stop()
    took_s = time.monotonic() - began
    for writer in writers:
        writer.join(10)
    assert code == 0
    assert took_s < 10
    assert set(refused) <= {503}
    with serving(database) as again:
        stored = {f"long:{row}" for (row,) in rows(database, "SELECT id FROM memory_longterm")}
        assert set(acknowledged) <= stored
        assert len(set(acknowledged)) == len(acknowledged)
        assert again.rest("GET", f"/v1/memory/{acknowledged[-1]}", agent="sol")[0] == 200
        assert again.stats()["store"]["rows"]["long"] == len(stored)


def test_c053_writes_in_flight_are_finished(database: Path) -> None:
    """Writes that wait for a foreign lock when SIGTERM comes are written and acknowledged once the lock is free."""
    service = Service(database).wait()

    def write(number: int) -> tuple[int, dict[str, Any]]:
        return service.rest("POST", "/v1/long", {"agent": "sol", "fact": f"in flight {number}"})

    with ThreadPoolExecutor(8) as pool:
        with foreign_lock(database):
            answers = [pool.submit(write, number) for number in range(8)]
            eventually(lambda: service.stats()["writes"]["long"]["in_flight"] == 8)
            began = time.monotonic()
            service.process.send_signal(signal.SIGTERM)
            eventually(lambda: service.events("stopping"))
            assert not any(answer.done() for answer in answers)
        statuses = [answer.result()[0] for answer in answers]
    assert service.stop() == 0
    assert time.monotonic() - began < 10
    assert statuses == [201] * 8
    assert count(database) == 8
