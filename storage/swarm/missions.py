"""A mission's events as the writer keeps them: read once, and again only when another program wrote the file."""

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from storage.errors import Rejection, TooLarge
from storage.swarm.events import Event, parse, torn
from storage.swarm.folders import FolderHandle, Seen, Version
from storage.swarm.layout import EVENTS
from storage.swarm.summary import Summary

EVENTS_BYTES_MAX: Final = 16 * 1_048_576
"""Of a mission's events.jsonl, about 60,000 ordinary events: what is read in about a second."""
_MISSIONS_KEPT: Final = 64
_EVENTS_KEPT: Final = 50_000
"""Of all missions."""
_KEPT_WHATEVER: Final = 3
"""The missions that were written last are kept whatever they hold: work that goes on in some reads none again."""


@dataclass
class Mission:
    """The events of one mission in their order, and what is made of them."""

    worker: str
    mission: str
    events: list[Event] = field(default_factory=list)
    requests: dict[str, Event] = field(default_factory=dict)
    instants: set[str] = field(default_factory=set)
    version: Version | None = None
    """Of the file that they were read from; None where there is none."""
    digest: blake2b = field(default_factory=blake2b)
    """Of that file."""
    page: Version | None = None
    """Of the SUMMARY.md that we wrote last."""
    projected_at_s: float | None = None
    """When SUMMARY.md was made anew, by the monotonic clock."""
    summary: Summary = field(init=False)

    def __post_init__(self) -> None:
        self.summary = Summary(self.mission)

    @property
    def last_at(self) -> str | None:
        """The instant of the last event."""
        return self.events[-1].at if self.events else None

    def add(self, event: Event) -> None:
        """Take one more."""
        self.events.append(event)
        self.instants.add(event.at)
        self.summary.add(event)
        if event.request_id is not None:
            self.requests.setdefault(event.request_id, event)

    def since(self, at: str | None) -> list[Event]:
        """The events after the last one of an instant; all of them where there is none."""
        for place in range(len(self.events) - 1, -1, -1):
            if self.events[place].at == at:
                return self.events[place + 1 :]
        return list(self.events)


class Missions:
    """The missions that were written last."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], Mission] = OrderedDict()
        self._events = 0

    def of(self, key: tuple[str, str], folder: FolderHandle) -> Mission:
        """A mission as its file is now. A last line that was cut off in the middle is removed from the file.

        Raises:
            FileFailed, Forbidden, TooLarge: the file cannot be read.
        """
        known = self._known.get(key)
        version = folder.version(EVENTS)
        if known is None or known.version != version:
            known = self._read(key, folder, known)
        self._known.move_to_end(key)
        return known

    def append(self, folder: FolderHandle, mission: Mission, event: Event) -> Mission:
        """Write one event behind the others: its commit point. Returns the mission with it.

        Raises:
            TooLarge: the log would become larger than is read. Nothing was written.
            StorageFull, FileFailed, Forbidden: nothing was written.
        """
        line = event.line()
        before = mission.version
        if (0 if before is None else before.size) + len(line) > EVENTS_BYTES_MAX:
            raise _full(mission.mission)
        after = folder.append(EVENTS, line)
        alone = after.size == len(line) if before is None else after[:2] == (before.inode, before.size + len(line))
        if not alone:  # another program has written as well
            with suppress(Rejection):  # the event is on disk, whatever comes of reading it
                return self.of((mission.worker, mission.mission), folder)
        mission.version = after if alone else None
        mission.digest.update(line)
        mission.add(event)
        self._events += 1
        self._forget()
        return mission

    def _read(self, key: tuple[str, str], folder: FolderHandle, known: Mission | None) -> Mission:
        seen = _seen(folder, key[1])
        self._events -= 0 if known is None else len(known.events)
        mission = known if known is not None and _has_grown(known, seen) else Mission(*key)
        if known is not None:
            mission.page, mission.projected_at_s = known.page, known.projected_at_s
        try:
            _take(mission, folder, seen)
        except Rejection:
            self._known.pop(key, None)
            raise
        self._known[key] = mission
        self._known.move_to_end(key)
        self._events += len(mission.events)
        self._forget()
        return mission

    def _forget(self) -> None:
        while len(self._known) > _KEPT_WHATEVER and (len(self._known) > _MISSIONS_KEPT or self._events > _EVENTS_KEPT):
            _, gone = self._known.popitem(last=False)
            self._events -= len(gone.events)


def _full(mission: str) -> TooLarge:
    return TooLarge(f"missionId: the log of {mission} is full ({EVENTS_BYTES_MAX:,} bytes); begin a new mission.")


def _seen(folder: FolderHandle, mission: str) -> Seen | None:
    try:
        seen = folder.read(EVENTS, EVENTS_BYTES_MAX)
    except TooLarge as error:
        raise _full(mission) from error
    return None if seen is None else Seen(seen.content[: seen.version.size], seen.version)


def _has_grown(known: Mission, seen: Seen | None) -> bool:
    """Whether a log is what was read of it, with more behind."""
    before = known.version
    if before is None or seen is None or before.inode != seen.version.inode or before.size > len(seen.content):
        return False
    return blake2b(memoryview(seen.content)[: before.size]).digest() == known.digest.digest()


def _take(mission: Mission, folder: FolderHandle, seen: Seen | None) -> None:
    """Take the events of a log that are not taken yet."""
    if seen is None:
        return
    content, size = seen.content[0 if mission.version is None else mission.version.size :], len(seen.content)
    version = seen.version
    if (start := torn(content)) is not None:
        size += start - len(content)
        content, version = content[:start], folder.cut(EVENTS, size, len(seen.content))
    elif content and not content.endswith(b"\n"):
        content, size, version = content + b"\n", size + 1, folder.append(EVENTS, b"\n")
    # Another program may have written behind it meanwhile: then it is read again.
    mission.version = version if version.size == size else None
    mission.digest.update(content)
    for event in parse(content, mission.worker, mission.mission):
        mission.add(event)
