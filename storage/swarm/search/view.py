"""The index as an answer sees it that weighs whole workers: who holds what, and the line that shows it."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from storage.swarm.layout import Roots
from storage.swarm.search.excerpts import cut_line, folded
from storage.swarm.search.file_index import FileIndex, Numbers
from storage.swarm.search.searched import Place, opened, plain
from storage.swarm.search.words import KIN, LineFinder, Word

ROWS_MAX: Final = 100_000
"""Rows that are counted of all words together: 15 ms."""
WORD_ROWS_MAX: Final = 20_000
WORD_ROWS_MIN: Final = 2_000
"""A word that more rows hold than are counted of it tells nobody from anybody: it is left out."""
_PIECES_LOOKED_AT: Final = 4

Shares = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Held:
    """Which files hold which words. Arrays are by file number; good while the view is."""

    workers: Sequence[str]
    """Those that have files."""
    owners: Numbers
    """Whose of them a file is; -1 for shared memory."""
    sorts: Numbers
    """The place of its sort in SORTS; -1 for a log and for shared memory."""
    sizes: Numbers
    shares: Shares
    """By word and file: 1 where the file holds the word, KIN where kin of it, else 0."""
    rows: Sequence[Numbers]
    """Of each word."""


class Shown(NamedTuple):
    """A line of a file."""

    path: str
    line: int
    """From 1."""
    text: str
    words: tuple[int, ...]
    """Which words it holds."""


class View:
    """The index, for one answer. Good while `SwarmSearch.consult` runs."""

    def __init__(self, roots: Roots, index: FileIndex, *, behind: bool) -> None:
        self.behind = behind
        """Whether files are still being read."""
        self.changed: list[Place] = []
        """Files that were looked into and are not as the index knows them."""
        self._roots = roots
        self._index = index

    def held(self, words: Sequence[Word]) -> Held:
        """Which files of workers hold which words: about 1 ms for a word that 5,000 files hold.

        Raises:
            IndexFailure: the index cannot be used; `consult` makes it anew.
        """
        index = self._index
        workers, owners = index.owners()
        shares = np.zeros((len(words), len(owners)))
        found: list[Numbers] = []
        at_most = min(max(WORD_ROWS_MIN, ROWS_MAX // (2 * len(words) + 1)), WORD_ROWS_MAX)
        for at, word in enumerate(words):
            rows = self._rows(word.expression, at_most)
            kin = rows if word.kin_expression is None else self._rows(word.kin_expression, at_most)
            shares[at, index.files_of(kin)] = KIN
            shares[at, index.files_of(rows)] = 1
            found.append(np.union1d(rows, kin))
        return Held(workers, owners, index.sorts, index.sizes, shares, found)

    def _rows(self, expression: str, at_most: int) -> Numbers:
        rows = self._index.rows_of_all(expression, at_most + 1)
        return rows if len(rows) <= at_most else rows[:0]

    def order(self, number: int) -> tuple[int, Place]:
        """What tells files apart, the newest first, whatever their numbers are."""
        entry = self._index.by_number[number]
        return -entry.state.mtime_ns, entry.place

    def path(self, number: int) -> str:
        """Where a file lies."""
        place = self._index.by_number[number].place
        return str(self._roots.path(place.folder, place.name))

    def shown(self, held: Held, finder: LineFinder, weights: Sequence[float], number: int) -> Shown | None:
        """The line of a file that holds the words of most weight; None where it has changed, or no line holds one."""
        entry = self._index.by_number[number]
        with opened(self._roots, entry.place) as file, suppress(OSError):
            if file is not None and file[1] == entry.state:
                for row in self._best_rows(held, weights, list(entry.rows)):
                    piece = entry.rows[row]
                    text = plain(entry.place.name, os.pread(file[0], piece.size, piece.start))
                    best = finder.find(text, folded(text))
                    if best is not None:
                        line, those = best
                        cut = cut_line(text.split("\n")[line.number], line.column)
                        return Shown(self.path(number), piece.line + line.number, cut, those)
                return None
        self.changed.append(entry.place)
        return None

    def _best_rows(self, held: Held, weights: Sequence[float], rows: Sequence[int]) -> Sequence[int]:
        """The pieces of a file that are worth reading, the best first."""
        if len(rows) == 1:
            return rows
        worths = sum(
            (weight * np.isin(rows, some) for weight, some in zip(weights, held.rows, strict=True)), np.zeros(1)
        )
        best = np.argsort(-worths, kind="stable")[:_PIECES_LOOKED_AT]
        return [rows[at] for at in best.tolist() if worths[at]]
