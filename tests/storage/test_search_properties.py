"""What holds of any text: it is found by its words, and any question is a valid one."""

import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import limits
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search.text import STOP_WORDS
from storage.writing import WritingStore
from tests.storage.writes import ask, episode, fact, one
from tests.support import fresh_database, rows

ROWS_MAX = 20
SAMPLES = [
    "foo-bar",
    "snake_case_var",
    "getAgentScope",
    "v2.0.31",
    "C++",
    "don't",
    "to be or not to be",
    "数据库写入失败",
]


@dataclass
class Stores:
    """A small store: whatever is written beyond ROWS_MAX rows pushes the older ones out."""

    writing: WritingStore
    reading: ReadingStore
    database: Path

    def found(self, text: str, q: str) -> bool:
        """Whether a question finds a fact of this text."""
        return any(memory.text == text for memory in ask(self.reading, q, k=limits.K_MAX, full=True))

    def make_room(self) -> None:
        """Empty the tables once they are full."""
        ((count,),) = rows(self.database, "SELECT count(*) FROM memory_longterm")
        if count >= ROWS_MAX:
            touched = [("long", row) for (row,) in rows(self.database, "SELECT id FROM memory_longterm")]
            rows(self.database, "DELETE FROM memory_longterm")
            self.writing.refresh(touched)


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    """One pair of stores for all examples: opening takes longer than a hundred questions."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        paths = Paths(fresh_database(folder))
        writing = WritingStore(paths)
        stack.callback(writing.close)
        reading = ReadingStore(paths)
        stack.callback(reading.close)
        for sample in SAMPLES:
            one(writing, fact("atlas", sample))
        yield Stores(writing, reading, paths.database)


LETTERS = st.characters(blacklist_categories=("Cs",), blacklist_characters="\x00")
WORDS = st.one_of(
    st.sampled_from(sorted(STOP_WORDS)),
    st.sampled_from(SAMPLES),
    st.from_regex(r"[A-Za-z0-9]{1,12}", fullmatch=True),
    st.from_regex(r"[a-z0-9]{1,6}[-_./:@][A-Za-z0-9]{1,6}", fullmatch=True),
    st.from_regex(r"[一-龥ぁ-んァ-ン가-힣]{1,6}", fullmatch=True),
    st.from_regex(r"[à-öø-ÿА-я]{1,8}", fullmatch=True),
)
SHORT_TEXTS = st.lists(WORDS | st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=8)
LONG_TEXTS = st.lists(WORDS, min_size=limits.STOP_WORDS_KEPT_UP_TO, max_size=limits.STOP_WORDS_KEPT_UP_TO + 20)
"""So long that stop words are not kept beside others."""
TEXTS = (SHORT_TEXTS | LONG_TEXTS).map(" ".join).filter(lambda text: any(map(str.isalnum, text)))


def plain(word: str) -> str:
    """A word without apostrophes, case and diacritics, as stop words are written: `À` is the stop word `a`."""
    decomposed = unicodedata.normalize("NFKD", word.replace("'", ""))
    return "".join(char for char in decomposed if not unicodedata.combining(char)).casefold()


def words_of(text: str) -> list[str]:
    """The words of a text as a reader sees them, by white space: those with a letter or digit that are no stop word.

    Where there are none, the stop words.
    """
    words = [word for word in text.split() if any(map(str.isalnum, word))]
    telling = [word for word in words if plain(word) not in STOP_WORDS]
    return telling or words


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_any_text_is_found_by_each_of_its_words(stores: Stores, text: str) -> None:
    """In a store of at most 20 rows, a text with a letter or digit is found by each word that is no stop word.

    By those too, if it has no others.
    """
    stores.make_room()
    one(stores.writing, fact("mira", text))
    for word in words_of(text):
        assert stores.found(text, word), (text, word)


@given(TEXTS)
@settings(max_examples=100, deadline=None)
def test_any_text_is_found_by_the_whole_of_it(stores: Stores, text: str) -> None:
    """A text as the question finds itself, and nothing had to be relaxed."""
    stores.make_room()
    one(stores.writing, fact("mira", text))
    assert stores.found(text, text)


@given(st.text(min_size=1, max_size=200).filter(str.strip))
@settings(max_examples=400, deadline=None)
def test_any_text_is_a_question(stores: Stores, q: str) -> None:
    """Whatever its characters, lone surrogates and NUL among them: an answer, never an error."""
    assert isinstance(ask(stores.reading, q), list)


@pytest.mark.parametrize("piece", ["a ", "foo-bar ", "数", "(", "\x00", "🙂", "a-", "v1.2.3/", "word\n"])
def test_a_question_of_the_greatest_length_is_answered(stores: Stores, piece: str) -> None:
    """32,768 characters of anything."""
    q = (piece * limits.QUERY_CHARS_MAX)[: limits.QUERY_CHARS_MAX]
    assert isinstance(ask(stores.reading, q), list)


@pytest.mark.parametrize("word", sorted(STOP_WORDS))
def test_a_row_of_nothing_but_stop_words_is_found_by_each(stores: Stores, word: str) -> None:
    """A text that is one stop word is found by it."""
    stores.make_room()
    one(stores.writing, fact("mira", word))
    assert stores.found(word, word)


def test_an_episode_is_found_by_the_words_of_each_part(stores: Stores) -> None:
    """Summary, details, event type and outcome are all searched."""
    parts = {"summary": "summaryword", "details": "detailword", "event_type": "eventword", "outcome": "outcomeword"}
    written = one(stores.writing, episode("mira", **parts))
    for word in parts.values():
        assert [memory.id for memory in ask(stores.reading, word)] == [written.id], word


def test_a_fact_is_found_by_its_topic_its_tags_and_its_author(stores: Stores) -> None:
    """So are a fact's topic and tags, and the name of who wrote it."""
    written = one(stores.writing, fact("ace", "plain", topic="topicword", tags=("tagword",)))
    for word in ("topicword", "tagword", "ace"):
        assert written.id in [memory.id for memory in ask(stores.reading, word)], word
