"""The actors together: who is asked what, and how they start and stop."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeVar

import trio

from actors.errors import DeadlineExceeded, NotReady, OutcomeUnknown
from actors.janitor import Janitor
from actors.life_messages import Brief, SwarmResume
from actors.mailbox import Envelope, Mailbox
from actors.messages import (
    FileMessage,
    FileReadMessage,
    GetStatistics,
    GetStoreState,
    Message,
    ReadMessage,
    WriteMessage,
)
from actors.reader import Reader
from actors.recaller import Recaller
from actors.sentry import Sentry
from actors.stats import ActorState, Statistics, Stats
from actors.supervisor import supervise
from actors.swarm_messages import SwarmRead
from actors.writer import Writer
from storage import limits
from storage.database import check_database_file
from storage.errors import Interrupted, InvalidRequest, Rejection, StorageBusy
from storage.paths import Paths, ProcessLock
from storage.reading import ReadingStore
from storage.recaller import command
from storage.records import Purged
from storage.soundness import Integrity, Side
from storage.swarm.layout import Roots, SwarmConfig
from storage.swarm.swarm import Swarm
from storage.wal import WriteAheadLog
from storage.writing import WritingStore

R = TypeVar("R")

_PAGES_WITHIN_S = 0.4
_PAGES_LOOK_S = 0.02
_BUSY_GRACE_S = 1.0
"""One attempt at a foreign lock lasts BUSY_TIMEOUT_MS; what lasts this much longer is no such wait."""


@dataclass(frozen=True, slots=True)
class Health:
    """Whether the service can do its work, and why not. It names no paths, counts or versions."""

    status: str
    """`ok`, `degraded` or `not_ready`."""
    reasons: tuple[str, ...]
    """Stable codes."""


class Asked(Protocol):
    """What the edges ask: the system, or what stands for it while it cannot be opened."""

    stats: Stats

    def post(self, message: WriteMessage[R]) -> Envelope[R]:
        """See System.post."""

    async def reply(self, envelope: Envelope[R]) -> R:
        """See System.reply."""

    async def ask(self, message: Message[R]) -> R:
        """See System.ask."""

    def actors(self) -> dict[str, ActorState]:
        """See System.actors."""

    def health(self) -> Health:
        """See System.health."""


class System:
    """The writer, the readers and the janitor of one database. `running()` starts and stops them."""

    def __init__(
        self, paths: Paths, stats: Stats, *, swarm: SwarmConfig | None = None, refuse_unregistered_reads: bool = False
    ) -> None:
        """Without `swarm` the swarm's files lie in the database's own folder."""
        self.stats = stats
        self._paths = paths
        beside = Roots(profiles=paths.folder / "profiles", shared=paths.folder / "shared")
        self._swarm = Swarm(swarm or SwarmConfig(beside), paths.swarm_index)
        self._writes = Mailbox("writer", limits.WRITER_MAILBOX_MAX)
        self._reads = Mailbox("readers", limits.READER_MAILBOX_MAX)
        self._writer = Writer(self._writes, partial(WritingStore, paths), self._swarm)
        self._readers = [
            Reader(
                f"reader {number}",
                self._reads,
                partial(ReadingStore, paths, refuse_unregistered=refuse_unregistered_reads),
                recaller=Recaller(command(paths.database, refuse_unregistered=refuse_unregistered_reads)),
                swarm=self._swarm,
                writer=self._writes,
                stats=stats,
            )
            for number in range(1, limits.READERS + 1)
        ]
        self._stopping = False
        self._ending = trio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["System"]:
        """Take the lock, start the actors, and at the end drain and stop them in the opposite order.

        Raises:
            ConfigurationError: the database cannot be served as configured; nothing was started.
            ActorGaveUp: an actor failed too often; the body was cancelled.
        """
        check_database_file(self._paths.database)
        self._paths.make_folders()
        lock = ProcessLock(self._paths)
        try:
            await trio.to_thread.run_sync(self._swarm.open)
            async with trio.open_nursery() as nursery:
                await nursery.start(self._supervise, self._writer)
                async with trio.open_nursery() as readers:
                    for reader in self._readers:
                        await readers.start(self._supervise, reader)
                    async with trio.open_nursery() as upkeep:
                        upkeep.start_soon(Janitor(self._writes, self._swarm, self._wal).run)
                        upkeep.start_soon(self._sentry().run)
                        try:
                            yield self
                        finally:
                            self._stopping = True
                            self._ending.set()
                            self._swarm.stop()
                            upkeep.cancel_scope.cancel()
                            self._reads.close()
                self._writes.close()
        except BaseExceptionGroup as group:
            cause = _cause(group)
            raise cause from cause.__cause__
        finally:
            self._writes.close()
            self._swarm.close()
            lock.release()

    async def _supervise(
        self, actor: Writer | Reader, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        await supervise(actor, ending=self._ending, task_status=task_status)

    def _sentry(self) -> Sentry:
        return Sentry(self._paths.database, self._writer, self._readers, writes=self._writes, reads=self._reads)

    def post(self, message: WriteMessage[R]) -> Envelope[R]:
        """Put a write into the writer's mailbox; `reply()` waits for its end.

        Raises:
            MailboxFull, ShuttingDown, NotReady: nothing was accepted.
        """
        if self._writer.store is None and not self._stopping:
            raise NotReady("The writer is starting again after a failure.")
        return self._writes.post(message, within_s=limits.WRITE_BUDGET_S)

    async def reply(self, envelope: Envelope[R]) -> R:
        """Wait for the end of a posted write.

        Raises:
            StorageBusy: its time went by in the mailbox while the writer waited for a foreign lock.
            DeadlineExceeded: its time went by in the mailbox.
            OutcomeUnknown: it had started, and its end was not seen in time.
            Rejection: whatever the writer answered.
        """
        try:
            reply = await self._writes.reply_to(envelope)
        except DeadlineExceeded:
            if self._writer.waits_for_lock:
                raise StorageBusy("The writer waits for a lock that another process holds.") from None
            raise
        if isinstance(reply, Purged):
            return await self._purged_to_the_end(envelope, reply)  # type: ignore[return-value]
        return reply

    async def _purged_to_the_end(self, envelope: Envelope[Any], first: Purged) -> Purged:
        """Purge on, slice by slice with other writes between them, until nothing is left or the call's time is over."""
        purged, last = first.purged, first
        with suppress(Rejection):  # what went is gone, and what did not is the next purge's
            while last.purged == limits.PURGE_ROWS and (left_s := envelope.deadline - trio.current_time()) > 0:
                last = await self._writes.ask(envelope.message, within_s=left_s)
                purged += last.purged
        return replace(last, purged=purged)

    async def ask(self, message: Message[R]) -> R:
        """Answer any operation's message; see post() and reply() for what a write may raise.

        Raises:
            Rejection: the refusal, or what failed.
        """
        if isinstance(message, WriteMessage):
            return await self.reply(self.post(message))
        if isinstance(message, GetStatistics):
            return await self._statistics(message)  # type: ignore[return-value]
        if isinstance(message, FileMessage):
            return await self._write_file(message)
        if isinstance(message, FileReadMessage | Brief):
            await self._pages_followed(message)
        assert isinstance(message, ReadMessage | FileReadMessage)
        try:
            return await self._reads.ask(message, within_s=limits.READ_DEADLINE_S)
        except OutcomeUnknown:
            raise Interrupted("The read took longer than its deadline.") from None

    async def _write_file(self, message: FileMessage[R]) -> R:
        if self._writer.store is None and not self._stopping:
            raise NotReady("The writer is starting again after a failure.")
        return await self._writes.ask(message, within_s=limits.WRITE_BUDGET_S)

    async def _pages_followed(self, message: Message[Any]) -> None:
        """Wait until a worker's pages show what was just written; they are made by themselves within 200 ms."""
        worker = getattr(message, "workerId", None) or getattr(message, "worker", None)
        if worker is None and isinstance(message, SwarmRead | SwarmResume | Brief):
            worker = self._swarm.access.worker_or_none(message.agent)
        if worker is not None:
            with trio.move_on_after(_PAGES_WITHIN_S):
                while self._swarm.memory.is_behind(worker.lower()):  # noqa: ASYNC110 (its thread sets no event)
                    await trio.sleep(_PAGES_LOOK_S)

    async def upkeep(self, message: Message[R], *, within_s: float = 60.0) -> R:
        """Ask the writer for upkeep."""
        return await self._writes.ask(message, within_s=within_s)

    async def _statistics(self, message: GetStatistics) -> Statistics:
        if message.scope == "own" and message.agent is None:
            raise InvalidRequest("agent: scope=own needs the agent whose rows are counted.")
        owner = message.agent if message.scope == "own" else None
        store = await self._reads.ask(GetStoreState(agent=message.agent, owner=owner), within_s=limits.READ_DEADLINE_S)
        seen = self._foreign_change_at_s(), self._integrity()
        return self.stats.statistics(store, self.actors(), limits.BOUNDS, *seen)

    def _foreign_change_at_s(self) -> float | None:
        return None if self._writer.store is None else self._writer.store.foreign_change_at_s

    def _integrity(self) -> Integrity | None:
        return None if self._writer.store is None else self._writer.store.integrity

    def actors(self) -> dict[str, ActorState]:
        """The mailboxes and the restarts of the actors behind them."""
        return {
            "writer": ActorState(depth=self._writes.depth, bound=self._writes.bound, restarts=self._writer.restarts),
            "readers": ActorState(
                depth=self._reads.depth,
                bound=self._reads.bound,
                restarts=sum(reader.restarts for reader in self._readers),
            ),
        }

    def writer_silent_s(self) -> float:
        """For how many seconds the writer has worked without a sign of life; 0 while it waits for messages."""
        return self._writer.silent_s()

    def _wal(self) -> WriteAheadLog | None:
        return None if self._writer.store is None else self._writer.store.wal

    def health(self) -> Health:
        """The state of the service, from what the actors know and two stat() calls."""
        if self._stopping:
            return Health("not_ready", ("shutting_down",))
        store = self._writer.store
        if store is None:
            return Health("not_ready", ("writer_down",))
        reading = [reader.store.reads for reader in self._readers if reader.store is not None]
        if not reading:
            return Health("not_ready", ("readers_down",))
        if not store.database_in_place:
            return Health("not_ready", ("database_moved",))
        failed = _failed(store, reading)
        reasons: list[str] = [
            code for code in ("storage_damaged", "storage_full", "storage_unavailable") if code in failed
        ]
        if reasons and not store.writes.works and not any(side.works for side in reading):
            return Health("not_ready", tuple(reasons))
        reasons += [
            reason
            for reason, holds in (
                ("wal_removed", not store.logs_in_place),
                ("state_moved", not store.state_in_place),
                ("state_failing", store.state_in_place and not store.state_works),
                ("not_wal", store.journal_mode != "wal"),
                ("index_behind", store.index_error is not None),
                ("storage_busy", self._writer.waits_for_lock),
                ("wal_large", store.wal.is_large),
                ("writer_busy", self._writer.silent_s() > limits.BUSY_TIMEOUT_MS / 1000 + _BUSY_GRACE_S),
            )
            if holds
        ]
        return Health("degraded" if reasons else "ok", tuple(reasons))


def _failed(store: WritingStore, reading: Sequence[Side]) -> set[str]:
    """The codes by which reads and writes of the database have failed, or a check of it."""
    sides = (store.writes, store.reads, *reading)
    found = {side.failure.code for side in sides if side.failure is not None}
    return found if store.integrity.sound else {*found, "storage_damaged"}


def _cause(error: BaseException) -> BaseException:
    """The one error in nested groups of one, so that nurseries do not hide what the caller may handle."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
