"""The cases about running it: an index that is lost under the service, and a restart that nobody's recall notices."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from storage.database import fetch
from storage.paths import Paths
from tests.acceptance.asking import answer
from tests.faults.test_index_damage import delete, delete_all, overwrite, truncate
from tests.support import PROGRAM, Service, eventually, rows, serving

EX_CONFIG = 78
REBUILT_WITHIN_S = 60.0

# --- C026: the index is deleted or damaged while the service runs ---

FACTS = 6_000
"""So many that the rebuild lasts longer than one recall: its window is seen."""
GONE, KEPT = "gonequest", "keptquest"
FILL = (
    "INSERT INTO memory_longterm(agent, fact, created_at) WITH RECURSIVE n(i) AS "
    f"(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {FACTS}) "
    "SELECT 'ace', 'fillquest number' || i || ' among many words of no importance', i FROM n"
)


@contextlib.contextmanager
def watched(database: Path) -> Iterator[Callable[[], tuple[Any, ...]]]:
    """What another process sees of the database: whether anybody committed, its schema, and every row of ours."""
    with contextlib.closing(apsw.Connection(str(database), flags=apsw.SQLITE_OPEN_READONLY)) as db:
        tables = [name for (name,) in fetch(db, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]

        def seen() -> tuple[Any, ...]:
            contents = [fetch(db, f'SELECT * FROM "{name}" ORDER BY rowid') for name in tables]
            return db.pragma("data_version"), fetch(db, "SELECT * FROM sqlite_master ORDER BY name"), contents

        yield seen


def reindex(database: Path) -> tuple[int, str]:
    """(exit code, what it said) of the documented command."""
    command = [*PROGRAM, "reindex", "--db", str(database)]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    return done.returncode, (done.stdout + done.stderr).decode()


def asked(service: Service, q: str) -> tuple[list[str], set[str]]:
    """(texts, reasons) of a recall: texts that are empty without a reason are a lie."""
    status, body = service.rest("GET", "/v1/recall", agent="sol", q=q)
    if status == 503:
        assert body["error"]["code"] in ("storage_unavailable", "not_ready"), body
        return [], {body["error"]["code"]}
    assert status == 200, body
    assert body["degraded"] is True
    reasons = set(body["degraded_reasons"]) - {"no_embedder"}
    return [memory["text"] for memory in body["results"]], reasons


@pytest.mark.parametrize("damage", [delete, delete_all, truncate, overwrite])
def test_c026_index_is_lost_while_serving(database: Path, damage: Callable[[Path], None]) -> None:
    """It comes back by itself, without deleted memories, and no answer is empty without saying why."""
    rows(database, FILL)
    with serving(database) as service:
        gone, kept = (service.long("mira", f"The {word} is in the cellar.") for word in (GONE, KEPT))
        eventually(lambda: service.stats()["store"]["index_share"] == 1.0, REBUILT_WITHIN_S)
        rows(database, "DELETE FROM memory_longterm WHERE id = ?", int(gone["id"].partition(":")[2]))
        with watched(database) as seen:
            before = seen()
            damage(Paths(database).index)
            code, said = reindex(database)
            assert (code, "serves" in said, "Stop it first" in said) == (EX_CONFIG, True, True), said
            wait_for_the_way_back(service)
            assert asked(service, GONE) == ([], set())
            assert service.rest("GET", "/health") == (200, {"status": "ok", "reasons": [], "demo": False})
            assert service.recall("sol", "number5999")[0]["text"].startswith("fillquest number5999 ")
            assert service.recall("sol", KEPT)[0]["id"] == kept["id"]
            assert seen() == before
        indexed = rows(Paths(database).index, "SELECT row FROM long_documents ORDER BY row")
        assert indexed == rows(database, "SELECT id FROM memory_longterm ORDER BY id")
        assert rows(database, "PRAGMA integrity_check") == [("ok",)]


def wait_for_the_way_back(service: Service) -> None:
    """Until the index is whole again: a recall shows the fact or says why it may not, and never a deleted one."""

    def back() -> bool:
        texts, reasons = asked(service, KEPT)
        assert texts == [f"The {KEPT} is in the cellar."] or reasons, "an empty answer without a reason"
        deleted, _ = asked(service, GONE)
        assert deleted == []
        return bool(texts) and not reasons and not asked(service, GONE)[1]

    eventually(back, REBUILT_WITHIN_S)


def test_c026_rebuild_says_so_until_it_is_done(database: Path) -> None:
    """With thousands of rows there is a window, and every answer in it has a reason."""
    rows(database, FILL)
    with serving(database) as service:
        eventually(lambda: service.stats()["store"]["index_share"] == 1.0, REBUILT_WITHIN_S)
        delete_all(Paths(database).index)
        reasons: list[set[str]] = []

        def back() -> bool:
            texts, said = asked(service, "number5999")
            reasons.append(said)
            assert texts or said
            return bool(texts) and not said

        eventually(back, REBUILT_WITHIN_S)
        assert {"index_rebuilding"} in reasons


def test_c026_reindex_with_the_service_stopped(database: Path) -> None:
    """The documented command makes the index anew from the tables, and touches nothing of them."""
    with serving(database) as service:
        for number in range(20):
            service.long("mira", f"offlinequest number{number}")
    rows(database, "DELETE FROM memory_longterm WHERE fact = 'offlinequest number7'")
    Paths(database).index.write_bytes(b"nonsense " * 1_000)
    with watched(database) as seen:
        before = seen()
        code, said = reindex(database)
        assert (code, "indexed" in said) == (0, True), said
        assert seen() == before
    assert rows(Paths(database).index, "SELECT count(*) FROM long_documents") == [(19,)]
    with serving(database) as service:
        assert asked(service, "number7") == ([], set())
        assert asked(service, "number8") == (["offlinequest number8"], set())


# --- C027: a restart between a write and its recall ---

PLACES = ("harbour", "cellar", "attic", "orchard", "library")
THINGS = ("lantern", "ledger", "compass", "kettle", "anvil", "violin", "barometer", "sextant", "loom", "abacus")
QUESTIONS = (
    *(f"where is the {thing}" for thing in THINGS),
    *(f"what lies in the {place}" for place in PLACES),
    "who moved the lantern to the cellar",
    "number17",
    "harbour OR attic",
    "nothing of the kind",
)
FILTERS: tuple[dict[str, Any], ...] = ({"k": 3}, {"scope": "own"}, {"topic": "attic"}, {"tags": "odd"})


def remember_fifty(service: Service) -> None:
    """Fifty facts of two agents, with topics and tags."""
    for number in range(50):
        thing, place = THINGS[number % 10], PLACES[number // 10]
        agent, tag = ("sol", "even") if number % 2 == 0 else ("mira", "odd")
        service.long(agent, f"The {thing} number{number} lies in the {place}.", topic=place, tags=[tag])


def everything_asked(service: Service) -> list[dict[str, Any]]:
    """The whole answers to every question and filter, on every transport."""
    plain = [answer(service, q, k=20) for q in QUESTIONS]
    return plain + [answer(service, "what lies in the attic", **query) for query in FILTERS]


@pytest.mark.parametrize("end", [Service.stop, Service.kill], ids=["SIGTERM", "kill -9"])
def test_c027_recall_is_the_same_after_a_restart(database: Path, end: Callable[[Service], object]) -> None:
    """The same rows in the same order with the same scores; nothing is rebuilt, and nothing degraded."""
    with serving(database) as service:
        remember_fifty(service)
        before = everything_asked(service)
        end(service)
    assert sum(bool(body["results"]) for body in before) > len(before) / 2
    with serving(database) as service:
        assert everything_asked(service) == before
        assert all(body["degraded_reasons"] == ["no_embedder"] for body in before)
        assert service.stats()["store"]["rows"]["long"] == 50
        assert not service.events("index_rebuilding")
