"""Agents and the swarm's files over MCP and REST: a worker's own is its own, the fleet's is everybody's."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigurationError
from tests.acceptance.swarm_files import (
    beside,
    done,
    files_now,
    memory_of,
    post,
    refusal,
    shared_of,
    summary_shows,
)
from tests.support import AGENTS, Service, fresh_database, serving
from transport.settings import Settings, swarm_of

WAYS = ("mcp", "rest")
NO_WORKER = "no worker's name"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fleet in which main orchestrates, worker swarm5 is the agent mira, and worker atlas the agent ace."""
    env = {"SOLOS_MEMORY_ORCHESTRATORS": f"main,{NO_WORKER}", "SOLOS_MEMORY_SWARM_WORKERS": "Swarm5=mira, atlas=ace"}
    database = fresh_database(tmp_path_factory.mktemp("fleet"), agents=(*AGENTS, NO_WORKER))
    with serving(database, env=env) as running:
        yield running


def shown(answer: dict[str, Any]) -> dict[str, str]:
    """The files of an answer by name."""
    return {file["name"]: file["content"] for file in answer.get("files", [])}


# --- writing ---


@pytest.mark.parametrize("way", WAYS)
def test_a_worker_writes_its_own_memory(fleet: Service, way: str) -> None:
    mission = f"own-{way}"
    event = {"state": "REVIEW", "decisions": ["use the left gate"]}
    sent = {"agent": "sol", "kind": "mission", "mission": mission, "event_type": "checkpoint", "summary": "at the gate"}
    written = done(fleet, way, "swarm_write", **sent, event=event, assignment="a-1")
    assert (written["workerId"], written["missionId"]) == ("sol", mission)
    page = summary_shows(fleet, "sol", mission, "- Status: review").splitlines()
    assert {"- use the left gate", "- Current assignment: a-1"} <= set(page)
    handoff = done(fleet, way, "swarm_write", agent="sol", kind="handoff", mission=mission, content="next: ship\r\n")
    assert Path(handoff["localPath"]).read_bytes() == b"next: ship\r\n"
    assert Path(handoff["sharedPath"]).read_bytes() == b"next: ship\r\n"
    done(fleet, way, "swarm_write", agent="sol", kind="episodic", summary=f"an episode by {way}")
    answer = done(fleet, way, "swarm_write", agent="sol", kind="profile", content=f"- learnt by {way}\n")
    assert Path(answer["path"]) == memory_of(fleet, "sol") / "MEMORY.md"
    assert f"- learnt by {way}" in shown(done(fleet, way, "swarm_read", agent="sol", kind="profile"))["MEMORY.md"]
    (episodes,) = shown(done(fleet, way, "swarm_read", agent="sol", kind="episodic")).values()
    assert f"- Summary: an episode by {way}" in episodes


@pytest.mark.parametrize("way", WAYS)
def test_nobody_writes_for_another_worker(fleet: Service, way: str) -> None:
    before = files_now(fleet)
    for field in ("worker", "workerId"):
        sent = {"agent": "sol", "kind": "profile", "content": "I was here", field: "main"}
        code, text = refusal(fleet, way, "swarm_write", **sent)
        assert (code, text) == ("invalid_request", f"{field}: is no argument of this operation.")
    assert files_now(fleet) == before


@pytest.mark.parametrize("way", WAYS)
def test_shared_memory_is_written_by_orchestrators_alone(fleet: Service, way: str) -> None:
    before = files_now(fleet)
    code, text = refusal(fleet, way, "swarm_write", agent="sol", kind="shared", content="for all")
    assert (code, text[:6], "orchestrators" in text) == ("forbidden", "kind: ", True)
    assert files_now(fleet) == before
    for agent in ("main", NO_WORKER):
        done(fleet, way, "swarm_write", agent=agent, kind="shared", file=f"{way}.md", content=f"by {agent}\n")
    assert (shared_of(fleet) / "swarm" / f"{way}.md").read_text("utf-8") == f"by main\nby {NO_WORKER}\n"
    assert shown(done(fleet, way, "swarm_read", agent="sol", kind="shared"))[f"{way}.md"]


def test_without_the_setting_nobody_writes_shared_memory(service: Service) -> None:
    for agent in ("main", "sol"):
        assert refusal(service, "mcp", "swarm_write", agent=agent, kind="shared", content="x")[0] == "forbidden"
    assert files_now(service) == {}


# --- reading ---


@pytest.mark.parametrize("way", WAYS)
def test_profile_and_episodes_are_the_worker_s_own(fleet: Service, way: str) -> None:
    post(fleet, workerId="main", scaffold=True)
    post(fleet, workerId="main", kind="episodic", summary="a private episode")
    for kind in ("profile", "episodic"):
        code, text = refusal(fleet, way, "swarm_read", agent="sol", kind=kind, worker="MAIN")
        assert (code, text) == ("forbidden", f"worker: the {kind} memory of main is read by main alone.")
        assert shown(done(fleet, way, "swarm_read", agent="main", kind=kind, worker="main"))


@pytest.mark.parametrize("way", WAYS)
def test_missions_handoffs_and_shared_memory_are_the_fleet_s(fleet: Service, way: str) -> None:
    post(fleet, workerId="swarm-5", kind="mission", missionId="open", summary="seen by all")
    post(fleet, workerId="swarm-5", kind="handoff", missionId="open", content="to whom it may concern")
    post(fleet, kind="shared", file=f"all-{way}.md", content="for all")
    summary_shows(fleet, "swarm-5", "open", "- Status: planning")
    for agent in ("sol", "main", NO_WORKER):
        of = {"agent": agent, "worker": "swarm-5"}
        assert (
            "seen by all" in shown(done(fleet, way, "swarm_read", kind="mission", mission="open", **of))["SUMMARY.md"]
        )
        assert list(shown(done(fleet, way, "swarm_read", kind="handoff", **of))) == ["open.md"]
        assert shown(done(fleet, way, "swarm_read", kind="shared", agent=agent))[f"all-{way}.md"] == "for all"


@pytest.mark.parametrize("way", WAYS)
def test_an_unregistered_agent_is_refused(fleet: Service, way: str) -> None:
    before = files_now(fleet)
    for tool, sent in (
        ("swarm_write", {"kind": "episodic", "summary": "x"}),
        ("swarm_read", {"kind": "shared"}),
        ("swarm_search", {"query": "x"}),
    ):
        assert refusal(fleet, way, tool, agent="ghost", **sent)[0] == "unknown_agent"
        assert refusal(fleet, way, tool, **sent) == ("invalid_request", "agent: is missing or empty.")
    assert files_now(fleet) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_setting_maps_workers_to_agents_of_other_names(fleet: Service, way: str) -> None:
    written = done(fleet, way, "swarm_write", agent="mira", kind="episodic", summary=f"mira by {way}")
    assert written["workerId"] == "swarm5"
    (page,) = shown(done(fleet, way, "swarm_read", agent="mira", kind="episodic", worker="swarm5")).values()
    assert f"mira by {way}" in page
    assert not (beside(fleet) / "profiles" / "mira").exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_mapped_worker_is_its_agent_s_alone(fleet: Service, way: str) -> None:
    """The agent atlas is registered, but the worker atlas is the agent ace: its memory is not atlas's."""
    done(fleet, way, "swarm_write", agent="ace", kind="episodic", summary="of worker atlas")
    before = files_now(fleet)
    for tool, sent in (
        ("swarm_read", {"kind": "episodic", "worker": "atlas"}),
        ("swarm_read", {"kind": "profile"}),
        ("swarm_write", {"kind": "episodic", "summary": "x"}),
        ("swarm_search", {"query": "x", "scope": "worker"}),
    ):
        assert refusal(fleet, way, tool, agent="atlas", **sent)[0] == "forbidden"
    assert files_now(fleet) == before


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_that_is_no_worker_is_told_which_setting_makes_it_one(fleet: Service, way: str) -> None:
    code, text = refusal(fleet, way, "swarm_write", agent=NO_WORKER, kind="episodic", summary="x")
    assert (code, text[:7], "swarm_workers" in text) == ("forbidden", "agent: ", True)


# --- searching ---


def found(answer: dict[str, Any]) -> set[str]:
    """What the results of a search are of, as `profile`, `episodes`, `missions`, `handoffs` or `shared`."""
    return {
        next(part for part in ("missions", "handoffs", "episodes", "shared", "profiles") if f"/{part}/" in hit["path"])
        for hit in answer.get("results", [])
    }


@pytest.fixture(scope="module")
def searched(fleet: Service) -> Service:
    """The word quoll stands in the profile, an episode, a mission and a handoff of swarm-5, and in shared memory."""
    of = {"workerId": "swarm-5"}
    post(fleet, **of, kind="profile", content="quoll in the profile")
    post(fleet, **of, kind="episodic", summary="quoll in an episode")
    post(fleet, **of, kind="mission", missionId="q", title="quoll in the mission")
    post(fleet, **of, kind="handoff", missionId="q", content="quoll in the handoff", mirrorShared=False)
    post(fleet, kind="shared", file="q.md", content="quoll in shared memory")
    summary_shows(fleet, "swarm-5", "q", "# Mission q — quoll in the mission")
    return fleet


@pytest.mark.parametrize("way", WAYS)
def test_a_search_never_shows_another_worker_s_profile_or_episodes(searched: Service, way: str) -> None:
    for agent in ("sol", "mira", "main", NO_WORKER):
        for scope in ("all", "shared"):
            answer = done(searched, way, "swarm_search", agent=agent, query="quoll", scope=scope, limit=50, fresh=True)
            told = json.dumps(answer)
            assert "in the profile" not in told
            assert "in an episode" not in told
            assert found(answer) == ({"missions", "handoffs", "shared"} if scope == "all" else {"shared"})
    own = done(searched, way, "swarm_search", agent="sol", query="quoll", scope="worker", fresh=True)
    assert found(own) == set()


@pytest.mark.parametrize("way", WAYS)
def test_a_search_shows_a_worker_its_own(searched: Service, way: str) -> None:
    everything = {"profiles", "episodes", "missions", "handoffs"}
    own = done(searched, way, "swarm_search", agent="swarm-5", query="quoll", scope="worker", limit=50, fresh=True)
    assert found(own) == everything
    both = done(searched, way, "swarm_search", agent="swarm-5", query="quoll", limit=50, fresh=True)
    assert found(both) == everything | {"shared"}


# --- who calls, and how it is told ---


def test_the_header_names_the_caller(fleet: Service) -> None:
    header = {"X-Agent-Id": "sol"}
    status, answer = fleet.rest("POST", "/v1/swarm", {"kind": "episodic", "summary": "by header"}, headers=header)
    assert (status, answer["workerId"]) == (201, "sol")
    error, by_mcp = fleet.mcp("swarm_write", {"kind": "episodic", "summary": "by header"}, **header)
    assert (error, by_mcp["workerId"]) == (False, "sol")
    error, other = fleet.mcp("swarm_read", {"agent": "main", "kind": "profile"}, **header)
    assert (error, other["error"]["code"]) == (False, "forbidden")
    status, other = fleet.rest("GET", "/v1/swarm", headers=header, agent="main", kind="profile")
    assert (status, other["error"]["code"]) == (403, "forbidden")


def test_the_header_idempotency_key_makes_a_retry_safe(fleet: Service) -> None:
    header = {"X-Agent-Id": "sol", "Idempotency-Key": "k-1"}
    body = {"kind": "mission", "mission": "idem", "summary": "once"}
    first = fleet.rest("POST", "/v1/swarm", body, headers=header)[1]
    again = fleet.rest("POST", "/v1/swarm", body, headers=header)[1]
    assert (first["replayed"], again["replayed"], again["at"]) == (False, True, first["at"])
    status, other = fleet.rest("POST", "/v1/swarm", {**body, "summary": "twice"}, headers=header)
    assert (status, other["error"]["code"], other["error"]["detail"][:12]) == (409, "conflict", "request_id: ")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("tool", "field", "sent"),
    [
        ("swarm_read", "worker", {"kind": "mission", "worker": "../x"}),
        ("swarm_read", "mission", {"kind": "mission", "mission": "a/b"}),
        ("swarm_read", "date", {"kind": "episodic", "date": "today"}),
        ("swarm_read", "kind", {"kind": "diary"}),
        ("swarm_write", "mission", {"kind": "mission", "summary": "x"}),
        ("swarm_write", "mission", {"kind": "handoff", "content": "x", "mission": "a/b"}),
        ("swarm_write", "event_type", {"kind": "mission", "mission": "m", "event_type": "finished"}),
        ("swarm_write", "content", {"kind": "episodic"}),
        ("swarm_write", "base_hash", {"kind": "episodic", "content": "x", "base_hash": "0" * 64}),
        ("swarm_write", "request_id", {"kind": "profile", "content": "x", "request_id": "r"}),
        ("swarm_write", "file", {"kind": "profile", "content": "x", "file": "../../up.md"}),
        ("swarm_write", "event", {"kind": "mission", "mission": "m", "event": "no object"}),
        ("swarm_search", "query", {"query": " "}),
        ("swarm_search", "limit", {"query": "x", "limit": 51}),
    ],
)
def test_a_refusal_names_the_field_as_agents_spell_it(
    fleet: Service, way: str, tool: str, field: str, sent: dict[str, Any]
) -> None:
    before = files_now(fleet)
    code, text = refusal(fleet, way, tool, agent="main", **sent)
    assert (code, text.partition(":")[0]) == ("invalid_request", field)
    for spelling in ("workerId", "missionId", "eventType", "baseHash", "requestId"):
        assert spelling not in text
    assert files_now(fleet) == before


@pytest.mark.parametrize("way", WAYS)
def test_a_page_that_changed_meanwhile_is_a_conflict(fleet: Service, way: str) -> None:
    done(fleet, way, "swarm_write", agent="swarm-5", kind="profile", content="- mine\n")
    page = memory_of(fleet, "swarm-5") / "MEMORY.md"
    before = page.read_bytes()
    sent = {"agent": "swarm-5", "kind": "profile", "content": "all new", "base_hash": "0" * 64}
    code, text = refusal(fleet, way, "swarm_write", **sent)
    assert (code, text.partition(":")[0]) == ("conflict", "base_hash")
    assert page.read_bytes() == before


@pytest.mark.parametrize(
    "pairs", [("swarm5",), ("swarm5=",), ("=mira",), ("sw arm=mira",), ("a=mira", "A=sol"), ("a=mira", "b=mira")]
)
def test_a_malformed_pair_of_worker_and_agent_stops_the_start(pairs: tuple[str, ...]) -> None:
    with pytest.raises(ConfigurationError, match="swarm_workers: "):
        swarm_of(Settings(swarm_workers=pairs), {})
