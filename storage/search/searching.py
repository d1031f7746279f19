"""From a question to ranked documents: the plan, the candidates of each tier, the ranking."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage import limits
from storage.records import Tier
from storage.rows import SEARCHED
from storage.search import ranking
from storage.search.documents import Filters
from storage.search.index import Index
from storage.search.plan import Frequencies, Plan, Spending, Weights, plan, weigh
from storage.search.postings import Postings
from storage.search.ranking import Candidate, Scores
from storage.search.text import Clause, analyse, match_all, match_any, quoted

_NEWEST: Final = 100
_TOGETHER_MAX: Final = 4
_TELLING_BUDGET: Final = 300
"""Of a question with a word so rare that it is about the few rows that hold it."""


class _Rows(NamedTuple):
    """The rows of a tier that are scored."""

    asked: Plan
    found: Postings
    certain: bool
    """False where they were not found by a term, so that only hashes can say that a row holds one."""
    complete: bool
    """Whether no other row that passes the filters holds a term of the question."""


class Proposal(NamedTuple):
    """What the index proposes for an answer."""

    candidates: list[Candidate]
    """Best first."""
    found: Sequence[_Rows] = ()
    """By tier."""
    weights: Weights | None = None
    named: frozenset[int] = frozenset()
    """The authors that the question names."""
    filters: Filters = Filters()

    @property
    def complete(self) -> bool:
        """Whether no other row that passes the filters holds a term of the question."""
        return all(some.complete for some in self.found)


@dataclass
class Searcher:
    """Asks one index. Keeps what it has learned about common terms; a new index needs a new searcher."""

    index: Index
    _frequencies: dict[Tier, Frequencies] = field(default_factory=dict)
    _version: int = -1
    """Of the index, when the following was read."""
    _sizes: dict[Tier, tuple[int, float]] = field(default_factory=dict)
    _authors: list[tuple[frozenset[str], int]] = field(default_factory=list)
    """The words of each author's name, and its number."""

    def search(self, clauses: Sequence[Clause], question: str, tiers: Sequence[Tier], filters: Filters) -> Proposal:
        """The candidates for a question, among as many rows as the budget allows."""
        if not clauses or not tiers:
            return Proposal([])
        self._look_again()
        plans = [plan(self.index, tier, self._frequencies_of(tier), clauses, self._sizes[tier]) for tier in tiers]
        weights = weigh(plans)
        found = [self._rows(asked, filters, len(tiers), weights.telling) for asked in plans if asked.occurring]
        return self._proposed(Proposal([], found, weights, self._named(question), filters))

    def deeper(self, proposal: Proposal) -> Proposal:
        """And the newest rows with any of the terms, however many have to be looked at: up to the read's deadline."""
        return self._proposed(
            proposal._replace(found=[self._deeper(some, proposal.filters) for some in proposal.found])
        )

    def _proposed(self, asked: Proposal) -> Proposal:
        if asked.weights is None or not asked.found:
            return asked
        best = self._best(asked.found, asked.weights)
        return asked._replace(candidates=ranking.rank(self.index, best, asked.named, asked.filters))

    def _frequencies_of(self, tier: Tier) -> Frequencies:
        return self._frequencies.setdefault(tier, Frequencies(self.index, tier))

    def _best(self, found: Sequence[_Rows], weights: Weights) -> list[Candidate]:
        """The best of all tiers by BM25: POOL_ROWS, and as many more as it takes to have K_MAX different sentences."""
        scores = [ranking.scored(weights, some.asked, some.found) for some in found]
        bm25 = np.concatenate([score.bm25 for score in scores])
        best = np.argsort(-bm25, kind="stable")[: np.count_nonzero(bm25 > 0)]
        ends = np.cumsum([len(some.found) for some in found]).tolist()
        candidates: list[Candidate] = []
        for first in range(0, len(best), limits.POOL_ROWS):
            pool = best[first : first + limits.POOL_ROWS]
            for some, score, end in zip(found, scores, ends, strict=True):
                inside = pool[(pool >= end - len(some.found)) & (pool < end)] - (end - len(some.found))
                candidates += self._candidates(some, score, inside)
            if len({candidate.document.sentence for candidate in candidates}) >= limits.K_MAX:
                break
        return candidates

    def _candidates(self, some: _Rows, scores: Scores, places: NDArray[np.int64]) -> Iterator[Candidate]:
        """The documents at some places among the rows of a tier."""
        rows = some.found.rows[places].tolist()
        parts = zip(scores.bm25[places].tolist(), scores.share[places].tolist(), strict=True)
        of = dict(zip(rows, parts, strict=True))
        for document in self.index.documents(some.asked.tier, rows):
            bm25, share = of[document.row]
            yield Candidate(document, bm25, share, some.certain)

    def _rows(self, asked: Plan, filters: Filters, tiers: int, telling: bool) -> _Rows:
        """The rows of one tier of several that are scored; fewer where a telling word says which few are meant."""
        budget = (_TELLING_BUDGET if telling else limits.POSTINGS_BUDGET) // tiers
        left = self._left_by(asked, filters)
        if left is not None and left <= limits.NARROW_ROWS_MAX:
            return _Rows(asked, self._newest(asked.tier, filters), certain=False, complete=True)
        spending = asked.spend(budget if left is None else min(budget, left), self._share(asked, filters))
        complete = not spending.dropped
        if left is not None:
            found = self._newest(asked.tier, filters).with_others(self._of(asked, spending.kept, filters, budget))
            return _Rows(asked, found, certain=False, complete=complete)
        found = self._matching(asked, spending, filters, budget)
        if spending.dropped and not telling:
            found = found.with_others(self._together(asked, spending, filters))
        if filters.timed and len(found) < limits.NARROW_ROWS_MAX:  # the rare words are of other times
            found = self._newest(asked.tier, filters).with_others(found)
            return _Rows(asked, found, certain=False, complete=complete)
        return _Rows(asked, found, certain=True, complete=complete)

    def _deeper(self, some: _Rows, filters: Filters) -> _Rows:
        if some.complete:
            return some
        expression = _within(match_any(some.asked.occurring), filters)
        more = self.index.matching(some.asked.tier, expression, filters, _NEWEST, whole=True)
        return some._replace(found=some.found.with_others(more), complete=True)

    def _matching(self, asked: Plan, spending: Spending, filters: Filters, budget: int) -> Postings:
        """The rows of the rarest terms; of the next one the newest, as many as the budget allows."""
        found = self._of(asked, spending.kept, filters, budget)
        return found.with_others(self._of(asked, spending.dropped[:1], filters, max(spending.left, _NEWEST)))

    def _together(self, asked: Plan, spending: Spending, filters: Filters) -> Postings:
        """The newest rows that hold the rarest four terms together: they may be old, and cost little."""
        if asked.telling[0] in spending.kept:  # they are found already
            return Postings.none()
        together = match_all(asked.telling[:_TOGETHER_MAX])
        return self.index.matching(asked.tier, _within(together, filters), filters, _NEWEST)

    def _of(self, asked: Plan, terms: Sequence[str], filters: Filters, at_most: int) -> Postings:
        """The newest rows that hold any of the terms and pass the filters."""
        if not terms:
            return Postings.none()
        return self.index.matching(asked.tier, _within(match_any(terms), filters), filters, at_most)

    def _share(self, asked: Plan, filters: Filters) -> float:
        """What the facets leave of a term's rows, as if they had nothing to do with each other."""
        frequencies = self._frequencies_of(asked.tier).of(filters.facets, asked.documents)
        return min(frequencies.values(), default=asked.documents) / max(asked.documents, 1)

    def _left_by(self, asked: Plan, filters: Filters) -> int | None:
        """How many rows the filters leave, where these are few; None where they are many, or there are no filters."""
        left = None
        facets = self._frequencies_of(asked.tier).of(filters.facets, asked.documents)
        if facets and min(facets.values()) <= limits.FILTERED_ROWS_MAX:
            left = self.index.postings(asked.tier, match_all(facets), limits.FILTERED_ROWS_MAX)
        if filters.timed:
            rows = self.index.timed(asked.tier, filters, limits.NARROW_ROWS_MAX + 1)
            if len(rows) <= limits.NARROW_ROWS_MAX:
                return len(rows)
        return left

    def _newest(self, tier: Tier, filters: Filters) -> Postings:
        """The newest rows that the filters leave: all of them, where these are NARROW_ROWS_MAX at most."""
        at_most = limits.NARROW_ROWS_MAX
        facets = match_all(filters.facets)
        rows = self.index.timed(tier, filters, at_most + 1) if filters.timed else []
        if filters.timed and (len(rows) <= at_most or not facets):
            return self.index.among(tier, rows[:at_most], facets or None, filters)
        return self.index.matching(tier, facets, filters, at_most)

    def _look_again(self) -> None:
        """Read what changes with each write alone, if there was one."""
        if (version := self.index.version()) == self._version:
            return
        for frequencies in self._frequencies.values():
            frequencies.forget_rare()
        self._sizes = {tier: self.index.size(tier) for tier in SEARCHED}
        numbered = [(frozenset(analyse(author)), self.index.number(author)) for author in self.index.authors()]
        self._authors = [(words, number) for words, number in numbered if number is not None]
        self._version = version

    def _named(self, question: str) -> frozenset[int]:
        """The authors whose names stand in a question."""
        asked = set(analyse(question))
        return frozenset(number for words, number in self._authors if words <= asked)


def _within(expression: str, filters: Filters) -> str:
    """An FTS5 expression that only rows with the filters' facets satisfy."""
    return " AND ".join([f"({expression})", *map(quoted, filters.facets)])
