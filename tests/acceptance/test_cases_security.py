"""The cases about limits, broken text, foreign pages and hosts, and what the log may hold."""

import json
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support import Service, eventually, fresh_database, rows, serving

EVIL = "http://evil.test"
REPLY_CHARS_ABOUT = 8_400
JSON = {"Content-Type": "application/json"}


def post_bytes(service: Service, path: str, body: bytes) -> httpx2.Response:
    """A POST of a body that no JSON encoder of ours would make."""
    return service.http.post(service.url + path, content=body, headers=JSON)


# --- C015: long questions ---


def test_c015_question_of_a_megabyte_is_refused_by_name(shared_service: Service) -> None:
    """A q of more than 32,768 characters is too_large, and the refusal names q and its bound."""
    for length in (32_769, 1_000_000):
        status, refused = shared_service.rest("POST", "/v1/recall", {"agent": "sol", "q": "x" * length})
        assert (status, refused["error"]["code"]) == (413, "too_large")
        assert refused["error"]["detail"].startswith("q:")
        assert "32,768" in refused["error"]["detail"]
        error, by_mcp = shared_service.mcp("recall", {"agent": "sol", "q": "x" * length})
        assert (error, by_mcp) == (False, refused)


def test_c015_body_of_more_than_a_mebibyte_is_refused(shared_service: Service) -> None:
    """A body beyond the bound is too_large before it is read as JSON, on REST and MCP, and says so."""
    body = {"agent": "sol", "q": "x" * 1_048_576}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "recall", "arguments": body}}
    for _ in range(30):  # an answer that comes before the body is read may be lost with the connection: not one is
        by_rest = shared_service.http.post(shared_service.url + "/v1/recall", json=body)
        for response in (by_rest, shared_service.mcp_raw(call)):
            assert response.status_code == 413
            assert response.json()["error"]["code"] == "too_large"
            assert "1,048,576" in response.json()["error"]["detail"]


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_c015_longest_question_is_answered(shared_service: Service, method: str) -> None:
    """A q of exactly 32,768 characters is served, in a query as in a body."""
    written = shared_service.long("mira", "needleword among the longest")
    q = "needleword " + "x" * (32_768 - len("needleword "))
    sent = {"agent": "sol", "q": q}
    status, body = (
        shared_service.rest("GET", "/v1/recall", **sent)
        if method == "GET"
        else shared_service.rest("POST", "/v1/recall", sent)
    )
    assert status == 200, body
    (found,) = body["results"]  # the same sentence written twice is one result
    assert written["id"] in [found["id"], *(other["id"] for other in found["also"])]


def test_c015_five_thousand_words_are_answered_in_bounded_time(shared_service: Service) -> None:
    """5,000 distinct words: 200, within two seconds, since only so many terms of them are asked."""
    for number in range(200):
        shared_service.long("mira", " ".join(f"w{number + step}" for step in range(0, 4_000, 100)))
    q = " ".join(f"w{number}" for number in range(5_000))
    assert len(q) <= 32_768
    began = time.monotonic()
    status, body = shared_service.rest("POST", "/v1/recall", {"agent": "sol", "q": q})
    assert time.monotonic() - began < 2
    assert (status, len(body["results"])) == (200, 5)
    assert shared_service.stats()["bounds"]["query_terms_max"] < 5_000


# --- C037: lone surrogates ---


@pytest.mark.parametrize(
    ("path", "field", "body"),
    [
        ("/v1/long", "fact", b'{"agent": "sol", "fact": "broken \\ud83d text"}'),
        ("/v1/long", "topic", b'{"agent": "sol", "fact": "text", "topic": "\\ud83d"}'),
        ("/v1/long", "agent", b'{"agent": "sol\\ud83d", "fact": "text"}'),
        ("/v1/recall", "q", b'{"agent": "sol", "q": "broken \\ud83d text"}'),
        ("/v1/short", "value", b'{"agent": "sol", "key": "k", "value": "\\ude00\\ud83d"}'),
    ],
)
def test_c037_lone_surrogate_over_rest(shared_service: Service, path: str, field: str, body: bytes) -> None:
    """Half a surrogate pair is no text: 400 that names the field, and nothing is written."""
    before = rows(shared_service.database, "SELECT count(*) FROM memory_longterm")
    response = post_bytes(shared_service, path, body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["detail"].split(":")[0]) == ("invalid_request", field)
    assert rows(shared_service.database, "SELECT count(*) FROM memory_longterm") == before


def test_c037_lone_surrogate_in_a_tag_or_a_name(shared_service: Service) -> None:
    """Inside a list or in the name of a field it is refused as well, with an answer that is valid UTF-8."""
    for body in (b'{"agent": "sol", "fact": "x", "tags": ["\\ud83d"]}', b'{"agent": "sol", "fact": "x", "\\ud83d": 1}'):
        response = post_bytes(shared_service, "/v1/long", body)
        assert response.status_code == 400, response.text
        assert json.loads(response.content.decode("utf-8"))["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    "arguments", [b'"fact": "broken \\ud83d text"', b'"q": "\\ud83d"', b'"tags": ["\\ud83d"]', b'"\\ud83d": 1']
)
def test_c037_lone_surrogate_over_mcp(shared_service: Service, arguments: bytes) -> None:
    """Over MCP such a body is no JSON: the protocol's parse error -32700, never 500."""
    tool = b"recall" if b'"q"' in arguments else b"remember_long"
    body = (
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"'
        + tool
        + b'","arguments":{"agent":"sol",'
        + arguments
        + b"}}}"
    )
    response = shared_service.mcp_raw(body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32700


def test_c037_whole_surrogate_pairs_are_text(shared_service: Service) -> None:
    """The same characters as a pair, and as UTF-8, are one text that comes back unchanged."""
    for body in (b'"pair \\ud83d\\ude00 end"', '"pair 😀 end"'.encode()):
        response = post_bytes(shared_service, "/v1/long", b'{"agent": "sol", "fact": ' + body + b"}")
        assert response.status_code == 201
        memory_id = response.json()["id"]
        assert shared_service.rest("GET", f"/v1/memory/{memory_id}", agent="sol")[1]["text"] == "pair 😀 end"


# --- C096: health ---


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
def test_c096_health_says_the_status_only(shared_service: Service, path: str) -> None:
    """Without a token: status, reasons, demo, and no paths, counts, versions or names of the system."""
    status, body = shared_service.rest("GET", path)
    assert status == 200
    assert body["status"] == "ok"
    assert set(body) <= {"status", "reasons", "demo"}
    response = shared_service.http.get(shared_service.url + path)
    told = response.text + "".join(f"{name}: {value}" for name, value in response.headers.items() if name != "date")
    for secret in (str(shared_service.database), "solos.db", "python", "linux", "hypercorn", "quart", "sqlite"):
        assert secret not in told.lower()


# --- C097, C098: foreign pages, foreign hosts ---


def no_cors(response: httpx2.Response) -> bool:
    """Whether an answer opens nothing to foreign pages."""
    return not [name for name in response.headers if name.lower().startswith("access-control-")]


def test_c097_foreign_page_is_refused(shared_service: Service) -> None:
    """With a foreign Origin nothing is served, written or opened by CORS: not a fetch, a preflight or a POST."""
    http, url = shared_service.http, shared_service.url
    before = rows(shared_service.database, "SELECT count(*) FROM memory_longterm")
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    body = {"agent": "sol", "fact": "planted", "q": "password"}
    for path in ("/v1/recall", "/v1/long", "/mcp", "/health", "/metrics"):
        preflight = http.options(url + path, headers={"Origin": EVIL, **asked})
        assert preflight.status_code == 403
        assert no_cors(preflight)
        for origin in (EVIL, "null", "https://127.0.0.1", "http://127.0.0.1:1", f"{url}.evil.test", f"{url}@evil.test"):
            for response in (
                http.get(url + path, params={"agent": "sol", "q": "password"}, headers={"Origin": origin}),
                http.post(url + path, json=body, headers={"Origin": origin, "Content-Type": "text/plain"}),
                http.post(url + path, json=body, headers={"Origin": origin}),
            ):
                assert response.status_code == 403, (path, origin)
                assert response.json()["error"]["code"] == "foreign_origin"
                assert no_cors(response)
    assert rows(shared_service.database, "SELECT count(*) FROM memory_longterm") == before


def test_c097_refused_pages_are_counted(shared_service: Service) -> None:
    """Such a call goes through the counter of refusals as one of the transport."""

    def counted() -> int:
        found = shared_service.stats()["refusals"]
        return sum(r["count"] for r in found if (r["operation"], r["code"]) == ("(transport)", "foreign_origin"))

    before = counted()
    shared_service.rest("GET", "/v1/recall", agent="sol", q="password", headers={"Origin": EVIL})
    assert counted() == before + 1


def test_c097_own_origin_is_served_without_cors(shared_service: Service) -> None:
    """Our own origin, and no Origin at all, are served; neither gets CORS headers."""
    for headers in ({}, {"Origin": shared_service.url}, {"Origin": f"http://localhost:{shared_service.port}"}):
        response = shared_service.http.get(
            shared_service.url + "/v1/recall", params={"agent": "sol", "q": "password"}, headers=headers
        )
        assert response.status_code == 200
        assert no_cors(response)
        listed = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, **headers)
        assert listed.status_code == 200
        assert no_cors(listed)


def by_host(service: Service, host: str) -> tuple[int, int]:
    """The statuses that REST and MCP give to a Host header."""
    rest = service.http.get(
        service.url + "/v1/recall", params={"agent": "sol", "q": "password"}, headers={"Host": host}
    )
    mcp = service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, Host=host)
    return rest.status_code, mcp.status_code


@pytest.mark.parametrize("host", ["evil.test", "evil.test:8437", "127.0.0.1.evil.test", "localhost.evil.test:8437", ""])
def test_c098_foreign_host_is_refused_on_both_surfaces(shared_service: Service, host: str) -> None:
    """A Host that is not ours (DNS rebinding) is refused with 421 on REST and on MCP, and the log says which."""
    assert by_host(shared_service, host) == (421, 421)
    named = repr(host.partition(":")[0])

    def logged() -> set[str]:
        refused = [line for line in shared_service.events("rejected") if line["code"] == "wrong_host"]
        return {line["transport"] for line in refused if named in line["reason"]}

    eventually(lambda: logged() == {"rest", "mcp"})


@pytest.mark.parametrize(
    "host", ["localhost:8437", "127.0.0.1:8437", "[::1]:8437", "localhost", "127.0.0.1", "[::1]", "LOCALHOST:8437"]
)
def test_c098_loopback_hosts_are_served(shared_service: Service, host: str) -> None:
    """Every name of loopback, with any port, is ours on both surfaces."""
    assert by_host(shared_service, host) == (200, 200)


def test_c098_further_hosts_are_a_setting(tmp_path: Path) -> None:
    """A host named in `allowed_hosts` is served on both surfaces; others are not, and are told of the setting."""
    with serving(fresh_database(tmp_path), "--allowed-hosts", "lab-01.test") as service:
        assert by_host(service, "lab-01.test") == (200, 200)
        assert by_host(service, "lab-01.test:8437") == (200, 200)
        assert by_host(service, "evil.test") == (421, 421)
        _, refused = service.rest("GET", "/v1/stats", headers={"Host": "evil.test"})
        assert refused["error"]["code"] == "wrong_host"
        assert "evil.test" in refused["error"]["detail"]
        assert "allowed_hosts" in refused["error"]["hint"]
        eventually(lambda: any("evil.test" in line.get("reason", "") for line in service.events("rejected")))


# --- C108: the log holds no memory ---

SECRET = "hunter2-correct-horse-battery"


@pytest.mark.parametrize(
    ("operation", "arguments", "agent", "code"),
    [
        ("remember_long", {"agent": "ghost", "fact": SECRET}, "ghost", "unknown_agent"),
        ("remember_long", {"agent": "sol", "fact": SECRET, "confidence": 7}, "sol", "invalid_request"),
        ("remember_long", {"agent": "sol", "fact": SECRET + "x" * 70_000}, "sol", "too_large"),
        ("remember_long", {"agent": "sol", "fact": [SECRET]}, "sol", "invalid_request"),
        ("remember_long", {"agent": "sol", "fact": SECRET + "\x00"}, "sol", "invalid_request"),
        ("remember_long", {"agent": "sol", "fact": "x", "extra": SECRET}, "sol", "invalid_request"),
        ("remember_long", {"agent": "sol", "fact": "x", "confidence": SECRET}, "sol", "invalid_request"),
        ("remember_short", {"agent": "sol", "key": "k", "value": SECRET, "ttl_s": -1}, "sol", "invalid_request"),
        ("remember_episodic", {"agent": "ghost", "summary": SECRET, "details": SECRET}, "ghost", "unknown_agent"),
        ("recall", {"agent": "sol", "q": SECRET, "k": 0}, "sol", "invalid_request"),
        ("recall", {"agent": "sol", "q": f"{SECRET} persona/mira", "tiers": "durable"}, "sol", "forbidden"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_c108_refusal_is_logged_without_the_text(
    shared_service: Service, operation: str, arguments: dict[str, Any], agent: str, code: str
) -> None:
    """The line of a refused call names agent, operation and reason; the text that it carried is nowhere in the log."""
    path = {"remember_long": "long", "remember_short": "short", "remember_episodic": "episodic", "recall": "recall"}
    seen = len(shared_service.lines)
    _, by_rest = shared_service.rest("POST", f"/v1/{path[operation]}", arguments)
    _, by_mcp = shared_service.mcp(operation, arguments)
    assert by_rest["error"]["code"] == by_mcp["error"]["code"] == code
    assert SECRET not in json.dumps([by_rest, by_mcp])

    def logged() -> list[dict[str, Any]]:
        lines = [line for line in shared_service.lines[seen:] if line["event"] == "rejected"]
        return [line for line in lines if (line["operation"], line["agent"], line["code"]) == (operation, agent, code)]

    eventually(lambda: {line["transport"] for line in logged()} == {"rest", "mcp"})
    assert all(line["reason"] for line in logged())
    assert SECRET not in shared_service.raw


def test_c108_answered_calls_are_logged_without_the_text_too(shared_service: Service) -> None:
    """Nor does the line of a call that was answered hold what was written, or asked, or found."""
    written = shared_service.long("sol", f"the password is {SECRET}")
    assert written["id"] in [memory["id"] for memory in shared_service.recall("mira", SECRET)]
    shared_service.mcp("get_memory", {"agent": "mira", "id": written["id"]})
    eventually(lambda: any(line.get("operation") == "get_memory" for line in shared_service.events("answered")))
    assert SECRET not in shared_service.raw


def test_c108_broken_bodies_are_logged_without_the_text(shared_service: Service) -> None:
    """A body that is no JSON is refused by the transport; the log names the reason and holds nothing of the body."""
    for path in ("/v1/long", "/mcp"):
        assert post_bytes(shared_service, path, f'{{"agent": "sol", "fact": "{SECRET}'.encode()).status_code == 400
    eventually(lambda: len([x for x in shared_service.events("rejected") if x["operation"] == "(transport)"]) >= 2)
    assert SECRET not in shared_service.raw


# --- C117: large answers ---


def test_c117_fifty_long_facts_fit_into_one_reply(shared_service: Service) -> None:
    """k=50 facts of 5 KB are about 8,000 characters on MCP: previews shrink, all ids are there, the rest is named."""
    filler = "lorem ipsum dolor sit amet " * 190
    made = {shared_service.long("ace", f"bulkword {number} {filler}")["id"] for number in range(50)}
    call = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "recall", "arguments": {"agent": "sol", "q": "bulkword", "k": 50}},
    }
    text = shared_service.mcp_raw(call).json()["result"]["content"][0]["text"]
    assert len(text) <= REPLY_CHARS_ABOUT
    body = json.loads(text)
    shown = [memory["id"] for memory in body["results"]]
    assert {memory_id for memory_id in made if memory_id in text} == made, "every id can be read by get_memory"
    assert len(shown) < 50
    assert f"{50 - len(shown)} more are available" in body["not_shown"]
    assert "get_memory" in body["not_shown"]
    assert all(memory["cut"] and len(memory["text"]) < 600 for memory in body["results"])
    whole = shared_service.mcp("get_memory", {"agent": "sol", "id": shown[-1]})[1]
    assert whole["text"].endswith("amet ")


def test_c117_previews_shrink_with_their_number(shared_service: Service) -> None:
    """One result shows more of its text than fifty do, and a recall that asks for full texts gets them."""
    filler = "consectetur adipiscing elit " * 180
    for number in range(20):
        shared_service.long("ace", f"shrinkword {number} {filler}")

    def longest(k: int) -> int:
        return max(len(memory["text"]) for memory in shared_service.recall("sol", "shrinkword", k=k))

    assert longest(1) > longest(10) > longest(20) > 0
    (whole,) = shared_service.mcp("recall", {"agent": "sol", "q": "shrinkword", "k": 1, "full": True})[1]["results"]
    assert len(whole["text"]) > 5_000
