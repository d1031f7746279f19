"""The two servers of the load benchmarks, each a process on a free port: the service on a copy, and the bare stack."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from tests.support import PROGRAM, cpu_s, planted, swarm_folders

ROOT = Path(__file__).parents[2]
REFERENCE = Path(__file__).with_name("reference_app.py")
START_WITHIN_S = 120.0
STOP_WITHIN_S = 30.0
INDEX_WITHIN_S = 3_600.0
ANSWER_WITHIN_S = 30.0
_POLL_S = 0.02


class Server:
    """A server that is up; its output goes to a file, so that reading it costs this process nothing."""

    def __init__(self, command: Sequence[str], log: Path, env: dict[str, str], port: int = 0) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env, cwd=ROOT)
        self.port = port

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str) -> tuple[int, Any]:
        """(status, JSON) of a GET on a connection of its own."""
        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN_S)
        ) as connection:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, json.loads(response.read())

    def connect(self) -> http.client.HTTPConnection:
        """A keep-alive connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN_S)

    def cpu_s(self) -> float:
        """Seconds of CPU that the process has used, with those that it has started."""
        return cpu_s(self.process.pid)

    def wait_for(self, condition: Any, within_s: float) -> None:
        """Wait until a condition of this server holds.

        Raises:
            SystemExit: it ended, or did not come to it in time; its log is shown.
        """
        until = time.monotonic() + within_s
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                said = self.log.read_text(errors="replace")[-3_000:]
                raise SystemExit(f"the server did not come up ({self.process.poll()}):\n{said}")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(STOP_WITHIN_S)
        finally:
            self.process.kill()
            self.process.wait()


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}


def _planting(stamps: Path | None) -> str:
    return "" if stamps is None else f"from tests.bench.stamps import plant; plant({str(stamps)!r})"


@contextlib.contextmanager
def reference(work: Path, stamps: Path | None = None) -> Iterator[Server]:
    """The bare stack, stopped at the end."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run = f"import runpy, sys; sys.argv = ['reference_app.py', '{port}']; runpy.run_path({str(REFERENCE)!r})"
    command = [sys.executable, "-c", f"{_planting(stamps)}\n{run}"]
    server = Server(command, work / "reference.log", _environment(), port)
    try:
        server.wait_for(lambda: _answers(server, "/hello"), START_WITHIN_S)
        yield server
    finally:
        server.stop()


@contextlib.contextmanager
def service(database: Path, stamps: Path | None = None) -> Iterator[Server]:
    """The service, its index up to the tables, stopped at the end."""
    server = started(database, database.with_name("service.log"), stamps=stamps)
    try:
        ready(server)
        server.wait_for(lambda: server.get("/v1/stats")[1]["store"]["index_share"] == 1.0, INDEX_WITHIN_S)
        yield server
    finally:
        server.stop()


def started(database: Path, log: Path, *, port: int = 0, stamps: Path | None = None) -> Server:
    """The service, begun and perhaps not there yet: see ready(). Whoever starts it must stop it."""
    program = PROGRAM if stamps is None else planted(_planting(stamps))
    command = [*program, "serve", "--db", str(database), "--bind", f"127.0.0.1:{port}"]
    return Server(command, log, _environment() | swarm_folders(database), port)


def ready(server: Server) -> None:
    """Wait until it can do its work."""
    server.wait_for(lambda: _serving(server), START_WITHIN_S)
    server.wait_for(lambda: _answers(server, "/health/ready"), START_WITHIN_S)


def _serving(server: Server) -> bool:
    found = re.search(r'"url": ?"http://[^"]*:(\d+)"', server.log.read_text(errors="replace"))
    server.port = int(found[1]) if found else 0
    return found is not None


def _answers(server: Server, path: str) -> bool:
    try:
        return server.get(path)[0] == http.client.OK
    except OSError:
        return False


def copied(source: Path, folder: Path) -> Path:
    """A copy of a database as it stands, though another process may write to it; with its index, where it has one."""
    database = folder / "solos.db"
    _copy(source, database)
    ours = Path(f"{source}.solos-memory")
    if (ours / "state.db").is_file() and (ours / "cache/index.db").is_file():
        copy = Path(f"{database}.solos-memory")
        (copy / "cache").mkdir(parents=True)
        _copy(ours / "state.db", copy / "state.db")
        _copy(ours / "cache/index.db", copy / "cache/index.db")
    return database


def _copy(source: Path, target: Path) -> None:
    with (
        contextlib.closing(apsw.Connection(str(source), flags=apsw.SQLITE_OPEN_READONLY)) as original,
        contextlib.closing(apsw.Connection(str(target))) as copy,
        copy.backup("main", original, "main") as backup,
    ):
        backup.step()


def require_program(name: str, package: str) -> None:
    """Refuse to begin without a program.

    Raises:
        SystemExit: it is not installed; says how to install it.
    """
    if shutil.which(name) is None:
        raise SystemExit(f"{name} is not installed: it drives the load. Debian, Ubuntu: apt-get install {package}")
