"""`/metrics`: the counters of `actors/stats.py` in Prometheus's text format. No counting of its own."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from actors.messages import GetStatistics
from actors.stats import LATENCY_BUCKETS_S, Statistics
from actors.system import System
from storage.errors import Rejection


async def metrics_text(system: System) -> bytes:
    """What Prometheus scrapes. Without the store's figures while the database cannot be read."""
    try:
        statistics = await system.ask(GetStatistics())
    except Rejection:
        statistics = None
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(system, statistics))
    return generate_latest(registry)


class _Collector(Collector):
    def __init__(self, system: System, statistics: Statistics | None) -> None:
        self._system = system
        self._statistics = statistics

    def collect(self) -> Iterator[Metric]:
        stats = self._system.stats
        calls = CounterMetricFamily("solos_memory_calls", "Calls.", labels=["operation", "transport"])
        for (operation, transport), count in stats.calls.items():
            calls.add_metric([operation, transport], count)
        yield calls
        refusals = CounterMetricFamily("solos_memory_refusals", "Refused.", labels=["agent", "operation", "code"])
        for labels, count in stats.refusals.items():
            refusals.add_metric(labels, count)
        yield refusals
        writes = CounterMetricFamily("solos_memory_writes", "Writes by how they ended.", labels=["tier", "ended"])
        for tier, counts in stats.writes.items():
            for ended in ("issued", "acknowledged", "replayed", "refused", "unknown"):
                writes.add_metric([tier, ended], getattr(counts, ended))
        yield writes
        yield CounterMetricFamily(
            "solos_memory_unregistered_reads", "Reads by agents not in the registry.", value=stats.unregistered_reads
        )
        yield from self._latencies()
        yield from self._actors()
        yield from self._store()

    def _latencies(self) -> Iterator[Metric]:
        family = HistogramMetricFamily("solos_memory_answer_seconds", "Answer times.", labels=["operation"])
        bounds = [*(str(bound) for bound in LATENCY_BUCKETS_S), "+Inf"]
        for operation, latency in self._system.stats.latency.items():
            total, buckets = 0, []
            for bound, count in zip(bounds, latency.counts, strict=True):
                total += count
                buckets.append((bound, float(total)))
            family.add_metric([operation], buckets, latency.sum_s)
        yield family

    def _actors(self) -> Iterator[Metric]:
        depth = GaugeMetricFamily("solos_memory_mailbox_depth", "Messages that wait.", labels=["mailbox"])
        restarts = CounterMetricFamily("solos_memory_actor_restarts", "Restarts.", labels=["mailbox"])
        for name, actor in self._system.actors().items():
            depth.add_metric([name], actor.depth)
            restarts.add_metric([name], actor.restarts)
        yield depth
        yield restarts
        ready = 0 if self._system.health().status == "not_ready" else 1
        yield GaugeMetricFamily("solos_memory_ready", "1 while the service can do its work.", value=ready)

    def _store(self) -> Iterator[Metric]:
        if self._statistics is None:
            return
        store = self._statistics.store
        rows = GaugeMetricFamily("solos_memory_rows", "Rows by tier.", labels=["tier"])
        for tier in ("short", "long", "episodic"):
            rows.add_metric([tier], getattr(store.rows, tier))
        yield rows
        yield GaugeMetricFamily("solos_memory_wal_bytes", "Size of the write-ahead log.", value=store.wal_bytes)
        yield GaugeMetricFamily("solos_memory_index_bytes", "Size of the index file.", value=store.index_bytes)
        yield GaugeMetricFamily("solos_memory_index_share", "Part that the index follows.", value=store.index_share)
