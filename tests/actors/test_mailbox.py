"""Mailbox and envelope: QUEUED → WITHDRAWN | STARTED → ANSWERED, and one reply."""

import inspect

import pytest
import trio
import trio.testing

from actors.errors import DeadlineExceeded, MailboxFull, OutcomeUnknown, ShuttingDown
from actors.mailbox import Mailbox, State
from actors.messages import CatchUp
from storage import limits


async def test_a_message_is_answered() -> None:
    box = Mailbox("writer", 1)
    envelope = box.post(CatchUp(), within_s=1)
    (taken,) = box.take(5)
    taken.reply(True)
    assert await box.reply_to(envelope) is True
    assert envelope.state is State.ANSWERED


async def test_a_full_mailbox_is_an_answer_not_a_wait() -> None:
    box = Mailbox("writer", 1)
    box.post(CatchUp(), within_s=1)
    with pytest.raises(MailboxFull, match="1 messages wait"):
        box.post(CatchUp(), within_s=1)
    assert box.depth == 1


async def test_a_closed_mailbox_refuses_and_drains() -> None:
    box = Mailbox("writer", 5)
    box.post(CatchUp(), within_s=1)
    box.close()
    with pytest.raises(ShuttingDown):
        box.post(CatchUp(), within_s=1)
    assert [envelope.state async for envelope in box] == [State.STARTED]


async def test_a_message_that_is_late_in_the_queue_is_never_begun(autojump_clock: trio.testing.MockClock) -> None:
    box = Mailbox("writer", 5)
    with pytest.raises(DeadlineExceeded, match="mailbox"):
        await box.ask(CatchUp(), within_s=2)
    box.close()
    assert [envelope async for envelope in box] == []


async def test_a_started_message_is_waited_for_a_little_longer(autojump_clock: trio.testing.MockClock) -> None:
    box = Mailbox("writer", 5)

    async def answer_late() -> None:
        async for envelope in box:
            await trio.sleep(2 + limits.ANSWER_GRACE_S - 0.1)
            envelope.reply(True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer_late)
        assert await box.ask(CatchUp(), within_s=2) is True
        box.close()


async def test_a_started_message_without_an_answer_is_unknown(autojump_clock: trio.testing.MockClock) -> None:
    box = Mailbox("writer", 5)

    async def begin() -> None:
        async for _ in box:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(begin)
        with pytest.raises(OutcomeUnknown):
            await box.ask(CatchUp(), within_s=2)
        nursery.cancel_scope.cancel()


async def test_a_caller_who_leaves_withdraws_what_is_queued() -> None:
    box = Mailbox("writer", 5)
    with trio.move_on_after(0.01):
        await box.ask(CatchUp(), within_s=60)
    assert box.take(5) == []


async def test_a_second_reply_is_a_bug_of_ours() -> None:
    box = Mailbox("writer", 5)
    box.post(CatchUp(), within_s=1)
    (envelope,) = box.take(1)
    envelope.reply(True)
    with pytest.raises(AssertionError):
        envelope.reply(True)


def test_mailbox_is_no_generator() -> None:
    """An abandoned async generator leaks; an iterator class does not."""
    assert not inspect.isasyncgenfunction(Mailbox.__aiter__)
    box = Mailbox("writer", 1)
    assert box.__aiter__() is box
