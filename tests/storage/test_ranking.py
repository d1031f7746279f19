"""The ranking, rule by rule, on small stores: share, neighbours, sessions, authors, age, and what explains a score."""

from typing import Any

import pytest

from storage.paths import Paths
from storage.reading import ReadingStore
from storage.search import ranking
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.writes import ask, episode, fact, one
from tests.support import rows

NEAR = 2e-3
"""Parts are shown with four digits."""


def explained(reading: ReadingStore, q: str, **fields: Any) -> dict[str, dict[str, float]]:
    """The parts of each result's score by its text, best first."""
    return {memory.text: memory.parts for memory in ask(reading, q, explain=True, k=50, **fields)}


def filled(store: WritingStore, count: int = 12) -> None:
    """Rows without a word that is asked for: in a store of two rows every word is common."""
    for number in range(count):
        one(store, fact("swarm-5", f"padding of the shelf {number}"))


# --- what a question has, what a row has of it ---


def test_parts_are_shown_only_when_asked_for(store: WritingStore, reading: ReadingStore) -> None:
    """Without `explain` there are none."""
    one(store, fact("mira", "a zebra"))
    assert ask(reading, "zebra")[0].parts is None
    assert ask(reading, "zebra", explain=True)[0].parts is not None


def test_the_parts_make_up_the_score(store: WritingStore, reading: ReadingStore) -> None:
    """The score is their sum; `matched` stands beside them: the part of the question that the row has."""
    filled(store)
    for number in range(3):
        one(store, episode("mira", f"the zebra and okapi went {number}", session="s"))
    for memory in ask(reading, "mira saw a zebra", explain=True):
        parts = dict(memory.parts)
        assert 0 <= parts.pop("matched") <= 1
        assert set(parts) <= {"bm25", "share", "lift", "agent", "session"}
        assert memory.score == pytest.approx(sum(parts.values()), rel=NEAR)


def test_who_has_more_of_the_question_is_lifted(store: WritingStore, reading: ReadingStore) -> None:
    """SHARE of a row's own score, times the part of the question's clauses that it has."""
    filled(store)
    one(store, fact("mira", "zebra okapi quagga lemur"))
    one(store, fact("mira", "zebra okapi bongo gnus"))
    parts = explained(reading, "zebra okapi quagga lemur")
    for text, matched in (("zebra okapi quagga lemur", 1.0), ("zebra okapi bongo gnus", 0.5)):
        assert parts[text]["matched"] == matched
        assert parts[text]["share"] == pytest.approx(ranking.SHARE * matched * parts[text]["bm25"], rel=NEAR)
    assert [*parts] == ["zebra okapi quagga lemur", "zebra okapi bongo gnus"]


def test_rare_words_tell_more_than_common_ones(store: WritingStore, reading: ReadingStore) -> None:
    """Of two rows with one word each, the one with the rarer word is first."""
    filled(store)
    for number in range(6):
        one(store, fact("mira", f"zebra number{number}"))
    one(store, fact("mira", "okapi number9"))
    assert ask(reading, "zebra okapi")[0].text == "okapi number9"


def test_a_short_row_tells_more_than_a_long_one(store: WritingStore, reading: ReadingStore) -> None:
    """The same word among fewer others."""
    filled(store)
    one(store, fact("mira", "a zebra among " + "many more words of no account " * 10))
    one(store, fact("mira", "a zebra alone"))
    one(store, fact("mira", "a zebra between " + "many more words of no account " * 10))
    assert ask(reading, "zebra")[0].text == "a zebra alone"


def test_one_half_of_an_identifier_is_no_answer(store: WritingStore, reading: ReadingStore) -> None:
    """`busy_timeout` is not asked of rows that are merely busy."""
    one(store, fact("mira", "the busy street"))
    one(store, fact("mira", "the busy street has a timeout"))
    one(store, fact("mira", "busy_timeout is 5000"))
    assert {memory.id for memory in ask(reading, "busy_timeout")} == {"long:2", "long:3"}
    assert ask(reading, "busy_timeout")[0].id == "long:3"


def test_newer_first_among_equals(store: WritingStore, reading: ReadingStore, clock: Clock, paths: Paths) -> None:
    """Age decides where nothing else does, whatever the order of the ids."""
    for number in (2, 0, 1):
        at_s = clock.now_s - number * 86_400
        insert = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('mira', ?, ?)"
        rows(paths.database, insert, f"zebra day{number}", at_s)
    store.catch_up()
    assert [memory.text for memory in ask(reading, "zebra")] == ["zebra day0", "zebra day1", "zebra day2"]


def test_a_named_author_is_preferred(store: WritingStore, reading: ReadingStore) -> None:
    """AGENT_BONUS for the rows of whoever the question names, and for nobody else's."""
    filled(store)
    one(store, fact("mira", "the zebra sleeps at noon"))
    one(store, fact("ace", "the zebra sleeps at nine"))
    parts = explained(reading, "what does Mira know of the zebra")
    assert next(iter(parts)) == "the zebra sleeps at noon"
    assert parts["the zebra sleeps at noon"]["agent"] == ranking.AGENT_BONUS
    assert "agent" not in parts["the zebra sleeps at nine"]
    assert all("agent" not in of_one for of_one in explained(reading, "zebra sleeps").values())


# --- sessions ---

TALK = ("hello there", "the quokka is ill", "so what now", "call the vet", "bye")


def talk(store: WritingStore, session: str | None, extra: str = "") -> None:
    """Five episodes in a row."""
    for line in TALK:
        one(store, episode("mira", f"{line}{extra}", session=session))


def test_neighbours_in_the_session_are_lifted(store: WritingStore, reading: ReadingStore) -> None:
    """The rows before and after a hit come with it, by LIFT of its score; those further away do not."""
    filled(store)
    talk(store, "a talk")
    parts = explained(reading, "quokka")
    assert next(iter(parts)) == "the quokka is ill"
    assert set(parts) == {"the quokka is ill", "hello there", "so what now"}
    hit = parts["the quokka is ill"]
    for neighbour in ("hello there", "so what now"):
        assert parts[neighbour]["lift"] == pytest.approx(ranking.LIFT * (hit["bm25"] + hit["share"]), rel=NEAR)
        assert parts[neighbour]["matched"] == 0


def test_each_row_of_a_session_has_a_part_of_its_best(store: WritingStore, reading: ReadingStore) -> None:
    """SESSION_BEST of the highest score in it, without that part."""
    filled(store)
    talk(store, "a talk")
    parts = explained(reading, "quokka")
    best = parts["the quokka is ill"]["bm25"] + parts["the quokka is ill"]["share"]
    for of_one in parts.values():
        assert of_one["session"] == pytest.approx(ranking.SESSION_BEST * best, rel=NEAR)


def test_two_neighbours_lift_twice(store: WritingStore, reading: ReadingStore) -> None:
    """A row between two hits has a part of both."""
    filled(store)
    for line in ("the quokka is ill", "between them", "the quokka is well"):
        one(store, episode("mira", line, session="s"))
    parts = explained(reading, "quokka")
    lifts = [parts[line]["bm25"] + parts[line]["share"] for line in ("the quokka is ill", "the quokka is well")]
    assert parts["between them"]["lift"] == pytest.approx(ranking.LIFT * sum(lifts), rel=NEAR)


def test_a_row_without_a_session_has_no_neighbours(store: WritingStore, reading: ReadingStore) -> None:
    """Rows that only follow each other in the table have nothing to do with each other."""
    talk(store, None)
    assert {*explained(reading, "quokka")} == {"the quokka is ill"}


def test_sessions_do_not_meet(store: WritingStore, reading: ReadingStore) -> None:
    """Two talks at the same time, line by line in turn: neighbours are those of the own talk."""
    for line in TALK:
        one(store, episode("mira", line, session="one"))
        one(store, episode("sol", f"another talk {line[:2]}", session="two"))
    assert {*explained(reading, "quokka")} == {"the quokka is ill", "hello there", "so what now"}


def test_sessions_of_two_tiers_do_not_meet(store: WritingStore, reading: ReadingStore) -> None:
    """Facts and episodes of one session are not neighbours: their ids have no common order."""
    one(store, fact("mira", "the quokka is ill", session="s"))
    one(store, episode("mira", "unrelated", session="s"))
    assert {*explained(reading, "quokka")} == {"the quokka is ill"}


def test_neighbours_pass_the_filters_too(store: WritingStore, reading: ReadingStore) -> None:
    """A neighbour of another author is no result of scope=own, and one of another topic none of that topic."""
    one(store, episode("sol", "before it", session="s", event_type="other"))
    one(store, episode("mira", "the quokka is ill", session="s", event_type="health"))
    one(store, episode("sol", "after it", session="s", event_type="other"))
    assert len(ask(reading, "quokka")) == 3
    assert [memory.text for memory in ask(reading, "quokka", "mira", scope="own")] == ["the quokka is ill"]
    assert [memory.text for memory in ask(reading, "quokka", topic="health")] == ["the quokka is ill"]


def test_neighbours_pass_the_filters_of_facts_too(store: WritingStore, reading: ReadingStore, clock: Clock) -> None:
    """Tags and time likewise."""
    one(store, fact("sol", "before it", session="s", tags=("other",)))
    clock.now_s += 2 * 86_400
    one(store, fact("mira", "the quokka is ill", session="s", tags=("health",)))
    clock.now_s += 2 * 86_400
    one(store, fact("sol", "after it", session="s", tags=("other",)))
    assert len(ask(reading, "quokka")) == 3
    assert [memory.text for memory in ask(reading, "quokka", tags=("health",))] == ["the quokka is ill"]
    assert {memory.text for memory in ask(reading, "quokka", since="-3d")} == {"the quokka is ill", "after it"}
    assert {memory.text for memory in ask(reading, "quokka", until="-1d")} == {"the quokka is ill", "before it"}


def test_neighbours_alone_are_no_match(store: WritingStore, reading: ReadingStore) -> None:
    """Where no row has any word, nothing is lifted."""
    talk(store, "a talk")
    assert ask(reading, "wombat") == []


# --- where a session is kept ---


def test_sessions_without_a_column_are_kept_in_state_db(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    """They outlive the index, which may be deleted at any time."""
    talk(store, "a talk")
    columns = [name for (name,) in rows(paths.database, "SELECT name FROM pragma_table_info('memory_episodic')")]
    assert "session" not in columns
    kept = rows(paths.state, "SELECT tier, row, session FROM sessions ORDER BY row")
    assert kept == [("episodic", row, "a talk") for row in range(1, 6)]
    before = explained(reading, "quokka")
    store.remake_index()
    assert store.catch_up()
    assert explained(reading, "quokka") == before
    assert len(before) == 3


@pytest.mark.parametrize("column", ["session", "session_id"])
def test_sessions_go_into_the_column_that_is_there(paths: Paths, clock: Clock, column: str) -> None:
    """The table's own column is used for ours, and read where others have written it; state.db has none of them."""
    rows(paths.database, f"ALTER TABLE memory_episodic ADD COLUMN {column} TEXT")
    store = WritingStore(paths, clock=clock)
    talk(store, "a talk")
    stored = rows(paths.database, f"SELECT DISTINCT {column} FROM memory_episodic")
    assert stored == [("a talk",)]
    assert rows(paths.state, "SELECT count(*) FROM sessions") == [(0,)]
    insert = f"INSERT INTO memory_episodic(agent, summary, created_at, {column}) VALUES ('ace', ?, 1, 'theirs')"
    for line in ("a foreign wombat", "and what came after it"):
        rows(paths.database, insert, line)
    store.catch_up()
    reading = ReadingStore(paths, clock=clock)
    assert {*explained(reading, "quokka")} == {"the quokka is ill", "hello there", "so what now"}
    assert {*explained(reading, "wombat")} == {"a foreign wombat", "and what came after it"}
    reading.close()
    store.close()


def test_a_session_is_void_once_its_row_is_another_one(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    """The id of a deleted row is used again: the new row belongs to no session."""
    one(store, episode("mira", "the quokka is ill", session="s"))
    one(store, episode("mira", "the last line", session="s"))
    rows(paths.database, "DELETE FROM memory_episodic WHERE id = 2")
    rows(paths.database, "INSERT INTO memory_episodic(id, agent, summary, created_at) VALUES (2, 'ace', 'strange', 1)")
    store.catch_up()
    store.refresh([("episodic", 2)])
    assert {*explained(reading, "quokka")} == {"the quokka is ill"}
    store.remake_index()
    store.catch_up()
    assert {*explained(reading, "quokka")} == {"the quokka is ill"}


# --- the same sentence by several authors ---


def test_one_sentence_of_several_authors_is_one_result(
    store: WritingStore, reading: ReadingStore, clock: Clock
) -> None:
    """The first author's row, and who else wrote it, and when."""
    made = []
    for agent in ("atlas", "mira", "sol"):
        made.append(one(store, fact(agent, "the bridge opens at dawn")))
        clock.now_s += 60
    (found,) = ask(reading, "bridge")
    assert (found.id, found.agent) == (made[0].id, "atlas")
    assert [(also.agent, also.id, also.created_at) for also in sorted(found.also, key=lambda also: also.id)] == [
        (written.agent, written.id, written.created_at) for written in made[1:]
    ]


def test_the_first_author_is_the_one_who_wrote_first(
    store: WritingStore, reading: ReadingStore, paths: Paths, clock: Clock
) -> None:
    """By time and not by id."""
    one(store, fact("mira", "the bridge opens at dawn"))
    insert = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'the bridge opens at dawn', ?)"
    rows(paths.database, insert, clock.now_s - 3_600)
    store.catch_up()
    (found,) = ask(reading, "bridge")
    assert (found.agent, [also.agent for also in found.also]) == ("ace", ["mira"])


def test_scope_own_names_no_other_author(store: WritingStore, reading: ReadingStore) -> None:
    """Each sees his own row by itself."""
    for agent in ("atlas", "mira"):
        one(store, fact(agent, "the bridge opens at dawn"))
    for agent in ("atlas", "mira"):
        (found,) = ask(reading, "bridge", agent, scope="own")
        assert (found.agent, found.also) == (agent, ())


def test_an_author_whose_row_is_gone_is_not_named(store: WritingStore, reading: ReadingStore, paths: Paths) -> None:
    """Deleted a moment ago by another process: neither as author nor beside."""
    for agent in ("atlas", "mira", "sol"):
        one(store, fact(agent, "the bridge opens at dawn"))
    rows(paths.database, "DELETE FROM memory_longterm WHERE agent IN ('atlas', 'sol')")
    (found,) = ask(reading, "bridge")
    assert (found.agent, found.also) == ("mira", ())


def test_the_same_sentence_takes_one_slot(store: WritingStore, reading: ReadingStore) -> None:
    """Ten authors of one sentence do not push another fact out of a k of two."""
    for agent in ("sol", "mira", "atlas", "ace", "main", "all", "or", "not"):
        one(store, fact(agent, "the bridge opens at dawn"))
    one(store, fact("mira", "the bridge is closed for the whole of the winter season"))
    assert len(ask(reading, "bridge", k=2)) == 2


def test_sentences_that_differ_are_two_results(store: WritingStore, reading: ReadingStore) -> None:
    """In one letter, in their case or in their tier."""
    one(store, fact("mira", "the bridge opens at dawn"))
    one(store, fact("sol", "The bridge opens at dawn"))
    one(store, episode("sol", "the bridge opens at dawn"))
    assert len(ask(reading, "bridge")) == 3
