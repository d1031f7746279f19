"""Messages of a turn's start and a worker's life: those of agents, and of the operator's page, which spells its own."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from actors.messages import Agent, FileMessage, FileReadMessage, ReadMessage, RequestId, as_list, not_blank, not_bool
from actors.swarm_messages import Body, Detail, Line, Name
from storage import briefing, limits
from storage.briefing import Briefing
from storage.swarm.life.records import (
    BUDGET_CHARS,
    BUDGET_CHARS_MAX,
    BUDGET_CHARS_MIN,
    HANDOFF_TIMEOUT_S,
    HANDOFF_TIMEOUT_S_MAX,
    Archived,
    Promoted,
    Recommended,
    RenewalStep,
    Renewed,
    Resume,
    Verified,
)
from storage.swarm.records import NoteAnswer

NOTE_CHARS_MAX = 262_144
NoteCommand = Literal["create", "str_replace", "insert", "delete", "rename"]

Budget = Annotated[int, Field(ge=BUDGET_CHARS_MIN, le=BUDGET_CHARS_MAX), BeforeValidator(not_bool)]
BriefingBudget = Annotated[
    int, Field(ge=briefing.BUDGET_CHARS_MIN, le=briefing.BUDGET_CHARS_MAX), BeforeValidator(not_bool)
]
Task = Annotated[str, Field(min_length=1, max_length=limits.QUERY_CHARS_MAX), AfterValidator(not_blank)]
NotePath = Annotated[str, Field(min_length=1, max_length=4_096)]
NoteText = Annotated[str, Field(max_length=NOTE_CHARS_MAX)]
ViewRange = Annotated[tuple[int, int], BeforeValidator(as_list)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Brief(ReadMessage[Briefing]):
    """All you need at the start of a turn: persona, short keys, facts, what others did lately, your mission."""

    agent: Agent
    """You, the caller."""
    q: Annotated[str, Field(max_length=limits.QUERY_CHARS_MAX), AfterValidator(not_blank)] | None = None
    """The prompt, or what the turn is about."""
    budget: BriefingBudget = briefing.BUDGET_CHARS
    """Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmResume(FileReadMessage[Resume]):
    """What you need to go on with your mission: profile, summary, latest handoff, recent episodes."""

    agent: Agent
    """You, the worker."""
    mission: Name | None = None
    """Default: that of your runtime.json."""
    budget: Budget = BUDGET_CHARS
    """Characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmNotes(FileReadMessage[NoteAnswer]):
    """View one of your notes, or list them, as Claude's memory tool does."""

    agent: Agent
    """You, the worker."""
    path: NotePath = "/memories"
    """/memories, or a file or folder below it."""
    view_range: ViewRange | None = None
    """First and last line, from 1; -1 for the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwarmEditNotes(FileMessage[NoteAnswer]):
    """Change your notes by a command of Claude's memory tool."""

    agent: Agent
    """You, the worker."""
    command: NoteCommand
    """What to do; each has fields of its own."""
    path: NotePath | None = None
    """/memories/…; of all commands but rename."""
    file_text: NoteText = ""
    """Of create: the whole text."""
    old_str: NoteText | None = None
    """Of str_replace: what is there exactly once."""
    new_str: NoteText = ""
    """Of str_replace: what takes its place."""
    insert_line: Annotated[int, BeforeValidator(not_bool)] | None = None
    """Of insert: the line behind which it goes; 0 for the beginning."""
    insert_text: NoteText = ""
    """Of insert: the text."""
    old_path: NotePath | None = None
    """Of rename."""
    new_path: NotePath | None = None
    """Of rename: what is not there yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageResume(FileReadMessage[Resume]):
    """The operator's page: what a worker needs to go on, and the prompt for its first turn."""

    workerId: Name
    """The worker."""
    missionId: Name | None = None
    """Default: the mission of its runtime.json."""
    budget: Budget = BUDGET_CHARS
    """Of all parts together, in characters; the newest is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRenew(FileMessage[Renewed]):
    """The operator's page: renew a worker, step by step: a handoff is requested, written, and resumed from."""

    workerId: Name
    """The worker."""
    step: RenewalStep
    """`request` a handoff; `written`: here it is; `resume` from it."""
    missionId: Name | None = None
    """Default: the mission of its runtime.json."""
    content: Body | None = None
    """With `written`: the handoff's Markdown."""
    handoffHash: Name | None = None
    """With `resume`: the hash of the handoff that was read; it resumes on that one or not at all."""
    timeoutS: Annotated[float, Field(gt=0, le=HANDOFF_TIMEOUT_S_MAX), BeforeValidator(not_bool)] = HANDOFF_TIMEOUT_S
    """With `request`: how long the handoff is awaited, in seconds."""
    budget: Budget = BUDGET_CHARS
    """With `resume`: of all parts together, in characters."""
    assignmentId: Name | None = None
    """The assignment."""
    summary: Line | None = None
    """What the step's event says, in one line."""
    event: Detail | None = None
    """More of the step's event."""
    mirrorShared: bool = True
    """With `written`: whether it is copied to shared memory."""
    requestId: RequestId | None = None
    """Makes a retry safe: the same id and content writes once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePromote(FileMessage[Promoted]):
    """The operator's page: put a lesson under its heading of a worker's MEMORY.md, once."""

    workerId: Name
    """The worker."""
    lesson: Line
    """One line, understandable by itself."""
    heading: Name = "Lessons learned"
    """The heading of MEMORY.md that it belongs under."""
    missionId: Name | None = None
    """The mission that it comes from."""
    source: Line | None = None
    """Where else it comes from; one of the two is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageArchive(FileMessage[Archived]):
    """The operator's page: copy a completed mission of all its workers to shared memory, with a manifest of hashes."""

    missionId: Name
    """The mission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVerify(FileReadMessage[Verified]):
    """The operator's page: check an archived mission against its manifest."""

    missionId: Name
    """The mission."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRecommend(FileReadMessage[Recommended]):
    """The operator's page: which workers fit a task best, by their memory and the roster, and why."""

    task: Task
    """What is to be done, in words."""
    limit: Annotated[int, Field(ge=1, le=limits.K_MAX), BeforeValidator(not_bool)] = 5
    """How many workers at most."""
