"""The words of a task: each with what counts as it, and the line of a text that holds most of what they are worth."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

from storage.search.text import STOP_WORDS, Clause, analyse, clauses_of, quoted
from storage.swarm.search.excerpts import CJK_FIRST, Line, clause_expression, probe

WORDS_MAX: Final = 64
"""Of a task; what stands behind so many different ones is not looked at."""
KIN: Final = 0.5
"""What a word counts that only begins as the one of the task does: `invoicing` where it says `invoices`."""
_KIN_CHARS_MIN: Final = 5
_KIN_CHARS: Final = 6
_KIN_ENDING: Final = 2
_LINES_ANALYSED: Final = 4
_LINE_CHARS_ANALYSED: Final = 2_000
_BEFORE_CHARS: Final = 100
_ASKING: Final = frozenset(analyse("please need want someone somebody anyone help task worker agent make sure let"))
"""Words that ask for work and do not say which."""
_EDGE: Final = re.compile(r"^\W+|[^\w+#]+$")


@dataclass(frozen=True, slots=True)
class Terms:
    """What a text holds."""

    each: frozenset[str]
    joined: str
    """The same in a row, a space before each."""

    @classmethod
    def of(cls, *texts: str) -> Self:
        """The terms of some texts."""
        each = frozenset(analyse(*texts))
        return cls(each, "".join(f" {term}" for term in each))


@dataclass(frozen=True, slots=True)
class Word:
    """A word of a task."""

    shown: str
    """As the task has it."""
    clause: Clause
    kin: str | None
    """What a word begins with that counts as kin; None where only the word itself counts."""
    probes: tuple[str, ...]
    """One of these is in each line that holds it, nearly always."""

    def held_by(self, terms: Terms) -> float:
        """1 where it is among some terms, KIN where only kin of it is, else 0."""
        if self.clause.satisfied_by(terms.each):
            return 1.0
        return KIN if self.kin is not None and f" {self.kin}" in terms.joined else 0.0

    @property
    def expression(self) -> str:
        """An FTS5 expression for the word itself."""
        return clause_expression(self.clause)

    @property
    def kin_expression(self) -> str | None:
        """An FTS5 expression for the word and its kin."""
        return None if self.kin is None else f"{quoted(self.kin)} *"


def words_of(task: str) -> tuple[Word, ...]:
    """What a task says, each word once; none where it has stop words only, or words that just ask."""
    task = task.encode("utf-8", "replace").decode()
    clauses = [one for one in clauses_of(task) if not one.terms <= STOP_WORDS | _ASKING][:WORDS_MAX]
    shown: dict[Clause, str] = {}
    for chunk in task.split():
        for clause in clauses_of(chunk):
            shown.setdefault(clause, _EDGE.sub("", chunk))
    return tuple(_word(clause, shown.get(clause, "")) for clause in clauses)


def _word(clause: Clause, shown: str) -> Word:
    terms = sorted(clause.terms)
    kin = None
    if len(terms) == 1 and terms[0].isalpha():
        begins = probe(terms[0])
        if begins >= CJK_FIRST:  # a pair of characters of a run without spaces
            shown = terms[0]
        elif len(begins) >= _KIN_CHARS_MIN:
            kin = begins[: max(_KIN_CHARS, len(begins) - _KIN_ENDING)]
    return Word(shown or terms[0], clause, kin, (kin,) if kin else tuple(map(probe, terms)))


class LineFinder:
    """Finds the line of a text that holds the words of most weight."""

    def __init__(self, words: Sequence[Word], weights: Sequence[float]) -> None:
        """Words without weight are not looked for."""
        self._words = {at: word for at, word in enumerate(words) if weights[at]}
        self._weights = weights
        probes = sorted({probe for word in self._words.values() for probe in word.probes}, key=len, reverse=True)
        self._probes = re.compile("|".join(map(re.escape, probes)) or "(?!)")
        self._of_probe = {probe: frozenset(self._beginning(probe)) for probe in probes}

    def _beginning(self, probe: str) -> Iterator[int]:
        """The words that one of which begins with a probe may be."""
        for at, word in self._words.items():
            if any(probe.startswith(begins) for begins in word.probes):
                yield at

    def find(self, text: str, low: str) -> tuple[Line, tuple[int, ...]] | None:
        """(the line, the numbers of the words that it holds); None where no line holds any.

        `low` is the text, folded.
        """
        lines = text.split("\n")
        best: tuple[float, Line, tuple[int, ...]] | None = None
        for number, column in self._likely(low):
            start = max(0, column - _BEFORE_CHARS)
            terms = Terms.of(lines[number][start : start + _LINE_CHARS_ANALYSED])
            held = {at: share for at, word in self._words.items() if (share := word.held_by(terms))}
            worth = sum(self._weights[at] * share for at, share in held.items())
            if worth and (best is None or worth > best[0]):
                best = (worth, Line(number, column), tuple(held))
        return None if best is None else best[1:]

    def _likely(self, low: str) -> Iterator[tuple[int, int]]:
        """(number, column of the first hit) of the lines that are worth most as far as a look can tell."""
        found: dict[int, tuple[int, set[int]]] = {}
        number = counted = 0
        for hit in self._probes.finditer(low):
            number += low.count("\n", counted, hit.start())
            counted = hit.start()
            column = counted - (low.rfind("\n", 0, counted) + 1)
            found.setdefault(number, (column, set()))[1].update(self._of_probe[hit[0]])
        worths = [(sum(self._weights[at] for at in sorted(words)), -line) for line, (_, words) in found.items()]
        for _, line in sorted(worths, reverse=True)[:_LINES_ANALYSED]:
            yield -line, found[-line][0]
