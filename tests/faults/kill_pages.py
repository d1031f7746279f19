"""Clients that write the swarm's pages, and all clients of its files together."""

import hashlib
import random
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import httpx2

from tests.faults.kill_events import (
    PATH,
    WORKERS,
    Files,
    Log,
    Reports,
    check_episodes,
    check_told,
    post,
    text_of,
)
from tests.support import Service, eventually

PROFILE = ("MEMORY.md", "SOUL.md", "IDENTITY.md")


class FileClient(Protocol):
    """Writes files of one kind. What it does between two kills runs in one thread."""

    def write(self, http: httpx2.Client) -> None:
        """Send one more write. Raises one of GONE when no answer came."""

    def check(self, files: Files) -> None:
        """Require what was answered, and nothing half written, after a restart."""

    def repeat(self, http: httpx2.Client) -> None:
        """Send again what was not answered."""


class Handoffs:
    """Handoffs of a worker's missions, some without a shared copy; with a log by the hook, which reports them too."""

    def __init__(
        self, name: str, worker: str, missions: tuple[str, ...], chance: random.Random, log: Log | None = None
    ) -> None:
        self._name = name
        self._worker = worker
        self._chance = chance
        self._log = log
        self._now: dict[str, str | None] = dict.fromkeys(missions)
        self._latest: str | None = None
        self._number = 0
        self._open: dict[str, Any] | None = None

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        name = f"{self._name} {self._number} of {self._worker}"
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
        self._log.send(body, partial(post, http, f"{PATH}/hooks/handoff-written", self._open))

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
        self._done: set[str] = set()
        self._open: str | None = None
        self._number = 0
        self.write(http)
        (self._first,) = self._done
        self._template = {name: str(files.memory(self._first, name)) for name in PROFILE}

    def write(self, http: httpx2.Client) -> None:
        self._number += 1
        self._open = f"new-{self._number}"
        self.repeat(http)

    def repeat(self, http: httpx2.Client) -> None:
        if self._open is not None:
            post(http, PATH, {"workerId": self._open, "scaffold": True, "role": "builder", "specialty": "gateways"})
            self._done.add(self._open)
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


class Fleet:
    """All clients of the swarm's files, and what they must find after each restart."""

    def __init__(self, http: httpx2.Client, files: Files, chance: random.Random, name: str) -> None:
        """The texts of all events begin with `name`."""
        self._files = files
        self._name = name
        self._logs = [Log("swarm5", "m-1"), Log("swarm5", "m-2"), Log("swarm5", None), Log("swarm7", "m-1")]
        first, second, none, of_hook = self._logs
        own = [random.Random(chance.random()) for _ in range(12)]
        self.clients: list[FileClient] = [
            Reports(f"{name} report", first, own[0], "page"),
            Reports(f"{name} tool", first, own[1], "tool"),
            Reports(f"{name} hook", first, own[2], "hook"),
            Reports(f"{name} second", second, own[3], "page"),
            Reports(f"{name} episode", none, own[4], "page"),
            Reports(f"{name} episode by tool", none, own[11], "tool"),
            Handoffs(f"{name} handoff", "swarm6", ("m-1", "m-2", "m-3"), own[5]),
            Handoffs(f"{name} handoff", "swarm7", ("m-1",), own[6], of_hook),
            Handoffs(f"{name} handoff", "swarm8", ("m-1", "m-2"), own[10]),
            Page("swarm5", "SOUL.md", own[7], replaces=True),
            Page("swarm5", "MEMORY.md", own[8], replaces=False),
            Page(None, "notes.md", own[9], replaces=False),
            Scaffolds(http, files),
        ]

    def check(self) -> None:
        """Require all of it as it is now, and that no temporary of a dead service stays."""
        for client in self.clients:
            client.check(self._files)
        for worker in WORKERS:
            check_episodes(self._files, worker, self._logs_of(worker))
        assert self._files.matching("*.conflict-*") == []
        eventually(lambda: not self._files.matching(".solos-*"))

    def check_told(self, database: Path) -> None:
        """Require each event to be an episode of its worker's agent in the database, too."""
        for worker, agent in WORKERS.items():
            check_told(database, agent, self._name, self._files, self._logs_of(worker))

    def check_found(self, service: Service) -> None:
        """Require the last answered event of each mission to be found by its words."""
        for log in self._logs:
            if log.mission is not None and log.answered:
                summary = [*log.answered.values()][-1]["summary"]
                eventually(partial(_finds, service, WORKERS[log.worker], summary))

    def _logs_of(self, worker: str) -> list[Log]:
        return [log for log in self._logs if log.worker == worker]

    def repeat(self, http: httpx2.Client) -> None:
        """Send again whatever was not answered, with its own request id; then it is there once."""
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


def _finds(service: Service, agent: str, text: str) -> bool:
    status, answer = service.rest("GET", "/v1/swarm/search", agent=agent, query=text, fresh="true")
    assert status == 200, answer
    return any(text in hit["snippet"] for hit in answer["results"])
