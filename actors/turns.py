"""Turns: the threads of readers run their short units one after the other.

Python runs one thread at a time. Two readers that run at once take the interpreter from each other some hundred times
a recall, and both end later: on two cores 195 recalls a second with two at once, 247 with one. But a slow read must not
keep the others waiting: after SHORT_S a unit has had its turn, and the others run beside it.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

SHORT_S = 0.02


class Turns:
    """Shared by the readers of one mailbox, and used in their threads."""

    def __init__(self) -> None:
        self._running = threading.Lock()
        self._since_s = 0.0
        """On time.monotonic(): when the unit that holds the lock began."""

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Run the block in a turn; beside the unit that runs now, when that has had its own."""
        left_s = self._since_s + SHORT_S - time.monotonic()
        is_mine = self._running.acquire(timeout=max(left_s, 0.0))
        if is_mine:
            self._since_s = time.monotonic()
        try:
            yield
        finally:
            if is_mine:
                self._running.release()
