"""/metrics: what is counted, what it is called, and that no caller can add series."""

import contextlib
import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from actors.errors import ShuttingDown
from actors.refusing import Refusing
from actors.stats import LATENCY_BUCKETS_S, OTHERS, UNREGISTERED, Latency, Stats
from storage import limits
from storage.times import instant
from tests.support import Service, eventually, fresh_database, rows, serving
from tests.test_documentation import page, section, tables
from transport.metrics import metrics_text

Labels = frozenset[tuple[str, str]]
DISTINCT = 10_000
THREADS = 4


def samples_of(text: str) -> dict[tuple[str, Labels], float]:
    """Every series of a scrape with its value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(service: Service) -> dict[tuple[str, Labels], float]:
    """Every series of a running service."""
    return samples_of(service.http.get(service.url + "/metrics").text)


def value(service: Service, name: str, **labels: str) -> float:
    """The value of one series."""
    return scraped(service)[name, frozenset(labels.items())]


# --- names ---


def test_page_lists_every_metric_that_is_exposed_and_no_other(shared_service: Service) -> None:
    shared_service.long("mira", "Metrics are listed.")
    text = shared_service.http.get(shared_service.url + "/metrics").text
    typed = re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
    exposed = [name for name, _ in typed]
    (listed,) = [table for table in tables(section(page("runbooks/metrics.md"), "Prometheus")) if len(table[0]) == 3]
    assert sorted(row[0].strip("`") for row in listed) == sorted(exposed)


def test_labels_are_those_of_the_page(shared_service: Service) -> None:
    shared_service.rest("GET", "/v1/recall", agent="mira")
    (listed,) = [table for table in tables(section(page("runbooks/metrics.md"), "Prometheus")) if len(table[0]) == 3]
    told = {row[0].strip("`"): set(row[1].split(", ")) - {"-"} for row in listed}
    for name, labels in scraped(shared_service):
        base = name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count")
        assert {label for label, _ in labels} - {"le"} == told[base if base in told else name], name


# --- C137: 10,000 agents, keys and questions ---


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service whose registry holds 5,000 more agents."""
    database = fresh_database(tmp_path_factory.mktemp("crowd"))
    every = json.dumps([f"reg{number}" for number in range(DISTINCT // 2)])
    rows(database, "INSERT INTO agent_registry(agent_id) SELECT value FROM json_each(?)", every)
    with serving(database) as service:
        yield service


def ask_for(url: str, numbers: range) -> None:
    """One call of an agent of its own with a key or a question of its own, for each number."""
    http = HTTPConnection(url.removeprefix("http://"), timeout=30)
    with contextlib.closing(http):
        for number in numbers:
            http.request("GET", call(number))
            answer = http.getresponse()
            answer.read()
            assert answer.status == EXPECTED[number % 4], call(number)


EXPECTED = (200, 404, 400, 404)
"""How the calls end, by number: three in four are refused, and half of the agents are registered."""


def call(number: int) -> str:
    """The call of one number: a recall, a short key, a question with a bound that none may have, another key."""
    agent = f"reg{number // 2}" if number % 2 else f"ghost{number}"
    return (
        f"/v1/recall?agent={agent}&q=question{number}",
        f"/v1/short?agent={agent}&key=key{number}",
        f"/v1/recall?agent={agent}&q=question{number}&k={number + 100}",
        f"/v1/short?agent={agent}&key=another{number}",
    )[number % 4]


def test_number_of_series_does_not_follow_what_callers_send(crowd: Service) -> None:
    """C137: what the first agents made is all there ever is; the counts are right all the same."""
    ask_for(crowd.url, range(2 * limits.AGENT_LABELS_MAX + 4))  # each kind of call, and the labels are used up
    before = scraped(crowd)
    step = DISTINCT // THREADS
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda first: ask_for(crowd.url, range(first, first + step)), range(0, DISTINCT, step)))
    after = scraped(crowd)
    assert after.keys() == before.keys()
    assert len(after) < 400

    def counted(name: str, **labels: str) -> float:
        key = (name, frozenset(labels.items()))
        return after[key] - before[key]

    refused = "solos_memory_refusals_total"
    assert counted(refused, agent=UNREGISTERED, operation="recall", code="invalid_request") == DISTINCT / 4
    others = counted(refused, agent=OTHERS, operation="get_short", code="not_found")
    assert others == DISTINCT / 2 - limits.AGENT_LABELS_MAX
    assert counted("solos_memory_refused_total") == DISTINCT * 3 / 4
    assert counted("solos_memory_calls_total", operation="recall", transport="rest") == DISTINCT / 2


# --- answer times ---


def test_histogram_counts_each_answer_by_operation_and_transport(service: Service) -> None:
    for number in range(3):
        service.recall("mira", f"question {number}")
    service.mcp("recall", {"agent": "mira", "q": "another"})
    name = "solos_memory_answer_seconds"
    for transport, count in (("rest", 3), ("mcp", 1)):
        labels = {"operation": "recall", "transport": transport}
        assert value(service, f"{name}_count", **labels) == count
        assert value(service, f"{name}_bucket", le="+Inf", **labels) == count
        assert 0 < value(service, f"{name}_sum", **labels) < count * 10
        buckets = [value(service, f"{name}_bucket", le=str(bound), **labels) for bound in LATENCY_BUCKETS_S]
        assert buckets == sorted(buckets)
    times = service.stats()["latency"]["recall"]
    assert times["count"] == 4
    assert 0 < times["p50_ms"] <= times["p99_ms"] <= times["max_ms"]


def observed(*seconds: float) -> Latency:
    """A histogram of these answers."""
    latency = Latency()
    for each in seconds:
        latency.observe(each)
    return latency


def test_quantile_lies_in_the_bucket_of_the_answer_that_it_names() -> None:
    latency = observed(*[0.003] * 50, *[0.007] * 48, 0.3, 0.4)
    assert 0.0025 <= latency.quantile_s(0.5) <= 0.005
    assert 0.005 <= latency.quantile_s(0.9) <= 0.01
    assert 0.25 <= latency.quantile_s(0.99) <= 0.4


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((), 0.0), ((0.003,), 0.003), ((12.0,), 12.0), ((11.0, 11.0, 30.0), 30.0)],
    ids=["none", "one", "beyond the buckets", "several beyond"],
)
def test_quantile_never_exceeds_what_was_seen(seconds: tuple[float, ...], expected: float) -> None:
    assert observed(*seconds).quantile_s(1.0) == pytest.approx(expected)


def test_histograms_of_two_transports_are_one_for_the_operation() -> None:
    both = observed(0.003)
    both.add(observed(0.3, 0.3))
    assert sum(both.counts) == 3
    assert both.sum_s == pytest.approx(0.603)
    assert both.max_s == 0.3
    assert both.quantile_s(0.5) > 0.25


# --- refusals: bounded, and never mixed up ---


def test_agents_beyond_the_bound_are_counted_together() -> None:
    stats = Stats()
    for number in range(limits.AGENT_LABELS_MAX + 5):
        stats.refuse(f"agent{number}", "recall", "invalid_request")
    stats.refuse("agent0", "recall", "invalid_request")
    stats.refuse(UNREGISTERED, "recall", "invalid_request")
    assert len(stats.refusals) == limits.AGENT_LABELS_MAX + 2
    assert stats.refusals[OTHERS, "recall", "invalid_request"] == 5
    assert stats.refusals["agent0", "recall", "invalid_request"] == 2
    assert stats.refusals[UNREGISTERED, "recall", "invalid_request"] == 1


# --- the store's figures ---


def test_rows_wal_and_index_are_those_of_the_statistics(service: Service) -> None:
    for number in range(3):
        service.long("mira", f"Fact number {number}.")
    store = service.stats()["store"]
    assert value(service, "solos_memory_rows", tier="long") == 3
    assert value(service, "solos_memory_wal_bytes") >= store["wal_bytes"] > 0
    assert value(service, "solos_memory_index_bytes") > 0
    assert (store["index_share"], store["index_rows_behind"]) == (1.0, 0)
    assert value(service, "solos_memory_index_rows_behind") == 0


def test_mailboxes_and_restarts_are_there_from_the_start(service: Service) -> None:
    for mailbox, bound in (("writer", limits.WRITER_MAILBOX_MAX), ("readers", limits.READER_MAILBOX_MAX)):
        assert value(service, "solos_memory_mailbox_depth", mailbox=mailbox) <= 1
        assert value(service, "solos_memory_mailbox_bound", mailbox=mailbox) == bound
        assert value(service, "solos_memory_actor_restarts_total", mailbox=mailbox) == 0


def test_foreign_change_is_seen_and_our_own_writes_are_none(service: Service) -> None:
    assert service.database is not None
    service.long("mira", "Our own.")
    assert service.stats()["foreign_change_at"] is None
    assert value(service, "solos_memory_foreign_change_timestamp_seconds") == 0
    before_s = time.time()
    rows(service.database, "INSERT INTO memory_longterm(agent, fact, created_at) VALUES ('sol', 'Foreign.', 1.7e9)")
    eventually(lambda: service.stats()["foreign_change_at"] is not None)
    seen_s = instant(service.stats()["foreign_change_at"])
    assert seen_s is not None
    assert before_s - 0.01 <= seen_s <= time.time()
    assert value(service, "solos_memory_foreign_change_timestamp_seconds") == pytest.approx(seen_s, abs=0.01)


def record(service: Service) -> Path:
    """Where the last backup is recorded."""
    assert service.database is not None
    return service.database.with_name(service.database.name + ".solos-memory") / "last-backup.json"


def test_last_backup_is_the_one_that_is_recorded(service: Service) -> None:
    name = "solos_memory_last_backup_timestamp_seconds"
    assert (service.stats()["store"]["last_backup_at"], value(service, name)) == (None, 0)
    record(service).write_text('{"at": "2026-09-28T03:00:00.000Z", "to": "/backups/one", "bytes": 4096}')
    assert service.stats()["store"]["last_backup_at"] == "2026-09-28T03:00:00.000Z"
    assert value(service, name) == instant("2026-09-28T03:00:00.000Z")


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"at": "noon", "to": "x", "bytes": 1}', '{"to": "x", "bytes": 1}'])
def test_torn_record_of_a_backup_counts_as_none(shared_service: Service, torn: str) -> None:
    record(shared_service).write_text(torn)
    assert shared_service.stats()["store"]["last_backup_at"] is None
    assert value(shared_service, "solos_memory_last_backup_timestamp_seconds") == 0


# --- when something is wrong ---


def test_metrics_are_there_without_a_database_that_can_be_read(database: Path) -> None:
    with serving(database) as service:
        assert value(service, "solos_memory_degraded") == 0
        assert value(service, "solos_memory_ready") == 1
        database.rename(database.with_name("elsewhere.db"))
        seen = scraped(service)
        assert seen["solos_memory_degraded", frozenset()] == 1
        assert not [name for name, _ in seen if name in ("solos_memory_rows", "solos_memory_wal_bytes")]
        database.with_name("elsewhere.db").rename(database)


async def test_refusing_service_says_that_it_is_not_ready() -> None:
    seen = samples_of((await metrics_text(Refusing(Stats(), "It starts."))).decode())
    assert seen["solos_memory_ready", frozenset()] == 0
    assert seen["solos_memory_degraded", frozenset()] == 1


async def test_scrape_does_not_wait_for_a_store_that_hangs(autojump_clock: object) -> None:
    """Prometheus would give up after 10 s and learn nothing."""

    class Hanging(Refusing):
        async def ask(self, message: object) -> object:  # type: ignore[override]
            await trio.sleep_forever()
            raise ShuttingDown

    began = trio.current_time()
    seen = samples_of((await metrics_text(Hanging(Stats(), "It starts."))).decode())
    assert seen["solos_memory_ready", frozenset()] == 0
    assert trio.current_time() - began <= 6
