"""Recalls in the swarm's files, alone and beside the database's rows."""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.errors import FileFailed, InvalidRequest
from storage.recalling import Question
from storage.records import Memory, Recalled
from storage.swarm.layout import Roots, SwarmConfig
from storage.swarm.recalled import FILES_UNREAD, UNKNOWN_AUTHOR, with_files
from storage.swarm.swarm import Swarm
from tests.storage.swarm.files import person_writes

NOW_S = 1_800_000_000.0
FULL = "The quokka retry header is doubled by the relay."


@pytest.fixture
def swarm(tmp_path: Path) -> Iterator[Swarm]:
    """Two workers, of which swarm5 is the agent mira, with a sentence in every kind of file."""
    roots = Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared")
    for worker in ("swarm5", "swarm6"):
        memory = roots.profiles / worker / "memory"
        for name in (
            "MEMORY.md",
            "episodes/2026-01-01.md",
            "notes/deep/a.md",
            "missions/m-1/SUMMARY.md",
            "handoffs/m-2.md",
        ):
            person_writes(memory / name, f"# Page\n\n{FULL} {worker} {name}\n")
    person_writes(roots.shared / "swarm" / "notes.md", f"{FULL} shared\n")
    person_writes(roots.shared / "handoffs" / "swarm" / "swarm6-latest.md", f"{FULL} latest\n")
    swarm = Swarm(SwarmConfig(roots, workers={"swarm5": "mira"}), tmp_path / "index.db")
    swarm.open()
    yield swarm
    swarm.close()


def question(q: str = "quokka retry header", **more: object) -> Question:
    asked = Question(
        agent="mira",
        q=q,
        k=50,
        scope="shared",
        tiers=(),
        topic=None,
        tags=(),
        since=None,
        until=None,
        full=False,
        explain=False,
    )
    return replace(asked, **more)  # type: ignore[arg-type]


def names(recalled: Recalled) -> set[str]:
    return {memory.id.removeprefix("swarm:").rsplit(":", 1)[0] for memory in recalled.results}


def test_a_worker_recalls_its_own_files_and_those_of_the_fleet(swarm: Swarm) -> None:
    fleet = {"swarm6/memory/missions/m-1/SUMMARY.md", "swarm6/memory/handoffs/m-2.md", "swarm/notes.md"}
    own = {f"swarm5/memory/{name}" for name in ("MEMORY.md", "episodes/2026-01-01.md", "notes/deep/a.md")}
    own |= {"swarm5/memory/missions/m-1/SUMMARY.md", "swarm5/memory/handoffs/m-2.md"}
    assert names(swarm.recall(question(), NOW_S, registered=True)) == fleet | own | {"handoffs/swarm/swarm6-latest.md"}
    assert names(swarm.recall(question(scope="own"), NOW_S, registered=True)) == own
    of_no_worker = names(swarm.recall(question(agent="Nobody in particular"), NOW_S, registered=True))
    assert of_no_worker == fleet | {
        "swarm5/memory/missions/m-1/SUMMARY.md",
        "swarm5/memory/handoffs/m-2.md",
        "handoffs/swarm/swarm6-latest.md",
    }
    assert names(swarm.recall(question(agent="Nobody in particular", scope="own"), NOW_S, registered=True)) == set()


def test_a_line_names_its_author_its_mission_and_its_place(swarm: Swarm) -> None:
    found = {memory.id: memory for memory in swarm.recall(question(), NOW_S, registered=True).results}
    summary = found["swarm:swarm5/memory/missions/m-1/SUMMARY.md:3"]
    assert (summary.agent, summary.worker, summary.mission, summary.line) == ("mira", "swarm5", "m-1", 3)
    assert Path(summary.path or "").read_text().splitlines()[2] in summary.text
    assert summary.tier == "swarm"
    assert (summary.created_at or "").endswith("Z")
    assert found["swarm:swarm6/memory/handoffs/m-2.md:3"].agent == "swarm6"
    assert found["swarm:handoffs/swarm/swarm6-latest.md:1"].agent == "swarm6"
    assert found["swarm:swarm/notes.md:1"].agent == UNKNOWN_AUTHOR


def test_filters_of_rows_find_no_file_and_dates_are_those_of_files(swarm: Swarm, tmp_path: Path) -> None:
    assert swarm.recall(question(topic="deploy"), NOW_S, registered=True).results == ()
    assert swarm.recall(question(tags=("red",)), NOW_S, registered=True).results == ()
    every = names(swarm.recall(question(), NOW_S, registered=True))
    os.utime(tmp_path / "shared" / "swarm" / "notes.md", (1_000_000_000, 1_000_000_000))
    swarm.search.refresh()
    assert names(swarm.recall(question(until="2001-12-31"), NOW_S, registered=True)) == {"swarm/notes.md"}
    assert names(swarm.recall(question(since="2001-12-31"), NOW_S, registered=True)) == every - {"swarm/notes.md"}
    with pytest.raises(InvalidRequest, match="since: unrecognised date"):
        swarm.recall(question(since="soon"), NOW_S, registered=True)


def row(text: str, score: float, matched: float) -> Memory:
    return Memory(id=f"long:{score}", tier="long", agent="sol", text=text, score=score, parts={"matched": matched})


def rows_of(*results: Memory) -> Recalled:
    return Recalled(degraded=True, degraded_reasons=("no_embedder",), relaxed=False, results=results)


def test_a_line_that_says_more_of_the_question_comes_before_a_row_that_says_less(swarm: Swarm) -> None:
    asked = question(q="quokka retry header", explain=True, k=3)
    files = swarm.recall(asked, NOW_S, registered=True)
    all_of_it, half = row("quokka retry header", 12.0, 1.0), row("quokka", 4.0, 1 / 3)
    both = with_files(rows_of(all_of_it, half), files, asked)
    assert [memory.tier for memory in both.results] == ["long", "swarm", "swarm"]
    assert both.relaxed is False
    less = with_files(rows_of(half), files, asked)
    assert [memory.tier for memory in less.results] == ["swarm", "swarm", "swarm"]
    scores = [memory.score for memory in less.results]
    assert scores == sorted(scores, reverse=True)
    assert all(
        memory.parts is None for memory in with_files(rows_of(half), files, replace(asked, explain=False)).results
    )


def test_files_that_cannot_be_read_leave_the_rows_and_say_so() -> None:
    left = with_files(rows_of(row("quokka", 4.0, 0.5)), FileFailed("profiles: Input/output error."), question())
    assert [memory.tier for memory in left.results] == ["long"]
    assert left.degraded_reasons == ("no_embedder", FILES_UNREAD)
    assert left.relaxed is True


def test_files_without_an_answer_leave_the_rows_as_they_are(swarm: Swarm) -> None:
    asked = question(q="zebra", explain=True)
    found = with_files(rows_of(row("zebra", 4.0, 1.0)), swarm.recall(asked, NOW_S, registered=True), asked)
    assert [memory.id for memory in found.results] == ["long:4.0"]
    assert found.relaxed is False


def test_a_line_that_lies_in_several_places_is_one_result(swarm: Swarm, tmp_path: Path) -> None:
    line = "The wombat valve sticks at minus four.\n"
    copies = [
        "profiles/swarm6/memory/handoffs/m-9.md",
        "profiles/swarm6/memory/missions/m-9/handoff.md",
        "shared/handoffs/swarm/swarm6-latest.md",
        "shared/swarm/missions/m-9/swarm6/handoff.md",
    ]
    for copy in copies:
        person_writes(tmp_path / copy, line)
    person_writes(tmp_path / "profiles/swarm5/memory/MEMORY.md", "Oil the wombat valve each week.\n")
    swarm.search.refresh()
    first, second = swarm.recall(question("wombat valve sticks", k=2), NOW_S, registered=True).results
    assert first.path in {str(tmp_path / copy) for copy in copies[:2]}
    assert {also.agent for also in first.also} == {"swarm6"}
    assert len(first.also) == len(copies) - 1
    assert "Oil the wombat" in second.text


def test_nothing_is_the_own_of_an_agent_that_is_not_registered(swarm: Swarm) -> None:
    private = {"swarm5/memory/MEMORY.md", "swarm5/memory/episodes/2026-01-01.md", "swarm5/memory/notes/deep/a.md"}
    assert private <= names(swarm.recall(question(), NOW_S, registered=True))
    assert not private & names(swarm.recall(question(), NOW_S, registered=False))
    assert names(swarm.recall(question(scope="own"), NOW_S, registered=False)) == set()
