"""The message by which the stores are closed and opened anew while the mailboxes stay."""

from dataclasses import dataclass, field

import trio

from actors.messages import UpkeepMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class Reopen(UpkeepMessage[bool]):
    """Close the store, and open it anew when all others are closed, too; answers False where it must not be closed."""

    allowed: trio.Event = field(default_factory=trio.Event)
    """Set when it may be opened."""
