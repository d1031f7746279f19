"""The processes for recalls of a real service end with it, however it ends, and in the middle of whatever they do."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from threading import Thread

import pytest

from tests.support import Service, eventually, rows, serving

AT_ONCE = "import storage.limits as l; l.RECALLER_FROM_LOOKS = 1"
SLOW = (
    "import storage.reading as r\n"
    "look = r.ReadingStore.look\n"
    "def dawdle(self, question, *, may_wait):\n"
    "    if question.q == 'slow': list(self._db.execute("
    "'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n'))\n"
    "    return look(self, question, may_wait=may_wait)\n"
    "r.ReadingStore.look = dawdle\n"
)
"""One question is never answered, in whatever process it is looked at."""
SLOW_THERE = f"{AT_ONCE}\nimport storage.recaller as c; c._PROGRAM = {SLOW!r} + c._PROGRAM"


def _recallers(service: Service) -> list[int]:
    """The ids of the service's processes for recalls."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            if parent == service.process.pid and b"storage.recaller" in (stat.parent / "cmdline").read_bytes():
                found.append(int(stat.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def _begun(service: Service, before: int = 0) -> list[int]:
    """Their ids, once both have begun, after as many that have ended."""

    def both() -> bool:
        service.recall("sol", "anything")
        return len(service.events("recaller_started")) >= before + 2

    eventually(both, 20)
    pids = _recallers(service)
    assert len(pids) == 2
    return pids


def _gone(pids: Sequence[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_they_end_with_a_service_that_is_stopped(database: Path) -> None:
    with serving(database, fault=AT_ONCE) as service:
        pids = _begun(service)
        assert service.stop() == 0
        assert _gone(pids)


def test_they_end_with_a_service_that_is_killed_in_the_middle_of_a_look(database: Path) -> None:
    with serving(database, fault=SLOW_THERE) as service:
        pids = _begun(service)

        def ask() -> None:
            with pytest.raises(Exception):  # noqa: B017 (whatever the client makes of a service that is gone)
                service.recall("sol", "slow")

        asking = Thread(target=ask)
        asking.start()
        eventually(lambda: any(_is_running(pid) for pid in pids))
        service.kill()
        eventually(lambda: _gone(pids), 2)
        asking.join()


def _is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "R"


def test_a_signal_to_the_whole_service_is_drained_like_one_to_its_first_process(database: Path) -> None:
    with serving(database, fault=AT_ONCE) as service:
        pids = _begun(service)
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        written = service.long("mira", "the zebra is striped")
        assert [one["id"] for one in service.recall("sol", "zebra")] == [written["id"]]
        assert _recallers(service) == pids
        assert service.events("recaller_ended") == []


def test_a_killed_one_costs_no_recall_and_comes_again(database: Path) -> None:
    with serving(database, fault=f"{AT_ONCE}; import actors.recaller as a; a._PAUSE_S = 0.1") as service:
        written = service.long("mira", "the zebra is striped")
        for ended in (0, 2, 4):
            for pid in _begun(service, ended):
                os.kill(pid, signal.SIGKILL)
            for _ in range(30):
                assert [one["id"] for one in service.recall("sol", "zebra")] == [written["id"]]
            eventually(lambda least=ended + 2: len(service.events("recaller_ended")) >= least)
        assert service.stats()["actors"]["readers"]["restarts"] == 0


def test_what_others_write_while_they_run_is_recalled(database: Path) -> None:
    """Foreign edits and deletions, too: the tables are the truth in whatever process they are read."""
    with serving(database, fault=AT_ONCE) as service:
        _begun(service)
        edit = (
            "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], timeout=10); db.execute(sys.argv[2]); db.commit()"
        )
        for sql, found in (
            (
                "INSERT INTO memory_longterm(id, agent, fact, created_at) VALUES (7, 'ace', 'zebra one', 1.7e9)",
                ["zebra one"],
            ),
            ("UPDATE memory_longterm SET fact = 'zebra two' WHERE id = 7", ["zebra two"]),
            ("DELETE FROM memory_longterm WHERE id = 7", []),
        ):
            subprocess.run([sys.executable, "-c", edit, str(database), sql], check=True)
            eventually(lambda wanted=found: [one["text"] for one in service.recall("sol", "zebra")] == wanted)
        assert rows(database, "PRAGMA integrity_check") == [("ok",)]
