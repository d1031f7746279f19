"""What an error in the middle of a batch may and may not do."""

import apsw
import pytest

from storage.batch import Write
from storage.errors import Conflict, StorageUnavailable
from storage.paths import Paths
from storage.state import State
from storage.times import iso
from storage.write_units import WriteUnits
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.writes import fact, one, reply
from tests.support import rows


def facts(paths: Paths) -> list[str]:
    """What is in the table."""
    return [text for (text,) in rows(paths.database, "SELECT fact FROM memory_longterm ORDER BY id")]


def test_an_error_that_ends_the_transaction_while_a_replay_is_looked_up_doubles_nothing(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite ends the transaction on an I/O error even in a SELECT; the rest must not go on without one."""
    one(store, fact("mira", "replayed", request_id="r"))
    real = WriteUnits.row_at

    def failing(units: WriteUnits, tier: str, row: int) -> object:
        if not failing.done:  # type: ignore[attr-defined]
            failing.done = True  # type: ignore[attr-defined]
            units.db.execute("ROLLBACK")
            raise apsw.IOError("disk I/O error")
        return real(units, tier, row)  # type: ignore[arg-type]

    failing.done = False  # type: ignore[attr-defined]
    monkeypatch.setattr(WriteUnits, "row_at", failing)
    outcomes = store.apply(
        [fact("mira", "A"), fact("mira", "replayed", request_id="r"), fact("mira", "B"), fact("mira", "C")]
    )
    assert all(outcome.error is None for outcome in outcomes)
    assert facts(paths) == ["replayed", "A", "B", "C"]


def test_a_row_that_cannot_be_read_back_is_not_written(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its record a retry would write it a second time: the savepoint takes it back."""

    def failing(units: WriteUnits, tier: str, row: int) -> object:
        raise apsw.IOError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(WriteUnits, "row_at", failing)
        with pytest.raises(StorageUnavailable):
            one(store, fact("mira", "X", request_id="r"))
    assert facts(paths) == []
    assert not one(store, fact("mira", "X", request_id="r")).replayed
    assert facts(paths) == ["X"]


def test_a_trigger_that_moves_the_row_is_refused_where_a_retry_must_be_safe(store: WritingStore, paths: Paths) -> None:
    rows(
        paths.database,
        "CREATE TRIGGER mover AFTER INSERT ON memory_longterm BEGIN "
        "UPDATE memory_longterm SET id = id + 1000 WHERE id = new.id; END",
    )
    with pytest.raises(Conflict, match="trigger"):
        one(store, fact("mira", "X", request_id="r"))
    assert facts(paths) == []


@pytest.mark.parametrize("change", ["confidence = 0.1", "created_at = 5", "tags = 'x'"])
def test_a_request_is_known_again_whatever_others_set_beside_its_text(
    store: WritingStore, paths: Paths, change: str
) -> None:
    first = one(store, fact("mira", "X", request_id="r"))
    rows(paths.database, f"UPDATE memory_longterm SET {change}")
    assert one(store, fact("mira", "X", request_id="r")).id == first.id
    with pytest.raises(Conflict):
        one(store, fact("mira", "Y", request_id="r", digest=b"2"))
    assert facts(paths) == ["X"]


@pytest.mark.parametrize(
    "does", ["DELETE FROM memory_longterm WHERE id = new.id", "UPDATE memory_longterm SET agent = 'sol'"]
)
def test_a_row_that_a_trigger_takes_away_is_not_acknowledged(store: WritingStore, paths: Paths, does: str) -> None:
    rows(paths.database, f"CREATE TRIGGER taker AFTER INSERT ON memory_longterm BEGIN {does}; END")
    with pytest.raises(Conflict):
        one(store, fact("mira", "X"))
    assert facts(paths) == []


def test_a_constraint_of_theirs_never_replaces_another_row(paths: Paths) -> None:
    """UNIQUE … ON CONFLICT REPLACE would delete the row of another agent."""
    rows(paths.database, "DROP TABLE memory_longterm")
    rows(
        paths.database,
        "CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent TEXT NOT NULL, topic TEXT, fact TEXT NOT NULL "
        "UNIQUE ON CONFLICT REPLACE, source TEXT, confidence REAL, tags TEXT, created_at REAL)",
    )
    again = WritingStore(paths)
    one(again, fact("mira", "X"))
    with pytest.raises(Conflict):
        one(again, fact("sol", "X"))
    assert rows(paths.database, "SELECT agent FROM memory_longterm") == [("mira",)]
    again.close()


def test_a_clock_that_jumped_ahead_is_followed_back(store: WritingStore, clock: Clock) -> None:
    clock.now_s += 3_600
    one(store, fact())
    clock.now_s -= 3_600
    assert one(store, fact()).created_at == iso(clock.now_s)


def test_one_by_one_ends_with_its_time(store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that SQLite rolled back is run again within the wait; the rest is begun anew by the writer."""
    rows(
        paths.database,
        "CREATE TRIGGER no_bombs BEFORE INSERT ON memory_longterm WHEN new.fact = 'bomb' "
        "BEGIN SELECT raise(ROLLBACK, 'no bombs'); END",
    )
    outcomes = store.apply([fact("mira", "first"), fact("mira", "bomb"), fact("mira", "last")], wait_s=0.0)
    assert [reply(outcome).agent for outcome in outcomes] == ["mira"]
    assert facts(paths) == ["first"]


def test_a_database_replaced_during_the_wait_is_not_written(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is looked at again with the lock in hand: what was opened may be an unlinked file by then."""
    real = store._db.execute
    away = paths.database.with_name("away.db")

    class Replacing:
        def __getattr__(self, name: str) -> object:
            return getattr(real.__self__, name)

        def execute(self, statement: str, *bindings: object) -> object:
            done = real(statement, *bindings)
            if statement == "BEGIN IMMEDIATE":
                paths.database.rename(away)
            return done

    monkeypatch.setattr(store, "_db", Replacing())
    with pytest.raises(StorageUnavailable, match="removed or replaced"):
        store.apply([fact("mira", "lost")])
    away.rename(paths.database)
    assert facts(paths) == []


# --- state.db ---


def test_a_lost_or_emptied_state_is_never_recreated_in_silence(paths: Paths) -> None:
    WritingStore(paths).close()
    for loss in (paths.state.unlink, lambda: paths.state.write_bytes(b"")):
        for suffix in ("-wal", "-shm"):
            paths.state.with_name(paths.state.name + suffix).unlink(missing_ok=True)
        loss()
        with pytest.raises(Exception, match="missing or empty"):
            WritingStore(Paths(paths.database))


def test_a_damaged_state_is_named(paths: Paths) -> None:
    store = WritingStore(paths)
    for n in range(50):
        one(store, fact("mira", f"fact {n}", request_id=f"r{n}"))
    store.close()
    content = bytearray(paths.state.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    paths.state.write_bytes(content)
    with pytest.raises(Exception, match=r"state\.db cannot be used"):
        WritingStore(Paths(paths.database))


def test_a_state_that_was_moved_refuses_requests_and_no_other_writes(store: WritingStore, paths: Paths) -> None:
    paths.state.rename(paths.state.with_name("away"))
    with_id, without = store.apply([fact("mira", "a", request_id="r"), fact("mira", "b")])
    assert isinstance(with_id.error, StorageUnavailable)
    assert "state.db" in str(with_id.error)
    assert reply(without).agent == "mira"
    assert not store.state_in_place
    assert facts(paths) == ["b"]


def test_an_older_record_is_replayed_by_a_newer_program(store: WritingStore) -> None:
    first = one(store, fact("mira", "once", request_id="r"))
    state: State = store._state
    state._db.execute("UPDATE requests SET reply = json_set(reply, '$.colour', 'red')")
    assert one(store, fact("mira", "once", request_id="r")).id == first.id


def test_a_unit_that_raises_anything_is_an_outcome(store: WritingStore, paths: Paths) -> None:
    def broken(units: WriteUnits, at_s: float) -> None:
        raise KeyError("x")

    (outcome, after) = store.apply([Write(broken), fact("mira", "after")])
    assert isinstance(outcome.error, KeyError)
    assert reply(after).agent == "mira"
