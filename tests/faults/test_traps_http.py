"""Traps 2, 8 and 9 of the design: connections that must end, MCP that must not raise, clients that do not read."""

import contextlib
import fcntl
import http.client
import json
import os
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from actors.stats import Stats
from actors.system import System
from storage.paths import Paths
from tests.support import Service, eventually, serving
from transport.asgi import Front
from transport.execute import Executor
from transport.rest_routes import create_rest

ENDS_WITHIN_S = 3.0
CALL = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {"name": "recall", "arguments": {"agent": "sol", "q": "gateway"}},
}


def request(method: str, path: str, body: Any = None, **headers: str) -> bytes:
    """An HTTP/1.1 request as it goes over the wire."""
    content = b"" if body is None else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1"]
    if content:
        lines += ["Content-Type: application/json", "Accept: application/json, text/event-stream"]
    lines += [f"Content-Length: {len(content)}"] if content else []
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


@contextlib.contextmanager
def connected(service: Service) -> Iterator[socket.socket]:
    """A TCP connection to the service."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=ENDS_WITHIN_S) as connection:
        yield connection


def read_to_the_end(connection: socket.socket) -> bytes:
    """What the service sends until it closes; a TimeoutError where it never does."""
    received = b""
    while part := connection.recv(65_536):
        received += part
    return received


def sockets(service: Service) -> int:
    """How many sockets the service has open."""
    folder = f"/proc/{service.process.pid}/fd"
    names = []
    for number in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(f"{folder}/{number}"))
    return sum(name.startswith("socket:") for name in names)


REQUESTS = {
    "health": ("GET", "/health", None),
    "recall": ("GET", "/v1/recall?agent=sol&q=gateway", None),
    "write": ("POST", "/v1/long", {"agent": "sol", "fact": "a fact"}),
    "refusal": ("POST", "/v1/long", {"agent": "nobody", "fact": "a fact"}),
    "no route": ("GET", "/nothing", None),
    "mcp": ("POST", "/mcp", CALL),
    "mcp refused": ("GET", "/mcp", None),
}
of_every_kind = pytest.mark.parametrize("kind", REQUESTS)


# --- trap 2: the end of a response must not cancel the closing of its connection ---


@of_every_kind
def test_connection_close_is_honoured(shared_service: Service, kind: str) -> None:
    with connected(shared_service) as connection:
        connection.sendall(request(*REQUESTS[kind], Connection="close"))
        assert read_to_the_end(connection).startswith(b"HTTP/1.1 ")


SHORT_KEEP_ALIVE = "import transport.serve; transport.serve._KEEP_ALIVE_S = 0.5"


def test_idle_connection_is_closed(database: Path) -> None:
    """By the keep-alive time-out, whatever was answered on it before."""
    with serving(database, fault=SHORT_KEEP_ALIVE) as service, contextlib.ExitStack() as stack:
        connections = {kind: stack.enter_context(connected(service)) for kind in REQUESTS}
        for kind, connection in connections.items():
            connection.sendall(request(*REQUESTS[kind]))
        for kind, connection in connections.items():
            assert read_to_the_end(connection).startswith(b"HTTP/1.1 "), kind


def test_connection_in_use_is_kept(shared_service: Service) -> None:
    """The opposite fault: an answer must not end the connection of a client that asks on."""
    connection = http.client.HTTPConnection("127.0.0.1", shared_service.port, timeout=ENDS_WITHIN_S)
    with contextlib.closing(connection):
        connection.connect()
        first = connection.sock
        for method, path, body in [*REQUESTS.values()] * 3:
            headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
            connection.request(method, path, body and json.dumps(body), headers)
            assert connection.getresponse().read()
            assert connection.sock is first


def _after_its_answer(connection: socket.socket, whole: bytes) -> None:
    connection.sendall(whole)
    while connection.recv(65_536)[-1:] != b"}":
        pass


def _when_it_is_idle(connection: socket.socket, whole: bytes) -> None:
    _after_its_answer(connection, whole)
    threading.Event().wait(0.02)  # until the service waits for the next request: nothing outside shows it


def _before_its_answer(connection: socket.socket, whole: bytes) -> None:
    connection.sendall(whole)


def _in_the_middle_of_its_request(connection: socket.socket, whole: bytes) -> None:
    connection.sendall(whole[:-1])


def _with_many_answers_to_come(connection: socket.socket, whole: bytes) -> None:
    connection.sendall(whole * 50)
    assert connection.recv(1)


LEAVINGS = [
    _after_its_answer,
    _when_it_is_idle,
    _before_its_answer,
    _in_the_middle_of_its_request,
    _with_many_answers_to_come,
]
in_every_way = pytest.mark.parametrize("leave", LEAVINGS, ids=lambda leave: leave.__name__.strip("_"))
Leaving = Callable[[socket.socket, bytes], None]


@of_every_kind
@in_every_way
def test_client_that_leaves_does_not_leak(shared_service: Service, leave: Leaving, kind: str) -> None:
    """Its connection is closed at once, not with the keep-alive time-out: that is 75 s, and file descriptors end."""
    before = sockets(shared_service)
    for _ in range(10):
        with connected(shared_service) as connection:
            leave(connection, request(*REQUESTS[kind]))
    eventually(lambda: sockets(shared_service) <= before)


@in_every_way
def test_client_that_left_does_not_delay_the_stop(database: Path, leave: Leaving) -> None:
    """Its task has ended, too: a stop waits for nobody, and not for its whole graceful time."""
    with serving(database) as service:
        for asked in REQUESTS.values():
            with connected(service) as connection:
                leave(connection, request(*asked))
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 3


# --- trap 8: what the MCP SDK does unasked ---


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE"])
def test_mcp_takes_post_alone(shared_service: Service, method: str) -> None:
    """The SDK's stateless GET never ends; each start of a Hermes client would wait 5 s for it."""
    answer = shared_service.http.request(method, f"{shared_service.url}/mcp", timeout=ENDS_WITHIN_S)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    assert answer.headers["content-type"] == "application/json"


STORE_RAISES = """
from storage.reading import ReadingStore
def fail(self, **asked):
    raise RuntimeError("planted")
ReadingStore.short = ReadingStore.memory = fail
"""
ANSWER_RAISES = """
from transport.operations import Operation
def fail(self, value):
    raise RuntimeError("planted")
Operation.render = fail
"""
PARSE_RAISES = """
from transport.operations import Operation
def fail(self, arguments):
    raise RuntimeError("planted")
Operation.parse = fail
"""


@pytest.mark.parametrize("fault", [STORE_RAISES, ANSWER_RAISES, PARSE_RAISES], ids=["store", "answer", "parse"])
def test_exception_in_a_tool_is_an_error_result(database: Path, fault: str) -> None:
    """Wherever it is raised: the client is told what to do, and the next call is served."""
    with serving(database, fault=fault) as service:
        for _ in range(2):
            is_error, body = service.mcp("get_short", {"agent": "sol"})
            assert (is_error, body["error"]["code"]) == (True, "internal")
            assert "planted" not in json.dumps(body)
        assert service.rest("GET", "/v1/short", agent="sol")[0] == 500
        assert "planted" in service.raw, "the log has the traceback"


def test_refusal_in_a_tool_is_no_error(shared_service: Service) -> None:
    """Three `isError` in a row would close all our tools to a Hermes gateway for a minute."""
    calls: list[tuple[str, dict[str, Any], str]] = [
        ("remember_long", {"agent": "nobody", "fact": "x"}, "unknown_agent"),
        ("remember_long", {"agent": "sol"}, "invalid_request"),
        ("recall", {"agent": "sol", "q": "mira", "tiers": ["durable"], "k": 99}, "invalid_request"),
        ("get_memory", {"agent": "sol", "id": "long:999999"}, "not_found"),
        ("no_such_tool", {}, "not_found"),
    ]
    for tool, arguments, code in calls:
        is_error, body = shared_service.mcp(tool, arguments)
        assert (is_error, body["ok"], body["error"]["code"]) == (False, False, code)


def test_mcp_answers_compact_json_text_alone(shared_service: Service) -> None:
    answer = shared_service.mcp_raw(CALL)
    assert answer.headers["content-type"] == "application/json"
    assert "mcp-session-id" not in answer.headers
    result = answer.json()["result"]
    assert result.get("structuredContent") is None
    assert [content["type"] for content in result["content"]] == ["text"]
    assert ": " not in result["content"][0]["text"].partition("results")[0]


@pytest.mark.parametrize(
    ("header", "value", "status"), [("Host", "evil.example", 421), ("Origin", "http://evil.example", 403)]
)
def test_mcp_refuses_foreign_hosts_and_origins(shared_service: Service, header: str, value: str, status: int) -> None:
    assert shared_service.mcp_raw(CALL, **{header: value}).status_code == status


async def test_lifespan_reaches_the_application_behind_the_dispatcher() -> None:
    """Hypercorn waits for its answer; Quart sets up its nursery in it."""
    system = System(Paths(Path("never-opened.db")), Stats())
    executor = Executor(system)
    mcp: Any = None  # has no use for it
    front = Front(create_rest(system, executor), mcp, executor, allowed_hosts=(), port=1)
    to_front, from_server = trio.open_memory_channel[dict[str, Any]](2)
    answers = []

    async def send(event: Any) -> None:
        answers.append(event["type"])

    to_front.send_nowait({"type": "lifespan.startup"})
    to_front.send_nowait({"type": "lifespan.shutdown"})
    with trio.fail_after(5):
        await front({"type": "lifespan"}, from_server.receive, send)
    assert answers == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


# --- trap 9: a client that stops reading ---


@contextlib.contextmanager
def deaf_client(service: Service, path: str = "/openapi.json", asked: int = 1_500) -> Iterator[socket.socket]:
    """A client that asks much and reads nothing, from the moment on when the service can send it no more."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.connect(("127.0.0.1", service.port))
        connection.settimeout(0.5)
        with contextlib.suppress(TimeoutError):
            connection.sendall(request("GET", path) * asked)
        eventually(lambda: _unread_bytes(connection) > 0)
        last = [-1]

        def stuck() -> bool:
            before, last[0] = last[0], _unread_bytes(connection)
            time.sleep(0.2)
            return before == last[0]

        eventually(stuck)
        yield connection


def _unread_bytes(connection: socket.socket) -> int:
    return int(struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0\0\0\0"))[0])


def test_client_that_stops_reading(database: Path) -> None:
    """It neither disturbs the others nor keeps the service from stopping."""
    with serving(database) as service, deaf_client(service):
        service.long("sol", "others are served")
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 10
        assert service.events("left_hard")


WRITER_CANNOT_GO_ON = """
from storage import limits
limits.RESTARTS_MAX = 0
from actors.writer import Writer
async def die(self, batch):
    raise RuntimeError("planted")
Writer._write = die
"""


def test_client_that_stops_reading_does_not_keep_a_dead_service(database: Path) -> None:
    """Traps 1 and 9 at once: the writer gives up while a connection cannot be ended."""
    with serving(database, fault=WRITER_CANNOT_GO_ON) as service, deaf_client(service):
        with contextlib.suppress(httpx2.TransportError):
            service.http.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": "x"}, timeout=5)
        assert service.process.wait(15) == 1
        eventually(lambda: service.events("gave_up"))


SHORT_USER_TIMEOUT = "import transport.serve; transport.serve._USER_TIMEOUT_MS = 1_500"


@pytest.mark.parametrize(
    ("path", "asked"),
    [("/openapi.json", 1_500), ("/v1/recall?agent=sol&q=long&k=50&full=true", 1)],
    ids=["many_answers", "one_long_answer"],
)
def test_connection_whose_client_does_not_read_is_given_up(database: Path, path: str, asked: int) -> None:
    """After TCP_USER_TIMEOUT, though the client is alive and acknowledges that its window is shut."""
    with serving(database, fault=SHORT_USER_TIMEOUT) as service:
        for _ in range(50):
            service.long("sol", "long " * 13_000)
        before = sockets(service)
        with deaf_client(service, path, asked):
            assert sockets(service) == before + 1
            eventually(lambda: sockets(service) == before, within_s=8)
