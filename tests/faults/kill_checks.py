"""What must hold of the files beside each other after a restart, whatever was killed when."""

from collections.abc import Collection, Iterable
from pathlib import Path

from storage.database import open_reader
from storage.paths import Paths
from storage.rows import SEARCHED, select_digests
from storage.schema import introspect
from storage.search.index import BEFORE_ALL_ROWS, Index
from tests.support import Service, eventually, rows

_AFTER_ALL_ROWS = 2**63 - 1
_FOLLOWED_WITHIN_S = 20.0
TABLES = {"long": "memory_longterm", "episodic": "memory_episodic", "short": "memory_short"}


def check_sound(database: Path) -> None:
    """None of the files that others may open while the service runs is damaged."""
    paths = Paths(database)
    for file in (paths.database, paths.state, paths.index):
        assert rows(file, "PRAGMA integrity_check") == [("ok",)], file


def check_settled(database: Path) -> None:
    """The end of each request is known."""
    assert rows(Paths(database).state, "SELECT count(*) FROM requests WHERE NOT settled") == [(0,)]


def check_counts(service: Service, database: Path) -> None:
    """The service counts what the tables hold. Nobody else may write now."""
    counted = {tier: rows(database, f"SELECT count(*) FROM {table}")[0][0] for tier, table in TABLES.items()}
    store = service.stats()["store"]
    assert {tier: store["rows"][tier] for tier in TABLES} == counted


def check_authors(database: Path, known: Collection[str]) -> None:
    """No row is of anybody else."""
    for table in TABLES.values():
        assert {agent for (agent,) in rows(database, f"SELECT DISTINCT agent FROM {table}")} <= set(known)


def check_index(database: Path) -> None:
    """The index holds each row of the tables as it is, and no other; its counts agree. Nobody else may write now."""
    paths = Paths(database)
    db = open_reader(paths.database)
    index = Index(paths.index, writable=False)
    try:
        schema = introspect(db, paths.database)
        for tier in SEARCHED:
            table = dict(select_digests(db, schema, tier, ""))
            eventually(
                lambda tier=tier, table=table: index.rows_after(tier, BEFORE_ALL_ROWS, _AFTER_ALL_ROWS) == table,
                within_s=_FOLLOWED_WITHIN_S,
            )
            assert index.size(tier)[0] == len(table)
    finally:
        index.close()
        db.close()


def check_recall(service: Service, sampled: Iterable[tuple[str, str, str]]) -> None:
    """Each of some (tier, agent, text) is found by its words, once."""
    for tier, agent, text in sampled:
        found = service.recall("main", text, tiers=tier, k=50)
        assert [memory["agent"] for memory in found if memory["text"] == text] == [agent]


def check_calm(service: Service) -> None:
    """Nothing unexpected is in its log."""
    for word in ("Traceback", "malformed", "storage_damaged", "reconcile_failed"):
        assert word not in service.raw, service.raw
