"""Bounded mailboxes with one-shot replies: the only way work reaches an actor."""

import enum
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import outcome
import trio

from actors.errors import DeadlineExceeded, MailboxFull, OutcomeUnknown, ShuttingDown
from actors.messages import Message
from storage import limits

R = TypeVar("R")


class State(enum.Enum):
    """Where an envelope is. It only ever moves to the right."""

    QUEUED = enum.auto()
    WITHDRAWN = enum.auto()
    STARTED = enum.auto()
    ANSWERED = enum.auto()


class Envelope(Generic[R]):
    """A message in transit, its state, and the slot its reply goes into."""

    __slots__ = ("_done", "_leave", "_outcome", "deadline", "message", "replayed", "state")

    def __init__(self, message: Message[R], deadline: float, leave: Callable[["Envelope[R]"], None]) -> None:
        """`leave` takes it out of its mailbox."""
        self.message = message
        self.deadline = deadline
        """On trio's clock: when its sender no longer wants it begun."""
        self.state = State.QUEUED
        self.replayed = False
        self._leave = leave
        self._done = trio.Event()
        self._outcome: outcome.Outcome[R] | None = None

    def start(self) -> None:
        """Claim the envelope for handling."""
        assert self.state is State.QUEUED, self.state
        self.state = State.STARTED

    def withdraw(self) -> bool:
        """Give up on it; True when the actor had not started, so that nothing was or will be applied.

        One that waited leaves its mailbox at once: its place is free.
        """
        if self.state is State.QUEUED:
            self.state = State.WITHDRAWN
            self._leave(self)
        return self.state is State.WITHDRAWN

    def reply(self, value: R) -> None:
        """Answer, exactly once. That the requester may have gone is no error."""
        self._settle(outcome.Value(value))

    def refuse(self, error: Exception) -> None:
        """Answer with an error, exactly once."""
        self._settle(outcome.Error(error))

    def _settle(self, result: outcome.Outcome[R]) -> None:
        assert self.state is State.STARTED, self.state
        self.state = State.ANSWERED
        self._outcome = result
        self._done.set()

    async def wait(self) -> R:
        """The reply, or the error it is."""
        await self._done.wait()
        assert self._outcome is not None
        return self._outcome.unwrap()


class Mailbox:
    """At most `bound` waiting messages, taken from each sender in turn. It outlives restarts of its actor.

    Each sender's messages keep their order. One sender holds at most AGENT_SHARE of the room, so that an agent that
    loops is refused while the others are served; the service's own upkeep has no such bound, for it waits for answers.
    """

    def __init__(self, name: str, bound: int) -> None:
        assert bound > 0
        self.name = name
        self.bound = bound
        self.bound_of_sender = max(1, int(bound * limits.AGENT_SHARE))
        self._waiting: dict[str | None, deque[Envelope[Any]]] = {}
        """By sender, the next one's first. A sender without messages has no entry."""
        self._send, self._receive = trio.open_memory_channel[None](bound)
        """One token for each message that waits: the bound, the wait for a message and the end are the channel's.

        An actor that was woken has its token in hand: where the message was withdrawn since, it is one too many.
        """

    def post(self, message: Message[R], *, within_s: float) -> Envelope[R]:
        """Put a message into the box. Never waits for room: a full mailbox is an answer.

        Raises:
            MailboxFull: nothing was accepted.
            ShuttingDown: nothing was accepted.
        """
        sender = message.sender
        queue = self._waiting.get(sender, ())
        if sender is not None and len(queue) >= self.bound_of_sender:
            raise MailboxFull(
                f"{sender[:80]!r} has {len(queue)} messages in the {self.name}'s mailbox: one agent may have no more."
            )
        envelope = Envelope(message, trio.current_time() + within_s, self._leave)
        try:
            self._send.send_nowait(None)
        except trio.WouldBlock:
            raise MailboxFull(f"The {self.name}'s mailbox is full ({self.bound} messages wait).") from None
        except trio.ClosedResourceError:
            raise ShuttingDown from None
        self._waiting.setdefault(sender, deque()).append(envelope)
        return envelope

    def _leave(self, envelope: Envelope[Any]) -> None:
        """Take out a message that was withdrawn, and its token, unless an actor has that in hand."""
        sender = envelope.message.sender
        queue = self._waiting[sender]
        queue.remove(envelope)
        if not queue:
            del self._waiting[sender]
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            self._receive.receive_nowait()

    def _next(self, sender: str | None) -> Envelope[Any]:
        """Claim the message that a token stands for: the oldest of a sender, whose next turn is after the others'."""
        queue = self._waiting.pop(sender)
        envelope = queue.popleft()
        if queue:
            self._waiting[sender] = queue
        envelope.start()
        return envelope

    async def ask(self, message: Message[R], *, within_s: float) -> R:
        """Deliver a message and return its reply.

        Cancelling the wait withdraws a message that is still queued and leaves one that has started to run to its
        end. One that has started is waited for ANSWER_GRACE_S longer: its actor cuts or gives it up itself.

        Raises:
            MailboxFull, ShuttingDown: nothing was accepted.
            DeadlineExceeded: it was still queued after `within_s`; nothing was or will be done.
            OutcomeUnknown: it had started and was not answered in time.
            Rejection: whatever the actor answered.
        """
        return await self.reply_to(self.post(message, within_s=within_s))

    async def reply_to(self, envelope: Envelope[R]) -> R:
        """The reply to a posted envelope; see ask()."""
        try:
            with trio.move_on_at(envelope.deadline):
                return await envelope.wait()
            if envelope.withdraw():
                raise DeadlineExceeded(f"The message was still in the {self.name}'s mailbox when its time was over.")
            with trio.move_on_at(envelope.deadline + limits.ANSWER_GRACE_S):
                return await envelope.wait()
            raise OutcomeUnknown
        finally:
            envelope.withdraw()

    def __aiter__(self) -> "Mailbox":
        return self

    async def __anext__(self) -> Envelope[Any]:
        """The next message, claimed; ends once close() was called and the box is empty.

        An iterator class, not an async generator: an abandoned generator leaks. Pinned by test_mailbox_is_no_generator.
        """
        while True:
            try:
                await self._receive.receive()
            except trio.EndOfChannel:
                raise StopAsyncIteration from None
            if self._waiting:
                return self._next(next(iter(self._waiting)))

    def take(self, most: int) -> list[Envelope[Any]]:
        """Up to `most` further messages that wait now, claimed; of one sender AGENT_BATCH_MAX at most.

        What is taken together is answered together: 64 answers of an agent that loops, and its 64 next requests, were a
        lump of 50 ms in which all others waited.
        """
        taken: list[Envelope[Any]] = []
        had: Counter[str | None] = Counter()
        while len(taken) < most and (senders := self._with_room(had)):
            try:
                self._receive.receive_nowait()
            except (trio.WouldBlock, trio.EndOfChannel):
                break
            had[senders[0]] += 1
            taken.append(self._next(senders[0]))
        return taken

    def _with_room(self, had: Counter[str | None]) -> list[str | None]:
        """The senders that wait and have not had their part, the next one first."""
        return [one for one in self._waiting if one is None or had[one] < limits.AGENT_BATCH_MAX]

    def close(self) -> None:
        """Refuse new messages; the actor still drains those already accepted."""
        self._send.close()

    @property
    def depth(self) -> int:
        """How many messages wait."""
        return self._receive.statistics().current_buffer_used
