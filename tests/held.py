"""A service behind a socket that outlives it, as systemd starts it: file descriptor 3, READY and the watchdog."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from tests.support import STOP_WITHIN_S, eventually, planted

_AS_SYSTEMD = ["bash", "-c", 'exec 3<&"$HELD_FD"; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@"', "bash"]


class Held:
    """What systemd does for lab-memory.socket and lab-memory.service."""

    def __init__(self, folder: Path) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.said: list[dict[str, str]] = []
        """What the service told its manager, message by message."""
        self.log = ""
        self._readers: list[threading.Thread] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify_path = str(folder / "notify")
        self._notified.bind(self._notify_path)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        with contextlib.suppress(OSError):
            while message := self._notified.recv(4_096):
                self.said.append(dict(line.split("=", 1) for line in message.decode().splitlines()))

    def start(self, *flags: str, watchdog_s: float | None = None, fault: str = "", **env: str) -> None:
        """Start the service with the socket as descriptor 3."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("SOLOS_MEMORY_")}
        number = self.listener.fileno()
        environment |= {"NOTIFY_SOCKET": self._notify_path, "HELD_FD": str(number), **env}
        if watchdog_s is not None:
            environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        self.process = subprocess.Popen(
            [*_AS_SYSTEMD, *planted(fault), "serve", *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(number,),
        )
        self._readers.append(threading.Thread(target=self._read, args=(self.process,), daemon=True))
        self._readers[-1].start()

    def _read(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.log += line.decode("utf-8", "replace")

    def heard(self, name: str, beginning: str = "") -> int:
        """How often the service told its manager this."""
        return sum(message.get(name, "\0").startswith(beginning) for message in self.said)

    def wait_for(self, name: str, beginning: str = "", *, times: int = 1, within_s: float = 20.0) -> None:
        """Wait until the service has told its manager this so often."""
        try:
            eventually(lambda: self.heard(name, beginning) >= times, within_s=within_s)
        except AssertionError:
            raise AssertionError(f"it did not say {name}={beginning}: {self.said}\n{self.log}") from None

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        found = []
        for line in self.log.splitlines():
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
        return [line for line in found if line.get("event") == name]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and wait; the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(STOP_WITHIN_S)

    def rest(self, method: str, path: str, body: Any = None, within_s: float = 30.0) -> tuple[int, dict[str, Any]]:
        """(status, body) of one call, on a connection of its own."""
        with httpx2.Client(timeout=within_s) as http:
            response = http.request(method, self.url + path, json=body)
            return response.status_code, response.json()

    def close(self) -> None:
        """End what still runs, and give the socket up."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(STOP_WITHIN_S)
        for reader in self._readers:
            reader.join(5)
        self.listener.close()
        self._notified.shutdown(socket.SHUT_RDWR)
        self._notified.close()


@contextlib.contextmanager
def held_socket() -> Iterator[Held]:
    """A held socket, and whatever runs behind it ended at the end."""
    with tempfile.TemporaryDirectory() as folder:
        held = Held(Path(folder))
        try:
            yield held
        finally:
            held.close()
