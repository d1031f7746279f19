"""`solos-memory status`: one screen about the running service."""

import sys
import time
from typing import Any

import click

from storage import limits
from transport.commands.calling import Unanswered, fetch, url_option
from transport.commands.endings import EX_UNAVAILABLE, fail

_HEALTH_WITHIN_S = 5.0
_STATS_WITHIN_S = limits.READ_DEADLINE_S + limits.ANSWER_GRACE_S


@click.command()
@url_option
def status(url: str) -> None:
    """Show on one screen what the service holds, has done and refused, and how far behind it is.

    Ends with 69 where it does not answer or cannot do its work.
    """
    from transport.screen import head, screen

    url = url.rstrip("/")
    try:
        _, health = fetch(url, "/health", within_s=_HEALTH_WITHIN_S)
        click.echo(head(url, health))
        stats = _stats(url)
        click.echo(screen(stats, time.time()))
    except Unanswered as error:
        fail(EX_UNAVAILABLE, f"{error} Is it running? Start it with `solos-memory serve`, or name it with --url.")
    except (KeyError, TypeError, AttributeError) as error:
        fail(EX_UNAVAILABLE, f"{url} answers otherwise than this version does ({type(error).__name__}: {error}).")
    sys.exit(EX_UNAVAILABLE if health["status"] == "not_ready" else 0)


def _stats(url: str) -> dict[str, Any]:
    """The statistics; ends the program where the service refuses them, and says why."""
    _, stats = fetch(url, "/v1/stats", within_s=_STATS_WITHIN_S)
    if not stats["ok"]:
        error = stats["error"]
        fail(EX_UNAVAILABLE, f"there are no statistics: {error['code']}: {error['detail']} {error['hint']}")
    return stats


COMMANDS = (status,)
