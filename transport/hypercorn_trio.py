"""Hypercorn on Trio, with the end of a connection mended."""

from typing import Any

import hypercorn.trio.run
import trio
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio import serve
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["serve"]


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


_patched: Any = hypercorn.trio.run
_patched.TCPServer = _Connection
