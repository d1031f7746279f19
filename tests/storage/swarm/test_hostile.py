"""Hostile ids, paths, links and swapped folders: nothing is read, made or changed outside the roots."""

import os

import pytest

from storage.errors import Conflict, Forbidden, InvalidRequest
from storage.swarm.pages import Persona
from storage.swarm.renames import hash_of
from tests.storage.swarm.files import (
    BUILT,
    MISSION,
    WORKER,
    Swarm,
    asked,
    conflicts,
    leftovers,
    outside,
    person_writes,
    picture,
)
from tests.storage.swarm.test_layout import HOSTILE

# --- hostile callers ---


@pytest.mark.parametrize("given", HOSTILE, ids=ascii)
def test_nothing_is_made_for_an_id_that_is_none(swarm: Swarm, given: str) -> None:
    memory = swarm.memory
    writes = [
        lambda: memory.scaffold(given, Persona()),
        lambda: memory.write_event(asked(worker=given)),
        lambda: memory.write_event(asked(worker=given, mission=None)),
        lambda: memory.write_event(asked(mission=given)),
        lambda: memory.write_handoff(given, MISSION, "x", mirror=True),
        lambda: memory.write_handoff(WORKER, given, "x", mirror=True),
        lambda: memory.write_page("profile", given, None, "x", base_hash=None),
        lambda: memory.write_page("profile", WORKER, given or "x", "x", base_hash=None),
        lambda: memory.write_page("shared", None, given or "x", "x", base_hash=None),
    ]
    for write in writes:
        with pytest.raises(InvalidRequest):
            write()
    assert list(swarm.folder.parent.iterdir()) == []


@pytest.mark.parametrize("kind", ["", "checkpoints", "Checkpoint", "note\n## x"])
def test_nothing_is_made_for_a_type_that_is_none(swarm: Swarm, kind: str) -> None:
    with pytest.raises(InvalidRequest, match="eventType"):
        swarm.memory.write_event(asked(type=kind))
    assert not swarm.folder.exists()


def test_a_profile_needs_a_worker(swarm: Swarm) -> None:
    with pytest.raises(InvalidRequest, match="workerId"):
        swarm.memory.write_page("profile", None, None, "x", base_hash=None)


# --- hostile files ---

FOLDERS = [
    f"profiles/{WORKER}",
    f"profiles/{WORKER}/memory",
    f"profiles/{WORKER}/memory/missions",
    f"profiles/{WORKER}/memory/missions/{MISSION}",
    f"profiles/{WORKER}/memory/episodes",
    f"profiles/{WORKER}/memory/handoffs",
    "shared/swarm",
    "shared/handoffs",
    "shared/handoffs/swarm",
]
FILES = [
    f"profiles/{WORKER}/memory/MEMORY.md",
    f"profiles/{WORKER}/memory/missions/{MISSION}/SUMMARY.md",
    f"profiles/{WORKER}/memory/missions/{MISSION}/events.jsonl",
    f"profiles/{WORKER}/memory/missions/{MISSION}/handoff.md",
    f"profiles/{WORKER}/memory/episodes/{BUILT[:10]}.md",
    f"profiles/{WORKER}/memory/handoffs/{MISSION}.md",
    f"shared/handoffs/swarm/{WORKER}-latest.md",
    "shared/swarm/notes.md",
]


def write_everything(swarm: Swarm) -> list[str]:
    """A write of each kind; the names of those that were refused for a link."""
    memory = swarm.memory
    writes = {
        "scaffold": lambda: memory.scaffold(WORKER, Persona()),
        "event": lambda: memory.write_event(asked()),
        "episode": lambda: memory.write_event(asked(mission=None)),
        "handoff": lambda: memory.write_handoff(WORKER, MISSION, "x", mirror=True),
        "append": lambda: memory.write_page("profile", WORKER, None, "x", base_hash=None),
        "replace": lambda: memory.write_page("profile", WORKER, None, "x", base_hash=hash_of(b"private")),
        "shared": lambda: memory.write_page("shared", None, None, "x", base_hash=None),
        "shared replace": lambda: memory.write_page("shared", None, None, "x", base_hash=hash_of(b"private")),
    }
    refused = []
    for name, write in writes.items():
        try:
            write()
        except Forbidden:
            refused.append(name)
        except Conflict:
            assert "replace" in name
    swarm.follow()
    memory.close()
    swarm.again().reconcile()
    return refused


@pytest.mark.parametrize("kind", ["link", "dangling", "relative", "pipe", "file"])
@pytest.mark.parametrize("place", FOLDERS)
def test_nothing_is_written_behind_a_folder_that_is_none(swarm: Swarm, place: str, kind: str) -> None:
    target = swarm.folder.parent / "elsewhere"
    for below in ("missions/mission-1", "swarm", "episodes", "memory/missions"):
        (target / below).mkdir(parents=True)
    person_writes(target / "MEMORY.md", "private")
    person_writes(target / "events.jsonl", '{"at": "torn')
    path = swarm.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(target)
        case "dangling":
            path.symlink_to(target / "nothing")
        case "relative":
            path.symlink_to(os.path.relpath(target, path.parent))
        case "pipe":
            os.mkfifo(path)
        case "file":
            path.write_bytes(b"a file")
    before = picture(target), outside(target)
    refused = write_everything(swarm)
    assert refused or place.startswith("shared/handoffs") or place.endswith("/episodes")
    after = picture(target), outside(target)
    assert after == before
    assert not path.is_dir() or path.is_symlink()


@pytest.mark.parametrize("kind", ["link", "dangling", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("place", FILES)
def test_nothing_is_written_through_a_file_that_is_none(swarm: Swarm, place: str, kind: str) -> None:
    target = swarm.folder.parent / "elsewhere"
    person_writes(target / "private.md", "private")
    path = swarm.folder / place
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "link":
            path.symlink_to(target / "private.md")
        case "dangling":
            path.symlink_to(target / "nothing")
        case "hard link":
            os.link(target / "private.md", path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    before = picture(target), outside(target), path.lstat().st_ino
    write_everything(swarm)
    after = picture(target), outside(target), path.lstat().st_ino
    assert after == before
    assert [one for one in leftovers(swarm.folder) if not one.startswith(".mirror-")] == []
    assert conflicts(swarm.folder) == []


@pytest.mark.parametrize("place", FOLDERS)
def test_a_folder_that_is_swapped_for_a_link_between_two_calls_is_noticed(swarm: Swarm, place: str) -> None:
    write_everything(swarm)
    target = swarm.folder.parent / "elsewhere"
    (swarm.folder / place).rename(target)
    (swarm.folder / place).symlink_to(target)
    before = picture(target), outside(target)
    write_everything(swarm)
    after = picture(target), outside(target)
    assert after == before
