"""What a crash left undone is made up for at start: pages behind their log, copies of handoffs, temporary files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from storage.errors import Rejection
from storage.swarm import layout
from storage.swarm.episodes import Episodes
from storage.swarm.events import parse, torn
from storage.swarm.folders import FolderHandle, opened
from storage.swarm.handoffs import Handoffs
from storage.swarm.layout import EVENTS, SUMMARY, Folder, Roots
from storage.swarm.missions import Mission, Missions
from storage.swarm.notes.paths import DEPTH_MAX
from storage.swarm.projecting import decoded
from storage.swarm.renames import Temporary, hash_of
from storage.swarm.summaries import Key, Summaries
from storage.swarm.summary import shown_until
from storage.swarm.walking import folders_below
from storage.swarm.watching import Watch

_END_BYTES: Final = 65_536
"""Of a log: holds its last event, if that is no very long one."""
_UNREAD_MAX: Final = 100
_ARCHIVE_DEPTH: Final = 10
"""Of an archive's folders below all archives: mission, worker, and what lies in a mission."""


class Reconciler:
    """Goes through all files of the swarm once. What cannot be read is left alone, and nothing else for it."""

    def __init__(
        self,
        roots: Roots,
        *,
        missions: Missions,
        summaries: Summaries,
        episodes: Episodes,
        handoffs: Handoffs,
        watch: Watch,
        episodes_due: Callable[[Key, str | None], None],
    ) -> None:
        self._roots = roots
        self._missions = missions
        self._summaries = summaries
        self._episodes = episodes
        self._handoffs = handoffs
        self._watch = watch
        self._episodes_due = episodes_due
        self.unread: list[str] = []
        """What could not be read, and why: the first hundred."""

    def reconcile(self) -> int:
        """Make up for all that is behind; returns how many missions and copies of handoffs that were."""
        behind = 0
        for worker in self._names(Folder("profiles", ()), layout.WORKER_ID.fullmatch):
            for place in (layout.memory(worker), layout.episodes(worker), layout.handoffs(worker)):
                self._sweep(place)
            self._sweep_below(layout.notes(worker), DEPTH_MAX)
            for mission in self._names(layout.missions(worker), layout.MISSION_ID.fullmatch):
                self._sweep(layout.mission(worker, mission))
                with self._left_alone(f"{worker}/{mission}"):
                    behind += self._make_up((worker, mission))
            with self._left_alone(f"{worker}/handoffs"):
                behind += self._handoffs.make_up(worker)
        for place in (layout.shared(), layout.shared_handoffs()):
            self._sweep(place)
        self._sweep_below(Folder("shared", ("swarm", "missions")), _ARCHIVE_DEPTH)
        return behind

    @contextmanager
    def _left_alone(self, what: str) -> Iterator[None]:
        try:
            yield
        except Rejection as rejection:
            if len(self.unread) < _UNREAD_MAX:
                self.unread.append(f"{what}: {rejection}")

    def _names(self, place: Folder, rule: Callable[[str], object]) -> list[str]:
        with suppress(Rejection), self._open(place) as folder:
            return [] if folder is None else [name for name in folder.names() if rule(name)]
        return []

    @contextmanager
    def _open(self, place: Folder) -> Iterator[FolderHandle | None]:
        folder = opened(self._roots, place)
        if folder is None:
            yield None
            return
        with folder:
            yield folder

    def _make_up(self, key: Key) -> bool:
        """Bring a mission's pages up to its log; whether they were behind."""
        with self._open(layout.mission(*key)) as folder:
            if folder is None or folder.version(EVENTS) is None:
                return False
            seen = folder.read(SUMMARY)
            shown = shown_until(None if seen is None else decoded(seen.content))
            if shown is not None and shown == _last_at(folder, key):
                return False
            known = self._missions.of(key, folder)
            if not known.events or shown == known.last_at:
                return False
            try:
                self._episodes.add_missing(known.since(shown))
            except Rejection:
                self._episodes_due(key, shown)
            self._summaries.project(known, folder)
        return True

    # --- temporary files ---

    def _sweep_below(self, place: Folder, depth: int) -> None:
        for folder in folders_below(self._roots, place, depth):
            self._sweep(folder)

    def _sweep(self, place: Folder) -> None:
        """Remove temporary files of dead processes; what a person wrote into one is kept beside its page."""
        with suppress(Rejection), self._open(place) as folder:
            for temporary in [] if folder is None else folder.temporaries():
                if folder is not None and not self._watch.holds(place, temporary.name):
                    with suppress(Rejection):
                        self._sweep_one(folder, place, temporary)

    def _sweep_one(self, folder: FolderHandle, place: Folder, temporary: Temporary) -> None:
        left, page = folder.version(temporary.name), folder.version(temporary.page)
        linked = left is not None and page is not None and left.inode == page.inode
        if temporary.known is None or linked or not self._holds_an_edit(folder, place, temporary):
            folder.remove(temporary.name)
        else:
            folder.keep(temporary.name, temporary.page)

    def _holds_an_edit(self, folder: FolderHandle, place: Folder, temporary: Temporary) -> bool:
        left = folder.read(temporary.name)
        if left is None or not left.content or temporary.may_hold(hash_of(left.content)):
            return False
        page = folder.read(temporary.page)
        return page is None or not _lines(self._mission_of(place, folder), left.content) <= _lines(
            self._mission_of(place, folder), page.content
        )

    def _mission_of(self, place: Folder, folder: FolderHandle) -> Mission | None:
        """The mission whose folder this is; None where it is none."""
        key = (place.parts[0], place.parts[-1])
        return self._missions.of(key, folder) if place == layout.mission(*key) else None


def _last_at(folder: FolderHandle, key: Key) -> str | None:
    """The instant of a log's last event, if its end tells that and needs no repair."""
    end = folder.part(EVENTS, _END_BYTES, end=True)
    if end is None or not end.content.endswith(b"\n") or torn(end.content) is not None:
        return None
    at = 0 if end.version.size <= _END_BYTES else end.content.find(b"\n") + 1
    last = None
    for event in parse(end.content[at:], *key):
        last = event.at
    return last


def _lines(mission: Mission | None, content: bytes) -> set[str]:
    """The lines of a page; of a SUMMARY.md with our sections as they are now, so that only a person's can differ."""
    page = decoded(content)
    return set((page if mission is None else mission.summary.page(page)).split("\n"))
