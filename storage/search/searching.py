"""From a question to ranked documents: the plan, the candidates of each tier, the ranking."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from storage import limits
from storage.records import Tier
from storage.search import ranking
from storage.search.documents import Filters, distinct
from storage.search.failures import index_failures
from storage.search.index import Index, Posting
from storage.search.plan import Frequencies, Plan, Weights, plan, weigh
from storage.search.ranking import Candidate
from storage.search.text import Clause, analyse, match_all, match_any, quoted

_NEWEST: Final = 100
_TOGETHER_MAX: Final = 4
_TELLING_BUDGET: Final = 1_000
"""Of a question with a word so rare that it is about the few rows that hold it."""


class _Rows(NamedTuple):
    """The rows of a tier that are scored."""

    asked: Plan
    rows: Sequence[int]
    terms: Sequence[bytes]
    """Of each row, as documents.packed() made them."""
    certain: bool
    """False where they were not found by a term, so that only hashes can say that a row holds one."""


@dataclass
class Searcher:
    """Asks one index. Keeps what it has learned about common terms; a new index needs a new searcher."""

    index: Index
    _frequencies: dict[Tier, Frequencies] = field(default_factory=dict)

    def search(
        self, clauses: Sequence[Clause], question: str, tiers: Sequence[Tier], filters: Filters
    ) -> list[Candidate]:
        """The candidates for a question, best first."""
        if not clauses or not tiers:
            return []
        plans = [plan(self.index, tier, self._frequencies_of(tier), clauses) for tier in tiers]
        weights = weigh(plans)
        budget = _TELLING_BUDGET if weights.telling else limits.POSTINGS_BUDGET
        found = [rows for asked in plans if (rows := self._rows(asked, filters, budget // len(tiers))).rows]
        with index_failures():
            candidates = self._best(found, weights) if found else []
        return ranking.rank(self.index, candidates, self._named(question), filters)

    def _frequencies_of(self, tier: Tier) -> Frequencies:
        return self._frequencies.setdefault(tier, Frequencies(self.index, tier))

    def _best(self, found: Sequence[_Rows], weights: Weights) -> list[Candidate]:
        """The best of all tiers by BM25."""
        scores = ranking.bm25(weights, [terms for some in found for terms in some.terms])
        best = np.argsort(-scores, kind="stable")[: limits.POOL_ROWS]
        best = best[scores[best] > 0]
        candidates = []
        first = 0
        for some in found:
            places = best[(best >= first) & (best < first + len(some.rows))].tolist()
            chosen = {some.rows[at - first]: at for at in places}
            for document in self.index.documents(some.asked.tier, list(chosen)):
                at = chosen[document.row]
                share = some.asked.share(distinct(some.terms[at - first]))
                candidates.append(Candidate(document, float(scores[at]), share, certain=some.certain))
            first += len(some.rows)
        return candidates

    def _rows(self, asked: Plan, filters: Filters, budget: int) -> _Rows:
        """The rows of a tier that are scored, each once."""
        narrow = self._narrow(asked.tier, filters) if asked.occurring else []
        found = self._matching(asked, filters, budget) if narrow is None else dict(narrow)
        return _Rows(asked, [*found], [*found.values()], certain=narrow is None)

    def _matching(self, asked: Plan, filters: Filters, budget: int) -> dict[int, bytes]:
        """The rows of the rarest terms; of the next one the newest, as many as the budget allows.

        The rows that hold the rarest four terms together may be older than those, and cost little.
        """
        kept, dropped, left = asked.spend(budget, self._share(asked, filters))
        found: dict[int, bytes] = {}

        def add(expression: str, at_most: int) -> None:
            within = " AND ".join([f"({expression})", *map(quoted, filters.facets)])
            found.update(self.index.matching(asked.tier, within, filters, at_most))

        if kept:
            add(match_any(kept), budget)
        if dropped:
            add(match_any(dropped[:1]), max(left, _NEWEST))
            add(match_all(asked.telling[:_TOGETHER_MAX]), _NEWEST)
            if len(found) < limits.K_MAX:
                add(match_any(asked.occurring), _NEWEST)
        return found

    def _share(self, asked: Plan, filters: Filters) -> float:
        """What the facets leave of a term's rows, as if they had nothing to do with each other."""
        frequencies = self._frequencies_of(asked.tier).of(filters.facets, asked.documents)
        return min(frequencies.values(), default=asked.documents) / max(asked.documents, 1)

    def _narrow(self, tier: Tier, filters: Filters) -> list[Posting] | None:
        """All rows that the filters leave, where these are few."""
        at_most = limits.NARROW_ROWS_MAX
        facets = match_all(filters.facets)
        if facets and self.index.postings(tier, facets, at_most + 1) <= at_most:
            return self.index.matching(tier, facets, filters, at_most)
        if filters.timed and len(rows := self.index.timed(tier, filters, at_most + 1)) <= at_most:
            return self.index.among(tier, rows, facets or None, filters)
        return None

    def _named(self, question: str) -> frozenset[int]:
        """The authors whose names stand in a question."""
        words = set(analyse(question))
        named = (author for author in self.index.authors() if set(analyse(author)) <= words)
        numbers = (self.index.number(author) for author in named)
        return frozenset(number for number in numbers if number is not None)
