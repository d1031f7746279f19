"""The actors together, over a real store, on the real clock."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from actors.errors import ActorGaveUp
from actors.life_messages import Brief
from actors.messages import (
    ForgetShort,
    GetMemory,
    GetShort,
    GetStatistics,
    JoinSegments,
    Message,
    Purge,
    Recall,
    RememberLong,
    RememberShort,
)
from actors.stats import Stats
from actors.system import System
from storage.errors import ConfigurationError, Interrupted, InvalidRequest, NotFound, StorageUnavailable, UnknownAgent
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search import segments
from tests.support import foreign_lock, rows


@pytest.fixture
def system(database: Path) -> System:
    """A system that is not started yet."""
    return System(Paths(database), Stats())


async def test_what_one_agent_writes_another_recalls_at_once(system: System) -> None:
    async with system.running():
        with trio.fail_after(10):
            for n in range(50):
                written = await system.ask(RememberLong(agent="mira", fact=f"zebra number {n} lives in zoo{n}"))
                found = await system.ask(Recall(agent="sol", q=f"zoo{n}", k=1))
                assert (found.results[0].id, found.results[0].agent) == (written.id, "mira")


async def test_fifty_writers_at_once_each_get_their_own_row(system: System, database: Path) -> None:
    ids: list[str] = []

    async def write(n: int) -> None:
        ids.append((await system.ask(RememberLong(agent="mira", fact=f"fact {n}"))).id)

    async with system.running():
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                for n in range(50):
                    nursery.start_soon(write, n)
    assert len(set(ids)) == 50
    assert rows(database, "SELECT count(DISTINCT fact) FROM memory_longterm") == [(50,)]


async def test_foreign_rows_are_found_before_the_answer(system: System, database: Path) -> None:
    async with system.running():
        rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('atlas', 'a foreign okapi', 1)")
        found = await system.ask(Recall(agent="sol", q="okapi"))
        assert [memory.agent for memory in found.results] == ["atlas"]


async def test_foreign_changes_and_deletions_are_not_shown_stale(system: System, database: Path) -> None:
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="the old zebra"))
        await system.ask(RememberLong(agent="mira", fact="the gone zebra"))
        rows(database, "UPDATE memory_longterm SET fact = 'the new okapi' WHERE id = 1")
        rows(database, "DELETE FROM memory_longterm WHERE id = 2")
        assert (await system.ask(Recall(agent="sol", q="zebra"))).results == ()
        assert [memory.text for memory in (await system.ask(Recall(agent="sol", q="okapi"))).results] == [
            "the new okapi"
        ]


async def test_a_damaged_index_is_said_and_made_anew(system: System, database: Path) -> None:
    paths = Paths(database)
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="the zebra sleeps"))
        content = bytearray(paths.index.read_bytes())
        paths.index.with_name("index.db-wal").write_bytes(b"")
        content[100:] = b"\xff" * (len(content) - 100)
        paths.index.write_bytes(content)
        with trio.fail_after(10):
            while not (found := await system.ask(Recall(agent="sol", q="zebra"))).results:
                assert "index_rebuilding" in found.degraded_reasons or "index_behind" in found.degraded_reasons
        assert found.results[0].agent == "mira"


async def test_short_keys_from_upsert_to_purge(system: System) -> None:
    async with system.running():
        await system.ask(RememberShort(agent="mira", key="a", value="1"))
        await system.ask(RememberShort(agent="mira", key="b", value="2", ttl_s=0.05))
        listed = await system.ask(GetShort(agent="sol", owner="mira"))
        assert [entry.key for entry in listed.entries] == ["a", "b"]
        await trio.sleep(0.06)
        assert [entry.key for entry in (await system.ask(GetShort(agent="sol", owner="mira"))).entries] == ["a"]
        assert (await system.ask(Purge())).purged == 1
        await system.ask(ForgetShort(agent="mira", key="a"))
        with pytest.raises(NotFound):
            await system.ask(ForgetShort(agent="mira", key="a"))


async def test_listing_goes_on_after_a_key(system: System) -> None:
    async with system.running():
        for n in range(5):
            await system.ask(RememberShort(agent="mira", key=f"k{n}", value="v"))
        first = await system.ask(GetShort(agent="mira", limit=2))
        rest = await system.ask(GetShort(agent="mira", after=first.entries[-1].key))
    assert ([entry.key for entry in first.entries], first.more) == (["k0", "k1"], 3)
    assert ([entry.key for entry in rest.entries], rest.more) == (["k2", "k3", "k4"], 0)


async def test_statistics_count_rows_by_owner(system: System) -> None:
    async with system.running():
        for agent in ("mira", "mira", "sol"):
            await system.ask(RememberLong(agent=agent, fact=f"a fact of {agent}"))
        assert (await system.ask(GetStatistics())).store.rows.long == 3
        assert (await system.ask(GetStatistics(agent="mira", scope="own"))).store.rows.long == 2
        with pytest.raises(InvalidRequest):
            await system.ask(GetStatistics(scope="own"))


async def test_reads_of_unregistered_agents_are_served_and_counted(system: System) -> None:
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="the zebra sleeps"))
        assert (await system.ask(Recall(agent="ghost", q="zebra"))).results
        assert system.stats.unregistered_reads == 1


@pytest.mark.parametrize(
    "message",
    [
        Brief(agent="ghost", q="zebra"),
        Brief(agent="ghost"),
        Recall(agent="ghost", q="zebra", tiers=("long", "swarm")),
        Recall(agent="ghost", q="zebra", tiers=("swarm",)),
    ],
)
async def test_a_read_that_asks_several_times_is_counted_once(system: System, message: Message[Any]) -> None:
    async with system.running():
        await system.ask(message)
        assert system.stats.unregistered_reads == 1


async def test_a_setting_refuses_them(database: Path) -> None:
    system = System(Paths(database), Stats(), refuse_unregistered_reads=True)
    async with system.running():
        with pytest.raises(UnknownAgent):
            await system.ask(Recall(agent="ghost", q="zebra"))


async def test_a_second_process_is_refused_and_told_who_serves(system: System, database: Path) -> None:
    async with system.running():
        with pytest.raises(ConfigurationError, match="pid"):
            async with System(Paths(database), Stats()).running():
                pass


async def test_a_read_that_is_too_slow_is_cut_at_its_deadline(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(store: ReadingStore, **_: object) -> object:
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
        from storage.errors import translated

        with translated():
            return list(store._db.execute(endless))

    monkeypatch.setattr("actors.system.limits.READ_DEADLINE_S", 0.2)
    monkeypatch.setattr(ReadingStore, "memory", slow)
    async with system.running():
        with trio.fail_after(3), pytest.raises(Interrupted):
            await system.ask(GetMemory(agent="sol", id="long:1"))
        assert (await system.ask(GetShort(agent="sol"))).entries == ()


async def test_a_replaced_database_is_an_error_never_an_empty_list(system: System, database: Path) -> None:
    async with system.running():
        away = database.with_name("away.db")
        database.rename(away)
        with pytest.raises(StorageUnavailable):
            await system.ask(Recall(agent="sol", q="zebra"))
        with pytest.raises(StorageUnavailable):
            await system.ask(GetShort(agent="sol"))
        assert system.health().reasons == ("database_moved",)
        away.rename(database)
        assert (await system.ask(Recall(agent="sol", q="zebra"))).results == ()
        assert system.health().status == "ok"


async def test_a_writer_that_cannot_go_on_ends_the_system(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object, opened: object) -> object:
        raise OSError("gone")

    monkeypatch.setattr("actors.supervisor._BACKOFF_S", 0.0)
    monkeypatch.setattr("actors.writer.Writer.run", broken)
    with pytest.raises(ActorGaveUp):
        async with system.running():
            pytest.fail("it must not start")


async def test_stopping_drains_what_was_accepted(system: System, database: Path) -> None:
    replies: list[str] = []

    async def write(n: int) -> None:
        replies.append((await system.ask(RememberLong(agent="mira", fact=f"fact {n}"))).id)

    async with trio.open_nursery() as nursery, system.running():
        for n in range(20):
            nursery.start_soon(write, n)
        await trio.testing.wait_all_tasks_blocked()
    assert len(replies) == len(rows(database, "SELECT 1 FROM memory_longterm")) == 20


async def test_rows_left_out_as_stale_are_said(system: System, database: Path) -> None:
    """The writer waits for a foreign lock and cannot look at the changed row: no empty answer without a word."""
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="the only zebra"))
        rows(database, "UPDATE memory_longterm SET fact = 'the only zebra, edited' WHERE id = 1")
        async with trio.open_nursery() as nursery:
            with foreign_lock(database):
                nursery.start_soon(system.ask, RememberLong(agent="mira", fact="waits"))
                await trio.sleep(0.1)
                found = await system.ask(Recall(agent="sol", q="zebra"))
        assert found.results or "index_behind" in found.degraded_reasons
        with trio.fail_after(10):
            while not (found := await system.ask(Recall(agent="sol", q="zebra"))).results:
                assert "index_behind" in found.degraded_reasons
        assert found.results[0].text.endswith("edited")


async def test_one_row_that_is_left_of_many_deleted_ones_is_found(system: System, database: Path) -> None:
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="zebra zero, the one that stays"))
        async with trio.open_nursery() as nursery:
            for n, agent in itertools.product(range(100), ("mira", "atlas", "ace")):
                nursery.start_soon(system.ask, RememberLong(agent=agent, fact=f"zebra number {n}"))
        rows(database, "DELETE FROM memory_longterm WHERE id > 1")
        found = await system.ask(Recall(agent="sol", q="zebra"))
        assert found.results or "index_behind" in found.degraded_reasons
        with trio.fail_after(10):
            while not (found := await system.ask(Recall(agent="sol", q="zebra"))).results:
                await trio.sleep(0.05)
        assert [memory.id for memory in found.results] == ["long:1"]


async def test_a_deleted_cache_folder_is_mended_while_serving(system: System, database: Path) -> None:
    async with system.running():
        await system.ask(RememberLong(agent="mira", fact="the zebra sleeps"))
        shutil.rmtree(Paths(database).cache)
        with trio.fail_after(10):
            while True:
                try:
                    found = await system.ask(Recall(agent="sol", q="zebra"))
                except StorageUnavailable:
                    continue
                if found.results:
                    break
                assert len(found.degraded_reasons) > 1
        assert (await system.ask(RememberLong(agent="mira", fact="another"))).degraded_reasons == ()


async def test_posting_lists_are_joined_between_writes(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "SEGMENTS_MAX", 1)
    async with system.running():
        for n in range(20):
            await system.ask(RememberLong(agent="mira", fact=f"the zebra {n}"))
        assert await system.upkeep(JoinSegments()) is True
        found = await system.ask(Recall(agent="sol", q="zebra", k=50))
    assert len(found.results) == 20
