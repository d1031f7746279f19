"""The runner finds what differs: a page that is wrong fails, and says where."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.runbooks import runner
from tests.runbooks.markdown import Block, Step, blocks_of, matches, steps_of
from tests.runbooks.runner import NO_SERVICE, PageFailed, run_page, shell


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a…c\n", "a, b, c\n", True),
        ("a…c", "a\nb\nc", False),
        ("a…c", "a, b", False),
        ("a\n…\nc\n", "a\nc\n", True),
        ("a\n…\nc\n", "a\nb\nb\nc\n", True),
        ("a\n…\nc\n", "a\nb\n", False),
        ("…", "", True),
        ("…\nb", "b", True),
        ("at 2026-09-28T09:15:00.000Z.", "at 2031-01-02T03:04:05.678Z.", True),
        ("at 2026-09-28T09:15:00.000Z.", "at noon.", False),
        ('"long:1"', '"long:1234"', True),
        ('"long:1"', '"short:1"', False),
        ('"long:1"', '"long:"', False),
        ("http://127.0.0.1:8437/mcp", "http://127.0.0.1:40123/mcp", True),
        ("127.0.0.1:8437", "127.0.0.2:8437", False),
        ("port 8437", "port 40123", True),
        ('{"a":1}', '{"a":12}', False),
        ("a.c", "abc", False),
        ("a\n\n", "a", True),
        ("a", "a\r\n", True),
        ("a\nb", "a", False),
        ("", "", True),
        ("", "an error", False),
    ],
)
def test_matcher(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


PAGE = """
```console
$ one
first
$ two \\
> more &
```

```sh
$ none
```

<!-- not run: needs systemd -->
```console
$ three
```

<!-- run first:
$ four
-->

1. In a list:

   ```console
   $ five
   fifth
   ```
"""


def test_page_is_read_as_it_is_written() -> None:
    assert blocks_of(PAGE) == [
        Block((Step("one", "first\n", 3), Step("two \\\nmore &", "", 5))),
        Block((Step("three", "", 15),), not_run="needs systemd"),
        Block((Step("four", "", 19),), hidden=True),
        Block((Step("five", "fifth\n", 25),)),
    ]
    assert [step.command for step in steps_of(PAGE)] == ["one", "two \\\nmore &", "four", "five"]
    assert [step.stays for step in steps_of(PAGE)] == [False, True, False, False]


@pytest.mark.parametrize(
    "markdown", ["```console\n$ one\n", "```console\nfirst\n```\n", "<!-- not run: needs systemd -->\nText.\n"]
)
def test_page_that_is_not_well_formed_is_refused(markdown: str) -> None:
    with pytest.raises(AssertionError):
        blocks_of(markdown)


def run(folder: Path, body: str, **options: Any) -> None:
    """Run a page without a service."""
    page = folder / "page.md"
    page.write_text(f"{NO_SERVICE}\n{body}", encoding="utf-8")
    run_page(page, folder, **options)


def test_commands_of_a_page_share_one_shell(tmp_path: Path) -> None:
    run(
        tmp_path,
        "```console\n$ mkdir a && cd a && x=1\n```\n\n```console\n$ echo $x ${PWD##*/}\n1 a\n$ ls -A ..\na\n```\n",
    )


def test_other_output_fails_the_page_and_shows_both(tmp_path: Path) -> None:
    with pytest.raises(PageFailed) as failed:
        run(tmp_path, "```console\n$ printf 'a\\nc\\n'\na\nb\n```\n")
    assert str(failed.value).splitlines() == [
        "page.md:3: $ printf 'a\\nc\\n'",
        "--- the page",
        "+++ printed",
        "@@ -1,2 +1,2 @@",
        " a",
        "-b",
        "+c",
    ]


def test_command_that_fails_in_silence_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match="ended with 1"):
        run(tmp_path, "```console\n$ false\n$ true\n```\n")


def test_page_may_show_the_code_of_a_failure(tmp_path: Path) -> None:
    run(tmp_path, "```console\n$ (exit 78)\n$ echo $?\n78\n```\n")


def test_hidden_command_must_succeed(tmp_path: Path) -> None:
    run(tmp_path, "<!-- run first:\n$ echo unseen\n-->\n")
    with pytest.raises(PageFailed, match="ended with 3"):
        run(empty(tmp_path), "<!-- run first:\n$ (exit 3)\n-->\n")


def empty(folder: Path) -> Path:
    """Another empty folder."""
    made = folder / "other"
    made.mkdir()
    return made


def test_block_is_run_only_where_it_is_to_be(tmp_path: Path) -> None:
    body = "<!-- not run: needs a package registry -->\n```console\n$ false\n```\n"
    run(tmp_path, body)
    with pytest.raises(PageFailed):
        run(empty(tmp_path), body, also=[runner.NEEDS_REGISTRY])


def test_command_has_a_limited_time(tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match=r"did not end within 0\.3 s"):
        run(tmp_path, "```console\n$ sleep 60\n```\n", within_s=0.3)


def test_command_that_ends_the_shell_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(PageFailed, match="ended the shell"):
        run(tmp_path, "```console\n$ exit 0\n```\n")


def test_what_a_page_leaves_is_killed(tmp_path: Path) -> None:
    with shell(tmp_path) as bash:
        bash.run(Step("sleep 600 &"))
        left = int(bash.run(Step("echo $!"))[0])
        assert runner._lives(left)
    runner.eventually(lambda: not Path(f"/proc/{left}").exists() or "Z" in state_of(left))


def state_of(process: int) -> str:
    """R, S, Z: what the kernel says of a process."""
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]


def test_page_has_a_service_its_database_and_its_own_homes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```console\n"
        '$ curl -s "$URL/health"\n'
        '{"status":"ok","reasons":[],"demo":false}\n'
        "$ curl -s http://127.0.0.1:8437/health\n"
        '{"status":"ok","reasons":[],"demo":false}\n'
        "$ solos-memory remember-long 'A fact.' --agent min\n"
        '{\n  "ok": true,\n  "id": "long:1",\n…\n'
        "$ sqlite3 \"$DB\" 'SELECT count(*) FROM memory_longterm'\n"
        "1\n"
        "$ ls -A ~ | wc -l\n"
        "0\n"
        '$ test -f "$REPO/pyproject.toml"\n'
        "```\n",
        encoding="utf-8",
    )
    run_page(page, tmp_path)


def test_units_obey_commands_that_are_not_run(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    restart = "systemctl --user restart lab-memory.service"
    stop = "systemctl --user stop lab-memory.socket lab-memory.service"
    start = "systemctl --user start lab-memory.socket lab-memory.service"
    page.write_text(
        f"<!-- not run: needs systemd -->\n```console\n$ {stop}\n```\n\n"
        "```console\n$ curl -s $URL/health\n$ echo $?\n7\n```\n\n"
        f"<!-- not run: needs systemd -->\n```console\n$ {start}\n```\n\n"
        '```console\n$ curl -s $URL/health\n{"status":"ok",…\n```\n'
        f'<!-- run first:\n$ mv "$DB" "$DB.away"\n$ {restart}\n-->\n'
        '```console\n$ curl -s $URL/health\n{"status":"not_ready","reasons":["configuration"],…\n```\n',
        encoding="utf-8",
    )
    run_page(page, tmp_path)


STAND_INS = Path(runner.__file__).with_name("programs")


@pytest.mark.parametrize("name", ["ss", "sqlite3", "fuser"])
def test_stand_in_prints_what_pages_look_for(name: str, tmp_path: Path) -> None:
    """They are used where the program is missing; here they are run whether it is or not."""
    with shell(tmp_path) as bash:
        bash.run(Step("python -m http.server --bind 127.0.0.1 --directory . 8437 3>lock 2>/dev/null >&2 &"))
        runner.eventually(lambda: runner._answers(f"http://127.0.0.1:{bash.port('8437')}/"))
        stand_in = tmp_path / "programs" / name
        told = {
            "ss": (f"{stand_in} -ltn | grep 8437", f"LISTEN…127.0.0.1:{bash.port('8437')} …"),
            "sqlite3": (f"{stand_in} x.db 'CREATE TABLE a (b)'; {stand_in} x.db 'SELECT 1, 2'", "1|2"),
            "fuser": (f"{stand_in} -v lock", "…USER…PID ACCESS COMMAND\nlock:…F.... python…"),
        }
        command, expected = told[name]
        printed, code = bash.run(Step(command))
        assert matches(expected, printed), printed
        assert code == 0
    assert (STAND_INS / f"{name}.py").is_file()


def test_runner_is_a_program(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"{NO_SERVICE}\n```console\n$ echo one\ntwo\n```\n", encoding="utf-8")
    command = [runner.sys.executable, "-m", "tests.runbooks.runner", str(page)]
    done = subprocess.run(command, cwd=runner.ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "page.md:3: $ echo one" in done.stderr
