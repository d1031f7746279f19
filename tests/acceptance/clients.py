"""The clients that the acceptance tests drive, each as a process in the venv that it really runs in."""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = Path(__file__).resolve().parent
ANSWER_WITHIN_S = 60.0
PREFIXES = ("mcp__solos_memory__", "mcp_solos_memory_")
"""How Hermes names our tools: from 0.18.1 on, and before."""


def _needed(variable: str, default: str, what: str) -> Path:
    """A file that the tests need; its absence is a failure, never a skip."""
    path = ROOT / os.environ.get(variable, default)  # an absolute path replaces ROOT; links are kept, as a venv needs
    assert path.is_file(), f"{path} is missing: {what}. `make test` installs or makes it, or set {variable}."
    return path


def hermes_python() -> Path:
    """The Python of the venv that holds the real Hermes client."""
    return _needed("SOLOS_TEST_HERMES", ".cache/hermes/bin/python", "the Python of the real Hermes client's venv")


def fleet_database() -> Path:
    """The fleet's database that tests copy; beside it lie known-item questions, `<name>.queries.jsonl`."""
    return _needed("SOLOS_TEST_FLEET", ".cache/fleet-20000.db", "the fleet's database")


def run_in_hermes_venv(script: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run a script of this folder in Hermes's venv: a JSON line in, the JSON of the last line out."""
    # -P: the script's folder must not hide a module of Hermes.
    done = subprocess.run(
        [hermes_python(), "-P", SCRIPTS / script],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=ANSWER_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answered: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answered


class Hermes:
    """A Hermes gateway of one profile, connected to a service."""

    def __init__(self, home: Path, url: str, headers: dict[str, str], *, config: str | None = None) -> None:
        """Start it with a `config.yaml`: the one given, or one for this service with these headers."""
        python = hermes_python()
        home.mkdir()
        # JSON is YAML. The timeouts are those that a deployment should use, not the spec's 60 s and 30 s.
        server = {"url": f"{url}/mcp", "timeout": 15, "connect_timeout": 10, "headers": headers}
        (home / "config.yaml").write_text(config or json.dumps({"mcp_servers": {"solos-memory": server}}))
        self._log_path = home / "stderr.txt"
        with self._log_path.open("w") as log:
            self._process = subprocess.Popen(
                [python, "-P", SCRIPTS / "hermes_client.py"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | {"HERMES_HOME": str(home), "HOME": str(home)},
            )
        try:
            first = self._read()
        except BaseException:
            self._end()
            raise
        self.discovery_s: float = first["seconds"]
        self.names: list[str] = first["tools"]
        self.status: list[dict[str, Any]] = first["status"]

    def _read(self) -> dict[str, Any]:
        """The next line it prints; a client that says nothing in time is ended, which ends the read too."""
        assert self._process.stdout is not None
        limit = threading.Timer(ANSWER_WITHIN_S, self._process.kill)
        limit.start()
        try:
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
            limit.join()
        assert line, f"Hermes ended or said nothing for {ANSWER_WITHIN_S} s:\n{self.log}"
        answered: dict[str, Any] = json.loads(line)
        return answered

    @property
    def log(self) -> str:
        """What it has written to stderr so far, its warnings among it."""
        return self._log_path.read_text()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._read()["answer"]

    @property
    def tools(self) -> set[str]:
        """The names of our tools, without the prefix that Hermes gives them."""
        return {name.removeprefix(prefix) for name in self.names for prefix in PREFIXES if name.startswith(prefix)}

    def _name(self, tool: str) -> str:
        return next(prefix + tool for prefix in PREFIXES if prefix + tool in self.names)

    def schema(self, tool: str) -> dict[str, Any]:
        """The schema that Hermes's model sees."""
        seen: dict[str, Any] = self._ask({"schema": self._name(tool)})
        return seen

    def seen(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What Hermes's model sees of one call: {"result": text}, or {"error": text}."""
        answered: dict[str, Any] = json.loads(self._ask({"tool": self._name(tool), "arguments": arguments}))
        return answered

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Our answer inside what the model sees; Hermes itself must not have called it an error."""
        answered = self.seen(tool, **arguments)
        assert set(answered) == {"result"}, answered
        ours: dict[str, Any] = json.loads(answered["result"])
        return ours

    def close(self) -> None:
        """End it as a gateway ends: it says goodbye to its servers."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
            assert self._process.wait(ANSWER_WITHIN_S) == 0, self.log
        finally:
            self._end()

    def _end(self) -> None:
        """Kill what still runs, and close the pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


@contextlib.contextmanager
def hermes(folder: Path, url: str, profile: str, **headers: str) -> Iterator[Hermes]:
    """A Hermes gateway of a profile; without other headers, X-Agent-Id names the profile."""
    client = Hermes(folder / f"hermes-{profile}", url, headers or {"X-Agent-Id": profile})
    try:
        yield client
    finally:
        client.close()
