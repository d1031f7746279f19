"""What each millisecond of one recall and one write is made of: `make bench-load DB=… ARGS=--profile`.

  python -m tests.bench.hot_path DB [--requests 500] [--json FILE]

Serves a copy of DB with stamps.py planted, asks over one connection, one request at a time, and prints for each kind
of request where its time went, from the first byte in to the connection's being ready again: the mean over the requests
without the slowest tenth, by the wall's clock and in CPU of the process that does it, which others on the machine
disturb less. The bare stack (reference_app.py) is stamped likewise. Stamps cost some µs each.
"""

import argparse
import http.client
import itertools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage import limits
from tests.bench.load_requests import Requests, requests_of
from tests.bench.load_servers import Server, copied, reference, service
from tests.bench.stamps import AFTERWARDS, ANSWERS, ASKED, FIRST, LOOK, SENT, THERE, look_files

REQUESTS = 500
WARM = 300
"""Of each kind, after the readers have their processes: a process is slow at first, too."""
PROCESSES_WITHIN_S = 60.0
KEPT_SHARE = 0.9
KINDS = {
    "GET /hello": "/hello",
    "GET /v1/recall": "recall",
    "POST /echo": "/echo",
    "POST /v1/long": "write",
    "bare POST /mcp": "empty tool",
    "POST /mcp": "recall, MCP",
}
"""The columns: each kind of request behind what the bare stack does for one of its size."""


ORDER = (
    FIRST,
    "guard, body",
    "Quart, request and routing",
    "arguments read",
    "message validated",
    "mailbox hop",
    ASKED,
    THERE,
    LOOK,
    "hop into the thread",
    "BEGIN IMMEDIATE",
    "row inserted",
    "COMMIT",
    "intents settled",
    "index follows",
    "hop back to the actor",
    "hop to the asker",
    "rendered",
    "log line, counters",
    "JSON, response object",
    "text for the model",
    ANSWERS,
    SENT,
    AFTERWARDS,
)
"""The stages, as a request goes through them."""
Times = tuple[float, float]
"""Microseconds on the wall's clock, and of CPU of the whole process."""


@dataclass(frozen=True)
class Route:
    """Where the time of one kind of request goes."""

    requests: int
    stages: dict[str, Times]
    parts: dict[str, Times]

    @property
    def total(self) -> Times:
        """All stages together."""
        return sum(wall for wall, _ in self.stages.values()), sum(cpu for _, cpu in self.stages.values())


def route_of(records: Sequence[dict[str, Any]], first: str = FIRST) -> Route:
    """The mean of each stage, over all requests but the slowest tenth. `first` is how the first one is called."""
    kept = sorted(records, key=lambda record: record["marks"][-1][1])[: max(1, int(len(records) * KEPT_SHARE))]
    stages: defaultdict[str, list[Times]] = defaultdict(list)
    parts: defaultdict[str, list[Times]] = defaultdict(list)
    for record in kept:
        for (_, before_ns, before_cpu_ns), (done, at_ns, cpu_ns) in itertools.pairwise(record["marks"]):
            assert done in ORDER, done
            stages[first if before_ns == 0 else done].append((at_ns - before_ns, cpu_ns - before_cpu_ns))
        gone_through = {done for done, _, _ in record["marks"]}
        for name, spent in record["parts"].items():
            if name.partition(": ")[0] in gone_through:  # or else it is of the upkeep, which went on beside
                parts[name].append(spent)
    return Route(len(kept), _means(stages, len(kept)), _means(parts, len(kept)))


def _means(times: dict[str, list[Times]], requests: int) -> dict[str, Times]:
    return {
        name: (sum(wall for wall, _ in some) / requests / 1000, sum(cpu for _, cpu in some) / requests / 1000)
        for name, some in times.items()
    }


def ask_in_turn(server: Server, method: str, path: str | None, lines: Iterable[str]) -> list[float]:
    """Send requests over one connection, one at a time; the milliseconds of each as their client sees them."""
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    connection = server.connect()
    took = []
    for line in lines:
        began = time.perf_counter()
        if method == "GET":
            connection.request("GET", path or line)
        else:
            connection.request("POST", path or "/", line.encode(), headers)
        response = connection.getresponse()
        body = response.read()
        took.append((time.perf_counter() - began) * 1000)
        if response.status >= http.client.BAD_REQUEST:
            raise SystemExit(f"{method} {path}: {response.status} {body[:300]!r}")
    connection.close()
    return took


def records_of(stamped: Path, count: int) -> list[dict[str, Any]]:
    """The last requests of each kind that a server has stamped: those before them warm it."""
    by_kind: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in stamped.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        by_kind[record["kind"]].append(record)
    return [record for records in by_kind.values() for record in records[-count:]]


def measure(database: Path, count: int) -> dict[str, Route]:
    """The route of each kind of request, by its kind."""
    with tempfile.TemporaryDirectory(dir=database.parent, prefix="hot-path-") as folder:
        work = Path(folder)
        requests = requests_of(database, work)
        records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        with reference(work, stamps=work / "bare.jsonl") as bare:
            ask_bare(bare, requests, count)
        for record in records_of(work / "bare.jsonl", count):
            records["bare POST /mcp" if record["kind"] == "POST /mcp" else record["kind"]].append(record)
        with service(copied(database, work), stamps=work / "service.jsonl") as ours:
            ask_ours(ours, requests, count)
        for record in records_of(work / "service.jsonl", count):
            records[record["kind"]].append(record)
        looks = looks_of(work / "service.jsonl")
    routes = {kind: route_of(records[kind]) for kind in KINDS}
    routes["GET /v1/recall"] = joined(routes["GET /v1/recall"], looks[-2 * count - WARM : -count - WARM])
    routes["POST /mcp"] = joined(routes["POST /mcp"], looks[-count:])
    return routes


def looks_of(stamped: Path) -> list[dict[str, Any]]:
    """All looks in processes for recalls, in the order of time: of recalls over REST, then of those over MCP."""
    lines = [line for file in look_files(stamped) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(map(json.loads, lines), key=lambda look: look["began_ns"])


def joined(route: Route, looks: Sequence[dict[str, Any]]) -> Route:
    """A route with what the looks were made of; while one ran, the service's own process only waited for it."""
    there = route_of(looks, THERE)
    wall, cpu = route.stages[ASKED]
    stages = route.stages | there.stages | {ASKED: (wall - there.total[0], cpu)}
    return Route(route.requests, stages, route.parts | there.parts)


def ask_bare(bare: Server, requests: Requests, count: int) -> None:
    """What the bare stack can answer."""
    ask_in_turn(bare, "GET", "/hello", requests.recalls[: count + WARM])
    ask_in_turn(bare, "POST", "/echo", requests.writes[: count + WARM])
    ask_in_turn(bare, "POST", "/mcp", requests.mcp_nothings[: count + WARM])


def begin_processes(ours: Server, requests: Requests) -> None:
    """Ask until each reader has its process for recalls."""

    def begun() -> bool:
        ask_in_turn(ours, "GET", None, requests.recalls[-10:])
        return ours.log.read_text(errors="replace").count("recaller_started") >= limits.READERS

    ours.wait_for(begun, PROCESSES_WITHIN_S)


def ask_ours(ours: Server, requests: Requests, count: int) -> None:
    """What it is compared with."""
    begin_processes(ours, requests)
    ask_in_turn(ours, "GET", None, requests.recalls[: count + WARM])
    ask_in_turn(ours, "POST", "/v1/long", requests.writes[: count + WARM])
    ask_in_turn(ours, "POST", "/mcp", requests.mcp_recalls[: count + WARM])


def show(routes: dict[str, Route]) -> None:
    """Print one Markdown table: CPU of each stage and its parts, in µs, of each kind of request."""
    columns = [routes[kind] for kind in KINDS]
    print(f"| µs of CPU a request | {' | '.join(KINDS.values())} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for done in ORDER:
        print(_row(done, [route.stages.get(done) for route in columns]))
        for part in _named(route.parts for route in columns):
            if part.startswith(f"{done}: "):
                name = part.partition(": ")[2]
                print(_row(f"… of it: {name}", [route.parts.get(part) for route in columns]))
    print(_row("**all**", [route.total for route in columns]))
    print(_row("by the wall's clock", [(wall, wall) for wall, _ in (route.total for route in columns)]))


def _row(name: str, times: Sequence[Times | None]) -> str:
    cells = ["" if one is None else f"{one[1]:,.0f}" for one in times]
    return f"| {name} | {' | '.join(cells)} |"


def _named(some: Iterable[dict[str, Times]]) -> list[str]:
    return list(dict.fromkeys(name for one in some for name in one))


def keep(routes: dict[str, Route], path: Path) -> None:
    """Write the figures down: of each stage and part its µs by the wall's clock, and of CPU."""
    path.write_text(
        json.dumps({kind: vars(route) for kind, route in routes.items()}, indent=1) + "\n", encoding="utf-8"
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("database", type=Path)
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    routes = measure(given.database, given.requests)
    show(routes)
    if given.json:
        keep(routes, given.json)


if __name__ == "__main__":
    main()
