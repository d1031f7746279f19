"""ENOSPC and EIO at each call of the operating system, for each kind of write: whole, or as before; then it works."""

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from storage.errors import FileFailed, Rejection, StorageFull
from storage.swarm import folders
from storage.swarm.pages import Persona
from storage.swarm.renames import hash_of
from tests.storage.conftest import Clock
from tests.storage.swarm.files import MISSION, WORKER, Swarm, asked, leftovers, person_writes, picture

OPERATIONS = ["open", "write", "short write", "fsync", "mkdir", "rename"]
WRITES: dict[str, Callable[[Swarm], object]] = {
    "event": lambda swarm: swarm.memory.write_event(asked("the event", request_id="r-1")),
    "episode": lambda swarm: swarm.memory.write_event(asked("the event", mission=None, request_id="r-1")),
    "handoff": lambda swarm: swarm.memory.write_handoff(WORKER, MISSION, "the handoff", mirror=True),
    "handoff without mirror": lambda swarm: swarm.memory.write_handoff(WORKER, MISSION, "the handoff", mirror=False),
    "append": lambda swarm: swarm.memory.write_page("profile", WORKER, None, "the text\n", base_hash=None),
    "replace": lambda swarm: swarm.memory.write_page("profile", WORKER, None, "the text\n", base_hash=PAGE_HASH),
    "make": lambda swarm: swarm.memory.write_page("shared", None, "new.md", "the text\n", base_hash=None),
    "scaffold": lambda swarm: swarm.memory.scaffold("other", Persona(role="tester")),
}
PAGE = "a person's page\n"
PAGE_HASH = hash_of(PAGE.encode())
ERRORS: dict[int, type[Rejection]] = {errno.ENOSPC: StorageFull, errno.EIO: FileFailed}


class Fault:
    """Lets one call of an operation fail, and counts the calls."""

    def __init__(self, operation: str, code: int, at: int | None) -> None:
        self._operation, self._code, self._at = operation, code, at
        self.calls = 0
        self._name = operation.removeprefix("short ")
        self._where: Any = folders if operation == "rename" else os
        self._real: Callable[..., Any] = getattr(self._where, self._name)

    @contextmanager
    def planted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        """Within it the fault strikes."""
        with monkeypatch.context() as patched:
            patched.setattr(self._where, self._name, self._called)
            yield
        assert self._at is None or self.calls > self._at

    def _called(self, *arguments: Any, **named: Any) -> Any:
        at, self.calls = self.calls, self.calls + 1
        if self._operation == "short write" and at == self._at:
            return self._real(arguments[0], arguments[1][: len(arguments[1]) // 2])
        if self._at is not None and at == self._at + (self._operation == "short write"):
            raise OSError(self._code, "injected")
        return self._real(*arguments, **named)


def prepared(folder: Path, clock: Clock, *, fresh: bool) -> Swarm:
    """A swarm with nothing in it, or with something of each kind."""
    swarm = Swarm(folder, clock)
    if not fresh:
        swarm.memory.write_event(asked("before"))
        swarm.memory.write_event(asked("before", mission=None))
        swarm.memory.write_handoff(WORKER, MISSION, "before", mirror=True)
        swarm.memory.write_page("shared", None, None, "before", base_hash=None)
        swarm.follow()
    person_writes(swarm.worker / "MEMORY.md", PAGE)
    return swarm


def calls_of(operation: str, kind: str, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many calls of an operation a write makes."""
    fault = Fault(operation, errno.EIO, None)
    with fault.planted(monkeypatch):
        WRITES[kind](swarm)
    return fault.calls


def failed(fault: Fault, kind: str, swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> type[Rejection] | None:
    """Write with a fault; how it was refused, if it was."""
    try:
        with fault.planted(monkeypatch):
            WRITES[kind](swarm)
    except Rejection as rejection:
        return type(rejection)
    return None


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "going on"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_is_whole_or_was_not_made(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, kind: str, operation: str, fresh: bool
) -> None:
    whole = prepared(tmp_path / "whole", clock, fresh=fresh)
    WRITES[kind](whole)
    whole.follow()
    expected = picture(whole.folder)
    calls = calls_of(operation, kind, prepared(tmp_path / "count", clock, fresh=fresh), monkeypatch)
    assert calls or operation in ("mkdir", "rename")
    for at, (code, error) in itertools.product(range(calls), ERRORS.items()):
        swarm = prepared(tmp_path / f"{at}-{code}", clock, fresh=fresh)
        before = picture(swarm.folder)
        if (refused := failed(Fault(operation, code, at), kind, swarm, monkeypatch)) is not None:
            assert refused is error
            after = picture(swarm.folder)
            assert after == before or (kind == "scaffold" and before.items() <= after.items() <= expected.items())
            WRITES[kind](swarm)
        swarm.follow()
        assert leftovers(swarm.folder) == []
        assert picture(swarm.folder) == expected, (at, code)
        assert swarm.again().reconcile() == 0


@pytest.mark.parametrize("operation", OPERATIONS[:4])
def test_a_disk_that_stays_full_leaves_everything_as_it_was(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    swarm = prepared(tmp_path, clock, fresh=False)
    before = picture(swarm.folder)
    real = getattr(os, operation.removeprefix("short "))

    def full(*arguments: Any, **named: Any) -> Any:
        if operation == "open" and not arguments[1] & os.O_CREAT:
            return real(*arguments, **named)
        if operation == "short write" and len(arguments[1]) > 1:
            return real(arguments[0], arguments[1][:1])
        raise OSError(errno.ENOSPC, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, operation.removeprefix("short "), full)
        for kind, write in WRITES.items():
            if operation == "open" and kind in ("event", "episode", "append"):
                continue  # they make no file
            with pytest.raises(StorageFull):
                write(swarm)
        swarm.follow()
        assert picture(swarm.folder) == before
    for write in WRITES.values():
        person_writes(swarm.worker / "MEMORY.md", PAGE)
        write(swarm)
    swarm.follow()
    assert leftovers(swarm.folder) == []
