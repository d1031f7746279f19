"""Traps 3 and 8 of the design, and the batch that SQLite rolls back: what APSW and SQLite do unasked."""

import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest
import trio

from storage import limits
from storage.batch import Outcome, Write
from storage.database import close, fetch, open_reader, open_writer, transaction
from storage.errors import Conflict, StorageFull
from storage.paths import Paths
from storage.records import Remembered
from storage.state import Request
from storage.writing import WritingStore
from tests.faults.disk import facts
from tests.faults.foreign import ForeignProcess
from tests.support import Service, rows, serving

HOLD_S = 1.0
STILL_MAX_S = 0.5
INSERT = "INSERT INTO memory_longterm(agent, fact) VALUES ('sol', ?)"
Unit = Callable[[apsw.Connection], Any]


def run_in_transaction(database: Path, unit: Unit) -> None:
    """Run a unit in `transaction()`."""
    db = open_writer(database)
    try:
        with transaction(db):
            unit(db)
    finally:
        close(db)


def run_in_batch(database: Path, unit: Unit) -> None:
    """Run a unit in the writer's batch."""
    store = WritingStore(Paths(database))
    try:
        (outcome,) = store.apply([Write(lambda units, _at_s: unit(units.db))])
        assert outcome.error is None, outcome.error
    finally:
        store.close()


both_transactions = pytest.mark.parametrize("run", [run_in_transaction, run_in_batch])


async def longest_standstill_s(work: Callable[[], object]) -> float:
    """Run `work` in a thread; the longest time in which the event loop did not turn meanwhile."""
    longest_s = 0.0

    async def turn() -> None:
        nonlocal longest_s
        last_s = time.perf_counter()
        try:
            while True:
                await trio.sleep(0.005)
                longest_s, last_s = max(longest_s, time.perf_counter() - last_s), time.perf_counter()
        finally:
            longest_s = max(longest_s, time.perf_counter() - last_s)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(turn)
        await trio.to_thread.run_sync(work)
        nursery.cancel_scope.cancel()
    return longest_s


# --- trap 3: no `with db:`, no deferred transaction, no close without a checkpoint, never TRUNCATE ---


@both_transactions
async def test_busy_wait_leaves_the_event_loop_alone(database: Path, run: Callable[[Path, Unit], None]) -> None:
    waited_s = 0.0

    def work() -> None:
        nonlocal waited_s
        began_s = time.perf_counter()
        run(database, lambda db: db.execute(INSERT, ("waited",)))
        waited_s = time.perf_counter() - began_s

    with trio.fail_after(20), ForeignProcess(database) as other:
        other.hold(HOLD_S)
        standstill_s = await longest_standstill_s(work)
    assert facts(database) == ["waited"]
    assert waited_s > HOLD_S / 2, "the lock was not met"
    assert standstill_s < STILL_MAX_S


@both_transactions
def test_unit_waits_for_foreign_writer(database: Path, run: Callable[[Path, Unit], None]) -> None:
    """A unit that reads before it writes is not refused because another process wrote in between."""
    read, committed = threading.Event(), threading.Event()

    def read_then_write(db: apsw.Connection) -> None:
        fetch(db, "SELECT count(*) FROM memory_longterm")
        read.set()
        assert committed.wait(10)
        db.execute(INSERT, ("ours",))

    with ForeignProcess(database) as other, ThreadPoolExecutor(1) as thread:
        other.execute("BEGIN IMMEDIATE")
        other.execute(INSERT.replace("?", "'theirs'"))
        running = thread.submit(run, database, read_then_write)
        read.wait(0.5)  # a deferred transaction reads at once; an immediate one waits for the commit below
        other.execute("COMMIT")
        committed.set()
        running.result(20)
    assert facts(database) == ["theirs", "ours"]


def test_close_checkpoints_first(database: Path, tmp_path: Path) -> None:
    """close() leaves nothing to the checkpoint that `db.close()` makes holding the GIL, and cuts no shared WAL."""
    other = open_reader(database)
    fetch(other, "SELECT 1 FROM memory_longterm")
    db = open_writer(database)
    with transaction(db):
        db.execute(INSERT, ("in the file itself",))
    close(db)
    wal = database.with_name(database.name + "-wal")
    without_wal = shutil.copy(database, tmp_path / "copy.db")
    assert wal.stat().st_size > 0, "the WAL of a shared database was truncated"
    other.close()
    assert facts(Path(without_wal)) == ["in the file itself"]


# --- trap 8, its last sentence: APSW runs a statement only as far as it is stepped ---


def test_string_of_several_statements_runs_to_its_end() -> None:
    db = apsw.Connection(":memory:")
    try:
        fetch(db, "CREATE TABLE t (x); INSERT INTO t VALUES (1) RETURNING x; INSERT INTO t VALUES (2) RETURNING x;")
        assert fetch(db, "SELECT x FROM t ORDER BY x") == [(1,), (2,)]
    finally:
        db.close()


def test_read_leaves_no_transaction_open(database: Path) -> None:
    """An abandoned cursor keeps its snapshot, and with it the WAL, for as long as it lives."""
    db = open_writer(database)
    try:
        db.execute("INSERT INTO memory_longterm(agent, fact) VALUES ('sol', 'a'), ('sol', 'b')")
        found = fetch(db, "SELECT fact FROM memory_longterm ORDER BY id")
        assert db.txn_state() == apsw.SQLITE_TXN_NONE
        assert found == [("a",), ("b",)]
    finally:
        close(db)


# --- the batch that SQLite rolls back by itself ---

POISON = """CREATE TRIGGER poison BEFORE INSERT ON memory_longterm WHEN NEW.fact LIKE 'poison%'
BEGIN SELECT RAISE(ROLLBACK, 'a trigger of the fleet'); END"""


def remember(fact: str, request_id: str | None = None) -> Write[Remembered]:
    """A write of one fact by sol."""
    request = None if request_id is None else Request("sol", request_id, request_id.encode(), "long")
    return Write(
        lambda units, at_s: units.remember_long(
            at_s, agent="sol", topic=None, fact=fact, source=None, confidence=None, tags=()
        ),
        request,
    )


def prepared(database: Path, statement: str) -> None:
    """Change the database before anything is open."""
    db = open_writer(database)
    fetch(db, statement)
    close(db)


def acknowledged(database: Path, outcomes: list[Outcome]) -> list[str]:
    """What the rows of the acknowledged outcomes hold."""
    db = open_reader(database)
    try:
        ids = [outcome.reply.id.partition(":")[2] for outcome in outcomes if outcome.error is None]
        return [fetch(db, "SELECT fact FROM memory_longterm WHERE id = ?", (row,))[0][0] for row in ids]
    finally:
        db.close()


@pytest.mark.parametrize("with_request_ids", [False, True])
def test_batch_rolled_back_by_a_trigger_runs_again_one_by_one(
    database: Path, monkeypatch: pytest.MonkeyPatch, with_request_ids: bool
) -> None:
    monkeypatch.setattr(limits, "BATCH_S_MAX", 60.0)
    prepared(database, POISON)
    texts = ["a", "b", "poison 1", "c", "poison 2", "d"]
    store = WritingStore(Paths(database))
    try:
        outcomes = store.apply([remember(text, text if with_request_ids else None) for text in texts])
        assert [type(outcome.error) for outcome in outcomes] == [
            Conflict if text.startswith("poison") else type(None) for text in texts
        ]
        assert facts(database) == ["a", "b", "c", "d"]
        assert acknowledged(database, outcomes) == ["a", "b", "c", "d"]
        assert store.apply([remember("after")])[0].error is None
    finally:
        store.close()
    assert facts(database) == ["a", "b", "c", "d", "after"]


def test_requests_of_a_rolled_back_batch_are_written_once(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BATCH_S_MAX", 60.0)
    prepared(database, POISON)
    batch = [remember("a", "1"), remember("poison", "2"), remember("b", "3")]
    store = WritingStore(Paths(database))
    try:
        first, again = store.apply(batch), store.apply(batch)
    finally:
        store.close()
    assert facts(database) == ["a", "b"]
    assert [outcome.reply.id for outcome in first if outcome.reply] == [o.reply.id for o in again if o.reply]
    assert [outcome.replayed for outcome in again] == [True, False, True]
    db = apsw.Connection(str(Paths(database).state))
    assert fetch(db, "SELECT request_id, settled FROM requests ORDER BY request_id") == [("1", 1), ("3", 1)]
    db.close()


def test_full_disk_acknowledges_nothing_that_is_not_there(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that does not fit is refused; the small ones of its batch are on disk, and none of them twice."""
    monkeypatch.setattr(limits, "BATCH_S_MAX", 60.0)
    store = WritingStore(Paths(database))
    try:
        pages = store._db.pragma("page_count")
        store._db.pragma("max_page_count", pages + 4)
        outcomes = store.apply([remember("small"), remember("x" * 60_000), remember("small too")])
        assert [type(outcome.error) for outcome in outcomes] == [type(None), StorageFull, type(None)]
        assert not store._db.in_transaction
        store._db.pragma("max_page_count", 1_000_000)
        assert store.apply([remember("after")])[0].error is None
    finally:
        store.close()
    assert facts(database) == ["small", "small too", "after"]


def test_poison_among_concurrent_writes_takes_nobody_along(database: Path) -> None:
    """What queued behind a foreign lock is one batch: the poison in it is refused, the others are on disk."""
    prepared(database, POISON)
    texts = [f"fact {number}" if number % 7 else f"poison {number}" for number in range(1, 22)]
    with serving(database) as service, ForeignProcess(database) as other, ThreadPoolExecutor(len(texts)) as threads:
        other.hold(HOLD_S)
        answers = list(threads.map(lambda text: _post(service, text), texts))
    assert [status for _, status in answers] == [409 if text.startswith("poison") else 201 for text in texts]
    assert sorted(rows(database, "SELECT fact FROM memory_longterm")) == sorted(
        (text,) for text in texts if not text.startswith("poison")
    )


def _post(service: Service, fact: str) -> tuple[str, int]:
    return fact, service.rest("POST", "/v1/long", {"agent": "sol", "fact": fact})[0]
