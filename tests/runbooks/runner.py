"""A small runner of the pages: every command runs in one shell, against a real service, and is compared with its page.

A page's shell is bash in an empty folder of its own, with:

- `URL`: the service of the page. `DB`: its database, fresh, with AGENTS registered. `REPO`: the checkout.
- `solos-memory` and `python` of the venv that runs the tests; HOME and XDG_* in the temporary folder.
- Free ports: a port after `127.0.0.1:` and 8437 anywhere stand for free ones; 8437 is the service's.

A command has COMMAND_WITHIN_S. One that ends with ` &` stays, and the next waits until its address answers. A command
that ends with another code than 0 fails its page, unless the next one shows the code: `$ echo $?`.

systemd is not there, so its commands stand in blocks that are not run; the runner does for the page what they do for
the units: it holds the socket, and starts, stops or restarts the service behind it. A page with the line
`<!-- no service yet -->` begins without service and without database.

    python -m tests.runbooks.runner runbooks/install.md [--also "needs a package registry" --within 300]
"""

import argparse
import contextlib
import difflib
import os
import re
import secrets
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

from storage.store import create_database
from tests.held import Held, held_socket
from tests.runbooks.markdown import SERVICE_PORT, Step, blocks_of, matches, normal
from tests.support import eventually

ROOT = Path(__file__).parents[2]
AGENTS = ("sol", "mira", "atlas", "tam", "ace", "min")
NEEDS_SYSTEMD = "needs systemd"
NEEDS_HERMES = "needs a Hermes gateway"
NEEDS_HOST = "needs the fleet's host"
NEEDS_REGISTRY = "needs a package registry"
REASONS = (NEEDS_SYSTEMD, NEEDS_HERMES, NEEDS_HOST, NEEDS_REGISTRY)
"""Why a block may be shown and not run; there is no other reason."""
NO_SERVICE = "<!-- no service yet -->"
COMMAND_WITHIN_S = 30.0
_PROGRAMS = Path(__file__).with_name("programs")
_PORT = re.compile(rf"(?<=127\.0\.0\.1:)(?!0\b)\d+|\b{SERVICE_PORT}\b")
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")
_ORDER = re.compile(r"systemctl --user (stop|start|restart|enable --now|disable --now) (.*\blab-memory\..*)")
_RULE = "ended with {code}; a page that means it shows the code with the next command: $ echo $?"


class PageFailed(AssertionError):
    """A command did not do what its page shows; says which, where and how."""


class Shell:
    """A bash in an empty folder of its own, with the program on its path and free ports for the page's."""

    def __init__(self, folder: Path, variables: Mapping[str, str], service_port: int, within_s: float) -> None:
        self._ports = {SERVICE_PORT: service_port}
        self._within_s = within_s
        here = folder / "here"
        here.mkdir()
        address = f"http://127.0.0.1:{service_port}"
        self._bash = subprocess.Popen(
            ["bash", "--norc", "--noprofile"],
            cwd=here,
            env={
                **variables,
                "URL": address,
                "SOLOS_MEMORY_URL": address,
                "SOLOS_MEMORY_BIND": f"127.0.0.1:{service_port}",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._end = secrets.token_hex(8)

    def port(self, shown: str) -> int:
        """The free port that stands for one of the page."""
        return self._ports.setdefault(shown, _free_port())

    def run(self, step: Step) -> tuple[str, int]:
        """Run a step; what it printed, nothing for one that stays, and its exit code.

        Raises:
            PageFailed: it did not end in its time, or it ended the shell.
        """
        command = _PORT.sub(lambda found: str(self.port(found[0])), step.command)
        if not step.stays:
            return self._ask(command)
        quiet = command if ">" in command else command.removesuffix("&") + ">/dev/null 2>&1 &"
        printed, code = self._ask(quiet)
        if address := _ADDRESS.search(command):
            self._wait_for(address[0])
        return printed, code

    def _ask(self, command: str) -> tuple[str, int]:
        """Its own code is given back to the shell after ours, so that the page's next command can ask for it."""
        assert self._bash.stdin is not None
        script = f"eval {shlex.quote(command)} </dev/null\n_code=$?; echo {self._end} $_code; (exit $_code)\n"
        self._bash.stdin.write(script.encode())
        self._bash.stdin.flush()
        printed, _, code = self._read_until_end().rpartition(self._end)
        return printed, int(code)

    def _read_until_end(self) -> str:
        assert self._bash.stdout is not None
        pipe = self._bash.stdout.fileno()
        read = b""
        until = time.monotonic() + self._within_s
        with selectors.DefaultSelector() as waiting:
            waiting.register(pipe, selectors.EVENT_READ)
            while not re.search(rf"{self._end} \d+\n$".encode(), read):
                if not waiting.select(max(0.0, until - time.monotonic())):
                    raise PageFailed(f"did not end within {self._within_s} s; until then it printed\n{_text(read)}")
                if not (part := os.read(pipe, 65_536)):
                    raise PageFailed(f"ended the shell; before that it printed\n{_text(read)}")
                read += part
        return _text(read)

    def _wait_for(self, address: str) -> None:
        process = int(self._ask("echo $!")[0])
        eventually(lambda: _answers(f"http://{address}/health") or not _lives(process), self._within_s)
        if not _lives(process):
            raise PageFailed(f"ended before {address} answered")

    def close(self) -> None:
        """End the shell and whatever its page left running."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._bash.pid, signal.SIGKILL)
        self._bash.communicate()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _text(read: bytes) -> str:
    return read.decode("utf-8", "backslashreplace")


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def environment(folder: Path) -> dict[str, str]:
    """The tests' own, without settings of ours or of Hermes, and with every home in the folder.

    Programs that a small machine may lack come last on the path: stand-ins that do as much as the pages use.
    """
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SOLOS_", "HERMES_"))}
    ours.pop("PYTHONPATH", None)
    stand_ins = folder / "programs"
    stand_ins.mkdir()
    for program in _PROGRAMS.glob("*.py"):
        stand_in = stand_ins / program.stem
        stand_in.write_text(
            f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", str(program)])} "$@"\n', encoding="utf-8"
        )
        stand_in.chmod(0o755)
    places = {"CONFIG": ".config", "DATA": ".local/share", "STATE": ".local/state", "CACHE": ".cache"}
    homes = {f"XDG_{name}_HOME": str(folder / "home" / place) for name, place in places.items()}
    (folder / "home").mkdir()
    return (
        ours
        | homes
        | {
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], str(stand_ins)]),
            "HOME": str(folder / "home"),
            "REPO": str(ROOT),
            "LC_ALL": "C.UTF-8",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }
    )


class Units:
    """lab-memory.socket and lab-memory.service of a page: held and run here as systemd would."""

    def __init__(self, held: Held, database: Path, variables: Mapping[str, str]) -> None:
        self.port: int = held.listener.getsockname()[1]
        self._held = held
        self._database = database
        self._variables = variables
        held.listener.close()

    def start(self) -> None:
        """Start what does not run, the socket first, and wait until the service says that it is there."""
        if self._held.listener.fileno() < 0:
            self._held.listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        if not self._runs:
            before = self._held.heard("READY")
            self._held.start("--db", str(self._database), **self._variables)
            self._held.wait_for("READY", times=before + 1)

    @property
    def _runs(self) -> bool:
        return self._held.process is not None and self._held.process.poll() is None

    def stop_service(self) -> None:
        """Stop the service and wait for its end; callers wait in the socket."""
        if self._runs:
            self._held.end()

    def stop(self) -> None:
        """Stop both."""
        self.stop_service()
        self._held.listener.close()

    def obey(self, command: str) -> None:
        """Do what a command of systemd's would do to the units; nothing where it is no such command."""
        if not (found := _ORDER.search(command)):
            return
        verb = found[1].partition(" ")[0]
        if verb in ("stop", "disable", "restart"):
            self.stop_service()
        if verb in ("stop", "disable") and "lab-memory.socket" in found[2]:
            self.stop()
        if verb in ("start", "enable", "restart"):
            self.start()


@contextlib.contextmanager
def shell(
    folder: Path,
    variables: Mapping[str, str] | None = None,
    service_port: int | None = None,
    within_s: float = COMMAND_WITHIN_S,
) -> Iterator[Shell]:
    """A shell whose processes end with the block."""
    given = environment(folder) if variables is None else variables
    opened = Shell(folder, given, service_port or _free_port(), within_s)
    try:
        yield opened
    finally:
        opened.close()


Told = Callable[[Step], None]


def run_page(
    page: Path,
    folder: Path,
    *,
    also: Collection[str] = (),
    told: Told = lambda _step: None,
    within_s: float = COMMAND_WITHIN_S,
) -> None:
    """Run a page in an empty folder; `also` are reasons whose blocks are run all the same; `told` hears each step.

    Raises:
        PageFailed: the first command that did not do what the page shows.
    """
    markdown = page.read_text(encoding="utf-8")
    database = folder / "fleet" / "solos.db"
    variables = environment(folder)
    with held_socket() as held:
        units = Units(held, database, variables)
        with shell(folder, {**variables, "DB": str(database)}, units.port, within_s) as bash:
            if NO_SERVICE not in markdown:
                create_database(database, AGENTS)
                units.start()
            for block in blocks_of(markdown):
                if block.not_run is None or block.not_run in also:
                    check(bash, block.steps, page=page.name, hidden=block.hidden, units=units, told=told)
                elif block.not_run == NEEDS_SYSTEMD:
                    for step in block.steps:
                        units.obey(step.command)


def check(
    bash: Shell,
    steps: Sequence[Step],
    *,
    page: str = "",
    hidden: bool = False,
    units: Units | None = None,
    told: Told = lambda _step: None,
) -> None:
    """Run commands in their order and compare what they print; `hidden` ones must succeed, whatever they print.

    Raises:
        PageFailed: the first command that did not do what the page shows.
    """
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        told(step)
        try:
            if hidden and units is not None and step.command.startswith("systemctl "):
                units.obey(step.command)
                continue
            printed, code = bash.run(step)
            _compare(step, printed, code, hidden=hidden, shown=_shows_code(following))
        except AssertionError as failure:
            raise PageFailed(f"{page}:{step.line}: $ {step.command}\n{failure}") from None


def _shows_code(step: Step | None) -> bool:
    return step is not None and "$?" in step.command


def _compare(step: Step, printed: str, code: int, *, hidden: bool, shown: bool) -> None:
    """Fail where a command did not print what its page shows, or failed in silence."""
    if not hidden and not step.stays and not matches(step.expected, printed):
        lines = [text.splitlines() for text in (normal(step.expected), normal(printed))]
        raise PageFailed("\n".join(difflib.unified_diff(*lines, "the page", "printed", lineterm="", n=100)))
    if code != 0 and not shown:
        raise PageFailed(_RULE.format(code=code) + (f"\n{printed}" if hidden else ""))


def main() -> None:
    """Run some pages, and print each command before it runs."""
    parser = argparse.ArgumentParser(description="Run the commands of some pages and compare what they print.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--also", action="append", default=[], choices=REASONS, help="Run these blocks, too.")
    parser.add_argument("--within", type=float, default=COMMAND_WITHIN_S, help="Seconds that a command may take.")
    given = parser.parse_args()
    for page in given.pages:
        with tempfile.TemporaryDirectory() as folder:
            run_page(page, Path(folder), also=given.also, told=_print, within_s=given.within)
        print(f"{page}: as shown")


def _print(step: Step) -> None:
    print(f"$ {step.command}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except PageFailed as failed:
        sys.exit(str(failed))
