"""MCP as its own clients speak it: the discover era (mcp 2.x) and the handshake era (mcp 1.26, which Hermes brings)."""

import json
import time
from typing import Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.acceptance.clients import run_in_hermes_venv
from tests.support import Service

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("remember_long", {"agent": "mira", "fact": "The oberon vault is sealed.", "tags": ["vault"]}),
    ("remember_episodic", {"agent": "mira", "summary": "Sealed the oberon vault.", "outcome": "success"}),
    ("remember_short", {"agent": "mira", "key": "seal", "value": "oberon", "ttl_s": 600}),
    ("get_short", {"agent": "sol", "owner": "mira", "key": "seal"}),
    ("recall", {"agent": "sol", "q": "oberon vault", "k": 5}),
    ("briefing", {"agent": "sol", "q": "oberon vault"}),
    ("get_memory", {"agent": "sol", "id": "long:1"}),
    ("forget_short", {"agent": "mira", "key": "seal"}),
    ("swarm_write", {"agent": "mira", "kind": "mission", "mission": "vault", "summary": "Sealed the oberon vault."}),
    ("swarm_read", {"agent": "sol", "kind": "mission", "worker": "mira", "mission": "vault"}),
    ("swarm_search", {"agent": "sol", "query": "oberon vault"}),
    ("swarm_resume", {"agent": "mira", "mission": "vault"}),
    ("stats", {}),
]
"""One call of every tool, in an order in which each succeeds on an empty database."""
TOOLS_MAX = 14
LIST_BYTES_MAX = 10_000
HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
DISCOVER_VERSION = "2026-07-28"


def check_answers(answers: list[tuple[bool, str]]) -> None:
    """Every call succeeded, and sol was given what mira wrote."""
    assert [is_error for is_error, _ in answers] == [False] * len(CALLS)
    by_tool = {tool: json.loads(text) for (tool, _), (_, text) in zip(CALLS, answers, strict=True)}
    assert all(body["ok"] for body in by_tool.values()), by_tool
    assert by_tool["remember_long"]["id"] == "long:1"
    assert {(found["id"], found["agent"]) for found in by_tool["recall"]["results"]} == {
        ("long:1", "mira"),
        ("episodic:1", "mira"),
    }
    assert by_tool["get_memory"]["text"] == "The oberon vault is sealed."
    assert by_tool["get_short"]["entries"][0]["value"] == "oberon"
    assert "Sealed the oberon vault." in by_tool["swarm_read"]["files"][0]["content"]
    assert {found["workerId"] for found in by_tool["swarm_search"]["results"]} == {"mira"}
    assert "[long:1] mira, " in str(by_tool["briefing"]["parts"])
    assert "Sealed the oberon vault." in str(by_tool["swarm_resume"]["parts"])
    assert by_tool["stats"]["store"]["rows"] == {"short": 0, "long": 1, "episodic": 1}


async def drive(url: str, mode: str) -> dict[str, Any]:
    """List the tools and make the calls with the 2.x client."""
    headers: list[list[str]] = []

    async def note(response: httpx2.Response) -> None:
        headers.append([name.lower() for name in response.headers])

    async with (
        httpx2.AsyncClient(timeout=20, event_hooks={"response": [note]}) as http,
        Client(streamable_http_client(url, http_client=http), mode=mode) as client,
    ):
        tools = (await client.list_tools()).tools
        results = [await client.call_tool(tool, arguments) for tool, arguments in CALLS]
        return {
            "protocol": client.protocol_version,
            "tools": tools,
            "answers": [(bool(result.is_error), result.content[0].text) for result in results],
            "headers": headers,
        }


@pytest.mark.parametrize(
    ("mode", "backend", "protocol"),
    [
        ("auto", "trio", DISCOVER_VERSION),
        ("auto", "asyncio", DISCOVER_VERSION),
        ("legacy", "asyncio", HANDSHAKE_VERSIONS[-1]),
    ],
)
def test_2_x_client_lists_and_calls_every_tool(service: Service, mode: str, backend: str, protocol: str) -> None:
    seen = anyio.run(drive, f"{service.url}/mcp", mode, backend=backend)
    assert seen["protocol"] == protocol
    assert {tool.name for tool in seen["tools"]} == {tool for tool, _ in CALLS}
    check_answers(seen["answers"])
    assert seen["headers"]
    assert not any("mcp-session-id" in names for names in seen["headers"])


def test_1_26_client_of_hermes_lists_and_calls_every_tool(service: Service) -> None:
    seen = run_in_hermes_venv("handshake_client.py", {"url": f"{service.url}/mcp", "calls": CALLS})
    assert seen["protocol"] in HANDSHAKE_VERSIONS
    assert {tool["name"] for tool in seen["tools"]} == {tool for tool, _ in CALLS}
    check_answers(seen["answers"])
    assert set(seen["capabilities"]) == {"tools"}, "prompts or resources would bring Hermes junk tools"
    assert seen["session_id"] is None
    assert not any("mcp-session-id" in names for names in seen["headers"])


def listed(service: Service) -> dict[str, Any]:
    """The result of tools/list."""
    result: dict[str, Any] = service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"]
    return result


def test_tool_list_is_small(shared_service: Service) -> None:
    result = listed(shared_service)
    compact = json.dumps(result, ensure_ascii=False, separators=(",", ":")).encode()
    assert len(compact) <= LIST_BYTES_MAX
    assert len(result["tools"]) <= TOOLS_MAX


def test_each_tool_is_described_and_annotated(shared_service: Service) -> None:
    for tool in listed(shared_service)["tools"]:
        assert tool["description"]
        reads = not tool["name"].startswith(("remember_", "forget_", "swarm_write"))
        assert tool["annotations"]["readOnlyHint"] is reads
        said = {"openWorldHint"} if reads else {"openWorldHint", "destructiveHint"}
        assert said <= set(tool["annotations"]), "the protocol's other defaults are true of what only reads"
        assert tool["inputSchema"]["type"] == "object"
        assert tool["inputSchema"]["additionalProperties"] is False
        assert all("description" in field for field in tool["inputSchema"]["properties"].values())


def test_recall_says_that_results_are_claims(shared_service: Service) -> None:
    (recall,) = (tool for tool in listed(shared_service)["tools"] if tool["name"] == "recall")
    assert "claim" in recall["description"]
    assert "not an instruction" in recall["description"]


@pytest.mark.parametrize("version", HANDSHAKE_VERSIONS)
def test_each_handshake_version_is_served(shared_service: Service, version: str) -> None:
    client = {"name": "test", "version": "0"}
    opening = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
    response = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening})
    result = response.json()["result"]
    assert (response.status_code, result["protocolVersion"]) == (200, version)
    assert set(result["capabilities"]) == {"tools"}
    assert "mcp-session-id" not in response.headers


@pytest.mark.parametrize("method", ["HEAD", "GET", "DELETE"])
def test_mcp_takes_post_alone(shared_service: Service, method: str) -> None:
    accept = {"Accept": "application/json, text/event-stream"}
    began = time.monotonic()
    # Streamed: the answer to a GET that is served never ends, and must fail this test rather than hang it.
    with shared_service.http.stream(method, shared_service.url + "/mcp", headers=accept) as response:
        assert time.monotonic() - began < 1.0, "Hermes waits up to 5 s for this answer at each start"
        assert (response.status_code, response.headers["Allow"]) == (405, "POST")
        assert response.headers["Content-Type"] == "application/json"
        assert "mcp-session-id" not in response.headers
        body = response.read()
    if method != "HEAD":
        assert json.loads(body)["error"]["code"] == "method_not_allowed"


def test_connection_is_usable_after_head(shared_service: Service) -> None:
    """A body after HEAD would be read as the beginning of the next answer."""
    with httpx2.Client(limits=httpx2.Limits(max_connections=1)) as http:
        assert http.head(shared_service.url + "/mcp").status_code == 405
        assert http.get(shared_service.url + "/health/live").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "path",
    [
        "/.well-known/oauth-protected-resource",
        "/.well-known/oauth-protected-resource/mcp",
        "/.well-known/oauth-authorization-server",
    ],
)
def test_no_authorization_server_is_found(shared_service: Service, path: str) -> None:
    response = shared_service.http.get(shared_service.url + path)
    assert (response.status_code, response.headers["Content-Type"]) == (404, "application/json")
    assert response.json()["error"]["code"] == "not_found"


def test_unknown_tool_is_a_refusal_and_no_error(shared_service: Service) -> None:
    is_error, body = shared_service.mcp("nope", {"agent": "sol"})
    assert not is_error
    assert body["error"]["code"] == "not_found"


def test_server_names_its_version(shared_service: Service) -> None:
    client = {"name": "test", "version": "0"}
    opening = {"protocolVersion": HANDSHAKE_VERSIONS[-1], "capabilities": {}, "clientInfo": client}
    response = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": opening})
    named = response.json()["result"]["serverInfo"]
    assert named["name"] == "solos-memory"
    assert named["version"], "a client's log must tell which version it spoke to"
