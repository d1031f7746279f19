"""Our text in a page that a person edits at the same moment: no edit is lost, and no temporary file stays."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.swarm import projecting
from storage.swarm.folders import FolderHandle, open_folder
from storage.swarm.layout import Folder, Roots
from storage.swarm.projecting import CUT_QUIET_S, QUIET_S, Busy, Displaced, look_again, project
from storage.swarm.watching import Watch
from tests.storage.swarm.files import conflicts, leftovers, long_ago, person_writes, picture

OURS = "ours\n"


def merge(page: str | None) -> str:
    """Our line behind a person's text."""
    theirs = (page or "").removesuffix(OURS)
    return theirs + OURS


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root."""
    return tmp_path


@pytest.fixture
def folder(root: Path) -> Iterator[FolderHandle]:
    """A handle of it."""
    opened = open_folder(root, ())
    assert opened is not None
    with opened:
        yield opened


@pytest.fixture
def page(root: Path) -> Path:
    """A page that a person wrote a while ago."""
    person_writes(root / "p.md", "theirs\n")
    return root / "p.md"


def projected(folder: FolderHandle) -> list[Displaced]:
    """What came out of the page's place."""
    displaced: list[Displaced] = []
    project(folder, "p.md", merge, ours=None, displaced=displaced)
    return displaced


def looked_at(folder: FolderHandle, displaced: list[Displaced]) -> None:
    """Look again at all that came out, until nothing more does."""
    while displaced:
        long_ago(Path(f"/proc/self/fd/{folder.fd}") / displaced[0].temporary)
        look_again(folder, displaced.pop(0), merge, displaced)


def test_a_page_that_is_missing_is_made(folder: FolderHandle, root: Path) -> None:
    assert projected(folder) == []
    assert picture(root) == {"p.md": b"ours\n"}


def test_our_text_is_put_into_a_page_and_nothing_stays(folder: FolderHandle, root: Path, page: Path) -> None:
    looked_at(folder, projected(folder))
    assert picture(root) == {"p.md": b"theirs\nours\n"}
    long_ago(page)
    inode = page.stat().st_ino
    assert projected(folder) == [], "a page that shows all is left alone"
    assert page.stat().st_ino == inode


def test_a_page_that_is_being_written_is_left_alone(folder: FolderHandle, page: Path) -> None:
    page.write_text("half")
    with pytest.raises(Busy):
        projected(folder)
    assert page.read_text() == "half"


@pytest.mark.parametrize("cut", ["", "# Mission\n\n<!-- solos:begin state -->\n- Status: pl"])
def test_a_page_that_its_editor_has_emptied_or_cut_short_is_left_alone_for_longer(
    folder: FolderHandle, root: Path, page: Path, cut: str
) -> None:
    """He may be held up in the middle of saving: what is put there now would be under what he still writes."""
    page.write_text(cut)
    soon_ago_s = time.time() - (QUIET_S + CUT_QUIET_S) / 2
    os.utime(page, (soon_ago_s, soon_ago_s))
    with pytest.raises(Busy):
        projected(folder)
    assert page.read_text() == cut
    long_ago(page)
    looked_at(folder, projected(folder))
    assert page.read_text() == cut + OURS


def test_a_page_of_ours_needs_no_waiting(folder: FolderHandle, root: Path) -> None:
    version = project(folder, "p.md", merge, ours=None, displaced=[])
    displaced: list[Displaced] = []
    project(folder, "p.md", lambda _: "ours, a moment later\n", ours=version, displaced=displaced)
    assert (root / "p.md").read_bytes() == b"ours, a moment later\n"
    assert [old.content for old in displaced] == [b"ours\n"]


def test_a_save_since_the_page_was_read_is_left_and_merged_later(folder: FolderHandle, root: Path, page: Path) -> None:
    def merges_slowly(text: str | None) -> str:
        person_writes(page, "theirs\nedited\n")
        return merge(text)

    displaced: list[Displaced] = []
    with pytest.raises(Busy):
        project(folder, "p.md", merges_slowly, ours=None, displaced=displaced)
    assert displaced == []
    assert picture(root) == {"p.md": b"theirs\nedited\n"}
    looked_at(folder, projected(folder))
    assert picture(root) == {"p.md": b"theirs\nedited\nours\n"}


def test_a_page_that_is_removed_meanwhile_is_made_later(folder: FolderHandle, root: Path, page: Path) -> None:
    def merges_slowly(text: str | None) -> str:
        page.unlink()
        return merge(text)

    with pytest.raises(Busy):
        project(folder, "p.md", merges_slowly, ours=None, displaced=[])
    assert picture(root) == {}
    assert projected(folder) == []
    assert picture(root) == {"p.md": b"ours\n"}


def test_what_is_written_late_into_the_old_page_is_merged(folder: FolderHandle, root: Path, page: Path) -> None:
    with page.open("r+b") as editor:
        displaced = projected(folder)
        editor.truncate()
        editor.write(b"late edit\n")
    looked_at(folder, displaced)
    assert picture(root) == {"p.md": b"late edit\nours\n"}


def test_what_is_written_late_beside_another_edit_is_kept(folder: FolderHandle, root: Path, page: Path) -> None:
    with page.open("r+b") as editor:
        displaced = projected(folder)
        editor.truncate()
        editor.write(b"late edit\n")
    person_writes(page, "other edit\n")
    looked_at(folder, displaced)
    assert page.read_text() == "other edit\n"
    assert [path.read_text() for path in conflicts(root)] == ["late edit\n"]
    assert not leftovers(root)


def test_what_is_written_late_is_merged_though_our_text_has_grown(folder: FolderHandle, root: Path, page: Path) -> None:
    with page.open("r+b") as editor:
        displaced = projected(folder)
        editor.truncate()
        editor.write(b"late edit\n")
    person_writes(page, "theirs\n")  # the same text of a person's, without ours
    looked_at(folder, displaced)
    assert picture(root) == {"p.md": b"late edit\nours\n"}


def test_an_editor_that_has_emptied_the_old_page_is_waited_for(folder: FolderHandle, root: Path, page: Path) -> None:
    with page.open("r+b") as editor:
        (old,) = projected(folder)
        editor.truncate()
        with pytest.raises(Busy):
            look_again(folder, old, merge, [])
        editor.write(b"late edit\n")
    looked_at(folder, [old])
    assert picture(root) == {"p.md": b"late edit\nours\n"}


def test_an_editor_that_is_writing_the_old_page_is_waited_for(
    folder: FolderHandle, root: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with page.open("r+b") as editor:
        (old,) = projected(folder)
        editor.truncate()
        editor.write(b"late ")
        editor.flush()
        with monkeypatch.context() as patched:
            patched.setattr(projecting, "QUIET_S", 600.0)
            with pytest.raises(Busy):
                look_again(folder, old, merge, [])
        assert page.read_text() == "theirs\nours\n"
        editor.write(b"edit\n")
    looked_at(folder, [old])
    assert picture(root) == {"p.md": b"late edit\nours\n"}


def test_what_is_written_all_the_time_is_kept_in_the_end(
    root: Path, page: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    roots = Roots(profiles=root, shared=root)
    watch = Watch(roots, lambda: now_s)
    place = Folder("shared", ())
    folder = open_folder(root, ())
    assert folder is not None
    with folder:
        (old,) = projected(folder)
    watch.add(place, [old], lambda _: merge)
    (root / old.temporary).write_text("late edit\n")
    monkeypatch.setattr(projecting, "QUIET_S", 600.0)
    looks = 0
    while watch:
        now_s += 1.0
        watch.follow()
        looks += 1
    assert looks == 20
    assert page.read_text() == "theirs\nours\n"
    assert [path.read_text() for path in conflicts(root)] == ["late edit\n"]
    assert leftovers(root) == []


def test_a_late_edit_of_a_page_that_is_gone_is_kept(folder: FolderHandle, root: Path, page: Path) -> None:
    (old,) = projected(folder)
    person_writes(root / old.temporary, "late edit\n")
    page.unlink()
    looked_at(folder, [old])
    assert [path.read_text() for path in conflicts(root)] == ["late edit\n"]
    assert len(picture(root)) == 1
