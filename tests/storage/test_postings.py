"""Postings as arrays: what SQLite gathers, what several answers have together, where the terms are."""

import struct

import apsw
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.search.documents import HASHES, HEAD
from storage.search.postings import GATHERED, Postings

NUMBERS = st.lists(st.integers(0, HASHES - 1), min_size=HEAD, max_size=HEAD + 20)
DOCUMENTS = st.dictionaries(st.integers(-(2**63), 2**63 - 1), NUMBERS, max_size=12)


def gathered(documents: dict[int, bytes]) -> Postings:
    """What a connection answers about these documents, in their order."""
    db = apsw.Connection(":memory:")
    db.execute("CREATE TABLE d (at INTEGER PRIMARY KEY, row INTEGER, terms BLOB)")
    db.executemany("INSERT INTO d (row, terms) VALUES (?, ?)", documents.items())
    ((rows, sizes, terms),) = list(db.execute(f"SELECT {GATHERED} FROM (SELECT row, terms FROM d ORDER BY at) AS d"))
    return Postings.gathered(rows, sizes, terms)


def packed(documents: dict[int, list[int]]) -> dict[int, bytes]:
    """The documents as bytes."""
    return {row: struct.pack(f"{len(numbers)}H", *numbers) for row, numbers in documents.items()}


def unpacked(postings: Postings) -> dict[int, list[int]]:
    """The documents again."""
    ends = [*postings.starts[1:], len(postings.numbers)]
    pieces = zip(postings.rows.tolist(), postings.starts, ends, strict=True) if len(postings) else ()
    return {row: postings.numbers[start:end].tolist() for row, start, end in pieces}


@given(DOCUMENTS)
def test_any_terms_come_back_as_they_were_packed(documents: dict[int, list[int]]) -> None:
    """Zero bytes, halves of characters, byte-order marks: group_concat leaves bytes alone."""
    assert unpacked(gathered(packed(documents))) == documents


@given(DOCUMENTS, DOCUMENTS)
def test_together_they_have_each_row_once_and_the_first_stay_in_front(
    first: dict[int, list[int]], second: dict[int, list[int]]
) -> None:
    both = gathered(packed(first)).with_others(gathered(packed(second)))
    assert [*unpacked(both).items()] == [
        *first.items(),
        *((row, numbers) for row, numbers in second.items() if row not in first),
    ]


@given(DOCUMENTS, st.integers(0, 12), st.integers(1, 12))
def test_a_block_is_a_part_of_them(documents: dict[int, list[int]], first: int, most: int) -> None:
    postings = gathered(packed(documents))
    if first < len(postings):
        assert [*unpacked(postings.block(first, most)).items()] == [*documents.items()][first : first + most]


@given(DOCUMENTS, st.lists(st.integers(0, HASHES - 1), min_size=1, max_size=5, unique=True))
def test_terms_are_found_where_they_are_and_never_in_a_head(documents: dict[int, list[int]], asked: list[int]) -> None:
    hits = gathered(packed(documents)).hits(np.array(asked, np.int64))
    found = [*zip(hits.holder.tolist(), hits.term.tolist(), hits.place.tolist(), strict=True)]
    assert found == [
        (holder, asked.index(number), place)
        for holder, numbers in enumerate(documents.values())
        for place, number in enumerate(numbers[HEAD:])
        if number in asked
    ]


@pytest.mark.parametrize("terms", [b"", b"\x00" * (2 * HEAD - 2), b"\x00" * (2 * HEAD + 1)], ids=len)
def test_what_is_no_document_is_damage(terms: bytes) -> None:
    with pytest.raises(ValueError, match="no head"):
        gathered({1: b"\x00" * 2 * HEAD, 2: terms})
