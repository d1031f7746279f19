"""The edges while there is no system: everything but `/health/live` is answered `not_ready`, with the reason.

Behind a held socket a start that fails would leave every caller hanging in the backlog; so it is said to each of them.
"""

from typing import Any

from actors.refusing import Refusing
from transport.asgi import Front, Scope, Send
from transport.execute import Answer, Caller, Executor
from transport.operations import Operation

_HEALTH = ("/health", "/health/live", "/health/ready")


class RefusingExecutor(Executor):
    """Refuses every operation, whatever its arguments; log and counters are those of any refusal."""

    def __init__(self, refusing: Refusing) -> None:
        super().__init__(refusing)
        self._refusing = refusing

    async def execute(self, operation: Operation, arguments: dict[str, Any], caller: Caller) -> Answer:
        """Answer `not_ready`."""
        agent = arguments.get("agent") or caller.agent
        return await self._refused(operation.name, agent, caller.transport, self._refusing.refusal())


class RefusingFront(Front):
    """A front whose REST side knows health alone. MCP answers its handshake, and each call with `is_error`."""

    def __init__(self, refusing: Refusing, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._refusing = refusing

    async def _serve_rest(self, scope: Scope, intake: Any, send: Send) -> None:
        if scope["path"] not in _HEALTH:
            raise self._refusing.refusal()
        await super()._serve_rest(scope, intake, send)
