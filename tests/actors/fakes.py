"""Fake stores: deterministic, without threads of SQLite, so that a mock clock may drive the actors."""

from collections.abc import Callable, Sequence
from typing import Any

from storage.batch import Outcome, Write
from storage.errors import StorageBusy
from storage.records import Remembered
from storage.swarm.records import SwarmWritten
from storage.writing import OpenReport


def remembered(agent: str = "mira", row: int = 1) -> Remembered:
    """The reply to a write."""
    return Remembered(id=f"long:{row}", tier="long", agent=agent, created_at="2026-01-01T00:00:00.000Z")


class FakeWritingStore:
    """Answers every batch by what it is told, and keeps what it was given."""

    report = OpenReport("wal", "wal", False, False, False, 0, 0)
    journal_mode = "wal"
    index_error = None
    database_in_place = True
    state_in_place = True

    def __init__(self) -> None:
        self.batches: list[int] = []
        self.waits_s: list[float] = []
        self.busy = 0
        """How many attempts still meet a foreign lock."""
        self.apply_hook: Callable[[Sequence[Write[Any]]], list[Outcome]] | None = None
        self.catch_ups = 0
        self.closed = False

    def apply(self, writes: Sequence[Write[Any]], *, wait_s: float) -> list[Outcome]:
        self.waits_s.append(wait_s)
        if self.busy:
            self.busy -= 1
            raise StorageBusy("locked by a test")
        self.batches.append(len(writes))
        if self.apply_hook is not None:
            return self.apply_hook(writes)
        return [Outcome(reply=remembered()) for _ in writes]

    def catch_up(self) -> bool:
        self.catch_ups += 1
        return True

    def require_registered(self, agent: str) -> None:
        pass

    def close(self) -> None:
        self.closed = True


class FakeSwarm:
    """The swarm's files as a writer needs them; each write of a page is told to a hook."""

    def __init__(self) -> None:
        self.memory = self
        self.telling = None
        self.unread: list[str] = []
        self.written_hook: Callable[[str], None] = lambda _content: None

    def reconcile(self) -> int:
        return 0

    def write_page(self, kind: str, worker: str, file: None, content: str, *, base_hash: None) -> SwarmWritten:
        self.written_hook(content)
        return SwarmWritten(workerId=worker, kind="profile")

    def close(self) -> None:
        pass
