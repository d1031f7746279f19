"""What `solos-memory connect hermes` prints is a config.yaml with which the real Hermes client works, as that agent."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.clients import Hermes
from tests.support import PROGRAM, Service, fresh_database, serving
from transport.mcp_tools import TOOLS

HERMES_TIMEOUT_S = 15


def snippet(agent: str, url: str) -> str:
    """What the command prints on stdout."""
    done = subprocess.run(
        [*PROGRAM, "connect", "hermes", "--agent", agent, "--url", url],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


@contextlib.contextmanager
def connected(home: Path, agent: str, url: str) -> Iterator[Hermes]:
    """A Hermes gateway whose whole config.yaml is the snippet."""
    client = Hermes(home, url, {}, config=snippet(agent, url))
    try:
        yield client
    finally:
        client.close()


def test_hermes_with_the_printed_config_writes_as_its_agent(shared_service: Service, tmp_path: Path) -> None:
    with connected(tmp_path / "mira", "mira", shared_service.url) as mira:
        assert len(mira.tools) == len(TOOLS)
        assert mira.call("remember_long", fact="The oberon probe sleeps on lab-12.")["agent"] == "mira"
    with connected(tmp_path / "sol", "sol", shared_service.url) as sol:
        (first, *_) = sol.call("recall", q="where does the oberon probe sleep")["results"]
        assert (first["agent"], first["text"]) == ("mira", "The oberon probe sleeps on lab-12.")


@pytest.mark.parametrize("agent", ["null", "0x1F", "a: 'b' # c"])
def test_agent_whose_name_means_something_in_yaml_stays_a_name(agent: str, tmp_path: Path) -> None:
    with (
        serving(fresh_database(tmp_path, agents=(agent,))) as service,
        connected(tmp_path / "home", agent, service.url) as hermes,
    ):
        assert hermes.call("remember_long", fact="A name is a name.")["agent"] == agent


def test_memory_that_hangs_costs_hermes_the_printed_time_and_not_a_minute(
    shared_service: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Why 15 s and not 60: an agent's turn stands still for as long as this."""
    with connected(tmp_path / "home", "sol", shared_service.url) as sol:
        shared_service.process.send_signal(signal.SIGSTOP)
        try:
            began_s = time.monotonic()
            seen = sol.seen("recall", q="anything")
            took_s = time.monotonic() - began_s
        finally:
            shared_service.process.send_signal(signal.SIGCONT)
    with capsys.disabled():
        print(f"\nHermes gave up a memory that hangs after {took_s:.1f} s")
    assert "error" in seen
    assert HERMES_TIMEOUT_S - 1 < took_s < HERMES_TIMEOUT_S + 10
