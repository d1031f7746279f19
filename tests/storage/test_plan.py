"""The plan of a recall: the rarest terms up to a budget, prefixes of identifiers, remembered frequencies."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage import limits
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search.index import Index
from storage.search.plan import Frequencies, Plan, plan
from storage.search.text import clauses_of
from storage.writing import WritingStore
from tests.storage.writes import ask, fact, one
from tests.support import fresh_database, rows

ROWS = 2_400
CROWD = f"""
INSERT INTO memory_longterm(agent, fact, created_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})
SELECT 'sol', 'every' || CASE WHEN i % 2 = 0 THEN ' second' ELSE '' END
  || CASE WHEN i % 10 = 0 THEN ' tenth' ELSE '' END || CASE WHEN i % 100 = 0 THEN ' hundredth' ELSE '' END
  || CASE WHEN i % 1200 = 0 THEN ' rarity' ELSE '' END || ' INC' || (70000 + i), i
FROM n
"""
OCCUR = {"everi": ROWS, "second": ROWS // 2, "tenth": ROWS // 10, "hundredth": ROWS // 100, "rariti": 2}
QUESTION = "every second tenth hundredth rarity nowhere"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> Paths:
    """Where a database with terms of known frequencies lies."""
    database = fresh_database(tmp_path_factory.mktemp("plan"))
    rows(database, CROWD)
    return Paths(Path(database))


@pytest.fixture(scope="module")
def store(paths: Paths) -> Iterator[WritingStore]:
    """The writer's store, its index up to the rows."""
    opened = WritingStore(paths)
    while not opened.catch_up():
        pass
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def index(store: WritingStore, paths: Paths) -> Iterator[Index]:
    """The reader's index."""
    opened = Index(paths.index, writable=False)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def reading(store: WritingStore, paths: Paths) -> Iterator[ReadingStore]:
    """A reader's store."""
    opened = ReadingStore(paths)
    yield opened
    opened.close()


def planned(index: Index, question: str) -> Plan:
    """The plan of a question over the facts."""
    return plan(index, "long", Frequencies(index, "long"), clauses_of(question), index.size("long"))


def kept(asked: Plan) -> tuple[str, ...]:
    """The terms whose rows are all read, with the whole budget and no filter."""
    return asked.spend(limits.POSTINGS_BUDGET, 1.0).kept


# --- the budget ---


def test_frequencies_are_exact(index: Index) -> None:
    """Counted to the end, common or not; a term that is nowhere has none."""
    assert planned(index, QUESTION).frequencies == OCCUR | {"nowher": 0}


@given(budget=st.integers(0, 2 * ROWS), share=st.floats(0, 1))
def test_the_budget_is_kept(index: Index, budget: int, share: float) -> None:
    """The rarest terms whose rows fit; one more would not have. Stepping over a row costs as if a quarter were read."""
    asked = planned(index, QUESTION)
    spending = asked.spend(budget, share)
    left = max(share, 0.25)
    spent = sum(left * OCCUR[term] for term in spending.kept)
    assert spent <= budget
    assert [*spending.kept, *spending.dropped] == sorted(OCCUR, key=OCCUR.__getitem__)
    assert spending.left == pytest.approx((budget - spent) * share / left, abs=1)
    if spending.dropped:
        assert spent + left * OCCUR[spending.dropped[0]] > budget


def test_what_is_nowhere_is_not_kept(index: Index) -> None:
    """Nothing to read."""
    assert planned(index, "nowhere nothing noplace").spend(10, 1.0) == ((), (), 10)


def test_the_terms_of_a_question_are_bounded(index: Index) -> None:
    """A question of thousands of words is looked up by its first QUERY_TERMS_MAX terms."""
    asked = planned(index, "rarity " + " ".join(f"word{number}" for number in range(3_000)))
    assert len(asked.frequencies) <= limits.QUERY_TERMS_MAX
    assert kept(asked) == ("rariti",)


def test_a_common_question_finds_what_holds_its_terms_together(
    reading: ReadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the budget the rows that hold several of the terms are found all the same, however old."""
    monkeypatch.setattr(limits, "POSTINGS_BUDGET", 100)
    found = ask(reading, "every second tenth", k=10)
    assert len(found) == 10
    assert all({"every", "second", "tenth"} <= set(memory.text.split()) for memory in found)
    assert all("rarity" in memory.text for memory in ask(reading, "every second rarity", k=2))


def test_a_single_common_term_finds_its_newest_rows(reading: ReadingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other term to meet it with: some of the newest rows that hold it, as many as were asked for."""
    monkeypatch.setattr(limits, "POSTINGS_BUDGET", 100)
    found = [int(memory.id.split(":")[1]) for memory in ask(reading, "every", k=10)]
    assert len(found) == 10
    assert min(found) > ROWS - 500


# --- filters and crowds hide nothing ---

OTHERS = """
INSERT INTO memory_longterm(agent, fact, created_at)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
SELECT '{agent}', '{fact} ' || i, {at} + i FROM n
"""


@pytest.fixture
def narrowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds so small that a few hundred rows are many."""
    monkeypatch.setattr(limits, "NARROW_ROWS_MAX", 20)
    monkeypatch.setattr(limits, "POSTINGS_BUDGET", 60)


def crowded(tmp_path: Path, *statements: str) -> tuple[WritingStore, ReadingStore]:
    """A store with these rows, followed to their end."""
    paths = Paths(fresh_database(tmp_path))
    for statement in statements:
        rows(paths.database, statement)
    store = WritingStore(paths)
    while not store.catch_up():
        pass
    return store, ReadingStore(paths)


@pytest.mark.usefixtures("narrowed")
@pytest.mark.parametrize(
    "filters",
    [{"scope": "own"}, {"until": "1970-01-01T00:03:20Z"}, {"scope": "own", "until": "1970-01-01T00:05:00Z"}],
    ids=["author", "time", "both"],
)
def test_old_rows_that_filters_leave_are_found_behind_a_crowd(tmp_path: Path, filters: dict[str, str]) -> None:
    """The common word is everybody's; of the rows that the filter leaves, only the oldest few hold it."""
    store, reading = crowded(
        tmp_path,
        OTHERS.format(count=5, agent="mira", fact="deploy the okapi", at=0),
        OTHERS.format(count=100, agent="mira", fact="nothing of the kind", at=100),
        OTHERS.format(count=400, agent="sol", fact="deploy the zebra", at=1_000),
    )
    with contextlib.closing(store), contextlib.closing(reading):
        found = ask(reading, "deploy", "mira", k=10, **filters)
        assert sorted(memory.text for memory in found) == [f"deploy the okapi {number}" for number in range(1, 6)]


def test_sentence_repeated_a_hundred_times_leaves_room_for_others(tmp_path: Path) -> None:
    """The short sentence is better by its length; it takes one place of k, however often it was written."""
    repeated = OTHERS.format(count=400, agent="sol", fact="deploy done", at=0).replace(" ' || i,", "',")
    others = OTHERS.format(count=20, agent="mira", fact="how we deploy the many relays of the lab on number", at=0)
    store, reading = crowded(tmp_path, repeated, others)
    with contextlib.closing(store), contextlib.closing(reading):
        found = ask(reading, "deploy", k=5)
        assert len(found) == 5
        assert len({memory.text for memory in found}) == 5


# --- prefixes ---


def test_the_beginning_of_an_identifier_with_digits_is_met_by_it(index: Index, reading: ReadingStore) -> None:
    """`INC7100` stands for the identifiers that begin so, ten of them at most."""
    asked = planned(index, "INC7100")
    (clause,) = asked.clauses
    assert clause.terms == {f"inc7100{digit}" for digit in range(10)}
    assert set(kept(asked)) == clause.terms
    assert {memory.text.split()[-1] for memory in ask(reading, "INC7100", k=20)} == {
        f"INC7100{digit}" for digit in range(10)
    }
    (wide,) = planned(index, "INC71").clauses
    assert len(wide.terms) == 10


def test_a_prefix_takes_part_among_other_words(index: Index) -> None:
    """In a sentence likewise; the other words are as they are."""
    asked = planned(index, "tenth INC7100")
    assert kept(asked)[-1] == "tenth"
    assert set(kept(asked)[:-1]) == {f"inc7100{digit}" for digit in range(10)}


@pytest.mark.parametrize("question", ["rarit", "hundred", "INC7", "INC71000", "INC71000x", "seco-INC7"])
def test_nothing_else_is_a_prefix(index: Index, question: str) -> None:
    """No words, nothing shorter than five characters, no whole identifier, none that is nowhere, no compound."""
    assert planned(index, question).clauses == tuple(clauses_of(question))


# --- what is remembered ---


class Counting:
    """An index whose expensive counts are counted."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self.counted: list[str] = []
        """Terms whose postings were counted to the end."""
        self.looked_at: list[str] = []
        """Expressions whose postings were counted up to a bound."""

    def postings(self, tier: str, expression: str, at_most: int) -> int:
        """As the index does."""
        self.looked_at.append(expression)
        return self._index.postings(tier, expression, at_most)  # type: ignore[arg-type]

    def frequency(self, tier: str, term: str) -> int:
        """As the index does."""
        self.counted.append(term)
        return self._index.frequency(tier, term)  # type: ignore[arg-type]


def test_common_terms_are_counted_once(index: Index) -> None:
    """To the end once, and then remembered: 3 ms each."""
    counting = Counting(index)
    known = Frequencies(counting, "long")  # type: ignore[arg-type]
    for _ in range(3):
        assert known.of(["everi", "second"], ROWS) == {"everi": ROWS, "second": ROWS // 2}
    assert counting.counted == ["everi", "second"]
    assert counting.looked_at == ['"everi"', '"second"']


def test_common_terms_are_counted_again_when_the_tier_has_grown_by_a_tenth(index: Index) -> None:
    """Not before."""
    counting = Counting(index)
    known = Frequencies(counting, "long")  # type: ignore[arg-type]
    for documents in (ROWS, int(ROWS * 1.09), int(ROWS * 1.11), int(ROWS * 1.2)):
        known.of(["everi"], documents)
    assert counting.counted == ["everi"] * 2


def test_rare_terms_are_remembered_until_the_index_changes(index: Index, store: WritingStore) -> None:
    """What was nowhere a moment ago is in the row just written; a searcher looks at the index's version."""
    known = Frequencies(index, "long")
    assert known.of(["newcom", "tenth"], ROWS) == {"newcom": 0, "tenth": ROWS // 10}
    before = index.version()
    one(store, fact("mira", "a newcomer"))
    assert known.of(["newcom"], ROWS) == {"newcom": 0}
    assert index.version() != before
    known.forget_rare()
    assert known.of(["newcom"], ROWS) == {"newcom": 1}


def test_a_reader_that_knows_common_terms_finds_the_row_just_written(
    reading: ReadingStore, store: WritingStore
) -> None:
    """The same through a recall."""
    assert ask(reading, "every latecomer")[0].text.startswith("every")
    one(store, fact("mira", "every latecomer is here"))
    assert ask(reading, "every latecomer")[0].text == "every latecomer is here"
