"""How often Python looks for garbage cycles."""

import gc

_THRESHOLD = 50_000


def collect_seldom() -> None:
    """Leave out of every later search for cycles what exists now, and search after 50,000 new containers, not 700.

    A recall makes thousands of tuples and no cycles. With Python's defaults one in twenty waited 10 to 15 ms for a
    search through all caches (measured by bench-latency: p95 of a sentence over one tier 29 ms before, 12 ms after).
    Affects the whole process.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_THRESHOLD)
