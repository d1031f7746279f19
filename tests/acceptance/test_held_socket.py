"""Behind a held socket: restarts that no agent notices, and starts that fail and say so. The manager here is a test."""

import json
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from tests.acceptance.clients import Hermes
from tests.held import Held, held_socket
from tests.support import PROGRAM, eventually, foreign_lock, fresh_database, rows

CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "stats", "arguments": {}}}
ACCEPT = {"Accept": "application/json, text/event-stream"}


def serve(held: Held, database: Path) -> None:
    """Start the service and wait until it says that it serves."""
    before = held.heard("STATUS", "serving")
    held.start("--db", str(database), "--log-format", "json")
    held.wait_for("STATUS", "serving", times=before + 1)


def facts(database: Path, text: str) -> int:
    """How many rows hold this fact."""
    ((count,),) = rows(database, "SELECT count(*) FROM memory_longterm WHERE fact = ?", text)
    return int(count)


# --- restarts ---


def test_manager_is_told_of_start_and_stop(held: Held, database: Path) -> None:
    serve(held, database)
    assert held.heard("READY", "1") == 1
    assert held.rest("GET", "/health")[1]["status"] == "ok"
    assert held.end() == 0
    assert held.heard("STOPPING", "1") == 1


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
def test_call_that_comes_while_the_service_is_down_is_answered_by_its_successor(
    held: Held, database: Path, tmp_path: Path, end: signal.Signals
) -> None:
    """What Hermes sees is a slow call: no error, and none of its tools lost."""
    serve(held, database)
    sol = Hermes(tmp_path / "home", held.url, {"X-Agent-Id": "sol"})
    try:
        tools = sol.tools
        written = sol.call("remember_long", fact="The okapi outlives its keeper.")
        held.end(end)
        with ThreadPoolExecutor(1) as pool:
            began = time.monotonic()
            call = pool.submit(sol.call, "recall", q="okapi keeper")
            time.sleep(1)  # the call is on its way into the backlog; nothing here could be observed
            assert not call.done()
            serve(held, database)
            found = call.result(30)
        assert [result["id"] for result in found["results"]] == [written["id"]]
        assert time.monotonic() - began < 15, "Hermes gives a call 15 s"
        assert sol.call("remember_long", fact="The okapi goes on.")["ok"]
        assert sol.tools == tools
    finally:
        sol.close()


def test_call_in_flight_at_a_stop_is_finished(held: Held, database: Path, tmp_path: Path) -> None:
    serve(held, database)
    sol = Hermes(tmp_path / "home", held.url, {"X-Agent-Id": "sol"})
    try:
        with ThreadPoolExecutor(1) as pool, foreign_lock(database):
            call = pool.submit(sol.call, "remember_long", fact="The quokka waits for a lock.")
            eventually(lambda: held.rest("GET", "/v1/stats")[1]["writes"]["long"]["issued"] == 1)
            assert held.process is not None
            held.process.send_signal(signal.SIGTERM)
            eventually(lambda: held.events("stopping"))
        assert call.result(20)["ok"]
        assert held.process.wait(20) == 0
        assert facts(database, "The quokka waits for a lock.") == 1
    finally:
        sol.close()


def test_call_in_flight_at_a_kill_fails_once_and_its_retry_writes_one_row(
    held: Held, database: Path, tmp_path: Path
) -> None:
    serve(held, database)
    sol = Hermes(tmp_path / "home", held.url, {"X-Agent-Id": "sol"})
    try:
        tools = sol.tools
        with ThreadPoolExecutor(1) as pool, foreign_lock(database):
            call = pool.submit(sol.seen, "remember_long", fact="The lemur was told twice.", request_id="lemur-1")
            eventually(lambda: held.rest("GET", "/v1/stats")[1]["writes"]["long"]["issued"] == 1)
            held.end(signal.SIGKILL)
            serve(held, database)
            assert "error" in call.result(30)
        retried = sol.call("remember_long", fact="The lemur was told twice.", request_id="lemur-1")
        again = sol.call("remember_long", fact="The lemur was told twice.", request_id="lemur-1")
        assert (retried["ok"], again["replayed"], again["id"]) == (True, True, retried["id"])
        assert facts(database, "The lemur was told twice.") == 1
        assert sol.tools == tools
    finally:
        sol.close()


# --- starts that fail ---


def refused(held: Held) -> None:
    """Every way to call is answered within a second: not_ready, and why."""
    for method, path, body in (
        ("GET", "/v1/recall?agent=sol&q=zebra", None),
        ("POST", "/v1/long", {"agent": "sol", "fact": "zebra"}),
        ("POST", "/v1/long", {"nonsense": 1}),
        ("GET", "/metrics", None),
        ("GET", "/nowhere", None),
    ):
        status, answer = held.rest(method, path, body, within_s=1.0)
        assert (status, answer["error"]["code"]) == (503, "not_ready"), (path, answer)
        assert "solos.db" in answer["error"]["detail"]
    status, health = held.rest("GET", "/health/ready", within_s=1.0)
    assert (status, health["status"], health["reasons"]) == (503, "not_ready", ["configuration"])
    assert held.rest("GET", "/health/live", within_s=1.0)[0] == 200


def test_start_that_fails_is_said_to_every_caller_and_mends_by_itself(held: Held, tmp_path: Path) -> None:
    """The database is missing; it is put there; the service serves within 6 s, without hands."""
    held.start("--db", str(tmp_path / "solos.db"), "--log-format", "json")
    held.wait_for("STATUS", "refusing")
    assert held.heard("READY", "1") == 1
    refused(held)
    with httpx2.Client(timeout=1.0) as http:
        answer = http.post(f"{held.url}/mcp", json=CALL, headers=ACCEPT)
    assert answer.status_code == 200
    result = answer.json()["result"]
    assert result["isError"]
    assert json.loads(result["content"][0]["text"])["error"]["code"] == "not_ready"
    fresh_database(tmp_path)
    mended = time.monotonic()
    held.wait_for("STATUS", "serving", within_s=8.0)
    assert time.monotonic() - mended < 6.0
    assert held.rest("POST", "/v1/long", {"agent": "sol", "fact": "zebra"})[0] == 201
    assert held.end() == 0


def test_hermes_finds_its_tools_though_the_start_fails(held: Held, tmp_path: Path) -> None:
    """A gateway that starts in the middle of an outage has its tools when that is over."""
    held.start("--db", str(tmp_path / "solos.db"), "--log-format", "json")
    held.wait_for("STATUS", "refusing")
    sol = Hermes(tmp_path / "home", held.url, {"X-Agent-Id": "sol"})
    try:
        assert "remember_long" in sol.tools
        assert "not_ready" in json.dumps(sol.seen("recall", q="zebra"))
        fresh_database(tmp_path)
        held.wait_for("STATUS", "serving", within_s=8.0)
        assert sol.call("remember_long", fact="The zebra is back.")["ok"]
    finally:
        sol.close()


def test_malformed_settings_are_said_and_mend_too(held: Held, database: Path, tmp_path: Path) -> None:
    """A file with a setting that cannot be used, corrected while callers are refused."""
    file = tmp_path / "settings.toml"
    file.write_text('db = "solos.db"\nlog_level = "loud"\n')
    held.start("--config", str(file), "--log-format", "json")
    held.wait_for("STATUS", "refusing")
    assert "log_level" in held.rest("GET", "/v1/stats", within_s=1.0)[1]["error"]["detail"]
    file.write_text(f'db = "{database}"\n')
    held.wait_for("STATUS", "serving", within_s=8.0)
    assert held.end() == 0


def test_start_that_fails_for_want_of_rights_is_said_too(held: Held, database: Path, tmp_path: Path) -> None:
    """Where our folder should be, there is a file. It goes, and the service serves."""
    shutil.rmtree(f"{database}.solos-memory", ignore_errors=True)
    in_the_way = Path(f"{database}.solos-memory")
    in_the_way.write_text("not ours")
    held.start("--db", str(database), "--log-format", "json")
    held.wait_for("STATUS", "refusing")
    assert held.rest("GET", "/v1/stats", within_s=1.0)[1]["error"]["code"] == "not_ready"
    in_the_way.unlink()
    held.wait_for("STATUS", "serving", within_s=8.0)
    assert held.end() == 0


def test_start_whose_actors_give_up_is_said_too(held: Held, database: Path) -> None:
    """The index cannot be made; after the supervisor's restarts every caller is told so, and none hangs."""
    serve(held, database)
    assert held.end() == 0
    cache = Path(f"{database}.solos-memory") / "cache"
    shutil.rmtree(cache)
    (cache / "index.db" / "in the way").mkdir(parents=True)
    held.start("--db", str(database), "--log-format", "json")
    held.wait_for("STATUS", "refusing", within_s=40.0)
    assert "failed 4 times" in held.rest("GET", "/v1/stats", within_s=1.0)[1]["error"]["detail"]
    shutil.rmtree(cache / "index.db")
    held.wait_for("STATUS", "serving", times=2, within_s=40.0)


def test_refusing_service_stops_at_once(held: Held, tmp_path: Path) -> None:
    held.start("--db", str(tmp_path / "solos.db"), "--log-format", "json")
    held.wait_for("STATUS", "refusing")
    began = time.monotonic()
    assert held.end() == 0
    assert time.monotonic() - began < 5.0


def test_missing_database_is_no_demo_under_a_manager(held: Held) -> None:
    """A lost environment file must not swallow a fleet's memories."""
    held.start("--log-format", "json")
    held.wait_for("STATUS", "refusing")
    assert "No database is configured" in held.rest("GET", "/v1/stats")[1]["error"]["detail"]


def test_socket_that_does_not_listen_is_refused(database: Path) -> None:
    """Not every descriptor is a socket to serve on: exit 78, before anything is opened."""
    with held_socket() as held, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        held.listener, listening = deaf, held.listener
        try:
            held.start("--db", str(database))
            assert held.process is not None
            assert held.process.wait(20) == 78
        finally:
            held.listener = listening


# --- the watchdog ---


def test_watchdog_is_fed_also_while_a_write_waits_for_a_lock(held: Held, database: Path) -> None:
    """Writes wait up to 12 s for a lock that another process holds; the event loop and the writer are well."""
    held.start("--db", str(database), "--log-format", "json", watchdog_s=8.0)
    held.wait_for("STATUS", "serving")
    with ThreadPoolExecutor(1) as pool, foreign_lock(database):
        call = pool.submit(held.rest, "POST", "/v1/long", {"agent": "sol", "fact": "locked out"})
        before = held.heard("WATCHDOG")
        assert call.result(20)[0] == 503
        assert held.heard("WATCHDOG") >= before + 3
    assert not held.events("watchdog_starved")


STUCK = """
import time
from storage.writing import WritingStore
apply = WritingStore.apply
def stuck(self, *given, **options):
    time.sleep(6)
    return apply(self, *given, **options)
WritingStore.apply = stuck
"""


def test_watchdog_is_not_fed_while_the_writer_is_stuck(held: Held, database: Path) -> None:
    held.start("--db", str(database), "--log-format", "json", watchdog_s=2.0, fault=STUCK)
    held.wait_for("STATUS", "serving")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(held.rest, "POST", "/v1/long", {"agent": "sol", "fact": "slow disk"})
        eventually(lambda: held.events("watchdog_starved"), within_s=6.0)
        fed = held.heard("WATCHDOG")
        assert call.result(20)[0] == 201
        assert held.heard("WATCHDOG") <= fed + 2, "at most what was due after the writer came back"


# --- units ---


def test_units_are_what_systemd_accepts(tmp_path: Path, database: Path) -> None:
    """Debian's own verdict on the units as an operator installs them."""
    program = tmp_path / "bin" / "solos-memory"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    into = tmp_path / "units"
    install = ["install-units", "--db", database, "--program", program, "--into", into]
    done = subprocess.run([*PROGRAM, *install], capture_output=True, text=True, check=True, timeout=60)
    assert "loginctl enable-linger" in done.stdout
    verified = subprocess.run(
        ["systemd-analyze", "--user", "verify", into / "lab-memory.socket", into / "lab-memory.service"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert (verified.returncode, verified.stderr) == (0, "")
