"""One table of cases, each over REST, MCP and the command line: same rows, same order, same text, same refusals."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.support import Service
from transport.operations import BY_NAME
from transport.rejections import RENDERINGS

LONG_TEXT = "transportword in a long fact. " + "It goes on and on. " * 80 + "This is its end."
SEEDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("port", "remember_long", {"agent": "mira", "fact": "transportword: port 18789", "topic": "network"}),
    ("relay", "remember_long", {"agent": "sol", "fact": "transportword relay", "topic": "network", "tags": ["a", "b"]}),
    (
        "accents",
        "remember_long",
        {"agent": "atlas", "fact": "transportword “Zürich” 東京 😀\n\tlast line", "tags": ["a"]},
    ),
    ("long", "remember_long", {"agent": "mira", "fact": LONG_TEXT, "source": "tests", "confidence": 0.25}),
    (
        "deploy",
        "remember_episodic",
        {
            "agent": "mira",
            "summary": "transportword deployed",
            "details": "in two steps",
            "event_type": "deploy",
            "outcome": "ok",
            "duration_s": 1.5,
        },
    ),
    ("note", "remember_short", {"agent": "mira", "key": "n1", "value": "transportword noted", "tags": ["a"]}),
    ("timed", "remember_short", {"agent": "mira", "key": "n2", "value": "timed", "ttl_s": 86_400}),
    ("sols", "remember_short", {"agent": "sol", "key": "n1", "value": "of sol"}),
)
"""What is in the store beside sol's persona: a label, the operation that writes it, and its arguments."""


@dataclass(frozen=True)
class Case:
    """One question and its right answer: rows by their labels, or a refusal.

    The order of a list is fixed; that of a recall is ranking's, and the same on every transport.
    """

    name: str
    operation: str
    arguments: dict[str, Any]
    rows: tuple[str, ...] | None = None
    refused: str | None = None
    detail: str = ""
    text: dict[str, str] = field(default_factory=dict)


def ask(name: str, q: str = "transportword", agent: str = "ace", **more: Any) -> tuple[str, str, dict[str, Any]]:
    """The beginning of a case of recall."""
    return name, "recall", {"agent": agent, "q": q, **more}


CASES = (
    Case(*ask("shared"), rows=("port", "relay", "deploy", "accents", "long"), text={"accents": SEEDS[2][2]["fact"]}),
    Case(*ask("own", agent="mira", scope="own"), rows=("port", "deploy", "long")),
    Case(*ask("best of all, k of one", q="relay transportword", k=1), rows=("relay",)),
    Case(*ask("topic", topic="network"), rows=("port", "relay")),
    Case(*ask("event type", topic="deploy"), rows=("deploy",), text={"deploy": "transportword deployed\nin two steps"}),
    Case(*ask("two tags", tags=["a", "b"]), rows=("relay",)),
    Case(*ask("short tier", tiers=["short"]), rows=("note",), text={"note": "transportword noted"}),
    Case(*ask("three tiers", agent="mira", tiers=["short", "episodic"], scope="own"), rows=("note", "deploy")),
    Case(*ask("time span", since="2020-01-01", until="2020-12-31"), rows=()),
    Case(*ask("full text", q="goes on", full=True, k=1), rows=("long",), text={"long": LONG_TEXT}),
    Case(*ask("nothing matches", q="unheardof"), rows=()),
    Case(*ask("unregistered reader", q="relay", agent="ghost"), rows=("relay",)),
    Case(*ask("own persona", q="calm", agent="sol", tiers=["durable"]), rows=("persona",)),
    Case(*ask("another's persona", q="persona/mira", agent="sol", tiers=["durable"]), refused="forbidden"),
    Case(*ask("k of zero", k=0), refused="invalid_request", detail="k:"),
    Case(*ask("no date", since="soon"), refused="invalid_request", detail="since:"),
    Case(*ask("no tier", tiers=["attic"]), refused="invalid_request", detail="tiers"),
    Case(*ask("empty question", q=""), refused="invalid_request", detail="q: "),
    Case(*ask("long question", q="x" * 32_769), refused="too_large", detail="q: "),
    Case("by id", "get_memory", {"agent": "ace", "id": "long"}, rows=("long",), text={"long": LONG_TEXT}),
    Case("by id of another", "get_memory", {"agent": "ace", "id": "port", "scope": "own"}, refused="not_found"),
    Case("by malformed id", "get_memory", {"agent": "ace", "id": "attic:1"}, refused="invalid_request", detail="id:"),
    Case("list", "get_short", {"agent": "ace", "owner": "mira"}, rows=("note", "timed")),
    Case("list on", "get_short", {"agent": "mira", "after": "n1", "limit": 1}, rows=("timed",)),
    Case("key of nothing", "get_short", {"agent": "ace", "key": "n1"}, refused="not_found", detail="'ace'"),
    Case("forget nothing", "forget_short", {"agent": "ace", "key": "n1"}, refused="not_found", detail="'ace'"),
    Case("unknown author", "remember_long", {"agent": "mirra", "fact": "x"}, refused="unknown_agent", detail="'mira'"),
    Case(
        "no time to live",
        "remember_short",
        {"agent": "ace", "key": "k", "value": "v", "ttl_s": 0},
        refused="invalid_request",
        detail="ttl_s:",
    ),
)


@pytest.fixture(scope="module")
def labels(shared_service: Service) -> dict[str, str]:
    """The ids of the seeds by their labels."""
    made = {}
    for label, operation, arguments in SEEDS:
        status, body = shared_service.rest("POST", BY_NAME[operation].path, arguments)
        assert status == 201, body
        made[label] = body["id"]
    made["persona"] = shared_service.recall("sol", "calm", tiers="durable")[0]["id"]
    return made


def over_rest(service: Service, operation: str, arguments: dict[str, Any], method: str) -> tuple[int, dict[str, Any]]:
    """(status, body) over REST by one of the operation's methods."""
    path = BY_NAME[operation].path
    sent = dict(arguments)
    if "<id>" in path:
        path = path.replace("<id>", sent.pop("id"))
    return service.rest(method, path, sent) if method == "POST" else service.rest(method, path, **sent)


def over_command_line(service: Service, operation: str, arguments: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """(exit code, body) of the operation's command: options for what is set, then the positional arguments."""
    positional = BY_NAME[operation].positional
    line = [operation.replace("_", "-")]
    for name, value in arguments.items():
        if name in positional or value is False:
            continue
        values = value if isinstance(value, list) else [value]
        for part in values:
            line += ["--" + name.replace("_", "-"), *([] if part is True else [str(part)])]
    return service.cli(*line, *(str(arguments[name]) for name in positional))


def present(value: Any) -> Any:
    """An answer without what MCP leaves out: null, empty lists in rows, and the mark of a cut where there is none."""
    if isinstance(value, list):
        return [present(part) for part in value]
    if not isinstance(value, dict):
        return value
    return {
        name: present(part)
        for name, part in value.items()
        if part is not None and part != [] and not (name == "cut" and part is False)
    }


def rows_of(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of an answer in their order; a memory by id is a row itself."""
    return body.get("results", body.get("entries", [body] if "text" in body else []))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_same_over_rest_mcp_and_command_line(shared_service: Service, labels: dict[str, str], case: Case) -> None:
    """Every transport gives the expected rows or refusal, and all of them the same answer, field by field."""
    operation = BY_NAME[case.operation]
    arguments = dict(case.arguments)
    if "id" in arguments:
        arguments["id"] = labels.get(arguments["id"], arguments["id"])
    answers = {method: over_rest(shared_service, case.operation, arguments, method) for method in operation.methods}
    bodies = {name: body for name, (_, body) in answers.items()}
    error, bodies["MCP"] = shared_service.mcp(case.operation, arguments)
    exit_code, bodies["command line"] = over_command_line(shared_service, case.operation, arguments)

    first = present(bodies[operation.methods[0]])
    for name, body in bodies.items():
        assert present(body) == first, name
    statuses = {status for status, _ in answers.values()}
    if case.refused is None:
        assert case.rows is not None
        assert (statuses, error, exit_code) == ({operation.status}, False, 0)
        found, expected = [row["id"] for row in rows_of(first)], [labels[label] for label in case.rows]
        assert found == expected if "entries" in first else sorted(found) == sorted(expected)
        shown = {row["id"]: row.get("text", row.get("value")) for row in rows_of(first)}
        assert {label: shown[labels[label]] for label in case.text} == case.text
    else:
        assert (statuses, error, exit_code) == ({RENDERINGS[case.refused].status}, False, 1)
        assert (first["ok"], first["error"]["code"]) == (False, case.refused)
        assert case.detail in first["error"]["detail"]


WRITES = (
    ("remember_long", {"fact": "written thrice: Zürich 東京\nend", "topic": "t", "source": "s", "confidence": 0.5}),
    ("remember_episodic", {"summary": "written thrice", "details": "d", "outcome": "o", "duration_s": 2.0}),
    ("remember_short", {"key": "thrice", "value": "written thrice", "tags": ["a", "b"]}),
)


@pytest.mark.parametrize(("operation", "arguments"), WRITES, ids=[operation for operation, _ in WRITES])
def test_same_row_whoever_writes_it(shared_service: Service, operation: str, arguments: dict[str, Any]) -> None:
    """The same write by each transport makes the same memory and gets the same answer, but for id and time."""
    arguments = {"agent": "swarm-5", **arguments}

    def written(answer: dict[str, Any]) -> tuple[Any, Any]:
        assert answer["ok"] is True
        _, memory = shared_service.rest("GET", f"/v1/memory/{answer['id']}", agent="ace")
        assert (memory["id"], memory["created_at"]) == (answer["id"], answer["created_at"])
        return tuple(
            {name: value for name, value in present(body).items() if name not in ("id", "created_at")}
            for body in (answer, memory)
        )

    status, by_rest = over_rest(shared_service, operation, arguments, "POST")
    assert status == 201
    expected = written(by_rest)
    error, by_mcp = shared_service.mcp(operation, arguments)
    assert not error
    assert written(by_mcp) == expected
    exit_code, by_command = over_command_line(shared_service, operation, arguments)
    assert exit_code == 0
    assert written(by_command) == expected


def test_forgetting_is_the_same(shared_service: Service) -> None:
    """Each transport forgets a key with the same answer, but for its id, after which it is gone for all."""
    arguments = {"agent": "swarm-5", "key": "forgotten"}

    def forgotten(answer: dict[str, Any]) -> dict[str, Any]:
        assert shared_service.rest("GET", "/v1/short", **arguments)[0] == 404
        assert shared_service.rest("POST", "/v1/short", {**arguments, "value": "v"})[0] == 201
        return {name: value for name, value in answer.items() if name != "id"}

    shared_service.rest("POST", "/v1/short", {**arguments, "value": "v"})
    expected = forgotten(over_rest(shared_service, "forget_short", arguments, "DELETE")[1])
    assert expected == {"ok": True, **arguments}
    assert forgotten(shared_service.mcp("forget_short", arguments)[1]) == expected
    assert forgotten(over_command_line(shared_service, "forget_short", arguments)[1]) == expected


def test_refusals_of_all_transports_meet_in_one_counter(shared_service: Service) -> None:
    """A refusal by REST, MCP and command line each adds one to the same line of /v1/stats and of /metrics."""

    def counted() -> tuple[int, float]:
        key = ("(unregistered)", "remember_episodic", "unknown_agent")
        found = [
            r["count"] for r in shared_service.stats()["refusals"] if (r["agent"], r["operation"], r["code"]) == key
        ]
        metrics = shared_service.http.get(shared_service.url + "/metrics").text.splitlines()
        lines = [line for line in metrics if all(f'"{part}"' in line for part in key)]
        return sum(found), sum(float(line.rpartition(" ")[2]) for line in lines)

    before = counted()
    arguments = {"agent": "nobody", "summary": "x"}
    over_rest(shared_service, "remember_episodic", arguments, "POST")
    shared_service.mcp("remember_episodic", arguments)
    over_command_line(shared_service, "remember_episodic", arguments)
    assert counted() == (before[0] + 3, before[1] + 3)
