"""Batches: one transaction, savepoints, request ids, and the index that follows."""

import threading
from contextlib import closing

import apsw
import pytest

from storage.errors import Conflict, NotFound, StorageBusy, StorageFull, StorageUnavailable, UnknownAgent
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.state import Request
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.writes import ask, episode, fact, one, reply, short
from tests.support import foreign_lock, rows


def test_a_batch_is_one_transaction_with_an_outcome_for_each(store: WritingStore, paths: Paths) -> None:
    outcomes = store.apply([fact("mira", "one"), fact("ghost", "two"), episode("sol", "three"), short("sol")])
    assert [outcome.error is None for outcome in outcomes] == [True, False, True, True]
    assert isinstance(outcomes[1].error, UnknownAgent)
    assert rows(paths.database, "SELECT agent, fact FROM memory_longterm") == [("mira", "one")]
    assert rows(paths.database, "SELECT agent, summary FROM memory_episodic") == [("sol", "three")]


@pytest.mark.parametrize("agent", ["ghost", "Sol ", "sol\u200b", "SOL", "x" * 120])
def test_an_agent_that_is_not_registered_writes_nothing(store: WritingStore, paths: Paths, agent: str) -> None:
    with pytest.raises(UnknownAgent, match="is not in agent_registry"):
        one(store, fact(agent))
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(0,)]


def test_an_unknown_agent_is_told_the_nearest_id(store: WritingStore) -> None:
    with pytest.raises(UnknownAgent, match="Did you mean 'atlas'"):
        one(store, fact("atlaz"))


def test_an_agent_registered_a_moment_ago_may_write(store: WritingStore, paths: Paths) -> None:
    rows(paths.database, "INSERT INTO agent_registry(agent_id) VALUES ('newcomer')")
    assert one(store, fact("newcomer")).agent == "newcomer"


def test_a_unit_that_fails_takes_only_its_own_rows_back(store: WritingStore, paths: Paths) -> None:
    def broken(units: object, at_s: float) -> None:
        units.remember_long(  # type: ignore[attr-defined]
            at_s, agent="mira", topic=None, fact="half", source=None, confidence=None, tags=()
        )
        raise ZeroDivisionError

    from storage.batch import Write

    outcomes = store.apply([fact("mira", "before"), Write(broken), fact("mira", "after")])
    assert isinstance(outcomes[1].error, ZeroDivisionError)
    assert rows(paths.database, "SELECT fact FROM memory_longterm") == [("before",), ("after",)]


def test_batch_rolled_back_by_a_trigger_runs_again_one_by_one(store: WritingStore, paths: Paths) -> None:
    """A foreign trigger's RAISE(ROLLBACK) ends the whole transaction: nothing of it may be acknowledged."""
    rows(
        paths.database,
        "CREATE TRIGGER no_bombs BEFORE INSERT ON memory_longterm WHEN new.fact = 'bomb' "
        "BEGIN SELECT raise(ROLLBACK, 'no bombs'); END",
    )
    outcomes = store.apply(
        [fact("mira", "first", request_id="a"), fact("mira", "bomb", request_id="b"), fact("mira", "last")]
    )
    assert [type(outcome.error) for outcome in outcomes] == [type(None), Conflict, type(None)]
    assert rows(paths.database, "SELECT fact FROM memory_longterm ORDER BY id") == [("first",), ("last",)]
    assert one(store, fact("mira", "first", request_id="a")).replayed


def test_a_trigger_that_swallows_the_row_is_a_refusal(store: WritingStore, paths: Paths) -> None:
    rows(
        paths.database,
        "CREATE TRIGGER quiet BEFORE INSERT ON memory_longterm BEGIN SELECT raise(IGNORE); END",
    )
    with pytest.raises(Conflict, match="trigger"):
        one(store, fact())


# --- request ids ---


def test_the_same_request_writes_once_and_answers_the_first_row(store: WritingStore, paths: Paths) -> None:
    first = one(store, fact("mira", "once", request_id="r"))
    again = one(store, fact("mira", "once", request_id="r"))
    assert (again.id, again.created_at, again.replayed) == (first.id, first.created_at, True)
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(1,)]


def test_the_same_request_twice_in_one_batch_writes_once(store: WritingStore, paths: Paths) -> None:
    first, again, other = store.apply([fact(request_id="r"), fact(request_id="r"), fact(request_id="r", digest=b"2")])
    assert (reply(again).id, reply(again).replayed) == (reply(first).id, True)
    assert isinstance(other.error, Conflict)
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(1,)]


def test_the_same_id_with_other_content_is_a_conflict_and_of_another_agent_is_not(store: WritingStore) -> None:
    one(store, fact("mira", "one", request_id="r"))
    with pytest.raises(Conflict, match="other content"):
        one(store, fact("mira", "two", request_id="r", digest=b"2"))
    assert not one(store, fact("sol", "one", request_id="r")).replayed


def test_a_refused_request_may_be_sent_again(store: WritingStore, paths: Paths) -> None:
    with pytest.raises(UnknownAgent):
        one(store, fact("late", request_id="r"))
    rows(paths.database, "INSERT INTO agent_registry(agent_id) VALUES ('late')")
    assert not one(store, fact("late", request_id="r")).replayed


def test_a_crash_between_the_two_commits_is_settled_at_start(
    store: WritingStore, paths: Paths, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The row is there and its intent is open: it happened. The intent is there and no row is: it never did."""
    monkeypatch.setattr(store._state, "settle", lambda done, dropped: None)
    first = one(store, fact("mira", "kept", request_id="kept"))
    monkeypatch.setattr(store, "_follow", lambda batch: None)
    store._state.intend([_lost(store)], [])
    with closing(WritingStore(paths, clock=clock)) as after:
        assert (after.report.intents_settled, after.report.intents_dropped) == (1, 1)
        assert one(after, fact("mira", "kept", request_id="kept")).id == first.id
        assert not one(after, fact("mira", "lost", request_id="lost")).replayed
    assert rows(paths.database, "SELECT fact FROM memory_longterm ORDER BY id") == [("kept",), ("lost",)]


def _lost(store: WritingStore):  # type: ignore[no-untyped-def]
    from storage.state import Recorded

    return Recorded(Request("mira", "lost", b"1", "long"), 1_780_000_000.0, 99, 1, {"id": "long:99"})


def test_an_open_intent_is_settled_when_it_is_met_again(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(store._state, "settle", lambda done, dropped: None)
        first = one(store, fact("mira", "once", request_id="r"))
    assert one(store, fact("mira", "once", request_id="r")).id == first.id
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(1,)]


def test_a_record_whose_row_id_was_reused_is_void(store: WritingStore, paths: Paths) -> None:
    """SQLite reuses the id of a deleted newest row: the record must not name another's row as ours."""
    first = one(store, fact("mira", "mine", request_id="r"))
    rows(paths.database, "DELETE FROM memory_longterm")
    rows(paths.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'theirs', 1)")
    again = one(store, fact("mira", "mine", request_id="r"))
    assert not again.replayed
    assert again.id != first.id
    assert rows(paths.database, "SELECT agent, fact FROM memory_longterm ORDER BY id") == [
        ("sol", "theirs"),
        ("mira", "mine"),
    ]


def test_a_replayed_short_key_does_not_undo_a_later_one(store: WritingStore, paths: Paths) -> None:
    one(store, short(value="old", request_id="r"))
    one(store, short(value="new"))
    assert one(store, short(value="old", request_id="r")).replayed
    assert rows(paths.database, "SELECT value FROM memory_short") == [("new",)]


def test_without_state_a_request_is_refused_and_other_writes_go_on(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(intents: object, sessions: object) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(store._state, "intend", full)
    with_id, without = store.apply([fact("mira", "a", request_id="r"), fact("mira", "b")])
    assert with_id.error is not None
    assert with_id.error.code == "storage_full"  # type: ignore[attr-defined]
    assert reply(without).agent == "mira"
    assert rows(paths.database, "SELECT fact FROM memory_longterm") == [("b",)]


def test_request_ids_are_forgotten_after_their_time(store: WritingStore, clock: Clock) -> None:
    one(store, fact("mira", "once", request_id="r"))
    clock.now_s += 6 * 86_400
    assert store.expire_requests() == 0
    clock.now_s += 2 * 86_400
    assert store.expire_requests() == 1


# --- locks and files ---


def test_unit_waits_for_foreign_writer(store: WritingStore, paths: Paths) -> None:
    """IMMEDIATE waits for the lock; a deferred transaction that has read would fail at once."""
    release = threading.Event()
    held = threading.Event()

    def hold() -> None:
        with foreign_lock(paths.database):
            held.set()
            release.wait(5)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(5)
    threading.Timer(0.2, release.set).start()
    assert one(store, fact()).agent == "mira"
    thread.join(5)


def test_a_lock_that_stays_is_busy_and_leaves_nothing_behind(store: WritingStore, paths: Paths) -> None:
    with foreign_lock(paths.database), pytest.raises(StorageBusy, match="locked"):
        store.apply([fact(request_id="r")], wait_s=0.05)
    assert store._state.open_intents() == []
    assert not one(store, fact(request_id="r")).replayed


def test_a_replaced_database_is_refused_not_written(store: WritingStore, paths: Paths) -> None:
    away = paths.database.with_name("away.db")
    paths.database.rename(away)
    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        one(store, fact())
    away.rename(paths.database)
    assert one(store, fact()).agent == "mira"


def test_instants_of_writes_strictly_grow(store: WritingStore, paths: Paths) -> None:
    store.apply([fact("mira", str(n)) for n in range(5)])
    times = [at for (at,) in rows(paths.database, "SELECT created_at FROM memory_longterm ORDER BY id")]
    assert sorted(set(times)) == times


def test_closing_leaves_the_wal_to_the_others(paths: Paths) -> None:
    """A passive checkpoint, never TRUNCATE: another process has the file open."""
    store = WritingStore(paths)
    with closing(apsw.Connection(str(paths.database))) as other:
        list(other.execute("SELECT count(*) FROM memory_longterm"))
        one(store, fact())
        store.close()
        assert list(other.execute("SELECT count(*) FROM memory_longterm")) == [(1,)]
        assert paths.database.with_name(paths.database.name + "-wal").exists()


# --- short keys ---


def test_an_upsert_replaces_value_tags_and_expiry(store: WritingStore, reading: ReadingStore) -> None:
    first = one(store, short(value="a", ttl_s=3600, tags=("x",)))
    assert first.expires_at is not None
    second = one(store, short(value="b"))
    assert (second.id, second.expires_at) == (first.id, None)
    (entry,) = reading.short(agent="mira", owner=None, key="k", after=None, limit=5, scope="shared").entries
    assert (entry.value, entry.tags, entry.expires_at) == ("b", (), None)


def test_a_key_ends_at_its_instant_and_reads_do_not_extend_it(
    store: WritingStore, reading: ReadingStore, clock: Clock
) -> None:
    one(store, short(value="zebra", ttl_s=10))
    for _ in range(9):
        clock.now_s += 1
        assert reading.short(agent="mira", owner=None, key="k", after=None, limit=5, scope="own").entries
    clock.now_s += 1.5
    with pytest.raises(NotFound):
        reading.short(agent="mira", owner=None, key="k", after=None, limit=5, scope="own")
    assert reading.short(agent="mira", owner=None, key=None, after=None, limit=5, scope="own").entries == ()
    assert ask(reading, "zebra", tiers=("short",)) == []
    assert reading.state(owner=None).rows.short == 0


def test_purge_removes_only_what_has_expired(store: WritingStore, paths: Paths, clock: Clock) -> None:
    from storage.batch import Write

    store.apply([short(key="a", ttl_s=1), short(key="b", ttl_s=100), short(key="c")])
    clock.now_s += 2
    purged = one(store, Write(lambda units, at_s: units.purge_short(at_s)))
    assert (purged.purged, purged.remaining) == (1, 2)
    assert rows(paths.database, "SELECT key FROM memory_short ORDER BY key") == [("b",), ("c",)]
