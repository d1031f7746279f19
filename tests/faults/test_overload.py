"""More than there is room for, and the end of the service in the middle of writes."""

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
import trio.testing

from actors.errors import MailboxFull
from actors.mailbox import Mailbox
from actors.messages import RememberLong
from tests.faults.foreign import ForeignProcess
from tests.support import Service, eventually, rows, serving

BOUND = 4
SMALL_MAILBOX = f"from storage import limits; limits.WRITER_MAILBOX_MAX = {BOUND}"


async def test_full_mailbox_answers_at_once(autojump_clock: trio.testing.MockClock) -> None:
    """On trio's own clock: not a moment passes."""
    mailbox = Mailbox("writer", BOUND)
    for _ in range(BOUND):
        mailbox.post(RememberLong(agent="sol", fact="x"), within_s=12)
    began = trio.current_time()
    with pytest.raises(MailboxFull):
        await mailbox.ask(RememberLong(agent="sol", fact="one too many"), within_s=12)
    assert trio.current_time() == began
    mailbox.close()


def test_overload_is_an_answer(database: Path) -> None:
    """One write in hand, four in the mailbox: the next is refused at once, and the five are not lost."""
    with serving(database, fault=SMALL_MAILBOX) as service, ForeignProcess(database) as other:
        other.hold(2.0)
        with ThreadPoolExecutor(BOUND + 1) as threads:
            first = threads.submit(_status, service, "in hand")
            eventually(lambda: _in_flight(service) == 1 and _depth(service) == 0)
            queued = [threads.submit(_status, service, f"queued {number}") for number in range(BOUND)]
            eventually(lambda: _depth(service) == BOUND)
            began_s = time.monotonic()
            answer = service.http.post(f"{service.url}/v1/long", json={"agent": "sol", "fact": "one too many"})
            is_error, body = service.mcp("remember_long", {"agent": "sol", "fact": "one too many"})
            assert time.monotonic() - began_s < 0.5
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overloaded")
            assert answer.headers["Retry-After"] == "1"
            assert (is_error, body["error"]["code"]) == (True, "overloaded")
            assert service.rest("GET", "/v1/recall", agent="sol", q="hand")[0] == 200
            statuses = [first.result(), *(write.result() for write in queued)]
    acknowledged = statuses.count(201)
    assert acknowledged >= BOUND, statuses  # the janitor may have taken one place
    assert rows(database, "SELECT count(*) FROM memory_longterm") == [(acknowledged,)]


def _status(service: Service, fact: str) -> int:
    return service.rest("POST", "/v1/long", {"agent": "sol", "fact": fact})[0]


def _depth(service: Service) -> int:
    return int(service.stats()["actors"]["writer"]["depth"])


def _in_flight(service: Service) -> int:
    return int(service.stats()["writes"]["long"]["in_flight"])


@pytest.mark.parametrize("locked", [False, True], ids=["at full speed", "behind a foreign lock"])
def test_sigterm_during_writes_loses_nothing(database: Path, locked: bool) -> None:
    """The service ends within 10 s with exit code 0; what it acknowledged is on disk, once."""
    acknowledged: list[str] = []
    numbers = itertools.count()
    with serving(database) as service, ForeignProcess(database) as other, ThreadPoolExecutor(4) as threads:
        writers = [threads.submit(_write_until_gone, service.url, numbers, acknowledged) for _ in range(4)]
        eventually(lambda: len(acknowledged) > 20)
        if locked:
            other.hold(1.5)
            threading.Event().wait(0.2)
        began_s = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began_s < 10
        for writer in writers:
            writer.result(10)
        assert service.events("stopped")
    on_disk = [fact for (fact,) in rows(database, "SELECT fact FROM memory_longterm")]
    assert len(on_disk) == len(set(on_disk))
    assert set(acknowledged) <= set(on_disk)
    assert len(set(on_disk) - set(acknowledged)) <= 4, (
        "at most the last write of each client was left without its answer"
    )


def _write_until_gone(url: str, numbers: "itertools.count[int]", acknowledged: list[str]) -> None:
    """Write until the service refuses or is gone."""
    with httpx2.Client(timeout=20) as http:
        while True:
            fact = f"fact {next(numbers)}"
            try:
                answer = http.post(f"{url}/v1/long", json={"agent": "sol", "fact": fact})
            except httpx2.TransportError:
                return
            if answer.status_code != 201:
                assert answer.status_code == 503, answer.text
                return
            acknowledged.append(fact)
