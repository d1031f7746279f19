"""The ranking of a recall's candidates. Every rule here has paid on several sets; see the ablation of bench-recall."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.records import Tier
from storage.search.documents import REPEATED, Document, Filters
from storage.search.index import Index
from storage.search.plan import Plan, Weights
from storage.search.postings import Hits, Postings

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
    """A document that may answer, and what its score is made of."""

    document: Document
    bm25: float = 0.0
    share: float = 0.0
    """The part of the question's clauses that it satisfies, 0 to 1."""
    certain: bool = True
    """False where only hashes say that it holds a term."""
    own: float = 0.0
    """What it deserves by itself: its BM25, and SHARE of that for what it satisfies."""
    lift: float = 0.0
    """From its neighbours in the session."""
    agent: float = 0.0
    """For an author whom the question names."""
    session: float = 0.0
    """Of the best of its session."""

    @property
    def score(self) -> float:
        """The sum of the parts, to nine places: what is added up in another order is still equal."""
        return round(self.own + self.lift + self.agent + self.session, 9)

    @property
    def parts(self) -> dict[str, float]:
        """The parts that it has, by name."""
        parts = {"bm25": self.bm25, "share": self.own - self.bm25, "lift": self.lift}
        parts |= {"agent": self.agent, "session": self.session}
        return {name: part for name, part in parts.items() if part}


class Scores(NamedTuple):
    """What each of some postings has of the question."""

    bm25: NDArray[np.float64]
    share: NDArray[np.float64]
    """The part of the question's clauses that it satisfies, 0 to 1."""


def scored(weights: Weights, asked: Plan, postings: Postings) -> Scores:
    """BM25 and share of each document.

    Costs 0.4 µs a document of 100 terms, beside the 1.5 µs that its reading takes.
    """
    blocks = [_scored(weights, asked, postings.block(at, _BLOCK)) for at in range(0, len(postings), _BLOCK)]
    none = np.zeros(0)
    return Scores(*map(np.concatenate, zip(*blocks, strict=True))) if blocks else Scores(none, none)


def _scored(weights: Weights, asked: Plan, postings: Postings) -> Scores:
    found = postings.hits(weights.asked)
    held = np.zeros((len(postings), len(weights.asked)), np.bool_)
    held[found.holder, found.term] = True
    return Scores(_bm25(weights, postings, found), asked.shares(held, weights.columns))


def _bm25(weights: Weights, postings: Postings, found: Hits) -> NDArray[np.float64]:
    heads = postings.numbers[postings.heads]
    often = np.ones(len(found.place))
    reached = heads[found.holder, 1:]
    repeated = np.flatnonzero(found.place < reached[:, 0])
    often[repeated] += (found.place[repeated, None] < reached[repeated]) @ _STEPS
    norm = K1 * (1 - B + B * heads[:, 0] / weights.average_length)
    gains: NDArray[np.float64] = weights.idf[found.term] * often * (K1 + 1) / (often + norm[found.holder])
    return np.bincount(found.holder, gains, minlength=len(postings)).astype(np.float64)


def rank(index: Index, candidates: Sequence[Candidate], named: frozenset[int], filters: Filters) -> list[Candidate]:
    """The candidates and their neighbours, best first; the newer first where they are equal.

    `named` are the authors that the question names. A candidate that satisfies none of the question's clauses (it holds
    one half of an identifier) answers nothing and is left out.
    """
    ranked = {(c.document.tier, c.document.row): c for c in candidates if c.share > 0}
    for candidate in ranked.values():
        candidate.own = candidate.bm25 * (1 + SHARE * candidate.share)
        if candidate.document.agent in named:
            candidate.agent = AGENT_BONUS
    together = [candidate for candidate in ranked.values() if candidate.document.session is not None]
    if together:
        _lift_neighbours(index, ranked, together, named, filters)
        _share_the_best(ranked.values())
    return sorted(ranked.values(), key=_order, reverse=True)


def _share_the_best(candidates: Iterable[Candidate]) -> None:
    """Give each row of a session a part of the session's best score."""
    best: dict[tuple[Tier, int | None], float] = defaultdict(float)
    members = [
        (one, (one.document.tier, one.document.session)) for one in candidates if one.document.session is not None
    ]
    for candidate, session in members:
        best[session] = max(best[session], candidate.score)
    for candidate, session in members:
        candidate.session = SESSION_BEST * best[session]


def _order(candidate: Candidate) -> tuple[float, float, int]:
    return candidate.score, candidate.document.created_s or 0.0, candidate.document.row


def _lift_neighbours(
    index: Index,
    ranked: dict[tuple[Tier, int], Candidate],
    together: Sequence[Candidate],
    named: frozenset[int],
    filters: Filters,
) -> None:
    """Give the rows before and after each candidate of a session a part of its score."""
    neighbours: dict[tuple[Tier, int], list[Document]] = {}
    for tier, session in {(candidate.document.tier, candidate.document.session) for candidate in together}:
        assert session is not None
        rows = index.session(tier, session, _SESSION_ROWS_MAX)
        for before, after in pairwise(rows):
            neighbours.setdefault((tier, before.row), []).append(after)
            neighbours.setdefault((tier, after.row), []).append(before)
    for candidate in together:
        for document in neighbours.get((candidate.document.tier, candidate.document.row), ()):
            key = (document.tier, document.row)
            if key not in ranked:
                if not filters.admits(document):
                    continue
                ranked[key] = Candidate(document, agent=AGENT_BONUS if document.agent in named else 0.0)
            ranked[key].lift += LIFT * candidate.own
