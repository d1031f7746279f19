"""The search over the swarm's files: an exact phrase before many of the words before few, the newer first."""

import bisect
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from storage.search.failures import IndexFailure
from storage.swarm.layout import Folder, Roots
from storage.swarm.records import SwarmHit, SwarmResults
from storage.swarm.search.excerpts import Wanted, best_line, clause_expression, folded, phrase_at, snippet, wanted
from storage.swarm.search.file_index import Entry, FileIndex, Numbers
from storage.swarm.search.searched import Place, Searched, is_page, opened, plain, read, scope_of, walk

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
_PIECES_LOOKED_AT: Final = 8
_REMAKES_MAX: Final = 3
"""A cache file that was damaged so often is given up; the index stays in memory then."""
_ATTEMPTS: Final = 5
_CANDIDATES: Final = 200
_CANDIDATES_MORE: Final = 30
_PHRASE_SCORE: Final = 2.0
_RECENCY_SCORE: Final = 1e-3
"""Less than one word of QUERY_TERMS_MAX is worth."""
_LAST_INSTANT_NS: Final = 2**33 * 1_000_000_000


class _Key(NamedTuple):
    """What results are ordered by; greater is better."""

    phrase: bool
    held: int
    mtime_ns: int

    def score(self, clauses: int) -> float:
        """2 for the phrase, up to 1 for the words, a little for being new."""
        recency = min(max(self.mtime_ns, 0), _LAST_INSTANT_NS) / _LAST_INSTANT_NS
        return _PHRASE_SCORE * self.phrase + self.held / clauses + _RECENCY_SCORE * recency


@dataclass(frozen=True, slots=True)
class _Counted:
    """What the index knows of a query."""

    rows: Sequence[Numbers]
    """Of each clause."""
    phrase_rows: Numbers
    order: Sequence[tuple[_Key, Entry]]
    """The best first, as far as the index can tell."""
    covered: int


@dataclass(frozen=True, slots=True)
class _Verified:
    """A file as it is now."""

    key: _Key
    entry: Entry
    text: str
    low: str
    """The text, folded."""
    line: int
    """The number of the text's first line."""


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
    ) -> SwarmResults:
        """The best `limit` files for a query, each with its best line; at most one result of a file.

        Searched are missions and handoffs of `workers`, profile and episodes of `private` (None: of every worker), and
        shared memory where `shared`. A query without words has no results.

        What was touched is seen at once, any other change within 2 s, or at once where `fresh`: the search looks at the
        files first when the last look is older than 1.5 s. That takes 100 ms for 10,000 files of which none changed.
        While many files are new (the first search ever), it waits for about 3 s, then answers from what is indexed:
        `scanned` says how many files that are; the newest files are indexed first.

        Raises:
            FileFailed: the roots cannot be read.
        """
        self._asked_s = self._clock()
        want = wanted(query)
        scope = Searched(workers, private, shared)
        for attempt in range(_ATTEMPTS):
            try:
                self._catch_up(fresh=fresh and attempt == 0)
                with self._lock:
                    assert not self._closed
                    return self._answered(want, scope, limit)
            except IndexFailure:
                self._remake()
        raise AssertionError("an index in memory failed")

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

    def _catch_up(self, *, fresh: bool) -> None:
        """Bring the index up to date before an answer, for about WAIT_S."""
        until_s = time.monotonic() + WAIT_S
        with self._touching:
            touched, self._touched = self._touched, set()
        left = self._update(list(touched), until_s)
        with self._touching:
            self._touched.update(left)
        if not (fresh or self._is_behind()) or not self._looking.acquire(timeout=WAIT_S):
            return
        try:
            if fresh or self._is_behind():
                self._look(until_s)
        finally:
            self._looking.release()

    def _is_behind(self) -> bool:
        looked_s = self._looked_s
        return looked_s is None or not 0 <= self._clock() - looked_s <= LOOKED_S_MAX

    def _look(self, until_s: float | None) -> None:
        began_s = self._clock()
        with self._lock:
            if self._closed:
                return
            if not self._index.unchanged:
                self._remake()
        found = walk(self.roots)
        with self._lock:
            known = dict(self._index.entries)
        changed = [place for place, state in found.items() if not _is_known(known.get(place), state)]
        changed.sort(key=lambda place: found[place].mtime_ns, reverse=True)
        if not self._update([*(known.keys() - found.keys()), *changed], until_s):
            self._looked_s = began_s

    def _update(self, places: Sequence[Place], until_s: float | None) -> Sequence[Place]:
        """Index files as they are; those that there was no time for."""
        for at in range(0, len(places), _BATCH_FILES):
            readings = []
            for place in places[at : at + _BATCH_FILES]:
                with self._lock:
                    entry = self._index.entries.get(place)
                    pieces = [] if entry is None else list(entry.rows.values())
                readings.append(read(self.roots, place, pieces, time.time_ns()))
            with self._lock:
                if self._closed:
                    return ()
                self._index.apply(readings)
            if self._stopping:
                return places[at + _BATCH_FILES :]
            if until_s is not None and time.monotonic() > until_s:
                return places[at + _BATCH_FILES :]
        return ()

    def _remake(self) -> None:
        with self._lock:
            if not self._closed:
                self._remakes += 1
                self._index.remake(in_memory=self._remakes > _REMAKES_MAX)
                self._looked_s = None

    # --- answering ---

    def _answered(self, want: Wanted | None, scope: Searched, limit: int) -> SwarmResults:
        if want is None:
            return SwarmResults(results=(), scanned=int(self._index.within(scope).sum()))
        for _ in range(_ATTEMPTS):
            counted = self._counted(want, scope)
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
                hits.append(self._hit(one.entry.place, one.line + line.number, below, snippet(one.text, line)))
        return SwarmResults(results=tuple(hits), scanned=counted.covered)

    def _hit(self, place: Place, line: int, score: float, shown: str) -> SwarmHit:
        worker = place.folder.parts[0] if place.folder.root == "profiles" else None
        path = str(self.roots.path(place.folder, place.name))
        return SwarmHit(path=path, line=line, score=score, snippet=shown, workerId=worker)

    def _counted(self, want: Wanted, scope: Searched) -> _Counted:
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
        covered = index.within(scope)
        numbers = np.flatnonzero(covered & (held > 0))
        best = numbers[np.lexsort((index.mtimes_ns[numbers], held[numbers], claimed[numbers]))[::-1]]
        order = [
            (_Key(bool(claimed[number]), int(held[number]), int(index.mtimes_ns[number])), index.by_number[number])
            for number in best[:_CANDIDATES].tolist()
        ]
        return _Counted(rows, phrase_rows, order, int(covered.sum()))

    def _verified(self, want: Wanted, counted: _Counted, limit: int) -> tuple[list[_Verified], list[Place]]:
        """The best files, read; more than `limit` where ranks were unsure. And those that have changed since."""
        found: list[_Verified] = []
        keys: list[_Key] = []
        changed: list[Place] = []
        for key, entry in counted.order[: 2 * limit + _CANDIDATES_MORE]:
            if len(keys) >= limit and keys[-limit] >= key:
                break
            one = self._read(want, counted, key, entry)
            if one is None:
                changed.append(entry.place)
            else:
                found.append(one)
                bisect.insort(keys, one.key)
        found.sort(key=lambda one: one.key, reverse=True)
        return found, changed

    def _read(self, want: Wanted, counted: _Counted, key: _Key, entry: Entry) -> _Verified | None:
        """A file's piece with the phrase, or with most of the words; None where the file has changed."""
        with opened(self.roots, entry.place) as file, suppress(OSError):
            if file is None or file[1] != entry.state:
                return None
            first: _Verified | None = None
            for row in self._rows_of(counted, entry):
                piece = entry.rows[row]
                text = plain(entry.place.name, os.pread(file[0], piece.size, piece.start))
                low = folded(text)
                phrase = phrase_at(want, low) is not None
                one = _Verified(key._replace(phrase=phrase), entry, text, low, piece.line)
                if phrase:
                    return one
                first = first or one
            return first
        return None

    def _rows_of(self, counted: _Counted, entry: Entry) -> Sequence[int]:
        """The pieces of a file that are worth reading, the best first."""
        rows = list(entry.rows)
        if len(rows) == 1:
            return rows
        tallies = sum((np.isin(rows, some).astype(np.int64) for some in counted.rows), np.zeros(len(rows), np.int64))
        tallies += len(counted.rows) * np.isin(rows, counted.phrase_rows)
        best = np.argsort(-tallies, kind="stable")[:_PIECES_LOOKED_AT]
        return [rows[at] for at in best.tolist() if tallies[at]]


def _is_known(entry: Entry | None, state: object) -> bool:
    return entry is not None and entry.sure and entry.state == state
