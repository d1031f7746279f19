"""Recalls in a process of their own, over a real store: the same answers, and no question without one."""

import os
import signal
import sys
from pathlib import Path

import pytest
import trio

from actors.messages import Recall, RememberLong
from actors.recaller import Recaller
from actors.stats import Stats
from actors.system import System
from storage import limits
from storage.errors import Interrupted, InvalidRequest, StorageUnavailable, UnknownAgent
from storage.paths import Paths
from storage.reading import ReadingStore
from tests.support import rows

SLOW = (
    "import storage.reading as r\n"
    "from storage.errors import translated\n"
    "def look(self, question, *, may_wait):\n"
    "    if question.q == 'gone': raise SystemExit\n"
    "    if question.q == 'bug': raise ValueError('zebra')\n"
    "    if question.q != 'slow': return whole(self, question, may_wait=may_wait)\n"
    "    with translated(): list(self._db.execute("
    "'WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n'))\n"
    "whole, r.ReadingStore.look = r.ReadingStore.look, look\n"
    "import sys\n"
    "from storage.recaller import main\n"
    "main(*sys.argv[1:])"
)
"""A process for recalls that never ends one question, and ends itself by another."""

FOREIGN = (
    "INSERT INTO memory_longterm (agent, fact, created_at) VALUES ('atlas', 'foreign' || ?, '2026-01-01') RETURNING id"
)


@pytest.fixture
def system(database: Path) -> System:
    """A system that is not started yet."""
    return System(Paths(database), Stats())


def _recallers(system: System) -> list[Recaller]:
    return [reader.recaller for reader in system._readers]


async def _begun(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until each reader has its process."""
    monkeypatch.setattr(limits, "RECALLER_FROM_LOOKS", 1)
    with trio.fail_after(20):
        while not all(recaller.pid for recaller in _recallers(system)):
            await system.ask(Recall(agent="sol", q="anything"))
            await trio.sleep(0.01)


def _asked_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The questions that are looked at in this process from now on."""
    asked: list[str] = []
    whole = ReadingStore.look

    def look(store: ReadingStore, question, *, may_wait: bool):  # type: ignore[no-untyped-def]
        asked.append(question.q)
        return whole(store, question, may_wait=may_wait)

    monkeypatch.setattr(ReadingStore, "look", look)
    return asked


async def test_a_process_answers_as_a_thread_does(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    questions = [
        Recall(agent="sol", q="zebra zoo3", explain=True),
        Recall(agent="sol", q="zebra number", k=20, topic="zoo", tags=("z",), full=True),
        Recall(agent="mira", q="zoo5 zebra", scope="own", since="2026-01-01"),
        Recall(agent="nobody", q="a word that no row holds"),
    ]
    async with system.running():
        for n in range(30):
            fact = f"zebra number {n} lives in zoo{n % 7}"
            await system.ask(RememberLong(agent="mira", fact=fact, topic="zoo", tags=("z",)))
        here = [await system.ask(question) for question in questions]
        await _begun(system, monkeypatch)
        asked = _asked_here(monkeypatch)
        there = [await system.ask(question) for question in questions]
        with pytest.raises(InvalidRequest, match="since"):
            await system.ask(Recall(agent="sol", q="zebra", since="yesterdayish"))
    assert asked == []
    assert here == there
    assert here[0].results
    assert system.stats.unregistered_reads == 2


async def test_what_is_written_is_recalled_at_once_there_too(
    system: System, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system.running():
        await _begun(system, monkeypatch)
        asked = _asked_here(monkeypatch)
        for n in range(50):
            written = await system.ask(RememberLong(agent="mira", fact=f"zebra number {n} lives in zoo{n}"))
            assert (await system.ask(Recall(agent="sol", q=f"zoo{n}", k=1))).results[0].id == written.id
            ((row,),) = rows(database, FOREIGN, n)
            assert (await system.ask(Recall(agent="sol", q=f"foreign{n}", k=1))).results[0].id == f"long:{row}"
    assert asked == []


async def test_there_is_none_before_many_were_asked(system: System) -> None:
    async with system.running():
        for n in range(20):
            await system.ask(Recall(agent="sol", q=f"zebra {n}"))
        assert [recaller.pid for recaller in _recallers(system)] == [None, None]


async def test_a_process_that_is_killed_leaves_no_question_without_answer_and_comes_again(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.recaller._PAUSE_S", 0.1)
    async with system.running():
        written = await system.ask(RememberLong(agent="mira", fact="zebra"))
        for _ in range(3):
            await _begun(system, monkeypatch)
            for recaller in _recallers(system):
                assert recaller.pid is not None
                os.kill(recaller.pid, signal.SIGKILL)
            for _ in range(20):
                assert (await system.ask(Recall(agent="sol", q="zebra"))).results[0].id == written.id
    assert system.actors()["readers"].restarts == 0


async def test_they_end_with_the_system_and_when_told_to_end_only_then(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system.running():
        await _begun(system, monkeypatch)
        pids = [recaller.pid or 0 for recaller in _recallers(system)]
        for pid in pids:
            os.kill(pid, signal.SIGTERM)  # as systemd does to all processes of a service
        asked = _asked_here(monkeypatch)
        await system.ask(Recall(agent="sol", q="zebra"))
        assert asked == []
    assert not any(_lives(pid) for pid in pids)


async def test_a_setting_refuses_the_unregistered_there_too(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(Paths(database), Stats(), refuse_unregistered_reads=True)
    async with system.running():
        await _begun(system, monkeypatch)
        asked = _asked_here(monkeypatch)
        with pytest.raises(UnknownAgent, match="'ghost' is not in agent_registry"):
            await system.ask(Recall(agent="ghost", q="zebra"))
    assert asked == []


async def test_a_replaced_database_is_an_error_there_too(
    system: System, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system.running():
        await _begun(system, monkeypatch)
        database.rename(database.with_name("away.db"))
        with pytest.raises(StorageUnavailable):
            await system.ask(Recall(agent="sol", q="zebra"))
        database.with_name("away.db").rename(database)
        assert (await system.ask(Recall(agent="sol", q="zebra"))).results == ()


@pytest.fixture
def slow_system(database: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """A system whose processes for recalls are slow."""
    command = (sys.executable, "-c", SLOW, str(database), "0")
    monkeypatch.setattr("actors.system.command", lambda *_, **__: command)
    return System(Paths(database), Stats())


async def test_a_look_that_is_too_slow_is_cut_at_its_deadline_and_no_other_is(
    slow_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_system.running():
        written = await slow_system.ask(RememberLong(agent="mira", fact="zebra"))
        await _begun(slow_system, monkeypatch)
        pids = [recaller.pid for recaller in _recallers(slow_system)]
        monkeypatch.setattr(limits, "READ_DEADLINE_S", 0.2)
        for _ in range(5):
            with trio.fail_after(3), pytest.raises(Interrupted):
                await slow_system.ask(Recall(agent="sol", q="slow"))
            assert (await slow_system.ask(Recall(agent="sol", q="zebra"))).results[0].id == written.id
        assert [recaller.pid for recaller in _recallers(slow_system)] == pids


async def test_a_process_that_hangs_is_ended_and_its_question_answered(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with system.running():
        written = await system.ask(RememberLong(agent="mira", fact="zebra"))
        await _begun(system, monkeypatch)
        pids = [recaller.pid or 0 for recaller in _recallers(system)]
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(limits, "READ_DEADLINE_S", 0.2)
        for _ in pids:
            with trio.fail_after(5):
                assert (await system.ask(Recall(agent="sol", q="zebra"))).results[0].id == written.id
        assert not any(_lives(pid) for pid in pids)


def _lives(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_question_that_ends_the_process_is_answered_here(
    slow_system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with slow_system.running():
        await _begun(slow_system, monkeypatch)
        asked = _asked_here(monkeypatch)
        assert (await slow_system.ask(Recall(agent="sol", q="gone"))).results == ()
    assert asked == ["gone"]


async def test_a_bug_there_is_told_without_the_text_of_a_memory(
    slow_system: System, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from actors.errors import Internal

    async with slow_system.running():
        await _begun(slow_system, monkeypatch)
        with pytest.raises(Internal):
            await slow_system.ask(Recall(agent="sol", q="bug"))
        assert (await slow_system.ask(Recall(agent="sol", q="zebra"))).results == ()
