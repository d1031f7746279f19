"""kill -9 at any moment: what was acknowledged is there once, what was not can be sent again, nothing is twice."""

import contextlib
import json
import os
import random
import sqlite3
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from storage.paths import Paths
from tests.support import Service, rows, serving

ROUNDS = int(os.environ.get("SOLOS_TEST_KILL_ROUNDS", "20"))
CLIENTS = 4
KILLED_WITHIN_S = 0.4
AGENTS = ("sol", "mira")
MCP_HEADERS = {"Accept": "application/json, text/event-stream"}
TABLES = {
    "long": "SELECT id, agent, fact FROM memory_longterm",
    "episodic": "SELECT id, agent, summary FROM memory_episodic",
    "short": "SELECT id, agent, value FROM memory_short",
}


@dataclass(frozen=True)
class Sent:
    """One write with its request id. Its text is unique, so that its row can be told."""

    number: int
    tier: str
    agent: str

    @property
    def text(self) -> str:
        """What the row is to hold."""
        return f"write {self.number} to {self.tier}"

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments on every transport."""
        body = {
            "long": {"fact": self.text},
            "episodic": {"summary": self.text},
            "short": {"key": f"key {self.number}", "value": self.text},
        }[self.tier]
        return {"agent": self.agent, "request_id": f"request-{self.number}", **body}


@dataclass
class Books:
    """What the clients have sent and what they were told. Shared by their threads."""

    chance: random.Random
    lock: threading.Lock = field(default_factory=threading.Lock)
    sent: int = 0
    open: list[Sent] = field(default_factory=list)
    """Writes whose answer never came."""
    acknowledged: dict[Sent, str] = field(default_factory=dict)
    replayed: int = 0

    def next(self) -> Sent:
        """A write that is still open, or a new one."""
        with self.lock:
            if self.open:
                return self.open.pop()
            self.sent += 1
            return Sent(self.sent, self.chance.choice([*TABLES]), self.chance.choice(AGENTS))

    def note(self, write: Sent, answer: dict[str, Any]) -> None:
        """An answer came."""
        with self.lock:
            assert write not in self.acknowledged
            self.acknowledged[write] = answer["id"]
            self.replayed += answer["replayed"]

    def note_open(self, write: Sent) -> None:
        """No answer came."""
        with self.lock:
            self.open.append(write)


def send(http: httpx2.Client, url: str, write: Sent, *, by_mcp: bool) -> dict[str, Any]:
    """The acknowledgement of one write, over REST or MCP."""
    if not by_mcp:
        answer = http.post(f"{url}/v1/{write.tier}", json=write.arguments)
        assert answer.status_code == 201, answer.text
        return answer.json()
    call = {"name": f"remember_{write.tier}", "arguments": write.arguments}
    request = {"jsonrpc": "2.0", "id": write.number, "method": "tools/call", "params": call}
    answer = http.post(f"{url}/mcp", json=request, headers=MCP_HEADERS)
    result = answer.json()["result"]
    assert not result.get("isError"), answer.text
    return json.loads(result["content"][0]["text"])


def write_until_killed(url: str, books: Books, *, by_mcp: bool) -> None:
    """A client: first what is still open, then new writes, until the service is gone."""
    with httpx2.Client(timeout=20) as http:
        while True:
            write = books.next()
            try:
                books.note(write, send(http, url, write, by_mcp=by_mcp))
            except httpx2.TransportError:
                books.note_open(write)
                return


def run_and_kill(service: Service, books: Books, after_s: float) -> None:
    """One round: clients write over both transports until the service is killed."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        running = [
            clients.submit(write_until_killed, service.url, books, by_mcp=bool(number % 2)) for number in range(CLIENTS)
        ]
        threading.Event().wait(after_s)
        service.kill()
    for client in running:
        client.result()


def test_every_acknowledged_write_survives_kill_9(database: Path) -> None:
    seed = int(os.environ.get("SOLOS_TEST_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SOLOS_TEST_SEED={seed}")
    chance = random.Random(seed)
    books = Books(chance)
    port, settled, dropped = 0, 0, 0
    for _ in range(ROUNDS):
        with serving(database, port=port) as service:
            port = service.port
            run_and_kill(service, books, chance.uniform(0.0, KILLED_WITHIN_S))
            (opened,) = service.events("store_opened")
            settled, dropped = settled + opened["intents_settled"], dropped + opened["intents_dropped"]
    with serving(database, port=port) as service, httpx2.Client(timeout=20) as http:
        while books.open:
            write = books.next()
            books.note(write, send(http, service.url, write, by_mcp=False))
        check_recall(service, books)
    print(f"{len(books.acknowledged)} writes, {books.replayed} replayed, intents: {settled} settled, {dropped} dropped")
    assert len(books.acknowledged) == books.sent > ROUNDS
    check_rows(database, books)
    check_files(Paths(database))


def check_rows(database: Path, books: Books) -> None:
    """The tables hold the acknowledged writes, each once and under the id that was answered, and nothing else."""
    found = Counter(
        (f"{tier}:{row}", agent, text) for tier, select in TABLES.items() for row, agent, text in rows(database, select)
    )
    assert found == Counter((row, write.agent, write.text) for write, row in books.acknowledged.items())


def check_files(paths: Paths) -> None:
    """No intent is open, every request is recorded, and no file is damaged."""
    with contextlib.closing(sqlite3.connect(paths.state)) as state:
        assert state.execute("SELECT count(*) FROM requests WHERE NOT settled").fetchone() == (0,)
    for file in (paths.database, paths.state, paths.index):
        with contextlib.closing(sqlite3.connect(file)) as db:
            assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def check_recall(service: Service, books: Books) -> None:
    """The index has followed every row, and the last ones are found by their words."""
    counted = Counter(write.tier for write in books.acknowledged)
    assert {tier: service.stats()["store"]["rows"][tier] for tier in TABLES} == counted
    for write in [*books.acknowledged][-5:]:
        found = service.recall(write.agent, write.text, tiers=write.tier, k=50)
        assert write.text in [memory["text"] for memory in found]
