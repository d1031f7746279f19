"""`solos-memory acceptance`: it passes where all is well, and names what is not on each broken set-up."""

import dataclasses
import re
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance import faulty_proxy
from tests.acceptance.clients import fleet_database
from tests.acceptance.faulty_proxy import Call, Fault, Forward, Reply, mesh, proxied
from tests.support import PROGRAM, Service, eventually, fresh_database, rows, serving
from transport.acceptance.results import Failed
from transport.acceptance.sockets import listeners, loopback_alone, unnamed

CHECKS = [
    "mesh before",
    "loopback",
    "relay",
    "health",
    "cross-agent recall",
    "row-count delta",
    "degraded mode",
    "durable",
    "unknown agent",
    "mcp handshake",
    "mcp discover",
    "mcp methods",
    "mesh after",
]
UNASKED = {"mesh before", "relay", "mesh after"}
"""Skipped where no port and no file is named."""
SHORT_S = 1.5
ENDS_WITHIN_S = 60.0


@dataclasses.dataclass(frozen=True)
class Seen:
    """What a run printed."""

    code: int
    printed: str
    errors: str

    @property
    def outcomes(self) -> dict[str, str]:
        """How each check ended, by its name."""
        return {name: outcome for outcome, name, _ in self._lines}

    @property
    def failed(self) -> set[str]:
        """The checks that failed."""
        return {name for name, outcome in self.outcomes.items() if outcome == "FAIL"}

    @property
    def _lines(self) -> list[tuple[str, str, str]]:
        return re.findall(r"^(OK|FAIL|SKIPPED) +([^:]+): (.+)$", self.printed, re.MULTILINE)

    def line(self, check: str) -> str:
        """What was seen by one check."""
        return next(seen for _, name, seen in self._lines if name == check)

    @property
    def left(self) -> list[str]:
        """The ids of the rows that it says it left."""
        return re.findall(r"\b(?:long|episodic):-?\d+", self.printed.partition("\nrows left: ")[2].partition("\n")[0])


def accept(url: str, database: Path, *options: object) -> Seen:
    """One run of the command."""
    command = [*PROGRAM, "acceptance", "--url", url, "--db", str(database), *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=ENDS_WITHIN_S, check=False)
    return Seen(done.returncode, done.stdout, done.stderr)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on a copy of the fleet's database, its index up to the tables."""
    copy = tmp_path_factory.mktemp("fleet") / "solos.db"
    shutil.copy(fleet_database(), copy)
    with serving(copy) as service:
        eventually(lambda: service.stats()["store"]["index_share"] == 1.0, within_s=60)
        yield service


def database_of(service: Service) -> Path:
    """The file that a service serves."""
    assert service.database is not None
    return service.database


# --- where all is well ---


def test_it_passes_on_the_fleet_database(fleet: Service, tmp_path: Path) -> None:
    database, report = database_of(fleet), tmp_path / "report.md"
    relay = tmp_path / "lan-relay.py"
    relay.write_text("PORTS = [8080, 8300]  # and no other\n")
    before = rows(database, "SELECT (SELECT count(*) FROM memory_longterm), (SELECT count(*) FROM memory_episodic)")[0]
    with mesh(3) as agents:
        agents.end(agents.ports[1])
        named = ["--a2a-ports", ",".join(map(str, agents.ports)), "--a2a-except", agents.ports[1]]
        seen = accept(fleet.url, database, *named, "--relay-config", relay, "--report", report)
    assert (seen.code, seen.failed) == (0, set()), seen.printed + seen.errors
    assert list(seen.outcomes.items()) == [(name, "OK") for name in CHECKS]
    after = rows(database, "SELECT (SELECT count(*) FROM memory_longterm), (SELECT count(*) FROM memory_episodic)")[0]
    assert (after[0] - before[0], after[1] - before[1]) == (7, 1)
    assert "6 writes issued, 6 rows; memory_longterm grew by 6: 6 of this run, 0 of others" in seen.line(CHECKS[5])
    marked = rows(database, "SELECT 'long:' || id FROM memory_longterm WHERE source = 'acceptance'")
    marked += rows(database, "SELECT 'episodic:' || id FROM memory_episodic WHERE event_type = 'acceptance'")
    assert sorted(seen.left) == sorted(row for (row,) in marked)
    page = report.read_text()
    assert page.startswith(f"# Acceptance of {fleet.url}: accepted\n")
    assert page.count("| OK |") == len(CHECKS)
    assert all(row in page.partition("## Rows left")[2] for row in seen.left)
    assert "## Not checked here" in page


def test_what_nobody_named_is_skipped_and_says_so(fleet: Service) -> None:
    seen = accept(fleet.url, database_of(fleet))
    assert seen.code == 0, seen.printed
    assert {name for name, outcome in seen.outcomes.items() if outcome == "SKIPPED"} == UNASKED
    assert "--relay-config" in seen.line("relay")
    assert "--a2a-ports" in seen.line("mesh before")


def test_an_honest_proxy_is_accepted(fleet: Service) -> None:
    """What the broken set-ups below fail for is their fault, not the proxy."""
    with proxied(fleet.url, faulty_proxy.none) as proxy:
        seen = accept(proxy.url, database_of(fleet))
    assert (seen.code, seen.failed) == (0, set()), seen.printed


def test_agents_may_be_named(service: Service, database: Path) -> None:
    seen = accept(service.url, database, "--writer", "swarm-5", "--reader", "mira")
    assert seen.code == 0, seen.printed
    assert {agent for (agent,) in rows(database, "SELECT agent FROM memory_longterm")} == {"swarm-5"}
    assert "mira recalls long:1 and episodic:1 of swarm-5" in seen.line("cross-agent recall")


LEGACY = (
    "CREATE TABLE agent_registry (name TEXT PRIMARY KEY)",
    "CREATE TABLE memory_durable (key TEXT PRIMARY KEY, content TEXT)",
    "CREATE TABLE memory_longterm (id INTEGER PRIMARY KEY, agent_name TEXT, content TEXT, ts INTEGER)",
    "CREATE TABLE memory_episodic (id INTEGER PRIMARY KEY, agent_id TEXT, content TEXT, timestamp TEXT)",
    "INSERT INTO agent_registry VALUES ('ada'), ('bob')",
    "INSERT INTO memory_durable VALUES ('persona/ada', 'ada is quick and curious about clocks')",
)


def test_a_database_with_other_columns_is_accepted(tmp_path: Path) -> None:
    """No column for source, topic or event type: the rows are known by the word in their text."""
    legacy = tmp_path / "legacy.db"
    for statement in LEGACY:
        rows(legacy, statement)
    with serving(legacy) as service:
        seen = accept(service.url, legacy)
    assert (seen.code, seen.failed) == (0, set()), seen.printed + seen.errors
    assert len(seen.left) == 8


# --- foreign writers ---


@dataclasses.dataclass
class Foreign:
    """Another process that writes each time that the service is written to."""

    database: Path
    statement: str

    def __call__(self, call: Call, forward: Forward) -> Reply:
        """Forward, and write."""
        reply = forward()
        if call.writes_long:
            rows(self.database, self.statement)
        return reply


@pytest.mark.parametrize(
    ("statement", "explained"),
    [
        ("INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('ace', 'foreign', 1.7e9)", "4 of others"),
        ("DELETE FROM memory_longterm WHERE id = (SELECT min(id) FROM memory_longterm)", "0 of others, 4 deleted"),
        (
            "INSERT INTO memory_longterm(id, agent, fact, created_at) "
            "SELECT min(id) - 1, 'ace', 'foreign', 1.7e9 FROM memory_longterm",
            "0 of others, 4 more below its end",
        ),
    ],
    ids=["inserts", "deletes", "inserts-below"],
)
def test_foreign_writers_do_not_disturb_and_are_explained(
    service: Service, database: Path, statement: str, explained: str
) -> None:
    for number in range(10):
        service.long("ace", f"An old fact {number}.")
    with proxied(service.url, Foreign(database, statement)) as proxy:
        seen = accept(proxy.url, database)
    assert (seen.code, seen.failed) == (0, set()), seen.printed
    assert seen.line("row-count delta").endswith(f"6 of this run, {explained}")


# --- broken set-ups ---

BROKEN: list[tuple[Callable[[], Fault], str, str]] = [
    (lambda: faulty_proxy.persona_in_shared_recall, "durable", "shows sol durable:2 of mira"),
    (lambda: faulty_proxy.persona_when_asked_for, "durable", "persona/mira by sol answered 200, not 403"),
    (lambda: faulty_proxy.persona_by_id, "durable", "GET /v1/memory/durable:2 answered 200, not 403"),
    (lambda: faulty_proxy.without_degraded_header, "degraded mode", "X-Memory-Degraded is None"),
    (lambda: faulty_proxy.without_degraded_flag, "degraded mode", "GET /v1/recall answered degraded: None"),
    (lambda: faulty_proxy.undegraded_tool, "degraded mode", "the tool recall answered degraded: False"),
    (lambda: faulty_proxy.LostWrite(3), "row-count delta", "1 of 6 writes were acknowledged and have no row"),
    (lambda: faulty_proxy.WrittenTwice(3), "row-count delta", "6 writes were issued, and 7 rows written"),
    (lambda: faulty_proxy.unknown_agent_is_welcome, "unknown agent", "POST /v1/long answered 201, not 422"),
    (lambda: faulty_proxy.uncounted_refusals, "unknown agent", "2 writes were refused, and /v1/stats counted 0"),
    (lambda: faulty_proxy.stream_on_get, "mcp methods", "GET /mcp got no whole answer within 1.5 s"),
    (lambda: faulty_proxy.Hung("/v1/stats"), "row-count delta", "GET /v1/stats got no whole answer within 1.5 s"),
    (lambda: faulty_proxy.dripping_stats, "row-count delta", "GET /v1/stats got no whole answer within 1.5 s"),
    (lambda: faulty_proxy.not_ready, "health", "GET /health answered 503, not 200"),
]
ALSO = {
    faulty_proxy.another_author: {"cross-agent recall", "degraded mode"},
    faulty_proxy.empty_recall: {"cross-agent recall", "degraded mode"},
    faulty_proxy.no_json: {"cross-agent recall", "degraded mode", "durable"},
    faulty_proxy.missing_tools: {"mcp handshake", "mcp discover"},
}


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service on a fresh database, for all broken set-ups in turn."""
    with serving(fresh_database(tmp_path_factory.mktemp("fresh"))) as service:
        yield service


@pytest.mark.parametrize(("fault", "check", "said"), BROKEN, ids=[said for *_, said in BROKEN])
def test_a_broken_set_up_fails_the_check_that_is_about_it(
    fresh: Service, fault: Callable[[], Fault], check: str, said: str
) -> None:
    with proxied(fresh.url, fault()) as proxy:
        seen = accept(proxy.url, database_of(fresh), "--timeout", SHORT_S, "--writer", "mira", "--reader", "sol")
    assert (seen.code, check in seen.failed) == (1, True), seen.printed + seen.errors
    assert said in seen.line(check)
    statistics = {"row-count delta", "unknown agent"}
    assert seen.failed - {check} <= (statistics if "/v1/stats" in said else set()), seen.printed


@pytest.mark.parametrize("fault", ALSO, ids=lambda fault: fault.__name__)
def test_a_fault_that_is_about_more_than_one_check_fails_each(fresh: Service, fault: Fault) -> None:
    with proxied(fresh.url, fault) as proxy:
        seen = accept(proxy.url, database_of(fresh))
    assert (seen.code, seen.failed) == (1, ALSO[fault]), seen.printed + seen.errors
    if fault is faulty_proxy.missing_tools:
        assert seen.line("mcp handshake") == seen.line("mcp discover") == "tools/list lacks recall, stats"


def test_the_report_of_a_failed_run_names_the_check(fresh: Service, tmp_path: Path) -> None:
    report = tmp_path / "report.md"
    with proxied(fresh.url, faulty_proxy.missing_tools) as proxy:
        seen = accept(proxy.url, database_of(fresh), "--report", report)
    assert seen.code == 1
    page = report.read_text()
    assert ": not accepted\n" in page
    assert "| mcp handshake | 4, 11.4 | FAIL | tools/list lacks recall, stats |" in page


def test_a_report_that_cannot_be_written_is_no_success(fresh: Service, tmp_path: Path) -> None:
    seen = accept(fresh.url, database_of(fresh), "--report", tmp_path / "none" / "report.md")
    assert (seen.code, seen.failed) == (69, set())
    assert "report" in seen.errors


def test_a_service_on_another_database_is_noticed(fresh: Service, tmp_path: Path) -> None:
    other = fresh_database(tmp_path, "other.db")
    seen = accept(fresh.url, other)
    assert seen.code == 1
    assert "row-count delta" in seen.failed


# --- a service that does not answer ---


def test_a_hung_service_is_a_failed_check_and_no_hang(fresh: Service) -> None:
    began = time.monotonic()
    with proxied(fresh.url, faulty_proxy.hung) as proxy:
        seen = accept(proxy.url, database_of(fresh), "--timeout", SHORT_S)
    assert time.monotonic() - began < 15
    assert (seen.code, seen.failed) == (1, {"loopback", "health"}), seen.printed
    assert seen.line("health") == "GET /health got no whole answer within 1.5 s"
    assert seen.outcomes["durable"] == "SKIPPED"
    assert seen.line("durable") == "the service does not answer: see health"
    assert "\nrows left: none\n" in seen.printed


def test_a_service_that_is_not_there_fails_by_name(database: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    seen = accept(f"http://127.0.0.1:{port}", database)
    assert (seen.code, seen.failed) == (1, {"loopback", "health"}), seen.printed
    assert f"nobody listens on port {port}" in seen.line("loopback")


# --- loopback ---


def kernel_list(folder: Path, *listening: str) -> Path:
    """A socket list as the kernel writes it, with these (table, address, port) and an outgoing connection."""
    heads = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    tables = {"tcp": [heads], "tcp6": [heads]}
    tables["tcp"].append("   0: 0404A8C0:20F5 0504A8C0:1F90 01 00000000:00000000 00:00000000 00000000 0 0 1 1\n")
    for entry in listening:
        address, _, port = entry.rpartition(":")
        packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
        words = "".join(f"{word:08X}" for (word,) in struct.iter_unpack("=I", packed))
        tables["tcp6" if ":" in address else "tcp"].append(
            f"   1: {words}:{int(port):04X} {'0' * len(words)}:0000 0A 00000000:00000000 00:00000000 00000000 0 0 2 1\n"
        )
    folder.mkdir()
    for name, lines in tables.items():
        (folder / name).write_text("".join(lines))
    return folder


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_alone_is_accepted(tmp_path: Path, address: str) -> None:
    """An outgoing connection from the same port number, and a listener on another port, do not count."""
    listed = kernel_list(tmp_path / "net", f"{address}:8437", "0.0.0.0:8080")
    assert listeners(8437, listed) == [address]
    assert "listens and no other address" in loopback_alone(8437, listed)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.4.60", "127.0.0.2", "fd7a::1"])
def test_any_other_address_is_not(tmp_path: Path, address: str) -> None:
    listed = kernel_list(tmp_path / "net", "127.0.0.1:8437", f"{address}:8437")
    with pytest.raises(Failed, match="8437 listens, too"):
        loopback_alone(8437, listed)


def test_a_socket_list_that_cannot_be_read_is_no_proof(tmp_path: Path) -> None:
    with pytest.raises(Failed, match="cannot be read"):
        loopback_alone(8437, tmp_path)


def test_the_kernels_own_list_is_read() -> None:
    with socket.socket() as here, socket.socket() as there:
        here.bind(("127.0.0.1", 0))
        port = here.getsockname()[1]
        assert listeners(port) == []
        here.listen()
        assert listeners(port) == ["127.0.0.1"]
        there.bind(("127.0.0.2", port))
        there.listen()
        assert listeners(port) == ["127.0.0.1", "127.0.0.2"]


def test_a_service_bound_to_every_address_fails(fresh: Service, tmp_path: Path) -> None:
    """By a list in which the port is open on 0.0.0.0, without opening it."""
    listed = kernel_list(tmp_path / "net", f"0.0.0.0:{fresh.port}")
    seen = accept(fresh.url, database_of(fresh), "--sockets", listed)
    assert (seen.code, seen.failed) == (1, {"loopback"}), seen.printed
    assert seen.line("loopback") == f"0.0.0.0:{fresh.port} listens, too"


def test_a_listener_on_another_address_fails(fresh: Service) -> None:
    """A real one: on another loopback address, so that no port is open to the network."""
    with socket.socket() as other:
        other.bind(("127.0.0.2", fresh.port))
        other.listen()
        seen = accept(fresh.url, database_of(fresh))
    assert (seen.code, seen.failed) == (1, {"loopback"}), seen.printed
    assert seen.line("loopback") == f"127.0.0.2:{fresh.port} listens, too"


def test_a_set_up_bound_to_every_address_fails(database: Path) -> None:
    """A real listener on 0.0.0.0, in a network of its own; where the kernel gives none, on 127.0.0.2."""
    isolated = subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0
    host = "0.0.0.0" if isolated else "127.0.0.2"
    command = [sys.executable, "-m", "tests.acceptance.bound_beyond", host, str(database)]
    done = subprocess.run(
        ["unshare", "--net", *command] if isolated else command,
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )
    seen = Seen(done.returncode, done.stdout, done.stderr)
    assert (seen.code, seen.failed) == (1, {"loopback"}), seen.printed + seen.errors
    assert re.fullmatch(rf"{re.escape(host)}:\d+ listens, too", seen.line("loopback"))


# --- the relay ---


@pytest.mark.parametrize(
    "line",
    [
        "8437",
        "PORTS = [8080, 8437]",
        "0.0.0.0:8437 -> 127.0.0.1:8437",
        "forward: 8400-8500",
        "for p in range(8400, 8500)",
    ],
)
def test_a_relay_that_names_the_port_is_not_accepted(tmp_path: Path, line: str) -> None:
    relay = tmp_path / "lan-relay.py"
    relay.write_text(f"# ports\n{line}\n")
    with pytest.raises(Failed, match="names port 8437 in line 2"):
        unnamed(8437, relay)


@pytest.mark.parametrize("line", ["18437", "84370", "PORTS = [8300, 9000]", "8300-8307", "192.168.4.60", "2026-09-28"])
def test_a_relay_that_names_other_ports_is_accepted(tmp_path: Path, line: str) -> None:
    relay = tmp_path / "lan-relay.py"
    relay.write_text(f"{line}\n")
    assert "does not name port 8437" in unnamed(8437, relay)


def test_the_relay_fails_by_name(fresh: Service, tmp_path: Path) -> None:
    relay = tmp_path / "lan-relay.py"
    relay.write_text(f"PORTS = [{fresh.port}]\n")
    seen = accept(fresh.url, database_of(fresh), "--relay-config", relay)
    assert (seen.code, seen.failed) == (1, {"relay"}), seen.printed
    missing = accept(fresh.url, database_of(fresh), "--relay-config", tmp_path / "none")
    assert (missing.code, missing.failed) == (1, {"relay"})


# --- the mesh ---


def test_a_mesh_port_that_is_dead_fails_both_sweeps(fresh: Service) -> None:
    with mesh(2) as agents:
        dead = agents.ports[0]
        agents.end(dead)
        seen = accept(fresh.url, database_of(fresh), "--a2a-ports", ",".join(map(str, agents.ports)))
    assert (seen.code, seen.failed) == (1, {"mesh before", "mesh after"}), seen.printed
    assert seen.line("mesh before").startswith(f"{dead}: ")
    assert seen.line("mesh after").endswith("as before")


def test_a_mesh_port_that_dies_meanwhile_is_named_as_lost(fresh: Service) -> None:
    with mesh(2) as agents:
        dying = agents.ports[1]

        def costly(call: Call, forward: Forward) -> Reply:
            if call.writes_long:
                agents.end(dying)
            return forward()

        with proxied(fresh.url, costly) as proxy:
            seen = accept(proxy.url, database_of(fresh), "--a2a-ports", ",".join(map(str, agents.ports)))
    assert (seen.code, seen.failed) == (1, {"mesh after"}), seen.printed
    assert seen.line("mesh after").startswith(f"lost since the sweep before: {dying}: ")


def test_a_mesh_port_that_answers_otherwise_or_hangs_is_dead(fresh: Service) -> None:
    with mesh(1) as agents, proxied("http://127.0.0.1:9", faulty_proxy.hung) as hanging:
        ports = ["--a2a-ports", agents.ports[0], "--a2a-ports", hanging.port]
        seen = accept(fresh.url, database_of(fresh), *ports, "--a2a-path", "/other", "--timeout", SHORT_S)
    assert seen.failed == {"mesh before", "mesh after"}, seen.printed
    assert f"{agents.ports[0]}: GET /other on port {agents.ports[0]} answered 404" in seen.line("mesh before")
    assert f"{hanging.port}: GET /other got no whole answer within 1.5 s" in seen.line("mesh before")


# --- what cannot be run at all ---


@pytest.mark.parametrize(
    "options",
    [
        ["--a2a-ports", "8300-"],
        ["--a2a-ports", "8307-8300"],
        ["--a2a-ports", "70000"],
        ["--url", "https://127.0.0.1:8437"],
        ["--url", "127.0.0.1:8437"],
        ["--timeout", "0"],
    ],
    ids=" ".join,
)
def test_a_malformed_option_is_told_before_anything_is_asked(database: Path, options: list[str]) -> None:
    seen = accept("http://127.0.0.1:9", database, *options)
    assert (seen.code, seen.printed) == (2, "")


@pytest.mark.parametrize("options", [["--writer", "sol", "--reader", "sol"], []], ids=["the-same", "one-agent"])
def test_two_agents_are_needed(tmp_path: Path, options: list[str]) -> None:
    lonely = fresh_database(tmp_path, "lonely.db", agents=("sol",))
    seen = accept("http://127.0.0.1:9", lonely, *options)
    assert (seen.code, seen.printed) == (78, "")
    assert "two different agents" in seen.errors


def test_a_database_that_is_none_is_told(tmp_path: Path) -> None:
    seen = accept("http://127.0.0.1:9", tmp_path / "none.db")
    assert (seen.code, seen.printed) == (78, "")
