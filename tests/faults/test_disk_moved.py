"""The database, a file beside it, or the whole folder is removed or replaced while the service has it open.

Nothing is read from or written to a file that others can no longer see; what comes back, or comes in its place and is
sound, is served without a restart, and without a row of the one before.
"""

import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.faults.disk_faults import QUICK, health, honest, is_ready, page_of, recovers, refused
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import scaled
from tests.support import Service, eventually, fresh_database, rows, serving


def facts(database: Path) -> list[str]:
    """The facts in the order of their rows."""
    return [fact for (fact,) in rows(database, "SELECT fact FROM memory_longterm ORDER BY id")]


def is_sound(database: Path) -> bool:
    """Whether SQLite finds nothing wrong with it."""
    return rows(database, "PRAGMA integrity_check") == [("ok",)]


def other_database(folder: Path) -> Path:
    """A sound database of the same fleet that holds one other fact, whole in its file."""
    path = fresh_database(folder, "other.db")
    rows(path, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('atlas', 'zebra of the other', 1)")
    return path


# --- gone and back ---


def test_a_database_that_went_is_served_again_when_it_is_back(tmp_path: Path) -> None:
    """First the file alone, then the folder with all that is ours in it."""
    home = tmp_path / "home"
    database = fresh_database(home)
    with serving(database, fault=QUICK) as service:
        service.long("mira", "zebra before", request_id="before")
        for moved, away in ((database, tmp_path / "away.db"), (home, tmp_path / "away")):
            said = len(service.events("database_moved"))
            moved.rename(away)
            refused(service, "storage_unavailable", write=True)
            refused(service, "storage_unavailable", write=False)
            assert health(service) == (503, "not_ready", ["database_moved"])
            eventually(lambda before=said: len(service.events("database_moved")) > before)
            service.rest("GET", "/v1/stats")
            assert not moved.exists(), "nothing may be made in its place"
            away.rename(moved)
            recovers(service)
            eventually(lambda: service.events("database_moved")[-1].get("over"))
            assert service.long("mira", "zebra before", request_id="before")["replayed"]
            assert honest(service, "zebra") == ["zebra before"]
        service.long("mira", "zebra after")
        assert len([line for line in service.events("database_moved") if "over" not in line]) == 2, "once for each"
        assert not service.events("database_reopened")
    assert facts(database) == ["zebra before", "zebra after"]
    assert is_sound(database)


# --- another one in its place ---


def over_it(database: Path, other: Path) -> None:
    """One rename, as a careless restore does it: the WAL of the one before stays beside it."""
    os.replace(other, database)


def without_its_logs(database: Path, other: Path) -> None:
    """As the manual of SQLite says."""
    for ending in ("-wal", "-shm"):
        database.with_name(database.name + ending).unlink()
    os.replace(other, database)


def after_a_while(database: Path, other: Path) -> None:
    """The one before is moved away first."""
    database.rename(database.with_name("before.db"))
    other.rename(database)


@pytest.mark.parametrize("comes", [over_it, without_its_logs, after_a_while])
def test_another_sound_database_is_served_without_a_restart(
    database: Path, tmp_path: Path, comes: Callable[[Path, Path], None]
) -> None:
    """No row of the one before is shown or written into it, and its WAL damages nothing."""
    other = other_database(tmp_path)
    with serving(database, fault=QUICK) as service:
        for number in range(scaled(20, 400)):
            service.long("mira", f"zebra {number} of the first", request_id=f"r{number}")
        comes(database, other)
        recovers(service)
        eventually(lambda: honest(service, "zebra") == ["zebra of the other"])
        assert service.stats()["store"]["rows"]["long"] == 1
        assert not service.long("mira", "zebra 0 of the first", request_id="r0")["replayed"]
        assert service.mcp("get_memory", {"agent": "sol", "id": "long:9"})[1]["error"]["code"] == "not_found"
        with ForeignProcess(database) as foreign:
            foreign.execute("INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'zebra of ace', 1)")
        assert sorted(honest(service, "zebra")) == ["zebra 0 of the first", "zebra of ace", "zebra of the other"]
        assert len(service.events("database_reopened")) == 1
        opened = service.events("store_opened")[-1]
        assert (opened["another_database"], opened["intents_dropped"]) == (True, 0)
    assert facts(database) == ["zebra of the other", "zebra 0 of the first", "zebra of ace"]
    assert is_sound(database)
    if comes is after_a_while:
        assert len(facts(database.with_name("before.db"))) == scaled(20, 400), "the old file got what its WAL held"


def test_a_service_that_ends_leaves_no_log_for_another_database(database: Path, tmp_path: Path) -> None:
    """It is stopped while another database lies at the path: the next start serves that one as it is."""
    other = other_database(tmp_path)
    content = other.read_bytes()
    with serving(database, fault="import actors.sentry\nactors.sentry._PERIOD_S = 60.0") as service:
        service.long("mira", "zebra of the first")
        os.replace(other, database)
        assert service.stop() == 0
        (aside,) = service.events("wal_set_aside")
    assert Path(aside["path"]).exists()
    assert database.read_bytes() == content
    with serving(database, fault=QUICK) as service:
        assert honest(service, "zebra") == ["zebra of the other"]
    assert is_sound(database)


def test_an_open_intent_is_not_settled_by_another_database(database: Path, tmp_path: Path) -> None:
    """The first database comes back: the retry of a write that it holds is answered with the first row, not doubled."""
    unsettled = QUICK + "from storage.state import State\nsettle = State.settle\n"
    unsettled += "State.settle = lambda self, done, dropped: settle(self, [], dropped)"
    other = other_database(tmp_path)
    with serving(database, fault=unsettled) as service:
        for number in range(10):
            service.long("mira", f"zebra {number}", request_id=f"r{number}")
        database.rename(tmp_path / "first.db")
        other.rename(database)
        recovers(service)
        database.rename(tmp_path / "other.db")
        (tmp_path / "first.db").rename(database)
        eventually(lambda: len(service.events("database_reopened")) == 2)
        recovers(service)
        for number in range(10):
            assert service.long("mira", f"zebra {number}", request_id=f"r{number}")["replayed"]
    assert facts(database) == [f"zebra {number}" for number in range(10)]


# --- what cannot be served in its place ---


def no_database(path: Path) -> None:
    """A file that is no database at all."""
    path.write_bytes(b"nonsense " * 1000)


def empty(path: Path) -> None:
    """A file without a byte."""
    path.touch()


def without_tables(path: Path) -> None:
    """A database of something else."""
    rows(path, "CREATE TABLE recipes (title TEXT)")


def damaged(path: Path) -> None:
    """A fleet's database with a page of nonsense."""
    other = other_database(path.parent)
    other.rename(path)
    offset, length = page_of(path, "memory_longterm")
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xa5" * length)


def folder(path: Path) -> None:
    """No file."""
    path.mkdir()


def test_what_cannot_be_served_is_left_alone_and_named(database: Path, tmp_path: Path) -> None:
    """Each in turn stands at the path: the reason is logged once, nothing is written, and the right one comes back."""
    with serving(database, fault=QUICK) as service:
        service.long("mira", "zebra first")
        database.rename(tmp_path / "first.db")
        for number, make in enumerate((no_database, empty, without_tables, damaged, folder)):
            candidate = tmp_path / f"candidate{number}"
            make(candidate)
            before = candidate.read_bytes() if candidate.is_file() else b""
            candidate.rename(database)
            eventually(lambda count=number: len(_reasons(service)) > count)
            refused(service, "storage_unavailable", write=True)
            refused(service, "storage_unavailable", write=False)
            assert health(service) == (503, "not_ready", ["database_moved"])
            assert before == (database.read_bytes() if database.is_file() else b"")
            shutil.rmtree(database) if database.is_dir() else database.unlink()
        (tmp_path / "first.db").rename(database)
        recovers(service)
        assert honest(service, "zebra") == ["zebra first"]
        assert service.process.poll() is None
    assert facts(database) == ["zebra first"]
    assert is_sound(database)


def _reasons(service: Service) -> list[str]:
    """What was said of files that cannot be served, without repetition and without a word that none is there."""
    said = [line["reason"] for line in service.events("database_moved") if "reason" in line]
    return list(dict.fromkeys(reason for reason in said if "gone" not in reason))


# --- files beside it ---


def test_a_removed_log_loses_no_acknowledged_row(database: Path) -> None:
    """SQLite goes on in a file that nobody sees: what was acknowledged must be in the database before a crash."""
    acknowledged = [f"zebra {number}" for number in range(scaled(10, 40))]
    with serving(database, fault=QUICK) as service:
        for fact in acknowledged:
            service.long("mira", fact)
        for number, ending in enumerate(("-wal", "-shm")):
            database.with_name(database.name + ending).unlink()
            meanwhile = f"zebra meanwhile {number}"
            status, body = service.rest("POST", "/v1/long", {"agent": "mira", "fact": meanwhile})
            assert status == 201 or body["error"]["code"] in ("storage_unavailable", "not_ready"), body
            acknowledged += [meanwhile] if status == 201 else []
            assert set(honest(service, "zebra")) == set(acknowledged), "reads go on"
            eventually(lambda before=number: len(service.events("database_reopened")) > before)
            recovers(service)
            service.long("mira", f"zebra after {number}")
            foreign_fact = f"zebra of ace {number}"
            with ForeignProcess(database) as foreign:
                foreign.execute(
                    f"INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', '{foreign_fact}', 1)"
                )
            acknowledged += [f"zebra after {number}", foreign_fact]
        assert len(service.events("database_reopened")) == 2
        service.kill()
    assert facts(database) == acknowledged
    assert is_sound(database)


def test_a_removed_wal_that_a_reader_holds_is_kept_until_it_is_copied(database: Path) -> None:
    """Closing it would lose what cannot be copied back yet: writes are refused so long, and reads go on."""
    with ForeignProcess(database) as reader, serving(database, fault=QUICK) as service:
        service.long("mira", "zebra one")
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM memory_longterm")
        service.long("mira", "zebra two")
        database.with_name(database.name + "-wal").unlink()
        eventually(lambda: service.events("reopening_postponed"))
        refused(service, "storage_unavailable", write=True)
        assert health(service) == (200, "degraded", ["wal_removed"])
        assert set(honest(service, "zebra")) == {"zebra one", "zebra two"}
        reader.__exit__()
        recovers(service)
        service.kill()
    assert facts(database) == ["zebra one", "zebra two"]
    assert is_sound(database)


def test_a_state_that_is_put_in_place_is_used_without_a_restart(database: Path, tmp_path: Path) -> None:
    """As it comes from a backup: another file. A broken one is waited out, and other writes go on meanwhile."""
    state = database.with_name(database.name + ".solos-memory") / "state.db"
    with serving(database, fault=QUICK) as service:
        service.long("mira", "zebra one", request_id="r1")
        with ForeignProcess(state) as foreign:
            foreign.execute(f"VACUUM INTO '{tmp_path / 'backup.db'}'")
        state.rename(tmp_path / "away.db")
        refused(service, "storage_unavailable", write=True, request_id="r2")
        assert health(service) == (200, "degraded", ["state_moved"])
        service.long("mira", "zebra two")
        state.write_bytes(b"half of a state")
        refused(service, "storage_unavailable", write=True, request_id="r2")
        (tmp_path / "backup.db").rename(state)
        recovers(service)
        assert service.long("mira", "zebra one", request_id="r1")["replayed"]
        assert not service.long("mira", "zebra three", request_id="r2")["replayed"]
    assert facts(database) == ["zebra one", "zebra two", "zebra three"]
    assert rows(state, "PRAGMA integrity_check") == [("ok",)]


# --- under writes ---


def test_every_acknowledged_row_is_in_the_database_that_took_it(database: Path, tmp_path: Path) -> None:
    """Writers over REST and MCP never stop while the databases are swapped to and fro: none lost, none doubled."""
    other, swaps = other_database(tmp_path), scaled(2, 10)
    acknowledged: list[str] = []
    over = threading.Event()
    with serving(database, fault=QUICK) as service:

        def write(name: str) -> None:
            number = 0
            with httpx2.Client(timeout=30) as http:
                while not over.is_set():
                    number += 1
                    fact = f"zebra {name} {number}"
                    if _written(service, http, name, fact):
                        acknowledged.append(fact)

        threads = [threading.Thread(target=write, args=(name,)) for name in ("rest-1", "rest-2", "mcp-1", "mcp-2")]
        for thread in threads:
            thread.start()
        try:
            for number in range(swaps):
                before = len(acknowledged)
                eventually(lambda count=before: len(acknowledged) > count + 20, 20)
                database.rename(tmp_path / "swapped")
                other.rename(database)
                other = (tmp_path / "swapped").rename(tmp_path / "other.db")
                eventually(lambda count=number: len(service.events("store_opened")) > count + 1, 20)
            eventually(lambda: is_ready(service), 20)
        finally:
            over.set()
            for thread in threads:
                thread.join(30)
    found = Counter(facts(database) + facts(other))
    print(f"{len(acknowledged)} rows acknowledged over {swaps} swaps, {sum(found.values()) - 1} found")
    assert [fact for fact in acknowledged if found[fact] != 1] == []
    assert set(found) == {*acknowledged, "zebra of the other"}
    assert is_sound(database)
    assert is_sound(other)


def _written(service: Service, http: httpx2.Client, name: str, fact: str) -> bool:
    """Write over REST or MCP; what is refused is refused with a reason."""
    body: dict[str, Any] = {"agent": "mira", "fact": fact}
    if name.startswith("mcp"):
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": "remember_long", "arguments": body},
        }
        accept = {"Accept": "application/json, text/event-stream"}
        answer = http.post(service.url + "/mcp", json=call, headers=accept).json()["result"]
        written = not answer.get("isError")
        text = answer["content"][0]["text"]
    else:
        response = http.post(service.url + "/v1/long", json=body)
        written, text = response.status_code == 201, response.text
    assert written or '"storage_unavailable"' in text or '"not_ready"' in text, text
    return written
