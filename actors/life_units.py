"""Which unit of a worker's life answers which message. They join those of the swarm's files: ask these two functions.

Imported from here, `file_unit` and `file_read_unit` know the messages of both.
"""

from dataclasses import replace

from actors.life_messages import (
    PageArchive,
    PagePromote,
    PageRecommend,
    PageRenew,
    PageResume,
    PageVerify,
    SwarmEditNotes,
    SwarmNotes,
    SwarmResume,
)
from actors.swarm_units import RequireRegistered, event_of, file_read_unit, file_unit, given, spelled_for_agents
from storage.errors import InvalidRequest
from storage.swarm.life.records import Archived, Promoted, Recommended, Renewed, Resume, Verified
from storage.swarm.records import NoteAnswer
from storage.swarm.swarm import Swarm

__all__ = ["file_read_unit", "file_unit"]


@file_read_unit.register
def _(message: SwarmResume, swarm: Swarm, require_registered: RequireRegistered) -> Resume:
    require_registered(message.agent)
    with spelled_for_agents():
        return _resumed(swarm, swarm.access.worker_of(message.agent), message.mission, message.budget)


@file_read_unit.register
def _(message: PageResume, swarm: Swarm, _: RequireRegistered) -> Resume:
    return _resumed(swarm, message.workerId, message.missionId, message.budget)


def _resumed(swarm: Swarm, worker: str, mission: str | None, budget: int) -> Resume:
    """What a worker resumes with, and whether pages in it are behind their logs."""
    resume = swarm.resumes.resume(worker, mission=mission, budget=budget)
    return replace(resume, pagesBehind=True) if swarm.memory.is_behind(resume.workerId) else resume


@file_unit.register
def _(message: PageRenew, swarm: Swarm, _: RequireRegistered) -> Renewed:
    _require_only(message)
    asked = event_of("handoff-requested", message.assignmentId, message.summary, None, message.event)
    asked = replace(asked, worker=message.workerId, mission=message.missionId, request_id=message.requestId)
    match message.step:
        case "request":
            return swarm.renewals.request(asked, timeout_s=message.timeoutS)
        case "written":
            return swarm.renewals.write(asked, given("content", message.content), mirror=message.mirrorShared)
        case "resume":
            return swarm.renewals.resume(asked, expected=message.handoffHash, budget=message.budget)


def _require_only(message: PageRenew) -> None:
    """Refuse what a step has no place for."""
    if message.content is not None and message.step != "written":
        raise InvalidRequest("content: is the handoff of step written; send that step first.")
    if message.handoffHash is not None and message.step != "resume":
        raise InvalidRequest("handoffHash: belongs to step resume.")


@file_unit.register
def _(message: PagePromote, swarm: Swarm, _: RequireRegistered) -> Promoted:
    return swarm.promotions.promote(
        message.workerId,
        message.lesson,
        heading=message.heading,
        mission=message.missionId,
        source=message.source,
    )


@file_unit.register
def _(message: PageArchive, swarm: Swarm, _: RequireRegistered) -> Archived:
    swarm.memory.follow(whole=True)  # so that the archived pages show what the logs say
    return swarm.archives.archive(message.missionId)


@file_read_unit.register
def _(message: PageVerify, swarm: Swarm, _: RequireRegistered) -> Verified:
    return swarm.archives.verify(message.missionId)


@file_read_unit.register
def _(message: PageRecommend, swarm: Swarm, _: RequireRegistered) -> Recommended:
    return swarm.recommendations.recommend(message.task, limit=message.limit)


@file_read_unit.register
def _(message: SwarmNotes, swarm: Swarm, require_registered: RequireRegistered) -> NoteAnswer:
    require_registered(message.agent)
    worker = swarm.access.worker_of(message.agent)
    return NoteAnswer(workerId=worker, text=swarm.notes.view(worker, message.path, message.view_range))


@file_unit.register
def _(message: SwarmEditNotes, swarm: Swarm, require_registered: RequireRegistered) -> NoteAnswer:
    require_registered(message.agent)
    worker = swarm.access.worker_of(message.agent)
    return NoteAnswer(workerId=worker, text=_edited(message, swarm, worker))


def _edited(message: SwarmEditNotes, swarm: Swarm, worker: str) -> str:
    notes = swarm.notes
    match message.command:
        case "create":
            return notes.create(worker, given("path", message.path), message.file_text)
        case "str_replace":
            old = given("old_str", message.old_str)
            return notes.str_replace(worker, given("path", message.path), old, message.new_str)
        case "insert":
            line = given("insert_line", message.insert_line)
            return notes.insert(worker, given("path", message.path), line, message.insert_text)
        case "delete":
            return notes.delete(worker, given("path", message.path))
        case "rename":
            return notes.rename(worker, given("old_path", message.old_path), given("new_path", message.new_path))
