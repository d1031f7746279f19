"""execute(): each write is counted once, however it ends, and the log never holds its text."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import trio

from actors.stats import Stats
from actors.system import System
from storage.paths import Paths
from tests.support import foreign_lock
from transport.execute import Caller, Executor
from transport.operations import BY_NAME

REST = Caller("rest")


@pytest.fixture
def system(database: Path) -> System:
    """A system that is not started yet."""
    return System(Paths(database), Stats())


def identity_holds(system: System) -> bool:
    """issued = acknowledged + replayed + refused + unknown, with nothing in flight."""
    return all(counts.in_flight == 0 for counts in system.stats.writes.values())


async def write(executor: Executor, caller: Caller = REST, **arguments: Any) -> Any:
    """One fact."""
    return await executor.execute(BY_NAME["remember_long"], {"agent": "mira", "fact": "x"} | arguments, caller)


async def test_every_end_of_a_write_is_counted_once(system: System) -> None:
    async with system.running():
        executor = Executor(system)
        assert (await write(executor, request_id="r")).status == 201
        assert (await write(executor, request_id="r")).body["replayed"] is True
        assert (await write(executor, request_id="r", fact="y")).status == 409
        assert (await write(executor, agent="ghost")).status == 422
        assert (await write(executor, fact="")).status == 400
        counts = system.stats.writes["long"]
        assert (counts.issued, counts.acknowledged, counts.replayed, counts.refused, counts.unknown) == (5, 1, 1, 3, 0)
        assert identity_holds(system)


async def test_a_caller_who_leaves_is_counted_too(system: System, database: Path) -> None:
    async with system.running():
        executor = Executor(system)
        with foreign_lock(database):
            with trio.move_on_after(0.2):
                await write(executor)
            with trio.move_on_after(0.1):
                await write(executor)
        counts = system.stats.writes["long"]
        assert (counts.issued, counts.unknown, counts.refused) == (2, 1, 1)
        assert identity_holds(system)


async def test_refusals_are_counted_by_agent_operation_and_code(system: System) -> None:
    async with system.running():
        executor = Executor(system)
        await write(executor, fact="")
        for n in range(20):
            await write(executor, agent=f"ghost{n}")
        await executor.execute(BY_NAME["recall"], {}, REST)
        assert dict(system.stats.refusals) == {
            ("mira", "remember_long", "invalid_request"): 1,
            ("(unregistered)", "remember_long", "unknown_agent"): 20,
            ("(none)", "recall", "invalid_request"): 1,
        }


async def test_the_header_names_the_caller_and_must_not_contradict(system: System) -> None:
    async with system.running():
        executor = Executor(system)
        answer = await executor.execute(BY_NAME["remember_long"], {"fact": "x"}, Caller("rest", agent="sol"))
        assert answer.body["agent"] == "sol"
        refused = await write(executor, Caller("rest", agent="sol"))
        assert (refused.status, refused.body["error"]["code"]) == (403, "forbidden")
        assert system.stats.refusals["mira", "remember_long", "forbidden"] == 1


async def test_the_idempotency_key_is_the_request_id(system: System) -> None:
    async with system.running():
        executor = Executor(system)
        key = Caller("rest", idempotency_key="k1")
        first = await write(executor, key)
        assert (await write(executor, request_id="k1")).body["id"] == first.body["id"]
        assert (await write(executor, key, request_id="other")).status == 400


async def test_a_bug_is_an_internal_error_with_a_log_line(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(message: object) -> object:
        raise ZeroDivisionError("hunter2")

    async with system.running():
        executor = Executor(system)
        monkeypatch.setattr(system, "post", broken)
        answer = await write(executor)
        assert (answer.status, answer.is_error, answer.body["error"]["code"]) == (500, True, "internal")
        assert "hunter2" not in str(answer.body)


async def test_the_log_says_who_what_and_why_and_never_the_text(system: System) -> None:
    async with system.running():
        executor = Executor(system)
        with structlog.testing.capture_logs() as lines:
            await write(executor, fact="the password is hunter2")
            await write(executor, fact="the password is hunter2", agent="ghost")
            await write(executor, fact="the password is hunter2", tags=["hunter2"] * 99, request_id="r")
            await executor.execute(BY_NAME["recall"], {"agent": "sol", "q": "hunter2"}, REST)
        assert [line["event"] for line in lines] == ["answered", "rejected", "rejected", "answered"]
        assert lines[1] | {"reason": ""} == {
            "event": "rejected", "operation": "remember_long", "transport": "rest", "agent": "ghost",
            "code": "unknown_agent", "reason": "", "log_level": "warning",
        }  # fmt: skip
        assert "hunter2" not in str(lines)
