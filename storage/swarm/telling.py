"""Events that are also episodes of the agents that their workers are: each once, whatever is repeated or breaks down.

The event's line in the log names the agent: whatever happens after it, the episode is owed. An event without a mission
has no log: a file of its own keeps it while the database does not take it. A request id that follows from the event
lets it be written only once.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import chain, islice
from typing import Final

from storage import limits
from storage.batch import Outcome, Write
from storage.errors import Rejection, StorageBusy, StorageFull, StorageUnavailable, UnknownAgent
from storage.records import Remembered
from storage.state import Request
from storage.swarm import layout
from storage.swarm.events import AHEAD_MAX, LISTS, Event, parse
from storage.swarm.folders import FolderHandle, made, opened
from storage.swarm.layout import EVENTS, Folder, Roots
from storage.swarm.missions import EVENTS_BYTES_MAX
from storage.write_units import WriteUnits

OWED_MAX: Final = 10_000
"""Fresh events in memory; beyond it the logs are read again for the rest."""
_KEPT_S: Final = limits.REQUEST_ID_KEPT_S - 86_400.0
"""How far back events are told late: as long as their request ids are surely known."""
_FLAG: Final = b'"episodeOf"'
_OWED: Final = ".owed-"
"""Before an instant: a file among the episodes, which holds the event as a log's line."""
_NAMES: Final = {
    "decisions": "Decisions",
    "filesTouched": "Files touched",
    "commandsRun": "Commands run",
    "blockers": "Blockers",
}
_AGAIN: Final = (StorageBusy, StorageFull, StorageUnavailable)


class Telling:
    """What is owed to the episodic memory. Belongs to the writer's thread."""

    def __init__(
        self, roots: Roots, agent_of: Callable[[str], str | None], *, clock: Callable[[], float] = time.time
    ) -> None:
        """`agent_of` names the agent of a worker, where it is one; whether it is registered, the database says."""
        self._roots = roots
        self._clock = clock
        self.agent_of = agent_of
        self._fresh: deque[Event] = deque()
        self._late: deque[Event] = deque()
        self._overflowed = False
        self._walk: Iterator[list[Event]] | None = None
        """Through the logs, until all have been looked into."""
        self.known_from_s = 0.0
        """The instant before which the database does not know what was told."""
        self._kept: set[tuple[str, str]] = set()
        """Worker and instant of the events without a mission that have a file."""

    def __bool__(self) -> bool:
        return bool(self._fresh or self._late or self._overflowed or self._walk is not None)

    def owes(self, worker: str | None, at: str | None) -> bool:
        """Whether the event of an answer is still to be told."""
        return any((event.worker, event.at) == (worker, at) for event in self._fresh)

    def owe(self, event: Event, *, replayed: bool) -> None:
        """Note an event that was written, or asked for again: whether that is told already, the database knows."""
        if not (self._is_owed(event) if replayed else self._is_named(event)):
            return
        if len(self._fresh) < OWED_MAX:
            self._fresh.append(event)
        else:
            self._overflowed = True

    def _is_owed(self, event: Event) -> bool:
        """Whether an event of before may be told: its agent is right, and the database knows what it took since."""
        return self._is_named(event) and _at_s(event) > self._since_s()

    def _is_named(self, event: Event) -> bool:
        """Whether an event names the agent that its worker is now.

        A line that names another is none of ours: nobody writes under a name by editing a file.
        """
        return event.told_as is not None and event.told_as == self.agent_of(event.worker)

    def _since_s(self) -> float:
        now_s, known_s = self._clock(), self.known_from_s - AHEAD_MAX.total_seconds()
        # What was made in the future was made by a clock that was wrong: it says nothing.
        return max(now_s - _KEPT_S, known_s if known_s <= now_s else 0.0)

    def owe_unfinished(self) -> None:
        """Go through the logs for events that a crash may have left untold; `writes` does it, a log at a time."""
        self._overflowed = False
        self._late.clear()
        self._walk = self._unfinished()

    def _unfinished(self) -> Iterator[list[Event]]:
        """The events of each log that may be owed."""
        for worker in self._names(Folder("profiles", ()), layout.WORKER_ID.fullmatch):
            yield self._read(layout.episodes(worker), partial(self._kept_of, worker))
            for mission in self._names(layout.missions(worker), layout.MISSION_ID.fullmatch):
                yield self._read(layout.mission(worker, mission), partial(self._owed_of, worker, mission))

    def _read(self, place: Folder, read: Callable[[FolderHandle], list[Event]]) -> list[Event]:
        with suppress(Rejection):  # what cannot be read is named by the reconciliation at start
            if (folder := opened(self._roots, place)) is not None:
                with folder:
                    return read(folder)
        return []

    def _kept_of(self, worker: str, folder: FolderHandle) -> list[Event]:
        owed: list[Event] = []
        for name in (name for name in folder.names() if name.startswith(_OWED)):
            seen = folder.read(name)
            for event in parse(b"" if seen is None else seen.content, worker, None):
                if self._is_owed(event):
                    owed.append(event)
                elif _at_s(event) <= self._clock() - _KEPT_S:
                    folder.remove(name)
        self._kept.update((worker, event.at) for event in owed)
        return owed

    def keep(self) -> None:
        """Keep what is owed of events without a mission on disk, until it is told.

        Raises:
            StorageFull, FileFailed, Forbidden: of one that was not kept; it is owed as long as this process lives.
        """
        for event in self._fresh:
            if event.mission is None and (event.worker, event.at) not in self._kept:
                with made(self._roots, layout.episodes(event.worker)) as folder:
                    folder.create(_OWED + event.at, event.line())
                self._kept.add((event.worker, event.at))

    def _forget(self, event: Event) -> None:
        if event.mission is None and (event.worker, event.at) in self._kept:
            self._kept.remove((event.worker, event.at))
            with suppress(Rejection):  # it is told: told again, it would be known
                if (folder := opened(self._roots, layout.episodes(event.worker))) is not None:
                    with folder:
                        folder.remove(_OWED + event.at)

    def _owed_of(self, worker: str, mission: str, folder: FolderHandle) -> list[Event]:
        version = folder.version(EVENTS)
        if version is None or version.mtime_ns < self._since_s() * 1e9:
            return []
        seen = folder.part(EVENTS, EVENTS_BYTES_MAX, end=True)
        owed: list[Event] = []
        for line in reversed((b"" if seen is None else seen.content).split(b"\n")):
            for event in parse(line, worker, mission) if _FLAG in line else ():
                if _at_s(event) <= self._since_s():
                    return owed[::-1]
                if self._is_owed(event):
                    owed.append(event)
        return owed[::-1]

    def _names(self, place: Folder, rule: Callable[[str], object]) -> list[str]:
        with suppress(Rejection):
            if (folder := opened(self._roots, place)) is not None:
                with folder:
                    return [name for name in folder.names() if rule(name)]
        return []

    # --- paying ---

    def writes(self, at_most: int) -> list[Write[Remembered]]:
        """The next episodes to be written, those of fresh events first.

        None where the log that was looked into for them owes none: ask again while this is true.
        """
        if not (self._fresh or self._late):
            self._look_on()
        return [_write(event) for event in islice(chain(self._fresh, self._late), at_most)]

    def _look_on(self) -> None:
        """Look into the next log."""
        if self._walk is None and self._overflowed:
            self.owe_unfinished()
        if self._walk is not None:
            owed = next(self._walk, None)
            if owed is None:
                self._walk = None
            else:
                self._late.extend(owed)

    def settle(self, outcomes: Sequence[Outcome]) -> list[Exception]:
        """Take note of how the first of the last `writes` ended; returns what hindered those that are given up.

        Raises:
            StorageBusy, StorageFull, StorageUnavailable: the database could not take one now; it stays, with the rest.
        """
        given_up: list[Exception] = []
        for outcome in outcomes:
            if isinstance(outcome.error, _AGAIN):
                raise outcome.error
            self._forget((self._fresh or self._late).popleft())
            # An agent that is not registered has no episodes, and that is no failure.
            if outcome.error is not None and not isinstance(outcome.error, UnknownAgent):
                given_up.append(outcome.error)
        return given_up


def _at_s(event: Event) -> float:
    return datetime.fromisoformat(event.at).timestamp()


def _write(event: Event) -> Write[Remembered]:
    summary, details, outcome = _summary(event), _details(event), event.text("result") or event.text("state")
    agent = event.told_as or ""

    def unit(units: WriteUnits, at_s: float) -> Remembered:
        return units.remember_episode(
            at_s,
            agent=agent,
            event_type=event.type,
            summary=summary,
            details=details,
            outcome=None if outcome is None else _fit(outcome, limits.SOURCE_CHARS_MAX),
            duration_s=None,
            session=event.mission,
        )

    told = "\0".join((event.worker, event.mission or "", event.at, event.type, summary, details or "", outcome or ""))
    digest = hashlib.sha256(told.encode("utf-8", "replace")).digest()
    return Write(unit, Request(agent, f"swarm-event-{digest.hex()[:40]}", digest, "episodic"))


def _summary(event: Event) -> str:
    first = (event.content or "").strip().partition("\n")[0]
    what = event.summary or first or event.text("result") or event.text("nextAction")
    where = f"mission {event.mission}" if event.mission else f"worker {event.worker}"
    return _fit(what or f"{event.type} of {where}", limits.TEXT_CHARS_MAX)


def _details(event: Event) -> str | None:
    lines = [f"Mission: {event.mission}"] if event.mission else []
    lines += [f"Assignment: {event.assignment}"] if event.assignment else []
    lines += [f"{_NAMES[name]}: {', '.join(items)}" for name in LISTS if (items := event.items(name))]
    lines += [f"Next action: {action}"] if (action := event.text("nextAction")) else []
    text = "\n".join([*lines, *([event.content] if event.content else [])])
    return _fit(text, limits.DETAILS_CHARS_MAX) if text else None


def _fit(text: str, chars: int) -> str:
    return text.replace("\0", "")[:chars]
