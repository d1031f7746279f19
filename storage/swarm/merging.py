"""How our sections get into a page that is a person's as well. Pure functions of text.

Between `<!-- solos:begin NAME -->` and `<!-- solos:end NAME -->` the text is ours and made anew each time; the rest of
a page is the person's, byte for byte. A line that a person wrote between markers moves below the end marker.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

_SECTION_LINES_MAX: Final = 500
_MARKER: Final = re.compile(r"<!-- solos:(begin|end) ([a-z-]+) -->")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page that is ours."""

    name: str
    title: str
    lines: Sequence[str]
    ours: Collection[str]
    """Every line that any state of the mission may have put here; what is none of these a person wrote."""


def merged(page: str | None, heading: str, headings: Collection[str], sections: Sequence[Section]) -> str:
    """A page with our heading and sections made anew. A page without markers gets them under its own headings.

    `headings` are those that we may have put there before; the first of them in the page becomes `heading`.
    """
    if page is None or not page.strip():
        return _fresh(heading, sections)
    lines = page.split("\n")
    for at, line in enumerate(lines):
        if line.rstrip("\r") in headings:
            lines[at] = heading + line[len(line.rstrip("\r")) :]
            break
    for section in sections:
        lines = _with_section(lines, section)
    return "\n".join(lines)


def is_whole(page: str) -> bool:
    """Whether a page is neither empty nor cut off within a section of ours."""
    markers = [marker for line in page.split("\n") if (marker := _marker(line)) is not None]
    return bool(page.strip()) and (not markers or markers[-1][0] == "end")


def _block(section: Section) -> list[str]:
    name = section.name
    return [f"<!-- solos:begin {name} -->", *section.lines, f"<!-- solos:end {name} -->"]


def _fresh(heading: str, sections: Sequence[Section]) -> str:
    lines = [heading]
    for section in sections:
        lines += ["", f"## {section.title}", "", *_block(section)]
    return "\n".join([*lines, ""])


def _with_section(lines: list[str], section: Section) -> list[str]:
    """The page with one section made anew, and what a person wrote into it below."""
    kept: list[str] = []
    place: int | None = None
    found = False
    at = 0
    while at < len(lines):
        marker = _marker(lines[at])
        if marker == ("begin", section.name):
            inner, at = _inside(lines, at + 1, section.name)
            theirs = [line for line in inner if line.strip() and line.rstrip("\r") not in section.ours]
            kept += theirs if found else [*_block(section), *theirs]
            found = True
        elif marker == ("end", section.name):  # its begin is gone
            kept = _without_ours(kept, section)
            at += 1
        else:
            kept.append(lines[at])
            if place is None and lines[at].strip().casefold() == f"## {section.title}".casefold():
                place = len(kept)
            at += 1
    if found:
        return kept
    if place is not None:
        return [*kept[:place], "", *_block(section), *kept[place:]]
    while kept and not kept[-1].strip():
        kept.pop()
    return [*kept, "", f"## {section.title}", "", *_block(section), ""]


def _inside(lines: list[str], at: int, name: str) -> tuple[list[str], int]:
    """(the lines up to the end marker, the place behind it); where that is gone, up to what cannot be inside."""
    heading: int | None = None
    for place in range(at, len(lines)):
        marker = _marker(lines[place])
        if marker == ("end", name):
            return lines[at:place], place + 1
        if marker is not None:
            break
        if heading is None and lines[place].startswith("#"):
            heading = place
    else:
        place = len(lines)
    stop = place if heading is None else heading
    return lines[at:stop], stop


def _without_ours(lines: list[str], section: Section) -> list[str]:
    """Lines without those of ours at their end, as far back as a section of ours can reach."""
    start = at = max(len(lines) - _SECTION_LINES_MAX, 0)
    for place in range(len(lines) - 1, start - 1, -1):
        if lines[place].startswith("#") or _marker(lines[place]) is not None:
            at = place + 1
            break
    return [*lines[:at], *(line for line in lines[at:] if line.rstrip("\r") not in section.ours)]


def _marker(line: str) -> tuple[str, str] | None:
    found = _MARKER.fullmatch(line.strip())
    return None if found is None else (found[1], found[2])
