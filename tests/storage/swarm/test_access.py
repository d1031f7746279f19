"""Which agent is which worker."""

import pytest

from storage.swarm.access import Access, NotYours


def test_an_agent_is_the_worker_of_its_name_or_the_one_that_is_mapped_to_it() -> None:
    access = Access({"swarm5": "mira"}, ())
    assert access.worker_of("sol") == "sol"
    assert access.worker_of("mira") == "swarm5"
    assert access.worker_or_none("swarm5") is None, "it is mira's"


def test_agents_that_differ_in_case_alone_are_not_one_worker() -> None:
    """The registry tells them apart; the second one would read the profile of the first."""
    access = Access({"sol-2": "Sol"}, ())
    assert access.worker_of("Sol") == "sol-2"
    assert Access({}, ()).worker_or_none("Sol") is None
    with pytest.raises(NotYours):
        Access({}, ()).worker_to_read("Sol", "profile", "sol")
    assert Access({}, ()).worker_to_read("Sol", "mission", "sol") == "sol"
