"""What the swarm's files answer with. The old front end's page reads these names, so they are in its spelling."""

from dataclasses import dataclass
from typing import Any, ClassVar

from storage.swarm.layout import Kind


class FileRecord:
    """Base of all replies about files."""

    __slots__ = ()
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmFile(FileRecord):
    """One file."""

    name: str
    """Its name below `path`."""
    path: str
    """Where it lies."""
    content: str
    """What it holds; where `cut`, only its beginning, and of events.jsonl its end."""
    hash: str
    """SHA-256 of the whole file: the `baseHash` of a write that replaces it. Empty where that is too large."""
    updatedAt: str
    """When it was last written: ISO 8601, UTC."""
    cut: bool = False
    """Whether `content` is not the whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmFiles(FileRecord):
    """Files of one kind, the newest first."""

    workerId: str | None
    """Whose they are; null for shared memory of all."""
    kind: Kind
    """What was asked for."""
    root: str
    """The folder that holds all of it: the worker's memory, or the shared one."""
    path: str
    """The folder that holds the files."""
    files: tuple[SwarmFile, ...]
    """Empty where nothing is there; the folder need not exist."""
    omitted: int = 0
    """How many older files are not shown."""
    pagesBehind: bool = False
    """True while pages do not show events yet that are in events.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmWritten(FileRecord):
    """What is on disk now."""

    workerId: str | None
    """Whose memory was written; null for shared memory."""
    kind: Kind
    """What was written."""
    action: str | None = None
    """`scaffolded`, `replaced` or `appended`, where no event was written."""
    eventType: str | None = None
    """The event's type."""
    at: str | None = None
    """The event's instant: ISO 8601, UTC."""
    missionId: str | None = None
    """The mission."""
    path: str | None = None
    """The page that was written."""
    hash: str | None = None
    """SHA-256 of the page now."""
    localPath: str | None = None
    """The worker's copy of a handoff."""
    sharedPath: str | None = None
    """The shared copy of a handoff."""
    replayed: bool = False
    """True where this requestId had been written before: nothing was written again."""
    degradedReasons: tuple[str, ...] = ()
    """It is on disk, but `pages_behind`: a page does not show it yet; `episode_owed`: it is no episode yet;
    `roster_unread`: a scaffold could not read swarm.yaml, and knows no roles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmHit(FileRecord):
    """A line that answers a search."""

    path: str
    """The file."""
    line: int
    """Its number in the file, from 1."""
    score: float
    """Higher is better: a phrase before many of the words before few, the newer first where they are equal."""
    snippet: str
    """The line and what is around it."""
    updatedAt: str
    """When the file was last written: ISO 8601, UTC."""
    matched: float
    """The share of the question's words that the file holds: above 0, at most 1."""
    workerId: str | None = None
    """Whose memory it is, or who left it in shared memory; null for what is of all."""
    missionId: str | None = None
    """The mission whose file it is; null for any other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmResults(FileRecord):
    """What a search in the files found, best first."""

    results: tuple[SwarmHit, ...]
    """Empty means that nothing matched, never that something failed."""
    scanned: int
    """How many files the search covers."""
    behind: bool = False
    """True while files are still being read: some may be missing from the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoteAnswer(FileRecord):
    """What a command on a worker's notes answers."""

    workerId: str
    """Whose notes."""
    text: str
    """What Claude's memory tool would answer."""
