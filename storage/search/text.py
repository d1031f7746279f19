"""Text analysis: one function for what is stored and for what is asked.

A term is a string without white space. The index stores the terms of a row joined by spaces, so that its tokenizer
has nothing left to decide, and the same words lead to the same terms on both sides:

- NFKC, without case and diacritics; English words are stemmed (porter), stop words are not asked for.
- Runs of CJK become overlapping pairs and single characters: they have no spaces to split at.
- Identifiers stand whole and split (camelCase, snake_case). A chunk with inner punctuation (a version, an address, a
  path) is one joined term beside its words: in a store it is a rare term, which needs no phrase query.
- `C++`, `C#` and `.NET` are kept.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from Stemmer import Stemmer

from storage import limits

STOP_WORDS: Final = frozenset(
    """a an the and or but if of at by for with about to from in on off over under is am are was were be been being
    have has had do does did doing will would shall should can could may might must i me my we our you your he him his
    she her it its they them their this that these those what which who whom whose when where why how not no nor so
    than too very as into out up down there here all any both each more most other some such only own same then once
    during before after above below between through again further because until while ever get got also just now
    s t don dont im ive id ill youre hes shes theyre weve isnt arent wasnt werent didnt doesnt cant couldnt wont
    wouldnt shouldnt whats thats lets""".split()
)

_CJK: Final = (
    "\u1100-\u11ff\u3005\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
# White space, brackets, quotes and the like end a chunk; what stands inside names, paths, versions and addresses does
# not.
_CHUNK: Final = re.compile(r"[^\s\"()\[\]{}<>|,;!?*^~`=&\u00ab\u00bb\u2018\u201c-\u201f\u3000-\u3003\u3008-\u3011]+")
_POSSESSIVE: Final = re.compile(r"(?<=\w)['\u2019]s\b", re.IGNORECASE)
_APOSTROPHE: Final = re.compile(r"(?<=\w)['\u2019\u02bc](?=\w)")
_WORD: Final = re.compile(rf"[{_CJK}]+|[^\W_{_CJK}]+")
_JOINED: Final = re.compile(rf"[^\W_{_CJK}](?:[^\s{_CJK}]*[^\W_{_CJK}])?")
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DIACRITIC: Final = re.compile("[\u0300-\u036f]+")
_SYMBOL_NAME: Final = re.compile(r"(?<![\w+#])[a-z]{1,2}(?:\+\+|#)(?![+#])|(?<!\w)\.net\b")
_SYMBOLS: Final = re.compile(r"[+#]|\.[nN]")
_CJK_FIRST: Final = "\u1100"
_CJK_START: Final = re.compile(rf"[{_CJK}]")
_STEMMED: Final = re.compile(r"[a-z]{3,40}")
_TERM_CHARS_MAX: Final = 80
_CHUNKS_CACHED: Final = 20_000
_NAME_CHARS_MAX: Final = 40

_stemmer = Stemmer("porter")


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing a question asks for: satisfied by a row that holds all terms of any of its alternatives.

    A plain word has one alternative of one term. A compound such as `foo-bar` is met by the joined term or by all of
    its words: `snake_case_var` is no question about every row with the word `case`.
    """

    alternatives: tuple[frozenset[str], ...]

    @property
    def terms(self) -> frozenset[str]:
        """Every term that may count."""
        return frozenset().union(*self.alternatives)

    def satisfied_by(self, terms: "frozenset[str] | set[str]") -> bool:
        """Whether a row with these terms has what is asked for."""
        return any(alternative <= terms for alternative in self.alternatives)


def analyse(*parts: str) -> list[str]:
    """The terms of a text in one or several parts, chunk by chunk, with repetitions.

    A part keeps its stop words where it is short or has no other words: a question of nothing else (`or`, `to be or
    not to be`) finds it by them.
    """
    terms: list[str] = []
    for part in parts:
        terms += _analyse_name(part) if len(part) <= _NAME_CHARS_MAX else _analyse_part(part)
    return terms


def _analyse_part(part: str) -> list[str]:
    chunks = [*map(_analyse_chunk, _chunks_of(part))]
    terms: list[str] = []
    for chunk in chunks:
        terms += chunk.terms
    if len(chunks) <= limits.STOP_WORDS_KEPT_UP_TO or not terms:
        for chunk in chunks:
            terms += chunk.stop_words
    return terms


@lru_cache(maxsize=_CHUNKS_CACHED)
def _analyse_name(part: str) -> tuple[str, ...]:
    """A short part; cached, since agents, topics and tags come again and again."""
    return tuple(_analyse_part(part))


def clauses_of(question: str) -> list[Clause]:
    """What a question asks for, each thing once, in its order. Stop words only where it has nothing else."""
    chunks = [_analyse_chunk(chunk) for chunk in _chunks_of(question)]
    clauses = [clause for chunk in chunks for clause in _clauses(chunk)]
    return list(dict.fromkeys(clauses or [_word_clause(word) for chunk in chunks for word in chunk.stop_words]))


class _Chunk(NamedTuple):
    """A run of characters without white space, taken apart. A tuple: a rebuild makes millions."""

    terms: tuple[str, ...]
    """What the index holds of it: all of the following but the stop words."""
    pairs: tuple[str, ...]
    """Overlapping pairs of each CJK run; the character where a run is one."""
    words: tuple[str, ...]
    """The other words, stemmed."""
    wholes: tuple[str, ...]
    """The chunk with its inner punctuation, names such as c++ in it, and words that camelCase joins."""
    stop_words: tuple[str, ...]


def _chunks_of(text: str) -> list[str]:
    """The runs without white space and what else ends one: NFKC, without diacritics and apostrophes.

    The case is kept for now: camelCase is told by it. Diacritics are those of Latin, Greek and Cyrillic; marks of other
    scripts (kana's voicing) are parts of letters.
    """
    text = text.replace("\x00", "")
    if not text.isascii():
        decomposed = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text.replace("\u00ad", "")))
        text = unicodedata.normalize("NFC", _DIACRITIC.sub("", decomposed))
    if "'" in text or "\u2019" in text or "\u02bc" in text:
        text = _APOSTROPHE.sub("", _POSSESSIVE.sub("", text))
    return _CHUNK.findall(text)


@lru_cache(maxsize=_CHUNKS_CACHED)
def _analyse_chunk(chunk: str) -> _Chunk:
    """Take a chunk apart; cached, since most of them come again and again."""
    if chunk.isascii() and chunk.isalnum() and chunk == chunk.lower():
        return _word_chunk(chunk)
    pairs: list[str] = []
    singles: list[str] = []
    words: list[str] = []
    wholes: list[str] = []
    stop_words: list[str] = []
    for word in _WORD.findall(chunk):
        if word[0] >= _CJK_FIRST and _CJK_START.match(word):
            pairs += [word[at : at + 2] for at in range(len(word) - 1)]
            (singles if len(word) > 1 else pairs).extend(word)
            continue
        if word.isdigit():
            words.append(_clipped(word))
            continue
        parts = (word,) if word.islower() else tuple(_CAMEL.split(word))
        if len(parts) > 1:
            wholes.append(_stem(word.casefold()))
        for part in parts:
            low = part.casefold()
            if low in STOP_WORDS:
                stop_words.append(low)
            else:
                words.append(_stem(low))
    if not chunk.isalnum():
        if _SYMBOLS.search(chunk):
            wholes += _SYMBOL_NAME.findall(chunk.casefold())
        wholes += _joined(chunk)
    terms = (*pairs, *singles, *words, *wholes)
    return _Chunk(terms, tuple(pairs), tuple(words), tuple(wholes), tuple(stop_words))


def _word_chunk(word: str) -> _Chunk:
    """A chunk that is one plain word: most of them."""
    if word in STOP_WORDS:
        return _Chunk((), (), (), (), (word,))
    stemmed = (_stem(word),)
    return _Chunk(stemmed, (), stemmed, (), ())


def _clauses(chunk: _Chunk) -> list[Clause]:
    """The clauses of a chunk: each CJK pair; and its words, where it has several only together or as a whole."""
    clauses = [_word_clause(pair) for pair in chunk.pairs]
    if chunk.words or chunk.wholes:
        alternatives = [frozenset([whole]) for whole in chunk.wholes]
        alternatives += [frozenset(chunk.words)] if chunk.words else []
        clauses.append(Clause(tuple(dict.fromkeys(alternatives))))
    return clauses


def _word_clause(word: str) -> Clause:
    return Clause((frozenset([word]),))


def _joined(chunk: str) -> list[str]:
    """The chunk with its inner punctuation, where it has any between letters or digits."""
    return [
        found.casefold() for found in _JOINED.findall(chunk) if not found.isalnum() and len(found) <= _TERM_CHARS_MAX
    ]


def _stem(word: str) -> str:
    return str(_stemmer.stemWord(word)) if _STEMMED.fullmatch(word) else _clipped(word)


def _clipped(word: str) -> str:
    return word[:_TERM_CHARS_MAX]


def quoted(term: str) -> str:
    """A term as an FTS5 string: whatever it is made of, it is no syntax."""
    return '"' + term.replace('"', '""') + '"'


def match_any(terms: Iterable[str]) -> str:
    """An FTS5 expression that any of the terms satisfies."""
    return " OR ".join(quoted(term) for term in terms)


def match_all(terms: Iterable[str]) -> str:
    """An FTS5 expression that only all of the terms satisfy."""
    return " AND ".join(quoted(term) for term in terms)
