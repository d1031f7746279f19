"""What a page says is to be run, and what it must print.

A fenced `console` block holds commands and what each prints:

- `$ command`; lines that begin with `> ` continue it; the lines up to the next command are its output.
- A block right under a line `<!-- not run: REASON -->` is shown and not run.
- A comment that begins with a line `<!-- run first:` and ends with a line `-->` is run and not shown: it makes the
  trouble that the page then mends. Its commands stand as in a block; what they print is not looked at.

The matcher: `…` within a line is anything within that line; a line `…` is any lines, also none. An instant, the number
of an id (`long:17`) and a port (`127.0.0.1:8437`, `8437`) stand for any. Space at the end of the output does not count.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

ANY = "…"
SERVICE_PORT = "8437"
"""The one port that pages also name without an address."""
_FENCE = "```"
_OPENED = re.compile(r"```console$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->$")
_RUN_FIRST = "<!-- run first:"
_INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
_ID = r"\b(?:short|long|episodic|durable):\d+"
_PORT = rf"127\.0\.0\.1:\d+|\b{SERVICE_PORT}\b"
_FREE = re.compile(f"({ANY}|{_INSTANT}|{_ID}|{_PORT})")


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page and what it must print."""

    command: str
    expected: str = ""
    line: int = 0
    """Where it stands in its page; 1 is the first line."""

    @property
    def stays(self) -> bool:
        """Whether it is left running."""
        return self.command.endswith(" &")


@dataclass(frozen=True, slots=True)
class Block:
    """Commands that stand together."""

    steps: tuple[Step, ...]
    not_run: str | None = None
    """Why they are not run; None where they are."""
    hidden: bool = False
    """Run and not shown; what they print is not looked at."""


def blocks_of(markdown: str) -> list[Block]:
    """The blocks of a page in their order."""
    found: list[Block] = []
    lines = enumerate(markdown.splitlines(), 1)
    reason: str | None = None
    for _, line in lines:
        text = line.strip()
        if _OPENED.match(text):
            margin = len(line) - len(line.lstrip())
            found.append(Block(tuple(_steps(_until(_FENCE, lines, margin))), reason))
            reason = None
            continue
        assert reason is None, f"no console block stands right under 'not run: {reason}'"
        if text == _RUN_FIRST:
            found.append(Block(tuple(_steps(_until("-->", lines, 0))), hidden=True))
        elif marked := _NOT_RUN.match(text):
            reason = marked[1]
        elif text.startswith(_FENCE):
            list(_until(_FENCE, lines, 0))
    return found


def steps_of(markdown: str) -> list[Step]:
    """The commands of a page that are run, in their order."""
    return [step for block in blocks_of(markdown) if block.not_run is None for step in block.steps]


Lines = Iterator[tuple[int, str]]


def _until(end: str, lines: Lines, margin: int) -> Lines:
    for number, line in lines:
        if line.strip() == end:
            return
        yield number, line[margin:]
    raise AssertionError(f"the page ends before {end!r}")


def _steps(lines: Lines) -> Iterator[Step]:
    step: Step | None = None
    for number, line in lines:
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(line[2:], line=number)
        elif step is None:
            raise AssertionError(f"line {number}: a block begins with a command")
        elif line.startswith("> ") and not step.expected:
            step = replace(step, command=f"{step.command}\n{line[2:]}")
        else:
            step = replace(step, expected=f"{step.expected}{line}\n")
    if step is not None:
        yield step


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what its page shows."""
    pattern = "".join(_line_pattern(line) for line in expected.rstrip().splitlines())
    return re.fullmatch(pattern, normal(printed)) is not None


def normal(printed: str) -> str:
    """What was printed, with plain line ends and one of them at its end; nothing where there was only space."""
    text = printed.replace("\r\n", "\n").rstrip()
    return f"{text}\n" if text else ""


def _line_pattern(line: str) -> str:
    if line.strip() == ANY:
        return r"(?:.*\n)*?"
    return "".join(_part_pattern(part) for part in _FREE.split(line.rstrip())) + r" *\n"


def _part_pattern(part: str) -> str:
    if part == ANY:
        return ".*?"
    if re.fullmatch(_INSTANT, part):
        return _INSTANT
    if re.fullmatch(f"{_ID}|{_PORT}", part):
        return re.escape(part.rstrip("0123456789")) + r"\d+"
    return re.escape(part)
