"""A worker's notes under the commands of Claude's memory tool: its documented texts, hostile names, faults, editors."""

import errno
import itertools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.errors import Conflict, FileFailed, Forbidden, InvalidRequest, NotFound, Rejection, StorageFull, TooLarge
from storage.swarm import folders, layout
from storage.swarm.folders import FILE_BYTES_MAX
from storage.swarm.layout import Folder
from storage.swarm.notes import notes as notes_module
from storage.swarm.notes import trees
from storage.swarm.notes.notes import Notes
from storage.swarm.notes.paths import DEPTH_MAX, note_path
from storage.swarm.notes.showing import VIEW_CHARS_MAX, size_text
from storage.swarm.walking import folders_below
from storage.swarm.watching import Watch
from tests.storage.conftest import Clock
from tests.storage.swarm.files import WORKER, Swarm, conflicts, leftovers, outside, person_writes, picture

LISTING = "Here're the files and directories up to 2 levels deep in {}, excluding hidden items and node_modules:\n"
CONTENT = "Here's the content of {} with line numbers:\n"
KINDS: tuple[type[Rejection], ...] = (NotFound, Conflict, InvalidRequest, TooLarge, FileFailed, Forbidden)
EDITED = "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"


class Desk:
    """Notes over fresh roots, and where they lie."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm = swarm
        self.touched: list[tuple[Folder, str]] = []
        self.watch = Watch(swarm.roots, swarm.ticks)
        self.notes = Notes(swarm.roots, self.watch, self.touch, monotonic=swarm.ticks)
        self.folder = swarm.worker / "notes"

    def touch(self, folder: Folder, name: str) -> None:
        self.touched.append((folder, name))

    def do(self, command: str, *arguments: Any) -> str:
        """The answer of a command."""
        answer: str = getattr(self.notes, command)(WORKER, *arguments)
        return answer

    def refusal(self, command: str, *arguments: Any) -> tuple[type[Rejection], str]:
        """(class, text) of a command that must be refused; its hint must be one."""
        with pytest.raises(Rejection) as caught:
            self.do(command, *arguments)
        assert caught.value.hint
        return next(kind for kind in KINDS if isinstance(caught.value, kind)), caught.value.detail

    def follow(self) -> None:
        """Let time pass until everything that is watched has been looked at."""
        for _ in range(6):
            self.swarm.ticks.now_s += 2.0
            self.watch.follow()
            self.notes.follow(whole=False)
        assert not self.watch
        assert not self.notes


@pytest.fixture
def desk(swarm: Swarm) -> Desk:
    """Notes that do not exist yet."""
    return Desk(swarm)


@pytest.fixture
def filled(desk: Desk) -> Desk:
    """The notes that the documented cases are about."""
    person_writes(desk.folder / "notes.txt", "Hello World\nThis is line two\n")
    person_writes(desk.folder / "twice.txt", "Hello\nMiddle\nHello")
    person_writes(desk.folder / "plans" / "today.md", "- rest\n")
    return desk


# --- the documented cases ---

ANSWERS: dict[str, tuple[tuple[Any, ...], str, dict[str, str]]] = {
    "view a file": (
        ("view", "/memories/notes.txt"),
        CONTENT.format("/memories/notes.txt") + "     1\tHello World\n     2\tThis is line two",
        {},
    ),
    "view lines": (
        ("view", "/memories/notes.txt", [2, 2]),
        CONTENT.format("/memories/notes.txt") + "     2\tThis is line two",
        {},
    ),
    "view to the end": (
        ("view", "/memories/twice.txt", [2, -1]),
        CONTENT.format("/memories/twice.txt") + "     2\tMiddle\n     3\tHello",
        {},
    ),
    "view more lines than there are": (
        ("view", "/memories/notes.txt", [1, 10]),
        CONTENT.format("/memories/notes.txt") + "     1\tHello World\n     2\tThis is line two",
        {},
    ),
    "create": (
        ("create", "/memories/new.txt", "Meeting notes:\n- Discussed\n"),
        "File created successfully at: /memories/new.txt",
        {"new.txt": "Meeting notes:\n- Discussed\n"},
    ),
    "create below directories that are missing": (
        ("create", "/memories/deep/nested/file.txt", ""),
        "File created successfully at: /memories/deep/nested/file.txt",
        {"deep/nested/file.txt": ""},
    ),
    "str_replace": (
        ("str_replace", "/memories/twice.txt", "Middle", "Between"),
        EDITED + "     1\tHello\n     2\tBetween\n     3\tHello",
        {"twice.txt": "Hello\nBetween\nHello"},
    ),
    "str_replace by several lines": (
        ("str_replace", "/memories/notes.txt", "World\n", "you\nand\nyou\n"),
        EDITED + "     1\tHello you\n     2\tand\n     3\tyou\n     4\tThis is line two",
        {"notes.txt": "Hello you\nand\nyou\nThis is line two\n"},
    ),
    "str_replace without new_str": (
        ("str_replace", "/memories/notes.txt", " World"),
        EDITED + "     1\tHello\n     2\tThis is line two",
        {"notes.txt": "Hello\nThis is line two\n"},
    ),
    "insert behind a line": (
        ("insert", "/memories/notes.txt", 1, "Inserted\n"),
        "The file /memories/notes.txt has been edited.",
        {"notes.txt": "Hello World\nInserted\nThis is line two\n"},
    ),
    "insert at the beginning": (
        ("insert", "/memories/twice.txt", 0, "First"),
        "The file /memories/twice.txt has been edited.",
        {"twice.txt": "First\nHello\nMiddle\nHello"},
    ),
    "insert at the end": (
        ("insert", "/memories/twice.txt", 3, "Last"),
        "The file /memories/twice.txt has been edited.",
        {"twice.txt": "Hello\nMiddle\nHello\nLast\n"},
    ),
    "delete a file": (
        ("delete", "/memories/twice.txt"),
        "Successfully deleted /memories/twice.txt",
        {"twice.txt": "gone"},
    ),
    "delete a directory": (
        ("delete", "/memories/plans"),
        "Successfully deleted /memories/plans",
        {"plans/today.md": "gone"},
    ),
    "rename a file": (
        ("rename", "/memories/notes.txt", "/memories/final.txt"),
        "Successfully renamed /memories/notes.txt to /memories/final.txt",
        {"notes.txt": "gone", "final.txt": "Hello World\nThis is line two\n"},
    ),
    "move a file": (
        ("rename", "/memories/notes.txt", "/memories/old/2026/notes.txt"),
        "Successfully renamed /memories/notes.txt to /memories/old/2026/notes.txt",
        {"notes.txt": "gone", "old/2026/notes.txt": "Hello World\nThis is line two\n"},
    ),
    "rename a directory": (
        ("rename", "/memories/plans", "/memories/done"),
        "Successfully renamed /memories/plans to /memories/done",
        {"plans/today.md": "gone", "done/today.md": "- rest\n"},
    ),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_a_command_does_and_answers_what_is_documented(filled: Desk, case: str) -> None:
    command, answer, changes = ANSWERS[case]
    expected = {path: content.decode() for path, content in picture(filled.folder).items()} | changes
    assert filled.do(*command) == answer
    filled.follow()
    there = {path: content.decode() for path, content in picture(filled.folder).items()}
    assert there == {path: content for path, content in expected.items() if content != "gone"}


VIEW_MISSING = "The path {} does not exist. Please provide a valid path."
ERROR_MISSING = "Error: The path {} does not exist"
REFUSALS: list[tuple[tuple[Any, ...], type[Rejection], str]] = [
    (("view", "/memories/none.txt"), NotFound, VIEW_MISSING.format("/memories/none.txt")),
    (("view", "/memories/none/none.txt"), NotFound, VIEW_MISSING.format("/memories/none/none.txt")),
    (("view", "/memories/notes.txt/none"), NotFound, VIEW_MISSING.format("/memories/notes.txt/none")),
    (("create", "/memories/notes.txt", "x"), Conflict, "Error: File /memories/notes.txt already exists"),
    (("create", "/memories/plans", "x"), Conflict, "Error: File /memories/plans already exists"),
    (("create", "/memories/plans/", "x"), Conflict, "Error: File /memories/plans/ already exists"),
    (("create", "/memories", "x"), Conflict, "Error: File /memories already exists"),
    (
        ("create", "/memories/notes.txt/x/y", "x"),
        Conflict,
        "Error: /memories/notes.txt is a file; nothing can be below it",
    ),
    (
        ("create", "/memories/new/", "x"),
        InvalidRequest,
        "Error: Path /memories/new/ names a directory; a file's path has no slash at its end.",
    ),
    (
        ("str_replace", "/memories/none.txt", "a", "b"),
        NotFound,
        f"Error: {VIEW_MISSING.format('/memories/none.txt')}",
    ),
    (("str_replace", "/memories/plans", "a", "b"), NotFound, f"Error: {VIEW_MISSING.format('/memories/plans')}"),
    (("str_replace", "/memories", "a", "b"), NotFound, f"Error: {VIEW_MISSING.format('/memories')}"),
    (
        ("str_replace", "/memories/notes.txt", "Bye", "b"),
        Conflict,
        "No replacement was performed, old_str `Bye` did not appear verbatim in /memories/notes.txt.",
    ),
    (
        ("str_replace", "/memories/notes.txt", "", "b"),
        Conflict,
        "No replacement was performed, old_str `` did not appear verbatim in /memories/notes.txt.",
    ),
    (
        ("str_replace", "/memories/twice.txt", "Hello", "b"),
        Conflict,
        "No replacement was performed. Multiple occurrences of old_str `Hello` in lines: 1, 3. "
        "Please ensure it is unique",
    ),
    (("insert", "/memories/none.txt", 0, "x"), NotFound, ERROR_MISSING.format("/memories/none.txt")),
    (("insert", "/memories/plans", 0, "x"), NotFound, ERROR_MISSING.format("/memories/plans")),
    *(
        (
            ("insert", "/memories/notes.txt", line, "x"),
            InvalidRequest,
            f"Error: Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: "
            "[0, 2]",
        )
        for line in (-1, 3)
    ),
    (("delete", "/memories/none.txt"), NotFound, ERROR_MISSING.format("/memories/none.txt")),
    (("delete", "/memories"), InvalidRequest, "Error: Cannot delete the /memories directory itself"),
    (("delete", "/memories/"), InvalidRequest, "Error: Cannot delete the /memories directory itself"),
    (("rename", "/memories/none.txt", "/memories/x"), NotFound, ERROR_MISSING.format("/memories/none.txt")),
    (
        ("rename", "/memories/notes.txt", "/memories/twice.txt"),
        Conflict,
        "Error: The destination /memories/twice.txt already exists",
    ),
    (
        ("rename", "/memories/notes.txt", "/memories/plans"),
        Conflict,
        "Error: The destination /memories/plans already exists",
    ),
    (("rename", "/memories/plans", "/memories"), Conflict, "Error: The destination /memories already exists"),
    (
        ("rename", "/memories/notes.txt", "/memories/notes.txt"),
        Conflict,
        "Error: The destination /memories/notes.txt already exists",
    ),
    (("rename", "/memories", "/memories/x"), InvalidRequest, "Error: Cannot rename the /memories directory itself"),
    (
        ("rename", "/memories/plans", "/memories/plans/x"),
        InvalidRequest,
        "Error: /memories/plans cannot be moved into itself",
    ),
    (
        ("rename", "/memories/plans", "/memories/twice.txt/x"),
        Conflict,
        "Error: /memories/twice.txt is a file; nothing can be below it",
    ),
    (
        ("rename", "/memories/plans", "/memories/2/3/4/5/6/7/8/9"),
        InvalidRequest,
        "Error: Path /memories/2/3/4/5/6/7/8/9 is not allowed: more than 8 names would lead below it.",
    ),
]


@pytest.mark.parametrize(("command", "error", "text"), REFUSALS, ids=lambda value: str(value)[:60])
def test_a_command_is_refused_as_documented_and_changes_nothing(
    filled: Desk, command: tuple[Any, ...], error: type[Rejection], text: str
) -> None:
    before = outside(filled.swarm.folder)
    assert filled.refusal(*command) == (error, text)
    assert outside(filled.swarm.folder) == before
    assert filled.touched == []


@pytest.mark.parametrize("given", [[0, 1], [3, 3], [2, 1], [1], [1, 2, 3], [], [-1, -1], [1, -2]], ids=str)
def test_a_range_that_the_file_has_not_is_refused(filled: Desk, given: list[int]) -> None:
    error, text = filled.refusal("view", "/memories/notes.txt", given)
    assert error is InvalidRequest
    assert text.startswith(f"Error: Invalid `view_range` parameter: {given}. ")
    assert "[1, 2]" in text


# --- directories ---


@pytest.mark.parametrize("path", ["/memories", "/memories/"])
def test_a_worker_without_notes_has_an_empty_directory(desk: Desk, path: str) -> None:
    assert desk.do("view", path) == LISTING.format("/memories") + "0B\t/memories"
    assert not desk.swarm.folder.exists()


def test_a_directory_is_listed_two_levels_deep_with_sizes(desk: Desk) -> None:
    for name in (
        ".hidden",
        "node_modules/x.js",
        "a/b/c.md",
        "a/b.md",
        "a/.git/x",
        "b.md",
        "empty.md",
        "x/node_modules/y",
    ):
        person_writes(desk.folder / name, "" if name == "empty.md" else "x" * 1_536)
    os.symlink("b.md", desk.folder / "link.md")
    os.mkfifo(desk.folder / "pipe.md")
    person_writes(desk.folder / "two\nlines", "x")
    own = {name: size_text((desk.folder / name).stat().st_size) for name in ("", "a", "a/b", "x")}
    assert desk.do("view", "/memories") == LISTING.format("/memories") + "\n".join(
        [
            f"{own['']}\t/memories",
            f"{own['a']}\t/memories/a/",
            f"{own['a/b']}\t/memories/a/b/",
            "1.5K\t/memories/a/b.md",
            "1.5K\t/memories/b.md",
            "0B\t/memories/empty.md",
            "1B\t/memories/two\ufffdlines",
            f"{own['x']}\t/memories/x/",
        ]
    )
    assert desk.do("view", "/memories/a/") == LISTING.format("/memories/a") + "\n".join(
        [
            f"{own['a']}\t/memories/a",
            f"{own['a/b']}\t/memories/a/b/",
            "1.5K\t/memories/a/b/c.md",
            "1.5K\t/memories/a/b.md",
        ]
    )


def test_a_listing_ends_after_a_thousand_entries_and_says_so(desk: Desk) -> None:
    for number in range(1_001):
        person_writes(desk.folder / "many" / f"{number:04}.md", "")
    lines = desk.do("view", "/memories/many").splitlines()
    assert (lines[2], lines[1001]) == ("0B\t/memories/many/0000.md", "0B\t/memories/many/0999.md")
    assert lines[1002:] == ["[There are more than 1,000 entries. View a directory below to see its own.]"]
    (desk.folder / "many" / "0000.md").unlink()
    assert len(desk.do("view", "/memories/many").splitlines()) == 1_002


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0B"), (1_023, "1023B"), (1_024, "1.0K"), (5_632, "5.5K"), (1_048_575, "1.0M"), (1_258_291, "1.2M")],
)
def test_a_size_is_for_people(size: int, text: str) -> None:
    assert size_text(size) == text
    assert size_text(size * 1024**4).endswith("T") or size < 1024


# --- what files hold ---


def test_an_empty_file_has_one_line_to_see_and_none_to_insert_behind(desk: Desk) -> None:
    desk.do("create", "/memories/a", "")
    for view_range in (None, [1, -1], [1, 5]):
        assert desk.do("view", "/memories/a", view_range) == CONTENT.format("/memories/a") + "     1\t"
    assert desk.refusal("insert", "/memories/a", 1, "x")[1].endswith("[0, 0]")
    desk.do("insert", "/memories/a", 0, "x")
    assert (desk.folder / "a").read_text() == "x\n"


def test_line_numbers_are_six_characters_wide(desk: Desk) -> None:
    desk.do("create", "/memories/a", "x\n" * 123_456)
    assert desk.do("view", "/memories/a", [9, 10]).splitlines()[1:] == ["     9\tx", "    10\tx"]
    assert desk.do("view", "/memories/a", [123_456, -1]).splitlines()[1:] == ["123456\tx"]


def test_a_file_of_a_million_lines_is_not_shown(desk: Desk) -> None:
    person_writes(desk.folder / "a", "\n" * 999_999)
    assert desk.do("view", "/memories/a", [999_999, 999_999]).endswith("\n999999\t")
    person_writes(desk.folder / "a", "\n" * 1_000_000)
    text = "File /memories/a exceeds maximum line limit of 999,999 lines."
    assert desk.refusal("view", "/memories/a") == (TooLarge, text)


def test_a_long_file_is_cut_at_a_line_and_the_answer_says_so(desk: Desk) -> None:
    desk.do("create", "/memories/a", "".join(f"{number:>92}\n" for number in range(1_000)))
    shown = desk.do("view", "/memories/a")
    *lines, note = shown.splitlines()
    assert len("\n".join(lines)) <= VIEW_CHARS_MAX < len("\n".join(lines)) + 100
    assert lines[-1] == f"{len(lines) - 1:6}\t{len(lines) - 2:>92}"
    assert note == f"[Lines 1 to {len(lines) - 1} of 1000 are shown. Use view_range to see the others.]"
    assert len(desk.do("view", "/memories/a", [1, -1]).splitlines()) == 1_001
    desk.do("create", "/memories/b", "x" * 20_000 + "\nend")
    assert desk.do("view", "/memories/b").endswith(
        "x\n[The beginning of line 1 of 2 is shown. Use view_range to see the others.]"
    )
    assert len(desk.do("view", "/memories/b", [1, 1])) > 20_000


def test_an_edit_leaves_what_is_no_utf_8_and_every_line_end_as_they_are(desk: Desk) -> None:
    person_writes(desk.folder / "a", b"\xff\xfe old\r\n\xed\xa0\x80 caf\xc3\xa9\r\nend")
    assert desk.do("view", "/memories/a").startswith(CONTENT.format("/memories/a") + "     1\t\ufffd\ufffd old\r\n")
    desk.do("str_replace", "/memories/a", "é", "è")
    desk.do("insert", "/memories/a", 3, "more")
    desk.do("insert", "/memories/a", 1, "new")
    assert (desk.folder / "a").read_bytes() == (b"\xff\xfe old\r\nnew\r\n\xed\xa0\x80 caf\xc3\xa8\r\nend\r\nmore\r\n")


def test_lone_surrogates_never_reach_a_file_or_an_answer(desk: Desk) -> None:
    desk.do("create", "/memories/a", "x\udc80y\ud800")
    assert (desk.folder / "a").read_bytes() == b"x?y?"
    person_writes(desk.folder / "a", b"x\x80\n")
    assert desk.refusal("str_replace", "/memories/a", "\udc80", "")[0] is Conflict
    for path in ("/memories/\udc80", "/memories/\ud800/x", "/\ud800"):
        assert desk.refusal("view", path)[1].encode()


def test_a_text_that_overlaps_itself_is_not_unique(desk: Desk) -> None:
    desk.do("create", "/memories/a", "aaa\nb")
    assert "in lines: 1, 1. " in desk.refusal("str_replace", "/memories/a", "aa", "x")[1]
    desk.do("create", "/memories/b", "x\n" * 101)
    lines = ", ".join(map(str, range(1, 101)))
    assert f" in lines: {lines}, and more. " in desk.refusal("str_replace", "/memories/b", "x", "y")[1]


def test_a_snippet_has_two_lines_around_the_change(desk: Desk) -> None:
    desk.do("create", "/memories/a", "1\n2\n3\n4\n5\n6\n7\n8\n")
    shown = desk.do("str_replace", "/memories/a", "4", "x\ny")
    assert shown == EDITED + "     2\t2\n     3\t3\n     4\tx\n     5\ty\n     6\t5\n     7\t6"
    desk.do("str_replace", "/memories/a", "8\n", "z" * 20_000)
    assert desk.do("str_replace", "/memories/a", "7", "8").endswith("zzz\n[The snippet is cut here.]")


def test_a_replacement_by_the_same_changes_nothing(filled: Desk) -> None:
    before = outside(filled.folder)
    assert filled.do("str_replace", "/memories/notes.txt", "World", "World").startswith(EDITED)
    assert outside(filled.folder) == before


def test_a_file_keeps_its_mode(filled: Desk) -> None:
    (filled.folder / "notes.txt").chmod(0o640)
    filled.do("str_replace", "/memories/notes.txt", "World", "you")
    assert (filled.folder / "notes.txt").stat().st_mode & 0o777 == 0o640


def test_a_file_does_not_grow_beyond_its_bound(desk: Desk) -> None:
    full = "x" * (FILE_BYTES_MAX - 1) + "\n"
    assert desk.refusal("create", "/memories/a", f"{full}x")[0] is TooLarge
    assert not desk.swarm.folder.exists()
    desk.do("create", "/memories/a", full)
    before = outside(desk.folder)
    assert desk.refusal("insert", "/memories/a", 1, "x")[0] is TooLarge
    assert desk.refusal("str_replace", "/memories/a", "x\n", "xx\n")[0] is TooLarge
    assert outside(desk.folder) == before
    person_writes(desk.folder / "b", f"{full}x")
    assert desk.refusal("view", "/memories/b")[0] is TooLarge


# --- what changed is told ---


def test_each_change_is_told(filled: Desk) -> None:
    top, plans = layout.notes(WORKER), layout.notes(WORKER, "plans")
    filled.do("create", "/memories/plans/new.md", "x")
    filled.do("insert", "/memories/notes.txt", 0, "x")
    filled.do("rename", "/memories/plans", "/memories/done")
    filled.do("delete", "/memories/done")
    moved = sorted(itertools.product((plans, layout.notes(WORKER, "done")), ("new.md", "today.md")))
    assert filled.touched[:2] == [(plans, "new.md"), (top, "notes.txt")]
    assert sorted(filled.touched[2:6]) == sorted(moved)
    assert sorted(filled.touched[6:]) == [(layout.notes(WORKER, "done"), name) for name in ("new.md", "today.md")]


# --- hostile names ---

HOSTILE_PATHS = [
    "",
    "/",
    "memories/a",
    "/memoriesa",
    "/memories2/a",
    "/memories/..",
    "/memories/../secret",
    "/memories/../../MEMORY.md",
    "/memories/a/../../../secret",
    "/memories/./a",
    "/memories/.",
    "/memories/a/..",
    "/etc/passwd",
    "//memories/a",
    "/memories//a",
    "/memories//",
    "/memories/a//",
    "/memories/a//b",
    "/memories/a\0b",
    "/memories/a\nb",
    "/memories/a\x7f",
    "/memories\\..\\a",
    "/memories/..\\a",
    "/memories/%2e%2e/a",
    "/memories/%2E%2E%2Fa",
    "/memories/a%2fb",
    "/memories/a%5cb",
    "/memories/a%00",
    "/memories/\ud800",
    "/memories/\udcff",
    "/memories/" + "x" * 256,
    "/memories/" + "é" * 128,
    "/memories/.solos-1-1-w-a",
    "/memories/a/.solos-x/b",
    "/memories/" + "/".join("123456789"),
    "/memories/" + "x/" * 5_000,
    "/Memories/a",
    " /memories/a",
]


@pytest.mark.parametrize("path", HOSTILE_PATHS, ids=lambda path: ascii(path)[:40])
def test_nothing_outside_of_the_notes_can_be_named(filled: Desk, path: str) -> None:
    person_writes(filled.swarm.worker / "MEMORY.md", "secret")
    before = outside(filled.swarm.folder.parent)
    for command in (
        ("view", path),
        ("create", path, "x"),
        ("str_replace", path, "secret", "x"),
        ("insert", path, 0, "x"),
        ("delete", path),
        ("rename", path, "/memories/x"),
        ("rename", "/memories/notes.txt", path),
    ):
        error, text = filled.refusal(*command)
        assert error is InvalidRequest
        assert text.startswith("Error: Path ")
        assert len(text) < 300
        assert text.isprintable()
    assert outside(filled.swarm.folder.parent) == before


@pytest.mark.parametrize("worker", ["", "..", "a/b", "../swarm5", "swarm5/..", "\0"])
def test_no_notes_of_what_is_no_worker(filled: Desk, worker: str) -> None:
    page = "/memories/notes.txt"
    for command, *given in (("view", page), ("create", page, "x"), ("delete", page), ("rename", page, f"{page}2")):
        with pytest.raises(InvalidRequest, match="workerId"):
            getattr(filled.notes, command)(worker, *given)


def test_a_name_that_we_could_not_edit_is_not_given(filled: Desk) -> None:
    long = "/memories/" + "é" * 90
    filled.do("create", long, "x")
    filled.do("str_replace", long, "x", "y")
    for command in (("create", f"{long}x", ""), ("rename", long, f"{long}x"), ("create", f"{long}x/y", "")):
        assert filled.refusal(*command)[0] is InvalidRequest
    person_writes(filled.folder / ("x" * 255), "a person's")
    assert filled.do("view", "/memories/" + "x" * 255).endswith("     1\ta person's")
    filled.do("rename", "/memories/" + "x" * 255, "/memories/short")


def test_harmless_names_are_allowed(desk: Desk) -> None:
    for path in (
        "/memories/100%",
        "/memories/%25",
        "/memories/.env",
        "/memories/...",
        "/memories/日本 語/ñ.md",
        "/memories/~",
    ):
        desk.do("create", path, "x")
        assert desk.do("view", path).endswith("\tx")
    assert note_path("/memories/a/b/").parts == ("a", "b")


# --- links in the tree ---


@pytest.mark.parametrize("kind", ["file", "folder", "dangling", "hard", "pipe"])
def test_a_link_is_neither_followed_nor_edited_nor_moved(filled: Desk, kind: str) -> None:
    elsewhere = filled.swarm.folder.parent / "elsewhere"
    person_writes(elsewhere / "secret.md", "secret")
    link = filled.folder / "link"
    if kind == "hard":
        os.link(elsewhere / "secret.md", link)
    elif kind == "pipe":
        os.mkfifo(link)
    else:
        link.symlink_to({"file": elsewhere / "secret.md", "folder": elsewhere, "dangling": elsewhere / "new"}[kind])
    before = outside(filled.swarm.folder.parent)
    for command in (
        ("view", "/memories/link"),
        ("str_replace", "/memories/link", "secret", "x"),
        ("insert", "/memories/link", 0, "x"),
        ("rename", "/memories/link", "/memories/x"),
    ):
        with pytest.raises(Forbidden) as caught:
            filled.do(*command)
        assert "secret" not in caught.value.detail
    assert filled.refusal("create", "/memories/link", "x")[0] is Conflict
    assert filled.refusal("rename", "/memories/notes.txt", "/memories/link")[0] is Conflict
    for command in (
        ("view", "/memories/link/secret.md"),
        ("create", "/memories/link/x", "x"),
        ("delete", "/memories/link/secret.md"),
        ("rename", "/memories/link/secret.md", "/memories/x"),
        ("rename", "/memories/notes.txt", "/memories/link/x"),
    ):
        with pytest.raises((Forbidden, NotFound, Conflict)):
            filled.do(*command)
    assert outside(filled.swarm.folder.parent) == before
    filled.do("delete", "/memories/link")
    assert not os.path.lexists(link)
    assert (elsewhere / "secret.md").read_text() == "secret"


def test_a_directory_goes_without_what_its_links_point_at(filled: Desk) -> None:
    elsewhere = filled.swarm.folder.parent / "elsewhere"
    person_writes(elsewhere / "secret.md", "secret")
    os.symlink(elsewhere, filled.folder / "plans" / "folder")
    os.symlink(elsewhere / "secret.md", filled.folder / "plans" / "file")
    os.link(elsewhere / "secret.md", filled.folder / "plans" / "hard")
    os.mkfifo(filled.folder / "plans" / "pipe")
    person_writes(filled.folder / "plans" / "a" / "b" / ".solos-1-1-w-x", "of a dead process")
    assert filled.do("delete", "/memories/plans") == "Successfully deleted /memories/plans"
    assert not (filled.folder / "plans").exists()
    assert picture(elsewhere) == {"secret.md": b"secret"}


@pytest.mark.parametrize("at", ["swarm5", "swarm5/memory", "swarm5/memory/notes"])
def test_notes_behind_a_link_are_not_there(swarm: Swarm, at: str) -> None:
    elsewhere = swarm.folder.parent / "elsewhere"
    for below in ("memory/notes", "notes", "."):
        person_writes(elsewhere / below / "a.md", "secret")
    link = swarm.roots.profiles / at
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    desk, before = Desk(swarm), outside(elsewhere)
    commands = [
        ("view", "/memories"),
        ("view", "/memories/a.md"),
        ("create", "/memories/x", ""),
        ("delete", "/memories/a.md"),
    ]
    for command in commands:
        with pytest.raises(Forbidden):
            desk.do(*command)
    assert outside(elsewhere) == before


def test_a_folder_nested_deeper_than_we_go_stays(filled: Desk) -> None:
    deep = filled.folder / "deep" / "/".join("x" * 70)
    deep.mkdir(parents=True)
    before = outside(filled.folder)
    assert filled.refusal("delete", "/memories/deep")[0] is TooLarge
    assert filled.refusal("rename", "/memories/deep", "/memories/other")[0] is TooLarge
    assert outside(filled.folder) == before


# --- editors ---


def test_what_an_editor_saves_into_a_replaced_file_is_kept_beside_it(filled: Desk) -> None:
    page = filled.folder / "notes.txt"
    with page.open("r+") as editor:
        filled.do("str_replace", "/memories/notes.txt", "World", "you")
        editor.seek(0, os.SEEK_END)
        editor.write("late\n")
    filled.follow()
    assert page.read_text() == "Hello you\nThis is line two\n"
    (kept,) = conflicts(filled.folder)
    assert kept.read_text() == "Hello World\nThis is line two\nlate\n"
    assert f"/memories/{kept.name}" in filled.do("view", "/memories")
    assert leftovers(filled.swarm.folder) == []


def saving(folder: Path, times: int, real: Any) -> Callable[..., Any]:
    """Reading as an editor lets it be that saves the file right after it was read, so many times."""
    left = iter(range(times))

    def read(handle: Any, at: Any, missing: Any) -> Any:
        seen = real(handle, at, missing)
        if (number := next(left, None)) is not None:
            saved = folder / "saved.tmp"
            saved.write_bytes(seen.content + b"saved %d\n" % number)
            saved.rename(folder / at.name)
        return seen

    return read


def test_an_edit_is_made_anew_where_an_editor_saves_in_between(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "_read", saving(filled.folder, 3, notes_module._read))
    filled.do("insert", "/memories/notes.txt", 0, "first")
    filled.follow()
    expected = "first\nHello World\nThis is line two\nsaved 0\nsaved 1\nsaved 2\n"
    assert (filled.folder / "notes.txt").read_text() == expected
    assert conflicts(filled.folder) == []
    assert leftovers(filled.folder) == []


def test_an_edit_gives_way_to_an_editor_that_never_stops(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notes_module, "_read", saving(filled.folder, 99, notes_module._read))
    error, text = filled.refusal("insert", "/memories/notes.txt", 0, "first")
    assert (error, text) == (
        Conflict,
        "Error: /memories/notes.txt is being written by somebody else; nothing was changed.",
    )
    assert "first" not in (filled.folder / "notes.txt").read_text()
    assert leftovers(filled.folder) == []


def test_a_file_that_goes_between_two_tries_is_not_there(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    real = notes_module._read

    def read(handle: Any, at: Any, missing: Any) -> Any:
        seen = real(handle, at, missing)
        (filled.folder / at.name).unlink()
        return seen

    monkeypatch.setattr(notes_module, "_read", read)
    assert filled.refusal("insert", "/memories/notes.txt", 0, "x")[0] is NotFound


def test_a_directory_into_which_somebody_writes_while_it_is_deleted_goes_as_well(
    filled: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, late = os.rmdir, iter([b"late", b"later"])

    def rmdir(name: str, *, dir_fd: int) -> None:
        if (content := next(late, None)) is not None:
            person_writes(filled.folder / "plans" / "late.md", content)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", rmdir)
    filled.do("delete", "/memories/plans")
    assert not (filled.folder / "plans").exists()


def test_views_go_on_while_notes_are_written(desk: Desk) -> None:
    desk.do("create", "/memories/a", "0" * 4_000 + "\n")
    seen: list[str] = []
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.append(desk.do("view", "/memories/a"))
            desk.do("view", "/memories")

    reader = threading.Thread(target=look)
    reader.start()
    for number in range(40):
        desk.do("str_replace", "/memories/a", str(number) * 4_000, str(number + 1) * 4_000)
        desk.swarm.ticks.now_s += 1.0
        desk.watch.follow()
    done.set()
    reader.join(10)
    allowed = {CONTENT.format("/memories/a") + "     1\t" + str(number) * 4_000 for number in range(41)}
    assert set(seen) <= allowed
    assert seen


# --- faults ---

WRITES: dict[str, tuple[Any, ...]] = {
    "create": ("create", "/memories/new/deep.md", "text"),
    "str_replace": ("str_replace", "/memories/notes.txt", "World", "you"),
    "insert": ("insert", "/memories/notes.txt", 1, "text"),
    "delete": ("delete", "/memories/twice.txt"),
    "rename": ("rename", "/memories/notes.txt", "/memories/new/name.md"),
    "move a directory": ("rename", "/memories/plans", "/memories/new/plans"),
}
OPERATIONS: dict[str, tuple[Any, str]] = {
    "open": (os, "open"),
    "write": (os, "write"),
    "fsync": (os, "fsync"),
    "mkdir": (os, "mkdir"),
    "unlink": (os, "unlink"),
    "replace": (folders, "rename"),
    "move": (trees, "_rename"),
}


def fail(monkeypatch: pytest.MonkeyPatch, operation: str, code: int, at: int | None) -> list[int]:
    """Let one call of an operation fail; the list counts the calls."""
    where, name = OPERATIONS[operation]
    real, calls = getattr(where, name), [0]

    def called(*arguments: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] - 1 == at:
            raise OSError(code, "injected")
        return real(*arguments, **named)

    monkeypatch.setattr(where, name, called)
    return calls


def prepared(folder: Path, clock: Clock) -> Desk:
    """Notes to write to."""
    desk = Desk(Swarm(folder, clock))
    person_writes(desk.folder / "notes.txt", "Hello World\n")
    person_writes(desk.folder / "twice.txt", "x\n")
    person_writes(desk.folder / "plans" / "today.md", "x\n")
    return desk


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_is_whole_or_was_not_made(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, kind: str, operation: str
) -> None:
    whole = prepared(tmp_path / "whole", clock)
    before = picture(whole.folder)
    with monkeypatch.context() as patched:
        calls = fail(patched, operation, errno.EIO, None)
        whole.do(*WRITES[kind])
    whole.follow()
    expected = picture(whole.folder)
    assert calls[0] or operation not in ("open", "fsync")
    for at, code in itertools.product(range(calls[0]), (errno.ENOSPC, errno.EIO)):
        desk = prepared(tmp_path / f"{at}-{code}", clock)
        refused: Rejection | None = None
        with monkeypatch.context() as patched:
            fail(patched, operation, code, at)
            try:
                desk.do(*WRITES[kind])
            except Rejection as rejection:
                refused = rejection
        if kind == "delete" and operation in ("unlink", "fsync"):
            assert isinstance(refused, FileFailed)
            assert "not deleted whole" in refused.detail
            assert picture(desk.folder) in (before, expected)
        elif refused is not None:
            assert type(refused) is (StorageFull if code == errno.ENOSPC else FileFailed)
            assert picture(desk.folder) == before, (at, code)
            desk.do(*WRITES[kind])
        desk.follow()
        assert leftovers(desk.swarm.folder) == []
        assert picture(desk.folder) in ((before, expected) if kind == "delete" else (expected,)), (at, code)


@pytest.mark.parametrize("command", [WRITES["delete"], WRITES["rename"]], ids=["delete", "rename"])
def test_a_change_of_entries_is_durable_before_it_is_answered(
    filled: Desk, monkeypatch: pytest.MonkeyPatch, command: tuple[Any, ...]
) -> None:
    synced: list[int] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        real(fd)
        synced.append(os.fstat(fd).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    filled.do(*command)
    changed = [filled.folder / "new", filled.folder] if command[0] == "rename" else [filled.folder]
    assert synced[-len(changed) :] == [folder.stat().st_ino for folder in changed]


def test_a_directory_that_cannot_be_deleted_whole_says_so(filled: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    person_writes(filled.folder / "plans" / "a.md", "x")
    with monkeypatch.context() as patched:
        fail(patched, "unlink", errno.EACCES, 1)
        error, text = filled.refusal("delete", "/memories/plans")
    assert error is FileFailed
    assert text == "Error: /memories/plans was not deleted whole (Permission denied). View what is left of it."
    assert len(list((filled.folder / "plans").iterdir())) == 1
    assert {name for _, name in filled.touched} == {"a.md", "today.md"}
    assert filled.do("delete", "/memories/plans") == "Successfully deleted /memories/plans"


def test_where_the_system_cannot_rename_without_replacing_nothing_is_replaced_either(
    filled: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_renameat2", None)
    assert filled.refusal("rename", "/memories/notes.txt", "/memories/twice.txt")[0] is Conflict
    person_writes(filled.folder / "full" / "x", "x")
    assert filled.refusal("rename", "/memories/plans", "/memories/full")[0] is Conflict
    filled.do("rename", "/memories/notes.txt", "/memories/a/b")
    filled.do("rename", "/memories/plans", "/memories/a/plans")
    assert picture(filled.folder / "a") == {"b": b"Hello World\nThis is line two\n", "plans/today.md": b"- rest\n"}
    assert filled.do("view", "/memories/a/b").endswith("2\tThis is line two")


def test_every_folder_that_a_path_can_name_is_there_for_who_sweeps(filled: Desk) -> None:
    person_writes(filled.folder / "/".join("12345678") / "unnamed.md", "x")
    os.symlink(filled.folder / "plans", filled.folder / "link")
    places = folders_below(filled.swarm.roots, layout.notes(WORKER), DEPTH_MAX)
    deep = [layout.notes(WORKER, *"12345678"[:depth]) for depth in range(9)]
    assert sorted(places) == sorted([*deep, layout.notes(WORKER, "plans")])
    assert folders_below(filled.swarm.roots, layout.notes("nobody"), DEPTH_MAX) == [layout.notes("nobody")]


# --- an editor that saves what it had read before an edit ---


def test_an_edit_that_an_editor_s_save_undoes_is_kept_beside(filled: Desk) -> None:
    filled.do("insert", "/memories/notes.txt", 0, "Inserted")
    filled.do("insert", "/memories/notes.txt", 0, "And again")
    person_writes(filled.folder / "notes.txt", "Hello World\nThis is line two\nA person's line\n")
    filled.follow()
    (kept,) = conflicts(filled.folder)
    assert kept.read_text() == "And again\nInserted\nHello World\nThis is line two\n"
    assert (filled.folder / "notes.txt").read_text() == "Hello World\nThis is line two\nA person's line\n"


def test_an_edit_that_was_undone_before_the_next_one_is_kept_beside(filled: Desk) -> None:
    filled.do("insert", "/memories/notes.txt", 0, "First")
    person_writes(filled.folder / "notes.txt", "A person's line\n")
    filled.do("insert", "/memories/notes.txt", 0, "Second")
    filled.follow()
    (kept,) = conflicts(filled.folder)
    assert kept.read_text() == "First\nHello World\nThis is line two\n"
    assert (filled.folder / "notes.txt").read_text() == "Second\nA person's line\n"


def test_a_save_that_holds_the_edit_leaves_nothing_beside(filled: Desk) -> None:
    filled.do("str_replace", "/memories/notes.txt", "World", "moon")
    person_writes(filled.folder / "notes.txt", "Hello moon\nand more\n")
    filled.do("create", "/memories/new.md", "new\n")
    person_writes(filled.folder / "new.md", "new\nand more\n")
    filled.do("insert", "/memories/twice.txt", 0, "first")
    filled.do("delete", "/memories/twice.txt")
    filled.follow()
    assert conflicts(filled.folder) == []
