"""The same calls over REST or MCP, for tests that choose the transport at each step."""

from typing import Any

from tests.support import Service

READS = {"recall": "/v1/recall", "get_short": "/v1/short"}
WRITES = {"remember_short": "/v1/short", "remember_long": "/v1/long", "remember_episodic": "/v1/episodic"}


class Refused(Exception):
    """The service said no."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.code = code


def call(service: Service, transport: str, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The answer of one operation.

    Raises:
        Refused: with the code.
    """
    body = _by_mcp(service, operation, arguments) if transport == "mcp" else _by_rest(service, operation, arguments)
    if not body["ok"]:
        raise Refused(body["error"]["code"])
    return body


def _by_mcp(service: Service, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    is_error, body = service.mcp(operation, arguments)
    assert not is_error, body
    return body


def _by_rest(service: Service, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if operation in WRITES:
        return service.rest("POST", WRITES[operation], arguments)[1]
    if operation == "forget_short":
        return service.rest("DELETE", "/v1/short", **arguments)[1]
    if operation == "get_memory":
        rest = {name: value for name, value in arguments.items() if name != "id"}
        return service.rest("GET", f"/v1/memory/{arguments['id']}", **rest)[1]
    return service.rest("GET", READS[operation], **arguments)[1]
