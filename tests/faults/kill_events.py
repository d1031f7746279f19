"""Clients that report the swarm's events, and what its logs, summaries and episodes must show of them."""

import json
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import httpx2

from tests.faults.kill_rows import MCP_HEADERS
from tests.support import eventually, rows, swarm_folders

PATH = "/api/swarm-memory"
WORKERS = {"swarm5": "atlas", "swarm7": "ace"}
"""The agents that workers are."""
TOOL_NAMES = {"missionId": "mission", "summary": "summary", "content": "content", "requestId": "request_id"}
"""What the page calls a field, and what the tool does."""
TOLD_WITHIN_S = 20.0
HOOKS = ("dispatch", "checkpoint", "handoff-requested", "resume", "blocked", "complete")
TOTAL = re.compile(r"^- Total: (\d+) events", re.MULTILINE)
WORDS = "the gateway listens on its port until somebody stops it and then it says so".split()


@dataclass
class Files:
    """The swarm's folders, as they are on disk; no service is asked."""

    root: Path

    @property
    def settings(self) -> dict[str, str]:
        """The variables of a service that keeps them, and in which workers are agents of other names."""
        pairs = ",".join(f"{worker}={agent}" for worker, agent in WORKERS.items())
        return swarm_folders(self.root / "here") | {"SOLOS_MEMORY_SWARM_WORKERS": pairs}

    def read(self, *parts: str) -> str | None:
        """A file; None where there is none."""
        path = self.root.joinpath(*parts)
        return path.read_bytes().decode("utf-8") if path.exists() else None

    def memory(self, worker: str, *parts: str) -> str | None:
        """A file of a worker's memory."""
        return self.read("profiles", worker, "memory", *parts)

    def entries(self, worker: str) -> list[str]:
        """The entries of all episode pages of a worker, each page of which has its one heading."""
        found: list[str] = []
        for page in sorted(self.root.glob(f"profiles/{worker}/memory/episodes/*.md")):
            heading, *entries = page.read_text(encoding="utf-8").split("\n## ")
            assert heading == f"# Episodes — {worker} — {page.stem}\n", page
            found += entries
        return found

    def matching(self, pattern: str) -> list[Path]:
        """Files of that name anywhere."""
        return sorted(self.root.rglob(pattern))


def text_of(chance: random.Random, name: str, chars_max: int) -> str:
    """One line that is different each time, and whose end tells that it is whole."""
    words = chance.choices(WORDS, k=chance.randrange(1, chars_max // 5))
    return f"{name}: {' '.join(words)}, the end of {name}"


def post(http: httpx2.Client, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The answer to a write, which must be taken."""
    answer = http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    assert said["ok"] is True
    return said


def call_tool(http: httpx2.Client, arguments: dict[str, Any]) -> None:
    """A worker's own write over MCP, which must be taken."""
    call = {"name": "swarm_write", "arguments": arguments}
    request = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    result = http.post("/mcp", json=request, headers=MCP_HEADERS).json()["result"]
    assert not result.get("isError"), result
    assert json.loads(result["content"][0]["text"])["ok"] is True, result


# --- events ---


@dataclass
class Log:
    """What was reported of one mission, or without a mission: by request id. Shared by threads."""

    worker: str
    mission: str | None
    lock: threading.Lock = field(default_factory=threading.Lock)
    answered: dict[str, dict[str, Any]] = field(default_factory=dict)
    open: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Events whose answer never came."""

    def send(self, body: dict[str, Any], call: Callable[[], Any]) -> None:
        """Send an event by a call; it is open until the call has returned."""
        with self.lock:
            self.open[body["requestId"]] = body
        call()
        with self.lock:
            self.answered[body["requestId"]] = self.open.pop(body["requestId"])

    def events(self, files: Files) -> dict[str, dict[str, Any]]:
        """The events of its file, each whole and once: all that were answered, perhaps some that were not."""
        assert self.mission is not None
        content = files.memory(self.worker, "missions", self.mission, "events.jsonl") or ""
        assert content == "" or content.endswith("\n")
        events = [json.loads(line) for line in content.splitlines()]
        by_id = {event["requestId"]: event for event in events}
        assert len(by_id) == len(events)
        self._require_whole({request: (event["summary"], event.get("content")) for request, event in by_id.items()})
        return by_id

    def _require_whole(self, found: dict[str, tuple[Any, Any]]) -> None:
        sent = self.answered | self.open
        assert found == {request: (sent[request]["summary"], sent[request].get("content")) for request in found}
        assert set(self.answered) <= set(found)

    def check_summary(self, files: Files, events: dict[str, dict[str, Any]]) -> None:
        """SUMMARY.md shows every event of the log."""
        assert self.mission is not None
        if events:
            page = files.memory(self.worker, "missions", self.mission, "SUMMARY.md") or ""
            assert TOTAL.findall(page) == [str(len(events))]
            assert [*events.values()][-1]["summary"] in page


def check_episodes(files: Files, worker: str, logs: Iterable[Log]) -> None:
    """A worker's episodes show each event of its missions' logs once, and those without a mission, each whole."""
    shown = Counter(entry_of(entry) for entry in files.entries(worker))
    assert max(shown.values(), default=1) == 1
    due: set[tuple[str, str | None]] = set()
    perhaps: set[tuple[str, str | None]] = set()
    for log in logs:
        if log.mission is not None:
            due |= {(event["summary"], event.get("content")) for event in log.events(files).values()}
        else:
            due |= {(body["summary"], body.get("content")) for body in log.answered.values()}
            perhaps |= {(body["summary"], body.get("content")) for body in log.open.values()}
    assert due <= set(shown) <= due | perhaps


def entry_of(entry: str) -> tuple[str, str | None]:
    """(summary, content) of an entry."""
    (summary,) = re.findall(r"^- Summary: (.*)$", entry, re.MULTILINE)
    contents = re.findall(r"^> (.*)$", entry, re.MULTILINE)
    assert len(contents) <= 1
    return summary, contents[0] if contents else None


def check_told(database: Path, agent: str, name: str, files: Files, logs: Iterable[Log]) -> None:
    """Each event of a worker is an episode of its agent in the database, too, once; those whose texts begin so.

    What a crash left untold follows soon after the start.
    """
    due: set[str] = set()
    perhaps: set[str] = set()
    for log in logs:
        if log.mission is not None:
            due |= {event["summary"] for event in log.events(files).values()}
        else:
            due |= {body["summary"] for body in log.answered.values()}
            perhaps |= {body["summary"] for body in log.open.values()}

    def told() -> Counter[str]:
        found = rows(database, "SELECT summary FROM memory_episodic WHERE agent = ?", agent)
        return Counter(summary for (summary,) in found if summary.startswith(name))

    eventually(lambda: due <= set(told()), within_s=TOLD_WITHIN_S)
    found = told()
    assert max(found.values(), default=1) == 1
    assert set(found) <= due | perhaps


class Reports:
    """Events of a mission, or without one; by the page's call, by hooks, or by the agent's own tool."""

    def __init__(self, name: str, log: Log, chance: random.Random, way: Literal["page", "hook", "tool"]) -> None:
        self._name = name
        self._log = log
        self._chance = chance
        self._way = way
        self._number = 0
        self._open: tuple[dict[str, Any], Callable[[httpx2.Client], Any]] | None = None

    def write(self, http: httpx2.Client) -> None:
        """Report one more event."""
        self._number += 1
        name = f"{self._name} {self._number}"
        body: dict[str, Any] = {"workerId": self._log.worker, "requestId": name, "summary": name}
        if self._chance.random() < 0.7:
            body["content"] = text_of(self._chance, name, 6_000)
        if self._log.mission is not None:
            body["missionId"] = self._log.mission
        self._open = (body, self._call_of(body))
        self.repeat(http)

    def _call_of(self, body: dict[str, Any]) -> Callable[[httpx2.Client], Any]:
        kind = "episodic" if self._log.mission is None else "mission"
        if self._way == "tool":
            named = {TOOL_NAMES[name]: value for name, value in body.items() if name in TOOL_NAMES}
            return partial(call_tool, arguments={"agent": WORKERS[self._log.worker], "kind": kind, **named})
        if self._way == "hook":
            return partial(post, path=f"{PATH}/hooks/{self._chance.choice(HOOKS)}", body=body)
        return partial(post, path=PATH, body={**body, "kind": kind, "eventType": "checkpoint"})

    def check(self, files: Files) -> None:
        """Each event that was answered is in the log, and in its summary."""
        if self._log.mission is not None:
            self._log.check_summary(files, self._log.events(files))

    def repeat(self, http: httpx2.Client) -> None:
        """Send again what was not answered."""
        if self._open is not None:
            body, call = self._open
            self._log.send(body, partial(call, http))
            self._open = None
