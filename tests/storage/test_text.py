"""The analysis: what the terms of a text are, and what a question asks for."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from storage import limits
from storage.search.text import STOP_WORDS, analyse, clauses_of, match_all, match_any, quoted

TABLE = {
    # English: case, stems, stop words
    "The gateways were Listening": {"gatewai", "listen", "the", "were"},
    "connection connected connecting": {"connect"},
    "running runs": {"run"},
    "GET /Health": {"get", "health"},
    # CJK: overlapping pairs and single characters
    "数据库": {"数据", "据库", "数", "据", "库"},
    "龘": {"龘"},
    "しりとり": {"しり", "りと", "とり", "し", "り", "と"},
    "끝말잇기": {"끝말", "말잇", "잇기", "끝", "말", "잇", "기"},
    "GPU卡": {"gpu", "卡"},
    "Worker队列": {"worker", "队列", "队", "列"},
    # identifiers: whole and split
    "snake_case_var": {"snake", "case", "var", "snake_case_var"},
    "getAgentInfo": {"get", "agent", "info", "getagentinfo"},
    "HTTPServer": {"http", "server", "httpserver"},
    "SQLITE_BUSY": {"sqlite", "busi", "sqlite_busy"},
    "AgentCardV2": {"agent", "card", "v2", "agentcardv2"},
    # versions, addresses, paths: one joined term beside the words
    "v2.0.31": {"v2", "0", "31", "v2.0.31"},
    "20.04": {"20", "04", "20.04"},
    "10.0.3.17:8437": {"10", "0", "3", "17", "8437", "10.0.3.17:8437"},
    "user@example.com": {"user", "exampl", "com", "user@example.com"},
    "/var/lib/solos": {"var", "lib", "solo", "var/lib/solos"},
    "foo-bar": {"foo", "bar", "foo-bar"},
    "node.js": {"node", "js", "node.js"},
    "GB/s": {"gb", "s", "gb/s"},
    # names with symbols
    "C++": {"c", "c++"},
    "C#": {"c", "c#"},
    ".NET": {"net", ".net"},
    "C++17": {"c", "17", "c++", "c++17"},
    # accents
    "München": {"munchen"},
    "Müller": {"muller"},
    "Mu\u0308ller": {"muller"},
    "Überprüfung": {"uberprufung"},
    "écritures": {"ecritur"},
    "ÅNGSTRÖM": {"angstrom"},
    "Ёлка": {"елка"},
    # apostrophes
    "don't": {"dont"},
    "don\u2019t": {"dont"},
    "Sol's": {"sol"},
    "o'neill": {"oneil"},
    # other forms of the same
    "ｆｕｌｌ　ｗｉｄｔｈ": {"full", "width"},
    "ﬁle": {"file"},
    "nul\x00word": {"nulword"},
    # nothing
    "???": set(),
    "— … «»": set(),
    "🙂": set(),
    "": set(),
}


@pytest.mark.parametrize(("text", "terms"), TABLE.items(), ids=[repr(text) for text in TABLE])
def test_the_terms_of_a_text(text: str, terms: set[str]) -> None:
    """A table by example; porter stems such as `gatewai` are no words, and both sides have them."""
    assert set(analyse(text)) == terms


def test_repetitions_count() -> None:
    """Each occurrence is a term: BM25 counts them."""
    assert analyse("zebra zebra okapi") == ["zebra", "zebra", "okapi"]


def test_stop_words_of_a_short_text_are_kept() -> None:
    """A short text is found by its stop words, a long one is not; one that has nothing else always is."""
    assert "the" in analyse("the gateway")
    long = "the gateway " * limits.STOP_WORDS_KEPT_UP_TO
    assert set(analyse(long)) == {"gatewai"}
    only = "to be " * limits.STOP_WORDS_KEPT_UP_TO
    assert set(analyse(only)) == {"to", "be"}


def test_a_long_word_is_cut_alike_on_both_sides() -> None:
    """What is longer than a term may be is found by the whole of it."""
    word = "x1" * 500
    (clause,) = clauses_of(word)
    assert clause.satisfied_by(frozenset(analyse(word)))


# --- questions ---


def alternatives(question: str) -> list[set[frozenset[str]]]:
    """What each clause of a question accepts."""
    return [set(clause.alternatives) for clause in clauses_of(question)]


def test_a_word_is_one_unit() -> None:
    """Each word once, in its order, without stop words."""
    asked = alternatives("which gateway does the gateway listen on")
    assert asked == [{frozenset({"gatewai"})}, {frozenset({"listen"})}]


def test_a_question_of_stop_words_asks_for_them() -> None:
    """Only where it has nothing else."""
    assert alternatives("or") == [{frozenset({"or"})}]
    assert alternatives("to be or not to be") == [{frozenset({word})} for word in ("to", "be", "or", "not")]
    assert alternatives("to be a zebra") == [{frozenset({"zebra"})}]


@pytest.mark.parametrize("question", ["kebab-case-query", "snake_case_var", "v2.0.31"])
def test_a_compound_is_met_whole_or_by_all_of_its_words(question: str) -> None:
    """One of its words is not enough: `snake_case_var` is no question about every row with the word `case`."""
    (clause,) = clauses_of(question)
    words = set(analyse(question)) - {question}
    assert clause.satisfied_by({question})
    assert clause.satisfied_by(words)
    for word in words:
        assert not clause.satisfied_by(words - {word})


def test_camel_case_is_met_by_the_whole_or_by_its_words() -> None:
    """One of its words is not enough."""
    (clause,) = clauses_of("agentZebra")
    assert clause.satisfied_by({"agentzebra"})
    assert clause.satisfied_by({"agent", "zebra"})
    assert not clause.satisfied_by({"zebra"})


@pytest.mark.parametrize("name", ["fetchSession", "getAgentScope", "O'Neill", "closeDumofukSession", "HTTPServers"])
def test_camel_case_is_found_in_lower_case(name: str) -> None:
    """And the other way round."""
    for question, row in ((name.lower(), name), (name, name.lower())):
        (clause,) = clauses_of(question)
        assert clause.satisfied_by(frozenset(analyse(row))), (question, row)


def test_cjk_asks_for_each_pair() -> None:
    """A run of three characters is two clauses; single characters alone are none."""
    assert alternatives("数据库") == [{frozenset({"数据"})}, {frozenset({"据库"})}]
    assert alternatives("库") == [{frozenset({"库"})}]


@pytest.mark.parametrize("question", ["???", "🙂", " ", "(", '"', "*", "\x00"])
def test_punctuation_asks_for_nothing(question: str) -> None:
    """No letter and no digit: no clause."""
    assert clauses_of(question) == []


@given(st.text(max_size=200))
def test_a_text_satisfies_every_unit_of_itself(text: str) -> None:
    """Both sides lead to the same terms; nothing is asked for that the same words do not have."""
    terms = frozenset(analyse(text))
    assert all(clause.satisfied_by(terms) for clause in clauses_of(text))


@given(st.text(max_size=200))
def test_terms_have_no_white_space(text: str) -> None:
    """The index stores them joined by spaces."""
    for term in analyse(text):
        assert term
        assert not any(map(str.isspace, term)), term


@given(st.text("abcsABCS019 ", max_size=60) | st.text(max_size=60))
@example("fetchSession")
@example("O'Neill")
@example("theGetters")
def test_case_makes_no_difference_to_what_is_found(text: str) -> None:
    """A question in any case is satisfied by the row in any other: camelCase splits more, and loses nothing."""
    forms = {text, text.lower(), text.upper()} if text.isascii() else {text}
    for question in forms:
        for row in forms:
            terms = frozenset(analyse(row))
            assert all(clause.satisfied_by(terms) for clause in clauses_of(question)), (question, row)


def test_expressions_are_quoted() -> None:
    """Quotes are doubled, operators are words."""
    assert quoted('a"b') == '"a""b"'
    assert match_any(["or", "c++"]) == '"or" OR "c++"'
    assert match_all(["not", "near"]) == '"not" AND "near"'


def test_stop_words_are_folded() -> None:
    """They are compared after folding: lower case, without apostrophes."""
    assert all(word.isascii() and word.isalpha() and word == word.lower() for word in STOP_WORDS)
