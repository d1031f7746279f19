"""How long a proof runs, short in CI and long under `make torture`, and the seed of its chances."""

import os
import random
from typing import TypeVar

T = TypeVar("T")

LONG = os.environ.get("SOLOS_TEST_LONG") == "1"
"""True under `make torture`."""


def scaled(short: T, long: T) -> T:
    """The short form's value, or the long one's."""
    return long if LONG else short


def seeded() -> random.Random:
    """Chances that SOLOS_TEST_SEED replays. The seed is printed, and pytest shows it beside a failure."""
    seed = int(os.environ.get("SOLOS_TEST_SEED", random.SystemRandom().randrange(10**6)))
    print(f"SOLOS_TEST_SEED={seed}")
    return random.Random(seed)
