"""A fleet's day, faster: eleven agents in turns over REST and MCP, short keys that expire, a purge, a foreign writer.

Each agent is a thread that does what the hooks of a real one do: a briefing and recalls when a turn starts; an episode,
sometimes a fact, short keys and, of a worker, an event of its mission when it ends. A write is sent with a request id
again and again until it is acknowledged, so that a restart loses nothing and doubles nothing; the journal keeps what
was acknowledged. The foreign writer is a process that inserts rows with an SQLite of its own.
"""

import contextlib
import http.client
import json
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from transport.operations import BY_NAME

AGENTS = ("sol", "min", "mira", "ace", "atlas", "tam", "eva", "eve", "alpha", "young-ops", "scribe")
WORKERS = ("sol", "mira", "atlas")
MISSION = "fleet-day"
MARK = "fleet-day"
"""The topic of the day's facts, and the event type of its episodes."""
SPEED = 20.0
TURN_S = 60.0 / SPEED
"""From one turn of an agent to its next, on average: a minute of a real one's."""
TTL_S = (60.0 / SPEED, 600.0 / SPEED)
PURGE_S = 3_600.0 / SPEED
FOREIGN_S = 30.0 / SPEED
AGAIN_S = 0.25
GIVE_UP_S = 30.0
ANSWER_WITHIN_S = 15.0
"""As Hermes waits."""
_HEADERS = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
_WORDS = (
    "gateway relay token broker port queue metrics vault deploy index backup handoff mesh cache ledger probe "
    "stopped answered moved restarted failed listens waits holds drops recovers after before under beside without"
).split()

_FOREIGN = """
import json, sqlite3, sys, time
path, pause_s = sys.argv[1], float(sys.argv[2])
db = sqlite3.connect(path, isolation_level=None, timeout=10)
for number in range(10**9):
    fact = f"foreign fact number{number} of another process: the quota of lane{number % 97} is {number * 13 % 1009}"
    row = db.execute("INSERT INTO memory_longterm(agent, topic, fact, created_at) VALUES ('scribe', 'foreign', ?, ?)",
                     (fact, time.time())).lastrowid
    print(json.dumps([row, fact]), flush=True)
    time.sleep(pause_s)
"""


@dataclass(frozen=True)
class Call:
    """One attempt at a call and how it ended."""

    ended_s: float
    """On the monotonic clock."""
    operation: str
    ms: float
    code: str | None
    """Why it failed; None where it was answered."""


@dataclass
class Journal:
    """What the fleet did and was told. Shared by its threads."""

    calls: list[Call] = field(default_factory=list)
    rows: dict[str, str] = field(default_factory=dict)
    """The text of each acknowledged row, by the memory's id."""
    states: dict[str, str] = field(default_factory=dict)
    """The value of each agent's key `state`, which never expires."""
    events: dict[str, list[str]] = field(default_factory=dict)
    """The summaries of each worker's acknowledged events."""
    given_up: list[str] = field(default_factory=list)
    """Writes that were never acknowledged."""
    crashed: list[str] = field(default_factory=list)
    """Threads of the fleet that ended by a bug of their own."""
    purges: int = 0


class Caller:
    """Calls operations for one agent, over one of the transports, and notes each attempt."""

    def __init__(self, port: int, journal: Journal, *, over_mcp: bool) -> None:
        self._port = port
        self._journal = journal
        self._over_mcp = over_mcp
        self._connection: http.client.HTTPConnection | None = None

    @contextlib.contextmanager
    def burst(self) -> Iterator[None]:
        """Calls in here share a connection; a hook's process has one and ends with it."""
        try:
            yield
        finally:
            self._close()

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def once(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """One attempt; None where it failed."""
        began = time.monotonic()
        code: str | None = None
        answer: dict[str, Any] | None = None
        try:
            answer = self._send(operation, arguments)
            if answer.get("ok") is False:
                code, answer = str(answer["error"]["code"]), None
        except (OSError, ValueError, http.client.HTTPException) as error:
            code = type(error).__name__
            self._close()
        now = time.monotonic()
        self._journal.calls.append(Call(now, operation, (now - began) * 1000, code))
        return answer

    def until_acknowledged(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """Send a write with its request id until it is acknowledged; None, and noted, where it never is."""
        until = time.monotonic() + GIVE_UP_S
        while (answer := self.once(operation, **arguments)) is None:
            if time.monotonic() > until:
                self._journal.given_up.append(f"{operation} {arguments.get('request_id')}")
                return None
            time.sleep(AGAIN_S)
        return answer

    def _send(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_WITHIN_S)
        operation = BY_NAME[name]
        if self._over_mcp and operation.tool:
            params = {"name": name, "arguments": arguments}
            call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            self._connection.request("POST", "/mcp", json.dumps(call), _HEADERS)
            answer = _object(self._connection.getresponse().read())
            if "result" not in answer:
                raise ValueError(f"no result: {str(answer)[:100]}")
            return _object(answer["result"]["content"][0]["text"])
        if operation.writes:
            self._connection.request("POST", operation.path, json.dumps(arguments), _HEADERS)
        else:
            self._connection.request("GET", f"{operation.path}?{urlencode(arguments)}")
        return _object(self._connection.getresponse().read())


def _object(text: str | bytes) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(text)
    return answer


class Agent:
    """One agent's day."""

    def __init__(self, name: str, port: int, journal: Journal, seed: int) -> None:
        self.name = name
        self._journal = journal
        self._pick = random.Random(f"{seed} {name}")
        self._caller = Caller(port, journal, over_mcp=AGENTS.index(name) % 2 == 1)
        self._turns = 0

    def live(self, stop: threading.Event) -> None:
        """Turn after turn, until the day is over."""
        stop.wait(self._pick.uniform(0, TURN_S))
        while not stop.is_set():
            self._turns += 1
            with self._caller.burst():
                self._start()
            stop.wait(self._pick.uniform(0.2, 0.6) * TURN_S)
            with self._caller.burst():
                self._end()
            stop.wait(min(self._pick.expovariate(1 / (0.6 * TURN_S)), 3 * TURN_S))

    def _text(self, what: str) -> str:
        words = " ".join(self._pick.choices(_WORDS, k=self._pick.randint(8, 25)))
        return f"{what} number{self._turns} of {self.name}: {words}"

    def _chance(self, share: float) -> bool:
        return self._pick.random() < share

    def _start(self) -> None:
        question = " ".join(self._pick.choices(_WORDS, k=self._pick.randint(2, 6)))
        self._caller.once("briefing", agent=self.name, q=question)
        for _ in range(self._pick.choice((0, 1, 1, 2))):
            self._caller.once("recall", agent=self.name, q=self._text("what about"))
        if self._chance(0.3):
            self._caller.once("get_short", agent=self.name)
        if self.name in self._journal.events and self._chance(0.2):
            self._caller.once("swarm_resume", agent=self.name, mission=MISSION)

    def _end(self) -> None:
        session = f"{self.name}-{self._turns // 10}"
        self._row("remember_episodic", "episode", "summary", event_type=MARK, session=session)
        if self._chance(0.25):
            self._row("remember_long", "fact", "fact", topic=MARK, tags=["day"])
        if self._chance(0.5):
            self._key()
        if self.name in WORKERS:
            self._event()

    def _row(self, operation: str, what: str, named: str, **fields: Any) -> None:
        text = self._text(what)
        request_id = f"{self.name}-{what}-{self._turns}"
        sent = {"agent": self.name, named: text, "request_id": request_id, **fields}
        answer = self._caller.until_acknowledged(operation, **sent)
        if answer is not None:
            self._journal.rows[answer["id"]] = text

    def _key(self) -> None:
        state = self._text("state")
        answer = self._caller.until_acknowledged("remember_short", agent=self.name, key="state", value=state)
        if answer is not None:
            self._journal.states[self.name] = state
        ttl_s = round(self._pick.uniform(*TTL_S), 1)
        key = f"scratch-{self._pick.randrange(20)}"
        self._caller.until_acknowledged("remember_short", agent=self.name, key=key, value=state, ttl_s=ttl_s)

    def _event(self) -> None:
        summary = self._text("event")
        request_id = f"{self.name}-event-{self._turns}"
        sent = {"agent": self.name, "kind": "mission", "mission": MISSION, "event_type": "checkpoint"}
        if self._caller.until_acknowledged("swarm_write", **sent, summary=summary, request_id=request_id) is not None:
            self._journal.events.setdefault(self.name, []).append(summary)


class Fleet:
    """All agents, the purge and the foreign writer, for as long as the block lasts."""

    def __init__(self, database: Path, port: int, *, seed: int, purge_s: float = PURGE_S) -> None:
        self.journal = Journal()
        self.foreign_log = database.with_name("foreign.jsonl")
        self._database = database
        self._port = port
        self._purge_s = purge_s
        self._seed = seed
        self._stop = threading.Event()

    @contextlib.contextmanager
    def living(self) -> Iterator[None]:
        """The day. At its end every write that was begun has been acknowledged or given up."""
        lives = [Agent(name, self._port, self.journal, self._seed).live for name in AGENTS]
        threads = [threading.Thread(target=self._kept, args=(live,)) for live in (*lives, self._purge)]
        with self._foreign_writer():
            for thread in threads:
                thread.start()
            try:
                yield
            finally:
                self._stop.set()
                for thread in threads:
                    thread.join()

    def _kept(self, live: Callable[[threading.Event], None]) -> None:
        try:
            live(self._stop)
        except Exception as error:
            self.journal.crashed.append(repr(error))
            raise

    def _purge(self, stop: threading.Event) -> None:
        caller = Caller(self._port, self.journal, over_mcp=False)
        while not stop.wait(self._purge_s):
            with caller.burst():
                if caller.until_acknowledged("purge") is not None:
                    self.journal.purges += 1

    @contextlib.contextmanager
    def _foreign_writer(self) -> Iterator[None]:
        with self.foreign_log.open("wb") as out:
            command: Sequence[str] = [sys.executable, "-c", _FOREIGN, str(self._database), str(FOREIGN_S)]
            process = subprocess.Popen(command, stdout=out)
            try:
                yield
                if process.poll() is not None:
                    self.journal.crashed.append(f"the foreign writer ended with {process.returncode}")
            finally:
                process.kill()
                process.wait()

    def foreign_rows(self) -> dict[int, str]:
        """The rows that the foreign writer committed and told of."""
        lines = self.foreign_log.read_text(encoding="utf-8").splitlines()
        return dict(map(json.loads, lines))
