"""Documents: what the index keeps of a row, and what a recall may be narrowed by."""

import zlib
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from storage.records import Tier
from storage.times import SQLValue

_HASHES_CACHED = 50_000
DOCUMENT = "d.row, d.agent, d.session, d.created_s, d.digest, d.sentence, d.length, d.terms"
"""The columns of a document `d`, in the order that document_of() takes."""


class Document(NamedTuple):
    """What the index keeps of a row. A tuple: a recall makes hundreds."""

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
    length: int
    """Its terms, repetitions included."""
    terms: Sequence[int]
    """The hashes of its distinct terms."""


@lru_cache(maxsize=_HASHES_CACHED)
def hashed(term: str) -> int:
    """16 bits of a term, as documents keep them: of 80 terms one in 800 seems to hold a term that it does not.

    Enough to rank by; what is found by it alone is checked against the row's text before it is shown.
    """
    return zlib.crc32(term.encode("utf-8", "surrogatepass")) & 0xFFFF


def packed(terms: Iterable[str]) -> bytes:
    """The distinct terms of a document as it keeps them."""
    return array("H", {hashed(term) for term in terms}).tobytes()


def document_of(tier: Tier, columns: Sequence[Any]) -> Document:
    """A document from the columns that DOCUMENT names."""
    length = columns[-2]
    if not isinstance(length, int):
        raise TypeError("a document's length is no number")
    return Document._make((tier, *columns[:-1], array("H", columns[-1])))


@dataclass(frozen=True, slots=True)
class Filters:
    """What narrows a recall before its budget is spent and before k is counted. Names stand as their numbers."""

    agent: int | None = None
    topic: int | None = None
    tags: tuple[int, ...] = ()
    since_s: float | None = None
    until_s: float | None = None
    live_at_s: float | None = None
    """Only what has not expired; short rows alone expire."""

    def conditions(self, tier: Tier) -> tuple[str, list[SQLValue]]:
        """Conditions on the document `d`, each beginning with AND, and their bindings."""
        found: list[tuple[str, SQLValue]] = []
        if self.agent is not None:
            found.append(("d.agent = ?", self.agent))
        if self.topic is not None:
            found.append(("d.topic = ?", self.topic))
        found += [(f"EXISTS (SELECT 1 FROM {tier}_tags WHERE tag = ? AND row = d.row)", tag) for tag in self.tags]
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
        if self.since_s is None and self.until_s is None:
            return True
        at_s = document.created_s
        return at_s is not None and (self.since_s or at_s) <= at_s <= (self.until_s or at_s)

    def parts(self) -> list["Filters"]:
        """The filters one by one: each can be counted and listed by an index of its own."""
        parts = [Filters(tags=(tag,)) for tag in self.tags]
        if self.agent is not None:
            parts.append(Filters(agent=self.agent))
        if self.topic is not None:
            parts.append(Filters(topic=self.topic))
        if self.since_s is not None or self.until_s is not None:
            parts.append(Filters(since_s=self.since_s, until_s=self.until_s))
        return parts

    def source(self, tier: Tier) -> tuple[str, list[SQLValue]]:
        """The FROM and WHERE that list the rows of one of parts(), by its index."""
        if self.tags:
            return f"{tier}_tags WHERE tag = ?", [self.tags[0]]
        where, bindings = self.conditions(tier)
        return f"{tier}_documents AS d WHERE 1{where}", bindings
