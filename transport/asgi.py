"""The front door: guards every HTTP request, and hands it to MCP or to REST."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pydantic_core
import trio
from quart_trio import QuartTrio

from storage import limits
from storage.errors import InvalidRequest, Rejection, TooLarge
from transport.execute import Answer, Caller, Executor
from transport.mcp_calls import answered, call_of
from transport.mcp_tools import Mcp
from transport.operations import compact
from transport.page import Origins, is_page, page_answer
from transport.rejections import (
    Crowded,
    ForeignOrigin,
    MethodNotAllowed,
    SlowRequest,
    UnsupportedMediaType,
    WrongHost,
)

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_END_WITHIN_S = 10
_DISCARD_WITHIN_S = 2
_DISCARD_BYTES_MAX = 16 * limits.BODY_BYTES_MAX
_SMALL_BYTES = 65_536
"""A body up to this size always has room: large ones that do not end must not keep ordinary calls out."""
_MCP_PATH = "/mcp"
_PARSE_ERROR = -32700
_INVALID_REQUEST = -32600
_TAKES_JSON = ("*/*", "application/*", "application/json")
_ONCE = (b"host", b"origin", b"x-agent-id", b"idempotency-key")


class Front:
    """The ASGI application that Hypercorn serves."""

    def __init__(
        self,
        rest: QuartTrio,
        mcp: Mcp,
        executor: Executor,
        *,
        port: int,
        allowed_hosts: Iterable[str] = (),
        allowed_origins: Iterable[str] = (),
    ) -> None:
        self._rest = rest
        self._mcp = mcp
        self._executor = executor
        self._hosts = {*LOOPBACK_HOSTS, *(host.lower() for host in allowed_hosts)}
        self._origins = {f"http://{host}:{port}" for host in self._hosts}
        self._page_origins = Origins(allowed_origins)
        self._arriving = _Arriving()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope. Lifespan events go to the application behind; MCP has no use for them."""
        if scope["type"] == "lifespan":
            await self._rest(scope, receive, send)  # type: ignore[arg-type]
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self._http(scope, receive, send)

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = _headers(scope)
        is_mcp = scope["path"] == _MCP_PATH
        caller = Caller("mcp" if is_mcp else "rest", headers.get(b"x-agent-id"), headers.get(b"idempotency-key"))
        intake = _Intake(receive, self._arriving)
        origin = headers.get(b"origin")
        if origin is not None and self._page_origins.allow(scope["path"], origin):
            send = _with_headers(send, self._page_origins.headers(origin))
        try:
            self._guard(scope, headers)
            if scope["method"] == "OPTIONS" and origin is not None and self._page_origins.allow(scope["path"], origin):
                await _send_preflight(send, self._page_origins.preflight())
                return
            if is_mcp:
                await self._serve_mcp(scope, headers, intake, send)
            else:
                await self._serve_rest(scope, intake, send)
        except Rejection as rejection:
            await intake.discard()
            allow = ((b"allow", b"POST"),) if isinstance(rejection, MethodNotAllowed) else ()
            answer = await self._executor.refuse(caller, rejection)
            await _respond(page_answer(answer) if is_page(scope["path"]) else answer, send, allow)
        except _ClientGone:
            return
        except _NoMessage as error:
            answer = await self._executor.refuse(caller, error.rejection)
            await _send_json(send, error.status, _json_rpc_error(error.code, error.rejection.detail))

    def _guard(self, scope: Scope, headers: dict[bytes, str]) -> None:
        """Refuse requests that a foreign page could have made through a browser on this host (DNS rebinding).

        Raises:
            InvalidRequest: a header that says who calls, or from where, was sent twice.
            WrongHost, ForeignOrigin: its Host or Origin is not ours.
        """
        names = [name for name, _ in scope["headers"]]
        if twice := [name for name in _ONCE if names.count(name) > 1]:
            raise InvalidRequest(f"{twice[0].decode()}: the header was sent more than once.")
        host = _without_port(headers.get(b"host", "").lower())
        if host not in self._hosts:
            raise WrongHost(f"The Host header {host[:80]!r} is not one of ours.")
        origin = headers.get(b"origin")
        if origin is not None and not self._serves(scope["path"], origin):
            raise ForeignOrigin(f"The Origin {origin[:80]!r} is not served.")

    def _serves(self, path: str, origin: str) -> bool:
        return origin.lower() in self._origins or self._page_origins.allow(path, origin)

    async def _serve_rest(self, scope: Scope, intake: "_Intake", send: Send) -> None:
        body = await intake.body() if scope["method"] == "POST" else b""
        await self._rest(scope, _replaying(body, intake.receive), _ending_shielded(send))  # type: ignore[arg-type]

    async def _serve_mcp(self, scope: Scope, headers: dict[bytes, str], intake: "_Intake", send: Send) -> None:
        """Check what the SDK would answer with its own words, then let it answer.

        HEAD, GET and DELETE get 405: the stateless GET would never end, and each Hermes start would wait 5 s for it.
        """
        if scope["method"] != "POST":
            raise MethodNotAllowed(f"{scope['method']} is not allowed on {_MCP_PATH}: it takes POST alone.")
        if not headers.get(b"content-type", "").lower().startswith("application/json"):
            raise UnsupportedMediaType
        body = await intake.body()
        message = _message(body)
        if not any(
            kind.partition(";")[0].strip() in _TAKES_JSON for kind in headers.get(b"accept", "").lower().split(",")
        ):
            raise _NoMessage(_INVALID_REQUEST, "Accept: must name application/json.", status=406)
        version = headers.get(b"mcp-protocol-version")
        if call := call_of(message, version):
            named = {name.decode("latin-1"): value for name, value in headers.items()}
            await _send_json(send, 200, await answered(self._mcp.server, call, version, named))
        else:
            await self._mcp.sessions.handle_request(scope, _replaying(body, intake.receive), send)


class _ClientGone(Exception):
    """The client left before its request was complete: there is nobody to answer, and nothing to do."""


class _NoMessage(Exception):
    """An MCP request holds no message that can be answered under its id."""

    def __init__(self, code: int, detail: str, *, status: int = 400) -> None:
        self.code = code
        self.rejection = InvalidRequest(detail)
        self.status = status


def _message(body: bytes) -> dict[str, Any]:
    """The JSON-RPC message in a body, unless the SDK would not answer it as JSON-RPC wants it.

    It takes a request whose id is null, a fraction, a boolean or a list for a notification, and one that also holds a
    result for an answer: 202, and the caller waits for ever. Pinned by test_a_request_whose_id_is_none_is_told_so.

    Raises:
        _NoMessage: the body is no JSON (a lone surrogate makes it none), no object, or a request with no proper id,
            or a request and an answer at once.
    """
    try:
        message = pydantic_core.from_json(body)
    except ValueError as error:
        raise _NoMessage(_PARSE_ERROR, f"The body is no JSON ({str(error)[:120]}).") from None
    if not isinstance(message, dict):
        raise _NoMessage(_INVALID_REQUEST, "The body must be one JSON-RPC message, an object; batches are not taken.")
    if "method" in message and ("result" in message or "error" in message):
        raise _NoMessage(_INVALID_REQUEST, "method: stands in a request, result and error in an answer; not in one.")
    if "method" in message and "id" in message and type(message["id"]) not in (int, str):
        raise _NoMessage(_INVALID_REQUEST, "id: must be a text or a whole number; a notification has none.")
    return message


def _headers(scope: Scope) -> dict[bytes, str]:
    return {name: value.decode("latin-1") for name, value in scope["headers"]}


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


@dataclass
class _Arriving:
    """How much of all bodies has come that are not complete."""

    held_bytes: int = 0

    def hold(self, length: int, whole: int) -> None:
        """Hold more of one, of which `whole` has come now.

        Raises:
            Crowded: together they exceed ARRIVING_BYTES_MAX, and this one is no small one.
        """
        self.held_bytes += length
        if self.held_bytes > limits.ARRIVING_BYTES_MAX and whole > _SMALL_BYTES:
            raise Crowded(f"{self.held_bytes:,} bytes of unfinished bodies wait.")


class _Intake:
    """The body of one request, as it comes in."""

    def __init__(self, receive: Receive, arriving: _Arriving) -> None:
        self.receive = receive
        self._arriving = arriving
        self._complete = False

    async def _chunk(self) -> bytes:
        event = await self.receive()
        if event["type"] != "http.request":
            self._complete = True
            raise _ClientGone
        self._complete = not event.get("more_body", False)
        return bytes(event.get("body", b""))

    async def body(self) -> bytes:
        """The whole body.

        Raises:
            TooLarge: it exceeds BODY_BYTES_MAX.
            SlowRequest: it did not come within REQUEST_WITHIN_S.
            Crowded: all bodies that are not complete exceed ARRIVING_BYTES_MAX, and this one is no small one.
            _ClientGone: the client left in the middle; what came of it must not be executed.
        """
        body = bytearray()
        try:
            with trio.move_on_after(limits.REQUEST_WITHIN_S):
                while not self._complete:
                    chunk = await self._chunk()
                    body += chunk
                    self._arriving.hold(len(chunk), len(body))
                    if len(body) > limits.BODY_BYTES_MAX:
                        raise TooLarge(f"The body is larger than {limits.BODY_BYTES_MAX:,} bytes.")
        finally:
            self._arriving.held_bytes -= len(body)
        if not self._complete:
            raise SlowRequest(f"The body was not complete after {limits.REQUEST_WITHIN_S:g} s; nothing was done.")
        return bytes(body)

    async def discard(self) -> None:
        """Read on for a while: a socket that is closed with unread data resets, and the refusal is lost on its way."""
        discarded = 0
        with trio.move_on_after(_DISCARD_WITHIN_S), suppress(_ClientGone):
            while not self._complete and discarded < _DISCARD_BYTES_MAX:
                discarded += len(await self._chunk())


def _replaying(body: bytes, receive: Receive) -> Receive:
    first: list[Event] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Event:
        return first.pop() if first else await receive()

    return replay


def _ending_shielded(send: Send) -> Send:
    """Shield the send that ends a response.

    Quart-Trio cancels its nursery when a response ends, and with it the task in which Hypercorn closes the
    connection: sockets stay open, `Connection: close` and the keep-alive timeout are ignored. Shielding every send
    costs up to 30 % of the throughput. Pinned by test_connection_close_is_honoured.
    """

    async def shielded(event: Event) -> None:
        if event["type"] == "http.response.body" and not event.get("more_body", False):
            with trio.move_on_after(_END_WITHIN_S, shield=True):
                await send(event)
        else:
            await send(event)

    return shielded


def _with_headers(send: Send, headers: Iterable[tuple[bytes, bytes]]) -> Send:
    """Add headers to whatever answer is sent."""

    async def sending(event: Event) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": [*event.get("headers", ()), *headers]}
        await send(event)

    return sending


async def _send_preflight(send: Send, headers: Iterable[tuple[bytes, bytes]]) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": list(headers)})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _respond(answer: Answer, send: Send, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    retry = () if answer.retry_after_s is None else ((b"retry-after", str(answer.retry_after_s).encode()),)
    await _send_json(send, answer.status, answer.body, (*headers, *retry))


async def _send_json(
    send: Send, status: int, body: dict[str, Any], headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    content = compact(body).encode("utf-8", "replace")
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(content)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": content, "more_body": False})


def _json_rpc_error(code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
