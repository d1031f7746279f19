"""The janitor: keeps the index following the tables and the files tidy, in slices between the writes."""

from collections.abc import Callable
from typing import Any

import structlog
import trio

from actors.mailbox import Mailbox
from actors.messages import CatchUp, CheckIndex, JoinSegments, Sweep, Upkeep, UpkeepMessage
from actors.swarm_messages import FollowPages
from storage import limits
from storage.errors import Rejection
from storage.swarm.swarm import Swarm
from storage.wal import WriteAheadLog

log = structlog.get_logger()

_LOOK_AGAIN_S = 2.0
_PAUSE_S = 0.001
_SWEEP_PAUSE_S = 0.1
_PATIENCE_S = 30.0
_PAGES_PERIOD_S = 0.05
_FILES_PERIOD_S = 1.0
_WAL_PERIOD_S = 1.0
_WAL_HINT = "A process keeps a read transaction open on the database: see runbooks/health.md#a-large-wal."


class Janitor:
    """Asks the writer for upkeep. Whatever it does goes through the writer's mailbox, but the copying of a long WAL."""

    def __init__(self, writer: Mailbox, swarm: Swarm, wal: Callable[[], WriteAheadLog | None]) -> None:
        """`wal` tells which WAL is to be watched; None while the writer is down."""
        self._writer = writer
        self._swarm = swarm
        self._wal = wal
        self._wal_large = False
        self._wal_failed: type[Exception] | None = None
        """How the last look at the WAL failed; it is logged once, not every second."""

    async def run(self) -> None:
        """Run until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            nursery.start_soon(self._sweep)
            nursery.start_soon(self._join)
            nursery.start_soon(self._tidy)
            nursery.start_soon(self._watch_wal)
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

    async def _join(self) -> None:
        """Of 500,000 rows the posting lists are joined in a few seconds, a second of a processor."""
        while True:
            done = await self._ask(JoinSegments())
            await trio.sleep(_SWEEP_PAUSE_S if done is False else limits.JANITOR_PERIOD_S)

    async def _tidy(self) -> None:
        while True:
            await trio.sleep(limits.JANITOR_PERIOD_S)
            await self._ask(Upkeep())

    async def _watch_wal(self) -> None:
        while True:
            await trio.sleep(_WAL_PERIOD_S)
            if (wal := self._wal()) is not None:
                await self._look_at(wal)

    async def _look_at(self, wal: WriteAheadLog) -> None:
        """Copy a long WAL back; the little that was written meanwhile the writer copies, so that it is used anew.

        Abandoned at the end: a checkpoint that is killed in the middle is made again by the next one.
        """
        try:
            long = await trio.to_thread.run_sync(wal.look, abandon_on_cancel=True)
        except Exception as error:  # whatever it is: the next look tries again
            if type(error) is not self._wal_failed:
                log.warning("wal_not_copied", reason=str(error), hint="It grows until it can be; see the disk.")
            self._wal_failed = type(error)
        else:
            self._wal_failed = None
            if long and not wal.is_held:
                await self._ask(Upkeep())
        if wal.is_large == self._wal_large:
            return
        self._wal_large = wal.is_large
        if self._wal_large:
            log.warning("wal_large", wal_bytes=wal.used_bytes, hint=_WAL_HINT)
        else:
            log.info("wal_copied", wal_bytes=wal.bytes)

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
