"""From a question to ranked documents: the plan, the candidates of each tier, the ranking."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage import limits
from storage.records import Tier
from storage.search import ranking
from storage.search.documents import Document, Filters
from storage.search.index import Index
from storage.search.plan import Frequencies, Plan, Weights, plan, weigh
from storage.search.ranking import Candidate
from storage.search.text import Clause, analyse, match_all, match_any

_NEWEST: Final = 100
_TOGETHER_MAX: Final = 8
_ANCHORS_MAX: Final = 3
_PARTNERS_MAX: Final = 6


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
        budget = limits.POSTINGS_BUDGET // len(tiers)
        plans = [plan(self.index, tier, self._frequencies_of(tier), clauses, budget) for tier in tiers]
        weights = weigh(plans)
        candidates = [candidate for asked in plans for candidate in self._of_tier(asked, weights, filters)]
        return ranking.rank(self.index, candidates, self._named(question), filters)

    def _frequencies_of(self, tier: Tier) -> Frequencies:
        return self._frequencies.setdefault(tier, Frequencies(self.index, tier))

    def _of_tier(self, asked: Plan, weights: Weights, filters: Filters) -> list[Candidate]:
        if not asked.kept:
            return []
        narrow = self._narrowest(asked.tier, filters)
        if narrow is not None and narrow[0] <= limits.NARROW_ROWS_MAX:
            documents = self.index.filtered(asked.tier, narrow[1], filters, limits.NARROW_ROWS_MAX)
            return _pool(ranking.score(asked, weights, documents, certain=False))
        found: list[Candidate] = []
        if asked.within_budget:
            best = self.index.best(asked.tier, match_any(asked.kept), filters, limits.POOL_ROWS)
            found = ranking.score(asked, weights, best, certain=True)
            if not asked.dropped:
                return found
        together = ranking.score(asked, weights, self._together(asked, filters), certain=False)
        return _union(found, _pool(together))

    def _narrowest(self, tier: Tier, filters: Filters) -> tuple[int, Filters] | None:
        """The filter that leaves the fewest rows, and how many (counted up to limits.NARROW_ROWS_MAX + 1)."""
        counted = [(self.index.left_by(tier, part, limits.NARROW_ROWS_MAX + 1), part) for part in filters.parts()]
        return min(counted, key=lambda pair: pair[0], default=None)

    def _together(self, asked: Plan, filters: Filters) -> Iterable[Document]:
        """What the rare terms alone would miss: the newest rows that hold several of the question's terms together.

        An intersection costs no bm25(), and ends where enough rows are found: the rarest terms together; the rarest
        with any of the next; the second rarest with any of those after it; and so on.
        """
        documents: dict[int, Document] = {}
        for expression in _intersections(asked.telling):
            for document in self.index.newest(asked.tier, expression, filters, _NEWEST):
                documents[document.row] = document
        return documents.values()

    def _named(self, question: str) -> frozenset[int]:
        """The authors whose names stand in a question."""
        words = set(analyse(question))
        named = (author for author in self.index.authors() if set(analyse(author)) <= words)
        numbers = (self.index.number(author) for author in named)
        return frozenset(number for number in numbers if number is not None)


def _intersections(terms: Sequence[str]) -> list[str]:
    """FTS5 expressions of rows that hold several of the terms (rarest first), the strictest first."""
    if len(terms) == 1:
        return [match_any(terms)]
    expressions = [match_all(terms[:_TOGETHER_MAX])]
    for at, anchor in enumerate(terms[:_ANCHORS_MAX]):
        partners = terms[at + 1 : at + 1 + _PARTNERS_MAX]
        if partners:
            expressions.append(f"{match_all([anchor])} AND ({match_any(partners)})")
    return [*expressions, match_any(terms[:1])]


def _pool(candidates: list[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: candidate.bm25, reverse=True)[: limits.POOL_ROWS]


def _union(first: list[Candidate], second: list[Candidate]) -> list[Candidate]:
    known = {candidate.document.row for candidate in first}
    return first + [candidate for candidate in second if candidate.document.row not in known]
