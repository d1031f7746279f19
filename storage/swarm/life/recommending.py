"""Who is asked for a task: the workers whose roster entry and memory fit it best, and the lines that say why.

Each word of a task counts for a worker by where it holds it: the roster most, then its profile, its missions, its
handoffs and notes, its episodes least. That saturates, is taken in proportion to how much the worker has of each
(a long history holds any word somewhere), and is weighed by how few workers hold the word. Shared memory counts for
nobody, and logs do not count beside the summaries that repeat them.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.swarm.layout import Roots
from storage.swarm.life.records import Reason, Recommended, RecommendedWorker
from storage.swarm.pages import Persona
from storage.swarm.roster import FILE, ROSTER_UNREAD, Member, Members, Roster, Said
from storage.swarm.search.excerpts import cut_line, folded
from storage.swarm.search.searched import SORTS, Sort
from storage.swarm.search.searching import SwarmSearch
from storage.swarm.search.view import Shown, View
from storage.swarm.search.words import LineFinder, Terms, Word, words_of

REASONS_MAX: Final = 3
_ROSTER_WEIGHT: Final = 3.0
_WEIGHTS: Final[dict[Sort, float]] = {"profile": 2.0, "summary": 1.0, "handoff": 1.0, "note": 1.0, "episode": 0.4}
_SORT_WEIGHTS: Final = np.array([*(_WEIGHTS[sort] for sort in SORTS), _ROSTER_WEIGHT])
_HALF: Final = 2.0
"""What a word must count for a worker to be worth half of the most that it can be worth."""
_LENGTH: Final = 0.6
"""How much having more of a sort than others have makes each of it count less: from 0, not at all, to 1."""
_TOGETHER: Final = 0.5
"""What it adds that one place holds many of the words, beside what the words add."""
_SAID_ALREADY: Final = 0.2
"""What a word that another reason shows is worth in choosing the next one."""
_WORTH_SAYING: Final = 0.15
"""A reason is given that is worth this share of the first one."""
_PLACES_LOOKED_AT: Final = 8
_DIGITS: Final = 6

Numbers = NDArray[np.float64]


class _Entry(NamedTuple):
    """What the roster says of a worker."""

    member: Member
    terms: Terms


class _Place(NamedTuple):
    """What may give a reason: a file, or a line of the roster."""

    shares: Numbers
    """Of each word, in it."""
    weight: float
    """Of its sort."""
    show: Callable[[], Shown | None]
    """Its line."""

    def worth(self, weights: Numbers) -> float:
        """What the words in it are worth."""
        return round(float(self.shares @ weights) * math.sqrt(self.weight), _DIGITS)


class Recommendations:
    """Compares workers for a task. Thread-safe: it takes turns with searches."""

    def __init__(self, roster: Roster, search: SwarmSearch, roots: Roots) -> None:
        self._roster = roster
        self._search = search
        self._path = "" if roots.workspace is None else str(roots.workspace / FILE)
        self._analysed: tuple[Members | None, dict[str, _Entry]] = (None, {})

    def recommend(self, task: str, *, limit: int = 5) -> Recommended:
        """The best `limit` workers for a task; 20 ms for 50 workers with 5,000 files.

        What we wrote counts at once, a hand edit within 2 s. Of a task with more than 64 different words the first 64
        count. The same files and task give the same order: by score, then by id.

        Raises:
            FileFailed: the roots cannot be read.
        """
        members = self._roster.read()
        entries = self._entries(members)
        words = words_of(task)

        def answer(view: View) -> Recommended:
            return _Comparison(view, words, members, entries, self._path).recommended(limit)

        return self._search.consult(answer)

    def _entries(self, members: Members) -> dict[str, _Entry]:
        known, entries = self._analysed
        if known is not members:
            entries = {}
            for member in members.members:
                if member.worker is not None and member.worker not in entries:
                    entries[member.worker] = _Entry(member, Terms.of(*(said.text for said in member.said)))
            self._analysed = (members, entries)
        return entries


class _Comparison:
    """All workers beside each other, for one task."""

    def __init__(
        self, view: View, words: Sequence[Word], members: Members, entries: dict[str, _Entry], roster_path: str
    ) -> None:
        self._view = view
        self._words = words
        self._members = members
        self._entries = entries
        self._path = roster_path
        self._held = held = view.held(words)
        self._workers = sorted(entries.keys() | set(held.workers))
        self._terms = [entries[one].terms if one in entries else Terms.of() for one in self._workers]
        places = {worker: at for at, worker in enumerate(self._workers)}
        ours = np.array([*(places[worker] for worker in held.workers), -1], np.int64)
        self._owners = np.where(held.sorts >= 0, ours[held.owners], -1)
        self._in_roster = self._shares_in_roster()
        self._strengths = self._compared()
        total = self._strengths.sum(axis=0)
        rarity = np.log1p((len(self._workers) - total + 0.5) / (total + 0.5))
        self._weights: Numbers = np.where(total > 0, rarity, 0.0)
        """Of each word: more, the fewer workers have much of it."""
        self._finder = LineFinder(words, self._weights.tolist())

    def recommended(self, limit: int) -> Recommended:
        """The answer."""
        scores = self._scores()
        order = sorted(range(len(self._workers)), key=lambda at: (-scores[at], self._workers[at]))
        return Recommended(
            workers=tuple(self._worker(at, scores[at]) for at in order[:limit] if scores[at]),
            words=len(self._words),
            considered=len(self._workers),
            behind=self._view.behind,
            degradedReasons=(ROSTER_UNREAD,) if self._members.unread else (),
        )

    # --- what is compared ---

    def _shares_in_roster(self) -> Numbers:
        """By worker and word, what the roster holds."""
        shares = np.array([word.held_by(terms) for terms in self._terms for word in self._words], np.float64)
        return shares.reshape(len(self._workers), len(self._words))

    def _compared(self) -> Numbers:
        """By worker and word, how much the worker has of it: from 0 to less than 1."""
        held, shape = self._held, (len(self._workers), len(SORTS) + 1)
        of_files = self._owners >= 0
        groups = (self._owners * shape[1] + held.sorts)[of_files]

        def by_group(values: Numbers) -> Numbers:
            return np.bincount(groups, values, shape[0] * shape[1]).astype(np.float64).reshape(shape)

        sizes = by_group(held.sizes[of_files].astype(np.float64))
        sizes[:, -1] = [len(terms.each) for terms in self._terms]
        usual = sizes.sum(axis=0) / np.maximum((sizes > 0).sum(axis=0), 1)
        lengths = 1 - _LENGTH + _LENGTH * sizes / np.maximum(usual, 1)
        found = np.zeros((shape[0], len(self._words)))
        for at in range(len(self._words)):
            counts = by_group(held.shares[at][of_files])
            counts[:, -1] = self._in_roster[:, at]
            found[:, at] = np.log2(1 + counts / lengths) @ _SORT_WEIGHTS
        return np.asarray(found / (found + _HALF))

    def _scores(self) -> list[float]:
        """By worker, how well it fits."""
        most = float(self._weights.sum())
        if not most:
            return [0.0] * len(self._workers)
        together = self._in_roster @ self._weights
        of_files = self._owners >= 0
        worths = self._file_worths() / _SORT_WEIGHTS.max()
        np.maximum.at(together, self._owners[of_files], worths[of_files])
        scores = (self._strengths @ self._weights + _TOGETHER * together) / (most * (1 + _TOGETHER))
        return [round(score, _DIGITS) for score in scores.tolist()]

    def _file_worths(self) -> Numbers:
        """By file number, what the words that it holds are worth together."""
        of_sorts = np.where(self._held.sorts >= 0, _SORT_WEIGHTS[self._held.sorts], 0.0)
        return np.asarray((self._weights @ self._held.shares) * of_sorts)

    # --- what is shown ---

    def _worker(self, at: int, score: float) -> RecommendedWorker:
        worker = self._workers[at]
        persona = self._entries[worker].member.persona if worker in self._entries else Persona()
        return RecommendedWorker(
            workerId=worker,
            name=persona.name,
            role=persona.role,
            score=score,
            matched=round(float((self._strengths[at] > 0).mean()), _DIGITS),
            reasons=tuple(self._reasons(at)),
        )

    def _reasons(self, at: int) -> Iterator[Reason]:
        """The lines that say most of what is not said yet."""
        places = [*self._roster_lines(self._workers[at]), *self._files(at)]
        left = self._weights.copy()
        least = _WORTH_SAYING * max((place.worth(left) for place in places), default=0.0)
        texts: set[str] = set()
        for _ in range(min(len(places), _PLACES_LOOKED_AT)):
            worths = [place.worth(left) for place in places]
            if max(worths) < least or len(texts) == REASONS_MAX:
                break
            shown = places.pop(worths.index(max(worths))).show()
            if shown is not None and shown.text not in texts:
                texts.add(shown.text)
                left[list(shown.words)] = self._weights[list(shown.words)] * _SAID_ALREADY
                words = tuple(self._words[word].shown for word in sorted(shown.words))
                yield Reason(path=shown.path, line=shown.line, text=shown.text, words=words)

    def _files(self, at: int) -> Iterator[_Place]:
        """A worker's files that hold most, the best first, the newer before the older."""
        worths = np.round(self._file_worths(), _DIGITS)
        numbers = np.flatnonzero((self._owners == at) & (worths > 0)).tolist()
        numbers.sort(key=lambda number: (-worths[number], *self._view.order(number)))
        held, weights = self._held, self._weights.tolist()
        for number in numbers[:_PLACES_LOOKED_AT]:
            show = partial(self._view.shown, held, self._finder, weights, number)
            yield _Place(held.shares[:, number], float(_SORT_WEIGHTS[held.sorts[number]]), show)

    def _roster_lines(self, worker: str) -> Iterator[_Place]:
        """The lines of a worker's entry that hold a word."""
        said = self._entries[worker].member.said if worker in self._entries else ()
        for _, texts in groupby(said, lambda one: (one.first, one.last)):
            some = list(texts)
            terms = Terms.of(*(one.text for one in some))
            shares = np.array([word.held_by(terms) for word in self._words])
            if shares.any() and (shown := self._roster_line(some[0], shares)) is not None:
                shares[[at for at in range(len(shares)) if at not in shown.words]] = 0
                yield _Place(shares, _ROSTER_WEIGHT, partial(_same, shown))

    def _roster_line(self, said: Said, shares: Numbers) -> Shown | None:
        """Of a text of several lines the one that holds most; a line alone may hold what others are, too."""
        lines = self._members.lines[said.first : said.last + 1]
        if len(lines) == 1:
            held = tuple(np.flatnonzero(shares).tolist())
            return Shown(self._path, said.first + 1, cut_line(lines[0], said.column), held)
        text = "\n".join(lines)
        best = self._finder.find(text, folded(text))
        if best is None:
            return None
        line, held = best
        return Shown(self._path, said.first + line.number + 1, cut_line(lines[line.number], line.column), held)


def _same(shown: Shown) -> Shown:
    return shown
