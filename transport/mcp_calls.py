"""A tool call as one exchange.

The SDK's stateless transport makes a session for each request, of three tasks and four streams: .5 ms of the .85 ms
that an empty tool takes. A call of a tool needs none. So it goes to the SDK's own driver of a single exchange, which
serves clients of 2026 so; whatever else is asked goes to the transport.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
import trio
from mcp import MCPError
from mcp.server.connection import Connection
from mcp.server.lowlevel import Server
from mcp.server.runner import serve_one
from mcp.shared.dispatcher import CallOptions
from mcp.shared.exceptions import NoBackChannelError
from mcp.shared.message import ServerMessageMetadata
from mcp.shared.transport_context import TransportContext
from mcp_types import DEFAULT_NEGOTIATED_VERSION, INTERNAL_ERROR, INVALID_PARAMS, ErrorData, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

log = structlog.get_logger()

_TOOL_CALL = "tools/call"


def call_of(message: Mapping[str, Any], version: str | None) -> JSONRPCRequest | None:
    """The tool call that a message is; None for any other, also of clients of 2026, and for one that is malformed.

    `version` is the header MCP-Protocol-Version.
    """
    if message.get("method") != _TOOL_CALL or "id" not in message:
        return None
    if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
        return None
    try:
        return JSONRPCRequest.model_validate(message)
    except ValidationError:
        return None


async def answered(
    server: Server[Any], call: JSONRPCRequest, version: str | None, headers: Mapping[str, str]
) -> dict[str, Any]:
    """The JSON-RPC answer to a tool call; the tool finds the headers in its context's request."""
    connection = Connection.from_envelope(version or DEFAULT_NEGOTIATED_VERSION, None, None)
    exchange = _Exchange(call.id, ServerMessageMetadata(request_context=_Sent(headers)))
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": call.id}
    try:
        result = await serve_one(server, exchange, call.method, call.params, connection=connection, lifespan_state={})
    except Exception as error:
        return {**answer, "error": _told(error).model_dump(mode="json", exclude_none=True)}
    return {**answer, "result": result}


def _told(error: Exception) -> ErrorData:
    """An error as the SDK tells it on every transport."""
    if isinstance(error, MCPError):
        return error.error
    if isinstance(error, ValidationError):
        return ErrorData(code=INVALID_PARAMS, message="Invalid request parameters", data="")
    log.error("tool_failed", exc_info=error)
    return ErrorData(code=INTERNAL_ERROR, message="Internal server error")


class _Sent(NamedTuple):
    """Of the HTTP request what tools look at."""

    headers: Mapping[str, str]


@dataclass
class _Exchange:
    """What the SDK wants to know of a request that nothing but its answer follows."""

    request_id: str | int
    message_metadata: ServerMessageMetadata
    transport: TransportContext = field(
        default_factory=lambda: TransportContext(kind="streamable-http", can_send_request=False)
    )
    cancel_requested: Any = field(default_factory=trio.Event)
    can_send_request: bool = False

    async def send_raw_request(
        self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None
    ) -> dict[str, Any]:
        raise NoBackChannelError(method)

    async def notify(self, method: str, params: Mapping[str, Any] | None, opts: CallOptions | None = None) -> None:
        """Dropped: there is no stream that it could go on."""

    async def progress(self, progress: float, total: float | None = None, message: str | None = None) -> None:
        """Dropped, too."""
