"""The files of a mission that is to be archived: which there are, how they are read, and whether it is complete."""

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage.errors import Conflict, FileFailed, NoFileOfOurs, NotFound, TooLarge
from storage.swarm import layout
from storage.swarm.events import Event, parse_back
from storage.swarm.failing import failures
from storage.swarm.folders import FolderHandle, Seen, opened
from storage.swarm.layout import EVENTS, Folder, Roots
from storage.swarm.life.manifest import shown
from storage.swarm.making import step
from storage.swarm.projecting import CUT_QUIET_S, QUIET_S

FILES_MAX: Final = 2_000
"""Of a mission, all workers together; and as many folders."""
BYTES_MAX: Final = 256 * 1_048_576
"""Of these files together. The largest of them is held in memory, and all logs."""
DEPTH_MAX: Final = 8
"""Of folders below that of a mission."""
NAME_BYTES_MAX: Final = 180
"""Of a name: file systems take 255, and our temporary files and conflicts have longer ones than their pages."""
LOOKS_MAX: Final = 200
"""How often all in all files are looked at again that are being written, ..."""
LOOK_AGAIN_S: Final = 0.005
"""... after such a while each: a second in all."""
UNDECIDED: Final = ("handoff-requested", "handoff-written", "note")
"""The types of events that leave a mission's status as it was; any other decides it."""


class NoMission(NotFound):
    """No worker has such a mission."""

    hint = "Correct the missionId; GET /api/swarm-memory?kind=mission&workerId=… lists a worker's missions."


class NotComplete(Conflict):
    """The mission goes on, as far as its events say; nothing was written."""

    hint = "When it is done, write an event `complete` of it, then archive it."


class InTheWay(Conflict):
    """Two things would have the same place in the archive; nothing was written."""

    hint = "Rename one of them or move it away, then archive again."


class TooMuch(TooLarge):
    """A mission, or what is in its archive already, is larger than is archived; nothing was written."""

    hint = "Move what is no memory of the mission out of its folder, then archive again."


class Found(NamedTuple):
    """A file below a folder."""

    parts: tuple[str, ...]
    """The folders on the way to it."""
    name: str
    size: int | None
    """None where it is a link, or no file of its own."""

    @property
    def path(self) -> str:
        """Its path below that folder."""
        return "/".join((*self.parts, self.name))


class Listing:
    """The files below some folders, but our temporary ones, within bounds. No link is followed."""

    def __init__(self, what: str, *, times: int = 1, depth_max: int = DEPTH_MAX, strict: bool = True) -> None:
        """Of `times` as much as a mission may have. A `strict` one refuses links and what is no file of its own.

        `what` it is that has the files, messages say.
        """
        self._what, self._times, self._depth_max, self._strict = what, times, depth_max, strict
        self._bytes, self._files = 0, 0
        self.folders: list[tuple[str, ...]] = []
        """All that were gone into."""

    def files(self, folder: FolderHandle, parts: tuple[str, ...] = ()) -> Iterator[Found]:
        """What is in a folder, and below; the folder is `parts` below the one that paths begin at.

        Raises:
            NoFileOfOurs: a link, a hard link, a pipe or a device is among them.
            TooLarge: they are too many, too large or too deep.
        """
        for name in folder.names():
            what = f"{folder.name}/{name}"
            with failures(shown(what)), suppress(FileNotFoundError):  # gone meanwhile
                state = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
                if not stat.S_ISDIR(state.st_mode):
                    yield self._taken(Found(parts, name, _size(state)), what)
                    continue
                self._enter((*parts, name))
                with FolderHandle(step(folder.fd, name, make=False), what) as below:
                    yield from self.files(below, (*parts, name))

    def named(self, folder: FolderHandle, name: str) -> Found | None:
        """One file of a folder, and not what is below; None where there is none. Raises as `files` does."""
        what = f"{folder.name}/{name}"
        with failures(shown(what)), suppress(FileNotFoundError):
            state = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            return self._taken(Found((), name, _size(state)), what)
        return None

    def _taken(self, found: Found, what: str) -> Found:
        if self._strict and found.size is None:
            raise NoFileOfOurs(f"missionId: {shown(what)} is a link, or no file of its own; nothing was archived.")
        self._files += 1
        self._bytes += found.size or 0
        self._require_few(self._files, "files")
        if self._bytes > BYTES_MAX * self._times:
            raise TooMuch(f"missionId: {self._what} has more than {BYTES_MAX * self._times:,} bytes.")
        return found

    def _enter(self, parts: tuple[str, ...]) -> None:
        self.folders.append(parts)
        self._require_few(len(self.folders), "folders")
        if len(parts) > self._depth_max:
            raise TooMuch(
                f"missionId: {self._what} has {shown('/'.join(parts))}, deeper than {self._depth_max} folders."
            )

    def _require_few(self, count: int, what: str) -> None:
        if count > FILES_MAX * self._times:
            raise TooMuch(f"missionId: {self._what} has more than {FILES_MAX * self._times:,} {what}.")


def _size(state: os.stat_result) -> int | None:
    """Of a file of its own."""
    return state.st_size if stat.S_ISREG(state.st_mode) and state.st_nlink == 1 else None


def _require_short(names: Iterable[str]) -> None:
    for name in names:
        if len(os.fsencode(name)) > NAME_BYTES_MAX:
            raise TooMuch(f"missionId: the name {shown(name)} is longer than {NAME_BYTES_MAX} bytes.")


# --- what a mission has ---


class Source(NamedTuple):
    """A file that is to be archived."""

    place: Folder
    parts: tuple[str, ...]
    """Its folder in the archive."""
    name: str
    content: bytes | None = None
    """Where it was read already."""
    written_at: str = ""
    """Of a log: when it was written; ISO 8601, UTC."""

    @property
    def path(self) -> str:
        """Its path in the archive."""
        return "/".join((*self.parts, self.name))


@dataclass(frozen=True, slots=True)
class MissionFiles:
    """All files of a mission that is complete."""

    workers: tuple[str, ...]
    sources: tuple[Source, ...]


def mission_files(roots: Roots, mission: str, patience: "Patience") -> MissionFiles:
    """The files of a mission, of all workers that have a folder of it. Reads its logs, and writes nothing.

    A profile that is a link or no folder is no worker's, and neither is one whose folder of missions is.

    Raises:
        NotFound: no worker has it.
        Conflict: it is not complete, or two of its files would have the same place.
        Forbidden: a link, or what is no file of its own, is among its files.
        TooLarge: it is larger than FILES_MAX, BYTES_MAX, DEPTH_MAX or NAME_BYTES_MAX allow.
    """
    listing = Listing(f"the mission {mission}")
    workers: list[str] = []
    sources: list[Source] = []
    for worker in _workers(roots):
        with _mission_folder(roots, worker, mission) as folder:
            if folder is not None:
                workers.append(worker)
                sources += _of_mission(listing, folder, worker, mission)
                sources += _handoffs(listing, roots, worker, mission)
    if not workers:
        raise NoMission(f"missionId: no worker has a mission {mission}.")
    _require_short(part for source in sources for part in (*source.parts, source.name))
    _require_apart([source.path for source in sources])
    sources = [_with_log(roots, source, patience) for source in sources]
    _require_complete(mission, sources)
    return MissionFiles(tuple(workers), tuple(sources))


def _workers(roots: Roots) -> list[str]:
    folder = opened(roots, Folder("profiles", ()))
    if folder is None:
        return []
    with folder:
        return [name for name in folder.names() if layout.WORKER_ID.fullmatch(name)]


@contextmanager
def _mission_folder(roots: Roots, worker: str, mission: str) -> Iterator[FolderHandle | None]:
    """A worker's folder of a mission; None where it has none."""
    above = None
    with suppress(NoFileOfOurs):
        above = opened(roots, layout.missions(worker))
    if above is None:
        yield None
        return
    with above:
        there = above.version(mission) is not None
    folder = opened(roots, layout.mission(worker, mission)) if there else None
    if folder is None:
        yield None
        return
    with folder:
        yield folder


def _of_mission(listing: Listing, folder: FolderHandle, worker: str, mission: str) -> list[Source]:
    place = layout.mission(worker, mission)
    return [
        Source(place._replace(parts=place.parts + found.parts), (worker, *found.parts), found.name)
        for found in listing.files(folder)
    ]


def _handoffs(listing: Listing, roots: Roots, worker: str, mission: str) -> list[Source]:
    """The worker's own copy of the mission's handoff, and the versions of it that were kept beside it."""
    place = layout.handoffs(worker)
    folder = opened(roots, place)
    if folder is None:
        return []
    kept = re.compile(re.escape(layout.handoff_file(mission)) + r"(\.conflict-\d+)?")
    with folder:
        names = [name for name in folder.names() if kept.fullmatch(name) and listing.named(folder, name)]
    return [Source(place, (worker, place.parts[-1]), name) for name in names]


def _require_apart(paths: list[str]) -> None:
    require_room(paths, (), ())
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise InTheWay(f"missionId: both a handoff and a file of the mission's folder would be {shown(path)}.")
        seen.add(path)


def require_room(paths: Iterable[str], files: Iterable[str], folders: Iterable[str]) -> None:
    """Refuse files that would stand where a folder is, or below a file, among themselves or among what is there.

    Raises:
        Conflict: one would.
    """
    paths = list(paths)
    above = {path: _above(path) for path in paths}
    all_files = {*paths, *files}
    all_folders = {*folders}.union(*above.values())
    for path in paths:
        if path in all_folders or (above[path] & all_files):
            raise InTheWay(f"missionId: {shown(path)} is in the way of a file or folder of the same name.")


def _above(path: str) -> set[str]:
    parts = path.split("/")
    return {"/".join(parts[:at]) for at in range(1, len(parts))}


# --- whether it is complete ---


def _with_log(roots: Roots, source: Source, patience: "Patience") -> Source:
    """A log with its content: what is archived is what was found to be complete."""
    if source.name != EVENTS or len(source.parts) > 1:
        return source
    folder = opened(roots, source.place)
    if folder is None:
        return source
    with folder:
        version = folder.version(EVENTS)
    written_at = "" if version is None else version.written_at
    return source._replace(content=read_whole(roots, source.place, EVENTS, patience), written_at=written_at)


def _require_complete(mission: str, sources: Iterable[Source]) -> None:
    """Refuse a mission of which the newest event that decides its status is no `complete`.

    In a log the later line is newer, whatever its clock said. Of different workers' the later instant is, and none is
    later than its log was written; of two of the same instant the one that is no `complete`.
    """
    last: list[tuple[str, Event]] = []
    deciding: list[tuple[str, Event]] = []
    for source in sources:
        for event in parse_back(source.content or b"", source.parts[0], mission):
            at = min(event.at, source.written_at)
            last.append((at, event))
            if event.type not in UNDECIDED:
                deciding.append((at, event))
                break
    if not deciding:
        said = f"its last event is {_told(_newest(last))}, and none decides its status" if last else "it has no events"
        raise NotComplete(f"missionId: {mission} is not complete; {said}.")
    if (newest := _newest(deciding)).type != "complete":
        raise NotComplete(f"missionId: {mission} is not complete; its last event is {_told(newest)}.")


def _newest(events: Iterable[tuple[str, Event]]) -> Event:
    return max(events, key=lambda pair: (pair[0], pair[1].type != "complete"))[1]


def _told(event: Event) -> str:
    return f"`{event.type}` of {event.worker} at {event.at}"


# --- how a file is read ---


class Patience:
    """How often more one run looks again at files that are being written."""

    def __init__(self) -> None:
        self._left = LOOKS_MAX

    def wait(self) -> bool:
        """Wait a moment; False at once where there was enough of that."""
        if self._left == 0:
            return False
        self._left -= 1
        time.sleep(LOOK_AGAIN_S)
        return True


def read_whole(roots: Roots, place: Folder, name: str, patience: Patience) -> bytes | None:
    """One version of a file, whole; None where it is gone. Waits while somebody writes it, with `patience`.

    Raises:
        FileFailed: it is written all the time, or cannot be read.
        Forbidden, TooLarge: it became a link, or too large.
    """
    folder = opened(roots, place)
    if folder is None:
        return None
    with folder:
        while (seen := folder.read(name, BYTES_MAX)) is not None:
            still = len(seen.content) == seen.version.size and folder.version(name) == seen.version
            if still and _is_quiet(seen):
                return seen.content
            if not patience.wait():
                if still:  # it was whole while it was read
                    return seen.content
                raise FileFailed(f"{folder.name}/{shown(name)}: is being written by somebody all the time.")
    return None


def _is_quiet(seen: Seen) -> bool:
    """Whether a file is older than one that may still be half written."""
    age_s = abs(time.time_ns() - seen.version.mtime_ns) / 1e9
    return age_s >= (QUIET_S if seen.content else CUT_QUIET_S)
