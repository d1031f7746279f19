"""The command line: the program's own commands, and one command for each operation.

Imports late: `--help` needs neither the servers nor the database.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from storage import limits
from storage.errors import ConfigurationError, Rejection
from transport import settings
from transport.operations import OPERATIONS, Operation
from transport.settings import EX_CONFIG

if TYPE_CHECKING:
    from collections.abc import Callable

    from storage.writing import WritingStore

EX_UNAVAILABLE = 69
_DEFAULT_URL = "http://127.0.0.1:8437"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="solos-memory")
def main() -> None:
    """A shared memory for a fleet of agents. Start it with `serve`; the other commands talk to it."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]


def _setting_options(command: "Callable[..., None]") -> "Callable[..., None]":
    """One flag for each setting of the table."""
    for name, field in reversed(settings.Settings.model_fields.items()):
        flag = "--" + name.replace("_", "-")
        text = f"{field.description}  [env: {settings.PREFIX}{name.upper()}; default: {field.default}]"
        if field.annotation is bool:
            option = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
        elif field.default == ():
            option = click.option(flag, name, multiple=True, callback=lambda _c, _p, value: value or None, help=text)
        else:
            option = click.option(flag, name, default=None, help=text)
        command = option(command)
    return command


@main.command()
@_setting_options
@click.option("--config", help=f"A TOML file with settings.  [env: {settings.CONFIG_VARIABLE}]")
def serve(config: str | None, **flags: Any) -> None:
    """Start the service and serve until SIGTERM."""
    if config:
        os.environ[settings.CONFIG_VARIABLE] = config
    from transport.serve import run

    try:
        loaded = settings.load(flags)
    except ConfigurationError as error:
        _fail(EX_CONFIG, str(error))
    sys.exit(run(loaded))


@main.command()
@click.option("--db", type=click.Path(path_type=Path), required=True, help="Where to make the database.")
@click.option("--agents", required=True, help="The agents to register: a,b,c.")
def init(db: Path, agents: str) -> None:
    """Make a fresh database with some agents registered."""
    from storage.store import create_database

    names = list(dict.fromkeys(name for part in agents.split(",") if (name := part.strip())))
    if not names or any(len(name) > limits.AGENT_CHARS_MAX for name in names):
        raise click.UsageError(f"--agents takes ids of 1 to {limits.AGENT_CHARS_MAX} characters: a,b,c.")
    try:
        create_database(db, names)
    except ConfigurationError as error:
        _fail(EX_CONFIG, str(error))
    click.echo(f"made {db} with {len(names)} agents: {', '.join(names)}")


@main.command()
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


@main.command()
@click.option("--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", required=True, help="The database.")
def reindex(db: Path) -> None:
    """Build the search index anew from the tables. Takes the lock: stop the service first."""
    from storage.paths import Paths, ProcessLock
    from storage.writing import WritingStore

    paths = Paths(db)
    try:
        paths.make_folders()
        lock = ProcessLock(paths)
        store = WritingStore(paths)
    except ConfigurationError as error:
        _fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        _fail(EX_UNAVAILABLE, f"{refusal.detail} {refusal.hint}")
    try:
        _reindex(store)
    finally:
        store.close()
        lock.release()


def _reindex(store: "WritingStore") -> None:
    store.remake_index()
    total = store.rows_to_index()
    with click.progressbar(length=total, label="indexing", file=sys.stderr) as bar:
        done = 0
        while not store.catch_up(0.2):
            if store.index_error is not None:
                _fail(EX_UNAVAILABLE, f"the index cannot be written: {store.index_error}")
            followed = store.rows_indexed()
            bar.update(followed - done)
            done = followed
        bar.update(total - done)
    click.echo(f"indexed {store.rows_indexed()} rows")


@main.command()
def openapi() -> None:
    """Print the REST contract (OpenAPI 3.1)."""
    from transport.openapi import openapi as document

    click.echo(json.dumps(document(), indent=2, ensure_ascii=False))


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
        click.option("--url", envvar=settings.URL_VARIABLE, default=_DEFAULT_URL, show_default=True, help="Service."),
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


def _fail(code: int, reason: str) -> "Any":
    click.echo(f"solos-memory: {reason}", err=True)
    sys.exit(code)


for _operation in OPERATIONS:
    _add_operation(_operation)
