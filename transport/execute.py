"""The one way from arguments to an answer: parse, ask, render; one `except`, one log line, one counter.

Every transport calls `Executor.execute`, and `Executor.refuse` for what it refuses before there is an operation. So
log, `/v1/stats` and `/metrics` cannot disagree. Memory text is never logged.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import structlog
import trio

from actors.errors import Internal, OutcomeUnknown
from actors.mailbox import Envelope, State
from actors.messages import IsRegistered, Message, WriteMessage
from actors.stats import NO_AGENT, TRANSPORT, UNKNOWN, UNREGISTERED
from actors.system import Asked
from actors.units import TIER_WRITTEN
from storage import limits
from storage.errors import InvalidRequest, Rejection
from transport.operations import Operation
from transport.rejections import RENDERINGS, AgentMismatch, body_of

log = structlog.get_logger()

_SHOWN_CHARS = 80
_LABEL_WITHIN_S = 0.5
_REQUEST_IDS = ("request_id", "requestId")
"""What operations call the header Idempotency-Key."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls, as the transport knows it beside the arguments."""

    transport: str
    """`rest`, `mcp` or `cli`."""
    agent: str | None = None
    """The header X-Agent-Id."""
    idempotency_key: str | None = None
    """The header Idempotency-Key."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a transport sends."""

    status: int
    body: dict[str, Any]
    is_error: bool = False
    """On MCP: an infrastructure failure."""
    retry_after_s: int | None = None

    @property
    def degraded(self) -> bool:
        """Whether the header X-Memory-Degraded is due."""
        return bool(self.body.get("degraded"))


class Executor:
    """Executes operations on a system."""

    def __init__(self, system: Asked) -> None:
        self._system = system
        self._stats = system.stats
        self._seen_registered: set[str] = set()

    async def execute(self, operation: Operation, arguments: dict[str, Any], caller: Caller) -> Answer:
        """Answer one call. Never raises: a refusal and a failure are answers."""
        began = time.perf_counter()
        agent = arguments.get("agent") or caller.agent
        refusal: Rejection | None = None
        body: dict[str, Any] = {}
        try:
            body = _rendered(operation, await self._ask(operation, arguments, caller))
        except Rejection as rejection:
            refusal = rejection
        except trio.Cancelled:
            self._observe("abandoned", operation, agent, caller, began)
            raise
        except Exception:
            log.exception("operation_failed", operation=operation.name, transport=caller.transport)
            refusal = Internal()
        if refusal is not None:
            self._stats.observe(operation.name, caller.transport, time.perf_counter() - began)
            return await self._refused(operation.name, agent, caller.transport, refusal)
        self._observe("answered", operation, agent, caller, began)
        return Answer(operation.status, body)

    def _observe(self, event: str, operation: Operation, agent: object, caller: Caller, began: float) -> None:
        """The one counter and the one log line of a call that was not refused."""
        seconds = time.perf_counter() - began
        self._stats.observe(operation.name, caller.transport, seconds)
        log.info(
            event,
            operation=operation.name,
            transport=caller.transport,
            agent=_shown(agent),
            ms=round(seconds * 1000, 2),
        )

    async def refuse(self, caller: Caller, rejection: Rejection) -> Answer:
        """Answer a call that was refused before there was an operation: the same log line and counter."""
        return await self._refused(TRANSPORT, caller.agent, caller.transport, rejection)

    async def _refused(self, operation: str, agent: object, transport: str, rejection: Rejection) -> Answer:
        self._stats.refuse(await self._label(agent), operation, rejection.code)
        log.warning(
            "rejected",
            operation=operation,
            transport=transport,
            agent=_shown(agent),
            code=rejection.code,
            reason=rejection.detail,
        )
        rendering = RENDERINGS[rejection.code]
        return Answer(rendering.status, body_of(rejection), rendering.is_error, rejection.retry_after_s)

    async def _label(self, agent: object) -> str:
        """The counter's label: a registered id, or one label for all others, so that labels stay few."""
        if not isinstance(agent, str) or not agent:
            return NO_AGENT
        if agent in self._seen_registered:
            return agent
        if len(agent) > limits.AGENT_CHARS_MAX or agent != _shown(agent, limits.AGENT_CHARS_MAX):
            return UNREGISTERED
        with trio.move_on_after(_LABEL_WITHIN_S):
            with suppress(Rejection):
                if not await self._system.ask(IsRegistered(agent=agent)):
                    return UNREGISTERED
                self._seen_registered.add(agent)
                return agent
        return UNKNOWN

    async def _ask(self, operation: Operation, arguments: dict[str, Any], caller: Caller) -> Any:
        tier = TIER_WRITTEN.get(operation.message)
        if tier is None:
            return await self._system.ask(_message(operation, arguments, caller))
        counts = self._stats.writes[tier]
        counts.issued += 1
        with _counted(counts) as count:
            message = _message(operation, arguments, caller)
            assert isinstance(message, WriteMessage)
            count.envelope = envelope = self._system.post(message)
            reply = await self._system.reply(envelope)
            count.ended = "replayed" if envelope.replayed else "acknowledged"
            return reply


@dataclass(slots=True)
class _Count:
    """How a write ended, as its caller saw it."""

    ended: str = "refused"
    envelope: Envelope[Any] | None = None


@contextmanager
def _counted(counts: Any) -> Iterator[_Count]:
    """Count the end of a write exactly once, even when its caller goes away in the middle."""
    count = _Count()
    try:
        yield count
    except OutcomeUnknown:
        count.ended = "unknown"
        raise
    except trio.Cancelled:
        envelope = count.envelope
        if envelope is not None and envelope.state is not State.WITHDRAWN:
            count.ended = "unknown"
        raise
    finally:
        setattr(counts, count.ended, getattr(counts, count.ended) + 1)


def _message(operation: Operation, arguments: dict[str, Any], caller: Caller) -> Message[Any]:
    """The message of the arguments, with what the headers say filled in.

    Raises:
        AgentMismatch: header and argument name different agents.
        InvalidRequest: an argument breaks a rule, or header and argument give different request ids.
    """
    arguments = dict(arguments)
    if caller.agent is not None and "agent" in operation.fields:
        given = arguments.setdefault("agent", caller.agent) or caller.agent
        if given != caller.agent:
            raise AgentMismatch(f"agent: the argument and the header X-Agent-Id ({_shown(caller.agent)!r}) differ.")
        arguments["agent"] = given
    name = next((name for name in _REQUEST_IDS if name in operation.fields), None)
    if caller.idempotency_key is not None and name is not None:
        if (arguments.get(name) or caller.idempotency_key) != caller.idempotency_key:
            raise InvalidRequest(f"{name}: differs from the header Idempotency-Key.")
        arguments[name] = caller.idempotency_key
    return operation.parse(arguments)


def _rendered(operation: Operation, reply: Any) -> dict[str, Any]:
    """A reply as JSON.

    Raises:
        OutcomeUnknown: a bug of ours, after the write that it answers.
    """
    try:
        return operation.render(reply)
    except Exception as error:
        if not operation.writes:
            raise
        log.exception("operation_failed", operation=operation.name)
        raise OutcomeUnknown("The write was done, and a bug of ours kept its answer back.") from error


def _shown(agent: object, chars: int = _SHOWN_CHARS) -> str | None:
    if not isinstance(agent, str):
        return None
    return agent[:chars].encode("utf-8", "replace").decode()
