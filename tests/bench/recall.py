"""Recall on public question sets, beside a small FTS5 reference: `make bench-recall DATA=/path/to/sets`.

  recall.py DATA [--ablation] [--json FILE]

DATA holds pairs NAME.memories.jsonl ({id, space, agent, text, at, session} a line) and NAME.queries.jsonl ({id, space,
q, gold: [ids], category}). Each `space` becomes a store of its own: its rows are written as episodes by their agents,
in file order, and every question is asked through the service's own recall, by an agent whom no question names.
`--ablation` asks everything again with each ranking rule out in turn, and with no budget of postings. Ends with 1 where
the service falls behind the reference by more than the limits below. No such set belongs into this repository.
"""

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.store import create_database
from tests.bench.measures import interval, latencies
from tests.bench.recall_score import load, mean, measures
from tests.bench.stores import Stores, episode, ids_of, opened

BASELINE = Path(__file__).with_name("recall_baseline.py")
ASKER = "zz-asker"
K = 50
SHOWN = ("recall@5", "recall@10", "mrr", "ndcg@10")
POOLED = ("locomo", "locomo_facts", "beam100k")
GOALS = {"locomo": 0.75, "locomo_facts": 0.78, "beam100k": 0.41, "memdaily_zh": 0.42}
"""recall@10 to reach on each set's development half. The other half has its own level: no verdict hangs on them."""
POOLED_LOWER_MIN = -0.01
SET_BEHIND_MAX = 0.015
WITHOUT = {
    "no neighbour lift": ("LIFT", 0),
    "no agent bonus": ("AGENT_BONUS", 0),
    "no session best": ("SESSION_BEST", 0),
    "no share of terms": ("SHARE", 0),
    "no budget": ("POSTINGS_BUDGET", 10**9),
}
"""The ablation: the constant of storage/ that is set, and to what, for each rule that is left out in turn."""

Ranking = dict[str, list[str]]
"""The ids found for each question, best first."""
Scores = dict[str, dict[str, float]]
"""The measures of a question, by question."""


@dataclass(frozen=True)
class QuestionSet:
    """One NAME of the data: memories by space, and the questions that have an answer."""

    base: Path
    memories: dict[str, list[dict[str, Any]]]
    queries: list[dict[str, Any]]

    @property
    def name(self) -> str:
        """NAME."""
        return self.base.name

    def scored(self, ranking: Ranking) -> Scores:
        """The measures of every question."""
        return {query["id"]: measures(ranking.get(query["id"], []), query["gold"]) for query in self.queries}

    def by_category(self, scores: Scores) -> dict[str, dict[str, float]]:
        """The mean measures overall and of each category."""
        groups: dict[str, list[dict[str, float]]] = defaultdict(list)
        for query in self.queries:
            groups[query.get("category", "-")].append(scores[query["id"]])
        return {"overall": mean(list(scores.values()))} | {name: mean(groups[name]) for name in sorted(groups)}


def question_sets(folder: Path) -> list[QuestionSet]:
    """Every pair of the folder, by name."""
    sets = []
    for path in sorted(folder.glob("*.queries.jsonl")):
        base = path.with_name(path.name.removesuffix(".queries.jsonl"))
        memories = defaultdict(list)
        for memory in load(f"{base}.memories.jsonl"):
            memories[memory["space"]].append(memory)
        sets.append(QuestionSet(base, dict(memories), [query for query in load(path) if query["gold"]]))
    return sets


@dataclass(frozen=True)
class Space:
    """A store that holds the memories of one space, and which row is which memory."""

    stores: Stores
    memory_of: dict[str, str]

    def ask(self, q: str) -> tuple[list[str], float]:
        """(ids of the memories found, milliseconds)."""
        began = time.perf_counter()
        found = self.stores.recall(ASKER, q, k=K, tiers=("episodic",))
        ms = (time.perf_counter() - began) * 1000
        return [self.memory_of[row] for row in ids_of(found)], ms


@contextlib.contextmanager
def written(memories: Sequence[dict[str, Any]]) -> Iterator[Space]:
    """A store of its own for these memories, removed at the end."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder, "solos.db")
        create_database(database, [*dict.fromkeys(memory["agent"] for memory in memories), ASKER])
        with opened(database) as stores:
            writes = [episode(memory["agent"], memory["text"], memory["session"]) for memory in memories]
            replies = stores.write_all(writes)
            stores.catch_up()
            ids = [memory["id"] for memory in memories]
            yield Space(stores, dict(zip((reply.id for reply in replies), ids, strict=True)))


def asked(questions: QuestionSet, spaces: dict[str, Space]) -> tuple[Ranking, list[float]]:
    """(what the service found, milliseconds of each question)."""
    answers = {query["id"]: spaces[query["space"]].ask(query["q"]) for query in questions.queries}
    return {name: ids for name, (ids, _) in answers.items()}, [ms for _, ms in answers.values()]


def baseline(questions: QuestionSet) -> tuple[Ranking, dict[str, float]]:
    """(what the reference found, its latencies) on the same files."""
    with tempfile.NamedTemporaryFile("r", suffix=".jsonl", encoding="utf-8") as file:
        done = subprocess.run(
            [sys.executable, BASELINE, questions.base, file.name], check=True, capture_output=True, text=True
        )
        ranking = {line["query_id"]: line["ids"] for line in load(file.name)}
    p50, p95 = re.search(r"p50 (\S+) ms, p95 (\S+) ms", done.stdout).groups()
    return ranking, {"p50_ms": float(p50), "p95_ms": float(p95)}


@contextlib.contextmanager
def left_out(rule: str) -> Iterator[bool]:
    """Leave one rule out, wherever its constant was imported to; False where this code has no such constant."""
    constant, value = WITHOUT[rule]
    loaded = [module for name, module in sys.modules.items() if name.startswith("storage.")]
    kept = {module: getattr(module, constant) for module in loaded if hasattr(module, constant)}
    for module in kept:
        setattr(module, constant, value)
    try:
        yield bool(kept)
    finally:
        for module, before in kept.items():
            setattr(module, constant, before)


def ablated(questions: QuestionSet, spaces: dict[str, Space]) -> dict[str, float | None]:
    """recall@10 with each rule out in turn; None where the code has no such rule."""
    table: dict[str, float | None] = {}
    for rule in WITHOUT:
        with left_out(rule) as there:
            ranking = asked(questions, spaces)[0] if there else None
        table[rule] = None if ranking is None else recall_at_10(questions.scored(ranking))
    return table


def recall_at_10(scores: Scores) -> float:
    """The mean over all questions."""
    return sum(score["recall@10"] for score in scores.values()) / len(scores)


@dataclass(frozen=True)
class Result:
    """What one set came to."""

    service: dict[str, dict[str, float]]
    baseline: dict[str, dict[str, float]]
    latency: dict[str, dict[str, float]]
    differences: list[float]
    """recall@10 of the service less the reference's, by question."""
    ablation: dict[str, float | None]

    @property
    def recall(self) -> float:
        """recall@10 over the whole set."""
        return self.service["overall"]["recall@10"]


def measured(questions: QuestionSet, ablation: bool) -> Result:
    """Write a set's spaces, ask everything, and score it beside the reference."""
    with contextlib.ExitStack() as stack:
        spaces = {name: stack.enter_context(written(rows)) for name, rows in questions.memories.items()}
        asked(questions, spaces)  # warm
        ranking, ms = asked(questions, spaces)
        without = ablated(questions, spaces) if ablation else {}
    reference, reference_latency = baseline(questions)
    ours, theirs = questions.scored(ranking), questions.scored(reference)
    return Result(
        questions.by_category(ours),
        questions.by_category(theirs),
        {"service": latencies(ms), "baseline": reference_latency},
        [ours[name]["recall@10"] - theirs[name]["recall@10"] for name in ours],
        without,
    )


def paired(results: dict[str, Result]) -> dict[str, dict[str, float]]:
    """The bootstrap over the pooled sets together, and over every other set by itself."""
    groups = {name: result.differences for name, result in results.items() if name not in POOLED}
    pooled = [one for name in POOLED if name in results for one in results[name].differences]
    if pooled:
        groups = {"pooled": pooled} | groups
    table = {}
    for name, differences in groups.items():
        middle, lower, upper = interval(differences)
        table[name] = {"difference": middle, "lower": lower, "upper": upper, "n": len(differences)}
    return table


def show_set(name: str, result: Result) -> None:
    """Print the measures of each category beside the reference's."""
    print(f"\n{name[:22]:24s}{'n':>5s}  " + "".join(f"{column:>10s}" for column in SHOWN) + "   baseline: the same")
    for category, ours in result.service.items():
        theirs = result.baseline[category]
        cells = "".join(f"{ours[column]:10.4f}" for column in SHOWN)
        reference = "".join(f"{theirs[column]:9.4f}" for column in SHOWN)
        print(f"{category[:22]:24s}{ours['n']:5d}  {cells}   {reference}")
    latency = {side: f"p50 {ms['p50_ms']:.2f} ms, p95 {ms['p95_ms']:.2f} ms" for side, ms in result.latency.items()}
    print(f"{'latency':24s}{latency['service']} (k={K}); baseline {latency['baseline']}")


def show_verdicts(results: dict[str, Result], bootstrap: dict[str, dict[str, float]]) -> bool:
    """Print goals and limits; whether every limit was kept."""
    print("\nrecall@10               service  baseline  goal of the development half")
    for name, result in results.items():
        goal = GOALS.get(name)
        verdict = f"{goal:.2f} {'reached' if result.recall >= goal else 'MISSED'}" if goal else ""
        print(f"{name[:22]:24s}{result.recall:7.4f}  {result.baseline['overall']['recall@10']:8.4f}  {verdict}")
    kept = True
    print("\nservice - baseline      mean     95 % interval (paired bootstrap over questions)")
    for name, row in bootstrap.items():
        good = name != "pooled" or row["lower"] > POOLED_LOWER_MIN
        limit = f"  limit: lower > {POOLED_LOWER_MIN}: {'kept' if good else 'EXCEEDED'}" if name == "pooled" else ""
        print(
            f"{name[:22]:24s}{row['difference']:+.4f}  {row['lower']:+.4f} … {row['upper']:+.4f}, n={row['n']}{limit}"
        )
        kept = kept and good
    behind = [name for name in POOLED if name in results and mean_of(results[name].differences) < -SET_BEHIND_MAX]
    print(f"sets behind the baseline by more than {SET_BEHIND_MAX}: {', '.join(behind) or 'none'}")
    return kept and not behind


def mean_of(values: Sequence[float]) -> float:
    """The mean."""
    return sum(values) / len(values)


def ablation_cell(recall: float | None, whole: float) -> str:
    """recall@10 without a rule and what that changes; a dash where this code has no such rule."""
    return "-" if recall is None else f"{recall:.4f} {recall - whole:+.3f}"


def show_ablation(results: dict[str, Result]) -> None:
    """Print recall@10 of each set with each rule out in turn."""
    print("\nablation, recall@10     " + "".join(f"{name[:13]:>15s}" for name in results))
    print(f"{'all rules':24s}" + "".join(f"{result.recall:15.4f}" for result in results.values()))
    for rule in WITHOUT:
        cells = [ablation_cell(result.ablation[rule], result.recall) for result in results.values()]
        print(f"{rule:24s}" + "".join(f"{cell:>15s}" for cell in cells))


def as_json(results: dict[str, Result], bootstrap: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Every figure, by name."""
    return {
        "sets": {
            name: {
                "service": result.service,
                "baseline": result.baseline,
                "latency": result.latency,
                "ablation": result.ablation,
            }
            for name, result in results.items()
        },
        "paired": bootstrap,
    }


def main() -> None:
    """Measure, print, and end with 1 where a limit is exceeded."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sets = question_sets(given.data)
    if not sets:
        parser.error(f"{given.data} holds no NAME.queries.jsonl")
    results = {}
    for questions in sets:
        results[questions.name] = measured(questions, given.ablation)
        show_set(questions.name, results[questions.name])
    bootstrap = paired(results)
    kept = show_verdicts(results, bootstrap)
    if given.ablation:
        show_ablation(results)
    if given.json:
        given.json.write_text(json.dumps(as_json(results, bootstrap), indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if kept else 1)


if __name__ == "__main__":
    main()
