"""kill -9 at any moment: what was acknowledged is there once, what was not can be sent again, nothing is twice."""

import random
from pathlib import Path

from tests.faults.kill_torture import Torture
from tests.faults.scale import scaled, seeded

PARTS = scaled(1, 20)
ROW_CLIENTS = scaled(4, 8)
"""Beside 13 of the swarm's files."""
FOREIGN = ("main", "or")


def test_every_acknowledged_write_survives_kill_9(database: Path) -> None:
    """Rows over REST and MCP, the swarm's files, and rows of foreign processes, all at once."""
    chance = random.Random(seeded().random())
    torture = Torture(database, chance, clients=ROW_CLIENTS, foreign=FOREIGN, tells=True)
    with torture.foreign():
        for number in range(PARTS):
            torture.part(f"part-{number}")
    torture.check()
    assert len(torture.books.acknowledged) > torture.kills
    assert torture.foreign_rows > torture.kills
