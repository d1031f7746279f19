"""A fleet's day at 20 x speed, and what became of memory, WAL, latency and rows: `make soak [ARGS="--minutes 30"]`.

  soak.py [--minutes 30] [--rows 20000] [--report soak.html] [--json FILE] [--seed N]

Makes a database of a fleet (gen_fleet.py) in a temporary folder, serves it, and lets eleven agents, a purge and a
foreign writer live on it (fleet_day.py). After a third of the time the service gets SIGTERM, after two thirds kill -9,
and is started again at once. Every second a sample is taken. At the end every acknowledged row, key and event must be
there, once. runbooks/load.md says how to read the report. Prints a table; ends with 1 where a rule is broken.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from storage import limits
from tests.bench.fleet_day import MARK, MISSION, TURN_S
from tests.bench.measures import percentile
from tests.bench.pictures import Chart, Page, Points, Row
from tests.bench.soak_run import Sample, Soaked, made, soaked
from tests.bench.verdicts import Verdicts
from tests.support import rows

MINUTES, ROWS = 30.0, 20_000
WARM_S = 150.0
"""After so much of a process's life its memory must be steady; long before that it has its processes for recalls."""
STEADY_SHARE = 0.1
READY_WITHIN_S = 2.0
INDEX_SHARE_MAX, INDEX_MORE_BYTES = 0.8, 8 * 1_048_576
DESCRIPTORS_MORE, THREADS_MORE = 40, 20
"""Than at the end of the warm-up: the calls of a busy moment."""
INTERVALS = 120
_MB = 1e6


# --- what is there at the end ---


def lost_rows(database: Path, run: Soaked) -> list[str]:
    """Rows that were acknowledged and are not as they were sent, and texts that are there twice."""
    held = {
        f"{tier}:{row}": text
        for tier, sql in (
            ("long", "SELECT id, fact FROM memory_longterm WHERE topic = ?"),
            ("episodic", "SELECT id, summary FROM memory_episodic WHERE event_type = ?"),
        )
        for row, text in rows(database, sql, MARK)
    }
    lost = [f"lost: {row} {text}" for row, text in run.journal.rows.items() if held.get(row) != text]
    return lost + [f"{count} times: {text}" for text, count in Counter(held.values()).items() if count > 1]


def lost_keys(database: Path, run: Soaked) -> list[str]:
    """Keys without an expiry that have not their last acknowledged value; and expired ones that a purge has left."""
    held = dict(rows(database, "SELECT agent, value FROM memory_short WHERE key = 'state'"))
    lost = [f"lost: {agent} {state}" for agent, state in run.journal.states.items() if held.get(agent) != state]
    ended_s = run.purged_s - 1
    left = rows(database, "SELECT agent, key FROM memory_short WHERE expires_at < ?", ended_s)
    return lost + [f"expired and left: {agent} {key}" for agent, key in left]


def lost_events(database: Path, run: Soaked) -> list[str]:
    """Events that were acknowledged and are not once in their mission's log."""
    wrong = []
    for worker, summaries in run.journal.events.items():
        log = database.parent / "profiles" / worker / "memory/missions" / MISSION / "events.jsonl"
        told = Counter(json.loads(line).get("summary") for line in log.read_text(encoding="utf-8").splitlines())
        wrong += [f"{told[summary]} times: {worker} {summary}" for summary in summaries if told[summary] != 1]
    return wrong


def lost_foreign(database: Path, run: Soaked) -> list[str]:
    """Rows of the foreign writer that are not there, or that the last recalls of the run did not find."""
    held = dict(rows(database, "SELECT id, fact FROM memory_longterm WHERE topic = 'foreign'"))
    lost = [f"lost: {row} {fact}" for row, fact in run.foreign.items() if held.get(row) != fact]
    return lost + [f"not recalled: {fact}" for fact in run.not_recalled]


def judge_truth(database: Path, run: Soaked, verdicts: Verdicts) -> None:
    """What must be so at any speed and on any machine."""
    journal = run.journal
    ((sound,),) = rows(database, "PRAGMA integrity_check")
    verdicts.require("integrity_check", sound, "ok", holds=sound == "ok")
    for name, wrong, of in (
        ("rows as acknowledged, each once", lost_rows(database, run), len(journal.rows)),
        ("keys as acknowledged, expired ones purged", lost_keys(database, run), len(journal.states)),
        ("events in their logs, each once", lost_events(database, run), sum(map(len, journal.events.values()))),
        ("rows of the foreign writer found", lost_foreign(database, run), len(run.foreign)),
    ):
        verdicts.require(f"{name}, of {of:,}", wrong[:5] or 0, "0 wrong", holds=not wrong and of > 0)
    verdicts.require("unexplained errors", dict(run.unexplained) or 0, 0, holds=not run.unexplained)
    verdicts.require("writes never acknowledged", journal.given_up[:5] or 0, 0, holds=not journal.given_up)
    verdicts.require("bugs of the soak itself", journal.crashed or 0, 0, holds=not journal.crashed)
    verdicts.require("purges", journal.purges, "some", holds=journal.purges > 0)
    verdicts.require("exit codes after SIGTERM", run.exit_codes, "0", holds=run.exit_codes == [0, 0])
    wal_bytes = max(sample.wal_bytes for sample in run.samples)
    verdicts.require(
        "WAL at most, MB", _mb(wal_bytes), _mb(limits.WAL_BYTES_KEPT), holds=wal_bytes <= limits.WAL_BYTES_KEPT
    )
    beyond = [sample for sample in run.samples if sample.index_bytes > _index_bytes_max(sample)]
    verdicts.require(
        "index at most, MB",
        _mb(max(one.index_bytes for one in run.samples)),
        "0.8 x database + 8 MiB",
        holds=not beyond,
    )


def _index_bytes_max(sample: Sample) -> float:
    return INDEX_SHARE_MAX * (sample.database_bytes + sample.wal_bytes) + INDEX_MORE_BYTES


def judge_steadiness(run: Soaked, verdicts: Verdicts) -> None:
    """What needs time, and a machine that does nothing else."""
    for restart in run.restarts:
        value = round(restart.start_s, 2)
        verdicts.require(f"ready again after {restart.how}, s", value, READY_WITHIN_S, holds=value <= READY_WITHIN_S)
    for life in range(len(run.restarts) + 1):
        samples = _warm(run.samples, life)
        rss = [sample.rss_bytes for sample in samples if sample.rss_bytes]
        if not rss:
            # A run of half an hour must tell; a shorter one may, of what has lived long enough.
            told = f"not judged: it lived less than {WARM_S:.0f} s"
            verdicts.require(f"memory of process {life + 1}", told, "", holds=run.minutes < MINUTES)
            continue
        middle = statistics.median(rss)
        away = max(max(rss) / middle - 1, 1 - min(rss) / middle)
        value = f"{_mb(middle)} MB ± {away:.1%}"
        verdicts.require(f"memory of process {life + 1}", value, f"± {STEADY_SHARE:.0%}", holds=away <= STEADY_SHARE)
        for name, more in (("descriptors", DESCRIPTORS_MORE), ("threads", THREADS_MORE)):
            counts = [count for sample in samples if (count := getattr(sample, name))]
            first, last = statistics.median(counts[:30]), statistics.median(counts[-30:])
            holds = last <= first + more
            verdicts.require(f"{name} of process {life + 1}", f"{first:.0f} … {last:.0f}", f"+ {more}", holds=holds)


def _warm(samples: Sequence[Sample], life: int) -> list[Sample]:
    """The samples of one process after its warm-up."""
    own = [sample for sample in samples if sample.life == life]
    return [sample for sample in own if sample.at_s - own[0].at_s >= WARM_S]


def _mb(size: float) -> float:
    return round(size / _MB, 1)


# --- the report ---


def latency_lines(run: Soaked) -> dict[str, Points]:
    """p50, p95 and p99 of the answered calls, by interval; where none was answered, there is none."""
    width_s = max(1.0, run.minutes * 60 / INTERVALS)
    intervals: list[list[float]] = [[] for _ in range(int(run.minutes * 60 / width_s) + 1)]
    for call in run.journal.calls:
        number = int((call.ended_s - run.began_s) / width_s)
        if call.code is None and number < len(intervals):
            intervals[number].append(call.ms)
    return {
        name: [
            ((number + 0.5) * width_s / 60, percentile(ms, share) if ms else None)
            for number, ms in enumerate(intervals)
        ]
        for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    }


def _line(run: Soaked, value: Callable[[Sample], float | None]) -> Points:
    return [(sample.at_s / 60, value(sample)) for sample in run.samples]


def charts(run: Soaked) -> list[Chart]:
    """Memory, latency, WAL, index and depth over time."""
    marks = [(one.signal_s / 60, one.how) for one in run.restarts]
    drawn = [
        Chart(
            "Memory (RSS), all processes",
            "MB",
            {"service": _line(run, lambda s: s.rss_bytes and s.rss_bytes / _MB)},
            marks,
        ),
        Chart("Latency of answered calls", "ms", latency_lines(run), marks, log=True),
        Chart("Write-ahead log", "MB", {"database's WAL": _line(run, lambda s: s.wal_bytes / _MB)}, marks),
        Chart(
            "Files",
            "MB",
            {
                "database": _line(run, lambda s: s.database_bytes / _MB),
                "index": _line(run, lambda s: s.index_bytes / _MB),
            },
            marks,
        ),
        Chart(
            "Mailboxes, messages that wait",
            "count",
            {"writer": _line(run, lambda s: s.writer_depth), "readers": _line(run, lambda s: s.readers_depth)},
            marks,
        ),
        Chart(
            "Descriptors and threads",
            "count",
            {"descriptors": _line(run, lambda s: s.descriptors), "threads": _line(run, lambda s: s.threads)},
            marks,
        ),
    ]
    return [replace(chart, minutes=run.minutes) for chart in drawn]


def figures_of(run: Soaked) -> list[Row]:
    """What is told and has no limit."""
    answered = [call for call in run.journal.calls if call.code is None]
    explained = Counter(call.code for call in run.journal.calls if call.code is not None and run.explains(call))
    found = [Row("calls", f"{len(answered):,} answered, {len(answered) / (run.minutes * 60):.1f} per s")]
    found.append(
        Row("refused or lost while restarting", ", ".join(f"{n} {code}" for code, n in explained.items()) or "0")
    )
    by_operation: dict[str, list[float]] = {}
    for call in answered:
        by_operation.setdefault(call.operation, []).append(call.ms)
    for operation, ms in sorted(by_operation.items()):
        shares = ", ".join(f"p{share * 100:.0f} {percentile(ms, share):.1f}" for share in (0.5, 0.95, 0.99))
        found.append(Row(operation, f"{len(ms):,} calls, ms: {shares}, longest {max(ms):.0f}"))
    return found


def page_of(run: Soaked, verdicts: Verdicts) -> Page:
    """The report."""
    rules = [Row(line["name"], str(line["value"]), str(line["limit"]), line["kept"]) for line in verdicts.lines]
    about = (
        f"{run.minutes:g} minutes, 11 agents of which each has a turn every {TURN_S:g} s on average, seed {run.seed}, "
        f"ended {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC. Dashed lines are restarts."
    )
    return Page("Soak: a fleet's day at 20 × speed", about, [*rules, *figures_of(run)], charts(run))


def show(page: Page) -> None:
    """Print the report's table."""
    for row in page.rows:
        said = "" if not row.limit else f" (limit {row.limit}) {'kept' if row.kept else 'MISSED'}"
        print(f"{row.name:58s}{row.value}{said}")


def figures_for_json(run: Soaked, verdicts: Verdicts) -> dict[str, Any]:
    """Samples, restarts and rules."""
    return {
        "minutes": run.minutes,
        "seed": run.seed,
        "rules": verdicts.lines,
        "restarts": [asdict(restart) for restart in run.restarts],
        "samples": [asdict(sample) for sample in run.samples],
    }


def main() -> None:
    """Run, print, write the report, and end with 1 where a rule is broken."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--rows", type=int, default=ROWS, help="of the database at the beginning; 0 for a fresh one")
    parser.add_argument("--report", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    given = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        database = made(Path(folder), given.rows)
        run = soaked(database, given.minutes, given.seed)
        judge_truth(database, run, verdicts)
    judge_steadiness(run, verdicts)
    page = page_of(run, verdicts)
    show(page)
    if given.report:
        given.report.write_text(page.html(), encoding="utf-8")
        print(f"report: {given.report}")
    if given.json:
        given.json.write_text(json.dumps(figures_for_json(run, verdicts)) + "\n", encoding="utf-8")
    print(f"{'every rule is kept' if verdicts.kept else 'rules are BROKEN'}; seed {run.seed}")
    sys.exit(0 if verdicts.kept else 1)


if __name__ == "__main__":
    main()
