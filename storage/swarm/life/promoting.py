"""Lessons that a worker keeps: one line each, under its heading of MEMORY.md, with where it came from, and each once.

The page after is the page before with one span put in: every other byte is the person's, and stays.
"""

import re
import time
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, NamedTuple

from storage import limits
from storage.errors import Conflict, FileFailed, InvalidRequest, Rejection, TooLarge
from storage.outline import Outline
from storage.search.text import analyse
from storage.swarm import layout
from storage.swarm.folders import FolderHandle, Version, made, opened
from storage.swarm.layout import PROFILE_FILES, Roots
from storage.swarm.life.records import Promoted
from storage.swarm.pages import Persona, one_line, plain_start, profile_pages
from storage.swarm.projecting import QUIET_S, decoded, encoded
from storage.swarm.renames import hash_of
from storage.swarm.whole_pages import WholePages

HEADING: Final = "Lessons learned"
"""Where a lesson goes that names no heading."""
HEADINGS: Final = ("Durable operating notes", "Project conventions", HEADING)
"""Those of the template that a page gets again where it lacks one; the role is the roster's."""
LESSON_CHARS_MAX: Final = limits.SOURCE_CHARS_MAX
PAGE_BYTES_MAX: Final = 1_048_576
"""Of a MEMORY.md that lessons are promoted to: it is curated, and a longer one would hold the writer for seconds."""
_SAID_CHARS_MAX: Final = 8 * LESSON_CHARS_MAX
"""What is longer, with its origin, is compared with no lesson."""
_MEMORY: Final = PROFILE_FILES[0]
_FROM: Final = " — from "
_DATED: Final = re.compile(r", \d{4}-\d{2}-\d{2}\s*")
_DATED_CHARS: Final = 12
_MARKERS: Final = re.compile(r"\s*(?:(?:[-*+>]|\d{1,9}[.)]|\[[ xX]\])\s+)*")
"""What makes an item, a task or a quotation of the text behind it."""
_BULLETS: Final = re.compile(r"(?:[-*+]\s+)*")
_SYMBOLS: Final = ("Sm", "So", "Sc")
_TRIES_MAX: Final = 4
_SHOWN_CHARS: Final = 80
_SHOWN_HEADINGS: Final = 20


class NotClosed(Conflict):
    """A code block or comment of the page is not closed, and would swallow the lesson; nothing was written."""

    hint = "Close it in the page, then send the lesson again."


class Put(NamedTuple):
    """A page with a line put in."""

    page: bytes
    start: int
    """Where the span begins that was put in, in bytes."""
    span: bytes
    line: int
    """The number of the line, from 1."""
    heading: str
    """The heading, as the page spells it."""


class Found(NamedTuple):
    """A line that says what a lesson says."""

    line: int
    """Its number, from 1."""
    heading: str
    """The heading that it stands under; empty above all."""


@dataclass(frozen=True, slots=True)
class Lesson:
    """A lesson as it was asked for and checked."""

    text: str
    origin: str
    """Where it came from, with the day."""
    heading: str

    @property
    def line(self) -> str:
        """The line of the page, without a bullet. It forges no heading, no marker and no fence."""
        marked = _behind(_MARKERS, self.text)
        return f"{self.text[:marked]}{plain_start(self.text[marked:])}{_FROM}{self.origin}"


def lesson_of(text: str, *, heading: str, mission: str | None, source: str | None, day: str) -> Lesson:
    """A lesson from what a caller sent. Line breaks become spaces, and a bullet before it is cut off.

    Raises:
        InvalidRequest: it has no words; it comes from nowhere; the mission's id is none; the heading is empty.
        TooLarge: it, or where it came from, is longer than one line may be.
    """
    line = _line("lesson", text)
    line = line[_behind(_BULLETS, line) :]
    if not analyse(_without_origin(line)):
        raise InvalidRequest("lesson: has no words; write what was learnt, in one line.")
    told = [] if mission is None else [f"mission {layout.mission_id(mission)}"]
    told += [given] if (given := _line("source", source or "").replace(_FROM.strip(), "- from")) else []
    if not told:
        raise InvalidRequest("source: is missing or empty, and so is missionId; say where the lesson came from.")
    title = " ".join(_line("heading", heading).lstrip("#").split())
    if not title:
        raise InvalidRequest(f"heading: is empty; leave it out for {HEADING!r}.")
    return Lesson(line, ", ".join([*told, day]), title)


def _behind(markers: re.Pattern[str], text: str) -> int:
    found = markers.match(text)
    return 0 if found is None else found.end()


def _line(field: str, given: str) -> str:
    line = one_line(given)
    if len(line) > LESSON_CHARS_MAX:
        raise TooLarge(f"{field}: has {len(line):,} characters; {LESSON_CHARS_MAX:,} is the most. Say it in one line.")
    return line


# --- into a page ---


def put(page: bytes, lesson: Lesson, *, add: bool = False) -> Put:
    """Put a lesson at the end of the list that its heading has, before deeper headings.

    A heading that the page lacks is added at its end: one of HEADINGS, or any where `add`.

    Raises:
        InvalidRequest: the page has no such heading.
        NotClosed: a code block or a comment would swallow it.
    """
    outline = Outline(decoded(page))
    title = lesson.heading.casefold()
    heading = next((one for one in outline.headings if one.title.casefold() == title), None)
    if heading is not None:
        at, bullet = outline.end_of(heading)
        after = [""] if outline.has_text(at) else []
        new = [*([] if bullet else [""]), f"{bullet or '-'} {lesson.line}", *after]
    else:
        known = next((one for one in HEADINGS if one.casefold() == title), None)
        if known is None and not add:
            raise InvalidRequest(_no_heading(lesson.heading, outline))
        at = len(outline.lines)
        new = [*([""] if outline.has_text(at - 1) else []), f"## {known or lesson.heading}", "", f"- {lesson.line}"]
        after = []
    if outline.open_at is not None and at > outline.open_at:
        raise NotClosed(f"{_MEMORY}: the code block or comment of line {outline.open_at + 1} is not closed.")
    start = len(encoded("".join(outline.lines[:at])))
    span = encoded(outline.as_lines(new, at))
    number = at + len(new) - len(after)
    return Put(
        page[:start] + span + page[start:], start, span, number, heading.title if heading else known or lesson.heading
    )


def _no_heading(heading: str, outline: Outline) -> str:
    names = [repr(one.title[:_SHOWN_CHARS]) for one in outline.headings[:_SHOWN_HEADINGS]]
    return f"heading: {_MEMORY} has no {heading[:_SHOWN_CHARS]!r}; it has {', '.join(names) or 'none'}."


def found(page: bytes, lesson: str) -> Found | None:
    """The first item or line of a page that says the same as a lesson: after analysis, where it came from cut off."""
    outline = Outline(decoded(page))
    said = _without_origin(lesson)
    terms, rest = analyse(said), _rest(said)
    for at, text in _said(outline):
        if len(text) > _SAID_CHARS_MAX:
            continue
        other = _without_origin(text)
        if analyse(other) == terms and _rest(other) == rest:
            above = [one.title for one in outline.headings if one.start < at]
            return Found(at + 1, above[-1] if above else "")
    return None


def _said(outline: Outline) -> Iterator[tuple[int, str]]:
    """(where it begins, text) of each line, and of each item or paragraph of several lines."""
    for start, stop in outline.blocks():
        yield from ((at, outline.lines[at]) for at in range(start, stop))
        if stop > start + 1:
            yield start, " ".join(line.strip() for line in outline.lines[start:stop])


def _without_origin(text: str) -> str:
    """What a line says: without its bullet, and without where it came from."""
    text = text.strip()
    while True:
        head, origin, tail = text.rpartition(_FROM)
        if not origin or not _DATED.fullmatch(tail[-_DATED_CHARS:]):
            break
        text = head
    return text[_behind(_MARKERS, text) :]


def _rest(text: str) -> tuple[list[str], list[str]]:
    """What analysis drops of a long text, and turns a lesson round: `not`, `before`, `<`."""
    symbols = [] if text.isalnum() else [char for char in text if unicodedata.category(char) in _SYMBOLS]
    return sorted(analyse(*text.split())), symbols


# --- on disk ---


class Promotions:
    """Promotes lessons to MEMORY.md. Belongs to the writer's thread."""

    def __init__(
        self,
        roots: Roots,
        pages: WholePages,
        *,
        persona: Callable[[str], Persona] = lambda _worker: Persona(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`persona` says who a worker is whose MEMORY.md has to be made."""
        self._roots = roots
        self._pages = pages
        self._persona = persona
        self._clock = clock
        self._ours: dict[str, Version] = {}
        """What we wrote last, of each worker: nobody is in the middle of writing that."""

    def promote(
        self, worker: str, lesson: str, *, heading: str = HEADING, mission: str | None, source: str | None
    ) -> Promoted:
        """Put a lesson under its heading of a worker's MEMORY.md, unless the page says the same already.

        Blocks for 60 ms at most, while somebody is writing the page. A missing page is made from its template.

        Raises:
            InvalidRequest: the lesson has no words or comes from nowhere, or there is no such heading; an id is none.
            TooLarge: the lesson is longer than LESSON_CHARS_MAX, or the page is or would be, than PAGE_BYTES_MAX.
            Conflict: a code block or comment of the page that is not closed would swallow it.
            Forbidden: a link stands in the page's path.
            StorageFull, FileFailed: the page is as it was.
        """
        worker = layout.worker_id(worker)
        day = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        asked = lesson_of(lesson, heading=heading, mission=mission, source=source, day=day)
        folder = opened(self._roots, layout.memory(worker))
        if folder is None:
            put(self._template(worker), asked)  # before a folder is made for nothing
            folder = made(self._roots, layout.memory(worker))
        with folder:
            for tries_left in reversed(range(_TRIES_MAX)):
                promoted = self._try(folder, worker, asked, wait=tries_left > 0)
                if promoted is not None:
                    return promoted
        raise FileFailed(f"{_MEMORY}: is being written by somebody all the time; nothing was changed.")

    def _template(self, worker: str) -> bytes:
        return encoded(dict(profile_pages(worker, self._persona(worker)))[_MEMORY])

    def _try(self, folder: FolderHandle, worker: str, asked: Lesson, *, wait: bool) -> Promoted | None:
        """None where somebody writes the page at this moment; nothing was done then."""
        seen = folder.read(_MEMORY)
        if seen is not None and len(seen.content) > PAGE_BYTES_MAX:
            raise TooLarge(f"lesson: {_MEMORY} is larger than {PAGE_BYTES_MAX:,} bytes; shorten the page.")
        if wait and seen is not None and self._is_fresh(worker, seen.version):
            time.sleep(QUIET_S)
            return None
        if seen is not None and (there := found(seen.content, asked.text)) is not None:
            return self._promoted(worker, seen.content, there.line, there.heading, "kept")
        new = put(self._template(worker) if seen is None else seen.content, asked)
        if len(new.page) > PAGE_BYTES_MAX:
            raise TooLarge(f"lesson: {_MEMORY} would become larger than {PAGE_BYTES_MAX:,} bytes; shorten the page.")
        page, text = (layout.memory(worker), _MEMORY), new.span.strip(b"\r\n").splitlines()[-1]
        version = self._pages.put(folder, page, seen, new.page, text=text, merge=lambda content: _with(content, asked))
        if version is None:
            return None
        self._ours[worker] = version
        return self._promoted(worker, new.page, new.line, new.heading, "promoted")

    def _is_fresh(self, worker: str, version: Version) -> bool:
        """Whether a page may still be half written."""
        if self._ours.get(worker) == version:
            return False
        return abs(time.time_ns() - version.mtime_ns) / 1e9 < QUIET_S

    def _promoted(
        self, worker: str, page: bytes, line: int, heading: str, action: Literal["promoted", "kept"]
    ) -> Promoted:
        return Promoted(
            workerId=worker,
            path=str(self._roots.path(layout.memory(worker), _MEMORY)),
            heading=heading,
            line=line,
            action=action,
            hash=hash_of(page),
        )


def _with(page: bytes, lesson: Lesson) -> bytes:
    """A page with a lesson that an editor's save has undone; where it has no place for it, the page as it is."""
    if found(page, lesson.text) is not None:
        return page
    try:
        new = put(page, lesson, add=True).page
    except Rejection:
        return page
    return page if len(new) > PAGE_BYTES_MAX else new
