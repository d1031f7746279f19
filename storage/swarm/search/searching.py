"""The search over the swarm's files: an exact phrase before many of the words before few, the newer first."""

import bisect
import math
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from storage.search.failures import IndexFailure
from storage.swarm.layout import Folder, Roots
from storage.swarm.records import SwarmHit, SwarmResults
from storage.swarm.search.excerpts import (
    Line,
    Wanted,
    best_line,
    clause_expression,
    snippet,
    wanted,
)
from storage.swarm.search.file_index import Entry, FileIndex
from storage.swarm.search.ranked import Counted, Key, Verified, verified
from storage.swarm.search.searched import (
    Place,
    Searched,
    is_page,
    mission_of,
    read,
    scope_of,
    walk,
    worker_of,
)
from storage.swarm.search.view import View

LOOKED_S_MAX: Final = 1.5
"""A search looks at the files again when the last look is older."""
WAIT_S: Final = 3.0
"""A search waits no longer than about this for files to be read."""
CLAUSE_POSTINGS_MIN: Final = 10_000
"""Rows that a search counts of each of its words at least: so many files are told apart by all words, however many."""
POSTINGS_MAX: Final = 100_000
"""Rows that a search counts, of all its words together: a question of many common words counts some of each only."""
_IN_USE_S: Final = 60.0
_TOUCHED_MAX: Final = 1_000
_BATCH_FILES: Final = 64
_REMAKES_MAX: Final = 3
"""A cache file that was damaged so often is given up; the index stays in memory then."""
_ATTEMPTS: Final = 5
_CANDIDATES: Final = 200
_CANDIDATES_MORE: Final = 30

A = TypeVar("A")
_Window = tuple[float | None, float | None]
"""From when to when files were last written, in unix seconds."""


class SwarmSearch:
    """Searches the files below some roots. Thread-safe: searches take turns."""

    def __init__(self, roots: Roots, index: Path, *, clock: Callable[[], float] = time.time) -> None:
        """Open the index. `index` is a cache file of our own; it may be deleted or damaged at any time."""
        self.roots = roots
        self._clock = clock
        self._lock = threading.RLock()
        """Of the index. Held while an answer is made, never while files are looked at or analysed in numbers."""
        self._looking = threading.Lock()
        """Held by the one thread that looks at the files. Taken before `_lock`, never under it."""
        self._touching = threading.Lock()
        self._touched: set[Place] = set()
        self._unread = 0
        """Files known to be new that some thread reads now. Under `_touching`."""
        self._looked_s: float | None = None
        """All files that were there then are in the index."""
        self._asked_s = -_IN_USE_S
        self._remakes = 0
        self._closed = False
        self._stopping = False
        self._index = FileIndex(index)

    def search(
        self,
        query: str,
        *,
        workers: Collection[str] | None,
        private: Collection[str] | None,
        shared: bool,
        limit: int,
        fresh: bool = False,
        since_s: float | None = None,
        until_s: float | None = None,
    ) -> SwarmResults:
        """The best `limit` files for a query, each with its best line; at most one result of a file.

        Searched are missions and handoffs of `workers`, profile, episodes and notes of `private` (None: of every
        worker), and shared memory where `shared`; of these the files last written from `since_s` to `until_s`, in
        unix seconds, both inclusive, to the millisecond. A query without words has no results.

        What was touched is seen at once, any other change within 2 s, or at once where `fresh`: the search looks at the
        files first when the last look is older than 1.5 s. That takes 100 ms for 10,000 files of which none changed.
        While many files are new (the first search ever), it waits for about 3 s, then answers from what is indexed,
        and is `behind`: `scanned` says how many files that are; the newest files are indexed first.

        Raises:
            FileFailed: the roots cannot be read.
        """
        want = wanted(query)
        scope = Searched(workers, private, shared)

        def answer(behind: bool) -> SwarmResults:
            return replace(self._answered(want, scope, (since_s, until_s), limit), behind=behind)

        return self._caught_up(answer, fresh=fresh)

    def _caught_up(self, answer: Callable[[bool], A], *, fresh: bool = False) -> A:
        """What `answer` makes of the index once that has caught up; it is told whether the index is behind still."""
        self._asked_s = self._clock()
        for attempt in range(_ATTEMPTS):
            try:
                behind = self._catch_up(fresh=fresh and attempt == 0)
                with self._lock:
                    assert not self._closed
                    return answer(behind)
            except IndexFailure:
                self._remake()
        raise AssertionError("an index in memory failed")

    def consult(self, answer: Callable[[View], A]) -> A:
        """What `answer` makes of the index, once it has caught up as a search does.

        No search goes on meanwhile. Where files that `answer` looked into had changed, it is called again.

        Raises:
            FileFailed: the roots cannot be read.
        """

        def made(behind: bool) -> A:
            for _ in range(_ATTEMPTS):
                view = View(self.roots, self._index, behind=behind)
                answered = answer(view)
                if not view.changed:
                    break
                self._update(view.changed, None)
            return answered

        return self._caught_up(made)

    def touch(self, folder: Folder, name: str) -> None:
        """Note that we changed a file; the next search sees it. From any thread; cheap, never raises."""
        if scope_of(folder) is None or not is_page(name):
            return
        with self._touching:
            if len(self._touched) < _TOUCHED_MAX:
                self._touched.add(Place(folder, name))
            else:
                self._looked_s = None

    def refresh(self) -> None:
        """Look at the files again and index what changed, to the end: 100 ms for 10,000 files, 2 ms for a changed one.

        Searches go on meanwhile.

        Raises:
            FileFailed: the roots cannot be read.
        """
        with self._looking:
            for _ in range(_ATTEMPTS):
                try:
                    self._look(None)
                    break
                except IndexFailure:
                    self._remake()

    @property
    def in_use(self) -> bool:
        """Whether a search came within the last minute: `refresh` is worth its time then."""
        return self._clock() - self._asked_s < _IN_USE_S

    def stop(self) -> None:
        """Let a look at the files that goes on now end soon: the service ends. From any thread; never waits."""
        self._stopping = True

    def close(self) -> None:
        """Close the index. Nothing may be asked afterwards."""
        with self._looking, self._lock:
            if not self._closed:
                self._closed = True
                self._index.close()

    # --- following the files ---

    def _catch_up(self, *, fresh: bool) -> bool:
        """Bring the index up to date before an answer, for about WAIT_S; whether it is behind nevertheless."""
        until_s = time.monotonic() + WAIT_S
        with self._touching:
            touched, self._touched = self._touched, set()
        left = self._update(list(touched), until_s)
        with self._touching:
            self._touched.update(left)
        if fresh or self._is_behind():
            if not self._looking.acquire(timeout=WAIT_S):
                return True
            try:
                if (fresh or self._is_behind()) and not self._look(until_s):
                    return True
            finally:
                self._looking.release()
        return bool(left) or self._unread > 0

    def _is_behind(self) -> bool:
        looked_s = self._looked_s
        return looked_s is None or not 0 <= self._clock() - looked_s <= LOOKED_S_MAX

    def _look(self, until_s: float | None) -> bool:
        """Look at all files and index what changed; False where there was no time for some."""
        began_s = self._clock()
        with self._lock:
            if self._closed:
                return True
            if not self._index.unchanged:
                self._remake()
        found = walk(self.roots)
        with self._lock:
            known = dict(self._index.entries)
        changed = [place for place, state in found.items() if not _is_known(known.get(place), state)]
        changed.sort(key=lambda place: found[place].mtime_ns, reverse=True)
        left = self._update([*(known.keys() - found.keys()), *changed], until_s)
        self._looked_s = None if left else began_s
        return not left

    def _update(self, places: Sequence[Place], until_s: float | None) -> Sequence[Place]:
        """Index files as they are; those that there was no time for."""
        with self._touching:
            self._unread += len(places)
        try:
            return self._indexed(places, until_s)
        finally:
            with self._touching:
                self._unread -= len(places)

    def _indexed(self, places: Sequence[Place], until_s: float | None) -> Sequence[Place]:
        for at in range(0, len(places), _BATCH_FILES):
            readings = []
            for place in places[at : at + _BATCH_FILES]:
                with self._lock:
                    entry = self._index.entries.get(place)
                    pieces = [] if entry is None else list(entry.rows.values())
                readings.append(read(self.roots, place, pieces, time.time_ns()))
                if self._must_end(until_s):
                    break
            with self._lock:
                if self._closed:
                    return ()
                self._index.apply(readings)
            if self._must_end(until_s):
                return places[at + len(readings) :]
        return ()

    def _must_end(self, until_s: float | None) -> bool:
        return self._stopping or (until_s is not None and time.monotonic() > until_s)

    def _remake(self) -> None:
        with self._lock:
            if not self._closed:
                self._remakes += 1
                self._index.remake(in_memory=self._remakes > _REMAKES_MAX)
                self._looked_s = None

    # --- answering ---

    def _answered(self, want: Wanted | None, scope: Searched, window: _Window, limit: int) -> SwarmResults:
        if want is None:
            return SwarmResults(results=(), scanned=int(self._covered(scope, window).sum()))
        for _ in range(_ATTEMPTS):
            counted = self._counted(want, scope, window)
            verified, changed = self._verified(want, counted, limit)
            if not changed:
                break
            self._update(changed, None)
        hits: list[SwarmHit] = []
        below = math.inf
        for one in verified:
            if len(hits) == limit:
                break
            line = best_line(want, one.text, one.low)
            if line is not None:
                # Files of the same millisecond differ less than a float can tell.
                below = min(one.key.score(len(want.clauses)), math.nextafter(below, 0.0))
                hits.append(self._hit(want, one, line, below))
        return SwarmResults(results=tuple(hits), scanned=counted.covered)

    def _hit(self, want: Wanted, one: Verified, line: Line, score: float) -> SwarmHit:
        place = one.entry.place
        return SwarmHit(
            path=str(self.roots.path(place.folder, place.name)),
            line=one.line + line.number,
            score=score,
            snippet=snippet(one.text, line),
            updatedAt=one.entry.state.written_at,
            matched=1.0 if one.key.phrase else one.key.held / len(want.clauses),
            workerId=worker_of(place),
            missionId=mission_of(place),
        )

    def _covered(self, scope: Searched, window: _Window) -> NDArray[np.bool_]:
        """By file number, whether a file is searched."""
        covered = self._index.within(scope)
        since_s, until_s = window
        if since_s is not None or until_s is not None:
            mtimes_ms = self._index.mtimes_ns // 1_000_000
            covered &= mtimes_ms >= np.rint((-math.inf if since_s is None else since_s) * 1e3)
            covered &= mtimes_ms <= np.rint((math.inf if until_s is None else until_s) * 1e3)
        return covered

    def _counted(self, want: Wanted, scope: Searched, window: _Window) -> Counted:
        """Count for each file which clauses it holds, and order the files by that."""
        index = self._index
        at_most = max(CLAUSE_POSTINGS_MIN, POSTINGS_MAX // len(want.clauses))
        held = np.zeros(len(index.mtimes_ns), np.int64)
        rows = [index.rows(clause_expression(clause), scope, at_most) for clause in want.clauses]
        for some in rows:
            held += index.files_of(some)
        phrase_rows = np.empty(0, np.int64)
        claimed = held == len(want.clauses)
        if want.phrase_words is not None:
            phrase_rows = index.rows(want.phrase_words, scope, POSTINGS_MAX)
            claimed = index.files_of(phrase_rows)
        covered = self._covered(scope, window)
        numbers = np.flatnonzero(covered & (held > 0))
        best = numbers[np.lexsort((index.mtimes_ns[numbers], held[numbers], claimed[numbers]))[::-1]]
        order = [
            (Key(bool(claimed[number]), int(held[number]), int(index.mtimes_ns[number])), index.by_number[number])
            for number in best[:_CANDIDATES].tolist()
        ]
        return Counted(rows, phrase_rows, order, int(covered.sum()))

    def _verified(self, want: Wanted, counted: Counted, limit: int) -> tuple[list[Verified], list[Place]]:
        """The best files, read; more than `limit` where ranks were unsure. And those that have changed since."""
        found: list[Verified] = []
        keys: list[Key] = []
        changed: list[Place] = []
        for key, entry in counted.order[: 2 * limit + _CANDIDATES_MORE]:
            if len(keys) >= limit and keys[-limit] >= key:
                break
            one = verified(self.roots, want, counted, key, entry)
            if one is None:
                changed.append(entry.place)
            else:
                found.append(one)
                bisect.insort(keys, one.key)
        found.sort(key=lambda one: one.key, reverse=True)
        return found, changed


def _is_known(entry: Entry | None, state: object) -> bool:
    return entry is not None and entry.sure and entry.state == state
