"""Cases C024 and C079: what is exported is imported once, and is found as if it had been written."""

import json
import os
import subprocess
from pathlib import Path

from tests.support import PROGRAM, Service, fresh_database, rows, serving

EX_CONFIG = 78


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """One command, with this on its standard input."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
    return subprocess.run([*PROGRAM, *arguments], input=given, capture_output=True, timeout=120, env=clean, check=False)


def exported(database: Path) -> bytes:
    """An export that must succeed."""
    done = run("export", "--db", str(database))
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_some(service: Service) -> None:
    """Rows of every tier."""
    for number in range(40):
        service.long(
            "mira", f"fact {number} about 記憶", topic="t", confidence=number / 40, tags=["a", "b"], session="s"
        )
        body = {"agent": "sol", "summary": f"did {number}", "details": "more", "outcome": "success", "duration_s": 1.5}
        assert service.rest("POST", "/v1/episodic", body)[0] == 201
        key = {"agent": "sol", "key": f"k{number}", "value": "v", "ttl_s": 3600}
        assert service.rest("POST", "/v1/short", key)[0] == 201


def test_c024_imported_facts_are_found_like_written_ones(database: Path) -> None:
    """Import JSONL of 100 facts, then recall exact text of one: first hit is the imported row."""
    line = {"tier": "long", "agent": "mira", "created_at": "2026-01-02T03:04:05.000000Z", "topic": "ports"}
    lines = [json.dumps(line | {"fact": f"Relay {name} listens on port {7000 + name}."}) for name in range(100)]
    done = run("import", "--db", str(database), given="\n".join(lines).encode())
    assert (done.returncode, done.stdout) == (0, b"imported 100, already there 0, refused 0\n")
    with serving(database) as service:
        first = service.recall("sol", "Relay 42 listens on port 7042.", k=3)[0]
        assert (first["text"], first["agent"]) == ("Relay 42 listens on port 7042.", "mira")
        assert (first["topic"], first["created_at"]) == ("ports", "2026-01-02T03:04:05.000Z")


def test_c079_import_twice_adds_nothing_and_an_empty_database_gets_all(database: Path, tmp_path: Path) -> None:
    """Export while the service runs; into the same database, twice, and into an empty one; the same bytes again."""
    with serving(database) as service:
        write_some(service)
        there = exported(database)
        running = run("import", "--db", str(database), given=there)
        assert (running.returncode, b"Another solos-memory process" in running.stderr) == (EX_CONFIG, True)
    assert there.count(b"\n") == 120
    for _ in range(2):
        done = run("import", "--db", str(database), given=there)
        assert (done.returncode, done.stdout) == (0, b"imported 0, already there 120, refused 0\n")
    assert exported(database) == there
    empty = fresh_database(tmp_path, "empty.db")
    done = run("import", "--db", str(empty), given=there)
    assert (done.returncode, done.stdout) == (0, b"imported 120, already there 0, refused 0\n")
    assert exported(empty) == there
    for table in ("memory_longterm", "memory_episodic", "memory_short"):
        counted = f"SELECT count(*) FROM {table}"
        assert rows(empty, counted) == rows(database, counted) == [(40,)]


def test_every_refused_line_is_told_by_its_number(database: Path) -> None:
    """300 lines of an unknown agent among good ones: each by its number, all of them counted, exit 2."""
    line = {"tier": "long", "created_at": None}
    bad = [json.dumps(line | {"agent": "ghost", "fact": f"x{number}"}) for number in range(300)]
    good = [json.dumps(line | {"agent": "sol", "fact": f"good {number}"}) for number in range(10)]
    done = run("import", "--db", str(database), given="\n".join(good[:5] + bad + good[5:]).encode())
    assert (done.returncode, done.stdout) == (2, b"imported 10, already there 0, refused 300\n")
    told = done.stderr.decode().splitlines()
    assert told[0].startswith("line 6: The agent 'ghost' is not in agent_registry.")
    numbers = [int(text.split()[1].rstrip(":")) for text in told if "ghost" in text]
    assert numbers == list(range(6, 306))


def test_export_and_import_of_files(database: Path, tmp_path: Path) -> None:
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'x', 1.7e9)")
    out = tmp_path / "all.jsonl"
    done = run("export", "--db", str(database), "--out", str(out), "--durable")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"exported 3 rows\n")
    again = run("export", "--db", str(database), "--out", str(out))
    assert (again.returncode, b"exists already" in again.stderr) == (EX_CONFIG, True)
    done = run("import", "--db", str(database), "--in", str(out))
    assert (done.returncode, done.stdout) == (2, b"imported 0, already there 1, refused 2\n")
    missing = run("import", "--db", str(database), "--in", str(tmp_path / "none"))
    assert (missing.returncode, b"cannot be read" in missing.stderr) == (EX_CONFIG, True)
    mistyped = run("import", "--db", str(tmp_path / "mistyped.db"), "--in", str(out))
    assert (mistyped.returncode, b"does not exist" in mistyped.stderr) == (EX_CONFIG, True)
    assert not list(tmp_path.glob("mistyped*"))
