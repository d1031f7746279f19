"""What a worker resumes with: the parts in their order, of its mission alone, within the budget."""

import hashlib
import json
import os
from pathlib import Path

import pytest

from storage.errors import InvalidRequest
from storage.swarm.handoffs import OfAnotherMission
from storage.swarm.life.records import Resume
from storage.swarm.life.resume import Resumes
from storage.swarm.pages import Persona
from tests.storage.swarm.files import DAY, MISSION, WORKER, Swarm, asked, long_ago, person_writes, picture

OTHER = "mission-2"
HANDOFF = "# Handoff — {worker} — {mission}\n\n## Completed\n\n- half\n\n## Next exact action\n\n{action}\n"


def at_mission(swarm: Swarm, mission: str | None = MISSION, worker: str = WORKER) -> None:
    """Let a worker's runtime.json say what it is at."""
    members = {"workerId": worker, "currentMissionId": mission, "currentAssignmentId": "assign-7", "state": "executing"}
    person_writes(swarm.roots.profiles / worker / "runtime.json", json.dumps(members))


def handoff(action: str, worker: str = WORKER, mission: str = MISSION) -> str:
    return HANDOFF.format(worker=worker, mission=mission, action=action)


def resumed(swarm: Swarm, worker: str = WORKER, **more: object) -> Resume:
    return Resumes(swarm.roots).resume(worker, **more)  # type: ignore[arg-type]


def a_life(swarm: Swarm) -> None:
    """A worker that has done something in two missions, and is at the first of them."""
    swarm.memory.scaffold(WORKER, Persona(role="builder", specialty="relays"))
    for number in range(3):
        swarm.memory.write_event(asked(f"step {number}", detail={"nextAction": f"do {number + 1}"}))
        swarm.memory.write_event(asked(f"elsewhere {number}", mission=OTHER))
    swarm.memory.write_handoff(WORKER, MISSION, handoff("Solder joint four."), mirror=True)
    swarm.memory.write_handoff(WORKER, OTHER, handoff("Paint it.", mission=OTHER), mirror=True)
    swarm.follow()
    at_mission(swarm)


def test_the_parts_come_in_the_order_in_which_they_are_read(swarm: Swarm) -> None:
    a_life(swarm)
    resume = resumed(swarm)
    names = [part.name for part in resume.parts]
    assert names == ["identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"]
    assert (resume.missionId, resume.assignmentId, resume.missing) == (MISSION, "assign-7", ())
    for part in resume.parts:
        content = Path(part.path).read_bytes()
        assert part.hash == hashlib.sha256(content).hexdigest()
        assert part.updatedAt.endswith("Z")
        assert part.content.strip() in content.decode() or part.name in ("runtime", "episodes")
    assert resume.chars == len(resume.prompt) + sum(len(part.content) for part in resume.parts) <= resume.budget


def test_nothing_of_another_mission_is_resumed(swarm: Swarm) -> None:
    a_life(swarm)
    shown = "".join(part.content for part in resumed(swarm).parts) + resumed(swarm).prompt
    assert "step 2" in shown
    assert "Solder joint four." in shown
    assert "elsewhere" not in shown
    assert "Paint it." not in shown
    assert OTHER not in shown


def test_the_prompt_says_what_to_do_next(swarm: Swarm) -> None:
    a_life(swarm)
    assert resumed(swarm).prompt.splitlines() == [
        f"You are {WORKER}. Load your worker memory from {swarm.worker}/: IDENTITY.md, SOUL.md, MEMORY.md.",
        f"Your mission is {MISSION}: read its SUMMARY.md and its latest handoff.",
        "Continue from the handoff's Next exact action: Solder joint four.",
    ]
    swarm.handoff.unlink()
    (swarm.mission / "handoff.md").unlink()
    assert resumed(swarm).prompt.endswith("There is no handoff of it yet.\nIts next action is: do 3")
    swarm.summary.write_text("# Mission mission-1\n\n## Next action\n\n...\n")
    assert resumed(swarm).prompt.endswith("There is no handoff of it yet.\nBegin with its objective.")
    swarm.summary.unlink()
    assert resumed(swarm).prompt.endswith("Nothing of it is on record yet: begin with your assignment.")


def test_a_completed_mission_is_not_to_be_continued(swarm: Swarm) -> None:
    a_life(swarm)
    swarm.memory.write_event(asked("shipped", type="complete"))
    swarm.follow()
    assert resumed(swarm).prompt.endswith(f"Your mission {MISSION} is complete: ask for your next assignment.")
    swarm.memory.write_event(asked("found a fault", type="checkpoint"))
    swarm.follow()
    assert resumed(swarm).prompt.endswith("Next exact action: Solder joint four.")


@pytest.mark.parametrize(
    ("gone", "missing"),
    [
        ("memory/IDENTITY.md", {"identity": "IDENTITY.md: is not there."}),
        ("memory/SOUL.md", {"soul": "SOUL.md: is not there."}),
        ("memory/MEMORY.md", {"memory": "MEMORY.md: is not there."}),
        (f"memory/missions/{MISSION}/SUMMARY.md", {"summary": "SUMMARY.md: is not there."}),
        (f"memory/episodes/{DAY}.md", {"episodes": f"episodes: none of the last days' are of {MISSION}."}),
    ],
)
def test_any_part_may_be_missing_and_is_named(swarm: Swarm, gone: str, missing: dict[str, str]) -> None:
    a_life(swarm)
    (swarm.roots.profiles / WORKER / gone).unlink()
    resume = resumed(swarm)
    assert {part.name: part.reason for part in resume.missing} == missing
    assert len(resume.parts) == 6


def test_a_worker_without_anything_is_told_so_and_nothing_is_made(swarm: Swarm) -> None:
    before = picture(swarm.folder)
    resume = resumed(swarm)
    assert resume.parts == ()
    assert [part.name for part in resume.missing] == [
        "identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"
    ]  # fmt: skip
    assert resume.missionId is None
    assert resume.prompt.endswith("Your runtime.json names no mission: ask for your assignment.")
    assert picture(swarm.folder) == before


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("{", "runtime.json: is no JSON object."),
        ("[1]", "runtime.json: is no JSON object."),
        ("[" * 100_000, "runtime.json: is no JSON object."),
        ("{}", "runtime.json: names no currentMissionId."),
        ('{"currentMissionId": null}', "runtime.json: names no currentMissionId."),
        ('{"currentMissionId": 7}', "runtime.json: names no currentMissionId."),
        ('{"currentMissionId": "../../x"}', "runtime.json: currentMissionId is none (missionId: '../../x' does not"),
    ],
)
def test_without_a_current_mission_nothing_of_a_mission_is_guessed(swarm: Swarm, content: str, reason: str) -> None:
    a_life(swarm)
    person_writes(swarm.roots.profiles / WORKER / "runtime.json", content)
    resume = resumed(swarm)
    assert {part.name for part in resume.parts} <= {"identity", "soul", "memory", "runtime"}
    assert next(part.reason for part in resume.missing if part.name == "runtime").startswith(reason)
    assert {"summary", "handoff", "episodes"} <= {part.name for part in resume.missing}


def test_a_mission_may_be_named(swarm: Swarm) -> None:
    a_life(swarm)
    resume = resumed(swarm, mission=OTHER.upper())
    assert (resume.missionId, resume.assignmentId) == (OTHER, None)
    assert "Paint it." in resume.prompt
    with pytest.raises(InvalidRequest, match="missionId"):
        resumed(swarm, mission="../x")
    with pytest.raises(InvalidRequest, match="workerId"):
        resumed(swarm, worker="../x")


def test_runtime_shows_the_present_alone_in_valid_unicode(swarm: Swarm) -> None:
    members = (
        '{"currentMissionId": "mission-1", "currentTask": "\\ud83d", "lastMissionId": "mission-2", "state": "idle"}'
    )
    person_writes(swarm.roots.profiles / WORKER / "runtime.json", members)
    (runtime,) = resumed(swarm).parts
    assert json.loads(runtime.content) == {"currentMissionId": "mission-1", "currentTask": "?", "state": "idle"}


def test_a_part_that_may_not_be_read_is_named_and_the_others_are_there(swarm: Swarm, tmp_path: Path) -> None:
    a_life(swarm)
    (tmp_path / "secret").write_text("secret")
    for path in (swarm.worker / "SOUL.md", swarm.summary):
        path.unlink()
        path.symlink_to(tmp_path / "secret")
    resume = resumed(swarm)
    assert {part.name for part in resume.missing} == {"soul", "summary"}
    assert all("link" in part.reason for part in resume.missing)
    assert "secret" not in str(resume.parts)


def test_an_entry_of_another_mission_that_names_this_one_is_not_shown(swarm: Swarm) -> None:
    at_mission(swarm)
    swarm.memory.write_event(asked(f"unlike {MISSION}", mission=OTHER))
    swarm.memory.write_event(asked("ours"))
    entry = f"## 10:00\n\n- Mission: {OTHER}\n- Summary: by hand, unlike {MISSION}\n"
    person_writes(swarm.worker / "episodes" / "2026-01-04.md", entry)
    shown = [part.content for part in resumed(swarm).parts if part.name == "episodes"]
    assert len(shown) == 1
    assert "ours" in shown[0]
    assert "unlike" not in shown[0]


def test_of_a_page_that_is_too_large_to_be_read_the_end_is_shown(swarm: Swarm) -> None:
    person_writes(swarm.worker / "MEMORY.md", b"- a line of a page without end\n" * 300_000 + b"- the last one\n")
    (memory,) = resumed(swarm).parts
    assert memory.content.endswith("- the last one")
    assert (memory.cut, memory.hash) == (True, "")


# --- the latest handoff ---


def test_another_worker_s_shared_handoff_of_the_mission_is_resumed(swarm: Swarm) -> None:
    swarm.memory.write_handoff("swarm1", MISSION, handoff("Weld seam two.", "swarm1"), mirror=True)
    at_mission(swarm)
    (found,) = [part for part in resumed(swarm).parts if part.name == "handoff"]
    assert "Weld seam two." in found.content
    assert "Weld seam two." in resumed(swarm).prompt


def test_a_shared_handoff_of_another_mission_is_not_resumed(swarm: Swarm) -> None:
    swarm.memory.write_handoff("swarm1", OTHER, handoff("Weld seam two.", "swarm1", OTHER), mirror=True)
    at_mission(swarm)
    assert [part.reason for part in resumed(swarm).missing if part.name == "handoff"] == [
        f"handoff: there is none of {MISSION}."
    ]


def test_a_handoff_that_names_no_mission_is_known_by_its_place(swarm: Swarm) -> None:
    swarm.memory.write_handoff("swarm1", MISSION, "Go on with the relay.\n", mirror=True)
    at_mission(swarm)
    assert "Go on with the relay." in str(resumed(swarm).parts)
    person_writes(swarm.roots.shared / "handoffs" / "swarm" / "swarm2-latest.md", "Of no mission that is known.\n")
    os.utime(swarm.roots.shared / "handoffs" / "swarm" / "swarm2-latest.md")
    assert "Of no mission" not in str(resumed(swarm).parts)


def test_the_newer_of_two_handoffs_is_resumed_wherever_it_lies(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, handoff("Own."), mirror=True)
    swarm.memory.write_handoff("swarm1", MISSION, handoff("Theirs.", "swarm1"), mirror=True)
    at_mission(swarm)
    assert "Theirs." in resumed(swarm).prompt
    for path in (swarm.roots.profiles / "swarm1").rglob("*.md"):
        long_ago(path)
    long_ago(swarm.roots.shared / "handoffs" / "swarm" / "swarm1-latest.md")
    assert "Own." in resumed(swarm).prompt
    person_writes(swarm.worker / "handoffs" / "latest.md", handoff("Written by hand, and the newest."))
    os.utime(swarm.worker / "handoffs" / "latest.md")
    assert "Written by hand" in resumed(swarm).prompt
    person_writes(swarm.worker / "handoffs" / "latest.md", handoff("Of the other mission.", mission=OTHER))
    os.utime(swarm.worker / "handoffs" / "latest.md")
    assert "Own." in resumed(swarm).prompt


@pytest.mark.parametrize("heading", ["{other} — the relay", "{other}:", "`{other}`", "{other}  ", "{other} (relay)"])
def test_a_heading_that_goes_on_names_its_mission_all_the_same(swarm: Swarm, heading: str) -> None:
    text = f"# Handoff — {WORKER} — {heading.format(other=OTHER)}\n\n## Next exact action\n\nPaint it.\n"
    with pytest.raises(OfAnotherMission):
        swarm.memory.write_handoff(WORKER, MISSION, text, mirror=True)
    person_writes(swarm.handoff, text)
    at_mission(swarm)
    assert "Paint it." not in str(resumed(swarm))


@pytest.mark.parametrize("heading", ["Move the relay 2", "relay: moved", "<missionId>", "the m-2 relay"])
def test_a_heading_that_is_a_title_names_no_mission(swarm: Swarm, heading: str) -> None:
    text = f"# Handoff — {WORKER} — {heading}\n\n## Next exact action\n\nPaint it.\n"
    swarm.memory.write_handoff(WORKER, MISSION, text, mirror=True)
    at_mission(swarm)
    assert "Paint it." in resumed(swarm).prompt


def test_what_runtime_json_says_of_another_mission_is_not_shown(swarm: Swarm) -> None:
    a_life(swarm)
    at_mission(swarm, OTHER)
    resume = resumed(swarm, mission=MISSION)
    assert OTHER not in str(resume.parts)
    assert ("runtime", "runtime.json: is at another mission, mission-2.") in [
        (part.name, part.reason) for part in resume.missing
    ]


def test_a_handoff_in_this_mission_s_place_that_names_another_is_not_resumed(swarm: Swarm) -> None:
    person_writes(swarm.handoff, handoff("Paint it.", mission=OTHER))
    at_mission(swarm)
    assert "Paint it." not in str(resumed(swarm))


# --- the budget ---


def a_long_life(swarm: Swarm) -> None:
    """A worker with more of everything than any budget holds."""
    swarm.memory.scaffold(WORKER, Persona(role="builder"))
    lessons = "".join(f"- lesson {number} of a long life\n" for number in range(2_000))
    person_writes(swarm.worker / "MEMORY.md", f"# Memory — {WORKER}\n\n## Lessons learned\n\n{lessons}")
    for number in range(300):
        told = {"decisions": [f"decision {number}, and why it was taken in so many words"]}
        swarm.memory.write_event(asked(f"checkpoint number {number} with words", detail=told))
    pieces = "- a piece\n" * 3_000
    swarm.memory.write_handoff(WORKER, MISSION, handoff("Solder joint four.").replace("- half\n", pieces), mirror=True)
    swarm.follow()
    at_mission(swarm)


@pytest.mark.parametrize("budget", [5_000, 16_000, 40_000])
def test_the_budget_is_kept_and_the_newest_with_it(swarm: Swarm, budget: int) -> None:
    a_long_life(swarm)
    resume = resumed(swarm, budget=budget)
    shown = {part.name: part.content for part in resume.parts}
    assert resume.chars <= budget
    assert set(shown) == {"identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"}
    assert "lesson 1999" in shown["memory"]
    assert "Solder joint four." in shown["handoff"]
    assert "checkpoint number 299" in shown["summary"]
    assert "checkpoint number 299" in shown["episodes"]
    assert "checkpoint number 0 " not in shown["episodes"]
    assert [part.name for part in resume.parts if part.cut] == ["memory", "summary", "handoff", "episodes"]


def test_the_least_budget_still_says_what_to_do_next(swarm: Swarm) -> None:
    a_long_life(swarm)
    resume = resumed(swarm, budget=2_000)
    shown = {part.name: part.content for part in resume.parts}
    assert resume.chars <= 2_000
    assert "Solder joint four." in shown["handoff"]
    assert "lesson 1999" in shown["memory"]


def test_episodes_of_older_days_come_behind_those_of_newer_ones(swarm: Swarm) -> None:
    at_mission(swarm)
    for day in ("2026-01-01", "2026-01-03", "2026-01-02"):
        entries = (
            f"## 10:00 UTC — note\n\n- Mission: {MISSION}\n- Summary: on {day}\n\n## 11:00 UTC — note\n\n- Mission: x\n"
        )
        person_writes(swarm.worker / "episodes" / f"{day}.md", f"# Episodes\n\n{entries}")
    person_writes(swarm.worker / "episodes" / "2026-01-04.md", f"## 09:00\n\nThought of {MISSION}-b and its like.\n")
    person_writes(swarm.worker / "episodes" / "2026-01-05.md", f"## 09:00\n\nThought of {MISSION.upper()}.\n")
    days = [part for part in resumed(swarm).parts if part.name == "episodes"]
    assert [Path(part.path).stem for part in days] == ["2026-01-05", "2026-01-03", "2026-01-02", "2026-01-01"]
    assert "Mission: x" not in str(days)
