"""Which unit of storage answers which message. A new message needs one function here."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from functools import singledispatch
from typing import Any

from actors.messages import (
    CatchUp,
    CheckIndex,
    ForgetShort,
    GetMemory,
    GetShort,
    GetStoreState,
    IsRegistered,
    JoinSegments,
    Message,
    Purge,
    Recall,
    Refresh,
    RemakeIndex,
    RememberEpisodic,
    RememberLong,
    RememberShort,
    Sweep,
    Upkeep,
)
from storage.batch import Write
from storage.errors import NotFound
from storage.reading import ReadingStore
from storage.recalling import Question
from storage.records import Forgotten, Memory, Purged, Remembered, ShortEntries, StoreState, Tier
from storage.state import Request
from storage.write_units import WriteUnits
from storage.writing import WritingStore

WriteUnit = Callable[[WriteUnits, float], Any]


def write_of(message: Message[Any]) -> Write[Any]:
    """The write that a message asks for, with what makes it known when it is sent again."""
    return Write(write_unit(message), _request_of(message))


def _request_of(message: Message[Any]) -> Request | None:
    request_id = getattr(message, "request_id", None)
    if request_id is None:
        return None
    assert isinstance(message, RememberShort | RememberLong | RememberEpisodic)
    content = asdict(message) | {"request_id": None, "operation": type(message).__name__}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).digest()
    return Request(message.agent, request_id, digest, TIER_WRITTEN[type(message)])


TIER_WRITTEN: dict[type[Message[Any]], Tier] = {
    RememberShort: "short",
    RememberLong: "long",
    RememberEpisodic: "episodic",
    ForgetShort: "short",
    Purge: "short",
}
"""The tier that each write changes; statistics of writes are kept by it."""


@singledispatch
def write_unit(message: object) -> WriteUnit:
    """The unit that runs a write inside the writer's transaction, at the instant it is given."""
    raise NotImplementedError(type(message).__name__)


@write_unit.register
def _(message: RememberShort) -> Callable[[WriteUnits, float], Remembered]:
    return lambda units, at_s: units.remember_short(
        at_s, agent=message.agent, key=message.key, value=message.value, ttl_s=message.ttl_s, tags=message.tags
    )


@write_unit.register
def _(message: RememberLong) -> Callable[[WriteUnits, float], Remembered]:
    return lambda units, at_s: units.remember_long(
        at_s,
        agent=message.agent,
        topic=message.topic,
        fact=message.fact,
        source=message.source,
        confidence=message.confidence,
        tags=message.tags,
        session=message.session,
    )


@write_unit.register
def _(message: RememberEpisodic) -> Callable[[WriteUnits, float], Remembered]:
    return lambda units, at_s: units.remember_episode(
        at_s,
        agent=message.agent,
        event_type=message.event_type,
        summary=message.summary,
        details=message.details,
        outcome=message.outcome,
        duration_s=message.duration_s,
        session=message.session,
    )


@write_unit.register
def _(message: ForgetShort) -> Callable[[WriteUnits, float], Forgotten]:
    return lambda units, at_s: units.forget_short(at_s, agent=message.agent, key=message.key)


@write_unit.register
def _(message: Purge) -> Callable[[WriteUnits, float], Purged]:
    return lambda units, at_s: units.purge_short(at_s)


@singledispatch
def upkeep_unit(message: object, store: WritingStore) -> Any:
    """Run an upkeep message on the writer's store, outside of any transaction of its own."""
    raise NotImplementedError(type(message).__name__)


@upkeep_unit.register
def _(message: CatchUp, store: WritingStore) -> bool:
    return store.catch_up()


@upkeep_unit.register
def _(message: Sweep, store: WritingStore) -> bool:
    return store.sweep()


@upkeep_unit.register
def _(message: JoinSegments, store: WritingStore) -> bool:
    return store.join_segments()


@upkeep_unit.register
def _(message: CheckIndex, store: WritingStore) -> bool:
    return store.check_index(message.seed)


@upkeep_unit.register
def _(message: Refresh, store: WritingStore) -> None:
    store.refresh(message.rows)


@upkeep_unit.register
def _(message: RemakeIndex, store: WritingStore) -> None:
    store.remake_broken_index(message.broken)


@upkeep_unit.register
def _(message: Upkeep, store: WritingStore) -> None:
    store.checkpoint()
    store.expire_requests()


@singledispatch
def read_unit(message: object, store: ReadingStore) -> Any:
    """Answer a read on a reader's store. Recall is not here: a reader may have to wait for the index first."""
    raise NotImplementedError(type(message).__name__)


@read_unit.register
def _(message: GetMemory, store: ReadingStore) -> Memory:
    tier, _, row = message.id.partition(":")
    if not -(2**63) <= int(row) < 2**63:
        raise NotFound(f"There is no memory {message.id}: no row id is as large.")
    return store.memory(agent=message.agent, tier=tier, row=int(row), scope=message.scope)  # type: ignore[arg-type]


@read_unit.register
def _(message: GetShort, store: ReadingStore) -> ShortEntries:
    return store.short(
        agent=message.agent,
        owner=message.owner,
        key=message.key,
        after=message.after,
        limit=message.limit,
        scope=message.scope,
    )


@read_unit.register
def _(message: GetStoreState, store: ReadingStore) -> StoreState:
    return store.state(owner=message.owner)


@read_unit.register
def _(message: IsRegistered, store: ReadingStore) -> bool:
    return store.is_registered(message.agent)


def question_of(message: Recall) -> Question:
    """What a recall asks of a reader's store; of the swarm's files it asks the same."""
    return Question(**asdict(message) | {"tiers": tuple(tier for tier in message.tiers if tier != "swarm")})
