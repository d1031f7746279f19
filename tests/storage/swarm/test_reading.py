"""What a reader answers: the newest first, bounded, saying what was left out; it makes nothing."""

import os
from pathlib import Path
from typing import Any

import pytest

from storage.errors import Forbidden, InvalidRequest
from storage.swarm import reading
from storage.swarm.pages import Persona
from storage.swarm.reading import SwarmReading
from storage.swarm.renames import hash_of
from tests.storage.swarm.files import DAY, MISSION, WORKER, Swarm, asked, outside, person_writes, picture
from tests.storage.swarm.test_layout import HOSTILE

KINDS = ["profile", "mission", "episodic", "handoff", "shared"]


def names(swarm: Swarm, kind: Any, **members: Any) -> list[str]:
    """The names of the files of one kind."""
    return [file.name for file in SwarmReading(swarm.roots).files(kind, WORKER, **members).files]


@pytest.mark.parametrize("kind", KINDS)
def test_reading_makes_nothing(swarm: Swarm, kind: Any) -> None:
    for mission in (None, MISSION):
        answer = SwarmReading(swarm.roots).files(kind, WORKER, mission=mission, date="2026-01-01")
        assert (answer.files, answer.omitted) == ((), 0)
        assert answer.root.startswith(str(swarm.folder))
        assert answer.path.startswith(answer.root)
    assert not swarm.folder.exists()


def test_each_kind_has_its_files(swarm: Swarm) -> None:
    memory = swarm.memory
    memory.scaffold(WORKER, Persona())
    memory.write_event(asked())
    memory.write_handoff(WORKER, MISSION, "handoff", mirror=True)
    memory.write_page("shared", None, None, "note", base_hash=None)
    assert names(swarm, "profile") == ["MEMORY.md", "SOUL.md", "IDENTITY.md"]
    assert names(swarm, "mission", mission=MISSION.upper()) == ["SUMMARY.md", "handoff.md", "events.jsonl"]
    assert names(swarm, "mission") == [f"{MISSION}/SUMMARY.md"]
    assert names(swarm, "episodic") == names(swarm, "episodic", date=DAY) == [f"{DAY}.md"]
    assert names(swarm, "episodic", date="2020-01-01") == []
    assert names(swarm, "handoff") == names(swarm, "handoff", mission=MISSION) == [f"{MISSION}.md"]
    assert set(names(swarm, "shared")) == {"notes.md", f"handoffs/{WORKER}-latest.md"}
    (file,) = SwarmReading(swarm.roots).files("handoff", WORKER).files
    assert (file.path, file.content, file.hash) == (str(swarm.handoff), "handoff", hash_of(b"handoff"))
    assert not file.cut
    assert file.updatedAt.endswith("Z")


def test_another_worker_has_its_own_latest_handoff(swarm: Swarm) -> None:
    for worker in (WORKER, "other"):
        swarm.memory.write_handoff(worker, MISSION, worker, mirror=True)
    assert names(swarm, "shared") == [f"handoffs/{WORKER}-latest.md"]
    assert len(SwarmReading(swarm.roots).files("shared", None).files) == 2


def test_the_newest_come_first(swarm: Swarm) -> None:
    for number, day in enumerate(["2026-01-02", "2026-01-10", "2025-12-31"]):
        person_writes(swarm.worker / "episodes" / f"{day}.md", "x")
        path = swarm.worker / "handoffs" / f"m{number}.md"
        person_writes(path, "x")
        os.utime(path, (1_000 + number, 1_000 + number))
    assert names(swarm, "episodic") == ["2026-01-10.md", "2026-01-02.md", "2025-12-31.md"]
    assert names(swarm, "handoff") == ["m2.md", "m1.md", "m0.md"]


def test_what_is_left_out_is_counted(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FILES_MAX", 5)
    for number in range(8):
        person_writes(swarm.worker / "episodes" / f"2026-01-0{number + 1}.md", "x" * 10)
    answer = SwarmReading(swarm.roots).files("episodic", WORKER)
    assert (len(answer.files), answer.omitted) == (5, 3)
    monkeypatch.setattr(reading, "ANSWER_CHARS_MAX", 25)
    answer = SwarmReading(swarm.roots).files("episodic", WORKER)
    assert (len(answer.files), answer.omitted) == (2, 6)


def test_a_file_that_is_too_large_to_be_read_is_shown_in_part(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "FILE_BYTES_MAX", 60)
    monkeypatch.setattr(reading, "_PART_BYTES", 20)
    person_writes(swarm.episode, "the beginning, " + "x" * 100)
    person_writes(swarm.log, "first line\n" + "x" * 50 + "\nlast\nof all\n")
    read: list[int] = []
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        read.append(len(content := pread(fd, size, at)))
        return content

    monkeypatch.setattr(os, "pread", counted)
    answer = SwarmReading(swarm.roots).files("episodic", WORKER)
    (page,) = answer.files
    assert (page.content, page.cut, page.hash, answer.omitted) == ("the beginning, xxxxx", True, "", 0)
    (log,) = SwarmReading(swarm.roots).files("mission", WORKER, mission=MISSION).files
    assert (log.content, log.cut) == ("last\nof all\n", True)
    assert read == [20, 20]


def test_a_long_file_is_cut_and_says_so(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CONTENT_CHARS_MAX", 20)
    person_writes(swarm.worker / "MEMORY.md", "the beginning of a long page")
    person_writes(swarm.log, "first line\nsecond line\nlast\n")
    (page,) = SwarmReading(swarm.roots).files("profile", WORKER).files
    assert (page.content, page.cut) == ("the beginning of a l", True)
    assert page.hash == hash_of(b"the beginning of a long page")
    (log,) = SwarmReading(swarm.roots).files("mission", WORKER, mission=MISSION).files
    assert (log.content, log.cut) == ("second line\nlast\n", True)
    person_writes(swarm.log, "x" * 30 + "\n")
    (log,) = SwarmReading(swarm.roots).files("mission", WORKER, mission=MISSION).files
    assert log.content == "x" * 19 + "\n"


def test_what_is_no_text_is_shown_as_far_as_it_is(swarm: Swarm) -> None:
    person_writes(swarm.worker / "MEMORY.md", b"a\xff\x00b\xed\xa0\x80")
    (file,) = SwarmReading(swarm.roots).files("profile", WORKER).files
    file.content.encode("utf-8")
    assert file.hash == hash_of(b"a\xff\x00b\xed\xa0\x80")


@pytest.mark.parametrize("given", HOSTILE, ids=ascii)
def test_an_id_that_is_none_reads_nothing(swarm: Swarm, given: str) -> None:
    reader = SwarmReading(swarm.roots)
    for kind in KINDS:
        for members in ({"worker": given}, {"worker": WORKER, "mission": given}, {"worker": WORKER, "date": given}):
            with pytest.raises(InvalidRequest):
                reader.files(kind, **members)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS[:4])
def test_a_worker_is_needed_but_for_shared_memory(swarm: Swarm, kind: Any) -> None:
    with pytest.raises(InvalidRequest, match="workerId"):
        SwarmReading(swarm.roots).files(kind, None)


MISSIONS = f"missions/{MISSION}"
FILES = [
    ("profile", "MEMORY.md"),
    ("mission", f"{MISSIONS}/SUMMARY.md"),
    ("mission", f"{MISSIONS}/events.jsonl"),
    ("episodic", f"episodes/{DAY}.md"),
    ("handoff", f"handoffs/{MISSION}.md"),
]
FOLDERS = [
    ("profile", "."),
    ("mission", "."),
    ("mission", "missions"),
    ("mission", MISSIONS),
    ("episodic", "episodes"),
    ("handoff", "handoffs"),
]


def refused(swarm: Swarm, kind: Any, target: Path) -> None:
    """Reading a kind is refused, of all missions and of one, and touches nothing."""
    before = picture(target), outside(target)
    with pytest.raises(Forbidden):
        SwarmReading(swarm.roots).files(kind, WORKER, mission=MISSION if kind == "mission" else None)
    after = picture(target), outside(target)
    assert after == before


@pytest.mark.parametrize(("kind", "place"), FILES)
@pytest.mark.parametrize("how", ["link", "hard link", "pipe", "folder"])
def test_nothing_is_read_through_a_file_that_is_none(swarm: Swarm, kind: str, place: str, how: str) -> None:
    target = swarm.folder.parent / "elsewhere"
    person_writes(target / "private", "private")
    path = swarm.worker / place
    path.parent.mkdir(parents=True)
    match how:
        case "link":
            path.symlink_to(target / "private")
        case "hard link":
            os.link(target / "private", path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
    refused(swarm, kind, target)


@pytest.mark.parametrize(("kind", "place"), FOLDERS)
@pytest.mark.parametrize("how", ["link", "pipe"])
def test_nothing_is_read_behind_a_folder_that_is_none(swarm: Swarm, kind: str, place: str, how: str) -> None:
    target = swarm.folder.parent / "elsewhere"
    for name in ("MEMORY.md", "SUMMARY.md", f"{DAY}.md", f"{MISSION}.md", f"{MISSION}/SUMMARY.md"):
        person_writes(target / name, "private")
    path = swarm.worker / place
    path.parent.mkdir(parents=True)
    if how == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    refused(swarm, kind, target)
