"""What each line of a Markdown page is, as far as a line of ours must know it to find its place. A pure function."""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

_Kind = Literal["blank", "heading", "item", "text", "rule", "hidden"]

_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_ATX: Final = re.compile(r" {0,3}#{1,6}(?=[ \t]|$)")
_UNDERLINE: Final = re.compile(r" {0,3}(?:=+|-+)[ \t]*")
_RULE: Final = re.compile(r" {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})")
_ITEM: Final = re.compile(r"[ \t]*(?:(?:[-*+]|\d{1,9}[.)])(?:[ \t]+|$))+")
_FENCE: Final = re.compile(r" {0,3}(?:(`{3,})[^`]*|(~{3,}).*)")
_COMMENT: Final = re.compile(r" {0,3}<!--")
_COMMENT_END: Final = re.compile("-->")
_BOM: Final = "\ufeff"
_BULLETS: Final = "-*+"


class Heading(NamedTuple):
    """A heading of a page, of either form."""

    title: str
    """White space made single."""
    start: int
    """Its first line, from 0."""
    stop: int
    """The line after it."""


class Outline:
    """The lines of a page, and what they are. What stands in code blocks and comments is neither heading nor item."""

    def __init__(self, text: str) -> None:
        self.lines: list[str] = _LINE.findall(text)
        """With their ends: together they are the page."""
        self.headings: list[Heading] = []
        self.open_at: int | None = None
        """The line, from 0, of a code block or comment that is not closed."""
        self._kinds: list[_Kind] = []
        self._indented: list[bool] = []
        self._closing = _COMMENT_END
        self._paragraph: int | None = None
        """Where the paragraph began that an underline would make a heading."""
        for at, line in enumerate(self.lines):
            bare = line.rstrip("\r\n")
            self._read(at, bare if at else bare.lstrip(_BOM))

    # --- reading ---

    def _read(self, at: int, line: str) -> None:
        if self.open_at is not None:
            if self._closing.search(line):
                self.open_at = None
            self._add("hidden", indented=self._indented[-1])
            return
        paragraph, self._paragraph = self._paragraph, None
        rule = _RULE.fullmatch(line) is not None
        item = None if rule else _ITEM.match(line)
        if paragraph is not None and _UNDERLINE.fullmatch(line):
            self._kinds[paragraph:] = ["heading"] * (at - paragraph)
            self._add_heading(" ".join(self.lines[paragraph:at]), paragraph, at)
        elif not line.strip():
            self._add("blank", indented=False)
        elif (found := _ATX.match(line)) is not None:
            self._add_heading(_without_closing(line[found.end() :]), at, at)
        elif self._opens(at, line[item.end() :] if item else line):
            self._add("item" if item else "hidden", indented=item is not None or line[0].isspace())
        elif item is not None or rule:
            self._add("item" if item else "rule", indented=item is not None)
        else:
            self._paragraph = self._paragraph_with(at, line, paragraph)
            self._add("text", indented=line[0].isspace())

    def _add(self, kind: _Kind, *, indented: bool) -> None:
        self._kinds.append(kind)
        self._indented.append(indented)

    def _add_heading(self, title: str, start: int, at: int) -> None:
        self._add("heading", indented=False)
        self.headings.append(Heading(" ".join(title.replace(_BOM, "").split()), start, at + 1))

    def _opens(self, at: int, line: str) -> bool:
        """Whether a code block or a comment begins here; it may end on the same line."""
        if (comment := _COMMENT.match(line)) is not None:
            self._closing = _COMMENT_END
            self.open_at = None if "-->" in line[comment.end() :] else at
            return True
        if (fence := _FENCE.fullmatch(line)) is None:
            return False
        mark = fence[1] or fence[2]
        self._closing = re.compile(rf"^[ \t]*{mark[0]}{{{len(mark)},}}[ \t]*$")
        self.open_at = at
        return True

    def _paragraph_with(self, at: int, line: str, paragraph: int | None) -> int | None:
        """Where the paragraph of a line of text began; None in a list or a quotation, which no underline ends."""
        if paragraph is not None:
            return paragraph
        follows = at > 0 and self._kinds[-1] in ("text", "item")
        return None if follows or line[0].isspace() or line[0] == ">" else at

    # --- what it says ---

    def has_text(self, at: int) -> bool:
        """Whether there is a line `at`, from 0, that is not blank."""
        return 0 <= at < len(self.lines) and self._kinds[at] != "blank"

    def end_of(self, heading: Heading) -> tuple[int, str]:
        """(the line before which the list of a heading goes on, its bullet). The bullet is empty where there is none.

        Looked for up to the next heading, of whatever level: what follows that stands under it.
        """
        stop = next((one.start for one in self.headings if one.start >= heading.stop), len(self.lines))
        end, bullet, inside = None, "", False
        for at in range(heading.stop, stop):
            if self._kinds[at] == "blank":
                continue
            begins = not inside
            inside = self._kinds[at] == "item" or (inside and self._goes_on(at))
            if inside:
                end = at + 1
                bullet = self._bullet(at) if begins else bullet
        if end is not None:
            return end, bullet
        while stop > heading.stop and not self.has_text(stop - 1):
            stop -= 1
        return stop, ""

    def _goes_on(self, at: int) -> bool:
        """Whether a line belongs to the item before it."""
        if self._kinds[at] == "text" and self._kinds[at - 1] in ("item", "text"):
            return True
        return self._indented[at]

    def _bullet(self, at: int) -> str:
        first = self.lines[at].lstrip(_BOM + " \t")[0]
        return first if first in _BULLETS else "-"

    def blocks(self) -> Iterator[tuple[int, int]]:
        """(the first line, the line after the last) of each item and paragraph."""
        start: int | None = None
        for at, kind in enumerate([*self._kinds, "blank"]):
            if start is not None and kind != "text":
                yield start, at
                start = None
            if start is None and kind in ("item", "text"):
                start = at

    def as_lines(self, texts: Sequence[str], at: int) -> str:
        """Texts as lines before line `at`, ended as the line before; a page without a last line end gets none."""
        before = self.lines[at - 1] if at else "\n"
        first = _end(before) or (_end(self.lines[0]) or "\n")
        if not _end(before):
            return "".join(first + text for text in texts)
        return "".join(text + first for text in texts)


def _end(line: str) -> str:
    return line[len(line.rstrip("\r\n")) :]


def _without_closing(title: str) -> str:
    """The title of an ATX heading without the #s that may close it."""
    title = title.strip()
    bare = title.rstrip("#")
    return title if bare and not bare[-1].isspace() else bare.rstrip()
