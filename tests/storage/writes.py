"""Short forms of writes and questions for the storage tests."""

from typing import Any

from storage.batch import Outcome, Write
from storage.reading import ReadingStore
from storage.recalling import Question
from storage.state import Request
from storage.writing import WritingStore


def fact(
    agent: str = "mira", text: str = "a fact", *, request_id: str | None = None, digest: bytes = b"1", **fields: Any
) -> Write[Any]:
    """A write of one fact."""
    given = {"topic": None, "source": None, "confidence": None, "tags": ()} | fields
    request = Request(agent, request_id, digest, "long") if request_id else None
    return Write(lambda units, at_s: units.remember_long(at_s, agent=agent, fact=text, **given), request)


def short(
    agent: str = "mira", key: str = "k", value: str = "v", ttl_s: float | None = None, **fields: Any
) -> Write[Any]:
    """A write of one short key."""
    tags = fields.pop("tags", ())
    request_id = fields.pop("request_id", None)
    request = Request(agent, request_id, b"1", "short") if request_id else None
    return Write(
        lambda units, at_s: units.remember_short(at_s, agent=agent, key=key, value=value, ttl_s=ttl_s, tags=tags),
        request,
    )


def episode(agent: str = "mira", summary: str = "did it", **fields: Any) -> Write[Any]:
    """A write of one episode."""
    given = {"event_type": "note", "details": None, "outcome": None, "duration_s": None} | fields
    return Write(lambda units, at_s: units.remember_episode(at_s, agent=agent, summary=summary, **given))


def one(store: WritingStore, write: Write[Any]) -> Any:
    """The reply to a single write, or its error raised."""
    (outcome,) = store.apply([write])
    return reply(outcome)


def reply(outcome: Outcome) -> Any:
    """The reply, or the error raised."""
    if outcome.error is not None:
        raise outcome.error
    return outcome.reply


def ask(reading: ReadingStore, q: str, agent: str = "sol", **fields: Any) -> list[Any]:
    """The results of a recall."""
    question = {
        "agent": agent, "q": q, "k": 5, "scope": "shared", "tiers": ("long", "episodic"), "topic": None, "tags": (),
        "since": None, "until": None, "full": False, "explain": False,
    } | fields  # fmt: skip
    return list(reading.recall(Question(**question), reading.index_lag()).recalled.results)
