"""Recall on the stores: the table is the truth, the index only proposes."""

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import limits
from storage.errors import Forbidden, InvalidRequest, NotFound, UnknownAgent
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.rows import Row
from storage.schema import create_fresh
from storage.search.text import clauses_of, match_all, match_any
from storage.writing import WritingStore
from tests.storage.conftest import Clock
from tests.storage.writes import ask, episode, fact, one, short
from tests.support import rows


def test_a_row_is_found_right_after_its_write(store: WritingStore, reading: ReadingStore) -> None:
    one(store, fact("mira", "the zebra sleeps", topic="zoo", source="atlas", confidence=0.5, tags=("a", "b")))
    (found,) = ask(reading, "zebra")
    assert (found.id, found.agent, found.topic, found.source, found.confidence, found.tags) == (
        "long:1", "mira", "zoo", "atlas", 0.5, ("a", "b"),
    )  # fmt: skip


def test_rows_that_others_insert_are_seen_as_a_lag_and_then_found(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    assert store.catch_up()
    assert reading.index_lag() is None
    rows(paths.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'a foreign okapi', 1)")
    assert reading.index_lag() == "index_behind"
    assert store.catch_up()
    assert reading.index_lag() is None
    assert ask(reading, "okapi")[0].agent == "sol"


def test_a_foreign_row_whose_tags_name_a_lone_surrogate_stops_nobody(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    """JSON may name what UTF-8 cannot hold: the index stopped at such a row, and all later ones were unfound."""
    insert = "INSERT INTO memory_longterm(agent, fact, tags, created_at) VALUES ('sol', ?, ?, 1)"
    rows(paths.database, insert, "a tagged okapi", '["\\ud800", "striped", {"\\udfff": 1}]')
    rows(paths.database, insert, "a later okapi", None)
    assert store.catch_up()
    assert store.index_error is None
    assert {memory.text for memory in ask(reading, "okapi")} == {"a tagged okapi", "a later okapi"}
    assert ask(reading, "okapi", tags=("striped",))[0].text == "a tagged okapi"


def test_a_foreign_row_before_ours_is_not_skipped(store: WritingStore, reading: ReadingStore, paths: Paths) -> None:
    rows(paths.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'a foreign okapi', 1)")
    one(store, fact("mira", "our zebra"))
    assert len(ask(reading, "okapi")) == len(ask(reading, "zebra")) == 1


def test_changed_and_deleted_rows_are_never_shown_stale(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    store.apply([fact("mira", "old zebra"), fact("mira", "gone zebra")])
    rows(paths.database, "UPDATE memory_longterm SET fact = 'new okapi' WHERE id = 1")
    rows(paths.database, "DELETE FROM memory_longterm WHERE id = 2")
    assert ask(reading, "zebra") == []
    store.refresh([("long", 1), ("long", 2)])
    assert [found.text for found in ask(reading, "okapi")] == ["new okapi"]
    assert ask(reading, "gone") == []


def test_scope_own_shows_only_the_callers_rows(store: WritingStore, reading: ReadingStore) -> None:
    store.apply([fact("mira", "zebra one"), fact("sol", "zebra two")])
    assert [found.agent for found in ask(reading, "zebra", "sol", scope="own")] == ["sol"]
    assert len(ask(reading, "zebra", "sol")) == 2


def test_tags_topic_and_time_narrow(store: WritingStore, reading: ReadingStore, clock: Clock) -> None:
    one(store, fact("mira", "zebra one", topic="zoo", tags=("testing", "a")))
    clock.now_s += 86_400 * 3
    one(store, fact("mira", "zebra two", topic="park", tags=("test", "a")))
    one(store, episode("mira", "zebra three", event_type="park"))
    assert [found.text for found in ask(reading, "zebra", tags=("test",))] == ["zebra two"]
    assert {found.text for found in ask(reading, "zebra", topic="park")} == {"zebra two", "zebra three"}
    assert {found.text for found in ask(reading, "zebra", since="-1d")} == {"zebra two", "zebra three"}
    assert {found.text for found in ask(reading, "zebra", until="-1d")} == {"zebra one"}
    with pytest.raises(InvalidRequest, match="since: unrecognised date 'last week'"):
        ask(reading, "zebra", since="last week")


def test_short_rows_are_recalled_only_when_asked(store: WritingStore, reading: ReadingStore) -> None:
    one(store, short("mira", "colour", "a striped zebra"))
    assert ask(reading, "zebra") == []
    assert ask(reading, "zebra", tiers=("short",))[0].key == "colour"
    assert ask(reading, "zebra", "sol", tiers=("short",), scope="own") == []


def test_a_persona_is_its_owners_alone(reading: ReadingStore) -> None:
    (own,) = ask(reading, "calm", "mira", tiers=("durable",))
    assert (own.agent, own.key) == ("mira", "persona/mira")
    assert [found.agent for found in ask(reading, "calm", "sol", tiers=("durable",))] == ["sol"]
    with pytest.raises(Forbidden):
        ask(reading, "persona/mira", "sol", tiers=("durable",))
    assert ask(reading, "persona/mira", "mira", tiers=("durable",))
    with pytest.raises(Forbidden):
        reading.memory(agent="sol", tier="durable", row=2, scope="shared")
    assert reading.memory(agent="mira", tier="durable", row=2, scope="own").text.startswith("mira is calm")
    with pytest.raises(NotFound):
        reading.memory(agent="mira", tier="durable", row=99, scope="own")


def test_punctuation_alone_finds_nothing(store: WritingStore, reading: ReadingStore) -> None:
    one(store, fact("mira", "zebra"))
    for q in ("???", "*", '"', "()", "AND", "zebra AND", 'NEAR("zebra"', "-zebra", "{zebra}"):
        found = ask(reading, q)
        assert bool(found) == ("zebra" in q)


@given(st.text(min_size=1, max_size=60))
@settings(max_examples=300, deadline=None)
def test_no_question_is_a_syntax_error(q: str) -> None:
    """Each term is quoted: whatever it is made of, FTS5 takes it as words."""
    terms = sorted({term for unit in clauses_of(q) for term in unit.terms})
    with closing(apsw.Connection(":memory:")) as db:
        db.execute("CREATE VIRTUAL TABLE f USING fts5(text)")
        for expression in (match_any(terms), match_all(terms)) if terms else ():
            assert list(db.execute("SELECT rowid FROM f WHERE f MATCH ?", (expression,))) == []


def test_relaxed_says_that_some_words_were_enough(store: WritingStore, reading: ReadingStore) -> None:
    from storage.recalling import Question

    one(store, fact("mira", "the gateway listens on 18789"))

    def relaxed(q: str) -> bool:
        question = Question(
            agent="sol", q=q, k=5, scope="shared", tiers=("long",), topic=None, tags=(), since=None, until=None,
            full=False, explain=False,
        )  # fmt: skip
        return reading.recall(question, None).recalled.relaxed

    assert relaxed("remember the port of the hermes gateway")
    assert not relaxed("gateway listens")


def test_legacy_rows_are_shown_as_they_are(store: WritingStore, reading: ReadingStore, paths: Paths) -> None:
    insert = "INSERT INTO memory_longterm(agent, fact, confidence, tags, created_at, embedding) VALUES (?,?,?,?,?,?)"
    rows(paths.database, insert, "sol", "zebra a", 5, "not json{", "2026-01-01", b"\x00")
    rows(paths.database, insert, "sol", "zebra b", "high", "x, y", 1_767_225_600_000, None)
    rows(paths.database, insert, "sol", b"zebra \xff c", None, None, None, None)
    store.catch_up()
    found = {memory.text: memory for memory in ask(reading, "zebra")}
    assert len(found) == 3
    assert (found["zebra a"].confidence, found["zebra a"].tags) == (5, ("not json{",))
    assert (found["zebra b"].confidence, found["zebra b"].tags) == ("high", ("x", "y"))
    assert found["zebra a"].created_at == found["zebra b"].created_at == "2026-01-01T00:00:00.000Z"
    assert found["zebra � c"].created_at is None


def test_text_that_is_no_utf8_hides_no_row_and_stops_nothing(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    bad = "CAST(X'7a65627261ff69' AS TEXT)"
    rows(
        paths.database,
        f"INSERT INTO memory_longterm(agent, fact, topic, created_at) VALUES ('sol', {bad}, {bad}, {bad})",
    )
    rows(paths.database, f"INSERT INTO memory_short(agent, key, value, created_at) VALUES ('sol', {bad}, {bad}, 1)")
    rows(paths.database, f"INSERT INTO agent_registry(agent_id) VALUES ({bad})")
    assert one(store, fact("mira", "a zebra after it")).degraded_reasons == ()
    assert {memory.text for memory in ask(reading, "zebra")} == {"a zebra after it", "zebra\ufffdi"}
    assert reading.memory(agent="mira", tier="long", row=1, scope="shared").topic == "zebra\ufffdi"
    (entry,) = reading.short(agent="sol", owner=None, key=None, after=None, limit=5, scope="own").entries
    assert entry.value == "zebra\ufffdi"
    with pytest.raises(UnknownAgent):
        one(store, fact("zebra"))


def test_a_utf16_database_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "wide.db"
    with closing(apsw.Connection(str(path))) as db:
        db.execute("PRAGMA encoding = 'UTF-16le'")
        create_fresh(db, ["mira"], 1.0)
    store = WritingStore(Paths(path))
    one(store, fact("mira", "das Müller-Zebra 斑马"))
    reading = ReadingStore(Paths(path))
    assert ask(reading, "Müller")[0].text == "das Müller-Zebra 斑马"
    reading.close()
    store.close()


def test_numbers_that_json_cannot_hold_are_shown_as_text(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    rows(paths.database, "INSERT INTO memory_longterm(agent, fact, confidence) VALUES ('sol', 'zebra', 9e999)")
    store.catch_up()
    assert ask(reading, "zebra")[0].confidence == "inf"


def test_the_first_author_of_a_sentence_is_the_oldest_and_the_others_are_named(
    store: WritingStore, reading: ReadingStore, paths: Paths
) -> None:
    """A row without a readable time is no older than one with it."""
    insert = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES (?, 'the zebra sleeps', ?)"
    for agent, at in (("mira", None), ("sol", 1_700_000_000.0), ("atlas", 1_710_000_000.0)):
        rows(paths.database, insert, agent, at)
    store.catch_up()
    (found,) = ask(reading, "zebra")
    assert (found.agent, [other.agent for other in found.also]) == ("sol", ["atlas", "mira"])
    assert ask(reading, "zebra", "mira", scope="own")[0].also == ()


def test_other_texts_with_the_same_hash_stay_apart(
    store: WritingStore, reading: ReadingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Row, "sentence", 1)
    store.apply([fact("mira", "the zebra sleeps"), fact("sol", "the zebra runs")])
    assert {found.agent for found in ask(reading, "zebra")} == {"mira", "sol"}


def test_all_words_beat_one_word_in_a_smaller_tier(store: WritingStore, reading: ReadingStore) -> None:
    """The tiers of one question compete by one measure: terms are as rare as they are in all of them."""
    store.apply(
        [fact("mira", f"The pump is {colour}.") for colour in ("blue", "red", "green", "grey", "white", "black")]
    )
    one(store, episode("mira", "Replaced the pump seal in hall nine with part X77."))
    assert ask(reading, "pump seal X77", k=1)[0].tier == "episodic"


def test_previews_shrink_with_their_number_and_full_does_not(store: WritingStore, reading: ReadingStore) -> None:
    store.apply([fact("mira", f"zebra {n} " + "long " * 1000) for n in range(20)])
    few, many, full = (ask(reading, "zebra", k=k, full=whole) for k, whole in ((2, False), (20, False), (2, True)))
    assert all(memory.cut for memory in few + many)
    assert max(len(memory.text) for memory in many) < max(len(memory.text) for memory in few) <= 600
    assert all(not memory.cut and len(memory.text) > 5000 for memory in full)


def test_an_index_that_is_gone_is_made_anew(store: WritingStore, reading: ReadingStore, paths: Paths) -> None:
    one(store, fact("mira", "the zebra sleeps"))
    for suffix in ("", "-wal", "-shm"):
        paths.index.with_name(paths.index.name + suffix).unlink(missing_ok=True)
    assert reading.index_lag() is not None
    assert store.catch_up()
    assert ask(reading, "zebra")


def test_a_damaged_index_file_is_rebuilt_at_start(paths: Paths, clock: Clock) -> None:
    store = WritingStore(paths, clock=clock)
    one(store, fact("mira", "the zebra sleeps"))
    store.close()
    paths.index.write_bytes(b"nonsense" * 100)
    again = WritingStore(paths, clock=clock)
    assert again.report.index_rebuilt
    assert again.catch_up()
    reading = ReadingStore(paths, clock=clock)
    assert ask(reading, "zebra")
    reading.close()
    again.close()


def test_a_failed_index_never_fails_the_write(
    store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(rows: object, marks: object) -> None:
        raise apsw.FullError("no room")

    with monkeypatch.context() as patched:
        patched.setattr(store._index, "follow", broken)
        written = one(store, fact("mira", "the zebra sleeps"))
    assert written.degraded_reasons == ("index_behind",)
    assert store.index_error is not None
    assert store.catch_up()
    assert store.index_error is None


def test_copy_of_the_folder_is_not_needed_for_a_backup(store: WritingStore, paths: Paths) -> None:
    """The cache may be deleted at any time: it costs a rebuild, never a memory."""
    one(store, fact("mira", "the zebra sleeps"))
    shutil.rmtree(paths.cache)
    paths.cache.mkdir()
    assert store.catch_up()
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(1,)]


def test_an_agent_s_own_rows_may_be_left_out_however_many_they_are(store: WritingStore, reading: ReadingStore) -> None:
    store.apply([fact("sol", f"zebra zebra zebra {number}") for number in range(limits.POOL_ROWS + 50)])
    one(store, fact("mira", "a zebra among many other animals of the plain"))
    assert [found.agent for found in ask(reading, "zebra", "sol", without="sol")] == ["mira"]
    assert {found.agent for found in ask(reading, "zebra", "sol")} == {"sol"}
    assert len(ask(reading, "zebra", "sol", without="nobody")) == 5
