"""A round of the torture: clients write until the service is killed, and it starts again. How long the starts took."""

import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2

from tests.faults.scale import LONG, scaled
from tests.support import Service, eventually, serving

KILLED_WITHIN_S = scaled(0.4, 1.0)
BEFORE_ANY_ANSWER = 0.2
"""In how many of the rounds the service may die before it has answered anything."""
READY_P95_S = 2.0
"""What is promised: ready again within this time, in 19 of 20 starts."""
ANSWERED_WITHIN_S = 20.0
STRETCHED = """
import os, random, time
from storage.batch import Batch
from storage.state import State
from storage.swarm.telling import Telling
from storage.writing import WritingStore

def stretch(owner, name):
    whole = getattr(owner, name)
    def stretched(*arguments, **options):
        time.sleep(random.uniform(0.0, 0.02))
        return whole(*arguments, **options)
    setattr(owner, name, stretched)

for owner, name in (
    (os, "fsync"), (State, "intend"), (Batch, "settle"), (WritingStore, "_follow"), (Telling, "writes")
):
    stretch(owner, name)
"""
"""A service with a slow disk: the moments between two commits that belong together last long enough to be hit."""


class Stopping(Exception):
    """The service answered that it is shutting down: it has taken nothing."""


GONE = (httpx2.NetworkError, httpx2.ProtocolError, Stopping)
"""What a client sees of a service that is gone. A timeout is none of it: that is a service that hangs."""


class Writing(Protocol):
    """A client that writes. What it does between two kills runs in one thread."""

    def write(self, http: httpx2.Client) -> None:
        """Send one more write. Raises one of GONE when no answer came."""


@contextmanager
def calling(url: str) -> Iterator[httpx2.Client]:
    """An HTTP client for as many threads as there are."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    with httpx2.Client(timeout=ANSWERED_WITHIN_S, base_url=url, limits=limits) as http:
        yield http


def write_until_gone(http: httpx2.Client, client: Writing, answered: threading.Event) -> None:
    """Write until the service is gone; the first answer is told."""
    while True:
        try:
            client.write(http)
        except GONE:
            return
        answered.set()


@contextmanager
def writing(service: Service, clients: Sequence[Writing]) -> Iterator[threading.Event]:
    """All clients write while the block runs, which must end the service; what they found wrong is raised.

    The event is set when the first of them has an answer. A block that fails ends the service: no client writes on.
    """
    answered = threading.Event()
    with calling(service.url) as http, ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(write_until_gone, http, client, answered) for client in clients]
        try:
            yield answered
        finally:
            if service.process.poll() is None:
                service.kill()
        for client in running:
            client.result(ANSWERED_WITHIN_S * 2)


def run_and_kill(service: Service, clients: Sequence[Writing], chance: random.Random) -> None:
    """All clients write until the service is killed: some time after the first answer, or at times before it."""
    with writing(service, clients) as answered:
        if chance.random() < BEFORE_ANY_ANSWER:
            threading.Event().wait(chance.uniform(0.0, KILLED_WITHIN_S / 4))
        else:  # on a busy machine the first calls take long
            answered.wait(ANSWERED_WITHIN_S)
            threading.Event().wait(chance.uniform(0.0, KILLED_WITHIN_S))
        service.kill()


class Starts:
    """Starts of the service on one database, and how long each took until it was ready."""

    def __init__(self, database: Path, *, same_port: bool = False, **options: Any) -> None:
        """`options` are those of `serving`, unless a start has its own; with `same_port` all take that of the first."""
        self._database = database
        self._same_port = same_port
        self._options = options
        self._took_s: list[float] = []

    @contextmanager
    def serving(self, **options: Any) -> Iterator[Service]:
        """A service that is ready; the time from the start of its process is noted, unless it is a stretched one."""
        options = self._options | options
        began_s = time.monotonic()
        with serving(self._database, **options) as service:
            eventually(lambda: service.rest("GET", "/health/ready")[0] == 200)
            if STRETCHED not in options.get("fault", ""):
                self._took_s.append(time.monotonic() - began_s)
            if self._same_port:
                self._options["port"] = service.port
            yield service

    def kill_one_at(self, share: float, **options: Any) -> None:
        """Start a service and kill it after a share of the time that the last start took, ready or not."""
        service = Service(self._database, **(self._options | options))
        threading.Event().wait(share * self._took_s[-1])
        service.kill()

    def check(self) -> None:
        """Print how long they took; the long form holds them to the promise."""
        took_s = sorted(self._took_s)
        p50, p95 = (took_s[math.ceil(share * len(took_s)) - 1] for share in (0.5, 0.95))
        print(
            f"{len(took_s)} starts at full speed: ready after p50 {p50:.2f} s, p95 {p95:.2f} s, max {took_s[-1]:.2f} s"
        )
        assert not LONG or p95 <= READY_P95_S
