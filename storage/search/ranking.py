"""The ranking of a recall's candidates. Every rule here has paid on several sets; see the ablation of bench-recall."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from storage.records import Tier
from storage.search.documents import HEAD, REPEATED, Document, Filters
from storage.search.index import Index
from storage.search.plan import Weights

K1: Final = 1.2
B: Final = 0.75
LIFT: float = 0.35
"""What a row's neighbours in its session get of its score."""
AGENT_BONUS: float = 1.5
"""For a row whose author the question names."""
SESSION_BEST: float = 0.35
"""What each row of a session gets of the session's best score."""
SHARE: float = 0.1
"""How much of its score a row gets again if it has all that the question asks for."""
_SESSION_ROWS_MAX: Final = 2_000
_BLOCK: Final = 1_024
"""Documents that are scored at once: in one go 5,000 cost three times as much, for fresh pages of memory."""
_STEPS: Final = np.diff((1, *REPEATED)).astype(np.float64)
"""What each step of REPEATED that a term reaches adds to how often it occurs."""


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


def bm25(weights: Weights, documents: Sequence[bytes]) -> NDArray[np.float64]:
    """BM25 of each document from its packed terms; one value for each, in their order.

    Costs 0.4 µs a document of 100 terms, beside the 1.5 µs that its reading takes.

    Raises:
        ValueError: what is given as a document is none: the index is damaged.
    """
    blocks = [documents[at : at + _BLOCK] for at in range(0, len(documents), _BLOCK)]
    return np.concatenate([_bm25(weights, block) for block in blocks])


def _bm25(weights: Weights, documents: Sequence[bytes]) -> NDArray[np.float64]:
    sizes = np.fromiter(map(len, documents), np.int64, len(documents)) // 2
    if sizes.min() < HEAD:
        raise ValueError("a document has no head")
    starts = np.cumsum(sizes) - sizes
    numbers = np.frombuffer(b"".join(documents), np.uint16)
    heads = starts[:, None] + np.arange(HEAD)
    length, reached = numbers[heads[:, 0]], numbers[heads[:, 1:]]
    asked = (weights.idf > 0).take(numbers)
    asked[heads] = False
    hits = np.flatnonzero(asked)
    holder = np.repeat(np.arange(len(documents)), sizes)[hits]
    place = hits - (starts + HEAD)[holder]
    often = np.ones(len(hits))
    repeated = np.flatnonzero(place < reached[holder, 0])
    often[repeated] += (place[repeated, None] < reached[holder[repeated]]) @ _STEPS
    norm = K1 * (1 - B + B * length / weights.average_length)
    gains: NDArray[np.float64] = weights.idf[numbers[hits]] * often * (K1 + 1) / (often + norm[holder])
    return np.bincount(holder, gains, minlength=len(documents)).astype(np.float64)


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
