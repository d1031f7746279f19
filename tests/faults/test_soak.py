"""C136: a fleet's day at 20 x speed with two restarts, a minute of it here and three under `make torture`.

Half an hour of it, with a report, is `make soak`: runbooks/load.md.
"""

import dataclasses
import json
import time
from pathlib import Path

import pytest

from tests.bench.fleet_day import MISSION, Call
from tests.bench.soak import (
    READY_WITHIN_S,
    judge_steadiness,
    judge_truth,
    lost_events,
    lost_foreign,
    lost_keys,
    lost_rows,
    page_of,
    show,
)
from tests.bench.soak_run import Soaked, made, soaked
from tests.bench.verdicts import Verdicts
from tests.faults.foreign import ForeignProcess
from tests.faults.scale import LONG, scaled, seeded

Day = tuple[Path, Soaked]


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Day:
    """A day that is over, and the database that it has left."""
    database = made(tmp_path_factory.mktemp("soak"), scaled(0, 20_000))
    return database, soaked(database, scaled(1.0, 3.0), seeded().randrange(10**6))


def changed(run: Soaked, call: Call) -> Soaked:
    """The same run with one call more."""
    journal = dataclasses.replace(run.journal, calls=[*run.journal.calls, call])
    return dataclasses.replace(run, journal=journal)


def test_a_day_with_two_restarts_loses_and_doubles_nothing(day: Day) -> None:
    database, run = day
    truth, steadiness = Verdicts(), Verdicts()
    judge_truth(database, run, truth)
    judge_steadiness(run, steadiness)
    show(page_of(run, truth))
    print([(one.how, round(one.start_s, 2)) for one in run.restarts], [line["value"] for line in steadiness.lines])
    assert truth.broken == []
    assert [one.how for one in run.restarts] == ["SIGTERM", "SIGKILL"]
    assert max(one.start_s for one in run.restarts) <= (READY_WITHIN_S if LONG else 5 * READY_WITHIN_S)
    operations = {call.operation for call in run.journal.calls if call.code is None}
    assert {"briefing", "recall", "remember_episodic", "remember_short", "swarm_write", "purge"} <= operations


def test_report_is_one_file_with_every_picture(day: Day) -> None:
    _, run = day
    text = page_of(run, Verdicts()).html()
    assert text.count("<svg ") == 6
    assert text.count("<polyline ") >= 11
    assert "http" not in text.lower().replace("http-equiv", "")


def test_soak_notices_an_error_that_no_restart_explains(day: Day) -> None:
    _, run = day
    within = run.began_s + run.restarts[0].signal_s + 0.01
    assert changed(run, Call(within, "recall", 1.0, "ConnectionRefusedError")).unexplained == run.unexplained
    before = run.began_s + run.restarts[0].signal_s - 0.01
    assert changed(run, Call(before, "recall", 1.0, "overloaded")).unexplained["recall: overloaded"] == 1


def test_soak_notices_what_was_lost_or_doubled(day: Day) -> None:
    """The last test of this module: it damages what the day has left."""
    database, run = day
    fact = next(row for row in run.journal.rows if row.startswith("long:"))
    episodes = [row.partition(":")[2] for row in run.journal.rows if row.startswith("episodic:")]
    foreign = next(iter(run.foreign))
    agent = next(iter(run.journal.states))
    worker = next(iter(run.journal.events))
    copied = "INSERT INTO memory_episodic(agent, event_type, summary, created_at) "
    with ForeignProcess(database) as other:
        other.execute(f"DELETE FROM memory_longterm WHERE id IN ({fact.partition(':')[2]}, {foreign})")
        other.execute(f"{copied} SELECT agent, event_type, summary, 0 FROM memory_episodic WHERE id = {episodes[0]}")
        other.execute(f"UPDATE memory_short SET value = 'an older one' WHERE agent = '{agent}' AND key = 'state'")
        other.execute(f"UPDATE memory_short SET expires_at = {time.time() - 60} WHERE agent = '{agent}'")
    log = database.parent / "profiles" / worker / "memory/missions" / MISSION / "events.jsonl"
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    ours = next(number for number, line in enumerate(lines) if json.loads(line)["summary"].startswith("event number"))
    log.write_text("".join([*lines[:ours], *lines[ours + 1 :], lines[-1]]), encoding="utf-8")
    later = dataclasses.replace(run, purged_s=time.time())
    assert [line.partition(":")[0] for line in lost_rows(database, run)] == ["lost", "2 times"]
    assert [line.partition(":")[0] for line in lost_keys(database, later)][:2] == ["lost", "expired and left"]
    assert len(lost_events(database, run)) >= 1
    assert [line.partition(":")[0] for line in lost_foreign(database, run)] == ["lost"]
