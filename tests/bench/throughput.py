"""Throughput over HTTP and MCP, beside the bare stack: `make bench-load DB=/path/to/solos.db [ARGS=--profile]`.

  throughput.py DB [--seconds 4] [--rounds 5] [--connections 4 16] [--questions 2000] [--mix-s 20] [--json FILE]
  throughput.py DB --profile

DB is one of gen_fleet.py, with DB.queries.jsonl beside it; a copy of it is served, in a folder beside it that is
removed at the end. Each kind of request is driven by wrk (load.py, unchanged) on the bare stack (reference_app.py,
unchanged) and at once afterwards on the service, round by round: a ratio is the median over the rounds. Before and
after, each question is asked once over each transport and its row must be found, and the tables must have grown by the
writes that were counted. At last recalls and writes mixed, and each acknowledged row is looked up. runbooks/load.md
says how to read it. Run it alone. Prints a table and one JSON line; ends with 1 where a limit is missed.
"""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import hot_path
from tests.bench.load_mix import CONNECTIONS as CONNECTIONS_OF_MIX
from tests.bench.load_mix import Mixed, mixed, unlike_the_table
from tests.bench.load_requests import Requests, requests_of
from tests.bench.load_servers import Server, copied, reference, require_program, service
from tests.bench.measures import latencies, median_of
from tests.bench.verdicts import Verdicts
from tests.support import rows

LOAD = Path(__file__).with_name("load.py")
ROUNDS, SECONDS, QUESTIONS, MIX_S = 5, 4, 2_000, 20.0
CONNECTIONS = (4, 16)
PROBE_WITHIN_S = 60.0


@dataclass(frozen=True)
class Pair:
    """One kind of request of the service, beside what the bare stack does for one of its size."""

    name: str
    path: str
    requests: str
    """The field of Requests."""
    bare_name: str
    bare_path: str
    bare_requests: str | None
    least: float
    """The part of the bare stack's throughput that the service must keep."""
    aim: float


PAIRS = (
    Pair("recall over REST", "/", "recalls", "/hello", "/hello", None, 0.2, 0.25),
    Pair("write over REST", "/v1/long", "writes", "/echo", "/echo", "writes", 0.4, 0.4),
    Pair("recall over MCP", "/mcp", "mcp_recalls", "empty MCP tool", "/mcp", "mcp_nothings", 0.4, 0.4),
)


# --- driving ---


def drive(server: Server, path: str, requests: Path | None, connections: int, seconds: int) -> dict[str, float]:
    """One run of wrk: {rps, p50_ms, p99_ms, errors, cpu_ms}, the last one of the server for each request."""
    command = [sys.executable, str(LOAD), server.url + path, "--connections", str(connections)]
    command += ["--seconds", str(seconds), *(["--bodies", str(requests)] if requests else [])]
    before_s = server.cpu_s()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout)
    return figures | {"cpu_ms": (server.cpu_s() - before_s) * 1000 / max(1.0, figures["rps"] * seconds)}


def rounds_of(bare: Server, ours: Server, requests: Requests, given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Each pair at each number of connections, in rounds: both servers in turn, never both at once."""
    found: dict[str, dict[str, Any]] = {}
    for connections in given.connections:
        for number in range(given.rounds):
            for pair in PAIRS:
                show_progress(f"{connections} connections, round {number + 1} of {given.rounds}: {pair.name}")
                sent = requests.file(pair.bare_requests) if pair.bare_requests else None
                beside = drive(bare, pair.bare_path, sent, connections, given.seconds)
                own = drive(ours, pair.path, requests.file(pair.requests), connections, given.seconds)
                row = found.setdefault(f"{pair.name}, {connections}", {"service": [], "bare": [], "ratios": []})
                row["service"].append(own)
                row["bare"].append(beside)
                row["ratios"].append(round(own["rps"] / beside["rps"], 4))
    return found


def show_progress(what: str) -> None:
    """What is being done now, on stderr."""
    print(f"  {what}", file=sys.stderr, flush=True)


# --- known items and rows ---


def known_items(server: Server, requests: Requests) -> dict[str, float]:
    """recall@5 of all questions over each transport, one after the other."""
    rest = [_found(body, requests, number) for number, body in enumerate(_asked(server, "GET", requests.recalls))]
    over_mcp = _asked(server, "POST", requests.mcp_recalls)
    mcp = [_found(_in_result(body), requests, number) for number, body in enumerate(over_mcp)]
    return {"REST": round(statistics.mean(rest), 4), "MCP": round(statistics.mean(mcp), 4)}


def _asked(server: Server, method: str, lines: Sequence[str]) -> list[dict[str, Any]]:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    answers = []
    connection = server.connect()
    for line in lines:
        path, body = (line, None) if method == "GET" else ("/mcp", line.encode())
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        text = response.read()
        if response.status != http.client.OK:
            raise SystemExit(f"{method} {line[:120]}: {response.status} {text[:300]!r}")
        answers.append(json.loads(text))
    connection.close()
    return answers


def _in_result(answer: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(answer["result"]["content"][0]["text"])
    return body


def _found(body: dict[str, Any], requests: Requests, number: int) -> bool:
    ids = [memory["id"] for memory in body["results"]]
    ids += [other["id"] for memory in body["results"] for other in memory.get("also") or ()]
    return not requests.known[number].gold.isdisjoint(ids)


@dataclass(frozen=True)
class Count:
    """How many facts there are, as three count them."""

    in_table: int
    in_stats: int
    acknowledged: int
    unknown: int
    """Of these writes the caller left before the answer: wrk does so at the end of a run."""

    def since(self, before: "Count") -> "Count":
        """What was added since then."""
        return Count(*(getattr(self, name) - getattr(before, name) for name in self.__dataclass_fields__))

    @property
    def agrees(self) -> bool:
        """Whether the tables grew by the writes that were counted; what a caller did not wait for may be there."""
        return self.in_table == self.in_stats and 0 <= self.in_table - self.acknowledged <= self.unknown


def count_of(server: Server, database: Path) -> Count:
    """Count, once every write has its answer."""
    server.wait_for(lambda: server.get("/v1/stats")[1]["writes"]["long"]["in_flight"] == 0, PROBE_WITHIN_S)
    stats = server.get("/v1/stats")[1]
    writes = stats["writes"]["long"]
    ((held,),) = rows(database, "SELECT count(*) FROM memory_longterm")
    return Count(held, stats["store"]["rows"]["long"], writes["acknowledged"], writes["unknown"])


# --- what is shown ---


def judge_rounds(found: dict[str, dict[str, Any]], connections: Sequence[int], verdicts: Verdicts) -> dict[str, Any]:
    """Medians over the rounds, printed beside their limits."""
    table: dict[str, Any] = {}
    print(f"\n{'':28s}{'per s':>9s}{'p50 ms':>8s}{'p99 ms':>8s}{'CPU ms':>8s}{'ratio':>8s}  limit")
    for count in connections:
        for pair in PAIRS:
            name = f"{pair.name}, {count}"
            row = found[name]
            bare, own = median_of(row["bare"]), median_of(row["service"])
            ratio = round(statistics.median(row["ratios"]), 3)
            errors = sum(figures["errors"] for figures in (*row["bare"], *row["service"]))
            said = verdicts.require(f"{name}: ratio", ratio, pair.least, holds=ratio >= pair.least)
            clean = verdicts.require(f"{name}: errors", errors, 0, holds=errors == 0)
            aim = "" if pair.aim == pair.least else f", aim {pair.aim:g}"
            print(_row(f"{pair.bare_name}, {count}", bare))
            print(f"{_row(name, own)}{ratio:8.3f}  {pair.least:g} {said}{aim}; {errors:.0f} errors {clean}")
            print(f"{'  ratios of the rounds':28s}{'  '.join(f'{one:.3f}' for one in sorted(row['ratios']))}")
            table[name] = {"service": own, "bare": bare, "ratio": ratio, "ratios": row["ratios"], "errors": errors}
    return table


def _row(name: str, figures: dict[str, float]) -> str:
    shown = f"{figures['rps']:9.1f}{figures['p50_ms']:8.2f}{figures['p99_ms']:8.2f}{figures['cpu_ms']:8.2f}"
    return f"{name:28s}{shown}"


def judge_known(when: str, found: dict[str, float], questions: int, verdicts: Verdicts) -> None:
    """Every question finds its row, over each transport."""
    for transport, recall in found.items():
        said = verdicts.require(f"known items over {transport}, {when}", recall, 1.0, holds=recall >= 1.0)
        print(f"known items over {transport:4s} {when:7s}{recall:8.4f} recall@5 of {questions} questions: {said}")


def judge_count(count: Count, verdicts: Verdicts) -> None:
    """The tables grew by what was counted."""
    said = verdicts.require("rows = writes counted", vars(count), "equal", holds=count.agrees and count.in_table > 0)
    print(
        f"rows added {count.in_table:,} by SQL, {count.in_stats:,} by /v1/stats; {count.acknowledged:,} acknowledged, "
        f"{count.unknown} left by their caller: {said}"
    )


def judge_mix(mix: Mixed, unlike: list[str], seconds: float, verdicts: Verdicts) -> dict[str, Any]:
    """Recalls and writes at once: no errors, and every acknowledged row is there."""
    errors = sum(mix.errors.values())
    whole = verdicts.require("mix: rows as acknowledged", len(unlike), 0, holds=bool(mix.journal) and not unlike)
    clean = verdicts.require("mix: errors", errors, 0, holds=errors == 0)
    per_s = (len(mix.recall_ms) / seconds, len(mix.journal) / seconds)
    print(f"\nmix, {CONNECTIONS_OF_MIX} connections: {per_s[0]:.0f} recalls and {per_s[1]:.0f} writes per s")
    figures: dict[str, Any] = {"errors": dict(mix.errors), "unlike": unlike[:20], "acknowledged": len(mix.journal)}
    for name, ms in (("recall", mix.recall_ms), ("write", mix.write_ms)):
        figures[name] = times = latencies(ms or [0.0])
        print(f"  {name:8s}p50 {times['p50_ms']:.1f} ms, p95 {times['p95_ms']:.1f}, p99 {times['p99_ms']:.1f}")
    print(f"  {errors} errors: {clean}")
    print(f"  of {len(mix.journal)} acknowledged rows {len(unlike)} are not as they were: {whole}")
    for line in [*unlike[:5], *mix.errors]:
        print(f"    {line}")
    return figures


# --- all of it ---


def measured(given: argparse.Namespace, work: Path) -> tuple[dict[str, Any], Verdicts]:
    """Measure everything and print it."""
    verdicts = Verdicts()
    requests = requests_of(given.database, work, given.questions)
    database = copied(given.database, work)
    figures: dict[str, Any] = {"questions": len(requests.known), "connections": given.connections}
    with reference(work) as bare, service(database) as ours:
        figures["known_before"] = known_items(ours, requests)
        judge_known("before", figures["known_before"], len(requests.known), verdicts)
        before = count_of(ours, database)
        figures["rounds"] = rounds_of(bare, ours, requests, given)
        figures["pairs"] = judge_rounds(figures["rounds"], given.connections, verdicts)
        added = count_of(ours, database).since(before)
        judge_count(added, verdicts)
        figures["added"] = vars(added)
        figures["known_after"] = known_items(ours, requests)
        judge_known("after", figures["known_after"], len(requests.known), verdicts)
        mix = mixed(ours, requests.recalls, given.mix_s)
        figures["mix"] = judge_mix(mix, unlike_the_table(database, mix.journal), given.mix_s, verdicts)
    return figures | {"limits": verdicts.lines}, verdicts


def main() -> None:
    """Measure, print, and end with 1 where a limit is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of each run of wrk")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--connections", type=int, nargs="+", default=list(CONNECTIONS))
    parser.add_argument("--questions", type=int, default=QUESTIONS)
    parser.add_argument("--mix-s", type=float, default=MIX_S)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="the hot path of one recall and one write instead")
    given = parser.parse_args()
    if given.profile:
        routes = hot_path.measure(given.database, hot_path.REQUESTS)
        hot_path.show(routes)
        if given.json:
            hot_path.keep(routes, given.json)
        return
    require_program("wrk", "wrk")
    with tempfile.TemporaryDirectory(dir=given.database.parent, prefix="bench-load-") as folder:
        figures, verdicts = measured(given, Path(folder))
    print(f"\n{'every limit is kept' if verdicts.kept else 'limits are MISSED'}")
    print(json.dumps({name: part for name, part in figures.items() if name != "rounds"}), flush=True)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if verdicts.kept else 1)


if __name__ == "__main__":
    main()
