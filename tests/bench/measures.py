"""What the benchmarks compute of their figures: percentiles and the paired bootstrap."""

import random
import statistics
from collections.abc import Sequence

RESAMPLES = 10_000
SEED = 7


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; as the yardsticks count it."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def latencies(ms: Sequence[float]) -> dict[str, float]:
    """p50, p95 and p99 in milliseconds, and of how many."""
    shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
    return {name: round(percentile(ms, share), 3) for name, share in shares.items()} | {"n": len(ms)}


def median_of(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    """Each figure's median over rounds: one round that another process disturbed does not count."""
    return {name: round(statistics.median(figures[name] for figures in rounds), 3) for name in rounds[0]}


def interval(differences: Sequence[float]) -> tuple[float, float, float]:
    """(mean, lower, upper) of paired differences: the 95 % interval of a seeded bootstrap over the questions."""
    pick = random.Random(SEED)
    count = len(differences)
    means = sorted(sum(pick.choices(differences, k=count)) / count for _ in range(RESAMPLES))
    return sum(differences) / count, percentile(means, 0.025), percentile(means, 0.975)
