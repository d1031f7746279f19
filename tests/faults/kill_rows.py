"""Clients that write rows over REST and MCP, and their books: what they have sent, and what they were told."""

import json
import random
import threading
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2

from tests.faults.kill_rounds import GONE, Stopping
from tests.support import rows

AGENTS = ("sol", "mira")
"""Whose rows are these clients' alone."""
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
        return f"write number{self.number} to {self.tier}"

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

    def repeat(self, http: httpx2.Client) -> None:
        """Send again whatever was not answered, with its own request id; then it is there once."""
        client = RowClient(self, by_mcp=False)
        while self.open:
            client.write(http)

    def check(self, database: Path) -> None:
        """The tables hold what was acknowledged under its id, perhaps what is open, each once, and nothing else."""
        found = [
            (f"{tier}:{row}", agent, text)
            for tier, select in TABLES.items()
            for row, agent, text in rows(database, select)
            if agent in AGENTS
        ]
        assert max(Counter(text for _, _, text in found).values(), default=1) == 1
        acknowledged = {(row, write.agent, write.text) for write, row in self.acknowledged.items()}
        assert acknowledged <= set(found)
        perhaps = {(write.agent, write.text) for write in self.open}
        assert {(agent, text) for _, agent, text in set(found) - acknowledged} <= perhaps

    def newest(self, count: int) -> list[tuple[str, str, str]]:
        """(tier, agent, text) of the last writes that were acknowledged."""
        return [(write.tier, write.agent, write.text) for write in [*self.acknowledged][-count:]]


class RowClient:
    """A client: first what is still open, then new writes."""

    def __init__(self, books: Books, *, by_mcp: bool) -> None:
        self._books = books
        self._by_mcp = by_mcp

    def write(self, http: httpx2.Client) -> None:
        """Send one write; it is open until it is answered."""
        write = self._books.next()
        try:
            self._books.note(write, send(http, write, by_mcp=self._by_mcp))
        except GONE:
            self._books.note_open(write)
            raise


def row_clients(books: Books, count: int) -> list[RowClient]:
    """Clients of which every other one writes over MCP."""
    return [RowClient(books, by_mcp=bool(number % 2)) for number in range(count)]


def send(http: httpx2.Client, write: Sent, *, by_mcp: bool) -> dict[str, Any]:
    """The acknowledgement of one write, over REST or MCP.

    Raises:
        Stopping: it was not taken because the service shuts down.
    """
    if not by_mcp:
        answer = http.post(f"/v1/{write.tier}", json=write.arguments)
        said: dict[str, Any] = answer.json()
        _require_taken(said, taken=answer.status_code == 201)
        return said
    call = {"name": f"remember_{write.tier}", "arguments": write.arguments}
    request = {"jsonrpc": "2.0", "id": write.number, "method": "tools/call", "params": call}
    result = http.post("/mcp", json=request, headers=MCP_HEADERS).json()["result"]
    said = json.loads(result["content"][0]["text"])
    _require_taken(said, taken=not result.get("isError"))
    return said


def _require_taken(said: dict[str, Any], *, taken: bool) -> None:
    if not taken and said["error"]["code"] == "shutting_down":
        raise Stopping
    assert taken, said
    assert said["ok"] is True, said
