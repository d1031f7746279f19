"""A proxy in front of a service that answers in its place, faultily: what an acceptance run must notice.

Standard library only. A fault is a function of a call and of a way to forward it; what it returns is sent.
"""

import contextlib
import http.client
import http.server
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

HOP_BY_HOP = {"connection", "content-length", "date", "host", "keep-alive", "server", "transfer-encoding"}
CARD_PATH = "/.well-known/agent-card.json"


@dataclass(frozen=True)
class Call:
    """What was asked."""

    method: str
    target: str
    headers: dict[str, str]
    content: bytes

    @property
    def path(self) -> str:
        """Without the query."""
        return urlsplit(self.target).path

    @property
    def rpc(self) -> str:
        """The method of a JSON-RPC request; empty where it is none."""
        return str(json.loads(self.content).get("method")) if self.path == "/mcp" and self.content else ""

    @property
    def writes_long(self) -> bool:
        """Whether it writes a fact over REST."""
        return (self.method, self.path) == ("POST", "/v1/long")


@dataclass
class Reply:
    """What is answered."""

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    dripping: bool = False
    """Sent a byte at a time, so that a time-out of the socket never comes."""

    @property
    def body(self) -> dict[str, Any]:
        """Its JSON."""
        parsed: dict[str, Any] = json.loads(self.content)
        return parsed

    @body.setter
    def body(self, body: dict[str, Any]) -> None:
        self.content = json.dumps(body).encode()


Forward = Callable[[], Reply]
Fault = Callable[[Call, Forward], Reply | None]
"""None: no answer at all, until the proxy ends."""


class FaultyProxy:
    """Listens on a free port and passes calls on to a service."""

    def __init__(self, service_url: str, fault: Fault, *, host: str = "127.0.0.1") -> None:
        self._service = urlsplit(service_url)
        self._fault = fault
        self._ending = threading.Event()
        proxy = self

        class Passing(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _pass(self) -> None:
                proxy._answer(self)

            do_GET = do_POST = do_HEAD = do_DELETE = _pass

            def log_message(self, *_: Any) -> None:
                """Nothing is logged."""

        self._server = http.server.ThreadingHTTPServer((host, 0), Passing)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        self.port = int(self._server.server_address[1])
        self.url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{self.port}"

    def _answer(self, asked: http.server.BaseHTTPRequestHandler) -> None:
        content = asked.rfile.read(int(asked.headers.get("Content-Length") or 0))
        call = Call(asked.command, asked.path, dict(asked.headers.items()), content)
        asked.close_connection = True
        reply = self._fault(call, lambda: self._forward(call))
        if reply is None:
            self._ending.wait(60)
            return
        with contextlib.suppress(ConnectionError):
            asked.send_response_only(reply.status)
            for name, value in {**reply.headers, "Content-Length": str(len(reply.content))}.items():
                asked.send_header(name, value)
            asked.send_header("Connection", "close")
            asked.end_headers()
            if asked.command != "HEAD":
                self._send(asked, reply)

    def _send(self, asked: http.server.BaseHTTPRequestHandler, reply: Reply) -> None:
        if not reply.dripping:
            asked.wfile.write(reply.content)
            return
        for byte in reply.content:
            asked.wfile.write(bytes([byte]))
            if self._ending.wait(0.1):
                return

    def _forward(self, call: Call) -> Reply:
        connection = http.client.HTTPConnection(self._service.hostname or "", self._service.port, timeout=30)
        headers = {name: value for name, value in call.headers.items() if name.lower() not in HOP_BY_HOP}
        with contextlib.closing(connection):
            connection.request(call.method, call.target, call.content or None, headers)
            response = connection.getresponse()
            kept = {name: value for name, value in response.getheaders() if name.lower() not in HOP_BY_HOP}
            return Reply(response.status, kept, response.read())

    def close(self) -> None:
        """Stop listening, and let go of the calls that got no answer."""
        self._ending.set()
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()


@contextlib.contextmanager
def proxied(service_url: str, fault: Fault, *, host: str = "127.0.0.1") -> Iterator[FaultyProxy]:
    """A faulty proxy that ends with the block."""
    proxy = FaultyProxy(service_url, fault, host=host)
    try:
        yield proxy
    finally:
        proxy.close()


# --- faults ---


def none(_call: Call, forward: Forward) -> Reply:
    """No fault."""
    return forward()


def without_degraded_header(_call: Call, forward: Forward) -> Reply:
    """The header that says that a recall was degraded is missing."""
    reply = forward()
    reply.headers = {name: value for name, value in reply.headers.items() if name.lower() != "x-memory-degraded"}
    return reply


def without_degraded_flag(call: Call, forward: Forward) -> Reply:
    """A recall over REST does not say that it was degraded."""
    reply = forward()
    if call.path == "/v1/recall" and reply.status == 200:
        reply.body = {name: value for name, value in reply.body.items() if name != "degraded"}
    return reply


def undegraded_tool(call: Call, forward: Forward) -> Reply:
    """A recall over MCP says that it was not degraded."""
    reply = forward()
    if call.rpc == "tools/call" and json.loads(call.content)["params"]["name"] == "recall":
        body = reply.body
        text = body["result"]["content"][0]
        text["text"] = text["text"].replace('"degraded":true', '"degraded":false', 1)
        reply.body = body
    return reply


def _with_persona(body: dict[str, Any]) -> dict[str, Any]:
    persona = {"id": "durable:2", "tier": "durable", "agent": "mira", "text": "mira is calm and exact."}
    return {"ok": True, "degraded": True, "degraded_reasons": ["no_embedder"], "relaxed": False} | {
        "results": [persona, *body.get("results", [])]
    }


def persona_in_shared_recall(call: Call, forward: Forward) -> Reply:
    """Another agent's persona comes with what is shared."""
    reply = forward()
    if call.path == "/v1/recall" and reply.status == 200:
        reply.body = _with_persona(reply.body)
    return reply


def persona_when_asked_for(call: Call, forward: Forward) -> Reply:
    """A recall that asks for another agent's persona is answered with it."""
    reply = forward()
    if call.path == "/v1/recall" and reply.status == 403:
        reply = Reply(200, reply.headers)
        reply.body = _with_persona({})
    return reply


def persona_by_id(call: Call, forward: Forward) -> Reply:
    """Another agent's persona can be read by its id."""
    reply = forward()
    if call.path.startswith("/v1/memory/durable:") and reply.status == 403:
        reply = Reply(200, reply.headers)
        reply.body = {"ok": True, "id": "durable:2", "tier": "durable", "agent": "mira", "text": "mira is calm."}
    return reply


class LostWrite:
    """One write, counted from 1, is acknowledged and goes nowhere."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, call: Call, forward: Forward) -> Reply:
        if not call.writes_long:
            return forward()
        self._left -= 1
        if self._left:
            return forward()
        reply = Reply(201, {"Content-Type": "application/json"})
        agent = json.loads(call.content)["agent"]
        reply.body = {"ok": True, "id": "long:987654321", "tier": "long", "agent": agent, "replayed": False}
        return reply


class WrittenTwice:
    """One write, counted from 1, is written a second time."""

    def __init__(self, number: int) -> None:
        self._left = number

    def __call__(self, call: Call, forward: Forward) -> Reply:
        if call.writes_long:
            self._left -= 1
            if self._left == 0:
                forward()
        return forward()


def another_author(call: Call, forward: Forward) -> Reply:
    """A recall names whoever asked as the author."""
    reply = forward()
    if call.path == "/v1/recall" and reply.status == 200:
        body = reply.body
        reply.body = body | {"results": [result | {"agent": "sol"} for result in body["results"]]}
    return reply


def empty_recall(call: Call, forward: Forward) -> Reply:
    """A recall finds nothing, and says that all is well."""
    reply = forward()
    if call.path == "/v1/recall" and reply.status == 200:
        reply.body = reply.body | {"results": []}
    return reply


def unknown_agent_is_welcome(call: Call, forward: Forward) -> Reply:
    """A write of an agent that nobody registered is acknowledged."""
    reply = forward()
    if call.writes_long and reply.status == 422:
        reply.status = 201
        reply.body = {"ok": True, "id": "long:1", "tier": "long", "agent": json.loads(call.content)["agent"]}
    return reply


def uncounted_refusals(call: Call, forward: Forward) -> Reply:
    """/v1/stats counts no refusal."""
    reply = forward()
    if call.path == "/v1/stats":
        reply.body = reply.body | {"refusals": []}
    return reply


def missing_tools(call: Call, forward: Forward) -> Reply:
    """tools/list lacks two tools."""
    reply = forward()
    if call.rpc == "tools/list":
        body = reply.body
        tools = body["result"]["tools"]
        body["result"]["tools"] = [tool for tool in tools if tool["name"] not in ("recall", "stats")]
        reply.body = body
    return reply


def stream_on_get(call: Call, forward: Forward) -> Reply | None:
    """GET /mcp opens a stream that never ends."""
    return None if (call.method, call.path) == ("GET", "/mcp") else forward()


def no_json(call: Call, forward: Forward) -> Reply:
    """A recall is answered with a page."""
    return Reply(200, {}, b"<html>") if call.path == "/v1/recall" else forward()


def not_ready(call: Call, forward: Forward) -> Reply:
    """Health says that the service cannot work."""
    reply = forward()
    if call.path == "/health":
        reply.status = 503
        reply.body = {"status": "not_ready", "reasons": ["writer_down"], "demo": False}
    return reply


class Hung:
    """One path gets no answer."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, call: Call, forward: Forward) -> Reply | None:
        return None if call.path == self._path else forward()


def hung(_call: Call, _forward: Forward) -> None:
    """Nothing gets an answer."""


def dripping_stats(call: Call, forward: Forward) -> Reply:
    """/v1/stats comes a byte at a time, each within any time-out."""
    reply = forward()
    reply.dripping = call.path == "/v1/stats"
    return reply


# --- the mesh ---


def card(call: Call, _forward: Forward) -> Reply:
    """An A2A agent's answer to a sweep."""
    return Reply(200, {"Content-Type": "application/json"}, b"{}") if call.path == CARD_PATH else Reply(404)


class Mesh:
    """Some A2A agents on free ports of loopback."""

    def __init__(self, count: int) -> None:
        self._agents = [FaultyProxy("http://127.0.0.1:9", card) for _ in range(count)]
        self.ports = [agent.port for agent in self._agents]

    def end(self, port: int) -> None:
        """End the agent on a port; one that has ended already is left alone."""
        for agent in [agent for agent in self._agents if agent.port == port]:
            self._agents.remove(agent)
            agent.close()

    def close(self) -> None:
        """End them all."""
        for port in self.ports:
            self.end(port)


@contextlib.contextmanager
def mesh(count: int) -> Iterator[Mesh]:
    """A mesh that ends with the block."""
    agents = Mesh(count)
    try:
        yield agents
    finally:
        agents.close()
