"""What a fleet's questions find: `make bench-fleet DB=/path/to/solos.db` over a database of gen_fleet.py.

  fleet.py DB [--own FILE] [--reindex] [--json FILE]

Known items: the generator's questions (DB.queries.jsonl), each with a unique word; recall@5, and every miss printed.
Own questions: 100 without a unique word, made by fleet_questions.py and kept in DB.own.jsonl; recall@10 beside that of
exact BM25 over an OR of all terms with the same analysis (exact.py; kept in DB.exact.db), and how many of the first ten
the two share. The service opens the database itself, additively, and keeps its index beside it. Ends with 1 where a
limit is missed.
"""

import argparse
import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.exact import exact
from tests.bench.fleet_questions import write_questions
from tests.bench.measures import latencies
from tests.bench.stores import Stores, ids_of, opened, row_ids

KNOWN_K, OWN_K = 5, 10
KNOWN_MIN = 0.999
OWN_BEHIND_MAX = 0.05
OVERLAP_MIN = 0.7
SHOWN_CHARS = 110


@dataclass(frozen=True)
class Question:
    """A question and its right rows."""

    id: str
    q: str
    gold: frozenset[str]
    category: str


def questions_of(path: Path) -> list[Question]:
    """The questions of a file: {id, q, gold, category} a line."""
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Question(line["id"], line["q"], frozenset(row_ids(line["gold"])), line["category"]) for line in lines]


@dataclass(frozen=True)
class Answered:
    """A question and what was found for it."""

    question: Question
    ids: list[str]
    ms: float
    exact: list[str]
    """What exact BM25 finds; empty for known items."""

    def recall(self, ids: list[str], k: int) -> float:
        """The part of the right rows that is among the first k."""
        return len(self.question.gold & set(ids[:k])) / len(self.question.gold)

    @property
    def overlap(self) -> float:
        """The part of the exact first ten that is among the service's."""
        return len(set(self.ids[:OWN_K]) & set(self.exact)) / max(1, len(self.exact))


def ask(stores: Stores, question: Question, k: int, exactly: Callable[[str, int], list[str]] | None) -> Answered:
    """Ask the service, and exact BM25 where it is given."""
    began = time.perf_counter()
    found = stores.recall(stores.asker, question.q, k=k)
    ms = (time.perf_counter() - began) * 1000
    return Answered(question, ids_of(found), ms, exactly(question.q, k) if exactly else [])


def mean(values: list[float]) -> float:
    """The mean, rounded."""
    return round(sum(values) / len(values), 4)


def by_category(answers: list[Answered], measure: Callable[[Answered], float]) -> dict[str, float]:
    """A mean overall and of each category, in their order."""
    groups = {"all": answers}
    for answer in answers:
        groups.setdefault(answer.question.category, []).append(answer)
    return {name: mean([measure(answer) for answer in group]) for name, group in groups.items()}


def known_items(stores: Stores, path: Path) -> dict[str, Any]:
    """recall@5 by category; prints every miss."""
    answers = [ask(stores, question, KNOWN_K, None) for question in questions_of(path)]
    missed = [answer for answer in answers if answer.recall(answer.ids, KNOWN_K) < 1]
    for answer in missed:
        show_miss(stores, answer, KNOWN_K)
    return {
        "questions": len(answers),
        "recall@5": by_category(answers, lambda answer: answer.recall(answer.ids, KNOWN_K)),
        "missed": [answer.question.id for answer in missed],
        "latency": latencies([answer.ms for answer in answers]),
    }


def own_questions(stores: Stores, path: Path) -> dict[str, Any]:
    """recall@10 of the service and of exact BM25, and their overlap, by category; prints what the service misses."""
    with exact(stores.paths.database) as index:
        answers = [ask(stores, question, OWN_K, index.best) for question in questions_of(path)]
    for answer in answers:
        if answer.recall(answer.ids, OWN_K) < answer.recall(answer.exact, OWN_K):
            show_miss(stores, answer, OWN_K)
    sentences = [answer for answer in answers if answer.question.category.startswith("sentence")]
    return {
        "questions": len(answers),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "recall@10": by_category(answers, lambda answer: answer.recall(answer.ids, OWN_K)),
        "exact_recall@10": by_category(answers, lambda answer: answer.recall(answer.exact, OWN_K)),
        "overlap": by_category(answers, lambda answer: answer.overlap),
        "sentence_overlap": mean([answer.overlap for answer in sentences]),
        "latency": latencies([answer.ms for answer in answers]),
    }


def show_miss(stores: Stores, answer: Answered, k: int) -> None:
    """Print a question, the right rows that are missing, and what came instead."""
    question, found = answer.question, answer.ids[:k]
    print(f"\nmissed {question.id} ({question.category}): {question.q}")
    for row in sorted(question.gold - set(found)):
        print(f"  right    {row}: {text_of(stores, row)}")
    for row in found[:3]:
        mark = "right" if row in question.gold else "came"
        print(f"  {mark:8s} {row}: {text_of(stores, row)}")
    if not found:
        print("  nothing came")


def text_of(stores: Stores, row: str) -> str:
    """The beginning of a row's text."""
    tier, _, number = row.partition(":")
    memory = stores.reading.memory(agent=stores.asker, tier=tier, row=int(number), scope="shared")
    return memory.text[:SHOWN_CHARS].replace("\n", " ")


def show(known: dict[str, Any], own: dict[str, Any]) -> bool:
    """Print the tables and the limits; whether every limit was kept."""
    print(f"\nknown items, {known['questions']} questions      recall@5")
    for category, recall in known["recall@5"].items():
        print(f"  {category:28s}{recall:9.4f}")
    print(f"\nown, {own['questions']} questions             recall@10    exact  overlap@10")
    for category, recall in own["recall@10"].items():
        print(f"  {category:28s}{recall:9.4f}{own['exact_recall@10'][category]:9.4f}{own['overlap'][category]:12.4f}")
    for name, figures in (("known items", known), ("own", own)):
        ms = figures["latency"]
        print(f"latency, {name}: p50 {ms['p50_ms']:.2f} ms, p95 {ms['p95_ms']:.2f} ms")
    own_min = round(own["exact_recall@10"]["all"] - OWN_BEHIND_MAX, 4)
    limits = (
        ("known items, recall@5", known["recall@5"]["all"], KNOWN_MIN),
        ("own questions, recall@10", own["recall@10"]["all"], own_min),
        ("sentences, overlap of the first 10", own["sentence_overlap"], OVERLAP_MIN),
    )
    for name, value, least in limits:
        print(f"{name:36s}{value:.4f}, limit {least:.4f}: {'kept' if value >= least else 'MISSED'}")
    print(f"own questions' sha256 {own['sha256']}")
    return all(value >= least for _, value, least in limits)


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--own", type=Path)
    parser.add_argument("--reindex", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    known_path = Path(f"{given.database}.queries.jsonl")
    own_path = given.own or Path(f"{given.database}.own.jsonl")
    if not known_path.is_file():
        parser.error(f"{known_path} is no file; tests/bench/gen_fleet.py makes it")
    if not own_path.is_file():
        write_questions(given.database, own_path)
    with contextlib.ExitStack() as stack:
        stores = stack.enter_context(opened(given.database))
        if given.reindex:
            stores.writing.remake_index()
        stores.catch_up(lambda seconds: print(f"  indexing for {seconds:.0f} s", file=sys.stderr, flush=True))
        known, own = known_items(stores, known_path), own_questions(stores, own_path)
    kept = show(known, own)
    if given.json:
        given.json.write_text(json.dumps({"known": known, "own": own}, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
