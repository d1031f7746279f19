"""Latency by kind of question and filter, beside plain FTS5: `make bench-latency DB=/path/to/solos.db`.

  latency.py DB [--grow DB2] [--work DIR] [--questions 100] [--rounds 3] [--json FILE]

DB is one of gen_fleet.py, with DB.queries.jsonl beside it. It is copied, and the copy is what the service writes to;
the copies and all indexes lie in DIR (else in a temporary folder) and are used again where they are there: then no
time for an index is measured. Service and yardstick (fts5_baseline.py, unchanged) take turns, kind by kind and round
by round. `--grow` asks the same of a second, larger database, turn by turn. Run it alone: every figure is a time.
Prints one table and one JSON line; ends with 1 where a limit is missed.
"""

import argparse
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import apsw

from tests.bench import latency_questions
from tests.bench.latency_questions import Question
from tests.bench.measures import latencies, median_of
from tests.bench.stores import Stores, fact, opened

BASELINE = Path(__file__).with_name("fts5_baseline.py")
BASELINE_S_MAX = 150.0
"""A kind on which the yardstick has spent this long gets no further round of it: a prompt takes it seconds."""
K = 5
LIMITS = {
    "known item": (1 / 40, 1 / 15),
    "sentence": (1 / 40, 1 / 8),
    "common words": (1 / 8, 1 / 4),
    "prompt": (1 / 40, 1 / 8),
}
"""Of each kind: how much of the yardstick's p50 and p95 the service may take."""
FILTERED_TIMES, FILTERED_MORE_MS = 2.0, 2.0
GROWTH_MAX = 1.5
AFTER_WRITE_MAX = 1.5
REINDEX_MAX = 6.0
INDEX_SHARE_MAX = 0.8
PAIRS = 150
WRITES = 100
BATCHES = 10
BATCH = 64

Kinds = dict[str, list[Question]]
Samples = dict[str, list[float]]
"""Milliseconds by what was asked."""
Rounds = dict[str, list[dict[str, float]]]
"""The latencies of each round by what was asked."""
Narrow = dict[str, dict[str, Any]]
"""The fields of a recall by the name of the filter that they are."""


@dataclass
class Verdicts:
    """The limits, and whether all were kept."""

    kept: bool = True
    lines: list[dict[str, Any]] = field(default_factory=list)

    def require(self, name: str, value: float, most: float) -> str:
        """Note a figure that must not exceed a limit; what to print of it."""
        good = value <= most
        self.kept = self.kept and good
        self.lines.append({"name": name, "value": round(value, 4), "limit": round(most, 4), "kept": good})
        return "kept" if good else "MISSED"


# --- copies and indexes ---


@dataclass(frozen=True)
class Copy:
    """A copy of a database, and the indexes over it."""

    database: Path
    reindex_s: float | None
    """How long the service's index took; None where it was there."""
    index_bytes: int

    @property
    def index_share(self) -> float:
        """The index's part of the database's size."""
        return self.index_bytes / self.database.stat().st_size


def copied(source: Path, folder: Path) -> Copy:
    """Copy a database as it stands, though another process may write to it, and index the copy."""
    folder.mkdir(parents=True, exist_ok=True)
    database = folder / "solos.db"
    if not database.exists():
        with contextlib.closing(apsw.Connection(str(database))) as copy, latency_questions.reading(source) as original:
            backup = copy.backup("main", original, "main")
            backup.step()
            backup.finish()
    fresh = not Path(f"{database}.solos-memory").exists()
    with opened(database) as stores:
        seconds = stores.catch_up(lambda so_far: show_progress(f"indexing for {so_far:.0f} s"))
        cache = stores.paths.cache
    return Copy(database, seconds if fresh else None, sum(path.stat().st_size for path in cache.iterdir()))


def show_progress(text: str) -> None:
    """One line that the next one replaces."""
    print(f"\r  {text}   ", end="", file=sys.stderr, flush=True)


# --- the yardstick ---


@dataclass(frozen=True)
class Yardstick:
    """fts5_baseline.py over a database, with an index of its own."""

    database: Path
    index: Path

    def ask(self, questions: list[Question]) -> dict[str, float]:
        """{p50_ms, p95_ms, recall@5, n} of these questions."""
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
            for question in questions:
                file.write(json.dumps({"q": question.q, "gold": [question.gold]}, ensure_ascii=False) + "\n")
            file.flush()
            command = [sys.executable, BASELINE, self.database, file.name, "--index", self.index]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def build(self, question: Question) -> float | None:
        """The seconds that its index takes; None where it is there."""
        if self.index.exists():
            return None
        first = timed(lambda: self.ask([question]))
        return (first - timed(lambda: self.ask([question]))) / 1000


def timed(call: Any) -> float:
    """Milliseconds of one call."""
    began = time.perf_counter()
    call()
    return (time.perf_counter() - began) * 1000


def ask(stores: Stores, question: Question, **fields: Any) -> float:
    """Milliseconds of one recall."""
    return timed(lambda: stores.recall(stores.asker, question.q, k=K, **fields))


# --- what is measured ---


def warm(stores: Stores, kinds: Kinds) -> None:
    """Ask everything once."""
    for questions in kinds.values():
        for question in questions:
            ask(stores, question)


def beside_yardstick(stores: Stores, yardstick: Yardstick, kinds: Kinds, rounds: int) -> dict[str, dict[str, Any]]:
    """Service and yardstick in turn: latencies of each kind, and what part of the yardstick's the service takes."""
    ours: Rounds = defaultdict(list)
    theirs: Rounds = defaultdict(list)
    spent_s: dict[str, float] = defaultdict(float)
    for number in range(rounds):
        for kind, questions in kinds.items():
            show_progress(f"round {number + 1} of {rounds}: {kind}")
            ours[kind].append(latencies([ask(stores, question) for question in questions]))
            if spent_s[kind] < BASELINE_S_MAX:
                began = time.perf_counter()
                theirs[kind].append(yardstick.ask(questions))
                spent_s[kind] += time.perf_counter() - began
    table = {}
    for kind in kinds:
        service, reference = median_of(ours[kind]), median_of(theirs[kind])
        ratios = {name: service[name] / reference[name] for name in ("p50_ms", "p95_ms")}
        table[kind] = {"service": service, "baseline": reference, "ratio": ratios}
    return table


def filtered(stores: Stores, kinds: Kinds, narrow: Narrow, rounds: int) -> dict[str, dict[str, Any]]:
    """Every question without a filter and under each, in turn; of each filter also how many results it leaves."""
    table: dict[str, dict[str, Any]] = {}
    for kind, questions in kinds.items():
        found: Rounds = defaultdict(list)
        for number in range(rounds):
            show_progress(f"filters, {kind}: round {number + 1} of {rounds}")
            samples: Samples = defaultdict(list)
            for question in questions:
                for name, fields in {"unfiltered": {}, **narrow}.items():
                    samples[name].append(ask(stores, question, **fields))
            for name, ms in samples.items():
                found[name].append(latencies(ms))
        table[kind] = {name: median_of(all_rounds) for name, all_rounds in found.items()}
        for name, fields in narrow.items():
            table[kind][name]["results"] = results(stores, questions, fields)
    return table


def results(stores: Stores, questions: list[Question], fields: dict[str, Any]) -> float:
    """How many results a question has on average."""
    counts = [len(stores.recall(stores.asker, question.q, k=K, **fields).recalled.results) for question in questions]
    return round(statistics.mean(counts), 2)


def grown(small: Stores, large: Stores, kinds: Kinds, narrow: tuple[Narrow, Narrow], rounds: int) -> dict[str, Any]:
    """The same questions of two databases in turn, without a filter and under each; `narrow` has one for each."""
    table: dict[str, Any] = {}
    for kind, questions in kinds.items():
        found: dict[tuple[str, int], list[dict[str, float]]] = defaultdict(list)
        for number in range(rounds):
            show_progress(f"growth, {kind}: round {number + 1} of {rounds}")
            samples: dict[tuple[str, int], list[float]] = defaultdict(list)
            for question in questions:
                for name in ("unfiltered", *narrow[0]):
                    for side, stores in enumerate((small, large)):
                        samples[name, side].append(ask(stores, question, **narrow[side].get(name, {})))
            for key, ms in samples.items():
                found[key].append(latencies(ms))
        table[kind] = {
            name: {"small": median_of(found[name, 0]), "large": median_of(found[name, 1])}
            for name in ("unfiltered", *narrow[0])
        }
    return table


def after_writes(stores: Stores, questions: list[Question], texts: list[str]) -> dict[str, Any]:
    """A recall right after a write of one fact, and the same recall without one, in turn."""
    samples: Samples = defaultdict(list)
    for question, text in zip(questions, texts, strict=False):
        ask(stores, question)
        samples["without"].append(ask(stores, question))
        stores.write_all([fact(stores.asker, text)])
        samples["after"].append(ask(stores, question))
    return {name: latencies(ms) for name, ms in samples.items()}


def write_costs(stores: Stores, texts: Iterator[str]) -> dict[str, float]:
    """Milliseconds for a write, alone and in batches of 64, with the index and without it."""
    costs = {"alone": written_alone(stores, texts), "in batches": written_in_batches(stores, texts)}
    with mock.patch.object(stores.writing, "_follow"):
        costs["alone, no index"] = written_alone(stores, texts)
        costs["in batches, no index"] = written_in_batches(stores, texts)
    stores.catch_up()
    return {name: round(cost, 3) for name, cost in costs.items()}


def written_alone(stores: Stores, texts: Iterator[str]) -> float:
    """The median of WRITES single writes."""
    agent = stores.asker
    return statistics.median(timed(lambda: stores.write_all([fact(agent, next(texts))])) for _ in range(WRITES))


def written_in_batches(stores: Stores, texts: Iterator[str]) -> float:
    """The median of BATCHES batches, for each of their writes."""
    agent = stores.asker
    batches = [[fact(agent, next(texts)) for _ in range(BATCH)] for _ in range(BATCHES)]
    return statistics.median(timed(lambda batch=batch: stores.write_all(batch)) for batch in batches) / BATCH


# --- what is shown ---


def show_kinds(table: dict[str, dict[str, Any]], verdicts: Verdicts) -> None:
    """Print each kind beside the yardstick."""
    print(f"\n{'':14s}{'service, ms':>11s}{'':19s}{'baseline, ms':>12s}{'':6s}{'ratio':>9s}")
    print(f"{'':14s}{'p50':>8s}{'p95':>9s}{'p99':>9s}{'p50':>11s}{'p95':>9s}{'p50':>10s}{'p95':>9s}  limits")
    for kind, row in table.items():
        service, reference, ratio = row["service"], row["baseline"], row["ratio"]
        p50, p95 = LIMITS[kind]
        said = f"1/{1 / p50:.0f} {verdicts.require(f'{kind} p50', ratio['p50_ms'], p50)}, "
        said += f"1/{1 / p95:.0f} {verdicts.require(f'{kind} p95', ratio['p95_ms'], p95)}"
        print(
            f"{kind:14s}{service['p50_ms']:8.2f}{service['p95_ms']:9.2f}{service['p99_ms']:9.2f}"
            f"{reference['p50_ms']:11.1f}{reference['p95_ms']:9.1f}"
            f"{'1/' + format(1 / ratio['p50_ms'], '.1f'):>10s}{'1/' + format(1 / ratio['p95_ms'], '.1f'):>9s}  {said}"
        )


def show_filters(table: dict[str, dict[str, Any]], narrow: Narrow, verdicts: Verdicts) -> None:
    """Print each filter under each kind, and the limit that follows from the unfiltered recall."""
    print(f"\nfilters, ms    limit: {FILTERED_TIMES:g} x unfiltered + {FILTERED_MORE_MS:g} ms; {narrow}")
    print(f"{'':14s}{'':14s}{'p50':>8s}{'limit':>8s}{'p95':>9s}{'limit':>8s}{'results':>9s}")
    for kind, rows in table.items():
        base = rows["unfiltered"]
        print(f"{kind:14s}{'unfiltered':14s}{base['p50_ms']:8.2f}{'':8s}{base['p95_ms']:9.2f}")
        for name in narrow:
            row = rows[name]
            p50, p95 = (FILTERED_TIMES * base[share] + FILTERED_MORE_MS for share in ("p50_ms", "p95_ms"))
            first = verdicts.require(f"{kind}, {name} p50", row["p50_ms"], p50)
            second = verdicts.require(f"{kind}, {name} p95", row["p95_ms"], p95)
            said = "kept" if first == second == "kept" else f"{first}, {second}"
            print(
                f"{'':14s}{name:14s}{row['p50_ms']:8.2f}{p50:8.2f}{row['p95_ms']:9.2f}{p95:8.2f}"
                f"{row['results']:9.2f}  {said}"
            )


def show_growth(table: dict[str, Any], verdicts: Verdicts) -> None:
    """Print how p50 and p95 grow from the small database to the large one."""
    print(f"\ngrowth, ms     limit: {GROWTH_MAX:g} x")
    for kind, rows in table.items():
        for name, row in rows.items():
            small, large = row["small"], row["large"]
            said = []
            for share in ("p50_ms", "p95_ms"):
                times = large[share] / small[share]
                verdict = verdicts.require(f"growth, {kind}, {name} {share[:3]}", times, GROWTH_MAX)
                said.append(f"{share[:3]} {small[share]:8.2f} -> {large[share]:8.2f} ({times:5.2f} x {verdict})")
            print(f"{kind:14s}{name:14s}{'   '.join(said)}")


def show_writes(figures: dict[str, Any], verdicts: Verdicts) -> None:
    """Print recalls after writes, the cost of writes, and the indexes."""
    after, without = figures["after_write"]["after"], figures["after_write"]["without"]
    print("\nrecall after a write")
    for share in ("p50_ms", "p95_ms"):
        times = after[share] / without[share]
        verdict = verdicts.require(f"recall after a write {share[:3]}", times, AFTER_WRITE_MAX)
        print(f"  {share[:3]} {without[share]:.2f} ms without, {after[share]:.2f} ms after: {times:.2f} x {verdict}")
    print("a write, ms    " + ", ".join(f"{name} {ms:.3f}" for name, ms in figures["write_ms"].items()))
    reindex, build = figures["reindex_s"], figures["baseline_build_s"]
    if reindex is not None and build is not None:
        verdict = verdicts.require("reindex", reindex / build, REINDEX_MAX)
        print(f"reindex        {reindex:.1f} s; baseline {build:.1f} s: {reindex / build:.2f} x {verdict}")
    share = figures["index_share"]
    verdict = verdicts.require("index size", share, INDEX_SHARE_MAX)
    print(f"index          {figures['index_mb']} MB, {share:.1%} of the database {verdict}")


def measured(given: argparse.Namespace, work: Path) -> tuple[dict[str, Any], Verdicts]:
    """Measure everything and print it."""
    source: Path = given.database
    verdicts = Verdicts()
    kinds = latency_questions.questions(source, Path(f"{source}.queries.jsonl"), given.questions)
    narrow = latency_questions.filters(source)
    copy = copied(source, work / "small")
    yardstick = Yardstick(copy.database, work / "fts5_baseline.index.db")
    figures: dict[str, Any] = {"baseline_build_s": yardstick.build(kinds["known item"][0])}
    figures |= {"reindex_s": copy.reindex_s, "index_share": round(copy.index_share, 4)}
    figures["index_mb"] = round(copy.index_bytes / 1e6, 1)
    with opened(copy.database) as stores:
        warm(stores, kinds)
        figures["kinds"] = beside_yardstick(stores, yardstick, kinds, given.rounds)
        show_kinds(figures["kinds"], verdicts)
        figures["filtered"] = filtered(stores, kinds, narrow, given.rounds)
        show_filters(figures["filtered"], narrow, verdicts)
        if given.grow:
            figures["growth"] = growth(stores, copied(given.grow, work / "large"), kinds, narrow, given.rounds)
            show_growth(figures["growth"], verdicts)
        texts = iter(latency_questions.facts(source, PAIRS + 2 * (WRITES + BATCH * BATCHES)))
        mixed = [question for some in zip(*kinds.values(), strict=True) for question in some][:PAIRS]
        figures["after_write"] = after_writes(stores, mixed, [next(texts) for _ in mixed])
        figures["write_ms"] = write_costs(stores, texts)
    show_writes(figures, verdicts)
    return figures | {"limits": verdicts.lines}, verdicts


def growth(small: Stores, copy: Copy, kinds: Kinds, narrow: Narrow, rounds: int) -> dict[str, Any]:
    """Ask both databases; "since" means the newest tenth of each."""
    same = narrow | {"since": latency_questions.filters(copy.database)["since"]}
    with opened(copy.database) as large:
        warm(large, kinds)
        warm(small, kinds)
        return grown(small, large, kinds, (narrow, same), rounds)


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--grow", type=Path)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    if not Path(f"{given.database}.queries.jsonl").is_file():
        parser.error(f"{given.database}.queries.jsonl is no file; tests/bench/gen_fleet.py makes it")
    with contextlib.ExitStack() as stack:
        work = given.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        figures, verdicts = measured(given, work)
    print(f"\n{'every limit is kept' if verdicts.kept else 'limits are MISSED'}")
    print(json.dumps(figures), flush=True)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if verdicts.kept else 1)


if __name__ == "__main__":
    main()
