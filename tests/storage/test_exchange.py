"""Export and import: canonical lines, the same bytes after a round trip, each row as its line says or not at all."""

import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from storage.copies import exporting
from storage.copies.exchange import line_of, parse_line
from storage.copies.exporting import export, export_file
from storage.copies.importing import LINE_BYTES_MAX, Tally, import_lines
from storage.copies.odd_values import Instant, RawText, micros_of, rfc3339, stored_instant
from storage.errors import ConfigurationError, InvalidRequest, StorageBusy, StorageFull
from storage.paths import Paths
from storage.reading import ReadingStore
from storage.times import TimeForm
from storage.writing import WritingStore
from tests.storage.test_schema import LEGACY, legacy
from tests.storage.writes import ask, episode, fact, one, short
from tests.support import AGENTS, foreign_lock, fresh_database, rows

AT = "2026-11-30T12:00:00.000000Z"
PERSONA_LINE = {"tier": "durable", "agent": "sol", "created_at": AT, "key": "persona/sol", "value": "x"}


def exported(path: Path, *, durable: bool = False) -> bytes:
    """The bytes of an export."""
    written: list[bytes] = []
    result = export(Paths(path), written.append, durable=durable)
    assert result.lines == len(written)
    return b"".join(written)


def lines(content: bytes) -> list[dict[str, Any]]:
    """The lines of an export."""
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def jsonl(*given: dict[str, Any]) -> bytes:
    """Lines for an import."""
    return b"".join(json.dumps(line).encode() + b"\n" for line in given)


def long_line(**fields: Any) -> dict[str, Any]:
    """A line of a fact."""
    return {"tier": "long", "agent": "mira", "created_at": AT, "fact": "a fact"} | fields


@dataclass
class Imported:
    """How an import ended."""

    tally: Tally
    refused: dict[int, str] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Imported, already there, refused."""
        return self.tally.imported, self.tally.already_there, self.tally.refused


def imported(path: Path, content: bytes, progress: Callable[[Tally], None] = lambda tally: None) -> Imported:
    """Import some bytes, and look that the refusals that were told are those that were counted."""
    paths = Paths(path)
    paths.make_folders()
    refused: dict[int, str] = {}
    tally = import_lines(paths, io.BytesIO(content), refused=refused.__setitem__, progress=progress)
    assert tally.refused == len(refused)
    return Imported(tally, refused)


# --- lines ---


def test_export_has_the_fields_of_the_wire_and_no_row_ids(store: WritingStore, paths: Paths) -> None:
    one(store, short("mira", "k", "v", ttl_s=60.0, tags=("a", "b")))
    one(store, fact("mira", "text", topic="t", source="s", confidence=0.5, tags=("ü",), session="talk"))
    one(
        store,
        episode("sol", "did", details="more", outcome="success", duration_s=3.0, event_type="deploy", session="talk"),
    )
    assert sorted(lines(exported(paths.database)), key=lambda line: line["tier"], reverse=True) == [
        {
            "tier": "short",
            "agent": "mira",
            "created_at": "2026-05-28T20:26:40.000000Z",
            "expires_at": "2026-05-28T20:27:40.000000Z",
            "key": "k",
            "value": "v",
            "tags": ["a", "b"],
        },
        {
            "tier": "long",
            "agent": "mira",
            "created_at": "2026-05-28T20:26:40.000001Z",
            "topic": "t",
            "fact": "text",
            "source": "s",
            "confidence": 0.5,
            "tags": ["ü"],
            "session": "talk",
        },
        {
            "tier": "episodic",
            "agent": "sol",
            "created_at": "2026-05-28T20:26:40.000002Z",
            "event_type": "deploy",
            "summary": "did",
            "details": "more",
            "outcome": "success",
            "duration_s": 3,
            "session": "talk",
        },
    ]


def test_lines_are_ordered_by_time_author_and_text(database: Path) -> None:
    """Times in three forms, ties by text and then by the other fields; insertion order and ids are nothing."""
    made = [
        ("sol", "b", 1_700_000_000.5, "x"),
        ("mira", "z", 1_700_000_000_500, "x"),
        ("sol", "a!", "2023-11-14T22:13:20.5Z", "x"),
        ("sol", "a", 1_700_000_000.5, "y"),
        ("sol", "a", 1_700_000_000.5, "x"),
        ("sol", "Ä", 1_700_000_000.5, "x"),
        ("sol", "no time", None, "x"),
        ("sol", "early", 1.0, "x"),
    ]
    insert = "INSERT INTO memory_longterm(agent, fact, created_at, topic) VALUES (?, ?, ?, ?)"
    for row in made:
        rows(database, insert, *row)
    rows(database, "INSERT INTO memory_episodic(agent, summary, created_at) VALUES ('sol', 'a', 1700000000.5)")
    found = exported(database)
    assert [(line["agent"], line.get("fact", "episode"), line.get("topic")) for line in lines(found)] == [
        ("sol", "no time", "x"),
        ("sol", "early", "x"),
        ("mira", "z", "x"),
        ("sol", "episode", None),
        ("sol", "a", "x"),
        ("sol", "a", "y"),
        ("sol", "a!", "x"),
        ("sol", "b", "x"),
        ("sol", "Ä", "x"),
    ]
    other = fresh_database(database.parent, "other.db")
    for number, row in enumerate(reversed(made)):
        rows(other, insert.replace("(agent", "(id, agent").replace("(?", "(?, ?", 1), 900 + 7 * number, *row)
    rows(other, "INSERT INTO memory_episodic(id, agent, summary, created_at) VALUES (44, 'sol', 'a', 1700000000.5)")
    assert exported(other) == found


def test_durable_rows_are_exported_on_request_only(database: Path) -> None:
    assert exported(database) == b""
    assert [(line["tier"], line["agent"], line["key"]) for line in lines(exported(database, durable=True))] == [
        ("durable", "mira", "persona/mira"),
        ("durable", "sol", "persona/sol"),
    ]


def test_expired_rows_are_exported_until_they_are_purged(database: Path) -> None:
    WritingStore(Paths(database)).close()
    rows(database, "INSERT INTO memory_short(agent, key, value, created_at, expires_at) VALUES ('sol', 'k', 'v', 1, 2)")
    assert [line["expires_at"] for line in lines(exported(database))] == ["1970-01-01T00:00:02.000000Z"]


def test_columns_that_no_line_carries_are_named(database: Path) -> None:
    rows(database, "INSERT INTO memory_longterm(agent, fact, updated_at) VALUES ('sol', 'x', 1.7e9)")
    assert export(Paths(database), lambda line: None, durable=False).left_out == ()
    rows(database, "UPDATE memory_longterm SET embedding = x'00'")
    assert export(Paths(database), lambda line: None, durable=True).left_out == ("memory_longterm.embedding",)


def test_export_changes_nothing(database: Path) -> None:
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'x', 1.7e9)")
    rows(database, "PRAGMA wal_checkpoint(TRUNCATE)")
    before = database.read_bytes()
    exported(database)
    assert database.read_bytes() == before
    assert not Paths(database).folder.exists()


def test_export_file_is_new_and_whole(database: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'x', 1.7e9)")
    out = tmp_path / "out" / "all.jsonl"
    assert export_file(Paths(database), out, durable=False).lines == 1
    assert out.read_bytes() == exported(database)
    with pytest.raises(ConfigurationError, match="exists already"):
        export_file(Paths(database), out, durable=False)

    def fail(*_: object, **__: object) -> None:
        raise apsw.FullError("full")

    monkeypatch.setattr(exporting, "line_of", fail)
    with pytest.raises(StorageFull):
        export_file(Paths(database), tmp_path / "out" / "other.jsonl", durable=False)
    assert [path.name for path in out.parent.iterdir()] == ["all.jsonl"]


# --- round trips ---

TEXT = st.text(max_size=20) | st.sampled_from(["", "\x00", "a\x00b", "記憶の森", "\u2028", "nan", "7", "0.50", " 1e3 "])
BROKEN = st.sampled_from([b"\xff", b"\xed\xa0\x80", b"ok \xed\xb0\x80", b"\xf0\x9f"]).map(RawText)
ANY_TEXT = TEXT | BROKEN | st.binary(max_size=6) | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
NUMBER = ANY_TEXT | st.sampled_from(["nan", "NaN", "inf", "-inf", "1e400", "high", float("inf"), 1.0, 0.1 + 0.2, -0.0])
TAGS = ANY_TEXT | st.lists(TEXT, max_size=3).map(lambda tags: json.dumps(tags, ensure_ascii=False)) | st.sampled_from(
    ["[", "a,b", "[1]", '["a" ]', "null", "[]", '["\\ud800"]']
)  # fmt: skip
INSTANT = (
    st.floats(-5e10, 9e10)
    | st.integers(-(10**10), 9 * 10**10)
    | st.integers(10**12, 4 * 10**12)
    | st.datetimes(max_value=datetime(4000, 1, 1)).map(str)
    | st.sampled_from(["2026-11-30", "2026-11-30T12:00:00+02:00", "1780000000", "1780000000.25"])
    | st.floats(1.7e9, 1.8e9)
)
WHEN = INSTANT | st.none() | BROKEN | st.sampled_from(["soon", "", b"\x00", float("inf"), 1e300])
AGENT = st.sampled_from([*AGENTS, "名\x00前"])


def optional(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | values


LONG = st.fixed_dictionaries(
    {
        "agent": AGENT,
        "fact": ANY_TEXT,
        "topic": optional(ANY_TEXT),
        "source": optional(ANY_TEXT),
        "confidence": optional(NUMBER),
        "tags": optional(TAGS),
        "created_at": WHEN,
    }
)
EPISODIC = st.fixed_dictionaries(
    {
        "agent": AGENT,
        "summary": ANY_TEXT,
        "details": optional(ANY_TEXT),
        "event_type": optional(ANY_TEXT),
        "outcome": optional(ANY_TEXT),
        "duration_s": optional(NUMBER),
        "created_at": WHEN,
    }
)
SHORT = st.fixed_dictionaries(
    {
        "agent": AGENT,
        "key": ANY_TEXT,
        "value": ANY_TEXT,
        "tags": optional(TAGS),
        "created_at": INSTANT,
        "expires_at": optional(INSTANT),
    }
)


def insert(db: apsw.Connection, table: str, row: dict[str, Any]) -> None:
    """Insert a row as any process might, text that is no UTF-8 included."""
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, RawText) else "?" for value in row.values())
    db.execute(
        f"INSERT OR IGNORE INTO {table} ({', '.join(row)}) VALUES ({marks})",
        tuple(value.utf8 if isinstance(value, RawText) else value for value in row.values()),
    )


@settings(max_examples=30, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.lists(LONG, max_size=6), st.lists(EPISODIC, max_size=6), st.lists(SHORT, max_size=6), st.integers(0, 2))
def test_round_trip_gives_the_same_bytes(
    facts: list[dict[str, Any]], episodes: list[dict[str, Any]], keys: list[dict[str, Any]], repeated: int
) -> None:
    """Whatever the columns hold: nothing is refused, nothing is added by a second import, multiplicity is kept."""
    with tempfile.TemporaryDirectory() as folder:
        agents = (*AGENTS, "名\x00前")
        one_way, other = (fresh_database(Path(folder), name, agents) for name in ("one.db", "other.db"))
        WritingStore(Paths(one_way)).close()
        db = apsw.Connection(str(one_way))
        for row in facts + facts[:repeated]:
            insert(db, "memory_longterm", row)
        for row in episodes + episodes[:repeated]:
            insert(db, "memory_episodic", row)
        for row in keys:
            insert(db, "memory_short", row)
        db.close()
        there = exported(one_way)
        first = imported(other, there)
        assert first.refused == {}
        assert first.tally.imported == there.count(b"\n")
        assert exported(other) == there
        second = imported(other, there)
        assert second.counts == (0, there.count(b"\n"), 0)
        assert imported(one_way, there).counts == (0, there.count(b"\n"), 0)
        assert exported(other) == there


@pytest.mark.parametrize("form", ["ms", "iso", "seconds"])
def test_legacy_times_come_back_to_the_same_bytes(tmp_path: Path, form: str) -> None:
    """From other names and other forms of time into a fresh database, and from there into the legacy one's like."""
    episodic = LEGACY["memory_episodic"].replace("timestamp TEXT", {"ms": "ts INTEGER"}.get(form, "ts TEXT"))
    changed = {"memory_episodic": episodic}
    if form == "seconds":
        changed["memory_longterm"] = LEGACY["memory_longterm"].replace("ts INTEGER", "ts REAL")
    old, like = (legacy(tmp_path / name, **changed) for name in ("old.db", "like.db"))
    long_times: list[Any] = {"seconds": [1.7e9, 1_700_000_000.125001]}.get(form, [1_700_000_000_000, 1_700_000_000_001])
    for number, at in enumerate(long_times):
        rows(
            old,
            "INSERT INTO memory_longterm(agent_name, category, content, ts) VALUES ('mira', 'c', ?, ?)",
            f"f{number}",
            at,
        )
    for at in [1_700_000_000_123] if form == "ms" else ["2026-11-30 12:00:00", "2026-11-30T12:00:00.123456Z"]:
        rows(old, "INSERT INTO memory_episodic(agent_id, type, content, ts) VALUES ('mira', 't', 'e', ?)", at)
    there = exported(old)
    assert there.count(b"\n") >= 3
    fresh = fresh_database(tmp_path, "fresh.db")
    for target in (fresh, like):
        assert imported(target, there).refused == {}
        assert exported(target) == there
        assert imported(target, exported(target)).counts == (0, there.count(b"\n"), 0)
    assert {type(at) for (at,) in rows(fresh, "SELECT created_at FROM memory_longterm")} == {float}
    assert {type(at) for (at,) in rows(like, "SELECT ts FROM memory_longterm")} == {float if form == "seconds" else int}
    assert {type(at) for (at,) in rows(like, "SELECT ts FROM memory_episodic")} == {int if form == "ms" else str}


def test_times_finer_than_the_table_are_cut_off_and_told(tmp_path: Path) -> None:
    target = legacy(tmp_path / "old.db")
    rows(
        target, "INSERT INTO memory_longterm(agent_name, content, ts) VALUES ('mira', 'whole seconds here', 1700000000)"
    )
    content = jsonl(
        long_line(fact="a", created_at="2026-11-30T12:00:00.900000Z"),
        long_line(fact="a", created_at="2026-11-30T12:00:00.100000Z"),
        long_line(fact="b", created_at="2026-11-30T12:00:00.000000Z"),
    )
    first = imported(target, content)
    assert (first.counts, first.tally.rounded) == ((3, 0, 0), 2)
    assert rows(target, "SELECT ts FROM memory_longterm WHERE content = 'a'") == [(1_796_040_000,)] * 2
    assert imported(target, content).counts == (0, 3, 0)


@pytest.mark.parametrize(
    ("at", "form"),
    [("9999-12-31T00:00:00Z", TimeForm.SECONDS), ("1971-01-01T00:00:00Z", TimeForm.MILLIS)],
)
def test_time_that_the_form_would_turn_into_another_is_refused(tmp_path: Path, at: str, form: TimeForm) -> None:
    target = fresh_database(tmp_path) if form is TimeForm.SECONDS else legacy(tmp_path / "old.db")
    result = imported(target, jsonl(long_line(created_at=at)))
    assert result.refused == {1: "created_at: memory_longterm of this database cannot hold this time."}
    assert exported(target) == b""


@given(st.floats(-6.2e10, 2.5e11) | st.floats(1.6e9, 1.9e9))
def test_microseconds_of_a_float_are_those_of_its_nearest_neighbour(at_s: float) -> None:
    at_us = micros_of(at_s)
    if at_us is not None and abs(at_s) < 9e10:
        assert abs(at_us - at_s * 1e6) <= max(1.0, abs(at_s) * 1e-9)
        stored = stored_instant(TimeForm.SECONDS, at_us)
        assert micros_of(stored) == at_us
        assert micros_of(rfc3339(at_us)) == at_us
        assert micros_of(stored_instant(TimeForm.ISO, at_us)) == at_us


@pytest.mark.parametrize(
    ("tier", "values", "shown"),
    [
        ("long", {"text": RawText(b"\xed\xa0\x80")}, '"fact":{"text_base64":"7aCA"}'),
        ("long", {"text": b"\x00"}, '"fact":{"base64":"AA=="}'),
        ("long", {"text": "a\x00記"}, '"fact":"a\\u0000記"'),
        ("long", {"confidence": "nan"}, '"confidence":"nan"'),
        ("long", {"confidence": "0.90"}, '"confidence":0.9'),
        ("long", {"confidence": float("-inf")}, '"confidence":{"real":"-inf"}'),
        ("long", {"tags": "a, b"}, '"tags":"a, b"'),
        ("long", {"tags": '["a", "b"]'}, '"tags":["a","b"]'),
        ("long", {"created_at": "yesterday"}, '"created_at":{"as_stored":"yesterday"}'),
        ("long", {"created_at": 1_796_040_000_000}, f'"created_at":"{AT}"'),
        ("long", {"created_at": Instant(1_796_040_000_000_000)}, f'"created_at":"{AT}"'),
        ("episodic", {"duration_s": 3.0}, '"duration_s":3'),
    ],
)
def test_values_are_shown_in_one_form_and_read_back(tier: Any, values: dict[str, Any], shown: str) -> None:
    line = line_of(tier, values)
    assert shown in line
    again, read = parse_line(line.encode())
    assert (again, line_of(tier, read)) == (tier, line)


# --- what is refused ---


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "is no JSON, column 2"),
        (b"[1]", "no JSON object"),
        (b"\xff\xfe", "no UTF-8"),
        (b"[" * 100_000, "is no JSON"),
        (b'{"tier": "short", "tier": "long"}', "twice"),
        (b'{"tier": "lnog"}', "tier: must be one of short, long, episodic, durable."),
        (b'{"agent": "mira"}', "tier: must be"),
        (jsonl(long_line(importance=1)), "'importance': a line of tier long has no such field"),
        (jsonl(long_line(id="long:1")), "'id'"),
        (jsonl({"tier": "long", "agent": "mira", "fact": "x"}), "created_at: is missing"),
        (jsonl({"tier": "long", "agent": "mira", "created_at": AT}), "fact: is missing"),
        (jsonl(long_line(fact=7)), "fact: must be a text"),
        (jsonl(long_line(fact=True)), "fact: is no value"),
        (jsonl(long_line(fact={"base64": "!"})), "fact: is no base64"),
        (jsonl(long_line(fact={"base64": "AA==", "more": 1})), "fact: is no value"),
        (b'{"tier":"long","agent":"mira","created_at":null,"fact":"\\ud800"}', "fact: holds a lone surrogate"),
        (b'{"tier":"long","agent":"mira","created_at":null,"fact":"x","confidence":NaN}', "NaN is no JSON"),
        (b'{"tier":"long","agent":"mira","created_at":null,"fact":"x","confidence":1e999}', "confidence: is no value"),
        (jsonl(long_line(confidence=2**63)), "confidence: is no value"),
        (jsonl(long_line(tags=["a", 1])), "tags: a list of tags holds texts only"),
        (jsonl(long_line(created_at="yesterday")), "created_at: is no instant"),
        (jsonl(long_line(agent="mirra")), "The agent 'mirra' is not in agent_registry. Did you mean 'mira'?"),
        (jsonl(long_line(agent=None)), "names no agent"),
        (jsonl(PERSONA_LINE), "never imported"),
        (jsonl(long_line(fact=None)), "NOT NULL"),
    ],
)  # fmt: skip
def test_bad_line_is_refused_by_its_number_and_the_others_are_imported(
    database: Path, line: bytes, reason: str
) -> None:
    content = jsonl(long_line(fact="before")) + b"\n" + line.strip(b"\n") + b"\n" + jsonl(long_line(fact="after"))
    result = imported(database, content)
    assert list(result.refused) == [3]
    assert reason in result.refused[3]
    assert result.counts == (2, 0, 1)
    assert rows(database, "SELECT fact FROM memory_longterm ORDER BY id") == [("before",), ("after",)]
    assert rows(database, "SELECT value FROM memory_durable WHERE key = 'persona/sol'") != [("x",)]


def test_line_that_is_too_long_is_refused_unread(database: Path) -> None:
    content = jsonl(long_line(fact="x" * (LINE_BYTES_MAX + 10)), long_line(fact="after"))
    result = imported(database, content)
    assert result.counts == (1, 0, 1)
    assert f"longer than {LINE_BYTES_MAX:,} bytes" in result.refused[1]


def test_byte_order_mark_and_missing_last_line_end_are_no_faults(database: Path) -> None:
    content = b"\xef\xbb\xbf" + jsonl(long_line(fact="one"), long_line(fact="two")).rstrip(b"\n")
    assert imported(database, content).counts == (2, 0, 0)


def test_field_without_a_column_is_refused_and_never_dropped(tmp_path: Path) -> None:
    target = legacy(tmp_path / "old.db")
    content = jsonl(
        long_line(source="somewhere"),
        long_line(topic="has a column"),
        long_line(confidence=0.5),
        long_line(tags=["a"]),
        {"tier": "episodic", "agent": "mira", "created_at": AT, "summary": "x", "details": "y"},
    )
    result = imported(target, content)
    assert result.refused == {
        1: "source: memory_longterm of this database has no column for it.",
        3: "confidence: memory_longterm of this database has no column for it.",
        4: "tags: memory_longterm of this database has no column for it.",
        5: "details: memory_episodic of this database has no column for it.",
    }
    assert [line["topic"] for line in lines(exported(target))] == ["has a column"]


@pytest.mark.parametrize(
    ("columns", "fields", "refused"),
    [
        ("source TEXT DEFAULT 'import'", {}, None),
        ("source TEXT NOT NULL DEFAULT 'import'", {}, "NOT NULL"),
        ("source INTEGER", {"source": "007"}, "source: memory_longterm of this database would hold another value."),
        ("source INTEGER", {"source": "7"}, None),
        ("confidence TEXT", {"confidence": 0.5}, None),
        ("confidence REAL", {"confidence": 2**60 + 1}, "confidence: memory_longterm"),
        ("confidence NUMERIC", {"confidence": 1.0}, None),
    ],
)
def test_row_is_as_its_line_says_or_is_refused(
    tmp_path: Path, columns: str, fields: dict[str, Any], refused: str | None
) -> None:
    """A column's default or type that changes the value: the next import would take the row for another one."""
    target = legacy(tmp_path / "old.db", memory_longterm=LEGACY["memory_longterm"].replace("extra TEXT", columns))
    content = jsonl(long_line(**fields))
    result = imported(target, content)
    if refused is None:
        assert result.counts == (1, 0, 0)
        assert imported(target, content).counts == (0, 1, 0)
    else:
        assert refused in result.refused[1]
        assert exported(target) == b""


@pytest.mark.parametrize(
    ("trigger", "reason"),
    [
        ("BEFORE INSERT ON memory_longterm BEGIN SELECT raise(IGNORE); END", "ignored the row"),
        ("AFTER INSERT ON memory_longterm BEGIN DELETE FROM memory_longterm; END", "removed the row"),
        ("AFTER INSERT ON memory_longterm BEGIN UPDATE memory_longterm SET topic = 'x'; END", "topic: memory_longterm"),
        ("BEFORE INSERT ON memory_longterm BEGIN SELECT raise(ROLLBACK, 'no'); END", "no"),
    ],
)
def test_trigger_that_changes_the_row_is_a_refusal(database: Path, trigger: str, reason: str) -> None:
    rows(database, f"CREATE TRIGGER theirs {trigger}")
    episode_line = {"tier": "episodic", "agent": "sol", "created_at": AT, "summary": "kept"}
    result = imported(database, jsonl(long_line(), episode_line))
    assert reason in result.refused[1]
    assert [line["tier"] for line in lines(exported(database))] == ["episodic"]


# --- what is there already ---


def test_lines_are_counted_not_only_known(database: Path) -> None:
    """Twice in the file is two rows; where one is there, one is added; and never a third."""
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('mira', 'a fact', 1796040000)")
    content = jsonl(long_line(), long_line())
    assert imported(database, content).counts == (1, 1, 0)
    assert imported(database, content).counts == (0, 2, 0)
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(2,)]


def test_live_short_key_is_kept_and_an_expired_one_gives_way(database: Path) -> None:
    WritingStore(Paths(database)).close()
    insert_key = "INSERT INTO memory_short(agent, key, value, created_at, expires_at) VALUES ('mira', ?, 'old', 1, ?)"
    rows(database, insert_key, "live", None)
    rows(database, insert_key, "expired", 2.0)
    line = {"tier": "short", "agent": "mira", "created_at": AT, "value": "new"}
    content = jsonl(line | {"key": "live"}, line | {"key": "expired"}, line | {"key": "free"})
    result = imported(database, content)
    assert result.refused == {1: "key: 'mira' holds another value under this key; it was kept."}
    kept = [("expired", "new"), ("free", "new"), ("live", "old")]
    assert rows(database, "SELECT key, value FROM memory_short ORDER BY key") == kept
    assert imported(database, content).counts == (0, 2, 1)


def test_sessions_travel_though_the_table_has_no_column(store: WritingStore, paths: Paths, tmp_path: Path) -> None:
    one(store, fact("mira", "first", session="talk"))
    one(store, fact("mira", "alone"))
    rows(paths.database, "UPDATE memory_longterm SET fact = 'changed' WHERE fact = 'gone'")
    there = exported(paths.database)
    assert [line.get("session") for line in lines(there)] == ["talk", None]
    other = fresh_database(tmp_path, "other.db")
    imported(other, there)
    assert exported(other) == there
    rows(other, "UPDATE memory_longterm SET fact = 'another one' WHERE fact = 'first'")
    assert [line.get("session") for line in lines(exported(other))] == [None, None]


# --- the writer's rules ---


def test_imported_row_is_recalled_at_once(database: Path) -> None:
    content = jsonl(
        *(long_line(fact=f"the relay number{number} listens on port {7000 + number}") for number in range(100))
    )
    assert imported(database, content).counts == (100, 0, 0)
    reading = ReadingStore(Paths(database))
    try:
        assert reading.index_lag() is None
        assert [memory.text for memory in ask(reading, "relay port 7042", k=1)] == [
            "the relay number42 listens on port 7042"
        ]
    finally:
        reading.close()


def test_others_may_write_between_the_transactions(database: Path) -> None:
    """No transaction holds more than 64 lines, and none is open between two of them."""
    seen: list[int] = []

    def write(tally: Tally) -> None:
        seen.append(tally.imported)
        rows(database, "INSERT INTO memory_episodic(agent, summary) VALUES ('sol', 'meanwhile')")

    assert (
        imported(database, jsonl(*(long_line(fact=f"f{number}") for number in range(200))), write).tally.imported == 200
    )
    assert len(seen) >= 4
    assert max(later - earlier for earlier, later in zip([0, *seen], seen, strict=False)) <= 64
    assert rows(database, "SELECT count(*) FROM memory_episodic") == [(len(seen),)]


def test_import_that_was_ended_may_be_run_again(database: Path) -> None:
    content = jsonl(*(long_line(fact=f"f{number // 2}") for number in range(200)))

    def end(tally: Tally) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        imported(database, content, end)
    (there,) = rows(database, "SELECT count(*) FROM memory_longterm")[0]
    assert 0 < there <= 64
    assert imported(database, content).counts == (200 - there, there, 0)


def test_lock_of_another_process_ends_the_import_after_the_budget(
    database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WritingStore(Paths(database)).close()
    monkeypatch.setattr("storage.limits.WRITE_BUDGET_S", 0.2)
    apply = WritingStore.apply
    monkeypatch.setattr(WritingStore, "apply", lambda self, writes: apply(self, writes, wait_s=0.05))
    with foreign_lock(database), pytest.raises(StorageBusy):
        imported(database, jsonl(long_line()))
    assert imported(database, jsonl(long_line())).counts == (1, 0, 0)


def test_unknown_field_is_named_without_its_value() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_line(jsonl(long_line(**{"s\n3cret field": "the value"})).strip())
    assert refused.value.detail == r"'s\n3cret field': a line of tier long has no such field."
