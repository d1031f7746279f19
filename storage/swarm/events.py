"""Events of a mission: one line of events.jsonl each, and that line is the event's commit point."""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, get_args

from storage.errors import InvalidRequest

EventType = Literal[
    "mission-start",
    "dispatch",
    "checkpoint",
    "handoff-requested",
    "handoff-written",
    "resume",
    "blocked",
    "complete",
    "note",
]
EVENT_TYPES: Final[tuple[str, ...]] = get_args(EventType)
LISTS: Final = ("decisions", "filesTouched", "commandsRun", "blockers")
TEXTS: Final = ("state", "result", "nextAction", "title", "objective")
AHEAD_MAX: Final = timedelta(minutes=1)
"""An event may be later than the clock by this, so that it is later than the one before; a clock may have been set."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_LINE_BREAKS: Final = {ord(char): f"\\u{ord(char):04x}" for char in "\x85\u2028\u2029"}
"""JSON may hold them as they are, but some readers of lines break lines at them."""
_FIRST: Final = b'{"at": "'
"""How every line of ours begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """What a worker did, or what was done with it."""

    at: str
    """ISO 8601 with milliseconds, UTC; no two events of a mission that we wrote have the same."""
    type: EventType
    worker: str
    mission: str | None = None
    assignment: str | None = None
    summary: str | None = None
    content: str | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)
    """The member `event`: texts and lists that feed the sections of pages, and whatever else was sent."""
    request_id: str | None = None
    told_as: str | None = None
    """The agent of whom this is an episode as well; None where it is none."""

    def line(self) -> bytes:
        """The event as a line of events.jsonl.

        Raises:
            InvalidRequest: JSON cannot hold its `detail`.
        """
        members = {
            "at": self.at,
            "type": self.type,
            "workerId": self.worker,
            "missionId": self.mission,
            "assignmentId": self.assignment,
            "summary": self.summary,
            "content": self.content,
            "event": self.detail or None,
            "requestId": self.request_id,
            "episodeOf": self.told_as,
        }
        given = {name: value for name, value in members.items() if value is not None}
        try:
            text = json.dumps(given, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequest(f"event: is no JSON ({error}).") from error
        return text.translate(_LINE_BREAKS).encode("utf-8", "replace") + b"\n"

    def as_read(self) -> "Event":
        """The event as its line will be read: what UTF-8 cannot hold is replaced already.

        Raises:
            InvalidRequest: JSON cannot hold its `detail`.
        """
        read = _event(self.line(), self.worker, self.mission)
        if read is None:
            raise InvalidRequest("event: is nested too deeply.")
        return read

    def same_as(self, other: "Event") -> bool:
        """Whether two events say the same; their times, request ids and agents aside."""
        return (self.type, self.worker, self.mission, self.assignment, self.summary, self.content) == (
            other.type,
            other.worker,
            other.mission,
            other.assignment,
            other.summary,
            other.content,
        ) and dict(self.detail) == dict(other.detail)

    def text(self, name: str) -> str | None:
        """One of TEXTS, where the event has it."""
        value = self.detail.get(name)
        return None if value is None or value == "" else _as_text(value)

    def items(self, name: str) -> list[str]:
        """One of LISTS; a single text counts as a list of one."""
        value = self.detail.get(name)
        values = value if isinstance(value, list) else [] if value is None else [value]
        return [_as_text(item) for item in values if item not in (None, "")]


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def parse(content: bytes, worker: str, mission: str | None) -> Iterator[Event]:
    """The events of a mission's events.jsonl; lines that are none (torn, or a person's) are left out.

    Whose they are, the file's place says: what a line says of it names no file.
    """
    for line in content.split(b"\n"):
        event = _event(line, worker, mission)
        if event is not None:
            yield event


def parse_back(content: bytes, worker: str, mission: str | None) -> Iterator[Event]:
    """As `parse`, from the last line to the first: each is read as it is asked for."""
    for line in reversed(content.split(b"\n")):
        event = _event(line, worker, mission)
        if event is not None:
            yield event


def _event(line: bytes, worker: str, mission: str | None) -> Event | None:
    try:
        members = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(members, dict):
        return None
    at, kind, detail = _instant(members.get("at")), members.get("type"), members.get("event")
    if at is None or kind not in EVENT_TYPES:
        return None
    return Event(
        at=at,
        type=kind,
        worker=worker,
        mission=mission,
        assignment=_optional(members.get("assignmentId")),
        summary=_optional(members.get("summary")),
        content=_optional(members.get("content")),
        detail=detail if isinstance(detail, dict) else {},
        request_id=_optional(members.get("requestId")),
        told_as=_optional(members.get("episodeOf")),
    )


def _optional(value: Any) -> str | None:
    return None if value is None else str(value)


def _instant(value: Any) -> str | None:
    """An instant that another program may have written, as ours are written; its day names a file."""
    if not isinstance(value, str):
        return None
    try:
        at = datetime.fromisoformat(value)
        return _iso(at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC))
    except (ValueError, OverflowError):
        return None


def torn(content: bytes) -> int | None:
    """Where the last line begins, if it is one of ours that was cut off in the middle; None otherwise."""
    start = content.rfind(b"\n") + 1
    last = content[start:]
    if not last or not (last.startswith(_FIRST) or _FIRST.startswith(last)):
        return None
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return start
    return None


def stamp(now_s: float, last: str | None, taken: Collection[str]) -> str:
    """An instant for an event: now, a little more where that is not after the event before, and none that is taken."""
    at = datetime.fromtimestamp(int(now_s * 1000) / 1000, UTC)
    if last is not None and at <= (before := datetime.fromisoformat(last)) <= at + AHEAD_MAX:
        at = before + _MILLISECOND
    while _iso(at) in taken:
        at += _MILLISECOND
    return _iso(at)


def _iso(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
