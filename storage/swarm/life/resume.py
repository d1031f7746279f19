"""What a worker needs to go on: who it is, what it is at, where it stopped. Read from its files, within a budget."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from storage.errors import Rejection
from storage.fitting import fitted, newest, section_of, shares
from storage.swarm import layout
from storage.swarm.folders import FILE_BYTES_MAX, Seen, opened
from storage.swarm.layout import RUNTIME, SUMMARY, Folder, Roots
from storage.swarm.life.episodes_of import days_of
from storage.swarm.life.handed import Handed, latest_of_mission
from storage.swarm.life.records import BUDGET_CHARS, BUDGET_CHARS_MAX, MissingPart, PartName, Resume, ResumePart
from storage.swarm.life.runtime import Runtime, runtime_of
from storage.swarm.pages import one_line
from storage.swarm.renames import hash_of

NEXT_ACTION: Final = "next exact action"
_WEIGHTS: Final[dict[PartName, float]] = {
    "identity": 1,
    "soul": 2,
    "memory": 4,
    "runtime": 1,
    "summary": 4,
    "handoff": 6,
    "episodes": 3,
}
_PROFILE: Final[tuple[tuple[PartName, str], ...]] = (
    ("identity", "IDENTITY.md"),
    ("soul", "SOUL.md"),
    ("memory", "MEMORY.md"),
)
_READ_FIRST: Final = (NEXT_ACTION, "next action", "current state")
_NEWEST_FIRST: Final = ("checkpoints",)
_NO_MISSION: Final = (
    f"none is known, so nothing of one is shown; name one, or have currentMissionId written into {RUNTIME}."
)
_COMPLETE: Final = "- Status: complete"
_ACTION_CHARS: Final = 300
_PATH_CHARS: Final = 300
_END_BYTES: Final = 4 * BUDGET_CHARS_MAX
"""Of a page: as long as what is shown of it can be. What was written before is not read for structure: that costs."""
HEADINGS_CHARS: Final = 400
"""What `as_text` takes for the names of the parts."""


@dataclass(frozen=True, slots=True)
class _Found:
    """A part before it is fitted."""

    name: PartName
    place: Folder
    file: str
    seen: Seen
    content: str


class Resumes:
    """Reads what workers resume with. Thread-safe: it keeps nothing."""

    def __init__(self, roots: Roots) -> None:
        self._roots = roots

    def resume(
        self, worker: str, *, mission: str | None = None, budget: int = BUDGET_CHARS, handed: Handed | None = None
    ) -> Resume:
        """A worker's parts for a mission, by default the one that its runtime.json names.

        `handed` is its handoff, where the caller has chosen one; else the latest of the mission is taken.
        Any part may be missing: `missing` says why. Of no other mission there is a summary, handoff or episode.

        Raises:
            InvalidRequest: an id is none.
        """
        worker = layout.worker_id(worker)
        runtime = runtime_of(self._roots, worker)
        mission = runtime.mission if mission is None else layout.mission_id(mission)
        found: list[_Found] = []
        missing: list[MissingPart] = []
        for part in self._parts(worker, mission, runtime, budget, handed):
            if isinstance(part, MissingPart):
                missing.append(part)
            else:
                found.append(part)
        prompt = self._prompt(worker, mission, found)
        parts = self._fitted(found, budget - len(prompt))
        return Resume(
            workerId=worker,
            missionId=mission,
            assignmentId=runtime.assignment if mission == runtime.mission else None,
            prompt=prompt,
            parts=parts,
            missing=tuple(missing),
            chars=len(prompt) + sum(len(part.content) for part in parts),
            budget=budget,
        )

    def knows(self, worker: str) -> bool:
        """Whether a worker has a profile at all.

        Raises:
            Forbidden, FileFailed: its folder may not, or cannot, be looked into.
        """
        folder = opened(self._roots, layout.profile(worker))
        if folder is None:
            return False
        with folder:
            return bool({RUNTIME, "memory"}.intersection(folder.names()))

    def _parts(
        self, worker: str, mission: str | None, runtime: Runtime, budget: int, handed: Handed | None
    ) -> Iterator[_Found | MissingPart]:
        for name, file in _PROFILE:
            yield self._page(name, layout.memory(worker), file)
        if runtime.mission not in (None, mission):
            yield MissingPart(name="runtime", reason=f"{RUNTIME}: is at another mission, {runtime.mission}.")
        elif runtime.seen is not None and runtime.shown:
            yield _Found("runtime", layout.profile(worker), RUNTIME, runtime.seen, runtime.shown)
        if runtime.missing:
            yield MissingPart(name="runtime", reason=runtime.missing)
        if mission is None:
            left_out: tuple[PartName, ...] = ("summary", "handoff", "episodes")
            for name in left_out:
                yield MissingPart(name=name, reason=f"missionId: {_NO_MISSION}")
            return
        yield self._page("summary", layout.mission(worker, mission), SUMMARY)
        yield self._handoff(worker, mission, handed)
        yield from self._episodes(worker, mission, budget)

    def _page(self, name: PartName, place: Folder, file: str) -> _Found | MissingPart:
        try:
            folder = opened(self._roots, place)
            if folder is not None:
                with folder:
                    seen = folder.part(file, FILE_BYTES_MAX, end=True)
                if seen is not None:
                    return _Found(name, place, file, seen, _end(seen.content))
        except Rejection as refusal:
            return MissingPart(name=name, reason=refusal.detail)
        return MissingPart(name=name, reason=f"{file}: is not there.")

    def _handoff(self, worker: str, mission: str, handed: Handed | None) -> _Found | MissingPart:
        handed = handed or latest_of_mission(self._roots, worker, mission)
        if handed is None:
            return MissingPart(name="handoff", reason=f"handoff: there is none of {mission}.")
        return _Found("handoff", handed.place, handed.name, handed.seen, _end(handed.seen.content))

    def _episodes(self, worker: str, mission: str, budget: int) -> Iterator[_Found | MissingPart]:
        chars = 0
        try:
            for day in days_of(self._roots, worker, mission):
                yield _Found("episodes", layout.episodes(worker), day.name, day.seen, day.entries)
                chars += len(day.entries)
                if chars >= budget:
                    return
        except Rejection as refusal:
            yield MissingPart(name="episodes", reason=refusal.detail)
            return
        if not chars:
            yield MissingPart(name="episodes", reason=f"episodes: none of the last days' are of {mission}.")

    def _fitted(self, found: list[_Found], room: int) -> tuple[ResumePart, ...]:
        """The parts within a room; of days the newest before the older ones, which may be left out for it."""
        lengths = {name: sum(len(one.content) for one in found if one.name == name) for name in _WEIGHTS}
        kept = dict(zip(lengths, shares(list(lengths.values()), list(_WEIGHTS.values()), room), strict=True))
        parts = []
        for one in found:
            content = _cut(one, kept[one.name])
            kept[one.name] -= len(content)
            if content or one.name != "episodes":
                parts.append(self._part(one, content))
        return tuple(parts)

    def _part(self, one: _Found, content: str) -> ResumePart:
        whole = one.seen.version.size <= len(one.seen.content)
        return ResumePart(
            name=one.name,
            path=str(self._roots.path(one.place, one.file)),
            updatedAt=one.seen.version.written_at,
            hash=hash_of(one.seen.content) if whole else "",
            content=content,
            cut=content != one.content or not whole or len(one.seen.content) > _END_BYTES,
        )

    def _prompt(self, worker: str, mission: str | None, found: list[_Found]) -> str:
        path = str(self._roots.path(layout.memory(worker)))
        where = path if len(path) <= _PATH_CHARS else "your profile's memory folder"
        load = f"You are {worker}. Load your worker memory from {where}/: IDENTITY.md, SOUL.md, MEMORY.md."
        return f"{load}\n{_task(mission, found)}"


def as_text(resume: Resume, chars: int) -> tuple[str, bool]:
    """(a resume as a text of at most `chars` characters: the prompt, then the parts under their names; whether it is
    less than all)."""
    shown, headed, cut = resume.prompt, "", any(part.cut for part in resume.parts)
    for part in resume.parts:
        if not part.content:
            continue
        heading = "" if part.name == headed else f"\n\n## {part.name} ({part.updatedAt})\n"
        more = f"{heading}\n{part.content}"
        if len(shown) + len(more) > chars:
            cut = True
            break
        shown, headed = shown + more, part.name
    return shown[:chars], cut or len(shown) > chars


def _end(content: bytes) -> str:
    """The last whole lines of a page, as many as any budget can hold."""
    end = content[-_END_BYTES:]
    text = end.decode("utf-8", "replace")
    return text if len(end) == len(content) else text.partition("\n")[2] or text


def _cut(one: _Found, chars: int) -> str:
    if one.name == "episodes":
        return newest(one.content, chars)
    return fitted(one.content, chars, first=_READ_FIRST, newest_first=_NEWEST_FIRST)


def _task(mission: str | None, found: list[_Found]) -> str:
    """What is to be done, by what there is of the mission."""
    if mission is None:
        return f"Your {RUNTIME} names no mission: ask for your assignment."
    if _is_complete(found):
        return f"Your mission {mission} is complete: ask for your next assignment."
    there = {one.name for one in found}
    action = _next_action(found)
    if "handoff" in there:
        more = f": {action}" if action else "."
        return (
            f"Your mission is {mission}: read its SUMMARY.md and its latest handoff.\n"
            f"Continue from the handoff's Next exact action{more}"
        )
    if "summary" in there:
        more = f"Its next action is: {action}" if action else "Begin with its objective."
        return f"Your mission is {mission}: read its SUMMARY.md. There is no handoff of it yet.\n{more}"
    return f"Your mission is {mission}. Nothing of it is on record yet: begin with your assignment."


def _is_complete(found: list[_Found]) -> bool:
    """Whether the summary says that nothing is left to do."""
    summaries = (one.content for one in found if one.name == "summary")
    return any(_COMPLETE in (section_of(page, "current state") or "").splitlines() for page in summaries)


def _next_action(found: list[_Found]) -> str:
    """What the handoff says is to be done next; else what the summary says."""
    for name, heading in (("handoff", NEXT_ACTION), ("handoff", "next action"), ("summary", "next action")):
        for one in found:
            if one.name == name and (text := _plain_section(one.content, heading)):
                return text if len(text) <= _ACTION_CHARS else text[: _ACTION_CHARS - 1] + "…"
    return ""


def _plain_section(page: str, heading: str) -> str:
    lines = [line for line in (section_of(page, heading) or "").splitlines() if not line.startswith("<!--")]
    text = one_line(" ".join(line.strip() for line in lines if line.strip()))
    return "" if text.strip(". ") == "" else text
