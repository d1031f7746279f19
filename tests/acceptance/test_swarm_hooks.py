"""The hooks of the swarm's server over HTTP: which files each writes, and what SUMMARY.md says then."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.swarm_files import files_now, get, memory_of, post, refused, shared_of, summary_shows
from tests.support import Service

HOOKS = ("dispatch", "checkpoint", "handoff-requested", "handoff-written", "resume", "blocked", "complete")


def written(service: Service, worker: str) -> set[str]:
    """The files of a worker and its shared handoff, with the day's page called `episodes/TODAY.md`."""
    memory = memory_of(service, worker)
    names = {str(path.relative_to(memory)) for path in memory.rglob("*") if path.is_file()}
    latest = shared_of(service) / "handoffs" / "swarm" / f"{worker}-latest.md"
    shared = {f"shared/{latest.name}"} if latest.exists() else set()
    return {"episodes/TODAY.md" if name.startswith("episodes/") else name for name in names} | shared


def events(service: Service, worker: str, mission: str) -> list[dict[str, Any]]:
    """A mission's log."""
    log = memory_of(service, worker) / "missions" / mission / "events.jsonl"
    return [json.loads(line) for line in log.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("hook", HOOKS)
def test_every_hook_writes_what_the_table_names(shared_service: Service, hook: str) -> None:
    worker = f"of-{hook}"
    sent = {"workerId": worker, "missionId": "m", "assignmentId": "a-1", "summary": f"said by {hook}", "content": "all"}
    answer = post(shared_service, f"/hooks/{hook}", **sent)
    assert (answer["workerId"], answer["eventType"], answer["missionId"]) == (worker, hook, "m")
    page = summary_shows(shared_service, worker, "m", f"- Last updated: {answer['at']}")
    assert "- Current assignment: a-1" in page.splitlines()
    handoff = {"handoffs/m.md", "missions/m/handoff.md", f"shared/{worker}-latest.md"}
    both = {"missions/m/events.jsonl", "missions/m/SUMMARY.md", "episodes/TODAY.md"}
    assert written(shared_service, worker) == both | (handoff if hook == "handoff-written" else set())
    (event,) = events(shared_service, worker, "m")
    assert (event["type"], event["summary"], event["assignmentId"]) == (hook, f"said by {hook}", "a-1")
    (episodes,) = get(shared_service, workerId=worker, kind="episodic")["files"]
    assert f" UTC — {hook}\n" in episodes["content"]
    assert f"- Summary: said by {hook}\n" in episodes["content"]
    if hook == "handoff-written":
        assert answer["kind"] == "handoff"
        for path in (answer["localPath"], answer["sharedPath"]):
            assert Path(path).read_text("utf-8") == "all"


def test_status_follows_the_events(shared_service: Service) -> None:
    """Each event in one mission, and the status that SUMMARY.md has then; handoffs and notes keep what was."""
    story: list[tuple[str, dict[str, Any], str]] = [
        ("mission-start", {"title": "Gate", "event": {"objective": "open the gate"}}, "planning"),
        ("note", {}, "planning"),
        ("dispatch", {}, "executing"),
        ("checkpoint", {"event": {"state": "REVIEW"}}, "review"),
        ("handoff-requested", {}, "review"),
        (
            "checkpoint",
            {"event": {"state": "DONE", "filesTouched": ["gate.py"], "nextAction": "paint it"}},
            "executing",
        ),
        ("blocked", {"event": {"blockers": ["no paint"]}}, "blocked"),
        ("handoff-written", {"content": "# Handoff"}, "blocked"),
        ("resume", {}, "executing"),
        ("complete", {"summary": "done"}, "complete"),
    ]
    for type_, more, status in story:
        sent = {"workerId": "statuses", "missionId": "m", **more}
        answer = (
            post(shared_service, f"/hooks/{type_}", **sent)
            if type_ in HOOKS
            else post(shared_service, kind="mission", eventType=type_, **sent)
        )
        page = summary_shows(shared_service, "statuses", "m", f"- Last updated: {answer['at']}")
        assert f"- Status: {status}" in page.splitlines(), type_
        if type_ == "blocked":
            assert "- no paint" in page.splitlines()
    assert page.startswith("# Mission m — Gate\n")
    for line in ("open the gate", "- gate.py", "paint it", f"- Total: {len(story)} events, 2 of them checkpoints"):
        assert line in page.splitlines()
    assert "- no paint" not in page.splitlines()


def test_summary_shows_the_newest_fifty_and_the_exact_total(shared_service: Service) -> None:
    for number in range(60):
        post(
            shared_service,
            "/hooks/checkpoint",
            workerId="many",
            missionId="m",
            summary=f"step {number:02}",
            content="x",
        )
    total = "- Total: 60 events, 60 of them checkpoints; the newest 50 are shown"
    page = summary_shows(shared_service, "many", "m", total)
    shown = [line for line in page.splitlines() if "— checkpoint — step" in line]
    assert [line.split("step ")[1][:2] for line in shown] == [f"{number:02}" for number in range(59, 9, -1)]
    assert len(events(shared_service, "many", "m")) == 60


def test_content_of_an_event_is_kept_to_its_last_character(shared_service: Service) -> None:
    content = "状态 🦓 " * 2_000 + "the end"
    post(shared_service, "/hooks/checkpoint", workerId="whole", missionId="m", content=content)
    assert events(shared_service, "whole", "m")[0]["content"] == content
    (episodes,) = get(shared_service, workerId="whole", kind="episodic")["files"]
    assert content in episodes["content"]


def test_a_handoff_that_is_not_mirrored_stays_the_worker_s(shared_service: Service) -> None:
    sent = {"workerId": "quiet", "missionId": "m", "content": "# Mine", "mirrorShared": False}
    answer = post(shared_service, "/hooks/handoff-written", **sent)
    assert answer["sharedPath"] is None
    assert not (shared_of(shared_service) / "handoffs" / "swarm" / "quiet-latest.md").exists()
    assert [event["type"] for event in events(shared_service, "quiet", "m")] == ["handoff-written"]


def test_the_shared_copy_is_the_latest_handoff_of_any_mission(shared_service: Service) -> None:
    for mission in ("one", "two"):
        post(shared_service, "/hooks/handoff-written", workerId="latest", missionId=mission, content=f"of {mission}")
    seen = get(shared_service, workerId="latest", kind="shared")["files"]
    assert [(file["name"], file["content"]) for file in seen if "latest-latest" in file["name"]] == [
        ("handoffs/latest-latest.md", "of two")
    ]
    own = get(shared_service, workerId="latest", kind="handoff")["files"]
    assert {file["name"]: file["content"] for file in own} == {"one.md": "of one", "two.md": "of two"}


@pytest.mark.parametrize(
    ("hook", "field", "body"),
    [
        ("finished", "hook", {"workerId": "never-made"}),
        ("dispatch", "workerId", {"missionId": "m"}),
        ("dispatch", "missionId", {"workerId": "never-made", "missionId": "a/b"}),
        ("dispatch", "event", {"workerId": "never-made", "missionId": "m", "event": "{"}),
        ("handoff-written", "missionId", {"workerId": "never-made", "content": "x"}),
        ("handoff-written", "content", {"workerId": "never-made", "missionId": "m"}),
        ("handoff-written", "event", {"workerId": "never-made", "missionId": "m", "content": "x", "event": "[1]"}),
        (
            "handoff-written",
            "eventType",
            {"workerId": "never-made", "missionId": "m", "content": "x", "eventType": "note"},
        ),
    ],
)
def test_a_bad_hook_is_refused_names_the_field_and_writes_nothing(
    shared_service: Service, hook: str, field: str, body: dict[str, Any]
) -> None:
    before = files_now(shared_service)
    status, code, text = refused(shared_service, "POST", f"/hooks/{hook}", **body)
    assert (status, code) == (400, "invalid_request")
    assert text.startswith(f"{field}: ")
    assert files_now(shared_service) == before


def test_a_repeated_handoff_hook_writes_nothing_and_never_an_older_handoff(shared_service: Service) -> None:
    sent = {"workerId": "retry", "missionId": "m", "content": "first", "requestId": "r-1"}
    first = post(shared_service, "/hooks/handoff-written", **sent)
    again = post(shared_service, "/hooks/handoff-written", **sent)
    assert (again["replayed"], again["at"]) == (True, first["at"])
    post(shared_service, "/hooks/handoff-written", workerId="retry", missionId="m", content="second")
    summary_shows(shared_service, "retry", "m", "- Total: 2 events, 0 of them checkpoints")
    before = files_now(shared_service)
    assert post(shared_service, "/hooks/handoff-written", **sent)["replayed"] is True
    status, code, text = refused(
        shared_service, "POST", "/hooks/handoff-written", **{**sent, "content": "another under the same id"}
    )
    assert (status, code, text.partition(":")[0]) == (409, "conflict", "requestId")
    assert files_now(shared_service) == before


def test_a_repeated_handoff_with_a_request_id_never_brings_back_an_older_one(shared_service: Service) -> None:
    """Written by kind, too: its event is what tells a retry."""
    sent = {"workerId": "late", "kind": "handoff", "missionId": "m", "content": "first", "requestId": "r-1"}
    first = post(shared_service, "", **sent)
    assert first["eventType"] == "handoff-written"
    post(shared_service, "", **{**sent, "content": "second", "requestId": "r-2"})
    before = files_now(shared_service)
    assert post(shared_service, "", **sent)["replayed"] is True
    assert files_now(shared_service) == before


def test_a_handoff_that_a_crash_cut_short_is_made_up_for_by_its_retry(shared_service: Service) -> None:
    """Its event is on disk, the handoff is still the older one: the retry completes it, and is the same event."""
    post(shared_service, "/hooks/handoff-written", workerId="crash", missionId="m", content="older")
    sent = {"workerId": "crash", "missionId": "m", "content": "newer", "requestId": "r-1"}
    first = post(shared_service, "/hooks/handoff-written", **sent)
    handoff = Path(first["localPath"])
    handoff.write_text("older")
    os.utime(handoff, (1e9, 1e9))
    again = post(shared_service, "/hooks/handoff-written", **sent)
    assert (again["replayed"], again["at"]) == (True, first["at"])
    assert handoff.read_text() == "newer"
    post(shared_service, "/hooks/handoff-written", workerId="crash", missionId="m", content="newest")
    post(shared_service, "/hooks/handoff-written", **sent)
    assert handoff.read_text() == "newest"


def test_a_refused_handoff_hook_leaves_the_handoff_as_it_was(shared_service: Service) -> None:
    """Its event cannot be written: the log is a link."""
    first = post(shared_service, "/hooks/handoff-written", workerId="linked", missionId="m", content="old")
    handoff = Path(first["localPath"])
    log = handoff.parents[1] / "missions" / "m" / "events.jsonl"
    log.rename(log.with_name("elsewhere"))
    log.symlink_to("elsewhere")
    sent = {"workerId": "linked", "missionId": "m", "content": "new"}
    assert refused(shared_service, "POST", "/hooks/handoff-written", **sent)[:2] == (403, "forbidden")
    assert handoff.read_text() == "old"


def test_a_hook_without_a_mission_is_an_episode(shared_service: Service) -> None:
    answer = post(shared_service, "/hooks/dispatch", workerId="loose", summary="asked for something small")
    assert answer["missionId"] is None
    assert written(shared_service, "loose") == {"episodes/TODAY.md"}
