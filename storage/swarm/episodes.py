"""The episode pages of workers: entries are appended, and nothing else of a page is touched."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Final

from storage.errors import Conflict, Rejection, TooLarge
from storage.swarm import layout
from storage.swarm.events import Event
from storage.swarm.folders import FolderHandle, Version, made, opened
from storage.swarm.layout import Folder, Roots
from storage.swarm.pages import (
    Requested,
    entry_marks,
    entry_requests,
    episode_entry,
    episode_heading,
    episode_mark,
    request_digest,
)
from storage.swarm.projecting import decoded, encoded

PAGE_BYTES_MAX: Final = 64 * 1_048_576
LOOK_AFTER_S: Final = 0.25
"""How long after an entry its page is looked at: an editor may have saved what he read before it."""
REPLAYED_DAYS: Final = 8
"""How far back the entry of a request is looked for."""
_LOOKS_MAX: Final = 4
_TRIES_MAX: Final = 3
_PAGES_KEPT: Final = 64

Page = tuple[str, str]
"""A worker and a day."""


@dataclass(slots=True)
class _Written:
    """Entries that an editor's save may still undo."""

    at_s: float
    version: Version
    entries: dict[str, bytes] = field(default_factory=dict)
    """By their marks."""
    looks: int = 0


class Episodes:
    """Writes entries into the pages of their days."""

    def __init__(self, roots: Roots, *, monotonic: Callable[[], float], touched: Callable[[Folder, str], None]) -> None:
        self._roots = roots
        self._monotonic = monotonic
        self._touched = touched
        self._written: dict[Page, _Written] = {}
        self._requests: OrderedDict[Page, tuple[Version, dict[str, Requested]]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._written)

    def add(self, event: Event) -> None:
        """Add an event's entry to the page of its day.

        Raises:
            TooLarge: the page would become larger than is read; the entry is not there.
            StorageFull, FileFailed, Forbidden: it is not there.
        """
        place, name = layout.episodes(event.worker), layout.episode_file(event.at[:10])
        with made(self._roots, place) as folder:
            version = self._append(folder, name, event)
        self._touched(place, name)
        written = self._written.setdefault((event.worker, event.at[:10]), _Written(0.0, version))
        written.at_s, written.version, written.looks = self._monotonic() + LOOK_AFTER_S, version, 0
        written.entries[episode_mark(event)] = encoded(episode_entry(event))

    def _append(self, folder: FolderHandle, name: str, event: Event) -> Version:
        mark, entry = episode_mark(event), encoded(episode_entry(event))
        heading = encoded(episode_heading(event.worker, event.at[:10]))
        for _ in range(_TRIES_MAX):
            before = folder.version(name)
            if before is not None and before.size + len(entry) > PAGE_BYTES_MAX:
                raise TooLarge(
                    f"content: {name} is full ({PAGE_BYTES_MAX:,} bytes); write into a mission, or tomorrow."
                )
            text = heading + entry if before is None else entry
            version = folder.append(name, text)
            self._went_on(event, before, version, len(text))
            now = folder.version(name)
            if now is not None and now.inode == version.inode:
                break
            seen = folder.read(name, PAGE_BYTES_MAX)  # an editor put another file there meanwhile
            if seen is not None and mark in entry_marks(decoded(seen.content)):
                return seen.version
        return version

    def add_missing(self, events: Sequence[Event]) -> None:
        """Add the entries of events that the pages of their days do not have. Each page is read once.

        An entry that a full page has no room for is left out: its event is in the log.
        """
        marks: dict[Page, set[str]] = {}
        for event in events:
            page = (event.worker, event.at[:10])
            with suppress(TooLarge):
                if page not in marks:
                    marks[page] = self._marks(page)
                if episode_mark(event) not in marks[page]:
                    self.add(event)

    def _marks(self, page: Page) -> set[str]:
        folder = opened(self._roots, layout.episodes(page[0]))
        if folder is None:
            return set()
        with folder:
            seen = folder.read(layout.episode_file(page[1]), PAGE_BYTES_MAX)
        return set() if seen is None else entry_marks(decoded(seen.content))

    # --- requests ---

    def replayed(self, event: Event) -> str | None:
        """The instant of the entry that the same request made within REPLAYED_DAYS; None where there is none.

        Raises:
            Conflict: it was for another event.
        """
        folder = opened(self._roots, layout.episodes(event.worker))
        if folder is None or event.request_id is None:
            return None
        asked, today = request_digest(event.request_id), date.fromisoformat(event.at[:10])
        with folder:
            for back in range(-1, REPLAYED_DAYS):
                requests = self._requests_of(folder, (event.worker, (today - timedelta(days=back)).isoformat()))
                if (before := requests.get(asked)) is None:
                    continue
                if not before.is_of(event):
                    raise Conflict("requestId: was used for another event.")
                return before.at
        return None

    def _requests_of(self, folder: FolderHandle, page: Page) -> Mapping[str, Requested]:
        name = layout.episode_file(page[1])
        version = folder.version(name)
        if version is None:
            return {}
        known = self._requests.get(page)
        if known is None or known[0] != version:
            seen = folder.read(name, PAGE_BYTES_MAX)
            if seen is None:
                return {}
            known = self._requests[page] = (seen.version, entry_requests(decoded(seen.content)))
        self._requests.move_to_end(page)
        while len(self._requests) > _PAGES_KEPT:
            self._requests.popitem(last=False)
        return known[1]

    def _went_on(self, event: Event, before: Version | None, after: Version, bytes_: int) -> None:
        """Keep what is known of a page that only our entry came to: a large one is not read again for each."""
        page = (event.worker, event.at[:10])
        known = self._requests.get(page)
        if known is None or before != known[0] or after[:2] != (known[0].inode, known[0].size + bytes_):
            return
        known[1].update(entry_requests(episode_mark(event)))
        self._requests[page] = after, known[1]

    # --- editors ---

    def follow(self, *, whole: bool) -> None:
        """Put back entries that an editor's save has undone: he saved what he had read before they were written."""
        now_s = self._monotonic()
        for page, written in list(self._written.items()):
            if not whole and written.at_s > now_s:
                continue
            del self._written[page]
            try:
                if self._look(page, written) and written.looks < _LOOKS_MAX:
                    written.at_s, written.looks = now_s + LOOK_AFTER_S, written.looks + 1
                    self._written[page] = written
            except Rejection:
                continue  # a page that cannot be read any more

    def _look(self, page: Page, written: _Written) -> bool:
        """Whether the page is to be looked at once more."""
        place, name = layout.episodes(page[0]), layout.episode_file(page[1])
        folder = opened(self._roots, place)
        if folder is None:
            return False
        with folder:
            if folder.version(name) == written.version:
                return False
            seen = folder.read(name, PAGE_BYTES_MAX)
            if seen is None:  # removed, not saved
                return False
            there = entry_marks(decoded(seen.content))
            missing = [entry for mark, entry in written.entries.items() if mark not in there]
            if missing and len(seen.content) + sum(map(len, missing)) <= PAGE_BYTES_MAX:
                written.version = folder.append(name, b"".join(missing))
                self._touched(place, name)
        return bool(missing)
