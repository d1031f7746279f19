"""Case C147. A backup under writes: what was acknowledged before it is in it, once; its restored service goes on."""

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.foreign import ForeignProcess
from tests.support import PROGRAM, Service, eventually, fresh_database, rows, serving

WRITERS = 5
BACKUPS = 3
AGENTS = ("sol", "mira")
TABLES = {
    "long": "SELECT id, fact FROM memory_longterm WHERE agent <> 'atlas'",
    "episodic": "SELECT id, summary FROM memory_episodic",
    "short": "SELECT id, value FROM memory_short",
}


@dataclass(frozen=True)
class Sent:
    """One write with its request id; its text is unique."""

    writer: int
    number: int

    @property
    def tier(self) -> str:
        return tuple(TABLES)[self.number % 3]

    @property
    def text(self) -> str:
        return f"write {self.number} of writer {self.writer}"

    @property
    def body(self) -> dict[str, Any]:
        named = {
            "long": {"fact": self.text, "session": f"of writer {self.writer}"},
            "episodic": {"summary": self.text},
            "short": {"key": self.text, "value": self.text},
        }[self.tier]
        return {"agent": AGENTS[self.writer % 2], "request_id": f"{self.writer}/{self.number}", **named}


@dataclass
class Books:
    """What was sent, and what was acknowledged under which id. Shared by the writers."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    issued: list[Sent] = field(default_factory=list)
    acknowledged: dict[Sent, str] = field(default_factory=dict)

    def acknowledged_now(self) -> dict[Sent, str]:
        with self.lock:
            return dict(self.acknowledged)


def write(url: str, books: Books, writer: int, over: threading.Event) -> None:
    """One writer: each write is answered before the next."""
    with httpx2.Client(timeout=30) as http:
        number = 0
        while not over.is_set():
            sent = Sent(writer, number)
            number += 1
            with books.lock:
                books.issued.append(sent)
            answer = http.post(f"{url}/v1/{sent.tier}", json=sent.body)
            assert answer.status_code == 201, answer.text
            with books.lock:
                books.acknowledged[sent] = answer.json()["id"]


@contextmanager
def writing(url: str) -> Iterator[Books]:
    """Writers that write until the end of the block, all of whose writes are then answered."""
    books, over = Books(), threading.Event()
    threads = [threading.Thread(target=write, args=(url, books, writer, over)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    try:
        yield books
    finally:
        over.set()
        for thread in threads:
            thread.join(30)
    assert set(books.acknowledged) == set(books.issued)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """One command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=120, env=clean, check=False)


def texts(database: Path, tier: str) -> dict[str, str]:
    """Text by id of what is in a table."""
    return {f"{tier}:{row}": text for row, text in rows(database, TABLES[tier])}


def backed_up(database: Path, folder: Path) -> None:
    """A backup that must succeed, and say so in one line."""
    done = run("backup", "--db", str(database), "--to", str(folder))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"backed up {database} to {folder}: ")
    assert done.stdout.count("\n") == 1


def restored(folder: Path, database: Path) -> Path:
    """A restore that must succeed."""
    done = run("restore", "--from", str(folder), "--db", str(database))
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]
    return database


def replay(service: Service, sent: Sent) -> dict[str, Any]:
    """The answer to the same request again."""
    status, body = service.rest("POST", f"/v1/{sent.tier}", sent.body)
    assert status == 201, body
    return body


def test_c147_backup_under_load_restores_the_acknowledged_rows(database: Path, tmp_path: Path) -> None:
    """5 writers over REST and a foreign process: three backups meanwhile, each restored and served.

    In each: every write acknowledged before it began, under its id; nothing that was not issued; and a retry of every
    write, whether it is in the backup or came later, leaves exactly one row.
    """
    before: list[dict[Sent, str]] = []
    with serving(database) as service, ForeignProcess(database) as foreign:
        with writing(service.url) as books:
            for number in range(BACKUPS):
                eventually(lambda n=number: len(books.acknowledged) >= 60 * (n + 1), 30)
                foreign.execute(f"INSERT INTO memory_longterm(agent, fact) VALUES ('atlas', 'foreign {number}')")
                before.append(books.acknowledged_now())
                backed_up(database, tmp_path / f"backup-{number}")
                assert len(books.acknowledged_now()) > len(before[-1])  # the writers were not held up
        assert service.stats()["store"]["last_backup_at"] is not None
    for number in range(BACKUPS):
        path = restored(tmp_path / f"backup-{number}", tmp_path / f"restored-{number}" / "solos.db")
        _require_acknowledged(path, before[number], books)
        assert len(rows(path, "SELECT 1 FROM memory_longterm WHERE agent = 'atlas'")) == number + 1
    _require_goes_on(path, before[-1], books)


def _require_acknowledged(database: Path, before: dict[Sent, str], books: Books) -> None:
    found = {row: text for tier in TABLES for row, text in texts(database, tier).items()}
    assert {row: found.get(row) for row in before.values()} == {row: sent.text for sent, row in before.items()}
    issued = {row: sent.text for sent, row in books.acknowledged.items()}
    assert {row: issued.get(row) for row in found} == found
    assert len(found) < len(issued)  # it was taken while they wrote


def _require_goes_on(database: Path, before: dict[Sent, str], books: Books) -> None:
    """The restored service starts and answers; a retry of each write leaves one row of each."""
    with serving(database) as service:
        assert service.rest("GET", "/health")[1]["status"] == "ok"
        for sent in books.issued:
            answer = replay(service, sent)
            if sent in before:
                assert (answer["id"], answer["replayed"]) == (before[sent], True)
        sent = next(iter(before))
        eventually(lambda: service.recall(sent.body["agent"], f'"{Sent(sent.writer, 0).text}"', k=1))
    for tier in TABLES:
        there = sorted(texts(database, tier).values())
        assert there == sorted(sent.text for sent in books.issued if sent.tier == tier)


def test_backup_does_not_wait_for_a_foreign_lock(service: Service, tmp_path: Path) -> None:
    """Another process holds the write lock for long: a backup only reads."""
    database = service.database
    assert database is not None
    service.long("mira", "before")
    with ForeignProcess(database) as foreign:
        foreign.hold(60.0)
        began = time.monotonic()
        backed_up(database, tmp_path / "b")
        assert time.monotonic() - began < 20
    assert rows(restored(tmp_path / "b", tmp_path / "new.db"), "SELECT fact FROM memory_longterm") == [("before",)]


def test_failed_backup_ends_with_a_reason_and_leaves_nothing(service: Service, tmp_path: Path) -> None:
    (tmp_path / "copies").mkdir()
    target = tmp_path / "copies" / "b"
    backed_up(service.database, target)
    again = run("backup", "--db", str(service.database), "--to", str(target))
    assert (again.returncode, again.stdout) == (78, "")
    assert f"{target} exists already" in again.stderr
    missing = run("backup", "--db", str(tmp_path / "no.db"), "--to", str(tmp_path / "copies" / "c"))
    assert (missing.returncode, "does not exist" in missing.stderr) == (78, True)
    assert [path.name for path in (tmp_path / "copies").iterdir()] == ["b"]
    over = run("restore", "--from", str(target), "--db", str(service.database))
    assert (over.returncode, "exists already" in over.stderr) == (78, True)


def test_terminated_backup_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM in the midst of the copy, which is made slow: the program ends, its folder is gone."""
    database = fresh_database(tmp_path, "big.db")
    rows(database, "INSERT INTO memory_longterm(agent, fact) VALUES ('sol', ?)", "x" * 2_000_000)
    (tmp_path / "copies").mkdir()
    slow = (
        "import time, storage.copies.backup as b\n"
        "b._SLICE_PAGES = 1; b.limits = type('L', (), {'WRITE_BUDGET_S': property(lambda s: time.sleep(0.1) or 1.0)})()"
    )
    target = tmp_path / "copies" / "b"
    started = subprocess.Popen(
        [PROGRAM[0], "-c", f"{slow}\n{PROGRAM[-1]}", "backup", "--db", str(database), "--to", str(target)]
    )
    eventually(lambda: any((tmp_path / "copies").glob(".b.partial-*/database.db")), 20)
    started.terminate()
    assert started.wait(20) == 143
    assert list((tmp_path / "copies").iterdir()) == []
