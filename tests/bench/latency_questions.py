"""Four kinds of questions and the filters of the latency benchmark, drawn from a fleet's database. Seeded."""

import contextlib
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from storage.rows import tags_of
from tests.bench.fleet_questions import STOP_WORDS

SEED = 23
SENTENCE_WORDS = (20, 40)
PROMPT_WORDS = 200
COMMON_WORDS = 5
COMMON_AMONG = 100
SAMPLED_ROWS = 2_000
RARE_TAG_ROWS = (100, 2_000)
SINCE_SHARE = 0.1
PREFACE = (
    "You keep the machines of a small laboratory running. Read what happened before, decide what to do next, "
    "and say what you are not sure of. Do not touch anything that you have not looked at. Here is the context:"
)
"""How a prompt begins; the rest of it are rows."""
_TEXTS = {
    "L": "SELECT fact FROM memory_longterm WHERE id = ?",
    "E": "SELECT summary || char(10) || coalesce(details, '') FROM memory_episodic WHERE id = ?",
}
_TABLES = {"L": "memory_longterm", "E": "memory_episodic"}


@dataclass(frozen=True)
class Question:
    """A question, and a row that the yardstick may count as right."""

    q: str
    gold: str


@contextlib.contextmanager
def reading(database: Path) -> Iterator[apsw.Connection]:
    """A read-only connection."""
    with contextlib.closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        yield db


class Drawn:
    """Rows of a database drawn at random, always the same ones."""

    def __init__(self, db: apsw.Connection) -> None:
        self._db = db
        self._draw = random.Random(SEED)
        self._highest = {letter: db.execute(f"SELECT max(id) FROM {table}").get for letter, table in _TABLES.items()}

    def row(self) -> Question:
        """Any row, one in three of them a fact, with its text for a question."""
        letter = "L" if self._draw.random() < 1 / 3 else "E"
        row = 1 + int(self._draw.random() * self._highest[letter])
        return Question(self._db.execute(_TEXTS[letter], (row,)).get or "", f"{letter}{row}")

    def sentence(self) -> Question:
        """A stretch of 20 to 40 words of a row's text."""
        while True:
            row = self.row()
            words = row.q.split()
            low, high = SENTENCE_WORDS
            if len(words) >= low:
                count = self._draw.randint(low, min(high, len(words)))
                start = self._draw.randint(0, len(words) - count)
                return Question(" ".join(words[start : start + count]), row.gold)

    def prompt(self) -> Question:
        """200 words: what every prompt says, then rows."""
        first = self.row()
        words = [*PREFACE.split(), *first.q.split()]
        while len(words) < PROMPT_WORDS:
            words += self.row().q.split()
        return Question(" ".join(words[:PROMPT_WORDS]), first.gold)

    def common(self) -> Iterator[Question]:
        """Five of the hundred commonest words, and the row of the sample that holds most of them."""
        rows = [self.row() for _ in range(SAMPLED_ROWS)]
        held = [(set(re.findall(r"[a-z]{3,}", row.q.lower())) - STOP_WORDS, row.gold) for row in rows]
        counts = Counter(word for words, _ in held for word in words)
        commonest = sorted(counts, key=lambda word: (-counts[word], word))[:COMMON_AMONG]
        while True:
            words = self._draw.sample(commonest, COMMON_WORDS)
            best = max(held, key=lambda one: len(one[0].intersection(words)))
            yield Question(" ".join(words), best[1])


def questions(database: Path, known: Path, count: int) -> dict[str, list[Question]]:
    """`count` questions of each kind."""
    lines = map(json.loads, known.read_text(encoding="utf-8").splitlines())
    known_items = [Question(line["q"], line["gold"][0]) for line in lines]
    random.Random(SEED).shuffle(known_items)
    with reading(database) as db:
        drawn = Drawn(db)
        common = drawn.common()
        return {
            "known item": known_items[:count],
            "sentence": [drawn.sentence() for _ in range(count)],
            "common words": [next(common) for _ in range(count)],
            "prompt": [drawn.prompt() for _ in range(count)],
        }


def facts(database: Path, count: int) -> list[str]:
    """Texts of the length that facts have, none of which is in the database as it stands."""
    with reading(database) as db:
        texts = [text for (text,) in db.execute("SELECT fact FROM memory_longterm ORDER BY id LIMIT ?", (count,))]
    return [f"{text} Noted again, number {number}." for number, text in enumerate(texts)]


def filters(database: Path) -> dict[str, dict[str, Any]]:
    """The filters to narrow by, as fields of a recall: each kind of them once, a topic in two sizes."""
    with reading(database) as db:
        return {
            "agent": {"scope": "own"},
            "tier": {"tiers": ("long",)},
            "rare tag": {"tags": (rare_tag(db),)},
            "topic": {"topic": commonest(db, "memory_longterm", "topic")},
            "event type": {"topic": commonest(db, "memory_episodic", "event_type")},
            "since": {"since": newest_from(db)},
        }


def rare_tag(db: apsw.Connection) -> str:
    """The middle one, by name, of the tags that 100 to 2,000 facts have."""
    counts = Counter(tag for (tags,) in db.execute("SELECT tags FROM memory_longterm") for tag in tags_of(tags))
    low, high = RARE_TAG_ROWS
    rare = sorted(tag for tag, count in counts.items() if low <= count <= high)
    if not rare:
        raise SystemExit(f"no tag of this database has {low} to {high} rows")
    return rare[len(rare) // 2]


def commonest(db: apsw.Connection, table: str, column: str) -> str:
    """The value that most rows have, of those that are shared by several authors."""
    sql = f"SELECT {column} FROM {table} WHERE {column} <> 'needle' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 1"
    return str(db.execute(sql).get)


def newest_from(db: apsw.Connection) -> str:
    """The instant from which on the newest tenth of the time lies, in ISO 8601."""
    sql = (
        "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', max(created_at) - ? * (max(created_at) - min(created_at)), 'unixepoch') "
        "FROM memory_longterm"
    )
    return str(db.execute(sql, (SINCE_SHARE,)).get)
