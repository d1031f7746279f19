"""The cases about what lies on disk: damaged and missing files, legacy rows, foreign schemas, exact counts."""

import contextlib
import hashlib
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import support
from tests.support import Service, eventually, foreign_lock, fresh_database, rows, serving

EX_CONFIG = 78


def digest(path: Path) -> str:
    """The bytes of a file, in short."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def refused_start(path: Path) -> str:
    """What `serve` says when it refuses to start on a path: exit 78 within its time, and a reason that names it."""
    done = subprocess.run(
        [*support.PROGRAM, "serve", "--db", str(path), "--bind", "127.0.0.1:0"],
        capture_output=True,
        timeout=20,
        check=False,
    )
    said = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == EX_CONFIG, said
    assert str(path) in said
    assert "Traceback" not in said
    return said


def filled(folder: Path, facts: int = 400) -> Path:
    """A database of some dozens of pages, closed and checkpointed."""
    path = fresh_database(folder, "filled.db")
    with contextlib.closing(sqlite3.connect(path)) as db:
        with db:
            made = [("sol", f"stored fact {number} " + "x" * 300, 1.7e9) for number in range(facts)]
            db.executemany("INSERT INTO memory_longterm(agent, fact, created_at) VALUES (?, ?, ?)", made)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path


# --- C051: paths that cannot be served ---


def test_c051_missing_path(tmp_path: Path) -> None:
    """A path that does not exist is refused; neither a database nor its folders are made."""
    path = tmp_path / "not-there" / "solos.db"
    assert "does not exist" in refused_start(path)
    assert list(tmp_path.iterdir()) == []


def test_c051_directory(tmp_path: Path) -> None:
    """A directory is refused as no file, and what lies in it stays."""
    path = tmp_path / "solos.db"
    path.mkdir()
    (path / "kept").write_text("kept")
    assert "not a regular file" in refused_start(path)
    assert (path / "kept").read_text() == "kept"


def make_header_broken(path: Path) -> None:
    """The first page is not SQLite's."""
    with path.open("r+b") as file:
        file.write(b"\xff" * 100)


def make_truncated(path: Path) -> None:
    """Half of the file is gone."""
    os.truncate(path, path.stat().st_size // 2)


def make_page_broken(path: Path) -> None:
    """Pages in the middle hold nonsense."""
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2 // 4096 * 4096)
        file.write(b"\xa5" * 8192)


def make_text(path: Path) -> None:
    """It never was a database."""
    path.write_text("the fleet's notes, not a database\n" * 100)


def make_empty(path: Path) -> None:
    """A file of no bytes: it may be anybody's."""
    path.write_bytes(b"")


def make_foreign(path: Path) -> None:
    """Somebody else's SQLite database."""
    path.unlink()
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE recipes (id INTEGER PRIMARY KEY, title TEXT)")
        db.execute("INSERT INTO recipes(title) VALUES ('soup')")


@pytest.mark.parametrize(
    "damage", [make_header_broken, make_truncated, make_page_broken, make_text, make_empty, make_foreign]
)
def test_c051_damaged_database(tmp_path: Path, damage: Any) -> None:
    """What is no sound fleet database is refused with the reason, and stays to the byte, under its name."""
    path = filled(tmp_path)
    damage(path)
    before = digest(path)
    reason = refused_start(path)
    assert any(word in reason for word in ("damaged", "no table", "empty"))
    assert digest(path) == before
    foreign = [found.name for found in tmp_path.iterdir() if not found.name.startswith("filled.db")]
    assert foreign == [], "nothing was moved aside"


def test_c051_doctor_says_the_same(tmp_path: Path) -> None:
    """`doctor` names the damage too, with a next step, and changes nothing."""
    path = filled(tmp_path)
    make_page_broken(path)
    before = digest(path)
    done = subprocess.run([*support.PROGRAM, "doctor", "--db", str(path)], capture_output=True, timeout=20, check=False)
    assert done.returncode == EX_CONFIG
    assert "FATAL" in done.stdout.decode()
    assert digest(path) == before


# --- C144, C145: legacy rows and foreign schemas ---

LEGACY = """
CREATE TABLE agent_registry (name TEXT PRIMARY KEY, shoe_size INTEGER);
INSERT INTO agent_registry(name) VALUES ('sol'), ('mira');
CREATE TABLE memory_durable (key TEXT, value TEXT);
INSERT INTO memory_durable VALUES ('persona/sol', 'sol is old');
CREATE TABLE memory_longterm (
  id INTEGER PRIMARY KEY, agent_id TEXT, category TEXT, content TEXT, source TEXT, confidence, tags TEXT,
  embedding BLOB, priority INTEGER DEFAULT 3, ts
);
CREATE TABLE memory_episodic (id INTEGER PRIMARY KEY, agent_name TEXT, summary TEXT, mood TEXT, timestamp TEXT);
CREATE TABLE chat_log (id INTEGER PRIMARY KEY, line TEXT);
INSERT INTO chat_log(line) VALUES ('not ours');
CREATE INDEX ix_category ON memory_longterm(category);
CREATE TRIGGER logged AFTER INSERT ON memory_longterm BEGIN INSERT INTO chat_log(line) VALUES ('a fact'); END;
INSERT INTO memory_episodic(agent_name, summary, mood, timestamp)
  VALUES ('mira', 'legacyword sailed', 'fine', '2023-01-02');
"""
"""A schema of another time: other column names, columns missing, columns too many, a trigger, a foreign table."""

ODD_ROWS: dict[str, tuple[Any, ...]] = {
    "all null": ("sol", None, "legacyword bare", None, None, None, None, None),
    "confidence 5": ("sol", "t", "legacyword five", "s", 5, '["a"]', None, 1.7e9),
    "confidence high": ("sol", "t", "legacyword high", "s", "high", '["a"]', None, 1_700_000_000_000),
    "tags are text": ("mira", "t", "legacyword tagged", "s", 0.5, "red, green", None, "2023-11-14T22:13:20Z"),
    "tags are broken JSON": ("mira", "t", "legacyword broken", "s", 0.5, '["red"', None, "yesterday"),
    "tags are an object": ("mira", "t", "legacyword object", "s", 0.5, '{"a": 1}', None, 1e300),
    "broken blob": ("mira", "t", "legacyword blob", "s", 0.5, "[]", b"\x00\xff\x01", -5),
    "text is a blob": ("mira", "t", b"legacyword \xff bytes", "s", 0.5, None, None, 1.7e9),
    "no agent": (None, "t", "legacyword orphan", "s", 0.5, None, None, 1.7e9),
    "topic is a number": ("mira", 7, "legacyword numbered", 8, 0.5, "9", None, float("inf")),
}


@pytest.fixture(scope="module")
def legacy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database of that time with every odd row."""
    path = tmp_path_factory.mktemp("legacy") / "legacy.db"
    with contextlib.closing(sqlite3.connect(path)) as db, db:
        db.executescript(LEGACY)
        db.executemany(
            "INSERT INTO memory_longterm(agent_id, category, content, source, confidence, tags, embedding, ts) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            list(ODD_ROWS.values()),
        )
    return path


@pytest.fixture(scope="module")
def legacy_service(legacy: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on a copy of it."""
    copy = tmp_path_factory.mktemp("served") / "legacy.db"
    shutil.copy(legacy, copy)
    with serving(copy) as running:
        yield running


def test_c144_odd_rows_are_all_recalled(legacy_service: Service) -> None:
    """No NULL, no odd confidence, no broken tag, time or BLOB hides its row, on REST or MCP, preview or full."""
    expected = {f"long:{number}" for number in range(1, len(ODD_ROWS) + 1)} | {"episodic:1"}
    for full in ("false", "true"):
        found = legacy_service.recall("sol", "legacyword", k=50, full=full)
        assert {memory["id"] for memory in found} == expected
    _, by_mcp = legacy_service.mcp("recall", {"agent": "sol", "q": "legacyword", "k": 50})
    assert {memory["id"] for memory in by_mcp["results"]} == expected
    assert legacy_service.stats()["store"]["rows"]["long"] == len(ODD_ROWS)


def test_c144_odd_values_are_shown_as_they_are(legacy_service: Service) -> None:
    """Missing is null, odd is raw, by id as in a recall: nothing is made up and nothing is dropped."""
    shown = {}
    for number, name in enumerate(ODD_ROWS, 1):
        status, memory = legacy_service.rest("GET", f"/v1/memory/long:{number}", agent="sol")
        assert status == 200, name
        assert legacy_service.mcp("get_memory", {"agent": "sol", "id": f"long:{number}"})[1]["ok"] is True
        shown[name] = memory
    bare = shown["all null"]
    assert [bare[name] for name in ("topic", "source", "confidence", "created_at")] == [None] * 4
    assert bare["tags"] == []
    assert shown["confidence 5"]["confidence"] == 5
    assert shown["confidence high"]["confidence"] == "high"
    assert shown["tags are text"]["tags"] == ["red", "green"]
    assert shown["tags are broken JSON"]["tags"] == ['["red"']
    assert '{"a": 1}' in "".join(shown["tags are an object"]["tags"])
    assert shown["text is a blob"]["text"].startswith("legacyword ")
    assert shown["text is a blob"]["text"].endswith(" bytes")
    assert (shown["topic is a number"]["topic"], shown["topic is a number"]["source"]) == ("7", "8")
    for name in ("confidence 5", "confidence high", "tags are text"):
        assert shown[name]["created_at"] == "2023-11-14T22:13:20.000Z", name
    for name in ("tags are broken JSON", "tags are an object", "topic is a number"):
        assert shown[name]["created_at"] is None, name


def test_c144_odd_rows_pass_through_filters(legacy_service: Service) -> None:
    """Filters see the raw values: a topic that is a number, tags in text; a row without a time is in no time span."""
    (numbered,) = legacy_service.recall("sol", "legacyword", topic="7")
    assert numbered["text"] == "legacyword numbered"
    (tagged,) = legacy_service.recall("sol", "legacyword", tags="green")
    assert tagged["text"] == "legacyword tagged"
    in_span = legacy_service.recall("sol", "legacyword", since="2023-11-14", until="2023-11-15", k=50)
    assert {memory["text"] for memory in in_span} >= {"legacyword five", "legacyword high", "legacyword tagged"}
    assert "legacyword broken" not in {memory["text"] for memory in in_span}
    own = legacy_service.recall("sol", "legacyword", scope="own", k=50)
    assert {memory["text"] for memory in own} == {"legacyword bare", "legacyword five", "legacyword high"}


def schema_of(database: Path) -> dict[str, str]:
    """Every object of a database with its SQL."""
    return dict(rows(database, "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def contents_of(database: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of the tables that are not ours."""
    tables = ("agent_registry", "memory_durable", "memory_longterm", "memory_episodic", "chat_log")
    return {table: rows(database, f"SELECT rowid, * FROM {table}") for table in tables}


def test_c145_other_schema_is_served_additively(legacy: Path, tmp_path: Path) -> None:
    """Missing and extra columns: it starts, adds memory_short and its index alone, and keeps all else; twice."""
    database = tmp_path / "solos.db"
    shutil.copy(legacy, database)
    schema, contents = schema_of(database), contents_of(database)
    with serving(database) as service:
        assert [memory["id"] for memory in service.recall("sol", "legacyword sailed", tiers="episodic")]
    after = schema_of(database)
    assert set(after) - set(schema) == {"memory_short", "ix_memory_short_agent"}
    assert {name: after[name] for name in schema} == schema
    assert contents_of(database) == contents
    assert rows(database, "PRAGMA integrity_check") == [("ok",)]

    version = rows(database, "PRAGMA schema_version")
    with serving(database) as service:
        eventually(lambda: bool(service.events("store_opened")))
        (opened,) = service.events("store_opened")
        assert opened["short_created"] is False
        assert service.rest("GET", "/health")[1]["status"] == "ok"
    assert schema_of(database) == after
    assert contents_of(database) == contents
    assert rows(database, "PRAGMA schema_version") == version, "the second start is no change at all"


def test_c145_writes_go_into_the_columns_that_are_there(legacy: Path, tmp_path: Path) -> None:
    """A fact lands in the mapped columns, defaults and triggers work; a field without a column is refused by name."""
    database = tmp_path / "solos.db"
    shutil.copy(legacy, database)
    with serving(database) as service:
        written = service.long("sol", "a new fact", topic="t", tags=["a"])
        row = int(written["id"].split(":")[1])
        stored = rows(
            database, "SELECT agent_id, category, content, tags, priority FROM memory_longterm WHERE id = ?", row
        )
        assert stored == [("sol", "t", "a new fact", '["a"]', 3)]
        assert rows(database, "SELECT count(*) FROM chat_log WHERE line = 'a fact'")[0][0] == len(ODD_ROWS) + 1
        assert [memory["id"] for memory in service.recall("mira", "a new fact", k=1)] == [written["id"]]


def test_c145_missing_optional_column_stops_no_write(legacy: Path, tmp_path: Path) -> None:
    """Without a column for the event type, outcome or details a plain episode is stored; what has no place is named."""
    database = tmp_path / "solos.db"
    shutil.copy(legacy, database)
    with serving(database) as service:
        for field in ("event_type", "outcome", "details"):
            body = {"agent": "sol", "summary": "an episode", field: "lost at sea"}
            status, refused = service.rest("POST", "/v1/episodic", body)
            assert (status, refused["error"]["detail"].split(":")[0]) == (400, field)
        assert rows(database, "SELECT count(*) FROM memory_episodic") == [(1,)]
        status, written = service.rest("POST", "/v1/episodic", {"agent": "sol", "summary": "a plain episode"})
        assert status == 201, written
        assert [memory["id"] for memory in service.recall("mira", "plain episode", k=1)] == [written["id"]]


# --- C148: exact counts ---


def test_c148_rows_grow_by_exactly_the_acknowledged_writes(service: Service) -> None:
    """37 long writes, 5 refused, 2 that wait for a lock and are sent again: 32 rows, 32 ids, one row per request id."""
    database = service.database
    acknowledged: list[str] = []
    refused: list[int] = []

    def write(number: int, agent: str = "sol") -> None:
        body = {"agent": agent, "fact": f"counted {number}"}
        status, answer = service.rest("POST", "/v1/long", body, headers={"Idempotency-Key": f"key-{number}"})
        (acknowledged if status == 201 else refused).append(answer["id"] if status == 201 else status)

    for number in range(30):
        write(number)
    for number in range(30, 35):
        write(number, agent="ghost")
    waiting = [threading.Thread(target=write, args=(number,)) for number in (35, 36)]
    with foreign_lock(database):
        for thread in waiting:
            thread.start()
        eventually(lambda: service.stats()["writes"]["long"]["in_flight"] == 2)
        assert rows(database, "SELECT count(*) FROM memory_longterm") == [(30,)]
    for thread in waiting:
        thread.join(15)
    assert (len(acknowledged), refused) == (32, [422] * 5)
    assert len(set(acknowledged)) == 32
    for number in (35, 36):  # the client did not see the answer, and sends the same again
        body = {"agent": "sol", "fact": f"counted {number}"}
        status, again = service.rest("POST", "/v1/long", body, headers={"Idempotency-Key": f"key-{number}"})
        assert (status, again["replayed"]) == (201, True)
        assert again["id"] in acknowledged
    changed = {"agent": "sol", "fact": "something else"}
    assert service.rest("POST", "/v1/long", changed, headers={"Idempotency-Key": "key-36"})[0] == 409

    stored = {f"long:{row}" for (row,) in rows(database, "SELECT id FROM memory_longterm")}
    assert stored == set(acknowledged)
    counts = service.stats()["writes"]["long"]
    expected = {"issued": 40, "acknowledged": 32, "replayed": 2, "refused": 6, "unknown": 0, "in_flight": 0}
    assert counts == expected
