"""A fleet of real a2a-sdk agents on loopback, and the sweep that asks each of them for an acknowledgement."""

import contextlib
import os
import random
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tests.acceptance.clients import SCRIPTS, _needed
from tests.support import eventually

START_WITHIN_S = 60.0
ANSWER_WITHIN_S = 10.0
VERSIONS = ("1.0", "0.3")
"""The versions of the protocol that each agent is asked in."""


def a2a_python() -> Path:
    """The Python of the venv that holds the a2a-sdk."""
    return _needed("SOLOS_TEST_A2A", ".cache/a2a/bin/python", "the Python of the a2a-sdk's venv")


def free_range(count: int) -> list[int]:
    """Consecutive ports that are free now, below those that the kernel hands out by itself."""
    for _ in range(200):
        first = random.randint(20_000, 30_000)
        ports = list(range(first, first + count))
        if all(map(_is_free, ports)):
            return ports
    raise AssertionError(f"no {count} consecutive free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextlib.contextmanager
def hung(port: int = 0) -> Iterator[int]:
    """A listener that takes connections and never answers; its port."""
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
        yield int(listener.getsockname()[1])


def _message_1_0(text: str) -> dict[str, Any]:
    return {"role": "ROLE_USER", "messageId": uuid.uuid4().hex, "parts": [{"text": text}]}


def _message_0_3(text: str) -> dict[str, Any]:
    part = {"kind": "text", "text": text}
    return {"kind": "message", "role": "user", "messageId": uuid.uuid4().hex, "parts": [part]}


@dataclass(frozen=True)
class Ack:
    """One agent's answer in one version of the protocol."""

    port: int
    version: str
    status: int
    text: str
    seconds: float


def ask(http: httpx2.Client, port: int, version: str, prompt: str) -> Ack:
    """Send an agent one message; a refused connection is no answer, and raises."""
    method, message = ("SendMessage", _message_1_0) if version == "1.0" else ("message/send", _message_0_3)
    call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"message": message(prompt)}}
    began = time.perf_counter()
    response = http.post(f"http://127.0.0.1:{port}/", json=call, headers={"A2A-Version": version})
    seconds = time.perf_counter() - began
    answered = response.json()
    assert "error" not in answered, answered
    result = answered["result"]
    parts = result["message"]["parts"] if version == "1.0" else result["parts"]
    return Ack(port, version, response.status_code, "\n".join(part["text"] for part in parts), seconds)


class Agents:
    """Agents of a fleet, each a process on a port of its own, that share a spool."""

    def __init__(self, ports: dict[int, str], url: str, folder: Path, *, skip_s: float) -> None:
        self.ports = ports
        self._folder = folder
        self._environment = os.environ | {"SOLOS_MEMORY_URL": url, "SOLOS_MEMORY_SPOOL": str(folder / "spool")}
        self._skip_s = skip_s
        self._processes: list[subprocess.Popen[bytes]] = []
        self._http = httpx2.Client(timeout=ANSWER_WITHIN_S)
        self.prompts: list[str] = []
        """Every prompt that an agent was sent; each is one turn."""

    @property
    def spool(self) -> Path:
        """The folder of spooled episodes."""
        return self._folder / "spool"

    def start(self) -> None:
        """Start them, and wait until each shows its card."""
        for port, agent in self.ports.items():
            self._start(port, agent, "--agent", agent, "--port", str(port))
        for port, agent in self.ports.items():
            eventually(lambda port=port: self._shows_card(port), START_WITHIN_S)  # type: ignore[misc]
            assert self.card(port)["name"] == agent

    def start_plain(self, port: int) -> None:
        """Start one echo more, without a memory."""
        self._start(port, "plain", "--plain", str(port))
        eventually(lambda: self._shows_card(port), START_WITHIN_S)

    def _start(self, port: int, name: str, *arguments: str) -> None:
        with self._log(port).open("wb") as log:
            self._processes.append(
                subprocess.Popen(
                    [a2a_python(), SCRIPTS / "a2a_agent.py", "--skip-s", str(self._skip_s), *arguments],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environment,
                )
            )

    def _log(self, port: int) -> Path:
        return self._folder / f"{port}.log"

    def log(self, port: int) -> str:
        """What an agent has logged."""
        return self._log(port).read_text()

    def _shows_card(self, port: int) -> bool:
        ended = [process for process in self._processes if process.poll() is not None]
        assert not ended, "\n".join(self.log(port) for port in self.ports)
        try:
            return bool(self.card(port))
        except httpx2.TransportError:
            return False

    def card(self, port: int) -> dict[str, Any]:
        """An agent's card."""
        card: dict[str, Any] = self._http.get(f"http://127.0.0.1:{port}/.well-known/agent-card.json").json()
        return card

    def turn(self, port: int, version: str, prompt: str) -> Ack:
        """One turn of an agent with a memory."""
        self.prompts.append(prompt)
        return ask(self._http, port, version, prompt)

    def plain_turn(self, port: int, version: str) -> Ack:
        """One turn of the echo without a memory."""
        return ask(self._http, port, version, "plain")

    def sweep(self, name: str) -> list[Ack]:
        """One turn of each agent in each version, one after the other."""
        return [ack for port in self.ports for ack in self._turns(port, name)]

    def sweep_at_once(self, name: str) -> list[Ack]:
        """The same with all agents at once, where each may take its time."""
        with ThreadPoolExecutor(len(self.ports)) as threads:
            return [ack for acks in threads.map(lambda port: self._turns(port, name), self.ports) for ack in acks]

    def _turns(self, port: int, name: str) -> list[Ack]:
        prompt = f"The {name} sweep asks port {port} in version"
        return [self.turn(port, version, f"{prompt} {version}.") for version in VERSIONS]

    def close(self) -> None:
        """End every process."""
        self._http.close()
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(ANSWER_WITHIN_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def agents(ports: dict[int, str], url: str, folder: Path, *, skip_s: float) -> Iterator[Agents]:
    """A fleet that ends with the block."""
    fleet = Agents(ports, url, folder, skip_s=skip_s)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.close()
