"""Search over the swarm's files beside a plain scan of them: `make bench-swarm [ARGS="--files 10000"]`.

  python -m tests.bench.swarm_search [--work DIR] [--files 10000] [--rounds 3] [--json FILE]

Makes the files in DIR where they are not there yet (seeded: the same ones each time): 10 KB each of invented words,
stop words and identifiers. Asks 100 questions of five kinds, while a thread looks at the files once a second as the
service does; then a plain Python scan answers the same questions in the same process. Run it alone: every figure is a
time. Prints a table and one JSON line; ends with 1 where a limit is missed.
"""

import argparse
import contextlib
import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.search.text import STOP_WORDS
from storage.swarm.layout import Roots
from storage.swarm.records import SwarmResults
from storage.swarm.search.searching import SwarmSearch
from tests.bench.measures import latencies, median_of, percentile

FILES = 10_000
FILE_BYTES = 10_000
PER_WORKER = 200
WORDS = 20_000
PER_KIND = 20
LIMIT = 10
P95_MS_MAX = 20.0
SHARE_MAX = 1 / 10
REFRESH_S = 1.0
SEED = 7
STARTS = "b c d f g h k l m n p r s t v w st tr pl".split()
ENDS = "a e i o u ar en ol".split()

Questions = dict[str, list[str]]
"""By kind."""


class Text:
    """Makes texts: words by Zipf's law, stop words between them, and now and then an identifier or a version."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)
        words: dict[str, None] = {}
        while len(words) < WORDS:
            syllables = self.pick.choice((2, 2, 3, 3, 4))
            word = "".join(self.pick.choice(STARTS) + self.pick.choice(ENDS) for _ in range(syllables))
            words.setdefault(word)
        self.words = list(words)
        self.stop_words = sorted(STOP_WORDS)
        total = 0.0
        self.weights = [total := total + 1 / (rank + 5) ** 0.9 for rank in range(WORDS)]

    def line(self) -> str:
        """A line of a dozen words and more."""
        words: list[str] = []
        for word in self.pick.choices(self.words, cum_weights=self.weights, k=12):
            if self.pick.random() < 0.4:
                words.append(self.pick.choice(self.stop_words))
            words.append(self._identifier(word) if self.pick.random() < 0.06 else word)
        return f"- {' '.join(words).capitalize()}."

    def _identifier(self, word: str) -> str:
        if self.pick.random() < 0.6:
            return f"{word}_{self.pick.choice(self.words)}"
        return f"v{self.pick.randrange(20)}.{self.pick.randrange(50)}.{self.pick.randrange(100)}"

    def page(self) -> str:
        """A Markdown page."""
        lines = ["# Page", ""]
        size = 0
        while size < FILE_BYTES:
            lines.append(self.line())
            size += len(lines[-1]) + 1
        return "\n".join(lines) + "\n"

    def log(self) -> str:
        """An events.jsonl."""
        lines: list[str] = []
        size = 0
        while size < FILE_BYTES:
            event = {"at": "2026-05-01T10:00:00.000Z", "type": "note", "summary": f"{self.line()}\n{self.line()}"}
            lines.append(json.dumps(event))
            size += len(lines[-1]) + 1
        return "\n".join(lines) + "\n"


def paths(files: int) -> Iterator[str]:
    """Where the files lie: nine in ten below workers, the others in shared memory."""
    own = ["MEMORY.md", "SOUL.md", "IDENTITY.md", *(f"episodes/2026-01-{day:02d}.md" for day in range(1, 28))]
    for mission in range(60):
        own += [f"missions/m-{mission}/SUMMARY.md", f"missions/m-{mission}/events.jsonl"]
    own += [f"handoffs/m-{mission}.md" for mission in range(PER_WORKER - len(own))]
    shared = files // 10
    for number in range(files - shared):
        yield f"profiles/swarm{number // PER_WORKER}/memory/{own[number % PER_WORKER]}"
    for number in range(shared):
        yield f"shared/swarm/notes-{number}.md" if number % 2 else f"shared/swarm/missions/m-{number}/SUMMARY.md"


def made(work: Path, files: int) -> Roots:
    """The files, made where they are not there yet."""
    done = work / f"made-{files}"
    if not done.exists():
        text = Text(SEED)
        for number, path in enumerate(paths(files)):
            file = work / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.log() if path.endswith("l") else text.page(), encoding="utf-8")
            if number % 500 == 0:
                print(f"\r  making file {number}   ", end="", file=sys.stderr, flush=True)
        done.touch()
    return Roots(profiles=work / "profiles", shared=work / "shared")


def questions(work: Path, files: int) -> Questions:
    """The same ones each time."""
    pick = random.Random(SEED)
    text = Text(SEED)
    pages = [work / path for path in paths(files) if path.endswith(".md")]

    def line() -> list[str]:
        return pick.choice(pick.choice(pages).read_text(encoding="utf-8").split("\n")[2:-1])[2:-1].split()

    return {
        "phrase": [" ".join(line()[3:7]) for _ in range(PER_KIND)],
        "two words": [" ".join(pick.sample(text.words[50:2000], 2)) for _ in range(PER_KIND)],
        "common words": [" ".join(pick.sample(text.words[:30], 4)) for _ in range(PER_KIND)],
        "sentence": [" ".join(line()[::-1][:12]) for _ in range(PER_KIND)],
        "identifier": [f"{pick.choice(text.words[:50])}_{pick.choice(text.words[:50])}" for _ in range(PER_KIND)],
    }


# --- the two ways to answer ---


def scan(work: Path, query: str) -> list[Path]:
    """A plain scan: read every file, an exact phrase before many of the words before few, the newer first."""
    low = query.casefold()
    words = low.split()
    found: list[tuple[bool, int, int, Path]] = []
    for root in ("profiles", "shared"):
        for path in (work / root).rglob("*"):
            if path.suffix not in (".md", ".jsonl"):
                continue
            content = path.read_text(encoding="utf-8").casefold()
            held = sum(word in content for word in words)
            if held:
                found.append((low in content, held, path.stat().st_mtime_ns, path))
    return [path for *_, path in sorted(found, reverse=True)[:LIMIT]]


def search(searching: SwarmSearch, query: str, *, fresh: bool = False) -> SwarmResults:
    """The search, over everything."""
    return searching.search(query, workers=None, private=None, shared=True, limit=LIMIT, fresh=fresh)


@contextlib.contextmanager
def kept_warm(searching: SwarmSearch) -> Iterator[None]:
    """A thread that looks at the files once a second."""
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(REFRESH_S):
            searching.refresh()

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def timed(searching: SwarmSearch, asked: list[str], *, fresh: bool = False) -> list[float]:
    """Milliseconds of each question."""
    ms: list[float] = []
    for query in asked:
        began = time.perf_counter()
        search(searching, query, fresh=fresh)
        ms.append((time.perf_counter() - began) * 1000)
    return ms


# --- what is measured ---


@dataclass
class Measured:
    """What came out."""

    figures: dict[str, Any] = field(default_factory=dict)
    kept: bool = True

    def require(self, name: str, value: float, most: float) -> None:
        """Note and print a figure that must not exceed a limit."""
        good = value <= most
        self.kept = self.kept and good
        self.figures[name] = {"value": round(value, 4), "limit": most, "kept": good}
        print(f"{name:44s}{value:10.3f}   limit {most:g}  {'kept' if good else 'MISSED'}")


def measured(work: Path, files: int, rounds: int) -> Measured:
    """Measure everything and print it."""
    result = Measured()
    roots = made(work, files)
    kinds = questions(work, files)
    index = work / "index.db"
    for suffix in ("", "-wal", "-shm"):
        Path(f"{index}{suffix}").unlink(missing_ok=True)
    began = time.perf_counter()
    with contextlib.closing(SwarmSearch(roots, index)) as searching:
        searching.refresh()
        result.figures["build_s"] = round(time.perf_counter() - began, 2)
    result.figures["index_mb"] = round(index.stat().st_size / 1e6, 1)
    began = time.perf_counter()
    with contextlib.closing(SwarmSearch(roots, index)) as searching:
        search(searching, "restarted")
        result.figures["first_search_after_restart_ms"] = round((time.perf_counter() - began) * 1000, 1)
        began = time.perf_counter()
        searching.refresh()
        result.figures["refresh_ms"] = round((time.perf_counter() - began) * 1000, 1)
        compare(searching, work, kinds, rounds, result)
        every = [query for asked in kinds.values() for query in asked]
        result.figures["fresh"] = latencies(timed(searching, every, fresh=True))
    return result


def compare(searching: SwarmSearch, work: Path, kinds: Questions, rounds: int, result: Measured) -> None:
    """Ask the search, then the scan; print both by kind."""
    for asked in kinds.values():
        timed(searching, asked)
    by_kind: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    of_all: list[dict[str, float]] = []
    with kept_warm(searching):
        for _ in range(rounds):
            ms = {kind: timed(searching, asked) for kind, asked in kinds.items()}
            for kind in kinds:
                by_kind[kind].append(latencies(ms[kind]))
            of_all.append(latencies([one for some in ms.values() for one in some]))
    scanned: list[float] = []
    print(
        f"\n{'':14s}{'search, ms':>16s}{'':6s}{'scan, ms':>16s}\n{'':14s}{'p50':>8s}{'p95':>8s}{'p50':>14s}{'p95':>8s}"
    )
    for kind, asked in kinds.items():
        some: list[float] = []
        for query in asked:
            began = time.perf_counter()
            scan(work, query)
            some.append((time.perf_counter() - began) * 1000)
        scanned += some
        ours = median_of(by_kind[kind])
        theirs = f"{percentile(some, 0.5):14.0f}{percentile(some, 0.95):8.0f}"
        print(f"{kind:14s}{ours['p50_ms']:8.2f}{ours['p95_ms']:8.2f}{theirs}")
        result.figures[kind] = {"search": ours, "scan": latencies(some)}
    ours, plain = median_of(of_all), latencies(scanned)
    result.figures |= {"search": ours, "scan": plain}
    print()
    result.require("p95, ms", ours["p95_ms"], P95_MS_MAX)
    result.require("p50 as a share of the scan's", ours["p50_ms"] / plain["p50_ms"], SHARE_MAX)
    result.require("p95 as a share of the scan's", ours["p95_ms"] / plain["p95_ms"], SHARE_MAX)


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, default=Path(".cache/swarm-10000"))
    parser.add_argument("--files", type=int, default=FILES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    result = measured(given.work, given.files, given.rounds)
    print(f"\n{'every limit is kept' if result.kept else 'limits are MISSED'}")
    print(json.dumps(result.figures), flush=True)
    if given.json:
        given.json.write_text(json.dumps(result.figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if result.kept else 1)


if __name__ == "__main__":
    main()
