"""The throughput benchmark on a small database, a second for each kind: that it measures, and notices what it is for.

No figure is asserted: those are `make bench-load` on a quiet machine, runbooks/load.md.
"""

import functools
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import hot_path, throughput
from tests.bench.hot_path import ORDER
from tests.bench.load_mix import unlike_the_table
from tests.bench.stamps import ASKED, BEGINS, ENDS, LOOK, PARTS, THERE
from tests.bench.throughput import PAIRS, Count
from tests.faults.scale import scaled
from tests.support import fresh_database, rows

ROOT = Path(__file__).parents[2]
GENERATOR = ROOT / "tests/bench/gen_fleet.py"
TIMED = "ratio"
QUESTIONS = 30


def made(folder: Path) -> Path:
    """A small fleet's database, with its questions beside it."""
    database = folder / "fleet.db"
    command = [sys.executable, str(GENERATOR), "--sqlite", str(database), "--rows", "2000", "--needles", str(QUESTIONS)]
    subprocess.run(command, check=True, capture_output=True)
    return database


def test_throughput_is_measured_beside_the_bare_stack(tmp_path: Path) -> None:
    """Needs wrk, as `make bench-load` does: .ci/run installs it."""
    database, report = made(tmp_path), tmp_path / "load.json"
    before = database.read_bytes()
    lasting = ["--seconds", "1", "--rounds", scaled("1", "3"), "--connections", "4", "--mix-s", "1"]
    command = [sys.executable, "-m", "tests.bench.throughput", str(database), *lasting, "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout, done.stderr)
    figures = json.loads(report.read_text(encoding="utf-8"))
    assert [line for line in figures["limits"] if not line["kept"] and TIMED not in line["name"]] == []
    assert done.returncode == (0 if all(line["kept"] for line in figures["limits"]) else 1)
    assert set(figures["pairs"]) == {f"{pair.name}, 4" for pair in PAIRS}
    assert all(pair["ratio"] > 0 and pair["service"]["p99_ms"] > 0 for pair in figures["pairs"].values())
    assert figures["known_before"] == figures["known_after"] == {"REST": 1.0, "MCP": 1.0}
    assert figures["added"]["in_table"] > 0
    assert figures["mix"]["acknowledged"] > 0
    assert database.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


def test_the_hot_path_shows_what_a_look_in_its_process_is_made_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hot_path, "WARM", 3)
    routes = hot_path.measure(made(tmp_path), 10)
    assert set(routes) == set(hot_path.KINDS)
    for kind in ("GET /v1/recall", "POST /mcp"):
        stages, parts = routes[kind].stages, routes[kind].parts
        assert {ASKED, THERE, LOOK} <= set(stages)
        assert all(cpu > 0 for _, cpu in (stages[ASKED], stages[THERE], stages[LOOK]))
        assert 0 < sum(cpu for part, (_, cpu) in parts.items() if part.startswith("look: ")) < stages[LOOK][1]
    assert LOOK not in routes["POST /v1/long"].stages


def test_a_part_of_the_upkeep_is_no_part_of_the_request_beside_it() -> None:
    parts = {"sent: socket": [50_000, 40_000], "index follows: terms added": [9_000, 9_000]}
    record = {"marks": [["received", 0, 0], ["sent", 70_000, 60_000]], "parts": parts}
    assert hot_path.route_of([record]).parts == {"sent: socket": (50.0, 40.0)}


def test_the_profile_is_kept_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    route = hot_path.Route(1, {"sent": (70.0, 60.0)}, {})
    monkeypatch.setattr(hot_path, "measure", lambda *_: dict.fromkeys(hot_path.KINDS, route))
    monkeypatch.setattr(sys, "argv", ["throughput", "any.db", "--profile", "--json", str(tmp_path / "path.json")])
    throughput.main()
    kept = json.loads((tmp_path / "path.json").read_text(encoding="utf-8"))
    assert kept["GET /v1/recall"]["stages"] == {"sent": [70.0, 60.0]}


@pytest.mark.parametrize(("module", "name", "done"), [*BEGINS, *ENDS, *PARTS])
def test_what_the_hot_path_stamps_is_there(module: str, name: str, done: str) -> None:
    """Shipped code does not know that it is stamped; who renames a seam learns it here."""
    owner = importlib.import_module(module)
    assert callable(functools.reduce(getattr, name.split("."), owner))
    assert done.partition(": ")[0] in ORDER


@pytest.mark.parametrize(
    ("count", "agrees"),
    [
        (Count(in_table=100, in_stats=100, acknowledged=100, unknown=0), True),
        (Count(in_table=101, in_stats=101, acknowledged=100, unknown=2), True),
        (Count(in_table=99, in_stats=99, acknowledged=100, unknown=2), False),
        (Count(in_table=103, in_stats=103, acknowledged=100, unknown=2), False),
        (Count(in_table=100, in_stats=101, acknowledged=100, unknown=2), False),
    ],
)
def test_rows_must_be_the_writes_that_were_counted(count: Count, agrees: bool) -> None:
    assert count.agrees is agrees


def test_journal_and_table_are_compared_both_ways(tmp_path: Path) -> None:
    database = fresh_database(tmp_path)
    insert = "INSERT INTO memory_longterm(agent, topic, fact, created_at) VALUES ('sol', 'load-mix', ?, 0)"
    for fact in ("told", "changed", "untold"):
        rows(database, insert, fact)
    assert unlike_the_table(database, {1: "told", 2: "changed", 3: "untold"}) == []
    found = unlike_the_table(database, {1: "told", 2: "as it was told", 9: "gone"})
    assert [line.partition(":")[0] for line in found] == ["lost", "lost", "unacknowledged"]
