"""Clients that behave badly on their connections, and what a service holds meanwhile and afterwards."""

import contextlib
import os
import socket
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.faults import planting
from tests.faults.test_traps_http import _unread_bytes, request
from tests.support import Service, cpu_s, eventually, family, rss_bytes

_MIB = 1_048_576


# --- what a service holds ---


async def count_tasks(path: str) -> None:
    """Write how many tasks live, ten times a second, until cancelled."""
    while True:
        new = Path(f"{path}.new")
        new.write_text(str(trio.lowlevel.current_statistics().tasks_living))
        new.replace(path)
        await trio.sleep(0.1)


def counting_tasks(path: Path) -> str:
    """The Python that plants the counter."""
    return planting.fault("sockets", "count_tasks", path)


@dataclass(frozen=True, slots=True)
class Held:
    """What a service holds at a moment."""

    descriptors: int
    threads: int
    tasks: int
    children: int
    rss_bytes: int

    def __str__(self) -> str:
        """One line, for the figures that a test prints."""
        counts = f"{self.descriptors} descriptors, {self.threads} threads, {self.tasks} tasks, {self.children} children"
        return f"{counts}, {self.rss_bytes / _MIB:.0f} MiB"


def held_by(service: Service, tasks: Path) -> Held:
    """What a service holds now; its tasks at most 0.1 s ago."""
    process = Path("/proc") / str(service.process.pid)
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    return Held(
        descriptors=len(os.listdir(process / "fd")),
        threads=int(status["Threads"]),
        tasks=int(tasks.read_text()),
        children=len(family(service.process.pid)) - 1,
        rss_bytes=rss_bytes(service.process.pid),
    )


# --- connections ---


@contextlib.contextmanager
def connections(service: Service, count: int) -> Iterator[list[socket.socket]]:
    """Connections on which nothing is asked."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=10)) for _ in range(count)
        ]


def vanish(connection: socket.socket) -> None:
    """Be gone without a word of farewell: a reset, as from a client whose machine was switched off and on."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def answer_of(connection: socket.socket) -> bytes:
    """What comes until the service closes; what came before a reset."""
    received = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65_536):
            received += part
    return received


def send_until_refused(
    connection: socket.socket, head: bytes, part: bytes, within_s: float = 10.0
) -> tuple[int, bytes]:
    """Send a head and then a part again and again, without an end; (parts sent, the answer)."""
    sent, until_s = 0, time.monotonic() + within_s
    connection.settimeout(0.01)
    received = b""
    with contextlib.suppress(ConnectionError):
        connection.sendall(head)
        while not received and time.monotonic() < until_s:
            connection.sendall(part)
            sent += 1
            with contextlib.suppress(TimeoutError):
                received = connection.recv(65_536)
    connection.settimeout(within_s)
    return sent, received or answer_of(connection)


def trickle(connection: socket.socket, part: bytes) -> bytes:
    """Send the same part ten times a second until the service answers or closes; what it says."""
    received = b""
    connection.settimeout(0.1)
    until_s = time.monotonic() + 8
    while time.monotonic() < until_s:
        try:
            connection.sendall(part)
            received += (arrived := connection.recv(65_536))
            if not arrived:
                return received
        except TimeoutError:
            continue
        except ConnectionError:
            return received
    raise AssertionError("the connection was kept")


@contextlib.contextmanager
def deaf_clients(service: Service, count: int, path: str = "/openapi.json", asked: int = 300) -> Iterator[None]:
    """Clients that ask much and read nothing, from the moment on when the service can send them no more."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.socket()) for _ in range(count)]
        for client in clients:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", service.port))
            client.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                client.sendall(request("GET", path) * asked)
        eventually(lambda: all(_unread_bytes(client) for client in clients), within_s=20)
        before_s = [0.0]

        def stuck() -> bool:
            began_s, before_s[0] = before_s[0], cpu_s(service.process.pid)
            time.sleep(0.25)
            return cpu_s(service.process.pid) - began_s < 0.1

        eventually(stuck, within_s=30)
        yield
