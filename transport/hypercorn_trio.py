"""Hypercorn on Trio, with one fault mended."""

from typing import Any

import hypercorn.trio.run
from hypercorn.trio import serve
from hypercorn.trio.tcp_server import TCPServer

__all__ = ["serve"]


class _Connection(TCPServer):
    """A connection that ends when its client has closed it.

    Hypercorn 0.18 leaves its reading at end of file and then waits for the idle task, which sleeps the whole
    keep-alive time-out: 20 clients a second that come and go are 1,500 descriptors at our 75 s. Pinned by
    test_client_that_leaves_does_not_leak.
    """

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


_patched: Any = hypercorn.trio.run
_patched.TCPServer = _Connection
