"""A small runner of the documentation's commands: what a page shows under a command is what the command prints.

In a ```console block a line `$ command` is run, and the lines up to the next one are what it must print. The matcher:
`…` matches anything, also nothing, also line ends; an instant (2026-09-28T09:15:00.000Z) matches any instant; line ends
at the end do not count. A command that ends with ` &` stays running until the end, its output is not compared, and the
next one waits until its port answers. Ports are replaced by free ones before a command runs.
"""

import contextlib
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import PROGRAM, eventually

ANY = "…"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
_FREE = re.compile(rf"({ANY}|{_INSTANT.pattern})")
_PORT = re.compile(r"127\.0\.0\.1:(\d+)")
_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a page and what it must print."""

    command: str
    expected: str

    @property
    def stays(self) -> bool:
        """Whether it is left running."""
        return self.command.endswith(" &")


def steps_of(markdown: str) -> list[Step]:
    """The commands of a page in their order."""
    steps: list[Step] = []
    for block in _BLOCK.findall(markdown):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            steps.append(Step(command, expected))
    return steps


def matches(expected: str, printed: str) -> bool:
    """Whether a command printed what its page shows."""
    pattern = "".join(_pattern(part) for part in _FREE.split(expected.rstrip()))
    return re.fullmatch(pattern, printed.replace("\r\n", "\n").rstrip(), re.DOTALL) is not None


def _pattern(part: str) -> str:
    if part == ANY:
        return ".*?"
    return _INSTANT.pattern if _INSTANT.fullmatch(part) else re.escape(part)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Console:
    """A shell in a folder of its own, with the program on its path and free ports for the page's."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports: dict[str, int] = {}
        self._left: list[subprocess.Popen[bytes]] = []
        programs = folder / "bin"
        programs.mkdir()
        self._install(programs / "solos-memory", shlex.join(PROGRAM))
        if shutil.which("curl") is None:
            self._install(programs / "curl", shlex.join([sys.executable, str(Path(__file__).with_name("curl.py"))]))
        ours = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
        self._environment = ours | {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(Path(__file__).parents[1]),
            "XDG_DATA_HOME": str(folder / "data"),
        }

    @staticmethod
    def _install(program: Path, command: str) -> None:
        program.write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def run(self, step: Step) -> str:
        """Run a step, and return what it printed; nothing for one that stays."""
        command = _PORT.sub(lambda found: f"127.0.0.1:{self.port(found[1])}", step.command)
        environment = self._environment | {"SOLOS_MEMORY_URL": f"http://127.0.0.1:{self.port('8437')}"}
        if step.stays:
            self._leave(command.removesuffix(" &"), environment)
            return ""
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_WITHIN_S,
            check=False,
        )
        return done.stdout.decode("utf-8")

    def port(self, shown: str) -> int:
        """The free port that stands for one of the page."""
        return self._ports.setdefault(shown, _free_port())

    def _leave(self, command: str, environment: dict[str, str]) -> None:
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], cwd=self._folder, env=environment, stdout=subprocess.DEVNULL
        )
        self._left.append(process)
        address = _PORT.search(command)
        assert address is not None, f"{command!r} names no port to wait for"
        eventually(lambda: _answers(f"http://{address[0]}/health") or process.poll() is not None, _WITHIN_S)
        assert process.poll() is None, f"{command!r} ended with {process.returncode}"

    def close(self) -> None:
        """End what was left running."""
        for process in self._left:
            process.terminate()
        for process in self._left:
            process.wait(_WITHIN_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


@contextlib.contextmanager
def console(folder: Path) -> Iterator[Console]:
    """A console whose processes end with the block."""
    opened = Console(folder)
    try:
        yield opened
    finally:
        opened.close()
