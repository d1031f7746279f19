"""The command that accepts, or does not accept, a running service."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import click

from storage.errors import ConfigurationError, Rejection
from transport.commands.calling import DEFAULT_URL, url_option
from transport.commands.endings import EX_UNAVAILABLE, fail
from transport.settings import EX_CONFIG

if TYPE_CHECKING:
    from transport.acceptance.results import Result
    from transport.acceptance.run import Run

_PATH = click.Path(path_type=Path)


def _address(url: str) -> tuple[str, int]:
    """Host and port of a service's URL."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError as error:
        raise click.BadParameter(f"--url: {error}.") from None
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/"):
        raise click.BadParameter(f"--url: {url!r} is no address of a service, such as {DEFAULT_URL}.")
    return parts.hostname, port


def _ports(_context: click.Context, _option: click.Parameter, texts: tuple[str, ...]) -> tuple[int, ...]:
    """The ports of an option that may be repeated."""
    from transport.acceptance.mesh import ports_of

    try:
        return ports_of(",".join(texts))
    except ValueError as error:
        raise click.BadParameter(f"{error}: 8300-8307,8310 is a list of ports.") from None


@click.command()
@url_option
@click.option("--db", type=_PATH, envvar="SOLOS_MEMORY_DB", required=True, help="The database that it serves.")
@click.option("--writer", help="A registered agent to write as; by default atlas, or another of the registry.")
@click.option("--reader", help="A registered agent to recall as; by default sol, or another of the registry.")
@click.option("--relay-config", "relays", type=_PATH, multiple=True, help="A relay's file that must not name the port.")
@click.option("--a2a-ports", callback=_ports, multiple=True, help="The A2A agents' ports: 8300-8307. None by default.")
@click.option("--a2a-except", callback=_ports, multiple=True, help="Ports among them that are known to be dead.")
@click.option("--a2a-host", default="127.0.0.1", show_default=True, help="Where the A2A agents listen.")
@click.option("--a2a-path", default="/.well-known/agent-card.json", show_default=True, help="What is asked of each.")
@click.option("--sockets", type=_PATH, default=Path("/proc/net"), show_default=True, help="The kernel's socket list.")
@click.option(
    "--timeout", "limit_s", type=click.FloatRange(0.1), default=15.0, show_default=True, help="Seconds for each call."
)
@click.option("--report", type=_PATH, help="Also write the result as a page of Markdown.")
def acceptance(
    *,
    url: str,
    db: Path,
    writer: str | None,
    reader: str | None,
    relays: tuple[Path, ...],
    a2a_ports: tuple[int, ...],
    a2a_except: tuple[int, ...],
    a2a_host: str,
    a2a_path: str,
    sockets: Path,
    limit_s: float,
    report: Path | None,
) -> None:
    """Perform the acceptance checks on a running service; exit 1 where one fails. Leaves some rows, and names them."""
    from storage.witness import Witness
    from transport.acceptance.calls import Endpoint
    from transport.acceptance.run import Run, Wanted, two_agents

    service = Endpoint(*_address(url), limit_s=limit_s)
    wanted = Wanted(
        kernel_list=sockets,
        relay_configs=relays,
        mesh_host=a2a_host,
        mesh_ports=a2a_ports,
        mesh_except=a2a_except,
        mesh_path=a2a_path,
    )
    try:
        witness = Witness(db)
        writer, reader = two_agents(witness, writer, reader)
        run = Run(
            service=service,
            witness=witness,
            writer=writer,
            reader=reader,
            wanted=wanted,
            limit_s=limit_s,
        )
        run.begin()
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, f"{refusal.detail} {refusal.hint}")
    results = _performed(run)
    if report is not None:
        _write_report(report, run, results, db)
    sys.exit(any(result.outcome == "FAIL" for result in results))


def _performed(run: "Run") -> "list[Result]":
    """Perform the checks and show each as soon as it has ended."""
    from transport.acceptance.checks import perform
    from transport.acceptance.results import line_of, total_of

    results = []
    for result in perform(run):
        click.echo(line_of(result))
        results.append(result)
    click.echo(f"rows left: {run.left()}")
    click.echo(total_of(results))
    return results


def _write_report(path: Path, run: "Run", results: "list[Result]", db: Path) -> None:
    from storage.times import iso
    from transport.acceptance.results import page_of

    host = f"[{run.service.host}]" if ":" in run.service.host else run.service.host
    url = f"http://{host}:{run.service.port}"
    page = page_of(results, url=url, database=str(db), at=iso(time.time()), left=run.left())
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        fail(EX_UNAVAILABLE, f"the report {path} cannot be written ({error.strerror}).")


COMMANDS = (acceptance,)
