"""Text within a budget of characters: what is short stays whole, of what is long the newest stays. Pure functions."""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from storage.outline import Outline

_LEFT_OUT: Final = "… ({} lines left out)"
_CUT: Final = "…"
_NOTE_CHARS: Final = len(_LEFT_OUT) + 8


class _Section(NamedTuple):
    """Lines of a page: a heading, none before the first, and what stands below it."""

    title: str
    """Casefolded."""
    head: list[str]
    body: list[str]

    @property
    def chars(self) -> int:
        return _length(self.head) + _length(self.body)


def shares(lengths: Sequence[int], weights: Sequence[float], room: int) -> list[int]:
    """How many characters each of several texts may keep, together at most `room`.

    A text that needs less than its part by weight leaves the rest to the others.
    """
    kept = [0] * len(lengths)
    left, room = set(range(len(lengths))), max(room, 0)
    while left:
        total = sum(weights[at] for at in left)
        whole = [at for at in left if lengths[at] <= int(room * weights[at] / total)]
        if not whole:
            for at in left:
                kept[at] = int(room * weights[at] / total)
            break
        for at in whole:
            kept[at] = lengths[at]
        room -= sum(kept[at] for at in whole)
        left.difference_update(whole)
    return kept


def fitted(text: str, chars: int, *, first: Collection[str] = (), newest_first: Collection[str] = ()) -> str:
    """A Markdown page of at most `chars` characters.

    Its sections give up lines one as much as the other: the older ones, which stand at the beginning of a section, or
    at its end where its heading is among `newest_first`. The sections of `first` give up theirs last. Both are given
    in small letters.
    """
    if len(text) <= chars:
        return text
    sections = _sections(text)
    ahead = [at for at, section in enumerate(sections) if section.title in first]
    rest = [at for at, section in enumerate(sections) if section.title not in first]
    kept: dict[int, int] = {}
    for group in (ahead, rest):
        lengths = [sections[at].chars for at in group]
        kept.update(zip(group, shares(lengths, [1.0] * len(group), chars - sum(kept.values())), strict=True))
    shown = [
        line
        for at, section in enumerate(sections)
        for line in _fitted(section, kept[at], newest_first=section.title in newest_first)
    ]
    return "".join(shown)[:chars].rstrip("\n")


def newest(text: str, chars: int) -> str:
    """The last lines of a text, at most `chars` characters with the note that others are left out."""
    if len(text) <= chars:
        return text
    return "".join(_fitted(_Section("", [], text.splitlines(keepends=True)), chars, newest_first=False))[:chars]


def section_of(text: str, title: str) -> str | None:
    """What stands below a heading of a page, without the white space around it; None where there is none.

    `title` is given in small letters; of several the last counts.
    """
    found = [section for section in _sections(text) if section.title == title]
    return "".join(found[-1].body).strip() if found else None


def blocks(text: str, mark: str) -> list[str]:
    """A page cut before each line that begins with `mark`; what stands before the first is left out."""
    number = 0
    numbered: list[tuple[int, str]] = []
    for line in text.splitlines(keepends=True):
        number += line.startswith(mark)
        numbered.append((number, line))
    return ["".join(line for _, line in group) for at, group in groupby(numbered, lambda one: one[0]) if at]


def _sections(text: str) -> list[_Section]:
    outline = Outline(text)
    lines, headings = outline.lines, outline.headings
    stops = [heading.start for heading in headings[1:]] + [len(lines)]
    above = lines[: headings[0].start] if headings else lines
    found = [_Section("", [], above)] if above else []
    for heading, stop in zip(headings, stops, strict=bool(headings)):
        head, body = lines[heading.start : heading.stop], lines[heading.stop : stop]
        found.append(_Section(heading.title.casefold(), head, body))
    return found


def _length(lines: Sequence[str]) -> int:
    return sum(map(len, lines))


def _fitted(section: _Section, chars: int, *, newest_first: bool) -> list[str]:
    """A section's lines of at most about `chars` characters; its heading stays as long as there is room for it."""
    if section.chars <= chars:
        return [*section.head, *section.body]
    room = chars - _length(section.head) - _NOTE_CHARS
    if room <= 0:
        return []
    kept: list[str] = []
    for line in section.body if newest_first else reversed(section.body):
        if len(line) > room:
            if not "".join(kept).strip():  # of one long line the beginning
                kept.append(line[: max(room - len(_CUT) - 1, 0)].rstrip() + _CUT + "\n")
            break
        kept.append(line)
        room -= len(line)
    left_out = sum(1 for line in section.body if line.strip()) - sum(1 for line in kept if line.strip())
    note = [_LEFT_OUT.format(left_out) + "\n"] if left_out else []
    return [*section.head, *kept, *note] if newest_first else [*section.head, *note, *kept[::-1]]
