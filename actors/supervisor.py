"""Restarts an actor that cannot open or run, a few times; then the process ends."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from actors.errors import ActorGaveUp
from storage import limits
from storage.errors import ConfigurationError

log = structlog.get_logger()

_BACKOFF_S = 0.2


class Actor(Protocol):
    """What a supervisor runs."""

    name: str
    restarts: int

    async def run(self, opened: Callable[[], None]) -> None:
        """Open, call `opened`, and handle messages until the mailbox is closed and drained."""


async def supervise(
    actor: Actor,
    *,
    restarts_max: int = limits.RESTARTS_MAX,
    window_s: float = limits.RESTART_WINDOW_S,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run an actor until its mailbox is closed; restart it when it fails.

    Raises:
        ConfigurationError: it could not open for a reason that a restart does not mend.
        ActorGaveUp: it failed more than `restarts_max` times within `window_s`.
    """
    failures: deque[float] = deque()
    opened = _once(task_status.started)
    while True:
        try:
            await actor.run(opened)
        except ConfigurationError:
            raise
        except Exception as error:
            now = trio.current_time()
            failures.append(now)
            while failures[0] < now - window_s:
                failures.popleft()
            log.exception("actor_failed", actor=actor.name, failures=len(failures))
            if len(failures) > restarts_max:
                raise ActorGaveUp(
                    f"{actor.name} failed {len(failures)} times within {window_s:.0f} s: {error}"
                ) from error
            await trio.sleep(_BACKOFF_S * 2 ** len(failures))
            actor.restarts += 1
            log.warning("actor_restarted", actor=actor.name, restarts=actor.restarts)
        else:
            return


def _once(call: Callable[[], None]) -> Callable[[], None]:
    done = False

    def once() -> None:
        nonlocal done
        if not done:
            done = True
            call()

    return once
