"""Many processes report events at once, and editors rewrite the page meanwhile: nothing of anybody is lost."""

import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance import swarm_editors
from tests.acceptance.swarm_editors import PATH, line_of, summary_of
from tests.support import Service, eventually, serving

REPORTERS = 20
EVENTS_EACH = 10
EDITS_EACH = 250
SHOWN = 50
PERIOD_S = 0.2
"""How often SUMMARY.md may be made anew: the design's figure."""
FINISH_WITHIN_S = 120.0
EDITORS = ("replace", "truncate")
MARKED = re.compile(r"<!-- solos:begin ([a-z-]+) -->\n(.*?)<!-- solos:end \1 -->", re.DOTALL)
TOTAL = re.compile(r"^- Total: (\d+) events, (\d+) of them checkpoints(.*)$", re.MULTILINE)


# --- processes ---


def started(*arguments: object) -> subprocess.Popen[bytes]:
    """A process of `swarm_editors`."""
    program = [sys.executable, "-m", swarm_editors.__name__, *map(str, arguments)]
    return subprocess.Popen(program, cwd=Path(__file__).parents[2])


@contextmanager
def ended(processes: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Processes that must all end well after the block; they are killed where it fails."""
    try:
        yield
        for process in processes:
            assert process.wait(FINISH_WITHIN_S) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def reporters(
    url: str, body: dict[str, Any], names: list[str], *, count: int = EVENTS_EACH, pause_max_s: float = 0.0
) -> list[subprocess.Popen[bytes]]:
    """A process for each name, which reports events."""
    return [started("report", url, json.dumps(body), name, count, pause_max_s) for name in names]


def names_of(word: str, count: int) -> list[str]:
    """Names of reporters."""
    return [f"{word} {number}" for number in range(count)]


def summaries(names: list[str], count: int = EVENTS_EACH) -> Counter[str]:
    """What these reporters' events say, each once."""
    return Counter(summary_of(name, number) for name in names for number in range(count))


# --- files ---


class Mission:
    """A mission's files, as they are on disk."""

    def __init__(self, service: Service, worker: str, mission: str) -> None:
        assert service.database is not None
        self.memory = service.database.parent / "profiles" / worker / "memory"
        self.folder = self.memory / "missions" / mission
        self.body = {"workerId": worker, "kind": "mission", "missionId": mission, "eventType": "checkpoint"}

    @property
    def page(self) -> Path:
        return self.folder / "SUMMARY.md"

    def events(self) -> list[dict[str, Any]]:
        """Its log, each line of which must be an event."""
        content = (self.folder / "events.jsonl").read_bytes()
        assert content.endswith(b"\n")
        return [json.loads(line) for line in content.splitlines()]

    def totals(self) -> tuple[int, int]:
        """(events, checkpoints) that SUMMARY.md counts."""
        (found,) = TOTAL.findall(self.page.read_text(encoding="utf-8"))
        return int(found[0]), int(found[1])

    def shown(self) -> list[str]:
        """The entries that SUMMARY.md shows, as it orders them."""
        (lines,) = [
            text for name, text in MARKED.findall(self.page.read_text(encoding="utf-8")) if name == "checkpoints"
        ]
        return [line for line in lines.splitlines() if not line.startswith("- Total:")]

    def episodes(self) -> str:
        """All episode pages of its worker: a test may run across midnight."""
        return "".join(page.read_text(encoding="utf-8") for page in sorted(self.memory.glob("episodes/*.md")))

    def conflicts(self) -> list[Path]:
        """Versions of SUMMARY.md that were kept beside it."""
        return sorted(self.folder.glob("SUMMARY.md.conflict-*"))

    def temporaries(self) -> list[Path]:
        """What the service must not leave."""
        return sorted(self.folder.parents[2].rglob(".solos-*"))


def require_all_shown(mission: Mission, expected: Counter[str]) -> None:
    """Every event is in the log, in the episodes and in SUMMARY.md's total, each once; the newest are shown."""
    events = mission.events()
    assert Counter(event["summary"] for event in events) == expected
    entries = re.findall(r"^- Summary: (.+)$", mission.episodes(), re.MULTILINE)
    assert Counter(entries) == expected
    eventually(lambda: mission.totals() == (len(events), len(events)))
    newest = [f"- {event['at']} — checkpoint — {event['summary']}" for event in reversed(events[-SHOWN:])]
    assert mission.shown() == newest
    eventually(lambda: not mission.temporaries())


# --- 20 processes ---


def test_events_of_20_processes_are_all_there_and_each_once(service: Service) -> None:
    mission, names = Mission(service, "swarm5", "m-1"), names_of("reporter", REPORTERS)
    with ended(reporters(service.url, mission.body, names)):
        pass
    assert len(mission.events()) == REPORTERS * EVENTS_EACH
    require_all_shown(mission, summaries(names))
    (told,) = TOTAL.findall(mission.page.read_text(encoding="utf-8"))
    assert told == ("200", "200", "; the newest 50 are shown")
    assert mission.conflicts() == []


def test_events_and_edits_survive_each_other(service: Service, tmp_path: Path) -> None:
    """Two editors make 500 edits of SUMMARY.md while 20 processes report 200 events."""
    mission, names = Mission(service, "swarm5", "m-1"), names_of("reporter", REPORTERS)
    status, _ = service.rest("POST", PATH, {**mission.body, "summary": "the first."})
    assert status == 200
    eventually(mission.page.exists)
    editors = [started("edit", mission.page, tmp_path / "turn", how, EDITS_EACH) for how in EDITORS]
    with ended(editors), ended(reporters(service.url, mission.body, names, pause_max_s=2.0)):
        pass
    edits = Counter(line_of(how, number) for how in EDITORS for number in range(EDITS_EACH))
    eventually(lambda: not edits - Counter(lines_of(mission.page)))
    require_all_shown(mission, summaries(names) + Counter(["the first."]))
    found = Counter(lines_of(mission.page))
    assert {line: found[line] for line in edits} == dict(edits)
    page = mission.page.read_text(encoding="utf-8")
    assert not [line for line in edits if line in "".join(text for _, text in MARKED.findall(page))]


def test_a_save_of_what_was_read_before_an_event_is_made_up_for(service: Service) -> None:
    """The event is in the page again although no other follows, and what the editor wrote stays."""
    mission = Mission(service, "swarm5", "m-1")
    service.rest("POST", PATH, {**mission.body, "summary": "the first."})
    eventually(mission.page.exists)
    read = mission.page.read_text(encoding="utf-8")
    service.rest("POST", PATH, {**mission.body, "summary": "the second."})
    eventually(lambda: mission.totals() == (2, 2))
    mission.page.write_text(f"{read}A note.\n", encoding="utf-8")
    assert [told[0] for told in TOTAL.findall(read)] == ["1"]
    eventually(lambda: mission.totals() == (2, 2))
    assert lines_of(mission.page)[-2:] == ["A note.", ""]
    require_all_shown(mission, Counter(["the first.", "the second."]))


def lines_of(page: Path) -> list[str]:
    """A page's lines."""
    return page.read_text(encoding="utf-8").split("\n")


# --- apart ---


def test_missions_and_workers_stay_apart(service: Service) -> None:
    """Two missions of each of two workers, of the same names, are written at once."""
    missions = {
        (worker, mission): Mission(service, worker, mission)
        for worker in ("swarm5", "swarm6")
        for mission in ("m-1", "m-2")
    }
    running = [
        process
        for (worker, name), mission in missions.items()
        for process in reporters(service.url, mission.body, [f"{worker} in {name}"], count=30)
    ]
    with ended(running):
        pass
    for (worker, name), mission in missions.items():
        own = summaries([f"{worker} in {name}"], 30)
        assert Counter(event["summary"] for event in mission.events()) == own
        assert {(event["workerId"], event["missionId"]) for event in mission.events()} == {(worker, name)}
        eventually(lambda mission=mission: mission.totals() == (30, 30))
        assert Counter(line.rpartition(" — ")[2] for line in mission.shown()) == own
        entries = Counter(re.findall(r"^- Summary: (.+)$", mission.episodes(), re.MULTILINE))
        assert entries == summaries([f"{worker} in m-1", f"{worker} in m-2"], 30)


# --- a long mission ---


class Rewrites:
    """Counts how often another file came into a page's place, from the entry of the block to its end."""

    def __init__(self, page: Path) -> None:
        self._page = page
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self.count = 0
        self.seconds = 0.0

    def _watch(self) -> None:
        began, before = time.monotonic(), self._version()
        while not self._over.wait(0.001):
            now = self._version()
            self.count += now != before
            before = now
        self.seconds = time.monotonic() - began

    def _version(self) -> tuple[int, int]:
        state = self._page.stat()
        return state.st_ino, state.st_mtime_ns  # an inode's number is given again at once

    def __enter__(self) -> "Rewrites":
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watcher.join()


def long_log(mission: Mission, count: int) -> None:
    """A log of that many events, as another program would have written it."""
    mission.folder.mkdir(parents=True)
    began = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
    with (mission.folder / "events.jsonl").open("w", encoding="utf-8") as log:
        for number in range(count):
            at = (began + timedelta(seconds=number)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            event = {"at": at, "type": "checkpoint", "summary": summary_of("old", number), "event": {"state": "DONE"}}
            log.write(json.dumps(event) + "\n")


def report_until(over: Callable[[], bool], url: str, body: dict[str, Any], name: str) -> int:
    """Report events without a pause; how many."""
    number = 0
    with httpx2.Client(timeout=30) as http:
        while not over():
            answer = http.post(url + PATH, json={**body, "summary": summary_of(name, number)})
            assert answer.status_code == 200, answer.text
            number += 1
    return number


def test_summary_of_a_long_mission_is_made_anew_at_most_once_in_200_ms(database: Path) -> None:
    """A mission of 3,000 events takes more of them, as many as four clients can send."""
    old, clients = 3_000, names_of("client", 4)
    with serving(database) as service:
        mission = Mission(service, "swarm5", "m-1")
        long_log(mission, old)
        service.rest("POST", PATH, {**mission.body, "summary": "the first."})
        eventually(lambda: mission.totals() == (old + 1, old + 1))
        until = time.monotonic() + 15 * PERIOD_S
        with Rewrites(mission.page) as rewrites, ThreadPoolExecutor(len(clients)) as pool:
            running = [
                pool.submit(report_until, lambda: time.monotonic() > until, service.url, mission.body, name)
                for name in clients
            ]
            counts = [each.result() for each in running]
        eventually(lambda: mission.totals() == (old + 1 + sum(counts),) * 2)
        told = Counter(event["summary"] for event in mission.events()[old + 1 :])
        assert told == sum(map(summaries, [[name] for name in clients], counts), Counter())
        assert sum(counts) > rewrites.count
        # one more at each end: the first is due at once, and a rewrite's file shows a little after its turn began
        assert 2 <= rewrites.count <= rewrites.seconds / PERIOD_S + 2
