"""How a command ends that cannot do its work."""

import sys
from typing import NoReturn

import click

EX_UNAVAILABLE = 69
"""The exit code of a command that needs what is not there now (sysexits.h)."""


def fail(code: int, reason: str) -> NoReturn:
    """Say why, and end with this exit code."""
    click.echo(f"solos-memory: {reason}", err=True)
    sys.exit(code)
