"""The skill that teaches workers: its page is well formed, and every example of it does what the page says."""

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from storage.swarm.events import LISTS, TEXTS
from tests.acceptance.swarm_files import memory_of, summary_shows
from tests.support import Service, fresh_database, serving
from transport.operations import BY_NAME

SKILL = Path(__file__).resolve().parents[2] / "deploy" / "skills" / "swarm-memory" / "SKILL.md"
LINES_MAX = 150
NAME_CHARS_MAX = 64
DESCRIPTION_CHARS_MAX = 1_024
"""Both bounds are those of the Agent Skills form."""
HANDOFF_HEADINGS = (
    "Current state",
    "Objective",
    "Completed",
    "In progress",
    "Files touched",
    "Commands run",
    "Blockers",
    "Next exact action",
    "Resume prompt",
)
"""Those of the specification's template."""
NEXT_ACTION = "Set relay.lab to lab-02 in zones/lab.zone"
_BLOCK = re.compile(r"^```(?P<kind>sh|json tool=(?P<tool>[a-z_]+))\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """A call that the page shows."""

    tool: str | None
    """None: it is a line of a shell."""
    text: str


class Answer(NamedTuple):
    """What an example was answered with."""

    example: Example
    body: dict[str, Any]


def examples() -> list[Example]:
    """The calls of the page, in its order."""
    return [Example(found["tool"], found["text"]) for found in _BLOCK.finditer(SKILL.read_text("utf-8"))]


def run(service: Service, example: Example) -> dict[str, Any]:
    """What one example is answered with; a line of a shell without curl only has to end well."""
    if example.tool is not None:
        is_error, answer = service.mcp(example.tool, json.loads(example.text))
        assert is_error is False
        return answer
    done = subprocess.run(
        ["/bin/sh", "-euc", example.text],
        env=os.environ | {"SOLOS_MEMORY_URL": service.url, "no_proxy": "*"},
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, (example.text, done.stderr)
    answered: dict[str, Any] = json.loads(done.stdout) if "curl" in example.text else {"ok": True}
    return answered


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fleet with the worker of the page, which has written nothing yet."""
    with serving(fresh_database(tmp_path_factory.mktemp("skill"), agents=("swarm5", "swarm6"))) as running:
        yield running


@pytest.fixture(scope="module")
def answers(fleet: Service) -> list[Answer]:
    """The answers of all examples, run in the order of the page."""
    return [Answer(example, run(fleet, example)) for example in examples()]


def of_tool(answers: list[Answer], tool: str) -> list[dict[str, Any]]:
    """The answers of a tool."""
    return [body for example, body in answers if example.tool == tool]


# --- the page ---


def test_page_has_the_form_of_a_skill() -> None:
    text = SKILL.read_text("utf-8")
    _, front, body = text.split("---\n", 2)
    members = yaml.safe_load(front)
    assert set(members) == {"name", "description"}
    assert members["name"] == SKILL.parent.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", members["name"])
    assert len(members["name"]) <= NAME_CHARS_MAX
    assert 0 < len(members["description"]) <= DESCRIPTION_CHARS_MAX
    assert body.lstrip().startswith("# ")
    assert len(text.splitlines()) <= LINES_MAX


def test_every_block_of_the_page_is_an_example_that_is_run() -> None:
    assert SKILL.read_text("utf-8").count("\n```") == 2 * len(examples())


def test_page_teaches_every_event_and_field_that_a_worker_needs() -> None:
    sent = [json.loads(example.text) for example in examples() if example.tool == "swarm_write"]
    assert [one.get("event_type") for one in sent] == ["checkpoint", None, "blocked", None, "resume", "complete"]
    assert set(sent[0]["event"]) == {*LISTS, *TEXTS}
    (handoff,) = (one["content"] for one in sent if one["kind"] == "handoff")
    assert tuple(re.findall(r"^## (.+)$", handoff, re.MULTILINE)) == HANDOFF_HEADINGS
    assert NEXT_ACTION in handoff
    assert {example.tool for example in examples()} - {None} <= set(BY_NAME)


# --- its examples ---


def test_every_example_is_answered(answers: list[Answer]) -> None:
    refused = [(example, body) for example, body in answers if body["ok"] is not True]
    assert refused == []


def test_the_first_resume_says_what_is_missing(answers: list[Answer]) -> None:
    first = of_tool(answers, "swarm_resume")[0]
    assert (first["workerId"], first["missionId"], first.get("parts")) == ("swarm5", "mission-7", None)
    assert {part["name"] for part in first["missing"]} >= {
        "identity",
        "soul",
        "memory",
        "summary",
        "handoff",
        "episodes",
    }


def test_the_resume_at_the_end_shows_the_next_exact_action(fleet: Service, answers: list[Answer]) -> None:
    summary_shows(fleet, "swarm5", "mission-7", "- Status: complete")
    shell = next(example for example, _ in answers if example.tool is None and "/resume?" in example.text)
    for resumed in (of_tool(answers, "swarm_resume")[-1], run(fleet, shell)):
        assert NEXT_ACTION in str(resumed["parts"])
        (handoff,) = (part for part in resumed["parts"] if part["name"] == "handoff")
        assert f"## Next exact action\n\n{NEXT_ACTION}" in handoff["content"]


def test_checkpoints_blockers_and_decisions_are_in_the_summary(fleet: Service, answers: list[Answer]) -> None:
    assert answers
    page = summary_shows(fleet, "swarm5", "mission-7", "- Status: complete").splitlines()
    shown = {"# Mission mission-7 — Move the relay", "- lab-02 serves alone.", "- relay.toml"}
    assert shown <= set(page)
    (episodes,) = (memory_of(fleet, "swarm5") / "episodes").iterdir()
    assert "- Summary: Watched the logs of lab-02 for an hour; nothing new." in episodes.read_text("utf-8").splitlines()


def test_the_lesson_is_in_the_profile_once(fleet: Service, answers: list[Answer]) -> None:
    (profile,) = of_tool(answers, "swarm_read")
    (memory,) = (file["content"] for file in profile["files"] if file["name"] == "MEMORY.md")
    lesson = "- Lower the TTL of a name a day before it moves. — from mission mission-7, the move of the relay, "
    assert memory.count(lesson) == 1
    shell = next(example for example, _ in answers if "/promote" in example.text)
    assert run(fleet, shell)["action"] == "kept"
    assert (memory_of(fleet, "swarm5") / "MEMORY.md").read_text("utf-8") == memory


def test_a_fact_for_all_is_recalled_by_another_agent(fleet: Service, answers: list[Answer]) -> None:
    assert answers
    found = fleet.recall("swarm6", "which port does the relay need")
    assert [one["agent"] for one in found if "port 8022" in one["text"]] == ["swarm5"]
