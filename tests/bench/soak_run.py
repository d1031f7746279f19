"""One run of the soak: the service on a fleet's database, its restarts, and a sample of it every second."""

import contextlib
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

from storage.store import create_database
from tests.bench.fleet_day import AGENTS, PURGE_S, Call, Fleet, Journal
from tests.bench.load_servers import Server, ready, started
from tests.support import rss_bytes

GENERATOR = Path(__file__).with_name("gen_fleet.py")
EXPLAINED_AFTER_S = 1.0
"""A call that was under way when the process was killed learns it a moment after the next one is ready."""
PURGES_MIN = 4
"""So often at least, however short the run is."""
FOREIGN_LOOKED_UP = 20
_SHOWN_EVERY_S = 10.0


@dataclass(frozen=True)
class Sample:
    """One look at the process and its files. None where there is no process, or no answer."""

    at_s: float
    """Seconds since the beginning."""
    life: int
    """Which of the processes it is: 0, 1, 2."""
    rss_bytes: int | None
    """With its processes for recalls."""
    descriptors: int | None
    threads: int | None
    wal_bytes: int
    index_bytes: int
    """With the index's own WAL."""
    database_bytes: int
    writer_depth: int | None
    readers_depth: int | None


@dataclass(frozen=True)
class Restart:
    """One restart, in seconds since the beginning."""

    how: str
    signal_s: float
    ready_s: float
    start_s: float
    """From the start of the process until it was ready."""


@dataclass
class Soaked:
    """A whole run."""

    minutes: float
    seed: int
    journal: Journal
    began_s: float
    samples: list[Sample] = field(default_factory=list)
    restarts: list[Restart] = field(default_factory=list)
    exit_codes: list[int] = field(default_factory=list)
    """Of the process that got SIGTERM in the middle, and of the one at the end."""

    foreign: dict[int, str] = field(default_factory=dict)
    """What the foreign writer has written, by its row's id."""
    not_recalled: list[str] = field(default_factory=list)
    """Of the newest of these: what a recall did not find."""
    purged_s: float = 0.0
    """When the last purge ended, in unix seconds."""

    def explains(self, call: Call) -> bool:
        """Whether a call failed because the service was being restarted."""
        ended_s = call.ended_s - self.began_s
        return any(one.signal_s <= ended_s <= one.ready_s + EXPLAINED_AFTER_S for one in self.restarts)

    @property
    def unexplained(self) -> Counter[str]:
        """Why calls failed that should not have."""
        failed = [call for call in self.journal.calls if call.code is not None and not self.explains(call)]
        return Counter(f"{call.operation}: {call.code}" for call in failed)


class Sampler:
    """Takes a sample every second, in a thread."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample_all)

    def __enter__(self) -> "Sampler":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _sample_all(self) -> None:
        while not self._stop.wait(1.0):
            self._run.soaked.samples.append(self._run.sample())


class Run:
    """The service over a run, restarts and all."""

    def __init__(self, database: Path, minutes: float, seed: int) -> None:
        self.database = database
        self._life = 0
        self.server = self._started()
        try:
            ready(self.server)
        except BaseException:
            self.server.stop()
            raise
        purge_s = min(minutes * 60 / PURGES_MIN, PURGE_S)
        self.fleet = Fleet(database, self.server.port, seed=seed, purge_s=purge_s)
        self.soaked = Soaked(minutes, seed, self.fleet.journal, time.monotonic())

    def _started(self, port: int = 0) -> Server:
        return started(self.database, self.database.with_name(f"service-{self._life}.log"), port=port)

    @property
    def now_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.soaked.began_s

    def live(self, shown: Callable[[str], None]) -> None:
        """The day with its restarts, and its end: the service is stopped."""
        total_s = self.soaked.minutes * 60
        try:
            with self.fleet.living(), Sampler(self):
                self._until(total_s / 3, shown)
                self._restart(signal.SIGTERM)
                self._until(2 * total_s / 3, shown)
                self._restart(signal.SIGKILL)
                self._until(total_s, shown)
            self.soaked.foreign = self.fleet.foreign_rows()
            self._recall_foreign()
            self._purge_at_last()
        finally:
            self.server.stop()
        self.soaked.exit_codes.append(self.server.process.returncode)

    def _purge_at_last(self) -> None:
        with contextlib.closing(self.server.connect()) as connection:
            connection.request("POST", "/v1/purge", b"{}", {"Content-Type": "application/json"})
            connection.getresponse().read()
        self.soaked.purged_s = time.time()

    def _recall_foreign(self) -> None:
        for row, fact in list(self.soaked.foreign.items())[-FOREIGN_LOOKED_UP:]:
            found = self.server.get("/v1/recall?" + urlencode({"agent": AGENTS[0], "q": fact, "k": 5}))[1]
            if f"long:{row}" not in [memory["id"] for memory in found.get("results", ())]:
                self.soaked.not_recalled.append(fact)

    def _until(self, second: float, shown: Callable[[str], None]) -> None:
        while (left_s := second - self.now_s) > 0:
            time.sleep(min(left_s, _SHOWN_EVERY_S))
            calls = len(self.soaked.journal.calls)
            shown(f"{self.now_s / 60:.1f} min: {calls:,} calls, unexplained {dict(self.soaked.unexplained)}")

    def _restart(self, how: signal.Signals) -> None:
        signal_s = self.now_s
        self._life += 1  # from now on: what its predecessor has while it ends is no steady state
        self.server.process.send_signal(how)
        code = self.server.process.wait(30)
        if how is signal.SIGTERM:
            self.soaked.exit_codes.append(code)
        start_s = self.now_s
        self.server = self._started(self.server.port)
        ready(self.server)
        restart = Restart(how.name, signal_s, self.now_s, self.now_s - start_s)
        self.soaked.restarts.append(restart)

    def sample(self) -> Sample:
        """A look at the process and its files."""
        ours = Path(f"{self.database}.solos-memory/cache")
        process = Path(f"/proc/{self.server.process.pid}")
        depths = self._depths()
        return Sample(
            self.now_s,
            self._life,
            _rss_bytes(self.server.process.pid),
            _count(process / "fd"),
            _count(process / "task"),
            _size(self.database.with_name(self.database.name + "-wal")),
            _size(ours / "index.db") + _size(ours / "index.db-wal"),
            _size(self.database),
            depths.get("writer"),
            depths.get("readers"),
        )

    def _depths(self) -> dict[str, int]:
        try:
            actors = self.server.get("/v1/stats")[1]["actors"]
            return {name: actor["depth"] for name, actor in actors.items()}
        except (OSError, KeyError, ValueError):
            return {}


def _rss_bytes(pid: int) -> int | None:
    try:
        return rss_bytes(pid) or None
    except OSError:  # it is being restarted
        return None


def _count(folder: Path) -> int | None:
    try:
        return len(list(folder.iterdir()))
    except OSError:
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def made(folder: Path, rows: int) -> Path:
    """A fleet's database with so many rows, of seeded text; without any it is a fresh one."""
    database = folder / "solos.db"
    if rows:
        command = [sys.executable, str(GENERATOR), "--sqlite", str(database), "--rows", str(rows)]
        subprocess.run(command, check=True, capture_output=True)
    else:
        create_database(database, AGENTS)
    return database


def soaked(database: Path, minutes: float, seed: int, shown: Callable[[str], None] = print) -> Soaked:
    """Serve a database for a day of its fleet."""
    run = Run(database, minutes, seed)
    run.live(shown)
    return run.soaked
