"""The writer's side of the swarm's files: each write has one commit point, and pages follow from it.

Everything here runs in the writer's thread. Nothing is written before every id was checked.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from storage.errors import Conflict, InvalidRequest, Rejection, TooLarge
from storage.swarm import layout
from storage.swarm.episodes import Episodes
from storage.swarm.events import EVENT_TYPES, Event, EventType, stamp
from storage.swarm.folders import made, opened
from storage.swarm.handoffs import Handoffs, require_of_mission
from storage.swarm.layout import EVENTS, Folder, Kind, Roots
from storage.swarm.missions import Mission, Missions
from storage.swarm.notes.notes import Notes
from storage.swarm.pages import Persona, profile_pages
from storage.swarm.projecting import LOOK_AGAIN_S, encoded
from storage.swarm.reconciling import Reconciler
from storage.swarm.records import SwarmWritten
from storage.swarm.renames import hash_of
from storage.swarm.roster import ROSTER_UNREAD, Roster
from storage.swarm.summaries import RETRY_S, EpisodesDue, Key, Summaries
from storage.swarm.telling import Telling
from storage.swarm.watching import Watch
from storage.swarm.whole_pages import WholePages

_CLOSING_ROUNDS: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event as it was asked for."""

    type: EventType
    worker: str
    mission: str | None = None
    assignment: str | None = None
    summary: str | None = None
    content: str | None = None
    detail: Mapping[str, Any]
    request_id: str | None = None


class SwarmMemory:
    """Writes the swarm's files. `touched` is told every file that changed."""

    def __init__(
        self,
        roots: Roots,
        *,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        touched: Callable[[Folder, str], None] = lambda _folder, _name: None,
        telling: Telling | None = None,
    ) -> None:
        """With `telling`, each event is also an episode of its worker's agent; whoever has a database pays it."""
        self.roots = roots
        self._telling = telling
        self._clock = clock
        self._monotonic = monotonic
        self._touched = touched
        self.roster = Roster(roots.workspace)
        """Who the workers are."""
        self._missions = Missions()
        self.watch = Watch(roots, monotonic)
        """Looks after what came out of pages' places."""
        self._episodes_due: dict[Key, EpisodesDue] = {}
        self._summaries = Summaries(
            roots,
            self._missions,
            self.watch,
            episodes_due=self._episodes_due,
            monotonic=monotonic,
            touched=touched,
        )
        self._episodes = Episodes(roots, monotonic=monotonic, touched=touched)
        self._handoffs = Handoffs(roots, self.watch, touched)
        self.pages = WholePages(roots, self.watch, monotonic=monotonic, touched=touched)
        """Writes the pages of profiles and of shared memory."""
        self.notes = Notes(roots, self.watch, touched, monotonic=monotonic)
        """Reads and writes workers' notes."""
        self._handoffs_due: dict[str, float] = {}
        self.unread: list[str] = []
        """What the last `reconcile` could not read, and why: the first hundred."""
        self._last_at: str | None = None
        """Of an event without a mission: no two have the same."""

    # --- what is asked for ---

    def scaffold(self, worker: str, persona: Persona) -> SwarmWritten:
        """Make a worker's folders and those of its three files that are missing; what is there is kept."""
        worker = layout.worker_id(worker)
        known = self.roster.persona(worker)
        who = Persona(
            name=persona.name or known.name,
            role=persona.role or known.role,
            specialty=persona.specialty or known.specialty,
            model=persona.model or known.model,
        )
        for folder in (layout.missions(worker), layout.episodes(worker), layout.handoffs(worker)):
            with made(self.roots, folder):
                pass
        with made(self.roots, layout.memory(worker)) as handle:
            for name, text in profile_pages(worker, who):
                if handle.create(name, encoded(text)) is not None:
                    self._touched(layout.memory(worker), name)
        path = str(self.roots.path(layout.memory(worker)))
        reasons = (ROSTER_UNREAD,) if self.roster.read().unread else ()
        return SwarmWritten(workerId=worker, kind="profile", action="scaffolded", path=path, degradedReasons=reasons)

    def write_event(self, asked: NewEvent, *, kind: Kind = "mission") -> SwarmWritten:
        """Write one event: into its mission's log, or without a mission into the day's episodes.

        Raises:
            Conflict: this request id was used for another event.
        """
        worker = layout.worker_id(asked.worker)
        mission = None if asked.mission is None else layout.mission_id(asked.mission)
        if asked.type not in EVENT_TYPES:
            raise InvalidRequest(f"eventType: is none of {', '.join(EVENT_TYPES)}.")
        event = self._event(asked, worker, mission, stamp(self._clock(), self._last_at, ()))
        if mission is None:
            before = None if event.request_id is None else self._episodes.replayed(event)
            if before is None:
                self._episodes.add(event)
                self._last_at = event.at
            self._tell(event if before is None else replace(event, at=before), replayed=before is not None)
            return self._written(event, kind, at=before)
        with made(self.roots, layout.mission(worker, mission)) as folder:
            known = self._missions.of((worker, mission), folder)
            if event.request_id is not None and (earlier := known.requests.get(event.request_id)) is not None:
                return self._answer_again(earlier, event, kind)
            event = self._event(asked, worker, mission, stamp(self._clock(), known.last_at, known.instants))
            shown = known.last_at
            known = self._missions.append(folder, known, event)
            self._touched(layout.mission(worker, mission), EVENTS)
            self._add_entry(known, event, shown)
            self._summaries.soon(known, folder)
        self._tell(event, replayed=False)
        return self._written(event, kind)

    def replayed(self, asked: NewEvent) -> SwarmWritten | None:
        """The answer to an event of a mission whose request was written before; None where it was not. Writes nothing.

        Raises:
            Conflict: this request id was used for another event.
        """
        key = (layout.worker_id(asked.worker), layout.mission_id(asked.mission or ""))
        folder = None if asked.request_id is None else opened(self.roots, layout.mission(*key))
        if folder is None:
            return None
        with folder:
            earlier = self._missions.of(key, folder).requests.get(asked.request_id or "")
        return None if earlier is None else self._answer_again(earlier, self._event(asked, *key, earlier.at), "mission")

    def _answer_again(self, earlier: Event, event: Event, kind: Kind) -> SwarmWritten:
        if not earlier.same_as(event):
            raise Conflict("requestId: was used for another event of this mission.")
        self._tell(earlier, replayed=True)
        return self._written(earlier, kind, at=earlier.at)

    def write_handoff(self, worker: str, mission: str, content: str, *, mirror: bool) -> SwarmWritten:
        """Write a mission's handoff: the worker's copy is the commit point, the mission's and the shared one follow."""
        worker, mission = layout.worker_id(worker), layout.mission_id(mission)
        text = _bytes(content)
        require_of_mission(text, mission)
        whole = self._handoffs.write(worker, mission, text, mirror=mirror)
        if not whole:
            self._handoffs_due[worker] = self._monotonic() + RETRY_S
        shared = self.roots.path(layout.shared_handoffs(), layout.latest_file(worker))
        return SwarmWritten(
            workerId=worker,
            kind="handoff",
            missionId=mission,
            localPath=str(self.roots.path(layout.handoffs(worker), layout.handoff_file(mission))),
            sharedPath=str(shared) if mirror else None,
            hash=hash_of(text),
            degradedReasons=() if whole else ("pages_behind",),
        )

    def write_told_handoff(self, asked: NewEvent, content: str, *, mirror: bool) -> SwarmWritten:
        """Write a handoff and the event that tells of it, by which a retry is known: it writes nothing.

        Raises:
            Conflict: this request id was used for another event.
        """
        mission = layout.mission_id(asked.mission or "")
        require_of_mission(_bytes(content), mission)
        told = {**asked.detail, "handoffHash": hash_of(_bytes(content))}
        event = replace(
            asked, type="handoff-written", summary=asked.summary or "Handoff written.", content=None, detail=told
        )
        before = self.replayed(event)
        if before is not None and not self._owes_handoff(asked.worker, mission, before.at or ""):
            return replace(before, kind="handoff")
        # The event first: after a crash in between, its retry is known by it, and the handoff made up for.
        written = before or self.write_event(event)
        handoff = self.write_handoff(asked.worker, mission, content, mirror=mirror)
        return replace(
            written,
            kind="handoff",
            localPath=handoff.localPath,
            sharedPath=handoff.sharedPath,
            hash=handoff.hash,
            degradedReasons=tuple(dict.fromkeys((*handoff.degradedReasons, *written.degradedReasons))),
        )

    def events(self, worker: str, mission: str) -> Sequence[Event]:
        """The events of a mission so far, in the order of its log; none where there is no log."""
        key = (layout.worker_id(worker), layout.mission_id(mission))
        folder = opened(self.roots, layout.mission(*key))
        if folder is None:
            return ()
        with folder:
            return self._missions.of(key, folder).events

    def _owes_handoff(self, worker: str, mission: str, at: str) -> bool:
        """Whether a mission's handoff is older than an event that told of it: its write was cut short."""
        folder = opened(self.roots, layout.handoffs(layout.worker_id(worker)))
        if folder is None:
            return True
        with folder:
            version = folder.version(layout.handoff_file(layout.mission_id(mission)))
        return version is None or version.mtime_ns < datetime.fromisoformat(at).timestamp() * 1e9

    def write_page(
        self, kind: Kind, worker: str | None, file: str | None, content: str, *, base_hash: str | None
    ) -> SwarmWritten:
        """Write a page of a profile or of shared memory: instead of the version `base_hash`, else behind what is there.

        The hash of nothing stands for a page that does not exist yet.

        Raises:
            Conflict: the page is not the version that the new one was made from.
            TooLarge: the page would become larger than can be read.
        """
        name = layout.page_file(kind, file)
        worker = None if worker is None else layout.worker_id(worker)
        if kind == "profile" and worker is None:
            raise InvalidRequest("workerId: is missing or empty.")
        return self.pages.write(kind, None if kind == "shared" else worker, name, _bytes(content), base_hash)

    # --- pages that follow ---

    @property
    def behind(self) -> bool:
        """Whether `follow` has something to do, now or a little later, or an event is still to be told."""
        pages = self._summaries or self._episodes or self.pages or self.notes or self.watch or self._telling
        return bool(pages or self._episodes_due or self._handoffs_due) or self._summaries.has_looks()

    def is_behind(self, worker: str) -> bool:
        """Whether a worker's pages do not show all of its events yet."""
        if worker in self._handoffs_due:
            return True
        return self._summaries.is_due(worker) or any(key[0] == worker for key in tuple(self._episodes_due))

    def follow(self, *, whole: bool = False) -> None:
        """Make the pages that are due; all, before their time, where `whole`."""
        now_s = self._monotonic()
        for key, due in list(self._episodes_due.items()):
            if whole or due.at_s <= now_s:
                self._retry_entries(key, due)
        self._summaries.follow(whole=whole)
        self._episodes.follow(whole=False)
        self.pages.follow(whole=False)
        self.notes.follow(whole=False)
        self.watch.follow()
        for name, at_s in list(self._handoffs_due.items()):
            if whole or at_s <= now_s:
                self._retry_handoffs(name)

    def _add_entry(self, known: Mission, event: Event, shown: str | None) -> None:
        """Add an event to the day's page. A failure is made up for later: the event is on disk."""
        key = (known.worker, known.mission)
        if key in self._episodes_due:  # after those that wait
            return
        try:
            self._episodes.add(event)
        except TooLarge:  # the day's page is full, and stays so; the log and SUMMARY.md have it
            return
        except Rejection:
            self._wait_for_entries(key, shown)

    def _wait_for_entries(self, key: Key, shown: str | None) -> None:
        self._episodes_due[key] = EpisodesDue(shown, self._monotonic() + RETRY_S)

    def _retry_entries(self, key: Key, due: EpisodesDue) -> None:
        due.at_s = self._monotonic() + RETRY_S
        try:
            folder = opened(self.roots, layout.mission(*key))
            if folder is None:  # the mission was removed
                del self._episodes_due[key]
                return
            with folder:
                known = self._missions.of(key, folder)
                self._episodes.add_missing(known.since(due.after))
                del self._episodes_due[key]
                self._summaries.project(known, folder)
        except Rejection:
            return

    def _retry_handoffs(self, worker: str) -> None:
        try:
            self._handoffs.make_up(worker)
            del self._handoffs_due[worker]
        except Rejection:
            self._handoffs_due[worker] = self._monotonic() + RETRY_S

    # --- the start and the end ---

    def reconcile(self) -> int:
        """Make up for what a crash left undone: pages behind their log, handoffs without their copies, temporary files.

        Returns how many missions and copies of handoffs were behind. What cannot be read is left alone: `unread`.
        """
        reconciler = Reconciler(
            self.roots,
            missions=self._missions,
            summaries=self._summaries,
            episodes=self._episodes,
            handoffs=self._handoffs,
            watch=self.watch,
            episodes_due=self._wait_for_entries,
        )
        behind = reconciler.reconcile()
        if self._telling is not None:
            self._telling.owe_unfinished()
        self.unread = reconciler.unread
        return behind

    def close(self) -> None:
        """Make every page that is due, and look at what came out of their places; within half a second."""
        for _ in range(_CLOSING_ROUNDS):
            self.follow(whole=True)
            self._episodes.follow(whole=True)
            self.pages.follow(whole=True)
            self.notes.follow(whole=True)
            if not self._summaries and not self.watch:
                return
            time.sleep(LOOK_AGAIN_S + 0.01)

    def _event(self, asked: NewEvent, worker: str, mission: str | None, at: str) -> Event:
        return Event(
            at=at,
            type=asked.type,
            worker=worker,
            mission=mission,
            assignment=asked.assignment,
            summary=asked.summary,
            content=asked.content,
            detail=asked.detail,
            request_id=asked.request_id,
            told_as=None if self._telling is None else self._telling.agent_of(worker),
        ).as_read()

    def _tell(self, event: Event, *, replayed: bool) -> None:
        if self._telling is not None:
            self._telling.owe(event, replayed=replayed)

    def _written(self, event: Event, kind: Kind, *, at: str | None = None) -> SwarmWritten:
        """The answer to an event; `at` is that of the first where it is a replay."""
        key = (event.worker, event.mission or "")
        behind = key in self._episodes_due or self._summaries.has_failed(key)
        return SwarmWritten(
            workerId=event.worker,
            kind=kind,
            eventType=event.type,
            at=at or event.at,
            missionId=event.mission,
            replayed=at is not None,
            degradedReasons=("pages_behind",) if behind else (),
        )


def _bytes(content: str) -> bytes:
    """A caller's text as it is kept; what UTF-8 cannot hold is replaced."""
    return content.encode("utf-8", "replace")
