"""A completed mission in the shared archive: whole, repeatable, never half claimed, and verified."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import Conflict, FileFailed, Forbidden, InvalidRequest, NotFound, Rejection, StorageFull, TooLarge
from storage.swarm import folders
from storage.swarm.events import EVENT_TYPES, Event, parse
from storage.swarm.folders import FILE_BYTES_MAX
from storage.swarm.layout import Folder, Roots
from storage.swarm.life import archive_run, mission_files
from storage.swarm.life.archiving import ArchiveDamaged, Archives
from storage.swarm.life.manifest import Manifest
from storage.swarm.renames import hash_of, temporary_name
from storage.swarm.summary import Summary
from storage.swarm.watching import Watch
from tests.storage.conftest import Clock
from tests.storage.swarm.files import (
    BUILT,
    MISSION,
    WORKER,
    Swarm,
    Ticks,
    asked,
    conflicts,
    leftovers,
    person_writes,
    picture,
)
from tests.storage.swarm.test_layout import HOSTILE

OTHER = "swarm6"
DONE = "2026-05-28T20:00:00.000Z"
LATER = "2026-05-28T21:00:00.000Z"


def line(kind: str, at: str = DONE, **members: Any) -> bytes:
    """A line of events.jsonl."""
    return Event(at=at, type=kind, worker=WORKER, **members).line()  # type: ignore[arg-type]


class Filed:
    """Roots with missions in them, and who archives them."""

    def __init__(self, folder: Path, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.roots = Roots(profiles=folder / "profiles", shared=folder / "shared")
        self.clock = clock
        self.ticks = Ticks()
        self.touched: list[tuple[Folder, str]] = []
        self.again()

    def again(self) -> None:
        """What a process has that starts now."""
        self.watch = Watch(self.roots, self.ticks)
        self.archives = Archives(self.roots, self.watch, lambda *place: self.touched.append(place), self.clock)

    def follow(self) -> None:
        """Let time pass until nothing is watched."""
        for _ in range(40):
            self.ticks.now_s += 1.0
            self.watch.follow()

    def mission(self, worker: str = WORKER) -> Path:
        return self.roots.profiles / worker / "memory" / "missions" / MISSION

    def handoff(self, worker: str = WORKER) -> Path:
        return self.roots.profiles / worker / "memory" / "handoffs" / f"{MISSION}.md"

    @property
    def place(self) -> Path:
        return self.roots.shared / "swarm" / "missions" / MISSION

    @property
    def manifest(self) -> Path:
        return self.place / "manifest.json"

    def members(self) -> dict[str, Any]:
        """What the manifest says."""
        found = json.loads(self.manifest.read_bytes())
        assert isinstance(found, dict)
        return found

    def expected(self) -> dict[str, bytes]:
        """The files that the archive should have, from those of the workers."""
        files: dict[str, bytes] = {}
        for worker in (WORKER, OTHER):
            files |= {f"{worker}/{path}": content for path, content in picture(self.mission(worker)).items()}
            if self.handoff(worker).exists():
                files[f"{worker}/handoffs/{MISSION}.md"] = self.handoff(worker).read_bytes()
        return files

    def archived(self) -> dict[str, bytes]:
        """The files that the archive has, without its manifest."""
        return {path: content for path, content in picture(self.place).items() if path != "manifest.json"}


@pytest.fixture
def filed(tmp_path: Path, clock: Clock) -> Iterator[Filed]:
    """Empty roots; the test fails that leaves a handle open."""
    before = len(os.listdir("/proc/self/fd"))
    yield Filed(tmp_path / "inside", clock)
    assert len(os.listdir("/proc/self/fd")) == before, "a handle was left open"


@pytest.fixture
def done(filed: Filed) -> Filed:
    """A mission that two workers have completed."""
    return complete(filed)


def complete(filed: Filed) -> Filed:
    """Write the files of a mission that two workers have completed."""
    person_writes(filed.mission() / "events.jsonl", line("dispatch", "2026-05-28T19:00:00.000Z") + line("complete"))
    person_writes(filed.mission() / "SUMMARY.md", "# Mission\r\n\nÜber alles.\r\n")
    person_writes(filed.mission() / "handoff.md", "# Handoff\n")
    person_writes(filed.mission() / "notes" / "a plan.md", b"\x00\xff no text")
    person_writes(filed.mission() / "SUMMARY.md.conflict-1780000000000", "another version\n")
    person_writes(filed.handoff(), "# Handoff\n")
    person_writes(filed.mission(OTHER) / "events.jsonl", line("checkpoint", "2026-05-28T19:30:00.000Z"))
    return filed


# --- an archive is whole ---


def test_every_file_of_every_worker_is_archived_byte_for_byte(done: Filed) -> None:
    sources = picture(done.roots.profiles)
    answer = done.archives.archive("Mission-1")
    expected = done.expected()
    assert len(expected) == 7
    assert done.archived() == expected
    assert picture(done.roots.profiles) == sources
    assert (answer.missionId, answer.files, answer.workers) == (MISSION, 7, (WORKER, OTHER))
    assert answer.bytes == sum(map(len, expected.values()))
    assert (answer.path, answer.manifestPath) == (str(done.place), str(done.manifest))
    assert (answer.replayed, answer.conflicts, answer.lost) == (False, 0, 0)


def test_the_manifest_lists_each_file_with_its_size_and_hash(done: Filed) -> None:
    answer = done.archives.archive(MISSION)
    members = done.members()
    listed = [
        {"path": path, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for path, content in sorted(done.expected().items())
    ]
    assert members == {
        "format": 1,
        "missionId": MISSION,
        "archivedAt": BUILT,
        "status": "complete",
        "workers": [WORKER, OTHER],
        "files": listed,
    }
    assert answer.hash == hash_of(done.manifest.read_bytes())


def test_what_is_no_part_of_the_mission_is_left_out(done: Filed) -> None:
    person_writes(done.mission() / temporary_name("SUMMARY.md"), "ours, half written")
    person_writes(done.mission().with_name("mission-10") / "events.jsonl", line("complete"))
    person_writes(done.handoff().with_name("mission-10.md"), "of another mission")
    person_writes(done.handoff().with_name(f"{MISSION}.md.conflict-1.md"), "of a mission with a strange name")
    done.archives.archive(MISSION)
    assert done.archived().keys() == done.expected().keys() - {f"{WORKER}/{name}" for name in leftovers(done.mission())}


def test_versions_of_the_handoff_that_were_kept_beside_it_are_archived(done: Filed) -> None:
    person_writes(done.handoff().with_name(f"{MISSION}.md.conflict-1780000000000"), "a person's")
    done.archives.archive(MISSION)
    assert done.archived()[f"{WORKER}/handoffs/{MISSION}.md.conflict-1780000000000"] == b"a person's"


def test_the_search_is_told_of_what_was_written(done: Filed) -> None:
    done.archives.archive(MISSION)
    written = {f"{'/'.join(folder.parts[3:])}/{name}".lstrip("/") for folder, name in done.touched}
    assert written == {*done.expected(), "manifest.json"}
    assert {folder.parts[:3] for folder, _ in done.touched} == {("swarm", "missions", MISSION)}
    done.touched.clear()
    done.archives.archive(MISSION)
    assert done.touched == []


def test_profiles_that_are_no_folders_are_no_workers(done: Filed) -> None:
    person_writes(done.roots.profiles / "notes", "a file among the profiles")
    (done.roots.profiles / "swarm7").symlink_to(done.roots.profiles / WORKER)
    (done.roots.profiles / "Swarm8").mkdir()
    assert done.archives.archive(MISSION).workers == (WORKER, OTHER)


def test_what_the_service_itself_wrote_is_archived(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("built it"))
    swarm.memory.write_handoff(WORKER, MISSION, "# Handoff\n", mirror=True)
    swarm.memory.write_event(asked("done", type="complete"))
    swarm.follow()
    archives = Archives(swarm.roots, Watch(swarm.roots, swarm.ticks), lambda *_: None, swarm.clock)
    assert archives.archive(MISSION).files == 4
    assert archives.verify(MISSION).files == 4


# --- what is refused, and writes nothing ---


def refused(filed: Filed, error: type[Rejection], match: str) -> Rejection:
    """Archive, which is to be refused as told, with nothing written."""
    before = picture(filed.folder)
    with pytest.raises(error, match=match) as caught:
        filed.archives.archive(MISSION)
    assert picture(filed.folder) == before
    assert not filed.place.parent.exists()
    assert filed.touched == []
    assert caught.value.hint
    return caught.value


@pytest.mark.parametrize("given_id", HOSTILE, ids=ascii)
def test_an_id_that_is_none_is_refused(filed: Filed, given_id: str) -> None:
    for call in (filed.archives.archive, filed.archives.verify):
        with pytest.raises(InvalidRequest, match="missionId"):
            call(given_id)
    assert not filed.folder.exists()


def test_a_mission_that_no_worker_has_is_not_found(filed: Filed) -> None:
    refused(filed, NotFound, f"no worker has a mission {MISSION}")
    person_writes(filed.handoff(), "a handoff alone makes no mission")
    refused(filed, NotFound, f"no worker has a mission {MISSION}")


@pytest.mark.parametrize("kind", [kind for kind in EVENT_TYPES if kind != "complete"])
def test_a_mission_is_complete_where_its_page_says_so(done: Filed, kind: str) -> None:
    summary = Summary(MISSION)
    for event in (line("complete"), line(kind, LATER)):
        (parsed,) = parse(event, WORKER, MISSION)
        summary.add(parsed)
    person_writes(done.mission(OTHER) / "events.jsonl", line(kind, LATER))
    if "- Status: complete" in summary.page(None):
        assert done.archives.archive(MISSION).files == 7
    else:
        refused(done, Conflict, f"not complete; its last event is `{kind}` of {OTHER} at {LATER}")


def test_in_a_log_the_later_line_decides_whatever_its_clock_said(done: Filed) -> None:
    log = done.mission() / "events.jsonl"
    person_writes(log, line("complete", LATER) + line("checkpoint", DONE))
    refused(done, Conflict, "`checkpoint`")
    person_writes(log, line("checkpoint", "2036-01-01T00:00:00.000Z") + line("complete", LATER))
    assert done.archives.archive(MISSION).files == 7


@pytest.mark.parametrize("late", [WORKER, OTHER])
def test_of_two_workers_at_the_same_instant_the_one_that_goes_on_decides(filed: Filed, late: str) -> None:
    person_writes(filed.mission(late) / "events.jsonl", line("resume"))
    person_writes(filed.mission(OTHER if late == WORKER else WORKER) / "events.jsonl", line("complete"))
    refused(filed, Conflict, f"its last event is `resume` of {late}")


def test_of_two_lines_of_a_log_at_the_same_instant_the_later_decides(filed: Filed) -> None:
    person_writes(filed.mission() / "events.jsonl", line("complete") + line("blocked"))
    refused(filed, Conflict, "`blocked`")
    person_writes(filed.mission() / "events.jsonl", line("blocked") + line("complete"))
    assert filed.archives.archive(MISSION).files == 1


@pytest.mark.parametrize("log", [None, b"", b"no event\n", b'{"type": "complete"}\n'])
def test_a_mission_without_events_is_refused(filed: Filed, log: bytes | None) -> None:
    person_writes(filed.mission() / "SUMMARY.md", "# Status: complete\n")
    person_writes(filed.mission() / "old" / "events.jsonl", line("complete"))
    if log is not None:
        person_writes(filed.mission() / "events.jsonl", log)
    refused(filed, Conflict, "not complete; it has no events")


def test_a_mission_of_notes_alone_is_refused(filed: Filed) -> None:
    person_writes(filed.mission() / "events.jsonl", line("note"))
    refused(filed, Conflict, f"its last event is `note` of {WORKER} at {DONE}, and none decides")


def linked(path: Path) -> None:
    path.symlink_to(path.with_name("SUMMARY.md"))


def folder_linked(path: Path) -> None:
    path.symlink_to(path.parent, target_is_directory=True)


def hard_linked(path: Path) -> None:
    path.with_name("twin").write_bytes(b"x")
    os.link(path.with_name("twin"), path)


STRANGE: dict[str, Callable[[Path], object]] = {
    "link": linked,
    "link to a folder": folder_linked,
    "hard link": hard_linked,
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("where", ["strange", "notes/strange"])
def test_what_is_no_file_of_its_own_is_forbidden(done: Filed, make: Callable[[Path], object], where: str) -> None:
    make(done.mission() / where)
    refused(done, Forbidden, f"missions/{MISSION}/{where} is a link|{MISSION}/(notes/)?twin is a link")


def test_a_handoff_that_is_a_link_is_forbidden(done: Filed) -> None:
    done.handoff().unlink()
    done.handoff().symlink_to(done.mission() / "handoff.md")
    refused(done, Forbidden, f"handoffs/{MISSION}.md is a link")


def test_a_mission_folder_that_is_a_link_is_forbidden(done: Filed) -> None:
    done.mission(OTHER).rename(done.folder / "elsewhere")
    done.mission(OTHER).symlink_to(done.folder / "elsewhere")
    refused(done, Forbidden, f"{OTHER}/memory/missions/{MISSION}")


def test_too_many_files_or_folders_are_too_large(done: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mission_files, "FILES_MAX", 6)
    refused(done, TooLarge, f"the mission {MISSION} has more than 6 files")
    monkeypatch.setattr(mission_files, "FILES_MAX", 7)
    for at in range(7):
        (done.mission() / f"empty {at}").mkdir()
    refused(done, TooLarge, "more than 7 folders")
    (done.mission() / "empty 0").rmdir()
    assert done.archives.archive(MISSION).files == 7


def test_too_many_bytes_are_too_large(done: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    person_writes(done.mission() / "large.bin", b"\0" * 10_000)
    bytes_max = sum(map(len, done.expected().values()))
    monkeypatch.setattr(mission_files, "BYTES_MAX", bytes_max - 1)
    refused(done, TooLarge, f"more than {bytes_max - 1:,} bytes")
    monkeypatch.setattr(mission_files, "BYTES_MAX", bytes_max)
    assert done.archives.archive(MISSION).bytes == bytes_max


def test_folders_that_are_too_deep_are_too_large(done: Filed) -> None:
    deep = done.mission().joinpath(*"abcdefgh")
    person_writes(deep / "deepest.md", "eight folders below")
    (deep / "i").mkdir()
    refused(done, TooLarge, "a/b/c/d/e/f/g/h/i, deeper than 8 folders")
    (deep / "i").rmdir()
    assert done.archives.archive(MISSION).files == 8
    assert done.archives.verify(MISSION).files == 8
    assert done.archives.archive(MISSION).replayed


def test_a_name_that_leaves_no_room_for_ours_is_too_large(done: Filed) -> None:
    person_writes(done.mission() / ("ü" * 91), "182 bytes")
    refused(done, TooLarge, "longer than 180 bytes")
    (done.mission() / ("ü" * 91)).rename(done.mission() / ("ü" * 90))
    done.archives.archive(MISSION)
    person_writes(done.place / WORKER / ("ü" * 90), "edited")
    assert done.archives.archive(MISSION).conflicts == 1
    assert done.archives.verify(MISSION).files == 8


def test_two_files_with_one_place_in_the_archive_are_a_conflict(done: Filed) -> None:
    person_writes(done.mission() / "handoffs" / f"{MISSION}.md", "a person's")
    refused(done, Conflict, f"would be {WORKER}/handoffs/{MISSION}.md")


def test_a_file_where_the_handoffs_go_is_a_conflict(done: Filed) -> None:
    person_writes(done.mission() / "handoffs", "a person's")
    refused(done, Conflict, "in the way")


@pytest.mark.parametrize("there", ["notes/a plan.md/x", "notes"])
def test_a_file_where_the_archive_has_a_folder_is_a_conflict(done: Filed, there: str) -> None:
    person_writes(done.place / WORKER / there, "put there by a person")
    before = picture(done.folder)
    with pytest.raises(Conflict, match="in the way"):
        done.archives.archive(MISSION)
    assert picture(done.folder) == before


@pytest.mark.parametrize("make", STRANGE.values(), ids=STRANGE)
def test_a_link_in_the_archive_is_forbidden_and_no_part_of_it(done: Filed, make: Callable[[Path], object]) -> None:
    done.archives.archive(MISSION)
    make(done.place / WORKER / "strange")
    before = picture(done.folder)
    with pytest.raises(Forbidden, match="is a link"):
        done.archives.archive(MISSION)
    with pytest.raises(ArchiveDamaged, match=f"unlisted {WORKER}/strange"):
        done.archives.verify(MISSION)
    assert picture(done.folder) == before


def test_an_archive_that_is_a_link_is_not_entered(done: Filed) -> None:
    done.place.parent.mkdir(parents=True)
    (done.folder / "elsewhere").mkdir()
    done.place.symlink_to(done.folder / "elsewhere")
    for call in (done.archives.archive, done.archives.verify):
        with pytest.raises(Forbidden):
            call(MISSION)
    assert list((done.folder / "elsewhere").iterdir()) == []


# --- again ---


def states(folder: Path) -> dict[str, tuple[int, int]]:
    """Which files these are, and when they were written."""
    found = {str(path): path.lstat() for path in folder.rglob("*")}
    return {path: (state.st_ino, state.st_mtime_ns) for path, state in found.items()}


def test_a_mission_that_did_not_change_is_archived_once(done: Filed, clock: Clock) -> None:
    first = done.archives.archive(MISSION)
    before = states(done.folder)
    clock.now_s += 60
    again = done.archives.archive(MISSION)
    assert again.replayed
    assert states(done.folder) == before
    assert (again.hash, again.files, again.bytes) == (first.hash, first.files, first.bytes)


def test_a_late_note_is_archived_by_the_next_call(done: Filed, clock: Clock) -> None:
    first = done.archives.archive(MISSION)
    clock.now_s += 60
    with (done.mission() / "events.jsonl").open("ab") as log:
        log.write(line("note", LATER))
    person_writes(done.mission() / "late.md", "a file that is new")
    again = done.archives.archive(MISSION)
    assert (again.replayed, again.files, again.conflicts) == (False, 8, 0)
    assert again.hash != first.hash
    done.follow()
    assert leftovers(done.place) == []
    assert done.archived() == done.expected()
    assert done.members()["archivedAt"] == "2026-05-28T20:27:40.000Z"
    assert done.archives.verify(MISSION).files == 8


def test_a_large_log_that_grew_is_archived_anew(done: Filed) -> None:
    log = done.mission() / "events.jsonl"
    person_writes(log, line("complete") + line("note", content="x" * FILE_BYTES_MAX))
    done.archives.archive(MISSION)
    with log.open("ab") as file:
        file.write(line("note", LATER))
    done.archives.archive(MISSION)
    assert (done.place / WORKER / "events.jsonl").read_bytes() == log.read_bytes()
    assert done.archives.verify(MISSION).files == 7


def test_a_mission_that_goes_on_keeps_its_archive(done: Filed) -> None:
    done.archives.archive(MISSION)
    before = picture(done.place)
    person_writes(done.mission(OTHER) / "events.jsonl", line("resume", LATER))
    with pytest.raises(Conflict, match="`resume`"):
        done.archives.archive(MISSION)
    assert picture(done.place) == before
    assert done.archives.verify(MISSION).files == 7


def test_what_the_workers_have_no_more_stays(done: Filed) -> None:
    done.archives.archive(MISSION)
    everything = done.archived()
    (done.mission() / "SUMMARY.md").unlink()
    (done.mission(OTHER) / "events.jsonl").unlink()
    done.mission(OTHER).rmdir()
    assert done.archives.archive(MISSION).replayed
    person_writes(done.mission() / "handoff.md", "changed since")
    again = done.archives.archive(MISSION)
    assert (again.files, again.workers, again.lost) == (7, (WORKER, OTHER), 0)
    done.follow()
    assert done.archived() == everything | {f"{WORKER}/handoff.md": b"changed since"}
    assert done.archives.verify(MISSION).files == 7


# --- a person's hand in the archive ---


@pytest.mark.parametrize("changed", [False, True], ids=["as it was", "changed at the worker"])
def test_a_file_that_was_edited_in_the_archive_is_kept_beside(done: Filed, *, changed: bool) -> None:
    done.archives.archive(MISSION)
    person_writes(done.place / WORKER / "SUMMARY.md", "edited in the archive")
    if changed:
        person_writes(done.mission() / "SUMMARY.md", "changed at the worker")
    again = done.archives.archive(MISSION)
    assert (again.replayed, again.files, again.conflicts) == (False, 7, 1)
    (kept,) = [path for path in conflicts(done.place) if not path.name.endswith("-1780000000000")]
    assert kept.name.startswith("SUMMARY.md.conflict-")
    assert kept.read_bytes() == b"edited in the archive"
    done.follow()
    assert done.archived() == done.expected() | {f"{WORKER}/{kept.name}": b"edited in the archive"}
    assert done.archives.verify(MISSION).conflicts == 1
    assert done.archives.archive(MISSION).replayed
    kept.unlink()
    assert done.archives.verify(MISSION).conflicts == 0


def test_an_edit_that_the_worker_made_as_well_is_no_conflict(done: Filed) -> None:
    done.archives.archive(MISSION)
    for place in (done.place / WORKER, done.mission()):
        person_writes(place / "SUMMARY.md", "the same")
    assert done.archives.archive(MISSION).conflicts == 0
    assert done.archives.verify(MISSION).files == 7


def test_a_file_that_a_person_put_into_the_archive_is_listed_from_then_on(done: Filed) -> None:
    done.archives.archive(MISSION)
    person_writes(done.place / "index.md", "by a person")
    with pytest.raises(ArchiveDamaged, match=r"unlisted index\.md"):
        done.archives.verify(MISSION)
    assert done.archives.archive(MISSION).files == 8
    assert done.archives.verify(MISSION).files == 8
    assert done.archived()["index.md"] == b"by a person"


def test_a_file_that_was_removed_from_the_archive_comes_back(done: Filed) -> None:
    done.archives.archive(MISSION)
    (done.place / WORKER / "SUMMARY.md").unlink()
    assert not done.archives.archive(MISSION).replayed
    done.follow()
    assert done.archived() == done.expected()


@pytest.mark.parametrize("damage", ["removed", "changed"])
def test_what_is_lost_for_good_is_told(done: Filed, damage: str) -> None:
    done.archives.archive(MISSION)
    (done.mission() / "SUMMARY.md").unlink()
    archived = done.place / WORKER / "SUMMARY.md"
    entry = next(entry for entry in done.members()["files"] if entry["path"] == f"{WORKER}/SUMMARY.md")
    if damage == "removed":
        archived.unlink()
    else:
        person_writes(archived, "damaged")
    again = done.archives.archive(MISSION)
    assert (again.files, again.lost, again.conflicts) == (6, 1, int(damage == "changed"))
    assert done.members()["lost"] == [entry]
    assert done.archives.verify(MISSION).lost == 1
    assert done.archives.archive(MISSION).replayed
    person_writes(done.mission() / "SUMMARY.md", "made again")
    assert done.archives.archive(MISSION).lost == 0


@pytest.mark.parametrize("made", [b"", b"{", b"[]", b"{}", b"\xff", b"7", b'{"format": 2}', b"[" * 100_000])
def test_a_manifest_that_cannot_be_read_is_kept_beside(done: Filed, made: bytes) -> None:
    done.archives.archive(MISSION)
    person_writes(done.manifest, made)
    with pytest.raises(ArchiveDamaged, match=r"manifest\.json"):
        done.archives.verify(MISSION)
    assert not done.archives.archive(MISSION).replayed
    assert made in [path.read_bytes() for path in conflicts(done.place)]
    assert done.archives.verify(MISSION).files == 7


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("missionId", "mission-2"),
        ("missionId", 7),
        ("status", "executing"),
        ("workers", [7]),
        ("files", 7),
        ("files", [7]),
        ("files", [{"path": "x", "bytes": True, "sha256": ""}]),
        ("files", [{"path": "x", "bytes": 1}]),
    ],
)
def test_a_manifest_of_something_else_is_none(done: Filed, member: str, value: object) -> None:
    done.archives.archive(MISSION)
    person_writes(done.manifest, json.dumps(done.members() | {member: value}))
    with pytest.raises(ArchiveDamaged, match=r"manifest\.json"):
        done.archives.verify(MISSION)
    done.archives.archive(MISSION)
    assert done.archives.verify(MISSION).files == 7


def test_an_edited_manifest_is_kept_beside_when_it_is_replaced(done: Filed) -> None:
    done.archives.archive(MISSION)
    edited = json.dumps(done.members()).encode()
    person_writes(done.manifest, edited)
    assert done.archives.archive(MISSION).replayed
    person_writes(done.mission() / "SUMMARY.md", "changed")
    assert done.archives.archive(MISSION).conflicts == 1
    assert edited in [path.read_bytes() for path in conflicts(done.place)]
    assert done.archives.verify(MISSION).files == 7


def test_paths_of_a_forged_manifest_lead_nowhere(done: Filed) -> None:
    done.archives.archive(MISSION)
    person_writes(done.folder / "secret", "x")
    forged = {"path": "../../../../secret", "bytes": 1, "sha256": hash_of(b"x")}
    person_writes(done.manifest, json.dumps(done.members() | {"files": [*done.members()["files"], forged]}))
    with pytest.raises(ArchiveDamaged, match=r"damaged: missing \.\./\.\./\.\./\.\./secret\."):
        done.archives.verify(MISSION)


def test_an_editor_that_still_writes_the_replaced_file_loses_nothing(done: Filed) -> None:
    done.archives.archive(MISSION)
    with (done.place / WORKER / "SUMMARY.md").open("r+b") as editor:
        person_writes(done.mission() / "SUMMARY.md", "changed")
        done.archives.archive(MISSION)
        assert done.archives.archive(MISSION).replayed  # what came out is still looked after
        editor.write(b"written late")
        editor.truncate()
    done.follow()
    assert b"written late" in [path.read_bytes() for path in conflicts(done.place)]
    assert done.archives.verify(MISSION).conflicts == 1


# --- files that change while they are read ---


def on_wait(monkeypatch: pytest.MonkeyPatch, write: Callable[[], object]) -> list[float]:
    """Let somebody write whenever a file is waited for; how long that was, each time."""
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        write()

    monkeypatch.setattr(mission_files.time, "sleep", sleep)
    return waited


def test_a_page_that_is_being_saved_is_waited_for(done: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    page = done.mission() / "SUMMARY.md"
    page.write_bytes(b"")  # an editor has emptied it
    waited = on_wait(monkeypatch, lambda: person_writes(page, "the whole page"))
    done.archives.archive(MISSION)
    assert len(waited) == 1
    assert (done.place / WORKER / "SUMMARY.md").read_bytes() == b"the whole page"


def test_a_file_that_is_always_young_is_archived_as_it_was_read(done: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    page = done.mission() / "SUMMARY.md"
    waited = on_wait(monkeypatch, lambda: page.write_bytes(b"version %d" % len(waited)))
    page.write_bytes(b"version 0")
    done.archives.archive(MISSION)
    assert sum(waited) <= 1.001
    assert (done.place / WORKER / "SUMMARY.md").read_bytes() == b"version %d" % len(waited)


def test_a_file_that_changes_under_every_reading_is_not_archived(done: Filed, monkeypatch: pytest.MonkeyPatch) -> None:
    page = done.mission() / "SUMMARY.md"
    real, size = folders.FolderHandle.read, 0

    def read(folder: folders.FolderHandle, name: str, *bounds: int) -> folders.Seen | None:
        nonlocal size
        seen = real(folder, name, *bounds)
        if name == "SUMMARY.md":
            size += 1
            person_writes(page, b"x" * size)
        return seen

    on_wait(monkeypatch, lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(folders.FolderHandle, "read", read)
        with pytest.raises(FileFailed, match="being written"):
            done.archives.archive(MISSION)
    assert not done.manifest.exists()
    done.archives.archive(MISSION)
    assert done.archived() == done.expected()


def test_the_log_that_was_found_complete_is_the_one_that_is_archived(
    done: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = done.mission() / "events.jsonl"
    before = log.read_bytes()
    real = mission_files._require_complete

    def checked(*arguments: Any) -> None:
        real(*arguments)
        person_writes(log, before + line("resume", LATER))

    monkeypatch.setattr(mission_files, "_require_complete", checked)
    done.archives.archive(MISSION)
    assert (done.place / WORKER / "events.jsonl").read_bytes() == before


def test_a_file_that_goes_while_the_mission_is_archived_is_left_out(
    done: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = archive_run.read_whole

    def read(roots: Roots, place: Folder, name: str, *others: Any) -> bytes | None:
        (done.mission() / "SUMMARY.md").unlink(missing_ok=True)
        return real(roots, place, name, *others)

    monkeypatch.setattr(archive_run, "read_whole", read)
    assert done.archives.archive(MISSION).files == 6
    assert done.archives.verify(MISSION).files == 6


# --- verified ---


def test_a_whole_archive_is_verified_without_a_write(done: Filed) -> None:
    archived = done.archives.archive(MISSION)
    before = states(done.folder)
    verified = done.archives.verify("MISSION-1")
    assert (verified.files, verified.bytes, verified.workers) == (archived.files, archived.bytes, archived.workers)
    assert (verified.hash, verified.path, verified.manifestPath) == (
        archived.hash,
        archived.path,
        archived.manifestPath,
    )
    assert (verified.missionId, verified.archivedAt, verified.conflicts, verified.lost) == (MISSION, BUILT, 0, 0)
    assert states(done.folder) == before


def test_what_is_not_archived_cannot_be_verified(done: Filed) -> None:
    with pytest.raises(NotFound, match=f"{MISSION} is not archived"):
        done.archives.verify(MISSION)
    done.archives.archive(MISSION)
    done.manifest.unlink()
    with pytest.raises(NotFound, match="half made"):
        done.archives.verify(MISSION)


def test_every_damage_is_named(done: Filed) -> None:
    done.archives.archive(MISSION)
    (done.place / WORKER / "SUMMARY.md").unlink()
    (done.place / WORKER / "handoff.md").write_bytes(b"# Handofg\n")
    person_writes(done.place / WORKER / "notes" / "a plan.md", "shorter")
    person_writes(done.place / OTHER / "more.md", "more")
    before = states(done.folder)
    with pytest.raises(ArchiveDamaged) as caught:
        done.archives.verify(MISSION)
    for damage in ("missing {0}/SUMMARY.md", "changed {0}/handoff.md", "changed {0}/notes/a plan.md"):
        assert damage.format(WORKER) in caught.value.detail
    assert f"unlisted {OTHER}/more.md" in caught.value.detail
    assert caught.value.detail.count(f"{WORKER}/") == 3
    assert "Archive the mission again" in caught.value.hint
    assert states(done.folder) == before


def test_the_first_twenty_damages_are_named(done: Filed) -> None:
    done.archives.archive(MISSION)
    for at in range(25):
        person_writes(done.place / f"more {at:02}.md", "more")
    with pytest.raises(ArchiveDamaged, match="and 5 more") as caught:
        done.archives.verify(MISSION)
    assert caught.value.detail.count("unlisted") == 20


def test_a_manifest_that_is_a_link_is_damage(done: Filed) -> None:
    done.archives.archive(MISSION)
    done.manifest.rename(done.folder / "elsewhere")
    done.manifest.symlink_to(done.folder / "elsewhere")
    with pytest.raises(ArchiveDamaged, match=r"manifest\.json is a link"):
        done.archives.verify(MISSION)


def test_an_archive_that_is_made_anew_while_it_is_verified_is_not_damaged(
    done: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    done.archives.archive(MISSION)
    real = Archives._damages

    def damages(*arguments: Any) -> Any:
        if not (done.mission() / "late.md").exists():
            person_writes(done.mission() / "late.md", "late")
            person_writes(done.mission() / "SUMMARY.md", "changed")
            done.archives.archive(MISSION)
        return real(*arguments)

    monkeypatch.setattr(Archives, "_damages", damages)
    assert done.archives.verify(MISSION).files == 8


# --- stopped half way ---


class Killed(BaseException):
    """The process ends here: nothing that it would do after it is done."""


class Stop(NamedTuple):
    """What happens at one operation of the system."""

    error: BaseException
    answer: type[BaseException]
    changes_only: bool
    """Whether it happens at operations that change something alone."""


STOPS = {
    "killed": Stop(Killed(), Killed, True),
    "full": Stop(OSError(errno.ENOSPC, "injected"), StorageFull, True),
    "failing": Stop(OSError(errno.EIO, "injected"), FileFailed, False),
}
CHANGES = ("write", "fsync", "mkdir", "unlink", "rename")
OPERATIONS = (*CHANGES, "open", "read", "stat", "fstat", "listdir", "fchmod")


class Stopper:
    """Counts every operation on files, and lets one of them fail; a write of ours fails when half of it is done."""

    def __init__(self, stop: Stop, at: int | None) -> None:
        self._stop, self._at = stop, at
        self._gone = False
        self.calls = 0

    @contextmanager
    def planted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with monkeypatch.context() as patched:
            for name in OPERATIONS:
                where: Any = folders if name == "rename" else os
                patched.setattr(where, name, self._as(name, getattr(where, name)))
            yield

    def _as(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def called(*arguments: Any, **named: Any) -> Any:
            if self._gone:  # a dead process does nothing any more
                raise self._stop.error
            if self._stop.changes_only and not (name in CHANGES or (name == "open" and arguments[1] & os.O_CREAT)):
                return real(*arguments, **named)
            at, self.calls = self.calls, self.calls + 1
            if at == self._at:
                self._gone = isinstance(self._stop.error, Killed)
                if name == "write":
                    real(arguments[0], arguments[1][: len(arguments[1]) // 2])
                raise self._stop.error
            return real(*arguments, **named)

        return called


EDIT = b"edited in the archive"


def fresh(folder: Path) -> Filed:
    """A small mission that was never archived."""
    filed = Filed(folder, Clock())
    person_writes(filed.mission() / "events.jsonl", line("complete"))
    person_writes(filed.handoff(), "# Handoff\n")
    person_writes(filed.mission(OTHER) / "events.jsonl", line("checkpoint", "2026-05-28T19:30:00.000Z"))
    return filed


def going_on(folder: Path) -> Filed:
    """One that was archived, with a late note, a new file, one that is gone, and an edit in the archive."""
    filed = fresh(folder)
    person_writes(filed.mission() / "gone.md", "gone since")
    filed.archives.archive(MISSION)
    (filed.mission() / "gone.md").unlink()
    person_writes(filed.mission() / "events.jsonl", line("complete") + line("note", LATER))
    person_writes(filed.mission() / "new.md", "new")
    person_writes(filed.place / WORKER / "handoffs" / f"{MISSION}.md", EDIT)
    return filed


def half_made(folder: Path) -> Filed:
    """One whose first run was killed before it wrote its manifest, and left a temporary file."""
    filed = fresh(folder)
    filed.archives.archive(MISSION)
    filed.manifest.unlink()
    (filed.place / OTHER / "events.jsonl").unlink()
    person_writes(filed.place / OTHER / temporary_name("events.jsonl"), "half")
    return filed


MADE = {"fresh": fresh, "going on": going_on, "half made": half_made}


def require_no_false_claim(filed: Filed) -> None:
    """No manifest vouches for a file that is not as it says."""
    manifest = Manifest.parsed(filed.manifest.read_bytes()) if filed.manifest.exists() else None
    for entry in () if manifest is None or not manifest.whole else manifest.files:
        content = (filed.place / entry.path).read_bytes()
        assert content == EDIT or (len(content), hash_of(content)) == (entry.bytes, entry.sha256), entry.path


def test_an_archive_that_was_being_made_anew_is_half_made_until_it_is(
    done: Filed, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = done.archives.archive(MISSION)
    person_writes(done.mission() / "SUMMARY.md", "changed")

    def full(*_: object) -> None:
        raise StorageFull

    with monkeypatch.context() as patched:
        patched.setattr(archive_run.ArchiveRun, "_commit", full)
        with pytest.raises(StorageFull):
            done.archives.archive(MISSION)
    assert "files" not in done.members()
    assert len(done.members()["before"]) == first.files
    with pytest.raises(NotFound, match="half made"):
        done.archives.verify(MISSION)
    assert (done.archives.archive(MISSION).replayed, done.archives.verify(MISSION).conflicts) == (False, 0)


# What a run over a half-made archive reads, one of the others reads as well.
RUNS = {
    f"{made}, {stop}": (MADE[made], STOPS[stop])
    for made in MADE
    for stop in STOPS
    if (made, stop) != ("half made", "failing")
}


@pytest.mark.parametrize(("make", "stop"), RUNS.values(), ids=RUNS)
def test_a_run_that_is_stopped_at_any_operation_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Filed], stop: Stop
) -> None:
    handles = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fsync", lambda _: None)  # what it does to a disk no test sees; its failure is seen
    whole = make(tmp_path)
    sources = picture(whole.roots.profiles)
    before = everything(tmp_path)
    counted = Stopper(stop, None)
    with counted.planted(monkeypatch):
        expected_answer = whole.archives.archive(MISSION)
    whole.follow()
    expected = named(whole)
    assert leftovers(whole.place) == []
    assert counted.calls > (10 if stop.changes_only else 100)
    for at in range(counted.calls):
        restore(tmp_path, before)
        filed = Filed(tmp_path, Clock())
        stopped = Stopper(stop, at)
        refused_as: type[BaseException] | None = None
        with stopped.planted(monkeypatch):
            try:
                filed.archives.archive(MISSION)
            except (Rejection, Killed) as error:
                refused_as = type(error)
        assert stopped.calls > at
        assert refused_as in (None, stop.answer), at
        require_no_false_claim(filed)
        if make is going_on:
            assert EDIT in picture(filed.place).values(), at
        if stop.answer is Killed:
            filed.again()
        answer = filed.archives.archive(MISSION)
        assert (answer.files, answer.bytes, answer.workers) == (
            expected_answer.files,
            expected_answer.bytes,
            expected_answer.workers,
        )
        assert filed.archives.verify(MISSION).hash == answer.hash
        filed.follow()
        assert named(filed) == expected, at
        assert picture(filed.roots.profiles) == sources
    assert len(os.listdir("/proc/self/fd")) == handles, "a handle was left open"


def everything(folder: Path) -> dict[Path, bytes | None]:
    """What is below a folder: folders as None, and before what is in them."""
    return {path: None if path.is_dir() else path.read_bytes() for path in sorted(folder.rglob("*"))}


def restore(folder: Path, before: dict[Path, bytes | None]) -> None:
    """Make what is below a folder what it was."""
    for path in sorted(folder.rglob("*"), reverse=True):
        if path not in before:
            path.rmdir() if path.is_dir() else path.unlink()
    for path, content in before.items():
        if content is not None and not (path.exists() and path.read_bytes() == content):
            person_writes(path, content)


def named(filed: Filed) -> dict[str, bytes]:
    """The archive, with its conflicts by the names of their files."""
    return {
        path.partition(".conflict-")[0] + "!" * (".conflict-" in path): content
        for path, content in filed.archived().items()
    }


def test_a_person_s_edit_in_a_temporary_file_of_a_dead_run_is_kept(done: Filed) -> None:
    done.archives.archive(MISSION)
    edited = temporary_name("SUMMARY.md", hash_of(b"new"), hash_of(b"old"))
    person_writes(done.place / WORKER / edited, "written late")
    person_writes(done.place / WORKER / temporary_name("SUMMARY.md", hash_of(b"new"), hash_of(b"old")), "old")
    done.archives.archive(MISSION)
    assert leftovers(done.place) == []
    assert b"written late" in [path.read_bytes() for path in conflicts(done.place)]
    assert done.archives.verify(MISSION).conflicts == 1


def test_a_file_that_a_dead_run_had_not_let_go_of_yet_is_archived(done: Filed) -> None:
    done.archives.archive(MISSION)
    for page in (done.place / WORKER / "SUMMARY.md", done.manifest):
        # Where renameat2(2) is missing, a file has two names for a moment.
        os.link(page, page.with_name(temporary_name(page.name, hash_of(b"new"), hash_of(b"old"))))
    answer = done.archives.archive(MISSION)
    assert (answer.replayed, answer.conflicts) == (True, 0)
    assert done.archived() == done.expected()


def test_a_half_made_archive_whose_source_changed_keeps_both_versions(done: Filed) -> None:
    done.archives.archive(MISSION)
    done.manifest.unlink()
    person_writes(done.mission() / "SUMMARY.md", "changed since")
    assert done.archives.archive(MISSION).conflicts == 1
    assert "Über alles.".encode() in b"".join(path.read_bytes() for path in conflicts(done.place))
    assert done.archived()[f"{WORKER}/SUMMARY.md"] == b"changed since"
    assert done.archives.verify(MISSION).files == 7


# --- any tree ---

NAMES = st.text(
    st.characters(blacklist_characters="/\0", blacklist_categories=("Cs",)), min_size=1, max_size=12
).filter(lambda name: name not in (".", "..", "events.jsonl", "handoffs") and not name.startswith(".solos-"))
ODD_NAMES = st.sampled_from(["a b", " ", "ü.md", "\n", "é", "é", "\\udc80", os.fsdecode(b"\x80\xff"), "-rf", "*"])
CONTENTS = st.one_of(
    st.sampled_from([b"", b"a\r\nb\r\n", b"\r", b"\x00\xff\xfe", b"x" * 70_000]), st.binary(max_size=64)
)
TREES = st.dictionaries(st.lists(st.one_of(NAMES, ODD_NAMES), min_size=1, max_size=3).map(tuple), CONTENTS, max_size=6)


@settings(max_examples=40, deadline=None)
@given(tree=TREES, other=TREES, data=st.data())
def test_any_tree_is_archived_verified_and_equal(
    tree: dict[tuple[str, ...], bytes], other: dict[tuple[str, ...], bytes], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        filed = Filed(Path(folder), Clock())
        person_writes(filed.mission() / "events.jsonl", line("complete"))
        for worker, files in ((WORKER, tree), (OTHER, other)):
            for parts, content in files.items():
                with suppress(NotADirectoryError, FileExistsError, IsADirectoryError):
                    person_writes(filed.mission(worker).joinpath(*parts), content)
        answer = filed.archives.archive(MISSION)
        assert filed.archived() == filed.expected()
        assert filed.archives.verify(MISSION).files == answer.files == len(filed.expected())
        assert [entry["path"] for entry in filed.members()["files"]] == sorted(filed.expected())
        assert filed.manifest.read_text("utf-8").startswith("{")
        assert filed.archives.archive(MISSION).replayed
        damaged = filed.place / data.draw(st.sampled_from(sorted(filed.expected())))
        person_writes(damaged, damaged.read_bytes() + b"\0")
        with pytest.raises(ArchiveDamaged, match="changed"):
            filed.archives.verify(MISSION)
        filed.archives.archive(MISSION)
        assert filed.archives.verify(MISSION).conflicts == 1
        assert filed.archived().items() >= filed.expected().items()
