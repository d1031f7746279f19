"""A load of HTTP requests, in a process of its own, so that it takes nothing from the test that asks for it.

Open loop: requests come at a rate, whether or not earlier ones were answered; one that finds every connection busy is
not sent, and counted. Closed loop: each connection asks again when it was answered, at once or after a pause.

Plain sockets and one thread: it shares the machine with the service that it loads.
"""

import heapq
import json
import random
import selectors
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

ROOT = Path(__file__).parents[2]
ANSWER_WITHIN_S = 20.0
"""How long it waits for answers after its last request: longer than the service lets anybody wait."""
_SAMPLES_MAX = 5


@dataclass
class Plan:
    """What to send."""

    port: int
    seconds: float
    connections: int
    agents: Sequence[str] = ()
    """Connection n is agent n of these, over and over."""
    questions: Sequence[str] = ()
    write_share: float = 0.0
    rate_per_s: float = 0.0
    """Of an open loop; 0 makes it a closed one."""
    pause_s: tuple[float, float] = (0.0, 0.0)
    """Of a closed loop: between an answer and the connection's next request, drawn evenly."""
    path: str = ""
    """Where it is not empty, every request is a GET of it."""
    seed: int = 0


@dataclass
class Load:
    """What came of it."""

    seconds: float = 0.0
    asked: int = 0
    unsent: int = 0
    """Requests that found no connection free."""
    answers: dict[str, int] = field(default_factory=dict)
    """How many answers there were of each status."""
    late: int = 0
    """Answers that came after the time was over; they do not count for `good_per_s`."""
    bad: list[str] = field(default_factory=list)
    """The first of what was neither a 2xx nor a 503 with Retry-After."""
    bad_count: int = 0
    good_per_s: float = 0.0
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    """Of answers with 2xx, as their sender sees them."""

    def __str__(self) -> str:
        return (
            f"{self.good_per_s:.0f} 2xx/s, {self.asked} sent, {self.unsent} unsent, answers {self.answers}, "
            f"bad {self.bad_count}, p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"
        )


class Running:
    """A load in its process."""

    def __init__(self, plan: Plan) -> None:
        self._seconds = plan.seconds
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.open_loop"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            text=True,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(asdict(plan)) + "\n")
        self.process.stdin.flush()

    def result(self) -> Load:
        """Wait for its end, for a bounded time. The process is gone afterwards, whatever happens."""
        try:
            out, _ = self.process.communicate(timeout=self._seconds + ANSWER_WITHIN_S + 10)
        finally:
            self.process.kill()
            self.process.wait()
        assert self.process.returncode == 0, "the load's process failed; see its traceback"
        return Load(**json.loads(out))


def load(plan: Plan) -> Load:
    """Run one load to its end."""
    return Running(plan).result()


class _Connection:
    """One keep-alive connection with at most one request under way."""

    def __init__(self, number: int, port: int) -> None:
        self.number = number
        self._port = port
        self.began_s = 0.0
        self._received = bytearray()
        self.socket = self._connect()

    def _connect(self) -> socket.socket:
        connected = socket.create_connection(("127.0.0.1", self._port), timeout=ANSWER_WITHIN_S)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connected

    def renew(self) -> None:
        """Leave it, and connect anew."""
        self.socket.close()
        self._received.clear()
        self.socket = self._connect()

    def ask(self, request: bytes) -> None:
        """Send one request."""
        self.began_s = time.perf_counter()
        self.socket.sendall(request)

    def answer(self) -> tuple[int, bytes, bytes] | None:
        """(status, head in small letters, body) once the answer is whole; None before.

        Raises:
            OSError: the other side left.
        """
        part = self.socket.recv(65_536)
        if not part:
            raise ConnectionError("closed before the answer was whole")
        self._received += part
        head, end, body = bytes(self._received).partition(b"\r\n\r\n")
        if not end:
            return None
        head = head.lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or b"0")
        if len(body) < length:
            return None
        self._received.clear()
        return int(head.split(b" ", 2)[1]), head, body


class _Generator:
    """Sends a plan's requests, and notes what comes back."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._pick = random.Random(plan.seed)
        self._load = Load(seconds=plan.seconds)
        self._answers: Counter[str] = Counter()
        self._took_ms: list[float] = []
        self._busy: set[int] = set()
        self._selector = selectors.DefaultSelector()
        self._connections = [_Connection(number, plan.port) for number in range(plan.connections)]
        for connection in self._connections:
            self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._free = list(self._connections)
        self._due: list[tuple[float, int]] = []
        """Of a closed loop: when a connection asks again, and which."""

    def run(self) -> Load:
        """Send for the plan's time, then wait for the answers that are owed."""
        began_s = time.perf_counter()
        self._until_s = began_s + self._plan.seconds
        self._next_s = began_s
        self._due = [(began_s + self._pause_s(), number) for number in range(len(self._connections))]
        heapq.heapify(self._due)
        send = self._send_at_rate if self._plan.rate_per_s else self._send_due
        while (now_s := time.perf_counter()) < self._until_s:
            wake_s = send(now_s)
            self._receive(max(0.0, min(wake_s, self._until_s) - time.perf_counter()))
        while self._busy and time.perf_counter() < self._until_s + ANSWER_WITHIN_S:
            self._receive(0.1)
        for number in self._busy:
            self._note_bad(f"connection {number}: no answer within {ANSWER_WITHIN_S} s")
        return self._summed()

    def _send_at_rate(self, now_s: float) -> float:
        """Send what has come due; when the next will."""
        while self._next_s <= now_s:
            self._next_s += self._pick.expovariate(self._plan.rate_per_s)
            if self._free:
                self._ask(self._free.pop())
            else:
                self._load.unsent += 1
        return self._next_s

    def _send_due(self, now_s: float) -> float:
        while self._due and self._due[0][0] <= now_s:
            self._ask(self._connections[heapq.heappop(self._due)[1]])
        return self._due[0][0] if self._due else self._until_s

    def _pause_s(self) -> float:
        return self._pick.uniform(*self._plan.pause_s)

    def _ask(self, connection: _Connection) -> None:
        self._load.asked += 1
        self._busy.add(connection.number)
        try:
            connection.ask(self._request(connection.number))
        except OSError as error:
            self._broken(connection, error)

    def _request(self, number: int) -> bytes:
        plan = self._plan
        if plan.path:
            return _get(plan.path)
        agent = plan.agents[number % len(plan.agents)]
        if self._pick.random() < plan.write_share:
            words = " ".join(f"{self._pick.randrange(10**5):x}q" for _ in range(12))
            return _post("/v1/long", {"agent": agent, "fact": f"load {self._load.asked} of {number}: {words}"})
        return _get("/v1/recall?" + urlencode({"agent": agent, "q": self._pick.choice(plan.questions)}))

    def _receive(self, within_s: float) -> None:
        for key, _ in self._selector.select(within_s):
            connection: _Connection = key.data
            try:
                answer = connection.answer()
            except OSError as error:
                self._broken(connection, error)
                continue
            if answer is not None:
                self._note(connection, *answer)
                self._done(connection)

    def _note(self, connection: _Connection, status: int, head: bytes, body: bytes) -> None:
        now_s = time.perf_counter()
        self._answers[str(status)] += 1
        is_good = 200 <= status < 300
        if is_good:
            self._took_ms.append((now_s - connection.began_s) * 1000)
            self._load.late += now_s > self._until_s
        elif status != 503 or b"\r\nretry-after:" not in head:
            self._note_bad(f"{status} {head[:300]!r} {body[:200]!r}")

    def _note_bad(self, text: str) -> None:
        self._load.bad_count += 1
        if len(self._load.bad) < _SAMPLES_MAX:
            self._load.bad.append(text)

    def _broken(self, connection: _Connection, error: OSError) -> None:
        self._note_bad(f"connection {connection.number}: {error!r}")
        self._selector.unregister(connection.socket)
        connection.renew()
        self._selector.register(connection.socket, selectors.EVENT_READ, connection)
        self._done(connection)

    def _done(self, connection: _Connection) -> None:
        if connection.number not in self._busy:
            return  # it broke while nothing was under way
        self._busy.discard(connection.number)
        if self._plan.rate_per_s:
            self._free.append(connection)
        else:
            heapq.heappush(self._due, (time.perf_counter() + self._pause_s(), connection.number))

    def _summed(self) -> Load:
        took = sorted(self._took_ms)
        self._load.answers = dict(self._answers)
        self._load.good_per_s = (len(took) - self._load.late) / self._plan.seconds
        if took:
            self._load.p50_ms = took[len(took) // 2]
            self._load.p99_ms = took[min(int(len(took) * 0.99), len(took) - 1)]
        return self._load


def _get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode()


def _post(path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def main(take: Callable[[], str] = sys.stdin.readline) -> None:
    """Read a plan as one line of JSON, carry it out, print what came of it."""
    print(json.dumps(asdict(_Generator(Plan(**json.loads(take()))).run())))


if __name__ == "__main__":
    main()
