"""Whatever is posted to /mcp is answered as the protocol says, in time, and the service goes on."""

import contextlib
import http.client
import json
import math
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.faults.mcp_messages import Sent, message
from tests.faults.scale import scaled, seeded
from tests.support import Service, serving

POSTS = scaled(1_500, 50_000)
CLIENTS = 3
ANSWERED_WITHIN_S = scaled(10.0, 2.0)
INTERNAL_ERROR = -32603
NO_ID = object()


class Broken(AssertionError):
    """An answer that breaks a rule, with what was sent."""


def post(connection: http.client.HTTPConnection, sent: Sent) -> tuple[int, str, bytes]:
    """(status, content type, body) of one POST."""
    connection.request("POST", "/mcp", body=sent.body, headers=sent.headers)
    answer = connection.getresponse()
    return answer.status, answer.headers.get("Content-Type") or "", answer.read()


def fuzz(service: Service, chance: random.Random, posts: int, within_s: float = ANSWERED_WITHIN_S) -> Counter[Any]:
    """Post, and hold every answer to the protocol; how often each kind of answer came."""
    seen: Counter[Any] = Counter()
    client = http.client.HTTPConnection("127.0.0.1", service.port, timeout=within_s)
    with contextlib.closing(client) as connection:
        for number in range(posts):
            sent = message(chance)
            try:
                answer = post(connection, sent)
                seen[check(sent, *answer)] += 1
            except Exception as error:
                said = f"post {number}: {error!r}; sent {sent.headers} {sent.body[:600]!r}"
                raise Broken(said) from error
    return seen


def check(sent: Sent, status: int, kind: str, body: bytes) -> tuple[int, int | str]:
    """The kind of an answer; an AssertionError where it breaks the protocol."""
    asked = parsed(sent.body)
    is_request = isinstance(asked, dict) and "method" in asked and "id" in asked
    if status == 202:
        assert body == b"", body
        assert isinstance(asked, dict), "202 for what is no message"
        assert not is_request, "202 for a request, whose caller waits for ever"
        return 202, ""
    assert status == 200 or 400 <= status < 500, (status, body[:300])
    assert kind.startswith("application/json"), (status, kind)
    answer = json.loads(body, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    if answer.get("ok") is False:
        assert status >= 400, status
        assert {"code", "detail", "hint"} <= set(answer["error"]), answer
        return status, answer["error"]["code"]
    assert answer["jsonrpc"] == "2.0", answer
    assert set(answer) in ({"jsonrpc", "id", "result"}, {"jsonrpc", "id", "error"}), answer
    if status == 200:
        assert is_request, "answered what is no request"
        check_id(answer["id"], asked["id"])
    elif answer["id"] is not None:
        check_id(answer["id"], asked["id"])
    if "error" in answer:
        code, said = answer["error"]["code"], answer["error"]["message"]
        assert type(code) is int
        assert type(said) is str
        assert code != INTERNAL_ERROR, answer
        return status, code
    check_result(asked, answer["result"])
    return status, asked["method"]


def check_id(answered: Any, asked: Any) -> None:
    """The same value of the same type, and of a type that an id may have."""
    assert type(asked) in (int, str)
    assert (type(answered), answered) == (type(asked), asked)


def check_result(asked: dict[str, Any], result: Any) -> None:
    """A result is an object; that of a tool is one text that holds our JSON."""
    assert isinstance(result, dict)
    if asked["method"] == "tools/call":
        (content,) = result["content"]
        assert type(json.loads(content["text"])["ok"]) is bool
        assert not result.get("isError"), result


def parsed(body: bytes) -> Any:
    """What a strict reader makes of a body; NO_ID where it is no JSON."""
    try:
        value = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return NO_ID
    return value


def test_no_message_breaks_the_protocol(database: Path) -> None:
    first = seeded().randrange(2**32)
    seeds = [first + number for number in range(CLIENTS)]
    seen: Counter[Any] = Counter()
    with serving(database) as service, ThreadPoolExecutor(CLIENTS) as clients:
        share = math.ceil(POSTS / CLIENTS)
        for counted in clients.map(lambda seed: fuzz(service, random.Random(seed), share), seeds):
            seen += counted
        check_alive(service)
    print(f"{seen.total()} posts: {dict(seen.most_common())}")
    assert seen.total() >= POSTS
    answers = {answer for _, answer in seen}
    assert answers >= {"tools/call", "tools/list", "initialize", "ping", "", -32700, -32600, -32601, -32602}, answers


def check_alive(service: Service) -> None:
    """The tools work as if nothing had been, and nothing failed inside."""
    written = service.long("mira", "an okapi outlives the fuzz")
    is_error, body = service.mcp("recall", {"agent": "sol", "q": "okapi outlives"})
    assert (is_error, [memory["id"] for memory in body["results"]]) == (False, [written["id"]])
    assert service.rest("GET", "/health") == (200, {"status": "ok", "reasons": [], "demo": False})
    assert "Traceback" not in service.raw, service.raw[service.raw.index("Traceback") :][:3_000]
    assert service.stats()["actors"]["writer"]["restarts"] == 0


TIMED_OUT = "timed out"
FAULTS = {
    "202 for a request": (
        "import transport.asgi as a\nwhole = a._message\n"
        "def lax(body):\n"
        "    try: return whole(body)\n"
        "    except a._NoMessage as found:\n"
        "        if not found.rejection.detail.startswith('id: '): raise\n"
        "        return {}\n"
        "a._message = lax"
    ),
    TIMED_OUT: (
        "import time, transport.mcp_tools as m\nknown = m.text_of\n"
        "m.text_of = lambda body: time.sleep(0.7) or known(body)"
    ),
    "-32603": "import transport.mcp_tools as m\nm.text_of = None",
    "500": "import transport.asgi as a\na._message = None",
    "JSONDecodeError": "import transport.mcp_tools as m\nm.text_of = str",
}
"""Faults in the product, by what the fuzzer says of them."""


@pytest.mark.parametrize("said", FAULTS)
def test_a_broken_answer_is_noticed(database: Path, said: str) -> None:
    with serving(database, fault=FAULTS[said]) as service, pytest.raises(Broken) as noticed:
        fuzz(service, seeded(), 300, within_s=0.5 if said == TIMED_OUT else ANSWERED_WITHIN_S)
    assert said in str(noticed.value), noticed.value


@pytest.mark.parametrize("number", [None, 1.5, 1.0, True, [], {}], ids=str)
@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_request_whose_id_is_none_is_told_so(shared_service: Service, number: Any, version: str) -> None:
    """Once it was 202, as for a notification, and its caller waited for ever."""
    asked = {"jsonrpc": "2.0", "id": number, "method": "ping"}
    answer = shared_service.mcp_raw(asked, **{"MCP-Protocol-Version": version})
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, None, -32600)


@pytest.mark.parametrize("more", [{"result": {}}, {"error": {"code": 1, "message": ""}}], ids=str)
def test_a_request_that_is_an_answer_too_is_told_so(shared_service: Service, more: dict[str, Any]) -> None:
    """The same: where its params were wrong, it was taken for the answer."""
    answer = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": 1, **more})
    assert (answer.status_code, answer.json()["id"], answer.json()["error"]["code"]) == (400, None, -32600)


@pytest.mark.parametrize("body", [[], [{"jsonrpc": "2.0", "id": 1, "method": "ping"}], 5, None, "ping"], ids=str)
def test_a_batch_is_no_request(shared_service: Service, body: Any) -> None:
    answer = shared_service.mcp_raw(body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, -32600)


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_a_client_that_takes_no_json_is_told_so_in_json(shared_service: Service, version: str) -> None:
    asked = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    answer = shared_service.mcp_raw(asked, Accept="text/html", **{"MCP-Protocol-Version": version})
    assert (answer.status_code, answer.json()["error"]["code"]) == (406, -32600)
