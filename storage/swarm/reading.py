"""What a reader answers about the swarm's files. Creates nothing, and says what it left out."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from storage.errors import InvalidRequest
from storage.swarm import layout
from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, open_folder
from storage.swarm.layout import EVENTS, HANDOFF, PROFILE_FILES, SUMMARY, Folder, Kind, Roots
from storage.swarm.records import SwarmFile, SwarmFiles
from storage.swarm.renames import hash_of

FILES_MAX: Final = 50
CONTENT_CHARS_MAX: Final = 262_144
"""Of one file."""
ANSWER_CHARS_MAX: Final = 1_048_576
"""Of all files of an answer."""
_PART_BYTES: Final = 4 * CONTENT_CHARS_MAX
"""Of a file that is too large to be read whole: as long as what is shown can be."""


class _Listed(NamedTuple):
    """A file that may be shown."""

    folder: Folder
    name: str
    shown: str
    """Its name below the answer's path."""
    order: tuple[float | str, ...]
    """Greater is newer."""


class SwarmReading:
    """Reads the files below some roots. Thread-safe: it keeps nothing."""

    def __init__(self, roots: Roots) -> None:
        self.roots = roots

    def files(
        self, kind: Kind, worker: str | None, *, mission: str | None = None, date: str | None = None
    ) -> SwarmFiles:
        """The files of one kind.

        Raises:
            InvalidRequest: an id or the date is none, or a worker is needed.
            Forbidden: a link stands in their path.
        """
        worker = None if worker is None else layout.worker_id(worker)
        mission = None if mission is None else layout.mission_id(mission)
        day = None if date is None else layout.day(date)
        if kind == "shared":
            return self._answer(kind, worker, layout.Folder("shared", ()), layout.shared(), self._shared(worker))
        if worker is None:
            raise InvalidRequest("workerId: is missing or empty.")
        root = layout.memory(worker)
        match kind:
            case "profile":
                listed = self._named(root, PROFILE_FILES)
                return self._answer(kind, worker, root, root, listed)
            case "mission" if mission is not None:
                place = layout.mission(worker, mission)
                return self._answer(kind, worker, root, place, self._named(place, (SUMMARY, HANDOFF, EVENTS)))
            case "mission":
                return self._answer(kind, worker, root, layout.missions(worker), self._summaries(worker))
            case "episodic":
                place = layout.episodes(worker)
                pages = self._pages(place) if day is None else self._named(place, (layout.episode_file(day),))
                return self._answer(kind, worker, root, place, pages)
            case "handoff":
                place = layout.handoffs(worker)
                name = None if mission is None else layout.handoff_file(mission)
                found = self._by_time(place) if name is None else self._named(place, (name,))
                return self._answer(kind, worker, root, place, found)

    # --- what is there ---

    def _open(self, place: Folder) -> FolderHandle | None:
        return open_folder(self.roots.of(place.root), place.parts)

    def _named(self, place: Folder, names: Iterable[str]) -> list[_Listed]:
        """Files in the order that they are named."""
        return [_Listed(place, name, name, (float(-at),)) for at, name in enumerate(names)]

    def _pages(self, place: Folder) -> list[_Listed]:
        """Pages whose names are their days."""
        return [_Listed(place, name, name, (name,)) for name in self._markdown(place)]

    def _markdown(self, place: Folder) -> list[str]:
        folder = self._open(place)
        if folder is None:
            return []
        with folder:
            return _pages_of(folder)

    def _by_time(self, place: Folder, below: str = "") -> list[_Listed]:
        folder = self._open(place)
        if folder is None:
            return []
        with folder:
            return [
                _Listed(place, name, below + name, (version.mtime_ns / 1e9,))
                for name in _pages_of(folder)
                if (version := folder.version(name)) is not None
            ]

    def _summaries(self, worker: str) -> list[_Listed]:
        folder = self._open(layout.missions(worker))
        if folder is None:
            return []
        with folder:
            missions = [name for name in folder.names() if layout.MISSION_ID.fullmatch(name)]
        found: list[_Listed] = []
        for mission in missions:
            place = layout.mission(worker, mission)
            handle = self._open(place)
            if handle is None:
                continue
            with handle:
                version = handle.version(SUMMARY)
            if version is not None:
                found.append(_Listed(place, SUMMARY, f"{mission}/{SUMMARY}", (version.mtime_ns / 1e9,)))
        return found

    def _shared(self, worker: str | None) -> list[_Listed]:
        handoffs = self._by_time(layout.shared_handoffs(), "handoffs/")
        if worker is not None:
            handoffs = [listed for listed in handoffs if listed.name == layout.latest_file(worker)]
        return [*self._by_time(layout.shared()), *handoffs]

    # --- what is shown ---

    def _answer(self, kind: Kind, worker: str | None, root: Folder, path: Folder, listed: list[_Listed]) -> SwarmFiles:
        listed.sort(key=lambda one: one.order, reverse=True)
        files: list[SwarmFile] = []
        chars, omitted = 0, max(len(listed) - FILES_MAX, 0)
        for at, one in enumerate(listed[:FILES_MAX]):
            file = self._file(one)
            if file is None:
                continue
            if files and chars + len(file.content) > ANSWER_CHARS_MAX:
                omitted += len(listed[at:FILES_MAX])
                break
            files.append(file)
            chars += len(file.content)
        return SwarmFiles(
            workerId=worker,
            kind=kind,
            root=str(self.roots.path(root)),
            path=str(self.roots.path(path)),
            files=tuple(files),
            omitted=omitted,
        )

    def _file(self, one: _Listed) -> SwarmFile | None:
        folder = self._open(one.folder)
        if folder is None:
            return None
        with folder:
            version = folder.version(one.name)
            whole = version is None or version.size <= FILE_BYTES_MAX
            seen = folder.part(one.name, FILE_BYTES_MAX if whole else _PART_BYTES, end=one.name == EVENTS)
        if seen is None:
            return None
        whole = seen.version.size <= len(seen.content)
        text, cut = _shown(seen, end=one.name == EVENTS)
        return SwarmFile(
            name=one.shown,
            path=str(self.roots.path(one.folder, one.name)),
            content=text,
            hash=hash_of(seen.content) if whole else "",
            updatedAt=seen.version.written_at,
            cut=cut,
        )


def _pages_of(folder: FolderHandle) -> list[str]:
    """The names of its pages. One that is no UTF-8 has no name that an answer could hold."""
    names = (name for name in folder.names() if name.endswith(".md"))
    return [name for name in names if name == name.encode("utf-8", "replace").decode()]


def _shown(seen: Seen, *, end: bool) -> tuple[str, bool]:
    """(what is shown of a file, or of a part that was read of it; whether it is less than the whole)."""
    text = seen.content.decode("utf-8", "replace")
    cut = len(text) > CONTENT_CHARS_MAX or len(seen.content) < seen.version.size
    if not cut:
        return text, False
    return _end(text) if end else text[:CONTENT_CHARS_MAX], True


def _end(text: str) -> str:
    """The last lines of a text; of a line that is too long alone, its end."""
    end = text[-CONTENT_CHARS_MAX:]
    _, _, whole = end.partition("\n")
    return whole or end
