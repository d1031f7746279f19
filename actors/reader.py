"""Readers: they compete for one mailbox, each with read-only connections of its own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from typing import Any, TypeVar

import structlog
import trio

from actors.briefing import brief_unit, deeds_of, facts_of
from actors.errors import Internal
from actors.life_messages import Brief
from actors.life_units import file_read_unit
from actors.mailbox import Envelope, Mailbox
from actors.messages import CatchUp, FileReadMessage, IsRegistered, Message, Recall, Refresh, RemakeIndex
from actors.recaller import Recaller, RecallerGone
from actors.reopening import Reopen
from actors.stats import Stats
from actors.units import question_of, read_unit
from storage import limits
from storage.briefing import Briefing
from storage.errors import FileFailed, NoFileOfOurs, Rejection, StorageUnavailable
from storage.reading import Found, ReadingStore
from storage.recalling import Question
from storage.records import Recalled, with_reason
from storage.search.failures import IndexFailure
from storage.swarm.recalled import with_files
from storage.swarm.swarm import Swarm

log = structlog.get_logger()

R = TypeVar("R")
_INTERRUPT_AGAIN_S = 0.02
_STALE_ROUNDS_MAX = 3


class Reader:
    """Answers reads, each one synchronous unit in a thread, or of a recall in a process, cut at its deadline."""

    def __init__(
        self,
        name: str,
        mailbox: Mailbox,
        open_store: Callable[[], ReadingStore],
        *,
        recaller: Recaller,
        swarm: Swarm,
        writer: Mailbox,
        stats: Stats,
    ) -> None:
        self.name = name
        self.restarts = 0
        self.store: ReadingStore | None = None
        """The open store; None while the reader is down."""
        self.holds_files = False
        """True until the store is closed to the end: it is no longer of use before."""
        self._mailbox = mailbox
        self.recaller = recaller
        self._open_store = open_store
        self._swarm = swarm
        self._writer = writer
        self._stats = stats
        self._cut_from = inf
        """On trio's clock: when the unit that runs now is to be interrupted next."""
        self._cutting = trio.CancelScope()
        self._waited = False
        """True once a recall has waited in vain for the index to catch up; until it has, no other waits."""

    @property
    def in_place(self) -> bool:
        """False when the database's path no longer names the file that is open."""
        return self.store is None or self.store.database_in_place

    async def run(self, opened: Callable[[], None]) -> None:
        """Open the store and answer messages until the mailbox is closed and drained; when told to, open it anew."""
        while True:
            self.holds_files = True
            try:
                reopen = await self._run_open(opened)
            finally:
                self.holds_files = False
            if reopen is None:
                return
            await reopen.allowed.wait()

    async def _run_open(self, opened: Callable[[], None]) -> Reopen | None:
        """The message that ended it, if one did."""
        reopen = None
        store = await trio.to_thread.run_sync(self._open_store)
        self.store = store
        opened()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._interrupt, store)
                nursery.start_soon(self.recaller.run)
                async for envelope in self._mailbox:
                    if isinstance(envelope.message, Reopen):
                        reopen = envelope.message
                        envelope.reply(True)
                        break
                    await self._answer(store, envelope)
                nursery.cancel_scope.cancel()
        finally:
            self.store = None
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(store.close)
        return reopen

    async def _answer(self, store: ReadingStore, envelope: Envelope[Any]) -> None:
        """Reply exactly once. A unit that raises something unexpected is a bug of ours, never a reason to stop."""
        message = envelope.message
        try:
            if isinstance(message, Brief):
                envelope.reply(await self._brief(store, message, envelope.deadline))
            elif isinstance(message, Recall):
                envelope.reply(await self._recall_all(store, message, envelope.deadline))
            else:
                envelope.reply(await self._cut(envelope.deadline, lambda: self._read(store, message)))
        except Rejection as refusal:
            envelope.refuse(refusal)
        except Exception:
            log.exception("unit_failed", message=type(message).__name__)
            envelope.refuse(Internal("A bug of ours stopped the read; the log has the traceback."))

    def _read(self, store: ReadingStore, message: Any) -> Any:
        if isinstance(message, FileReadMessage):
            return file_read_unit(message, self._swarm, store.require_registered)
        self._admit(store, message)
        return read_unit(message, store)

    def _admit(self, store: ReadingStore, asked: Any) -> None:
        """Count a read by an agent that the registry does not hold; see ReadingStore.admitted()."""
        agent = getattr(asked, "agent", None)
        if agent is not None and not isinstance(asked, IsRegistered) and not store.admitted(agent):
            trio.from_thread.run_sync(self._count_unregistered)

    def _count_unregistered(self) -> None:
        self._stats.unregistered_reads += 1

    async def _brief(self, store: ReadingStore, message: Brief, deadline: float) -> Briefing:
        """The recalls of a briefing, then the rest of it."""
        facts = deeds = None
        if message.q is not None:
            facts = await self._recall(store, facts_of(message.agent, message.q), deadline)
            deeds = await self._recall(store, deeds_of(message.agent, message.q), deadline, admitted=True)

        def unit() -> Briefing:
            if facts is None:
                self._admit(store, message)
            return brief_unit(message, store, self._swarm, facts, deeds)

        return await self._cut(deadline, unit)

    async def _recall_all(self, store: ReadingStore, message: Recall, deadline: float) -> Recalled:
        """Answer a recall from the tables, from the swarm's files, or from both."""
        question = question_of(message)
        if "swarm" not in message.tiers:
            return await self._recall(store, question, deadline)
        if not question.tiers:
            return await self._cut(deadline, lambda: self._recall_files(store, question, admitted=False))
        # Explained: what a row and a line have in common is the share of the question that each answers.
        explained = replace(question, explain=True)
        rows = await self._recall(store, explained, deadline)
        files: Recalled | Rejection
        try:
            files = await self._cut(deadline, lambda: self._recall_files(store, explained, admitted=True))
        except (FileFailed, NoFileOfOurs) as failure:
            log.warning("files_not_recalled", reason=failure.detail)
            files = failure
        return with_files(rows, files, question)

    def _recall_files(self, store: ReadingStore, question: Question, *, admitted: bool) -> Recalled:
        if not admitted:
            self._admit(store, question)
        return self._swarm.recall(question, store.now_s(), registered=store.is_registered(question.agent))

    async def _recall(
        self, store: ReadingStore, question: Question, deadline: float, *, admitted: bool = False
    ) -> Recalled:
        """Answer a recall. A damaged index is made anew; where it still cannot be read, that is the answer.

        `admitted`: an earlier part of the same read has counted its agent already, if it is not registered.
        """
        try:
            return await self._recall_once(store, question, deadline, admitted=admitted)
        except IndexFailure as failure:
            if failure.damaged:
                await self._caught_up(RemakeIndex(broken=store.index_identity))
        try:
            return await self._recall_once(store, question, deadline, admitted=True)
        except IndexFailure as failure:
            log.warning("index_failed", reason=str(failure))
            anew = "; it is being made anew" if failure.damaged else f" ({failure})"
            raise StorageUnavailable(f"The search index cannot be read{anew}.") from failure

    async def _recall_once(
        self, store: ReadingStore, question: Question, deadline: float, *, admitted: bool
    ) -> Recalled:
        """Answer from the index as it is, after waiting once, briefly, for rows that others have inserted."""
        found = await self._look(store, question, deadline, may_wait=not self._waited)
        if found is None:
            self._waited = not await self._caught_up(CatchUp())
            found = await self._look(store, question, deadline)
        for _ in range(_STALE_ROUNDS_MAX):
            if found is None or not found.stale or not await self._caught_up(Refresh(rows=found.stale)):
                break
            found = await self._look(store, question, deadline)
        assert found is not None  # it did not wait
        if not admitted and not found.admitted:
            self._count_unregistered()
        if found.stale:  # rows were left out that may hold the answer
            return with_reason(found.recalled, "index_behind")
        if found.lag is None:
            self._waited = False
        return found.recalled

    async def _look(
        self, store: ReadingStore, question: Question, deadline: float, *, may_wait: bool = False
    ) -> Found | None:
        """See ReadingStore.look(): in the process for recalls while there is one, or else in a thread."""
        with suppress(RecallerGone), self._cut_at(deadline), store.reads.noted():
            return await self.recaller.look(question, may_wait=may_wait)
        return await self._cut(deadline, lambda: store.look(question, may_wait=may_wait))

    async def _caught_up(self, message: CatchUp | Refresh | RemakeIndex) -> bool:
        """Whether the writer did it, to its end, within CATCH_UP_WAIT_S."""
        ask: Message[Any] = message
        with trio.move_on_after(limits.CATCH_UP_WAIT_S):
            try:
                return await self._writer.ask(ask, within_s=limits.CATCH_UP_WAIT_S) is not False
            except Rejection:
                return False
        return False

    async def _cut(self, deadline: float, unit: Callable[[], R]) -> R:
        """Run a unit in a thread, cut at its deadline."""
        with self._cut_at(deadline):
            return await trio.to_thread.run_sync(unit)

    @contextmanager
    def _cut_at(self, deadline: float) -> Iterator[None]:
        """Run a block in which something looks; from the deadline on its statements are interrupted until it ends."""
        self._cut_from = self._cutting.deadline = deadline
        try:
            yield
        finally:
            self._cut_from = self._cutting.deadline = inf

    async def _interrupt(self, store: ReadingStore) -> None:
        """Interrupt what runs beyond its deadline, again and again: between two statements there is nothing to cut.

        One task for all units: to start one for each cost more than many a read.
        """
        while True:
            with trio.CancelScope(deadline=self._cut_from) as self._cutting:
                await trio.sleep_forever()
            if self._cut_from <= trio.current_time():  # or else the unit has ended in this moment
                store.interrupt()
                self.recaller.interrupt()
                self._cut_from = trio.current_time() + _INTERRUPT_AGAIN_S
