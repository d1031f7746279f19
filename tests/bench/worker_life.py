"""How long resume and briefing take on a worker of 5,000 events: `make bench-life [ARGS="--asked 200"]`.

  python -m tests.bench.worker_life [DB] [--work DIR] [--asked 200] [--after 50] [--json FILE]

DB is one of gen_fleet.py; a copy of it is served, with its newest row moved to today. Beside it 50 workers, seeded: the
one that is asked about has a mission of 5,000 events, 400 days of episodes, ten other missions and a MEMORY.md of
100 KB; each other worker has three missions with handoffs, one of them the same mission for every third. The files are
written as the service writes them, and it makes the SUMMARY.md of each mission when it starts. Asked over HTTP on
loopback, one call after the other, each answer checked against its budget. Run it alone: every figure is a time.

What is asked right after an event may wait for its page, and has no limit: a mission's page is made at most once in
0.2 s, so that the first event after a pause costs nothing and the next ones cost the rest of that time. Prints a table
and one JSON line; ends with 1 where a limit is missed.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw

from storage import briefing
from storage.swarm import layout
from storage.swarm.events import Event, EventType
from storage.swarm.layout import EVENTS, HANDOFF, RUNTIME, Folder, Roots
from storage.swarm.life import records
from storage.swarm.pages import Persona, episode_entry, episode_heading, profile_pages
from storage.swarm.summaries import SUMMARY_PERIOD_S
from tests.bench import latency_questions
from tests.bench.measures import latencies
from tests.bench.swarm_search import Measured, Text
from tests.support import Service, eventually, serving

WORKER = "sol"
"""An agent of every fleet's database that gen_fleet.py makes."""
MISSION, OLD_MISSION = "mission-12", "mission-1"
"""The name of the old one is in every entry of the long one, so that each of them is looked at for it."""
EVENTS_LONG, EVENTS_OTHER = 5_000, 60
DAYS, DAYS_OF_OTHERS = 400, 30
MISSIONS = 10
WORKERS = 50
MISSIONS_OF_OTHERS = 3
SHARED_BY_EVERY = 3
MEMORY_BYTES = 100_000
SHORT_KEYS = 30
QUESTION_WORDS = (10, 20)
P95_MS_MAX = 50.0
PAUSE_S = 2 * SUMMARY_PERIOD_S
"""So long after a page was made, the next one is made at once."""
READY_WITHIN_S = 300.0
SEED = 29

Answer = dict[str, Any]
Ask = Callable[[int, int], Answer]
"""Asks for the answer of a number within a budget."""


# --- a worker's files ---


def spread(count: int, days: int) -> list[timedelta]:
    """How long ago each of some events was, evenly over some days, the oldest first."""
    return [timedelta(days=days * (count - number) / count) for number in range(count)]


class Files:
    """Makes the files of workers as the service would have written them."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots
        self._text = Text(SEED)
        self._now = datetime.now(UTC)

    def make(self) -> None:
        """All workers."""
        self._worker_of_long_life()
        for number in range(1, WORKERS):
            self._other_worker(f"swarm{number}", number)

    def _worker_of_long_life(self) -> None:
        self._profile(WORKER, MEMORY_BYTES)
        told = {MISSION: self._events(WORKER, MISSION, spread(EVENTS_LONG, DAYS))}
        for number in range(MISSIONS):
            told[f"relay-{number}"] = self._events(WORKER, f"relay-{number}", spread(EVENTS_OTHER, DAYS))
        told[OLD_MISSION] = self._events(WORKER, OLD_MISSION, [timedelta(days=DAYS - 1)] * 3)
        self._missions(WORKER, told)

    def _other_worker(self, worker: str, number: int) -> None:
        self._profile(worker, 5_000)
        missions = [f"{worker}-m{mission}" for mission in range(MISSIONS_OF_OTHERS)]
        if number % SHARED_BY_EVERY == 0:
            missions[-1] = MISSION
        ago = spread(EVENTS_OTHER, DAYS_OF_OTHERS)
        self._missions(worker, {mission: self._events(worker, mission, ago) for mission in missions})

    def _profile(self, worker: str, memory_bytes: int) -> None:
        for name, text in profile_pages(worker, Persona(role="builder", specialty="relays")):
            lines = [text]
            while name == "MEMORY.md" and sum(map(len, lines)) < memory_bytes:
                lines.append(f"{self._text.line()}\n")
            self._write(layout.memory(worker), name, "".join(lines))
        runtime = {"currentMissionId": MISSION, "currentAssignmentId": "assign-1", "state": "executing"}
        self._write(layout.profile(worker), RUNTIME, json.dumps(runtime))

    def _events(self, worker: str, mission: str, ago: list[timedelta]) -> list[Event]:
        return [self._event(worker, mission, number, at) for number, at in enumerate(ago)]

    def _event(self, worker: str, mission: str, number: int, ago: timedelta) -> Event:
        line = self._text.line
        kind: EventType = "dispatch" if number == 0 else "checkpoint" if number % 3 else "note"
        detail = {"result": line()[2:], "nextAction": line()[2:], "filesTouched": [f"src/part_{number % 300}.py"]}
        if number % 5 == 0:
            detail |= {"decisions": [line()[2:]], "objective": line()[2:]}
        at = self._now - ago + timedelta(milliseconds=number)
        iso = at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return Event(at=iso, type=kind, worker=worker, mission=mission, summary=line()[2:], detail=detail)

    def _missions(self, worker: str, told: dict[str, list[Event]]) -> None:
        """The logs, the episode pages and the handoffs of missions."""
        pages: dict[str, list[Event]] = defaultdict(list)
        for mission, events in told.items():
            self._write(layout.mission(worker, mission), EVENTS, "".join(event.line().decode() for event in events))
            self._handoff(worker, mission)
            for event in events:
                pages[event.at[:10]].append(event)
        for day, events in pages.items():
            entries = [episode_entry(event) for event in sorted(events, key=lambda event: event.at)]
            page = episode_heading(worker, day) + "".join(entries)
            self._write(layout.episodes(worker), layout.episode_file(day), page)

    def _handoff(self, worker: str, mission: str) -> None:
        """In its three places."""
        text = self._text.line
        head = f"# Handoff — {worker} — {mission}\n\n## Next exact action\n\n{text()[2:]}\n\n## Done\n\n"
        page = head + "".join(f"{text()}\n" for _ in range(40))
        self._write(layout.handoffs(worker), layout.handoff_file(mission), page)
        self._write(layout.mission(worker, mission), HANDOFF, page)
        self._write(layout.shared_handoffs(), layout.latest_file(worker), page)

    def _write(self, folder: Folder, name: str, text: str) -> None:
        path = self._roots.path(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


# --- the fleet's database ---


def copied(source: Path, folder: Path) -> Path:
    """A copy of a fleet's database whose newest row is of now: what is older than 14 days is no news to a briefing."""
    database = folder / "solos.db"
    with contextlib.closing(apsw.Connection(str(database))) as copy, latency_questions.reading(source) as original:
        backup = copy.backup("main", original, "main")
        backup.step()
        backup.finish()
        for table in ("memory_longterm", "memory_episodic"):
            newest = copy.execute(f"SELECT max(created_at) FROM {table}").get
            copy.execute(f"UPDATE {table} SET created_at = created_at + ?", (time.time() - 1 - newest,))
    return database


def questions(database: Path, count: int) -> list[str]:
    """Sentences of 10 to 20 words out of the rows, each another one."""
    pick = random.Random(SEED)
    found: dict[str, None] = {}
    with latency_questions.reading(database) as db:
        drawn = latency_questions.Drawn(db)
        while len(found) < count:
            words = drawn.row().q.split()
            length = pick.randint(*QUESTION_WORDS)
            if len(words) >= length:
                start = pick.randint(0, len(words) - length)
                found.setdefault(" ".join(words[start : start + length]))
    return list(found)


# --- what is asked ---


@dataclass
class Asked:
    """What some answers took and held."""

    ms: list[float] = field(default_factory=list)
    chars: list[int] = field(default_factory=list)
    over_budget: int = 0
    behind: int = 0
    """Of how many a page did not show all events yet."""
    missing: Counter[str] = field(default_factory=Counter)

    def add(self, ms: float, answer: Answer, budget: int) -> None:
        """Take one answer, and hold it against its budget."""
        chars = len(answer.get("prompt", "")) + sum(len(part["content"]) for part in answer["parts"])
        self.ms.append(ms)
        self.chars.append(chars)
        self.over_budget += not (chars == answer["chars"] <= answer["budget"] == budget)
        self.behind += bool(answer.get("pagesBehind") or "pages_behind" in answer.get("degraded_reasons", ()))
        self.missing.update(part["name"] for part in answer.get("missing", ()))

    def figures(self) -> dict[str, Any]:
        """The figures, for JSON."""
        rest = {"max_ms": round(max(self.ms), 3), "chars_max": max(self.chars), "over_budget": self.over_budget}
        return latencies(self.ms) | rest | {"behind": self.behind, "missing": dict(self.missing)}


@dataclass(frozen=True)
class Asking:
    """A service, and the calls that are timed."""

    service: Service
    sentences: list[str]

    def get(self, path: str, **query: Any) -> Answer:
        """What a call over REST answers."""
        status, answer = self.service.rest("GET", path, **query)
        assert status == 200, answer
        return answer

    def resume(self, _: int, budget: int, **more: str) -> Answer:
        """A resume over REST."""
        return self.get("/api/swarm-memory/resume", workerId=WORKER, budget=budget, **more)

    def resume_tool(self, _: int, budget: int) -> Answer:
        """A resume over MCP."""
        failed, answer = self.service.mcp("swarm_resume", {"agent": WORKER, "budget": budget})
        assert not failed, answer
        return answer

    def briefing(self, number: int, budget: int) -> Answer:
        """A briefing over REST, each with another sentence."""
        return self.get("/v1/briefing", agent=WORKER, q=self.sentences[number % len(self.sentences)], budget=budget)

    def wait_until_ready(self, files: int) -> None:
        """Until both indexes hold everything, and no page is behind."""

        def searched() -> bool:
            found = self.get("/api/swarm-memory/search", q="relays", fresh="true")
            return int(found["scanned"]) >= files

        eventually(lambda: self.get("/v1/stats")["store"]["index_share"] == 1.0, READY_WITHIN_S)
        eventually(searched, READY_WITHIN_S)
        eventually(lambda: not self.resume(0, records.BUDGET_CHARS)["pagesBehind"], READY_WITHIN_S)

    def remember_short_keys(self) -> None:
        """Some that are live."""
        for number in range(SHORT_KEYS):
            entry = {"agent": WORKER, "key": f"task-{number}", "value": self.sentences[number % len(self.sentences)]}
            status, answer = self.service.rest("POST", "/v1/short", entry | {"ttl_s": 3_600})
            assert status == 201, answer

    def write_event(self, number: int) -> None:
        """One more checkpoint of the long mission."""
        said = {"workerId": WORKER, "missionId": MISSION, "summary": self.sentences[number % len(self.sentences)]}
        status, answer = self.service.rest("POST", "/api/swarm-memory/hooks/checkpoint", said)
        assert status < 300, answer

    def timed(self, ask: Ask, budget: int, count: int) -> Asked:
        """Ask `count` times."""
        asked = Asked()
        ask(0, budget)
        for number in range(count):
            asked.add(*self._once(ask, number, budget), budget)
        return asked

    def timed_after_event(self, ask: Ask, budget: int, count: int, *, pause_s: float) -> Asked:
        """Ask `count` times, each time right after an event, which is written so long after the last answer."""
        asked = Asked()
        for number in range(count):
            time.sleep(pause_s)
            self.write_event(number)
            asked.add(*self._once(ask, number, budget), budget)
        return asked

    def _once(self, ask: Ask, number: int, budget: int) -> tuple[float, Answer]:
        began = time.perf_counter()
        answer = ask(number, budget)
        return (time.perf_counter() - began) * 1000, answer


def measured(asking: Asking, asked: int, after: int) -> Measured:
    """Measure everything and print it."""
    result = Measured()
    result.figures["load"] = [round(os.getloadavg()[0], 2)]

    def old(number: int, budget: int) -> Answer:
        return asking.resume(number, budget, missionId=OLD_MISSION)

    quiet: list[tuple[str, Ask, int]] = [
        ("resume", asking.resume, records.BUDGET_CHARS),
        ("resume, largest budget", asking.resume, records.BUDGET_CHARS_MAX),
        ("resume, smallest budget", asking.resume, records.BUDGET_CHARS_MIN),
        ("resume, all 400 days looked through", old, records.BUDGET_CHARS),
        ("swarm_resume over MCP", asking.resume_tool, records.BUDGET_CHARS),
        ("briefing", asking.briefing, briefing.BUDGET_CHARS),
        ("briefing, largest budget", asking.briefing, briefing.BUDGET_CHARS_MAX),
        ("briefing, smallest budget", asking.briefing, briefing.BUDGET_CHARS_MIN),
    ]
    print(f"{'':38s}{'p50':>9s}{'p95':>9s}{'max':>9s} ms{'chars':>9s}{'missing':>9s}")
    for name, ask, budget in quiet:
        shown(result, name, asking.timed(ask, budget, asked))
    for name, ask, budget in ((name, ask, budget) for name, ask, budget in quiet if name in ("resume", "briefing")):
        for when, pause_s in (("right after an event", PAUSE_S), ("right after one of many", 0.0)):
            told = asking.timed_after_event(ask, budget, after, pause_s=pause_s)
            shown(result, f"{name} {when}", told, limited=False)
    result.figures["load"].append(round(os.getloadavg()[0], 2))
    print(f"\nload before and after: {result.figures['load']}")
    for name, *_ in quiet:
        result.require(f"{name}: p95, ms", result.figures[name]["p95_ms"], P95_MS_MAX)
    over = sum(some["over_budget"] for some in result.figures.values() if "over_budget" in some)
    result.require("answers that exceed their budget", over, 0)
    return result


def shown(result: Measured, name: str, asked: Asked, *, limited: bool = True) -> None:
    """Keep and print the figures of some calls."""
    figures = result.figures[name] = asked.figures()
    times = "".join(f"{figures[of]:9.1f}" for of in ("p50_ms", "p95_ms", "max_ms"))
    note = "" if limited else f"   waits for pages; {figures['behind']} of {figures['n']} still behind"
    print(f"{name:38s}{times}   {figures['chars_max']:9d}{sum(asked.missing.values()):9d}{note}", flush=True)


@contextlib.contextmanager
def served(source: Path, work: Path, count: int) -> Iterator[Asking]:
    """A service over everything, ready."""
    database = copied(source, work)
    files = Files(Roots(profiles=work / "profiles", shared=work / "shared"))
    files.make()
    made = sum(path.suffix in (".md", ".jsonl") for root in ("profiles", "shared") for path in (work / root).rglob("*"))
    with serving(database) as service:
        asking = Asking(service, questions(database, count))
        asking.wait_until_ready(made)
        asking.remember_short_keys()
        yield asking


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path, nargs="?", default=Path(".cache/fleet-20000.db"))
    parser.add_argument("--work", type=Path)
    parser.add_argument("--asked", type=int, default=200)
    parser.add_argument("--after", type=int, default=50)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not given.database.is_file():
        parser.error(f"{given.database} is no file; tests/bench/gen_fleet.py makes it")
    if min(given.asked, given.after) < 1:
        parser.error("counts begin at 1")
    with tempfile.TemporaryDirectory(dir=given.work) as work, served(given.database, Path(work), given.asked) as asking:
        result = measured(asking, given.asked, given.after)
    print(f"\n{'every limit is kept' if result.kept else 'limits are MISSED'}")
    print(json.dumps(result.figures), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result.figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if result.kept else 1)


if __name__ == "__main__":
    main()
