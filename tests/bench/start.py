"""Start to ready, and memory after many recalls, on a fleet's database: `make bench-start DB=/path/to/solos.db`.

  start.py DB [--recalls 10000] [--starts 3] [--connections 2]

Serves the database itself (additively, as the service does), waits once until the search index has followed its
tables, then measures with the index on disk. Questions come from DB.queries.jsonl where it is there (gen_fleet.py
writes it), else from words of the tables. Prints a table and one JSON line; ends with 1 where a limit is exceeded.
"""

import argparse
import contextlib
import http.client
import itertools
import json
import random
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

READY_WITHIN_S = 2.0
RSS_MAX_MB = 300
START_WITHIN_S = 120
STOP_WITHIN_S = 15
INDEX_WITHIN_S = 3_600
ANSWER_WITHIN_S = 30
POLL_S = 0.002
PROGRESS_EVERY_S = 2.0
AGENT = "sol"


class Served:
    """A `solos-memory serve` on a free port, ready to answer."""

    def __init__(self, database: Path) -> None:
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("solos-memory"), "serve", "--db", database, "--bind", "127.0.0.1:0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = self._port()
        threading.Thread(target=self._drain, daemon=True).start()
        while self.get("/health/ready")[0] != http.client.OK:
            time.sleep(POLL_S)
        self.start_s = time.perf_counter() - began

    def _port(self) -> int:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if event["event"] == "serving":
                    return int(event["url"].rpartition(":")[2])
        raise SystemExit(f"the service ended with {self._process.wait()}:\n{''.join(said)}")

    def _drain(self) -> None:
        assert self._process.stdout is not None
        for _ in self._process.stdout:
            pass

    def get(self, path: str) -> tuple[int, dict]:
        """(status, body) of a GET on a connection of its own."""
        with contextlib.closing(self.connect()) as connection:
            return ask(connection, path)

    def connect(self) -> http.client.HTTPConnection:
        """A keep-alive connection."""
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_WITHIN_S)

    def memory_mb(self) -> dict[str, float]:
        """Resident memory now (VmRSS) and at its highest (VmHWM), in MB of 1,000,000 bytes."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return {
            name: round(int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024 / 1e6, 1)
            for name in ("VmRSS", "VmHWM")
        }

    def stop(self) -> None:
        """SIGTERM, and wait."""
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_WITHIN_S)
        finally:
            self._process.kill()
            self._process.wait()


@contextlib.contextmanager
def served(database: Path) -> Iterator[Served]:
    """A service that is stopped at the end."""
    service = Served(database)
    try:
        yield service
    finally:
        service.stop()


def ask(connection: http.client.HTTPConnection, path: str) -> tuple[int, dict]:
    """(status, body) of one GET."""
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def follow_tables(service: Served) -> float:
    """Wait until the index has followed the tables, with progress; the seconds that it took."""
    began = time.perf_counter()
    shown_s = 0.0
    while (share := service.get("/v1/stats")[1]["store"]["index_share"]) != 1.0:
        waited = time.perf_counter() - began
        if waited > INDEX_WITHIN_S:
            raise SystemExit(f"the index has followed {share:.1%} after {waited:.0f} s")
        if waited - shown_s >= PROGRESS_EVERY_S:
            shown_s = waited
            print(f"  indexing: {share:6.1%} after {waited:.0f} s", file=sys.stderr, flush=True)
        time.sleep(0.2)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Question:
    """One recall, and the ids of which it should find one (none where the words are only words)."""

    text: str
    gold: frozenset[str] = frozenset()


def known_items(database: Path) -> list[Question]:
    """The known-item questions beside the database."""
    path = Path(f"{database}.queries.jsonl")
    if not path.is_file():
        return []
    tiers = {"L": "long", "E": "episodic"}
    questions = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Question(q["q"], frozenset(f"{tiers[i[0]]}:{i[1:]}" for i in q["gold"])) for q in questions]


def words_of_tables(database: Path) -> list[Question]:
    """Three words of each of some random rows."""
    pick = random.Random(7)
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as db:
        columns = [
            (table, name)
            for table in ("memory_longterm", "memory_episodic")
            for _, name, *_ in db.execute(f"PRAGMA table_info({table})")
            if name in ("fact", "content", "value", "text", "summary")
        ]
        texts = [
            text
            for table, name in columns
            for (text,) in db.execute(f"SELECT {name} FROM {table} ORDER BY random() LIMIT 200")
            if text
        ]
    split = [re.findall(r"\w{3,}", str(text)) for text in texts]
    return [Question(" ".join(pick.sample(words, min(3, len(words))))) for words in split if words]


@dataclass
class Answers:
    """What the recalls of one connection came to."""

    ms: list[float] = field(default_factory=list)
    known: int = 0
    found: int = 0
    failed: int = 0


def recall_in_turn(service: Served, turns: Iterator[Question]) -> Answers:
    """Ask one question after the other on one connection until they are used up."""
    answers = Answers()
    with contextlib.closing(service.connect()) as connection:
        for question in turns:
            began = time.perf_counter()
            status, body = ask(connection, "/v1/recall?" + urlencode({"agent": AGENT, "q": question.text, "k": 5}))
            answers.ms.append((time.perf_counter() - began) * 1000)
            answers.failed += status != http.client.OK
            if question.gold and status == http.client.OK:
                answers.known += 1
                answers.found += any(result["id"] in question.gold for result in body["results"])
    return answers


def recall_many(service: Served, questions: list[Question], recalls: int, connections: int) -> tuple[Answers, float]:
    """All recalls over some connections at once: (what they came to, seconds)."""
    shares = [recalls // connections + (n < recalls % connections) for n in range(connections)]
    turns = [
        itertools.islice(itertools.cycle(questions[start:] + questions[:start]), share)
        for start, share in zip(range(0, len(questions), max(1, len(questions) // connections)), shares, strict=False)
    ]
    began = time.perf_counter()
    with ThreadPoolExecutor(connections) as callers:
        parts = list(callers.map(lambda share: recall_in_turn(service, share), turns))
    seconds = time.perf_counter() - began
    return Answers(
        sorted(ms for part in parts for ms in part.ms),
        sum(part.known for part in parts),
        sum(part.found for part in parts),
        sum(part.failed for part in parts),
    ), seconds


def measure(database: Path, recalls: int, starts: int, connections: int) -> dict:
    """Every figure, by name."""
    questions = known_items(database) or words_of_tables(database)
    with served(database) as service:
        indexing_s = follow_tables(service)
    starts_s = []
    for _ in range(starts):
        with served(database) as service:
            starts_s.append(round(service.start_s, 3))
    with served(database) as service:
        before = service.memory_mb()
        answers, seconds = recall_many(service, questions, recalls, connections)
        after = service.memory_mb()
        store = service.get("/v1/stats")[1]["store"]
    return {
        "database_mb": round(database.stat().st_size / 1e6, 1),
        "index_mb": round(store["index_bytes"] / 1e6, 1),
        "rows": store["rows"],
        "indexing_s": round(indexing_s, 1),
        "start_to_ready_s": starts_s,
        "recalls": len(answers.ms),
        "recalls_per_s": round(len(answers.ms) / seconds, 1),
        "p50_ms": round(answers.ms[len(answers.ms) // 2], 2),
        "p95_ms": round(answers.ms[int(len(answers.ms) * 0.95)], 2),
        "failed": answers.failed,
        "recall_at_5": round(answers.found / answers.known, 3) if answers.known else None,
        "rss_before_mb": before,
        "rss_after_mb": after,
    }


def verdict(value: float, limit: float) -> str:
    """Whether a figure keeps its limit, in words."""
    return f"limit {limit:g}: {'kept' if value <= limit else 'EXCEEDED'}"


def show(figures: dict) -> bool:
    """Print the table and the JSON line; whether every limit was kept."""
    slowest, rss = max(figures["start_to_ready_s"]), figures["rss_after_mb"]["VmHWM"]
    starts = ", ".join(f"{start:.2f}" for start in figures["start_to_ready_s"])
    before, after = figures["rss_before_mb"], figures["rss_after_mb"]
    print(f"database          {figures['database_mb']} MB, index {figures['index_mb']} MB, {figures['rows']}")
    print(f"indexing          {figures['indexing_s']} s (0 where the index was on disk)")
    print(f"start to ready    {starts} s ({verdict(slowest, READY_WITHIN_S)})")
    print(f"recalls           {figures['recalls']}, {figures['failed']} failed, {figures['recalls_per_s']} per s")
    print(f"latency           p50 {figures['p50_ms']} ms, p95 {figures['p95_ms']} ms")
    print(f"known-item @5     {figures['recall_at_5']}")
    print(f"RSS before        {before['VmRSS']} MB (highest {before['VmHWM']})")
    print(f"RSS after         {after['VmRSS']} MB (highest {after['VmHWM']}; {verdict(rss, RSS_MAX_MB)})")
    print(json.dumps(figures), flush=True)
    return slowest <= READY_WITHIN_S and rss <= RSS_MAX_MB and figures["failed"] == 0


def main() -> None:
    """Measure, print, and end with 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--recalls", type=int, default=10_000)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--connections", type=int, default=2)
    given = parser.parse_args()
    if not given.database.is_file():
        parser.error(f"{given.database} is no file")
    if min(given.recalls, given.starts, given.connections) < 1:
        parser.error("counts begin at 1")
    sys.exit(0 if show(measure(given.database, given.recalls, given.starts, given.connections)) else 1)


main()
