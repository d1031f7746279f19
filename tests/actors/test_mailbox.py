"""Mailbox and envelope: QUEUED → WITHDRAWN | STARTED → ANSWERED, and one reply."""

import inspect

import pytest
import trio
import trio.testing

from actors.errors import DeadlineExceeded, MailboxFull, OutcomeUnknown, ShuttingDown
from actors.mailbox import Mailbox, State
from actors.messages import CatchUp, Purge, RememberLong
from actors.swarm_messages import PageWrite
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


def said(box: Mailbox, agent: str, *facts: str) -> None:
    """An agent's writes, posted in this order."""
    for fact in facts:
        box.post(RememberLong(agent=agent, fact=fact), within_s=1)


async def test_agents_take_turns_and_each_ones_messages_keep_their_order() -> None:
    box = Mailbox("writer", 40)
    said(box, "loop", "1", "2", "3", "4")
    said(box, "mira", "5", "6")
    said(box, "sol", "7")
    first = await anext(box)
    assert [first.message.fact, *(one.message.fact for one in box.take(3))] == ["1", "5", "7", "2"]
    said(box, "sol", "8")
    assert [one.message.fact for one in box.take(9)] == ["6", "3", "8", "4"]
    assert box.depth == 0


async def test_one_agent_has_at_most_eight_messages_in_a_batch() -> None:
    box = Mailbox("writer", 100)
    said(box, "loop", *map(str, range(20)))
    said(box, "mira", "a", "b")
    assert [one.message.fact for one in box.take(64)] == [
        "0",
        "a",
        "1",
        "b",
        *map(str, range(2, limits.AGENT_BATCH_MAX)),
    ]
    assert len(box.take(3)) == 3
    assert [one.message.fact for one in box.take(64)] == [str(number) for number in range(11, 19)]
    assert box.depth == 1


async def test_one_agent_holds_at_most_a_quarter_of_a_mailbox() -> None:
    box = Mailbox("writer", 16)
    said(box, "loop", "1", "2", "3", "4")
    with pytest.raises(MailboxFull, match="'loop' has 4 messages in the writer's mailbox"):
        said(box, "loop", "one too many")
    for agent in ("mira", "sol", "atlas"):
        said(box, agent, "1", "2", "3", "4")
    with pytest.raises(MailboxFull, match="mailbox is full"):
        said(box, "ace", "1")
    assert box.depth == 16
    assert len(box.take(1)) == 1
    said(box, "loop", "there is room again")


async def test_what_an_agent_withdrew_leaves_the_others_their_turns() -> None:
    box = Mailbox("writer", 16)
    withdrawn = box.post(RememberLong(agent="loop", fact="1"), within_s=1)
    said(box, "mira", "2")
    assert withdrawn.withdraw()
    assert [one.message.fact for one in box.take(5)] == ["2"]


async def test_what_an_agent_withdrew_does_not_count_for_its_quarter() -> None:
    """Its calls timed out while the actor was busy: nothing of it waits, so nothing is refused."""
    box = Mailbox("writer", 16)
    for _ in range(3):
        assert box.post(RememberLong(agent="loop", fact="given up"), within_s=1).withdraw()
    said(box, "loop", "1", "2", "3", "4")
    with pytest.raises(MailboxFull, match="'loop'"):
        said(box, "loop", "one too many")
    assert [one.message.fact for one in box.take(16)] == ["1", "2", "3", "4"]


async def test_what_an_agent_withdrew_takes_no_room_from_the_others() -> None:
    """However often its calls time out while the actor is busy."""
    box = Mailbox("writer", 16)
    said(box, "mira", "1", "2")
    for _ in range(3 * box.bound):
        assert box.post(RememberLong(agent="loop", fact="given up"), within_s=1).withdraw()
    assert box.depth == 2
    for agent in ("sol", "atlas", "ace"):
        said(box, agent, "1", "2", "3", "4")
    assert box.depth == 14
    assert len(box.take(16)) == 14
    assert box.depth == 0


async def test_one_in_the_middle_is_withdrawn_and_the_others_keep_their_order() -> None:
    box = Mailbox("writer", 16)
    first, second, _ = [box.post(RememberLong(agent="loop", fact=fact), within_s=1) for fact in "123"]
    assert second.withdraw()
    assert [one.message.fact for one in box.take(16)] == ["1", "3"]
    assert not first.withdraw()
    assert second.withdraw()
    assert box.depth == 0


async def test_a_message_withdrawn_after_its_actor_was_woken_is_not_handled(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both actors are woken, one message goes: one actor takes the other, and one waits on, in whichever order."""
    box = Mailbox("readers", 16)
    handled: list[str] = []

    async def act() -> None:
        async for envelope in box:
            handled.append(envelope.message.fact)

    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(act)
        await trio.testing.wait_all_tasks_blocked()
        said(box, "mira", "1")
        assert box.post(RememberLong(agent="loop", fact="given up"), within_s=1).withdraw()
        said(box, "sol", "2")
        await trio.testing.wait_all_tasks_blocked()
        assert (handled, box.depth) == (["1", "2"], 0)
        said(box, "mira", "3")
        box.close()
    assert handled == ["1", "2", "3"]


async def test_what_was_withdrawn_is_not_drained(autojump_clock: trio.testing.MockClock) -> None:
    """Closed with a message in it that is withdrawn then: the box is at its end."""
    box = Mailbox("writer", 5)
    envelope = box.post(CatchUp(), within_s=1)
    box.close()
    assert envelope.withdraw()
    assert [one async for one in box] == []


async def test_a_page_counts_for_its_worker_and_upkeep_for_nobody() -> None:
    assert PageWrite(workerId="swarm5", kind="mission", summary="x").sender == "swarm5"
    assert Purge().sender == "(none)"
    box = Mailbox("writer", 4)
    for _ in range(4):
        box.post(CatchUp(), within_s=1)
    assert box.depth == 4


def test_mailbox_is_no_generator() -> None:
    """An abandoned async generator leaks; an iterator class does not."""
    assert not inspect.isasyncgenfunction(Mailbox.__aiter__)
    box = Mailbox("writer", 1)
    assert box.__aiter__() is box
