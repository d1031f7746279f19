"""Commands that run the service."""

import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from storage.errors import ConfigurationError
from transport import settings
from transport.commands.endings import fail
from transport.settings import EX_CONFIG


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
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


@click.command()
@_setting_options
@click.option("--config", help=f"A TOML file with settings.  [env: {settings.CONFIG_VARIABLE}]")
def serve(config: str | None, **flags: Any) -> None:
    """Start the service and serve until SIGTERM."""
    if config:
        os.environ[settings.CONFIG_VARIABLE] = config
    from transport.serve import run

    try:
        code = run(partial(settings.load, flags))
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    sys.exit(code)


@click.command("install-units")
@click.option("--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", required=True, help="The database.")
@click.option("--bind", default="127.0.0.1:8437", show_default=True, help="Where the socket listens.")
@click.option("--program", type=click.Path(path_type=Path), help="The script solos-memory.  [default: this one]")
@click.option("--folder", type=click.Path(path_type=Path), help="The working directory.  [default: the database's]")
@click.option("--into", type=click.Path(path_type=Path), help="Where units are.  [default: ~/.config/systemd/user]")
@click.option("--replace", is_flag=True, help="Replace units that differ.")
@click.option("--dry-run", is_flag=True, help="Print the units, write nothing.")
def install_units(
    *, db: Path, bind: str, program: Path | None, folder: Path | None, into: Path | None, replace: bool, dry_run: bool
) -> None:
    """Write the systemd user units of the service and its socket, and say how to start them."""
    from transport.units import Placed, install, rendered, user_units_folder

    database = db.expanduser().absolute()
    script = program or Path(shutil.which(sys.argv[0]) or sys.argv[0])
    placed = Placed(script.absolute(), database, bind, (folder or database.parent).absolute())
    try:
        if dry_run:
            for name, text in rendered(placed).items():
                click.echo(f"# {name}\n{text}")
            return
        for path in install(placed, into or user_units_folder(), replace=replace):
            click.echo(f"wrote {path}")
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    click.echo("Start them, and keep them when you log out:")
    for command in (
        "systemctl --user daemon-reload",
        "systemctl --user enable --now lab-memory.socket lab-memory.service",
        "loginctl enable-linger",
    ):
        click.echo(f"  {command}")


COMMANDS = (serve, install_units)
