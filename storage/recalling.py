"""One recall: what the index proposes is read from the table, checked, and shown as its authors claimed it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import apsw

from storage import limits
from storage.durable import own_persona
from storage.errors import InvalidRequest
from storage.records import Also, Memory, Scope, Tier
from storage.rows import SEARCHED, Row, select_rows
from storage.schema import Schema
from storage.search.documents import Document, Filters
from storage.search.ranking import Candidate
from storage.search.searching import Proposal, Searcher
from storage.search.text import Clause, analyse, clauses_of
from storage.times import iso_or_none, parse_bound

_ALSO_MAX = 20
_PERSONAS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a recall asks."""

    agent: str
    q: str
    k: int
    scope: Scope
    tiers: tuple[Tier, ...]
    topic: str | None
    tags: tuple[str, ...]
    since: str | None
    until: str | None
    full: bool
    explain: bool
    without: str | None = None
    """An agent whose memories are left out."""


class Recollection:
    """The answer to one question, as it is put together."""

    def __init__(
        self, db: apsw.Connection, schema: Schema, searcher: Searcher, question: Question, now_s: float
    ) -> None:
        """Raises InvalidRequest where a date is none."""
        self._db = db
        self._schema = schema
        self._searcher = searcher
        self._question = question
        self._now_s = now_s
        self._clauses = clauses_of(question.q)
        self._since_s = bound("since", question.since, now_s)
        self._until_s = bound("until", question.until, now_s)
        self.stale: list[tuple[Tier, int]] = []
        """Rows that changed or went since they were indexed; they are not shown."""
        self._looked_at: dict[tuple[Tier, int], Row | None] = {}
        """The rows that were read; None where one may not be shown."""
        self.relaxed = False
        """Whether no row has all that the question asks for."""

    def results(self) -> list[Memory]:
        """At most k memories, best first; k, where so many rows hold any of the question's terms."""
        proposal = self._proposal()
        found = self._found(proposal)
        if len(found) < self._question.k and not proposal.complete:
            proposal = self._searcher.deeper(proposal)
            found = self._found(proposal)
        best_share = max((candidate.share for candidate in proposal.candidates), default=0.0)
        if (persona := self._persona()) is not None:
            share, memory = persona
            found.append((memory.score or 0.0, memory))
            best_share = max(best_share, share)
        self.relaxed = bool(found) and best_share < 1.0
        found.sort(key=lambda pair: pair[0], reverse=True)
        return [memory for _, memory in found[: self._question.k]]

    def _proposal(self) -> Proposal:
        filters = self._filters()
        if filters is None:
            return Proposal([])
        tiers = [tier for tier in SEARCHED if tier in self._question.tiers]
        return self._searcher.search(self._clauses, self._question.q, tiers, filters)

    def _found(self, proposal: Proposal) -> list[tuple[float, Memory]]:
        """The best memories with their scores: at least k, where so many candidates hold what they promise."""
        found: list[tuple[float, Memory]] = []
        groups = _by_sentence(proposal.candidates)
        while groups and len(found) < self._question.k:
            some, groups = groups[: self._question.k - len(found)], groups[self._question.k - len(found) :]
            self._read([candidate for group in some for candidate in group])
            for group in some:
                rows = [
                    (candidate, row) for candidate in group if (row := self._looked_at[_place(candidate)]) is not None
                ]
                found += [(same[0][0].score, self._memory(same)) for same in _by_text(rows)]
        return found

    def _read(self, candidates: Sequence[Candidate]) -> None:
        """Look at the candidates' rows as they are now."""
        unread = {place: one for one in candidates if (place := _place(one)) not in self._looked_at}
        for tier in {tier for tier, _ in unread}:
            places = json.dumps([row for of, row in unread if of == tier])
            where = "WHERE t.rowid IN (SELECT value FROM json_each(?))"
            rows = {row.row: row for row in select_rows(self._db, self._schema, tier, where, (places,))}
            for place, candidate in unread.items():
                if place[0] == tier:
                    self._looked_at[place] = self._shown(candidate, rows.get(place[1]))

    def _filters(self) -> Filters | None:
        """The filters in the index's numbers; None where a name is asked for that no row has."""
        question, number = self._question, self._searcher.index.number
        tags = [number(tag) for tag in question.tags]
        agent = number(question.agent) if question.scope == "own" else None
        topic = None if question.topic is None else number(question.topic)
        known = [tag for tag in tags if tag is not None]
        if len(known) < len(tags) or (question.scope == "own" and agent is None):
            return None
        if question.topic is not None and topic is None:
            return None
        return Filters(
            agent=agent,
            without=None if question.without is None else number(question.without),
            topic=topic,
            tags=tuple(known),
            since_s=self._since_s,
            until_s=self._until_s,
            live_at_s=self._now_s,
        )

    def _shown(self, candidate: Candidate, row: Row | None) -> Row | None:
        """The candidate's row, if it is still the one that was indexed and may be shown."""
        document = candidate.document
        if row is None or row.digest != document.digest:
            self.stale.append((document.tier, document.row))
            return None
        if not row.live(self._now_s) or not self._passes(row):
            return None
        return row if candidate.certain or _answers(row, self._clauses) else None

    def _passes(self, row: Row) -> bool:
        """Whether the table's row passes the filters, too: a damaged index must not widen them."""
        question = self._question
        if question.scope == "own" and row.agent != question.agent:
            return False
        if row.agent == question.without or question.topic not in (None, row.topic):
            return False
        return set(question.tags) <= set(row.tags) and self._in_time(row)

    def _in_time(self, row: Row) -> bool:
        if self._since_s is None and self._until_s is None:
            return True
        at_s = row.created_s
        if at_s is None:
            return False
        return (self._since_s is None or at_s >= self._since_s) and (self._until_s is None or at_s <= self._until_s)

    def _memory(self, same: Sequence[tuple[Candidate, Row]]) -> Memory:
        """The oldest of the rows that hold the same sentence; the others as its further authors."""
        candidate = same[0][0]
        first = min((row for _, row in same), key=lambda row: (row.created_s is None, row.created_s or 0.0, row.row))
        others = [row for _, row in same if row.id != first.id][:_ALSO_MAX]
        also = tuple(Also(agent=row.agent, id=row.id, created_at=iso_or_none(row.created_at)) for row in others)
        parts = None
        if self._question.explain:
            parts = {name: _rounded(part) for name, part in candidate.parts.items()} | {"matched": candidate.share}
        return first.memory(score=_rounded(candidate.score), also=also, parts=parts)

    def _persona(self) -> tuple[float, Memory] | None:
        """(share of the question that it answers, the caller's own persona), where it is asked for and answers."""
        if "durable" not in self._question.tiers:
            return None
        row = own_persona(self._db, self._schema, self._question.agent)
        if row is None:
            return None
        terms = _terms_of(row.parts)
        satisfied = sum(clause.satisfied_by(terms) for clause in self._clauses)
        if not satisfied:
            return None
        return satisfied / len(self._clauses), row.memory(score=float(satisfied))


@lru_cache(maxsize=_PERSONAS_KEPT)
def _terms_of(parts: tuple[str, ...]) -> frozenset[str]:
    """The terms of a persona: it is long, asked at each recall of its agent, and seldom changed."""
    return frozenset(analyse(*parts))


def _place(candidate: Candidate) -> tuple[Tier, int]:
    return candidate.document.tier, candidate.document.row


def _by_sentence(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Candidates that hold the same sentence together, in the order of the best of each."""
    groups: dict[tuple[Tier, int], list[Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(_sentence(candidate.document), []).append(candidate)
    return list(groups.values())


def _by_text(rows: Sequence[tuple[Candidate, Row]]) -> list[list[tuple[Candidate, Row]]]:
    """Rows that really hold the same text together: 32 bits may be equal by chance, or made so."""
    groups: dict[str, list[tuple[Candidate, Row]]] = {}
    for candidate, row in rows:
        groups.setdefault(row.text.strip(), []).append((candidate, row))
    return list(groups.values())


def _sentence(document: Document) -> tuple[Tier, int]:
    return document.tier, document.sentence


def _answers(row: Row, clauses: Sequence[Clause]) -> bool:
    """Whether a row really holds what its hashes promised."""
    terms = frozenset(analyse(*row.parts))
    return any(clause.satisfied_by(terms) for clause in clauses)


def _rounded(score: float) -> float:
    return float(f"{score:.4g}")


def bound(name: str, text: str | None, now_s: float) -> float | None:
    """The instant that a field of a question means, in unix seconds; None where it was left out.

    Raises:
        InvalidRequest: it means none.
    """
    if text is None:
        return None
    at_s = parse_bound(text, now_s, end_of_day=name == "until")
    if at_s is None:
        raise InvalidRequest(
            f"{name}: unrecognised date {text[:40]!r}; give an ISO 8601 date or instant (UTC unless it has an offset), "
            "or -3d, -12h, -30m."
        )
    return at_s


def fitted(results: Sequence[Memory], *, full: bool) -> tuple[Memory, ...]:
    """The results with previews that shrink as their number grows, or with whole texts if `full`."""
    if full or not results:
        return tuple(results)
    share = limits.PREVIEWS_CHARS // len(results)
    chars = max(limits.PREVIEW_CHARS_MIN, min(limits.PREVIEW_CHARS_MAX, share))
    return tuple(_preview(memory, chars) for memory in results)


def _preview(memory: Memory, chars: int) -> Memory:
    if len(memory.text) <= chars:
        return memory
    return replace(memory, text=memory.text[: chars - 1].rstrip() + "…", cut=True)
