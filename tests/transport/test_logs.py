"""What a log may hold."""

import subprocess
import sys

import pytest

FAILING = """
import structlog
from transport.logs import configure
configure("info", {form!r})
def write(fact):
    raise RuntimeError("planted")
try:
    write("the " + "quagga".upper())
except RuntimeError:
    structlog.get_logger().exception("unit_failed")
"""


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_shows_no_memory_text(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FAILING.format(form=form)], capture_output=True, text=True, timeout=30, check=True
    )
    assert "RuntimeError" in done.stdout
    assert "QUAGGA" not in done.stdout
