"""The disk is full, read-only, or gives I/O errors below the service: each has its name, and all end by themselves."""

import json
import os
import subprocess
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.disk_faults import (
    BREAKABLE,
    QUICK,
    READ,
    WRITE,
    Disk,
    fill,
    health,
    honest,
    recovers,
    refused,
    small_disk,
)
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import scaled
from tests.support import Service, eventually, fresh_database, planted, rows, serving, swarm_folders

DATABASE = ("solos.db", "solos.db-wal")
STATE = ("state.db", "state.db-wal")
INDEX = ("index.db", "index.db-wal")
FAULTS = [
    ("IOError", "storage_unavailable"),
    ("FullError", "storage_full"),
    ("ReadOnlyError", "storage_unavailable"),
]
"""What SQLite is told of each operation, and what the caller is told."""

Broken = tuple[Service, Disk]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broken]:
    """A service on a disk that breaks on demand; each test mends it."""
    folder = tmp_path_factory.mktemp("broken")
    disk = Disk(folder)
    with serving(fresh_database(folder), env=disk.env, fault=f"{BREAKABLE}\n{QUICK}") as service:
        service.long("mira", "zebra that was there before")
        yield service, disk
        assert service.process.poll() is None
        assert service.stats()["actors"]["writer"]["restarts"] == 0, "a failing disk is no reason to restart an actor"


@pytest.fixture
def service(broken: Broken) -> Iterator[Service]:
    """It, well at the beginning and at the end."""
    yield broken[0]
    broken[1].is_mended()
    recovers(broken[0])
    assert rows(broken[0].database, "PRAGMA integrity_check") == [("ok",)]


@pytest.fixture
def disk(broken: Broken) -> Disk:
    """Its disk."""
    return broken[1]


def count(service: Service, like: str) -> int:
    """How many facts another process sees."""
    ((number,),) = rows(service.database, "SELECT count(*) FROM memory_longterm WHERE fact LIKE ?", like)
    return int(number)


# --- the database ---


@pytest.mark.parametrize(("error", "code"), FAULTS)
def test_writes_that_fail_are_named_and_reads_go_on(service: Service, disk: Disk, error: str, code: str) -> None:
    """Nothing of them is written; health says why, stays ready, and is well again without a call."""
    disk.breaks(error, WRITE, *DATABASE)
    refused(service, code, write=True)
    refused(service, code, write=True, request_id=f"refused by {error}")
    assert "zebra that was there before" in honest(service, "zebra")
    assert health(service) == (200, "degraded", [code])
    eventually(lambda: [line.get("codes") for line in service.events("storage_failing")][-1:] == [[code]])
    disk.is_mended()
    recovers(service)
    assert count(service, "refused%") == 0
    written = service.long("sol", "refused", request_id=f"refused by {error}")
    assert not written["replayed"]
    rows(service.database, "DELETE FROM memory_longterm WHERE fact = 'refused'")


def test_rows_that_a_failing_sync_left_in_doubt_are_there_once_or_never(service: Service, disk: Disk) -> None:
    """Clients write while fsync fails now and then, and retry with the same request id until they are answered."""
    retries: Counter[str] = Counter()

    def write(number: int) -> str:
        fact = f"doubtful {number}."
        body = {"agent": "mira", "fact": fact, "request_id": fact}
        while True:
            status, answer = service.rest("POST", "/v1/long", body)
            if status == 201:
                return str(answer["id"])
            assert answer["error"]["code"] in ("storage_unavailable", "overloaded"), answer
            retries[fact] += 1

    with ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(write, number) for number in range(scaled(60, 2_000))]
        failures = 0
        while not all(call.done() for call in calls):
            before = retries.total()
            disk.breaks("IOError", ("sync",), *DATABASE)
            eventually(lambda count=before: retries.total() > count or all(call.done() for call in calls), 20)
            disk.is_mended()
            done = sum(call.done() for call in calls)
            eventually(lambda count=done: sum(call.done() for call in calls) > min(count + 10, len(calls) - 1), 20)
            failures += 1
        ids = {call.result() for call in calls}
    print(f"{len(ids)} rows acknowledged after {retries.total()} refusals in {failures} failures")
    assert retries.total() > 0, "no sync has failed"
    assert len(ids) == len(calls)
    assert count(service, "doubtful%") == len(calls)


def test_reads_that_fail_are_named_and_never_empty(service: Service, disk: Disk) -> None:
    """The pages that are in memory are forgotten when another process writes; then each read must go to the disk."""
    disk.breaks("IOError", READ, *DATABASE)
    with ForeignProcess(service.database) as foreign:
        foreign.execute("INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'zebra of ace', 1)")
    refused(service, "storage_unavailable", write=False)
    for path in ("/v1/stats", "/v1/short?agent=sol", "/v1/memory/long:1?agent=sol"):
        status, body = service.rest("GET", path)
        assert (status, body["error"]["code"]) == (503, "storage_unavailable"), path
    assert "storage_unavailable" in health(service)[2]
    disk.is_mended()
    recovers(service)
    eventually(lambda: "zebra of ace" in honest(service, "zebra"))


def test_a_disk_that_neither_reads_nor_writes_is_not_ready(service: Service, disk: Disk) -> None:
    disk.breaks("IOError", (*READ, *WRITE), *DATABASE)
    with ForeignProcess(service.database) as foreign:
        foreign.execute("INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'other', 1)")
    refused(service, "storage_unavailable", write=True)
    for _ in range(4):  # each of the readers has met it
        refused(service, "storage_unavailable", write=False)
    assert health(service) == (503, "not_ready", ["storage_unavailable"])
    assert service.rest("GET", "/health/live")[0] == 200


# --- what is ours ---


@pytest.mark.parametrize(("error", "code"), FAULTS)
def test_without_state_only_writes_with_a_request_id_are_refused(
    service: Service, disk: Disk, error: str, code: str
) -> None:
    disk.breaks(error, WRITE, *STATE)
    refused(service, code, write=True, request_id=f"no state: {error}")
    service.long("mira", f"without state: {error}")
    assert "state_failing" in health(service)[2]
    assert health(service)[0] == 200
    disk.is_mended()
    recovers(service)
    assert not service.long("sol", "refused", request_id=f"no state: {error}")["replayed"]
    rows(service.database, "DELETE FROM memory_longterm WHERE fact = 'refused'")
    assert count(service, f"without state: {error}") == 1


@pytest.mark.parametrize("error", [error for error, _ in FAULTS])
@pytest.mark.parametrize("ops", [WRITE, (*READ, *WRITE)], ids=["write", "all"])
def test_a_failing_index_fails_no_write(service: Service, disk: Disk, error: str, ops: tuple[str, ...]) -> None:
    """The rows are on disk, their writers are told that recall is behind, and it is not when the disk is well again."""
    disk.breaks(error, ops, *INDEX)
    word = f"quagga{error}{len(ops)}"
    facts = [f"{word} {number}" for number in range(3)]
    for fact in facts:
        assert service.long("mira", fact)["degraded_reasons"] == ["index_behind"]
    assert health(service) == (200, "degraded", ["index_behind"])
    honest(service, word)
    disk.is_mended()
    recovers(service)
    eventually(lambda: set(honest(service, word)) == set(facts))


def test_a_file_of_the_swarm_that_cannot_be_synced_is_named(service: Service, disk: Disk) -> None:
    """Over REST and MCP; memories in the database are not touched by it, and the same event is written afterwards."""
    event = {"agent": "swarm-5", "kind": "mission", "mission": "m-1", "summary": "a note", "request_id": "e1"}
    service.rest("POST", "/v1/swarm", event | {"request_id": "e0"})
    disk.breaks_for_files()
    status, body = service.rest("POST", "/v1/swarm", event)
    is_error, result = service.mcp("swarm_write", event)
    for answer in (body, result):
        assert answer["error"]["code"] == "file_failed", answer
        assert "Input/output error" in answer["error"]["detail"]
    assert (status, is_error) == (500, True)
    service.long("mira", "while files fail")
    disk.is_mended()
    status, body = service.rest("POST", "/v1/swarm", event)
    assert status == 201, body
    events = (service.database.parent / "profiles").rglob("events.jsonl")
    assert sum(path.read_text().count('"a note"') for path in events) == 2


# --- a real file system ---


def test_a_disk_that_is_really_full_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Database, our folder and the swarm's files on a small tmpfs that fills up under writes, three times."""
    with small_disk(tmp_path, 6_000) as place, serving(fresh_database(place), fault=QUICK) as service:
        acknowledged, swarm = ["zebra 0"], {"agent": "swarm-5", "kind": "mission", "mission": "m-1"}
        service.long("mira", "zebra 0")
        for turn in range(3):
            filler = fill(place, leave_bytes=turn * 300_000)
            refusals: Counter[str] = Counter()
            for number in range(400):
                fact = f"zebra {turn} {number} " + "padding " * 200
                way = ("rest", "mcp")[number % 2]
                identified = {"request_id": f"r{turn}-{number}"} if number % 4 < 2 else {}
                written, code = _try(service, way, {"agent": "mira", "fact": fact, **identified})
                acknowledged += [fact.strip()] if written else []
                refusals[code] += not written
                if refusals.total() == 12:
                    break
            assert set(refusals) <= {"", "storage_full", "storage_unavailable"}, refusals
            assert refusals["storage_full"] > 0
            assert health(service)[:2] == (200, "degraded")
            assert "storage_full" in health(service)[2]
            status, body = service.rest("POST", "/v1/swarm", {**swarm, "summary": "full", "content": "x" * 60_000})
            assert (status, body["error"]["code"]) == (507, "storage_full"), body
            assert honest(service, "zebra") != [], "reads go on"
            filler.unlink()
            recovers(service)
            service.long("mira", f"zebra after {turn}")
            acknowledged.append(f"zebra after {turn}")
            print(f"turn {turn}: {len(acknowledged)} acknowledged, refused: {dict(refusals)}")
        found = [fact.strip() for (fact,) in rows(service.database, "SELECT fact FROM memory_longterm ORDER BY id")]
        assert found == acknowledged
        assert rows(service.database, "PRAGMA integrity_check") == [("ok",)]
        assert service.stats()["actors"]["writer"]["restarts"] == 0


def _try(service: Service, way: str, body: dict[str, Any]) -> tuple[bool, str]:
    """(whether it was written, the code where it was not)."""
    if way == "rest":
        status, answer = service.rest("POST", "/v1/long", body)
        written = status == 201
    else:
        is_error, answer = service.mcp("remember_long", body)
        written = not is_error
    return written, "" if written else answer["error"]["code"]


IMPATIENT = "import actors.supervisor\nactors.supervisor._BACKOFF_S = 0.01"
"""An actor that cannot be opened is given up at once."""


def start(database: Path) -> tuple[int, str]:
    """(exit code, the reason that was logged) of a start that fails."""
    command = [
        *planted(IMPATIENT),
        "serve",
        "--db",
        str(database),
        "--bind",
        "127.0.0.1:0",
    ]
    env = os.environ | swarm_folders(database)
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=env, check=False)
    lines = [json.loads(line) for line in (done.stdout + done.stderr).splitlines() if line.startswith("{")]
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, str(lines[-1]["reason"])


def test_a_start_on_a_full_disk_says_so(tmp_path: Path) -> None:
    """It must not tell the operator to delete state.db; where there is space again, the next start serves."""
    with small_disk(tmp_path, 3_000) as place:
        database = fresh_database(place)
        filler = fill(place)
        code, reason = start(database)
        print(code, reason)
        assert code != 0
        assert "full" in reason or "No space left" in reason
        assert "delete" not in reason
        filler.unlink()
        with serving(database) as service:
            service.long("mira", "zebra")
        fill(place)
        code, reason = start(database)
        print(code, reason)
        assert code != 0
        assert "full" in reason or "No space left" in reason
        assert "delete" not in reason
        (place / "filler").unlink()
        with serving(database) as service:
            assert honest(service, "zebra") == ["zebra"]


def test_a_start_on_a_read_only_file_system_says_so(tmp_path: Path) -> None:
    with small_disk(tmp_path, 3_000) as place:
        database = fresh_database(place)
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True, timeout=10)
        code, reason = start(database)
        print(code, reason)
        assert (code, "Read-only file system" in reason) == (78, True)
