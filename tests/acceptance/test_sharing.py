"""The sharing rule over a real process: what one agent learned, another recalls at once."""

from tests.support import Service


def test_fact_of_one_agent_is_recalled_by_another_at_once(service: Service) -> None:
    written = service.long("atlas", "The gateway listens on port 18789.", topic="network")
    (found,) = service.recall("sol", "which port does the gateway listen on")
    assert (found["id"], found["agent"]) == (written["id"], "atlas")
