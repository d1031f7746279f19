"""The writer: the one actor through which every write of this process goes."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import structlog
import trio

from actors.errors import DeadlineExceeded, Internal, OutcomeUnknown
from actors.life_units import file_unit
from actors.mailbox import Envelope, Mailbox, State
from actors.messages import FileMessage, RemakeIndex, WriteMessage
from actors.reopening import Reopen
from actors.swarm_messages import FollowPages
from actors.units import upkeep_unit, write_of
from storage import limits
from storage.batch import Outcome
from storage.errors import Rejection, StorageBusy
from storage.search.failures import IndexFailure
from storage.swarm.swarm import Swarm
from storage.swarm.telling import Telling
from storage.writing import WritingStore

R = TypeVar("R")

log = structlog.get_logger()

_JITTER_S = (0.05, 0.25)
_PROGRESS_PERIOD_S = 3.0
_TELL_WAIT_S = 0.2
"""How long an event's answer waits for a foreign lock: the event itself is on disk already."""
_TELL_AGAIN_S = 1.0


class Writer:
    """Takes what is queued into one transaction and answers after its COMMIT.

    A write that has started runs to its commit or rollback even when its requester, or this actor, is cancelled.
    """

    name = "writer"

    def __init__(self, mailbox: Mailbox, open_store: Callable[[], WritingStore], swarm: Swarm) -> None:
        self._mailbox = mailbox
        self._swarm = swarm
        self._open_store = open_store
        self.restarts = 0
        self.store: WritingStore | None = None
        """The open store; None while the writer is down."""
        self.holds_files = False
        """True until the store is closed to the end: it is no longer of use before."""
        self.waits_for_lock = False
        """True while another process holds the database's write lock."""
        self._index_error: Exception | None = None
        self._next_progress = 0.0
        self._tell_from_s = 0.0
        self._reopen: Reopen | None = None
        """Set when the store is to be closed and opened anew."""
        self._worked_since: float | None = None
        """When the unit or the wait for a lock that runs now began; None between them."""

    async def run(self, opened: Callable[[], None]) -> None:
        """Open the store and handle messages until the mailbox is closed and drained; when told to, open it anew."""
        while True:
            self._reopen = None
            self.holds_files = True
            try:
                await self._run_open(opened)
            finally:
                self.holds_files = False
            if self._reopen is None:
                return
            await self._reopen.allowed.wait()

    async def _run_open(self, opened: Callable[[], None]) -> None:
        store = await trio.to_thread.run_sync(self._open_store)
        self.store = store
        if self._swarm.telling is not None:
            self._swarm.telling.known_from_s = store.requests_known_from_s
        log.info("store_opened", **{name: getattr(store.report, name) for name in store.report.__slots__})
        await self._reconcile()
        opened()
        try:
            async for envelope in self._mailbox:
                await self._handle([envelope, *self._mailbox.take(limits.BATCH_MESSAGES_MAX - 1)])
                if self._reopen is not None:
                    break
        finally:
            self.store = None
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(self._swarm.memory.close)
                aside = await trio.to_thread.run_sync(store.close)
            if aside is not None:
                log.warning("wal_set_aside", path=str(aside), hint="It belongs to the database that was here before.")

    async def _reconcile(self) -> None:
        """Make up for what a crash left undone in the swarm's files. Whatever they are, the memory is served."""
        try:
            behind = await trio.to_thread.run_sync(self._swarm.memory.reconcile)
        except Exception:
            log.exception("reconcile_failed")
        else:
            if behind:
                log.warning("pages_made_up", pages=behind, hint="A crash had left them behind their logs.")
            if unread := self._swarm.memory.unread:
                log.warning("files_unread", files=unread, hint="They were left alone; see runbooks/swarm.md.")

    def silent_s(self) -> float:
        """For how many seconds one unit has run, or one attempt at a lock waited; 0 between them.

        A wait for a foreign lock is made of attempts of BUSY_TIMEOUT_MS, so it is no silence.
        """
        return 0.0 if self._worked_since is None else trio.current_time() - self._worked_since

    async def _in_thread(self, work: Callable[[], R]) -> R:
        """Run what touches the store in a thread. Shielded by nature: run_sync does not abandon its thread."""
        self._worked_since = trio.current_time()
        try:
            return await trio.to_thread.run_sync(work)
        finally:
            self._worked_since = None

    async def _handle(self, envelopes: list[Envelope[Any]]) -> None:
        """Handle messages, and leave none of them without a reply, whatever happens.

        Writes of the database go before those of files, of which each waits for several fsyncs; each of the two keeps
        its order.
        """
        handled: list[Envelope[Any]] = []
        files: deque[Envelope[Any]] = deque()
        try:
            while envelopes or files:
                handled = [envelope for envelope in (*handled, *envelopes) if envelope.state is State.STARTED]
                files += [envelope for envelope in envelopes if isinstance(envelope.message, FileMessage)]
                await self._handle_in_order([one for one in envelopes if not isinstance(one.message, FileMessage)])
                if files:
                    await self._file(files.popleft())
                room = limits.BATCH_MESSAGES_MAX - len(files)
                envelopes = self._mailbox.take(room) if files else []
        finally:
            for envelope in (*handled, *envelopes):
                if envelope.state is State.STARTED:
                    envelope.refuse(OutcomeUnknown())

    async def _handle_in_order(self, envelopes: Sequence[Envelope[Any]]) -> None:
        """Runs of writes as batches, upkeep one by one."""
        for is_write, run in groupby(envelopes, lambda envelope: isinstance(envelope.message, WriteMessage)):
            if is_write:
                for batch in _batches(list(run)):
                    await self._write(batch)
            else:
                for envelope in run:
                    await self._upkeep(envelope)

    async def _write(self, batch: list[Envelope[Any]]) -> None:
        """Answer every write of a batch; wait for a foreign lock within each write's budget."""
        try:
            await self._write_in_time(batch)
        finally:
            self.waits_for_lock = False

    async def _write_in_time(self, batch: list[Envelope[Any]]) -> None:
        attempts = 0
        while batch := _give_up_late(batch, locked=attempts > 0):
            wait_s = min(limits.BUSY_TIMEOUT_MS / 1000, min(e.deadline for e in batch) - trio.current_time())
            try:
                outcomes = await self._apply(batch, wait_s)
            except StorageBusy as busy:
                attempts += 1
                if attempts > limits.BUSY_RETRIES_MAX:
                    return _refuse_all(batch, busy)
                await self._between_attempts()
            except Rejection as refusal:
                return _refuse_all(batch, refusal)
            except Exception:
                log.exception("batch_failed", messages=len(batch))
                return _refuse_all(batch, Internal())
            else:
                for envelope, outcome in zip(batch, outcomes, strict=False):
                    _answer(envelope, outcome)
                batch = batch[len(outcomes) :]
        return None

    async def _apply(self, batch: Sequence[Envelope[Any]], wait_s: float) -> list[Outcome]:
        """One attempt."""
        assert self.store is not None
        writes = [write_of(envelope.message) for envelope in batch]
        try:
            outcomes = await self._in_thread(partial(self.store.apply, writes, wait_s=max(wait_s, 0.0)))
        except StorageBusy:
            self.waits_for_lock = True
            raise
        self.waits_for_lock = False
        self._log_index_error(self.store)
        return outcomes

    def _log_index_error(self, store: WritingStore) -> None:
        """Once for each failure, however many batches it lasts."""
        if store.index_error is not self._index_error:
            self._index_error = store.index_error
            if self._index_error is not None:
                log.error("index_failed", exc_info=self._index_error)

    async def _between_attempts(self) -> None:
        """Let the index follow foreign rows while the lock is held elsewhere, and leave the others room."""
        assert self.store is not None
        try:
            await self._in_thread(self.store.catch_up)
        except Exception:  # whatever it is: a write is never given up for the index, and recalls say that it is behind
            log.exception("index_failed")
        await trio.sleep(random.uniform(*_JITTER_S))  # noqa: S311 (jitter, not a secret)

    async def _file(self, envelope: Envelope[Any]) -> None:
        """Run a write on the swarm's files, unless its time went by in the mailbox."""
        assert self.store is not None
        message = envelope.message
        if envelope.deadline <= trio.current_time():
            return envelope.refuse(DeadlineExceeded())
        try:
            reply = await self._in_thread(partial(file_unit, message, self._swarm, self.store.require_registered))
        except Rejection as refusal:
            envelope.refuse(refusal)
        except Exception:
            log.exception("unit_failed", message=type(message).__name__)
            envelope.refuse(Internal())
        else:
            envelope.replayed = getattr(reply, "replayed", False)
            envelope.reply(await self._told(reply))
        return None

    async def _told(self, reply: Any) -> Any:
        """The answer to a write of files, once its event is an episode, or saying that it is none yet."""
        await self._tell()
        telling = self._swarm.telling
        at = getattr(reply, "at", None)
        if telling is None or at is None or not telling.owes(reply.workerId, at):
            return reply
        try:
            await self._in_thread(telling.keep)
        except Rejection as refusal:
            log.warning(
                "episode_not_kept", code=refusal.code, hint="It is told while this process lives, or by a retry."
            )
        return replace(reply, degradedReasons=(*reply.degradedReasons, "episode_owed"))

    async def _tell(self) -> None:
        """Write some of the episodes that events owe; after a failure not again for a while."""
        telling = self._swarm.telling
        if telling is None or not telling or trio.current_time() < self._tell_from_s:
            return
        try:
            for error in await self._in_thread(partial(self._pay, telling)):
                log.warning("event_untold", reason=str(error), hint="It is in its log, and no episode.")
        except Rejection as refusal:
            log.info("episodes_owed", code=refusal.code)
            self._tell_from_s = trio.current_time() + _TELL_AGAIN_S

    def _pay(self, telling: Telling) -> list[Exception]:
        """One batch of episodes; what hindered those that are given up."""
        assert self.store is not None
        writes = telling.writes(limits.BATCH_MESSAGES_MAX)
        return telling.settle(self.store.apply(writes, wait_s=_TELL_WAIT_S)) if writes else []

    async def _upkeep(self, envelope: Envelope[Any]) -> None:
        assert self.store is not None
        message = envelope.message
        try:
            reply = await self._in_thread(partial(self._upkeep_unit, message, self.store))
        except Rejection as refusal:
            envelope.refuse(refusal)
        except Exception:
            log.exception("upkeep_failed", message=type(message).__name__)
            envelope.refuse(Internal())
        else:
            if isinstance(message, Reopen):
                self._reopen = message if reply else None
            elif isinstance(message, FollowPages):
                await self._tell()
            else:
                await self._log_index(self.store, remade=isinstance(message, RemakeIndex), behind=reply is False)
            envelope.reply(reply)

    def _upkeep_unit(self, message: Any, store: WritingStore) -> Any:
        if isinstance(message, Reopen):
            return store.may_be_closed()
        if not isinstance(message, FollowPages):
            return upkeep_unit(message, store)
        self._swarm.memory.follow()
        return not self._swarm.memory.behind

    async def _log_index(self, store: WritingStore, *, remade: bool, behind: bool) -> None:
        """A line when the index is made anew, and one every few seconds until it has followed the tables."""
        now = trio.current_time()
        if remade:
            log.warning(
                "index_remade", hint="Its file was damaged or gone; recalls say index_rebuilding until it is done."
            )
        if not behind or now < self._next_progress:
            return
        share = 1.0
        with suppress(Rejection, IndexFailure):  # whoever asks next is told
            share = await self._in_thread(store.share_indexed)
        if share < 1.0:
            log.info("index_rebuilding", share=share)
            self._next_progress = now + _PROGRESS_PERIOD_S


def _batches(envelopes: list[Envelope[Any]]) -> list[list[Envelope[Any]]]:
    """The envelopes cut where a batch would exceed BATCH_BYTES_MAX."""
    batches: list[list[Envelope[Any]]] = []
    size = 0
    for envelope in envelopes:
        length = _length(envelope.message)
        if not batches or size + length > limits.BATCH_BYTES_MAX:
            batches.append([])
            size = 0
        batches[-1].append(envelope)
        size += length
    return batches


def _length(message: Any) -> int:
    fields = (getattr(message, name) for name in message.__dataclass_fields__)
    return sum(len(value.encode("utf-8", "replace")) for value in fields if isinstance(value, str))


def _give_up_late(batch: list[Envelope[Any]], *, locked: bool) -> list[Envelope[Any]]:
    """Refuse the writes whose budget is spent, and return the others."""
    now = trio.current_time()
    late = [envelope for envelope in batch if envelope.deadline <= now]
    reason = StorageBusy(f"The database stayed locked for the whole {limits.WRITE_BUDGET_S:.0f} s.")
    _refuse_all(late, reason if locked else DeadlineExceeded())
    return [envelope for envelope in batch if envelope.deadline > now]


def _refuse_all(batch: Sequence[Envelope[Any]], error: Rejection) -> None:
    for envelope in batch:
        envelope.refuse(error)


def _answer(envelope: Envelope[Any], outcome: Outcome) -> None:
    if outcome.error is None:
        envelope.replayed = outcome.replayed
        envelope.reply(outcome.reply)
    elif isinstance(outcome.error, Rejection):
        envelope.refuse(outcome.error)
    else:
        log.error("unit_failed", message=type(envelope.message).__name__, exc_info=outcome.error)
        envelope.refuse(Internal())
