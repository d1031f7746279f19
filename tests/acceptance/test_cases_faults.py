"""The cases about things that break: disks, readers, writers, and clients that wait."""

import contextlib
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.support import Service, fresh_database, rows, serving

FAULTY_PROGRAM = """
import apsw
from storage import limits, reading, recalling
from storage.search.index import Index
from storage.writing import WritingStore

limits.READ_DEADLINE_S = 2.0
matching, apply, select_rows = Index.matching, WritingStore.apply, recalling.select_rows

def faulty_rows(*arguments):
    for row in select_rows(*arguments):
        if "tablefault" in row.text:
            raise apsw.IOError("disk I/O error")
        if "systemfault" in row.text:
            raise OSError(5, "Input/output error")
        yield row

def faulty_matching(index, tier, expression, *rest):
    if "indexfault" in expression:
        raise apsw.IOError("disk I/O error")
    if "endless" in expression:
        numbers = "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n)"
        list(index._db.execute(numbers + " SELECT max(i) FROM n"))
    return matching(index, tier, expression, *rest)

def faulty_apply(store, writes, **options):
    if store._db.execute("SELECT 1 FROM agent_registry WHERE agent_id = 'writer-is-dead'").fetchone():
        raise RuntimeError("the writer is dead")
    return apply(store, writes, **options)

Index.matching, WritingStore.apply = faulty_matching, faulty_apply
recalling.select_rows = reading.select_rows = faulty_rows
from transport.cli import main
main()
"""
"""The service with faults in its readers and its writer that a question, or a row of the registry, sets off. Reads are
cut after 2 s instead of 10, so that the tests need not wait so long."""


@pytest.fixture(scope="module")
def faulty_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A real process whose storage breaks on demand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(support, "PROGRAM", [sys.executable, "-c", FAULTY_PROGRAM])
        with serving(fresh_database(tmp_path_factory.mktemp("faulty"))) as running:
            yield running


def count(database: Path, table: str = "memory_longterm") -> int:
    """How many rows another process sees."""
    return rows(database, f"SELECT count(*) FROM {table}")[0][0]


def unavailable(status: int, body: dict[str, Any]) -> bool:
    """Whether an answer is a 503 with a reason."""
    assert status == 503, body
    assert body["ok"] is False
    assert body["error"]["code"] in ("storage_unavailable", "storage_damaged", "storage_busy")
    assert body["error"]["detail"]
    assert "results" not in body
    return True


# --- C021: readers that fail ---


@pytest.mark.parametrize("fault", ["indexfault", "tablefault", "systemfault"])
def test_c021_reader_that_raises_ioerror(faulty_service: Service, fault: str) -> None:
    """An I/O error below a recall, SQLite's or the system's, is 503 with its reason, never an empty list."""
    written = faulty_service.long("mira", f"read before the fault {fault[::-1]}")
    faulty_service.long("mira", fault)
    assert unavailable(*faulty_service.rest("GET", "/v1/recall", agent="sol", q=fault))
    error, body = faulty_service.mcp("recall", {"agent": "sol", "q": fault})
    assert error is True
    assert unavailable(503, body)
    found = faulty_service.recall("sol", "read before", k=50)
    assert written["id"] in [memory["id"] for memory in found], "the reader goes on"


@pytest.mark.parametrize("fault", ["tablefault", "systemfault"])
def test_c021_reader_that_raises_ioerror_for_one_memory(faulty_service: Service, fault: str) -> None:
    """A memory that cannot be read is 503, not 404: it is there."""
    written = faulty_service.long("mira", f"single {fault}")
    assert unavailable(*faulty_service.rest("GET", f"/v1/memory/{written['id']}", agent="sol"))
    error, body = faulty_service.mcp("get_memory", {"agent": "sol", "id": written["id"]})
    assert error is True
    assert unavailable(503, body)


def reads_are_unavailable(service: Service, memory_id: str) -> None:
    """Every read, on REST and MCP, says 503; none is empty."""
    for path, query in (
        ("/v1/recall", {"q": "vanishing"}),
        ("/v1/recall", {"q": "persona", "tiers": "durable"}),
        (f"/v1/memory/{memory_id}", {}),
        ("/v1/short", {}),
        ("/v1/short", {"key": "k"}),
        ("/v1/stats", {}),
    ):
        assert unavailable(*service.rest("GET", path, agent="sol", **query)), path
    for tool, arguments in (("recall", {"q": "vanishing"}), ("get_memory", {"id": memory_id}), ("get_short", {})):
        error, body = service.mcp(tool, {"agent": "sol", **arguments})
        assert error is True
        assert unavailable(503, body)


@pytest.mark.parametrize("how", ["removed", "replaced", "moved away"])
def test_c021_database_that_goes_while_serving(service: Service, tmp_path: Path, how: str) -> None:
    """A path that no longer names the open file is 503 for reads and writes; health says so; nothing is made there.

    Nor is it changed where what has come is no database of a fleet; a sound one is served (test_disk_moved.py).
    """
    database = service.database
    rows(tmp_path / "other.db", "CREATE TABLE recipes (title TEXT)")
    replacement = (tmp_path / "other.db").read_bytes()
    written = service.long("mira", "vanishing fact")
    assert len(service.recall("sol", "vanishing")) == 1
    if how == "removed":
        database.unlink()
    elif how == "moved away":
        database.rename(tmp_path / "elsewhere.db")
    else:
        os.replace(tmp_path / "other.db", database)
    reads_are_unavailable(service, written["id"])
    for path, body in (("/v1/long", {"fact": "x"}), ("/v1/short", {"key": "k", "value": "v"})):
        assert unavailable(*service.rest("POST", path, {"agent": "sol", **body}))
    status, health = service.rest("GET", "/health/ready")
    assert (status, health["status"], health["reasons"]) == (503, "not_ready", ["database_moved"])
    assert database.exists() == (how == "replaced")
    if how == "replaced":
        assert database.read_bytes() == replacement, "what came in its place is left alone"


def test_c021_truncated_database_is_no_empty_answer(service: Service) -> None:
    """A file that is overwritten in place is 503 on every read that needs it, and the service lives."""
    service.long("mira", "truncation fact")
    assert service.stop() == 0
    with serving(service.database) as again:
        (before,) = again.recall("sol", "truncation")
        with again.database.open("r+b") as file:
            file.seek(0)
            file.write(b"\xff" * again.database.stat().st_size)
        with contextlib.suppress(OSError):
            again.database.with_name("solos.db-wal").write_bytes(b"")
        status, body = again.rest("GET", "/v1/recall", agent="sol", q="truncation")
        if status == 200:  # what SQLite still had in memory is an answer; emptiness is not
            assert body["results"] == [before]
        else:
            assert unavailable(status, body)
        assert again.rest("GET", "/health/live")[0] == 200


# --- C114, C115: clients that wait ---


def test_c114_ping_is_answered_while_a_slow_recall_runs(faulty_service: Service) -> None:
    """Pings and tools/list during slow recalls are answered at once, and tools/list stays within 10,000 bytes."""
    faulty_service.long("mira", "an endless fact")
    with ThreadPoolExecutor(2) as pool:
        slow = [pool.submit(faulty_service.mcp, "recall", {"agent": "sol", "q": "endless"}) for _ in range(2)]
        pings = 0
        until = time.monotonic() + 3
        while time.monotonic() < until and not all(call.done() for call in slow):
            for method in ("ping", "tools/list"):
                began = time.monotonic()
                response = faulty_service.mcp_raw({"jsonrpc": "2.0", "id": 7, "method": method})
                assert time.monotonic() - began < 0.5, method
                assert response.status_code == 200
                assert "result" in response.json()
                assert len(response.content) <= 10_000 + 100
            pings += 1
            threading.Event().wait(0.2)
        assert pings >= 5, "the recalls were not slow"
        assert all(call.result()[1]["ok"] is False for call in slow)


def test_c115_slow_recall_is_cut_at_the_services_own_deadline(faulty_service: Service) -> None:
    """A recall that would run for ever is ended by the service with a clear error; the client keeps its tools."""
    faulty_service.long("mira", "another endless fact")
    began = time.monotonic()
    status, body = faulty_service.rest("GET", "/v1/recall", agent="sol", q="endless")
    took_s = time.monotonic() - began
    assert (status, body["error"]["code"]) == (504, "deadline_exceeded")
    assert "deadline" in body["error"]["detail"]
    assert 1.5 < took_s < 4
    error, body = faulty_service.mcp("recall", {"agent": "sol", "q": "endless"})
    assert (error, body["error"]["code"]) == (True, "deadline_exceeded")
    listed = faulty_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()
    assert "recall" in [tool["name"] for tool in listed["result"]["tools"]]
    assert faulty_service.mcp("recall", {"agent": "sol", "q": "another fact"})[1]["ok"] is True
    assert faulty_service.stats()["actors"]["readers"]["restarts"] == 0


def test_c115_the_deadline_is_ten_seconds(shared_service: Service) -> None:
    """As shipped a read is cut after 10 s: well under the 60 s at which a client drops all tools of a server."""
    assert shared_service.stats()["bounds"]["read_deadline_s"] == 10


# --- C126: 201 means committed ---


def test_c126_acknowledged_write_is_on_disk_at_once(shared_service: Service) -> None:
    """When 201 arrives another process sees the row; nothing is ever 'queued', and the contract knows no 202."""
    for number in range(20):
        written = shared_service.long("ace", f"committed {number}")
        assert "queued" not in written
        row = int(written["id"].split(":")[1])
        found = rows(shared_service.database, "SELECT agent, fact FROM memory_longterm WHERE id = ?", row)
        assert found == [("ace", f"committed {number}")]
    _, contract = shared_service.rest("GET", "/openapi.json")
    answers = {code for path in contract["paths"].values() for method in path.values() for code in method["responses"]}
    assert {code for code in answers if code < "400"} == {"200", "201"}


def test_c126_acknowledged_write_survives_kill_9(database: Path) -> None:
    """201, then kill -9 straight away: the row is there, once."""
    service = Service(database).wait()
    service.long("ace", "killed after the answer")
    service.kill()
    assert rows(database, "SELECT count(*) FROM memory_longterm WHERE fact = 'killed after the answer'") == [(1,)]


def test_c126_dead_writer_acknowledges_nothing(faulty_service: Service) -> None:
    """While the writer fails, a write is a 5xx with a code, within bounded time, and no row; never 201, never 202."""
    database = faulty_service.database
    before = count(database)
    with contextlib.closing(sqlite3.connect(database)) as db, db:
        db.execute("INSERT INTO agent_registry(agent_id) VALUES ('writer-is-dead')")
    try:
        for _ in range(3):
            status, body = faulty_service.rest("POST", "/v1/long", {"agent": "sol", "fact": "into the void"})
            assert status in (500, 503)
            assert body["ok"] is False
            assert body["error"]["code"] in ("internal", "not_ready", "storage_unavailable")
            assert "queued" not in json.dumps(body)
            error, body = faulty_service.mcp("remember_long", {"agent": "sol", "fact": "into the void"})
            assert (error, body["ok"]) == (True, False)
        assert faulty_service.rest("GET", "/v1/recall", agent="sol", q="anything")[0] == 200
    finally:
        with contextlib.closing(sqlite3.connect(database)) as db, db:
            db.execute("DELETE FROM agent_registry WHERE agent_id = 'writer-is-dead'")
    assert count(database) == before
    faulty_service.long("sol", "and back to life")
    assert count(database) == before + 1
