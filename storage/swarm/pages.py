"""The Markdown of the swarm that is written once: what templates and events make of a page. Pure functions of text.

Text of events is made harmless here: it begins no line of its own, no heading and no marker.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, NamedTuple

from storage.swarm.events import Event

OPEN: Final = "- ..."
"""What a list of a template holds before anything is known."""
_BREAKS: Final = "\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029"
_BREAK: Final = re.compile(f"[{_BREAKS}]+")
_LINE_END: Final = re.compile(f"\r\n|[{_BREAKS}]")
_CONTROL: Final = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_HEADING: Final = re.compile(r"\s*(#|=+\s*$|-+\s*$)")
_STRUCTURE: Final = re.compile(r"#|`{3}|~{3}|=+\s*$|-+\s*$|<[A-Za-z/!?]")
"""What begins a heading, a fence or a block of HTML that would swallow the lines below."""


def one_line(text: str) -> str:
    """Text that stays on its line, and forges no marker; behind other text of the line it forges no heading."""
    return _harmless(_BREAK.sub(" ", text)).strip()


def _harmless(line: str) -> str:
    flat = _SURROGATE.sub("\ufffd", _CONTROL.sub("", line))
    return flat.replace("<!--", "&lt;!--").replace("-->", "--&gt;")


def plain_start(line: str) -> str:
    """A line that is text where it stands alone or as an item of a list: neither a heading nor a fence."""
    return "\\" + line if _STRUCTURE.match(line) else line


def quoted(text: str) -> list[str]:
    """Text of several lines as a quotation, which no line of it can leave."""
    lines = [_harmless(line).rstrip() for line in _LINE_END.split(text.strip())]
    return [f"> {_no_heading(line)}".rstrip() for line in lines]


def _no_heading(line: str) -> str:
    if not _HEADING.match(line):
        return line
    start = len(line) - len(line.lstrip())
    return f"{line[:start]}\\{line[start:]}"


# --- episodes ---


def episode_heading(worker: str, day: str) -> str:
    """The beginning of an episode page."""
    return f"# Episodes — {worker} — {day}\n"


def episode_entry(event: Event) -> str:
    """An event as an entry of its day's page; it begins with an empty line."""
    told = [
        ("Mission", event.mission),
        ("Assignment", event.assignment),
        ("Summary", event.summary),
        ("Result", event.text("result")),
        ("Next action", event.text("nextAction")),
    ]
    lines = ["", f"## {event.at[11:16]} UTC — {event.type}", episode_mark(event), ""]
    lines += [f"- {name}: {one_line(value)}" for name, value in told if value]
    lists = (("Blockers", "blockers"), ("Files touched", "filesTouched"), ("Commands run", "commandsRun"))
    for name, items in ((name, event.items(member)) for name, member in lists):
        lines += [f"- {name}: {', '.join(map(one_line, items))}"] if items else []
    if event.content:
        lines += ["", *quoted(event.content)]
    return "\n".join([*lines, ""])


def episode_mark(event: Event) -> str:
    """The line that tells an entry: a comment with the mission and the instant, and of a request id its digest."""
    request = "" if event.request_id is None else f" request={request_digest(event.request_id)}:{_said_digest(event)}"
    return f"<!-- solos:event {event.mission or '-'} {event.at}{request} -->"


_ENTRY: Final = re.compile(r"<!-- solos:event (\S+) (\S+)(?: request=([0-9a-f]{16}):([0-9a-f]{16}))? -->")


def entry_marks(page: str) -> set[str]:
    """The marks of the entries in an episode page."""
    return {line.strip() for line in page.split("\n") if line.startswith("<!-- solos:event ")}


class Requested(NamedTuple):
    """A request that an entry without a mission answered."""

    at: str
    said: str
    """A digest of what the event said."""

    def is_of(self, event: Event) -> bool:
        """Whether it was for this event."""
        return self.said == _said_digest(event)


def entry_requests(page: str) -> dict[str, Requested]:
    """The requests of the entries without a mission in an episode page, by the digest of their id."""
    found = (_ENTRY.fullmatch(mark) for mark in entry_marks(page))
    return {mark[3]: Requested(mark[2], mark[4]) for mark in found if mark is not None and mark[1] == "-" and mark[3]}


def request_digest(request_id: str) -> str:
    """A request id as an entry keeps it: whatever it holds, it forges nothing."""
    return _digest(request_id)


def _said_digest(event: Event) -> str:
    said = [event.type, event.assignment, event.summary, event.content, event.detail]
    return _digest(json.dumps(said, sort_keys=True))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


# --- profiles ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Persona:
    """Who a worker is, as the roster and the request say."""

    name: str | None = None
    role: str | None = None
    specialty: str | None = None
    model: str | None = None


def profile_pages(worker: str, persona: Persona) -> Iterator[tuple[str, str]]:
    """(name, text) of the three files of a fresh profile."""
    role = plain_start(one_line(persona.role or "")) or "..."
    specialty = one_line(persona.specialty or "") or "..."
    yield (
        "MEMORY.md",
        _text(
            [
                f"# Memory — {worker}",
                *_headed("Role", f"{role} — {specialty}"),
                *_headed("Durable operating notes", OPEN),
                *_headed("Project conventions", OPEN),
                *_headed("Lessons learned", OPEN),
            ]
        ),
    )
    yield (
        "IDENTITY.md",
        _text(
            [
                f"# IDENTITY.md — {worker}",
                "",
                f"- Name: {one_line(persona.name or '') or worker}",
                f"- Worker ID: {worker}",
                f"- Role: {role}",
                f"- Specialty: {specialty}",
                f"- Model: {one_line(persona.model or '') or '...'}",
            ]
        ),
    )
    yield (
        "SOUL.md",
        _text(
            [
                f"# SOUL.md — {worker}",
                *_headed("Behaviour", f"- Works as {role}."),
                *_headed("Tone and decisions", OPEN),
                *_headed("Escalation", OPEN),
                *_headed("Quality bar", OPEN),
            ]
        ),
    )


def _headed(title: str, line: str) -> list[str]:
    return ["", f"## {title}", "", line]


def _text(lines: Iterable[str]) -> str:
    return "\n".join([*lines, ""])
