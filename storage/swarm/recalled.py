"""A recall in the swarm's files: lines as memories of the workers that left them, beside the rows of the database."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from storage.errors import Rejection
from storage.recalling import Question, bound, fitted
from storage.records import Also, Memory, Recalled
from storage.search.text import Clause, analyse, clauses_of
from storage.swarm.layout import Roots
from storage.swarm.records import SwarmHit, SwarmResults
from storage.swarm.search.searching import SwarmSearch

UNKNOWN_AUTHOR: Final = "(shared memory)"
"""Stands for the author of a shared page that names no worker; no agent's name."""
FILES_BEHIND: Final = "files_behind"
FILES_UNREAD: Final = "files_unread"
_MATCHED: Final = "matched"
_COPIES: Final = 5
"""In how many places the same line may lie."""


@dataclass(frozen=True, slots=True)
class Reach:
    """Which files a caller's recall covers, by the sharing rule."""

    workers: Collection[str] | None
    """Whose missions and handoffs; None for every worker's."""
    private: Collection[str]
    """Whose profile, episodes and notes."""
    shared: bool


class FileRecall:
    """Recalls in the files. Thread-safe."""

    def __init__(self, roots: Roots, search: SwarmSearch, agent_of: Callable[[str], str | None]) -> None:
        """`agent_of` names the agent of a worker, where it is one."""
        self._roots = roots
        self._search = search
        self._agent_of = agent_of

    def recall(self, question: Question, reach: Reach, now_s: float) -> Recalled:
        """The files' lines for a question, best first, each a memory of its worker's agent.

        Files have neither topic nor tags: a question that asks for them finds none. `since` and `until` are compared
        with the time of the file.

        Raises:
            InvalidRequest: a date is none.
            FileFailed: the files cannot be read.
        """
        since_s, until_s = bound("since", question.since, now_s), bound("until", question.until, now_s)
        if question.topic is not None or question.tags:
            return _recalled((), [], ())
        found = self._search.search(
            question.q,
            workers=reach.workers,
            private=reach.private,
            shared=reach.shared,
            limit=question.k * _COPIES,
            since_s=since_s,
            until_s=until_s,
        )
        return self._as_recalled(question, found)

    def _as_recalled(self, question: Question, found: SwarmResults) -> Recalled:
        clauses = clauses_of(question.q)
        hits = self._each_once(found.results)[: question.k]
        shares = [_share(copies[0], clauses) for copies in hits]
        memories = [
            self._memory(copies, share, explain=question.explain) for copies, share in zip(hits, shares, strict=True)
        ]
        reasons = (FILES_BEHIND,) if found.behind else ()
        return _recalled(fitted(memories, full=question.full), shares, reasons)

    def _each_once(self, hits: Sequence[SwarmHit]) -> list[list[SwarmHit]]:
        """Hits that say the same together, a worker's own before its copies in shared memory: a handoff lies in five
        places once its mission is archived."""
        groups: dict[str, list[SwarmHit]] = {}
        for hit in hits:
            groups.setdefault(hit.snippet, []).append(hit)
        return [
            sorted(group, key=lambda hit: Path(hit.path).is_relative_to(self._roots.shared))
            for group in groups.values()
        ]

    def _memory(self, copies: Sequence[SwarmHit], share: float, *, explain: bool) -> Memory:
        hit = copies[0]
        return Memory(
            id=self._id(hit),
            tier="swarm",
            agent=self._author(hit),
            text=hit.snippet,
            cut=True,
            created_at=hit.updatedAt,
            score=round(hit.score, 4),
            parts={_MATCHED: round(share, 4)} if explain else None,
            worker=hit.workerId,
            mission=hit.missionId,
            path=hit.path,
            line=hit.line,
            also=tuple(Also(agent=self._author(one), id=self._id(one), created_at=one.updatedAt) for one in copies[1:]),
        )

    def _id(self, hit: SwarmHit) -> str:
        path = Path(hit.path)
        root = next((root for root in (self._roots.profiles, self._roots.shared) if path.is_relative_to(root)), path)
        return f"swarm:{path.relative_to(root)}:{hit.line}"

    def _author(self, hit: SwarmHit) -> str:
        if hit.workerId is None:
            return UNKNOWN_AUTHOR
        return self._agent_of(hit.workerId) or f"worker {hit.workerId}"


def with_files(rows: Recalled, files: Recalled | Rejection, question: Question) -> Recalled:
    """One answer of the database's rows and of the files' lines, at most k, best first.

    Scores of the two are no relatives. A line is worth as much as the best row would be for the share of the question
    that the line holds; a row comes first where they are equal. Both must have been explained. Files that could not be
    read leave the rows, and a reason.
    """
    lines: list[Memory] = []
    reasons: tuple[str, ...] = (FILES_UNREAD,)
    if isinstance(files, Recalled):
        unit = max((_unit(memory) for memory in rows.results), default=1.0)
        lines = [replace(line, score=round(unit * _matched(line), 4)) for line in files.results]
        reasons = tuple(reason for reason in files.degraded_reasons if reason not in rows.degraded_reasons)
    best = sorted((*rows.results, *lines), key=lambda memory: memory.score or 0.0, reverse=True)[: question.k]
    relaxed = bool(best) and max(_matched(memory) for memory in best) < 1.0
    shown = best if question.explain else [replace(memory, parts=None) for memory in best]
    return replace(
        rows,
        degraded_reasons=(*rows.degraded_reasons, *reasons),
        relaxed=relaxed,
        results=fitted(shown, full=question.full),
    )


def _recalled(results: Sequence[Memory], shares: Sequence[float], reasons: tuple[str, ...]) -> Recalled:
    return Recalled(
        degraded=True,
        degraded_reasons=("no_embedder", *reasons),
        relaxed=bool(shares) and max(shares) < 1.0,
        results=tuple(results),
    )


def _share(hit: SwarmHit, clauses: Sequence[Clause]) -> float:
    """The part of the question that a line answers, with what is shown around it."""
    terms = frozenset(analyse(hit.snippet))
    return sum(clause.satisfied_by(terms) for clause in clauses) / len(clauses) if clauses else 0.0


def _matched(memory: Memory) -> float:
    return (memory.parts or {}).get(_MATCHED, 0.0)


def _unit(memory: Memory) -> float:
    """What the whole question is worth by a row's score."""
    return (memory.score or 0.0) / _matched(memory) if _matched(memory) else 0.0
