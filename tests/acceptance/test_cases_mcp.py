"""The cases about MCP: what models send, what they get, and sessions that clients keep or never had."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp.client import Client, ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.support import Service, fresh_database, rows, serving

TOOLS_MAX = 14
TOOLS_LIST_BYTES_MAX = 10_000


def request(method: str, params: Any = None, **more: Any) -> dict[str, Any]:
    """A JSON-RPC request."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, **({} if params is None else {"params": params}), **more}


def refusal(service: Service, tool: str, arguments: Any) -> dict[str, Any]:
    """The error of a tool call that must be refused as a normal result: no isError, ok false."""
    error, body = service.mcp(tool, arguments)
    assert (error, body["ok"]) == (False, False), body
    assert set(body["error"]) >= {"code", "detail", "hint"}
    return body["error"]


# --- C086: what models send ---


@pytest.mark.parametrize(
    ("sent", "stored"),
    [
        ("a,b", ["a", "b"]),
        ('["a"]', ["a"]),
        (["null"], []),
        ("null", []),
        (["a", None, "", "b"], ["a", "b"]),
        ("", []),
        (None, []),
        ([], []),
        ('["a", "null"]', ["a"]),
    ],
    ids=str,
)
def test_c086_tags_in_the_shapes_that_models_send(shared_service: Service, sent: Any, stored: list[str]) -> None:
    """`a,b` and a JSON list in a string are lists; null and "" are nothing; there is never a tag called null."""
    error, written = shared_service.mcp("remember_long", {"agent": "sol", "fact": "tagshape probe", "tags": sent})
    assert (error, written["ok"]) == (False, True), written
    _, whole = shared_service.mcp("get_memory", {"agent": "sol", "id": written["id"]})
    assert whole.get("tags", []) == stored
    ((raw,),) = rows(
        shared_service.database, "SELECT tags FROM memory_longterm WHERE id = ?", int(written["id"].split(":")[1])
    )
    assert json.loads(raw or "[]") == stored


def test_c086_safe_values_are_coerced(shared_service: Service) -> None:
    """k "5" is 5; scope "", since null and topic "" are as if left out; tiers and tags may be text."""
    for number in range(7):
        shared_service.long("mira", f"coercion probe {number}", tags=["shape"])
    plain = shared_service.mcp("recall", {"agent": "sol", "q": "coercion", "k": 5})
    assert len(plain[1]["results"]) == 5
    sloppy = {"k": "5", "scope": "", "since": None, "until": "", "topic": "", "tags": "shape", "tiers": '["long"]'}
    assert shared_service.mcp("recall", {"agent": "sol", "q": "coercion", **sloppy}) == plain
    for tags in ("null", ["null"], None, ""):
        assert shared_service.mcp("recall", {"agent": "sol", "q": "coercion", "k": "5", "tags": tags}) == plain


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"colour": "red"}, "colour"),
        ({"k": "five"}, "k"),
        ({"k": 2.5}, "k"),
        ({"k": [5]}, "k"),
        ({"scope": "everyone"}, "scope"),
        ({"tiers": "long,attic"}, "tiers"),
        ({"since": "soon"}, "since"),
        ({"tags": {"a": 1}}, "tags"),
        ({"tags": [["a"]]}, "tags"),
        ({"q": ["a"]}, "q"),
        ({"full": "maybe"}, "full"),
    ],
    ids=str,
)
def test_c086_unsafe_values_name_the_field(shared_service: Service, arguments: dict, field: str) -> None:
    """What cannot be coerced is a normal result with ok false that begins with the field's name; REST says 400."""
    sent = {"agent": "sol", "q": "coercion", **arguments}
    error = refusal(shared_service, "recall", sent)
    assert error["code"] == "invalid_request"
    assert error["detail"].startswith(f"{field}:")
    status, body = shared_service.rest("POST", "/v1/recall", sent)
    assert (status, body["error"]) == (400, error)


# --- C088: arguments that are none ---


def test_c088_arguments_null_are_no_arguments(shared_service: Service) -> None:
    """`"arguments": null`, none at all and {} are the same call."""
    answers = [
        shared_service.mcp_raw(request("tools/call", {"name": "recall", **arguments})).json()
        for arguments in ({"arguments": None}, {}, {"arguments": {}})
    ]
    assert answers[0] == answers[1] == answers[2]
    assert '"ok":false' in answers[0]["result"]["content"][0]["text"]
    _, stats = shared_service.mcp("stats", None)
    assert stats["ok"] is True


@pytest.mark.parametrize("arguments", [[], ["a"], "q", 5, True])
def test_c088_arguments_that_are_no_object(shared_service: Service, arguments: Any) -> None:
    """A list, or anything else that is no object, is the protocol's own error -32602; the service goes on."""
    response = shared_service.mcp_raw(request("tools/call", {"name": "recall", "arguments": arguments}))
    assert response.status_code == 200
    assert response.json()["error"]["code"] == -32602
    assert response.json()["id"] == 1
    assert shared_service.mcp("recall", {"agent": "sol", "q": "alive"})[1]["ok"] is True


@pytest.mark.parametrize("arguments", [{"agent": "sol"}, {"agent": "sol", "q": None}, {"agent": "sol", "q": ""}])
def test_c088_missing_question_is_named(shared_service: Service, arguments: dict) -> None:
    """A recall without q is a result with ok false that names q."""
    error = refusal(shared_service, "recall", arguments)
    assert (error["code"], error["detail"].split(":")[0]) == ("invalid_request", "q")


# --- C110, C111: sessions ---


def test_c110_client_without_session_id_is_served(shared_service: Service) -> None:
    """After initialize a client that never sends Mcp-Session-Id calls tools, and gets no id forced upon it."""
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "plain", "version": "1"}}
    opened = shared_service.mcp_raw(request("initialize", params))
    assert opened.status_code == 200
    assert opened.json()["result"]["protocolVersion"] == "2025-06-18"
    assert "mcp-session-id" not in opened.headers
    assert shared_service.mcp_raw({"jsonrpc": "2.0", "method": "notifications/initialized"}).status_code == 202
    written = shared_service.long("mira", "sessionless fact")
    _, body = shared_service.mcp("recall", {"agent": "sol", "q": "sessionless"})
    assert [memory["id"] for memory in body["results"]] == [written["id"]]


def test_c110_session_id_of_another_life_is_served_too(shared_service: Service) -> None:
    """An id that this process never gave (of a session before a restart) is no reason for a 404."""
    _, body = shared_service.mcp("recall", {"agent": "sol", "q": "anything"}, **{"Mcp-Session-Id": "of-another-life"})
    assert body["ok"] is True


async def test_c111_session_of_the_sdk_outlives_a_restart(tmp_path: Path) -> None:
    """One ClientSession, opened once, calls tools before and after the service was restarted."""
    database = fresh_database(tmp_path)
    in_thread = trio.to_thread.run_sync
    service = await in_thread(lambda: Service(database).wait())
    try:
        with trio.fail_after(30):
            async with streamable_http_client(service.url + "/mcp") as streams, ClientSession(*streams) as session:
                await session.initialize()
                written = await session.call_tool("remember_long", {"agent": "mira", "fact": "restartproof fact"})
                port = service.port
                assert await in_thread(service.stop) == 0
                service = await in_thread(lambda: Service(database, port=port).wait())
                found = await session.call_tool("recall", {"agent": "sol", "q": "restartproof"})
                assert len((await session.list_tools()).tools) > 0
    finally:
        await in_thread(service.stop)
    assert not found.is_error
    (memory,) = json.loads(found.content[0].text)["results"]
    assert memory["id"] == json.loads(written.content[0].text)["id"]


async def test_c111_client_of_the_discover_era_outlives_a_restart(tmp_path: Path) -> None:
    """The same for the SDK's newer client, which begins with discovery."""
    database = fresh_database(tmp_path)
    in_thread = trio.to_thread.run_sync
    service = await in_thread(lambda: Service(database).wait())
    try:
        with trio.fail_after(30):
            async with Client(service.url + "/mcp") as client:
                assert len((await client.list_tools()).tools) > 0
                port = service.port
                assert await in_thread(service.stop) == 0
                service = await in_thread(lambda: Service(database, port=port).wait())
                found = await client.call_tool("recall", {"agent": "sol", "q": "restartproof"})
    finally:
        await in_thread(service.stop)
    assert not found.is_error
    assert json.loads(found.content[0].text)["ok"] is True


# --- C116, C119: results and the list of tools ---


def test_c116_everything_is_in_the_text(shared_service: Service) -> None:
    """The text content holds the whole answer; there is no structured content whose loss would take data along."""
    shared_service.long("atlas", "wholetext fact", topic="shape", tags=["a"], source="test", confidence=0.5)
    raw = shared_service.mcp_raw(
        request("tools/call", {"name": "recall", "arguments": {"agent": "sol", "q": "wholetext"}})
    ).json()["result"]
    assert "structuredContent" not in raw
    assert [content["type"] for content in raw["content"]] == ["text"]
    shown = json.loads(raw["content"][0]["text"])
    _, by_rest = shared_service.rest("GET", "/v1/recall", agent="sol", q="wholetext")
    without_nothing = [
        {name: value for name, value in memory.items() if value is not None and value != [] and value is not False}
        for memory in by_rest["results"]
    ]
    assert shown == {**by_rest, "results": without_nothing}
    assert by_rest["results"][0]["text"] == "wholetext fact"


def test_c119_tools_are_few_small_and_described(shared_service: Service) -> None:
    """At most 14 tools in 10,000 bytes of compact JSON; each has a description, and each field has one too."""
    listed = shared_service.mcp_raw(request("tools/list")).json()["result"]
    tools = listed["tools"]
    assert 0 < len(tools) <= TOOLS_MAX
    assert len(json.dumps(tools, ensure_ascii=False, separators=(",", ":")).encode()) <= TOOLS_LIST_BYTES_MAX
    assert "nextCursor" not in listed
    for tool in tools:
        assert tool["description"].strip(), tool["name"]
        assert isinstance(tool["annotations"]["readOnlyHint"], bool)
        for name, field in tool["inputSchema"]["properties"].items():
            assert field["description"].strip(), (tool["name"], name)


# --- C120: ids that name nothing ---


@pytest.mark.parametrize(
    ("memory_id", "code", "status"),
    [
        ("long:999999", "not_found", 404),
        ("episodic:0", "not_found", 404),
        ("short:7", "not_found", 404),
        ("durable:424242", "not_found", 404),
        ("long", "invalid_request", 400),
        ("long:", "invalid_request", 400),
        ("long:-1", "not_found", 404),
        ("attic:1", "invalid_request", 400),
        ("long:1 OR 1=1", "invalid_request", 400),
        ("long:99999999999999999999", "invalid_request", 400),
        ("17", "invalid_request", 400),
        ("long:١", "invalid_request", 400),
        ("long:1\n", "invalid_request", 400),
    ],
)
def test_c120_get_with_an_id_of_nothing(shared_service: Service, memory_id: str, code: str, status: int) -> None:
    """An unknown id is not_found, a malformed one invalid_request, with a reason; the same on REST as 404 or 400."""
    error = refusal(shared_service, "get_memory", {"agent": "sol", "id": memory_id})
    assert error["code"] == code
    assert memory_id in error["detail"] if code == "not_found" else error["detail"].startswith("id:")
    path = "/v1/memory/" + memory_id.replace("\n", "%0A").replace(" ", "%20")
    got, body = shared_service.rest("GET", path, agent="sol")
    assert (got, body["error"]) == (status, error)


@pytest.mark.parametrize(
    ("key", "code", "status"),
    [("never-written", "not_found", 404), ("x" * 1_025, "too_large", 413), ("a\x00b", "invalid_request", 400)],
    ids=["unknown", "too-long", "nul"],
)
def test_c120_forget_with_a_key_of_nothing(shared_service: Service, key: str, code: str, status: int) -> None:
    """The same for forgetting: nothing is deleted and the reason is said on both surfaces."""
    error = refusal(shared_service, "forget_short", {"agent": "sol", "key": key})
    assert error["code"] == code
    got, body = shared_service.rest("DELETE", "/v1/short", agent="sol", key=key)
    assert (got, body["error"]) == (status, error)
    missing = refusal(shared_service, "forget_short", {"agent": "sol"})
    assert (missing["code"], missing["detail"].split(":")[0]) == ("invalid_request", "key")


# --- C121: numbers out of bounds ---


@pytest.mark.parametrize(
    ("operation", "field", "value", "bounds"),
    [
        ("recall", "k", -1, ("1", "50")),
        ("recall", "k", 0, ("1", "50")),
        ("recall", "k", 1e9, ("1", "50")),
        ("recall", "k", 51, ("1", "50")),
        ("recall", "offset", -5, ()),
        ("get_short", "limit", "x", ("1", "200")),
        ("get_short", "limit", 0, ("1", "200")),
        ("get_short", "limit", 201, ("1", "200")),
    ],
)
def test_c121_numbers_out_of_bounds(
    shared_service: Service, operation: str, field: str, value: Any, bounds: tuple[str, ...]
) -> None:
    """400 that names the field and its bounds, never 500; over MCP ok false; a field that does not exist is named."""
    arguments = {"agent": "sol", **({"q": "bounds"} if operation == "recall" else {}), field: value}
    error = refusal(shared_service, operation, arguments)
    assert error["code"] == "invalid_request"
    assert error["detail"].startswith(f"{field}:")
    words = error["detail"].replace(".", " ").replace(",", " ").split()
    assert set(bounds) <= set(words), error["detail"]
    path = {"recall": "/v1/recall", "get_short": "/v1/short"}[operation]
    status, body = shared_service.rest("GET", path, **arguments)
    assert (status, body["error"]) == (400, error)


# --- C122: one recall, three transports ---


def test_c122_recall_is_the_same_by_rest_mcp_and_command_line(shared_service: Service) -> None:
    """The same rows in the same order with the same text; a cut is marked, and full=true gives the whole text."""
    for number in range(6):
        text = f"triplicate number {number} " + "triplicate " * number + f"tail {'padding ' * 200 * (number % 2)}end"
        shared_service.long(("mira", "sol", "atlas")[number % 3], text, topic="triplicate")

    def by_rest(full: bool) -> list:
        return shared_service.recall("ace", "triplicate tail", k=6, full=str(full).lower())

    def by_mcp(full: bool) -> list:
        arguments = {"agent": "ace", "q": "triplicate tail", "k": 6, "full": full}
        return shared_service.mcp("recall", arguments)[1]["results"]

    def by_command(full: bool) -> list:
        flags = ("--agent", "ace", "--k", "6", *(["--full"] if full else []))
        return shared_service.cli("recall", "triplicate tail", *flags)[1]["results"]

    def essence(results: list) -> list:
        return [(row["id"], row["agent"], row["text"], row.get("cut", False), row["score"]) for row in results]

    for full in (False, True):
        expected = essence(by_rest(full))
        assert len(expected) == 6
        assert any(cut for *_, cut, _ in expected) is not full
        assert essence(by_mcp(full)) == expected
        assert essence(by_command(full)) == expected
        assert all(text.endswith("end") for _, _, text, cut, _ in expected if not cut)
        assert all(text.endswith("…") for _, _, text, cut, _ in expected if cut)


# --- C125: methods and Accept ---


@pytest.mark.parametrize("method", ["GET", "HEAD", "DELETE", "PUT", "OPTIONS"])
def test_c125_only_post_is_allowed_on_mcp(shared_service: Service, method: str) -> None:
    """GET, HEAD and DELETE on /mcp get 405 with Allow: POST at once, as JSON: no stream that never ends."""
    response = shared_service.http.request(method, shared_service.url + "/mcp", timeout=5)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    assert response.headers["content-type"] == "application/json"
    if method != "HEAD":
        assert response.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    "accept", ["application/json", "application/json, text/event-stream", "text/event-stream, application/json"]
)
def test_c125_post_is_answered_in_json(shared_service: Service, accept: str) -> None:
    """A client that accepts JSON alone is served, and everyone's answer is JSON."""
    for payload in (
        request("tools/list"),
        request("tools/call", {"name": "recall", "arguments": {"agent": "sol", "q": "x"}}),
    ):
        response = shared_service.mcp_raw(payload, Accept=accept)
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("application/json")
        assert "result" in response.json()


def test_c125_many_gets_leave_the_service_as_it_was(tmp_path: Path) -> None:
    """Fifty refused streams later the service answers, and it stops in time: none of them is still open."""
    with serving(fresh_database(tmp_path)) as service:
        get = partial(service.http.get, service.url + "/mcp", headers={"Accept": "text/event-stream"}, timeout=5)
        assert {get().status_code for _ in range(50)} == {405}
        assert service.mcp("recall", {"agent": "sol", "q": "x"})[1]["ok"] is True
        assert service.stop() == 0
