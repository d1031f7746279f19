"""How late an event loop comes to a task that sleeps: in the service, and in a process that does nothing else.

The service's own sleeper is planted (`fault=` of `serving`). What both show is the machine's; the difference is ours.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.faults import planting

PERIOD_S = 0.005


async def sleeper(path: str) -> None:
    """Note each lateness in a file, until cancelled."""
    with Path(path).open("a", buffering=1) as file:
        while True:
            due_s = trio.current_time() + PERIOD_S
            await trio.sleep_until(due_s)
            file.write(f"{time.monotonic()} {trio.current_time() - due_s}\n")


def fault(path: Path) -> str:
    """The Python that plants the sleeper."""
    return planting.fault("lag", "sleeper", path)


@contextmanager
def control(path: Path) -> Iterator[None]:
    """A process that only sleeps, while the block runs."""
    program = f"{planting.importing('lag')}import trio\ntrio.run(lag.sleeper, {str(path)!r})"
    process = subprocess.Popen([sys.executable, "-c", program])
    try:
        yield
    finally:
        process.kill()
        process.wait(5)


def quantile_s(path: Path, share: float, since_s: float, until_s: float) -> float:
    """The lateness that this share of the samples of a time did not exceed, in seconds."""
    samples = [tuple(map(float, line.split())) for line in path.read_text().splitlines()[:-1]]
    late = sorted(late_s for at_s, late_s in samples if since_s <= at_s <= until_s + late_s)
    assert len(late) > 20, f"only {len(late)} samples in {path}"
    return late[min(int(share * len(late)), len(late) - 1)]
