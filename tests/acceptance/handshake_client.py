"""The MCP client of the handshake era that Hermes brings (mcp 1.26): runs in Hermes's venv.

Reads {"url", "calls": [[tool, arguments], …]} from stdin; prints one JSON line: {"protocol", "session_id",
"capabilities", "tools", "answers": [[isError, text], …], "headers": [names of one response, …]}.
"""

import json
import sys
from typing import Any

import anyio
import httpx
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def drive(url: str, calls: list[tuple[str, dict[str, Any]]]) -> dict[str, Any]:
    """Shake hands, list the tools, and make the calls."""
    headers: list[list[str]] = []

    async def note(response: httpx.Response) -> None:
        headers.append([name.lower() for name in response.headers])

    async with (
        httpx.AsyncClient(timeout=20, event_hooks={"response": [note]}) as http,
        streamable_http_client(url, http_client=http) as (read, write, session_id),
        ClientSession(read, write) as session,
    ):
        opened = await session.initialize()
        tools = (await session.list_tools()).tools
        results = [await session.call_tool(tool, arguments) for tool, arguments in calls]
    return {
        "protocol": opened.protocolVersion,
        "session_id": session_id(),
        "capabilities": opened.capabilities.model_dump(exclude_none=True),
        "tools": [tool.model_dump(exclude_none=True) for tool in tools],
        "answers": [[bool(result.isError), result.content[0].text] for result in results],
        "headers": headers,
    }


request = json.load(sys.stdin)
print(json.dumps(anyio.run(drive, request["url"], request["calls"])))
