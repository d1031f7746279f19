"""The one place where an error becomes a status: total over every code, and pinned so by a test."""

from dataclasses import dataclass
from typing import Any

from actors.errors import DeadlineExceeded, MailboxFull
from storage.errors import Forbidden, Rejection


class WrongHost(Rejection):
    """The Host header names a host that is not ours."""

    code = "wrong_host"
    hint = "Use 127.0.0.1, localhost or [::1]; further names go into the setting allowed_hosts."


class ForeignOrigin(Rejection):
    """A page of another origin made this request."""

    code = "foreign_origin"
    hint = "Call from a program; the setting allowed_origins lets pages use /api/swarm-memory, and nothing else."


class MethodNotAllowed(Rejection):
    """The path does not take this method."""

    code = "method_not_allowed"
    hint = "See the Allow header, or /openapi.json."


class UnknownRoute(Rejection):
    """There is nothing at this path, or no tool of this name."""

    code = "not_found"
    hint = "See /openapi.json, or tools/list."


class UnsupportedMediaType(Rejection):
    """The body is not declared as JSON."""

    code = "unsupported_media_type"
    hint = "Send the header Content-Type: application/json."


class Crowded(MailboxFull):
    """There are too many connections, or too much is arriving on them; nothing of the request was done."""

    hint = "Wait and try again; close connections that are not needed."


class SlowRequest(DeadlineExceeded):
    """The body of a request did not come in time; nothing of it was done."""

    hint = "Send the whole request at once, and try again."


class AgentMismatch(Forbidden):
    """The argument and the header name different agents; nothing was done."""

    hint = "Leave the argument `agent` out, or send the agent that the header X-Agent-Id names."


@dataclass(frozen=True, slots=True)
class Rendering:
    """How a code looks on the wire."""

    status: int
    """On REST."""
    is_error: bool
    """On MCP: only what the caller cannot mend. Three in a row close Hermes's breaker for 60 s (ADR 0003)."""


RENDERINGS: dict[str, Rendering] = {
    "invalid_request": Rendering(400, False),
    "forbidden": Rendering(403, False),
    "foreign_origin": Rendering(403, False),
    "not_found": Rendering(404, False),
    "method_not_allowed": Rendering(405, False),
    "conflict": Rendering(409, False),
    "too_large": Rendering(413, False),
    "unsupported_media_type": Rendering(415, False),
    "wrong_host": Rendering(421, False),
    "unknown_agent": Rendering(422, False),
    "file_failed": Rendering(500, True),
    "internal": Rendering(500, True),
    "outcome_unknown": Rendering(500, True),
    "overloaded": Rendering(503, True),
    "storage_busy": Rendering(503, True),
    "storage_unavailable": Rendering(503, True),
    "storage_damaged": Rendering(503, True),
    "not_ready": Rendering(503, True),
    "shutting_down": Rendering(503, True),
    "deadline_exceeded": Rendering(504, True),
    "storage_full": Rendering(507, True),
}


def body_of(rejection: Rejection) -> dict[str, Any]:
    """The error as every transport shows it."""
    error: dict[str, Any] = {"code": rejection.code, "detail": rejection.detail, "hint": rejection.hint}
    if rejection.retry_after_s is not None:
        error["retry_after_s"] = rejection.retry_after_s
    return {"ok": False, "error": error}
