"""A writer's side of the swarm's files, with a clock that tests move."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.conftest import Clock
from tests.storage.swarm.files import Swarm


@pytest.fixture
def swarm(tmp_path: Path, clock: Clock) -> Iterator[Swarm]:
    """Fresh roots below a folder of their own; the test fails that leaves a handle open."""
    before = len(os.listdir("/proc/self/fd"))
    yield Swarm(tmp_path / "inside", clock)
    assert len(os.listdir("/proc/self/fd")) == before, "a handle was left open"
