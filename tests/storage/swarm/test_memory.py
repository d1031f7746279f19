"""Writes of every kind: what is on disk after them, and what a hostile file or caller cannot do."""

import json
import os
from typing import Any

import pytest

from storage.errors import Conflict, FileFailed, StorageFull, TooLarge
from storage.swarm.folders import FolderHandle, Placed, Seen
from storage.swarm.renames import hash_of
from tests.storage.swarm.files import (
    BUILT,
    DAY,
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


def logged(swarm: Swarm) -> list[dict[str, Any]]:
    """The lines of the mission's log."""
    return [json.loads(line) for line in swarm.log.read_text(encoding="utf-8").splitlines()]


# --- events ---


def test_an_event_is_in_the_log_the_episode_and_the_summary(swarm: Swarm) -> None:
    detail = {"state": "DONE", "result": "works", "decisions": ["use trio"], "nextAction": "ship it"}
    written = swarm.memory.write_event(asked("built it", assignment="a-1", content="all of it", detail=detail))
    assert (written.workerId, written.missionId, written.eventType, written.at) == (
        WORKER,
        MISSION,
        "checkpoint",
        BUILT,
    )
    assert not written.degradedReasons
    (line,) = logged(swarm)
    assert line == {
        "at": BUILT,
        "type": "checkpoint",
        "workerId": WORKER,
        "missionId": MISSION,
        "assignmentId": "a-1",
        "summary": "built it",
        "content": "all of it",
        "event": detail,
    }
    assert "- Summary: built it\n" in swarm.episode.read_text(encoding="utf-8")
    page = swarm.summary.read_text(encoding="utf-8")
    for shown in (
        "- Status: executing",
        "- use trio",
        "ship it",
        f"- {BUILT} — checkpoint — built it — works — all of it",
    ):
        assert f"{shown}\n" in page


def test_a_summary_is_made_anew_once_in_a_while_and_shows_all_in_the_end(swarm: Swarm) -> None:
    for number in range(20):
        swarm.memory.write_event(asked(f"step {number}"))
    assert "- Total: 1 events" in swarm.summary.read_text(encoding="utf-8")
    assert swarm.memory.is_behind(WORKER)
    swarm.follow()
    assert "- Total: 20 events" in swarm.summary.read_text(encoding="utf-8")
    assert not swarm.memory.behind
    assert not leftovers(swarm.folder)
    assert len({line["at"] for line in logged(swarm)}) == 20


def test_a_request_that_is_sent_again_is_answered_as_the_first_was(swarm: Swarm) -> None:
    first = swarm.memory.write_event(asked(request_id="r-1"))
    swarm.clock.now_s += 60
    for memory in (swarm.memory, swarm.again()):
        again = memory.write_event(asked(request_id="r-1"))
        assert again.replayed
        assert again.at == first.at
        with pytest.raises(Conflict, match="requestId"):
            memory.write_event(asked("another", request_id="r-1"))
    assert len(logged(swarm)) == 1


@pytest.mark.parametrize("request_id", ["r-1", "a --> b", "request=0:0", "x\ny", "\ud800"], ids=ascii)
def test_an_episode_that_is_sent_again_is_answered_as_the_first_was(swarm: Swarm, request_id: str) -> None:
    first = swarm.memory.write_event(asked(mission=None, request_id=request_id), kind="episodic")
    for days in (0, 1, 6):
        swarm.clock.now_s += days * 86_400
        for memory in (swarm.memory, swarm.again()):
            again = memory.write_event(asked(mission=None, request_id=request_id), kind="episodic")
            assert again.replayed
            assert again.at == first.at
            with pytest.raises(Conflict, match="requestId"):
                memory.write_event(asked("another", mission=None, request_id=request_id))
    assert not swarm.memory.write_event(asked(mission=None, request_id="r-2")).replayed
    assert sum(page.read_text(encoding="utf-8").count("## ") for page in swarm.episode.parent.iterdir()) == 2


def test_the_page_of_the_day_is_read_once_for_all_requests_and_again_when_others_write_it(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.memory.write_event(asked("first", mission=None, request_id="r-first"))
    swarm.again()
    reads: list[str] = []
    read = FolderHandle.read

    def counted(self: FolderHandle, name: str, *at_most: int) -> Seen | None:
        reads.append(name)
        return read(self, name, *at_most)

    def replayed(name: str) -> bool:
        return swarm.memory.write_event(asked(name, mission=None, request_id=f"r-{name}")).replayed

    monkeypatch.setattr(FolderHandle, "read", counted)
    for number in range(20):
        assert not replayed(str(number))
        swarm.memory.write_event(asked(str(number)))
    assert replayed("first")
    assert all(replayed(str(number)) for number in range(20))
    assert reads.count(swarm.episode.name) == 1
    other = Swarm(swarm.folder, swarm.clock)
    other.memory.write_event(asked("other", mission=None, request_id="r-other"))
    assert not replayed("new")
    assert replayed("other")
    person_writes(swarm.episode, "nothing any more")
    assert not replayed("0")


def test_a_replay_in_a_page_that_an_editor_saved_with_other_line_ends_is_found(swarm: Swarm) -> None:
    swarm.memory.write_event(asked(mission=None, request_id="r-1"))
    person_writes(swarm.episode, swarm.episode.read_bytes().replace(b"\n", b"\r\n"))
    assert swarm.memory.write_event(asked(mission=None, request_id="r-1")).replayed


def test_the_text_of_an_episode_is_no_answer_to_a_request(swarm: Swarm) -> None:
    swarm.memory.write_event(asked(mission=None, request_id="r-1"))
    mark = next(line for line in swarm.episode.read_text(encoding="utf-8").split("\n") if "request=" in line)
    other = Swarm(swarm.folder.with_name("other"), swarm.clock)
    other.memory.write_event(asked(mission=None, summary=mark, content=f"a\n{mark}\n"))
    assert not other.memory.write_event(asked(mission=None, request_id="r-1")).replayed


def test_two_episodes_of_the_same_moment_are_two(swarm: Swarm) -> None:
    at = {swarm.memory.write_event(asked(mission=None)).at for _ in range(3)}
    assert len(at) == 3


def test_an_event_of_the_future_in_the_log_stops_nothing(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("first"))
    with swarm.log.open("a") as log:
        log.write('{"at":"9999-12-31T23:59:59.999Z","type":"note","summary":"from the future"}\n')
    for number in range(3):
        swarm.memory.write_event(asked(f"later {number}"))
    swarm.follow()
    at = [line["at"] for line in logged(swarm)]
    assert at[2:] == ["2026-05-28T20:26:40.001Z", "2026-05-28T20:26:40.002Z", "2026-05-28T20:26:40.003Z"]
    page = swarm.summary.read_text(encoding="utf-8")
    assert "- Total: 5 events" in page
    assert "- Last updated: 2026-05-28T20:26:40.003Z" in page
    assert swarm.again().reconcile() == 0


def test_a_line_of_another_program_leads_to_no_file_outside(swarm: Swarm) -> None:
    swarm.mission.mkdir(parents=True)
    line = {"at": BUILT, "type": "note", "workerId": "../../../evil", "missionId": "../../evil", "summary": "s"}
    wrong = [{**line, "at": "../../../../../../evil"}, {**line, "workerId": "/evil"}, {**line, "summary": "\ud800"}]
    swarm.log.write_text("".join(json.dumps(one) + "\n" for one in [line, *wrong]))
    before = {path for path in swarm.folder.parent.rglob("*") if swarm.folder not in path.parents}
    assert swarm.memory.reconcile() == 1
    swarm.memory.write_event(asked())
    swarm.follow()
    assert {path for path in swarm.folder.parent.rglob("*") if swarm.folder not in path.parents} == before
    assert [path.name for path in swarm.roots.profiles.iterdir()] == [WORKER]
    assert "- Total: 4 events" in swarm.summary.read_text(encoding="utf-8")


def test_a_mission_that_was_removed_is_not_made_again(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.memory.write_event(asked("two"))
    for path in swarm.mission.iterdir():
        path.unlink()
    swarm.mission.rmdir()
    swarm.follow()
    assert not swarm.mission.exists()
    assert not swarm.memory.behind


# --- handoffs ---


def test_a_handoff_goes_to_three_places_and_is_kept_as_given(swarm: Swarm) -> None:
    text = "# Handoff\r\n\r\n## Forged? No, kept.\r\n<!-- solos:end state -->"
    written = swarm.memory.write_handoff(WORKER, MISSION, text, mirror=True)
    for path in (swarm.handoff, swarm.mission / "handoff.md", swarm.latest):
        assert path.read_bytes() == text.encode()
    assert (written.localPath, written.sharedPath) == (str(swarm.handoff), str(swarm.latest))
    assert written.hash == hash_of(text.encode())
    assert not leftovers(swarm.folder)


def test_a_handoff_without_mirror_is_not_mirrored(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=True)
    written = swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=False)
    assert written.sharedPath is None
    assert swarm.handoff.read_text() == (swarm.mission / "handoff.md").read_text() == "second"
    assert swarm.latest.read_text() == "first"
    swarm.again().reconcile()
    assert swarm.latest.read_text() == "first"


def test_a_copy_that_fails_is_made_up_for(swarm: Swarm) -> None:
    swarm.roots.shared.mkdir(parents=True)
    (swarm.roots.shared / "handoffs").symlink_to(swarm.folder)
    written = swarm.memory.write_handoff(WORKER, MISSION, "text", mirror=True)
    assert written.degradedReasons == ("pages_behind",)
    assert swarm.memory.behind
    swarm.follow()
    assert swarm.memory.behind
    (swarm.roots.shared / "handoffs").unlink()
    swarm.follow()
    assert swarm.latest.read_text() == "text"
    assert not swarm.memory.behind
    assert not leftovers(swarm.folder)


@pytest.mark.parametrize("place", range(3), ids=["own", "mission", "latest"])
def test_an_edit_of_a_handoff_is_kept_beside_the_next_one(swarm: Swarm, place: int) -> None:
    path = (swarm.handoff, swarm.mission / "handoff.md", swarm.latest)[place]
    for number in range(3):
        swarm.memory.write_handoff(WORKER, MISSION, f"handoff {number}", mirror=True)
        swarm.memory.write_handoff(WORKER, "another", "of another", mirror=False)
    path.write_text("edit")
    swarm.memory.write_handoff(WORKER, MISSION, "last", mirror=True)
    assert path.read_text() == "last"
    assert [(kept.parent, kept.read_text()) for kept in conflicts(swarm.folder)] == [(path.parent, "edit")]
    swarm.follow()
    assert len(conflicts(swarm.folder)) == 1
    assert leftovers(swarm.folder) == []


def test_an_edit_that_is_saved_into_the_handoff_that_came_out_is_kept(swarm: Swarm) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=True)
    with swarm.latest.open("r+") as editor:
        swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=True)
        editor.write("late edit")
    swarm.follow()
    assert swarm.latest.read_text() == "second"
    assert [kept.read_text() for kept in conflicts(swarm.folder)] == ["late edit"]
    assert leftovers(swarm.folder) == []


def test_an_edit_of_a_handoff_that_cannot_be_kept_stops_the_next_one(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=False)
    swarm.handoff.write_text("edit")
    before = picture(swarm.folder)
    create = FolderHandle.create

    def full(self: FolderHandle, name: str, content: bytes) -> object:
        if ".conflict-" in name:
            raise StorageFull
        return create(self, name, content)

    with monkeypatch.context() as patched:
        patched.setattr(FolderHandle, "create", full)
        with pytest.raises(StorageFull):
            swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=False)
    assert picture(swarm.folder) == before


def test_a_handoff_that_is_written_all_the_time_is_left(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, "first", mirror=False)
    before = picture(swarm.folder)
    exchange = FolderHandle.exchange

    def late(self: FolderHandle, name: str, content: bytes, seen: Seen | None) -> Placed | None:
        return None if name == swarm.handoff.name else exchange(self, name, content, seen)

    with monkeypatch.context() as patched:
        patched.setattr(FolderHandle, "exchange", late)
        with pytest.raises(FileFailed, match="all the time"):
            swarm.memory.write_handoff(WORKER, MISSION, "second", mirror=False)
    assert picture(swarm.folder) == before


# --- pages ---


@pytest.mark.parametrize(("kind", "file"), [("profile", "MEMORY.md"), ("shared", "notes.md")])
def test_without_a_hash_text_is_added_behind_what_is_there(swarm: Swarm, kind: Any, file: str) -> None:
    place = swarm.worker if kind == "profile" else swarm.roots.shared / "swarm"
    for text in ("one", "two\n", "three"):
        written = swarm.memory.write_page(kind, WORKER, None, text, base_hash=None)
        assert written.action == "appended"
        assert written.hash == hash_of((place / file).read_bytes())
    assert (place / file).read_bytes() == b"one\ntwo\nthree"


def test_a_page_of_another_system_is_gone_on_with_its_line_ends(swarm: Swarm) -> None:
    person_writes(swarm.worker / "MEMORY.md", b"a\r\nb")
    swarm.memory.write_page("profile", WORKER, None, "c", base_hash=None)
    assert (swarm.worker / "MEMORY.md").read_bytes() == b"a\r\nb\r\nc"


def test_with_a_hash_a_page_is_replaced(swarm: Swarm) -> None:
    page = swarm.worker / "SOUL.md"
    person_writes(page, "old")
    written = swarm.memory.write_page("profile", WORKER, "SOUL.md", "new", base_hash=hash_of(b"old").upper())
    assert (written.action, written.hash) == ("replaced", hash_of(b"new"))
    swarm.follow()
    assert picture(swarm.worker) == {"SOUL.md": b"new"}


def test_an_older_copy_is_refused_and_the_text_of_the_other_survives(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "base\n")
    base = hash_of(page.read_bytes())
    with page.open("a") as shell:
        shell.write("by shell\n")
    with pytest.raises(Conflict, match="baseHash"):
        swarm.memory.write_page("profile", WORKER, None, "posted", base_hash=base)
    assert picture(swarm.worker) == {"MEMORY.md": b"base\nby shell\n"}


def test_a_page_that_is_not_there_is_made_from_nothing_only(swarm: Swarm) -> None:
    with pytest.raises(Conflict, match=r"there is no notes\.md"):
        swarm.memory.write_page("shared", None, None, "text", base_hash=hash_of(b"something"))
    assert picture(swarm.folder) == {}
    swarm.memory.write_page("shared", None, None, "text", base_hash=hash_of(b""))
    assert picture(swarm.folder) == {"shared/swarm/notes.md": b"text"}
    assert swarm.memory.write_page("shared", None, None, "text", base_hash=hash_of(b"")).hash == hash_of(b"text")
    with pytest.raises(Conflict, match="another version"):
        swarm.memory.write_page("shared", None, None, "other text", base_hash=hash_of(b""))


def test_a_page_does_not_become_larger_than_can_be_read(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.swarm.whole_pages.FILE_BYTES_MAX", 100)
    swarm.memory.write_page("shared", None, None, "x" * 60, base_hash=None)
    before = picture(swarm.folder)
    with pytest.raises(TooLarge):
        swarm.memory.write_page("shared", None, None, "x" * 60, base_hash=None)
    with pytest.raises(TooLarge):
        swarm.memory.write_page("shared", None, None, "x" * 100, base_hash=hash_of(b"x" * 60))
    assert picture(swarm.folder) == before


def test_text_that_is_no_text_is_stored_harmlessly(swarm: Swarm) -> None:
    swarm.memory.write_page("shared", None, None, "a\ud800b\udc80c\x00", base_hash=None)
    swarm.memory.write_handoff(WORKER, MISSION, "a\ud800b", mirror=False)
    swarm.memory.write_event(asked("a\ud800b", detail={"x\ud800": "\udfff"}))
    assert (swarm.roots.shared / "swarm" / "notes.md").read_bytes() == b"a?b?c\x00"
    assert swarm.handoff.read_bytes() == b"a?b"
    assert logged(swarm)[0]["event"] == {"x?": "?"}


def test_text_of_any_script_is_utf8_whatever_the_locale(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setattr("locale.getpreferredencoding", lambda *_: "cp1252")
    text = "emoji 🦊, 中文, кириллица"
    swarm.memory.write_event(asked(text, content=text))
    swarm.memory.write_page("profile", WORKER, None, text, base_hash=None)
    for path in (swarm.log, swarm.summary, swarm.episode, swarm.worker / "MEMORY.md"):
        assert text.encode() in path.read_bytes()


# --- logs and pages that are full ---


def test_an_event_for_a_full_log_is_refused_and_the_log_stays_readable(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.memory.write_event(asked(request_id="r-1"))
    swarm.follow()
    monkeypatch.setattr("storage.swarm.missions.EVENTS_BYTES_MAX", swarm.log.stat().st_size + 10)
    before = picture(swarm.folder)
    for new, memory in (("new-1", swarm.memory), ("new-2", swarm.again())):
        with pytest.raises(TooLarge, match="begin a new mission"):
            memory.write_event(asked("two"))
        assert memory.write_event(asked(request_id="r-1")).replayed
        memory.write_event(asked(mission=new))
    assert picture(swarm.mission) == {
        name.removeprefix(f"profiles/{WORKER}/memory/missions/{MISSION}/"): content
        for name, content in before.items()
        if f"/{MISSION}/" in name
    }


def test_a_full_page_of_the_day_refuses_an_event_of_its_own_and_none_of_a_mission(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.follow()
    monkeypatch.setattr("storage.swarm.episodes.PAGE_BYTES_MAX", swarm.episode.stat().st_size + 10)
    page = swarm.episode.read_bytes()
    with pytest.raises(TooLarge, match=rf"{DAY}\.md is full"):
        swarm.memory.write_event(asked("alone", mission=None))
    written = swarm.memory.write_event(asked("two"))
    assert not written.degradedReasons
    swarm.follow()
    assert swarm.episode.read_bytes() == page
    assert not swarm.memory.behind
    summary = swarm.summary.read_text(encoding="utf-8")
    assert "- Total: 2 events" in summary
    assert "Episodes do not show" not in summary
    assert swarm.again().reconcile() == 0


def test_entries_that_a_full_page_has_no_room_for_are_not_made_up(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.follow()
    swarm.summary.unlink()
    for bytes_max in (swarm.episode.stat().st_size, 10):
        person_writes(swarm.episode, swarm.episode.read_bytes().replace(b"solos:event", b"gone"))
        page = swarm.episode.read_bytes()
        monkeypatch.setattr("storage.swarm.episodes.PAGE_BYTES_MAX", bytes_max)
        memory = swarm.again()
        memory.reconcile()
        swarm.follow()
        assert not memory.behind
        assert swarm.episode.read_bytes() == page
        assert "- Total: 1 events" in swarm.summary.read_text(encoding="utf-8")


# --- pages that cannot be written ---


def test_a_page_that_cannot_be_written_does_not_stop_events(swarm: Swarm) -> None:
    swarm.mission.mkdir(parents=True)
    swarm.summary.mkdir()
    swarm.episode.mkdir(parents=True)
    answers = [swarm.memory.write_event(asked(f"step {number}")) for number in range(3)]
    assert all(answer.degradedReasons == ("pages_behind",) for answer in answers)
    swarm.follow()
    assert swarm.memory.is_behind(WORKER)
    swarm.summary.rmdir()
    swarm.episode.rmdir()
    swarm.follow()
    assert not swarm.memory.behind
    assert swarm.episode.read_text(encoding="utf-8").count("- Summary: step ") == 3
    page = swarm.summary.read_text(encoding="utf-8")
    assert "- Total: 3 events" in page
    assert "Episodes do not show" not in page


def test_entries_that_are_missing_are_known_after_a_crash(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("step 0"))
    swarm.follow()
    swarm.episode.rename(swarm.episode.with_suffix(".away"))
    swarm.episode.mkdir()
    for number in (1, 2):
        swarm.memory.write_event(asked(f"step {number}"))
        swarm.follow()
    assert f"Episodes do not show yet what came after: {BUILT}\n" in swarm.summary.read_text(encoding="utf-8")
    swarm.episode.rmdir()
    swarm.episode.with_suffix(".away").rename(swarm.episode)
    assert swarm.again().reconcile() == 1
    text = swarm.episode.read_text(encoding="utf-8")
    assert [text.count(f"- Summary: step {number}\n") for number in range(3)] == [1, 1, 1]
    swarm.follow()
    assert "Episodes do not show" not in swarm.summary.read_text(encoding="utf-8")
    assert swarm.again().reconcile() == 0


def test_a_page_with_a_time_of_the_future_is_followed(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.follow()
    long_ago(swarm.summary)
    os.utime(swarm.summary, (4_000_000_000, 4_000_000_000))
    swarm.memory.write_event(asked("two"))
    swarm.follow()
    assert "- Total: 2 events" in swarm.summary.read_text(encoding="utf-8")


def test_another_thread_may_ask_whether_pages_are_behind(swarm: Swarm) -> None:
    for worker in (WORKER, WORKER, "other", "other"):
        swarm.memory.write_event(asked(worker=worker))

    class Meanwhile(str):
        """A worker's id; while it is compared, the writer's thread goes on."""

        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            swarm.memory._summaries._due.clear()
            return False

    assert not swarm.memory.is_behind(Meanwhile(WORKER))
