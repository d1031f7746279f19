"""A mission's SUMMARY.md: what its events say so far. Each event is taken in once, however many there are."""

import re
from collections import deque
from itertools import islice
from typing import Final

from storage.swarm.events import Event
from storage.swarm.merging import Section, merged
from storage.swarm.pages import OPEN, one_line, plain_start

CHECKPOINTS_SHOWN: Final = 50
LISTED_MAX: Final = 200
"""Of decisions, files and blockers: the newest are shown."""
_LINE_CHARS_MAX: Final = 1_000
_TEXT_CHARS_MAX: Final = 8_000
_CUT: Final = "… (the whole is in events.jsonl)"
_STATUS: Final = {
    "mission-start": "planning",
    "dispatch": "executing",
    "checkpoint": "executing",
    "resume": "executing",
    "blocked": "blocked",
    "complete": "complete",
}
"""By event type; any other keeps what was."""
_UPDATED: Final = "- Last updated: "
_BEHIND: Final = "- Episodes do not show yet what came after: "
_STATE: Final = re.compile(r"<!-- solos:begin state -->(.*?)<!-- solos:end state -->", re.DOTALL)
_SEEN: Final = re.compile(rf"^(?:{_UPDATED}|{_BEHIND})([^\r\n]*)", re.MULTILINE)
_START: Final = "the start"


def _cut(text: str, chars_max: int = _LINE_CHARS_MAX) -> str:
    return text if len(text) <= chars_max else text[: chars_max - len(_CUT)].rstrip() + _CUT


class _Latest:
    """A section that shows the last text of its member."""

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._shown = "..."
        self._ours = {self._shown}

    def add(self, text: str | None) -> None:
        if text and (line := _cut(plain_start(one_line(text)), _TEXT_CHARS_MAX)):
            self._shown = line
            self._ours.add(line)

    def section(self) -> Section:
        return Section(self._name, self._title, [self._shown], self._ours)


class _Listing:
    """A section that lists the items of its member, each once."""

    def __init__(self, name: str, title: str) -> None:
        self._name, self._title = name, title
        self._items: dict[str, None] = {}
        self._ours = {OPEN}

    def add(self, items: list[str]) -> None:
        for item in items:
            if not (text := one_line(item)):
                continue
            line = f"- {_cut(plain_start(text))}"
            self._items.setdefault(line)
            self._ours.add(line)
            if len(self._items) > LISTED_MAX:
                self._ours.add(self._left_out())

    def clear(self) -> None:
        self._items.clear()

    def _left_out(self) -> str:
        return f"- ({len(self._items) - LISTED_MAX} older ones are in events.jsonl)"

    def section(self) -> Section:
        lines = list(islice(reversed(self._items), LISTED_MAX))[::-1] or [OPEN]
        if len(self._items) > LISTED_MAX:
            lines = [self._left_out(), *lines]
        return Section(self._name, self._title, lines, self._ours)


class Summary:
    """What a mission's SUMMARY.md shows."""

    def __init__(self, mission: str) -> None:
        self._mission = mission
        self._status = "planning"
        self._assignment = "none"
        self._updated = "never"
        self._behind: str | None = None
        self._states = {*self._state(), _BEHIND + _START}
        self._heading = f"# Mission {mission} — {mission}"
        self._headings = {self._heading}
        self._objective = _Latest("objective", "Objective")
        self._decisions = _Listing("decisions", "Decisions")
        self._files = _Listing("files", "Files touched")
        self._blockers = _Listing("blockers", "Blockers")
        self._next = _Latest("next", "Next action")
        self._shown: deque[str] = deque(maxlen=CHECKPOINTS_SHOWN)
        self._told = {OPEN}
        self._events, self._checkpoints = 0, 0

    def add(self, event: Event) -> None:
        """Take one more event."""
        if event.type == "checkpoint" and (event.text("state") or "").upper() == "REVIEW":
            self._status = "review"
        else:
            self._status = _STATUS.get(event.type, self._status)
        self._assignment = one_line(event.assignment or "") or self._assignment
        self._updated = event.at
        self._states.update((*self._state(), _BEHIND + event.at))
        if title := one_line(event.text("title") or ""):
            self._heading = f"# Mission {self._mission} — {_cut(title)}"
            self._headings.add(self._heading)
        self._objective.add(event.text("objective"))
        self._decisions.add(event.items("decisions"))
        self._files.add(event.items("filesTouched"))
        if event.type in ("resume", "complete"):  # what blocked the mission has ended
            self._blockers.clear()
        else:
            self._blockers.add(event.items("blockers"))
        self._next.add(event.text("nextAction"))
        self._shown.appendleft(_told(event))
        self._events += 1
        self._checkpoints += event.type == "checkpoint"
        self._told |= {self._shown[0], self._total()}

    def page(self, page: str | None) -> str:
        """SUMMARY.md over a person's page, which is kept; None where there is none yet."""
        sections = [
            Section("state", "Current state", self._state(), self._states),
            self._objective.section(),
            self._decisions.section(),
            self._files.section(),
            Section("checkpoints", "Checkpoints", self._told_lines(), self._told),
            self._blockers.section(),
            self._next.section(),
        ]
        return merged(page, self._heading, self._headings, sections)

    def episodes_behind(self, shown: str | None, *, behind: bool) -> None:
        """Let the page say that the episodes show events up to the instant `shown` only, or that they show all.

        It is on disk then: after a crash, what is missing is known.
        """
        self._behind = f"{_BEHIND}{shown or _START}" if behind else None

    def _state(self) -> list[str]:
        lines = [f"- Status: {self._status}", f"- Current assignment: {_cut(self._assignment)}"]
        return [*lines, f"{_UPDATED}{self._updated}", *([self._behind] if self._behind else [])]

    def _told_lines(self) -> list[str]:
        return [self._total(), *self._shown] if self._events else [OPEN]

    def _total(self) -> str:
        left_out = f"; the newest {CHECKPOINTS_SHOWN} are shown" if self._events > CHECKPOINTS_SHOWN else ""
        return f"- Total: {self._events} events, {self._checkpoints} of them checkpoints{left_out}"


def _told(event: Event) -> str:
    said = [event.summary, event.text("result"), event.content]
    told = " — ".join(dict.fromkeys(one_line(part) for part in said if part))
    return f"- {event.at} — {event.type}" + (f" — {_cut(told)}" if told else "")


def shown_until(page: str | None) -> str | None:
    """The instant of the last event that both a SUMMARY.md and the episodes show; None where that is none."""
    state = _STATE.search(page or "")
    found = _SEEN.findall(state[1]) if state is not None else []
    return None if not found or found[-1] == _START else found[-1]
