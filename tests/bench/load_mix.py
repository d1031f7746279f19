"""Recalls and writes at once over many connections, with a journal of what was acknowledged, and the check of it."""

import contextlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.load_requests import AGENT, SEED
from tests.bench.load_servers import Server
from tests.support import rows

CONNECTIONS = 16
WRITE_SHARE = 0.2
TOPIC = "load-mix"
_JSON = {"Content-Type": "application/json"}


@dataclass
class Mixed:
    """What one connection's calls came to, or all of them together."""

    journal: dict[int, str] = field(default_factory=dict)
    """The fact of each row that was acknowledged, by its id in the table."""
    recall_ms: list[float] = field(default_factory=list)
    write_ms: list[float] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Mixed") -> None:
        """Take in the calls of another connection."""
        self.journal |= other.journal
        self.recall_ms += other.recall_ms
        self.write_ms += other.write_ms
        self.errors += other.errors


def mixed(server: Server, recalls: Sequence[str], seconds: float) -> Mixed:
    """Recall and write, 80 to 20, over CONNECTIONS at once."""
    parts = [Mixed() for _ in range(CONNECTIONS)]
    until = time.monotonic() + seconds
    threads = [
        threading.Thread(target=_ask, args=(server, recalls, number, part, until)) for number, part in enumerate(parts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    whole = Mixed()
    for part in parts:
        whole.add(part)
    return whole


def _ask(server: Server, recalls: Sequence[str], number: int, part: Mixed, until: float) -> None:
    pick = random.Random(SEED + number)
    facts = _facts(number)
    with contextlib.closing(server.connect()) as connection:
        while time.monotonic() < until:
            began = time.perf_counter()
            try:
                if pick.random() < WRITE_SHARE:
                    _write(connection, next(facts), part)
                    part.write_ms.append((time.perf_counter() - began) * 1000)
                else:
                    connection.request("GET", pick.choice(recalls))
                    _answer(connection, http.client.OK)
                    part.recall_ms.append((time.perf_counter() - began) * 1000)
            except (OSError, http.client.HTTPException, _Refused) as error:
                part.errors[str(error) or type(error).__name__] += 1
                connection.close()


def _facts(number: int) -> Iterator[str]:
    count = 0
    while True:
        yield f"mixed fact {count} of connection {number}: the relay answered in {count * 7 % 311} ms"
        count += 1


class _Refused(Exception):
    """An answer that is none of those expected."""


def _write(connection: http.client.HTTPConnection, fact: str, part: Mixed) -> None:
    body = json.dumps({"agent": AGENT, "fact": fact, "topic": TOPIC}).encode()
    connection.request("POST", "/v1/long", body, _JSON)
    row = json.loads(_answer(connection, http.client.CREATED))["id"]
    part.journal[int(row.partition(":")[2])] = fact


def _answer(connection: http.client.HTTPConnection, status: int) -> bytes:
    response = connection.getresponse()
    body = response.read()
    if response.status != status:
        raise _Refused(f"{response.status} {body[:120].decode(errors='replace')}")
    return body


def unlike_the_table(database: Path, journal: dict[int, str]) -> list[str]:
    """Where table and journal differ: acknowledged rows that are not there, and rows that nobody was told of."""
    held = dict(rows(database, "SELECT id, fact FROM memory_longterm WHERE topic = ?", TOPIC))
    lost = [f"lost: {row} {fact}" for row, fact in journal.items() if held.get(row) != fact]
    return lost + [f"unacknowledged: {row} {fact}" for row, fact in held.items() if row not in journal]
