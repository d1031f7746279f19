"""The door: one server on one socket, and behind it whichever front can answer at the moment."""

import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from actors.system import Asked
from transport.asgi import Front
from transport.execute import Executor
from transport.mcp_tools import create_mcp
from transport.rest_routes import create_rest

_LIFESPAN_END_S = 2.0


class Door:
    """What Hypercorn serves: whichever front stands behind it at the moment."""

    def __init__(self, serve_http: Callable[["Door", int], Awaitable[None]]) -> None:
        """`serve_http` accepts connections on a descriptor, in its own task, and calls the door for each request."""
        self.stop = trio.Event()
        """Set when the process is to end."""
        self.stopped = trio.Event()
        """Set when Hypercorn has finished its requests."""
        self.port = 0
        self._serve_http = serve_http
        self._front: Front | None = None

    @property
    def is_open(self) -> bool:
        """Whether connections are accepted."""
        return self.port != 0

    async def open(self, listener: socket.socket) -> None:
        """Accept connections; put a front behind first."""
        with listener:
            self.port = listener.getsockname()[1]
            await self._serve_http(self, listener.detach())

    @asynccontextmanager
    async def behind(
        self, asked: Asked, executor: Executor, port: int, make: Callable[..., Front]
    ) -> AsyncIterator[None]:
        """Put a front behind the door for the length of the block; its MCP sessions run in this task's nursery."""
        mcp = create_mcp(executor)
        before = self._front
        async with mcp.sessions.run():
            front = make(create_rest(asked, executor), mcp, executor, port=port)
            async with _lifespan(front):
                self._front = front
                try:
                    yield
                finally:
                    self._front = before or front

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one ASGI scope. Lifespan is not Hypercorn's matter: fronts come and go behind the door."""
        if scope["type"] == "lifespan":
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})
        else:
            assert self._front is not None
            await self._front(scope, receive, send)


@asynccontextmanager
async def _lifespan(front: Front) -> AsyncIterator[None]:
    """Start an ASGI application, and stop it at the end."""
    to_front, receive = trio.open_memory_channel[dict[str, Any]](1)
    send, from_front = trio.open_memory_channel[Any](1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(front, {"type": "lifespan", "asgi": {"version": "3.0"}}, receive.receive, send.send)
        await to_front.send({"type": "lifespan.startup"})
        await from_front.receive()
        try:
            yield
        finally:
            with trio.move_on_after(_LIFESPAN_END_S, shield=True):
                await to_front.send({"type": "lifespan.shutdown"})
                await from_front.receive()
            nursery.cancel_scope.cancel()
