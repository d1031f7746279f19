"""kill -9 while the swarm's files alone are written: what was answered is there once and whole, as are its pages."""

import random
from pathlib import Path

import pytest

from tests.faults.kill_torture import Torture
from tests.faults.scale import scaled, seeded

PARTS = scaled(1, 10)


@pytest.mark.parametrize("part", range(PARTS))
def test_every_answered_write_and_its_pages_survive_kill_9(database: Path, part: int) -> None:
    """No rows beside them: the service does nothing but write files."""
    torture = Torture(database, random.Random(f"{seeded().random()}/{part}"))
    torture.part(f"part-{part}")
    torture.check()
