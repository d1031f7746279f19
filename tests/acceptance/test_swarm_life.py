"""The operations of a worker's life as their callers see them: over REST, MCP and the command line, with refusals."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.swarm.life.records import BUDGET_CHARS_MAX, BUDGET_CHARS_MIN
from tests.acceptance.swarm_files import (
    PAGE,
    asked,
    done,
    files_now,
    get,
    memory_of,
    post,
    refusal,
    shared_of,
    summary_shows,
    tree,
)
from tests.support import AGENTS, Service, eventually, fresh_database, rows, serving

WAYS = ("mcp", "rest")
NO_WORKER = "no worker's name"
ROSTER = """\
workers:
- {id: roofer, name: Rufa, role: roofer, specialty: "slates, gutters and chimneys"}
- id: baker
  name: Basil
  role: baker
  specialty: sourdough and rye
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fleet in which worker swarm5 is the agent mira, and worker atlas the agent ace, with a roster of two others."""
    folder = tmp_path_factory.mktemp("fleet")
    (folder / "workspace").mkdir()
    (folder / "workspace" / "swarm.yaml").write_text(ROSTER, "utf-8")
    env = {
        "SOLOS_MEMORY_SWARM_WORKERS": "Swarm5=mira, atlas=ace",
        "SOLOS_MEMORY_SWARM_WORKSPACE": str(folder / "workspace"),
    }
    with serving(fresh_database(folder, agents=(*AGENTS, NO_WORKER)), env=env) as running:
        yield running


def page_refusal(service: Service, method: str, path: str, **sent: Any) -> tuple[int, str, str]:
    """(status, code, text) of what the operator's page refuses, having written nothing."""
    before = files_now(service)
    if method == "POST":
        status, answer = service.rest("POST", PAGE + path, sent)
    else:
        status, answer = service.rest("GET", PAGE + path, **sent)
    assert answer["ok"] is False, answer
    assert answer["hint"]
    assert files_now(service) == before
    return status, answer["code"], answer["error"]


def texts(answer: dict[str, Any]) -> dict[str, str]:
    """The contents of the parts of a resume or briefing, by their names."""
    found: dict[str, str] = {}
    for part in answer["parts"]:
        found[part["name"]] = found.get(part["name"], "") + part["content"]
    return found


def is_at(service: Service, worker: str, mission: str) -> None:
    """Let a worker's runtime.json name its mission."""
    folder = memory_of(service, worker).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "runtime.json").write_text(json.dumps({"currentMissionId": mission}), "utf-8")


def handoff(worker: str, mission: str, action: str) -> str:
    """A handoff's page."""
    return f"# Handoff — {worker} — {mission}\n\n## Next exact action\n\n{action}\n"


# --- resume ---


@pytest.fixture(scope="module")
def resumed(fleet: Service) -> Service:
    """Worker swarm5, with all parts, is at the mission `gate`, which worker swarm-5 left; both have private texts."""
    for worker in ("swarm5", "swarm-5"):
        post(fleet, workerId=worker, scaffold=True)
        post(fleet, workerId=worker, kind="profile", content=f"- the secret of {worker}\n")
        post(fleet, workerId=worker, kind="episodic", summary=f"gate: the diary of {worker}")
    post(fleet, "/hooks/dispatch", workerId="swarm5", missionId="gate", summary="open it", event={"objective": "Open."})
    post(fleet, kind="handoff", workerId="swarm-5", missionId="gate", content=handoff("swarm-5", "gate", "Oil it."))
    is_at(fleet, "swarm5", "gate")
    return fleet


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_resumes_as_the_worker_that_it_is(resumed: Service, way: str) -> None:
    answer = done(resumed, way, "swarm_resume", agent="mira")
    assert (answer["workerId"], answer["missionId"], answer.get("missing", [])) == ("swarm5", "gate", [])
    assert list(texts(answer)) == ["identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"]
    assert "Oil it." in answer["prompt"]
    assert "the secret of swarm5" in texts(answer)["memory"]
    assert "the diary of swarm5" in texts(answer)["episodes"]
    assert "swarm-5" not in "".join(content for name, content in texts(answer).items() if name != "handoff")


def test_a_resume_on_the_command_line_is_that_of_rest(resumed: Service) -> None:
    code, answer = resumed.cli("swarm", "resume", "--agent", "mira", "--mission", "gate", "--budget", "4000")
    assert code == 0
    assert answer == resumed.rest("GET", "/v1/swarm/resume", agent="mira", mission="gate", budget=4000)[1]
    code, answer = resumed.cli("swarm", "load", "swarm5", "--mission-id", "gate", "--budget", "4000")
    assert (code, answer["budget"], answer["missionId"]) == (0, 4000, "gate")
    assert answer == get(resumed, "/resume", workerId="swarm5", missionId="gate", budget=4000)


@pytest.mark.parametrize("way", WAYS)
def test_another_worker_s_resume_is_not_to_be_had_by_an_agent(resumed: Service, way: str) -> None:
    for field in ("worker", "workerId"):
        sent = {"agent": "sol", field: "swarm5"}
        assert refusal(resumed, way, "swarm_resume", **sent) == (
            "invalid_request",
            f"{field}: is no argument of this operation.",
        )
    header = {"X-Agent-Id": "sol"}
    if way == "mcp":
        answer = resumed.mcp("swarm_resume", {"agent": "mira"}, **header)[1]
    else:
        answer = resumed.rest("GET", "/v1/swarm/resume", headers=header, agent="mira")[1]
    assert answer["error"]["code"] == "forbidden"
    whole = json.dumps(done(resumed, way, "swarm_resume", agent="sol", mission="gate"))
    assert "Oil it." in whole
    for private in ("the secret of", "the diary of"):
        assert private not in whole


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("agent", [NO_WORKER, "atlas"])
def test_an_agent_that_is_no_worker_cannot_resume(resumed: Service, way: str, agent: str) -> None:
    """The worker atlas is the agent ace's, so that the agent atlas is none."""
    code, text = refusal(resumed, way, "swarm_resume", agent=agent)
    assert (code, text.partition(":")[0], "swarm_workers" in text) == ("forbidden", "agent", True)


@pytest.mark.parametrize("way", WAYS)
def test_an_agent_that_is_not_registered_cannot_resume(resumed: Service, way: str) -> None:
    assert refusal(resumed, way, "swarm_resume", agent="ghost")[0] == "unknown_agent"
    assert refusal(resumed, way, "swarm_resume") == ("invalid_request", "agent: is missing or empty.")


def test_the_operator_reads_any_worker_s_resume(resumed: Service) -> None:
    for worker in ("swarm5", "Swarm-5"):
        answer = get(resumed, "/resume", workerId=worker, missionId="GATE")
        assert (answer["workerId"], answer["missionId"]) == (worker.lower(), "gate")
        assert f"the secret of {worker.lower()}" in texts(answer)["memory"]
    before = files_now(resumed)
    nobody = get(resumed, "/resume", workerId="never-made")
    assert (nobody["parts"], nobody["missionId"]) == ([], None)
    names = ["identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"]
    assert [part["name"] for part in nobody["missing"]] == names
    assert all(part["reason"] for part in nobody["missing"])
    assert files_now(resumed) == before


@pytest.mark.parametrize("budget", [BUDGET_CHARS_MIN, 6_000, 16_000, BUDGET_CHARS_MAX])
def test_a_resume_keeps_its_budget_and_the_newest(fleet: Service, budget: int) -> None:
    worker = f"long-{budget}"
    post(fleet, workerId=worker, scaffold=True)
    for file in ("MEMORY.md", "SOUL.md", "IDENTITY.md"):
        post(
            fleet, workerId=worker, kind="profile", file=file, content="".join(f"- {file} {n}\n" for n in range(2_000))
        )
    for number in range(40):
        sent = {"workerId": worker, "missionId": "m", "summary": f"step {number}: " + "up " * 20}
        post(fleet, "/hooks/checkpoint", **sent, event={"decisions": [f"decided {number}: " + "so " * 60]})
    text = handoff(worker, "m", "Ring the bell.") + "\n## Completed\n\n" + "- something else\n" * 3_000
    post(fleet, kind="handoff", workerId=worker, missionId="m", content=text)
    is_at(fleet, worker, "m")
    answer = get(fleet, "/resume", workerId=worker, budget=budget)
    assert answer["chars"] == len(answer["prompt"]) + sum(len(part["content"]) for part in answer["parts"])
    assert budget // 2 < answer["chars"] <= budget == answer["budget"]
    assert "Ring the bell." in answer["prompt"]
    assert "Ring the bell." in texts(answer)["handoff"]
    assert "step 39: " in texts(answer)["summary"] + texts(answer)["episodes"]
    assert {part["name"] for part in answer["parts"] if part["cut"]} >= {"identity", "soul", "memory", "handoff"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("field", "value"),
    [("budget", 1_999), ("budget", 48_001), ("budget", "much"), ("mission", "a/b"), ("fresh", "true")],
)
def test_a_bad_resume_names_its_field(fleet: Service, way: str, field: str, value: Any) -> None:
    code, text = refusal(fleet, way, "swarm_resume", agent="sol", **{field: value})
    assert (code, text.partition(":")[0]) == ("invalid_request", field)
    assert "missionId" not in text


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("workerId", {}),
        ("workerId", {"workerId": "../x"}),
        ("missionId", {"workerId": "sol", "missionId": "a/b"}),
        ("budget", {"workerId": "sol", "budget": "0"}),
        ("agent", {"workerId": "sol", "agent": "sol"}),
    ],
)
def test_a_bad_resume_of_the_page_names_its_field(fleet: Service, field: str, sent: dict[str, str]) -> None:
    status, code, text = page_refusal(fleet, "GET", "/resume", **sent)
    assert (status, code, text.partition(":")[0]) == (400, "invalid_request", field)


# --- renewal ---


def renew(service: Service, worker: str, step: str, **more: Any) -> dict[str, Any]:
    """The answer of a step of a renewal that must succeed."""
    return post(service, "/renew", workerId=worker, step=step, **more)


def not_renewed(service: Service, worker: str, step: str, **more: Any) -> tuple[int, str, str]:
    """(status, code, text) of a step that must be refused."""
    return page_refusal(service, "POST", "/renew", workerId=worker, step=step, **more)


def events(service: Service, worker: str, mission: str) -> list[dict[str, Any]]:
    """A mission's log."""
    log = memory_of(service, worker) / "missions" / mission / "events.jsonl"
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


def test_a_renewal_has_three_steps_and_each_is_an_event(fleet: Service) -> None:
    is_at(fleet, "renewed", "m")
    requested = renew(fleet, "renewed", "request", timeoutS=90, assignmentId="a-1", event={"state": "FULL"})
    assert (requested["state"], requested["missionId"], requested["resume"]) == ("requested", "m", None)
    assert requested["dueAt"] > requested["requestedAt"] == requested["at"]
    written = renew(fleet, "renewed", "written", content=handoff("renewed", "m", "Turn the key."))
    assert (written["state"], len(written["handoffHash"])) == ("written", 64)
    resumed = renew(fleet, "renewed", "resume", handoffHash=written["handoffHash"], budget=3_000)
    assert (resumed["state"], resumed["handoffHash"]) == ("resumed", written["handoffHash"])
    assert (resumed["resume"]["budget"], "Turn the key." in resumed["resume"]["prompt"]) == (3_000, True)
    told = events(fleet, "renewed", "m")
    assert [event["type"] for event in told] == ["handoff-requested", "handoff-written", "resume"]
    assert (told[0]["assignmentId"], told[0]["event"]) == ("a-1", {"state": "FULL", "timeoutS": 90})
    again = renew(fleet, "renewed", "resume")
    assert (again["replayed"], again["at"]) == (True, resumed["at"])
    assert len(events(fleet, "renewed", "m")) == 3


def test_a_worker_writes_the_requested_handoff_over_mcp(fleet: Service) -> None:
    renew(fleet, "main", "request", missionId="by-mcp")
    sent = {"agent": "main", "kind": "handoff", "mission": "by-mcp", "content": handoff("main", "by-mcp", "Knock.")}
    written = done(fleet, "mcp", "swarm_write", **sent)
    resumed = renew(fleet, "main", "resume", missionId="by-mcp", handoffHash=written["hash"])
    assert "Knock." in resumed["resume"]["prompt"]
    types = [event["type"] for event in events(fleet, "main", "by-mcp")]
    assert types == ["handoff-requested", "handoff-written", "resume"]


def test_a_handoff_that_is_not_there_is_awaited_and_then_no_more(fleet: Service) -> None:
    sent = {"workerId": "late", "missionId": "m", "step": "resume"}
    renew(fleet, "late", "request", missionId="m", timeoutS=60)
    response = fleet.http.post(f"{fleet.url}{PAGE}/renew", json=sent)
    assert (response.status_code, response.headers["Retry-After"]) == (409, "5")
    assert (response.json()["code"], response.json()["retry_after_s"]) == ("conflict", 5)
    assert "is awaited until" in response.json()["error"]
    renew(fleet, "too-late", "request", missionId="m", timeoutS=0.05)

    def over() -> bool:
        return (
            "Retry-After"
            not in fleet.http.post(f"{fleet.url}{PAGE}/renew", json={**sent, "workerId": "too-late"}).headers
        )

    eventually(over)
    status, code, text = not_renewed(fleet, "too-late", "resume", missionId="m")
    assert (status, code, "(timeoutS) was over" in text) == (409, "conflict", True)
    renew(fleet, "too-late", "written", missionId="m", content="# Late, but not lost")
    assert renew(fleet, "too-late", "resume", missionId="m")["state"] == "resumed"


def test_a_handoff_older_than_its_request_is_not_resumed(fleet: Service) -> None:
    post(fleet, kind="handoff", workerId="older", missionId="m", content="# Of yesterday")
    for path, content in files_now(fleet).items():
        if content == b"# Of yesterday":
            os.utime(path, (1.7e9, 1.7e9))
    renew(fleet, "older", "request", missionId="m")
    status, code, text = not_renewed(fleet, "older", "resume", missionId="m")
    assert (status, code) == (409, "conflict")
    assert "the latest was written at 2023-11-14" in text


def test_a_handoff_of_another_mission_is_neither_written_nor_resumed(fleet: Service) -> None:
    renew(fleet, "stray", "request", missionId="m")
    of_other = handoff("stray", "another", "Go elsewhere.")
    status, code, text = not_renewed(fleet, "stray", "written", missionId="m", content=of_other)
    assert (status, code) == (409, "conflict")
    assert re.match("content: .* names mission another, not m", text)
    post(fleet, kind="handoff", workerId="stray", missionId="another", content=of_other)
    status, code, text = not_renewed(fleet, "stray", "resume", missionId="m")
    assert (status, code) == (409, "conflict")
    assert "is of mission another, not of m" in text


def test_a_handoff_that_changed_is_resumed_by_its_new_hash_alone(fleet: Service) -> None:
    renew(fleet, "edited", "request", missionId="m")
    written = renew(fleet, "edited", "written", missionId="m", content=handoff("edited", "m", "Wait."))
    page = memory_of(fleet, "edited") / "handoffs" / "m.md"
    page.write_text(handoff("edited", "m", "Wait no longer."), "utf-8")
    status, code, text = not_renewed(fleet, "edited", "resume", missionId="m")
    found = re.search("handoffHash ([0-9a-f]{64})", text)
    assert (status, code, found is not None) == (409, "conflict", True)
    before = {"missionId": "m", "handoffHash": written["handoffHash"]}
    status, code, text = not_renewed(fleet, "edited", "resume", **before)
    assert (status, code, text.partition(":")[0]) == (409, "conflict", "handoffHash")
    assert found is not None
    resumed = renew(fleet, "edited", "resume", missionId="m", handoffHash=found[1])
    assert "Wait no longer." in resumed["resume"]["prompt"]


@pytest.mark.parametrize("step", ["written", "resume"])
def test_without_a_request_nothing_is_renewed(fleet: Service, step: str) -> None:
    more = {"content": "# Handoff"} if step == "written" else {}
    status, code, text = not_renewed(fleet, "unasked", step, missionId="m", **more)
    assert (status, code) == (409, "conflict")
    assert text == "step: no handoff of m was requested from unasked; send step request first."


def test_a_worker_that_is_at_another_mission_is_not_renewed(fleet: Service) -> None:
    is_at(fleet, "elsewhere", "there")
    for step, more in (("request", {}), ("written", {"content": "# Handoff"}), ("resume", {})):
        status, code, text = not_renewed(fleet, "elsewhere", step, missionId="here", **more)
        assert (status, code) == (409, "conflict")
        assert text == (
            "missionId: elsewhere is at there by its runtime.json, not at here; "
            "renew that one, or have runtime.json written first."
        )


def test_a_request_id_of_another_step_is_refused(fleet: Service) -> None:
    renew(fleet, "reused", "request", missionId="m", requestId="r-1")
    sent = {"missionId": "m", "content": "# Handoff", "requestId": "r-1"}
    status, code, text = not_renewed(fleet, "reused", "written", **sent)
    assert (status, code, text.partition(":")[0]) == (409, "conflict", "requestId")


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("workerId", {"workerId": "a b", "step": "request"}),
        ("workerId", {"step": "request"}),
        ("step", {"workerId": "never-made"}),
        ("step", {"workerId": "never-made", "step": "restart"}),
        ("missionId", {"workerId": "never-made", "step": "request"}),
        ("missionId", {"workerId": "never-made", "step": "request", "missionId": "a/b"}),
        ("content", {"workerId": "never-made", "step": "request", "missionId": "m", "content": "x"}),
        ("content", {"workerId": "never-made", "step": "resume", "missionId": "m", "content": "x"}),
        ("content", {"workerId": "never-made", "step": "written", "missionId": "m"}),
        ("handoffHash", {"workerId": "never-made", "step": "request", "missionId": "m", "handoffHash": "0"}),
        ("timeoutS", {"workerId": "never-made", "step": "request", "missionId": "m", "timeoutS": 0}),
        ("timeoutS", {"workerId": "never-made", "step": "request", "missionId": "m", "timeoutS": 86_401}),
        ("timeoutS", {"workerId": "never-made", "step": "request", "missionId": "m", "timeoutS": True}),
        ("event", {"workerId": "never-made", "step": "request", "missionId": "m", "event": "[1]"}),
        ("agent", {"workerId": "never-made", "step": "request", "missionId": "m", "agent": "sol"}),
    ],
)
def test_a_bad_step_names_its_field_and_writes_nothing(fleet: Service, field: str, sent: dict[str, Any]) -> None:
    status, code, text = page_refusal(fleet, "POST", "/renew", **sent)
    assert (status, code, text.partition(":")[0]) == (400, "invalid_request", field)


def test_a_renewal_on_the_command_line(fleet: Service) -> None:
    code, answer = fleet.cli("swarm", "renew", "typed", "request", "--mission-id", "m", "--timeout-s", "30")
    assert (code, answer["state"]) == (0, "requested")
    code, answer = fleet.cli("swarm", "renew", "typed", "resume", "--mission-id", "m")
    assert (code, answer["error"]["code"], "is awaited" in answer["error"]["detail"]) == (1, "conflict", True)
    code, answer = fleet.cli("swarm", "renew", "typed", "written", "--mission-id", "m", "--content", "# Typed")
    assert (code, answer["state"]) == (0, "written")
    code, answer = fleet.cli("swarm", "renew", "typed", "resume", "--mission-id", "m")
    assert (code, answer["state"]) == (0, "resumed")


# --- promotion ---


def test_a_lesson_is_put_under_its_heading_once(fleet: Service) -> None:
    post(fleet, workerId="pupil", scaffold=True)
    page = memory_of(fleet, "pupil") / "MEMORY.md"
    before = page.read_bytes().replace(b"## Lessons learned", b"## My own\r\n\r\nsome  text\t\r\n\n## Lessons learned")
    page.write_bytes(before)
    eventually(lambda: page.read_bytes() == before)
    sent = {"workerId": "Pupil", "lesson": "- Measure twice.", "missionId": "m", "source": "the saw"}
    first = post(fleet, "/promote", **sent)
    assert (first["action"], first["heading"], first["workerId"]) == ("promoted", "Lessons learned", "pupil")
    line = page.read_text("utf-8").split("\n")[first["line"] - 1]
    assert re.fullmatch(r"- Measure twice\. — from mission m, the saw, \d{4}-\d\d-\d\d", line)
    assert page.read_bytes().replace(f"{line}\n".encode(), b"", 1) == before
    code, again = fleet.cli("swarm", "promote", "pupil", "measure TWICE", "--mission-id", "m-2")
    assert (code, again["action"], again["line"], again["hash"]) == (0, "kept", first["line"], first["hash"])
    other = post(fleet, "/promote", workerId="pupil", lesson="Saw once.", heading="my own", source="the saw")
    assert (other["action"], other["heading"]) == ("promoted", "My own")
    assert b"some  text\t\r\n" in page.read_bytes()


@pytest.mark.parametrize(
    ("status", "field", "sent"),
    [
        (400, "workerId", {"workerId": "a b", "lesson": "Look.", "source": "s"}),
        (400, "lesson", {"workerId": "unmade", "source": "s"}),
        (400, "lesson", {"workerId": "unmade", "lesson": "…!", "source": "s"}),
        (413, "lesson", {"workerId": "unmade", "lesson": "x" * 1_001, "source": "s"}),
        (400, "source", {"workerId": "unmade", "lesson": "Look."}),
        (400, "missionId", {"workerId": "unmade", "lesson": "Look.", "missionId": "a/b"}),
        (400, "heading", {"workerId": "unmade", "lesson": "Look.", "source": "s", "heading": "Nowhere"}),
        (400, "heading", {"workerId": "unmade", "lesson": "Look.", "source": "s", "heading": "##"}),
        (400, "file", {"workerId": "unmade", "lesson": "Look.", "source": "s", "file": "SOUL.md"}),
    ],
)
def test_a_lesson_that_is_refused_names_its_field_and_writes_nothing(
    fleet: Service, status: int, field: str, sent: dict[str, Any]
) -> None:
    found = page_refusal(fleet, "POST", "/promote", **sent)
    assert (found[0], found[2].partition(":")[0]) == (status, field)
    assert not memory_of(fleet, "unmade").exists()


def test_a_page_that_would_swallow_a_lesson_is_left_alone(fleet: Service) -> None:
    post(fleet, workerId="fenced", scaffold=True)
    (memory_of(fleet, "fenced") / "MEMORY.md").write_text("# Memory\n\n```\n## Lessons learned\n", "utf-8")
    status, code, text = page_refusal(fleet, "POST", "/promote", workerId="fenced", lesson="Look.", source="s")
    assert (status, code) == (409, "conflict")
    assert text == "MEMORY.md: the code block or comment of line 3 is not closed."


def test_a_link_is_no_page_for_lessons(fleet: Service, tmp_path: Path) -> None:
    post(fleet, workerId="linked", scaffold=True)
    page, elsewhere = memory_of(fleet, "linked") / "MEMORY.md", tmp_path / "elsewhere.md"
    elsewhere.write_text("# Elsewhere\n\n## Lessons learned\n", "utf-8")
    page.unlink()
    page.symlink_to(elsewhere)
    status, code, _ = page_refusal(fleet, "POST", "/promote", workerId="linked", lesson="Look.", source="s")
    assert (status, code) == (403, "forbidden")
    assert elsewhere.read_text("utf-8") == "# Elsewhere\n\n## Lessons learned\n"


# --- archive ---


def completed(service: Service, mission: str, *workers: str) -> None:
    """A mission that these workers took part in, the last of which completed it."""
    for worker in workers:
        post(service, "/hooks/dispatch", workerId=worker, missionId=mission, summary="go")
        post(service, kind="handoff", workerId=worker, missionId=mission, content=f"# Of {worker}")
    post(service, "/hooks/complete", workerId=workers[-1], missionId=mission, summary="done")


def archive_of(service: Service, mission: str) -> Path:
    """Where a mission is archived."""
    return shared_of(service) / "swarm" / "missions" / mission


def test_a_completed_mission_is_archived_whole_and_once(fleet: Service) -> None:
    completed(fleet, "whole", "one", "two")
    first = post(fleet, "/archive", missionId="Whole")
    assert (first["missionId"], first["workers"], first["replayed"]) == ("whole", ["one", "two"], False)
    folder = archive_of(fleet, "whole")
    assert (first["path"], first["manifestPath"]) == (str(folder), str(folder / "manifest.json"))
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    of_each = ("SUMMARY.md", "events.jsonl", "handoff.md", "handoffs/whole.md")
    assert names == {"manifest.json", *(f"{worker}/{name}" for worker in ("one", "two") for name in of_each)}
    for worker in ("one", "two"):
        mission = memory_of(fleet, worker) / "missions" / "whole"
        for name in of_each[:3]:
            assert (folder / worker / name).read_bytes() == (mission / name).read_bytes()
    assert "- Status: complete" in (folder / "two" / "SUMMARY.md").read_text("utf-8").splitlines()
    before = tree(folder)
    code, again = fleet.cli("swarm", "archive", "whole")
    assert (code, again["replayed"], again["hash"], again["files"]) == (0, True, first["hash"], 8)
    assert tree(folder) == before
    code, verified = fleet.cli("swarm", "verify", "whole")
    assert (code, verified["hash"], verified["files"]) == (0, first["hash"], 8)
    assert get(fleet, "/archive", missionId="whole") == verified


def test_an_archive_that_was_changed_by_one_byte_is_no_longer_verified(fleet: Service) -> None:
    completed(fleet, "changed", "one")
    post(fleet, "/archive", missionId="changed")
    log = archive_of(fleet, "changed") / "one" / "events.jsonl"
    content = bytearray(log.read_bytes())
    content[20] ^= 1
    log.write_bytes(content)
    status, code, text = page_refusal(fleet, "GET", "/archive", missionId="changed")
    assert (status, code) == (409, "conflict")
    assert text == "missionId: the archive of changed is damaged: changed one/events.jsonl."
    ended, answer = fleet.cli("swarm", "verify", "changed")
    assert (ended, answer["error"]["code"], answer["error"]["detail"]) == (1, "conflict", text)
    mended = post(fleet, "/archive", missionId="changed")
    assert (mended["replayed"], mended["conflicts"]) == (False, 1)
    (kept,) = log.parent.glob("events.jsonl.conflict-*")
    assert kept.read_bytes() == content
    assert get(fleet, "/archive", missionId="changed")["conflicts"] == 1


def test_an_archive_that_lacks_or_has_a_file_is_no_longer_verified(fleet: Service) -> None:
    completed(fleet, "more", "one")
    post(fleet, "/archive", missionId="more")
    folder = archive_of(fleet, "more")
    (folder / "one" / "SUMMARY.md").unlink()
    (folder / "one" / "notes.txt").write_text("mine", "utf-8")
    status, _, text = page_refusal(fleet, "GET", "/archive", missionId="more")
    assert (status, text) == (
        409,
        "missionId: the archive of more is damaged: missing one/SUMMARY.md, unlisted one/notes.txt.",
    )


def test_a_half_made_archive_is_none_until_it_is_made_again(fleet: Service) -> None:
    completed(fleet, "half", "one")
    post(fleet, "/archive", missionId="half")
    (archive_of(fleet, "half") / "manifest.json").unlink()
    status, code, text = page_refusal(fleet, "GET", "/archive", missionId="half")
    assert (status, code, "half made" in text) == (404, "not_found", True)
    post(fleet, "/archive", missionId="half")
    assert get(fleet, "/archive", missionId="half")["files"] == 4


def test_what_is_not_complete_is_not_archived(fleet: Service) -> None:
    completed(fleet, "going-on", "one")
    post(fleet, "/hooks/checkpoint", workerId="two", missionId="going-on", summary="one more thing")
    status, code, text = page_refusal(fleet, "POST", "/archive", missionId="going-on")
    assert (status, code) == (409, "conflict")
    assert re.fullmatch(r"missionId: going-on is not complete; its last event is `checkpoint` of two at \S+Z\.", text)
    assert not archive_of(fleet, "going-on").exists()


def test_a_link_in_a_mission_is_not_archived(fleet: Service, tmp_path: Path) -> None:
    completed(fleet, "linked", "one")
    (tmp_path / "secret").write_text("a secret", "utf-8")
    (memory_of(fleet, "one") / "missions" / "linked" / "link.md").symlink_to(tmp_path / "secret")
    status, code, text = page_refusal(fleet, "POST", "/archive", missionId="linked")
    assert (status, code, "link.md" in text) == (403, "forbidden", True)
    assert not archive_of(fleet, "linked").exists()


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("status", "field", "sent"),
    [
        (400, "missionId", {}),
        (400, "missionId", {"missionId": "../x"}),
        (404, "missionId", {"missionId": "never-begun"}),
        (400, "workerId", {"missionId": "never-begun", "workerId": "one"}),
    ],
)
def test_a_bad_archive_names_its_field(
    fleet: Service, method: str, status: int, field: str, sent: dict[str, Any]
) -> None:
    found = page_refusal(fleet, method, "/archive", **sent)
    assert (found[0], found[2].partition(":")[0]) == (status, field)


# --- recommend ---


def test_a_worker_is_recommended_with_the_lines_that_say_why(fleet: Service) -> None:
    post(fleet, "/hooks/checkpoint", workerId="baker", missionId="loaf", summary="The oven bakes rye at night.")
    summary_shows(fleet, "baker", "loaf", "- Status: executing")
    answer = get(fleet, "/recommend", task="mend the slates round the chimneys")
    best = answer["workers"][0]
    assert (best["workerId"], best["name"], best["role"]) == ("roofer", "Rufa", "roofer")
    assert answer["considered"] >= 2
    answer = get(fleet, "/recommend", task="bake rye in the oven", limit=1)
    (best,) = answer["workers"]
    assert best["workerId"] == "baker"
    assert any(Path(reason["path"]).is_relative_to(memory_of(fleet, "baker")) for reason in best["reasons"])
    for reason in best["reasons"]:
        line = Path(reason["path"]).read_text("utf-8").splitlines()[reason["line"] - 1]
        assert reason["text"].strip("… ") in line
        assert reason["words"]
    code, typed = fleet.cli("swarm", "recommend", "bake rye in the oven", "--limit", "1")
    assert (code, typed["workers"][0]["workerId"]) == (0, "baker")


def test_nobody_is_recommended_for_what_nobody_knows(fleet: Service) -> None:
    assert get(fleet, "/recommend", task="xylophones")["workers"] == []


def test_a_roster_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "swarm.yaml").write_text("workers: [", "utf-8")
    with serving(fresh_database(tmp_path), env={"SOLOS_MEMORY_SWARM_WORKSPACE": str(tmp_path)}) as service:
        post(service, "/hooks/checkpoint", workerId="baker", missionId="loaf", summary="The oven bakes rye.")
        answer = get(service, "/recommend", task="rye")
        assert [one["workerId"] for one in answer["workers"]] == ["baker"]
        assert answer["degradedReasons"] == ["roster_unread"]


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("task", {}),
        ("task", {"task": " "}),
        ("limit", {"task": "rye", "limit": "0"}),
        ("limit", {"task": "rye", "limit": "51"}),
        ("q", {"task": "rye", "q": "rye"}),
    ],
)
def test_a_bad_recommendation_names_its_field(fleet: Service, field: str, sent: dict[str, str]) -> None:
    status, code, text = page_refusal(fleet, "GET", "/recommend", **sent)
    assert (status, code, text.partition(":")[0]) == (400, "invalid_request", field)


# --- notes ---


def test_notes_over_rest_are_the_worker_s_own(fleet: Service) -> None:
    def edit(agent: str, command: str, **more: Any) -> str:
        return str(done(fleet, "rest", "swarm_edit_notes", agent=agent, command=command, **more)["text"])

    def view(agent: str, path: str, **more: Any) -> str:
        return str(done(fleet, "rest", "swarm_notes", agent=agent, path=path, **more)["text"])

    edit("ace", "create", path="/memories/plan.md", file_text="one\ntwo\nthree\n")
    edit("ace", "str_replace", path="/memories/plan.md", old_str="two", new_str="2")
    edit("ace", "insert", path="/memories/plan.md", insert_line=0, insert_text="zero\n")
    edit("ace", "rename", old_path="/memories/plan.md", new_path="/memories/old/plan.md")
    kept = memory_of(fleet, "atlas") / "notes" / "old" / "plan.md"
    assert kept.read_text("utf-8") == "zero\none\n2\nthree\n"
    lines = view("ace", "/memories/old/plan.md", view_range=[2, 3]).splitlines()[-2:]
    assert [line.split("\t")[-1] for line in lines] == ["one", "2"]
    assert "plan.md" in view("ace", "/memories")
    assert "plan.md" not in view("sol", "/memories")
    code, typed = fleet.cli("swarm", "edit-notes", "delete", "--agent", "ace", "--path", "/memories/old")
    assert (code, typed["workerId"], kept.exists()) == (0, "atlas", False)


@pytest.mark.parametrize(
    ("code", "field", "name", "sent"),
    [
        ("forbidden", "agent", "swarm_notes", {"agent": "atlas"}),
        ("forbidden", "agent", "swarm_edit_notes", {"agent": NO_WORKER, "command": "delete", "path": "/memories/x"}),
        ("unknown_agent", "", "swarm_notes", {"agent": "ghost"}),
        ("invalid_request", "worker", "swarm_notes", {"agent": "sol", "worker": "mira"}),
        ("invalid_request", "command", "swarm_edit_notes", {"agent": "sol", "command": "view"}),
        ("invalid_request", "path", "swarm_edit_notes", {"agent": "sol", "command": "create", "file_text": "x"}),
        (
            "invalid_request",
            "new_path",
            "swarm_edit_notes",
            {"agent": "sol", "command": "rename", "old_path": "/memories/x"},
        ),
    ],
)
def test_a_note_that_is_refused_names_its_field(
    fleet: Service, code: str, field: str, name: str, sent: dict[str, Any]
) -> None:
    before = files_now(fleet)
    found, text = refusal(fleet, "rest", name, **sent)
    assert (found, text.partition(":")[0] if field else "") == (code, field)
    assert files_now(fleet) == before


@pytest.mark.parametrize("path", ["/memories/../../MEMORY.md", "/etc/passwd", "/memories/%2e%2e/x", "memories"])
def test_nothing_outside_of_the_notes_is_named(fleet: Service, path: str) -> None:
    assert asked(fleet, "rest", "swarm_notes", agent="sol", path=path)["ok"] is False


def test_what_the_page_and_the_notes_offer_is_no_tool(fleet: Service) -> None:
    answer = fleet.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()
    names = {tool["name"] for tool in answer["result"]["tools"]}
    assert {"swarm_resume", "briefing", "recall"} <= names
    assert not {
        name for name in names if name.endswith(("renew", "promote", "archive", "verify", "recommend", "notes"))
    }


# --- briefing ---


@pytest.fixture(scope="module")
def briefed(fleet: Service) -> Service:
    """Much of everything about the lighthouse: by mira, who is worker swarm5, by sol, and by others."""
    assert fleet.database is not None
    for number in range(40):
        fleet.long("atlas", f"The lighthouse fact {number}: its lamp number {number} turns " + "slowly " * 40)
    for number in range(12):
        done(fleet, "rest", "remember_short", agent="mira", key=f"live-{number}", value=f"lamp {number} " * 30)
    short = "INSERT INTO memory_short(agent, key, value, created_at, expires_at) VALUES ('mira', ?, ?, 1.7e9, 1.7e9)"
    rows(fleet.database, short, "expired-lighthouse", "an expired lamp")
    for number in range(15):
        summary = f"Climbed the lighthouse, turn {number}, " + "step " * 60
        done(fleet, "rest", "remember_episodic", agent="ace", summary=summary)
    for number in range(5):
        fleet.rest(
            "POST", "/v1/episodic", {"agent": "mira", "summary": f"Painted the lighthouse myself, wall {number}."}
        )
    post(fleet, workerId="swarm5", scaffold=True)
    post(fleet, "/hooks/checkpoint", workerId="swarm5", missionId="beam", summary="beam", content="light " * 900)
    post(fleet, kind="handoff", workerId="swarm5", missionId="beam", content=handoff("swarm5", "beam", "Light it."))
    return fleet


def brief(service: Service, way: str, **arguments: Any) -> dict[str, Any]:
    """A briefing of the agent mira, who is at the mission `beam`."""
    is_at(service, "swarm5", "beam")
    return done(service, way, "briefing", **{"agent": "mira", **arguments})


@pytest.mark.parametrize("way", WAYS)
def test_a_briefing_has_its_parts_in_their_order(briefed: Service, way: str) -> None:
    answer = brief(briefed, way, q="the lighthouse lamp")
    assert list(texts(answer)) == ["persona", "short", "facts", "others", "resume"]
    assert answer.get("missing", []) == []
    assert texts(answer)["persona"] == "mira is calm and exact."
    for name, agent in (("facts", "atlas"), ("others", "ace")):
        for line in texts(answer)[name].splitlines():
            assert re.match(rf"- \[(long|episodic):\d+\] {agent}, \d{{4}}-\d\d-\d\d: ", line), line
    assert "Light it." in texts(answer)["resume"]
    assert "live-11" in texts(answer)["short"]


@pytest.mark.parametrize("budget", [1_000, 6_000, 32_000])
@pytest.mark.parametrize("way", WAYS)
def test_a_briefing_keeps_its_budget(briefed: Service, way: str, budget: int) -> None:
    answer = brief(briefed, way, q="the lighthouse lamp", budget=budget)
    assert answer["chars"] == sum(len(part["content"]) for part in answer["parts"])
    assert answer["chars"] <= budget == answer["budget"]
    assert list(texts(answer)) == ["persona", "short", "facts", "others", "resume"]
    assert all(part["content"] for part in answer["parts"])
    assert "Light it." in texts(answer)["resume"]
    if budget == 1_000:
        assert answer["chars"] > budget // 2
        assert {part["name"] for part in answer["parts"] if part.get("cut")} >= {"short", "facts", "others", "resume"}


@pytest.mark.parametrize("way", WAYS)
def test_a_briefing_never_shows_what_is_not_the_caller_s_to_see(briefed: Service, way: str) -> None:
    for agent, persona in (("sol", "sol is calm"), ("mira", "mira is calm")):
        answer = brief(briefed, way, agent=agent, q="calm exact persona expired lighthouse painted", budget=32_000)
        whole = json.dumps(answer)
        assert persona in texts(answer)["persona"]
        assert {"sol is calm", "mira is calm"} - {persona} == {
            text for text in ("sol is calm", "mira is calm") if text not in whole
        }
        assert "expired-lighthouse" not in whole
        assert "an expired lamp" not in whole
        assert ("Painted the lighthouse myself" in texts(answer)["others"]) == (agent == "sol")


def test_what_others_did_is_shown_however_much_the_caller_did_itself(tmp_path: Path) -> None:
    with serving(fresh_database(tmp_path)) as service:
        summary = "Looked after the big lighthouse for a while."
        done(service, "rest", "remember_episodic", agent="sol", summary=summary)
        for number in range(30):
            done(service, "rest", "remember_episodic", agent="mira", summary=f"The lighthouse lamp: {number}.")
        answer = done(service, "rest", "briefing", agent="mira", q="lighthouse lamp")
        assert "Looked after the big lighthouse" in texts(answer).get("others", "")


@pytest.mark.parametrize("way", WAYS)
def test_a_briefing_without_a_question_says_what_it_left_out(briefed: Service, way: str) -> None:
    answer = brief(briefed, way)
    assert list(texts(answer)) == ["persona", "short", "resume"]
    assert {part["name"]: part["reason"] for part in answer["missing"]} == {
        "facts": "q: was left out, so nothing was recalled.",
        "others": "q: was left out, so nothing was recalled.",
    }


def test_an_agent_that_is_no_worker_is_briefed_without_a_resume(briefed: Service) -> None:
    answer = done(briefed, "rest", "briefing", agent=NO_WORKER, q="the lighthouse")
    assert "lighthouse fact" in texts(answer)["facts"]
    missing = {part["name"]: part["reason"] for part in answer["missing"]}
    assert missing["resume"] == "resume: the agent is no worker."
    assert missing["persona"] == "persona: none is registered."


def test_a_briefing_on_the_command_line(briefed: Service) -> None:
    is_at(briefed, "swarm5", "beam")
    code, answer = briefed.cli("briefing", "the lighthouse lamp", "--agent", "mira", "--budget", "1500")
    assert (code, answer["agent"], answer["budget"]) == (0, "mira", 1500)
    assert answer["chars"] <= 1500


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("code", "field", "sent"),
    [
        ("invalid_request", "agent", {"agent": ""}),
        ("invalid_request", "budget", {"budget": 999}),
        ("invalid_request", "budget", {"budget": 32_001}),
        ("invalid_request", "q", {"q": " \n"}),
        ("too_large", "q", {"q": "x" * 32_769}),
        ("invalid_request", "k", {"k": 5}),
    ],
)
def test_a_bad_briefing_names_its_field(
    briefed: Service, way: str, code: str, field: str, sent: dict[str, Any]
) -> None:
    found, text = refusal(briefed, way, "briefing", **{"agent": "mira", **sent})
    assert (found, text.partition(":")[0]) == (code, field)


# --- recall in the files ---


@pytest.fixture(scope="module")
def searched(fleet: Service) -> Service:
    """The quoll is in every kind of file of worker swarm5, who is mira, in shared memory, and in rows of sol."""
    of = {"workerId": "swarm5"}
    post(fleet, **of, kind="profile", content="the quoll in the profile\n")
    post(fleet, **of, kind="episodic", summary="the quoll in an episode")
    post(fleet, **of, kind="mission", missionId="q", summary="the quoll in the mission")
    post(fleet, **of, kind="handoff", missionId="q", content="the quoll in the handoff", mirrorShared=False)
    post(fleet, kind="shared", file="quoll.md", content="all of us\n\nsaw the quoll in shared memory\n")
    note = {"command": "create", "path": "/memories/quoll.md", "file_text": "the quoll in a note\n"}
    done(fleet, "rest", "swarm_edit_notes", agent="mira", **note)
    summary_shows(fleet, "swarm5", "q", "- Status: planning")
    fleet.long("sol", "The quoll and the numbat share a burrow.")
    return fleet


FILES_OF = {
    "profile": "MEMORY.md",
    "episodes": "episodes",
    "missions": "missions",
    "handoffs": "handoffs",
    "notes": "notes",
}


def places(answer: dict[str, Any]) -> set[str]:
    """Which kinds of files the results of a recall, and their copies, are of; `row` for what is of the database."""
    ids = [one["id"] for result in answer["results"] for one in (result, *result.get("also", ()))]
    return {place_of(id_) for id_ in ids}


def place_of(id_: str) -> str:
    """The kind of file that the id of a recalled memory names."""
    tier, _, path = id_.partition(":")
    if tier != "swarm":
        return "row"
    if "/memory/" not in path:
        return "shared"
    return next(kind for kind, name in FILES_OF.items() if f"/memory/{name}" in path)


@pytest.mark.parametrize("way", WAYS)
def test_a_recall_in_the_files_never_shows_another_worker_s_private_ones(searched: Service, way: str) -> None:
    for agent in ("sol", "swarm-5", NO_WORKER, "atlas"):
        answer = done(searched, way, "recall", agent=agent, q="the quoll", tiers="swarm", k=50)
        assert places(answer) == {"missions", "handoffs", "shared"}
        whole = json.dumps(answer)
        for private in ("in the profile", "in an episode", "in a note"):
            assert private not in whole
        own = done(searched, way, "recall", agent=agent, q="the quoll", tiers="swarm", k=50, scope="own")
        assert own.get("results", []) == []


@pytest.mark.parametrize("way", WAYS)
def test_a_recall_in_the_files_shows_a_worker_its_own(searched: Service, way: str) -> None:
    own = done(searched, way, "recall", agent="mira", q="the quoll", tiers=["swarm"], k=50, scope="own")
    assert places(own) == {"profile", "episodes", "missions", "handoffs", "notes"}
    both = done(searched, way, "recall", agent="mira", q="the quoll", tiers=["swarm"], k=50)
    assert places(both) == places(own) | {"shared"}


@pytest.mark.parametrize("way", WAYS)
def test_a_line_that_is_recalled_names_its_author_and_its_place(searched: Service, way: str) -> None:
    answer = done(searched, way, "recall", agent="mira", q="the quoll", tiers="swarm", k=50)
    assert answer["degraded_reasons"] == ["no_embedder"]
    for one in answer["results"]:
        line = Path(one["path"]).read_text("utf-8").splitlines()[one["line"] - 1]
        assert "quoll" in line
        assert "quoll" in one["text"]
        assert (one["tier"], one["cut"], one["score"] > 0) == ("swarm", True, True)
        assert one["id"].endswith(f":{one['line']}")
        if "/shared/" in one["path"]:
            assert (one["agent"], one.get("worker"), one["line"]) == ("(shared memory)", None, 3)
        else:
            assert (one["agent"], one["worker"]) == ("mira", "swarm5")
        assert one.get("mission") == ("q" if "/missions/q/" in one["path"] or "/handoffs/q" in one["path"] else None)
    scores = [one["score"] for one in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    (handed,) = (one for one in answer["results"] if one["text"] == "the quoll in the handoff")
    copies = [handed["id"], *(one["id"] for one in handed["also"])]
    assert set(copies) == {"swarm:swarm5/memory/handoffs/q.md:1", "swarm:swarm5/memory/missions/q/handoff.md:1"}


@pytest.mark.parametrize("way", WAYS)
def test_lines_and_rows_are_recalled_together(searched: Service, way: str) -> None:
    asked_for = {"agent": "mira", "tiers": ["long", "swarm"], "k": 50}
    both = done(searched, way, "recall", q="the quoll", **asked_for)
    assert places(both) >= {"row", "missions", "handoffs", "shared", "profile", "episodes", "notes"}
    rows_alone = [one for one in both["results"] if one["tier"] == "long"]
    assert [one["agent"] for one in rows_alone] == ["sol"]
    scores = [one["score"] for one in both["results"]]
    assert scores == sorted(scores, reverse=True)
    best = done(searched, way, "recall", q="the quoll and the numbat share a burrow", **{**asked_for, "k": 1})
    assert [one["tier"] for one in best["results"]] == ["long"]
    own = done(searched, way, "recall", q="the quoll", scope="own", **asked_for)
    assert places(own) == {"profile", "episodes", "missions", "handoffs", "notes"}
    without = done(searched, way, "recall", agent="mira", q="the quoll", k=50)
    assert places(without) == {"row"}


@pytest.mark.parametrize("way", WAYS)
def test_a_recall_in_the_files_keeps_k_since_and_until(searched: Service, way: str) -> None:
    old = shared_of(searched) / "swarm" / f"old-{way}.md"
    old.write_text(f"an old wombat{way}\n", "utf-8")
    os.utime(old, (1.7e9, 1.7e9))  # 2023-11-14
    new = shared_of(searched) / "swarm" / f"new-{way}.md"
    new.write_text(f"a new wombat{way}\n", "utf-8")

    def found(**more: Any) -> list[str]:
        answer = done(searched, way, "recall", agent="sol", q=f"wombat{way}", tiers="swarm", **{"k": 2, **more})
        return [Path(one["path"]).name for one in answer.get("results", [])]

    eventually(lambda: set(found()) == {old.name, new.name})
    assert len(found(k=1)) == 1
    assert found(since="2023-11-15") == [new.name]
    assert found(since="-30d") == [new.name]
    assert found(until="2023-11-14") == [old.name]
    assert found(since="2023-11-14T22:13:20Z", until="2023-11-14T22:13:20Z") == [old.name]
    assert found(until="2023-11-13") == []


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tiers", ["swarm", "long,swarm"])
@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("worker", {"worker": "swarm5"}),
        ("tiers", {"tiers": "files"}),
        ("k", {"k": 51}),
        ("k", {"k": 0}),
        ("scope", {"scope": "all"}),
        ("since", {"since": "yesterday"}),
        ("until", {"until": "soon"}),
        ("q", {"q": " "}),
    ],
)
def test_a_bad_recall_in_the_files_names_its_field(
    searched: Service, way: str, tiers: str, field: str, sent: dict[str, Any]
) -> None:
    arguments = {"agent": "mira", "q": "the quoll", "tiers": tiers, **sent}
    code, text = refusal(searched, way, "recall", **arguments)
    assert (code, text.partition(":")[0]) == ("invalid_request", field)


def test_files_are_recalled_on_the_command_line(searched: Service) -> None:
    code, answer = searched.cli("recall", "the quoll", "--agent", "sol", "--tiers", "swarm", "--k", "3")
    assert (code, {one["tier"] for one in answer["results"]}) == (0, {"swarm"})
