"""The SUMMARY.md of missions: each follows its events.jsonl, at most once in a while."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from storage.errors import Rejection
from storage.swarm import layout
from storage.swarm.folders import FolderHandle, Version, opened
from storage.swarm.layout import SUMMARY, Folder, Roots
from storage.swarm.missions import Mission, Missions
from storage.swarm.projecting import LOOK_AGAIN_S, Busy, Displaced, Merge, project
from storage.swarm.watching import MergeOf, Watch

SUMMARY_PERIOD_S: Final = 0.2
"""A mission's SUMMARY.md is made anew at most once in this time."""
LOOK_AFTER_S: Final = 0.25
"""How long after a page was made it is looked at: an editor may save what he read before. Doubled each time."""
_LOOK_AFTER_MAX_S: Final = 60.0
_LOOKED_AT_MAX: Final = 64
"""Of the pages that were made last."""
RETRY_S: Final = 1.0
"""How long a page that could not be written waits."""

Key = tuple[str, str]
"""A worker and one of its missions."""


@dataclass(slots=True)
class EpisodesDue:
    """Entries of a mission that are not in the episodes yet."""

    after: str | None
    """The instant of the last event whose entry is; None where none is."""
    at_s: float
    """When they are tried again, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class _Due:
    at_s: float
    failed: bool


@dataclass(frozen=True, slots=True)
class _Look:
    page: Version | None
    """What it was when it was looked at last."""
    at_s: float
    after_s: float


class Summaries:
    """Brings the SUMMARY.md of missions up to their events."""

    def __init__(
        self,
        roots: Roots,
        missions: Missions,
        watch: Watch,
        *,
        episodes_due: Mapping[Key, EpisodesDue],
        monotonic: Callable[[], float],
        touched: Callable[[Folder, str], None],
    ) -> None:
        self._roots = roots
        self._missions = missions
        self._watch = watch
        self._episodes_due = episodes_due
        self._monotonic = monotonic
        self._touched = touched
        self._due: dict[Key, _Due] = {}
        self._looks: OrderedDict[Key, _Look] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._due)

    def is_due(self, worker: str) -> bool:
        """Whether a page of a worker does not show all events yet."""
        return any(key[0] == worker for key in tuple(self._due))  # asked by readers while the writer works

    def has_failed(self, key: Key) -> bool:
        """Whether a page could not be written, and waits."""
        return key in self._due and self._due[key].failed

    def has_looks(self) -> bool:
        """Whether it is time to see if an editor's save has undone a page."""
        now_s = self._monotonic()
        return any(look.at_s <= now_s for look in tuple(self._looks.values()))  # asked by the janitor

    def follow(self, *, whole: bool) -> None:
        """Make the pages that are due (all, before their time, where `whole`), and those that an editor undid."""
        now_s = self._monotonic()
        for key, due in list(self._due.items()):
            if whole or due.at_s <= now_s:
                self._make(key)
        for key, look in list(self._looks.items()):
            if look.at_s <= now_s and key not in self._due:
                self._look(key, look)

    def _look(self, key: Key, look: _Look) -> None:
        self._look_later(key, look.page, look.after_s * 2)
        with suppress(Rejection):
            folder = opened(self._roots, layout.mission(*key))
            if folder is None:  # the mission was removed
                del self._looks[key]
                return
            with folder:
                now = folder.version(SUMMARY)
                if now is not None and now != look.page:
                    self.project(self._missions.of(key, folder), folder)

    def _look_later(self, key: Key, page: Version | None, after_s: float) -> None:
        after_s = min(after_s, _LOOK_AFTER_MAX_S)
        self._looks[key] = _Look(page, self._monotonic() + after_s, after_s)
        self._looks.move_to_end(key)
        while len(self._looks) > _LOOKED_AT_MAX:
            self._looks.popitem(last=False)

    def soon(self, known: Mission, folder: FolderHandle) -> None:
        """Make a mission's page, now or when its time has come. A failure is made up for: the events are on disk."""
        last_s = known.projected_at_s
        key = (known.worker, known.mission)
        if last_s is not None and self._monotonic() - last_s < SUMMARY_PERIOD_S:
            self._due.setdefault(key, _Due(last_s + SUMMARY_PERIOD_S, failed=False))
        else:
            self.project(known, folder)

    def _make(self, key: Key) -> None:
        try:
            folder = opened(self._roots, layout.mission(*key))
            if folder is None:  # the mission was removed
                self._due.pop(key)
                return
            with folder:
                self.project(self._missions.of(key, folder), folder)
        except Rejection:
            self._due[key] = _Due(self._monotonic() + RETRY_S, failed=True)

    def project(self, known: Mission, folder: FolderHandle) -> None:
        """Make a mission's page now, if nobody is writing it."""
        key = (known.worker, known.mission)
        if not known.events:
            self._due.pop(key, None)
            return
        known.projected_at_s = self._monotonic()
        displaced: list[Displaced] = []
        try:
            known.page = project(folder, SUMMARY, self._merge(known), ours=known.page, displaced=displaced)
            self._due.pop(key, None)
            self._look_later(key, known.page, LOOK_AFTER_S)
            self._touched(layout.mission(*key), SUMMARY)
        except Busy:
            self._due[key] = _Due(self._monotonic() + LOOK_AGAIN_S, failed=False)
        except Rejection:
            self._due[key] = _Due(self._monotonic() + RETRY_S, failed=True)
        finally:
            self._watch.add(layout.mission(*key), displaced, self._merge_of(key))

    def _merge_of(self, key: Key) -> MergeOf:
        def merge_of(folder: FolderHandle) -> Merge:
            return self._merge(self._missions.of(key, folder))

        return merge_of

    def _merge(self, known: Mission) -> Merge:
        """The page says which entries are missing in the episodes, so that a crash does not forget them."""
        due = self._episodes_due.get((known.worker, known.mission))
        known.summary.episodes_behind(None if due is None else due.after, behind=due is not None)
        return known.summary.page
