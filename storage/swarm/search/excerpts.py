"""What a search of the files asks for, and the line of a text that answers it best."""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage import limits
from storage.search.text import STOP_WORDS, Clause, analyse, clauses_of, match_all, quoted

SNIPPET_CHARS_MAX: Final = 300
_SHORT_CHARS: Final = 80
"""A shorter line is shown with the one behind it."""
_BEFORE_HIT_CHARS: Final = 100
_LINES_ANALYSED: Final = 3
_LINE_CHARS_ANALYSED: Final = 2_000
PHRASE_WORDS_MAX: Final = 64
"""A longer query is no phrase: looking for one would cost its length at each place of a file."""
_NEVER: Final = re.compile("(?!)")
_PROBES_MAX: Final = 32
_AROUND: Final = "\"'`()[]{}<>,;:?!\u00ab\u00bb\u2018\u2019\u201c\u201d\u3002\uff0c\uff1f\uff01\u3001"
_DIACRITIC: Final = re.compile("[\u0300-\u036f]+")
_CONTROL: Final = dict.fromkeys([*range(9), *range(11, 32), 127], " ")
CJK_FIRST: Final = "\u1100"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A query, taken apart."""

    clauses: tuple[Clause, ...]
    """Each thing that is asked for; more than QUERY_TERMS_MAX are not looked at."""
    phrase: re.Pattern[str]
    """The query as it stands; case, diacritics and kind of white space do not count."""
    phrase_words: str | None
    """An FTS5 expression that rows with the phrase satisfy, and some others; None where nothing is known so."""
    probes: tuple[str, ...]
    """Beginnings of words that a line with one of the terms holds, nearly always."""


class Line(NamedTuple):
    """A line of a text, where it is worth showing."""

    number: int
    """From 0."""
    column: int


def wanted(query: str) -> Wanted | None:
    """What a query asks for; None where it has no words."""
    query = query.encode("utf-8", "replace").decode()
    clauses = tuple(clauses_of(query)[: limits.QUERY_TERMS_MAX])
    if not clauses:
        return None
    words = query.strip(_AROUND + " \t\r\n").rstrip(".").split()
    is_phrase = len(words) <= PHRASE_WORDS_MAX
    phrase = re.compile(r"\s+".join(map(re.escape, folded(" ".join(words)).split()))) if is_phrase else _NEVER
    terms = sorted({term for clause in clauses for term in clause.terms})
    probes = tuple(dict.fromkeys(probe(term) for term in terms[:_PROBES_MAX]))
    return Wanted(clauses, phrase, _phrase_words(words) if is_phrase else None, probes)


def clause_expression(clause: Clause) -> str:
    """An FTS5 expression that only rows which satisfy a clause satisfy."""
    return " OR ".join(f"({match_all(sorted(alternative))})" for alternative in clause.alternatives)


def _phrase_words(words: Sequence[str]) -> str | None:
    """The phrase in terms. Its first and last word may be parts of longer chunks there: only plain ones count."""
    terms: list[str] = []
    for at, word in enumerate(words):
        these = [term for term in analyse(word) if term not in STOP_WORDS]
        if len(these) == 1 or 0 < at < len(words) - 1:
            terms += these
    return " + ".join(map(quoted, terms)) if len(terms) > 1 else None


def probe(term: str) -> str:
    """What of a stem stands in each of its words: porter makes `y` an `i` and adds an `e`."""
    return term.rstrip("iey") or term if term.isascii() and term.isalpha() else term


def folded(text: str) -> str:
    """A text without case and diacritics, its lines kept."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    return unicodedata.normalize("NFC", _DIACRITIC.sub("", decomposed)).casefold()


def phrase_at(want: Wanted, text: str) -> int | None:
    """Where the phrase stands in a folded text, as words of its own; None where it does not."""
    for found in want.phrase.finditer(text):
        start, end = found.span()
        if not _joined(text[start - 1 : start + 1] if start else "") and not _joined(text[end - 1 : end + 1]):
            return start
    return None


def _joined(two: str) -> bool:
    """Whether two characters belong to one word."""
    return len(two) > 1 and all((char.isalnum() or char == "_") and char < CJK_FIRST for char in two)


def best_line(want: Wanted, text: str, low: str) -> Line | None:
    """The line that begins the phrase, else holds most of what is asked for; None where none holds any of it.

    `low` is the text, folded.
    """
    at = phrase_at(want, low)
    if at is not None:
        return Line(low.count("\n", 0, at), at - (low.rfind("\n", 0, at) + 1))
    lines, lows = text.split("\n"), low.split("\n")
    tallies = [(sum(probe in line for probe in want.probes), -number) for number, line in enumerate(lows)]
    likely = [-number for tally, number in sorted(tallies, reverse=True)[:_LINES_ANALYSED] if tally]
    best: tuple[int, int, int] | None = None
    for number in likely or range(len(lines)):
        column = _column(want, lows[number])
        start = max(0, column - _BEFORE_HIT_CHARS)
        terms = set(analyse(lines[number][start : start + _LINE_CHARS_ANALYSED]))
        satisfied = sum(clause.satisfied_by(terms) for clause in want.clauses)
        held = sum(len(clause.terms & terms) for clause in want.clauses)
        if held and (best is None or (satisfied, held) > best[:2]):
            best = (satisfied, held, number)
    return None if best is None else Line(best[2], _column(want, lows[best[2]]))


def _column(want: Wanted, low: str) -> int:
    return min((at for probe in want.probes if (at := low.find(probe)) >= 0), default=0)


def cut_line(line: str, column: int) -> str:
    """A line, of at most SNIPPET_CHARS_MAX characters around a column."""
    shown = line.translate(_CONTROL)
    begins = len(shown) - len(shown.lstrip())
    shown, column = shown.strip(), max(0, column - begins)
    if len(shown) <= SNIPPET_CHARS_MAX:
        return shown
    start = min(max(0, column - _BEFORE_HIT_CHARS), len(shown) - SNIPPET_CHARS_MAX + 1)
    cut = shown[start + (start > 0) :][: SNIPPET_CHARS_MAX - 2]
    return ("\u2026" if start else "") + cut + ("\u2026" if start + len(cut) + 1 < len(shown) else "")


def snippet(text: str, line: Line) -> str:
    """A line of a text, cut around its hit, or with a neighbour where it is short."""
    lines = text.split("\n")
    shown = cut_line(lines[line.number], line.column)
    if len(shown) < _SHORT_CHARS:
        neighbours = lines[line.number + 1 : line.number + 2] or lines[max(0, line.number - 1) : line.number]
        near = neighbours[0].translate(_CONTROL).strip() if neighbours else ""
        if near:
            both = (shown, near) if line.number + 1 < len(lines) else (near, shown)
            return "\n".join(both)[:SNIPPET_CHARS_MAX]
    return shown
