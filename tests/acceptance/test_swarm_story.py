"""A story: two workers take a mission from its dispatch to the archive, and the service is killed in every phase of it.

Beside it, another mission goes on with the same two workers. Everything of that one is full of quaggas, so that any
word of it is known wherever it turns up.
"""

import hashlib
import json
import os
import random
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from storage.swarm.pages import request_digest
from tests.acceptance.swarm_files import PAGE, beside, get, memory_of, post, shared_of, tree
from tests.support import Service, eventually, fresh_database

SEED = int(os.environ.get("SOLOS_TEST_SEED", random.SystemRandom().randrange(10**6)))
KILLED_WITHIN_S = 0.02
"""After the request that the kill is meant for was sent."""
STORY, OTHER = "relay-move", "relay-move-2"
FIRST, SECOND = "swarm5", "swarm6"
QUAGGA = "quagga"
COMPACTED = "Run `make relay HOST=lab-02`, and see that `make health` prints green."
ACTION = "Set relay.lab to lab-02 in zones/lab.zone, and see that `dig +short relay.lab` prints 10.0.0.2."
LESSON = "Lower the TTL of a name a day before it moves."
PARTS = ["identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"]
_MARK = re.compile(r"^<!-- solos:event \S+ \S+ request=([0-9a-f]{16}):", re.MULTILINE)


# --- what a client sends ---


class Told(NamedTuple):
    """The event that a request writes."""

    worker: str
    mission: str | None
    type: str
    summary: str


@dataclass(frozen=True, kw_only=True)
class Call:
    """A request, which is sent again until it is answered."""

    name: str
    """Also its request id, where it writes an event."""
    send: Callable[[Service], dict[str, Any]]
    told: Told | None = None


def page(name: str, path: str = "", *, told: Told | None = None, **body: Any) -> Call:
    """A write of the operator's page."""
    return Call(name=name, send=lambda service: post(service, path, **body), told=told)


def look(name: str, path: str, **query: Any) -> Call:
    """A read of the operator's page."""
    return Call(name=name, send=lambda service: get(service, path, **query))


def hook(name: str, what: str, worker: str, mission: str, summary: str, **more: Any) -> Call:
    """What the swarm's server reports."""
    body = {"workerId": worker, "missionId": mission, "summary": summary, "requestId": name, **more}
    return page(name, f"/hooks/{what}", told=Told(worker, mission, what, summary), **body)


def renewal(name: str, step: str, event_type: str, **more: Any) -> Call:
    """A step of the first worker's renewal; its mission is that of runtime.json."""
    told = Told(FIRST, STORY, event_type, f"{step} before compaction")
    body = {"workerId": FIRST, "step": step, "summary": told.summary, "requestId": name, **more}
    return page(name, "/renew", told=told, **body)


def tool(name: str, tool_name: str, *, told: Told | None = None, **arguments: Any) -> Call:
    """A worker's call of a tool of MCP."""

    def send(service: Service) -> dict[str, Any]:
        is_error, answer = service.mcp(tool_name, arguments)
        assert (is_error, answer["ok"]) == (False, True), answer
        return answer

    return Call(name=name, send=send, told=told)


def event(name: str, worker: str, mission: str | None, type_: str, summary: str, **more: Any) -> Call:
    """An event that a worker writes itself."""
    kind = "episodic" if mission is None else "mission"
    sent = {"agent": worker, "kind": kind, "mission": mission, "event_type": type_, "summary": summary}
    return tool(name, "swarm_write", told=Told(worker, mission, type_, summary), request_id=name, **sent, **more)


def handoff(name: str, worker: str, mission: str, action: str) -> Call:
    """A handoff that a worker writes itself."""
    told = Told(worker, mission, "handoff-written", "Handoff written.")
    sent = {"agent": worker, "kind": "handoff", "mission": mission, "content": handoff_page(worker, mission, action)}
    return tool(name, "swarm_write", told=told, request_id=name, **sent)


def handoff_page(worker: str, mission: str, action: str) -> str:
    """A handoff as the specification has it, in short."""
    return f"# Handoff — {worker} — {mission}\n\n## Current state\n\nHalf moved.\n\n## Next exact action\n\n{action}\n"


def other_mission(worker: str) -> Iterator[Call]:
    """What goes on beside the story, without end. Its texts name the story's mission, too: that makes them no part."""
    for number in count(1):
        name = f"{QUAGGA} {number} of {worker}"
        said = f"{name} is not of {STORY}"
        listed = {"title": "The quaggas", "objective": said, "decisions": [said], "nextAction": f"Feed {name}."}
        yield event(f"{name}, counted", worker, OTHER, "checkpoint", said, event=listed)
        yield event(f"{name}, seen", worker, None, "note", f"Saw {name}.")
        yield handoff(f"{name}, handed over", worker, OTHER, f"Feed {name}.")
        yield hook(f"{name}, lost", "blocked", worker, OTHER, said, event={"blockers": [name]})


# --- the fleet ---


class Story:
    """The fleet on its files, whichever process serves them now."""

    def __init__(self, database: Path, chance: random.Random) -> None:
        self.service = Service(database).wait()
        self.answers: dict[str, dict[str, Any]] = {}
        self._database = database
        self._chance = chance
        self._sent: dict[str, Call] = {}
        self._beside = [other_mission(worker) for worker in (FIRST, SECOND)]

    def phase(self, *calls: Call) -> None:
        """Send calls one after the other while the other mission goes on, with a kill -9 at some moment of it.

        What was not answered by then is sent again to the next process. Afterwards all is there once.
        """
        meant, reached = self._chance.choice(calls), threading.Event()

        def sending(call: Call) -> None:
            if call is meant:
                reached.set()

        ours = iter(calls)
        with ThreadPoolExecutor(3) as threads:
            running = [threads.submit(self._send_until_killed, some, sending) for some in (ours, *self._beside)]
            assert reached.wait(20)
            threading.Event().wait(self._chance.uniform(0.0, KILLED_WITHIN_S))
            self.service.process.kill()
            unanswered = [call for thread in running if (call := thread.result(20)) is not None]
        self.service.kill()
        self.service = Service(self._database).wait()
        self._require_all(unanswered)
        for call in (*unanswered, *ours):
            self._send(call)
        self._require_all([])

    def ask(self, call: Call) -> dict[str, Any]:
        """The answer to one call between the phases, where nothing is killed."""
        self._send(call)
        return self.answers[call.name]

    def events(self, worker: str, mission: str) -> list[dict[str, Any]]:
        """A mission's log."""
        log = memory_of(self.service, worker) / "missions" / mission / "events.jsonl"
        content = log.read_text("utf-8") if log.exists() else ""
        assert content == "" or content.endswith("\n")
        return [json.loads(line) for line in content.splitlines()]

    def is_at(self, worker: str, mission: str) -> None:
        """Let runtime.json name a worker's mission, as the swarm's server does; the mission before is in it, too."""
        before = {"missionId": OTHER, "summary": f"a {QUAGGA}"}
        members = {"currentMissionId": mission, "currentAssignmentId": f"assign-{worker}", "previous": before}
        (memory_of(self.service, worker).parent / "runtime.json").write_text(json.dumps(members), "utf-8")

    def summary(self, worker: str) -> list[str]:
        """The lines of SUMMARY.md of the story's mission."""
        return (memory_of(self.service, worker) / "missions" / STORY / "SUMMARY.md").read_text("utf-8").splitlines()

    # --- sending ---

    def _send(self, call: Call) -> None:
        self._sent[call.name] = call
        self.answers[call.name] = call.send(self.service)

    def _send_until_killed(self, calls: Iterator[Call], sending: Callable[[Call], None]) -> Call | None:
        """The call that the kill left without an answer; None where all were answered before."""
        for call in calls:
            sending(call)
            try:
                self._send(call)
            except httpx2.TransportError:
                return call
        return None

    # --- what must be there ---

    def _require_all(self, unanswered: list[Call]) -> None:
        """Require each event that was answered once, in its order and on its pages, and nothing half written.

        Of those that are not answered, any may be there.
        """
        for worker in (FIRST, SECOND):
            found = self._require_log(worker, STORY, unanswered) + self._require_log(worker, OTHER, unanswered)
            shown = Counter(_MARK.findall(self._episodes(worker)))
            assert max(shown.values(), default=1) == 1
            loose = {request_digest(call.name) for call in self._calls(worker, None)}
            perhaps = {request_digest(call.name) for call in unanswered}
            due = {request_digest(name) for name in found}
            assert due | (loose - perhaps) <= set(shown) <= due | loose
        assert not list(beside(self.service).rglob("*.conflict-*"))
        eventually(lambda: not list(beside(self.service).rglob(".solos-*")))

    def _require_log(self, worker: str, mission: str, unanswered: list[Call]) -> list[str]:
        """The request ids in a log; its SUMMARY.md shows as many events."""
        calls = {call.name: call.told for call in self._calls(worker, mission)}
        events = self.events(worker, mission)
        found = [str(one["requestId"]) for one in events]
        assert found == [name for name in calls if name in found]
        assert set(calls) - set(found) <= {call.name for call in unanswered}
        told = [Told(one["workerId"], one["missionId"], one["type"], one["summary"]) for one in events]
        assert told == [calls[name] for name in found]
        summary = memory_of(self.service, worker) / "missions" / mission / "SUMMARY.md"
        if events:
            eventually(lambda: f"- Total: {len(events)} events" in summary.read_text("utf-8"))
        return found

    def _calls(self, worker: str, mission: str | None) -> list[Call]:
        """The calls that tell of a mission, or of none, in the order in which they were sent first."""
        calls = [call for call in self._sent.values() if call.told is not None]
        return [call for call in calls if call.told is not None and call.told[:2] == (worker, mission)]

    def _episodes(self, worker: str) -> str:
        pages = sorted((memory_of(self.service, worker) / "episodes").glob("*.md"))
        return "".join(one.read_text("utf-8") for one in pages)


def part(resume: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of a resume that is there once."""
    (found,) = (one for one in resume["parts"] if one["name"] == name)
    return dict(found)


def requires_only(resume: dict[str, Any], action: str) -> None:
    """Require that a resume goes on with an action, and holds no word of the other mission."""
    assert (resume["missionId"], action in resume["prompt"]) == (STORY, True)
    assert f"## Next exact action\n\n{action}\n" in part(resume, "handoff")["content"]
    whole = json.dumps(resume, ensure_ascii=False).lower()
    assert QUAGGA not in whole
    assert OTHER not in whole


# --- the phases ---


def test_two_workers_take_a_mission_from_its_dispatch_to_the_archive(tmp_path: Path) -> None:
    print(f"SOLOS_TEST_SEED={SEED}")
    database = fresh_database(tmp_path, agents=(FIRST, SECOND, "main"))
    story = Story(database, random.Random(SEED))
    try:
        the_mission_is_dispatched(story)
        the_first_worker_works(story)
        its_context_is_compacted(story)
        it_starts_again(story)
        it_hands_over(story)
        the_second_worker_goes_on(story)
        its_work_is_reviewed(story)
        the_mission_is_completed(story)
        it_is_archived(story)
        it_is_remembered(story)
    finally:
        story.service.stop()


def the_mission_is_dispatched(story: Story) -> None:
    """Both workers are made, and the first one is given the mission."""
    story.phase(
        page("first made", workerId=FIRST, scaffold=True, role="builder", specialty="relays"),
        page("second made", workerId=SECOND, scaffold=True, role="reviewer", specialty="names"),
        hook(
            "dispatched",
            "dispatch",
            FIRST,
            STORY,
            "Dispatched the builder.",
            title="Move the relay",
            assignmentId="assign-1",
            event={"objective": "The relay runs on lab-02."},
        ),
    )
    for worker, role in ((FIRST, "builder — relays"), (SECOND, "reviewer — names")):
        for name in ("MEMORY.md", "SOUL.md", "IDENTITY.md"):
            assert (memory_of(story.service, worker) / name).read_text("utf-8").endswith("\n")
        assert f"## Role\n\n{role}\n" in (memory_of(story.service, worker) / "MEMORY.md").read_text("utf-8")
    summary = story.summary(FIRST)
    assert {"# Mission relay-move — Move the relay", "- Status: executing", "The relay runs on lab-02."} <= set(summary)
    story.is_at(FIRST, STORY)
    story.is_at(SECOND, OTHER)


def the_first_worker_works(story: Story) -> None:
    """It reports what it did, over MCP."""
    for_next = {"decisions": ["lab-02 serves alone."], "nextAction": COMPACTED}
    story.phase(
        event("planned", FIRST, STORY, "checkpoint", "The plan stands.", event={"filesTouched": ["plan.md"]}),
        event("built", FIRST, STORY, "checkpoint", "The relay is built.", event={"filesTouched": ["relay.toml"]}),
        event("installed", FIRST, STORY, "checkpoint", "lab-02 has it.", event=for_next),
    )
    shown = {"- plan.md", "- relay.toml", "- lab-02 serves alone.", COMPACTED}
    assert shown <= set(story.summary(FIRST))
    assert "- Total: 4 events, 3 of them checkpoints" in story.summary(FIRST)


def its_context_is_compacted(story: Story) -> None:
    """Its handoff is requested, written, and resumed from."""
    story.phase(
        renewal("asked", "request", "handoff-requested"),
        renewal("handed", "written", "handoff-written", content=handoff_page(FIRST, STORY, COMPACTED)),
        renewal("renewed", "resume", "resume"),
    )
    renewed = story.answers["renewed"]
    assert (renewed["state"], renewed["handoffHash"]) == ("resumed", story.answers["handed"]["handoffHash"])
    assert renewed["handoffPath"] == str(memory_of(story.service, FIRST) / "handoffs" / "relay-move.md")
    assert hashlib.sha256(Path(renewed["handoffPath"]).read_bytes()).hexdigest() == renewed["handoffHash"]
    requires_only(renewed["resume"], COMPACTED)
    types = [one["type"] for one in story.events(FIRST, STORY)][-3:]
    assert types == ["handoff-requested", "handoff-written", "resume"]


def it_starts_again(story: Story) -> None:
    """Its process starts anew: it knows nothing but its id, and asks what to do."""
    story.phase(
        tool("woken", "swarm_resume", agent=FIRST),
        event("awake", FIRST, STORY, "resume", "Goes on from the handoff."),
        event("healthy", FIRST, STORY, "checkpoint", "Health is green.", event={"nextAction": ACTION}),
    )
    requires_only(story.answers["woken"], COMPACTED)
    assert story.answers["woken"]["assignmentId"] == f"assign-{FIRST}"


def it_hands_over(story: Story) -> None:
    """It leaves the rest to the other worker, and goes on with the other mission."""
    story.phase(
        handoff("handed over", FIRST, STORY, ACTION),
        hook("dispatched again", "dispatch", SECOND, STORY, "Dispatched the reviewer.", title="Move the relay"),
    )
    for place in ("handoffs/relay-move.md", "missions/relay-move/handoff.md"):
        assert (memory_of(story.service, FIRST) / place).read_text("utf-8") == handoff_page(FIRST, STORY, ACTION)
    story.ask(handoff("the last of the first worker", FIRST, OTHER, f"Feed the last {QUAGGA}."))
    latest = shared_of(story.service) / "handoffs" / "swarm" / f"{FIRST}-latest.md"
    assert QUAGGA in latest.read_text("utf-8")
    # It really has the words of the other mission, as long as it is at that one.
    assert QUAGGA in story.ask(tool("busy", "swarm_resume", agent=SECOND))["prompt"]
    story.is_at(FIRST, OTHER)
    story.is_at(SECOND, STORY)


def the_second_worker_goes_on(story: Story) -> None:
    """It is told the first one's next exact action, over MCP and HTTP, as the worker and as the operator."""
    over_mcp = tool("taken over", "swarm_resume", agent=SECOND)
    as_operator = look("looked at", "/resume", workerId=SECOND)
    story.phase(over_mcp, as_operator, event("took over", SECOND, STORY, "resume", "Goes on from the handoff."))
    for name in ("taken over", "looked at"):
        requires_only(story.answers[name], ACTION)
    status, by_rest = story.service.rest("GET", "/v1/swarm/resume", agent=SECOND)
    assert status == 200
    resumes = [by_rest, story.ask(over_mcp), story.ask(as_operator)]
    for resume in resumes:
        requires_only(resume, ACTION)
        assert [one["name"] for one in resume["parts"]] == PARTS
        assert [one["hash"] for one in resume["parts"]] == [
            hashlib.sha256(Path(one["path"]).read_bytes()).hexdigest() for one in resume["parts"]
        ]
    assert len({json.dumps([one["parts"], one["prompt"]]) for one in resumes}) == 1
    assert part(by_rest, "handoff")["path"] == str(memory_of(story.service, FIRST) / "handoffs" / "relay-move.md")


def its_work_is_reviewed(story: Story) -> None:
    """What it did is under review, and what it learnt is kept."""
    story.phase(
        event("named", SECOND, STORY, "checkpoint", "The name points at lab-02.", event={"state": "REVIEW"}),
        page("learnt", "/promote", workerId=SECOND, missionId=STORY, lesson=LESSON),
    )
    assert "- Status: review" in story.summary(SECOND)
    memory = (memory_of(story.service, SECOND) / "MEMORY.md").read_text("utf-8")
    assert memory.count(LESSON) == 1
    assert re.search(rf"^- {re.escape(LESSON)} — from mission {STORY}, \d{{4}}-\d\d-\d\d$", memory, re.MULTILINE)


def the_mission_is_completed(story: Story) -> None:
    """The swarm's server reports its end; before it, the mission is not to be archived."""
    status, refusal = story.service.rest("POST", f"{PAGE}/archive", {"missionId": STORY})
    assert (status, refusal["code"], "`checkpoint` of swarm6" in refusal["error"]) == (409, "conflict", True)
    story.phase(hook("done", "complete", SECOND, STORY, "The relay runs on lab-02.", event={"result": "10.0.0.2"}))
    assert "- Status: complete" in story.summary(SECOND)


def it_is_archived(story: Story) -> None:
    """All that both workers have of it, byte for byte, and nothing of the other mission."""
    story.phase(page("archived", "/archive", missionId=STORY))
    archived = story.answers["archived"]
    again = story.ask(page("archived again", "/archive", missionId=STORY))
    assert (again["replayed"], again["hash"], again["workers"]) == (True, archived["hash"], [FIRST, SECOND])
    assert story.ask(look("verified", "/archive", missionId=STORY))["hash"] == archived["hash"]
    code, verified = story.service.cli("swarm", "verify", STORY)
    assert (code, verified["ok"], verified["conflicts"], verified["lost"]) == (0, True, 0, 0)
    archive = Path(archived["path"])
    for worker in (FIRST, SECOND):
        mission = memory_of(story.service, worker) / "missions" / STORY
        for path, content in tree(mission).items():
            copy = archive / worker / Path(path).relative_to(mission)
            assert content is None or copy.read_bytes() == content
    assert (archive / FIRST / "handoffs" / "relay-move.md").read_text("utf-8") == handoff_page(FIRST, STORY, ACTION)
    assert "- Status: complete" in (archive / SECOND / "SUMMARY.md").read_text("utf-8").splitlines()
    for path, content in tree(archive).items():
        assert content is None or QUAGGA.encode() not in content.lower(), path


def it_is_remembered(story: Story) -> None:
    """Whoever asks afterwards finds it among the workers' files and in the archive."""
    asked: dict[str, Any] = {"agent": "main", "q": "dig short relay.lab zones", "tiers": "swarm", "k": 20}
    status, by_rest = story.service.rest("GET", "/v1/recall", **asked)
    assert status == 200
    for answer in (by_rest, story.ask(tool("recalled", "recall", **asked))):
        found = [one for one in answer["results"] if one["mission"] == STORY]
        assert {one["worker"] for one in found} == {FIRST, SECOND}
        ids = [one["id"] for result in found for one in (result, *result.get("also", ()))]
        for place in (f"{FIRST}/memory/handoffs/{STORY}.md", f"swarm/missions/{STORY}/{FIRST}/handoff.md"):
            assert any(place in one for one in ids), ids
        assert any(ACTION in Path(one["path"]).read_text("utf-8").splitlines()[one["line"] - 1] for one in found)
