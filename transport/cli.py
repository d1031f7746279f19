"""The command line: the program's own commands, and one command for each operation.

Imports late: `--help` needs neither the servers nor the database.
"""

import json
import os
import re
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


@main.group()
def swarm() -> None:
    """The swarm's files: missions, handoffs, episodes, profiles.

    read, write, search, resume, notes and edit-notes are for agents; the others are the operator's.
    """


def _add_operation(operation: Operation) -> None:
    """A command that sends one operation to the running service, or to the file itself with --offline."""
    properties = operation.input_schema["properties"]

    def absent(name: str) -> bool:
        """What a flag is when nobody gave it."""
        return bool(properties[name].get("default"))

    def run(url: str, offline: bool, db: Path | None, **arguments: Any) -> None:
        given = {
            name: _utf8(value) for name, value in arguments.items() if value not in (None, ()) and value != absent(name)
        }
        if offline:
            from transport.offline import execute_offline

            if db is None:
                raise click.UsageError("--offline needs --db.")
            status, body = execute_offline(db, operation, given)
        else:
            from transport.client import call

            status, body = call(url, operation, given)
            body = _nested(body)
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))
        if not body.get("ok"):
            error = body.get("error", {})
            click.echo(f"{error.get('code')}: {error.get('detail')} {error.get('hint')}", err=True)
            sys.exit(EX_UNAVAILABLE if status == 0 else 1)

    group, name_in_group = _place(operation.name)
    command = click.command(name_in_group, help=operation.summary)(run)
    for name in operation.positional:
        command = click.argument(name, cls=_Spelled)(command)
    for name, field in properties.items():
        if name in operation.positional:
            continue
        flag, text = "--" + _kebab(name), field.get("description", "")
        if field.get("type") == "boolean" and field.get("default"):
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=True, help=text)
        elif field.get("type") == "boolean":
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
    group.add_command(command)


class _Spelled(click.Argument):
    """An argument that keeps the capitals of its field's name."""

    def __init__(self, names: list[str], **more: Any) -> None:
        super().__init__(names, **more)
        (self.name,) = names


def _place(name: str) -> tuple[click.Group, str]:
    """The group and the name of an operation's command: `swarm_read` is `swarm read`."""
    first, _, rest = name.partition("_")
    return (swarm, _kebab(rest)) if first == swarm.name else (main, _kebab(name))


def _kebab(name: str) -> str:
    """`mission_id` and `missionId` as flags have them."""
    return re.sub("([A-Z])", r"-\1", name).lower().replace("_", "-")


def _nested(body: dict[str, Any]) -> dict[str, Any]:
    """An answer as all commands print it: the operator's page has the text of a refusal in `error` itself."""
    if not isinstance(detail := body.get("error"), str):
        return body
    rest = {name: value for name, value in body.items() if name not in ("ok", "error")}
    return {"ok": False, "error": {"detail": detail, **rest}}


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
