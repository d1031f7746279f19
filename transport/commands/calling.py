"""How commands name the running service, and how they look at it without an operation."""

import json
from typing import Any

import click

from transport.settings import URL_VARIABLE

DEFAULT_URL = "http://127.0.0.1:8437"
"""Where the service listens by default."""

url_option = click.option(
    "--url", envvar=URL_VARIABLE, default=DEFAULT_URL, show_default=True, show_envvar=True, help="Service."
)
"""The option of every command that talks to the running service."""


class Unanswered(Exception):
    """No answer of ours came from a URL; the text says why."""


def fetch(url: str, path: str, *, within_s: float) -> tuple[int, dict[str, Any]]:
    """(status, body) of one GET, past any proxy: the service is on loopback.

    Raises:
        Unanswered: nobody listens, nobody answered within `within_s`, or what answered is no JSON object.
    """
    import http.client
    import urllib.error
    import urllib.request

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        try:
            with direct.open(url.rstrip("/") + path, timeout=within_s) as response:
                return response.status, _object(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, _object(error.read())
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, TimeoutError):
            raise Unanswered(f"What listens at {url} did not answer {path} within {within_s:.0f} s.") from error
        raise Unanswered(f"No service answers at {url} ({reason}).") from error
    except ValueError as error:  # a malformed URL, or an answer that is none of ours
        raise Unanswered(f"{url}{path} is no address of this service ({error}).") from error


def _object(body: bytes) -> dict[str, Any]:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ValueError("its answer is no JSON object")  # noqa: TRY004 (like what is no JSON at all)
    return value
