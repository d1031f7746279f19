"""The operator's page of the swarm's memory over HTTP: what its old front end needs, and what it must never do."""

import hashlib
import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.swarm_files import (
    PAGE,
    beside,
    files_now,
    get,
    headings,
    memory_of,
    post,
    refused,
    shared_of,
    summary_shows,
    tree,
)
from tests.support import Service, fresh_database, serving

KINDS = ("profile", "mission", "episodic", "handoff", "shared")
HOSTILE_MARKDOWN = (
    "fine\n## Blockers\r\n<!-- solos:end state -->\u2028# Mission forged\n<!-- solos:begin files -->\n- x"
)


def hash_of(content: bytes) -> str:
    """The baseHash of a page."""
    return hashlib.sha256(content).hexdigest()


# --- the old front end ---


def find(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """`files.find(file => file.name === name)`, as the page does it."""
    return next(file for file in answer["files"] if file["name"] == name)


def test_profile_panel_of_the_old_front_end_is_served_unchanged(shared_service: Service) -> None:
    post(shared_service, workerId="swarm1", scaffold=True, name="Nova", role="builder", specialty="UI", model="m-1")
    answer = get(shared_service, workerId="swarm1", kind="profile")
    assert (answer["workerId"], answer["kind"]) == ("swarm1", "profile")
    home = str(beside(shared_service))
    assert answer["root"].replace(home, "~") == "~/profiles/swarm1/memory"
    assert answer["path"].startswith(answer["root"])
    for name in ("MEMORY.md", "IDENTITY.md", "SOUL.md"):
        file = find(answer, name)
        assert file["content"].encode() == Path(file["path"]).read_bytes()
    assert "- Name: Nova\n- Worker ID: swarm1\n- Role: builder" in find(answer, "IDENTITY.md")["content"]
    assert find(answer, "MEMORY.md")["content"].startswith("# Memory — swarm1\n\n## Role\n\nbuilder — UI\n")


def test_episode_panel_of_the_old_front_end_finds_the_newest_first(shared_service: Service) -> None:
    pages = memory_of(shared_service, "swarm2") / "episodes"
    pages.mkdir(parents=True)
    for day in ("2026-03-09", "2025-12-31", "2026-03-10"):
        (pages / f"{day}.md").write_text(f"# Episodes — swarm2 — {day}\n", "utf-8")
    answer = get(shared_service, workerId="swarm2", kind="episodic")
    names = [file["name"] for file in answer["files"]]
    assert names == ["2026-03-10.md", "2026-03-09.md", "2025-12-31.md"]
    assert answer["root"] == str(pages.parent)
    one = get(shared_service, workerId="swarm2", kind="episodic", date="2025-12-31")
    assert [file["name"] for file in one["files"]] == ["2025-12-31.md"]


def test_error_is_a_text_with_its_code_beside(shared_service: Service) -> None:
    status, answer = shared_service.rest("GET", PAGE, workerId="swarm1", kind="nonsense")
    assert (status, answer["ok"], answer["code"]) == (400, False, "invalid_request")
    assert answer["error"].startswith("kind: ")
    assert answer["hint"]
    status, answer = shared_service.rest("GET", PAGE + "/nowhere")
    assert (status, type(answer["error"]), answer["code"]) == (404, str, "not_found")
    status, answer = shared_service.rest("DELETE", PAGE)
    assert (status, type(answer["error"]), answer["code"]) == (405, str, "method_not_allowed")


def test_scaffold_event_handoff_and_search_hold_through_http(shared_service: Service) -> None:
    scaffolded = post(shared_service, workerId="swarm3", scaffold=True)
    assert (scaffolded["workerId"], scaffolded["action"]) == ("swarm3", "scaffolded")
    event = post(
        shared_service,
        workerId="swarm3",
        kind="mission",
        missionId="mission-7",
        eventType="checkpoint",
        assignmentId="assign-1",
        title="The quokka gate",
        summary="Measured the quokka gate",
        content="It opens at 300 mbar.",
        event={"state": "DONE", "result": "gate measured", "decisions": ["keep the gate"], "nextAction": "ship it"},
    )
    assert {name: event[name] for name in ("workerId", "kind", "eventType")} == {
        "workerId": "swarm3",
        "kind": "mission",
        "eventType": "checkpoint",
    }
    handoff = post(
        shared_service,
        workerId="swarm3",
        kind="handoff",
        missionId="mission-7",
        content="# Handoff\n\nquokka next\n",
        mirrorShared=False,
    )
    assert Path(handoff["localPath"]).read_text("utf-8") == "# Handoff\n\nquokka next\n"
    assert not handoff["sharedPath"]
    assert not (shared_of(shared_service) / "handoffs" / "swarm" / "swarm3-latest.md").exists()
    by_prompt = get(shared_service, "/search", workerId="swarm3", q="quokka gate")
    by_spec = get(shared_service, "/search", workerId="swarm3", query="quokka gate")
    assert by_prompt["results"] == by_spec["results"]
    for hit in by_prompt["results"]:
        assert {"path", "line", "score", "snippet"} <= set(hit)
        assert "quokka" in Path(hit["path"]).read_text("utf-8").split("\n")[hit["line"] - 1].lower()
        assert "quokka" in hit["snippet"].lower()
    assert {Path(hit["path"]).name for hit in by_prompt["results"]} >= {"events.jsonl", event["at"][:10] + ".md"}


# --- GET ---


@pytest.mark.parametrize("kind", KINDS)
def test_reading_creates_nothing(shared_service: Service, kind: str) -> None:
    before = files_now(shared_service)
    answer = get(shared_service, workerId="nobody-yet", kind=kind, missionId="none-yet")
    assert (answer["files"], answer["omitted"]) == ([], 0)
    assert isinstance(answer["root"], str)
    assert get(shared_service, "/search", workerId="nobody-yet", q="nothing", fresh=True)["results"] == []
    assert files_now(shared_service) == before


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("kind", {"workerId": "swarm1"}),
        ("kind", {"workerId": "swarm1", "kind": "Profile"}),
        ("workerId", {"kind": "profile"}),
        ("workerId", {"kind": "profile", "workerId": "no worker"}),
        ("workerId", {"kind": "shared", "workerId": "../x"}),
        ("missionId", {"kind": "mission", "workerId": "swarm1", "missionId": "no mission"}),
        ("date", {"kind": "episodic", "workerId": "swarm1", "date": "yesterday"}),
        ("date", {"kind": "episodic", "workerId": "swarm1", "date": "2026-02-30"}),
        ("date", {"kind": "episodic", "workerId": "swarm1", "date": "2026-1-1"}),
        ("worker", {"kind": "profile", "worker": "swarm1"}),
    ],
)
def test_a_bad_question_is_refused_and_names_the_field(
    shared_service: Service, field: str, query: dict[str, Any]
) -> None:
    status, code, text = refused(shared_service, "GET", **query)
    assert (status, code) == (400, "invalid_request")
    assert text.startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("field", "query"),
    [
        ("query", {}),
        ("q", {"q": " "}),
        ("q", {"q": "one", "query": "another"}),
        ("limit", {"q": "x", "limit": 0}),
        ("limit", {"q": "x", "limit": 51}),
        ("scope", {"q": "x", "scope": "everything"}),
        ("workerId", {"q": "x", "workerId": "../x"}),
    ],
)
def test_a_bad_search_is_refused_and_names_the_field(
    shared_service: Service, field: str, query: dict[str, Any]
) -> None:
    status, answer = shared_service.rest("GET", PAGE + "/search", **query)
    assert (status, answer["code"]) == (400, "invalid_request")
    assert answer["error"].startswith(f"{field}: ")


def test_an_answer_is_bounded_and_says_what_it_left_out(shared_service: Service) -> None:
    pages = memory_of(shared_service, "swarm4") / "episodes"
    pages.mkdir(parents=True)
    days = [f"2026-{month:02}-{day:02}" for month in (1, 2) for day in range(1, 29)]
    for day in days:
        (pages / f"{day}.md").write_text(day, "utf-8")
    answer = get(shared_service, workerId="swarm4", kind="episodic")
    assert [file["name"] for file in answer["files"]] == [f"{day}.md" for day in sorted(days, reverse=True)[:50]]
    assert answer["omitted"] == len(days) - 50


def test_files_together_are_bounded_and_a_long_one_is_cut(shared_service: Service) -> None:
    pages = memory_of(shared_service, "swarm5") / "episodes"
    pages.mkdir(parents=True)
    for day in range(1, 8):
        (pages / f"2026-01-0{day}.md").write_text("x" * 300_000, "utf-8")
    answer = get(shared_service, workerId="swarm5", kind="episodic")
    assert answer["omitted"] == 7 - len(answer["files"]) > 0
    assert sum(len(file["content"]) for file in answer["files"]) <= 1_048_576
    for file in answer["files"]:
        assert (file["cut"], file["hash"]) == (True, hash_of(b"x" * 300_000))


def test_every_mission_is_listed_by_its_summary(shared_service: Service) -> None:
    for mission in ("alpha", "beta"):
        post(shared_service, workerId="swarm6", kind="mission", missionId=mission, summary=f"about {mission}")
        summary_shows(shared_service, "swarm6", mission, "- Status: planning")
    every = get(shared_service, workerId="swarm6", kind="mission")
    assert [file["name"] for file in every["files"]] == ["beta/SUMMARY.md", "alpha/SUMMARY.md"]
    one = get(shared_service, workerId="SWARM6", kind="mission", missionId="ALPHA")
    assert [file["name"] for file in one["files"]] == ["SUMMARY.md", "events.jsonl"]
    assert json.loads(one["files"][1]["content"])["summary"] == "about alpha"


# --- POST ---


def test_an_episode_is_appended_to_today_s_page(shared_service: Service) -> None:
    first = post(shared_service, workerId="swarm7", kind="episodic", summary="one", content="a\nb")
    post(shared_service, workerId="swarm7", kind="episodic", eventType="note", content="two")
    (page,) = get(shared_service, workerId="swarm7", kind="episodic")["files"]
    assert page["name"] == first["at"][:10] + ".md"
    assert page["content"].startswith(f"# Episodes — swarm7 — {first['at'][:10]}\n")
    assert [line for line in page["content"].split("\n") if line.startswith("## ")] == [
        f"## {first['at'][11:16]} UTC — note",
    ] * 2 or page["content"].count(" UTC — note\n") == 2
    for line in ("- Summary: one", "> a", "> b", "> two"):
        assert line in page["content"].split("\n")


def test_shared_memory_is_written_by_the_operator(shared_service: Service) -> None:
    post(shared_service, kind="shared", content="first")
    answer = post(shared_service, kind="shared", content="second")
    post(shared_service, kind="shared", file="Lessons.md", content="measure twice\n")
    swarm = shared_of(shared_service) / "swarm"
    assert (answer["workerId"], answer["path"]) == (None, str(swarm / "notes.md"))
    assert (swarm / "notes.md").read_text("utf-8") == "first\nsecond"
    assert (swarm / "Lessons.md").read_text("utf-8") == "measure twice\n"
    seen = get(shared_service, kind="shared")
    assert {file["name"] for file in seen["files"]} >= {"notes.md", "Lessons.md"}


def test_profile_pages_are_replaced_by_name_and_hash(shared_service: Service) -> None:
    post(shared_service, workerId="swarm8", scaffold=True)
    soul = memory_of(shared_service, "swarm8") / "SOUL.md"
    fresh = hash_of(soul.read_bytes())
    answer = post(
        shared_service, workerId="swarm8", kind="profile", file="SOUL.md", content="# Calm\r\n", baseHash=fresh.upper()
    )
    assert (answer["action"], soul.read_bytes()) == ("replaced", b"# Calm\r\n")
    assert answer["hash"] == hash_of(b"# Calm\r\n")


def test_c055_an_older_copy_is_refused_and_the_hand_edit_survives(shared_service: Service) -> None:
    post(shared_service, workerId="swarm9", scaffold=True)
    memory = memory_of(shared_service, "swarm9") / "MEMORY.md"
    base = find(get(shared_service, workerId="swarm9", kind="profile"), "MEMORY.md")["hash"]
    with memory.open("a", encoding="utf-8") as shell:
        shell.write("- written by A in a shell\n")
    by_hand = memory.read_bytes()
    status, code, text = refused(
        shared_service, "POST", workerId="swarm9", kind="profile", content="B's older copy", baseHash=base
    )
    assert (status, code) == (409, "conflict")
    assert text.startswith("baseHash: ")
    assert memory.read_bytes() == by_hand


def test_c056_without_a_hash_the_text_is_appended(shared_service: Service) -> None:
    post(shared_service, workerId="swarm10", scaffold=True)
    memory = memory_of(shared_service, "swarm10") / "MEMORY.md"
    before = memory.read_bytes()
    answer = post(shared_service, workerId="swarm10", kind="profile", content="one line")
    assert answer["action"] == "appended"
    assert memory.read_bytes() == before + b"one line"
    assert post(shared_service, workerId="swarm10", scaffold=True)["ok"]
    assert memory.read_bytes() == before + b"one line"


@pytest.mark.parametrize("place", [{"kind": "mission", "missionId": "m"}, {"kind": "episodic"}])
def test_a_repeated_request_is_answered_as_the_first_and_writes_nothing(
    shared_service: Service, place: dict[str, str]
) -> None:
    worker = f"again-{place['kind']}"
    sent = {"workerId": worker, "summary": "once", "requestId": "r 1 --> x", "event": {"result": "ok"}, **place}
    first = post(shared_service, **sent)
    if "missionId" in place:
        summary_shows(shared_service, worker, "m", "- Total: 1 events, 0 of them checkpoints")
    before = files_now(shared_service)
    again = post(shared_service, **sent)
    assert (first["replayed"], again["replayed"], again["at"]) == (False, True, first["at"])
    for other in ({"summary": "other"}, {"eventType": "dispatch"}, {"event": {"result": "no"}}):
        status, code, text = refused(shared_service, "POST", **{**sent, **other})
        assert (status, code, text[:11]) == (409, "conflict", "requestId: ")
    assert files_now(shared_service) == before


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("kind", {}),
        ("kind", {"kind": "diary"}),
        ("eventType", {"kind": "mission", "missionId": "m", "eventType": "finished"}),
        ("missionId", {"kind": "mission", "summary": "x"}),
        ("missionId", {"kind": "handoff", "content": "x"}),
        ("missionId", {"kind": "handoff", "content": "x", "missionId": "a/b"}),
        ("content", {"kind": "handoff", "missionId": "m"}),
        ("content", {"kind": "episodic"}),
        ("content", {"kind": "profile"}),
        ("file", {"kind": "profile", "content": "x", "file": "NOTES.md"}),
        ("file", {"kind": "shared", "content": "x", "file": "../up.md"}),
        ("file", {"kind": "handoff", "missionId": "m", "content": "x", "file": "a.md"}),
        ("baseHash", {"kind": "episodic", "content": "x", "baseHash": "0" * 64}),
        ("summary", {"kind": "profile", "content": "x", "summary": "would be dropped"}),
        ("event", {"kind": "handoff", "missionId": "m", "content": "x", "event": {"state": "DONE"}}),
        ("requestId", {"kind": "profile", "content": "x", "requestId": "r"}),
        ("content", {"scaffold": True, "content": "would be dropped"}),
        ("event", {"kind": "mission", "missionId": "m", "event": "no object"}),
        ("event", {"kind": "mission", "missionId": "m", "event": [1]}),
        ("event", {"kind": "mission", "missionId": "m", "event": '{"x": NaN}'}),
        ("event", {"kind": "mission", "missionId": "m", "event": "[" * 40 + "]" * 40}),
        ("summary", {"kind": "mission", "missionId": "m", "summary": "nul \0"}),
        ("typo", {"kind": "mission", "missionId": "m", "typo": "x"}),
    ],
)
def test_a_bad_write_is_refused_names_the_field_and_writes_nothing(
    shared_service: Service, field: str, body: dict[str, Any]
) -> None:
    before = files_now(shared_service)
    status, code, text = refused(shared_service, "POST", workerId="never-made", **body)
    assert (status, code) == (400, "invalid_request")
    assert text.startswith(f"{field}: ")
    assert files_now(shared_service) == before


def test_text_of_an_event_forges_neither_heading_nor_marker(shared_service: Service) -> None:
    plain = post(shared_service, workerId="plain", kind="mission", missionId="m", title="t", summary="s", content="c")
    like = headings(summary_shows(shared_service, "plain", "m", "- Status: planning"))
    forged = post(
        shared_service,
        workerId="forger",
        kind="mission",
        missionId="m",
        title=HOSTILE_MARKDOWN,
        assignmentId=HOSTILE_MARKDOWN[:150],
        summary=HOSTILE_MARKDOWN,
        content=HOSTILE_MARKDOWN,
        event={
            name: [HOSTILE_MARKDOWN] if name in ("decisions", "filesTouched", "blockers") else HOSTILE_MARKDOWN
            for name in ("state", "result", "decisions", "filesTouched", "blockers", "nextAction", "objective")
        },
    )
    page = headings(summary_shows(shared_service, "forger", "m", "- Status: planning"))
    assert page[1:] == like[1:]
    assert page[0].startswith("# Mission m — fine ## Blockers &lt;!-- solos:end state --&gt;")
    episodes = memory_of(shared_service, "forger") / "episodes" / f"{forged['at'][:10]}.md"
    marks = headings(episodes.read_text("utf-8"))
    assert [mark[:5] for mark in marks] == ["# Epi", marks[1][:5], "<!-- "]
    assert marks[1] == f"## {forged['at'][11:16]} UTC — note"
    assert plain["eventType"] == "note"


def test_a_handoff_is_kept_byte_for_byte(shared_service: Service) -> None:
    content = "\ufeff# Handoff  \r\n\r\n<!-- solos:begin state -->\r\n## 状态 🦓\t \nno end of line"
    answer = post(shared_service, workerId="bytes", kind="handoff", missionId="M:1.x", content=content)
    memory = memory_of(shared_service, "bytes")
    for copy in (
        memory / "handoffs" / "m:1.x.md",
        memory / "missions" / "m:1.x" / "handoff.md",
        shared_of(shared_service) / "handoffs" / "swarm" / "bytes-latest.md",
    ):
        assert copy.read_bytes() == content.encode()
    assert answer["hash"] == hash_of(content.encode())
    (file,) = get(shared_service, workerId="bytes", kind="handoff", missionId="m:1.x")["files"]
    assert file["content"] == content


# --- C102 ---

HOSTILE_IDS = (
    "../../etc",
    "..%2f..%2f",
    "../",
    "..",
    ".",
    "/etc",
    "swarm5/../../x",
    "C:\\x",
    "~",
    "swarm5\0",
    "swarm5\n",
    " swarm5",
    "-swarm5",
    "_x",
    "a" * 65,
    "swarm５",
    "\u212aelvin",
    "a.b",
    "a%00",
)


@pytest.mark.parametrize("hostile", HOSTILE_IDS)
def test_c102_a_hostile_worker_id_is_refused(shared_service: Service, hostile: str) -> None:
    before = files_now(shared_service)
    for kind in KINDS:
        assert refused(shared_service, "GET", workerId=hostile, kind=kind)[:2] == (400, "invalid_request")
        sent = {"missionId": "m", "content": "x"}
        assert refused(shared_service, "POST", workerId=hostile, kind=kind, **sent)[2].startswith("workerId: ")
    assert refused(shared_service, "POST", workerId=hostile, scaffold=True)[0] == 400
    assert refused(shared_service, "POST", "/hooks/dispatch", workerId=hostile)[0] == 400
    assert files_now(shared_service) == before


@pytest.mark.parametrize("hostile", ["a/b", "../x", "..", ".x", "a\\b", "a\0", "~", "a" * 129, "%2e%2e", "m\n"])
def test_c102_a_hostile_mission_id_is_refused(shared_service: Service, hostile: str) -> None:
    before = files_now(shared_service)
    for kind in ("mission", "handoff", "episodic"):
        sent = {"workerId": "never-made", "kind": kind, "missionId": hostile}
        assert refused(shared_service, "GET", **sent)[2].startswith("missionId: ")
        assert refused(shared_service, "POST", **sent, content="x")[2].startswith("missionId: ")
    status, code, _ = refused(
        shared_service, "POST", "/hooks/handoff-written", workerId="never-made", missionId=hostile, content="x"
    )
    assert (status, code) == (400, "invalid_request")
    assert files_now(shared_service) == before


@pytest.mark.parametrize("raw", ["..%2f..%2f", "%2e%2e%2f%2e%2e", "swarm5%00", "C:%5Cx", "%ff", "a&workerId=b"])
def test_c102_an_encoded_worker_id_is_refused(shared_service: Service, raw: str) -> None:
    response = shared_service.http.get(f"{shared_service.url}{PAGE}?kind=profile&workerId={raw}")
    assert response.status_code == 400
    assert response.json()["error"].startswith("workerId: ")


def test_c102_a_path_below_a_hook_leads_nowhere(shared_service: Service) -> None:
    before = files_now(shared_service)
    for hook in ("finished", "..", "../x", "dispatch/x"):
        response = shared_service.http.post(
            f"{shared_service.url}{PAGE}/hooks/{urllib.parse.quote(hook, safe='')}", json={"workerId": "never-made"}
        )
        assert response.status_code in (400, 404, 405), hook
    assert files_now(shared_service) == before


@pytest.mark.parametrize("linked", ["memory", "memory/missions", "memory/episodes/2026-01-01.md", "memory/MEMORY.md"])
def test_c102_a_link_that_escapes_is_forbidden(tmp_path: Path, linked: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.md").write_text("secret", "utf-8")
    folder = tmp_path / "service"
    folder.mkdir()
    link = folder / "profiles" / "swarm5" / linked
    link.parent.mkdir(parents=True)
    link.symlink_to(outside / "secret.md" if link.suffix else outside)
    before = tree(outside)
    with serving(fresh_database(folder)) as service:
        reads: dict[str, dict[str, str]] = {
            "memory": {"kind": "profile"},
            "memory/missions": {"kind": "mission", "missionId": "m"},
            "memory/episodes/2026-01-01.md": {"kind": "episodic", "date": "2026-01-01"},
            "memory/MEMORY.md": {"kind": "profile"},
        }
        status, code, text = refused(service, "GET", workerId="swarm5", **reads[linked])
        assert (status, code, "link" in text) == (403, "forbidden", True)
        if not linked.startswith("memory/episodes"):
            status, code, text = refused(service, "POST", workerId="swarm5", content="x", **reads[linked])
            assert (status, code, "link" in text) == (403, "forbidden", True)
        assert "secret" not in json.dumps(get(service, "/search", q="secret", scope="all", fresh=True)["results"])
    assert tree(outside) == before


# --- the header, and the roster ---


def test_the_header_idempotency_key_counts_as_request_id(shared_service: Service) -> None:
    sent: dict[str, Any] = {"workerId": "keyed", "kind": "mission", "missionId": "m", "summary": "once"}
    header = {"Idempotency-Key": "k-1"}
    first = shared_service.rest("POST", PAGE, sent, headers=header)[1]
    again = shared_service.rest("POST", PAGE, sent, headers=header)[1]
    assert (first["replayed"], again["replayed"], again["at"]) == (False, True, first["at"])
    status, other = shared_service.rest("POST", PAGE, {**sent, "requestId": "k-2"}, headers=header)
    assert (status, other["error"].partition(":")[0]) == (400, "requestId")


def test_a_scaffold_is_filled_from_the_roster_which_is_only_read(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    roster = "workers:\n  - id: swarm5\n    name: Vega\n    role: reviewer\n    specialty: 状态\n    model: m-2\n"
    (workspace / "swarm.yaml").write_text(roster, "utf-8")
    before = tree(workspace)
    with serving(fresh_database(tmp_path), env={"SOLOS_MEMORY_SWARM_WORKSPACE": str(workspace)}) as service:
        post(service, workerId="Swarm5", scaffold=True, model="m-3")
        files = {file["name"]: file["content"] for file in get(service, workerId="swarm5", kind="profile")["files"]}
        told = ["- Name: Vega", "- Worker ID: swarm5", "- Role: reviewer", "- Specialty: 状态", "- Model: m-3"]
        assert files["IDENTITY.md"].splitlines()[2:] == told
        assert "reviewer — 状态" in files["MEMORY.md"].splitlines()
        assert "reviewer" in files["SOUL.md"]
    assert tree(workspace) == before
