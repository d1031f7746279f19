"""kill -9 while the swarm's files are written: what was answered is there once and whole, and so are its pages."""

import hashlib
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx2
import pytest

from tests.support import Service, eventually, serving

PARTS = 5
ROUNDS = int(os.environ.get("SOLOS_TEST_SWARM_KILL_ROUNDS", "10"))
"""Of each part: one kill each while all kinds are written."""
KILLED_WITHIN_S = 0.4
START_KILLED_EVERY = 4
"""After so many rounds the service is killed once more, while it makes up for the kill before."""
START_S = (0.6, 1.2)
SEED = int(os.environ.get("SOLOS_TEST_SEED", random.SystemRandom().randrange(10**6)))
PATH = "/api/swarm-memory"
HOOKS = ("dispatch", "checkpoint", "handoff-requested", "resume", "blocked", "complete")
PROFILE = ("MEMORY.md", "SOUL.md", "IDENTITY.md")
TOTAL = re.compile(r"^- Total: (\d+) events", re.MULTILINE)
WORDS = "the gateway listens on its port until somebody stops it and then it says so".split()


@dataclass
class Files:
    """The swarm's folders, as they are on disk; no service is asked."""

    root: Path

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


class Client(Protocol):
    """Writes of one kind. What it does between two kills runs in one thread."""

    def write(self, http: httpx2.Client) -> None:
        """Send one more write. Raises TransportError when no answer came."""

    def check(self, files: Files) -> None:
        """Require what was answered, and nothing half written, after a restart."""

    def repeat(self, http: httpx2.Client) -> None:
        """Send again what was not answered."""


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

    def send(self, http: httpx2.Client, path: str, body: dict[str, Any]) -> None:
        """Send an event; it is open until it is answered."""
        with self.lock:
            self.open[body["requestId"]] = body
        post(http, path, body)
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


class Reports:
    """Events of a mission, or without one; by the page's call or by hooks."""

    def __init__(self, name: str, log: Log, chance: random.Random, *, hooks: bool = False) -> None:
        self._name = name
        self._log = log
        self._chance = chance
        self._hooks = hooks
        self._number = 0
        self._open: tuple[str, dict[str, Any]] | None = None

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        name = f"{self._name} {self._number}"
        body: dict[str, Any] = {"workerId": self._log.worker, "requestId": name, "summary": name}
        if self._chance.random() < 0.7:
            body["content"] = text_of(self._chance, name, 6_000)
        if self._log.mission is not None:
            body["missionId"] = self._log.mission
        if self._hooks:
            self._open = (f"{PATH}/hooks/{self._chance.choice(HOOKS)}", body)
        else:
            kind = "episodic" if self._log.mission is None else "mission"
            self._open = (PATH, {**body, "kind": kind, "eventType": "checkpoint"})
        self.repeat(http)

    def check(self, files: Files) -> None:
        if self._log.mission is not None:
            self._log.check_summary(files, self._log.events(files))

    def repeat(self, http: httpx2.Client) -> None:
        if self._open is not None:
            self._log.send(http, *self._open)
            self._open = None


# --- pages ---


class Handoffs:
    """Handoffs of a worker's missions, some without a shared copy; with a log by the hook, which reports them too."""

    def __init__(self, worker: str, missions: tuple[str, ...], chance: random.Random, log: Log | None = None) -> None:
        self._worker = worker
        self._chance = chance
        self._log = log
        self._now: dict[str, str | None] = dict.fromkeys(missions)
        self._latest: str | None = None
        self._number = 0
        self._open: dict[str, Any] | None = None

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        name = f"handoff {self._number} of {self._worker}"
        self._open = {
            "workerId": self._worker,
            "missionId": self._chance.choice([*self._now]),
            "content": f"# Handoff\n\n{text_of(self._chance, name, 30_000)}\n",
            "mirrorShared": self._chance.random() < 0.7,
        }
        if self._log is None:
            self._open |= {"kind": "handoff"}
        else:
            self._open |= {"requestId": name, "summary": name}
        self.repeat(http)

    def repeat(self, http: httpx2.Client) -> None:
        if self._open is None:
            return
        if self._log is None:
            post(http, PATH, self._open)
        else:
            body = {name: value for name, value in self._open.items() if name != "content"}
            self._send_by_hook(http, body)
        self._note_written()

    def _send_by_hook(self, http: httpx2.Client, body: dict[str, Any]) -> None:
        """The log's event has no content: that is the handoff."""
        assert self._log is not None
        assert self._open is not None
        with self._log.lock:
            self._log.open[body["requestId"]] = body
        post(http, f"{PATH}/hooks/handoff-written", self._open)
        with self._log.lock:
            self._log.answered[body["requestId"]] = self._log.open.pop(body["requestId"])

    def _note_written(self) -> None:
        assert self._open is not None
        self._now[self._open["missionId"]] = self._open["content"]
        if self._open["mirrorShared"]:
            self._latest = self._open["content"]
        self._open = None

    def check(self, files: Files) -> None:
        sent = self._open
        if sent is not None and files.memory(self._worker, "handoffs", f"{sent['missionId']}.md") == sent["content"]:
            self._note_written()
        for mission, text in self._now.items():
            assert files.memory(self._worker, "handoffs", f"{mission}.md") == text
            assert files.memory(self._worker, "missions", mission, "handoff.md") == text
        assert files.read("shared", "handoffs", "swarm", f"{self._worker}-latest.md") == self._latest
        self._open = sent
        if self._log is not None:
            self._log.check_summary(files, self._log.events(files))


class Page:
    """One page of a profile or of shared memory, which is replaced by its hash or appended to."""

    def __init__(self, worker: str | None, file: str, chance: random.Random, *, replaces: bool) -> None:
        self._kind = "shared" if worker is None else "profile"
        self._worker = worker
        self._file = file
        self._chance = chance
        self._replaces = replaces
        self._now: str | None = None
        self._after: str | None = None
        """What it is to be when the write that is open is done."""
        self._number = 0

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        text = text_of(self._chance, f"{self._file} {self._number}", 20_000) + "\n"
        body = {"kind": self._kind, "file": self._file, "content": text}
        if self._worker is not None:
            body["workerId"] = self._worker
        self._after = (self._now or "") + text
        if self._replaces and self._now is not None:
            body["baseHash"] = hashlib.sha256(self._now.encode()).hexdigest()
            self._after = text
        answer = post(http, PATH, body)
        assert answer["hash"] == hashlib.sha256(self._after.encode()).hexdigest()
        self._now = self._after

    def check(self, files: Files) -> None:
        found = files.read(
            *(("shared", "swarm") if self._worker is None else ("profiles", self._worker, "memory")), self._file
        )
        assert found in (self._now, self._after)
        self._now = found

    def repeat(self, http: httpx2.Client) -> None:
        """An append without an answer is the caller's to look up: nothing tells it from another one."""


class Scaffolds:
    """Folders and files of new workers, compared with those of the first one."""

    def __init__(self, http: httpx2.Client, files: Files) -> None:
        self._done: list[str] = []
        self._open: str | None = None
        self._number = 0
        self.write(http)
        self._first = self._done[0]
        self._template = {name: str(files.memory(self._first, name)) for name in PROFILE}

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        self._open = f"new-{self._number}"
        self.repeat(http)

    def repeat(self, http: httpx2.Client) -> None:
        if self._open is not None:
            post(http, PATH, {"workerId": self._open, "scaffold": True, "role": "builder", "specialty": "gateways"})
            self._done.append(self._open)
            self._open = None

    def check(self, files: Files) -> None:
        for worker in self._done:
            assert self._found(files, worker) == self._whole(worker)
            folders = {path.name for path in (files.root / "profiles" / worker / "memory").iterdir() if path.is_dir()}
            assert folders == {"missions", "episodes", "handoffs"}
        if self._open is not None:
            whole = self._whole(self._open)
            found = self._found(files, self._open)
            assert {name: text for name, text in found.items() if text not in (None, whole[name])} == {}

    def _found(self, files: Files, worker: str) -> dict[str, str | None]:
        return {name: files.memory(worker, name) for name in PROFILE}

    def _whole(self, worker: str) -> dict[str, str]:
        return {name: text.replace(self._first, worker) for name, text in self._template.items()}


# --- rounds ---


def write_until_killed(http: httpx2.Client, client: Client) -> None:
    """Write until the service is gone."""
    while True:
        try:
            client.write(http)
        except httpx2.TransportError:
            return


def run_and_kill(service: Service, clients: list[Client], after_s: float) -> None:
    """All clients write until the service is killed."""
    with httpx2.Client(timeout=20, base_url=service.url) as http, ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(write_until_killed, http, client) for client in clients]
        threading.Event().wait(after_s)
        service.kill()
    for client in running:
        client.result()


def kill_at_start(database: Path, after_s: float) -> None:
    """Start a service and kill it after a while, whether it serves by then or not."""
    service = Service(database)
    threading.Event().wait(after_s)
    service.kill()


class Fleet:
    """All clients, and what they must find after each restart."""

    def __init__(self, http: httpx2.Client, files: Files, chance: random.Random) -> None:
        self._files = files
        self._logs = [Log("swarm5", "m-1"), Log("swarm5", "m-2"), Log("swarm5", None), Log("swarm7", "m-1")]
        first, second, none, of_hook = self._logs
        own = [random.Random(chance.random()) for _ in range(11)]
        self.clients: list[Client] = [
            Reports("report", first, own[0]),
            Reports("another report", first, own[1]),
            Reports("hook", first, own[2], hooks=True),
            Reports("report of m-2", second, own[3]),
            Reports("episode", none, own[4]),
            Handoffs("swarm6", ("m-1", "m-2", "m-3"), own[5]),
            Handoffs("swarm7", ("m-1",), own[6], of_hook),
            Handoffs("swarm8", ("m-1", "m-2"), own[10]),
            Page("swarm5", "SOUL.md", own[7], replaces=True),
            Page("swarm5", "MEMORY.md", own[8], replaces=False),
            Page(None, "notes.md", own[9], replaces=False),
            Scaffolds(http, files),
        ]

    def check(self) -> None:
        """Require all of it as it is now, and that no temporary of a dead service stays."""
        for client in self.clients:
            client.check(self._files)
        for worker in ("swarm5", "swarm7"):
            check_episodes(self._files, worker, [log for log in self._logs if log.worker == worker])
        assert self._files.matching("*.conflict-*") == []
        eventually(lambda: not self._files.matching(".solos-*"))

    def repeat(self, url: str) -> None:
        """Send again whatever was not answered, with its own request id; then it is there once."""
        with httpx2.Client(timeout=20, base_url=url) as http:
            for client in self.clients:
                client.repeat(http)

    @property
    def open(self) -> int:
        """How many events are not answered."""
        return sum(len(log.open) for log in self._logs)

    @property
    def answered(self) -> int:
        """How many events are."""
        return sum(len(log.answered) for log in self._logs)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answered_write_and_its_pages_survive_kill_9(database: Path, part: int) -> None:
    print(f"SOLOS_TEST_SEED={SEED}")
    chance = random.Random(f"{SEED}/{part}")
    files = Files(database.parent)
    with serving(database) as service, httpx2.Client(timeout=20, base_url=service.url) as http:
        fleet = Fleet(http, files, chance)
        run_and_kill(service, fleet.clients, chance.uniform(0.0, KILLED_WITHIN_S))
    for number in range(1, ROUNDS):
        print(f"round {number}")
        if number % START_KILLED_EVERY == 0:
            kill_at_start(database, chance.uniform(*START_S))
        with serving(database) as service:
            fleet.check()
            fleet.repeat(service.url)
            run_and_kill(service, fleet.clients, chance.uniform(0.0, KILLED_WITHIN_S))
    with serving(database) as service:
        fleet.check()
        fleet.repeat(service.url)
        assert fleet.open == 0
    fleet.check()
    assert files.matching(".solos-*") == []
    print(f"{fleet.answered} events")
    assert fleet.answered > ROUNDS
