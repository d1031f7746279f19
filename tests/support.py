"""What tests share: the real service as a process, and three ways to call it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import httpx2

from storage.store import create_database

AGENTS = ("sol", "mira", "atlas", "ace", "main", "or", "not", "null-agent", "all", "swarm-5")
START_WITHIN_S = 20.0
STOP_WITHIN_S = 12.0
PROGRAM = [sys.executable, "-c", "from transport.cli import main; main()"]
"""The console script, without depending on where pip put it."""


def planted(fault: str) -> list[str]:
    """The console script after some Python that lowers a bound or plants a fault: shipped code knows of neither."""
    return [sys.executable, "-c", f"{fault}\n{PROGRAM[-1]}"]


def fresh_database(folder: Path, name: str = "solos.db", agents: tuple[str, ...] = AGENTS) -> Path:
    """A fresh fleet database with personas of sol and mira."""
    path = folder / name
    create_database(path, agents)
    for agent in ("sol", "mira"):
        persona = (f"persona/{agent}", f"{agent} is calm and exact.", 1.7e9)
        rows(path, "INSERT INTO memory_durable(key, value, updated_at) VALUES (?, ?, ?)", *persona)
    return path


def swarm_folders(database: Path) -> dict[str, str]:
    """The variables that put the swarm's files beside a database: `profiles/` and `shared/`."""
    return {
        "SOLOS_MEMORY_SWARM_PROFILES": str(database.parent / "profiles"),
        "SOLOS_MEMORY_SWARM_SHARED": str(database.parent / "shared"),
    }


def rows(database: Path, sql: str, *bindings: Any) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own, as another process would.

    With APSW, never with the standard library's sqlite3: two SQLite libraries in one process drop each other's POSIX
    locks, and a test then loses rows that no real process would lose.
    """
    with contextlib.closing(apsw.Connection(str(database))) as db:
        db.set_busy_timeout(10_000)
        return list(db.execute(sql, bindings))


class Service:
    """A running `solos-memory serve`."""

    def __init__(
        self,
        database: Path | None,
        *flags: str,
        env: dict[str, str] | None = None,
        port: int = 0,
        fault: str = "",
    ) -> None:
        self.database = database
        where = [] if database is None else ["--db", str(database)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
        if database is not None:
            environment |= swarm_folders(database)
        self.process = subprocess.Popen(
            [*planted(fault), "serve", *where, "--bind", f"127.0.0.1:{port}", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment | (env or {}),
        )
        self.lines: list[dict[str, Any]] = []
        self.raw = ""
        self._serving = threading.Event()
        self._reader = threading.Thread(target=self._read_log, daemon=True)
        self._reader.start()
        self.url = ""
        self.http = httpx2.Client(timeout=30)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for raw in self.process.stdout:
            text = raw.decode("utf-8", "replace")
            self.raw += text
            try:
                line = json.loads(text)
            except ValueError:
                continue
            self.lines.append(line)
            if line.get("event") == "serving":
                self.url = line["url"]
                self._serving.set()
        self._serving.set()

    def wait(self) -> "Service":
        """Wait until it serves."""
        assert self._serving.wait(START_WITHIN_S), self.raw
        assert self.url, f"the service ended with {self.process.wait(5)}:\n{self.raw}"
        return self

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    # --- three ways to call ---

    def rest(
        self, method: str, path: str, /, body: Any = None, *, headers: dict[str, str] | None = None, **query: Any
    ) -> tuple[int, dict[str, Any]]:
        """(status, body) of one REST call."""
        response = self.http.request(method, self.url + path, params=query or None, json=body, headers=headers)
        return response.status_code, response.json()

    def mcp_raw(self, payload: Any, **headers: str) -> httpx2.Response:
        """One POST on /mcp."""
        return self.http.post(
            self.url + "/mcp",
            content=payload if isinstance(payload, bytes) else json.dumps(payload).encode(),
            headers={"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **headers},
        )

    def mcp(self, tool: str, arguments: Any, **headers: str) -> tuple[bool, dict[str, Any]]:
        """(isError, the JSON in the text) of one tool call."""
        call = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": tool, "arguments": arguments},
        }
        response = self.mcp_raw(call, **headers)
        assert response.status_code == 200, response.text
        result = response.json()["result"]
        (content,) = result["content"]
        assert "structuredContent" not in result
        return bool(result.get("isError")), json.loads(content["text"])

    def cli(self, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any]]:
        """(exit code, the JSON printed) of one command against this service."""
        done = subprocess.run(
            [*PROGRAM, *arguments, "--url", self.url],
            capture_output=True,
            timeout=60,
            env=os.environ | (env or {}),
            check=False,
        )
        return done.returncode, json.loads(done.stdout.decode("utf-8")) if done.stdout else {}

    def long(self, agent: str, fact: str, **fields: Any) -> dict[str, Any]:
        """A fact that must be acknowledged."""
        status, body = self.rest("POST", "/v1/long", {"agent": agent, "fact": fact, **fields})
        assert status == 201, body
        return body

    def recall(self, agent: str, q: str, **query: Any) -> list[dict[str, Any]]:
        """The results of a recall that must succeed."""
        status, body = self.rest("GET", "/v1/recall", agent=agent, q=q, **query)
        assert status == 200, body
        return body["results"]

    def stats(self) -> dict[str, Any]:
        """/v1/stats."""
        return self.rest("GET", "/v1/stats")[1]

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        return [line for line in self.lines if line.get("event") == name]

    # --- ends ---

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self._end()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self._end()

    def _end(self) -> int:
        try:
            code = self.process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
            raise
        finally:
            self.http.close()
        self._reader.join(5)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def serving(
    database: Path | None, *flags: str, env: dict[str, str] | None = None, port: int = 0, fault: str = ""
) -> Iterator[Service]:
    """A service that is stopped at the end, whatever happens."""
    service = Service(database, *flags, env=env, port=port, fault=fault)
    try:
        yield service.wait()
    finally:
        if service.process.poll() is None:
            service.stop()
        else:
            service._end()


@contextlib.contextmanager
def foreign_lock(database: Path) -> Iterator[None]:
    """Another process's write lock (here: another connection's, which SQLite treats alike)."""
    db = apsw.Connection(str(database))
    db.set_busy_timeout(10_000)
    try:
        db.execute("BEGIN IMMEDIATE")
        yield
    finally:
        db.execute("ROLLBACK")
        db.close()


def eventually(condition: Any, within_s: float = 5.0) -> None:
    """Wait until a condition holds; fail when it does not in time."""
    until = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < until, "the condition did not come true in time"
        time.sleep(0.02)


def family(pid: int) -> list[int]:
    """A process and those that it has started and that live: a busy service has two for its recalls."""
    children: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that ends in this moment
            children += map(int, (task / "children").read_text().split())
    return [pid, *children]


def rss_bytes(pid: int) -> int:
    """The resident bytes of a process and of those that it has started."""
    pages = 0
    for one in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pages += int(Path(f"/proc/{one}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_s(pid: int) -> float:
    """Seconds of processor time that a process and those that it has started have used; of one that ended: nothing."""
    ticks = 0
    for one in family(pid):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")
