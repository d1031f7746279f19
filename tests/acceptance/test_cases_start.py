"""The cases about starting: the command line answers at once, whatever it could import."""

import subprocess
import sys
import time

import pytest

from tests.support import PROGRAM

HELP_WITHIN_S = 0.5
RUNS = 5
HEAVY = ("hypercorn", "mcp", "numpy", "prometheus_client", "quart", "structlog", "trio", "urllib.request")
COMMANDS = ("serve", "status", "connect", "purge", "recall", "doctor")


# --- C140: help ---


def test_help_comes_within_half_a_second() -> None:
    """The fastest of some runs: what it takes where the machine has time for it."""
    took_s = []
    for _ in range(RUNS):
        began_s = time.perf_counter()
        done = subprocess.run([*PROGRAM, "--help"], capture_output=True, text=True, timeout=30, check=True)
        took_s.append(time.perf_counter() - began_s)
        assert "status" in done.stdout
    assert min(took_s) < HELP_WITHIN_S, took_s


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_imports_nothing_heavy(command: str) -> None:
    code = (
        "import sys\nfrom transport.cli import main\n"
        f"try: main([{command!r}, '--help'])\nexcept SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
