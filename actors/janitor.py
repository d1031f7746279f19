"""The janitor: keeps the index following the tables and the files tidy, in slices between the writes."""

from typing import Any

import structlog
import trio

from actors.mailbox import Mailbox
from actors.messages import CatchUp, CheckIndex, Sweep, Upkeep, UpkeepMessage
from actors.swarm_messages import FollowPages
from storage import limits
from storage.errors import Rejection
from storage.swarm.swarm import Swarm

log = structlog.get_logger()

_LOOK_AGAIN_S = 2.0
_PAUSE_S = 0.001
_SWEEP_PAUSE_S = 0.1
_PATIENCE_S = 30.0
_PAGES_PERIOD_S = 0.05
_FILES_PERIOD_S = 1.0


class Janitor:
    """Asks the writer for upkeep. It holds no connection: whatever it does goes through the writer's mailbox."""

    def __init__(self, writer: Mailbox, swarm: Swarm) -> None:
        self._writer = writer
        self._swarm = swarm

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._tidy)
            nursery.start_soon(self._check)
            nursery.start_soon(self._follow_pages)
            nursery.start_soon(self._look_at_files)

    async def _follow(self) -> None:
        while True:
            done = await self._ask(CatchUp())
            await trio.sleep(_PAUSE_S if done is False else _LOOK_AGAIN_S)

    async def _sweep(self) -> None:
        """A sweep of 500,000 rows takes half a minute of these slices, and few seconds of a processor."""
        while True:
            done = await self._ask(Sweep())
            await trio.sleep(_SWEEP_PAUSE_S if done is False else _LOOK_AGAIN_S)

    async def _tidy(self) -> None:
        while True:
            await trio.sleep(limits.JANITOR_PERIOD_S)
            await self._ask(Upkeep())

    async def _check(self) -> None:
        """At the start and then every hour."""
        seed = 0
        while True:
            if await self._ask(CheckIndex(seed=seed)) is False:
                log.warning("index_damaged", hint="A sample of its rows was not found; it is being made anew.")
            seed += 1
            await trio.sleep(limits.INDEX_CHECK_PERIOD_S)

    async def _follow_pages(self) -> None:
        """Pages of the swarm that wait for their turn."""
        while True:
            await trio.sleep(_PAGES_PERIOD_S)
            if self._swarm.memory.behind:
                await self._ask(FollowPages())

    async def _look_at_files(self) -> None:
        """Keep the search of the swarm's files warm while it is used."""
        while True:
            await trio.sleep(_FILES_PERIOD_S)
            if self._swarm.search.in_use:
                try:
                    await trio.to_thread.run_sync(self._swarm.search.refresh)
                except Exception:  # whatever it is: the next search looks at the files itself
                    log.exception("files_not_looked_at")

    async def _ask(self, message: UpkeepMessage[Any]) -> Any:
        """The reply; None where the writer has no time for it now. Upkeep is never worth a failure."""
        try:
            return await self._writer.ask(message, within_s=_PATIENCE_S)
        except Rejection as refusal:
            log.info("upkeep_postponed", message=type(message).__name__, code=refusal.code)
            return None
