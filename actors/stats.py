"""The counters of the process, in one place: the log, `/v1/stats` and `/metrics` show the same numbers."""

import bisect
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from storage import limits
from storage.records import Record, StoreState, Tier
from storage.soundness import Integrity
from storage.times import iso

UNREGISTERED: Final = "(unregistered)"
"""The one label of all agents that the registry does not hold."""
UNKNOWN: Final = "(unknown)"
"""The label of a call whose agent could not be looked up at the moment."""
NO_AGENT: Final = "(none)"
"""The label of a call that named no agent."""
OTHERS: Final = "(others)"
"""The one label of registered agents beyond the first AGENT_LABELS_MAX that were refused something."""
_NO_AGENTS: Final = (UNREGISTERED, UNKNOWN, NO_AGENT, OTHERS)
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
    """How many answers fell into each bucket; the last one has no upper bound."""
    sum_s: float = 0.0
    max_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """Count one answer."""
        self.counts[bisect.bisect_left(LATENCY_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds
        self.max_s = max(self.max_s, seconds)

    def add(self, other: "Latency") -> None:
        """Count the answers of another histogram, too."""
        self.counts = [ours + theirs for ours, theirs in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s
        self.max_s = max(self.max_s, other.max_s)

    def quantile_s(self, share: float) -> float:
        """The time within which this share of the answers came, interpolated within its bucket; 0 without answers."""
        rank, before = share * sum(self.counts), 0
        bounds = (0.0, *LATENCY_BUCKETS_S, max(self.max_s, LATENCY_BUCKETS_S[-1]))
        for number, count in enumerate(self.counts):
            if count and before + count >= rank:
                low, high = bounds[number], bounds[number + 1]
                return min(low + (high - low) * (rank - before) / count, self.max_s)
            before += count
        return 0.0


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
class AnswerTimes(Record):
    """How long the answers of one operation took, on all transports together, refusals included."""

    count: int
    """Answers since `since`."""
    p50_ms: float
    """Half of them came within this time; from a histogram, so interpolated within its bucket."""
    p99_ms: float
    """99 of 100 came within this time; interpolated likewise."""
    max_ms: float
    """The longest."""


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
    latency: dict[str, AnswerTimes]
    """Answer times by operation."""
    foreign_change_at: str | None
    """When the writer last noticed that another process had written the database: ISO 8601, UTC; null where none has
    since the writer opened it."""
    integrity: Integrity | None
    """What the last check of the database said: at start, hourly, and while damage is suspected; null while the writer
    is down."""
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
        self.latency: dict[tuple[str, str], Latency] = {}
        """By (operation, transport)."""
        self.unregistered_reads = 0
        self._labels: set[str] = set()

    @property
    def since(self) -> str:
        """When counting began."""
        return iso(self.since_s)

    def observe(self, operation: str, transport: str, seconds: float) -> None:
        """Count one answered call."""
        self.calls[operation, transport] += 1
        self.latency.setdefault((operation, transport), Latency()).observe(seconds)

    def refuse(self, agent_label: str, operation: str, code: str) -> None:
        """Count one refused call; of agents beyond AGENT_LABELS_MAX under the label of all others."""
        if agent_label not in _NO_AGENTS and agent_label not in self._labels:
            if len(self._labels) < limits.AGENT_LABELS_MAX:
                self._labels.add(agent_label)
            else:
                agent_label = OTHERS
        self.refusals[agent_label, operation, code] += 1

    def _answer_times(self) -> dict[str, AnswerTimes]:
        merged: dict[str, Latency] = {}
        for (operation, _), latency in sorted(self.latency.items()):
            merged.setdefault(operation, Latency()).add(latency)
        return {operation: _times_of(latency) for operation, latency in merged.items()}

    def statistics(
        self,
        store: StoreState,
        actors: dict[str, ActorState],
        bounds: dict[str, int | float],
        foreign_change_at_s: float | None,
        integrity: Integrity | None,
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
            latency=self._answer_times(),
            foreign_change_at=None if foreign_change_at_s is None else iso(foreign_change_at_s),
            integrity=integrity,
            actors=actors,
            bounds=bounds,
        )


def _times_of(latency: Latency) -> AnswerTimes:
    return AnswerTimes(
        count=sum(latency.counts),
        p50_ms=round(latency.quantile_s(0.5) * 1000, 2),
        p99_ms=round(latency.quantile_s(0.99) * 1000, 2),
        max_ms=round(latency.max_s * 1000, 2),
    )
