"""The operator's page of the swarm's memory: how its paths differ from the others.

An old front end reads `error` as a text, with `code` beside it, and its page may come from another origin.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from transport.execute import Answer

PAGE_PATH = "/api/swarm-memory"
_METHODS = b"GET, POST"
_HEADERS = b"content-type, idempotency-key"
_PREFLIGHT_KEPT_S = b"600"

Header = tuple[bytes, bytes]


def is_page(path: str) -> bool:
    """Whether a path belongs to the operator's page."""
    return path == PAGE_PATH or path.startswith(PAGE_PATH + "/")


def page_answer(answer: Answer) -> Answer:
    """The answer as the page reads it: `{ok, error: text, code, hint}` where it is a refusal."""
    error = answer.body.get("error")
    if not isinstance(error, dict):
        return answer
    more: dict[str, Any] = {name: value for name, value in error.items() if name != "detail"}
    return replace(answer, body={"ok": False, "error": error["detail"], **more})


class Origins:
    """The origins whose pages may use the operator's paths from a browser (CORS); each is named, there is no `*`."""

    def __init__(self, allowed: Iterable[str]) -> None:
        self._allowed = frozenset(allowed)

    def allow(self, path: str, origin: str | None) -> bool:
        """Whether a page of this origin may use this path."""
        return origin is not None and is_page(path) and origin.lower() in self._allowed

    def headers(self, origin: str) -> tuple[Header, ...]:
        """What tells the browser so, on every answer."""
        return ((b"access-control-allow-origin", origin.encode("latin-1")), (b"vary", b"Origin"))

    def preflight(self) -> tuple[Header, ...]:
        """What else tells a browser that asks before it calls."""
        return (
            (b"access-control-allow-methods", _METHODS),
            (b"access-control-allow-headers", _HEADERS),
            (b"access-control-max-age", _PREFLIGHT_KEPT_S),
            (b"content-length", b"0"),
        )
