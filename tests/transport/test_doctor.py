"""`solos-memory doctor`: each subject where all is well, and where it is not, with its next step."""

import contextlib
import fcntl
import http.server
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.inspection import inspect_database
from tests.support import PROGRAM, Service, eventually, foreign_lock, fresh_database, rows, serving
from transport.doctor import _root
from transport.units import Placed, install

OURS = ".solos-memory"
DAY_S = 86_400


class Doctor:
    """The command in an environment of its own, with nothing installed and a port that nobody has."""

    def __init__(self, home: Path) -> None:
        home.mkdir()
        self.units = home / "config" / "systemd" / "user"
        others = ("SOLOS_MEMORY_", "HERMES_")
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        self.environment |= {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config")}
        self.environment["SOLOS_MEMORY_BIND"] = f"127.0.0.1:{free_port()}"

    def look(self, database: Path | None, **variables: str) -> "Told":
        """One run."""
        where = [] if database is None else ["--db", str(database)]
        done = subprocess.run(
            [*PROGRAM, "doctor", *where],
            capture_output=True,
            text=True,
            timeout=30,
            env=self.environment | variables,
            check=False,
        )
        assert not done.stderr, done.stderr
        return Told(done.returncode, done.stdout)


class Told:
    """What a run printed."""

    def __init__(self, code: int, printed: str) -> None:
        self.code = code
        self.printed = printed
        self._lines = printed.splitlines()

    def about(self, subject: str) -> list[str]:
        """The lines of a subject, each with its next step."""
        steps = [*self._lines[1:], ""]
        return [
            line + (" " + after.strip() if after.startswith("      ") else "")
            for line, after in zip(self._lines, steps, strict=True)
            if line[6:].startswith(f"{subject}: ")
        ]

    def one(self, subject: str) -> str:
        """The only line of a subject."""
        (line,) = self.about(subject)
        return line


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """A doctor who finds nothing installed."""
    return Doctor(tmp_path / "home")


def test_every_subject_is_told_where_all_is_well(doctor: Doctor, database: Path) -> None:
    told = doctor.look(database)
    assert told.code == 0, told.printed
    assert "→" not in told.printed
    for subject in ("packages", "settings", "database", "integrity", "journal", "index", "units", "port", "clock"):
        assert told.one(subject).startswith("ok "), subject
    assert told.one("index") == "ok    index: not built yet; the service builds it at start"
    assert f"{database.stat().st_size:,} bytes" in told.one("database")
    assert not database.with_name(database.name + OURS).exists()
    assert {line[:6] for line in told.about("swarm")} == {"ok    "}


def test_every_warning_has_its_next_step(doctor: Doctor, tmp_path: Path) -> None:
    told = doctor.look(tmp_path / "none.db", SOLOS_MEMORY_LOG_LEVEL="loud", SOLOS_MEMORY_COLOUR="red")
    assert told.code == 78
    levels = [line for line in told.printed.splitlines() if line.startswith(("WARN", "FATAL"))]
    assert len(levels) == told.printed.count("→") == 3


# --- settings ---


def test_each_bad_setting_is_named(doctor: Doctor, database: Path) -> None:
    bad = {"LOG_LEVEL": "loud", "CREATE": "perhaps", "COLOUR": "red", "BINDING": "x"}
    told = doctor.look(database, **{f"SOLOS_MEMORY_{name}": value for name, value in bad.items()})
    assert told.code == 78
    lines = told.about("settings")
    assert [line.split()[0] for line in lines] == ["WARN", "WARN", "FATAL", "FATAL"]
    for name, line in zip(["SOLOS_MEMORY_BINDING", "SOLOS_MEMORY_COLOUR", "create", "log_level"], lines, strict=True):
        assert name in line
        assert "→" in line
    assert told.about("integrity"), "the database is looked at all the same"


def test_each_bad_setting_of_the_file_is_named(doctor: Doctor, database: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text('log_format = "pretty"\ncolour = "red"\n')
    lines = doctor.look(database, SOLOS_MEMORY_CONFIG=str(file)).about("settings")
    assert [("log_format" in line, "colour" in line) for line in sorted(lines)] == [(False, True), (True, False)]
    file.write_text("log_format = \n")
    assert "FATAL" in doctor.look(database, SOLOS_MEMORY_CONFIG=str(file)).one("settings")


def test_the_database_of_the_settings_is_looked_at(doctor: Doctor, database: Path, tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(f'db = "{database}"\n')
    told = doctor.look(None, SOLOS_MEMORY_CONFIG=str(file))
    assert (told.code, str(database) in told.one("database")) == (0, True)
    assert "WARN  database: none is configured" in doctor.look(None).printed


def test_an_address_beyond_loopback_is_fatal(doctor: Doctor, database: Path) -> None:
    told = doctor.look(database, SOLOS_MEMORY_BIND="0.0.0.0:8437")
    assert (told.code, told.about("port")) == (78, [])
    assert "not loopback" in told.one("settings")


# --- the swarm's files ---


def test_every_root_of_the_swarm_is_told_and_none_is_made(doctor: Doctor, database: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    before = sorted(home.rglob("*"))
    told = doctor.look(database)
    assert told.about("swarm") == [
        f"ok    swarm: swarm_profiles: {home}/.hermes/profiles is not there yet; the first write makes it",
        f"ok    swarm: swarm_shared: {home}/.openclaw/workspace/memory is not there yet; the first write makes it",
        "ok    swarm: swarm_workspace: none is named; roles come with each scaffold",
    ]
    assert sorted(home.rglob("*")) == before


def test_roots_follow_the_environment_of_the_swarm(doctor: Doctor, database: Path, tmp_path: Path) -> None:
    home = tmp_path / "hermes" / "profiles" / "swarm5"
    home.mkdir(parents=True)
    told = doctor.look(database, HERMES_HOME=str(home), HERMES_SWARM_MEMORY_ROOT=str(tmp_path / "workspace"))
    profiles, shared, _ = told.about("swarm")
    assert profiles == f"ok    swarm: swarm_profiles: {home.parent} is there and can be written"
    assert f"swarm_shared: {tmp_path}/workspace/memory is not there yet" in shared


@pytest.mark.parametrize(
    ("root", "said"),
    [("a file", "is no folder"), ("a file/below", "is not there and cannot be made in ")],
    ids=["file", "below a file"],
)
def test_a_root_that_cannot_hold_files_is_a_warning(
    doctor: Doctor, database: Path, tmp_path: Path, root: str, said: str
) -> None:
    (tmp_path / "a file").write_text("no folder")
    told = doctor.look(database, SOLOS_MEMORY_SWARM_SHARED=str(tmp_path / root))
    assert told.code == 1
    _, shared, _ = told.about("swarm")
    assert shared.startswith(f"WARN  swarm: swarm_shared: {tmp_path / root} {said}")
    assert shared.endswith("→ Mend it, or name another folder with the setting swarm_shared.")


def test_a_root_without_the_right_to_write_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may write everywhere: here the system says that this account may not."""
    allowed = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: allowed(path, mode) and Path(path) != tmp_path)
    assert (_root("swarm_shared", tmp_path).level, _root("swarm_shared", tmp_path / "new").level) == ("WARN", "WARN")


@pytest.mark.parametrize("place", [".openclaw/profiles", ".ocplatform/workspace/memory"])
@pytest.mark.parametrize("setting", ["swarm_profiles", "swarm_shared"])
def test_a_refused_root_is_fatal(doctor: Doctor, database: Path, tmp_path: Path, setting: str, place: str) -> None:
    told = doctor.look(database, **{f"SOLOS_MEMORY_{setting.upper()}": str(tmp_path / place)})
    assert told.code == 78
    assert told.one("swarm").startswith(f"FATAL swarm: {setting}: {tmp_path / place} lies in ")
    assert told.about("integrity"), "the database is looked at all the same"


def test_a_worker_without_an_agent_is_fatal(doctor: Doctor, database: Path) -> None:
    told = doctor.look(database, SOLOS_MEMORY_SWARM_WORKERS="swarm5")
    assert (told.code, "'swarm5' is no WORKER=AGENT" in told.one("swarm")) == (78, True)


def test_a_workspace_is_told_by_its_roster(doctor: Doctor, database: Path, tmp_path: Path) -> None:
    roster = tmp_path / "swarm.yaml"
    told = doctor.look(database, SOLOS_MEMORY_SWARM_WORKSPACE=str(tmp_path))
    assert (told.code, f"WARN  swarm: swarm_workspace: {roster} is no file" in told.printed) == (1, True)
    roster.write_text("workers: []\n")
    told = doctor.look(database, SOLOS_MEMORY_SWARM_WORKSPACE=str(tmp_path))
    assert (told.code, f"ok    swarm: swarm_workspace: {roster} can be read" in told.printed) == (0, True)


# --- the index and state.db ---


@pytest.fixture
def indexed(database: Path) -> Path:
    """A database that has been served, and is no more."""
    with serving(database) as service:
        for number in range(3):
            service.long("mira", f"An indexed fact {number}.")
        service.rest("POST", "/v1/episodic", {"agent": "mira", "summary": "Indexed some facts."})
    return database


def cache(database: Path) -> Path:
    """The index's file."""
    return database.with_name(database.name + OURS) / "cache" / "index.db"


def test_an_index_is_told_with_its_size_and_how_far_it_follows(doctor: Doctor, indexed: Path) -> None:
    line = doctor.look(indexed).one("index")
    size = f"{cache(indexed).stat().st_size:,} bytes"
    assert line == f"ok    index: {size}, complete, 4 rows; it follows the tables to their end"


def test_an_index_that_is_behind_says_by_how_much(doctor: Doctor, indexed: Path) -> None:
    for number in range(2):
        rows(indexed, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', ?, 1.7e9)", f"f{number}")
    line = doctor.look(indexed).one("index")
    assert line.startswith("ok ")
    assert line.endswith("complete, 4 rows; behind by 2 of long; the service catches up at start")


def test_an_index_that_a_running_service_does_not_bring_up_is_a_warning(doctor: Doctor, indexed: Path) -> None:
    """Its rows would be found only when it has caught up: here a foreign row of this very moment."""
    lock = indexed.with_name(indexed.name + OURS) / "lock"
    rows(indexed, "INSERT INTO memory_episodic(agent, summary, created_at) VALUES ('ace', 'foreign', 1.7e9)")
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        told = doctor.look(indexed)
    assert told.one("index").startswith("WARN ")
    assert "behind by 1 of episodic → " in told.one("index")


@pytest.mark.parametrize("content", [b"no index at all", b""], ids=["garbage", "empty"])
def test_a_damaged_index_costs_no_memory(doctor: Doctor, indexed: Path, content: bytes) -> None:
    for beside in cache(indexed).parent.iterdir():
        beside.unlink()
    cache(indexed).write_bytes(content)
    told = doctor.look(indexed)
    assert told.code == 1
    assert told.one("index").startswith("WARN  index: ")
    assert "→ No memory is lost: stop the service and run `solos-memory reindex`." in told.one("index")


def test_an_index_of_another_format_is_told(doctor: Doctor, indexed: Path) -> None:
    rows(cache(indexed), "UPDATE meta SET value = 1 WHERE name = 'format'")
    assert "another version's format" in doctor.look(indexed).one("index")


def test_state_that_is_missing_or_damaged_is_told(doctor: Doctor, indexed: Path) -> None:
    state = indexed.with_name(indexed.name + OURS) / "state.db"
    assert doctor.look(indexed).one("state").endswith("bytes, sound")
    content = state.read_bytes()
    state.write_bytes(content[:100] + b"\xff" * (len(content) - 100))
    damaged = doctor.look(indexed)
    assert (damaged.code, "FATAL state: " in damaged.printed) == (78, True)
    state.unlink()
    missing = doctor.look(indexed)
    assert (missing.code, missing.one("state").startswith("WARN ")) == (1, True)


# --- units ---


def placed(database: Path, folder: Path, program: Path) -> Placed:
    """Paths of one host."""
    return Placed(program=program, database=database, bind="127.0.0.1:8437", folder=folder)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A console script, in a folder whose name needs quotes."""
    path = tmp_path / "a venv" / "solos-memory"
    path.parent.mkdir()
    path.write_text("#!/bin/sh\n")
    return path


def test_installed_units_are_told(doctor: Doctor, database: Path, program: Path) -> None:
    install(placed(database, database.parent, program), doctor.units, replace=False)
    told = doctor.look(database)
    assert told.code == 0, told.printed
    service, listening = told.about("units")
    assert service == f"ok    units: {doctor.units / 'lab-memory.service'} starts {program}"
    assert listening == f"ok    units: {doctor.units / 'lab-memory.socket'} listens on 127.0.0.1:8437"


@pytest.mark.parametrize("missing", ["lab-memory.service", "lab-memory.socket"])
def test_one_unit_without_the_other_is_a_warning(doctor: Doctor, database: Path, program: Path, missing: str) -> None:
    install(placed(database, database.parent, program), doctor.units, replace=False)
    (doctor.units / missing).unlink()
    told = doctor.look(database)
    assert told.code == 1
    assert told.about("units")[0].startswith("WARN ")
    assert f"{missing} is not → `solos-memory install-units`" in told.about("units")[0]


def test_a_unit_that_starts_a_program_that_is_gone_is_a_warning(doctor: Doctor, database: Path, program: Path) -> None:
    install(placed(database, database.parent, program), doctor.units, replace=False)
    program.unlink()
    told = doctor.look(database)
    assert told.code == 1
    assert f"starts {program}, which is not there → " in told.about("units")[0]


@pytest.mark.parametrize("address", ["8437", "0.0.0.0:8437", "[::]:8437", "192.168.4.60:8437"])
def test_a_socket_unit_that_others_can_reach_is_a_warning(doctor: Doctor, database: Path, address: str) -> None:
    doctor.units.mkdir(parents=True)
    (doctor.units / "lab-memory.socket").write_text(f"[Socket]\n# ListenStream=127.0.0.1:1\nListenStream = {address}\n")
    told = doctor.look(database)
    assert told.code == 1
    assert f"listens on {address}, not on loopback alone → " in told.about("units")[1]


# --- the port ---


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[int]:
    """The port of a program that answers everything in one way."""

    class Answering(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing is logged."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        thread.join(5)
        server.server_close()


def at(port: int) -> dict[str, str]:
    """The setting `bind`, as doctor sees it."""
    return {"SOLOS_MEMORY_BIND": f"127.0.0.1:{port}"}


def test_our_own_service_on_the_port_is_told(doctor: Doctor, service: Service, database: Path) -> None:
    eventually(lambda: service.stats()["store"]["index_share"] == 1.0)
    told = doctor.look(database, **at(service.port))
    assert told.code == 0, told.printed
    assert told.one("port") == f"ok    port: solos-memory answers on 127.0.0.1:{service.port}: status ok"


def test_a_service_of_another_database_on_the_port_is_told(doctor: Doctor, service: Service, tmp_path: Path) -> None:
    other = fresh_database(tmp_path, "other.db")
    line = doctor.look(other, **at(service.port)).one("port")
    assert f"solos-memory answers on 127.0.0.1:{service.port}, and serves another database → " in line


def test_a_service_elsewhere_is_told(doctor: Doctor, service: Service, database: Path) -> None:
    line = doctor.look(database).one("port")
    assert f"and pid {service.process.pid} serves this database elsewhere → " in line


@pytest.mark.parametrize("body", [b'{"hello": "there"}', b"<html>", b"[]"])
def test_another_program_on_the_port_is_a_warning(doctor: Doctor, database: Path, body: bytes) -> None:
    with answering(200, body) as port:
        told = doctor.look(database, **at(port))
    assert told.code == 1
    assert told.one("port").startswith("WARN  port: ")
    assert f"127.0.0.1:{port}" in told.one("port")
    assert "→" in told.one("port")


def test_a_port_that_accepts_and_says_nothing_is_a_warning_and_no_hang(doctor: Doctor, database: Path) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        told = doctor.look(database, **at(silent.getsockname()[1]))
    assert time.monotonic() - began < 15
    assert told.code == 1
    assert "is not solos-memory: GET /health got no whole answer within 3 s → " in told.one("port")


def test_a_service_that_is_not_ready_is_a_warning(doctor: Doctor, database: Path) -> None:
    with answering(503, b'{"status": "not_ready", "reasons": ["writer_down"], "demo": false}') as port:
        told = doctor.look(database, **at(port))
    assert told.code == 1
    assert "not ready, ['writer_down'] → " in told.one("port")


# --- the clock ---


def test_the_clock_is_told_beside_the_newest_row_and_the_file(doctor: Doctor, database: Path) -> None:
    rows(database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'old', 1.7e9)")
    rows(database, "INSERT INTO memory_episodic(agent, summary, created_at) VALUES ('ace', 'older', 1.6e9)")
    line = doctor.look(database).one("clock")
    assert line.startswith("ok ")
    assert "; the newest row is of 2023-11-14T22:13:20.000Z, the file was changed at 20" in line


def test_rows_of_the_future_are_a_warning(doctor: Doctor, database: Path) -> None:
    now_s = time.time()
    for ahead_s in (DAY_S - 600, DAY_S + 600, 2 * DAY_S):
        rows(
            database,
            "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'ahead', ?)",
            now_s + ahead_s,
        )
    told = doctor.look(database)
    assert told.code == 1
    assert "; 2 of the newest rows are more than a day in the future → Compare" in told.one("clock")


def test_a_time_that_is_no_text_and_no_number_is_no_time(doctor: Doctor, database: Path) -> None:
    """Any process can write text that is no UTF-8; the row after it is read all the same."""
    for created in ("CAST(x'ff' AS TEXT)", "x'00'", "'soon'", "9e999", "1.7e9"):
        rows(database, f"INSERT INTO memory_episodic(agent, summary, created_at) VALUES ('ace', 'odd', {created})")
    told = doctor.look(database)
    assert "; the newest row is of 2023-11-14T22:13:20.000Z, " in told.one("clock")


def clock_seen(database: Path, now_s: float) -> tuple[str, str, str, str]:
    """What is seen of the clock at a time."""
    return next(seen for seen in inspect_database(database, lambda: now_s) if seen[1] == "clock")


def test_a_clock_before_2025_is_a_warning(database: Path) -> None:
    level, _, text, step = clock_seen(database, 1_735_689_599.0)
    assert (level, "it is 2024-12-31T23:59:59.000Z" in text, "timedatectl" in step) == ("WARN", True, True)


def test_a_file_of_the_future_is_a_warning(database: Path) -> None:
    changed_s = database.stat().st_mtime
    assert clock_seen(database, changed_s - DAY_S + 600)[0] == "ok"
    level, _, _, step = clock_seen(database, changed_s - DAY_S - 600)
    assert (level, "set back" in step) == ("WARN", True)


@pytest.mark.parametrize("now_s", [1_735_689_600.0, 1.8e9])
def test_a_database_without_rows_has_no_newest(tmp_path: Path, now_s: float) -> None:
    empty = fresh_database(tmp_path, "empty.db")
    os.utime(empty, (now_s, now_s))
    level, _, text, _ = clock_seen(empty, now_s)
    assert (level, "the newest row is of unknown" in text) == ("ok", True)


def test_nothing_is_changed(doctor: Doctor, indexed: Path) -> None:
    ours = indexed.with_name(indexed.name + OURS)
    watched = [indexed, ours / "state.db", ours / "cache" / "index.db"]
    before = [(path.read_bytes(), path.stat().st_mtime_ns) for path in watched]
    with foreign_lock(indexed):
        doctor.look(indexed)
    assert [(path.read_bytes(), path.stat().st_mtime_ns) for path in watched] == before
