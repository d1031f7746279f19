"""The ranking of a recall's candidates. Every rule here has paid on several sets; see the ablation of bench-recall."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from storage.records import Tier
from storage.search.documents import Document, Filters
from storage.search.index import Index
from storage.search.plan import Plan, Weights

K1: Final = 1.2
B: Final = 0.75
LIFT: float = 0.35
"""What a row's neighbours in its session get of its score."""
AGENT_BONUS: float = 1.5
"""For a row whose author the question names."""
SESSION_BEST: float = 0.2
"""What each row of a session gets of the session's best score."""
SHARE: float = 0.5
"""How much of its score a row gets again if it has all that the question asks for."""
_SESSION_ROWS_MAX: Final = 2_000


@dataclass(slots=True)
class Candidate:
    """A document that may answer, and the parts of its score."""

    document: Document
    bm25: float = 0.0
    share: float = 0.0
    """The part of the question's clauses that it satisfies, 0 to 1."""
    parts: dict[str, float] = field(default_factory=dict)
    certain: bool = True
    """False where only hashes say that it holds a term."""

    @property
    def score(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())


def score(plan: Plan, weights: Weights, documents: Iterable[Document], *, certain: bool) -> list[Candidate]:
    """Candidates by BM25 over their own sets of terms; documents that hold none of the question's are left out.

    Each term counts once: how often it is repeated says little in memories of a few sentences (bench-recall: BEAM
    .438 so against .414, LoCoMo .755 against .760, Chinese .446 against .436).
    """
    asked = frozenset(weights.idf)
    candidates = []
    for document in documents:
        if held := asked.intersection(document.terms):
            norm = (K1 + 1) / (1 + K1 * (1 - B + B * document.length / weights.average_length))
            bm25 = norm * sum(weights.idf[term] for term in held)
            candidates.append(Candidate(document, bm25, plan.share(held), certain=certain))
    return candidates


def rank(index: Index, candidates: Sequence[Candidate], named: frozenset[int], filters: Filters) -> list[Candidate]:
    """The candidates and their neighbours, best first; the newer first where they are equal.

    `named` are the authors that the question names. A candidate that satisfies none of the question's clauses (it holds
    one half of an identifier) answers nothing and is left out.
    """
    ranked = {(c.document.tier, c.document.row): c for c in candidates if c.share > 0}
    for candidate in ranked.values():
        candidate.parts["bm25"] = candidate.bm25
        candidate.parts["share"] = SHARE * candidate.share * candidate.bm25
    _lift_neighbours(index, ranked, filters)
    best: dict[tuple[Tier, int], float] = defaultdict(float)
    for candidate in ranked.values():
        if candidate.document.agent in named:
            candidate.parts["agent"] = AGENT_BONUS
        session = candidate.document.session
        if session is not None:
            key = (candidate.document.tier, session)
            best[key] = max(best[key], candidate.score)
    for candidate in ranked.values():
        session = candidate.document.session
        if session is not None:
            candidate.parts["session"] = SESSION_BEST * best[candidate.document.tier, session]
    return sorted(ranked.values(), key=_order, reverse=True)


def _order(candidate: Candidate) -> tuple[float, float, int]:
    return round(candidate.score, 9), candidate.document.created_s or 0.0, candidate.document.row


def _lift_neighbours(index: Index, ranked: dict[tuple[Tier, int], Candidate], filters: Filters) -> None:
    """Give the rows before and after each candidate in its session a part of its score."""
    hits = [candidate for candidate in ranked.values() if candidate.document.session is not None]
    sessions = {(candidate.document.tier, candidate.document.session) for candidate in hits}
    neighbours: dict[tuple[Tier, int], list[Document]] = {}
    for tier, session in sessions:
        if session is None:
            continue
        rows = index.session(tier, session, _SESSION_ROWS_MAX)
        for before, after in pairwise(rows):
            neighbours.setdefault((tier, before.row), []).append(after)
            neighbours.setdefault((tier, after.row), []).append(before)
    for candidate in hits:
        lift = LIFT * (candidate.bm25 + candidate.parts["share"])
        for document in neighbours.get((candidate.document.tier, candidate.document.row), ()):
            key = (document.tier, document.row)
            if key not in ranked and not filters.admits(document):
                continue
            near = ranked.setdefault(key, Candidate(document))
            near.parts["lift"] = near.parts.get("lift", 0.0) + lift
