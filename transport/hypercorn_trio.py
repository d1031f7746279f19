"""Hypercorn on Trio, with the end of a connection mended, also the end by an error; and bounds of what may come in."""

import resource
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import hypercorn.protocol.h11
import hypercorn.trio
import hypercorn.trio.run
import structlog
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer

from storage import limits
from transport.operations import compact
from transport.rejections import Crowded, body_of

log = structlog.get_logger()

_HEADS = tuple(b"HTTP/1.1 %d" % first for first in (2, 3, 4, 5))
"""How heads of answers begin; not of 100 Continue, which nothing follows."""
_HEAD_END = b"\r\n\r\n"
_MORE_MAX = 64
"""Connections beyond the bound, at a time: those that are told so, and those for which idle ones are being ended."""
_TURN_AWAY_WITHIN_S = 1.0
_TOLD_EVERY_S = 60.0


async def serve(
    app: Any, config: Config, *, shutdown_trigger: Callable[[], Awaitable[None]], task_status: trio.TaskStatus[Any]
) -> None:
    """Serve until `shutdown_trigger` returns. Connections beyond the bound, and heads beyond theirs, get 503."""
    _room.connections_max = _connections_max()
    await hypercorn.trio.serve(app, config, shutdown_trigger=shutdown_trigger, task_status=task_status)


def _connections_max() -> int:
    """How many connections leave the process descriptors for its files; raises the soft limit where that is too low.

    Without a free descriptor the search index could not be opened, and was thrown away as damaged: 1,024, as systemd
    and shells give, were less than 500 idle and 500 slow clients.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = limits.CONNECTIONS_MAX + limits.DESCRIPTORS_KEPT
    if soft < needed:
        soft = min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft >= needed:
        return limits.CONNECTIONS_MAX
    connections = max(soft // 4, soft - limits.DESCRIPTORS_KEPT)
    log.warning(
        "connections_bounded",
        connections=connections,
        hint=f"The process may open {soft} files; let it open {needed}: `ulimit -n`, or LimitNOFILE= of the unit.",
    )
    return connections


@dataclass
class _Room:
    """What all connections take together, of what they may."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections: int = 0
    head_bytes: int = 0
    """Of heads that are not complete."""
    idle: "dict[_Connection, None]" = field(default_factory=dict)
    """Those on which nothing is asked, the one that has been so for longest first."""
    told_s: float = -inf
    """On trio's clock: when the log last said that it is full."""

    @property
    def more_max(self) -> int:
        """How many connections beyond the bound are looked at: they hold descriptors, too."""
        return min(_MORE_MAX, self.connections_max)

    def is_made(self) -> bool:
        """Whether there is room for one that has come: the longest idle one is ended for it, where there is none."""
        if self.connections <= self.connections_max:
            return True
        self.tell()
        if not self.idle or self.connections > self.connections_max + self.more_max:
            return False
        longest = next(iter(self.idle))
        del self.idle[longest]
        longest.end_pause()
        return True

    def tell(self) -> None:
        """Say in the log that it is full, once in a while."""
        if trio.current_time() - self.told_s >= _TOLD_EVERY_S:
            self.told_s = trio.current_time()
            log.warning("connections_full", connections=self.connections, head_bytes=self.head_bytes)


_room = _Room()


class _Connection(TCPServer):
    """A connection that ends when either side has closed it.

    Hypercorn 0.18 leaves its reading at end of file and then waits for the idle task, which sleeps the whole
    keep-alive time-out: 20 clients a second that come and go are 1,500 descriptors at our 75 s. And where it closes
    a connection, or cannot send on it, while further requests wait in its buffer, its reader waits for ever for the
    pause between two requests to end: the descriptor stays, and a stop takes its whole graceful time. Pinned by
    test_client_that_leaves_does_not_leak and test_client_that_left_does_not_delay_the_stop.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._reading: trio.CancelScope | None = None
        self._head = b""
        """The head of an answer, which waits for the first of its body."""
        self._pause = trio.CancelScope()
        """Around the wait for the next request; its deadline is when the connection is given up."""
        self._head_bytes = 0
        """What has come of a head that is not complete."""
        self._requests = 0

    async def run(self) -> None:
        """Serve one connection. What one client sends may end its connection and never the process.

        Three malformed requests raised out of Hypercorn's protocols (a WebSocket's sub-protocol and an HTTP/2 path that
        are no ASCII, an HTTP/2 frame after the answer), and with them ended every other connection.
        """
        _room.connections += 1
        try:
            if not _room.is_made():
                await self._turn_away(f"There are {_room.connections_max:,} connections, and no room for one more.")
            else:
                await super().run()
        except Exception as error:
            log.warning("connection_failed", reason=type(_innermost(error)).__name__)
        finally:
            _room.connections -= 1
            self._head_is_over()
            _room.idle.pop(self, None)

    async def _turn_away(self, why: str) -> None:
        """Answer 503 to whatever is asked, and close the connection.

        What the client sends is read: where unread data is left, closing resets, and the answer is lost on its way.
        """
        _room.tell()
        with trio.move_on_after(_TURN_AWAY_WITHIN_S):
            if _room.connections <= _room.connections_max + _room.more_max and await self._receive():
                await self.stream.send_all(_turned_away(why))
                await self.stream.send_eof()
                while await self._receive():
                    pass
        await trio.aclose_forcefully(self.stream)

    async def _read_data(self) -> None:
        with trio.CancelScope() as self._reading:
            data: bytes | None = b" "
            while data and (data := await self._receive()) is not None:
                requests = self._requests
                await self.protocol.handle(RawData(data))
                self._pause_without_requests()
                if data and self._requests == requests and self._pause.deadline != inf and self._speaks_http1:
                    await self._head_goes_on(len(data))
                self._keep_place()
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    @property
    def _speaks_http1(self) -> bool:
        """Whether what comes while nothing is asked is of a head; over HTTP/2 it may be a PING."""
        return isinstance(self.protocol.protocol, H11Protocol)

    def _keep_place(self) -> None:
        """Keep the place among the idle ones, or have none."""
        if self._pause.deadline == inf or self._head_bytes:
            _room.idle.pop(self, None)
        else:
            _room.idle.setdefault(self)

    def end_pause(self) -> None:
        """Close the connection, on which nothing is asked."""
        self._pause.cancel()

    def _pause_without_requests(self) -> None:
        """Give up an HTTP/2 connection on which nothing is asked: to Hypercorn its preface is a request without end.

        Pinned by test_http2_connection_without_a_request_is_closed.
        """
        if self._pause.deadline == inf and getattr(self.protocol.protocol, "idle", False):
            self._pause.deadline = trio.current_time() + self.config.keep_alive_timeout

    async def _receive(self) -> bytes | None:
        """What comes next: nothing when the client has ended, None when it or the connection is gone."""
        try:
            return bytes(await self.stream.receive_some(MAX_RECV))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return None

    async def _head_goes_on(self, length: int) -> None:
        """More has come of a head that is not complete: it has its time from its first byte on, and its room."""
        if not self._head_bytes:
            self._pause.deadline = min(self._pause.deadline, trio.current_time() + limits.REQUEST_WITHIN_S)
        self._head_bytes += length
        _room.head_bytes += length
        if _room.head_bytes > limits.ARRIVING_BYTES_MAX:
            await self._turn_away(f"{_room.head_bytes:,} bytes of unfinished heads wait.")

    def _head_is_over(self) -> None:
        _room.head_bytes -= self._head_bytes
        self._head_bytes = 0

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated):
            if not event.idle:
                self._requests += 1
                self._head_is_over()
            self._pause.deadline = trio.current_time() + self.config.keep_alive_timeout if event.idle else inf
            self._keep_place()
        elif isinstance(event, RawData):
            await self._send_together(event.data)
        else:
            await super().protocol_send(event)
            if isinstance(event, Closed):
                self._stop_reading()

    async def _send_together(self, data: bytes) -> None:
        """Send an answer's head and the first of its body at once: each call of the system costs 60 µs."""
        is_head = data.startswith(_HEADS) and data.endswith(_HEAD_END)
        data, self._head = self._head + data, b""
        if is_head:
            self._head = data
        elif data:
            await self._send(data)

    async def _send(self, data: bytes) -> None:
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())
                self._stop_reading()

    async def _idle_timeout(self) -> None:
        """Close the connection when a pause is too long, or at a stop: one task, where Hypercorn starts one a pause."""
        self._pause.deadline = trio.current_time() + self.config.keep_alive_timeout
        self._keep_place()
        with self._pause:
            await self.context.terminated.wait()
            if self._pause.deadline == inf:
                return  # an answer is under way; its end closes the connection
        with trio.CancelScope(shield=True):
            await self._initiate_server_close()

    async def _initiate_server_close(self) -> None:
        await super()._initiate_server_close()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _turned_away(why: str) -> bytes:
    """A whole answer, as it goes over the wire."""
    rejection = Crowded(why)
    body = compact(body_of(rejection)).encode()
    lines = [
        "HTTP/1.1 503 ",
        "content-type: application/json",
        f"content-length: {len(body)}",
        f"retry-after: {rejection.retry_after_s}",
        "connection: close",
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


_patched: Any = hypercorn.trio.run
_protocol: Any = hypercorn.protocol.h11
_patched.TCPServer = _Connection
_h11: Any = _protocol.h11


class _Lines(_h11._connection.ReceiveBuffer):  # type: ignore[misc]
    """The bytes that a connection has received, from which h11 takes heads and trailers."""

    def maybe_extract_lines(self) -> Any:
        """The lines of the next head; None where it is not complete.

        Raises:
            h11.RemoteProtocolError: there are more than HEADERS_MAX.
        """
        lines = super().maybe_extract_lines()
        if lines is not None and len(lines) > limits.HEADERS_MAX:
            raise _h11.RemoteProtocolError(f"more than {limits.HEADERS_MAX} headers", error_status_hint=431)
        return lines


_h11._connection.ReceiveBuffer = _Lines
