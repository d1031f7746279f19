"""What storage answers with. These records are the replies on every transport; each docstring is their contract."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

Tier = Literal["short", "long", "episodic", "durable"]
RecallTier = Literal["short", "long", "episodic", "durable", "swarm"]
"""Where a recall looks: the tiers of rows, and the swarm's files."""
Scope = Literal["own", "shared"]


class Record:
    """Base of all replies."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remembered(Record):
    """A write that is on disk."""

    id: str
    """The memory's id, `tier:row`, for get_memory."""
    tier: Tier
    """The tier the row went to."""
    agent: str
    """The author."""
    created_at: str
    """When it was written: ISO 8601, UTC."""
    expires_at: str | None = None
    """When a short memory ends; null where it does not."""
    replayed: bool = False
    """True where this request_id had been written before: nothing was written again."""
    degraded_reasons: tuple[str, ...] = ()
    """`index_behind` where the row is on disk but recall may not find it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten(Record):
    """A short memory that is gone."""

    id: str
    """The id it had."""
    agent: str
    """Its owner."""
    key: str
    """Its key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged(Record):
    """The expired short memories that were removed."""

    purged: int
    """How many rows went; none of them was visible any more. What a call has no time for, the next one removes."""
    remaining: int
    """How many short rows are left, all agents together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Also(Record):
    """Another author of the same sentence."""

    agent: str
    """Who wrote it, too."""
    id: str
    """The id of that row."""
    created_at: str | None
    """When: ISO 8601, UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(Record):
    """One memory, as its author claimed it."""

    id: str
    """`tier:row`; of a line in a file `swarm:path:line`."""
    tier: RecallTier
    """Where it is kept."""
    agent: str
    """The author: what the text claims, this agent claims. `(shared memory)` where a shared file names none."""
    text: str
    """The fact, the episode's summary and details, the value, the persona, or a file's line; a preview where `cut`."""
    cut: bool = False
    """True where `text` is only a part: ask with full=true, get_memory, or swarm_read of a file, for the rest."""
    topic: str | None = None
    """What a fact is about."""
    event_type: str | None = None
    """What kind of event an episode was."""
    key: str | None = None
    """The key of a short or durable memory."""
    source: str | None = None
    """Where the author had it from."""
    confidence: float | str | None = None
    """How sure the author was; as stored, even where it is out of range."""
    outcome: str | None = None
    """How an episode ended."""
    duration_s: float | str | None = None
    """How long an episode took, in seconds; as stored."""
    tags: tuple[str, ...] = ()
    """Its tags."""
    created_at: str | None = None
    """ISO 8601, UTC; null where the row has no readable time."""
    expires_at: str | None = None
    """When a short memory ends: ISO 8601, UTC."""
    score: float | None = None
    """How well it fits the question: higher is better, comparable within one answer only."""
    also: tuple[Also, ...] = ()
    """The others who wrote the same sentence; `agent` is its first author."""
    parts: dict[str, float] | None = None
    """What the score is made of, where `explain` asked for it."""
    worker: str | None = None
    """Of a file: the worker whose it is."""
    mission: str | None = None
    """Of a file: its mission."""
    path: str | None = None
    """Of a file: where it lies."""
    line: int | None = None
    """Of a file: the number of the line, from 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalled(Record):
    """What the fleet remembers about a question, best first."""

    degraded: bool
    """True while `degraded_reasons` is not empty."""
    degraded_reasons: tuple[str, ...]
    """Stable codes: `no_embedder`, `index_behind`, `index_rebuilding`; of files `files_behind`, `files_unread`."""
    relaxed: bool
    """True where no memory holds all the words of the question, so that some of them were enough."""
    index_share: float | None = None
    """While the index is rebuilt: the part of the tables that it has followed, 0 to 1."""
    results: tuple[Memory, ...]
    """At most k memories. Empty means that nothing matched, never that something failed."""


def with_reason(recalled: Recalled, reason: str) -> Recalled:
    """The answer with one more degraded reason."""
    return replace(recalled, degraded_reasons=tuple(dict.fromkeys((*recalled.degraded_reasons, reason))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortEntry(Record):
    """One live short memory."""

    id: str
    """`short:row`."""
    agent: str
    """Its owner."""
    key: str
    """Its key."""
    value: str
    """Its value, whole."""
    tags: tuple[str, ...]
    """Its tags."""
    created_at: str | None
    """When this value was written: ISO 8601, UTC."""
    expires_at: str | None
    """When it ends; null where it does not. Reading never extends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortEntries(Record):
    """The live short memories of one owner, by key."""

    owner: str
    """Whose they are."""
    entries: tuple[ShortEntry, ...]
    """Ordered by key."""
    more: int = 0
    """How many further keys there are; ask again with `after` = the last key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts(Record):
    """How many rows each tier holds that the caller may count."""

    short: int
    """Live short rows."""
    long: int
    """Facts that the index has seen."""
    episodic: int
    """Episodes that the index has seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreState(Record):
    """What the storage knows of itself."""

    rows: RowCounts
    """Rows by tier."""
    index_share: float
    """The part of the tables that the search index has followed, 0 to 1."""
    index_rows_behind: int
    """Row ids beyond those that the search index has followed; 0 where it is up to the tables."""
    index_bytes: int
    """The size of the index file."""
    wal_bytes: int
    """The size of the database's write-ahead log."""
    journal_mode: str
    """`wal`, or the mode that the database could not leave."""
    last_backup_at: str | None
    """When the last backup ended that is recorded beside the database: ISO 8601, UTC; null where none is."""
