"""Hypercorn on Trio, with the end of a connection mended, also the end by an error."""

from typing import Any

import hypercorn.trio.run
import structlog
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio import serve
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["serve"]

log = structlog.get_logger()


class _Connection(TCPServer):
    """A connection that ends when either side has closed it.

    Hypercorn 0.18 leaves its reading at end of file and then waits for the idle task, which sleeps the whole
    keep-alive time-out: 20 clients a second that come and go are 1,500 descriptors at our 75 s. And where it closes
    a connection, or cannot send on it, while further requests wait in its buffer, its reader waits for ever for the
    pause between two requests to end: the descriptor stays, and a stop takes its whole graceful time. Pinned by
    test_client_that_leaves_does_not_leak.
    """

    _reading: trio.CancelScope | None = None
    _over = False

    async def run(self) -> None:
        """Serve one connection. What one client sends may end its connection and never the process.

        Three malformed requests raised out of Hypercorn's protocols (a WebSocket's sub-protocol and an HTTP/2 path that
        are no ASCII, an HTTP/2 frame after the answer), and with them ended every other connection.
        """
        try:
            await super().run()
        except Exception as error:
            log.warning("connection_failed", reason=type(_innermost(error)).__name__)

    async def _read_data(self) -> None:
        with trio.CancelScope() as self._reading:
            await super()._read_data()
        self._over = True
        await self.protocol.handle(Closed())
        await self.idle_task.stop()

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, Updated) and self._over:
            return  # no new idle timer for a connection whose reading is over
        if not isinstance(event, RawData):
            await super().protocol_send(event)
            if isinstance(event, Closed):
                self._stop_reading()
            return
        async with self.send_lock:
            try:
                with trio.CancelScope(shield=True):
                    await self.stream.send_all(event.data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                await self.protocol.handle(Closed())
                self._stop_reading()

    async def _initiate_server_close(self) -> None:
        await super()._initiate_server_close()
        self._stop_reading()

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()


def _innermost(error: BaseException) -> BaseException:
    return _innermost(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


_patched: Any = hypercorn.trio.run
_patched.TCPServer = _Connection
