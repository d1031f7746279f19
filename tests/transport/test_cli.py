"""The command line: the program's own commands, as processes."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import apsw
import httpx2
import pytest

from tests.support import PROGRAM, Service, foreign_lock, fresh_database, rows, serving


def run(*arguments: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """One command."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, timeout=60, env=clean | (env or {}), check=False
    )


def test_help_imports_no_server_and_no_database() -> None:
    code = (
        "import sys\nfrom transport.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "heavy = ('quart', 'mcp', 'hypercorn', 'trio', 'prometheus_client', 'structlog')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("serve", "init", "doctor", "reindex", "openapi", "recall", "remember-long", "purge"):
        assert command in done.stdout


def test_help_of_serve_lists_every_setting() -> None:
    done = run("serve", "--help")
    for name in ("--db", "--bind", "--create", "--log-level", "SOLOS_MEMORY_ALLOWED_HOSTS", "--config"):
        assert name in done.stdout


def test_init_makes_a_database_once(tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    assert run("init", "--db", str(database), "--agents", "sol, mira").returncode == 0
    assert rows(database, "SELECT agent_id FROM agent_registry ORDER BY 1") == [("mira",), ("sol",)]
    before = database.read_bytes()
    again = run("init", "--db", str(database), "--agents", "ace")
    assert (again.returncode, "exists already" in again.stderr) == (78, True)
    assert database.read_bytes() == before


def test_a_path_that_does_not_exist_needs_create(tmp_path: Path) -> None:
    database = tmp_path / "new.db"
    refused = run("serve", "--db", str(database), "--bind", "127.0.0.1:0")
    assert (refused.returncode, "does not exist" in refused.stdout) == (78, True)
    assert not database.exists()
    with serving(database, "--create") as service:
        assert service.rest("POST", "/v1/long", {"agent": "sol", "fact": "x"})[0] == 422


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("--bind", "0.0.0.0:8437"), "not loopback"),
        (("--bind", "nonsense"), "HOST:PORT"),
        (("--log-level", "loud"), "log_level"),
    ],
)
def test_a_bad_setting_ends_with_78(database: Path, flags: tuple[str, ...], reason: str) -> None:
    done = run("serve", "--db", str(database), *flags)
    assert (done.returncode, reason in done.stdout + done.stderr) == (78, True)


def test_a_taken_port_ends_with_78(service: Service, tmp_path: Path) -> None:
    other = fresh_database(tmp_path, "other.db")
    done = run("serve", "--db", str(other), "--bind", f"127.0.0.1:{service.port}")
    assert (done.returncode, "cannot be bound" in done.stdout) == (78, True)


def test_a_second_service_is_told_who_serves(service: Service, database: Path) -> None:
    done = run("serve", "--db", str(database), "--bind", "127.0.0.1:0")
    assert done.returncode == 78
    assert f"pid {service.process.pid}" in done.stdout


def test_the_demo_is_made_once_and_says_so(tmp_path: Path) -> None:
    env = {"XDG_DATA_HOME": str(tmp_path)}
    for _ in range(2):
        with serving(None, env=env) as demo:
            assert demo.rest("GET", "/health")[1]["demo"] is True
            assert demo.stats()["demo"] is True
            assert demo.recall("sol", "gateway port")[0]["agent"] == "mira"
            assert demo.stats()["store"]["rows"]["long"] == 3


def test_the_demo_is_refused_under_a_service_manager(tmp_path: Path) -> None:
    """Behind a held socket likewise: test_missing_database_is_no_demo_under_a_manager."""
    done = run("serve", "--bind", "127.0.0.1:0", env={"NOTIFY_SOCKET": "1", "XDG_DATA_HOME": str(tmp_path)})
    assert (done.returncode, "demo is refused" in done.stdout) == (78, True)
    assert list(tmp_path.iterdir()) == []


def test_misspelt_variables_are_reported_at_start(database: Path) -> None:
    with serving(database, env={"SOLOS_MEMORY_DATABASE": "x"}) as service:
        assert [line["name"] for line in service.events("unknown_variable")] == ["SOLOS_MEMORY_DATABASE"]


def test_the_log_is_json_lines_on_stdout(service: Service) -> None:
    assert service.raw
    for line in service.raw.splitlines():
        assert {"event", "level", "timestamp"} <= set(json.loads(line))


def test_a_service_that_is_down_is_said_clearly() -> None:
    done = run("recall", "--agent", "sol", "zebra", "--url", "http://127.0.0.1:9")
    assert done.returncode == 69
    assert json.loads(done.stdout)["error"]["code"] == "unreachable"
    assert "solos-memory serve" in done.stderr


def test_a_refusal_is_printed_and_is_a_failure(service: Service) -> None:
    code, body = service.cli("remember-long", "--agent", "ghost", "a fact")
    assert (code, body["error"]["code"]) == (1, "unknown_agent")


def test_offline_opens_the_file_itself_and_respects_the_lock(database: Path) -> None:
    done = run("remember-long", "--offline", "--db", str(database), "--agent", "mira", "--tags", "a", "the zebra")
    assert (done.returncode, json.loads(done.stdout)["id"]) == (0, "long:1")
    found = run("recall", "--offline", "--db", str(database), "--agent", "sol", "zebra")
    assert json.loads(found.stdout)["results"][0]["tags"] == ["a"]
    with serving(database) as service:
        refused = run("recall", "--offline", "--db", str(database), "--agent", "sol", "zebra")
        assert refused.returncode == 1
        assert f"pid {service.process.pid}" in json.loads(refused.stdout)["error"]["detail"]


def test_text_of_every_script_survives_a_foreign_locale(service: Service) -> None:
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"}
    code, _ = service.cli("remember-long", "--agent", "mira", "状态数据库 🦓 Müller", env=env)
    assert code == 0
    _, body = service.cli("recall", "--agent", "sol", "Müller", env=env)
    assert body["results"][0]["text"] == "状态数据库 🦓 Müller"


def test_reindex_builds_the_index_anew(database: Path) -> None:
    for text in ("an okapi", "the zebra"):
        run("remember-long", "--offline", "--db", str(database), "--agent", "mira", text)
    rows(database, "DELETE FROM memory_longterm WHERE fact = 'an okapi'")  # its id counts no more
    index = database.with_name(database.name + ".solos-memory") / "cache" / "index.db"
    before = index.stat().st_ino
    done = run("reindex", "--db", str(database))
    assert (done.returncode, done.stdout) == (0, "indexed 1 rows\n")
    assert index.stat().st_ino != before or index.stat().st_size
    found = run("recall", "--offline", "--db", str(database), "--agent", "sol", "zebra")
    assert json.loads(found.stdout)["results"]


def test_reindex_makes_nothing_beside_a_mistyped_path(tmp_path: Path) -> None:
    assert run("reindex", "--db", str(tmp_path / "mistyped.db")).returncode == 78
    assert list(tmp_path.iterdir()) == []


def test_openapi_is_printed() -> None:
    assert json.loads(run("openapi").stdout)["openapi"] == "3.1.0"


# --- doctor ---

NOTHING_HERE = {"SOLOS_MEMORY_BIND": "127.0.0.1:9", "XDG_CONFIG_HOME": "/nonexistent"}
"""No service on the port and no units, whatever runs on this machine."""


def test_doctor_shows_the_mapping_and_changes_nothing(database: Path) -> None:
    before = database.read_bytes()
    done = run("doctor", "--db", str(database), env=NOTHING_HERE)
    assert done.returncode == 0, done.stdout
    assert "memory_longterm: agent=agent, text=fact, topic=topic" in done.stdout
    assert "journal: wal" in done.stdout
    assert database.read_bytes() == before
    assert not database.with_name(database.name + ".solos-memory").exists()


def test_doctor_names_what_is_wrong_and_the_next_step(database: Path, tmp_path: Path) -> None:
    rows(database, "PRAGMA journal_mode = delete")
    rows(database, "DELETE FROM agent_registry")
    done = run("doctor", "--db", str(database), env={"SOLOS_MEMORY_BINDING": "x"} | NOTHING_HERE)
    assert done.returncode == 1
    for text in ("WARN  journal: delete", "WARN  agents: none", "WARN  settings: the variable SOLOS_MEMORY_BINDING"):
        assert text in done.stdout
    assert done.stdout.count("→") == 3
    missing = run("doctor", "--db", str(tmp_path / "none.db"))
    assert (missing.returncode, "FATAL database" in missing.stdout) == (78, True)


def test_doctor_finds_a_damaged_page(database: Path) -> None:
    content = bytearray(database.read_bytes())
    content[4096 * 2 + 100 :] = b"\xff" * (len(content) - 4096 * 2 - 100)
    database.write_bytes(content)
    done = run("doctor", "--db", str(database))
    assert done.returncode == 78
    assert "FATAL" in done.stdout


@pytest.fixture
def exclusively_held(database: Path) -> Iterator[Path]:
    """A database that another process holds exclusively, as a backup or a migration does."""
    rows(database, "PRAGMA journal_mode = delete")
    with contextlib.closing(apsw.Connection(str(database))) as db:
        db.execute("BEGIN EXCLUSIVE")
        yield database


def test_a_database_that_is_held_exclusively_is_named_as_the_reason(exclusively_held: Path) -> None:
    seen = run("doctor", "--db", str(exclusively_held))
    assert (seen.returncode, "locked by another process" in seen.stdout) == (78, True)
    refused = run("recall", "--offline", "--db", str(exclusively_held), "--agent", "sol", "zebra")
    assert (refused.returncode, json.loads(refused.stdout)["error"]["code"]) == (1, "storage_busy")


def test_doctor_says_who_serves(service: Service, database: Path) -> None:
    with foreign_lock(database):
        done = run("doctor", "--db", str(database))
    assert f"held by pid {service.process.pid}" in done.stdout


def test_a_log_that_nobody_reads_any_more_fails_no_call(database: Path) -> None:
    """`serve | head`: the reader goes, the service stays."""
    process = subprocess.Popen(
        [*PROGRAM, "serve", "--db", str(database), "--bind", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        if json.loads(line)["event"] == "serving":
            url = json.loads(line)["url"]
            break
    process.stdout.close()
    try:
        for n in range(3):
            answer = httpx2.post(f"{url}/v1/long", json={"agent": "mira", "fact": f"fact {n}"})
            assert answer.status_code == 201, answer.text
    finally:
        process.terminate()
        assert process.wait(12) == 0
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(3,)]


def test_a_taken_port_is_told_before_the_database_is_touched(service: Service, tmp_path: Path) -> None:
    other = fresh_database(tmp_path, "other.db")
    rows(other, "PRAGMA journal_mode = delete")
    before = other.read_bytes()
    assert run("serve", "--db", str(other), "--bind", f"127.0.0.1:{service.port}").returncode == 78
    assert other.read_bytes() == before
    assert not other.with_name("other.db.solos-memory").exists()


@pytest.mark.parametrize("agents", ["", " , ", "x" * 129])
def test_init_refuses_what_is_no_list_of_ids(tmp_path: Path, agents: str) -> None:
    assert run("init", "--db", str(tmp_path / "new.db"), "--agents", agents).returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_init_takes_each_agent_once(tmp_path: Path) -> None:
    assert run("init", "--db", str(tmp_path / "new.db"), "--agents", "sol,sol").returncode == 0
    assert rows(tmp_path / "new.db", "SELECT agent_id FROM agent_registry") == [("sol",)]


def test_tags_may_be_given_with_commas(service: Service) -> None:
    service.cli("remember-long", "--agent", "mira", "--tags", "one,two", "the zebra")
    assert service.recall("sol", "zebra", tags="two")[0]["tags"] == ["one", "two"]


def test_a_connection_that_breaks_after_a_write_was_sent_is_not_called_unreachable() -> None:
    """The row may be on disk: sending it again would double it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def hang_up() -> None:
            for _ in range(2):
                connection, _address = server.accept()
                connection.recv(10_000)
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        written = run("remember-long", "--agent", "mira", "x", "--url", url)
        read = run("recall", "--agent", "mira", "x", "--url", url)
        thread.join(5)
    assert json.loads(written.stdout)["error"]["code"] == "outcome_unknown"
    assert json.loads(read.stdout)["error"]["code"] == "unreachable"
