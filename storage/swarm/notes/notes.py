"""A worker's notes under the six commands of Claude's memory tool, answered as its documentation says.

`/memories` is the worker's `memory/notes/`; nothing else can be named. Where the documentation leaves a choice:
`create` refuses a path that exists, and `rename` a target that exists.
"""

import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from storage.errors import FileFailed, NoFileOfOurs, TooLarge
from storage.swarm import layout
from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, made, opened
from storage.swarm.layout import Folder, Roots
from storage.swarm.notes import edits
from storage.swarm.notes.looks import NoteLooks
from storage.swarm.notes.paths import DEPTH_MAX, ROOT, NotePath, new_note_path, note_path
from storage.swarm.notes.refusals import BadNotePath, NoNote, NoteConflict, error_no_note, no_note
from storage.swarm.notes.showing import LEVELS, file_view, listing, snippet
from storage.swarm.notes.trees import Parts, entered, is_folder, listed, move, remove, state_of, walk
from storage.swarm.projecting import Displaced
from storage.swarm.watching import Watch

_TRIES_MAX: Final = 4


class Notes:
    """Reads and writes notes. `view` may be called from any thread, the rest from the writer's alone.

    Every method takes a worker's id and returns the documented text of success. Each raises, besides what it names:

    Raises:
        InvalidRequest: the worker's id or a path is none.
        NotFound: the path is not there, or is a folder where a file is asked for.
        NoFileOfOurs: a link, or what is no file or folder of its own, stands in the path.
        StorageFull, FileFailed: nothing was changed, unless the text says otherwise.
    """

    def __init__(
        self,
        roots: Roots,
        watch: Watch,
        touched: Callable[[Folder, str], None],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watch` keeps what an editor saves into a file that an edit has replaced; `touched` hears of each change."""
        self._roots = roots
        self._watch = watch
        self._touched = touched
        self._looks = NoteLooks(roots, monotonic)

    def __bool__(self) -> bool:
        """Whether `follow` has something to do."""
        return bool(self._looks)

    def follow(self, *, whole: bool) -> None:
        """Look at edited notes once more: what an editor has undone is kept beside, as `NAME.conflict-<time>`."""
        self._looks.follow(whole=whole)

    # --- the six commands ---

    def view(self, worker: str, path: str, view_range: Sequence[int] | None = None) -> str:
        """Show a directory up to two levels deep, or a file with line numbers. Makes nothing.

        Without a range, 16,000 characters of a file are shown; of a directory, a thousand entries. The answer says so.

        Raises:
            InvalidRequest: the file has no such lines.
            TooLarge: the file has more than 999,999 lines or 8 MiB.
        """
        worker = layout.worker_id(worker)
        at = note_path(path)
        missing = no_note(path)
        if not at.parts:
            folder = self._opened(worker, ())
            if folder is None:
                return listing(path, 0, [])
            with folder:
                return _listing(path, folder)
        with self._parent(worker, at, missing) as folder:
            state = state_of(folder, at.name)
            if is_folder(state):
                with entered(folder, at.name) as inner:
                    return _listing(path, inner)
            return file_view(path, _read(folder, at, missing).content, view_range)

    def create(self, worker: str, path: str, file_text: str) -> str:
        """Make a file, with the folders that it lies in.

        Raises:
            Conflict: there is something at the path already, which stays; or a file where a folder should be.
            TooLarge: the text has more than 8 MiB.
        """
        worker = layout.worker_id(worker)
        at = new_note_path(path)
        content = edits.encoded(file_text)
        _require_size(path, content)
        exists = NoteConflict(f"Error: File {path} already exists")
        if not at.parts:
            raise exists
        with self._made(worker, at) as folder:
            if path.endswith("/") and state_of(folder, at.name) is None:
                raise BadNotePath(f"Error: Path {path} names a directory; a file's path has no slash at its end.")
            if (version := folder.create(at.name, content)) is None:
                raise exists
        self._looks.made(layout.notes(worker, *at.parent), at.name, version, content)
        self._touched(layout.notes(worker, *at.parent), at.name)
        return f"File created successfully at: {path}"

    def str_replace(self, worker: str, path: str, old_str: str, new_str: str = "") -> str:
        """Replace the one occurrence of a text in a file; the answer shows the lines around it.

        Raises:
            Conflict: the text is not in the file, or more than once; or the file kept changing meanwhile.
            TooLarge: the file has, or would have, more than 8 MiB.
        """
        worker = layout.worker_id(worker)
        at = note_path(path)
        missing = NoNote(f"Error: {no_note(path).detail}")
        old, new = edits.encoded(old_str), edits.encoded(new_str)

        def change(content: bytes) -> bytes:
            position = edits.only_position(content, old, old_str, path)
            return content[:position] + new + content[position + len(old) :]

        before, after = self._edit(worker, at, change, new, missing)
        line = before.count(b"\n", 0, before.find(old))
        shown = snippet(after, line, new.count(b"\n") + 1)
        return f"The memory file has been edited. Here is the snippet showing the change (with line numbers):\n{shown}"

    def insert(self, worker: str, path: str, insert_line: int, insert_text: str) -> str:
        """Insert text, on lines of its own, behind a line of a file; behind line 0 is at its beginning.

        Raises:
            InvalidRequest: the file has no such line.
            Conflict: the file kept changing meanwhile.
            TooLarge: the file has, or would have, more than 8 MiB.
        """
        worker = layout.worker_id(worker)
        at = note_path(path)
        text = edits.encoded(insert_text)
        self._edit(worker, at, lambda content: edits.inserted(content, insert_line, text), text, error_no_note(path))
        return f"The file {path} has been edited."

    def delete(self, worker: str, path: str) -> str:
        """Remove a file, or a directory with all that is in it; of a link, the link.

        Raises:
            InvalidRequest: /memories itself cannot be removed.
            FileFailed: not all of a directory could be removed, and the text says so.
        """
        worker = layout.worker_id(worker)
        at = note_path(path)
        if not at.parts:
            raise BadNotePath(f"Error: Cannot delete the {ROOT} directory itself")
        missing = error_no_note(path)
        with self._parent(worker, at, missing) as folder:
            paths = _tree(folder, at.name, missing)
            try:
                remove(folder.fd, at.name)
                os.fsync(folder.fd)
            except FileNotFoundError as error:
                raise missing from error
            except OSError as error:
                why = os.strerror(error.errno or 0)
                raise FileFailed(f"Error: {path} was not deleted whole ({why}). View what is left of it.") from error
            finally:
                self._touch(worker, at, paths)
        return f"Successfully deleted {path}"

    def rename(self, worker: str, old_path: str, new_path: str) -> str:
        """Rename or move a file or a directory; the folders that it is to lie in are made.

        Raises:
            InvalidRequest: /memories itself cannot be renamed, nor a directory moved into itself or too deep.
            Conflict: there is something at the new path already, which stays; or a file where a folder should be.
        """
        worker = layout.worker_id(worker)
        old, new = note_path(old_path), new_note_path(new_path)
        if not old.parts:
            raise BadNotePath(f"Error: Cannot rename the {ROOT} directory itself")
        missing, exists = error_no_note(old_path), NoteConflict(f"Error: The destination {new_path} already exists")
        with self._parent(worker, old, missing) as source:
            paths = _tree(source, old.name, missing, own=True)
            if not new.parts:
                raise exists
            _require_way(old, new, paths)
            with self._made(worker, new) as target:
                if not move(source, old.name, target, new.name):
                    raise exists
        self._touch(worker, old, paths)
        self._touch(worker, new, paths)
        return f"Successfully renamed {old_path} to {new_path}"

    # --- editing ---

    def _edit(
        self, worker: str, at: NotePath, change: Callable[[bytes], bytes], text: bytes, missing: NoNote
    ) -> tuple[bytes, bytes]:
        """Put changed content in a file's place; anew where somebody saved it in between. Returns (before, after)."""
        if not at.parts:
            raise missing
        place = layout.notes(worker, *at.parent)
        with self._parent(worker, at, missing) as folder:
            for _ in range(_TRIES_MAX):
                seen = _read(folder, at, missing)
                content = change(seen.content)
                if content == seen.content:
                    return content, content
                _require_size(at.given, content)
                if (placed := folder.exchange(at.name, content, seen)) is not None:
                    self._watch.add(place, [Displaced(at.name, placed.temporary, seen.content, content)])
                    self._looks.changed(
                        folder, place, at.name, seen, version=placed.version, content=content, text=text
                    )
                    self._touched(place, at.name)
                    return seen.content, content
        raise NoteConflict(f"Error: {at.given} is being written by somebody else; nothing was changed.")

    # --- folders ---

    def _opened(self, worker: str, parts: Parts) -> FolderHandle | None:
        """A folder of notes; None where there is none, or a file in its path."""
        place = layout.notes(worker, *parts)
        try:
            return opened(self._roots, place)
        except NoFileOfOurs:
            if self._file_above(worker, parts) is None:
                raise
            return None

    @contextmanager
    def _parent(self, worker: str, at: NotePath, missing: NoNote) -> Iterator[FolderHandle]:
        folder = self._opened(worker, at.parent)
        if folder is None:
            raise missing
        with folder:
            yield folder

    @contextmanager
    def _made(self, worker: str, at: NotePath) -> Iterator[FolderHandle]:
        """The folder that a path lies in, made where it is missing."""
        place = layout.notes(worker, *at.parent)
        try:
            folder = made(self._roots, place)
        except NoFileOfOurs:
            self._refuse_file_above(worker, at)
            raise
        with folder:
            yield folder

    def _refuse_file_above(self, worker: str, at: NotePath) -> None:
        if (parts := self._file_above(worker, at.parent)) is not None:
            raise NoteConflict(f"Error: {'/'.join((ROOT, *parts))} is a file; nothing can be below it")

    def _file_above(self, worker: str, parts: Parts) -> Parts | None:
        """The path of the file that stands where a path needs a folder; None where it is something else."""
        for at in range(len(parts)):
            folder = opened(self._roots, layout.notes(worker, *parts[:at]))
            if folder is None:
                return None
            with folder:
                state = state_of(folder, parts[at])
            if not is_folder(state):
                return parts[: at + 1] if state is not None and stat.S_ISREG(state.st_mode) else None
        return None

    def _touch(self, worker: str, at: NotePath, paths: Sequence[tuple[Parts, bool]]) -> None:
        for below, folder_ in paths:
            if not folder_:
                *folder, name = (*at.parts, *below)
                self._touched(layout.notes(worker, *folder), name)


def _listing(path: str, folder: FolderHandle) -> str:
    return listing(path, os.fstat(folder.fd).st_size, listed(folder, LEVELS))


def _read(folder: FolderHandle, at: NotePath, missing: NoNote) -> Seen:
    state = state_of(folder, at.name)
    if state is None or is_folder(state) or (seen := folder.read(at.name)) is None:
        raise missing
    return seen


def _tree(folder: FolderHandle, name: str, missing: NoNote, *, own: bool = False) -> list[tuple[Parts, bool]]:
    """What moves or goes with an entry, and the entry; where `own`, it must be a file or a folder of its own."""
    state = state_of(folder, name)
    if state is None:
        raise missing
    if is_folder(state):
        return [((), True), *walk(folder, name)]
    if own and (not stat.S_ISREG(state.st_mode) or state.st_nlink > 1):
        raise NoFileOfOurs(f"{folder.name}/{name}: is no file of its own (a link, a device or a pipe).")
    return [((), False)]


def _require_way(old: NotePath, new: NotePath, paths: Sequence[tuple[Parts, bool]]) -> None:
    if len(new.parts) > len(old.parts) and new.parts[: len(old.parts)] == old.parts:
        raise BadNotePath(f"Error: {old.given} cannot be moved into itself")
    if len(new.parts) + max(len(below) for below, _ in paths) > DEPTH_MAX:
        raise BadNotePath(f"Error: Path {new.given} is not allowed: more than {DEPTH_MAX} names would lead below it.")


def _require_size(path: str, content: bytes) -> None:
    if len(content) > FILE_BYTES_MAX:
        raise TooLarge(f"Error: {path} would be larger than {FILE_BYTES_MAX:,} bytes.")
