"""Every page of runbooks/ is run: its commands, in its order, against a real service, print what it shows."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tests.runbooks.markdown import blocks_of
from tests.runbooks.runner import NEEDS_HERMES, NEEDS_HOST, NEEDS_REGISTRY, NEEDS_SYSTEMD, REASONS, ROOT, run_page

PAGES = sorted((ROOT / "runbooks").glob("*.md"))
REFERENCES = {"README.md", "bounds.md", "errors.md", "settings.md", "swarm-spec.md"}
"""Pages to look things up in; they have no commands of their own."""
NOT_RUN: dict[str, dict[str, int]] = {
    "backup-restore.md": {NEEDS_SYSTEMD: 2},
    "install.md": {NEEDS_REGISTRY: 1, NEEDS_SYSTEMD: 3},
    "it-is-down.md": {NEEDS_SYSTEMD: 6},
    "rollback.md": {NEEDS_REGISTRY: 1, NEEDS_SYSTEMD: 2},
    "rollout.md": {NEEDS_HOST: 2},
    "upgrade.md": {NEEDS_REGISTRY: 1, NEEDS_SYSTEMD: 1},
    "verify-loopback.md": {NEEDS_HOST: 1},
    "wire-a2a.md": {NEEDS_REGISTRY: 1},
    "wire-hermes.md": {NEEDS_HERMES: 2},
}
"""The blocks of each page that are shown and not run, by reason."""
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text(page: Path) -> str:
    """What a page says."""
    return page.read_text(encoding="utf-8")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in REFERENCES], ids=lambda page: page.name)
def test_page_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    run_page(page, tmp_path)


@every_page
def test_blocks_that_are_not_run_are_counted(page: Path) -> None:
    reasons = Counter(block.not_run for block in blocks_of(text(page)) if block.not_run is not None)
    assert reasons == NOT_RUN.get(page.name, {})
    assert set(reasons) <= set(REASONS)


@every_page
def test_a_page_runs_something_unless_it_is_a_reference(page: Path) -> None:
    run = [block for block in blocks_of(text(page)) if block.not_run is None and not block.hidden]
    assert bool(run) is (page.name not in REFERENCES)


@every_page
def test_no_command_hides_in_another_kind_of_block(page: Path) -> None:
    assert re.findall(r"^\s*```(?:sh|bash|shell)$", text(page), re.MULTILINE) == []


@every_page
def test_only_systemd_and_its_journal_need_systemd(page: Path) -> None:
    """A command that could be run is not hidden behind one that cannot."""
    for block in blocks_of(text(page)):
        if block.not_run == NEEDS_SYSTEMD:
            for step in block.steps:
                assert step.command.split()[0] in ("systemctl", "journalctl", "loginctl"), step.command


@every_page
def test_stopping_stops_both_units(page: Path) -> None:
    """A service whose socket is held is started again by the next call."""
    stops = re.findall(r"systemctl --user (?:stop|disable)\b.*", text(page))
    for stop in stops:
        assert "lab-memory.socket" in stop, stop
        assert "lab-memory.service" in stop, stop


def test_pages_that_are_pinned_exist() -> None:
    assert set(NOT_RUN) <= {page.name for page in PAGES}
