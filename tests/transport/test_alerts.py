"""deploy/alerts.yml: Debian's promtool accepts it, each alert fires on its trouble, and every metric in it exists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support import Service

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "alerts.yml"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yml")


def promtool(*arguments: str, given: str | None = None) -> str:
    """What promtool prints; it must accept what it is given, and its absence is a failure, never a skip."""
    found = shutil.which("promtool")
    assert found, "promtool is missing: `apt-get install -y --no-install-recommends prometheus` brings it."
    done = subprocess.run(
        [found, *arguments], input=given, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def alerts() -> list[str]:
    """The names of the alerts."""
    return re.findall(r"- alert: (\w+)", ALERTS.read_text(encoding="utf-8"))


def used(service: Service) -> str:
    """A scrape of a service that has written, read, refused and seen another process."""
    service.long("mira", "The alerts are tested.")
    service.recall("sol", "alerts")
    assert service.rest("POST", "/v1/long", {"agent": "ghost", "fact": "x"})[0] == 422
    return service.http.get(service.url + "/metrics").text


def test_promtool_accepts_the_rules() -> None:
    assert f"SUCCESS: {len(alerts())} rules found" in promtool("check", "rules", str(ALERTS))


def test_each_alert_fires_on_its_trouble_and_is_quiet_without_it() -> None:
    assert "SUCCESS" in promtool("test", "rules", str(UNIT_TESTS))


def test_each_alert_has_a_test_that_it_fires_and_one_that_it_does_not() -> None:
    text = UNIT_TESTS.read_text(encoding="utf-8")
    quiet = set(re.findall(r"\{eval_time: \w+, alertname: (\w+)\}", text))
    fires = set(re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n\s+- exp_labels", text))
    assert len(alerts()) >= 7
    assert quiet == set(alerts())
    assert fires == set(alerts())


def test_every_metric_of_the_alerts_is_exposed_by_a_running_service(shared_service: Service) -> None:
    exposed = set(re.findall(r"^(solos_memory_\w+)[ {]", used(shared_service), re.MULTILINE))
    named = set(re.findall(r"\bsolos_memory_\w+", ALERTS.read_text(encoding="utf-8")))
    assert len(named) >= 7
    assert named <= exposed, f"not exposed: {', '.join(sorted(named - exposed))}"


def test_labels_of_the_alerts_are_exposed(shared_service: Service) -> None:
    text = ALERTS.read_text(encoding="utf-8")
    labels = set(re.findall(r"\$labels\.(\w+)", text)) | {"le"}
    exposed = set(re.findall(r'[{,](\w+)="', used(shared_service)))
    assert labels <= exposed


def test_promtool_finds_no_fault_in_the_metrics(shared_service: Service) -> None:
    assert promtool("check", "metrics", given=used(shared_service)) == ""


def test_missing_promtool_is_a_failure_that_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(AssertionError, match="apt-get install"):
        promtool("check", "rules", str(ALERTS))
