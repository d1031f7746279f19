"""The front door: guards every HTTP request, and hands it to MCP or to REST."""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import pydantic_core
import trio
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from quart_trio import QuartTrio

from storage import limits
from storage.errors import InvalidRequest, Rejection, TooLarge
from transport.execute import Answer, Caller, Executor
from transport.operations import compact
from transport.page import Origins, is_page, page_answer
from transport.rejections import ForeignOrigin, MethodNotAllowed, UnsupportedMediaType, WrongHost

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
_END_WITHIN_S = 10
_DISCARD_WITHIN_S = 2
_DISCARD_BYTES_MAX = 16 * limits.BODY_BYTES_MAX
_MCP_PATH = "/mcp"
_PARSE_ERROR = -32700
_ONCE = (b"host", b"origin", b"x-agent-id", b"idempotency-key")


class Front:
    """The ASGI application that Hypercorn serves."""

    def __init__(
        self,
        rest: QuartTrio,
        mcp: StreamableHTTPSessionManager,
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
        intake = _Intake(receive)
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
        except _NoJson as error:
            answer = await self._executor.refuse(caller, error.rejection)
            await _send_json(send, 400, _json_rpc_error(answer.body["error"]["detail"]))

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
        try:
            pydantic_core.from_json(body)
        except ValueError as error:
            raise _NoJson(error) from None
        await self._mcp.handle_request(scope, _replaying(body, intake.receive), send)


class _ClientGone(Exception):
    """The client left before its request was complete: there is nobody to answer, and nothing to do."""


class _NoJson(Exception):
    """The body of an MCP request is no JSON (a lone surrogate makes it none)."""

    def __init__(self, error: ValueError) -> None:
        self.rejection = InvalidRequest(f"The body is no JSON ({str(error)[:120]}).")


def _headers(scope: Scope) -> dict[bytes, str]:
    return {name: value.decode("latin-1") for name, value in scope["headers"]}


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() else host


class _Intake:
    """The body of one request, as it comes in."""

    def __init__(self, receive: Receive) -> None:
        self.receive = receive
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
            _ClientGone: the client left in the middle; what came of it must not be executed.
        """
        body = bytearray()
        while not self._complete:
            body += await self._chunk()
            if len(body) > limits.BODY_BYTES_MAX:
                raise TooLarge(f"The body is larger than {limits.BODY_BYTES_MAX:,} bytes.")
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


def _json_rpc_error(message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": _PARSE_ERROR, "message": message}}
