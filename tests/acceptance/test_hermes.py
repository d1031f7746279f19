"""The real Hermes client on a fleet's database: section 11, checks 2, 3 and 4 as its model sees them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance import clients
from tests.acceptance.clients import Hermes, hermes
from tests.support import Service, eventually, rows, serving

TOOLS = {
    "recall",
    "briefing",
    "get_memory",
    "remember_short",
    "get_short",
    "forget_short",
    "remember_long",
    "remember_episodic",
    "swarm_read",
    "swarm_write",
    "swarm_search",
    "swarm_resume",
    "stats",
}
DISCOVERY_WITHIN_S = 1.0
REPLY_CHARS_ABOUT = 8_500


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on a copy of the fleet's database, with its index complete."""
    copy = tmp_path_factory.mktemp("fleet") / "solos.db"
    shutil.copyfile(clients.fleet_database(), copy)
    with serving(copy) as service:
        eventually(lambda: service.stats()["store"]["index_share"] == 1.0, within_s=120)
        yield service


def facts(service: Service) -> int:
    """How many facts another process counts."""
    assert service.database is not None
    ((count,),) = rows(service.database, "SELECT count(*) FROM memory_longterm")
    return int(count)


def test_hermes_discovers_the_tools_in_under_a_second(
    fleet: Service, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with hermes(tmp_path, fleet.url, "sol") as sol:
        with capsys.disabled():
            print(f"\nHermes discovered {len(sol.names)} tools in {sol.discovery_s:.3f} s")
        assert sol.tools == TOOLS
        assert len(sol.names) == len(TOOLS), "no wrapper tools of prompts or resources"
        (status,) = sol.status
        assert (status["connected"], status["tools"]) == (True, len(TOOLS))
        assert sol.discovery_s < DISCOVERY_WITHIN_S


def test_model_sees_each_tool_described_and_none_raises_a_warning(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "sol") as sol:
        for tool in sorted(TOOLS):
            schema = sol.schema(tool)
            assert schema["description"]
            assert "agent" not in schema["parameters"].get("required", []), "the header may name the caller"
        assert "suspicious" not in sol.log, "a description that looks like an injection raises a warning"


def test_sol_recalls_what_mira_wrote_a_moment_ago(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "sol") as sol, hermes(tmp_path, fleet.url, "mira") as mira:
        written = mira.call("remember_long", fact="The umbriel gateway answers on port 18791.", topic="network")
        found = sol.call("recall", q="which port does the umbriel gateway use", k=5)
        assert found["degraded"]
        (first, *_) = found["results"]
        assert (first["id"], first["agent"]) == (written["id"], "mira")
        whole = sol.call("get_memory", id=first["id"])
        assert whole["text"] == "The umbriel gateway answers on port 18791."


def test_fresh_profile_recalls_what_was_written_before_it_started(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "mira") as mira:
        written = mira.call("remember_episodic", summary="Moved the umbriel archive to lab-77.", event_type="deploy")
    with hermes(tmp_path, fleet.url, "sol") as sol:
        found = sol.call("recall", q="umbriel archive")
        assert (found["results"][0]["id"], found["results"][0]["agent"]) == (written["id"], "mira")


def test_known_items_of_the_fleet_are_found_through_hermes(fleet: Service, tmp_path: Path) -> None:
    path = Path(f"{clients.fleet_database()}.queries.jsonl")
    questions = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    plain = [question for question in questions if question["category"] == "plain"][:10]
    assert plain
    with hermes(tmp_path, fleet.url, "sol") as sol:
        for question in plain:
            found = sol.call("recall", q=question["q"], k=5)
            ids = {result["id"] for result in found["results"]}
            assert ids & {f"long:{gold[1:]}" for gold in question["gold"]}, question


def test_broad_recall_fits_into_what_a_model_reads(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "sol") as sol:
        text = sol.seen("recall", q="restarted relay incident certificate", k=50)["result"]
        assert len(text) <= REPLY_CHARS_ABOUT
        assert json.loads(text)["results"]


def test_rows_grow_by_exactly_the_writes_acknowledged(fleet: Service, tmp_path: Path) -> None:
    before = facts(fleet)
    with hermes(tmp_path, fleet.url, "mira") as mira, hermes(tmp_path, fleet.url, "ghost") as ghost:
        answers = [mira.call("remember_long", fact=f"Umbriel fact {number}.") for number in range(5)]
        answers += [mira.call("remember_long", fact="Umbriel retried.", request_id="umbriel-1") for _ in range(3)]
        answers += [mira.call("remember_long", fact="Umbriel other.", request_id="umbriel-1")]
        answers += [mira.call("remember_long", fact="Umbriel as sol.", agent="sol")]
        answers += [mira.call("remember_long", fact="")]
        answers += [ghost.call("remember_long", fact="Umbriel by nobody.")]
    acknowledged = [answer for answer in answers if answer["ok"] and not answer["replayed"]]
    assert len(acknowledged) == 6
    assert sum(not answer["ok"] for answer in answers) == 4
    assert facts(fleet) - before == len(acknowledged)


def refusals_of_a_known_agent(gateway: Hermes) -> list[dict[str, Any]]:
    """Four refusals, each for another reason, that a caller can mend."""
    return [
        gateway.call("remember_long", fact="x", agent="sol"),
        gateway.call("recall", q=""),
        gateway.call("get_memory", id="long:999999999"),
        gateway.call("get_memory", id="durable:1"),
    ]


def refusals_of_an_unknown_agent(gateway: Hermes) -> list[dict[str, Any]]:
    """Four refusals for one reason."""
    return [gateway.call("remember_long", fact=f"Fact {number}.") for number in range(4)]


def test_four_refusals_do_not_open_the_breaker(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "mira") as mira:
        refused = refusals_of_a_known_agent(mira)
        assert [answer["error"]["code"] for answer in refused] == [
            "forbidden",
            "invalid_request",
            "not_found",
            "forbidden",
        ]
        assert mira.call("recall", q="gateway port")["ok"]


def test_four_refusals_of_an_unknown_agent_do_not_open_the_breaker(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "ghost") as ghost:
        refused = refusals_of_an_unknown_agent(ghost)
        assert {answer["error"]["code"] for answer in refused} == {"unknown_agent"}
        assert "ghost" in refused[0]["error"]["detail"]
        assert ghost.call("recall", q="gateway port")["ok"]


def test_argument_names_the_caller_where_the_header_is_dropped(fleet: Service, tmp_path: Path) -> None:
    with hermes(tmp_path, fleet.url, "plain", Accept_Language="en") as plain:
        assert plain.call("remember_long", fact="Umbriel without a header.", agent="mira")["agent"] == "mira"
        assert plain.call("remember_long", fact="Umbriel of nobody.")["error"]["code"] == "invalid_request"


def test_gateway_goes_on_after_the_service_restarted(database: Path, tmp_path: Path) -> None:
    with serving(database) as first:
        port = first.port
        gateway = Hermes(tmp_path / "home", first.url, {"X-Agent-Id": "sol"})
        written = gateway.call("remember_long", fact="Umbriel survives.")
    try:
        with serving(database, port=port):
            found = gateway.call("recall", q="umbriel survives")
            assert [result["id"] for result in found["results"]] == [written["id"]]
    finally:
        gateway.close()


def test_missing_hermes_is_a_failure_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOLOS_TEST_HERMES", str(tmp_path / "python"))
    with pytest.raises(AssertionError, match="make test"):
        Hermes(tmp_path / "home", "http://127.0.0.1:1", {})
