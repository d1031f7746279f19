"""The service's stores in this process, as the benchmarks use them: the same units that its actors run, no HTTP."""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.messages import Recall
from actors.units import question_of
from storage import limits
from storage.batch import Write
from storage.collection import collect_seldom
from storage.paths import Paths
from storage.reading import Found, ReadingStore
from storage.writing import WritingStore

CATCH_UP_S = 2.0


@dataclass(frozen=True)
class Stores:
    """A database opened as the service opens it: one writer's store and one reader's."""

    paths: Paths
    writing: WritingStore
    reading: ReadingStore
    asker: str
    """A registered agent to ask and write as."""

    def recall(self, agent: str, q: str, **fields: Any) -> Found:
        """Answer a recall as a reader does: look at the index's lag, then ask. `fields` are those of the message."""
        question = question_of(Recall(agent=agent, q=q, **fields))
        return self.reading.recall(question, self.reading.index_lag())

    def write_all(self, writes: Sequence[Write[Any]]) -> list[Any]:
        """Write everything in batches and return the replies in order; the first error is raised."""
        replies: list[Any] = []
        while len(replies) < len(writes):
            batch = writes[len(replies) : len(replies) + limits.BATCH_MESSAGES_MAX]
            for outcome in self.writing.apply(batch):
                if outcome.error is not None:
                    raise outcome.error
                replies.append(outcome.reply)
        return replies

    def catch_up(self, shown: Callable[[float], None] = lambda _seconds: None) -> float:
        """Index whatever the tables hold; the seconds that it took. `shown` is called with the seconds so far."""
        began = time.perf_counter()
        while not self.writing.catch_up(CATCH_UP_S):
            shown(time.perf_counter() - began)
        return time.perf_counter() - began


@contextlib.contextmanager
def opened(database: Path) -> Iterator[Stores]:
    """Both stores over a database that has agents, closed at the end."""
    collect_seldom()
    paths = Paths(database)
    with contextlib.closing(WritingStore(paths)) as writing, contextlib.closing(ReadingStore(paths)) as reading:
        yield Stores(paths, writing, reading, reading.registered()[0])


def ids_of(found: Found) -> list[str]:
    """The ids of a recall's results, best first. Authors of the same sentence count as results of their own."""
    ids = []
    for memory in found.recalled.results:
        ids.append(memory.id)
        ids += [other.id for other in memory.also]
    return ids


def row_ids(gold: Sequence[str]) -> list[str]:
    """The service's ids of the rows that gen_fleet.py calls L1 and E1."""
    tiers = {"L": "long", "E": "episodic"}
    return [f"{tiers[row[0]]}:{row[1:]}" for row in gold]


def episode(agent: str, summary: str, session: str | None) -> Write[Any]:
    """A write of one episode that is nothing but its text, author and session."""
    given = {"event_type": None, "details": None, "outcome": None, "duration_s": None, "session": session}
    return Write(lambda units, at_s: units.remember_episode(at_s, agent=agent, summary=summary, **given))


def fact(agent: str, text: str) -> Write[Any]:
    """A write of one fact that is nothing but its text and author."""
    given = {"topic": None, "source": None, "confidence": None, "tags": ()}
    return Write(lambda units, at_s: units.remember_long(at_s, agent=agent, fact=text, **given))
