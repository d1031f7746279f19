"""`solos-memory status`: one screen that says the truth, also when the service is down, hangs or is none of ours."""

import contextlib
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import limits
from tests.support import PROGRAM, Service, eventually, rows, serving
from transport.screen import head, screen

LINES_MAX = 40
COLUMNS_MAX = 100


def status(url: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    return subprocess.run(
        [*PROGRAM, "status", "--url", url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | env,
    )


def shown(service: Service) -> dict[str, str]:
    """What a screen says, by the label of the line."""
    done = status(service.url)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line]
    return {line[:16].strip(): line[16:].strip() for line in lines[1:]} | {"head": lines[0]}


# --- what it says ---


def test_screen_shows_what_was_written_replayed_and_refused(service: Service) -> None:
    service.long("mira", "One.", request_id="r1")
    service.long("mira", "One.", request_id="r1")
    service.rest("POST", "/v1/long", {"agent": "ghost", "fact": "x"})
    service.rest("POST", "/v1/episodic", {"agent": "mira", "summary": "Looked at the screen."})
    service.recall("sol", "one")
    seen = shown(service)
    assert seen["head"] == f"solos-memory at {service.url}: ok"
    assert seen["writes"].split() == ["issued", "acknowledged", "replayed", "refused", "unknown", "in", "flight"]
    assert seen["long"].split() == ["3", "1", "1", "1", "0", "0"]
    assert seen["episodic"].split() == ["1", "1", "0", "0", "0", "0"]
    assert seen["all"].split() == ["4", "2", "1", "1", "0", "0"]
    assert seen["rows"] == "short 0, long 1, episodic 1"
    assert seen["refusals"] == "1: unknown_agent 1"
    assert seen["index"].startswith("up to the tables, ")
    assert re.fullmatch(r"[\d.,]+ (bytes|KiB|MiB)", seen["WAL"])
    assert seen["last backup"] == "none recorded"
    assert seen["foreign change"] == "none seen"
    assert re.fullmatch(r"sound, read whole .*Z \(\d+ s ago\)", seen["integrity"])
    writer, readers = limits.WRITER_MAILBOX_MAX, limits.READER_MAILBOX_MAX
    assert re.fullmatch(rf"writer \d of {writer}, readers \d of {readers}", seen["mailboxes"])
    assert seen["restarts"] == "writer 0, readers 0"
    count, p50, p99, longest = seen["remember_long"].split()
    assert count == "3"
    assert 0 < float(p50) <= float(p99) <= float(longest)
    assert seen["recall"].split()[0] == "1"


def test_screen_shows_a_foreign_change_and_a_backup(service: Service) -> None:
    assert service.database is not None
    rows(service.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'Foreign.', 1.7e9)")
    eventually(lambda: service.stats()["foreign_change_at"] is not None)
    record = service.database.with_name(service.database.name + ".solos-memory") / "last-backup.json"
    record.write_text('{"at": "2026-09-28T03:00:00.000Z", "to": "/backups/one", "bytes": 4096}')
    seen = shown(service)
    assert re.fullmatch(r"\d{4}-.*Z \(\d+ s ago\)", seen["foreign change"])
    assert re.fullmatch(r"2026-09-28T03:00:00\.000Z \(\d+ \w+ ago\)", seen["last backup"])


def test_it_is_one_screen_however_much_has_happened(service: Service) -> None:
    """Every operation called, and more codes of refusals than there is room for."""
    for path in ("recall", "memory/long:9", "memory/durable:1", "short?key=none", "memory/x", "stats"):
        service.rest("GET", f"/v1/{path}" + ("&" if "?" in path else "?") + "agent=ghost")
    for path in ("short", "long", "episodic", "purge"):
        service.rest("POST", f"/v1/{path}", {"agent": "ghost"})
    service.rest("DELETE", "/v1/short", agent="mira", key="none")
    service.rest("GET", "/v1/nothing")
    done = status(service.url)
    lines = done.stdout.splitlines()
    assert len(lines) <= LINES_MAX
    assert max(map(len, lines)) <= COLUMNS_MAX, max(lines, key=len)


STATS: dict[str, Any] = {
    "since": "2026-09-28T09:14:00.000Z",
    "writes": {"long": dict.fromkeys(("issued", "acknowledged", "replayed", "refused", "unknown", "in_flight"), 0)},
    "store": {
        "rows": {"short": 0, "long": 500_000, "episodic": 1},
        "index_share": 0.43,
        "index_rows_behind": 285_000,
        "index_bytes": 202 * 1024**2,
        "wal_bytes": 3 * 1024**3,
        "journal_mode": "delete",
        "last_backup_at": None,
    },
    "refusals": [],
    "refused": 0,
    "latency": {},
    "foreign_change_at": None,
    "integrity": {
        "checked_at": "2026-09-28T09:14:00.000Z",
        "whole": False,
        "sound": False,
        "problem": "Tree 4 page 9: btreeInitPage() returns error code 11",
    },
    "actors": {},
}
"""The statistics of a service that is not well."""


def test_trouble_is_told_in_words() -> None:
    text = screen(STATS, 1_790_586_940.0)
    assert "index            285,000 rows behind, 43.0% done, 202.0 MiB" in text
    assert "WAL              3.0 GiB; the database is in mode delete" in text
    assert (
        "integrity        DAMAGED (Tree 4 page 9: btreeInitPage() returns error code 11), a sample was read 2026-"
        in text
    )
    assert "integrity        not known: the writer is down" in screen(STATS | {"integrity": None}, 1_790_586_940.0)
    assert "rows             short 0, long 500,000, episodic 1" in text
    assert "answers          none yet" in text
    degraded = {"status": "degraded", "reasons": ["not_wal", "storage_busy"], "demo": True}
    assert head("http://x", degraded) == "solos-memory at http://x: degraded (not_wal, storage_busy), the demo database"


@pytest.mark.parametrize(
    ("after_s", "told"), [(-3, "0 s"), (119, "119 s"), (120, "2 min"), (7_200, "2 h"), (172_800, "2 d")]
)
def test_age_is_told_in_a_unit_that_fits(after_s: float, told: str) -> None:
    assert f"2026-09-28T09:14:00.000Z ({told} ago)" in screen(STATS, 1_790_586_840.0 + after_s)


# --- when there is nothing to show ---


def test_nobody_listens_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    done = status(url)
    assert (done.returncode, done.stdout) == (69, "")
    assert f"No service answers at {url}" in done.stderr
    assert "solos-memory serve" in done.stderr


def test_socket_that_is_held_without_a_process_is_told_in_seconds() -> None:
    """As behind a held socket whose service hangs: the connection is made, and nothing comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        began_s = time.monotonic()
        done = status(url)
        assert time.monotonic() - began_s < 10
    assert (done.returncode, done.stdout) == (69, "")
    assert "did not answer /health within 5 s" in done.stderr


def test_service_that_is_stopped_in_its_tracks_is_told(service: Service) -> None:
    service.process.send_signal(signal.SIGSTOP)
    try:
        done = status(service.url)
    finally:
        service.process.send_signal(signal.SIGCONT)
    assert (done.returncode, "did not answer" in done.stderr) == (69, True)
    assert status(service.url).returncode == 0


def test_service_without_its_database_says_why_there_are_no_statistics(database: Path) -> None:
    with serving(database) as service:
        database.rename(database.with_name("elsewhere.db"))
        done = status(service.url)
        database.with_name("elsewhere.db").rename(database)
    assert done.returncode == 69
    assert "not_ready (database_moved)" in done.stdout
    assert "storage_unavailable" in done.stderr


@contextlib.contextmanager
def answering(answers: dict[str, tuple[int, bytes]]) -> Iterator[str]:
    """Something else on the port: these answers by path."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = answers[self.path]
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(5)


REFUSED = {"ok": False, "error": {"code": "not_ready", "detail": "It starts.", "hint": "Wait."}}


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ({"/health": (200, b"<html>hello</html>")}, "is no address of this service"),
        ({"/health": (200, b"[]")}, "is no address of this service"),
        ({"/health": (404, b'{"detail": "Not Found"}')}, "answers otherwise"),
        (
            {
                "/health": (503, b'{"status": "not_ready", "reasons": ["starting"], "demo": false}'),
                "/v1/stats": (503, json.dumps(REFUSED).encode()),
            },
            "not_ready: It starts. Wait.",
        ),
        (
            {
                "/health": (200, b'{"status": "ok", "reasons": [], "demo": false}'),
                "/v1/stats": (200, b'{"ok": true, "since": "2026-09-28T09:14:00.000Z"}'),
            },
            "answers otherwise than this version does (KeyError: 'writes')",
        ),
    ],
    ids=["html", "list", "another service", "refusing", "older version"],
)
def test_answer_that_is_none_of_ours_is_told(answers: dict[str, tuple[int, bytes]], reason: str) -> None:
    with answering(answers) as url:
        done = status(url)
    assert done.returncode == 69
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["nonsense", "http://", "ftp://127.0.0.1:1", "file:///etc/passwd"])
def test_url_that_is_none_is_told(url: str) -> None:
    done = status(url)
    assert (done.returncode, done.stdout) == (69, "")
    assert "Traceback" not in done.stderr


def test_proxy_of_the_environment_is_passed_by(service: Service) -> None:
    """The service is on loopback; a proxy would answer for it, or for nobody."""
    assert status(service.url, http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9").returncode == 0
