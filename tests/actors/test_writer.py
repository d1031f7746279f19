"""The writer under time, with a fake store and a mock clock."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from actors.errors import Internal, OutcomeUnknown
from actors.mailbox import Envelope, Mailbox, State
from actors.messages import CatchUp, Purge, RememberLong
from actors.swarm_messages import PageWrite
from actors.writer import Writer
from storage import limits
from storage.batch import Outcome, Write
from storage.errors import StorageBusy, UnknownAgent
from storage.records import Remembered
from tests.actors.fakes import FakeSwarm, FakeWritingStore, remembered


def fact(text: str = "x", agent: str = "mira") -> RememberLong:
    """A write."""
    return RememberLong(agent=agent, fact=text)


@asynccontextmanager
async def writing(store: FakeWritingStore, box: Mailbox, swarm: FakeSwarm | None = None) -> AsyncIterator[Writer]:
    """A writer that runs; it is closed and drained at the end."""
    writer = Writer(box, lambda: store, swarm or FakeSwarm())  # type: ignore[arg-type, return-value]
    opened = trio.Event()

    async def run(function: Callable[[Callable[[], None]], object]) -> None:
        await writer.run(opened.set)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run, writer.run)
        await opened.wait()
        yield writer
        box.close()


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run thread work in the task itself: a mock clock must not jump while a real thread works."""

    async def run_sync(function: Callable[..., object], *arguments: object, **_: object) -> object:
        await trio.lowlevel.checkpoint()
        return function(*arguments)

    monkeypatch.setattr(trio.to_thread, "run_sync", run_sync)


pytestmark = pytest.mark.usefixtures("direct")


def page(content: str) -> PageWrite:
    """A write of one of the swarm's files."""
    return PageWrite(workerId="sol", kind="profile", content=content)


async def test_memories_go_before_files_and_each_keep_their_order() -> None:
    """A write of a file waits for several fsyncs; agents that remember do not wait behind a queue of them."""
    store, box, swarm = FakeWritingStore(), Mailbox("writer", 100), FakeSwarm()
    order: list[str] = []

    def applied(writes: Sequence[Write[Any]]) -> list[Outcome]:
        order.append("memories")
        return [Outcome(reply=remembered()) for _ in writes]

    store.apply_hook = applied

    def written(content: str) -> None:
        order.append(content)
        if content == "first":
            envelopes.append(box.post(fact("meanwhile"), within_s=10))

    swarm.written_hook = written
    envelopes: list[Envelope[Any]] = [box.post(page(name), within_s=10) for name in ("first", "second", "third")]
    envelopes.append(box.post(fact("queued behind"), within_s=10))
    async with writing(store, box, swarm):
        for envelope in envelopes[:4]:
            await envelope.wait()
        await envelopes[4].wait()
    assert order == ["memories", "first", "memories", "second", "third"]


async def test_what_is_queued_goes_into_one_batch() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", limits.WRITER_MAILBOX_MAX)
    envelopes = [box.post(fact(str(n), agent=f"agent {n}"), within_s=10) for n in range(70)]
    async with writing(store, box):
        for envelope in envelopes:
            await box.reply_to(envelope)
    assert store.batches == [limits.BATCH_MESSAGES_MAX, 70 - limits.BATCH_MESSAGES_MAX]
    assert store.closed


async def test_a_batch_is_cut_by_its_bytes() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    envelopes = [box.post(fact("x" * 65_000, agent=f"agent {n}"), within_s=10) for n in range(20)]
    async with writing(store, box):
        for envelope in envelopes:
            await box.reply_to(envelope)
    assert store.batches == [16, 4]


async def test_a_message_without_text_is_a_batch_too() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    async with writing(store, box):
        await box.ask(Purge(), within_s=10)
    assert store.batches == [1]


async def test_upkeep_has_its_turn_between_the_writes_of_an_agent() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    envelopes = [box.post(message, within_s=10) for message in (fact(), fact(), CatchUp(), fact())]
    async with writing(store, box):
        for envelope in envelopes:
            await box.reply_to(envelope)
    assert store.batches == [1, 2]
    assert store.catch_ups == 1


async def test_what_the_store_left_for_later_is_applied_next() -> None:
    """A batch that ran out of its 50 ms answers a prefix; the rest goes into the next transaction."""
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    store.apply_hook = lambda writes: [Outcome(reply=remembered()) for _ in writes[:3]]
    envelopes = [box.post(fact(), within_s=10) for _ in range(8)]
    async with writing(store, box):
        for envelope in envelopes:
            assert isinstance(await box.reply_to(envelope), Remembered)
    assert store.batches == [8, 5, 2]


async def test_each_write_gets_its_own_outcome() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    store.apply_hook = lambda writes: [
        Outcome(reply=remembered()), Outcome(error=UnknownAgent("no")), Outcome(error=ZeroDivisionError()),
    ]  # fmt: skip
    first, second, third = (box.post(fact(), within_s=10) for _ in range(3))
    async with writing(store, box):
        assert (await box.reply_to(first)).agent == "mira"
        with pytest.raises(UnknownAgent):
            await box.reply_to(second)
        with pytest.raises(Internal):
            await box.reply_to(third)


async def test_a_lock_that_goes_away_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    store.busy = 2
    async with writing(store, box) as writer:
        assert (await box.ask(fact(), within_s=12)).agent == "mira"
        assert not writer.waits_for_lock
    assert store.catch_ups == 2  # the index followed between the attempts


async def test_a_lock_that_stays_is_storage_busy_after_the_retries(autojump_clock: trio.testing.MockClock) -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    store.busy = 100
    async with writing(store, box) as writer:
        with pytest.raises(StorageBusy):
            await box.ask(fact(), within_s=12)
        assert not writer.waits_for_lock
        assert 100 - store.busy == limits.BUSY_RETRIES_MAX + 1


async def test_a_write_whose_budget_is_spent_is_given_up_and_others_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    store.busy = 2
    late = box.post(fact(), within_s=0.01)
    patient = box.post(fact(), within_s=12)
    async with writing(store, box):
        assert (await box.reply_to(patient)).agent == "mira"
        with pytest.raises(StorageBusy, match="12 s"):
            await box.reply_to(late)
    assert store.batches == [1]
    assert store.waits_s[0] <= 0.01


async def test_an_unexpected_error_is_answered_and_the_writer_goes_on() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)

    def broken(writes: object) -> list[Outcome]:
        raise ZeroDivisionError

    store.apply_hook = broken
    async with writing(store, box):
        with pytest.raises(Internal):
            await box.ask(fact(), within_s=10)
        store.apply_hook = None
        assert (await box.ask(fact(), within_s=10)).agent == "mira"


async def test_a_writer_that_dies_leaves_no_one_without_an_answer() -> None:
    store, box = FakeWritingStore(), Mailbox("writer", 100)
    envelope = box.post(fact(), within_s=10)

    def fatal(writes: object) -> list[Outcome]:
        raise KeyboardInterrupt

    store.apply_hook = fatal
    writer = Writer(box, lambda: store, FakeSwarm())  # type: ignore[arg-type, return-value]
    with pytest.raises(KeyboardInterrupt):
        await writer.run(lambda: None)
    assert envelope.state is State.ANSWERED
    with pytest.raises(OutcomeUnknown):
        await box.reply_to(envelope)
    assert store.closed
    assert writer.store is None
