"""Fixtures: a fresh database, and a service on it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.held import Held, held_socket
from tests.support import Service, fresh_database, serving


def pytest_configure(config: pytest.Config) -> None:
    """Nothing that a test starts may see the swarm's files of whoever runs it."""
    folder = tempfile.TemporaryDirectory(prefix="solos-memory-tests-")
    config.add_cleanup(folder.cleanup)
    os.environ["HERMES_HOME"] = f"{folder.name}/hermes"
    os.environ["HERMES_SWARM_MEMORY_ROOT"] = f"{folder.name}/swarm"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A fresh database of its own."""
    return fresh_database(tmp_path)


@pytest.fixture
def service(database: Path) -> Iterator[Service]:
    """A service of its own on a fresh database."""
    with serving(database) as running:
        yield running


@pytest.fixture
def held() -> Iterator[Held]:
    """A held socket without a service yet."""
    with held_socket() as socket_held:
        yield socket_held


@pytest.fixture(scope="module")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all tests of a module that do not mind each other's rows."""
    with serving(fresh_database(tmp_path_factory.mktemp("shared"))) as running:
        yield running
