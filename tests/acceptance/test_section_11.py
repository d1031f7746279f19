"""The acceptance checks of the user's spec, section 11, that need no Hermes and no A2A agent: 1, 2, 3 and 6."""

import concurrent.futures
import json
import random
import socket
import subprocess
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support import PROGRAM, Service, eventually, rows, serving

LISTENING = "0A"
LOOPBACK = "0100007F"
"""127.0.0.1 as /proc/net/tcp writes it: the bytes in the host's order."""


# --- 1: loopback ---


def listening_addresses(port: int) -> list[str]:
    """The addresses on which this host listens on a port, IPv4 and IPv6, as the kernel's list writes them."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, _, number = local.partition(":")
            if state == LISTENING and int(number, 16) == port:
                found.append(address)
    return found


def test_only_loopback_listens(shared_service: Service) -> None:
    assert listening_addresses(shared_service.port) == [LOOPBACK]


def test_another_address_of_this_host_is_refused(shared_service: Service) -> None:
    elsewhere = ("127.0.0.2", shared_service.port)
    with pytest.raises(ConnectionRefusedError), socket.create_connection(elsewhere, timeout=5):
        pass


@pytest.mark.parametrize("bind", ["0.0.0.0:0", "[::]:0", "192.0.2.1:8437"])
def test_address_beyond_loopback_is_a_configuration_error(database: Path, bind: str) -> None:
    done = subprocess.run(
        [*PROGRAM, "serve", "--db", str(database), "--bind", bind], capture_output=True, timeout=20, check=False
    )
    assert done.returncode == 78
    assert b"loopback" in done.stdout + done.stderr


# --- 2: cross-agent recall ---


def over_rest(service: Service, agent: str, q: str, **query: Any) -> list[dict[str, Any]]:
    """A recall over REST."""
    return service.recall(agent, q, **query)


def over_mcp(service: Service, agent: str, q: str, **arguments: Any) -> list[dict[str, Any]]:
    """The same recall over MCP."""
    is_error, body = service.mcp("recall", {"agent": agent, "q": q, **arguments})
    assert not is_error
    results: list[dict[str, Any]] = body["results"]
    return results


@pytest.mark.parametrize("recall", [over_rest, over_mcp])
def test_fact_of_atlas_comes_back_to_sol(service: Service, recall: Callable[..., Any]) -> None:
    written = service.long("atlas", "The zephyr relay listens on port 18790.", topic="network")
    (found,) = recall(service, "sol", "which port does the zephyr relay use")
    assert (found["id"], found["agent"], found["text"]) == (
        written["id"],
        "atlas",
        "The zephyr relay listens on port 18790.",
    )


@pytest.mark.parametrize("recall", [over_rest, over_mcp])
def test_episode_written_over_mcp_comes_back_to_another(service: Service, recall: Callable[..., Any]) -> None:
    _, written = service.mcp("remember_episodic", {"agent": "mira", "summary": "Rolled back the zephyr relay."})
    (found,) = recall(service, "sol", "zephyr relay")
    assert (found["id"], found["agent"]) == (written["id"], "mira")


@pytest.mark.parametrize("recall", [over_rest, over_mcp])
def test_scope_own_hides_what_others_wrote(service: Service, recall: Callable[..., Any]) -> None:
    service.long("atlas", "The zephyr relay listens on port 18790.")
    mine = service.long("sol", "The zephyr relay is mine to watch.")
    assert [found["id"] for found in recall(service, "sol", "zephyr relay", scope="own")] == [mine["id"]]


# --- 3: the row count grows by exactly the writes acknowledged ---


@dataclass(frozen=True)
class Outcome:
    """What a caller was told about one write."""

    kind: str
    """acknowledged, replayed or refused."""
    id: str | None = None
    """The row, where there is one."""


def outcome_of(body: dict[str, Any]) -> Outcome:
    """What an answer says, on either transport."""
    if not body["ok"]:
        assert body["error"]["code"]
        return Outcome("refused")
    return Outcome("replayed" if body["replayed"] else "acknowledged", body["id"])


def rest_write(service: Service, body: Any, headers: dict[str, str] | None = None) -> Outcome:
    """One write over REST."""
    status, answer = service.rest("POST", "/v1/long", body, headers=headers)
    assert (status == 201) is answer["ok"], answer
    return outcome_of(answer)


def mcp_write(service: Service, arguments: Any, **headers: str) -> Outcome:
    """One write over MCP."""
    is_error, answer = service.mcp("remember_long", arguments, **headers)
    assert not is_error, answer
    return outcome_of(answer)


def raw_write(service: Service, content: bytes, headers: dict[str, str]) -> Outcome:
    """One write over REST that is refused before there is an operation."""
    response = service.http.post(service.url + "/v1/long", content=content, headers=headers)
    return outcome_of(response.json())


Attempt = Callable[[], Outcome]

BAD_WRITES: list[dict[str, Any]] = [
    {"agent": "ghost", "fact": "An unknown agent wrote this."},
    {"agent": "Sol", "fact": "Ids are exact."},
    {"agent": "sol"},
    {"agent": "sol", "fact": ""},
    {"agent": "sol", "fact": "x", "confidence": 2},
    {"agent": "sol", "fact": "x", "colour": "blue"},
    {"agent": "sol", "fact": "x\x00y"},
    {"agent": "sol", "fact": "x" * 65_537},
    {"agent": "sol", "fact": "x", "tags": ["t"] * 33},
    {"fact": "Nobody wrote this."},
]
UNREADABLE = [
    (b"{", {"Content-Type": "application/json"}),
    (b'{"agent": "sol", "fact": "x"}', {"Content-Type": "text/plain"}),
    (b'["sol", "x"]', {"Content-Type": "application/json"}),
    (b'{"agent": "sol", "fact": "x"}', {"Content-Type": "application/json", "Host": "evil.example"}),
    (b'{"agent": "sol", "fact": "x"}', {"Content-Type": "application/json", "Origin": "http://evil.example"}),
]
FRESH, RETRIED = 20, 8


def mixed_attempts(service: Service) -> list[Attempt]:
    """Fresh writes, writes retried three ways with one request id, and refused ones, over REST and MCP."""
    attempts: list[Attempt] = []
    for number in range(FRESH):
        fact = {"agent": "atlas", "fact": f"Fresh fact {number}."}
        attempts += [lambda fact=fact: rest_write(service, fact), lambda fact=fact: mcp_write(service, fact)]
    for number in range(RETRIED):
        fact = {"agent": "mira", "fact": f"Retried fact {number}."}
        key = f"retry-{number}"
        attempts += [
            lambda fact=fact, key=key: rest_write(service, fact | {"request_id": key}),
            lambda fact=fact, key=key: rest_write(service, fact, {"Idempotency-Key": key}),
            lambda fact=fact, key=key: mcp_write(service, fact | {"request_id": key}),
        ]
    for bad in BAD_WRITES:
        attempts += [lambda bad=bad: rest_write(service, bad), lambda bad=bad: mcp_write(service, bad)]
    for content, headers in UNREADABLE:
        attempts.append(lambda content=content, headers=headers: raw_write(service, content, headers))
    two_names = {"agent": "sol", "fact": "Two names."}
    attempts.append(lambda: rest_write(service, two_names, {"X-Agent-Id": "mira"}))
    attempts.append(lambda: mcp_write(service, two_names, **{"X-Agent-Id": "mira"}))
    random.Random(11).shuffle(attempts)
    return attempts


def ids_on_disk(database: Path) -> set[str]:
    """The ids of the facts that another process sees."""
    return {f"long:{row}" for (row,) in rows(database, "SELECT id FROM memory_longterm")}


def test_row_count_grows_by_exactly_the_writes_acknowledged(service: Service) -> None:
    assert service.database is not None
    service.long("sol", "A fact from before.")
    before = ids_on_disk(service.database)
    attempts = mixed_attempts(service)
    with concurrent.futures.ThreadPoolExecutor(8) as callers:
        outcomes = list(callers.map(lambda attempt: attempt(), attempts))
    kinds = Counter(outcome.kind for outcome in outcomes)
    refused = 2 * len(BAD_WRITES) + len(UNREADABLE) + 2
    assert kinds == {"acknowledged": 2 * FRESH + RETRIED, "replayed": 2 * RETRIED, "refused": refused}
    acknowledged = {outcome.id for outcome in outcomes if outcome.kind == "acknowledged"}
    assert ids_on_disk(service.database) - before == acknowledged
    assert {outcome.id for outcome in outcomes if outcome.kind == "replayed"} <= acknowledged


def test_statistics_tell_the_same_as_the_callers_were_told(service: Service) -> None:
    kinds = Counter(attempt().kind for attempt in mixed_attempts(service))
    stats = service.stats()
    counted = stats["writes"]["long"]
    assert counted == {
        "issued": sum(kinds.values()) - len(UNREADABLE),
        "acknowledged": kinds["acknowledged"],
        "replayed": kinds["replayed"],
        "refused": kinds["refused"] - len(UNREADABLE),
        "unknown": 0,
        "in_flight": 0,
    }
    assert stats["refused"] == kinds["refused"]
    assert len(service.events("rejected")) == kinds["refused"]
    assert stats["store"]["rows"]["long"] == kinds["acknowledged"]


def test_request_id_with_other_content_writes_nothing(service: Service) -> None:
    assert service.database is not None
    first = {"agent": "sol", "fact": "The first.", "request_id": "one"}
    assert rest_write(service, first).kind == "acknowledged"
    status, body = service.rest("POST", "/v1/long", first | {"fact": "The second."})
    assert (status, body["error"]["code"]) == (409, "conflict")
    assert mcp_write(service, first | {"fact": "The third."}).kind == "refused"
    assert rows(service.database, "SELECT fact FROM memory_longterm") == [("The first.",)]


def test_replay_after_kill_and_restart_is_no_new_row(database: Path) -> None:
    facts = [{"agent": "mira", "fact": f"Fact {number}.", "request_id": f"id-{number}"} for number in range(10)]
    with serving(database) as first:
        written = [rest_write(first, fact) for fact in facts]
        first.kill()
    with serving(database) as second:
        replayed = [mcp_write(second, fact) for fact in facts]
        assert [(outcome.kind, outcome.id) for outcome in replayed] == [("replayed", was.id) for was in written]
        assert ids_on_disk(database) == {outcome.id for outcome in written}


def leave_after_sending(service: Service, body: dict[str, Any]) -> None:
    """Send one write and close the connection without waiting for the answer."""
    content = json.dumps(body).encode()
    head = (
        f"POST /v1/long HTTP/1.1\r\nHost: 127.0.0.1:{service.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", service.port), timeout=5) as connection:
        connection.sendall(head.encode() + content)


def test_caller_that_left_and_retried_wrote_once(service: Service) -> None:
    assert service.database is not None
    facts = [{"agent": "sol", "fact": f"Left {number}.", "request_id": f"left-{number}"} for number in range(20)]
    for fact in facts:
        leave_after_sending(service, fact)
    retried = [rest_write(service, fact) for fact in facts]
    assert {outcome.kind for outcome in retried} <= {"acknowledged", "replayed"}
    written = rows(service.database, "SELECT fact FROM memory_longterm ORDER BY fact")
    assert written == sorted((fact["fact"],) for fact in facts)
    eventually(lambda: service.stats()["writes"]["long"]["in_flight"] == 0)
    counted = service.stats()["writes"]["long"]
    ends = ("acknowledged", "replayed", "refused", "unknown")
    assert counted["issued"] == sum(counted[end] for end in ends)


# --- 6: degraded mode ---


@pytest.fixture(scope="module")
def remembered(shared_service: Service) -> Service:
    """A service that holds one fact of atlas."""
    shared_service.long("atlas", "The quorum of the vault cluster is three.")
    return shared_service


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_recall_without_embedder_says_so_and_still_returns_rows(remembered: Service, method: str) -> None:
    question = {"agent": "sol", "q": "quorum of the vault"}
    where = {"params": question} if method == "GET" else {"json": question}
    response = remembered.http.request(method, remembered.url + "/v1/recall", **where)
    body = response.json()
    assert response.status_code == 200
    assert response.headers["X-Memory-Degraded"] == "true"
    assert (body["degraded"], body["degraded_reasons"]) == (True, ["no_embedder"])
    assert [found["agent"] for found in body["results"]] == ["atlas"]


def test_degraded_recall_that_matches_nothing_is_told_apart(remembered: Service) -> None:
    response = remembered.http.get(remembered.url + "/v1/recall", params={"agent": "sol", "q": "unheardof"})
    assert response.status_code == 200
    assert response.headers["X-Memory-Degraded"] == "true"
    assert (response.json()["degraded"], response.json()["results"]) == (True, [])


@pytest.mark.parametrize("q", ["quorum of the vault", "unheardof"])
def test_degraded_recall_over_mcp_is_no_error(remembered: Service, q: str) -> None:
    is_error, body = remembered.mcp("recall", {"agent": "sol", "q": q})
    assert not is_error
    assert (body["ok"], body["degraded"], body["degraded_reasons"]) == (True, True, ["no_embedder"])
    assert len(body["results"]) == (q != "unheardof")
