"""Scaffolds, and the roster that fills their templates."""

import os
from pathlib import Path

import pytest

from storage.swarm.layout import Roots
from storage.swarm.memory import SwarmMemory
from storage.swarm.pages import Persona
from tests.storage.swarm.files import WORKER, Swarm, person_writes, picture


def test_a_scaffold_makes_what_is_missing_and_keeps_what_is_there(swarm: Swarm) -> None:
    person_writes(swarm.worker / "SOUL.md", "mine")
    written = swarm.memory.scaffold("Swarm5", Persona(role="builder", specialty="UI", model="m-1"))
    assert (written.workerId, written.action) == (WORKER, "scaffolded")
    assert (swarm.worker / "SOUL.md").read_text() == "mine"
    assert "- Role: builder\n- Specialty: UI\n- Model: m-1\n" in (swarm.worker / "IDENTITY.md").read_text()
    assert "## Role\n\nbuilder — UI\n" in (swarm.worker / "MEMORY.md").read_text(encoding="utf-8")
    assert all((swarm.worker / name).is_dir() for name in ("missions", "episodes", "handoffs"))
    before = picture(swarm.folder)
    swarm.memory.scaffold(WORKER, Persona(role="other"))
    assert picture(swarm.folder) == before


ROSTER = "workers:\n  - id: Swarm5\n    name: Five\n    role: builder\n    model: [1, 2]\n"


@pytest.mark.parametrize(
    ("roster", "name"),
    [(ROSTER.encode(), "Five"), (b"swarm5: {", WORKER), (b"\xff\xfe", WORKER), (b"[" * 50_000, WORKER), (None, WORKER)],
    ids=["good", "broken", "no text", "deep", "missing"],
)
def test_a_roster_fills_the_templates_or_says_nothing(tmp_path: Path, roster: bytes | None, name: str) -> None:
    if roster is not None:
        (tmp_path / "swarm.yaml").write_bytes(roster)
    memory = SwarmMemory(Roots(profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path))
    memory.scaffold(WORKER, Persona())
    identity = (tmp_path / "p" / WORKER / "memory" / "IDENTITY.md").read_text()
    assert f"- Name: {name}\n" in identity
    assert "- Model: ...\n" in identity


def test_a_roster_of_aliases_fills_no_memory(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
    (tmp_path / "swarm.yaml").write_text(f"{bomb}workers:\n  - id: {WORKER}\n    role: *a29\n    name: *a29\n")
    memory = SwarmMemory(Roots(profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path))
    memory.scaffold(WORKER, Persona())
    assert "- Role: ...\n" in (tmp_path / "p" / WORKER / "memory" / "IDENTITY.md").read_text()


def test_a_roster_that_is_a_pipe_blocks_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "swarm.yaml")
    memory = SwarmMemory(Roots(profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path))
    assert memory.scaffold(WORKER, Persona()).action == "scaffolded"


def test_a_roster_that_is_a_link_says_nothing(tmp_path: Path) -> None:
    """No link is followed below a root: what lies elsewhere would be read into a page."""
    (tmp_path / "elsewhere.yaml").write_text(ROSTER)
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "swarm.yaml").symlink_to(tmp_path / "elsewhere.yaml")
    memory = SwarmMemory(Roots(profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path / "workspace"))
    memory.scaffold(WORKER, Persona())
    assert "Five" not in (tmp_path / "p" / WORKER / "memory" / "IDENTITY.md").read_text()
