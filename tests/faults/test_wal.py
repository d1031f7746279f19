"""Another process keeps a read transaction open: the WAL grows, it is said, and it is over when the reader has gone."""

import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest

from storage import limits, wal
from storage.errors import StorageFull
from storage.paths import Paths
from storage.writing import WritingStore
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import LONG, scaled
from tests.storage.writes import fact, one
from tests.support import PROGRAM, Service, eventually, rows, serving
from tests.test_documentation import SOURCES, relative

KIB, MIB = 1024, 1024**2
HOLD_S = scaled(60.0, 600.0)
LOWER = "from storage import limits\nlimits.WAL_BYTES_KEPT, limits.WAL_BYTES_WARN = 256 * 1024, 1024 * 1024\n"
LARGE_BYTES = scaled(96 * MIB, 1_536 * MIB)
GROWN_BYTES = 6 * MIB
"""More than the 1,000 pages that make a COMMIT of SQLite's own accord copy the WAL back."""
TEXT = "The gateway is held open. " * 1_000


def wal_of(database: Path) -> Path:
    """The file of a database's WAL."""
    return database.with_name(database.name + "-wal")


@contextmanager
def held_open(database: Path) -> Iterator[None]:
    """A foreign process that keeps a read transaction open."""
    with ForeignProcess(database) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM memory_longterm")
        yield
        other.execute("COMMIT")


# --- the rules, on the store ---


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> int:
    """A WAL that is long early."""
    monkeypatch.setattr(limits, "WAL_BYTES_KEPT", 256 * KIB)
    monkeypatch.setattr(limits, "WAL_BYTES_WARN", MIB)
    return limits.WAL_BYTES_KEPT


@pytest.fixture
def grown(database: Path, kept: int) -> Iterator[WritingStore]:
    """A store whose WAL has grown behind a reader that has gone since; what was seen while it was there is checked."""
    store = WritingStore(Paths(database))
    with held_open(database):
        while store.wal.bytes < GROWN_BYTES:
            store.apply([fact(text=TEXT) for _ in range(8)])
        assert store.wal.look()
        assert (store.wal.is_held, store.wal.is_large) == (True, True)
    yield store
    store.close()


def test_wal_is_cut_by_the_write_that_uses_it_anew(grown: WritingStore, kept: int) -> None:
    assert grown.wal.look()
    assert (grown.wal.left_bytes, grown.wal.is_held, grown.wal.is_large) == (0, False, False)
    assert grown.wal.bytes >= GROWN_BYTES
    one(grown, fact())
    assert grown.wal.bytes <= kept
    assert not grown.wal.look()


def test_write_does_not_copy_a_held_wal_back(grown: WritingStore, database: Path) -> None:
    """It would do so for seconds, with every other write behind it; the look does it beside them."""
    size = database.stat().st_size
    one(grown, fact())
    grown.checkpoint()
    assert database.stat().st_size == size
    grown.wal.look()
    assert database.stat().st_size > size + MIB


def test_writes_go_on_while_the_wal_is_copied_back(grown: WritingStore) -> None:
    """The look takes no lock that a writer waits for."""
    over, looks = threading.Event(), 0

    def look() -> None:
        nonlocal looks
        while not over.is_set():
            grown.wal.look()
            looks += 1

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for number in range(50):
            one(grown, fact(text=f"{number} {TEXT}"))
    finally:
        over.set()
        looking.join(10)
    assert looks > 0


def test_long_wal_that_nobody_holds_is_not_called_large(database: Path, kept: int) -> None:
    store = WritingStore(Paths(database))
    store._db.wal_autocheckpoint(0)
    store.wal.left_bytes = kept + 1  # as after a look that a reader hindered
    while store.wal.bytes < 2 * MIB:
        store.apply([fact(text=TEXT) for _ in range(8)])
    assert store.wal.look()
    assert not store.wal.is_large
    store.close()


def test_wal_that_a_crash_left_is_not_copied_back_by_the_first_write(database: Path, kept: int) -> None:
    with held_open(database):
        left = WritingStore(Paths(database))
        left.apply([fact(text=TEXT) for _ in range(40)])
        again = WritingStore(Paths(database))
        assert again.wal.is_held
        again.close()
        left.close()


def test_wal_that_cannot_be_copied_back_is_told_by_its_size(
    grown: WritingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown.wal.used_bytes = grown.wal.left_bytes = 0

    def full(_: object) -> None:
        raise apsw.FullError("planted")

    monkeypatch.setattr(wal, "passive_checkpoint", full)
    with pytest.raises(StorageFull):
        grown.wal.look()
    assert grown.wal.is_large
    assert one(grown, fact()).tier == "long"


FAILING_LOOK = """
from storage.wal import WriteAheadLog
def look(self):
    raise OSError("planted")
WriteAheadLog.look = look
"""


def test_look_that_fails_is_logged_once_and_tried_again(database: Path) -> None:
    """Upkeep is never worth the process: without this the janitor, and so the service, would end."""
    with serving(database, fault=FAILING_LOOK) as service:
        eventually(lambda: service.events("wal_not_copied"))
        time.sleep(1.2)  # another look
        service.long("mira", "goes on")
        assert len(service.events("wal_not_copied")) == 1


def test_every_checkpoint_is_passive() -> None:
    """C049 has RESTART as a choice; it makes every writer wait for the readers of all processes, as TRUNCATE does."""
    modes = {
        (relative(path), mode)
        for path in SOURCES
        for mode in re.findall(r"wal_checkpoint\w*\W+(\w+)", path.read_text(encoding="utf-8"), re.IGNORECASE)
    }
    assert {mode for _, mode in modes} == {"PASSIVE"}, modes


# --- C049, on the service ---


def metric(service: Service) -> float:
    """The metric of the WAL's size."""
    text = service.http.get(service.url + "/metrics").text
    return float(re.findall(r"^solos_memory_wal_bytes (\S+)$", text, re.MULTILINE)[0])


def first_line(service: Service) -> str:
    """What `solos-memory status` says first."""
    done = subprocess.run(
        [*PROGRAM, "status", "--url", service.url], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[0]


def health(service: Service) -> dict[str, Any]:
    """/health."""
    return service.rest("GET", "/health")[1]


def test_c049_wal_behind_a_reader_is_told_and_is_short_again_after_it(database: Path) -> None:
    """Ours is a PASSIVE checkpoint: it cannot pass the reader. So it is told, by health, log, metric and status."""
    bounds = (64 * MIB, 16 * MIB) if LONG else (MIB, 256 * KIB)
    largest, written = 0, 0
    with serving(database, fault="" if LONG else LOWER) as service:
        with held_open(database):
            until_s = time.monotonic() + HOLD_S
            while time.monotonic() < until_s:
                service.long("mira", f"{written} {TEXT}")
                written += 1
                largest = max(largest, wal_of(database).stat().st_size)
                if written % 50 == 0:
                    assert service.recall("sol", "gateway held open")
                time.sleep(scaled(0.02, 0.1))
            eventually(lambda: health(service)["reasons"] == ["wal_large"])
            assert health(service)["status"] == "degraded"
            assert first_line(service).endswith("degraded (wal_large)")
            assert metric(service) >= largest > bounds[0]
        ended_s = time.monotonic()
        eventually(lambda: health(service)["status"] == "ok", within_s=30)
        over_s = time.monotonic() - ended_s
        began_s = time.monotonic()
        service.long("mira", "after it")
        took_s = time.monotonic() - began_s
        eventually(lambda: _short_again(service, bounds[1]), within_s=10)
        print(
            f"reader of {HOLD_S:.0f} s, {written} writes: WAL up to {largest / MIB:.1f} MiB, "
            f"{metric(service) / MIB:.2f} MiB after it; over within {over_s:.2f} s, "
            f"the next write took {took_s * 1000:.0f} ms"
        )
        (large,) = service.events("wal_large")
        assert large["wal_bytes"] > bounds[0]
        assert "runbooks/health.md#a-large-wal" in large["hint"]
        assert len(service.events("wal_copied")) == 1
        assert service.stats()["writes"]["long"]["acknowledged"] >= written + 1
    assert rows(database, "SELECT count(*) FROM memory_longterm WHERE fact LIKE '%held open%'") == [(written,)]


def _short_again(service: Service, kept_bytes: int) -> bool:
    """Whether the file was cut; each try is a write, for it is a write that cuts it."""
    service.long("mira", "one more")
    return metric(service) <= kept_bytes


def test_large_wal_holds_no_write_up_when_its_reader_goes(database: Path) -> None:
    """In one piece, within one COMMIT, 1.5 GB took 5.9 s."""
    slowest_s = 0.0
    with serving(database) as service:
        with held_open(database), ForeignProcess(database) as other:
            for number in range(LARGE_BYTES // MIB):
                other.execute(
                    "INSERT INTO memory_durable(key, value, updated_at) "
                    f"SELECT 'large/{number}', hex(randomblob({MIB // 2})), 1.7e9"
                )
            eventually(lambda: service.events("wal_large"))
        ended_s = time.monotonic()
        while time.monotonic() < ended_s + 2 or not service.events("wal_copied"):
            assert time.monotonic() < ended_s + 60
            began_s = time.monotonic()
            service.long("mira", "while it is copied back")
            slowest_s = max(slowest_s, time.monotonic() - began_s)
        print(f"WAL of {LARGE_BYTES / MIB:.0f} MiB copied back: slowest write {slowest_s * 1000:.0f} ms")
        assert slowest_s < scaled(5.0, 3.0)  # what is left: its fsync stands in line with that of the copy
        assert wal_of(database).stat().st_size <= limits.WAL_BYTES_KEPT
