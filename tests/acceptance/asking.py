"""One question over REST and MCP: both must give the same rows in the same order."""

from typing import Any

from tests.support import Service

Answer = dict[str, Any]


def answers(service: Service, q: str, agent: str = "sol", **query: Any) -> dict[str, Answer]:
    """The answer to a recall on each transport; each must be a success that leaks nothing of the engine."""
    arguments = {"agent": agent, "q": q, **query}
    got: dict[str, Answer] = {}
    for way, method in (("GET", {"method": "GET"}), ("POST", {"method": "POST"})):
        asked = {"body": arguments} if way == "POST" else arguments
        status, got[way] = service.rest(method["method"], "/v1/recall", **asked)
        assert status == 200, (way, q, got[way])
    error, got["MCP"] = service.mcp("recall", arguments)
    assert not error, (q, got["MCP"])
    for way, answer in got.items():
        assert answer["ok"] is True, (way, q, answer)
        assert "fts5" not in str(answer).lower(), (way, q, answer)
    return got


def answer(service: Service, q: str, agent: str = "sol", **query: Any) -> Answer:
    """REST's answer to a recall, once every transport has shown the same rows, order and texts."""
    got = answers(service, q, agent, **query)
    shown = {way: [(memory["id"], memory["text"]) for memory in body["results"]] for way, body in got.items()}
    assert shown["GET"] == shown["POST"] == shown["MCP"], q
    assert got["GET"]["relaxed"] == got["POST"]["relaxed"] == got["MCP"]["relaxed"], q
    return got["GET"]


def ask(service: Service, q: str, agent: str = "sol", **query: Any) -> list[dict[str, Any]]:
    """The results that every transport gives."""
    found: list[dict[str, Any]] = answer(service, q, agent, **query)["results"]
    return found


def ids(service: Service, q: str, agent: str = "sol", **query: Any) -> list[str]:
    """The ids that every transport gives, best first."""
    return [memory["id"] for memory in ask(service, q, agent, **query)]


def refusals(service: Service, **arguments: Any) -> dict[str, Answer]:
    """The error of a recall that every transport must refuse as the caller's mistake."""
    got: dict[str, Answer] = {}
    asked = {"agent": "sol", **arguments}
    for way, method, call in (("GET", "GET", asked), ("POST", "POST", {"body": asked})):
        status, body = service.rest(method, "/v1/recall", **call)
        assert status == 400, (way, arguments, body)
        got[way] = body
    error, got["MCP"] = service.mcp("recall", asked)
    assert not error, "a refusal that the caller can mend is no failure of the tool"
    for way, body in got.items():
        assert (body["ok"], body["error"]["code"]) == (False, "invalid_request"), (way, arguments, body)
    return {way: body["error"] for way, body in got.items()}
