"""Another database comes: all stores are opened anew, whatever is late or missed on the way."""

import time
from pathlib import Path

import pytest
import trio

from actors.messages import Recall, RememberLong
from actors.sentry import Sentry
from actors.stats import Stats
from actors.system import System
from storage.errors import Rejection
from storage.paths import Paths
from storage.writing import WritingStore
from tests.support import fresh_database, rows


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another database, with one fact."""
    (tmp_path / "other").mkdir()
    path = fresh_database(tmp_path / "other")
    rows(path, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'zebra of the other', 1.7e9)")
    return path


@pytest.fixture
def system(database: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    """A system whose sentry is quick, and gives up soon."""
    monkeypatch.setattr("actors.sentry._PERIOD_S", 0.05)
    monkeypatch.setattr("actors.sentry._WITHIN_S", 0.2)
    monkeypatch.setattr("actors.sentry._CLOSED_WITHIN_S", 0.5)
    monkeypatch.setattr("actors.mailbox.limits.ANSWER_GRACE_S", 0.1)
    return System(Paths(database), Stats())


async def _every_reader_reads_the_other(system: System) -> None:
    with trio.fail_after(10):
        while system.health().status != "ok" or not all(reader.in_place for reader in system._readers):
            await trio.sleep(0.02)
        for _ in range(10):
            while True:
                try:
                    found = await system.ask(Recall(agent="sol", q="zebra"))
                except Rejection:
                    await trio.sleep(0.05)
                    continue
                break
            assert [memory.text for memory in found.results] == ["zebra of the other"]


async def test_readers_are_told_however_late_the_writer_answers(
    system: System, database: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing first copies what a removed WAL holds: of a large one for longer than anybody waits."""
    whole = WritingStore.may_be_closed

    def late(store: WritingStore) -> bool:
        time.sleep(1.0)
        return whole(store)

    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="zebra of the first"))
        monkeypatch.setattr(WritingStore, "may_be_closed", late)
        other.rename(database)
        await _every_reader_reads_the_other(system)


async def test_readers_that_were_not_told_are_noticed(
    system: System, database: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Sentry._tell_a_reader
    missed: list[object] = []

    async def miss(sentry: Sentry, message: object) -> None:
        if len(missed) < 2:
            missed.append(message)
        else:
            await whole(sentry, message)  # type: ignore[arg-type]

    monkeypatch.setattr(Sentry, "_tell_a_reader", miss)
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="zebra of the first"))
        other.rename(database)
        await _every_reader_reads_the_other(system)
    assert len(missed) == 2
