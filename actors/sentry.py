"""The sentry: looks whether the database is there and sound, and has it opened anew where that mends something."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import structlog
import trio

from actors.errors import MailboxFull, OutcomeUnknown
from actors.mailbox import Mailbox
from actors.messages import Upkeep
from actors.reader import Reader
from actors.reopening import Reopen
from actors.writer import Writer
from storage.checks import check_served
from storage.errors import Rejection
from storage.soundness import Side
from storage.writing import WritingStore

log = structlog.get_logger()

_PERIOD_S = 1.0
_CHECK_PERIOD_S = 3_600.0
_PAUSE = 10.0
"""While damage is suspected: how many times as long as a check took there is none."""
_WITHIN_S = 10.0
_CLOSED_WITHIN_S = 60.0
_LOOK_S = 0.02


class Sentry:
    """Looks every second. What is wrong is logged when it begins and when it is over."""

    def __init__(
        self, database: Path, writer: Writer, readers: Sequence[Reader], *, writes: Mailbox, reads: Mailbox
    ) -> None:
        """Inside of trio. `writes` and `reads` are the mailboxes of the writer and of the readers."""
        self._database = database
        self._writer = writer
        self._readers = readers
        self._writes = writes
        self._reads = reads
        self._check_from_s = trio.current_time() + _CHECK_PERIOD_S
        self._check_again_from_s = 0.0
        self._said: dict[str, object] = {}
        """What was logged last, by event: it is not logged again while it stays so."""

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await trio.sleep(_PERIOD_S)
            if (store := self._writer.store) is None:
                continue
            try:
                await self._look(store)
            except Rejection as refusal:
                self._say("check_postponed", code=refusal.code, reason=refusal.detail)
            except Exception:  # whatever it is: the service goes on, and the next look tries again
                log.exception("check_failed")

    def _say(self, event: str, **what: object) -> None:
        """Log an error once, until it changes or is over; nothing named is no error."""
        if self._said.get(event) == what or not (what or event in self._said):
            return
        if what:
            self._said[event] = what
            log.error(event, **what)
        else:
            del self._said[event]
            log.warning(event, over=True)

    async def _look(self, store: WritingStore) -> None:
        standing = await trio.to_thread.run_sync(store.standing, abandon_on_cancel=True)
        self._say("database_moved", **({"reason": standing.refused} if standing.refused else {}))
        if standing.reopen is not None:
            await self._reopen(standing.reopen)
        elif standing.refused is None and not all(reader.in_place for reader in self._readers):
            await self._reopen("A reader has another database open than the one in place.")
        elif standing.refused is None:
            await self._look_for_failures(store)

    # --- failures ---

    async def _look_for_failures(self, store: WritingStore) -> None:
        """Say what fails, try whether it still does, and check the database when that is due."""
        reading = [store.reads, *(reader.store.reads for reader in self._readers if reader.store is not None)]
        failures = [side.failure for side in (store.writes, *reading) if side.failure is not None]
        codes = sorted({failure.code for failure in failures})
        self._say("storage_failing", **({"codes": codes, "reason": failures[0].detail} if failures else {}))
        if store.writes.failure is not None or not store.state_works:
            await self._writes.ask(Upkeep(), within_s=_WITHIN_S)
        suspected = not store.integrity.sound or store.writes.damaged or any(side.failure for side in reading)
        if trio.current_time() >= (self._check_again_from_s if suspected else self._check_from_s):
            await self._check(store, reading, suspected=suspected)

    async def _check(self, store: WritingStore, reading: Sequence[Side], *, suspected: bool) -> None:
        """Look for damage. Where there was some and is none now, have the database opened anew."""
        began_s = trio.current_time()
        try:
            check = partial(check_served, self._database, thorough=suspected)
            integrity = await trio.to_thread.run_sync(check, abandon_on_cancel=True)
        finally:
            now_s = trio.current_time()
            self._check_from_s = now_s + _CHECK_PERIOD_S
            self._check_again_from_s = now_s + _PAUSE * (now_s - began_s)
        was_damaged = not store.integrity.sound or any(side.damaged for side in (store.writes, *reading))
        store.integrity = integrity
        self._say("database_damaged", **({} if integrity.sound else {"reason": integrity.problem}))
        if integrity.sound and was_damaged:
            await self._reopen("The database is sound again: what is in memory of it may not be.")
        elif integrity.sound:
            for side in reading:
                side.clear()

    # --- opening anew ---

    async def _reopen(self, why: str) -> None:
        """Have the stores closed, all of them before the first is opened again: they share what SQLite knows of a file.

        Reads wait in their mailbox meanwhile, new writes are not_ready; what has begun is finished before.
        """
        message = Reopen()
        try:
            if not await self._closed_by_writer(message):
                return self._say("reopening_postponed", reason="A reader keeps the removed WAL from being copied.")
            log.warning("database_reopened", reason=why)
            for _ in self._readers:
                await self._tell_a_reader(message)
            with trio.move_on_after(_CLOSED_WITHIN_S):
                while self._any_open:  # noqa: ASYNC110 (actors that fail set no event)
                    await trio.sleep(_LOOK_S)
            self._said.clear()
        finally:
            message.allowed.set()
        return None

    async def _closed_by_writer(self, message: Reopen) -> bool:
        """What the writer answers, however late: once it has begun, it closes its store, and the readers have to know.

        Raises:
            DeadlineExceeded, MailboxFull, ShuttingDown: it has not begun and will not.
        """
        envelope = self._writes.post(message, within_s=_WITHIN_S)
        try:
            return await self._writes.reply_to(envelope)
        except OutcomeUnknown:
            return await envelope.wait()

    @property
    def _any_open(self) -> bool:
        return self._writer.holds_files or any(reader.holds_files for reader in self._readers)

    async def _tell_a_reader(self, message: Reopen) -> None:
        while True:
            try:
                self._reads.post(message, within_s=_CLOSED_WITHIN_S)
            except MailboxFull:
                await trio.sleep(_LOOK_S)
            else:
                return
