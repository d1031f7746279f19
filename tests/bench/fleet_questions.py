"""100 questions over a fleet's database without a unique word, with their right rows. Same database, same bytes.

  fleet_questions.py DB OUT.jsonl

DB is one of gen_fleet.py; nothing but its rows is read, so neither the service's analysis nor its ranking has a say.
Half are questions of 4 to 7 words, half are sentences: a stretch of a row's text without its rare words. Every content
word occurs in at least 50 other rows. Gold are the rows that hold all content words, one to five of them. What "holds"
means is no matter of taste: the rows are the same whether a word must stand in the text as it was written (`lab-07`),
or its stems may stand anywhere in text, topic, tags or outcome (`lab`, `07`); other questions were not taken.
A line: {id, q, gold, category, row: where the words came from, words}.
"""

import argparse
import contextlib
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import apsw

SEED = 11
SAMPLED_EVERY = 10
OTHER_ROWS_MIN = 50
GOLD_MAX = 5
CANDIDATES_PER_CATEGORY = 1_000
WANTED = {
    "question, long": 20,
    "question, episodic": 20,
    "question, other scripts": 10,
    "sentence, long": 15,
    "sentence, episodic": 25,
    "sentence, other scripts": 10,
}
QUESTION_WORDS = (4, 7)
SENTENCE_WORDS = (12, 30)
SENTENCE_CONTENT_MIN = 7
FRAMES = (
    "what about {} with {}?",
    "when was {} on {}?",
    "why did {} and {}?",
    "where is {} of {}?",
    "who had {} by {}?",
    "how to do {} from {}?",
)
"""Nothing but stop words, so that the content words stay the row's own."""
STOP_WORDS = frozenset(
    """a about after again all also am an and any are as at be because been before being both but by can could did do
    does doing down during each else ever few for from further get got had has have having he her here him his how i if
    in into is it its just may me might more most must my next no nor not now of off on once only or other our out over
    own same shall she should so some such than that the their them then there these they this those through to too
    twice under until up very was we were what when where which while who whom whose why will with would you your
    """.split()
)

_CJK = re.compile(r"[぀-ヿ㐀-䶿一-鿿가-힯]+")
_HAN = re.compile(r"[぀-ヿ㐀-䶿一-鿿]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_VOICED = "\u3099\u309a"
_PATH = re.compile(r"[/\\\\]")
_OUTER = ".,;:!?()[]{}<>`'\"“”«»，。（）；=&|$@#*…-"
_SQL = (
    ("L", "SELECT id, fact, '', topic, tags FROM memory_longterm"),
    ("E", "SELECT id, summary, details, event_type, outcome FROM memory_episodic"),
)


Draw = Callable[[], float]
"""random(), the one draw that Python guarantees across versions."""
Common = dict[str, int]
"""Words that may be asked, folded, and in how many rows of the sample each stands."""


@dataclass(frozen=True)
class Row:
    """A row of the database: its own words, and what stands beside them."""

    id: str
    body: str
    facets: str

    @property
    def folded(self) -> str:
        """The body without case and accents."""
        return folded(self.body)


@dataclass(frozen=True)
class Candidate:
    """A question that may be taken if its right rows are certain."""

    category: str
    row: str
    q: str
    words: tuple[str, ...]


def rows_of(database: Path) -> Iterator[Row]:
    """Every row, long before episodic, by id."""
    with contextlib.closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        for letter, sql in _SQL:
            for row, *texts in db.execute(f"{sql} ORDER BY id"):
                body, more, *facets = (text or "" for text in texts)
                yield Row(f"{letter}{row}", f"{body}\n{more}".strip(), "\n".join(facets))


def folded(text: str) -> str:
    """Text without case and accents. Korean syllables and voiced kana stay whole."""
    if text.isascii():
        return text.lower()
    decomposed = unicodedata.normalize("NFKD", text.lower())
    return unicodedata.normalize(
        "NFC", "".join(one for one in decomposed if one in _VOICED or not unicodedata.combining(one))
    )


def is_cjk(word: str) -> bool:
    """Whether a word is a run of Chinese, Japanese or Korean characters."""
    return _CJK.fullmatch(word) is not None


def chunks(text: str) -> list[str]:
    """The words of a text as they were written, in order: `lab-07`, `costgov`, `/etc/systemd/user`, `主机上的`."""
    if not text.isascii():
        text = " ".join(chunk if _PATH.search(chunk) else _CJK.sub(r" \g<0> ", chunk) for chunk in text.split())
    return [word for chunk in text.split() if (word := chunk.strip(_OUTER))]


def written(row: Row) -> dict[str, str]:
    """The distinct words of what a row is asked by, folded: as they were written. A foreign row's first line only."""
    text = row.body.partition("\n")[0] if is_foreign(row) else row.body
    return {folded(chunk): chunk for chunk in reversed(chunks(text))}


def tells(word: str, common: Common) -> bool:
    """Whether a folded word says something and stands in enough rows."""
    return word in common and word not in STOP_WORDS and len(word) > 1


class Stems:
    """SQLite's own porter stemmer over unicode61: the widest reading of a text."""

    def __init__(self) -> None:
        self._db = apsw.Connection(":memory:")
        self._tokenizer = self._db.fts5_tokenizer("porter", ["unicode61", "remove_diacritics", "2"])

    def of(self, text: str) -> set[str]:
        """Every stem of a text; the parts of identifiers, and what touches Chinese, Japanese or Korean, too."""
        readings = [text, _CAMEL.sub(" ", text)]
        if not text.isascii():
            readings.append(_CJK.sub(r" \g<0> ", text))
        reason = apsw.FTS5_TOKENIZE_DOCUMENT
        whole = "\n".join(readings).encode("utf-8", "replace")
        return set(self._tokenizer(whole, reason, None, include_offsets=False, include_colocated=False))


# --- first pass: which words are common, and which rows are asked about ---


def common_words(database: Path) -> Common:
    """Words that stand as written in more than OTHER_ROWS_MIN rows of a sample, so in at least as many of all."""
    counts: Counter[str] = Counter()
    for number, row in enumerate(rows_of(database)):
        if number % SAMPLED_EVERY == 0:
            counts.update(set(chunks(row.folded)))
    return {word: count for word, count in counts.items() if count > OTHER_ROWS_MIN}


def drawn_rows(database: Path) -> dict[str, list[Row]]:
    """Rows drawn for each kind of row, in the order in which they are tried."""
    draw = random.Random(SEED).random
    keyed: dict[str, list[tuple[float, Row]]] = {"long": [], "episodic": [], "other scripts": []}
    for row in rows_of(database):
        lot = draw()
        kind = "other scripts" if is_foreign(row) else "long" if row.id[0] == "L" else "episodic"
        if lot < (0.2 if kind == "other scripts" else 0.02):
            keyed[kind].append((lot * (1 if kind == "other scripts" else 10), row))
    return {kind: [row for _, row in sorted(rows, key=lambda one: one[0])] for kind, rows in keyed.items()}


def is_foreign(row: Row) -> bool:
    """Whether a row's first sentence is not English."""
    first = row.body.partition("\n")[0]
    return not first.isascii() and not first.replace("/mnt/nas/écritures", "").replace("/data/日志/归档", "").isascii()


def candidates(database: Path, common: Common) -> list[Candidate]:
    """Questions and sentences built from drawn rows, CANDIDATES_PER_CATEGORY of each category at most."""
    draw = random.Random(SEED + 1).random
    made: list[Candidate] = []
    for kind, rows in drawn_rows(database).items():
        for form, build in (("question", question), ("sentence", sentence)):
            built = (build(f"{form}, {kind}", row, common, draw) for row in rows[form == "sentence" :: 2])
            found = [candidate for candidate in built if candidate is not None]
            made += found[:CANDIDATES_PER_CATEGORY]
    return made


def question(category: str, row: Row, common: Common, draw: Draw) -> Candidate | None:
    """Some of the less common half of a row's words, in the frame of a question."""
    original = written(row)
    words = [word for word in reversed(original) if tells(word, common)]
    rarer = sorted(words, key=lambda word: (common[word], word))[: max(QUESTION_WORDS[0], len(words) // 2)]
    low, high = QUESTION_WORDS
    wanted = low + int(draw() * (high - low + 1))
    frame = FRAMES[int(draw() * len(FRAMES))]
    lots = {word: draw() for word in rarer}
    among = set(sorted(rarer, key=lots.__getitem__)[:wanted])
    chosen = [word for word in words if word in among]
    if len(chosen) < low:
        return None
    half = (len(chosen) + 1) // 2
    spoken = [original[word] for word in chosen]
    return Candidate(category, row.id, frame.format(" ".join(spoken[:half]), " ".join(spoken[half:])), tuple(chosen))


def sentence(category: str, row: Row, common: Common, draw: Draw) -> Candidate | None:
    """A stretch of a row's text without its rare words."""
    text = row.body.partition("\n")[0] if is_foreign(row) else row.body
    pairs = [(word, chunk) for chunk in chunks(text) if (word := folded(chunk)) in STOP_WORDS or tells(word, common)]
    low, high = SENTENCE_WORDS
    wanted = low + int(draw() * (high - low + 1))
    start = int(draw() * max(1, len(pairs) - wanted + 1))
    stretch = pairs[start : start + wanted]
    telling = tuple(word for word in dict.fromkeys(word for word, _ in stretch) if word not in STOP_WORDS)
    if len(telling) < (SENTENCE_CONTENT_MIN if not is_foreign(row) else SENTENCE_CONTENT_MIN // 2 + 1):
        return None
    return Candidate(category, row.id, spoken([chunk for _, chunk in stretch]), telling)


def spoken(words: list[str]) -> str:
    """Words as a sentence: no spaces around Chinese and Japanese."""
    text = words[0]
    for before, word in pairwise(words):
        text += ("" if _HAN.fullmatch(before) or _HAN.fullmatch(word) else " ") + word
    return text


# --- second pass: which rows are right ---


class Holders:
    """Which rows hold which stem or CJK run: one bit a row."""

    def __init__(self, stems: set[str], runs: set[str], rows: int) -> None:
        self._stems = stems
        self._runs = runs
        self._bits = {word: bytearray(rows // 8 + 1) for word in stems | runs}
        self.ids: list[str] = []

    def add(self, row: Row, stems_of: Stems) -> None:
        """Note the words of one row."""
        text = f"{row.body}\n{row.facets}"
        held = self._stems & stems_of.of(text)
        if not text.isascii():
            plain = folded(text)
            held |= {run for run in self._runs if run in plain}
        number = len(self.ids)
        for word in held:
            self._bits[word][number >> 3] |= 1 << (number & 7)
        self.ids.append(row.id)

    def of_all(self, words: set[str]) -> list[str]:
        """The rows that hold every one of the words."""
        bits = [int.from_bytes(self._bits[word], "little") for word in words]
        both = bits[0]
        for other in bits[1:]:
            both &= other
        numbers = []
        while both:
            lowest = both & -both
            numbers.append(lowest.bit_length() - 1)
            both ^= lowest
            if len(numbers) > GOLD_MAX:
                break
        return [self.ids[number] for number in numbers]

    def count(self, word: str) -> int:
        """In how many rows a stem or run stands."""
        return int.from_bytes(self._bits[word], "little").bit_count()


def parts_of(word: str, stems_of: Stems) -> set[str]:
    """What a row must hold for a word in the widest reading."""
    return {word} if is_cjk(word) else stems_of.of(word)


def with_gold(database: Path, made: list[Candidate]) -> list[tuple[Candidate, list[str]]]:
    """The candidates whose right rows are few and the same in both readings, and those rows."""
    stems_of = Stems()
    parts = {word: parts_of(word, stems_of) for candidate in made for word in candidate.words}
    needed = set().union(*parts.values())
    runs = {word for word in needed if is_cjk(word)}
    holders = Holders(needed - runs, runs, sum(1 for _ in rows_of(database)))
    for row in rows_of(database):
        holders.add(row, stems_of)
    wide = {one: holders.of_all(set().union(*(parts[word] for word in one.words))) for one in made}
    wide = {one: rows for one, rows in wide.items() if 0 < len(rows) <= GOLD_MAX}
    wanted = {row for rows in wide.values() for row in rows}
    text_of = {row.id: row.folded for row in rows_of(database) if row.id in wanted}
    sure = [
        (one, rows)
        for one, rows in wide.items()
        if one.row in rows and all(stands_in(word, text_of[row]) for word in one.words for row in rows)
    ]
    assert all(holders.count(part) > OTHER_ROWS_MIN for one, _ in sure for word in one.words for part in parts[word])
    return sure


def stands_in(word: str, text: str) -> bool:
    """Whether a word stands in folded text as it was written."""
    return word in text if is_cjk(word) else word in chunks(text)


def questions(database: Path) -> list[dict]:
    """The questions, WANTED of each category.

    Raises:
        SystemExit: the database does not yield enough of a category; it is smaller than this was made for.
    """
    sure = with_gold(database, candidates(database, common_words(database)))
    taken = []
    for category, count in WANTED.items():
        found = [(one, gold) for one, gold in sure if one.category == category][:count]
        if len(found) < count:
            raise SystemExit(f"{database} yields only {len(found)} of {count} questions of the kind {category!r}.")
        taken += found
    return [
        {"id": f"o{number}", "q": one.q, "gold": gold, "category": one.category, "row": one.row, "words": one.words}
        for number, (one, gold) in enumerate(taken)
    ]


def write_questions(database: Path, path: Path) -> None:
    """Write the questions, one a line."""
    lines = [json.dumps(question, ensure_ascii=False) + "\n" for question in questions(database)]
    path.write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write the questions of a database."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    write_questions(given.database, given.out)


if __name__ == "__main__":
    main()
