"""The search over the swarm's files: what it covers, how it ranks, and that it follows the files."""

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from storage.swarm import layout
from storage.swarm.layout import Folder, Roots
from storage.swarm.records import SwarmHit
from storage.swarm.search.excerpts import PHRASE_WORDS_MAX, SNIPPET_CHARS_MAX
from storage.swarm.search.searched import PIECE_BYTES, read, walk
from storage.swarm.search.searching import LOOKED_S_MAX, SwarmSearch
from tests.storage.conftest import Clock

NOW_S = 1_780_000_000
SOL = "profiles/sol/memory"
MIRA = "profiles/mira/memory"
FLEET = ("sol", "mira")

Write = Callable[..., Path]


class Asking:
    """A search, and questions to it with what most tests mean."""

    def __init__(self, searching: SwarmSearch) -> None:
        self.searching = searching

    def __call__(self, query: str, **given: Any) -> list[SwarmHit]:
        asked = {"workers": None, "private": None, "shared": True, "limit": 10, **given}
        return list(self.searching.search(query, **asked).results)

    def names(self, query: str, **given: Any) -> list[str]:
        """The names of the files found, the best first."""
        return [Path(hit.path).name for hit in self(query, **given)]


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """Two roots that do not exist yet."""
    return Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared")


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """Where the cache file lies."""
    return tmp_path / "cache" / "swarm.db"


@pytest.fixture
def ask(roots: Roots, index: Path, clock: Clock) -> Iterator[Asking]:
    """The search; its clock stands still."""
    searching = SwarmSearch(roots, index, clock=clock)
    yield Asking(searching)
    searching.close()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file, `age_s` old."""

    def write_file(path: str, content: str | bytes, age_s: int = 0) -> Path:
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(file, (NOW_S - age_s, NOW_S - age_s))
        return file

    return write_file


# --- what is searched ---


COVERED = [
    f"{SOL}/MEMORY.md",
    f"{SOL}/own-notes.md",
    f"{SOL}/episodes/2026-05-01.md",
    f"{SOL}/handoffs/m-1.md",
    f"{SOL}/notes/plan.md",
    f"{SOL}/notes/1/2/3/4/5/6/7/8/Deep plan.md",
    f"{SOL}/missions/m-1/SUMMARY.md",
    f"{SOL}/missions/m-1/events.jsonl",
    f"{SOL}/missions/m-1/handoff.md",
    f"{SOL}/missions/m-1/SUMMARY.conflict-1.md",
    "shared/swarm/notes.md",
    "shared/swarm/missions/m-1/SUMMARY.md",
    "shared/swarm/missions/m-1/sol/SUMMARY.md",
    "shared/handoffs/swarm/sol-latest.md",
]
NOT_COVERED = [
    "profiles/MEMORY.md",
    "profiles/sol/MEMORY.md",
    "profiles/sol/state.db",
    "profiles/sol/runtime.json",
    "profiles/sol/other/notes.md",
    f"{SOL}/notes.txt",
    f"{SOL}/other/notes.md",
    f"{SOL}/.solos-12-1-MEMORY.md",
    f"{SOL}/MEMORY.md.conflict-1",
    f"{SOL}/episodes/2026/05.md",
    f"{SOL}/handoffs/old/m-1.md",
    f"{SOL}/missions/SUMMARY.md",
    f"{SOL}/notes/plan.txt",
    f"{SOL}/notes/plan.json",
    f"{SOL}/notes/1/2/3/4/5/6/7/8/9/plan.md",
    f"{SOL}/missions/m-1/deeper/notes.md",
    f"{SOL}/missions/M 1/SUMMARY.md",
    "profiles/Sol!/memory/MEMORY.md",
    "shared/MEMORY.md",
    "shared/2026-05-01.md",
    "shared/handoffs/notes.md",
    "shared/handoffs/swarm/deeper/notes.md",
    "shared/swarm/notes.json",
]


def test_the_spec_s_files_are_searched_and_no_others(ask: Asking, write: Write, tmp_path: Path) -> None:
    for path in [*COVERED, *NOT_COVERED]:
        write(path, "zebra\n")
    found = ask("zebra", limit=50)
    assert sorted(hit.path for hit in found) == sorted(str(tmp_path / path) for path in COVERED)
    assert {hit.workerId for hit in found if "/profiles/" in hit.path} == {"sol"}


@pytest.mark.parametrize(
    ("path", "worker", "mission"),
    [
        (f"{SOL}/MEMORY.md", "sol", None),
        (f"{SOL}/episodes/2026-05-01.md", "sol", None),
        (f"{SOL}/notes/missions/m-1/plan.md", "sol", None),
        (f"{SOL}/missions/m-1/SUMMARY.md", "sol", "m-1"),
        (f"{SOL}/missions/m-1/events.jsonl", "sol", "m-1"),
        (f"{SOL}/handoffs/m-1:a.b.md", "sol", "m-1:a.b"),
        (f"{SOL}/handoffs/An old one.md", "sol", None),
        ("shared/swarm/notes.md", None, None),
        ("shared/swarm/missions/notes.md", None, None),
        ("shared/swarm/missions/m-1/manifest.md", None, "m-1"),
        ("shared/swarm/missions/m-1/mira/SUMMARY.md", "mira", "m-1"),
        ("shared/swarm/missions/m-1/mira/handoffs/m-1.md", "mira", "m-1"),
        ("shared/swarm/missions/M 1/mira/SUMMARY.md", None, None),
        ("shared/swarm/missions/m-1/Mira!/SUMMARY.md", None, "m-1"),
        ("shared/swarm/other/m-1/mira/SUMMARY.md", None, None),
        ("shared/handoffs/swarm/mira-2-latest.md", "mira-2", None),
        ("shared/handoffs/swarm/Mira-latest.md", None, None),
        ("shared/handoffs/swarm/readme.md", None, None),
    ],
)
def test_a_result_says_whose_it_is_and_of_which_mission(
    ask: Asking, write: Write, path: str, worker: str | None, mission: str | None
) -> None:
    write(path, "zebra\n")
    (hit,) = ask("zebra")
    assert (hit.workerId, hit.missionId) == (worker, mission)


def test_nothing_is_made_below_the_roots(ask: Asking, roots: Roots) -> None:
    assert ask("zebra") == []
    assert not roots.profiles.exists()
    assert not roots.shared.exists()


def test_links_lead_nowhere(ask: Asking, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = write("outside/secret.md", "zebra\n").parent
    write("outside/memory/MEMORY.md", "zebra\n")
    write("outside/m-9/SUMMARY.md", "zebra\n")
    for path in (f"{SOL}/missions", f"{SOL}/episodes", "profiles", "shared/swarm"):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
    (tmp_path / SOL / "MEMORY.md").symlink_to(outside / "secret.md")
    (tmp_path / SOL / "episodes" / "2026-05-01.md").symlink_to(outside / "secret.md")
    (tmp_path / SOL / "handoffs").symlink_to(outside)
    (tmp_path / SOL / "missions" / "m-9").symlink_to(outside / "m-9")
    (tmp_path / "profiles" / "eve").symlink_to(outside)
    (tmp_path / "shared" / "swarm" / "linked").symlink_to(outside)
    (tmp_path / "shared" / "handoffs").symlink_to(outside)
    (tmp_path / SOL / "SOUL.md").hardlink_to(outside / "secret.md")
    os.mkfifo(tmp_path / SOL / "IDENTITY.md")
    (tmp_path / SOL / "folder.md").mkdir()
    write(f"{SOL}/own.md", "zebra\n")
    assert ask.names("zebra") == ["own.md"]
    with socket.socket(socket.AF_UNIX) as bound:
        monkeypatch.chdir(tmp_path / SOL)  # the path of a socket is short
        bound.bind("socket.md")
        assert ask.names("zebra", fresh=True) == ["own.md"]


def test_a_folder_swapped_for_a_link_is_not_read_through(ask: Asking, write: Write, tmp_path: Path) -> None:
    write(f"{SOL}/episodes/2026-05-01.md", "zebra\n")
    assert len(ask("zebra")) == 1
    (tmp_path / SOL / "episodes").rename(tmp_path / "elsewhere")
    (tmp_path / SOL / "episodes").symlink_to(tmp_path / "elsewhere")
    assert ask("zebra") == []
    assert ask("zebra", fresh=True) == []


def test_roots_may_be_links(write: Write, tmp_path: Path, index: Path) -> None:
    write("real/sol/memory/MEMORY.md", "zebra\n")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    searching = SwarmSearch(Roots(profiles=(tmp_path / "link").resolve(), shared=tmp_path / "shared"), index)
    assert Asking(searching).names("zebra") == ["MEMORY.md"]
    searching.close()


def test_a_profile_and_episodes_are_hidden_from_others(ask: Asking, write: Write) -> None:
    for worker, root in (("sol", SOL), ("mira", MIRA)):
        write(f"{root}/MEMORY.md", f"zebra {worker}\n")
        write(f"{root}/episodes/2026-05-01.md", f"zebra {worker}\n")
        write(f"{root}/notes/deep/{worker}s.md", f"zebra {worker}\n")
        write(f"{root}/handoffs/m-{worker}.md", f"zebra {worker}\n")
        write(f"{root}/missions/m-{worker}/SUMMARY.md", f"zebra {worker}\n")
    write("shared/swarm/notes.md", "zebra\n")

    def found(**given: Any) -> set[str]:
        return {f"{hit.workerId}/{Path(hit.path).name}" for hit in ask("zebra", limit=50, **given)}

    sols_own = {"sol/MEMORY.md", "sol/2026-05-01.md", "sol/sols.md"}
    sols = {"sol/m-sol.md", "sol/SUMMARY.md"}
    miras = {"mira/m-mira.md", "mira/SUMMARY.md"}
    shared = {"None/notes.md"}
    assert found(workers=["sol"], private=["sol"], shared=False) == sols | sols_own
    assert found(workers=["sol"], private=[], shared=False) == sols
    assert found(workers=None, private=["sol"], shared=True) == sols | sols_own | miras | shared
    assert found(workers=[], private=[], shared=True) == shared
    assert found(workers=[], private=[], shared=False) == set()
    assert found(workers=["nobody"], private=["nobody"], shared=False) == set()
    assert len(found()) == 11


def test_a_scope_does_not_depend_on_how_many_workers_there_are(ask: Asking, write: Write) -> None:
    """With few of them the index is asked for their files only, with many it is asked for all."""
    workers = [f"swarm{number}" for number in range(12)]
    for worker in workers:
        write(f"profiles/{worker}/memory/MEMORY.md", "zebra\n")
        write(f"profiles/{worker}/memory/handoffs/m.md", "zebra\n")
    few, many = workers[:2], workers[:11]
    assert {hit.workerId for hit in ask("zebra", workers=[], private=few, limit=50)} == set(few)
    assert {hit.workerId for hit in ask("zebra", workers=[], private=many, limit=50)} == set(many)


def test_it_says_how_many_files_were_covered(ask: Asking, write: Write) -> None:
    write(f"{SOL}/MEMORY.md", "zebra\n")
    write(f"{SOL}/handoffs/m.md", "okapi\n")
    write("shared/swarm/notes.md", "okapi\n")
    searched = ask.searching.search("zebra", workers=None, private=[], shared=True, limit=10)
    assert (searched.results, searched.scanned) == ((), 2)
    assert ask.searching.search("???", workers=None, private=None, shared=True, limit=10).scanned == 3


def test_a_result_says_when_its_file_was_written(ask: Asking, write: Write) -> None:
    file = write(f"{SOL}/it.md", "zebra\n")
    os.utime(file, ns=(0, NOW_S * 1_000_000_000 + 123_999_999))
    assert ask("zebra")[0].updatedAt == "2026-05-28T20:26:40.123Z"


@pytest.mark.parametrize("age_s", [NOW_S + 1_880_000_000, -12_000_000_000], ids=["1910", "2406"])
def test_a_time_far_away_is_a_time(ask: Asking, write: Write, age_s: int) -> None:
    """One of 2262 and later does not fit into 64 bits of nanoseconds."""
    file = write(f"{SOL}/it.md", "zebra\n", age_s=age_s)
    write(f"{SOL}/other.md", "okapi\n")
    (hit,) = ask("zebra")
    assert hit.updatedAt == datetime.fromtimestamp(file.stat().st_mtime, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    assert ask.names("okapi") == ["other.md"]


def test_a_result_says_what_share_of_the_words_its_file_holds(ask: Asking, write: Write) -> None:
    write(f"{SOL}/phrase.md", "zebra okapi quagga tapir\n")
    write(f"{SOL}/all.md", "okapis\ntapirs\nthe zebra and a quagga\n")
    write(f"{SOL}/three.md", "tapir\n" + "filler line\n" * 20_000 + "okapi zebra\n")
    write(f"{SOL}/one.md", "one zebra\n")
    found = ask("The zebra, okapi, quagga and tapir?")
    assert {Path(hit.path).stem: hit.matched for hit in found} == {"phrase": 1, "all": 1, "three": 0.75, "one": 0.25}


# --- from when to when ---


def test_only_files_of_a_window_are_searched(ask: Asking, write: Write) -> None:
    for age_s in (100, 200, 300, 400):
        write(f"{SOL}/age-{age_s}.md", "zebra\n", age_s=age_s)

    def ages(**given: float) -> list[str]:
        return [name.removeprefix("age-").removesuffix(".md") for name in ask.names("zebra", **given)]

    assert ages(since_s=NOW_S - 200) == ["100", "200"]
    assert ages(until_s=NOW_S - 300) == ["300", "400"]
    assert ages(since_s=NOW_S - 300, until_s=NOW_S - 200) == ["200", "300"]
    assert ages(since_s=NOW_S - 299.999, until_s=NOW_S - 200.001) == []
    assert ages(since_s=NOW_S - 200, until_s=NOW_S - 300) == []
    assert ages(since_s=float("-inf"), until_s=float("inf")) == ["100", "200", "300", "400"]
    assert ages(since_s=float("nan")) == []


def test_a_window_s_ends_are_met_to_the_millisecond(ask: Asking, write: Write) -> None:
    """A time as a result shows it leads back to its file."""
    file = write(f"{SOL}/it.md", "zebra\n")
    os.utime(file, ns=(0, NOW_S * 1_000_000_000 + 123_999_999))
    shown_s = NOW_S + 0.123
    assert ask.names("zebra", since_s=shown_s, until_s=shown_s) == ["it.md"]
    assert ask.names("zebra", since_s=shown_s + 0.001) == []
    assert ask.names("zebra", until_s=shown_s - 0.001) == []


def test_a_narrow_window_behind_many_better_files_finds(ask: Asking, write: Write) -> None:
    for number in range(300):
        write(f"{SOL}/new-{number}.md", "gateway relay port\n")
    write(f"{SOL}/old.md", "a relay\n", age_s=90_000)
    asked: dict[str, Any] = {"workers": None, "private": None, "shared": True, "limit": 3, "until_s": NOW_S - 80_000}
    searched = ask.searching.search("gateway relay port", **asked)
    assert [Path(hit.path).name for hit in searched.results] == ["old.md"]
    assert searched.scanned == 1
    assert ask.searching.search("???", **asked).scanned == 1


# --- ranking ---


def test_a_phrase_comes_before_many_words_before_few_before_recency(ask: Asking, write: Write) -> None:
    write(f"{SOL}/phrase.md", "# Notes\n\nThe Gateway listens on  port 8437.\n", age_s=4000)
    write(f"{SOL}/all.md", "port 8437: what listens there is the gateway\n", age_s=3000)
    write(f"{SOL}/two.md", "the gateway listens\n", age_s=2000)
    write(f"{SOL}/one.md", "a gateway\n", age_s=1000)
    write(f"{SOL}/none.md", "nothing of it\n")
    found = ask("gateway listens on port 8437")
    assert [Path(hit.path).name for hit in found] == ["phrase.md", "all.md", "two.md", "one.md"]
    scores = [hit.score for hit in found]
    assert scores[0] > 2
    assert scores[0] > scores[1] > 1 >= scores[2] > scores[3] > 0


def test_the_newer_comes_first_where_all_else_is_equal(ask: Asking, write: Write) -> None:
    for age_s in (300, 100, 400, 200):
        write(f"{SOL}/age-{age_s}.md", "zebra okapi\n", age_s=age_s)
    for query in ("zebra okapi", "okapi zebra", "zebra quagga"):
        found = ask(query)
        assert [Path(hit.path).stem for hit in found] == ["age-100", "age-200", "age-300", "age-400"]
        assert all(better.score > worse.score for better, worse in pairwise(found))


def test_scores_fall_strictly_though_files_are_of_one_instant(ask: Asking, write: Write) -> None:
    for number in range(20):
        write(f"{SOL}/same-{number}.md", "zebra\n")
    scores = [hit.score for hit in ask("zebra", limit=20)]
    assert len(set(scores)) == 20
    assert scores == sorted(scores, reverse=True)


def test_a_query_longer_than_a_phrase_is_found_by_its_words(ask: Asking, write: Write) -> None:
    words = "zebra " * PHRASE_WORDS_MAX
    write(f"{SOL}/long.md", words + "okapi\n")
    (within,) = ask(words.strip())
    (beyond,) = ask(words + "okapi")
    assert within.score > 2 > beyond.score


def test_a_phrase_that_only_looks_alike_is_none(ask: Asking, write: Write) -> None:
    write(f"{SOL}/stems.md", "gateways listened\n")
    write(f"{SOL}/exact.md", "gateway listens\n", age_s=9000)
    write(f"{SOL}/part.md", "subgateway listensx gateway, listens\n")
    found = ask("gateway listens")
    assert Path(found[0].path).name == "exact.md"
    assert [hit.score > 2 for hit in found] == [True, False, False]


def test_a_phrase_may_run_over_a_line_s_end(ask: Asking, write: Write) -> None:
    write(f"{SOL}/wrapped.md", "First line.\nThe relay moved\n  to lab two today.\n")
    (hit,) = ask("relay moved to lab")
    assert hit.score > 2
    assert hit.line == 2


def test_a_phrase_at_the_edge_of_a_path_or_an_address_is_found(ask: Asking, write: Write) -> None:
    write(f"{SOL}/paths.md", "see /var/lib/solos now, on 10.0.3.17:8437 there\n")
    for query in ("lib/solos now", "see /var/lib", "10.0.3.17:8437 there", "solos now, on"):
        assert ask(query)[0].score > 2, query


def test_the_oldest_file_with_the_phrase_is_found_among_many_with_the_words(ask: Asking, write: Write) -> None:
    """Only some files are read for an answer; the index must tell which of them hold the phrase."""
    for number in range(300):
        write(f"{SOL}/scattered-{number}.md", "port and relay and gateway\n")
    write(f"{SOL}/phrase.md", "the gateway relay port\n", age_s=90_000)
    found = ask("gateway relay port", limit=3)
    assert Path(found[0].path).name == "phrase.md"
    assert len(found) == 3


def test_one_result_of_a_file_and_no_more_than_the_limit(ask: Asking, write: Write) -> None:
    for number in range(8):
        write(f"{SOL}/{number}.md", "zebra\n" * 50)
    assert len(ask("zebra", limit=3)) == 3
    assert len(set(ask.names("zebra", limit=50))) == 8


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("这个数据库很好用", "数据库"),
        ("끝말잇기를 하자", "끝말잇기"),
        ("しりとりをする", "しりとり"),
        ("call getAgentInfo first", "getagentinfo"),
        ("call getAgentInfo first", "agent info"),
        ("set snake_case_var here", "snake_case_var"),
        ("version v2.0.31 is out", "v2.0.31"),
        ("I write C++ and C#", "C++"),
        ("München ist schön", "munchen"),
        ("we were connecting it", "connected"),
        ("don\u2019t touch it", "don't touch"),
        ("it is not to be", "not to be"),
        ("ｆｕｌｌ width", "full width"),
    ],
)
def test_the_analysis_is_recall_s(ask: Asking, write: Write, text: str, query: str) -> None:
    write(f"{SOL}/it.md", f"# Title\n\nanother line\n{text}\nlast line\n")
    write(f"{SOL}/other.md", "# Title\n\nanother line\n")
    (hit,) = ask(query)
    assert (Path(hit.path).name, hit.line) == ("it.md", 4)
    assert text.strip() in hit.snippet


def test_a_cjk_phrase_comes_before_its_parts(ask: Asking, write: Write) -> None:
    write(f"{SOL}/parts.md", "数据很多，据库没有\n")
    write(f"{SOL}/phrase.md", "旧的数据库\n", age_s=9000)
    assert ask.names("数据库") == ["phrase.md", "parts.md"]


def test_stop_words_find_long_texts_too(ask: Asking, write: Write) -> None:
    write(f"{SOL}/long.md", "zebra okapi quagga\n" * 100 + "to be, or not to be\n")
    assert ask("or not to be")[0].line == 101


@pytest.mark.parametrize("query", ["???", "", "  ", "— … «»", "🙂", "\x00"])
def test_a_query_without_words_has_no_results(ask: Asking, write: Write, query: str) -> None:
    write(f"{SOL}/it.md", "??? — … «» 🙂 zebra\n")
    assert ask(query) == []


@pytest.mark.parametrize(
    "query",
    ['"zebra', "zebra AND", "zebra*", "NEAR(zebra)", "terms:zebra", "zebra ((", "-zebra", "\\zebra[", "zebra\ud800"],
)
def test_a_query_is_no_syntax(ask: Asking, write: Write, query: str) -> None:
    write(f"{SOL}/it.md", "a zebra in terms\n")
    assert ask.names(query) == ["it.md"]


def test_a_query_of_the_greatest_length_is_answered(ask: Asking, write: Write) -> None:
    write(f"{SOL}/it.md", "a word7 zebra\n")
    query = " ".join(f"word{number}" for number in range(4000))
    assert ask.names(query[:32_768]) == ["it.md"]


# --- lines and snippets ---


def test_the_line_with_most_of_the_words_is_shown(ask: Asking, write: Write) -> None:
    write(f"{SOL}/it.md", "the gateway\nport and\nthe gateways have a port open\ngateway\n")
    (hit,) = ask("port gateway")
    assert hit.line == 3
    assert hit.snippet.startswith("the gateways have a port open")


def test_a_short_line_is_shown_with_its_neighbour(ask: Asking, write: Write) -> None:
    write(f"{SOL}/it.md", "## Zebra\n\nstripes\nlast okapi")
    assert ask("okapi")[0].snippet == "stripes\nlast okapi"
    assert ask("stripes")[0].snippet == "stripes\nlast okapi"


def test_a_long_line_is_cut_around_its_hit(ask: Asking, write: Write) -> None:
    write(f"{SOL}/it.md", "alpha " * 500 + "zebra " + "omega " * 500)
    (hit,) = ask("zebra")
    assert "alpha zebra omega" in hit.snippet
    assert len(hit.snippet) <= SNIPPET_CHARS_MAX
    assert hit.snippet.startswith("\u2026")
    assert hit.snippet.endswith("\u2026")


def test_a_line_far_down_a_large_file_is_numbered_rightly(ask: Asking, write: Write) -> None:
    lines = [f"line {number} of many" for number in range(1, 12_001)]
    lines[11_000] = "here is the zebra"
    content = "\n".join(lines)
    assert len(content) > 3 * PIECE_BYTES
    write(f"{SOL}/large.md", content)
    (hit,) = ask("the zebra")
    assert (hit.line, hit.score > 2) == (11_001, True)


def test_words_far_apart_in_a_large_file_count_together(ask: Asking, write: Write) -> None:
    write(f"{SOL}/large.md", "zebra\n" + "filler line\n" * 20_000 + "okapi\n", age_s=9000)
    write(f"{SOL}/small.md", "zebra\n")
    assert ask.names("zebra okapi") == ["large.md", "small.md"]


def test_events_are_searched_by_what_their_json_says(ask: Asking, write: Write) -> None:
    event = {"type": "note", "summary": "moved", "content": 'first\nsecond \u6570\u636e\u5e93 "zebra" C:\\okapi'}
    for ascii_only in (True, False):
        write(f"{SOL}/missions/m-1/events.jsonl", '{"type":"note"}\n' + json.dumps(event, ensure_ascii=ascii_only))
        for query in ("second", "数据库", "zebra", "okapi", "first second"):
            (hit,) = ask(query, fresh=True)
            assert (hit.line, hit.score > 2) == (2, True), query
        assert ask("nsecond") == []


HOSTILE = {
    "binary": bytes(range(256)) * 40,
    "NULs": b"ze\x00bra\x00\x00 \x00zebra\x00\n" * 10,
    "a line of 1 MB": b"x" * 500_000 + b" zebra " + b"y" * 500_000,
    "1 MB without a space": b"z" * 1_000_000,
    "invalid UTF-8": b"\xff\xfe zebra \xc3\x28 \xed\xa0\x80\n",
    "UTF-16": "zebra".encode("utf-16"),
    "carriage returns": b"a\rzebra\r\n\r\nb",
    "JSON bombs": b"[" * 50_000 + b"zebra\n",
    "bad escapes": b'{"a":"\\ud800\\uD83D\\uDE00 \\u00zz \\x zebra \\',
    "facets": b"\x01shared \x01private:sol zebra\n",
    "empty": b"",
    "only newlines": b"\n" * 100_000,
    "combining marks": ("a" + "\u0301" * 5_000 + " zebra\n").encode(),
    "control characters": b"zebra \x1b[31m red \x07\x08\x7f\n",
    "FTS5 syntax": b'" OR * NEAR( zebra AND\n',
}


@pytest.mark.parametrize("name", ["hostile.md", "missions/m-1/events.jsonl"])
@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_hostile_contents_do_no_harm(ask: Asking, write: Write, content: bytes, name: str) -> None:
    write(f"{SOL}/{name}", content)
    write(f"{SOL}/good.md", "the good zebra\n", age_s=9000)
    found = ask("good zebra")
    assert Path(found[0].path).name == "good.md"
    for hit in [*found, *ask("zebra"), *ask("shared private sol")]:
        assert len(hit.snippet) <= SNIPPET_CHARS_MAX
        assert hit.line >= 1
        assert not any(ord(char) < 32 and char not in "\t\n" for char in hit.snippet)
        json.dumps(hit.snippet).encode()
        hit.snippet.encode()


def test_a_file_name_that_is_no_utf_8_is_passed_over(ask: Asking, write: Write, tmp_path: Path) -> None:
    write(f"{SOL}/good.md", "zebra\n")
    for name in (b"\xff.md", b"new\nline.md", b"quote'\".md"):
        Path(os.fsdecode(os.fsencode(tmp_path / SOL) + b"/" + name)).write_text("zebra\n")
    (tmp_path / "shared" / "swarm").mkdir(parents=True)
    Path(os.fsdecode(os.fsencode(tmp_path / "shared/swarm") + b"/\xfe")).mkdir()
    assert sorted(ask.names("zebra")) == ["good.md", "new\nline.md", "quote'\".md"]


# --- following the files ---


def test_a_hand_edit_is_seen_at_once_where_fresh(ask: Asking, write: Write) -> None:
    file = write(f"{SOL}/it.md", "zebra\n")
    assert ask.names("zebra") == ["it.md"]
    write(f"{SOL}/new.md", "zebra okapi\n")
    assert ask.names("okapi") == []
    assert ask.names("okapi", fresh=True) == ["new.md"]
    file.write_text("okapi\n")
    assert sorted(ask.names("okapi", fresh=True)) == ["it.md", "new.md"]
    file.unlink()
    assert ask.names("okapi", fresh=True) == ["new.md"]


def test_a_hand_edit_is_seen_after_the_time(ask: Asking, write: Write, clock: Clock) -> None:
    assert ask.names("zebra") == []
    write(f"{SOL}/it.md", "zebra\n")
    clock.now_s += LOOKED_S_MAX - 0.1
    assert ask.names("zebra") == []
    clock.now_s += 0.2
    assert ask.names("zebra") == ["it.md"]


def test_a_clock_that_is_set_back_does_not_hide_edits(ask: Asking, write: Write, clock: Clock) -> None:
    assert ask.names("zebra") == []
    write(f"{SOL}/it.md", "zebra\n")
    clock.now_s -= 3600
    assert ask.names("zebra") == ["it.md"]


def test_what_was_touched_is_seen_at_once(ask: Asking, write: Write) -> None:
    assert ask.names("zebra") == []
    write(f"{SOL}/missions/m-1/SUMMARY.md", "zebra\n")
    write(f"{SOL}/MEMORY.md", "zebra\n")
    ask.searching.touch(layout.mission("sol", "m-1"), "SUMMARY.md")
    assert ask.names("zebra") == ["SUMMARY.md"]
    (Path(ask("zebra")[0].path)).unlink()
    ask.searching.touch(layout.mission("sol", "m-1"), "SUMMARY.md")
    assert ask.names("zebra") == []


def test_a_touch_of_anything_else_is_nothing(ask: Asking, write: Write) -> None:
    write("profiles/sol/notes.md", "zebra\n")
    write(f"{SOL}/.solos-1-1-MEMORY.md", "zebra\n")
    write("outside/x.md", "zebra\n")
    ask("zebra")
    ask.searching.touch(Folder("profiles", ("sol",)), "notes.md")
    ask.searching.touch(layout.memory("sol"), ".solos-1-1-MEMORY.md")
    ask.searching.touch(layout.memory("sol"), "../notes.md")
    ask.searching.touch(Folder("shared", ("swarm", "..", "..", "outside")), "x.md")
    assert ask.names("zebra") == []


def test_many_touches_lead_to_a_look_at_all(ask: Asking, write: Write) -> None:
    assert ask.names("zebra") == []
    write(f"{SOL}/last.md", "zebra\n")
    for number in range(1_001):
        ask.searching.touch(layout.memory("sol"), f"{number}.md")
    assert ask.names("zebra") == ["last.md"]


def test_refresh_sees_what_changed(ask: Asking, write: Write) -> None:
    assert ask.names("zebra") == []
    write(f"{SOL}/it.md", "zebra\n")
    ask.searching.refresh()
    assert ask.names("zebra") == ["it.md"]


def test_results_are_as_the_files_are_though_nothing_was_looked_at(ask: Asking, write: Write) -> None:
    """A file that shrank, vanished or was replaced since the last look."""
    shrunk = write(f"{SOL}/shrunk.md", "some line\n" * 9000 + "zebra\n")
    gone = write(f"{SOL}/gone.md", "zebra\n")
    replaced = write(f"{SOL}/replaced.md", "one line\nthe zebra\n")
    write(f"{SOL}/other.md", "one line\nmore\nmore\na zebra here\n").rename(gone.parent / "other.tmp")
    assert len(ask("zebra")) == 3
    os.truncate(shrunk, 20)
    gone.unlink()
    (gone.parent / "other.tmp").rename(replaced)
    (hit,) = ask("zebra")
    assert (Path(hit.path).name, hit.line) == ("replaced.md", 4)
    assert "a zebra here" in hit.snippet


def test_an_edit_that_restores_size_and_time_is_seen(ask: Asking, write: Write) -> None:
    file = write(f"{SOL}/it.md", "zebra\n")
    assert ask.names("zebra") == ["it.md"]
    file.write_text("okapi\n")
    os.utime(file, (NOW_S, NOW_S))
    assert ask.names("okapi", fresh=True) == ["it.md"]
    assert ask.names("zebra") == []


def test_a_log_that_grows_is_followed_line_by_line(ask: Asking, write: Write) -> None:
    file = write(f"{SOL}/missions/m-1/events.jsonl", "")
    with file.open("a", encoding="utf-8") as log:
        for number in range(40):
            log.write(f'{{"summary":"event{number} happened", "content":"{"x" * 5000}"}}\n')
            log.flush()
            ask.searching.touch(layout.mission("sol", "m-1"), "events.jsonl")
            (hit,) = ask(f"event{number} happened")
            assert (hit.line, hit.score > 2) == (number + 1, True)
    assert ask("event3 happened")[0].line == 4


def test_an_edit_in_the_middle_of_a_large_file_is_seen(ask: Asking, write: Write) -> None:
    lines = [f"line {number} of a large file" for number in range(10_000)]
    file = write(f"{SOL}/large.md", "\n".join(lines))
    assert ask("zebra") == []
    lines[5000] = "zebra"
    file.write_text("\n".join(lines))
    assert ask("zebra", fresh=True)[0].line == 5001
    assert ask("9999")[0].line == 10_000
    assert ask("5000") == []


def test_threads_share_one_search(ask: Asking, write: Write) -> None:
    """Two that write, touch and search, and one that refreshes: the next search finds each touched file."""
    missed: list[str] = []

    def work(worker: str) -> None:
        for number in range(30):
            word = f"{worker}word{number}"
            write(f"profiles/{worker}/memory/missions/m-{number}/SUMMARY.md", f"{word}\n")
            ask.searching.touch(layout.mission(worker, f"m-{number}"), "SUMMARY.md")
            if ask.names(word) != ["SUMMARY.md"]:
                missed.append(word)

    def look() -> None:
        for _ in range(30):
            ask.searching.refresh()

    threads = [threading.Thread(target=work, args=(worker,)) for worker in FLEET]
    threads.append(threading.Thread(target=look))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert missed == []
    assert len(ask("summary " + " ".join(f"solword{number}" for number in range(30)), limit=50)) == 30


# --- the cache file ---


def test_the_index_outlives_a_restart(ask: Asking, write: Write, roots: Roots, index: Path, clock: Clock) -> None:
    write(f"{SOL}/kept.md", "zebra\n")
    write(f"{SOL}/large.md", "okapi\n" * 40_000)
    gone = write(f"{SOL}/gone.md", "zebra\n")
    edited = write(f"{SOL}/edited.md", "zebra\n")
    assert len(ask("zebra")) == 3
    known = dict(ask.searching._index.entries)
    ask.searching.close()
    gone.unlink()
    edited.write_text("quagga\n")
    again = SwarmSearch(roots, index, clock=clock)
    loaded = again._index.entries
    assert {place: entry.rows for place, entry in loaded.items()} == {place: known[place].rows for place in known}
    assert Asking(again).names("zebra") == ["kept.md"]
    assert Asking(again).names("quagga") == ["edited.md"]
    assert Asking(again)("okapi")[0].line == 1
    again.close()


@pytest.mark.parametrize("damage", [b"", b"no database at all" * 100, b"SQLite format 3\x00" + b"\xa5" * 5000])
def test_a_damaged_index_is_made_anew(write: Write, roots: Roots, index: Path, clock: Clock, damage: bytes) -> None:
    write(f"{SOL}/it.md", "zebra\n")
    index.parent.mkdir(parents=True)
    index.write_bytes(damage)
    searching = SwarmSearch(roots, index, clock=clock)
    assert Asking(searching).names("zebra") == ["it.md"]
    searching.close()
    assert index.stat().st_size > 0
    again = SwarmSearch(roots, index, clock=clock)
    assert len(again._index.entries) == 1
    again.close()


def test_an_index_damaged_in_its_middle_gives_no_wrong_answer(
    write: Write, roots: Roots, index: Path, clock: Clock
) -> None:
    for number in range(200):
        write(f"{SOL}/{number}.md", f"zebra number{number} " + " ".join(f"w{number}x{word}" for word in range(50)))
    searching = SwarmSearch(roots, index, clock=clock)
    searching.refresh()
    searching.close()
    whole = index.read_bytes()
    assert len(whole) > 20 * 4096
    for start in range(4096, len(whole), 4096 * 3):
        for suffix in ("-wal", "-shm"):
            index.with_name(index.name + suffix).unlink(missing_ok=True)
        index.write_bytes(whole[:start] + os.urandom(4096) + whole[start + 4096 :])
        damaged = SwarmSearch(roots, index, clock=clock)
        found = Asking(damaged)("zebra number7", limit=50)
        assert Path(found[0].path).name == "7.md"
        assert len(found) == 50
        damaged.close()


@pytest.mark.parametrize("how", ["deleted", "emptied", "replaced", "overwritten"])
def test_an_index_that_is_lost_while_it_is_open_is_made_anew(ask: Asking, write: Write, index: Path, how: str) -> None:
    write(f"{SOL}/it.md", "zebra\n")
    assert ask.names("zebra") == ["it.md"]
    match how:
        case "deleted":
            for suffix in ("", "-wal", "-shm"):
                index.with_name(index.name + suffix).unlink(missing_ok=True)
        case "emptied":
            os.truncate(index, 0)
        case "replaced":
            index.with_name("other").write_bytes(b"something else")
            index.with_name("other").replace(index)
        case "overwritten":
            with index.open("r+b") as file:
                file.write(b"\xa5" * 40_000)
    assert ask.names("zebra") == ["it.md"]
    write(f"{SOL}/new.md", "okapi\n")
    assert ask.names("okapi", fresh=True) == ["new.md"]
    assert ask.names("zebra") == ["it.md"]
    assert index.exists()


def test_an_index_of_another_format_is_made_anew(ask: Asking, write: Write, roots: Roots, index: Path) -> None:
    write(f"{SOL}/it.md", "zebra\n")
    ask("zebra")
    ask.searching._index._db.execute("UPDATE meta SET format = format + 1")
    ask.searching.close()
    again = SwarmSearch(roots, index)
    assert again._index.entries == {}
    assert Asking(again).names("zebra") == ["it.md"]
    again.close()


def test_two_at_once_do_not_share_a_cache_file(ask: Asking, write: Write, roots: Roots, index: Path) -> None:
    """The second keeps its index in memory."""
    write(f"{SOL}/it.md", "zebra\n")
    assert ask.names("zebra") == ["it.md"]
    second = SwarmSearch(roots, index)
    assert Asking(second).names("zebra") == ["it.md"]
    second.close()
    write(f"{SOL}/new.md", "zebra\n")
    assert sorted(ask.names("zebra", fresh=True)) == ["it.md", "new.md"]
    assert index.exists()


def test_a_cache_file_that_cannot_be_made_is_no_error(write: Write, roots: Roots, tmp_path: Path) -> None:
    write(f"{SOL}/it.md", "zebra\n")
    (tmp_path / "file").write_text("not a folder")
    searching = SwarmSearch(roots, tmp_path / "file" / "index.db")
    assert Asking(searching).names("zebra") == ["it.md"]
    searching.close()


def test_closing_twice_is_once(ask: Asking) -> None:
    ask.searching.close()
    ask.searching.close()
    ask.searching.refresh()


def test_it_is_in_use_for_a_minute_after_a_search(ask: Asking, clock: Clock) -> None:
    assert not ask.searching.in_use
    ask("zebra")
    clock.now_s += 59
    assert ask.searching.in_use
    clock.now_s += 2
    assert not ask.searching.in_use


def test_a_walk_finds_what_a_search_covers(write: Write, roots: Roots) -> None:
    for path in [*COVERED, *NOT_COVERED]:
        write(path, "zebra\n")
    shown = {f"{place.folder.root}/{'/'.join(place.folder.parts)}/{place.name}" for place in walk(roots)}
    assert shown == set(COVERED)


def test_a_file_with_all_of_many_common_words_is_found_first(
    ask: Asking, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many words a question has, each of them is counted in as many files as are usual."""
    monkeypatch.setattr("storage.swarm.search.searching.POSTINGS_MAX", 60)
    words = [f"common{number}" for number in range(30)]
    for number in range(60):
        some = [word for at, word in enumerate(words) if (at + number) % 3]
        write(f"{SOL}/episodes/{number}.md", " ".join(some), age_s=number)
    write(f"{SOL}/episodes/whole.md", " ".join(reversed(words)), age_s=1_000)
    assert ask.names(" ".join(words))[0] == "whole.md"


# --- an answer that could not wait ---


def behind(ask: Asking, **given: Any) -> tuple[bool, int]:
    """Whether an answer is behind, and how many files it covers."""
    searched = ask.searching.search("gauge", workers=None, private=None, shared=True, limit=1, **given)
    return searched.behind, searched.scanned


def test_an_answer_of_all_files_is_not_behind(ask: Asking, write: Write) -> None:
    write(f"{SOL}/it.md", "gauge")
    assert behind(ask) == (False, 1)
    assert behind(ask, fresh=True) == (False, 1)


def test_an_answer_before_all_files_are_read_is_behind(
    ask: Asking, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until a later one has read the rest: also where nothing else calls for a look at the files."""
    assert behind(ask) == (False, 0)
    for number in range(200):
        write(f"{SOL}/episodes/{number}.md", "gauge")
    monkeypatch.setattr("storage.swarm.search.searching.WAIT_S", 0.0)
    assert behind(ask, fresh=True) == (True, 1)
    assert behind(ask)[0]
    monkeypatch.undo()
    assert behind(ask) == (False, 200)


def test_an_answer_before_touched_files_are_read_is_behind(
    ask: Asking, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert behind(ask) == (False, 0)
    for number in range(100):
        write(f"{SOL}/episodes/{number}.md", "gauge")
        ask.searching.touch(layout.episodes("sol"), f"{number}.md")
    monkeypatch.setattr("storage.swarm.search.searching.WAIT_S", 0.0)
    assert behind(ask) == (True, 1)
    monkeypatch.undo()
    assert behind(ask) == (False, 100)


def test_an_answer_is_behind_while_another_thread_reads(
    ask: Asking, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert behind(ask) == (False, 0)
    reads, go_on = threading.Event(), threading.Event()

    def slow_read(*given: Any) -> Any:
        reads.set()
        assert go_on.wait(30)
        return read(*given)

    write(f"{SOL}/it.md", "gauge")
    monkeypatch.setattr("storage.swarm.search.searching.read", slow_read)
    thread = threading.Thread(target=ask.searching.refresh)
    thread.start()
    assert reads.wait(30)
    assert behind(ask) == (True, 0)
    monkeypatch.setattr("storage.swarm.search.searching.WAIT_S", 0.01)
    assert behind(ask, fresh=True) == (True, 0)
    go_on.set()
    thread.join(30)
    assert behind(ask) == (False, 1)


def test_a_look_at_the_files_ends_soon_when_the_service_ends(ask: Asking, write: Write) -> None:
    for number in range(200):
        write(f"{SOL}/episodes/{number}.md", "gauge")
    ask.searching.stop()
    ask.searching.refresh()
    assert 0 < len(ask.searching._index.entries) < 200
