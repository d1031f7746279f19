"""Ids, days and names that name a file, those that do not, and where the roots are."""

from pathlib import Path

import pytest

from storage.errors import ConfigurationError, InvalidRequest
from storage.swarm import layout

HOSTILE = [
    "",
    " ",
    ".",
    "..",
    "../../etc",
    "..%2f..%2f",
    "swarm5/../../x",
    "swarm5/",
    "/etc/passwd",
    "//etc",
    "C:\\x",
    "\\\\server\\share",
    "~",
    "~root",
    "swarm5\x00",
    "\x00",
    "swarm5\n",
    "swarm5\r",
    "\tswarm5",
    " swarm5",
    "swarm5 ",
    "-rf",
    "_x",
    ".hidden",
    ".solos-1-1-w-x",
    "$HOME",
    "`id`",
    "swarm5;ls",
    "swarm5|x",
    "a*",
    "a?b",
    "[a]",
    "swärm",
    "ｓｗａｒｍ",
    "\u212aelvin",
    "ſwarm",
    "swarm\u202e5",
    "swarm\u200b5",
    "swarm\u20285",
    "swarm\ud8005",
    "５",
    "a/b",
    "a\\b",
    "x" * 129,
    "%00",
    "..;/",
    "con/aux",
]
"""No worker and no mission."""


@pytest.mark.parametrize("given", [*HOSTILE, "C:x", "x" * 65, "a.b", "a:b", "swarm5.", "mission:1"], ids=ascii)
def test_no_hostile_worker_id_names_a_folder(given: str) -> None:
    with pytest.raises(InvalidRequest, match="workerId"):
        layout.worker_id(given)


@pytest.mark.parametrize("given", HOSTILE, ids=ascii)
def test_no_hostile_mission_id_names_a_folder(given: str) -> None:
    with pytest.raises(InvalidRequest, match="missionId"):
        layout.mission_id(given)


@pytest.mark.parametrize(
    "given", [*HOSTILE, "2026-1-1", "2026-02-30", "20260101", "٢٠٢٦-٠١-٠١", "2026-01-01\n", "0000-01-01"], ids=ascii
)
def test_no_hostile_date_names_a_page(given: str) -> None:
    with pytest.raises(InvalidRequest, match="date"):
        layout.day(given)


@pytest.mark.parametrize(
    "given", [*HOSTILE[1:], "x.txt", "a/b.md", "../notes.md", ".md", "notes.md\n", "notes.MD", "NOTES"], ids=ascii
)
@pytest.mark.parametrize("kind", ["profile", "shared"])
def test_no_hostile_file_names_a_page(kind: layout.Kind, given: str) -> None:
    with pytest.raises(InvalidRequest, match="file"):
        layout.page_file(kind, given)


def test_ids_are_folded_to_lower_case() -> None:
    assert layout.worker_id("Swarm5") == "swarm5"
    assert layout.mission_id("Mission-2026:Q1.a_b") == "mission-2026:q1.a_b"
    assert layout.worker_id("x" * 64) == "x" * 64
    assert layout.mission_id("x" * 128) == "x" * 128


def test_pages_have_defaults() -> None:
    assert layout.page_file("profile", None) == "MEMORY.md"
    assert layout.page_file("profile", "SOUL.md") == "SOUL.md"
    assert layout.page_file("shared", None) == "notes.md"
    assert layout.page_file("shared", "Lessons-1.md") == "Lessons-1.md"


@pytest.mark.parametrize(
    ("environ", "profiles", "shared"),
    [
        ({}, "~/.hermes/profiles", "~/.openclaw/workspace/memory"),
        ({"HERMES_HOME": "/h/profiles/swarm5"}, "/h/profiles", "~/.openclaw/workspace/memory"),
        ({"HERMES_HOME": "/h/hermes"}, "/h/hermes/profiles", "~/.openclaw/workspace/memory"),
        ({"HERMES_SWARM_MEMORY_ROOT": "/s"}, "~/.hermes/profiles", "/s/memory"),
    ],
)
def test_roots_come_from_the_environment(environ: dict[str, str], profiles: str, shared: str) -> None:
    found = layout.roots(environ, profiles=None, shared=None, workspace=None)
    assert found.profiles == Path(profiles).expanduser().resolve()
    assert found.shared == Path(shared).expanduser().resolve()


def test_settings_go_before_the_environment(tmp_path: Path) -> None:
    environ = {"HERMES_HOME": "/h", "HERMES_SWARM_MEMORY_ROOT": "/s"}
    found = layout.roots(environ, profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path / "w")
    assert found == layout.Roots(profiles=tmp_path / "p", shared=tmp_path / "s", workspace=tmp_path / "w")


def test_roots_that_are_links_are_resolved_once(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    found = layout.roots({}, profiles=tmp_path / "link", shared=tmp_path, workspace=None)
    assert found.profiles == tmp_path / "real"


@pytest.mark.parametrize("refused", [".openclaw/profiles", ".openclaw/profiles/x", ".ocplatform/workspace/memory"])
def test_the_wrong_places_are_refused(tmp_path: Path, refused: str) -> None:
    with pytest.raises(ConfigurationError, match="not for memory"):
        layout.roots({}, profiles=tmp_path / refused, shared=tmp_path, workspace=None)
    with pytest.raises(ConfigurationError, match="not for memory"):
        layout.roots({}, profiles=tmp_path, shared=tmp_path / refused, workspace=None)


def test_a_wrong_place_is_refused_by_whichever_name(tmp_path: Path) -> None:
    wrong = tmp_path / ".openclaw" / "profiles"
    wrong.mkdir(parents=True)
    (tmp_path / "harmless").symlink_to(wrong)
    (tmp_path / ".ocplatform").mkdir()
    (tmp_path / ".ocplatform" / "workspace").symlink_to(tmp_path)
    for given in (tmp_path / "harmless", tmp_path / ".ocplatform" / "workspace"):
        with pytest.raises(ConfigurationError, match="not for memory"):
            layout.roots({}, profiles=given, shared=tmp_path, workspace=None)


@pytest.mark.parametrize("given", ["~nobody-of-this-name/x", "loop"])
def test_a_root_that_is_no_path_is_said_so(tmp_path: Path, given: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    path = Path(given) if given.startswith("~") else tmp_path / given
    with pytest.raises(ConfigurationError, match="swarm_profiles"):
        layout.roots({}, profiles=path, shared=tmp_path, workspace=None)


def test_no_two_things_share_a_file() -> None:
    assert layout.latest_file("a") != layout.latest_file("a-latest")
    places = [layout.memory("a"), layout.missions("a"), layout.mission("a", "m"), layout.episodes("a")]
    places += [layout.handoffs("a"), layout.shared(), layout.shared_handoffs()]
    assert len(set(places)) == len(places)
