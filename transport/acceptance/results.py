"""How a check ends, and how its end is shown: one line each, and a page."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["OK", "FAIL", "SKIPPED"]

_SHOWN_CHARS = 400
_NOT_HERE = (
    ("8.4, 11.4", "the tools in a live turn of a Hermes profile: a turn must be asked for one by name"),
    ("8.5", "the A2A agents' calls at the start and the end of a turn: look at an agent's log and for its episode"),
    ("8.6", "the daily purge in the central cron registry, with its delivery target and failure signal"),
)
"""What the spec asks for beside this, by section."""


class Failed(Exception):
    """A check did not see what it must; says what it saw instead."""


class Skipped(Exception):
    """A check was not performed; says why."""


@dataclass(frozen=True, slots=True)
class Result:
    """The end of one check."""

    check: str
    sections: str
    """Of the spec."""
    outcome: Outcome
    seen: str
    """In one line; never the text of a memory."""


def one_line(text: str) -> str:
    """A text as a part of one line, cut where it is long."""
    line = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text)).strip()
    return line if len(line) <= _SHOWN_CHARS else line[: _SHOWN_CHARS - 1] + "…"


def line_of(result: Result) -> str:
    """What the command prints of a check."""
    return f"{result.outcome:<7} {result.check}: {result.seen}"


def total_of(results: Sequence[Result]) -> str:
    """How many checks ended how."""
    counts = Counter(result.outcome for result in results)
    return f"{counts['OK']} ok, {counts['FAIL']} failed, {counts['SKIPPED']} skipped"


def page_of(results: Sequence[Result], *, url: str, database: str, at: str, left: str) -> str:
    """The report in Markdown."""
    verdict = "not accepted" if any(result.outcome == "FAIL" for result in results) else "accepted"
    rows = [f"| {_cell(r.check)} | {r.sections} | {r.outcome} | {_cell(r.seen)} |" for r in results]
    return "\n".join(
        (
            f"# Acceptance of {url}: {verdict}",
            "",
            f"{at}, against the rows of `{database}`: {total_of(results)}. Sections are those of the spec.",
            "",
            "| check | section | outcome | seen |",
            "| --- | --- | --- | --- |",
            *rows,
            "",
            "## Rows left",
            "",
            left,
            "",
            "## Not checked here",
            "",
            *(f"- {sections}: {what}." for sections, what in _NOT_HERE),
            "",
        )
    )


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
