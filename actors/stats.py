"""The counters of the process, in one place: the log, `/v1/stats` and `/metrics` show the same numbers."""

import bisect
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from storage.records import Record, StoreState, Tier
from storage.times import iso

UNREGISTERED: Final = "(unregistered)"
"""The one label of all agents that the registry does not hold."""
UNKNOWN: Final = "(unknown)"
"""The label of a call whose agent could not be looked up at the moment."""
NO_AGENT: Final = "(none)"
"""The label of a call that named no agent."""
TRANSPORT: Final = "(transport)"
"""The operation of a call that was refused before the registry of operations saw it."""

LATENCY_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


@dataclass(slots=True)
class WriteCounts:
    """The live counters behind `TierWrites`."""

    issued: int = 0
    acknowledged: int = 0
    replayed: int = 0
    refused: int = 0
    unknown: int = 0

    @property
    def in_flight(self) -> int:
        """Writes that have no answer yet."""
        return self.issued - self.acknowledged - self.replayed - self.refused - self.unknown


@dataclass(slots=True)
class Latency:
    """A histogram of answer times."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    sum_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one answer."""
        self.counts[bisect.bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Record):
    """How often one agent was refused one operation for one reason."""

    agent: str
    """A registered agent, `(unregistered)` or `(none)`."""
    operation: str
    """The operation, or `(transport)`."""
    code: str
    """The error code."""
    count: int
    """Since `since`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TierWrites(Record):
    """What became of the writes of one tier: issued = acknowledged + replayed + refused + unknown + in_flight."""

    issued: int
    """Writes that reached the service."""
    acknowledged: int
    """On disk and answered so."""
    replayed: int
    """Retries answered with the first row."""
    refused: int
    """Refused; nothing was written."""
    unknown: int
    """Their caller did not see the end; they may be on disk."""
    in_flight: int
    """Not answered yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState(Record):
    """One mailbox and the actors behind it."""

    depth: int
    """Messages that wait."""
    bound: int
    """Messages that may wait."""
    restarts: int
    """Restarts of the actors since `since`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics(Record):
    """What the service has done since it started, and what it holds."""

    since: str
    """When the process started: ISO 8601, UTC."""
    demo: bool
    """True on the demo database."""
    store: StoreState
    """Rows by tier, index and files."""
    writes: dict[Tier, TierWrites]
    """What became of the writes, by tier."""
    calls: dict[str, int]
    """Calls by operation, refused ones included."""
    refusals: tuple[Refusal, ...]
    """Refused calls."""
    refused: int
    """How many calls were refused in all."""
    unregistered_reads: int
    """Reads served to agents that the registry does not hold."""
    actors: dict[str, ActorState]
    """Mailboxes and restarts."""
    bounds: dict[str, int | float]
    """Every bound of the service, by name."""


class Stats:
    """The live counters. Touched on the event loop only."""

    def __init__(self, *, demo: bool = False) -> None:
        self.demo = demo
        self.since_s = time.time()
        self.writes: dict[Tier, WriteCounts] = {tier: WriteCounts() for tier in ("short", "long", "episodic")}
        self.calls: Counter[tuple[str, str]] = Counter()
        """By (operation, transport)."""
        self.refusals: Counter[tuple[str, str, str]] = Counter()
        """By (agent label, operation, code)."""
        self.latency: dict[str, Latency] = {}
        """By operation."""
        self.unregistered_reads = 0

    @property
    def since(self) -> str:
        """When counting began."""
        return iso(self.since_s)

    def observe(self, operation: str, transport: str, seconds: float) -> None:
        """Count one answered call."""
        self.calls[operation, transport] += 1
        self.latency.setdefault(operation, Latency()).observe(seconds)

    def refuse(self, agent_label: str, operation: str, code: str) -> None:
        """Count one refused call."""
        self.refusals[agent_label, operation, code] += 1

    def statistics(
        self, store: StoreState, actors: dict[str, ActorState], bounds: dict[str, int | float]
    ) -> Statistics:
        """The counters as a reply."""
        calls: Counter[str] = Counter()
        for (operation, _), count in self.calls.items():
            calls[operation] += count
        return Statistics(
            since=self.since,
            demo=self.demo,
            store=store,
            writes={
                tier: TierWrites(
                    issued=counts.issued,
                    acknowledged=counts.acknowledged,
                    replayed=counts.replayed,
                    refused=counts.refused,
                    unknown=counts.unknown,
                    in_flight=counts.in_flight,
                )
                for tier, counts in self.writes.items()
            },
            calls=dict(calls),
            refusals=tuple(
                Refusal(agent=agent, operation=operation, code=code, count=count)
                for (agent, operation, code), count in sorted(self.refusals.items())
            ),
            refused=self.refusals.total(),
            unregistered_reads=self.unregistered_reads,
            actors=actors,
            bounds=bounds,
        )
