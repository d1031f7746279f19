"""200 bytes of the index file are flipped, or it is sound and wrong: never a wrong row, never a crash.

On the stores, in this process: fifty seeds in some seconds.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.errors import Rejection
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search.failures import IndexFailure
from storage.writing import WritingStore
from tests.storage.writes import ask, episode, fact, one, reply, short
from tests.support import fresh_database, rows

FLIPPED = 200
PAGE_BYTES = 4_096
CLOCK_S = 1_790_000_000.0
AGENTS = ("mira", "sol", "ace")
NEEDLES = 300
"""So many that most seeds spare the first page: an index without a schema is the easy case."""


@dataclass(frozen=True)
class Truth:
    """What the tables hold, by id, as a recall shows it."""

    texts: dict[str, str]
    agents: dict[str, str]


def needle(number: int) -> str:
    """A word that one row alone has."""
    return f"needle{number:03}x"


def fill_stores(store: WritingStore) -> Truth:
    """Rows of three tiers and authors, with topics, tags and sessions; what they are."""
    texts: dict[str, str] = {}
    agents: dict[str, str] = {}
    for number in range(NEEDLES):
        agent = AGENTS[number // 3 % 3]
        text = f"common words around {needle(number)} on the gateway " + " ".join(
            f"filler{number % 7} only{number}x{n}" for n in range(40)
        )
        write = (
            fact(agent, text, topic=f"topic{number % 5}", tags=("even",) if number % 2 == 0 else ("odd",)),
            episode(agent, text, event_type=f"topic{number % 5}"),
            short(agent, f"key{number}", text),
        )[number % 3]
        written = one(store, write)
        texts[written.id], agents[written.id] = text, agent
    return Truth(texts, agents)


TIERS = ("short", "long", "episodic")
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    *((needle(number), {}) for number in range(0, NEEDLES, 23)),
    ("common words", {}),
    ("gateway filler3", {}),
    ("common words", {"scope": "own"}),
    ("common words", {"tags": ("even",)}),
    ("common words", {"topic": "topic2"}),
    (f"{needle(4)} common", {"tags": ("even",)}),
    ("filler6 gateway mira", {"scope": "own"}),
]


def check_right(truth: Truth, q: str, filters: dict[str, Any], results: list[Any]) -> None:
    """What is shown is in the table as it is shown, holds a word of the question, and passes the filters."""
    for memory in results:
        assert truth.texts.get(memory.id) == memory.text, (q, filters, memory)
        assert truth.agents[memory.id] == memory.agent
        words = [*memory.text.split(), memory.agent]
        assert any(word in words for word in q.split()), (q, filters, memory)
        if filters.get("scope") == "own":
            assert memory.agent == "mira", (q, filters, memory)
        assert set(filters.get("tags", ())) <= set(memory.tags), (q, filters, memory)
        if "topic" in filters:
            assert filters["topic"] in (memory.topic, memory.event_type), (q, filters, memory)
    assert len({memory.id for memory in results}) == len(results)


def questions_asked(reading: ReadingStore, truth: Truth) -> int:
    """Ask everything on a damaged index: a right answer or a failure that is one. How many failed."""
    failed = 0
    for q, filters in QUESTIONS:
        try:
            results = ask(reading, q, "mira", k=50, tiers=TIERS, full=True, **filters)
        except (IndexFailure, Rejection):
            failed += 1
        else:
            check_right(truth, q, filters, results)
    return failed


def answers_of(reading: ReadingStore) -> list[list[str]]:
    """The ids that each question finds."""
    return [
        sorted(memory.id for memory in ask(reading, q, "mira", k=50, tiers=TIERS, full=True, **filters))
        for q, filters in QUESTIONS
    ]


def anywhere(size: int, pick: random.Random) -> list[int]:
    """Positions all over the file; in a small one most seeds hit the first page, and opening finds that."""
    return pick.sample(range(size), FLIPPED)


def behind_the_first_page(size: int, pick: random.Random) -> list[int]:
    """Positions all over the file but its first page, which holds the schema."""
    return pick.sample(range(PAGE_BYTES, size), FLIPPED)


def in_one_run(size: int, pick: random.Random) -> list[int]:
    """One run of bytes behind the first page: a block that the disk lost, or another program wrote."""
    first = pick.randrange(PAGE_BYTES, size - FLIPPED)
    return list(range(first, first + FLIPPED))


Places = Callable[[int, random.Random], list[int]]


def flip(path: Path, seed: int, places: Places) -> None:
    """Invert bits in FLIPPED bytes of a file."""
    pick = random.Random(seed)
    content = bytearray(path.read_bytes())
    for at in places(len(content), pick):
        content[at] ^= pick.randrange(1, 256)
    path.write_bytes(content)


@dataclass
class Flips:
    """What became of the seeds."""

    found: int = 0
    failed_asks: int = 0
    by_start: int = 0


def survive(paths: Paths, seed: int, original: "Original", flips: Flips) -> None:
    """One seed: read, check, write, follow and sweep on a damaged index; then remake it, and all is as it was."""
    with ExitStack() as stack:
        store = WritingStore(paths)
        stack.callback(store.close)
        reading = ReadingStore(paths)
        stack.callback(reading.close)
        flips.by_start += store.report.index_rebuilt
        flips.failed_asks += questions_asked(reading, original.truth)
        flips.found += not store.check_index(seed) or store.report.index_rebuilt
        (outcome,) = store.apply([short("ace", "after the damage", "nothing of this is asked for")])
        assert reply(outcome).agent == "ace", "a damaged index must not fail a write"
        for _ in range(3):
            store.catch_up()
            store.sweep()
        questions_asked(reading, original.truth)
        store.remake_index()
        while not store.catch_up():
            pass
        assert answers_of(reading) == original.expected


@dataclass(frozen=True)
class Original:
    """A sound store, what it holds, and what it answers."""

    paths: Paths
    truth: Truth
    expected: list[list[str]]

    def copy(self, folder: Path) -> Paths:
        """A copy of the database and of our folder beside it."""
        shutil.copytree(self.paths.folder, folder / self.paths.folder.name)
        shutil.copy(self.paths.database, folder)
        return Paths(folder / self.paths.database.name)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """The store that is damaged in copies."""
    paths = Paths(fresh_database(tmp_path_factory.mktemp("original")))
    store = WritingStore(paths, clock=lambda: CLOCK_S)  # so that a seed flips the same bytes each time
    truth = fill_stores(store)
    assert store.catch_up()
    store.close()
    reading = ReadingStore(paths)
    expected = answers_of(reading)
    reading.close()
    assert all(expected)
    return Original(paths, truth, expected)


@pytest.mark.parametrize(("places", "seeds"), [(anywhere, 50), (behind_the_first_page, 25), (in_one_run, 25)])
def test_flipped_bytes_show_no_wrong_row_and_crash_nothing(
    original: Original, tmp_path: Path, places: Places, seeds: int
) -> None:
    """200 flipped bytes, 50 seeds: the table is the truth; the share that the check at the start finds is printed."""
    flips, wrong = Flips(), []
    for seed in range(seeds):
        paths = original.copy(tmp_path / str(seed))
        flip(paths.index, seed, places)
        try:
            survive(paths, seed, original, flips)
        except Exception as error:  # all seeds are tried: what one of them shows may hide what others would
            wrong.append(f"seed {seed}: {type(error).__name__}: {error}")
        shutil.rmtree(paths.database.parent)
    size, asked_in_all = original.paths.index.stat().st_size, 2 * seeds * len(QUESTIONS)
    print(f"{FLIPPED} of {size} bytes flipped {places.__name__}, {seeds} seeds:")
    print(f"the start finds {flips.found / seeds:.0%} ({flips.by_start} by opening the file, the others by its check);")
    print(f"of {asked_in_all} questions {flips.failed_asks} failed and said so")
    assert not wrong, "\n".join(wrong)


NONSENSE = {
    "name": "UPDATE names SET name = CAST(x'ff' || CAST(id AS BLOB) AS TEXT)",
    "number of a name": "UPDATE counts SET agent = CAST(x'ff' || CAST(agent AS BLOB) AS TEXT)",
    "count": "UPDATE counts SET rows = x'b9e1', terms = x'b9e1'",
    "negative count": "UPDATE counts SET rows = -5, terms = -9e18",
    "high water": "UPDATE high_water SET row = x'b9e1'",
    "high water beyond all": "UPDATE high_water SET row = 9223372036854775807",
    "tier": "UPDATE high_water SET tier = CAST(x'ff' || CAST(tier AS BLOB) AS TEXT)",
    "odd terms": "UPDATE long_documents SET terms = x'010203'",
    "terms are text": "UPDATE long_documents SET terms = 'text'",
    "terms without a head": "UPDATE long_documents SET terms = x'0102'",
    "no terms": "UPDATE long_documents SET terms = x''",
    "length is 0": "UPDATE long_documents SET terms = CAST(x'0000' || substr(terms, 3) AS BLOB)",
    "length is vast": "UPDATE long_documents SET terms = CAST(x'ffff' || substr(terms, 3) AS BLOB)",
    "everything is repeated": "UPDATE long_documents "
    "SET terms = CAST(substr(terms, 1, 2) || x'ffff' || substr(terms, 5) AS BLOB)",
    "half a term": "UPDATE long_documents SET terms = CAST(terms || x'ff' AS BLOB)",
    "author": "UPDATE long_documents SET agent = x'ff'",
    "session": "UPDATE long_documents SET session = x'ff' || CAST(row AS BLOB)",
    "digest": "UPDATE long_documents SET digest = CAST(x'ff' AS TEXT)",
    "sentence": "UPDATE long_documents SET sentence = x'ff'",
    "time": "UPDATE long_documents SET created_s = CAST(x'ff' AS TEXT)",
    "expiry": "UPDATE short_documents SET expires_s = x'ff'",
    "no documents": "DELETE FROM long_documents",
    "no postings": "DELETE FROM long_fts WHERE rowid > 0",
    "no counts": "DELETE FROM counts",
    "no table": "DROP TABLE names",
}


@pytest.mark.parametrize("nonsense", NONSENSE.values(), ids=list(NONSENSE))
def test_nonsense_in_a_column_is_damage(original: Original, tmp_path: Path, nonsense: str) -> None:
    """What a flipped byte makes of one column: a failure of the index at most, and no other exception anywhere."""
    paths = original.copy(tmp_path / "copy")
    rows(paths.index, nonsense)
    survive(paths, 0, original, Flips())


# --- an index that is sound and wrong ---

LIES = {
    "author": "UPDATE long_documents SET agent = (SELECT id FROM names WHERE name = 'mira')",
    "topic": "INSERT INTO long_fts(rowid, terms) SELECT row, 'okapi ' || char(57344) || 'topic' || id "
    "FROM names, long_documents WHERE name = 'zoo' AND row > 1",
    "time": "UPDATE long_documents SET created_s = 1790000000",
    "tags": "INSERT INTO long_fts(rowid, terms) SELECT row, 'okapi ' || char(57344) || 'tag' || id "
    "FROM names, long_documents WHERE name = 'stripes' AND row > 1",
    "terms": "INSERT INTO long_fts(rowid, terms) SELECT row, 'zebra' FROM long_documents WHERE row > 1",
    "sentence": "UPDATE long_documents SET sentence = 1",
}


@pytest.mark.parametrize("lie", LIES.values(), ids=list(LIES))
def test_an_index_that_lies_shows_no_wrong_row(tmp_path: Path, lie: str) -> None:
    """Damage that SQLite cannot see: whatever the index says of a row, what is shown is what the table says."""
    paths = Paths(fresh_database(tmp_path))
    with ExitStack() as stack:
        store = WritingStore(paths, clock=lambda: CLOCK_S)
        stack.callback(store.close)
        right = one(store, fact("mira", "the zebra of mira", topic="zoo", tags=("stripes",)))
        for agent, text in (("sol", "the okapi of sol"), ("ace", "the okapi of ace")):
            rows(
                paths.database,
                "INSERT INTO memory_longterm(agent, fact, topic, created_at) VALUES (?, ?, 'park', 1.7e9)",
                *(agent, text),
            )
        assert store.catch_up()
        if lie.startswith("INSERT INTO long_fts"):
            rows(paths.index, "DELETE FROM long_fts WHERE rowid > 1")
        rows(paths.index, lie)
        reading = ReadingStore(paths, clock=lambda: CLOCK_S)
        stack.callback(reading.close)
        assert [memory.id for memory in ask(reading, "zebra", "mira", k=50)] == [right.id]
        for q in ("zebra", "okapi", "the okapi and the zebra"):
            narrow = ({"scope": "own"}, {"topic": "zoo"}, {"tags": ("stripes",)}, {"since": "2026-01-01"})
            for filters in narrow:
                found = [memory.id for memory in ask(reading, q, "mira", k=50, **filters)]
                assert set(found) <= {right.id}, (q, filters)
        texts = {memory.text: memory.agent for memory in ask(reading, "okapi", k=50)}
        assert texts.items() <= {"the okapi of sol": "sol", "the okapi of ace": "ace"}.items()
        assert all(not memory.also for memory in ask(reading, "okapi", k=50))
