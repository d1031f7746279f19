"""Eight real a2a-sdk agents: a memory that is refused or hangs costs no port, and no episode is lost or doubled."""

import statistics
from pathlib import Path

import pytest

from deploy.a2a.solos_memory_client import BUDGET_S, Spool
from tests.acceptance.a2a_fleet import VERSIONS, Ack, Agents, a2a_python, agents, free_range, hung
from tests.support import Service, eventually, fresh_database, rows, serving

FLEET = ("sol", "mira", "atlas", "ace", "tam", "eva", "eve", "min")
LEFT_OUT = 5
"""Which port of the range has no agent."""
SKIP_S = 8.0


def ports_of_the_fleet() -> dict[int, str]:
    """A range of consecutive free ports with one left out, and the agent of each."""
    ports = free_range(len(FLEET) + 1)
    del ports[LEFT_OUT]
    return dict(zip(ports, FLEET, strict=True))


def all_acknowledged(sweep: list[Ack]) -> bool:
    """Whether every agent answered 200 in both versions, with its own prompt in the answer."""
    assert [ack.status for ack in sweep] == [200] * len(FLEET) * len(VERSIONS)
    return all(f"asks port {ack.port} in version {ack.version}" in ack.text for ack in sweep)


def ms(sweep: list[Ack]) -> str:
    """A sweep's answer times, for the figures that a run prints."""
    times = sorted(ack.seconds * 1000 for ack in sweep)
    return f"median {statistics.median(times):.1f} ms, worst {times[-1]:.1f} ms"


def episodes(database: Path) -> list[str]:
    """The summaries of all turns, as another process reads them."""
    found = rows(database, "SELECT summary FROM memory_episodic WHERE event_type = 'turn' ORDER BY id")
    return [summary for (summary,) in found]


def expected(fleet: Agents) -> list[str]:
    """The summaries of all turns that were asked for."""
    return sorted(f"Answered: {prompt}" for prompt in fleet.prompts)


def recalled_claim_of_mira(fleet: Agents, service: Service) -> bool:
    """Whether sol's model would be given what mira wrote a moment ago, with her name."""
    service.long("mira", "The umbriel gateway answers on port 18791.")
    sol = next(port for port, agent in fleet.ports.items() if agent == "sol")
    texts = [fleet.turn(sol, version, f"Which port has the umbriel gateway ({version})?").text for version in VERSIONS]
    assert all("\n- mira (long:" in text and "not an instruction" in text for text in texts), texts
    return all(text.endswith(")?") and "answers on port 18791." in text for text in texts)


def drained(fleet: Agents) -> bool:
    """Whether nothing waits in the spool; a sweep gives each agent a turn in which to flush."""
    assert all_acknowledged(fleet.sweep(f"later {len(fleet.prompts)}"))
    return not Spool(fleet.spool).waiting()


def test_sweep_is_acknowledged_before_during_and_after_an_outage_and_each_episode_arrives_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = fresh_database(tmp_path, agents=FLEET)
    figures = []
    with serving(database) as service:
        memory_port = service.port
        fleet = Agents(ports_of_the_fleet(), service.url, tmp_path, skip_s=SKIP_S)
        try:
            fleet.start()
            (plain_port,) = free_range(1)
            fleet.start_plain(plain_port)
            plain = [fleet.plain_turn(plain_port, version) for _ in FLEET for version in VERSIONS]
            assert recalled_claim_of_mira(fleet, service)
            fleet.sweep("first")  # connections and imports of the agents are not the memory's cost
            before = fleet.sweep("before")
            assert all_acknowledged(before)
            eventually(lambda: sorted(episodes(database)) == expected(fleet))
            assert service.stop() == 0
            refused = fleet.sweep("refused")
            assert all_acknowledged(refused)
            with hung(memory_port):
                first_hung = fleet.sweep_at_once("hung")
                then_hung = fleet.sweep("still hung")
            assert all_acknowledged(first_hung)
            assert all_acknowledged(then_hung)
            written_before = len(expected(fleet)) - 3 * len(before)
            eventually(lambda: len(Spool(fleet.spool).waiting()) == 3 * len(before))
            assert len(episodes(database)) == written_before
            with serving(database, port=memory_port):
                eventually(lambda: drained(fleet), within_s=60)
                after = fleet.sweep("after")
                assert all_acknowledged(after)
                eventually(lambda: sorted(episodes(database)) == expected(fleet))
            figures = [("no memory", plain), ("before", before), ("refused", refused), ("hung", first_hung)]
            figures += [("still hung", then_hung), ("after", after)]
            logs = {port: fleet.log(port) for port in fleet.ports}
        finally:
            fleet.close()
    with capsys.disabled():
        print("".join(f"\nA turn, {name}: {ms(sweep)}" for name, sweep in figures))
    assert statistics.median(ack.seconds for ack in refused) < BUDGET_S
    first_of_each = [ack for ack in first_hung if ack.version == VERSIONS[0]]
    assert all(ack.seconds < 2 * BUDGET_S for ack in first_of_each), "the budget, once"
    assert all(ack.seconds < BUDGET_S for ack in first_hung if ack not in first_of_each), "left alone after that"
    for log in logs.values():
        assert log.count("did not answer in time") >= 1
        assert "Traceback" not in log
        assert "sweep asks" not in log, "memory text is not logged"


def test_missing_sdk_is_a_failure_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOLOS_TEST_A2A", str(tmp_path / "python"))
    with pytest.raises(AssertionError, match="make test"):
        a2a_python()


def test_each_agent_shows_its_card_with_both_versions(database: Path, tmp_path: Path) -> None:
    (port,) = free_range(1)
    with serving(database) as service, agents({port: "sol"}, service.url, tmp_path, skip_s=SKIP_S) as fleet:
        interfaces = fleet.card(port)["supportedInterfaces"]
        assert [interface["protocolVersion"] for interface in interfaces] == ["1.0", "0.3"]
