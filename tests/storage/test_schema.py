"""Introspection: the schema is not ours, and nothing but memory_short is ever made in it."""

from contextlib import closing
from pathlib import Path

import apsw
import pytest

from storage.errors import ConfigurationError
from storage.paths import Paths
from storage.schema import IX_MEMORY_SHORT, MEMORY_SHORT, introspect
from storage.times import TimeForm
from storage.writing import WritingStore
from tests.storage.writes import fact, one
from tests.support import rows

LEGACY = {
    "agent_registry": "CREATE TABLE agent_registry (name TEXT PRIMARY KEY, port INTEGER)",
    "memory_durable": "CREATE TABLE memory_durable (key TEXT PRIMARY KEY, content TEXT NOT NULL)",
    "memory_longterm": "CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent_name TEXT NOT NULL, "
    "category TEXT, content TEXT NOT NULL, embedding BLOB, ts INTEGER, extra TEXT)",
    "memory_episodic": "CREATE TABLE memory_episodic (id INTEGER PRIMARY KEY, agent_id TEXT, type TEXT, "
    "content TEXT, timestamp TEXT)",
}


def legacy(path: Path, **changed: str) -> Path:
    """A database with other names than ours; `changed` replaces or (empty) leaves out a table."""
    for statement in filter(None, (LEGACY | changed).values()):
        rows(path, statement)
    if changed.get("agent_registry", "x"):
        rows(path, "INSERT INTO agent_registry VALUES ('mira', 8301)")
    return path


def schema_of(path: Path) -> list[tuple[str, str]]:
    """Every object and its statement, as SQLite keeps it."""
    return sorted(rows(path, "SELECT name, coalesce(sql, '') FROM sqlite_master"))


def test_opening_adds_memory_short_and_nothing_else(tmp_path: Path) -> None:
    path = legacy(tmp_path / "old.db")
    before = schema_of(path)
    WritingStore(Paths(path)).close()
    added = [entry for entry in schema_of(path) if entry not in before]
    assert added == [
        ("ix_memory_short_agent", IX_MEMORY_SHORT.replace("IF NOT EXISTS ", "")),
        ("memory_short", MEMORY_SHORT.replace("IF NOT EXISTS ", "")),
        ("sqlite_autoindex_memory_short_1", ""),
    ]
    WritingStore(Paths(path)).close()
    assert len(schema_of(path)) == len(before) + 3


def test_newest_time_that_is_no_utf_8_is_text(tmp_path: Path) -> None:
    """Any process with the C API can write such text; the service did not start over it."""
    path = legacy(tmp_path / "old.db")
    rows(path, "INSERT INTO memory_episodic(agent_id, content, timestamp) VALUES ('mira', 'x', CAST(x'ff' AS TEXT))")
    with closing(apsw.Connection(str(path))) as db:
        assert introspect(db, path).episodic.time_form is TimeForm.ISO


def test_columns_are_mapped_to_roles_by_their_names(tmp_path: Path) -> None:
    with closing(apsw.Connection(str(legacy(tmp_path / "old.db")))) as db:
        schema = introspect(db, tmp_path / "old.db")
    assert schema.registry.columns == {"agent": "name"}
    assert schema.long.columns == {"agent": "agent_name", "topic": "category", "text": "content", "created_at": "ts"}
    assert schema.episodic.columns["topic"] == "type"
    assert (schema.long.time_form, schema.episodic.time_form) == (TimeForm.MILLIS, TimeForm.ISO)


def test_a_write_goes_into_the_legacy_columns(tmp_path: Path) -> None:
    path = legacy(tmp_path / "old.db")
    with closing(WritingStore(Paths(path), clock=lambda: 1_780_000_000.5)) as store:
        one(store, fact("mira", "it works", topic="net"))
    assert rows(path, "SELECT agent_name, category, content, ts, extra FROM memory_longterm") == [
        ("mira", "net", "it works", 1_780_000_000_500, None)
    ]


def test_a_value_without_a_column_is_refused_not_lost(tmp_path: Path) -> None:
    with (
        closing(WritingStore(Paths(legacy(tmp_path / "old.db")))) as store,
        pytest.raises(Exception, match="tags: memory_longterm"),
    ):
        one(store, fact("mira", "it works", tags=("a",)))


@pytest.mark.parametrize(
    ("table", "statement", "named"),
    [
        ("agent_registry", "", "no table agent_registry"),
        ("memory_longterm", "CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent TEXT, ts REAL)", "'text'"),
        (
            "memory_longterm",
            "CREATE TABLE memory_longterm (agent TEXT, fact TEXT, ts REAL, shard TEXT NOT NULL)",
            "memory_longterm.shard",
        ),
        (
            "memory_episodic",
            "CREATE TABLE memory_episodic (agent TEXT PRIMARY KEY, summary TEXT, ts REAL) WITHOUT ROWID",
            "no row ids",
        ),
    ],
)
def test_what_cannot_be_mapped_is_fatal_and_named(tmp_path: Path, table: str, statement: str, named: str) -> None:
    path = legacy(tmp_path / "old.db", **{table: statement})
    before = schema_of(path)
    with pytest.raises(ConfigurationError, match=named):
        WritingStore(Paths(path))
    assert schema_of(path) == before


def test_a_memory_short_of_another_shape_is_refused_not_altered(tmp_path: Path) -> None:
    path = legacy(tmp_path / "old.db", memory_short="CREATE TABLE memory_short (agent TEXT, note TEXT)")
    before = schema_of(path)
    with pytest.raises(ConfigurationError, match="another shape"):
        WritingStore(Paths(path))
    assert schema_of(path) == before


def test_a_table_with_a_default_for_its_unknown_column_is_served(tmp_path: Path) -> None:
    path = legacy(
        tmp_path / "old.db",
        memory_longterm="CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent TEXT NOT NULL, fact TEXT NOT NULL,"
        "ts REAL NOT NULL, shard TEXT NOT NULL DEFAULT 'a', size INTEGER GENERATED ALWAYS AS (length(fact)))",
    )
    with closing(WritingStore(Paths(path))) as store:
        one(store, fact("mira", "four"))
    assert rows(path, "SELECT shard, size FROM memory_longterm") == [("a", 4)]


def test_a_rollback_journal_is_switched_to_wal_and_reported(tmp_path: Path) -> None:
    path = legacy(tmp_path / "old.db")
    rows(path, "PRAGMA journal_mode = delete")
    with closing(WritingStore(Paths(path))) as store:
        assert (store.report.journal_found, store.report.journal_mode) == ("delete", "wal")
    with closing(WritingStore(Paths(path))) as store:
        assert store.report.journal_found == "wal"


def test_a_mode_that_cannot_be_changed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = legacy(tmp_path / "old.db")
    rows(path, "PRAGMA journal_mode = delete")
    WritingStore(Paths(path)).close()
    rows(path, "PRAGMA journal_mode = delete")
    monkeypatch.setattr("storage.limits.BUSY_TIMEOUT_MS", 50)
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN")
    list(reader.execute("SELECT count(*) FROM agent_registry"))
    try:
        with closing(WritingStore(Paths(path))) as store:
            assert store.journal_mode == "delete"
    finally:
        reader.close()


@pytest.mark.parametrize("damage", ["head", "middle", "cut", "folder", "missing", "text"])
def test_a_damaged_or_missing_database_is_refused_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    path = legacy(tmp_path / "old.db")
    for _ in range(50):
        rows(path, "INSERT INTO memory_longterm(agent_name, content) VALUES ('mira', ?)", "x" * 3000)
    content = bytearray(path.read_bytes())
    match damage:
        case "head":
            content[:16] = b"no database file"
        case "middle":
            content[4096 * 8 : 4096 * 16] = b"\xff" * (4096 * 8)
        case "cut":
            del content[len(content) // 2 :]
        case "text":
            content[:] = b"hello\n" * 100
    if damage in ("folder", "missing"):
        path.unlink()
        if damage == "folder":
            path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"old\.db"):
        WritingStore(Paths(path))
    assert damage in {"folder", "missing"} or path.read_bytes() == content
    assert damage != "missing" or not path.exists()
