"""What a crash left undone, made by hand: after the start all is right, and a second start changes nothing."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from storage.swarm.folders import FolderHandle
from storage.swarm.missions import Mission, Missions
from storage.swarm.renames import hash_of, temporary_name
from tests.storage.swarm.files import (
    MISSION,
    WORKER,
    Swarm,
    asked,
    conflicts,
    leftovers,
    long_ago,
    person_writes,
    picture,
)

NEXT = "2026-05-28T20:26:41.000Z"


def line(summary: str, at: str = NEXT, **members: Any) -> str:
    """A line of the log whose projections were not made."""
    event = {"at": at, "type": "checkpoint", "workerId": WORKER, "missionId": MISSION, "summary": summary, **members}
    return json.dumps(event) + "\n"


def started(swarm: Swarm) -> int:
    """What a start makes up for; a second one finds nothing and changes nothing."""
    memory = swarm.again()
    behind = memory.reconcile()
    swarm.follow()
    memory.close()
    once = picture(swarm.folder)
    assert swarm.again().reconcile() == 0
    swarm.follow()
    assert picture(swarm.folder) == once
    assert leftovers(swarm.folder) == []
    return behind


def shown(swarm: Swarm, *summaries: str) -> None:
    """Each event is in the log, in the episode and in the summary, once."""
    log = [json.loads(one)["summary"] for one in swarm.log.read_text(encoding="utf-8").splitlines()]
    assert log == list(summaries)
    episode, page = swarm.episode.read_text(encoding="utf-8"), swarm.summary.read_text(encoding="utf-8")
    for summary in summaries:
        assert episode.count(f"- Summary: {summary}\n") == 1
        assert page.count(f" — checkpoint — {summary}\n") == 1
    assert f"- Total: {len(summaries)} events" in page


@pytest.fixture(autouse=True)
def before(swarm: Swarm) -> None:
    """A mission with one event, whose pages show it."""
    swarm.memory.write_event(asked("one"))
    swarm.follow()


def test_nothing_is_done_where_nothing_is_behind(swarm: Swarm) -> None:
    before = picture(swarm.folder)
    assert started(swarm) == 0
    assert picture(swarm.folder) == before


@pytest.mark.parametrize("cut", [1, 20, -3, -1])
def test_a_last_line_that_was_cut_off_is_removed(swarm: Swarm, cut: int) -> None:
    with swarm.log.open("a") as log:
        log.write(line("never answered")[:-1][:cut])
    started(swarm)
    swarm.memory.write_event(asked("two"))
    swarm.follow()
    shown(swarm, "one", "two")


def test_a_last_line_that_lacks_its_end_only_is_kept(swarm: Swarm) -> None:
    with swarm.log.open("a") as log:
        log.write(line("two")[:-1])
    assert started(swarm) == 1
    swarm.memory.write_event(asked("three"))
    swarm.follow()
    shown(swarm, "one", "two", "three")


def test_a_persons_unfinished_line_in_the_log_is_kept(swarm: Swarm) -> None:
    with swarm.log.open("a") as log:
        log.write("a remark")
    started(swarm)
    swarm.memory.write_event(asked("two"))
    assert "\na remark\n{" in swarm.log.read_text()


def test_an_event_without_its_pages_gets_them(swarm: Swarm) -> None:
    swarm.summary.unlink()
    swarm.episode.unlink()
    assert started(swarm) == 1
    shown(swarm, "one")


def test_an_event_with_its_entry_and_without_its_summary_gets_no_second_entry(swarm: Swarm) -> None:
    page = swarm.summary.read_bytes()
    swarm.clock.now_s += 1
    swarm.memory.write_event(asked("two"))
    swarm.follow()
    person_writes(swarm.summary, page)
    assert started(swarm) == 1
    shown(swarm, "one", "two")


def test_a_summary_that_is_behind_keeps_what_a_person_wrote_after_the_crash(swarm: Swarm) -> None:
    with swarm.log.open("a") as log:
        log.write(line("two") + line("three", "2026-05-28T20:26:42.000Z"))
    edited = swarm.summary.read_text(encoding="utf-8").replace("## Objective", "My own remark.\n\n## Objective")
    inside = edited.replace("<!-- solos:end checkpoints -->", "- inside\n<!-- solos:end checkpoints -->")
    person_writes(swarm.summary, inside + "At the end, without a line end")
    assert started(swarm) == 1
    shown(swarm, "one", "two", "three")
    page = swarm.summary.read_text(encoding="utf-8")
    for remark in (
        "My own remark.\n\n## Objective",
        "<!-- solos:end checkpoints -->\n- inside\n",
        "without a line end",
    ):
        assert page.count(remark) == 1
    assert conflicts(swarm.folder) == []


@pytest.mark.parametrize("marker", ["begin state", "end state", "begin checkpoints", "end next"])
def test_a_summary_whose_markers_a_person_removed_or_doubled_comes_right(swarm: Swarm, marker: str) -> None:
    text = swarm.summary.read_text(encoding="utf-8")
    mark = f"<!-- solos:{marker} -->\n"
    for page in (text.replace(mark, ""), text.replace(mark, mark * 2), f"{text}{mark}", "Nothing of yours.\n"):
        person_writes(swarm.summary, page)
        with swarm.log.open("a") as log:
            log.write(line("more", f"2026-05-28T20:26:41.{len(swarm.log.read_bytes()) % 1000:03d}Z"))
        started(swarm)
        made = swarm.summary.read_text(encoding="utf-8")
        assert made.count("<!-- solos:begin state -->") == made.count("<!-- solos:end state -->") == 1
        assert made.count("- Total: ") == 1


def test_a_page_that_quotes_an_instant_is_behind_all_the_same(swarm: Swarm) -> None:
    with swarm.log.open("a") as log:
        log.write(line("two"))
    with swarm.summary.open("a") as page:
        page.write(f"\n- Last updated: {NEXT}\n")
    assert started(swarm) == 1
    shown(swarm, "one", "two")


def test_one_mission_that_cannot_be_read_stops_no_other(swarm: Swarm) -> None:
    for name in ("a-link", "z-link"):
        (swarm.mission.parent / name).symlink_to(swarm.folder)
    (swarm.mission.parent / "a-folder" / "events.jsonl").mkdir(parents=True)
    (swarm.roots.profiles / "a-worker").symlink_to(swarm.folder)
    with swarm.log.open("a") as log:
        log.write(line("two"))
    assert started(swarm) == 1
    shown(swarm, "one", "two")


def test_the_episodes_of_a_long_log_are_read_once_each(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.summary.unlink()
    with swarm.log.open("a") as log:
        log.writelines(line(f"n{number}", f"2026-05-28T21:00:00.{number:03d}Z") for number in range(500))
    reads: list[str] = []
    read = FolderHandle.read

    def counted(self: FolderHandle, name: str, *arguments: int) -> object:
        reads.append(name)
        return read(self, name, *arguments)

    monkeypatch.setattr(FolderHandle, "read", counted)
    assert swarm.again().reconcile() == 1
    assert len(reads) < 20
    assert swarm.episode.read_text(encoding="utf-8").count("- Summary: ") == 501


# --- handoffs ---


def test_copies_that_a_crash_left_out_are_made(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=True)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(swarm.memory._handoffs, "_copy", crash)
        with pytest.raises(KeyboardInterrupt):
            swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=True)
    assert swarm.latest.read_text() == (swarm.mission / "handoff.md").read_text() == "first"
    for path in (swarm.latest, swarm.mission / "handoff.md"):
        long_ago(path)
    assert started(swarm) == 2
    assert swarm.latest.read_text() == (swarm.mission / "handoff.md").read_text() == "second"


def test_a_handoff_that_was_not_to_be_mirrored_is_not(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(swarm.memory._handoffs, "_copy", crash)
        with pytest.raises(KeyboardInterrupt):
            swarm.memory.write_handoff(WORKER, MISSION, "private", mirror=False)
    assert started(swarm) == 1
    assert (swarm.mission / "handoff.md").read_text() == "private"
    assert not swarm.latest.exists()


def test_a_crash_before_the_handoff_mirrors_nothing(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "private", mirror=False)
    person_writes(swarm.handoff.parent / f".mirror-{MISSION}", hash_of(b"never written"))
    assert started(swarm) == 0
    assert not swarm.latest.exists()


def test_a_handoff_of_another_program_is_copied_to_its_mission_and_not_mirrored(swarm: Swarm) -> None:
    person_writes(swarm.handoff, "by the old program")
    assert started(swarm) == 1
    assert (swarm.mission / "handoff.md").read_text() == "by the old program"
    assert not swarm.latest.exists()


def test_the_newest_handoff_is_the_latest(swarm: Swarm) -> None:
    for number, mission in enumerate(["m-b", "m-c", "m-a"]):
        path = swarm.handoff.with_name(f"{mission}.md")
        person_writes(path, mission)
        person_writes(path.with_name(f".mirror-{mission}"), hash_of(mission.encode()))
        os.utime(path, (1_000 + number, 1_000 + number))
    assert started(swarm) == 4
    assert swarm.latest.read_text() == "m-a"


def test_a_copy_that_a_person_edited_since_is_kept(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "text", mirror=True)
    long_ago(swarm.handoff)
    (swarm.mission / "handoff.md").write_text("edited")
    assert started(swarm) == 0
    assert (swarm.mission / "handoff.md").read_text() == "edited"


def test_an_edit_of_a_handoff_that_was_made_between_processes_is_kept_beside_the_next(swarm: Swarm) -> None:
    for number in range(3):
        swarm.memory.write_handoff(WORKER, MISSION, f"handoff {number}", mirror=True)
        swarm.again().reconcile()
    assert conflicts(swarm.folder) == []
    for number, path in enumerate((swarm.handoff, swarm.mission / "handoff.md", swarm.latest)):
        swarm.memory.write_handoff(WORKER, MISSION, f"ours {number}", mirror=True)
        path.write_text(f"edit {number}")
        for _ in range(2):
            swarm.again().reconcile()
        assert path.read_text() == f"edit {number}"
        swarm.memory.write_handoff(WORKER, MISSION, "next", mirror=True)
        swarm.follow()
        assert path.read_text() == "next"
        kept = {(one.parent, one.read_text()) for one in conflicts(swarm.folder)}
        assert len(kept) == len(conflicts(swarm.folder)) == number + 1
        assert (path.parent, f"edit {number}") in kept
    assert leftovers(swarm.folder) == []


def test_handoffs_that_are_not_mirrored_are_told_from_an_edit_by_their_pair(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=False)
    swarm.again().write_handoff(WORKER, MISSION, "second", mirror=False)
    swarm.again().write_handoff(WORKER, "another", "of another", mirror=True)
    swarm.again().write_handoff(WORKER, MISSION, "third", mirror=True)
    swarm.follow()
    assert conflicts(swarm.folder) == []
    swarm.handoff.write_text("edit")
    swarm.again().write_handoff(WORKER, MISSION, "fourth", mirror=False)
    assert [path.read_text() for path in conflicts(swarm.folder)] == ["edit"]


def test_a_shared_handoff_whose_own_was_replaced_without_a_mirror_is_ours(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=True)
    swarm.again().write_handoff(WORKER, MISSION, "second", mirror=False)
    swarm.again().write_handoff(WORKER, MISSION, "third", mirror=False)
    swarm.again().write_handoff(WORKER, "another", "fourth", mirror=True)
    swarm.follow()
    assert swarm.latest.read_text() == "fourth"
    assert conflicts(swarm.folder) == []
    swarm.again().write_handoff(WORKER, "another", "fifth", mirror=False)
    swarm.latest.write_text("edit")
    swarm.again().write_handoff(WORKER, MISSION, "sixth", mirror=True)
    assert [path.read_text() for path in conflicts(swarm.folder)] == ["edit"]


def test_a_handoff_of_another_program_that_has_no_copy_is_replaced(swarm: Swarm) -> None:
    person_writes(swarm.handoff, "by the old program")
    swarm.again().write_handoff(WORKER, MISSION, "ours", mirror=True)
    swarm.follow()
    assert conflicts(swarm.folder) == []
    assert swarm.handoff.read_text() == "ours"


@pytest.mark.parametrize("mirror", [True, False], ids=["mirrored", "local"])
def test_a_handoff_whose_copies_a_crash_left_out_leaves_no_conflict(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, *, mirror: bool
) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=mirror)

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(swarm.memory._handoffs, "_copy", crash)
        with pytest.raises(KeyboardInterrupt):
            swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=mirror)
    for path in (swarm.mission / "handoff.md", *([swarm.latest] if mirror else [])):
        long_ago(path)
    assert started(swarm) == 1 + mirror
    assert (swarm.mission / "handoff.md").read_text() == "second"
    assert swarm.latest.exists() == mirror
    assert conflicts(swarm.folder) == []


def test_a_copy_that_was_edited_before_the_crash_is_kept_beside(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=True)
    person_writes(swarm.mission / "handoff.md", "edit")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(swarm.memory._handoffs, "_copy", crash)
        with pytest.raises(KeyboardInterrupt):
            swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=True)
    long_ago(swarm.latest)
    assert started(swarm) == 2
    assert swarm.latest.read_text() == (swarm.mission / "handoff.md").read_text() == "second"
    assert [path.read_text() for path in conflicts(swarm.folder)] == ["edit"]


# --- logs ---


def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The missions whose logs are read whole from now on."""
    missions_: list[str] = []
    of = Missions.of

    def counted(self: Missions, key: tuple[str, str], folder: FolderHandle) -> Mission:
        missions_.append(key[1])
        return of(self, key, folder)

    monkeypatch.setattr(Missions, "of", counted)
    return missions_


@pytest.mark.parametrize("bytes_", [100_000, 130_000])
def test_a_log_that_the_summary_shows_is_not_read_at_start(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, bytes_: int
) -> None:
    for number in range(3):
        swarm.memory.write_event(asked(f"n{number}", mission="behind"))
        swarm.memory.write_event(asked(content="x" * bytes_))
        swarm.memory.write_event(asked("short"))
    swarm.follow()
    with (swarm.mission.parent / "behind" / "events.jsonl").open("a") as log:
        log.write(line("n3"))
    memory = swarm.again()
    read = parsed(monkeypatch)
    assert memory.reconcile() == 1
    assert set(read) == {"behind"}
    assert memory.unread == []


def test_a_log_whose_last_line_is_very_long_is_read(swarm: Swarm) -> None:
    with swarm.log.open("a") as log:
        log.write(line("x" * 100_000))
    assert started(swarm) == 1
    assert started(swarm) == 0


def test_what_cannot_be_read_is_told(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    with swarm.log.open("a") as log:
        log.write(line("two"))
    (swarm.mission.parent / "a-folder" / "events.jsonl").mkdir(parents=True)
    monkeypatch.setattr("storage.swarm.missions.EVENTS_BYTES_MAX", 10)
    memory = swarm.again()
    assert memory.reconcile() == 0
    assert [told.partition(":")[0] for told in memory.unread] == [f"{WORKER}/a-folder", f"{WORKER}/{MISSION}"]
    assert "is full" in memory.unread[1]


# --- temporary files ---


def places(swarm: Swarm) -> dict[str, Path]:
    """A page in each folder that is swept."""
    return {
        "profile": swarm.worker / "MEMORY.md",
        "summary": swarm.summary,
        "episode": swarm.episode,
        "handoff": swarm.handoff,
        "shared": swarm.roots.shared / "swarm" / "notes.md",
        "latest": swarm.latest,
    }


PLACES = ["profile", "summary", "episode", "handoff", "shared", "latest"]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("left", ["half", "ours", "base", "empty"])
def test_a_leftover_without_a_persons_edit_is_removed(swarm: Swarm, place: str, left: str) -> None:
    page = places(swarm)[place]
    if not page.exists():
        person_writes(page, "base\n")
    base = page.read_bytes()
    ours = base + b"and more of ours, which was never put there\n"
    tagged = temporary_name(page.name, hash_of(ours), hash_of(base))
    name, content = {
        "half": (temporary_name(page.name), ours[: len(ours) // 2] + b"\nha"),
        "ours": (tagged, ours),
        "base": (tagged, base),
        "empty": (tagged, b""),
    }[left]
    person_writes(page.with_name(name), content)
    long_ago(page)
    (swarm.mission / "handoff.md").write_bytes(swarm.handoff.read_bytes() if swarm.handoff.exists() else b"")
    before = {name: content for name, content in picture(swarm.folder).items() if ".solos-" not in name}
    assert started(swarm) == 0
    assert picture(swarm.folder) == before


@pytest.mark.parametrize("place", PLACES)
def test_a_leftover_with_a_persons_edit_is_kept_beside_the_page(swarm: Swarm, place: str) -> None:
    page = places(swarm)[place]
    if not page.exists():
        person_writes(page, "base\n")
    base = page.read_bytes()
    person_writes(page.with_name(temporary_name(page.name, hash_of(b"ours"), hash_of(base))), base + b"edited\n")
    started(swarm)
    (kept,) = conflicts(swarm.folder)
    assert kept.name.startswith(f"{page.name}.conflict-")
    assert kept.read_bytes() == base + b"edited\n"
    assert page.read_bytes() == base


def test_an_edit_between_markers_in_a_leftover_is_kept(swarm: Swarm) -> None:
    base = swarm.summary.read_bytes()
    edit = base.replace(b"<!-- solos:end state -->", b"an edit\n<!-- solos:end state -->")
    name = temporary_name("SUMMARY.md", hash_of(b"ours"), hash_of(base))
    person_writes(swarm.mission / name, edit)
    started(swarm)
    assert [path.read_bytes() for path in conflicts(swarm.folder)] == [edit]


def test_an_edit_that_was_merged_before_the_crash_is_not_kept_twice(swarm: Swarm) -> None:
    base = swarm.summary.read_bytes()
    name = temporary_name("SUMMARY.md", hash_of(b"ours"), hash_of(base))
    older = swarm.summary.read_text(encoding="utf-8").replace("- Status: executing", "- Status: planning")
    person_writes(swarm.mission / name, older + "an edit\n")
    person_writes(swarm.summary, base + b"an edit\n")
    started(swarm)
    assert conflicts(swarm.folder) == []
    assert swarm.summary.read_bytes() == base + b"an edit\n"


def test_files_of_a_person_that_are_called_like_ours_stay(swarm: Swarm) -> None:
    person_writes(swarm.mission / ".solos-notes", "mine")
    swarm.again().reconcile()
    assert (swarm.mission / ".solos-notes").read_text() == "mine"


def test_what_is_watched_at_this_moment_is_not_swept(swarm: Swarm) -> None:
    long_ago(swarm.summary)
    swarm.ticks.now_s += 1
    swarm.memory.write_event(asked("two"))
    (watched,) = leftovers(swarm.folder)
    swarm.memory.reconcile()
    assert leftovers(swarm.folder) == [watched]
    swarm.follow()
    assert leftovers(swarm.folder) == []
