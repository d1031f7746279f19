"""Connections that idle, crawl, vanish, flood or do not read: the others are served, and nothing is left behind."""

import http.client
import itertools
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from storage import limits
from tests.faults.scale import LONG, scaled, seeded
from tests.faults.sockets import (
    Held,
    answer_of,
    connections,
    counting_tasks,
    deaf_clients,
    held_by,
    send_until_refused,
    trickle,
    vanish,
)
from tests.faults.test_traps_http import REQUESTS, request
from tests.support import AGENTS, Service, cpu_s, eventually, fresh_database, serving

CHUNKED = (
    b"POST /v1/long HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
)
CHUNK = b"8000\r\n" + b"x" * 0x8000 + b"\r\n"
HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BOMBS = {
    "many headers": HEAD + b"a: b\r\n" * 20_000 + b"\r\n",
    "one huge header": HEAD + b"a: " + b"x" * 700_000 + b"\r\n\r\n",
    "a head without end": HEAD + b"a: " + b"x" * 700_000,
}
RECALL = {"agent": "sol", "q": "gateway"}


@dataclass
class Watched:
    """A service, and what it held before anybody behaved badly."""

    service: Service
    tasks: Path
    before: Held

    def held(self) -> Held:
        """What it holds now."""
        return held_by(self.service, self.tasks)

    def nothing_is_left(self, what: str) -> None:
        """Wait until it holds no more than before; the memory is printed."""
        eventually(self._holds_no_more, 20)
        print(f"{what}: before {self.before}; after {self.held()}")

    def _holds_no_more(self) -> bool:
        now, before = self.held(), self.before
        spare = scaled(8, 0)  # trio keeps a thread that has nothing to do for 10 s
        flat = all(getattr(now, name) <= getattr(before, name) for name in ("descriptors", "tasks", "children"))
        return flat and now.threads <= before.threads + spare


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A service that counts its tasks and has answered some of everything."""
    folder = tmp_path_factory.mktemp("watched")
    at_once = "\nimport storage.limits as l; l.RECALLER_FROM_LOOKS = 1"  # or else they come in the middle of a test
    with serving(fresh_database(folder), fault=counting_tasks(folder / "tasks") + at_once) as service:
        with ThreadPoolExecutor(16) as threads:
            for _ in threads.map(lambda _: ordinary_calls(service), range(64)):
                pass
        eventually((folder / "tasks").exists)
        eventually(lambda: len(service.events("recaller_started")) == 2, 20)
        threading.Event().wait(0.3)  # until the tasks of these calls are counted no more
        yield Watched(service, folder / "tasks", held_by(service, folder / "tasks"))


def ordinary_calls(service: Service) -> float:
    """Calls of a well-behaved client on a connection of its own, all answered; the longest, in seconds."""
    longest_s = 0.0
    with httpx2.Client(base_url=service.url, timeout=10) as client:
        for method, path, body in [REQUESTS["health"], REQUESTS["recall"], REQUESTS["write"]]:
            began_s = time.monotonic()
            answer = client.request(method, path, json=body)
            longest_s = max(longest_s, time.monotonic() - began_s)
            assert answer.status_code == (201 if method == "POST" else 200), answer.text
    return longest_s


# --- idle, slow and vanished clients ---


def crawl(slow: list[socket.socket], seconds: float, service: Service) -> list[float]:
    """Send a byte a second of a head on each connection, while others are served; their longest answers."""
    longest_s = []
    for place in range(int(seconds)):
        due_s = time.monotonic() + 1
        for connection in slow:
            connection.sendall(HEAD[place : place + 1])
        while time.monotonic() < due_s:
            longest_s.append(ordinary_calls(service))
    return longest_s


def test_idle_and_slow_connections_leave_the_others_served(watched: Watched) -> None:
    """500 that ask nothing and 500 that send a byte of their head a second."""
    with connections(watched.service, 500), connections(watched.service, 500) as slow:
        longest_s = sorted(crawl(slow, scaled(2, 20), watched.service))
        assert watched.held().descriptors >= watched.before.descriptors + 1_000, "they are all there"
        print(f"beside 1,000 connections: {len(longest_s)} x 3 calls, the longest {1e3 * longest_s[-1]:.0f} ms")
        assert longest_s[-1] < (2.5 if not LONG else 0.5)
    watched.nothing_is_left("1,000 idle and slow connections")


@pytest.mark.parametrize("sent", [0, 10, -1, None], ids=["nothing", "part of the head", "all but a byte", "everything"])
def test_vanished_client_leaves_nothing_behind(watched: Watched, sent: int | None) -> None:
    """Wherever in its request it was: a reset reaches the service and no more."""
    wholes = itertools.cycle(request(*asked) for asked in REQUESTS.values())
    with connections(watched.service, 100) as clients:
        for client, whole in zip(clients, wholes, strict=False):
            client.sendall(whole[:sent])
        for client in clients:
            vanish(client)
    ordinary_calls(watched.service)
    watched.nothing_is_left(f"100 vanished clients ({sent})")


SHORT_TIMES = "\n".join(
    [
        "from storage import limits; limits.REQUEST_WITHIN_S = 1.0",
        "import transport.serve; transport.serve._KEEP_ALIVE_S = 2.0",
    ]
)


def test_request_that_never_completes_is_given_up(database: Path) -> None:
    """A head that grows for ever, a body that does, and clients that stopped in the middle and never left."""
    with serving(database, fault=SHORT_TIMES) as service, connections(service, 5) as clients:
        slow_head, slow_body, half_head, half_body, mcp_body = clients
        half_head.sendall(HEAD)
        half_body.sendall(request(*REQUESTS["write"])[:-5])
        mcp_body.sendall(request(*REQUESTS["mcp"])[:-5])
        slow_head.sendall(HEAD)
        assert trickle(slow_head, b"a") == b""
        slow_body.sendall(CHUNKED)
        assert b'"code":"deadline_exceeded"' in trickle(slow_body, b"1\r\nx\r\n")
        assert answer_of(half_head) == b""
        for client in (half_body, mcp_body):
            answer = answer_of(client)
            assert answer.startswith(b"HTTP/1.1 504"), answer
            assert b"retry-after: 1" in answer
        assert service.rest("GET", "/v1/recall", agent="sol", q="fact")[1]["results"] == [], "nothing was written"


def test_http2_connection_without_a_request_is_closed(database: Path) -> None:
    """Hypercorn takes its preface for a request: it was kept for ever, and a descriptor with it."""
    with serving(database, fault=SHORT_TIMES) as service, connections(service, 1) as (client,):
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
        answer_of(client)


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def test_http2_connection_that_pings_is_idle_for_as_long_as_any(database: Path) -> None:
    """Its PINGs were taken for a head that does not end: it had the time of one."""
    times = SHORT_TIMES.replace("= 1.0", "= 0.5").replace("= 2.0", "= 4.0")
    get = bytes([0x82, 0x84, 0x86, 0x01, 9]) + b"127.0.0.1"  # GET, /, http, and :authority, as HPACK has them
    with serving(database, fault=times) as service, connections(service, 1) as (client,):
        client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4) + frame(1, get, flags=5, stream=1))
        began_s = time.monotonic()
        with suppress(ConnectionError):
            while time.monotonic() < began_s + 20:
                client.sendall(frame(6, b"12345678"))
                if not client.recv(65_536):
                    break
                threading.Event().wait(0.2)
        assert 2 < time.monotonic() - began_s < 15


# --- more connections than there may be ---

EIGHT = "from storage import limits; limits.CONNECTIONS_MAX = 8"


def asked(client: socket.socket) -> bytes:
    """The first bytes of the answer to a request on a connection that is kept; none where it was closed."""
    with suppress(ConnectionError):
        client.sendall(request(*REQUESTS["health"]))
        return client.recv(65_536)[:12]
    return b""


def test_an_idle_connection_makes_room_for_one_that_comes(database: Path) -> None:
    """The one that is idle for longest; those that keep 75 s of silence kept everybody else out."""
    with serving(database, fault=EIGHT) as service, connections(service, 7) as idle:
        for client in idle:
            assert asked(client) == b"HTTP/1.1 200"
        assert asked(idle[0]) == b"HTTP/1.1 200"
        for _ in range(2):  # beside them there is the connection by which the service is asked here
            with connections(service, 1) as (late,):
                assert asked(late) == b"HTTP/1.1 200"
                idle.append(late.dup())
        assert idle[1].recv(10) == b""
        assert [asked(client) for client in (idle[0], *idle[3:])] == [b"HTTP/1.1 200"] * 7
        idle[-1].close()
        idle[-2].close()


def test_a_connection_with_a_request_under_way_makes_room_for_nobody(database: Path) -> None:
    with serving(database, fault=EIGHT) as service, connections(service, 8) as busy:
        for client in busy:
            client.sendall(HEAD)
        threading.Event().wait(0.5)  # until all of it was read
        with connections(service, 1) as (late,):
            late.sendall(request(*REQUESTS["health"]))
            answer = answer_of(late)
        assert answer.startswith(b"HTTP/1.1 503"), answer
        assert b"retry-after: 1" in answer
        assert b'"code":"overloaded"' in answer
        for client in busy:
            client.sendall(b"\r\n")
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
        assert service.events("connections_full")


# --- floods ---


def test_body_without_end_is_refused(watched: Watched) -> None:
    """At 1 MiB, not when memory ends; and what is refused is not written."""
    with connections(watched.service, 12) as clients, ThreadPoolExecutor(12) as threads:
        floods = [threads.submit(send_until_refused, client, CHUNKED, CHUNK) for client in clients]
        longest_s = ordinary_calls(watched.service)
        for sent, answer in (flood.result() for flood in floods):
            assert answer.startswith(b"HTTP/1.1 413"), answer
            assert b'"code":"too_large"' in answer
            assert sent <= 600, "it stopped reading after 16 MiB"
    print(f"beside 12 bodies without end: the longest of 3 calls {1e3 * longest_s:.0f} ms")
    watched.nothing_is_left("12 bodies without end")


@pytest.mark.parametrize("bomb", BOMBS)
def test_header_bomb_is_refused(watched: Watched, bomb: str) -> None:
    """431, and the event loop does not stand still over it."""
    with connections(watched.service, 20) as clients, ThreadPoolExecutor(4) as threads:

        def drop(client: socket.socket) -> bytes:
            with suppress(ConnectionError):
                client.sendall(BOMBS[bomb])
            return answer_of(client)

        answers = [threads.submit(drop, client) for client in clients]
        longest_s = ordinary_calls(watched.service)
        heads = {answer.result()[:12] for answer in answers}
    assert heads <= {b"HTTP/1.1 431", b""}, heads
    assert b"HTTP/1.1 431" in heads
    print(f"beside 20 x {bomb}: the longest of 3 calls {1e3 * longest_s:.0f} ms")
    watched.nothing_is_left(f"20 x {bomb}")


def large_write(service: Service) -> bytes:
    """The first line of the answer to a write that comes in two parts, larger together than what always has room."""
    whole = request(
        "POST", "/v1/episodic", {"agent": "sol", "event_type": "t", "summary": "y", "details": "z" * 120_000}
    )
    with connections(service, 1) as (client,):
        client.sendall(whole[:-100])
        threading.Event().wait(0.05)
        client.sendall(whole[-100:])
        return client.recv(12)


LITTLE_ROOM = "from storage import limits; limits.ARRIVING_BYTES_MAX = 2_000_000"


@pytest.mark.parametrize("begun", [HEAD + b"a: ", CHUNKED + b"100000\r\n"], ids=["heads", "bodies"])
def test_unfinished_requests_share_a_room(database: Path, begun: bytes) -> None:
    """Each is within its own bound; together they would fill the memory. Those that have it free it as they leave."""
    with serving(database, fault=LITTLE_ROOM) as service:
        with connections(service, 12) as clients:
            for client in clients:
                with suppress(ConnectionError, TimeoutError):  # the service may be done with it first
                    client.sendall(begun + b"x" * 400_000)
            eventually(lambda: service.events("connections_full") or service.events("rejected"))
            ordinary_calls(service)
        eventually(lambda: large_write(service) == b"HTTP/1.1 201")


# --- no more descriptors ---

FEW_DESCRIPTORS = "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))"


def test_more_connections_than_descriptors(database: Path) -> None:
    """Those that ask are served, however many others idle, and files can still be opened: the index is kept."""
    with serving(database, fault=FEW_DESCRIPTORS) as service:
        service.long("sol", "the gateway listens")
        with connections(service, 200) as clients:
            used_s = cpu_s(service.process.pid)
            eventually(lambda: service.events("connections_full"))
            threading.Event().wait(1.5)
            assert cpu_s(service.process.pid) - used_s < 1.2, "it spins"
            assert len(service.recall("sol", "gateway")) == 1
            assert service.mcp("recall", RECALL)[0] is False
            assert service.http.get(f"{service.url}/openapi.json").status_code == 200
            assert len(os.listdir(f"/proc/{service.process.pid}/fd")) < 128
            with connections(service, 1) as (late,):
                assert asked(late) == b"HTTP/1.1 200"
            assert len(clients) == 200
        eventually(lambda: try_health(service) == 200)
        assert service.events("connections_bounded")
        assert "EMFILE" not in service.raw
        assert "Traceback" not in service.raw, service.raw[-6000:]


def try_health(service: Service) -> int:
    """The status of /health on a new connection."""
    return httpx2.get(f"{service.url}/health", timeout=5).status_code


@contextmanager
def no_descriptor_left(service: Service) -> Iterator[None]:
    """Let the service open not one file more; it has what it has."""
    pid = service.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir(f"/proc/{pid}/fd")) + 1
    free = used - len(os.listdir(f"/proc/{pid}/fd"))
    assert free < 20, "gaps below the highest descriptor are used first"
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used - free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


ASKED_WITHOUT_DESCRIPTORS: dict[str, Callable[[Service], tuple[int, dict[str, object]]]] = {
    "recall": lambda service: service.rest("GET", "/v1/recall", agent="sol", q="gateway"),
    "recall of files": lambda service: service.rest("GET", "/v1/recall", agent="sol", q="gateway", tiers="swarm"),
    "short keys": lambda service: service.rest("GET", "/v1/short", agent="sol"),
    "write": lambda service: service.rest("POST", "/v1/long", {"agent": "sol", "fact": "beside"}),
    "stats": lambda service: service.rest("GET", "/v1/stats"),
}


def test_without_descriptors_nothing_is_answered_as_empty(database: Path) -> None:
    """What cannot be opened is an error that says so; when there are descriptors again, all is well without hands."""
    with serving(database) as service:
        service.long("sol", "the gateway listens")
        status, _ = service.rest("POST", "/v1/short", {"agent": "sol", "key": "state", "value": "awake"})
        assert status == 201
        with no_descriptor_left(service):
            for _ in range(2):
                for name, ask in ASKED_WITHOUT_DESCRIPTORS.items():
                    status, body = ask(service)
                    print(f"{name}: {status} {json.dumps(body)[:150]}")
                    assert status in (200, 201, 500, 503), name
                    assert status >= 500 or body.get("results") != [], name
                    assert status >= 500 or body.get("entries") != [], name
                    assert status < 500 or body["error"]["code"] != "internal", name  # type: ignore[index]
        eventually(lambda: service.rest("GET", "/v1/recall", agent="sol", q="gateway")[0] == 200, 10)
        eventually(lambda: len(service.recall("sol", "gateway")) == 1, 10)
        assert len(service.rest("GET", "/v1/short", agent="sol")[1]["entries"]) == 1
        assert not service.events("index_remade"), "an index that cannot be opened for want of descriptors is whole"


# --- clients that do not read ---


def test_fifty_clients_that_do_not_read_do_not_delay_the_stop(database: Path) -> None:
    """Trap 9, fifty times: the process ends within its drain's time, and says that it had to leave."""
    drain_s = scaled(4.0, limits.DRAIN_S)
    fault = f"from storage import limits; limits.DRAIN_S = {drain_s}"
    with serving(database, fault=fault) as service, deaf_clients(service, 50):
        service.long("sol", "others are served")
        began_s = time.monotonic()
        assert service.stop() == 0
        took_s = time.monotonic() - began_s
        print(f"stopped within {took_s:.1f} s, drain time {drain_s} s")
        assert took_s < drain_s + 4
        assert service.events("left_hard")
        assert service.events("stopped")


# --- MCP clients that come and go ---


def mcp_call(service: Service, calls: int, agent: str = "sol") -> int:
    """Connect, make some calls, leave; how many were answered."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    params = {"name": "recall", "arguments": {"agent": agent, "q": "gateway"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    with closing(connection):
        for _ in range(calls):
            connection.request("POST", "/mcp", body, headers)
            answer = connection.getresponse()
            result = json.loads(answer.read())["result"]
            assert (answer.status, result.get("isError", False)) == (200, False), result
    return calls


def mcp_round(service: Service, calls: int) -> int:
    """So many calls over four clients, five on a connection."""
    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(lambda _: mcp_call(service, 5), range(calls // 5)))


def test_mcp_calls_with_reconnects_leave_nothing_behind(watched: Watched) -> None:
    """Two rounds of the same size: what the first has warmed up, the second adds nothing to."""
    calls = scaled(500, 10_000)
    rss_bytes = []
    for _ in range(2):
        assert mcp_round(watched.service, calls) == calls
        watched.nothing_is_left(f"{calls} MCP calls with reconnects")
        rss_bytes.append(watched.held().rss_bytes)
    print(f"RSS after the first and the second round: {[size // 1_048_576 for size in rss_bytes]} MiB")
    assert not LONG or rss_bytes[1] <= 1.1 * rss_bytes[0]


def test_c136_eleven_agents_and_their_mcp_clients_leave_one_flat_process(watched: Watched) -> None:
    """A soak: each agent writes, recalls, and connects its MCP client anew again and again."""
    chances = seeded()
    stop_s = time.monotonic() + scaled(8.0, 60.0)
    warm_s = time.monotonic() + scaled(3.0, 20.0)
    agents = [*AGENTS, "sol"]
    seeds = [chances.random() for _ in agents]

    def day(place: int) -> int:
        agent, calls = agents[place], 0
        with httpx2.Client(base_url=watched.service.url, timeout=10) as client:
            while time.monotonic() < stop_s:
                fact = {"agent": agent, "fact": f"{agent} saw the gateway {calls} times", "tags": ["soak"]}
                assert client.post("/v1/long", json=fact).status_code == 201
                assert client.get("/v1/recall", params={"agent": agent, "q": "gateway"}).json()["results"]
                calls += 2 + mcp_call(watched.service, 1 + int(3 * seeds[place]), agent)
                threading.Event().wait(0.1 * seeds[place])
        return calls

    assert len(agents) == 11
    with ThreadPoolExecutor(11) as threads:
        days = [threads.submit(day, place) for place in range(11)]
        threading.Event().wait(max(0.0, warm_s - time.monotonic()))
        warm = watched.held()
        calls = sum(one.result() for one in days)
    watched.nothing_is_left(f"{calls} calls of 11 agents")
    flat = watched.held().rss_bytes / warm.rss_bytes
    print(f"RSS after {calls} calls: {flat:.3f} of what it was when warm")
    assert watched.held().children == watched.before.children == 2
    assert not LONG or flat <= 1.1
