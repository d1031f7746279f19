"""Cases C109, C113 and C139: clients that are there before the service, and through its restarts."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.acceptance.clients import Hermes
from tests.held import Held
from tests.support import Service, fresh_database, serving

HEADERS = {"Accept": "application/json, text/event-stream", "X-Agent-Id": "sol"}
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "opencode", "version": "1"},
}
SLOW_START = """
import time
from storage.writing import WritingStore
opened = WritingStore.__init__
def slowly(self, *given, **options):
    time.sleep(2)
    opened(self, *given, **options)
WritingStore.__init__ = slowly
"""


@pytest.fixture
def database(tmp_path: Path) -> Path:
    """A fresh fleet database in which something is remembered."""
    path = fresh_database(tmp_path)
    with serving(path) as service:
        service.long("mira", "The okapi sleeps at noon.")
    return path


def mcp(url: str, method: str, params: dict[str, Any], **headers: str) -> httpx2.Response:
    """One POST of JSON-RPC, on a connection of its own."""
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    with httpx2.Client(timeout=30) as http:
        return http.post(f"{url}/mcp", json=call, headers=HEADERS | headers)


def recalled(response: httpx2.Response) -> bool:
    """Whether a call of recall was answered with the okapi."""
    return response.status_code == 200 and "okapi sleeps" in response.json()["result"]["content"][0]["text"]


def test_session_goes_on_after_a_restart(database: Path) -> None:
    """C109: no session id is given out, so none is lost; one that a client made up is no error either."""
    recall = {"name": "recall", "arguments": {"q": "okapi"}}
    with serving(database) as first:
        opened = mcp(first.url, "initialize", INITIALIZE)
        assert opened.status_code == 200
        assert "mcp-session-id" not in opened.headers
        assert recalled(mcp(first.url, "tools/call", recall))
        port = first.port
    with serving(database, port=port) as second:
        assert recalled(mcp(second.url, "tools/call", recall))
        assert recalled(mcp(second.url, "tools/call", recall, **{"Mcp-Session-Id": "of-the-first"}))


def test_client_that_is_there_before_the_service_has_its_tools(held: Held, database: Path, tmp_path: Path) -> None:
    """C113: behind a held socket its discovery waits in the backlog; so does a call while the service is down."""
    with ThreadPoolExecutor(1) as pool:
        gateway = pool.submit(Hermes, tmp_path / "home", held.url, {"X-Agent-Id": "sol"})
        time.sleep(2)  # Hermes is on its way; nothing here could be observed
        held.start("--db", str(database), "--log-format", "json")
        sol = gateway.result(60)
        try:
            assert "recall" in sol.tools
            assert held.end() == 0
            call = pool.submit(sol.call, "recall", q="okapi")
            time.sleep(5)
            held.start("--db", str(database), "--log-format", "json")
            assert call.result(30)["results"][0]["text"] == "The okapi sleeps at noon."
        finally:
            sol.close()


def answers_until_found(url: str, within_s: float = 20.0) -> list[int]:
    """Ask again and again, also while nothing listens; the status of each answer, 0 for none, until the okapi is found.

    An answer that is empty where something is remembered fails.
    """
    statuses = []
    until = time.monotonic() + within_s
    with httpx2.Client(timeout=within_s) as http:
        while time.monotonic() < until:
            try:
                response = http.get(f"{url}/v1/recall?agent=sol&q=okapi")
            except httpx2.TransportError:
                statuses.append(0)
                time.sleep(0.05)
                continue
            statuses.append(response.status_code)
            if response.status_code == 200:
                assert response.json()["results"], "empty while it starts"
                return statuses
            assert response.status_code == 503
            assert "Retry-After" in response.headers
    raise AssertionError(f"not found in time: {statuses}")


def test_call_during_the_start_waits_in_the_backlog(held: Held, database: Path) -> None:
    """C139, after a reboot under systemd: the socket is there first, and the first answer is a right one."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answers_until_found, held.url)
        held.start("--db", str(database), "--log-format", "json", fault=SLOW_START)
        assert asked.result(30) == [200]


def test_call_during_the_start_is_refused_without_a_held_socket(database: Path) -> None:
    """C139: nothing listens before the service is ready."""
    with serving(database) as first:
        port = first.port
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answers_until_found, f"http://127.0.0.1:{port}")
        service = Service(database, port=port, fault=SLOW_START)
        try:
            statuses = asked.result(30)
            assert set(statuses) == {0, 200}
        finally:
            service.wait().stop()
