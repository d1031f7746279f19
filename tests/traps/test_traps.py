"""Each patch in this folder plants one fault of the design's list of traps; its first line names the tests that pin it.

The patch is applied to a copy of the tree, and those tests must fail there. Shipped code knows nothing of it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
COPIED = ("storage", "actors", "transport", "tests")
PATCHES = sorted(Path(__file__).parent.glob("*.patch"))
PINS = "# pins: "
ENDS_WITHIN_S = 120
ALWAYS = "tests/faults/test_traps_http.py::test_idle_connection_is_closed"
"""Passes in a copy without a fault; it runs the service, too."""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the tree that counts as an editable install: the program runs no other packages of its names."""
    copied = tmp_path / "tree"
    for name in COPIED:
        shutil.copytree(TREE / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(TREE / "pyproject.toml", copied)
    metadata = copied / "solos_memory-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: solos-memory\nVersion: 0\n")
    (metadata / "direct_url.json").write_text(json.dumps({"url": copied.as_uri(), "dir_info": {"editable": True}}))
    return copied


def apply(patch: Path, tree: Path) -> None:
    """Apply a patch; it must fit."""
    outside_any_repository = os.environ | {"GIT_CEILING_DIRECTORIES": str(tree.parent)}
    done = subprocess.run(
        ["git", "apply", "--verbose", str(patch)],
        cwd=tree,
        env=outside_any_repository,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{patch.name} no longer fits; make it anew:\n{done.stderr}"
    assert "Applied patch" in done.stderr, done.stderr


def run_tests(tree: Path, names: list[str]) -> subprocess.CompletedProcess[str]:
    """Run tests of a copied tree with the packages of that tree."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rfE", "--tb=line", "-p", "no:cacheprovider", *names],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        timeout=ENDS_WITHIN_S,
        check=False,
    )


def pins(patch: Path) -> list[str]:
    """The tests that a patch's first line names."""
    first, *_ = patch.read_text().splitlines()
    assert first.startswith(PINS), f"{patch.name}: its first line must be `{PINS}` and the tests that notice the fault"
    return first.removeprefix(PINS).split()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_fault_is_noticed(patch: Path, copy: Path) -> None:
    apply(patch, copy)
    done = run_tests(copy, pins(patch))
    summary = done.stdout.splitlines()
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    for name in pins(patch):
        assert any(line.startswith(f"FAILED {name}") for line in summary), f"{name} does not notice it:\n{done.stdout}"
    assert not [line for line in summary if line.startswith("ERROR")], done.stdout


def test_copy_without_a_fault_passes(copy: Path) -> None:
    """What fails above fails for its fault, not because it is a copy."""
    done = run_tests(copy, [ALWAYS])
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr


def test_every_trap_has_a_patch() -> None:
    """All but the sixth, which is a rule for tests."""
    named = {patch.name.partition("-")[0] for patch in PATCHES}
    assert named == {"1", "2", "3", "4", "5", "7", "8", "9", "rolled"}


def test_patches_touch_shipped_code_alone() -> None:
    for patch in PATCHES:
        touched = [line.removeprefix("+++ b/") for line in patch.read_text().splitlines() if line.startswith("+++ ")]
        assert touched
        assert all(path.startswith(("storage/", "actors/", "transport/")) for path in touched), patch.name
