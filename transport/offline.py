"""One operation on the database itself, with the service stopped: the same actors, without a port."""

import os
from pathlib import Path
from typing import Any

import trio

from actors.errors import ActorGaveUp
from actors.stats import Stats
from actors.system import System
from storage.errors import ConfigurationError, Rejection, StorageUnavailable
from storage.paths import Paths
from transport import logs, settings
from transport.execute import Caller, Executor
from transport.operations import Operation
from transport.rejections import body_of


def execute_offline(db: Path, operation: Operation, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Take the lock, start the actors, execute, stop; return (status, body)."""
    logs.configure("critical", "json")

    async def execute() -> tuple[int, dict[str, Any]]:
        swarm = settings.swarm_of(settings.load({}), os.environ)
        async with System(Paths(db), Stats(), swarm=swarm).running() as system:
            answer = await Executor(system).execute(operation, arguments, Caller("cli"))
            return answer.status, answer.body

    try:
        return trio.run(execute)
    except ActorGaveUp as error:
        cause = error.__cause__
        return 1, body_of(cause if isinstance(cause, Rejection) else StorageUnavailable(str(error)))
    except ConfigurationError as error:
        refusal = {"code": "configuration", "detail": str(error), "hint": "See `solos-memory doctor`."}
        return 1, {"ok": False, "error": refusal}
