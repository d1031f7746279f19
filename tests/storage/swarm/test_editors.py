"""Editors that save SUMMARY.md and an episode page while events are written: no edit is lost, and no event."""

import random
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.swarm.layout import Roots
from storage.swarm.memory import SwarmMemory
from storage.swarm.renames import hash_of
from tests.storage.swarm.files import MISSION, WORKER, Swarm, asked, conflicts, leftovers, long_ago, person_writes

EDITS = 60
"""Of each editor."""
BOUND_S = 15.0
THINKING_S = 0.06


class Editor(threading.Thread):
    """Reads a page, thinks, and saves it with a line more."""

    def __init__(self, page: Path, name: str, save: Callable[[Path, str], None]) -> None:
        super().__init__(name=name)
        self.page, self.save = page, save
        self.random = random.Random(name)
        self.saved: list[str] = []
        self.until_s = time.monotonic() + BOUND_S

    def run(self) -> None:
        while len(self.saved) < EDITS and time.monotonic() < self.until_s:
            line = f"edit {len(self.saved)} of {self.name}"
            try:
                text = self.page.read_text(encoding="utf-8")
            except FileNotFoundError:
                continue
            if not text:
                continue
            time.sleep(self.random.uniform(0, THINKING_S))
            self.save(self.page, f"{text}{line}\n")
            self.saved.append(line)


def replaces(page: Path, text: str) -> None:
    """Save by renaming."""
    fresh = page.with_name(f"{threading.current_thread().name}.tmp")
    fresh.write_text(text, encoding="utf-8")
    fresh.rename(page)


def writes_in_place(page: Path, text: str) -> None:
    """Save by truncating."""
    with page.open("w", encoding="utf-8") as file:
        file.write(text)


@pytest.mark.parametrize("save", [replaces, writes_in_place], ids=["replaces", "writes in place"])
def test_no_edit_and_no_event_is_lost_while_an_editor_saves(tmp_path: Path, save: Callable[[Path, str], None]) -> None:
    roots = Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared")
    memory = SwarmMemory(roots)
    memory.write_event(asked("event 0"))
    folder = tmp_path / "profiles" / WORKER / "memory" / "missions" / MISSION
    editor = Editor(folder / "SUMMARY.md", "editor", save)
    editor.start()
    events = 1
    while editor.is_alive():
        memory.write_event(asked(f"event {events}"))
        events += 1
        memory.follow()
        time.sleep(0.004)
    editor.join()
    memory.close()
    assert len(editor.saved) == EDITS
    kept = [path.read_text(encoding="utf-8") for path in (folder / "SUMMARY.md", *conflicts(folder))]
    lost = [line for line in editor.saved if not any(f"{line}\n" in text for text in kept)]
    assert lost == []
    page = kept[0]
    assert f"- Total: {events} events, {events} of them checkpoints" in page
    assert len(re.findall(r" — checkpoint — event \d+\n", page)) == min(events, 50)
    assert len(re.findall(r"^- Total: ", page, re.MULTILINE)) == 1
    assert leftovers(tmp_path) == []
    (episode,) = (folder.parents[1] / "episodes").iterdir()
    assert episode.read_text(encoding="utf-8").count("- Summary: event ") == events


def test_an_entry_that_an_editor_undid_comes_back(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.follow()
    old = swarm.episode.read_bytes()
    swarm.clock.now_s += 1
    swarm.memory.write_event(asked("two"))
    swarm.memory.write_event(asked("alone", mission=None))
    person_writes(swarm.episode, old + b"\nmy remark\n")
    swarm.follow()
    text = swarm.episode.read_text(encoding="utf-8")
    for summary in ("one", "two", "alone"):
        assert text.count(f"- Summary: {summary}\n") == 1
    assert "my remark" in text


@pytest.mark.parametrize("kind", ["profile", "shared"])
@pytest.mark.parametrize("text", ["- appended", "two\nlines\n", "- old", ""], ids=["a line", "lines", "twice", "empty"])
def test_text_that_an_editor_undid_is_appended_again(swarm: Swarm, kind: Any, text: str) -> None:
    page = swarm.worker / "MEMORY.md" if kind == "profile" else swarm.roots.shared / "swarm" / "notes.md"
    person_writes(page, "- old\n")
    swarm.memory.write_page(kind, WORKER, None, text, base_hash=None)
    swarm.memory.write_page(kind, WORKER, None, "and more", base_hash=None)
    assert swarm.memory.behind
    person_writes(page, "- old\r\nmy remark\r\n")
    swarm.follow()
    lines = page.read_bytes().replace(b"\r\n", b"\n").decode().splitlines()
    assert lines == ["- old", "my remark", *text.splitlines(), "and more"]
    assert not swarm.memory.behind
    person_writes(page, "gone later\n")
    swarm.follow()
    assert page.read_text() == "gone later\n"


def test_text_that_an_editor_saved_with_other_line_ends_is_not_appended_twice(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    for text in ("two\nlines", "two\nlines", "lines"):
        swarm.memory.write_page("profile", WORKER, None, text, base_hash=None)
    saved = page.read_bytes().replace(b"\n", b"\r\n") + b"\r\nmy remark"
    person_writes(page, saved)
    swarm.follow()
    assert page.read_bytes() == saved


def test_text_is_not_appended_again_to_a_page_that_was_replaced_or_removed(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    written = swarm.memory.write_page("profile", WORKER, None, "one", base_hash=None)
    swarm.memory.write_page("profile", WORKER, None, "instead", base_hash=written.hash)
    swarm.follow()
    assert page.read_text() == "instead"
    swarm.memory.write_page("profile", WORKER, None, "two", base_hash=None)
    page.unlink()
    swarm.follow()
    assert not page.exists()
    assert not swarm.memory.behind


def test_text_that_an_editor_undid_at_the_last_moment_is_appended_again_at_the_end(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "old\n")
    swarm.memory.write_page("profile", WORKER, None, "appended", base_hash=None)
    person_writes(page, "old\nedited\n")
    swarm.memory.close()
    assert page.read_text() == "old\nedited\nappended"


def test_an_entry_that_a_person_removes_later_stays_removed(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("alone", mission=None))
    swarm.follow()
    person_writes(swarm.episode, "gone\n")
    swarm.follow()
    assert swarm.episode.read_text() == "gone\n"


def test_a_late_edit_of_a_page_that_was_replaced_is_kept(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "old")
    with page.open("r+b") as editor:
        swarm.memory.write_page("profile", WORKER, None, "new", base_hash=hash_of(b"old"))
        editor.write(b"late edit")
    swarm.follow()
    assert page.read_text() == "new"
    assert [path.read_text() for path in conflicts(swarm.folder)] == ["late edit"]
    assert leftovers(swarm.folder) == []


def test_a_summary_that_an_editor_emptied_for_good_is_made_anew(swarm: Swarm) -> None:
    swarm.memory.write_event(asked("one"))
    swarm.follow()
    long_ago(swarm.summary)
    swarm.ticks.now_s += 1
    with swarm.summary.open("r+b") as editor:
        swarm.memory.write_event(asked("two"))
        editor.truncate()
    for _ in range(40):
        swarm.follow()
    assert leftovers(swarm.folder) == []
    assert "- Total: 2 events" in swarm.summary.read_text(encoding="utf-8")
