"""`solos-memory purge --report` and deploy/purge-job.json: a job that a central cron registry can run and judge."""

import json
import os
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from storage.times import instant
from tests.support import PROGRAM, Service, foreign_lock, rows, serving
from tests.test_documentation import page, tables

JOB: dict[str, Any] = json.loads(page("deploy/purge-job.json"))


def report(*arguments: str, **env: str) -> tuple[int, dict[str, Any]]:
    """(exit code, the one line)."""
    done = subprocess.run(
        [*PROGRAM, "purge", "--report", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | env,
    )
    assert done.stderr == ""
    (line,) = done.stdout.splitlines()
    return done.returncode, json.loads(line)


def expired(service: Service, count: int) -> None:
    """Short rows that have ended."""
    assert service.database is not None
    for number in range(count):
        insert = "INSERT INTO memory_short(agent, key, value, created_at, expires_at) VALUES ('mira', ?, 'v', 1, 2)"
        rows(service.database, insert, f"key{number}")


# --- the line ---


def test_report_says_what_was_removed(service: Service) -> None:
    expired(service, 3)
    before_s = time.time()
    code, line = report("--url", service.url)
    assert (code, line["ok"], line["removed"]) == (0, True, 3)
    assert list(line) == ["ok", "removed", "at", "duration_ms"]
    at_s = instant(line["at"])
    assert at_s is not None
    assert before_s - 0.01 <= at_s <= time.time()
    assert 0 < line["duration_ms"] < 10_000
    assert report("--url", service.url)[1]["removed"] == 0


def test_report_of_a_refusal_ends_with_1(service: Service) -> None:
    code, line = report("--url", service.url, "--agent", "x" * 200)
    assert (code, line["ok"], line["removed"]) == (1, False, None)
    assert set(line) == {"ok", "removed", "at", "duration_ms", "error"}
    assert line["error"]["code"] == "too_large"
    assert line["error"]["hint"]


def test_report_without_a_service_ends_with_69() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    code, line = report("--url", url)
    assert (code, line["ok"], line["removed"], line["error"]["code"]) == (69, False, None, "unreachable")


def test_report_of_a_purge_that_broke_off_does_not_say_that_nothing_was_removed(database: Path) -> None:
    with serving(database) as service, foreign_lock(database):
        purge = subprocess.Popen(
            [*PROGRAM, "purge", "--report", "--url", service.url], stdout=subprocess.PIPE, text=True
        )
        while service.stats()["writes"]["short"]["in_flight"] == 0:
            assert purge.poll() is None
        service.kill()
        printed, _ = purge.communicate(timeout=30)
    line = json.loads(printed)
    assert (purge.returncode, line["removed"], line["error"]["code"]) == (69, None, "outcome_unknown")


def test_report_works_on_the_file_itself(service: Service) -> None:
    expired(service, 2)
    assert service.database is not None
    held, refused = report("--offline", "--db", str(service.database))
    assert (held, refused["error"]["code"]) == (1, "configuration")
    service.stop()
    code, line = report("--offline", "--db", str(service.database))
    assert (code, line["removed"]) == (0, 2)


def test_purge_without_report_prints_as_every_operation(service: Service) -> None:
    expired(service, 1)
    code, body = service.cli("purge")
    assert (code, body) == (0, {"ok": True, "purged": 1, "remaining": 0})


# --- the job ---


def test_job_runs_daily_and_names_where_its_line_and_its_failure_go() -> None:
    """Spec, section 8.6: a delivery target and a failure signal, and no local crontab."""
    minute, hour, *rest = JOB["schedule"].split()
    assert (minute.isdigit(), hour.isdigit(), rest) == (True, True, ["*", "*", "*"])
    assert JOB["delivery"]["target"]
    assert JOB["failure"]["target"]
    assert JOB["failure"]["signal"]
    assert JOB["failure"]["missed_after_s"] > 86_400
    assert JOB["timeout_s"] > 20


def run_job(url: str) -> subprocess.CompletedProcess[str]:
    """Run the job's command as a registry does: without a shell, with its environment, here with the test's URL."""
    program, *arguments = JOB["command"]
    assert program == "solos-memory"
    assert set(JOB["environment"]) == {"SOLOS_MEMORY_URL"}
    return subprocess.run(
        [*PROGRAM, *arguments],
        capture_output=True,
        text=True,
        timeout=JOB["timeout_s"],
        check=False,
        env=os.environ | JOB["environment"] | {"SOLOS_MEMORY_URL": url},
    )


def test_command_of_the_job_purges_and_its_failure_shows(service: Service) -> None:
    expired(service, 4)
    done = run_job(service.url)
    assert (done.returncode, json.loads(done.stdout)["removed"]) == (0, 4)
    service.stop()
    failed = run_job(service.url)
    assert str(failed.returncode) in JOB["failure"]["exit_codes"]
    assert json.loads(failed.stdout)["ok"] is False


def test_exit_codes_of_the_job_are_those_of_the_page() -> None:
    codes = {row[0] for row in tables(page("runbooks/purge-cron.md"))[0]} - {"0"}
    assert set(JOB["failure"]["exit_codes"]) == codes


@pytest.mark.parametrize("field", ["schedule", "timezone", "command", "environment", "timeout_s", "retries"])
def test_page_explains_the_fields_of_the_job(field: str) -> None:
    assert field in JOB
    assert f"`{field}`" in page("runbooks/purge-cron.md")
