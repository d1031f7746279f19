"""What an answer of the search is made from: files with what they hold of a query, and their order."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from storage.swarm.layout import Roots
from storage.swarm.search.excerpts import Wanted, folded, phrase_at
from storage.swarm.search.file_index import Entry, Numbers
from storage.swarm.search.searched import opened, plain

_PHRASE_SCORE: Final = 2.0
_RECENCY_SCORE: Final = 1e-3
"""Less than one word of QUERY_TERMS_MAX is worth."""
_LAST_INSTANT_NS: Final = 2**33 * 1_000_000_000
_PIECES_LOOKED_AT: Final = 8


class Key(NamedTuple):
    """What results are ordered by; greater is better."""

    phrase: bool
    held: int
    mtime_ns: int

    def score(self, clauses: int) -> float:
        """2 for the phrase, up to 1 for the words, a little for being new."""
        recency = min(max(self.mtime_ns, 0), _LAST_INSTANT_NS) / _LAST_INSTANT_NS
        return _PHRASE_SCORE * self.phrase + self.held / clauses + _RECENCY_SCORE * recency


@dataclass(frozen=True, slots=True)
class Counted:
    """What the index knows of a query."""

    rows: Sequence[Numbers]
    """Of each clause."""
    phrase_rows: Numbers
    order: Sequence[tuple[Key, Entry]]
    """The best first, as far as the index can tell."""
    covered: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A file as it is now."""

    key: Key
    entry: Entry
    text: str
    low: str
    """The text, folded."""
    line: int
    """The number of the text's first line."""


def verified(roots: Roots, want: Wanted, counted: Counted, key: Key, entry: Entry) -> Verified | None:
    """A file's piece with the phrase, or with most of the words; None where the file has changed."""
    with opened(roots, entry.place) as file, suppress(OSError):
        if file is None or file[1] != entry.state:
            return None
        first: Verified | None = None
        for row in _rows_of(counted, entry):
            piece = entry.rows[row]
            text = plain(entry.place.name, os.pread(file[0], piece.size, piece.start))
            low = folded(text)
            phrase = phrase_at(want, low) is not None
            one = Verified(key._replace(phrase=phrase), entry, text, low, piece.line)
            if phrase:
                return one
            first = first or one
        return first
    return None


def _rows_of(counted: Counted, entry: Entry) -> Sequence[int]:
    """The pieces of a file that are worth reading, the best first."""
    rows = list(entry.rows)
    if len(rows) == 1:
        return rows
    tallies = sum((np.isin(rows, some).astype(np.int64) for some in counted.rows), np.zeros(len(rows), np.int64))
    tallies += len(counted.rows) * np.isin(rows, counted.phrase_rows)
    best = np.argsort(-tallies, kind="stable")[:_PIECES_LOOKED_AT]
    return [rows[at] for at in best.tolist() if tallies[at]]
