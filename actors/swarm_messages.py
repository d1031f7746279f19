"""Messages about the swarm's files: those of agents, and those of the operator's page in its own spelling."""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from actors.messages import (
    Agent,
    FileMessage,
    FileReadMessage,
    RequestId,
    UpkeepMessage,
    not_blank,
    not_bool,
    without_nul,
)
from storage import limits
from storage.swarm.events import EventType
from storage.swarm.layout import Kind
from storage.swarm.records import SwarmFiles, SwarmResults, SwarmWritten

_DEPTH_MAX = 32


def _as_object(value: object) -> object:
    """Models and shells send objects as their JSON."""
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):
            value = json.loads(value)
    if not isinstance(value, dict):
        raise ValueError('must be a JSON object, such as {"state": "REVIEW"}')  # noqa: TRY004 (pydantic's refusal)
    if not _is_flat(value, _DEPTH_MAX):
        raise ValueError(f"is nested more than {_DEPTH_MAX} deep")
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        raise ValueError("holds NaN or Infinity, which JSON has no number for") from None
    return value


def _is_flat(value: object, depth: int) -> bool:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth >= 0 and all(_is_flat(part, depth - 1) for part in below)


Hook = Literal["dispatch", "checkpoint", "handoff-requested", "handoff-written", "resume", "blocked", "complete"]
SearchScope = Literal["worker", "shared", "all"]

Name = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(without_nul)]
"""An id, a day or a file's name, before its own rule is applied."""
Line = Annotated[str, Field(min_length=1, max_length=limits.SOURCE_CHARS_MAX), AfterValidator(without_nul)]
Body = Annotated[str, Field(min_length=1, max_length=limits.DETAILS_CHARS_MAX), AfterValidator(without_nul)]
Detail = Annotated[dict[str, Any], BeforeValidator(_as_object)]
Query = Annotated[str, Field(min_length=1, max_length=limits.QUERY_CHARS_MAX), AfterValidator(not_blank)]
Limit = Annotated[int, Field(ge=1, le=limits.K_MAX), BeforeValidator(not_bool)]
_LIMIT_DEFAULT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmRead(FileReadMessage[SwarmFiles]):
    """Read swarm files: your profile and episodes, any worker's missions and handoffs, shared notes."""

    agent: Agent
    """You, the caller."""
    kind: Kind
    """Which files."""
    worker: Name | None = None
    """Whose; default yours."""
    mission: Name | None = None
    """Which mission."""
    date: Name | None = None
    """Episodes of one day, YYYY-MM-DD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmWrite(FileMessage[SwarmWritten]):
    """Write your swarm memory: mission events, handoffs, episodes, profile pages."""

    agent: Agent
    """You, the author."""
    kind: Kind
    """mission, episodic: an event; handoff, profile, shared: a page."""
    mission: Name | None = None
    """Its mission."""
    event_type: EventType | None = None
    """Default note."""
    summary: Line | None = None
    """One line."""
    content: Body | None = None
    """The rest, Markdown."""
    event: Detail | None = None
    """state, result, decisions[], filesTouched[], commandsRun[], blockers[], nextAction, title, objective."""
    assignment: Name | None = None
    """Its assignment."""
    file: Name | None = None
    """Page of a profile or of shared memory."""
    base_hash: Name | None = None
    """Hash of the page it replaces; without it, content is appended."""
    request_id: RequestId | None = None
    """Makes a retry of an event safe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmSearchFiles(FileReadMessage[SwarmResults]):
    """Search swarm files for words or a phrase."""

    agent: Agent
    """You, the caller."""
    query: Query
    """What to look for."""
    scope: SearchScope = "all"
    """Your own files, shared notes, or both with all missions and handoffs."""
    limit: Limit = _LIMIT_DEFAULT
    """How many results at most."""
    fresh: bool = False
    """See hand edits of this second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRead(FileReadMessage[SwarmFiles]):
    """The operator's page: files of one kind, the newest first."""

    kind: Kind
    """Which files."""
    workerId: Name | None = None
    """Whose; may be left out for shared memory alone."""
    missionId: Name | None = None
    """One mission; without it every mission's summary, every handoff."""
    date: Name | None = None
    """One day of the episodes, YYYY-MM-DD."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageWrite(FileMessage[SwarmWritten]):
    """The operator's page: write an event, a handoff or a page, or make a worker's folders (`scaffold`)."""

    workerId: Name | None = None
    """Whose memory; may be left out for shared memory alone."""
    kind: Kind | None = None
    """What is written; may be left out with `scaffold`."""
    missionId: Name | None = None
    """The mission of an event or a handoff."""
    eventType: EventType | None = None
    """What happened; default note."""
    assignmentId: Name | None = None
    """The assignment."""
    summary: Line | None = None
    """What happened, in one line."""
    content: Body | None = None
    """The rest of it; of a handoff or page, its Markdown."""
    event: Detail | None = None
    """state, result, decisions[], filesTouched[], commandsRun[], blockers[], nextAction, title, objective."""
    title: Line | None = None
    """The mission's title."""
    scaffold: bool = False
    """Make the worker's folders and the three files of its profile that are missing."""
    name: Line | None = None
    """With `scaffold`: the worker's name."""
    role: Line | None = None
    """With `scaffold`: its role."""
    specialty: Line | None = None
    """With `scaffold`: its specialty."""
    model: Line | None = None
    """With `scaffold`: its model."""
    mirrorShared: bool = True
    """Whether a handoff is copied to shared memory."""
    file: Name | None = None
    """The page of a profile (MEMORY.md, SOUL.md, IDENTITY.md) or of shared memory (NAME.md; notes.md)."""
    baseHash: Name | None = None
    """SHA-256 of the page that this replaces; without it the content is appended."""
    requestId: RequestId | None = None
    """Makes a retry of an event safe: the same id and content writes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageSearch(FileReadMessage[SwarmResults]):
    """The operator's page: search the files for words or a phrase."""

    query: Query | None = None
    """What to look for."""
    q: Query | None = None
    """The same, as prompts spell it."""
    workerId: Name | None = None
    """Whose files; without it every worker's."""
    scope: SearchScope = "worker"
    """Files of workers, shared memory, or both."""
    limit: Limit = _LIMIT_DEFAULT
    """How many results at most."""
    fresh: bool = False
    """Look at all files again before: a hand edit of this second is seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageHook(FileMessage[SwarmWritten]):
    """What the swarm's server reports: an event of the hook's type; `handoff-written` writes the handoff, too."""

    hook: Hook
    """What happened."""
    workerId: Name
    """The worker."""
    missionId: Name | None = None
    """The mission; needed by handoff-written."""
    assignmentId: Name | None = None
    """The assignment."""
    summary: Line | None = None
    """What happened, in one line."""
    content: Body | None = None
    """The rest of it; of handoff-written, the handoff's Markdown."""
    event: Detail | None = None
    """state, result, decisions[], filesTouched[], commandsRun[], blockers[], nextAction, title, objective."""
    title: Line | None = None
    """The mission's title."""
    mirrorShared: bool = True
    """Whether a handoff is copied to shared memory."""
    requestId: RequestId | None = None
    """Makes a retry safe: the same id and content writes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowPages(UpkeepMessage[bool]):
    """Bring pages that are due up to their logs; answers True when none is behind."""
