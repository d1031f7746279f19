"""The janitor: keeps the index following the tables and the files tidy, in slices between the writes."""

from typing import Any

import structlog
import trio

from actors.mailbox import Mailbox
from actors.messages import CatchUp, Upkeep, UpkeepMessage
from storage import limits
from storage.errors import Rejection

log = structlog.get_logger()

_LOOK_AGAIN_S = 2.0
_PAUSE_S = 0.001
_PATIENCE_S = 30.0


class Janitor:
    """Asks the writer for upkeep. It holds no connection: whatever it does goes through the writer's mailbox."""

    def __init__(self, writer: Mailbox) -> None:
        self._writer = writer

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._tidy)

    async def _follow(self) -> None:
        while True:
            done = await self._ask(CatchUp())
            await trio.sleep(_PAUSE_S if done is False else _LOOK_AGAIN_S)

    async def _tidy(self) -> None:
        while True:
            await trio.sleep(limits.JANITOR_PERIOD_S)
            await self._ask(Upkeep())

    async def _ask(self, message: UpkeepMessage[Any]) -> Any:
        """The reply; None where the writer has no time for it now. Upkeep is never worth a failure."""
        try:
            return await self._writer.ask(message, within_s=_PATIENCE_S)
        except Rejection as refusal:
            log.info("upkeep_postponed", message=type(message).__name__, code=refusal.code)
            return None
