"""Traps 1, 4, 5 and 7 of the design: an actor that dies, a request that is cancelled, a read that takes too long."""

import gc
import inspect
import time
import warnings
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio
import trio.testing

from actors.mailbox import Envelope, Mailbox, State
from actors.messages import ReadMessage, Recall, RememberLong
from actors.stats import Stats
from actors.supervisor import supervise
from actors.system import System
from actors.units import read_unit
from actors.writer import Writer
from storage import limits
from storage.database import fetch
from storage.errors import Interrupted, translated
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.swarm.layout import Roots, SwarmConfig
from storage.swarm.swarm import Swarm
from storage.writing import WritingStore
from tests.faults.disk import facts
from tests.faults.foreign import ForeignProcess
from tests.support import Service, eventually, serving

HOLD_S = 0.6


@asynccontextmanager
async def running(database: Path) -> AsyncIterator[System]:
    """The actors of a database, on real threads and the real clock."""
    with trio.fail_after(30):
        async with System(Paths(database), Stats()).running() as system:
            yield system


def fact(text: str) -> RememberLong:
    """A fact of sol's."""
    return RememberLong(agent="sol", fact=text)


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until a condition holds."""
    with trio.fail_after(5):
        while not condition():
            await trio.sleep(0.005)


async def until_started(envelope: Envelope[Any]) -> None:
    """Wait until an actor has begun with an envelope."""
    await until(lambda: envelope.state is State.STARTED)


# --- trap 1: an actor that dies is restarted and seen; when it goes on dying the process ends ---

WRITER_DIES = """
from actors.writer import Writer
async def die(self, batch):
    raise RuntimeError("planted")
Writer._write = die
"""


def test_dead_writer_ends_the_process(database: Path) -> None:
    """Not ready while the writer is down, and exit code 1 once its restarts are used up: never a healthy corpse."""
    with serving(database, fault=WRITER_DIES) as service:
        seen: set[tuple[int, tuple[str, ...]]] = set()
        eventually(lambda: _write_and_look(service, seen) is not None, within_s=8)
        assert service.process.wait(5) == 1
    assert (503, ("writer_down",)) in seen
    assert len(service.events("actor_restarted")) == limits.RESTARTS_MAX
    assert service.events("gave_up")


def _write_and_look(service: Service, seen: set[tuple[int, tuple[str, ...]]]) -> int | None:
    """One write, which kills the writer, and one look at the health; the exit code once there is one."""
    with suppress(httpx2.TransportError):
        service.http.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": "x"}, timeout=0.2)
    with suppress(httpx2.TransportError):
        answer = service.http.get(f"{service.url}/health/ready", timeout=2)
        seen.add((answer.status_code, tuple(answer.json()["reasons"])))
    return service.process.poll()


WRITER_DIES_ONCE = """
from actors.writer import Writer
whole = Writer._write
async def die(self, batch):
    Writer._write = whole
    raise RuntimeError("planted")
Writer._write = die
"""


def test_writer_that_died_once_is_restarted(database: Path) -> None:
    """The write in its hands is answered at once, and the next one is written."""
    with serving(database, fault=WRITER_DIES_ONCE) as service:
        began_s = time.monotonic()
        status, body = service.rest("POST", "/v1/long", {"agent": "sol", "fact": "lost"})
        assert (status, body["error"]["code"]) in [(500, "internal"), (500, "outcome_unknown")]
        assert time.monotonic() - began_s < 2.0
        eventually(lambda: service.rest("GET", "/health/ready")[0] == 200)
        service.long("sol", "kept")
        assert service.stats()["actors"]["writer"]["restarts"] == 1


# --- trap 4: a cancellation does not reach the connection ---


async def test_cancelled_request_leaves_no_transaction_open(database: Path) -> None:
    """A write that has started runs to its commit, whatever becomes of its requester."""
    async with running(database) as system:
        with ForeignProcess(database) as other:
            other.hold(HOLD_S)
            envelope = system.post(fact("begun"))
            await until_started(envelope)
            with trio.move_on_after(0.1) as given_up:
                await system.reply(envelope)
            assert given_up.cancelled_caught
            assert (await envelope.wait()).id == "long:1"
        assert (await system.ask(fact("after"))).id == "long:2"
    assert facts(database) == ["begun", "after"]


async def test_request_cancelled_in_the_queue_writes_nothing(database: Path) -> None:
    async with running(database) as system:
        with ForeignProcess(database) as other:
            other.hold(HOLD_S)
            begun = system.post(fact("begun"))
            await until_started(begun)
            queued = system.post(fact("withdrawn"))
            with trio.move_on_after(0.05):
                await system.reply(queued)
            assert queued.state is State.WITHDRAWN
            await begun.wait()
        await system.ask(fact("after"))
    assert facts(database) == ["begun", "after"]


async def test_cancelled_writer_finishes_what_it_has_begun(database: Path) -> None:
    """The actor itself is cancelled in the middle of a write: it commits, answers and only then closes."""
    mailbox = Mailbox("writer", 8)
    with trio.fail_after(20), ForeignProcess(database) as other:
        async with trio.open_nursery() as actors:
            await actors.start(supervise, _writer(mailbox, Paths(database)))
            other.hold(HOLD_S)
            envelope = mailbox.post(fact("begun"), within_s=12)
            await until_started(envelope)
            actors.cancel_scope.cancel()
    mailbox.close()
    assert envelope.state is State.ANSWERED
    assert (await envelope.wait()).id == "long:1"
    assert facts(database) == ["begun"]


def _writer(mailbox: Mailbox, paths: Paths) -> Writer:
    """A writer of a database, whose swarm files lie beside it."""
    beside = Roots(profiles=paths.folder / "profiles", shared=paths.folder / "shared")
    swarm = Swarm(SwarmConfig(beside), paths.swarm_index)
    return Writer(mailbox, partial(WritingStore, paths), swarm)


def test_client_that_leaves_during_its_write_is_counted_as_unknown(service: Service) -> None:
    """Over HTTP: the client goes away while its write waits for a lock. The row comes, the books balance."""
    assert service.database is not None
    with ForeignProcess(service.database) as other:
        other.hold(1.0)
        with pytest.raises(httpx2.ReadTimeout):
            service.http.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": "begun"}, timeout=0.3)
    eventually(lambda: service.stats()["writes"]["long"]["unknown"] == 1)
    service.long("sol", "after")
    assert service.stats()["writes"]["long"] == {
        "issued": 2,
        "acknowledged": 1,
        "replayed": 0,
        "refused": 0,
        "unknown": 1,
        "in_flight": 0,
    }
    assert facts(service.database) == ["begun", "after"]


# --- trap 5: a read is cut at its deadline ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Dawdle(ReadMessage[int]):
    """A read of some seconds, in one statement."""


@read_unit.register
def _(message: Dawdle, store: ReadingStore) -> int:
    with_one_statement = "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 20000000)"
    with translated():
        return int(fetch(store._db, f"{with_one_statement} SELECT count(*) FROM c")[0][0])


@dataclass(frozen=True, slots=True, kw_only=True)
class DawdleInSteps(ReadMessage[int]):
    """A read of some seconds, in thousands of short statements: between two there is nothing to interrupt."""


@read_unit.register
def _(message: DawdleInSteps, store: ReadingStore) -> int:
    until_s = time.monotonic() + 4
    while time.monotonic() < until_s:
        with translated():
            fetch(
                store._db,
                "WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < 2000) SELECT * FROM c",
            )
    return 0


@pytest.mark.parametrize("read", [Dawdle, DawdleInSteps])
async def test_read_is_cut_at_its_deadline(
    database: Path, monkeypatch: pytest.MonkeyPatch, read: type[ReadMessage[int]]
) -> None:
    """The caller is told in time, the thread is free again, and the connection goes on."""
    monkeypatch.setattr(limits, "READ_DEADLINE_S", 0.3)
    monkeypatch.setattr(limits, "READERS", 1)
    async with running(database) as system:
        began_s = trio.current_time()
        with pytest.raises(Interrupted):
            await system.ask(read())
        assert trio.current_time() - began_s < 1.5
        monkeypatch.setattr(limits, "READ_DEADLINE_S", 10.0)
        await system.ask(fact("a read after the cut"))
        recalled = await system.ask(Recall(agent="sol", q="cut"))
        assert [memory.text for memory in recalled.results] == ["a read after the cut"]
        assert system.actors()["readers"].restarts == 0


# --- trap 7: the mailbox is an iterator ---


async def test_mailbox_is_no_generator() -> None:
    """A consumer that leaves in the middle leaks nothing, and the next one goes on where it was."""
    mailbox = Mailbox("writer", 8)
    for text in ("one", "two"):
        mailbox.post(fact(text), within_s=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = []
        for _ in range(2):
            async for envelope in mailbox:
                seen.append(envelope.message.fact)
                break
            gc.collect()
            await trio.testing.wait_all_tasks_blocked()
    mailbox.close()
    assert seen == ["one", "two"]
    assert [str(warning.message) for warning in caught] == []
    assert not inspect.isasyncgen(aiter(mailbox))


async def test_closed_mailbox_is_drained(autojump_clock: trio.testing.MockClock) -> None:
    """close() is how an actor is stopped: it hands out what was accepted, but not what was withdrawn, and ends."""
    mailbox = Mailbox("writer", 16)
    envelopes = [mailbox.post(fact(text), within_s=1) for text in ("one", "two", "three")]
    envelopes[1].withdraw()
    mailbox.close()
    assert [envelope.message.fact async for envelope in mailbox] == ["one", "three"]
