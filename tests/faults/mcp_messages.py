"""Messages to /mcp as nobody should send them: valid ones of both eras, and what chance makes of them."""

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28", "1999-01-01", "", "latest", "\xff")
MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"
ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1.5, 1e308, -0.0, 10**30, 2**63, -(2**63) - 1, float("inf"), float("nan")),
    *("", " ", "null", "\x00", "\ud800", "é" * 300, "x" * 70_000, "../../etc/passwd", '{"a":1}', "[]", "'; DROP--"),
    *([], [[]], {}, {"": ""}, [None] * 50, {"$ref": "#"}, {"__proto__": {}}),
)
"""Values that stand where another kind of value should."""
_METHODS = (
    *("ping", "initialize", "tools/list", "tools/call", "notifications/initialized", "notifications/cancelled"),
    *("notifications/progress", "resources/list", "resources/read", "prompts/get", "logging/setLevel"),
    *("completion/complete", "server/discover", "subscriptions/listen", "tasks/get", "sampling/createMessage"),
    *("roots/list", "rpc.discover", "", "tools/call\x00", "TOOLS/LIST", "m" * 5_000),
)
_CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("recall", {"agent": "sol", "q": "fuzz gateway", "k": 3, "tags": ["a"], "since": "-3d", "explain": True}),
    ("briefing", {"agent": "mira", "q": "fuzz", "budget": 2_000}),
    ("get_memory", {"agent": "sol", "id": "long:1"}),
    ("remember_short", {"agent": "sol", "key": "fuzz", "value": "v", "ttl_s": 60, "tags": "a,b"}),
    ("get_short", {"agent": "sol", "key": "fuzz"}),
    ("forget_short", {"agent": "sol", "key": "fuzz"}),
    ("remember_long", {"agent": "sol", "fact": "fuzz fact", "confidence": 0.5, "request_id": "fuzz"}),
    ("remember_episodic", {"agent": "sol", "summary": "fuzzed", "duration_s": 1.5}),
    ("swarm_read", {"agent": "sol", "kind": "profile"}),
    ("swarm_write", {"agent": "sol", "kind": "mission", "mission": "m-1", "summary": "s", "event": {"state": "x"}}),
    ("swarm_search", {"agent": "sol", "query": "fuzz", "limit": 3}),
    ("swarm_resume", {"agent": "sol", "mission": "m-1", "budget": 4_000}),
    ("stats", {}),
    ("purge", {}),
    ("no_such_tool", {"a": 1}),
)


@dataclass(frozen=True)
class Sent:
    """One POST."""

    headers: dict[str, str]
    body: bytes


def message(chance: random.Random) -> Sent:
    """One POST to /mcp, more or less broken."""
    valid, headers = _modern(chance) if chance.random() < 0.3 else _plain(chance)
    for _ in range(chance.choice((0, 0, 1, 1, 1, 2, 5))):
        valid = _mutated(chance, valid)
    body = _encoded(chance, valid)
    if chance.random() < 0.15:
        body = chance.choice(_BYTES)(chance, body)
    if chance.random() < 0.15:
        headers = headers | {name: chance.choice(values) for name, values in _HEADERS if chance.random() < 0.3}
    return Sent(headers, body)


def _plain(chance: random.Random) -> tuple[Any, dict[str, str]]:
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    if chance.random() < 0.3:
        headers["MCP-Protocol-Version"] = chance.choice(VERSIONS[:4])
    return _request(chance), headers


def _modern(chance: random.Random) -> tuple[Any, dict[str, str]]:
    """A request of the era that has no handshake: what was agreed there is in each message and its headers."""
    request, headers = _request(chance), {"Accept": "application/json, text/event-stream"}
    params = request.setdefault("params", {})
    params["_meta"] = {
        f"{_META}protocolVersion": MODERN,
        f"{_META}clientInfo": {"name": "fuzz", "version": "1"},
        f"{_META}clientCapabilities": {},
    }
    headers |= {"Content-Type": "application/json", "MCP-Protocol-Version": MODERN, "Mcp-Method": request["method"]}
    if "name" in params:
        headers["Mcp-Name"] = params["name"]
    return request, {name: _sendable(value) for name, value in headers.items()}


def _request(chance: random.Random) -> dict[str, Any]:
    name, arguments = copy.deepcopy(chance.choice(_CALLS))
    calls = {"method": "tools/call", "params": {"name": name, "arguments": arguments}}
    opens = {
        "method": "initialize",
        "params": {
            "protocolVersion": chance.choice(VERSIONS),
            "capabilities": {},
            "clientInfo": {"name": "fuzz", "version": "1"},
        },
    }
    usual = {"method": chance.choice(("ping", "tools/list"))}  # often enough that some of each are answered
    other = {"method": chance.choice(_METHODS)}
    request = {"jsonrpc": "2.0", **chance.choice((calls, calls, calls, opens, usual, other))}
    if chance.random() < 0.9:
        request["id"] = chance.choice((1, "one", 0, -5, 2**53 + 1, 10**40, "", "数", chance.randrange(10**6)))
    return request


# --- what chance does to a message ---


def _places(part: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) below a value."""
    keys = [*part] if isinstance(part, dict) else [*range(len(part))] if isinstance(part, list) else []
    return [(part, key) for key in keys] + [place for key in keys for place in _places(part[key])]


def _mutated(chance: random.Random, value: Any) -> Any:
    value = copy.deepcopy(value)
    places = _places(value)
    if not places or chance.random() < 0.05:
        return chance.choice((value, [value], [value, value], *ODD))
    container, key = chance.choice(places)
    match chance.randrange(6):
        case 0 | 1:
            container[key] = copy.deepcopy(chance.choice(ODD))
        case 2:
            del container[key]
        case 3:
            container[key] = [container[key]]
        case 4:
            container[key] = str(container[key])
        case 5 if isinstance(container, dict):
            container[chance.choice(("id", "result", "error", "params", "extra", "x" * 100))] = chance.choice(ODD)
    return value


def _encoded(chance: random.Random, value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5)
    return text.encode("utf-8", chance.choice(("surrogatepass", "replace")))


def _nested(chance: random.Random, body: bytes) -> bytes:
    depth = chance.choice((20, 150, 250, 2_000, 100_000))
    return body.replace(b"{}", b'{"a":' * depth + b"1" + b"}" * depth, 1).replace(b"3", b"[" * depth + b"]" * depth, 1)


def _flipped(chance: random.Random, body: bytes) -> bytes:
    changed = bytearray(body or b"x")
    for _ in range(chance.randrange(1, 6)):
        changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)


_BYTES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    lambda chance, body: body[: chance.randrange(len(body) + 1)],
    lambda chance, body: body + body[: chance.randrange(len(body) + 1)],
    lambda chance, body: b"",
    lambda chance, body: b"\xef\xbb\xbf" + body,
    lambda chance, body: body.decode("utf-8", "replace").encode("utf-16"),
    lambda chance, body: body.replace(b'"', b"'"),
    lambda chance, body: body.replace(b":", b":" + b"9" * chance.choice((20, 400, 4_000, 5_000)), 1),
    lambda chance, body: body.replace(b"1", b"1e" + b"9" * chance.choice((2, 4, 400)), 1),
    lambda chance, body: body[:-1] + b',"id":7,"id":null}',
    lambda chance, body: body[:-1] + b',"id":"a","id":8}',
    lambda chance, body: b" " * chance.choice((10, 100_000)) + body,
    lambda chance, body: chance.randbytes(chance.choice((1, 100, 5_000))),
    _nested,
    _flipped,
)
_HEADERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Accept", ("*/*", "application/*", "application/json", "text/event-stream", "text/html", "", "\xff", "a" * 3_000)),
    (
        "Content-Type",
        ("application/json; charset=utf-8", "text/plain", "", "application/jsonx", "\xff"),
    ),
    ("MCP-Protocol-Version", VERSIONS),
    ("Mcp-Method", ("tools/call", "ping", "", "\xff")),
    ("Mcp-Name", ("recall", "", "=?base64?!!?=", "\xff")),
    ("Mcp-Session-Id", ("of-another-life", "", "\xff" * 200)),
    ("Mcp-Param-Agent", ("sol", "=?base64?AA?=")),
    ("X-Agent-Id", ("sol", "mira", "", "nobody", "\xff" * 300)),
    ("Idempotency-Key", ("fuzz", "", "k" * 300)),
    ("Last-Event-ID", ("1", "\xff")),
)


def _sendable(value: str) -> str:
    """A header's value without what ends a header; what HTTP itself refuses is not MCP's to answer."""
    return value.replace("\x00", "").strip().encode("ascii", "replace").decode()
