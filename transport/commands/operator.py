"""Commands that tell an operator how things are."""

import json
import sys
from pathlib import Path

import click

from transport.settings import EX_CONFIG


@click.command()
@click.option("--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", help="The database to look at.")
def doctor(db: Path | None) -> None:
    """Look at database, settings and installation; name what is wrong and the next step. Changes nothing."""
    from transport.doctor import examine

    findings = examine(db)
    for finding in findings:
        click.echo(f"{finding.level:<5} {finding.subject}: {finding.text}")
        if finding.next_step:
            click.echo(f"      → {finding.next_step}")
    if any(finding.level == "FATAL" for finding in findings):
        sys.exit(EX_CONFIG)
    sys.exit(any(finding.level == "WARN" for finding in findings))


@click.command()
def openapi() -> None:
    """Print the REST contract (OpenAPI 3.1)."""
    from transport.openapi import openapi as document

    click.echo(json.dumps(document(), indent=2, ensure_ascii=False))


COMMANDS = (doctor, openapi)
