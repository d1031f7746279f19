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
from storage.search.documents import hashed
from storage.search.index import Index
from storage.search.text import Clause, quoted

_COMMON_FROM: Final = 250
_RARE_KEPT: Final = 10_000
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

    Those of rare ones are until the index changes: a term that was nowhere a moment ago may be in the row just written.
    """

    def __init__(self, index: Index, tier: Tier) -> None:
        self._index = index
        self._tier = tier
        self._common: dict[str, int] = {}
        self._rare: dict[str, int] = {}
        self._documents = 0

    def forget_rare(self) -> None:
        """The index has changed, or too many are remembered."""
        self._rare.clear()

    def of(self, terms: Sequence[str], documents: int) -> dict[str, int]:
        """How many documents hold each term."""
        if documents > self._documents * _GROWTH:
            self._common.clear()
            self._documents = documents
        if len(self._rare) > _RARE_KEPT:
            self.forget_rare()
        return {term: self._of(term) for term in terms}

    def _of(self, term: str) -> int:
        known = self._common.get(term) or self._rare.get(term)
        if known is not None:
            return known
        frequency = self._index.postings(self._tier, quoted(term), _COMMON_FROM)
        if frequency >= _COMMON_FROM:
            frequency = self._common[term] = self._index.frequency(self._tier, term)
        else:
            self._rare[term] = frequency
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

    def shares(self, held: NDArray[np.bool_], columns: dict[int, int]) -> NDArray[np.float64]:
        """The part of the question's clauses that each document satisfies, 0 to 1.

        A document is a line of `held`, which says of each term, by the column of its hash, whether it holds it.
        """
        simple = {columns[hashed(*clause.terms)] for clause in self.clauses if len(clause.terms) == 1}
        satisfied = held[:, [*simple]].sum(axis=1)
        compound = [clause for clause in self.clauses if len(clause.terms) > 1]
        for clause in compound:
            wholes = [[columns[hashed(term)] for term in alternative] for alternative in clause.alternatives]
            satisfied += np.logical_or.reduce([held[:, whole].all(axis=1) for whole in wholes])
        shares: NDArray[np.float64] = satisfied / (len(simple) + len(compound))
        return shares


@dataclass(frozen=True, slots=True)
class Weights:
    """How telling each term of a question is, over all the tiers that are asked: their rows compete."""

    columns: dict[int, int]
    """The column of each term, by its hash."""
    asked: NDArray[np.int64]
    """The hash of each column."""
    idf: NDArray[np.float64]
    """Of each column; 0 for what occurs nowhere."""
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
    idf: dict[int, float] = {}
    for term, frequency in frequencies.items():
        idf[hashed(term)] = _idf(frequency, documents) if frequency else idf.get(hashed(term), 0.0)
    few = max(_TELLING_ROWS, documents // 50_000)
    telling = len(plans[0].clauses) <= _TELLING_CLAUSES_MAX and any(0 < count <= few for count in frequencies.values())
    columns = {asked: column for column, asked in enumerate(idf)}
    average_length = length / documents if documents else 1.0
    return Weights(columns, np.array([*idf], np.int64), np.array([*idf.values()]), average_length, telling)


def _idf(frequency: int, documents: int) -> float:
    others = max(documents - frequency, 0)  # a term may have been counted after the documents were
    return max(math.log((others + 0.5) / (frequency + 0.5)), _IDF_MIN)


def plan(
    index: Index, tier: Tier, frequencies: Frequencies, clauses: Sequence[Clause], size: tuple[int, float]
) -> Plan:
    """Look up what a question asks for in one tier; `size` is what Index.size() says of it."""
    documents, average_length = size
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
