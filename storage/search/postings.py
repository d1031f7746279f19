"""Postings: rows that a recall scores, with the terms of their documents, as arrays.

They come from SQLite as one row, not as one for each of them: APSW gives the interpreter up and takes it again at each
step, and two readers and the event loop that did so hundreds of times a recall waited for each other most of the time.
"""

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from storage.search.documents import HASHES, HEAD

GATHERED = "group_concat(d.row), group_concat(length(d.terms)), CAST(group_concat(d.terms, '') AS BLOB)"
"""What Postings.gathered() takes, of documents `d`. Bytes pass group_concat as they are: pinned by
test_any_terms_come_back_as_they_were_packed."""


class Hits(NamedTuple):
    """Where documents hold terms that are asked for: an entry for each document and term."""

    holder: NDArray[np.int64]
    """The document's place among the postings."""
    term: NDArray[np.int64]
    """The term's place among those asked for."""
    place: NDArray[np.int64]
    """The term's place in the document, the most frequent first."""


class Postings(NamedTuple):
    """Rows and the numbers of their documents, see documents.packed()."""

    rows: NDArray[np.int64]
    starts: NDArray[np.int64]
    """Where each document begins."""
    numbers: NDArray[np.uint16]
    """Of each document first its head, then its terms."""

    @classmethod
    def gathered(cls, rows: str | None, sizes: str | None, terms: bytes | None) -> Self:
        """The postings of an answer to GATHERED.

        Raises:
            ValueError: what is kept as a document is none: the index is damaged.
        """
        if rows is None or sizes is None or terms is None:
            return cls.none()
        bytes_each = np.fromstring(sizes, np.int64, sep=",")
        if (bytes_each % 2).any() or bytes_each.min() < 2 * HEAD or bytes_each.sum() != len(terms):
            raise ValueError("a document has no head")
        ends = np.cumsum(bytes_each // 2)
        return cls(np.fromstring(rows, np.int64, sep=","), ends - bytes_each // 2, np.frombuffer(terms, np.uint16))

    @classmethod
    def none(cls) -> Self:
        """No rows."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.uint16))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many numbers each document has, its head included."""
        return np.diff(self.starts, append=len(self.numbers))

    @property
    def heads(self) -> NDArray[np.int64]:
        """The places of the heads' numbers, a line for each document."""
        return self.starts[:, None] + np.arange(HEAD)

    def with_others(self, others: "Postings") -> "Postings":
        """These, and after them those of the others that are not among these."""
        if not len(self) or not len(others):
            return others if not len(self) else self
        known = set(self.rows.tolist())  # np.isin sorts, and takes four times as long for a few hundred
        new = np.array([row not in known for row in others.rows.tolist()])
        sizes = np.concatenate([self.sizes, others.sizes[new]])
        return Postings(
            np.concatenate([self.rows, others.rows[new]]),
            np.cumsum(sizes) - sizes,
            np.concatenate([self.numbers, others.numbers[np.repeat(new, others.sizes)]]),
        )

    def block(self, first: int, most: int) -> "Postings":
        """At most so many of them, from a place on."""
        starts = self.starts[first : first + most]
        end = self.starts[first + most] if first + most < len(self) else len(self.numbers)
        return Postings(self.rows[first : first + most], starts - starts[0], self.numbers[starts[0] : end])

    def hits(self, asked: NDArray[np.int64]) -> Hits:
        """Where the documents hold any of these terms, which are given as hashes, each once."""
        table = np.zeros(HASHES, np.uint16)  # small: a table of floats is paid for in fresh pages of memory
        table[asked] = np.arange(1, len(asked) + 1)
        found = table.take(self.numbers)
        found[self.heads] = 0
        at = np.flatnonzero(found)
        holder = np.searchsorted(self.starts, at, side="right") - 1
        return Hits(holder, found[at].astype(np.int64) - 1, at - self.starts[holder] - HEAD)
