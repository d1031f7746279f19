"""The plan of a recall: which posting lists are read, so that its cost does not grow with the store.

Each row that is scored costs about 2 µs. So the rarest terms of a question are asked for, up to a budget of postings;
the others count when the rows are scored, from the documents' own terms.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage import limits
from storage.records import Tier
from storage.search.documents import HASHES, hashed
from storage.search.index import Index
from storage.search.text import Clause, quoted

_COMMON_FROM: Final = 250
_PREFIX_CHARS_MIN: Final = 5
_PREFIX_TERMS_MAX: Final = 10
_GROWTH: Final = 1.1
_IDF_MIN: Final = 1e-6
_TELLING_ROWS: Final = 10
_TELLING_CLAUSES_MAX: Final = 12
_SHARE_MIN: Final = 1 / 4
"""Of filters: stepping over the rows that they exclude costs, too, though less than reading a row."""


class Frequencies:
    """Document frequencies of one tier. Those of common terms are remembered until the tier has grown by a tenth.

    Those of rare ones never are: a term that was nowhere a moment ago may be in the row just written.
    """

    def __init__(self, index: Index, tier: Tier) -> None:
        self._index = index
        self._tier = tier
        self._common: dict[str, int] = {}
        self._documents = 0

    def of(self, terms: Sequence[str], documents: int) -> dict[str, int]:
        """How many documents hold each term."""
        if documents > self._documents * _GROWTH:
            self._common.clear()
            self._documents = documents
        return {term: self._of(term) for term in terms}

    def _of(self, term: str) -> int:
        if term in self._common:
            return self._common[term]
        frequency = self._index.postings(self._tier, quoted(term), _COMMON_FROM)
        if frequency >= _COMMON_FROM:
            frequency = self._common[term] = self._index.frequency(self._tier, term)
        return frequency


class Spending(NamedTuple):
    """What a budget of rows is spent on in one tier."""

    kept: tuple[str, ...]
    """The terms whose rows are all read, rarest first."""
    dropped: tuple[str, ...]
    """The other terms that occur, rarest first."""
    left: int
    """How many rows of those the budget allows, beside what stepping over the rows that filters exclude costs."""


@dataclass(frozen=True)
class Plan:
    """What is asked of one tier, and how often it occurs there."""

    tier: Tier
    clauses: tuple[Clause, ...]
    frequencies: dict[str, int]
    documents: int
    average_length: float

    @cached_property
    def occurring(self) -> tuple[str, ...]:
        """The terms that occur, rarest first."""
        return tuple(sorted((term for term in self.frequencies if self.frequencies[term]), key=self._rarity))

    def spend(self, budget: int, share: float) -> Spending:
        """Keep the rarest terms, as many as a budget of rows allows where filters leave this share of a term's rows."""
        cost = max(share, _SHARE_MIN)
        affordable = budget / cost
        for at, term in enumerate(self.occurring):
            if self.frequencies[term] > affordable:
                return Spending(self.occurring[:at], self.occurring[at:], int(share * affordable))
            affordable -= self.frequencies[term]
        return Spending(self.occurring, (), int(share * affordable))

    def _rarity(self, term: str) -> tuple[int, str]:
        return self.frequencies[term], term

    @cached_property
    def _simple(self) -> frozenset[int]:
        """The hashes of the clauses that ask for one term."""
        return frozenset(hashed(*clause.terms) for clause in self.clauses if len(clause.terms) == 1)

    @cached_property
    def _compound(self) -> tuple[tuple[frozenset[int], ...], ...]:
        """The alternatives of the other clauses, as hashes."""
        return tuple(
            tuple(frozenset(hashed(term) for term in alternative) for alternative in clause.alternatives)
            for clause in self.clauses
            if len(clause.terms) > 1
        )

    @cached_property
    def telling(self) -> tuple[str, ...]:
        """One term for each clause that occurs, rarest first: of a compound the whole, or its rarest word."""
        chosen = (self._telling(clause) for clause in self.clauses)
        return tuple(sorted({term for term in chosen if term}, key=self._rarity))

    def _telling(self, clause: Clause) -> str | None:
        wholes = [term for alternative in clause.alternatives if len(alternative) == 1 for term in alternative]
        for terms in (wholes, clause.terms):
            occurring = [term for term in terms if self.frequencies.get(term)]
            if occurring:
                return min(occurring, key=self._rarity)
        return None

    def share(self, held: frozenset[int] | set[int]) -> float:
        """The part of the question's clauses that a document with these terms satisfies, 0 to 1."""
        satisfied = len(held & self._simple)
        for alternatives in self._compound:
            satisfied += any(alternative <= held for alternative in alternatives)
        return satisfied / (len(self._simple) + len(self._compound))


@dataclass(frozen=True, slots=True)
class Weights:
    """How telling each term of a question is, over all the tiers that are asked: their rows compete."""

    idf: NDArray[np.float64]
    """By a term's hash; 0 for what was not asked and for what occurs nowhere."""
    average_length: float
    telling: bool
    """Whether the question is short, and one of its terms so rare that it is about the few rows that hold it."""


def weigh(plans: Sequence[Plan]) -> Weights:
    """The weights of the plans of one question."""
    documents = sum(plan.documents for plan in plans)
    length = sum(plan.documents * plan.average_length for plan in plans)
    frequencies: Counter[str] = Counter()
    for plan in plans:
        frequencies.update(plan.frequencies)
    idf = np.zeros(HASHES)
    for term, frequency in frequencies.items():
        if frequency:
            idf[hashed(term)] = _idf(frequency, documents)
    few = max(_TELLING_ROWS, documents // 50_000)
    telling = len(plans[0].clauses) <= _TELLING_CLAUSES_MAX and any(0 < count <= few for count in frequencies.values())
    return Weights(idf, length / documents if documents else 1.0, telling)


def _idf(frequency: int, documents: int) -> float:
    others = max(documents - frequency, 0)  # a term may have been counted after the documents were
    return max(math.log((others + 0.5) / (frequency + 0.5)), _IDF_MIN)


def plan(index: Index, tier: Tier, frequencies: Frequencies, clauses: Sequence[Clause]) -> Plan:
    """Look up what a question asks for in one tier."""
    documents, average_length = index.size(tier)
    clauses = clauses[: limits.QUERY_TERMS_MAX]
    terms = list(dict.fromkeys(term for clause in clauses for term in sorted(clause.terms)))[: limits.QUERY_TERMS_MAX]
    known = frequencies.of(terms, documents)
    asked = tuple(_with_prefixes(index, tier, clause, known) for clause in clauses)
    more = [term for clause in asked for term in clause.terms if term not in known]
    known |= frequencies.of(more, documents)
    return Plan(tier, asked, known, documents, average_length)


def _with_prefixes(index: Index, tier: Tier, clause: Clause, known: dict[str, int]) -> Clause:
    """A clause that nothing has, and that is the beginning of an identifier with digits, as that identifier."""
    if any(known.get(term) for term in clause.terms) or len(clause.alternatives) > 1:
        return clause
    (term,) = clause.terms if len(clause.terms) == 1 else ("",)
    if len(term) < _PREFIX_CHARS_MIN or not any(char.isdigit() for char in term):
        return clause
    longer = index.terms_from(tier, term, _PREFIX_TERMS_MAX)
    return Clause(tuple(frozenset([found]) for found in longer)) if longer else clause
