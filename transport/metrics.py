"""`/metrics`: the counters of `actors/stats.py` in Prometheus's text format. No counting of its own.

Labels are bounded, whoever calls with whatever: operations, transports, tiers, codes and mailboxes are few, and agents
beyond the first AGENT_LABELS_MAX share a label. Pinned by test_number_of_series_does_not_follow_what_callers_send.
"""

from collections.abc import Iterator

import trio
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from actors.messages import GetStatistics
from actors.stats import LATENCY_BUCKETS_S, Statistics
from actors.system import Asked
from storage.errors import Rejection
from storage.times import instant

_STORE_WITHIN_S = 5.0
"""Prometheus gives up a scrape after 10 s; without the store's figures it still learns that something is wrong."""


async def metrics_text(system: Asked) -> bytes:
    """What Prometheus scrapes. Without the store's figures while the database cannot be read in time."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(system, await _statistics(system)))
    return generate_latest(registry)


async def _statistics(system: Asked) -> Statistics | None:
    with trio.move_on_after(_STORE_WITHIN_S):
        try:
            return await system.ask(GetStatistics())
        except Rejection:
            return None
    return None


class _Collector(Collector):
    def __init__(self, system: Asked, statistics: Statistics | None) -> None:
        self._system = system
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        yield from self._health()
        yield from self._calls()
        yield from self._refusals()
        yield from self._writes()
        yield from self._latencies()
        yield from self._actors()
        if self._statistics is not None:
            yield from self._store(self._statistics)

    def _health(self) -> Iterator[Metric]:
        status = self._system.health().status
        yield _gauge("ready", "1 while the service can do its work.", status != "not_ready")
        yield _gauge("degraded", "1 while /health names a reason, not_ready or not.", status != "ok")
        yield _gauge("start_time_seconds", "When the process started, since 1970.", self._system.stats.since_s)

    def _calls(self) -> Iterator[Metric]:
        calls = CounterMetricFamily("solos_memory_calls", "Calls.", labels=["operation", "transport"])
        for (operation, transport), count in self._system.stats.calls.items():
            calls.add_metric([operation, transport], count)
        yield calls

    def _refusals(self) -> Iterator[Metric]:
        stats = self._system.stats
        refusals = CounterMetricFamily("solos_memory_refusals", "Refused.", labels=["agent", "operation", "code"])
        for labels, count in stats.refusals.items():
            refusals.add_metric(labels, count)
        yield refusals
        # A counter with labels appears with its first count, which no rate() sees; this one is there from the start.
        yield CounterMetricFamily("solos_memory_refused", "Refused calls in all.", value=stats.refusals.total())
        yield CounterMetricFamily(
            "solos_memory_unregistered_reads", "Reads by agents not in the registry.", value=stats.unregistered_reads
        )

    def _writes(self) -> Iterator[Metric]:
        writes = CounterMetricFamily("solos_memory_writes", "Writes by how they ended.", labels=["tier", "ended"])
        for tier, counts in self._system.stats.writes.items():
            for ended in ("issued", "acknowledged", "replayed", "refused", "unknown"):
                writes.add_metric([tier, ended], getattr(counts, ended))
        yield writes

    def _latencies(self) -> Iterator[Metric]:
        labels = ["operation", "transport"]
        family = HistogramMetricFamily("solos_memory_answer_seconds", "Answer times.", labels=labels)
        bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
        for of, latency in self._system.stats.latency.items():
            total, buckets = 0, []
            for bound, count in zip(bounds, latency.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric(of, buckets, latency.sum_s)
        yield family

    def _actors(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("solos_memory_mailbox_depth", "Messages that wait.", labels=["mailbox"])
        bound = GaugeMetricFamily("solos_memory_mailbox_bound", "Messages that may wait.", labels=["mailbox"])
        restarts = CounterMetricFamily("solos_memory_actor_restarts", "Restarts.", labels=["mailbox"])
        for name, actor in self._system.actors().items():
            depth.add_metric([name], actor.depth)
            bound.add_metric([name], actor.bound)
            restarts.add_metric([name], actor.restarts)
        yield depth
        yield bound
        yield restarts

    def _store(self, statistics: Statistics) -> Iterator[Metric]:
        store = statistics.store
        rows = GaugeMetricFamily("solos_memory_rows", "Rows by tier.", labels=["tier"])
        for tier in ("short", "long", "episodic"):
            rows.add_metric([tier], getattr(store.rows, tier))
        yield rows
        yield _gauge("wal_bytes", "Size of the write-ahead log.", store.wal_bytes)
        yield _gauge("index_bytes", "Size of the index file.", store.index_bytes)
        yield _gauge("index_share", "Part of the tables that the index has followed, 0 to 1.", store.index_share)
        yield _gauge("index_rows_behind", "Row ids that the index has not followed yet.", store.index_rows_behind)
        yield _gauge(
            "foreign_change_timestamp_seconds",
            "When another process was last seen to have written, since 1970; 0 for never since the start.",
            instant(statistics.foreign_change_at) or 0,
        )
        yield _gauge(
            "last_backup_timestamp_seconds",
            "When the last recorded backup ended, since 1970; 0 where none is recorded.",
            instant(store.last_backup_at) or 0,
        )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"solos_memory_{name}", text, value=value)
