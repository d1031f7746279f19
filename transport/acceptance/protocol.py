"""The checks on /mcp: both eras of clients find the tools and use one; what is no POST is refused at once."""

from http import HTTPStatus
from typing import Any

from transport.acceptance.results import Failed
from transport.acceptance.run import Run, require_found, results_of, text_of
from transport.operations import OPERATIONS

HANDSHAKE_VERSION = "2025-06-18"
DISCOVER_VERSION = "2026-07-28"

_CLIENT = {"name": "solos-memory-acceptance", "version": "1"}
_TOOLS = {operation.name for operation in OPERATIONS if operation.tool}
_META = {
    "io.modelcontextprotocol/protocolVersion": DISCOVER_VERSION,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}


def handshake(run: Run) -> str:
    """A client that shakes hands (mcp 1.x, Hermes): initialize, tools/list, one recall."""
    opening = {"protocolVersion": HANDSHAKE_VERSION, "capabilities": {}, "clientInfo": _CLIENT}
    version = run.rpc("initialize", opening).get("protocolVersion")
    if not isinstance(version, str):
        raise Failed("initialize names no protocolVersion")
    agreed = {"MCP-Protocol-Version": version}
    run.notify("notifications/initialized", **agreed).require_status(HTTPStatus.ACCEPTED)
    tools = _require_tools(run.rpc("tools/list", None, **agreed))
    params = {"name": "recall", "arguments": _arguments(run)}
    found = _require_recall(run, run.rpc("tools/call", params, **agreed))
    return f"{version}: {tools} tools, and recall returns {found}"


def discover(run: Run) -> str:
    """A client that asks without a handshake (mcp 2.x): server/discover, tools/list, one recall."""
    _ask(run, "server/discover")
    tools = _require_tools(_ask(run, "tools/list"))
    result = _ask(run, "tools/call", {"name": "recall", "arguments": _arguments(run)}, **{"Mcp-Name": "recall"})
    return f"{DISCOVER_VERSION}: {tools} tools, and recall returns {_require_recall(run, result)}"


def methods(run: Run) -> str:
    """HEAD, GET and DELETE are answered 405 at once: a Hermes gateway waits for that at each start."""
    for method in ("HEAD", "GET", "DELETE"):
        seen = run.service.ask(method, "/mcp", headers={"Accept": "text/event-stream"})
        seen.require_status(HTTPStatus.METHOD_NOT_ALLOWED)
    return "HEAD, GET and DELETE are 405"


def _ask(run: Run, method: str, params: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
    sent = {**(params or {}), "_meta": _META}
    return run.rpc(method, sent, **{"MCP-Protocol-Version": DISCOVER_VERSION, "Mcp-Method": method, **headers})


def _arguments(run: Run) -> dict[str, Any]:
    return {"agent": run.reader, "q": run.question, "k": 10}


def _require_tools(result: dict[str, Any]) -> int:
    """How many tools are listed; every operation must be among them."""
    listed = result.get("tools")
    if not isinstance(listed, list):
        raise Failed("tools/list holds no list of tools")
    names = {tool.get("name") for tool in listed if isinstance(tool, dict)}
    if missing := sorted(_TOOLS - names):
        raise Failed(f"tools/list lacks {', '.join(missing)}")
    return len(names)


def _require_recall(run: Run, result: dict[str, Any]) -> str:
    """The id of this run's fact, which the result of a recall must hold."""
    fact = run.fact()
    body = text_of("recall", result)
    require_found(fact, results_of(body, "the tool recall"), body, "the tool recall")
    return fact.id
