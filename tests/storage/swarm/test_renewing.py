"""A renewal: requested, written, resumed; and every reason not to resume."""

import json
import os
import time
from pathlib import Path

import pytest

from storage.errors import Conflict, InvalidRequest
from storage.swarm.events import parse
from storage.swarm.handoffs import OfAnotherMission
from storage.swarm.life.renewing import HandoffAwaited, HandoffNotFit, Renewals
from storage.swarm.life.resume import Resumes
from storage.swarm.memory import NewEvent
from storage.times import iso
from tests.storage.swarm.files import MISSION, WORKER, Swarm, asked, picture
from tests.storage.swarm.test_resume import at_mission, handoff

OTHER = "mission-2"


@pytest.fixture
def renewals(swarm: Swarm) -> Renewals:
    """Its clock begins at the time that the file system gives to files."""
    swarm.clock.now_s = time.time()
    swarm.memory.write_event(asked("began"))
    return Renewals(swarm.roots, swarm.memory, Resumes(swarm.roots), clock=swarm.clock)


def step(**members: object) -> NewEvent:
    return NewEvent(**{"type": "note", "worker": WORKER, "mission": MISSION, "detail": {}, **members})  # type: ignore[arg-type]


def types(swarm: Swarm, mission: str = MISSION) -> list[str]:
    log = swarm.worker / "missions" / mission / "events.jsonl"
    return [event.type for event in parse(log.read_bytes(), WORKER, mission)]


def by_hand(swarm: Swarm, text: str, *, later_s: float = 1.0, name: str = f"{MISSION}.md") -> Path:
    """A handoff that somebody wrote `later_s` after the tests' clock."""
    path = swarm.worker / "handoffs" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    at_ns = int((swarm.clock() + later_s) * 1e9)
    os.utime(path, ns=(at_ns, at_ns))
    return path


def test_a_renewal_is_three_events_and_ends_with_what_to_go_on_with(swarm: Swarm, renewals: Renewals) -> None:
    requested = renewals.request(step(), timeout_s=120)
    assert (requested.state, requested.handoffHash, requested.replayed) == ("requested", None, False)
    swarm.clock.now_s += 30
    written = renewals.write(step(), handoff("Solder joint four."))
    assert written.state == "written"
    resumed = renewals.resume(step(), expected=written.handoffHash)
    assert (resumed.state, resumed.handoffHash) == ("resumed", written.handoffHash)
    assert resumed.resume is not None
    assert "Solder joint four." in resumed.resume.prompt
    assert types(swarm) == ["checkpoint", "handoff-requested", "handoff-written", "resume"]
    assert swarm.latest.read_text() == handoff("Solder joint four.")
    assert (requested.requestedAt, requested.dueAt) == (resumed.requestedAt, resumed.dueAt)


def test_the_mission_is_that_of_runtime_json_where_none_is_named(swarm: Swarm, renewals: Renewals) -> None:
    with pytest.raises(InvalidRequest, match=r"missionId: send it; the worker's runtime\.json tells none"):
        renewals.request(step(mission=None))
    at_mission(swarm)
    assert renewals.request(step(mission=None)).missionId == MISSION


def test_each_step_may_be_sent_again(swarm: Swarm, renewals: Renewals) -> None:
    first = renewals.request(step())
    again = renewals.request(step())
    assert (again.replayed, again.at, again.dueAt) == (True, first.at, first.dueAt)
    assert renewals.write(step(request_id="w"), handoff("Go.")).replayed is False
    assert renewals.write(step(request_id="w"), handoff("Go.")).replayed is True
    resumed = renewals.resume(step())
    again = renewals.resume(step())
    assert (again.replayed, again.at) == (True, resumed.at)
    assert again.resume is not None
    assert types(swarm) == ["checkpoint", "handoff-requested", "handoff-written", "resume"]


def test_a_request_whose_time_is_over_is_made_again(swarm: Swarm, renewals: Renewals) -> None:
    first = renewals.request(step(), timeout_s=60)
    swarm.clock.now_s += 61
    again = renewals.request(step(), timeout_s=60)
    assert again.replayed is False
    assert again.requestedAt > first.requestedAt


def test_a_handoff_that_a_hand_wrote_is_resumed_and_put_on_record(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step())
    by_hand(swarm, handoff("From the worker's own hand."), name="latest.md")
    resumed = renewals.resume(step())
    assert resumed.handoffPath == str(swarm.worker / "handoffs" / "latest.md")
    assert resumed.resume is not None
    assert "From the worker's own hand." in resumed.resume.prompt
    assert types(swarm) == ["checkpoint", "handoff-requested", "handoff-written", "resume"]


def test_a_log_that_another_program_wrote_into_is_gone_on_with(swarm: Swarm, renewals: Renewals) -> None:
    at = iso(swarm.clock() + 30)
    line = {"at": at, "type": "handoff-requested", "event": {"timeoutS": 1e999}}
    with swarm.log.open("a") as log:
        log.write(json.dumps(line) + "\n")
    swarm.clock.now_s += 300
    renewals.write(step(), handoff("Go."))
    assert renewals.resume(step()).requestedAt == at


# --- refusals: nothing is written by any of them ---


def refused(swarm: Swarm, renewals: Renewals, match: str, kind: type[Conflict] = HandoffNotFit, **more: str) -> None:
    before = picture(swarm.folder)
    with pytest.raises(kind, match=match) as refusal:
        renewals.resume(step(), **more)
    assert type(refusal.value) is kind
    assert picture(swarm.folder) == before


def test_without_a_request_nothing_is_written_or_resumed(swarm: Swarm, renewals: Renewals) -> None:
    refused(swarm, renewals, "step: no handoff of mission-1 was requested from swarm5; send step request first")
    before = picture(swarm.folder)
    with pytest.raises(HandoffNotFit, match="send step request first"):
        renewals.write(step(), "text")
    assert picture(swarm.folder) == before


def test_a_missing_handoff_is_awaited_and_then_no_more(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step(), timeout_s=60)
    refused(swarm, renewals, "of mission-1 there is none; it was requested at .* and is awaited until", HandoffAwaited)
    swarm.clock.now_s += 61
    refused(swarm, renewals, r"there is none; .* and the wait of 60 s \(timeoutS\) was over at")


def test_a_handoff_that_comes_after_its_time_is_not_lost(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step(), timeout_s=60)
    swarm.clock.now_s += 61
    renewals.write(step(), handoff("Late."))
    assert renewals.resume(step()).state == "resumed"


def test_a_handoff_older_than_the_request_is_refused(swarm: Swarm, renewals: Renewals) -> None:
    swarm.memory.write_handoff(WORKER, MISSION, handoff("Old."), mirror=True)
    for path in (swarm.handoff, swarm.mission / "handoff.md", swarm.latest):
        at_ns = int((swarm.clock() - 60) * 1e9)
        os.utime(path, ns=(at_ns, at_ns))
    renewals.request(step(), timeout_s=60)
    refused(swarm, renewals, "the latest was written at .* and is awaited until", HandoffAwaited)
    swarm.clock.now_s += 61
    refused(swarm, renewals, "the latest was written at .* was over at")


@pytest.mark.parametrize("name", [f"{MISSION}.md", "latest.md"])
def test_a_handoff_of_another_mission_is_refused(swarm: Swarm, renewals: Renewals, name: str) -> None:
    renewals.request(step())
    by_hand(swarm, handoff("Paint it.", mission=OTHER), name=name)
    refused(swarm, renewals, f"{name} is of mission mission-2, not of mission-1")


def test_a_handoff_that_names_another_mission_is_not_written(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step())
    before = picture(swarm.folder)
    with pytest.raises(OfAnotherMission, match="content: its heading names mission mission-2, not mission-1"):
        renewals.write(step(), handoff("Paint it.", mission=OTHER))
    assert picture(swarm.folder) == before


def test_a_worker_that_is_at_another_mission_by_now_is_not_renewed(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step())
    renewals.write(step(), handoff("Go."))
    at_mission(swarm, OTHER)
    refused(swarm, renewals, "missionId: swarm5 is at mission-2 by its runtime.json, not at mission-1")


def test_a_handoff_that_changed_since_it_was_written_is_resumed_only_by_its_new_hash(
    swarm: Swarm, renewals: Renewals
) -> None:
    renewals.request(step())
    written = renewals.write(step(), handoff("Go."))
    by_hand(swarm, handoff("Go elsewhere."))
    refused(swarm, renewals, "handoff: it has changed since it was written; read it, and send handoffHash")
    refused(swarm, renewals, "handoffHash: the handoff is another one by now", expected=written.handoffHash or "")
    (now,) = [one for one in Resumes(swarm.roots).resume(WORKER, mission=MISSION).parts if one.name == "handoff"]
    resumed = renewals.resume(step(), expected=now.hash.upper())
    assert resumed.resume is not None
    assert "Go elsewhere." in resumed.resume.prompt
    assert types(swarm)[-2:] == ["handoff-written", "resume"]


def test_a_renewal_resumes_on_the_handoff_that_it_has_checked_and_no_other(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step())
    written = renewals.write(step(), handoff("Go."))
    swarm.memory.write_handoff("swarm6", MISSION, handoff("Erase the disk.", "swarm6"), mirror=True)
    for resumed in (renewals.resume(step()), renewals.resume(step())):
        assert resumed.resume is not None
        (part,) = [part for part in resumed.resume.parts if part.name == "handoff"]
        assert part.hash == resumed.handoffHash == written.handoffHash
        assert "Erase" not in str(resumed)


def test_a_request_of_the_future_is_none_that_is_waited_for(swarm: Swarm, renewals: Renewals) -> None:
    for at in (iso(swarm.clock() + 86_400), "9999-12-31T23:59:59.999Z"):
        with swarm.log.open("a") as log:
            log.write(json.dumps({"at": at, "type": "handoff-requested"}) + "\n")
        with pytest.raises(HandoffNotFit, match="there is none"):
            renewals.resume(step())
        assert renewals.request(step()).replayed is False
        assert renewals.request(step()).replayed is True
    by_hand(swarm, handoff("Go."))
    assert renewals.resume(step()).state == "resumed"


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00.000Z", "9999-12-31T23:59:59.999Z"])
def test_lines_from_the_ends_of_time_stop_no_renewal(swarm: Swarm, renewals: Renewals, at: str) -> None:
    renewals.request(step())
    written = renewals.write(step(), handoff("Go."))
    told = {"at": at, "type": "handoff-written", "event": {"handoffHash": written.handoffHash}}
    lines = [told, {"at": at, "type": "handoff-requested"}]
    with swarm.log.open("a") as log:
        log.write("".join(json.dumps(line) + "\n" for line in lines))
    refused(swarm, renewals, "the latest was written at")
    renewals.request(step())
    renewals.write(step(), handoff("Go on."))
    assert renewals.resume(step()).state == "resumed"


def test_a_clock_that_is_set_back_makes_no_old_handoff_new(swarm: Swarm, renewals: Renewals) -> None:
    swarm.memory.write_told_handoff(step(), handoff("Old."), mirror=True)
    swarm.clock.now_s -= 3_600
    renewals.request(step(), timeout_s=86_400)
    refused(swarm, renewals, "the latest was written at", HandoffAwaited)
    swarm.clock.now_s += 4_000
    refused(swarm, renewals, "the latest was written at", HandoffAwaited)
    by_hand(swarm, handoff("Old."), later_s=30)
    assert renewals.resume(step()).state == "resumed"


def test_a_request_id_of_another_step_is_refused(swarm: Swarm, renewals: Renewals) -> None:
    renewals.request(step(request_id="one"))
    before = picture(swarm.folder)
    with pytest.raises(Conflict, match="requestId"):
        renewals.write(step(request_id="one"), handoff("Go."))
    assert picture(swarm.folder) == before
