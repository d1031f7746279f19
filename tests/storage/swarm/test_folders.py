"""Files by handles of their folders: no link is followed, a page has the old content or the new one."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import FileFailed, Forbidden, TooLarge
from storage.swarm import folders, renames
from storage.swarm.folders import FolderHandle, open_folder
from storage.swarm.renames import Temporary, hash_of, temporary_name
from tests.storage.swarm.files import conflicts, leftovers, outside, picture

Save = Callable[[], object]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root."""
    (tmp_path / "root").mkdir()
    return tmp_path / "root"


@pytest.fixture
def folder(root: Path) -> Iterator[FolderHandle]:
    """A handle of its folder `a`."""
    opened = open_folder(root, ("a",), make=True)
    assert opened is not None
    with opened:
        yield opened


@pytest.fixture(params=["renameat2", "links"])
def any_folder(folder: FolderHandle, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FolderHandle:
    """A folder of a file system that knows renameat2(2), and of one that does not."""
    if request.param == "links":

        def unknown(*_: object) -> int:
            renames.ctypes.set_errno(errno.EINVAL)
            return -1

        monkeypatch.setattr(renames, "_renameat2", unknown)
    return folder


def test_a_folder_that_is_missing_is_none_unless_it_is_to_be_made(tmp_path: Path) -> None:
    root = tmp_path / "not" / "there"
    assert open_folder(root, ("a",)) is None
    assert not root.parent.exists()
    made = open_folder(root, ("a", "b"), make=True)
    assert made is not None
    with made:
        assert (root / "a" / "b").is_dir()
    assert open_folder(root, ("a", "c")) is None


def test_a_page_is_made_once_and_then_left(any_folder: FolderHandle, root: Path) -> None:
    assert any_folder.create("p.md", b"first") is not None
    assert any_folder.create("p.md", b"second") is None
    assert picture(root) == {"a/p.md": b"first"}


def test_a_page_is_exchanged_and_what_was_there_is_kept(any_folder: FolderHandle, root: Path) -> None:
    assert any_folder.exchange("p.md", b"new", None) is None
    (root / "a" / "p.md").write_bytes(b"old")
    placed = any_folder.exchange("p.md", b"new", any_folder.read("p.md"))
    assert placed is not None
    assert any_folder.version("p.md") == placed.version
    assert picture(root) == {"a/p.md": b"new", f"a/{placed.temporary}": b"old"}
    any_folder.keep(placed.temporary, "p.md")
    (kept,) = conflicts(root)
    assert kept.read_bytes() == b"old"
    assert kept.name.startswith("p.md.conflict-")
    assert not leftovers(root)


@pytest.mark.parametrize("save", [b"edit", b"another edit"])
def test_a_page_that_was_saved_since_it_was_read_is_left(
    any_folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch, save: bytes
) -> None:
    AtExchange(monkeypatch, before=lambda: pytest.fail("nobody may see ours, not for a moment"))
    page = root / "a" / "p.md"
    page.write_bytes(b"old!")
    seen = any_folder.read("p.md")
    page.write_bytes(save)
    assert any_folder.exchange("p.md", b"new", seen) is None
    assert picture(root) == {"a/p.md": save}
    page.unlink()
    assert any_folder.exchange("p.md", b"new", seen) is None
    assert picture(root) == {}


class AtExchange:
    """Lets an editor save just before pages change places, and just after."""

    def __init__(self, patch: pytest.MonkeyPatch, *, before: Save | None = None, after: Save | None = None) -> None:
        self._rename = folders.rename
        self._saves = [before or nothing, after or nothing]
        patch.setattr(folders, "rename", self._called)

    def _called(self, fd: int, source: str, target: str, how: int) -> None:
        if how != renames.EXCHANGE or not self._saves:
            self._rename(fd, source, target, how)
            return
        before, after = self._saves
        self._saves = []
        before()
        self._rename(fd, source, target, how)
        after()


def nothing() -> None:
    """No save."""


def saves(page: Path, content: bytes) -> Save:
    """An editor that saves by renaming."""

    def save() -> None:
        page.with_name("editor.tmp").write_bytes(content)
        page.with_name("editor.tmp").rename(page)

    return save


def test_a_save_in_the_very_moment_is_put_back(
    any_folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "a" / "p.md"
    page.write_bytes(b"old")
    AtExchange(monkeypatch, before=saves(page, b"edit"))
    assert any_folder.exchange("p.md", b"new", any_folder.read("p.md")) is None
    assert picture(root) == {"a/p.md": b"edit"}


def test_two_saves_that_exclude_each_other_are_both_kept(
    any_folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "a" / "p.md"
    page.write_bytes(b"old")
    AtExchange(monkeypatch, before=saves(page, b"first"), after=saves(page, b"second"))
    assert any_folder.exchange("p.md", b"new", any_folder.read("p.md")) is None
    assert page.read_bytes() == b"second"
    assert [path.read_bytes() for path in conflicts(root)] == [b"first"]
    assert not leftovers(root)


def test_a_save_whose_page_is_removed_at_once_is_kept(
    any_folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "a" / "p.md"
    page.write_bytes(b"old")
    AtExchange(monkeypatch, before=saves(page, b"edit"), after=page.unlink)
    assert any_folder.exchange("p.md", b"new", any_folder.read("p.md")) is None
    assert [path.read_bytes() for path in conflicts(root)] == [b"edit"]
    assert len(picture(root)) == 1


def test_conflicts_of_the_same_moment_do_not_replace_each_other(
    folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders.time, "time_ns", lambda: 1_780_000_000_000_000_000)
    for content in (b"one", b"two", b"three"):
        folder.append(".solos-1-1-w-p.md", content)
        folder.keep(".solos-1-1-w-p.md", "p.md")
    assert [path.read_bytes() for path in conflicts(root)] == [b"one", b"two", b"three"]
    assert conflicts(root)[0].name == "p.md.conflict-1780000000000"


def test_a_page_keeps_its_mode(folder: FolderHandle, root: Path) -> None:
    page = root / "a" / "p.md"
    page.write_bytes(b"old")
    page.chmod(0o600)
    assert folder.exchange("p.md", b"new", folder.read("p.md")) is not None
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_a_leftover_with_our_number_is_neither_overwritten_nor_removed(
    folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renames, "_numbers", iter([7, 8]))
    left = root / "a" / f".solos-{os.getpid()}-7-w-p.md"
    left.write_bytes(b"somebody's edit")
    assert folder.create("p.md", b"new") is not None
    assert picture(root) == {"a/p.md": b"new", f"a/{left.name}": b"somebody's edit"}


def test_names_leave_out_temporary_files_and_tell_them_by_their_names(folder: FolderHandle, root: Path) -> None:
    worthless = temporary_name("p.md")
    tagged = temporary_name("x-y.md", hash_of(b"new"), hash_of(b"old"))
    for name in (worthless, tagged, ".solos-mine", "p.md"):
        (root / "a" / name).touch()
    assert folder.names() == ["p.md"]
    found = {temporary.name: temporary for temporary in folder.temporaries()}
    assert set(found) == {worthless, tagged}
    assert found[worthless].page == "p.md"
    assert found[tagged].page == "x-y.md"
    assert found[worthless].may_hold(hash_of(b"whatever"))
    assert found[tagged].may_hold(hash_of(b"new"))
    assert found[tagged].may_hold(hash_of(b"old"))
    assert not found[tagged].may_hold(hash_of(b"edited"))
    assert Temporary.of("p.md") is None


def test_a_large_page_is_not_read(folder: FolderHandle, root: Path) -> None:
    (root / "a" / "p.md").write_bytes(b"12345")
    assert folder.read("p.md", 5) is not None
    with pytest.raises(TooLarge, match="larger than 4 bytes"):
        folder.read("p.md", 4)


def test_only_what_was_read_is_cut(folder: FolderHandle, root: Path) -> None:
    (root / "a" / "log").write_bytes(b"whole\ntorn")
    folder.cut("log", 6, 99)
    assert (root / "a" / "log").read_bytes() == b"whole\ntorn"
    folder.cut("log", 6, 10)
    assert (root / "a" / "log").read_bytes() == b"whole\n"


# --- what is no file or folder of ours ---

KINDS = ["link", "dangling", "hard link", "pipe", "folder", "loop"]


def plant(kind: str, path: Path, target: Path) -> None:
    """Put what is no file of ours at a path."""
    match kind:
        case "link":
            path.symlink_to(target)
        case "dangling":
            path.symlink_to(target.with_name("nothing"))
        case "hard link":
            os.link(target, path)
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path.name)


USES: dict[str, Callable[[FolderHandle], object]] = {
    "read": lambda folder: folder.read("p.md"),
    "append": lambda folder: folder.append("p.md", b"x"),
    "exchange": lambda folder: folder.exchange("p.md", b"x", None),
    "cut": lambda folder: folder.cut("p.md", 0, 7),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", USES)
def test_what_is_no_file_of_ours_is_refused_and_stays(
    folder: FolderHandle, root: Path, tmp_path: Path, how: str, kind: str
) -> None:
    target = tmp_path / "outside.md"
    target.write_bytes(b"private")
    plant(kind, root / "a" / "p.md", target)
    before = picture(tmp_path), outside(tmp_path)
    with pytest.raises(Forbidden):
        USES[how](folder)
    after = picture(tmp_path), outside(tmp_path)
    assert after == before
    assert folder.create("p.md", b"x") is None
    assert picture(tmp_path) == before[0]


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "loop"])
@pytest.mark.parametrize("make", [False, True])
def test_no_folder_is_reached_by_a_link(root: Path, tmp_path: Path, kind: str, make: bool) -> None:
    target = tmp_path / "elsewhere"
    target.mkdir()
    plant(kind, root / "a", target)
    before = picture(tmp_path), outside(tmp_path)
    for parts in (("a",), ("a", "b")):
        with pytest.raises(Forbidden):
            open_folder(root, parts, make=make)
    after = picture(tmp_path), outside(tmp_path)
    assert after == before


def test_a_root_that_has_become_a_link_is_refused(root: Path, tmp_path: Path) -> None:
    root.rename(tmp_path / "moved")
    root.symlink_to(tmp_path / "moved")
    with pytest.raises(Forbidden):
        open_folder(root, ("a",), make=True)
    assert picture(tmp_path / "moved") == {}


def test_a_link_that_comes_at_the_last_moment_is_put_back(
    folder: FolderHandle, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside.md").write_bytes(b"private")
    page = root / "a" / "p.md"
    page.write_bytes(b"old")
    rename = folders.rename

    def swapped(fd: int, source: str, target: str, how: int) -> None:
        if how == renames.EXCHANGE and not page.is_symlink():
            page.unlink()
            page.symlink_to(tmp_path / "outside.md")
        rename(fd, source, target, how)

    monkeypatch.setattr(folders, "rename", swapped)
    with pytest.raises(Forbidden):
        folder.exchange("p.md", b"new", folder.read("p.md"))
    assert page.is_symlink()
    assert (tmp_path / "outside.md").read_bytes() == b"private"
    assert not leftovers(root)


def test_a_folder_that_was_removed_meanwhile_is_a_failure_and_no_crash(folder: FolderHandle, root: Path) -> None:
    (root / "a").rmdir()
    for write in (lambda: folder.create("p.md", b"x"), lambda: folder.append("p.md", b"x")):
        with pytest.raises(FileFailed):
            write()
    assert picture(root) == {}


# --- a fault while another one writes ---


def test_a_folder_that_is_not_durable_is_no_folder(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(_: int) -> None:
        raise OSError(errno.EIO, "injected")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fault)
        with pytest.raises(FileFailed):
            open_folder(root, ("a", "b"), make=True)
    assert list(root.iterdir()) == []


def test_a_save_on_top_of_ours_is_not_undone_with_it(
    folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "a" / "p.md"
    fsync = os.fsync

    def fault(fd: int) -> None:
        if fd == folder.fd:
            page.write_bytes(b"a person's save")
            raise OSError(errno.EIO, "injected")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", fault)
    with pytest.raises(FileFailed):
        folder.create("p.md", b"new")
    assert picture(root) == {"a/p.md": b"a person's save"}
    with pytest.raises(FileFailed):
        folder.exchange("p.md", b"newer", folder.read("p.md"))
    assert picture(root) == {"a/p.md": b"a person's save"}


def test_what_another_program_appended_is_not_cut_off_with_ours(
    folder: FolderHandle, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = root / "a" / "p.md"
    page.write_bytes(b"old\n")

    def fault(_: int) -> None:
        with page.open("ab") as theirs:
            theirs.write(b"theirs\n")
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fsync", fault)
    with pytest.raises(FileFailed):
        folder.append("p.md", b"ours\n")
    assert page.read_bytes().endswith(b"theirs\n")
