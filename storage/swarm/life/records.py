"""What a worker's life answers with, and bounds of what is asked. Imports nothing heavy: messages are made of it."""

from dataclasses import dataclass
from typing import Final, Literal

from storage.swarm.records import FileRecord

PartName = Literal["identity", "soul", "memory", "runtime", "summary", "handoff", "episodes"]
RenewalStep = Literal["request", "written", "resume"]
RenewalState = Literal["requested", "written", "resumed"]

BUDGET_CHARS: Final = 16_000
"""Of all parts of a resume and its prompt, where the caller names no other: half of what a model is shown of files."""
BUDGET_CHARS_MIN: Final = 2_000
BUDGET_CHARS_MAX: Final = 48_000
HANDOFF_TIMEOUT_S: Final = 600
"""How long a worker has for its handoff where the request names no other time: it may be in the middle of a turn."""
HANDOFF_TIMEOUT_S_MAX: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumePart(FileRecord):
    """A part of what a worker resumes with."""

    name: PartName
    """Which part."""
    path: str
    """The file."""
    updatedAt: str
    """When it was last written: ISO 8601, UTC."""
    hash: str
    """SHA-256 of the whole file; empty where it is too large to be read whole."""
    content: str
    """What it says: of runtime.json the present, of a day's episodes those of the mission."""
    cut: bool = False
    """Whether older lines were left out for the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPart(FileRecord):
    """A part that is not there."""

    name: PartName
    """Which part."""
    reason: str
    """Why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resume(FileRecord):
    """What a worker needs to go on, in the order in which it is to be read."""

    workerId: str
    """Whose."""
    missionId: str | None
    """The mission that is resumed; null where the worker is at none."""
    assignmentId: str | None
    """The assignment that runtime.json names."""
    prompt: str
    """The whole in a few lines, for the worker's first turn."""
    parts: tuple[ResumePart, ...]
    """Identity, soul, memory; runtime; the mission's summary; its latest handoff; its recent episodes by day."""
    missing: tuple[MissingPart, ...]
    """The parts that are not there."""
    chars: int
    """The length of the prompt and of all contents."""
    budget: int
    """What that is bounded by."""
    pagesBehind: bool = False
    """True while pages do not show events yet that are in events.jsonl."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewed(FileRecord):
    """Where a renewal stands."""

    workerId: str
    """Whose."""
    missionId: str
    """The mission that it goes on with."""
    state: RenewalState
    """What has been done."""
    at: str
    """When: ISO 8601, UTC."""
    requestedAt: str
    """When the handoff was requested."""
    dueAt: str
    """When the wait for the handoff ends."""
    handoffPath: str | None = None
    """The handoff, once it is written."""
    handoffHash: str | None = None
    """SHA-256 of it; resume on this one, or not at all."""
    resume: Resume | None = None
    """With state `resumed`: what the worker goes on with."""
    replayed: bool = False
    """True where this step had been done before: nothing was written again."""
    degradedReasons: tuple[str, ...] = ()
    """`pages_behind`: it is on disk, but a page does not show it yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Promoted(FileRecord):
    """A lesson that MEMORY.md holds now."""

    workerId: str
    """Whose memory it is."""
    path: str
    """The page."""
    heading: str
    """The heading that it stands under; empty where it stands above all."""
    line: int
    """The number of its line, from 1."""
    action: Literal["promoted", "kept"]
    """`kept`: the page said so already, and was not written."""
    hash: str
    """SHA-256 of the page with it."""
    degradedReasons: tuple[str, ...] = ()
    """None so far: what is answered is on disk, and no other page follows from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Archived(FileRecord):
    """A mission that is in the shared archive, whole and durably."""

    missionId: str
    """The mission."""
    path: str
    """The archive's folder; in it, a folder of each worker."""
    manifestPath: str
    """The list of its files, with their sizes and hashes."""
    files: int
    """How many there are; the manifest is not counted."""
    bytes: int
    """Of these files together."""
    workers: tuple[str, ...]
    """Who took part."""
    hash: str
    """SHA-256 of the manifest."""
    replayed: bool
    """True where all of it was there already: nothing was written."""
    conflicts: int = 0
    """How many versions of files that were changed in the archive lie beside them, for a person to look at."""
    lost: int = 0
    """How many files an earlier manifest had, and neither the archive nor a worker has any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified(FileRecord):
    """An archive whose files are all there, each as its manifest says, and no other."""

    missionId: str
    """The mission."""
    path: str
    """The archive's folder."""
    manifestPath: str
    """The list that it was compared with."""
    files: int
    """How many files were read."""
    bytes: int
    """Of these files together."""
    workers: tuple[str, ...]
    """Who took part."""
    hash: str
    """SHA-256 of the manifest."""
    archivedAt: str
    """When the manifest was written: ISO 8601, UTC."""
    conflicts: int = 0
    """How many versions of files that were changed in the archive lie beside them; not of the mission."""
    lost: int = 0
    """How many files an earlier manifest had, and neither the archive nor a worker has any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason(FileRecord):
    """A line that says why a worker fits."""

    path: str
    """The file: swarm.yaml, or one of the worker's."""
    line: int
    """Its number in the file, from 1."""
    text: str
    """The line; of a long one, what is around its first hit."""
    words: tuple[str, ...]
    """The words of the task that it holds, in the task's order, as the task has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendedWorker(FileRecord):
    """A worker that fits."""

    workerId: str
    """Who."""
    name: str | None
    """As the roster calls it; null where that does not."""
    role: str | None
    """Its role there."""
    score: float
    """How well it fits, from 0 to 1; to compare workers for one task, not tasks."""
    matched: float
    """The share of the task's words that its roster entry and memory hold, from 0 to 1."""
    reasons: tuple[Reason, ...]
    """At most 3, what counts most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommended(FileRecord):
    """The workers that fit a task, best first."""

    workers: tuple[RecommendedWorker, ...]
    """Empty means that nobody holds a word of the task."""
    words: int
    """How many words the task has; stop words, and words that only ask for work, are none."""
    considered: int
    """How many workers were compared: those of the roster, and those that have files."""
    behind: bool = False
    """True while files are still being read: some may not have counted."""
    degradedReasons: tuple[str, ...] = ()
    """`roster_unread`: swarm.yaml is there and cannot be read; memory alone has counted."""
