"""How long it takes to recommend workers for a task: `make bench-recommend [ARGS="--workers 50"]`.

  python -m tests.bench.recommend [--work DIR] [--workers 50] [--asked 200] [--json FILE]

Makes the memory of the workers in DIR where it is not there yet (seeded: the same each time): each has a profile, 20
missions with summary, log and handoff, and 60 episode pages, of invented words, stop words and identifiers. Asks for
200 tasks of one or two sentences, taken from what the workers hold; then again, each just after a write; meanwhile a
thread looks at the files once a second, as the service does. Run it alone: every figure is a time. Prints a table and
one JSON line; ends with 1 where a limit is missed.
"""

import argparse
import contextlib
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from storage.swarm import layout
from storage.swarm.layout import Roots
from storage.swarm.life.recommending import Recommendations
from storage.swarm.roster import Roster
from storage.swarm.search.searching import SwarmSearch
from tests.bench.measures import latencies
from tests.bench.swarm_search import Measured, Text, kept_warm

WORKERS = 50
ASKED = 200
MISSIONS = 20
EPISODES = 60
LINES = {"MEMORY.md": 40, "SOUL.md": 15, "IDENTITY.md": 6, "SUMMARY.md": 25, "events.jsonl": 40, "handoff.md": 15}
EPISODE_LINES = 60
P95_MS_MAX = 50.0
SEED = 11


def pages() -> Iterator[tuple[str, int]]:
    """(path below a worker's memory, its lines) of each file."""
    yield from ((name, LINES[name]) for name in ("MEMORY.md", "SOUL.md", "IDENTITY.md"))
    for mission in range(MISSIONS):
        yield from ((f"missions/m-{mission}/{name}", LINES[name]) for name in ("SUMMARY.md", "events.jsonl"))
        yield f"handoffs/m-{mission}.md", LINES["handoff.md"]
    for day in range(EPISODES):
        yield f"episodes/2026-{day // 28 + 1:02d}-{day % 28 + 1:02d}.md", EPISODE_LINES


def made(work: Path, workers: int) -> Roots:
    """The files, made where they are not there yet."""
    done = work / f"made-{workers}"
    if not done.exists():
        text = Text(SEED)
        for number in range(workers):
            for path, lines in pages():
                file = work / f"profiles/swarm{number}/memory/{path}"
                file.parent.mkdir(parents=True, exist_ok=True)
                said = [text.line() for _ in range(lines)]
                if path.endswith("l"):
                    said = [json.dumps({"type": "note", "summary": line}) for line in said]
                file.write_text("\n".join(said) + "\n", encoding="utf-8")
        entries = [
            f"- id: swarm{number}\n  role: {text.line()[2:]}\n  specialty: {text.line()[2:]}"
            for number in range(workers)
        ]
        (work / "swarm.yaml").write_text("workers:\n" + "\n".join(entries) + "\n", encoding="utf-8")
        done.touch()
    return Roots(profiles=work / "profiles", shared=work / "shared", workspace=work)


def tasks(work: Path, workers: int, asked: int) -> list[str]:
    """The same ones each time: a line or two of what a worker holds, or of nobody's."""
    pick, text = random.Random(SEED), Text(SEED + 1)
    where = [path for path, _ in pages() if path.endswith(".md")]

    def line() -> str:
        if pick.random() < 0.2:
            return text.line()
        file = work / f"profiles/swarm{pick.randrange(workers)}/memory/{pick.choice(where)}"
        return pick.choice(file.read_text(encoding="utf-8").splitlines())

    return [" ".join(line() for _ in range(pick.choice((1, 1, 2)))) for _ in range(asked)]


def timed(recommendations: Recommendations, task: str) -> float:
    """Milliseconds."""
    began = time.perf_counter()
    assert recommendations.recommend(task).considered
    return (time.perf_counter() - began) * 1000


def measured(work: Path, workers: int, asked: int) -> Measured:
    """Measure everything and print it."""
    result = Measured()
    roots = made(work, workers)
    every = tasks(work, workers, asked)
    with contextlib.closing(SwarmSearch(roots, work / "index.db")) as searching, kept_warm(searching):
        searching.refresh()
        recommendations = Recommendations(Roster(roots.workspace), searching, roots)
        timed(recommendations, every[0])
        result.figures["recommend"] = latencies([timed(recommendations, task) for task in every])
        after: list[float] = []
        for number, task in enumerate(every):
            mission = f"m-{number % MISSIONS}"
            summary = roots.path(layout.mission(f"swarm{number % workers}", mission), layout.SUMMARY)
            summary.write_text(f"{summary.read_text(encoding='utf-8')}- {task}\n", encoding="utf-8")
            searching.touch(layout.mission(f"swarm{number % workers}", mission), layout.SUMMARY)
            after.append(timed(recommendations, task))
        result.figures["after_a_write"] = latencies(after)
    for name in ("recommend", "after_a_write"):
        print(f"{name:20s} p50 {result.figures[name]['p50_ms']:8.2f} ms   p95 {result.figures[name]['p95_ms']:8.2f} ms")
        result.require(f"p95 of {name}, ms", result.figures[name]["p95_ms"], P95_MS_MAX)
    return result


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(".cache/recommend-50"))
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--asked", type=int, default=ASKED)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = measured(given.work, given.workers, given.asked)
    print(json.dumps(result.figures), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result.figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if result.kept else 1)


if __name__ == "__main__":
    main()
