"""A client of the running service for the command line. Standard library only: it starts in milliseconds."""

import http.client
import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import quote, urlencode

from actors.errors import OutcomeUnknown
from storage import limits
from transport.operations import Operation

# A proxy of the environment does not know this host's loopback.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_TIMEOUT_S = limits.WRITE_BUDGET_S + limits.ANSWER_GRACE_S + 5


def call(url: str, operation: Operation, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Send one operation over REST; return (status, body). Status 0: the service could not be reached."""
    request = _request(url.rstrip("/"), operation, dict(arguments))
    try:
        with _opener.open(request, timeout=_TIMEOUT_S) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, _body_of(error, url)
    except urllib.error.URLError as error:
        if isinstance(error.reason, TimeoutError | ConnectionResetError | BrokenPipeError):
            return 0, _unknown(operation, url, error)
        return 0, _unreachable(url, error)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return 0, _unknown(operation, url, error)


def _body_of(error: urllib.error.HTTPError, url: str) -> dict[str, Any]:
    try:
        body: dict[str, Any] = json.load(error)
    except ValueError:
        return _unreachable(url, error)
    return body


def _unknown(operation: Operation, url: str, error: Exception) -> dict[str, Any]:
    """The connection was made and broke: what was sent may have been done."""
    if not operation.writes:
        return _unreachable(url, error)
    return {
        "ok": False,
        "error": {
            "code": OutcomeUnknown.code,
            "detail": f"The connection to {url} broke before the answer ({type(error).__name__}); it may be on disk.",
            "hint": "Send it again with the same --request-id: it is never written twice. Without one, look first.",
        },
    }


def _request(url: str, operation: Operation, arguments: dict[str, Any]) -> urllib.request.Request:
    method = operation.methods[-1]
    path = operation.path
    for name in operation.fields:
        if f"<{name}>" in path:
            path = path.replace(f"<{name}>", quote(str(arguments.pop(name, "")), safe=":"))
    if method == "POST":
        body = json.dumps(arguments, ensure_ascii=False).encode("utf-8", "surrogatepass")
        return urllib.request.Request(  # noqa: S310
            url + path, body, {"Content-Type": "application/json"}, method=method
        )
    query = urlencode(arguments, doseq=True)
    return urllib.request.Request(f"{url}{path}?{query}", method=method)  # noqa: S310


def _unreachable(url: str, error: Exception) -> dict[str, Any]:
    reason = getattr(error, "reason", error)
    return {
        "ok": False,
        "error": {
            "code": "unreachable",
            "detail": f"No service answers at {url} ({reason}).",
            "hint": "Start it with `solos-memory serve`, or name it with --url.",
        },
    }
