"""A page of the database, or of state.db, is nonsense: SQLite's word for it reaches the caller, health and statistics.

SQLite has no checksums: what is told apart here are pages that cannot be one. What is sound goes on, nothing is made of
the damage, and when the page is whole again the service is well without a restart.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.paths import Paths
from tests.faults.disk_faults import QUICK, health, honest, overwrite, page_of, recovers, refused
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import scaled
from tests.support import PROGRAM, Service, eventually, fresh_database, rows, serving

NONSENSE = b"\xa5"
TABLES = ("memory_longterm", "memory_short", "their_own", "agent_registry")


def fleet_database(folder: Path) -> Path:
    """A database whose table of facts has an index of its owners."""
    path = fresh_database(folder)
    rows(path, "CREATE INDEX their_own ON memory_longterm (topic)")
    return path


def copied_back(database: Path) -> None:
    """All that is in the WAL goes into the file, and no connection keeps a page in memory."""
    with ForeignProcess(database) as foreign:
        foreign.execute("INSERT INTO memory_episodic(agent, summary, created_at) VALUES ('ace', 'okapi', 1)")
        foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")


class Damage:
    """Nonsense in place of a page of a file."""

    def __init__(self, path: Path, name: str) -> None:
        """`name` is that of a table or an index whose first page it is."""
        self._path = path
        self._offset, length = page_of(path, name)
        self._before = overwrite(path, self._offset, NONSENSE * length)

    def mend(self) -> None:
        """Put the page back."""
        overwrite(self._path, self._offset, self._before)


# --- while it is served ---


def test_damage_is_named_and_what_is_sound_goes_on(tmp_path: Path) -> None:
    """One after the other: a table, an index of theirs, the table of short keys."""
    database = fleet_database(tmp_path)
    with serving(database, fault=QUICK) as service:
        for number in range(scaled(20, 200)):
            service.long("mira", f"zebra {number}", topic="stripes")
        service.rest("POST", "/v1/short", {"agent": "sol", "key": "zebra", "value": "there"})
        index = Paths(database).index
        inode = index.stat().st_ino
        for turn, (name, works) in enumerate(
            (("memory_longterm", _short_works), ("their_own", _recall_works), ("memory_short", _memory_works))
        ):
            copied_back(database)
            damage = Damage(database, name)
            _is_met(service, name)
            works(service)
            eventually(lambda count=turn: len(_problems(service)) > count)
            assert health(service)[:2] == (200, "degraded")
            assert "storage_damaged" in health(service)[2]
            if name == "their_own":  # the statistics themselves read the tables
                integrity = service.stats()["integrity"]
                assert (integrity["whole"], integrity["sound"]) == (True, False)
                assert integrity["problem"] == _problems(service)[-1]
            damage.mend()
            recovers(service)
            assert len(service.events("database_reopened")) == turn + 1
            assert service.stats()["integrity"]["sound"] is True
        assert index.stat().st_ino == inode, "a damaged table is no damage of the index"
        assert len(_problems(service)) == 3, "each is said once"
        assert len(honest(service, "zebra")) == scaled(20, 50)
    assert rows(database, "SELECT count(*) FROM memory_longterm WHERE fact LIKE 'refused%'") == [(0,)]
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(scaled(20, 200),)]
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]


def _problems(service: Service) -> list[str]:
    """What checks have found."""
    return [line["reason"] for line in service.events("database_damaged") if "over" not in line]


def _is_met(service: Service, name: str) -> None:
    """A call that needs the page is refused, on REST and on MCP."""
    if name == "memory_short":
        status, body = service.rest("GET", "/v1/short", agent="sol")
        is_error, result = service.mcp("get_short", {"agent": "sol"})
        assert (status, is_error, body["ok"], result["ok"]) == (503, True, False, False)
        assert {body["error"]["code"], result["error"]["code"]} == {"storage_damaged"}
        return
    refused(service, "storage_damaged", write=True, topic="stripes")
    if name == "memory_longterm":
        refused(service, "storage_damaged", write=False)
        status, body = service.rest("GET", "/v1/memory/long:1", agent="sol")
        assert (status, body["error"]["code"]) == (503, "storage_damaged")


def _short_works(service: Service) -> None:
    status, body = service.rest("POST", "/v1/short", {"agent": "sol", "key": "lock", "value": "x"})
    assert status == 201, body
    assert service.rest("GET", "/v1/short", agent="sol", key="lock")[1]["entries"][0]["value"] == "x"


def _memory_works(service: Service) -> None:
    assert service.rest("GET", "/v1/memory/long:3", agent="sol")[1]["text"] == "zebra 2"


def _recall_works(service: Service) -> None:
    assert honest(service, "zebra")


def test_c050_integrity_is_visible_in_statistics(database: Path) -> None:
    """When the last check ran, and what it said; health names a reason where it found damage that no call has met."""
    hourly = QUICK + "actors.sentry._CHECK_PERIOD_S = 0.5"
    with serving(database, fault=hourly) as service:
        first = service.stats()["integrity"]
        assert (first["whole"], first["sound"], first["problem"]) == (True, True, None)
        eventually(lambda: service.stats()["integrity"]["checked_at"] > first["checked_at"])
        copied_back(database)
        damage = Damage(database, "memory_durable")
        eventually(lambda: health(service) == (200, "degraded", ["storage_damaged"]))
        assert service.stats()["integrity"]["sound"] is False
        damage.mend()
        recovers(service)


# --- at start ---


def starts(database: Path) -> tuple[int, str]:
    """(exit code, what was printed) of a start that fails."""
    command = [*PROGRAM, "serve", "--db", str(database), "--bind", "127.0.0.1:0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("name", scaled(("their_own",), TABLES))
def test_a_start_on_a_damaged_database_is_refused_and_changes_nothing(tmp_path: Path, name: str) -> None:
    database = fleet_database(tmp_path)
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'zebra', 1)")
    Damage(database, name)
    before = database.read_bytes()
    code, printed = starts(database)
    assert (code, database.read_bytes() == before) == (78, True), printed
    assert "is damaged" in printed
    assert "errors.md#storage_damaged" in printed


# --- state.db ---


def cut_in_half(state: Path) -> None:
    """It is half of what it was."""
    os.truncate(state, state.stat().st_size // 2)


def filled_with_nonsense(state: Path) -> None:
    """All but its first page."""
    overwrite(state, 4096, NONSENSE * (state.stat().st_size - 4096))


@pytest.mark.parametrize("damage", scaled((filled_with_nonsense,), (filled_with_nonsense, cut_in_half)))
def test_a_damaged_state_is_named_and_never_made_anew(database: Path, damage: Callable[[Path], None]) -> None:
    """Writes with a request id are refused until the file is whole again; a start without it does not serve."""
    state = database.with_name("solos.db.solos-memory") / "state.db"
    with serving(database, fault=QUICK) as service:
        for number in range(40):
            service.long("mira", f"zebra {number}", request_id=f"r{number} " + "x" * 150)
        with ForeignProcess(state) as foreign:
            foreign.execute("PRAGMA user_version = 3")  # as it is: the service must forget the pages in its memory
            foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        sound = state.read_bytes()
        damage(state)
        broken = state.read_bytes()
        refused(service, "storage_unavailable", write=True, request_id="refused")
        service.long("mira", "zebra 40")
        assert health(service) == (200, "degraded", ["state_failing"])
        overwrite(state, 0, sound)
        recovers(service)
        assert service.long("mira", "zebra 7", request_id="r7 " + "x" * 150)["replayed"]
        assert service.stop() == 0
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(41,)]
    state.write_bytes(broken)
    code, printed = starts(database)
    assert (code, "state.db cannot be used" in printed) == (78, True), printed
    assert state.read_bytes() == broken, "it must stay for whoever can mend it"
