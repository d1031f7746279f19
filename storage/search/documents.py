"""Documents: what the index keeps of a row, and what a recall may be narrowed by."""

import zlib
from array import array
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from storage.records import Tier
from storage.times import SQLValue

DOCUMENT = "d.row, d.agent, d.session, d.created_s, d.digest, d.sentence"
"""The columns of a document `d`, in the order of the fields of Document; the tier stands before them."""
REPEATED: Final = (2, 3, 4, 6, 9, 14)
"""How often a term occurs is kept by these steps: more says little (BM25 saturates), and the steps are exact to 4."""
HEAD: Final = 1 + len(REPEATED)
"""The numbers before a document's terms: its length, then how many of its terms reach each step of REPEATED."""

_HASHES_CACHED = 50_000
_NUMBER_MAX = 0xFFFF
HASHES: Final = _NUMBER_MAX + 1
"""How many values hashed() has."""


class Document(NamedTuple):
    """What the index keeps of a row, but its terms. A tuple: a recall makes hundreds."""

    tier: Tier
    row: int
    agent: int
    """The number of the author's name."""
    session: int | None
    """The number of the session's name; None where the row belongs to none."""
    created_s: float | None
    digest: int
    """Of all that is shown: another one in the table means that the row has changed."""
    sentence: int
    """Of the text alone: two authors may have written the same."""


@lru_cache(maxsize=_HASHES_CACHED)
def hashed(term: str) -> int:
    """16 bits of a term, as documents keep them: of 80 terms one in 800 seems to hold a term that it does not.

    Enough to rank by; what is found by it alone is checked against the row's text before it is shown.
    """
    return zlib.crc32(term.encode("utf-8", "surrogatepass")) & _NUMBER_MAX


def packed(counts: Counter[str]) -> bytes:
    """How often a document holds each of its terms, as it keeps them: 16-bit numbers.

    First its length, then how many of its distinct terms occur as often as each of REPEATED says, then the distinct
    terms' hashes, those that occur most often first: so a term's place tells how often it occurs.
    """
    once: list[str] = []
    often: list[str] = []
    for term, count in counts.items():
        (once if count == 1 else often).append(term)
    often.sort(key=counts.__getitem__, reverse=True)
    rising = [counts[term] for term in reversed(often)]
    reached = [len(rising) - bisect_left(rising, step) for step in REPEATED]
    return array("H", [min(counts.total(), _NUMBER_MAX), *reached, *map(hashed, often), *map(hashed, once)]).tobytes()


def length_of(packed_terms: bytes) -> int:
    """How many terms packed() was given, repetitions included; at most 65,535."""
    return memoryview(packed_terms).cast("H")[0]


def facet(kind: str, number: int) -> str:
    """The term by which the index finds all rows of an agent, a topic or a tag.

    It begins with a character of private use, as no term of a text does: texts hold letters, digits and what joins
    them.
    """
    return f"\ue000{kind}{number}"


@dataclass(frozen=True, slots=True)
class Filters:
    """What narrows a recall before its budget is spent and before k is counted. Names stand as their numbers."""

    agent: int | None = None
    without: int | None = None
    """Nothing of this agent."""
    topic: int | None = None
    tags: tuple[int, ...] = ()
    since_s: float | None = None
    until_s: float | None = None
    live_at_s: float | None = None
    """Only what has not expired; short rows alone expire."""

    @property
    def facets(self) -> tuple[str, ...]:
        """The terms that a row must hold to be of the agent, the topic and all the tags."""
        named = [("agent", self.agent), ("topic", self.topic), *(("tag", tag) for tag in self.tags)]
        return tuple(facet(kind, number) for kind, number in named if number is not None)

    @property
    def timed(self) -> bool:
        """Whether since or until was given."""
        return self.since_s is not None or self.until_s is not None

    def conditions(self) -> tuple[str, list[SQLValue]]:
        """Conditions on the document `d` that no term stands for, each beginning with AND, and their bindings."""
        found: list[tuple[str, SQLValue]] = []
        if self.without is not None:
            found.append(("d.agent <> ?", self.without))
        if self.since_s is not None:
            found.append(("d.created_s >= ?", self.since_s))
        if self.until_s is not None:
            found.append(("d.created_s <= ?", self.until_s))
        if self.live_at_s is not None:
            found.append(("(d.expires_s IS NULL OR d.expires_s > ?)", self.live_at_s))
        return "".join(f" AND {text}" for text, _ in found), [value for _, value in found]

    def admits(self, document: Document) -> bool:
        """Whether a document that was not asked for may stand beside those that were; it knows no topics and tags."""
        if self.topic is not None or self.tags or (self.agent is not None and document.agent != self.agent):
            return False
        if document.agent == self.without:
            return False
        if not self.timed:
            return True
        at_s = document.created_s
        return at_s is not None and (self.since_s or at_s) <= at_s <= (self.until_s or at_s)
