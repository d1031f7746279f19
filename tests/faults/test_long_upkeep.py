"""C046: long upkeep beside agents that write: no write waits for long or is refused, and health names a busy writer."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from storage import limits
from storage.batch import Write
from storage.following import Follower
from storage.paths import Paths
from storage.search.index import Index
from storage.writing import WritingStore
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import scaled
from tests.storage.conftest import Clock
from tests.storage.writes import one, short
from tests.support import PROGRAM, Service, eventually, rows, serving

ROWS = scaled(15_000, 200_000)
WRITERS = 4
SLOWEST_S = scaled(limits.WRITE_BUDGET_S, 2.0)
WITHIN_S = scaled(60.0, 300.0)
NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {})"
EXPIRED = (
    f"INSERT INTO memory_short(agent, key, value, created_at, expires_at) {NUMBERS.format(ROWS)} "
    "SELECT 'atlas', 'key/' || i, 'value ' || i || ' of the quorum', 1.7e9, 1.7e9 FROM n"
)
FACTS = (
    f"INSERT INTO memory_longterm(agent, fact, created_at) {NUMBERS.format(ROWS)} "
    "SELECT 'atlas', 'bulk ' || i || ' of gateway ' || (i * 7919 % 997), 1.7e9 FROM n"
)


class Slowest:
    """The slowest write of a phase, and what was acknowledged in all."""

    def __init__(self) -> None:
        self.took_s = 0.0
        self.acknowledged = 0
        self._lock = threading.Lock()

    def note(self, took_s: float) -> None:
        """Count one write."""
        with self._lock:
            self.took_s = max(self.took_s, took_s)
            self.acknowledged += 1


@contextmanager
def writing(service: Service) -> Iterator[Slowest]:
    """Agents that write while the block runs; every write must be acknowledged."""
    slowest, over = Slowest(), threading.Event()

    def write(agent: str) -> None:
        with httpx2.Client(timeout=30) as http:
            while not over.wait(0.02):
                began_s = time.monotonic()
                answer = http.post(f"{service.url}/v1/long", json={"agent": agent, "fact": f"{agent} goes on"})
                assert answer.status_code == 201, answer.text
                slowest.note(time.monotonic() - began_s)

    with ThreadPoolExecutor(WRITERS) as threads:
        running = [threads.submit(write, agent) for agent in ("sol", "mira", "ace", "main")[:WRITERS]]
        try:
            yield slowest
        finally:
            over.set()
        for one_of_them in running:
            one_of_them.result(30)


# --- C046, on the service ---


def test_c046_agents_write_on_through_every_long_upkeep(database: Path, tmp_path: Path) -> None:
    found: dict[str, tuple[float, float]] = {}
    with serving(database) as service, ForeignProcess(database) as other, writing(service) as slowest:

        def phase(name: str, work: Callable[[], object]) -> None:
            slowest.took_s, began_s = 0.0, time.monotonic()
            work()
            found[name] = (time.monotonic() - began_s, slowest.took_s)

        other.execute(EXPIRED)
        phase("catch-up of expired keys", lambda: _followed(service))
        phase("purge", lambda: _purged(service))
        other.execute(FACTS)
        phase("catch-up", lambda: _followed(service))
        phase("backup", lambda: _backed_up(database, tmp_path / "backup"))
        _remove_index(database)
        phase("rebuild", lambda: _followed(service, remade=True))
        other.execute("DELETE FROM memory_longterm WHERE fact LIKE 'bulk %'")
        phase("sweep", lambda: eventually(lambda: _held(service) <= slowest.acknowledged, within_s=WITHIN_S))
        assert service.rest("GET", "/health")[1]["status"] == "ok"
        assert service.stats()["refused"] == 0
    for name, (lasted_s, took_s) in found.items():
        print(f"{name} of {ROWS} rows: {lasted_s:.1f} s, slowest write meanwhile {took_s * 1000:.0f} ms")
    assert max(took_s for _, took_s in found.values()) < SLOWEST_S
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(slowest.acknowledged,)]
    assert rows(database, "SELECT count(*) FROM memory_short") == [(0,)]


def _followed(service: Service, *, remade: bool = False) -> None:
    """Wait until the index has followed the tables."""
    if remade:
        eventually(lambda: service.events("index_remade") or service.stats()["store"]["index_share"] < 1.0)
    eventually(lambda: service.stats()["store"]["index_rows_behind"] == 0, within_s=WITHIN_S)


def _purged(service: Service) -> None:
    status, body = service.rest("POST", "/v1/purge", {})
    assert (status, body["remaining"]) == (200, 0)
    while body["purged"]:  # a call that its time has cut leaves the rest to the next one
        _, body = service.rest("POST", "/v1/purge", {})


def _backed_up(database: Path, to: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "backup", "--db", str(database), "--to", str(to)], capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def _remove_index(database: Path) -> None:
    for end in ("", "-wal", "-shm"):
        (database.with_name(database.name + ".solos-memory") / "cache" / f"index.db{end}").unlink(missing_ok=True)


def _held(service: Service) -> int:
    return int(service.stats()["store"]["rows"]["long"])


BUSY_WRITER = """
import time
from pathlib import Path
from storage import limits
from storage.writing import WritingStore
limits.BUSY_TIMEOUT_MS = 500
catch_up = WritingStore.catch_up
held = []
def once(self, *given, **options):
    if not held and Path(FILE).exists():
        held.append(True)
        time.sleep(3)
    return catch_up(self, *given, **options)
WritingStore.catch_up = once
"""


def test_health_names_a_writer_that_one_piece_of_work_keeps(database: Path, tmp_path: Path) -> None:
    """Such as a write to a disk that hangs. A write behind it waits, and is neither lost nor doubled."""
    sign = tmp_path / "hang"
    with serving(database, fault=f"FILE = {str(sign)!r}\n{BUSY_WRITER}") as service, ThreadPoolExecutor(1) as thread:
        service.long("sol", "before")
        assert service.rest("GET", "/health")[1]["status"] == "ok"
        sign.touch()
        eventually(lambda: service.rest("GET", "/health")[1]["reasons"] == ["writer_busy"], within_s=10)
        waiting = thread.submit(lambda: httpx2.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": "behind"}))
        assert service.recall("sol", "before")
        assert waiting.result(20).status_code == 201
        eventually(lambda: service.rest("GET", "/health")[1]["status"] == "ok")
    assert rows(database, "SELECT fact FROM memory_longterm ORDER BY id") == [("before",), ("behind",)]


# --- each piece is a slice ---


def test_purge_removes_everything_in_one_call_and_a_slice_in_one_transaction(database: Path) -> None:
    fault = "from storage import limits\nlimits.PURGE_ROWS = 3"
    rows(
        database,
        f"INSERT INTO memory_short(agent, key, value, created_at, expires_at) {NUMBERS.format(10)} "
        "SELECT 'sol', 'key/' || i, 'gone', 1.7e9, 1.7e9 FROM n",
    )
    with serving(database, fault=fault) as service:
        service.rest("POST", "/v1/short", {"agent": "sol", "key": "kept", "value": "v"})
        assert service.rest("POST", "/v1/purge", {})[1] == {"ok": True, "purged": 10, "remaining": 1}
        counts = service.stats()["writes"]["short"]
        assert (counts["issued"], counts["acknowledged"]) == (2, 2)
    assert rows(database, "SELECT key FROM memory_short") == [("kept",)]


@pytest.fixture
def clock() -> Clock:
    """The clock of the store."""
    return Clock()


@pytest.fixture
def store(database: Path, clock: Clock) -> Iterator[WritingStore]:
    """A store of its own."""
    opened = WritingStore(Paths(database), clock=clock)
    yield opened
    opened.close()


def test_one_transaction_of_a_purge_is_bounded(
    store: WritingStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PURGE_ROWS", 3)
    store.apply([short(key=str(number), ttl_s=1) for number in range(8)])
    clock.now_s += 2
    purges = [one(store, Write(lambda units, at_s: units.purge_short(at_s))).purged for _ in range(4)]
    assert purges == [3, 3, 2, 0]


def test_sweep_looks_at_a_slice_at_a_time_however_many_rows_others_deleted(
    store: WritingStore, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One slice forgot all that was gone between two rows: 100,000 rows in 1.5 s."""
    pieces: list[int] = []
    refresh = Follower.refresh

    def counted(follower: Follower, touched: list[tuple[str, int]]) -> None:
        pieces.append(len(touched))
        refresh(follower, touched)  # type: ignore[arg-type]

    with ForeignProcess(database) as other:
        other.execute(FACTS.replace(str(ROWS), "600"))
        while not store.catch_up():
            pass
        while not store.sweep():
            pass
        other.execute("DELETE FROM memory_longterm WHERE id BETWEEN 3 AND 590")
    monkeypatch.setattr(limits, "CATCH_UP_ROWS", 50)
    monkeypatch.setattr(Follower, "refresh", counted)
    while not store.sweep():
        pass
    assert (sum(pieces), max(pieces)) == (588, 50)
    assert store.rows_held() == 12


def test_slice_of_a_catch_up_is_bounded_by_its_text(
    store: WritingStore, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """250 rows of 64 KB took 0.7 s in one piece."""
    pieces: list[int] = []
    follow = Index.follow

    def counted(index: Index, tier: str, contents: list[object], mark: int | None = None) -> None:
        pieces.append(len(contents))
        follow(index, tier, contents, mark)  # type: ignore[arg-type]

    monkeypatch.setattr(limits, "CATCH_UP_CHARS", 1_000)
    monkeypatch.setattr(Index, "follow", counted)
    with ForeignProcess(database) as other:
        other.execute(FACTS.replace(str(ROWS), "10").replace("'bulk '", "hex(zeroblob(240))"))
    while not store.catch_up():
        pass
    assert (sum(pieces), max(pieces)) == (10, 3)
