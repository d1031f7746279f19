"""The command line: the program's own commands, and one command for each operation.

Imports late: `--help` needs neither the servers nor the database.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from transport import settings
from transport.commands import acceptance, connect, data, database, operator, purge, service, status
from transport.commands.calling import url_option
from transport.commands.endings import EX_UNAVAILABLE
from transport.operations import OPERATIONS, Operation


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="solos-memory")
def main() -> None:
    """A shared memory for a fleet of agents. Start it with `serve`; the other commands talk to it."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _add_operation(operation: Operation) -> None:
    """A command that sends one operation to the running service, or to the file itself with --offline."""
    properties = operation.input_schema["properties"]

    def run(url: str, offline: bool, db: Path | None, **arguments: Any) -> None:
        given = {name: _utf8(value) for name, value in arguments.items() if value not in (None, (), False)}
        if offline:
            from transport.offline import execute_offline

            if db is None:
                raise click.UsageError("--offline needs --db.")
            status, body = execute_offline(db, operation, given)
        else:
            from transport.client import call

            status, body = call(url, operation, given)
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))
        if not body.get("ok"):
            error = body.get("error", {})
            click.echo(f"{error.get('code')}: {error.get('detail')} {error.get('hint')}", err=True)
            sys.exit(EX_UNAVAILABLE if status == 0 else 1)

    command = click.command(operation.name.replace("_", "-"), help=operation.summary)(run)
    for name in operation.positional:
        command = click.argument(name)(command)
    for name, field in properties.items():
        if name in operation.positional:
            continue
        flag, text = "--" + name.replace("_", "-"), field.get("description", "")
        if field.get("type") == "boolean":
            option = click.option(flag, name, is_flag=True, help=text)
        elif field.get("type") == "array":
            option = click.option(flag, name, multiple=True, help=text + " a,b or repeated.")
        else:
            envvar = settings.AGENT_VARIABLE if name == "agent" else None
            option = click.option(flag, name, envvar=envvar, show_envvar=True, help=text)
        command = option(command)
    for option in (
        url_option,
        click.option("--offline", is_flag=True, help="Open the database itself, with the service stopped."),
        click.option("--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", help="For --offline."),
    ):
        command = option(command)
    main.add_command(command)


def _utf8(value: Any) -> Any:
    """Arguments as they were typed: UTF-8, whatever the locale made Python think."""
    if isinstance(value, tuple):
        return tuple(part for item in value for part in _utf8(item).split(",") if part)
    try:
        return os.fsencode(value).decode("utf-8") if isinstance(value, str) else value
    except UnicodeError:
        return value


for _command in (
    *service.COMMANDS,
    *database.COMMANDS,
    *data.COMMANDS,
    *operator.COMMANDS,
    *acceptance.COMMANDS,
    *status.COMMANDS,
    *connect.COMMANDS,
):
    main.add_command(_command)
for _operation in OPERATIONS:
    _add_operation(_operation)
main.add_command(purge.reporting(main.commands["purge"]))
