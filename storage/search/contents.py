"""What the index keeps of a row's text: a pure function of it, whichever process computes it."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from storage.search.documents import packed
from storage.search.text import analyse


class Contents(NamedTuple):
    """A text as the index takes it. A tuple: a build makes as many as there are rows."""

    terms: str
    """Its distinct terms, joined by spaces."""
    packed: bytes
    """Its terms as documents.packed() made them."""


def contents_of(parts: Sequence[str]) -> Contents:
    """The contents of a row that is found by these texts (Row.parts)."""
    terms = Counter(analyse(*parts))
    return Contents(" ".join(terms), packed(terms))
