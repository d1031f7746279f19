"""Restarts an actor that cannot open or run, a few times; then the process ends."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

import structlog
import trio

from actors.errors import ActorGaveUp
from storage import limits
from storage.errors import ConfigurationError, Rejection

log = structlog.get_logger()

_BACKOFF_S = 0.2
_OPEN_AGAIN_S = 5.0


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
    ending: trio.Event | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run an actor until its mailbox is closed; restart it when it fails.

    Given `ending`, one that has been open and cannot be opened anew as the files are now is tried every few seconds
    until that is set: a service that has served waits for its files, and says so.

    Raises:
        ConfigurationError: it could not open for a reason that a restart does not mend.
        ActorGaveUp: it failed more than `restarts_max` times within `window_s`.
    """
    failures: deque[float] = deque()
    opened = _Once(task_status.started)
    while True:
        try:
            await actor.run(opened)
        except Exception as error:
            if ending is not None and opened.done and isinstance(error, ConfigurationError | Rejection):
                if await _waited_for_files(actor, error, ending):
                    continue
                return
            if isinstance(error, ConfigurationError):
                raise
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


async def _waited_for_files(actor: Actor, refusal: Exception, ending: trio.Event) -> bool:
    """Whether to open again, after a while; False when there is no need any more."""
    log.critical("not_opened", actor=actor.name, reason=str(refusal), retry_s=_OPEN_AGAIN_S)
    with trio.move_on_after(_OPEN_AGAIN_S):
        await ending.wait()
    return not ending.is_set()


class _Once:
    """Calls a function the first time."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call
        self.done = False

    def __call__(self) -> None:
        if not self.done:
            self.done = True
            self._call()
