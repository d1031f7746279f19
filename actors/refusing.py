"""What stands for the system while it cannot be opened: a held socket must be answered, whatever is wrong."""

from typing import NoReturn

from actors.errors import NotReady
from actors.stats import ActorState, Stats
from actors.system import Health


class Refusing:
    """Refuses every message with NotReady and a reason."""

    def __init__(self, stats: Stats, reason: str) -> None:
        """`reason` is a sentence for callers."""
        self.stats = stats
        self._reason = reason

    def refusal(self) -> NotReady:
        """What every call is answered with."""
        return NotReady(self._reason)

    def post(self, message: object) -> NoReturn:
        """Raises NotReady."""
        raise self.refusal()

    async def reply(self, envelope: object) -> NoReturn:
        """Raises NotReady."""
        raise self.refusal()

    async def ask(self, message: object) -> NoReturn:
        """Raises NotReady."""
        raise self.refusal()

    def actors(self) -> dict[str, ActorState]:
        """There are none."""
        return {}

    def health(self) -> Health:
        """Not ready; callers are told the reason, health is told a code."""
        return Health("not_ready", ("configuration",))
