"""Backup and restore: one instant of both files, verified, whole or not at all."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import apsw
import pytest

from storage import limits
from storage.copies import backup, snapshot
from storage.copies.backup import back_up, last_backup, restore
from storage.copies.manifest import Manifest, look_at
from storage.errors import ConfigurationError, StorageBusy, StorageDamaged, StorageFull
from storage.paths import Paths
from storage.writing import WritingStore
from tests.storage.writes import episode, fact, one, short
from tests.support import planted, rows

FILES = {"database.db", "manifest.json", "state.db"}


def names(folder: Path) -> set[str]:
    """What lies in a folder."""
    return {path.name for path in folder.iterdir()}


def test_restored_pair_is_the_one_that_was_backed_up(store: WritingStore, paths: Paths, tmp_path: Path) -> None:
    first = one(store, fact("mira", "kept", request_id="a", session="talk"))
    one(store, episode("sol", "done"))
    one(store, short("sol", "k", "v", request_id="b"))
    made = back_up(paths, tmp_path / "copies" / "monday")
    assert names(tmp_path / "copies" / "monday") == FILES
    assert names(tmp_path / "copies") == {"monday"}
    assert {table: made.database.rows[table] for table in ("memory_longterm", "memory_episodic", "memory_short")} == {
        "memory_longterm": 1,
        "memory_episodic": 1,
        "memory_short": 1,
    }
    again = Paths(tmp_path / "new.db")
    assert restore(tmp_path / "copies" / "monday", again) == made
    restored = WritingStore(again)
    try:
        replayed = one(restored, fact("mira", "kept", request_id="a", session="talk"))
        assert (replayed.id, replayed.created_at, replayed.replayed) == (first.id, first.created_at, True)
        assert one(restored, short("sol", "k", "v", request_id="b")).replayed
        assert restored._state.sessions("long", 1, 1)[1][1] == "talk"
    finally:
        restored.close()
    assert rows(again.database, "SELECT agent, fact FROM memory_longterm") == [("mira", "kept")]
    assert rows(again.database, "PRAGMA integrity_check") == [("ok",)]


def test_manifest_tells_what_the_files_are(store: WritingStore, paths: Paths, tmp_path: Path) -> None:
    one(store, fact())
    back_up(paths, tmp_path / "b")
    told = json.loads((tmp_path / "b" / "manifest.json").read_text(encoding="utf-8"))
    assert (told["format"], told["source"]) == (1, str(paths.database))
    for name, copy in (("database.db", told["database"]), ("state.db", told["state"])):
        path = tmp_path / "b" / name
        seen = look_at(path)
        assert (copy["bytes"], copy["sha256"], copy["rows"]) == (path.stat().st_size, seen.sha256, seen.rows)
    assert told["database"]["rows"]["agent_registry"] == 10
    assert any("CREATE TABLE memory_longterm" in statement for statement in told["database"]["schema"])


def test_what_is_written_after_the_instant_is_not_in_the_copy(
    store: WritingStore, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Foreign commits while pages are copied neither come into the copy nor start it anew."""
    counted = backup.rows_by_table
    slices: list[int] = []

    def count_and_write(db: apsw.Connection) -> dict[str, int]:
        found = counted(db)
        rows(paths.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'later', 1.7e9)")
        return found

    def copy_and_write(source: apsw.Connection, target: Path) -> None:
        slices.append(1)
        one(store, fact("mira", f"while {target.name} is copied", request_id=target.name))
        copied(source, target)

    copied = backup._copy_pages
    one(store, fact("mira", "before", request_id="r"))
    monkeypatch.setattr(backup, "_SLICE_PAGES", 1)
    monkeypatch.setattr(backup, "rows_by_table", count_and_write)
    monkeypatch.setattr(backup, "_copy_pages", copy_and_write)
    made = back_up(paths, tmp_path / "b")
    assert made.database.rows["memory_longterm"] == 1
    assert made.state is not None
    assert made.state.rows["requests"] == 1
    assert rows(paths.database, "SELECT count(*) FROM memory_longterm") == [(4,)]
    assert len(slices) == 2


def test_pair_is_of_one_instant(store: WritingStore, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write between the two beginnings: state.db would call it settled, and its row would be missing."""
    begun: list[apsw.Connection] = []
    begin = snapshot._begin

    def begin_and_write(db: apsw.Connection) -> None:
        begin(db)
        begun.append(db)
        if len(begun) == 1:
            one(store, short("sol", "k", "v", request_id="between"))

    monkeypatch.setattr(snapshot, "_begin", begin_and_write)
    with snapshot.snapshot(paths) as seen:
        assert seen.state is not None
        settled = list(seen.state.execute("SELECT row FROM requests WHERE settled"))
        there = list(seen.db.execute("SELECT id FROM memory_short"))
    assert settled == there == [(1,)]
    assert len(begun) == 4


def test_pair_is_consistent_under_writers(store: WritingStore, paths: Paths) -> None:
    """At each instant: a row has its record, and a settled record has its row."""
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            one(store, fact("mira", f"fact {number}", request_id=f"r{number}"))
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    looks = seen_rows = 0
    until = time.monotonic() + 20
    try:
        while (looks < 25 or seen_rows < 25) and time.monotonic() < until:
            with snapshot.snapshot(paths) as seen:
                assert seen.state is not None
                there = {row for (row,) in seen.db.execute("SELECT id FROM memory_longterm")}
                records = dict(seen.state.execute("SELECT row, settled FROM requests"))
            assert there <= set(records)
            assert {row for row, settled in records.items() if settled} <= there
            looks, seen_rows = looks + 1, len(there)
    finally:
        over.set()
        writer.join(20)
    assert seen_rows >= 25


def test_without_an_instant_it_is_busy(
    store: WritingStore, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = iter(range(1_000))
    monkeypatch.setattr(snapshot, "_version", lambda state: next(versions))
    with pytest.raises(StorageBusy, match="no instant"), snapshot.snapshot(paths, within_s=0):
        pass


def test_row_ids_without_a_primary_key_are_kept(paths: Paths, tmp_path: Path) -> None:
    """VACUUM INTO numbers them anew; state.db knows rows by their ids."""
    rows(paths.database, "CREATE TABLE theirs (text TEXT)")
    rows(paths.database, "INSERT INTO theirs(rowid, text) VALUES (7, 'seven'), (90, 'ninety')")
    back_up(paths, tmp_path / "b")
    restore(tmp_path / "b", Paths(tmp_path / "new.db"))
    assert rows(tmp_path / "new.db", "SELECT rowid FROM theirs ORDER BY 1") == [(7,), (90,)]


def test_database_that_was_never_served_has_no_state(paths: Paths, tmp_path: Path) -> None:
    made = back_up(paths, tmp_path / "b")
    assert made.state is None
    assert names(tmp_path / "b") == FILES - {"state.db"}
    assert not paths.folder.exists()
    again = Paths(tmp_path / "new.db")
    restore(tmp_path / "b", again)
    assert not again.folder.exists()
    WritingStore(again).close()


def test_last_backup_is_recorded(store: WritingStore, paths: Paths, tmp_path: Path) -> None:
    assert last_backup(paths) is None
    made = back_up(paths, tmp_path / "b", clock=lambda: 1_790_000_000.0)
    recorded = last_backup(paths)
    assert recorded is not None
    assert (recorded.to, recorded.bytes) == (str(tmp_path / "b"), made.bytes)
    assert recorded.at == "2026-09-21T14:13:20.000Z"
    assert not [path for path in paths.folder.iterdir() if "partial" in path.name]


# --- failures leave nothing ---


def test_existing_folder_is_never_written_over(store: WritingStore, paths: Paths, tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "note").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigurationError, match="exists already"):
        back_up(paths, tmp_path / "b")
    assert names(tmp_path / "b") == {"note"}
    assert last_backup(paths) is None


def test_full_disk_leaves_nothing(
    store: WritingStore, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Manifest, folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Manifest, "write", full)
    (tmp_path / "copies").mkdir()
    with pytest.raises(StorageFull, match="copies is full"):
        back_up(paths, tmp_path / "copies" / "b")
    assert names(tmp_path / "copies") == set()
    assert last_backup(paths) is None


def test_write_that_fails_in_the_middle_leaves_nothing(paths: Paths, tmp_path: Path) -> None:
    """The file system takes no more than 64 KB of a file: SQLite meets that while it copies pages."""
    rows(paths.database, "INSERT INTO memory_longterm(agent, fact) VALUES ('sol', ?)", "x" * 300_000)
    (tmp_path / "copies").mkdir()
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))"
    done = subprocess.run(
        [*planted(limit), "backup", "--db", str(paths.database), "--to", str(tmp_path / "copies" / "b")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (69, "")
    assert f"{tmp_path / 'copies' / 'b'} cannot be made" in done.stderr
    assert "Traceback" not in done.stderr
    assert names(tmp_path / "copies") == set()


def test_damaged_database_is_no_backup(paths: Paths, tmp_path: Path) -> None:
    for number in range(200):
        rows(paths.database, "INSERT INTO memory_longterm(agent, fact) VALUES ('sol', ?)", f"{number} " + "x" * 500)
    rows(paths.database, "PRAGMA wal_checkpoint(TRUNCATE)")
    damaged = bytearray(paths.database.read_bytes())
    middle = len(damaged) // 2 // 4096 * 4096
    damaged[middle : middle + 4096] = b"\xff" * 4096
    paths.database.write_bytes(damaged)
    with pytest.raises(StorageDamaged):
        back_up(paths, tmp_path / "copies" / "b")
    assert names(tmp_path / "copies") == set()


def test_damage_that_only_the_integrity_check_sees_is_no_backup(paths: Paths, tmp_path: Path) -> None:
    """An index that lacks its row: every table can be read and counted."""
    rows(paths.database, "CREATE INDEX theirs ON memory_longterm (topic)")
    rows(paths.database, "INSERT INTO memory_longterm(agent, topic, fact) VALUES ('sol', 'one', 'other')")
    rows(
        paths.database,
        "PRAGMA writable_schema = ON; "
        "UPDATE sqlite_master SET sql = 'CREATE INDEX theirs ON memory_longterm (fact)' WHERE name = 'theirs'",
    )
    with pytest.raises(StorageDamaged, match="missing from index theirs"):
        back_up(paths, tmp_path / "copies" / "b")
    assert names(tmp_path / "copies") == set()


def test_what_a_killed_backup_left_is_removed_by_the_next(paths: Paths, tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait(20)
    left = tmp_path / f".b.partial-{killed.pid}"
    running = tmp_path / f".b.partial-{os.getppid()}"
    for folder in (left, running):
        folder.mkdir()
        (folder / "database.db").write_bytes(b"half")
    back_up(paths, tmp_path / "b")
    assert not left.exists()
    assert running.exists()


# --- restore refuses ---


@pytest.fixture
def backed_up(store: WritingStore, paths: Paths, tmp_path: Path) -> Path:
    """A backup with a fact in it."""
    one(store, fact("mira", "kept", request_id="a"))
    back_up(paths, tmp_path / "b")
    return tmp_path / "b"


@pytest.mark.parametrize("there", ["new.db", "new.db-wal", "new.db-shm", "new.db-journal", "new.db.solos-memory"])
def test_restore_goes_to_a_new_path_only(backed_up: Path, tmp_path: Path, there: str) -> None:
    """A WAL that lies there would be read into the restored database."""
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / there).write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=f"{there} exists already"):
        restore(backed_up, Paths(tmp_path / "to" / "new.db"))
    assert names(tmp_path / "to") == {there}
    assert (tmp_path / "to" / there).read_text(encoding="utf-8") == "mine"


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["database.db", "state.db"])
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_flip, "not the file that the manifest describes"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "not the file that the manifest describes"),
        (Path.unlink, "is missing"),
    ],
    ids=["a bit", "cut", "gone"],
)
def test_changed_backup_is_not_restored(
    backed_up: Path, tmp_path: Path, name: str, change: object, reason: str
) -> None:
    change(backed_up / name)  # type: ignore[operator]
    with pytest.raises(ConfigurationError, match=reason):
        restore(backed_up, Paths(tmp_path / "to" / "new.db"))
    assert not (tmp_path / "to").exists()


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (None, "holds no backup"),
        ("no JSON", "is no manifest"),
        ("[]", "is no manifest"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1, "at": "x", "source": "y", "database": {}, "state": null}', "is no manifest"),
    ],
)
def test_folder_without_a_manifest_is_no_backup(
    backed_up: Path, tmp_path: Path, manifest: str | None, reason: str
) -> None:
    path = backed_up / "manifest.json"
    path.unlink() if manifest is None else path.write_text(manifest, encoding="utf-8")
    with pytest.raises(ConfigurationError, match=reason):
        restore(backed_up, Paths(tmp_path / "to" / "new.db"))
    assert not (tmp_path / "to").exists()


def test_restore_is_all_or_nothing(backed_up: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database's name is taken at the last moment: our folder must not stay beside what is there."""
    to = Paths(tmp_path / "to" / "new.db")
    place_folder = backup.place_folder

    def place_and_take(made: Path, target: Path) -> None:
        place_folder(made, target)
        to.database.write_text("another's", encoding="utf-8")

    monkeypatch.setattr(backup, "place_folder", place_and_take)
    with pytest.raises(ConfigurationError, match="exists already"):
        restore(backed_up, to)
    assert names(tmp_path / "to") == {"new.db"}
    assert to.database.read_text(encoding="utf-8") == "another's"


def test_open_intents_of_the_instant_are_settled_by_the_restored_service(
    store: WritingStore, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An instant between COMMIT and settling: the row is there, so the request happened."""
    monkeypatch.setattr(store._state, "settle", lambda done, dropped: None)
    one(store, fact("mira", "kept", request_id="open"))
    back_up(paths, tmp_path / "b")
    again = Paths(tmp_path / "new.db")
    restore(tmp_path / "b", again)
    restored = WritingStore(again)
    try:
        assert restored.report.intents_settled == 1
        assert one(restored, fact("mira", "kept", request_id="open")).replayed
    finally:
        restored.close()


def test_locked_pages_are_tried_again(paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in WAL mode another process's lock keeps the copy waiting; its end lets it go on, and a long one ends it."""

    class Pages:
        done = False
        tries = 0

        def __enter__(self) -> "Pages":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def step(self, pages: int) -> None:
            Pages.tries += 1
            if Pages.tries < 3 or locked:
                raise apsw.BusyError("locked")
            self.done = True

    class Target:
        def __init__(self, name: str) -> None:
            pass

        def execute(self, statement: str) -> None:
            pass

        def backup(self, *_: object) -> Pages:
            return Pages()

        def close(self) -> None:
            pass

    source = apsw.Connection(str(paths.database))
    monkeypatch.setattr(backup.apsw, "Connection", Target)
    locked = False
    backup._copy_pages(source, tmp_path / "copy")
    assert Pages.tries == 3
    locked = True
    monkeypatch.setattr(limits, "WRITE_BUDGET_S", 0.05)
    with pytest.raises(StorageBusy):
        backup._copy_pages(source, tmp_path / "copy")
    source.close()


def test_what_is_no_database_is_no_backup(tmp_path: Path) -> None:
    (tmp_path / "no.db").write_bytes(b"no database at all")
    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        back_up(Paths(tmp_path / "no.db"), tmp_path / "b")
    assert names(tmp_path) == {"no.db"}
