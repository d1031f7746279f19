"""The front door over a real process: hosts, origins, methods, bodies, and what is counted of them."""

import contextlib
import http.client
import json
import socket
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.support import Service, serving


@pytest.mark.parametrize("path", ["/health", "/v1/recall?agent=sol&q=x", "/mcp"])
def test_a_foreign_host_is_refused_everywhere(shared_service: Service, path: str) -> None:
    status, body = shared_service.rest("GET", path, headers={"Host": "evil.test"})
    assert (status, body["error"]["code"]) == (421, "wrong_host")


@pytest.mark.parametrize("host", ["localhost:8437", "127.0.0.1:8437", "[::1]:8437", "LOCALHOST"])
def test_our_hosts_are_served_on_both_surfaces(shared_service: Service, host: str) -> None:
    assert shared_service.rest("GET", "/health", headers={"Host": host})[0] == 200
    listed = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, Host=host)
    assert listed.status_code == 200


@pytest.mark.parametrize("origin", ["http://evil.test", "null", "http://localhost:1", "https://127.0.0.1"])
def test_a_foreign_origin_is_refused_and_no_cors_is_offered(shared_service: Service, origin: str) -> None:
    for method, path in (
        ("GET", "/v1/recall?agent=sol&q=x"),
        ("POST", "/v1/long"),
        ("OPTIONS", "/v1/long"),
        ("POST", "/mcp"),
    ):
        response = shared_service.http.request(
            method,
            shared_service.url + path,
            headers={"Origin": origin, "Content-Type": "application/json"},
            content="{}",
        )
        assert response.status_code == 403
        assert "access-control-allow-origin" not in response.headers


def test_our_own_origin_is_served(shared_service: Service) -> None:
    assert shared_service.rest("GET", "/health", headers={"Origin": shared_service.url})[0] == 200


@pytest.mark.parametrize(
    ("content", "content_type", "status", "code"),
    [
        (b"{", "application/json", 400, "invalid_request"),
        (b"[1]", "application/json", 400, "invalid_request"),
        (b"\xff\xfe", "application/json", 400, "invalid_request"),
        (b"[" * 100_000, "application/json", 400, "invalid_request"),
        (b'{"agent":"mira","fact":"\\ud83d"}', "application/json", 400, "invalid_request"),
        (b"agent=mira&fact=x", "application/x-www-form-urlencoded", 415, "unsupported_media_type"),
        (b'{"agent":"mira","fact":"x"}', "text/plain", 415, "unsupported_media_type"),
        (b"x" * 1_100_000, "application/json", 413, "too_large"),
    ],
)
def test_a_bad_body_is_a_clear_refusal(
    shared_service: Service, content: bytes, content_type: str, status: int, code: str
) -> None:
    response = shared_service.http.post(
        shared_service.url + "/v1/long", content=content, headers={"Content-Type": content_type}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_refusals_before_an_operation_go_through_the_same_counter(service: Service) -> None:
    service.rest("GET", "/nothing")
    service.rest("PUT", "/v1/long", {})
    service.rest("GET", "/health", headers={"Host": "evil.test"})
    service.mcp("no_such_tool", {})
    service.http.post(service.url + "/v1/long", content=b"{", headers={"Content-Type": "application/json"})
    counted = {row["code"]: row["count"] for row in service.stats()["refusals"] if row["operation"] == "(transport)"}
    assert counted == {"not_found": 2, "method_not_allowed": 1, "wrong_host": 1, "invalid_request": 1}
    metrics = service.http.get(service.url + "/metrics").text
    assert 'solos_memory_refusals_total{agent="(none)",code="not_found",operation="(transport)"} 2.0' in metrics
    assert len(service.events("rejected")) == 5


def test_a_wrong_method_names_the_right_ones(shared_service: Service) -> None:
    response = shared_service.http.put(shared_service.url + "/v1/short")
    assert response.status_code == 405
    assert response.headers["allow"] == "DELETE, GET, HEAD, POST"


def test_mcp_takes_post_alone(shared_service: Service) -> None:
    for method in ("GET", "HEAD", "DELETE"):
        response = shared_service.http.request(method, shared_service.url + "/mcp")
        assert (response.status_code, response.headers["allow"]) == (405, "POST")
        assert response.headers["content-type"] == "application/json"


def test_an_mcp_body_that_is_no_json_is_a_parse_error(shared_service: Service) -> None:
    for content in (b"{", b'{"jsonrpc":"2.0","id":1,"method":"x","params":{"q":"\\ud83d"}}', b"[" * 100_000, b"\xff"):
        response = shared_service.mcp_raw(content)
        assert response.status_code == 400
        assert response.json()["error"]["code"] == -32700


def test_a_long_question_fits_into_a_get(shared_service: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared_service.port, timeout=20)
    connection.request("GET", f"/v1/recall?agent=sol&q={quote('数' * 32_768)}")
    assert connection.getresponse().status == 200
    connection.close()
    status, body = shared_service.rest("POST", "/v1/recall", {"agent": "sol", "q": "x" * 32_769})
    assert (status, body["error"]["detail"]) == (413, "q: is longer than 32,768 characters.")


def test_a_question_may_come_in_a_body(shared_service: Service) -> None:
    shared_service.long("mira", "the ocelot naps")
    status, body = shared_service.rest("POST", "/v1/recall", {"agent": "sol", "q": "ocelot", "k": 1})
    assert (status, len(body["results"])) == (200, 1)


def test_health_tells_no_secrets(shared_service: Service) -> None:
    for path in ("/health", "/health/ready"):
        assert shared_service.rest("GET", path) == (200, {"status": "ok", "reasons": [], "demo": False})
    assert shared_service.rest("GET", "/health/live") == (200, {"status": "ok"})


def test_a_websocket_is_turned_away(shared_service: Service) -> None:
    with socket.create_connection(("127.0.0.1", shared_service.port), timeout=5) as sock:
        sock.sendall(
            f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{shared_service.port}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        assert b" 403" in sock.recv(1000).splitlines()[0]


def test_the_contract_is_json(shared_service: Service) -> None:
    document = json.loads(shared_service.http.get(shared_service.url + "/openapi.json").text)
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) >= {"/v1/recall", "/v1/memory/{id}", "/v1/short", "/v1/long", "/v1/episodic"}


MALFORMED = {
    "a sub-protocol that is no ASCII": b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Protocol: \xff\r\n\r\n",
    "HTTP/2 with garbage": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    + b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x84\x86\x41",
    "no HTTP": b"\x16\x03\x01\x00\xff" + bytes(range(256)),
    "a header without end": b"GET / HTTP/1.1\r\nHost: " + b"x" * 600_000,
}


@pytest.mark.parametrize("sent", MALFORMED.values(), ids=MALFORMED)
def test_one_clients_nonsense_ends_its_connection_alone(shared_service: Service, sent: bytes) -> None:
    for _ in range(2):
        address = ("127.0.0.1", shared_service.port)
        with socket.create_connection(address, timeout=5) as sock, contextlib.suppress(OSError):
            sock.sendall(sent)
            sock.shutdown(socket.SHUT_WR)
            sock.recv(1000)
    assert shared_service.rest("GET", "/health")[0] == 200


def test_a_bug_in_a_route_is_ours_and_not_the_callers(database: Path) -> None:
    broken = "import transport.rest_routes as r\ndef fail(*_): raise RuntimeError('planted')\nr._arguments = fail"
    with serving(database, fault=broken) as service:
        status, body = service.rest("GET", "/v1/recall", agent="sol", q="x")
    assert (status, body["error"]["code"]) == (500, "internal")


def test_a_client_that_leaves_in_the_middle_of_its_body_writes_nothing(service: Service) -> None:
    """What came of the body is JSON by itself, and must not be executed."""
    body = b'{"agent":"mira","fact":"half"}'
    head = "POST /v1/long HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body) + 9}"
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as sock:
        sock.sendall(head.encode() + b"\r\n\r\n" + body)
    service.long("sol", "whole")
    assert [row["agent"] for row in service.recall("sol", "half whole")] == ["sol"]


@pytest.mark.parametrize("name", ["X-Agent-Id", "Origin", "Idempotency-Key"])
def test_a_header_that_says_who_calls_comes_once(shared_service: Service, name: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", shared_service.port, timeout=5)
    connection.putrequest("GET", "/v1/stats")
    for value in ("sol", "mira"):
        connection.putheader(name, value)
    connection.endheaders()
    answer = connection.getresponse()
    assert (answer.status, json.loads(answer.read())["error"]["code"]) == (400, "invalid_request")
    connection.close()
