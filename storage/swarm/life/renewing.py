"""A worker's renewal before its context is full: handoff requested, written, resumed. Each step is an event.

The log tells where a renewal stands, so that it goes on after any crash, and each step may be sent again.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from storage.errors import Conflict, InvalidRequest
from storage.swarm import layout
from storage.swarm.events import AHEAD_MAX, Event, EventType
from storage.swarm.layout import Roots
from storage.swarm.life.handed import Handed, handoffs_of, latest_of_worker, own_handoffs
from storage.swarm.life.records import (
    BUDGET_CHARS,
    HANDOFF_TIMEOUT_S,
    HANDOFF_TIMEOUT_S_MAX,
    RenewalState,
    Renewed,
    Resume,
)
from storage.swarm.life.resume import Resumes
from storage.swarm.life.runtime import runtime_of
from storage.swarm.memory import NewEvent, SwarmMemory
from storage.swarm.records import SwarmWritten
from storage.times import iso_within

_HASH: Final = "handoffHash"
"""The member of events that names a handoff."""
_AHEAD_S: Final = AHEAD_MAX.total_seconds()
_CLOCK_GRAIN_S: Final = 0.02
"""A file's time comes from a coarser clock than an event's: it may be this much too early."""


_WRITTEN_WITHIN_S: Final = 15.0
"""A handoff's file is written this long after the event that tells of it, at most."""


class HandoffNotFit(Conflict):
    """There is no handoff that a renewal may resume on; nothing was written."""

    hint = "What to do in each case stands in runbooks/swarm-life.md#renew-a-worker."


class HandoffAwaited(HandoffNotFit):
    """The handoff is not there yet, and its time is not over."""

    retry_after_s = 5


@dataclass(frozen=True, slots=True)
class _Renewal:
    """A worker's renewal as the log of its mission has it."""

    worker: str
    mission: str
    requested: Event
    before: Sequence[Event]
    """What came before the request."""
    since: Sequence[Event]
    """What came after it."""

    @property
    def timeout_s(self) -> float:
        given = self.requested.detail.get("timeoutS")
        # Another program may have written any number, or none.
        if isinstance(given, int | float) and 0 < given <= HANDOFF_TIMEOUT_S_MAX:
            return float(given)
        return HANDOFF_TIMEOUT_S

    @property
    def due_s(self) -> float:
        return self._asked_s + self.timeout_s

    def awaited(self, now_s: float) -> bool:
        """Whether a handoff is still waited for. A request of the future, by a clock that was wrong, is none."""
        return self.last("resume") is None and self.is_past(now_s) and now_s <= self.due_s

    def is_past(self, now_s: float) -> bool:
        """Whether the request was made by now."""
        return self._asked_s <= now_s + _AHEAD_S

    @property
    def _asked_s(self) -> float:
        return _seconds(self.requested.at)

    def last(self, kind: str) -> Event | None:
        """The last event of a type since."""
        return next((event for event in reversed(self.since) if event.type == kind), None)

    def follows(self, handed: Handed, now_s: float) -> bool:
        """Whether a handoff was written after it was asked for: the log tells of it since, or its file is younger.

        A file of the future proves nothing, nor one that the log told of before the request when it was as young.
        """
        if any(_tells(event, handed) for event in self.since):
            return True
        written_s = handed.written_ns / 1e9
        if not self._asked_s - _CLOCK_GRAIN_S <= written_s <= now_s + _AHEAD_S:
            return False
        return all(written_s > _seconds(event.at) + _WRITTEN_WITHIN_S for event in self.before if _tells(event, handed))


class Renewals:
    """Takes renewals through their steps. Belongs to the writer's thread."""

    def __init__(
        self, roots: Roots, memory: SwarmMemory, resumes: Resumes, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._roots = roots
        self._memory = memory
        self._resumes = resumes
        self._clock = clock

    def is_open(self, worker: str, mission: str) -> bool:
        """Whether a handoff of a mission was requested, and nothing resumed since."""
        renewal = self._renewal(worker, mission)
        return renewal is not None and renewal.last("resume") is None

    def request(self, asked: NewEvent, *, timeout_s: float = HANDOFF_TIMEOUT_S) -> Renewed:
        """Ask for a handoff. While one is awaited already, that request is the answer.

        Raises:
            InvalidRequest: there is no mission.
            HandoffNotFit: runtime.json is at another mission.
            Conflict: the request id was used for another event.
        """
        worker, mission = self._mission(asked)
        before = self._renewal(worker, mission)
        if before is not None and before.awaited(self._clock()):
            return self._renewed(before, "requested", before.requested.at, replayed=True)
        event = _step(asked, "handoff-requested", mission, "Handoff requested.", {"timeoutS": timeout_s})
        written = self._memory.write_event(event)
        return self._answer(self._required(worker, mission), "requested", written)

    def write(self, asked: NewEvent, content: str, *, mirror: bool = True) -> Renewed:
        """Write the handoff that was asked for. One that comes late is written all the same: it is never lost.

        Raises:
            HandoffNotFit: none was requested.
            Conflict: the request id was used for another event, or the heading names another mission.
        """
        worker, mission = self._mission(asked)
        renewal = self._required(worker, mission)
        written = self._memory.write_told_handoff(
            _step(asked, "handoff-written", mission, "Handoff written.", {}), content, mirror=mirror
        )
        return self._answer(renewal, "written", written, handed=latest_of_worker(self._roots, worker, mission))

    def resume(self, asked: NewEvent, *, expected: str | None = None, budget: int = BUDGET_CHARS) -> Renewed:
        """Go on from the handoff that was asked for. `expected` is the hash that the caller read, if it did.

        Raises:
            HandoffAwaited: it is missing or older than the request, and its time is not over.
            HandoffNotFit: the same after its time; none was requested; it is of another mission; or it has changed
                since it was written, or since the caller read it.
        """
        worker, mission = self._mission(asked)
        renewal = self._required(worker, mission)
        handed = self._fit(renewal, expected)
        before = renewal.last("resume")
        if before is not None and before.detail.get(_HASH) == handed.hash:
            resume = self._resumes.resume(worker, mission=mission, budget=budget, handed=handed)
            return self._renewed(renewal, "resumed", before.at, handed=handed, resume=resume, replayed=True)
        told = renewal.last("handoff-written")
        if told is None or told.detail.get(_HASH) != handed.hash:
            # Written by hand, or read by the caller after it had changed: the step is on record all the same.
            found = NewEvent(type="handoff-written", worker=worker, mission=mission, detail={_HASH: handed.hash})
            self._memory.write_event(replace(found, summary=f"Handoff found in {handed.name}."))
        written = self._memory.write_event(
            _step(asked, "resume", mission, "Resumed from the handoff.", {_HASH: handed.hash})
        )
        resume = self._resumes.resume(worker, mission=mission, budget=budget, handed=handed)
        return self._answer(renewal, "resumed", written, handed=handed, resume=resume)

    # --- what there is ---

    def _mission(self, asked: NewEvent) -> tuple[str, str]:
        """(worker, mission): the one that is named, else that of runtime.json; the two must not differ."""
        worker = layout.worker_id(asked.worker)
        named = None if asked.mission is None else layout.mission_id(asked.mission)
        runtime = runtime_of(self._roots, worker)
        mission = named or runtime.mission
        if mission is None:
            raise InvalidRequest(f"missionId: send it; the worker's runtime.json tells none ({runtime.missing})")
        if runtime.mission not in (None, mission):
            raise HandoffNotFit(
                f"missionId: {worker} is at {runtime.mission} by its runtime.json, not at {mission}; renew that one, "
                "or have runtime.json written first."
            )
        return worker, mission

    def _renewal(self, worker: str, mission: str) -> _Renewal | None:
        """What came of the last request for a handoff; None where there was none."""
        events = self._memory.events(worker, mission)
        for at in range(len(events) - 1, -1, -1):
            if events[at].type == "handoff-requested":
                return _Renewal(worker, mission, events[at], events[:at], events[at + 1 :])
        return None

    def _required(self, worker: str, mission: str) -> _Renewal:
        renewal = self._renewal(worker, mission)
        if renewal is None:
            raise HandoffNotFit(f"step: no handoff of {mission} was requested from {worker}; send step request first.")
        return renewal

    def _fit(self, renewal: _Renewal, expected: str | None) -> Handed:
        """The handoff to resume on."""
        handed = latest_of_worker(self._roots, renewal.worker, renewal.mission)
        if handed is None or not renewal.follows(handed, self._clock()):
            self._refuse_other_mission(renewal)
            raise self._unfit(renewal, handed)
        told = renewal.last("handoff-written")
        known = None if told is None else told.detail.get(_HASH)
        if expected is not None and expected.lower() != handed.hash:
            raise HandoffNotFit(
                f"handoffHash: the handoff is another one by now ({handed.hash}); read it, and send its hash."
            )
        if expected is None and isinstance(known, str) and known != handed.hash:
            raise HandoffNotFit(
                f"handoff: it has changed since it was written; read it, and send handoffHash {handed.hash} to resume."
            )
        return handed

    def _refuse_other_mission(self, renewal: _Renewal) -> None:
        """Say so where the worker wrote a handoff since the request, but one of another mission."""
        worker, mission = renewal.worker, renewal.mission
        for one in (*handoffs_of(self._roots, worker, mission), *own_handoffs(self._roots, worker)):
            if one.of not in (None, mission) and renewal.follows(one, self._clock()):
                path = self._roots.path(one.place, one.name)
                raise HandoffNotFit(
                    f"handoff: {path} is of mission {one.of}, not of {mission}; have the worker write it again."
                )

    def _unfit(self, renewal: _Renewal, handed: Handed | None) -> HandoffNotFit:
        what = "there is none" if handed is None else f"the latest was written at {handed.written_at}"
        asked = f"handoff: of {renewal.mission} {what}; it was requested at {renewal.requested.at}"
        due = iso_within(renewal.due_s)
        if not renewal.is_past(self._clock()):
            return HandoffNotFit(f"{asked}, which is in the future by a clock that was wrong; send step request again.")
        if self._clock() <= renewal.due_s:
            return HandoffAwaited(f"{asked} and is awaited until {due}; ask again.")
        waited = f"the wait of {renewal.timeout_s:.0f} s (timeoutS) was over at {due}"
        return HandoffNotFit(f"{asked}, and {waited}; send step request again.")

    # --- answers ---

    def _answer(
        self,
        renewal: _Renewal,
        state: RenewalState,
        written: SwarmWritten,
        *,
        handed: Handed | None = None,
        resume: Resume | None = None,
    ) -> Renewed:
        renewed = self._renewed(renewal, state, written.at or "", handed=handed, resume=resume)
        return replace(renewed, replayed=written.replayed, degradedReasons=written.degradedReasons)

    def _renewed(
        self,
        renewal: _Renewal,
        state: RenewalState,
        at: str,
        *,
        handed: Handed | None = None,
        resume: Resume | None = None,
        replayed: bool = False,
    ) -> Renewed:
        return Renewed(
            workerId=renewal.worker,
            missionId=renewal.mission,
            state=state,
            at=at,
            requestedAt=renewal.requested.at,
            dueAt=iso_within(renewal.due_s),
            handoffPath=None if handed is None else str(self._roots.path(handed.place, handed.name)),
            handoffHash=None if handed is None else handed.hash,
            resume=resume,
            replayed=replayed,
        )


def _step(asked: NewEvent, kind: EventType, mission: str, summary: str, detail: Mapping[str, Any]) -> NewEvent:
    """The event of a step, with what the caller says of it."""
    return replace(
        asked,
        type=kind,
        mission=mission,
        summary=asked.summary or summary,
        content=None,
        detail={**asked.detail, **detail},
    )


def _tells(event: Event, handed: Handed) -> bool:
    """Whether an event tells that this handoff was written."""
    return event.type == "handoff-written" and event.detail.get(_HASH) == handed.hash


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()
