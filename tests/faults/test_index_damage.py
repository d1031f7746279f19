"""The index file is truncated, emptied, deleted, replaced or overwritten: never a wrong row, never a silent gap.

Whatever happens to it, the memories are in the database: a recall finds the damage, says so, and it is rebuilt.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.paths import Paths
from tests.faults.foreign import ForeignProcess
from tests.support import Service, eventually, rows, serving

FACTS = 60
REBUILT_WITHIN_S = 15.0


def index_of(service: Service) -> Path:
    """The service's index file."""
    assert service.database is not None
    return Paths(service.database).index


def beside(index: Path) -> list[Path]:
    """The index file and what SQLite keeps beside it."""
    return [index.with_name(index.name + suffix) for suffix in ("", "-wal", "-shm")]


def truncate(index: Path) -> None:
    """Half of the file is gone."""
    os.truncate(index, index.stat().st_size // 2)


def truncate_to_a_header(index: Path) -> None:
    """All but SQLite's header is gone."""
    os.truncate(index, 100)


def empty(index: Path) -> None:
    """No byte is left of any of its files."""
    for path in beside(index):
        if path.exists() and not path.name.endswith("-shm"):  # truncating shared memory kills whoever has it mapped
            os.truncate(path, 0)


def delete(index: Path) -> None:
    """The file alone is deleted."""
    index.unlink()


def delete_all(index: Path) -> None:
    """The file and what belongs to it."""
    for path in beside(index):
        path.unlink(missing_ok=True)


def delete_folder(index: Path) -> None:
    """The whole cache folder: it may be deleted at any time."""
    shutil.rmtree(index.parent)


def replace_by_nonsense(index: Path) -> None:
    """Another file, which is no database, takes its place."""
    other = index.with_name("other")
    other.write_bytes(b"nonsense " * 10_000)
    os.replace(other, index)


def replace_by_a_foreign_database(index: Path) -> None:
    """A sound database, but not an index."""
    other = index.with_name("other")
    with ForeignProcess(other) as foreign:
        foreign.execute("CREATE TABLE recipes (title TEXT)")
    os.replace(other, index)


def overwrite(index: Path) -> None:
    """Nonsense over the whole of the file, which stays the same file."""
    with index.open("r+b") as file:
        file.write(b"\xa5" * index.stat().st_size)


DAMAGES = [
    truncate,
    truncate_to_a_header,
    empty,
    delete,
    delete_all,
    delete_folder,
    replace_by_nonsense,
    replace_by_a_foreign_database,
    overwrite,
]


def fill(service: Service) -> None:
    """Facts in the service's store; its index is whole, copied from the log into the file, and read."""
    for number in range(FACTS):
        service.long("mira", f"damagequest number{number} " + "padding " * 40)
    with ForeignProcess(index_of(service)) as foreign:
        foreign.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(8):  # both readers now have its pages in memory: the worst case to find damage in
        service.recall("sol", f"number{number}")


def asked(service: Service, number: int) -> tuple[bool, bool]:
    """(found, said): whether a recall shows the row, and whether it says why it may not. It never shows a wrong one."""
    status, body = service.rest("GET", "/v1/recall", agent="sol", q=f"number{number}", k=5)
    if status == 503:
        assert body["error"]["code"] in ("storage_unavailable", "not_ready"), body
        return False, True
    assert status == 200, body
    texts = [memory["text"].split()[1] for memory in body["results"]]
    assert texts in ([], [f"number{number}"])
    return bool(texts), bool({"index_rebuilding", "index_behind"} & set(body["degraded_reasons"]))


def inode(path: Path) -> int | None:
    """Which file this is; None where there is none."""
    return path.stat().st_ino if path.exists() else None


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_under_the_running_service(service: Service, damage: Callable[[Path], None]) -> None:
    """Found within one recall: it is answered rightly or says why not; then the file is a new one, with every row."""
    fill(service)
    index = index_of(service)
    before = inode(index)
    with index.open("rb"):  # holds the old file, so that its inode is not used again
        damage(index)
        found, said = asked(service, 7)
        assert found or said, "an empty answer without a reason"
        eventually(lambda: inode(index) not in (None, before), REBUILT_WITHIN_S)
    eventually(lambda: asked(service, 7) == (True, False), REBUILT_WITHIN_S)
    for number in range(FACTS):
        assert asked(service, number) == (True, False)
    stats = service.stats()
    assert stats["store"]["rows"]["long"] == FACTS
    assert stats["store"]["index_share"] == 1.0
    eventually(lambda: service.rest("GET", "/health")[1]["reasons"] == [])
    assert rows(service.database, "PRAGMA integrity_check") == [("ok",)]
    assert rows(service.database, "SELECT count(*) FROM memory_longterm") == [(FACTS,)]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_write_over_a_damaged_index_is_a_write(service: Service, damage: Callable[[Path], None]) -> None:
    """The first to meet the damage is a write: it is acknowledged, and its row is found, or said to be behind."""
    fill(service)
    damage(index_of(service))
    written = service.long("mira", "afterquest row")
    found = [memory["id"] for memory in service.recall("sol", "afterquest")]
    if found != [written["id"]]:
        _, body = service.rest("GET", "/v1/recall", agent="sol", q="afterquest")
        reasons = set(body["degraded_reasons"]) | set(written["degraded_reasons"])
        assert reasons & {"index_behind", "index_rebuilding"}
    eventually(lambda: [memory["id"] for memory in service.recall("sol", "afterquest")] == [written["id"]])
    eventually(lambda: all(asked(service, number) == (True, False) for number in (0, FACTS - 1)), REBUILT_WITHIN_S)


MANY = (
    "INSERT INTO memory_longterm(agent, fact, created_at) WITH RECURSIVE n(i) AS "
    "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000) "
    "SELECT 'ace', 'rebuildquest number' || i || ' among many words of no importance', i FROM n"
)


def test_a_rebuild_says_how_far_it_is(database: Path) -> None:
    """While thousands of rows are indexed anew: the reason and the share done, growing, and a line in the log."""
    rows(database, MANY)
    with serving(database) as service:
        eventually(lambda: service.stats()["store"]["index_share"] == 1.0, 60)
        delete_all(index_of(service))
        shares: list[float] = []

        def rebuilt() -> bool:
            status, body = service.rest("GET", "/v1/recall", agent="sol", q="number5999")
            if status == 200 and "index_rebuilding" in body["degraded_reasons"]:
                shares.append(body["index_share"])
                return False
            return status == 200 and bool(body["results"])

        eventually(rebuilt, 60)
        assert shares, "no recall said that the index was being rebuilt"
        assert shares == sorted(shares)
        assert 0.0 <= shares[0] <= shares[-1] <= 1.0
        assert service.recall("sol", "number5999")[0]["text"].startswith("rebuildquest number5999 ")
        eventually(lambda: bool(service.events("index_rebuilding")), 5)
        assert all(0.0 <= line["share"] <= 1.0 for line in service.events("index_rebuilding"))


def test_damage_while_the_service_was_down(database: Path) -> None:
    """A file that is damaged at the start is made anew, and the start says so."""
    with serving(database) as service:
        fill(service)
        index = index_of(service)
    truncate(index)
    with serving(database) as service:
        eventually(lambda: asked(service, 7) == (True, False), REBUILT_WITHIN_S)
        assert all(asked(service, number) == (True, False) for number in range(FACTS))
