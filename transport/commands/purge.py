"""`solos-memory purge --report`: the operation's own command, as a job of a cron registry wants it."""

import json
import sys
import time
from typing import Any

import click

from storage.times import iso
from transport.commands.endings import EX_UNAVAILABLE
from transport.operations import BY_NAME

_REPORT = click.Option(
    ["--report"],
    is_flag=True,
    help="Print exactly one JSON line, {ok, removed, at, duration_ms, error?}, and nothing else; end with 0, with 1 "
    "where it was refused or failed, or with 69 where no service answered.",
)


def reporting(command: click.Command) -> click.Command:
    """The generated command of the operation `purge`, with the option --report beside its own."""
    plain = command.callback
    assert plain is not None

    def run(report: bool, **options: Any) -> None:
        if not report:
            plain(**options)
            return
        code, line = _reported(**options)
        click.echo(json.dumps(line, ensure_ascii=False))
        sys.exit(code)

    return click.Command(command.name, callback=run, params=[*command.params, _REPORT], help=command.help)


def _reported(*, url: str, offline: bool, db: Any, **arguments: Any) -> tuple[int, dict[str, Any]]:
    """(exit code, report) of one purge. `removed` is null where nothing is known of it."""
    at_s, began = time.time(), time.monotonic()
    status, body = _purge(url, offline, db, {name: value for name, value in arguments.items() if value})
    line = {
        "ok": bool(body.get("ok")),
        "removed": body.get("purged"),
        "at": iso(at_s),
        "duration_ms": round((time.monotonic() - began) * 1000, 1),
    }
    if line["ok"]:
        return 0, line
    return EX_UNAVAILABLE if status == 0 else 1, line | {"error": body.get("error")}


def _purge(url: str, offline: bool, db: Any, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    operation = BY_NAME["purge"]
    if not offline:
        from transport.client import call

        return call(url, operation, arguments)
    from transport.offline import execute_offline

    if db is None:
        raise click.UsageError("--offline needs --db.")
    return execute_offline(db, operation, arguments)
