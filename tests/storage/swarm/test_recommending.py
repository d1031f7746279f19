"""Who is asked for a task: the right worker first, the lines that say why, and what counts for whom."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.swarm import layout
from storage.swarm.layout import Folder, Roots
from storage.swarm.life.recommending import REASONS_MAX, Recommendations
from storage.swarm.life.records import Recommended, RecommendedWorker
from storage.swarm.roster import Roster
from storage.swarm.search.excerpts import SNIPPET_CHARS_MAX
from storage.swarm.search.searched import PIECE_BYTES
from storage.swarm.search.searching import SwarmSearch
from tests.storage.conftest import Clock
from tests.storage.swarm.files import person_writes
from tests.storage.swarm.fleet_of_workers import LESSONS, make_fleet

Write = Callable[[str, str], Path]

TASKS = [
    # the roster alone decides
    (
        "We need a new endpoint that lists all accounts; REST, as the others. Hand over when the checkpoint is done.",
        "ada",
    ),
    ("Add a tenant column in Postgres and migrate the rows that are there. Ask before you delete anything.", "ada"),
    (
        "The settings dialog is unreadable at night: give it a darker mode, and let it respond to narrow windows.",
        "bram",
    ),
    ("Somebody should reproduce this bug and add a regression test.", "cleo"),
    ("Roll back last night's Kubernetes rollout and set up an alert for it.", "dirk"),
    ("Model the new events in the warehouse with dbt.", "elif"),
    ("Audit the repository for leaked credentials and missing permissions.", "finn"),
    ("Please write a tutorial and update the changelog for the new client.", "gwen"),
    ("The importer gets slower each day. Benchmarked against last month it takes twice the memory.", "hugo"),
    ("Three pull requests wait for a second pair of eyes; two of them conflict.", "iris"),
    ("The latest release crashes on some Android phones. Find the cause in the crash reports.", "kai"),
    ("Evaluate the embeddings of the new model after the training run.", "milo"),
    ("Survey the market and analyse our three biggest competitors.", "nora"),
    # a lesson alone decides
    ("Customers are charged twice when Stripe repeats its webhooks.", "ada"),
    ("After the Redis failover all users had to log in again; look into the sessions.", "ada"),
    ("After each deployment people on iPhones report that Safari shows them yesterday's version.", "bram"),
    ("The calendar looks broken for Arabic, in right-to-left mode.", "bram"),
    ("Our certificates were not renewed, the DNS challenge seems to hang.", "dirk"),
    ("The partner's CSV cannot be loaded since the delimiters changed.", "elif"),
    ("Every few hours all reads stall for seconds, and then the WAL is small again.", "hugo"),
    ("Apple's App Store rejected our build because of the privacy manifest.", "kai"),
    ("The loss spikes every time we resume from a checkpoint; is the optimizer saved?", "milo"),
    # a past mission alone decides
    ("Drafts get lost again when a user saves in two tabs.", "cleo"),
    ("Try whether we can restore from the Frankfurt region if the first one burns down.", "dirk"),
    ("Limit how many requests per minute one token may send, with status 429.", "ada"),
    ("Let the home screen widget show overdue tasks as well.", "kai"),
    # other languages
    ("設定画面の新しい文言を翻訳してください", "jun"),
    ("请把这篇文章翻译成中文", "jun"),
    ("Bitte die Mahnung und die Rechnung an den Kunden prüfen.", "lena"),
    ("Ein Paket ist verloren, wann wird es ersetzt?", "lena"),
]

OTHER_TASKS = [
    ("Add a queue between the two Python services.", "ada"),
    ("The form must be usable with a screen reader; check its accessibility.", "bram"),
    ("Why does the checkout suite turn red around midnight?", "cleo"),
    ("Nodes report that no inodes are left.", "dirk"),
    ("Rebuild the daily partitions, late events came in.", "elif"),
    ("Is our SAML library still accepting assertions that are not signed?", "finn"),
    ("A newcomer should install the client and send a message within ten minutes; improve the quickstart.", "gwen"),
    ("Benchmark the search: its percentiles went up with more rows.", "hugo"),
    ("Cut the release branch, and sign the tag for 4.3.", "iris"),
    ("按钮的中文文字太长了", "jun"),
    ("Pairing the thermostat over Bluetooth fails for some people.", "kai"),
    ("Ein Kunde aus der Schweiz fragt nach der Umsatzsteuer.", "lena"),
    ("Sort incoming tickets into queues automatically.", "milo"),
    ("Which foundations could fund our open source work, and until when can we apply?", "nora"),
    ("Find out why teams do not buy after their trial.", "nora"),
]


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    """Three roots that do not exist yet."""
    return Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared", workspace=tmp_path / "workspace")


@pytest.fixture
def searching(roots: Roots, tmp_path: Path, clock: Clock) -> Iterator[SwarmSearch]:
    """The search; its clock stands still."""
    search = SwarmSearch(roots, tmp_path / "cache" / "swarm.db", clock=clock)
    yield search
    search.close()


@pytest.fixture
def recommendations(roots: Roots, searching: SwarmSearch) -> Recommendations:
    """What is tested."""
    return Recommendations(Roster(roots.workspace), searching, roots)


@pytest.fixture
def fleet(tmp_path: Path, recommendations: Recommendations) -> Recommendations:
    """The same over the fleet of fifteen workers."""
    make_fleet(tmp_path)
    return recommendations


def wrong(fleet: Recommendations, tasks: list[tuple[str, str]]) -> list[tuple[str, str, list[tuple[str, float]]]]:
    """The tasks that another worker comes first for, with whom they came out."""
    missed = []
    for task, right in tasks:
        found = [(one.workerId, one.score) for one in fleet.recommend(task).workers]
        if not found or found[0][0] != right:
            missed.append((task, right, found))
    return missed


def test_the_right_worker_comes_first_for_at_least_27_of_30_tasks(fleet: Recommendations) -> None:
    assert len(TASKS) == 30
    assert len(missed := wrong(fleet, TASKS)) <= 3, missed


def test_the_right_worker_comes_first_for_tasks_that_no_weight_was_chosen_by(fleet: Recommendations) -> None:
    assert len(missed := wrong(fleet, OTHER_TASKS)) <= 2, missed


def test_each_reason_is_a_line_of_a_file(fleet: Recommendations, tmp_path: Path) -> None:
    for task, _ in [*TASKS, *OTHER_TASKS]:
        for worker in fleet.recommend(task).workers:
            assert 1 <= len(worker.reasons) <= REASONS_MAX
            assert len({reason.text for reason in worker.reasons}) == len(worker.reasons)
            for reason in worker.reasons:
                assert Path(reason.path).read_text(encoding="utf-8").split("\n")[reason.line - 1].strip() == reason.text
                assert reason.words
                assert all(word in task for word in reason.words)
                own = tmp_path / "profiles" / worker.workerId
                assert Path(reason.path) == tmp_path / "workspace" / "swarm.yaml" or own in Path(reason.path).parents


def test_scores_and_shares_are_from_0_to_1_and_the_best_is_first(fleet: Recommendations) -> None:
    for task, _ in TASKS:
        found = fleet.recommend(task, limit=20).workers
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert all(0 < one.score <= 1 and 0 < one.matched <= 1 for one in found)


def test_it_says_who_a_worker_is_and_how_many_were_compared(fleet: Recommendations) -> None:
    found = fleet.recommend("Review a pull request about giraffes, please", limit=1)
    assert (found.words, found.considered, found.behind, found.degradedReasons) == (4, len(LESSONS), False, ())
    (iris,) = found.workers
    assert (iris.workerId, iris.name, iris.role, iris.matched) == ("iris", "Iris", "PR reviewer", 0.75)
    assert iris.reasons[0].words == ("pull", "request")


def test_the_answer_does_not_depend_on_how_the_index_came_about(
    fleet: Recommendations, roots: Roots, tmp_path: Path
) -> None:
    """Files have other numbers in an index that was made over some of them, and then over the others."""
    (tmp_path / "profiles" / "milo").rename(tmp_path / "milo")
    (tmp_path / "profiles" / "ada").rename(tmp_path / "ada")
    fleet.recommend("anything")
    for name in ("milo", "ada"):
        (tmp_path / name).rename(tmp_path / "profiles" / name)
    other = SwarmSearch(roots, tmp_path / "other.db")
    again = Recommendations(Roster(roots.workspace), other, roots)
    fleet._search.refresh()
    for task, _ in TASKS:
        assert again.recommend(task) == fleet.recommend(task)
    other.close()


# --- what counts, and for whom ---


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a file below a worker's memory, such as `sol/MEMORY.md`, as a person would."""

    def write_file(path: str, content: str) -> Path:
        worker, _, below = path.partition("/")
        file = tmp_path / "profiles" / worker / "memory" / below
        person_writes(file, content)
        return file

    return write_file


def workers(found: Recommended) -> list[str]:
    """Who was found, the best first."""
    return [one.workerId for one in found.workers]


def roster(tmp_path: Path, text: str | bytes) -> Path:
    """Writes swarm.yaml."""
    file = tmp_path / "workspace" / "swarm.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def test_where_a_word_stands_decides_what_it_counts(
    recommendations: Recommendations, write: Write, tmp_path: Path
) -> None:
    roster(tmp_path, "workers:\n- {id: w1, role: zebra keeper}\n- {id: w5}\n")
    write("w2/MEMORY.md", "zebra keeper\n")
    write("w3/missions/m-1/SUMMARY.md", "zebra keeper\n")
    write("w4/episodes/2026-05-01.md", "zebra keeper\n")
    assert workers(recommendations.recommend("zebra keeper")) == ["w1", "w2", "w3", "w4"]


@pytest.mark.parametrize(
    "path",
    [
        "IDENTITY.md",
        "SOUL.md",
        "own-page.md",
        "notes/plan.md",
        "notes/deep/er/plan.md",
        "handoffs/m-1.md",
        "missions/m-1/SUMMARY.md",
        "missions/m-1/handoff.md",
        "episodes/2026-05-01.md",
    ],
)
def test_all_memory_of_a_worker_counts(recommendations: Recommendations, write: Write, path: str) -> None:
    file = write(f"sol/{path}", "# Page\n\nKeeps zebras.\n")
    write("mira/MEMORY.md", "okapi\n")
    (sol,) = recommendations.recommend("a zebra").workers
    assert (sol.workerId, sol.name, sol.role) == ("sol", None, None)
    (reason,) = sol.reasons
    assert (reason.path, reason.line, reason.text, reason.words) == (str(file), 3, "Keeps zebras.", ("zebra",))


def test_logs_and_shared_memory_count_for_nobody(
    recommendations: Recommendations, write: Write, tmp_path: Path
) -> None:
    write("sol/missions/m-1/events.jsonl", '{"type":"note","summary":"zebra"}\n')
    for path in ("swarm/notes.md", "swarm/missions/m-1/sol/SUMMARY.md", "handoffs/swarm/sol-latest.md"):
        person_writes(tmp_path / "shared" / path, "zebra\n")
    found = recommendations.recommend("zebra")
    assert (found.workers, found.words, found.considered) == ((), 1, 1)


def test_a_worker_without_files_and_one_that_is_not_in_the_roster_count(
    recommendations: Recommendations, write: Write, tmp_path: Path
) -> None:
    roster(tmp_path, "workers:\n- {id: sol, role: zebra keeper}\n- {id: lin, role: clerk}\n")
    write("mira/MEMORY.md", "zebras\n")
    found = recommendations.recommend("zebra")
    assert (workers(found), found.considered) == (["sol", "mira"], 3)


def test_without_roster_and_files_nobody_is_found(recommendations: Recommendations) -> None:
    assert recommendations.recommend("zebra") == Recommended(workers=(), words=1, considered=0)


@pytest.mark.parametrize(
    "task", ["", "???", "to be or not to be", "Please, I need help from someone.", "\x00", "🙂 — …"]
)
def test_a_task_that_says_nothing_finds_nobody(recommendations: Recommendations, write: Write, task: str) -> None:
    write("sol/MEMORY.md", "to be or not to be, please help me; I need someone 🙂\n")
    assert recommendations.recommend(task) == Recommended(workers=(), words=0, considered=1)


@pytest.mark.parametrize("task", ["quagga", "quagga tapir " * 300, "quagga\ud800", '"quagga', "quagga* NEAR(tapir) -x"])
def test_a_task_of_which_no_word_is_known_finds_nobody(
    recommendations: Recommendations, write: Write, task: str
) -> None:
    write("sol/MEMORY.md", "zebra\n")
    found = recommendations.recommend(task)
    assert found.workers == ()
    assert found.words > 0


def test_a_long_task_is_judged_by_its_first_words(recommendations: Recommendations, write: Write) -> None:
    write("sol/MEMORY.md", "word63x\n")
    write("mira/MEMORY.md", "word64x\n")
    found = recommendations.recommend(" ".join(f"word{number}x" for number in range(1_000)))
    assert (workers(found), found.words) == (["sol"], 64)


def test_who_matches_nothing_is_not_listed_and_no_more_than_the_limit(
    recommendations: Recommendations, write: Write
) -> None:
    for number in range(8):
        write(f"w{number}/MEMORY.md", "zebra\n")
        write(f"x{number}/MEMORY.md", "okapi\n")
    assert workers(recommendations.recommend("zebra", limit=20)) == [f"w{number}" for number in range(8)]
    assert workers(recommendations.recommend("zebra", limit=3)) == ["w0", "w1", "w2"]
    assert len(recommendations.recommend("zebra").workers) == 5


def test_equals_are_ordered_by_id(recommendations: Recommendations, write: Write) -> None:
    for worker in ("nix", "abe", "zoe", "kim"):
        write(f"{worker}/MEMORY.md", "zebra okapi\n")
        write(f"{worker}/missions/m-1/SUMMARY.md", "okapi\n")
    found = recommendations.recommend("okapi zebra")
    assert workers(found) == ["abe", "kim", "nix", "zoe"]
    assert len({one.score for one in found.workers}) == 1


def test_a_rare_word_weighs_more_than_one_that_many_have(recommendations: Recommendations, write: Write) -> None:
    for number in range(6):
        write(f"w{number}/MEMORY.md", "okapi\n")
    write("w6/MEMORY.md", "zebra\n")
    assert workers(recommendations.recommend("okapi zebra"))[0] == "w6"


def test_many_words_in_one_place_weigh_more_than_the_same_scattered(
    recommendations: Recommendations, write: Write
) -> None:
    for number, word in enumerate(("zebra", "okapi", "tapir")):
        write(f"abe/missions/m-{number}/SUMMARY.md", f"{word} one two three\n")
        write(
            f"zoe/missions/m-{number}/SUMMARY.md", "zebra okapi tapir one\n" if number == 0 else "one two three four\n"
        )
    assert workers(recommendations.recommend("zebra, okapi and tapir")) == ["zoe", "abe"]


def test_a_long_history_does_not_win_by_its_length(recommendations: Recommendations, write: Write) -> None:
    for number in range(100):
        held = ("zebra", "okapi", "tapir")[number % 3] if number < 12 else "nothing"
        write(f"abe/episodes/2026-{number // 28 + 1:02d}-{number % 28 + 1:02d}.md", f"Saw a {held} today.\n" * 5)
    write("zoe/missions/m-1/SUMMARY.md", "A zebra, an okapi and a tapir.\n")
    assert workers(recommendations.recommend("zebra, okapi and tapir")) == ["zoe", "abe"]


def test_another_form_of_a_word_counts_less_than_the_word(recommendations: Recommendations, write: Write) -> None:
    write("abe/MEMORY.md", "the deployment\n")
    write("kim/MEMORY.md", "die Rechnung\n")
    write("zoe/MEMORY.md", "they deployed it\n")
    found = recommendations.recommend("deploys")
    assert workers(found) == ["zoe", "abe"]
    assert [one.reasons[0].words for one in found.workers] == [("deploys",), ("deploys",)]
    assert workers(recommendations.recommend("Rechnungen")) == ["kim"]


def test_a_word_that_very_many_files_hold_tells_nobody_from_anybody(
    recommendations: Recommendations, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some of them would be counted: those that were indexed first."""
    roster(tmp_path, "workers:\n- {id: zoe, role: zebra keeper}\n")
    for number in range(12):
        write(f"abe/episodes/2026-05-{number + 1:02d}.md", "zebra\n")
    assert workers(recommendations.recommend("zebra")) == ["zoe", "abe"]
    monkeypatch.setattr("storage.swarm.search.view.WORD_ROWS_MIN", 5)
    monkeypatch.setattr("storage.swarm.search.view.ROWS_MAX", 10)
    assert workers(recommendations.recommend("zebra")) == ["zoe"]


# --- the lines ---


def only(found: Recommended) -> RecommendedWorker:
    """The one worker that was found."""
    (worker,) = found.workers
    return worker


def test_the_line_with_most_of_the_words_is_the_reason(recommendations: Recommendations, write: Write) -> None:
    write("sol/MEMORY.md", "a zebra\na zebra\nan okapi, a tapir and a zebra\nan okapi\n")
    (reason,) = only(recommendations.recommend("zebra okapi tapir")).reasons
    assert (reason.line, reason.words) == (3, ("zebra", "okapi", "tapir"))


def test_reasons_say_different_things(recommendations: Recommendations, write: Write) -> None:
    for number in range(5):
        write(f"sol/episodes/2026-05-0{number + 1}.md", f"Day {number}: a zebra and an okapi.\n")
    write("sol/episodes/2026-04-01.md", "A tapir.\n")
    reasons = only(recommendations.recommend("zebra okapi tapir")).reasons
    assert [reason.words for reason in reasons[:2]] == [("zebra", "okapi"), ("tapir",)]
    assert reasons[0].path.endswith("2026-05-05.md")


def test_there_are_three_reasons_at_most(recommendations: Recommendations, write: Write) -> None:
    words = ("zebra", "okapi", "tapir", "quagga")
    for number, word in enumerate(words):
        write(f"sol/missions/m-{number}/SUMMARY.md", f"A {word}.\n")
    found = only(recommendations.recommend(" ".join(words)))
    assert (len(found.reasons), found.matched) == (3, 1)


def test_what_everybody_holds_is_no_reason(recommendations: Recommendations, write: Write) -> None:
    for number in range(12):
        write(f"w{number}/SOUL.md", "Ask before you delete a file.\n")
    write("w3/MEMORY.md", "The zebra eats the okapi's hay.\n")
    found = recommendations.recommend("The zebra must not eat the hay of the okapi. Delete nothing.", limit=1)
    (reason,) = only(found).reasons
    assert reason.words == ("zebra", "eat", "hay", "okapi")


def test_a_long_line_is_cut_around_its_hit(recommendations: Recommendations, write: Write) -> None:
    write("sol/MEMORY.md", "alpha " * 1_000 + "zebra " + "omega " * 1_000)
    (reason,) = only(recommendations.recommend("zebra")).reasons
    assert "alpha zebra omega" in reason.text
    assert len(reason.text) <= SNIPPET_CHARS_MAX


def test_a_line_far_down_a_large_file_is_numbered_rightly(recommendations: Recommendations, write: Write) -> None:
    lines = [f"line {number} of many" for number in range(1, 12_001)]
    lines[11_000] = "here is the zebra"
    assert len("\n".join(lines)) > 3 * PIECE_BYTES
    write("sol/missions/m-1/SUMMARY.md", "\n".join(lines))
    (reason,) = only(recommendations.recommend("zebra")).reasons
    assert (reason.line, reason.text) == (11_001, "here is the zebra")


ROSTERS = {
    "a list": ("workers:\n  - id: sol\n    role: zebra keeper\n", 3, "role: zebra keeper"),
    "one line": ("workers:\n- {id: sol, role: zebra keeper}\n", 2, "- {id: sol, role: zebra keeper}"),
    "agents": ("agents:\n- workerId: Sol\n  specialty: zebras\n", 3, "specialty: zebras"),
    "a mapping": ("swarm:\n  sol:\n    description: keeps zebras\n", 3, "description: keeps zebras"),
    "a list of lists": ("- id: sol\n  skills:\n  - okapis\n  - zebras\n", 4, "- zebras"),
    "tags in a row": ("- id: sol\n  tags: [okapis, zebras]\n", 2, "tags: [okapis, zebras]"),
    "a folded text": ("- id: sol\n  mission: >\n    keeps okapis\n    and zebras\n\n  model: m\n", 4, "and zebras"),
    "a quoted text": ('- id: sol\n  capabilities: "okapis\n    and zebras"\n', 3, 'and zebras"'),
    "an alias": ("kept: &kept zebras\nworkers:\n- id: sol\n  role: *kept\n", 1, "kept: &kept zebras"),
    "merged": ("base: &base\n  role: zebras\nworkers:\n- id: sol\n  <<: *base\n", 2, "role: zebras"),
    "CRLF": ("workers:\r\n- id: sol\r\n  role: zebras\r\n", 3, "role: zebras"),
    "a byte order mark": ("\ufeffworkers:\n- id: sol\n  role: zebras\n", 3, "role: zebras"),
    "another line break": ('- id: sol\n  name: "S\u2028ol"\n  role: zebras\n', 3, "role: zebras"),
    "JSON": ('{"workers": [{"id": "sol", "role": "zebras"}]}', 1, '{"workers": [{"id": "sol", "role": "zebras"}]}'),
}


@pytest.mark.parametrize(("text", "line", "shown"), ROSTERS.values(), ids=ROSTERS)
def test_a_roster_s_reason_is_its_true_line(
    recommendations: Recommendations, tmp_path: Path, text: str, line: int, shown: str
) -> None:
    file = roster(tmp_path, text)
    found = only(recommendations.recommend("Feed the zebra!"))
    assert found.workerId == "sol"
    (reason,) = found.reasons
    assert (reason.path, reason.line, reason.text, reason.words) == (str(file), line, shown, ("zebra",))


def test_of_a_roster_in_one_line_each_worker_s_own_part_is_shown(
    recommendations: Recommendations, tmp_path: Path
) -> None:
    entries = ", ".join(f"{{id: w{number:02d}, role: animal{number:02d}}}" for number in range(60))
    roster(tmp_path, f"workers: [{entries}]\n")
    found = only(recommendations.recommend("animal47 animal47b"))
    assert found.workerId == "w47"
    (reason,) = found.reasons
    assert "role: animal47}" in reason.text
    assert reason.words == ("animal47",)


def test_what_a_roster_says_beside_the_known_fields_does_not_count(
    recommendations: Recommendations, tmp_path: Path
) -> None:
    roster(tmp_path, "workers:\n- {id: sol, role: [[zebra]], avoids: zebras, skills: {a: zebra}, model: ~}\n")
    assert recommendations.recommend("zebra") == Recommended(workers=(), words=1, considered=1)


# --- a roster that cannot be read ---


UNREADABLE = [b"workers: [", b"\xff\xfe\x00", b"- &a [*b]", b"[" * 50_000, b"# " + b"x" * 300_000]


@pytest.mark.parametrize("content", UNREADABLE, ids=["broken", "no text", "no anchor", "deep", "too large"])
def test_without_a_roster_that_can_be_read_memory_counts(
    recommendations: Recommendations, write: Write, tmp_path: Path, content: bytes
) -> None:
    roster(tmp_path, content)
    write("sol/MEMORY.md", "zebra\n")
    found = recommendations.recommend("zebra")
    assert (workers(found), found.degradedReasons) == (["sol"], ("roster_unread",))
    roster(tmp_path, "workers:\n- {id: mira, role: zebra keeper}\n")
    found = recommendations.recommend("zebra")
    assert (workers(found), found.degradedReasons) == (["mira", "sol"], ())


@pytest.mark.parametrize("what", ["link", "pipe"])
def test_a_roster_that_is_a_link_or_a_pipe_is_not_read(
    recommendations: Recommendations, tmp_path: Path, what: str
) -> None:
    file = roster(tmp_path, "workers:\n- {id: sol, role: zebra}\n")
    if what == "link":
        file.rename(tmp_path / "elsewhere.yaml")
        file.symlink_to(tmp_path / "elsewhere.yaml")
    else:
        file.unlink()
        os.mkfifo(file)
    found = recommendations.recommend("zebra")
    assert (found.workers, found.degradedReasons) == ((), ("roster_unread",))


@pytest.mark.parametrize("content", [b"", b"# nobody\n", b"workers: []\n", b"text", b"workers: {sol: x}\n"])
def test_a_roster_that_names_nobody_is_no_fault(
    recommendations: Recommendations, tmp_path: Path, content: bytes
) -> None:
    roster(tmp_path, content)
    assert recommendations.recommend("zebra") == Recommended(workers=(), words=1, considered=0)


def test_a_workspace_that_is_not_set_or_not_there_is_no_fault(
    searching: SwarmSearch, roots: Roots, write: Write, tmp_path: Path
) -> None:
    write("sol/MEMORY.md", "zebra\n")
    for workspace in (None, tmp_path / "nowhere"):
        found = Recommendations(Roster(workspace), searching, roots).recommend("zebra")
        assert (workers(found), found.degradedReasons) == (["sol"], ())


def test_a_roster_of_aliases_costs_little(recommendations: Recommendations, tmp_path: Path) -> None:
    bomb = "a0: &a0 {k: v}\n" + "".join(f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 200))
    endless = "b: &b\n  <<: *b\n  skills: &c [zebra, *c]\n"
    many = "".join(f"- {{id: w{n}, <<: *a199, skills: *d}}\n" for n in range(2_000))
    roster(tmp_path, f"{bomb}{endless}d: &d [{'x, ' * 200}okapi]\nworkers:\n- {{id: sol, <<: *b}}\n{many}")
    found = recommendations.recommend("zebra")
    assert (workers(found), found.degradedReasons) == (["sol"], ())


def test_a_version_of_the_roster_is_parsed_once(tmp_path: Path) -> None:
    file = roster(tmp_path, "workers:\n- {id: sol, role: zebra keeper}\n")
    one = Roster(tmp_path / "workspace")
    first = one.read()
    assert [member.worker for member in first.members] == ["sol"]
    assert one.read() is first
    file.write_text("workers:\n- {id: mira, role: zebra keeper}\n- {id: Not an id}\n")
    assert [member.worker for member in one.read().members] == ["mira", None]
    assert one.persona("mira").role == "zebra keeper"
    assert one.persona("sol").role is None


# --- following the files ---


def test_what_was_just_written_counts(
    recommendations: Recommendations, searching: SwarmSearch, write: Write, tmp_path: Path
) -> None:
    assert recommendations.recommend("zebra").workers == ()
    write("sol/notes/deep/plan.md", "zebra\n")
    assert recommendations.recommend("zebra").workers == ()
    searching.touch(Folder("profiles", ("sol", "memory", "notes", "deep")), "plan.md")
    assert workers(recommendations.recommend("zebra")) == ["sol"]
    file = write("sol/missions/m-1/SUMMARY.md", "okapi\n")
    searching.touch(layout.mission("sol", "m-1"), "SUMMARY.md")
    assert workers(recommendations.recommend("okapi")) == ["sol"]
    file.unlink()
    searching.touch(layout.mission("sol", "m-1"), "SUMMARY.md")
    assert recommendations.recommend("okapi").workers == ()
    roster(tmp_path, "workers:\n- {id: mira, role: okapis}\n")
    assert workers(recommendations.recommend("okapi")) == ["mira"]


def test_reasons_are_as_the_files_are_though_nothing_was_looked_at(
    recommendations: Recommendations, write: Write
) -> None:
    write("sol/MEMORY.md", "zebra\n")
    gone = write("mira/MEMORY.md", "zebra\n")
    assert workers(recommendations.recommend("zebra")) == ["mira", "sol"]
    write("sol/MEMORY.md", "first\nsecond\nthe zebra\n")
    gone.unlink()
    found = recommendations.recommend("zebra")
    (reason,) = only(found).reasons
    assert (reason.line, reason.text, found.considered) == (3, "the zebra", 1)


def test_an_answer_before_all_files_are_read_is_behind(
    recommendations: Recommendations, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        write(f"w{number}/MEMORY.md", "zebra\n")
    monkeypatch.setattr("storage.swarm.search.searching.WAIT_S", 0.0)
    found = recommendations.recommend("zebra")
    assert (found.behind, found.considered) == (True, 1)
    monkeypatch.undo()
    found = recommendations.recommend("zebra")
    assert (found.behind, found.considered) == (False, 100)


def test_an_index_that_is_lost_is_made_anew(recommendations: Recommendations, write: Write, tmp_path: Path) -> None:
    write("sol/MEMORY.md", "zebra\n")
    assert workers(recommendations.recommend("zebra")) == ["sol"]
    with (tmp_path / "cache" / "swarm.db").open("r+b") as file:
        file.write(b"\xa5" * 40_000)
    assert workers(recommendations.recommend("zebra")) == ["sol"]


def test_threads_share_it(recommendations: Recommendations, searching: SwarmSearch, write: Write) -> None:
    missed: list[str] = []

    def work(worker: str) -> None:
        for number in range(20):
            write(f"{worker}/missions/m-{number}/SUMMARY.md", f"{worker}word{number}\n")
            searching.touch(layout.mission(worker, f"m-{number}"), "SUMMARY.md")
            if workers(recommendations.recommend(f"{worker}word{number}")) != [worker]:
                missed.append(f"{worker}word{number}")

    threads = [threading.Thread(target=work, args=(worker,)) for worker in ("sol", "mira")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert missed == []
