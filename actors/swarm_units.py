"""Which unit of the swarm's files answers which message."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import singledispatch
from typing import Any, Final

from actors.swarm_messages import PageHook, PageRead, PageSearch, PageWrite, SwarmRead, SwarmSearchFiles, SwarmWrite
from storage.errors import InvalidRequest, Rejection
from storage.swarm import layout
from storage.swarm.layout import Kind
from storage.swarm.memory import NewEvent
from storage.swarm.pages import Persona
from storage.swarm.records import SwarmFiles, SwarmResults, SwarmWritten
from storage.swarm.swarm import Swarm

RequireRegistered = Callable[[str], None]
"""Raises UnknownAgent for an agent that the registry does not hold."""
_AGENTS_SPELL: Final = {
    "workerId": "worker",
    "missionId": "mission",
    "assignmentId": "assignment",
    "eventType": "event_type",
    "baseHash": "base_hash",
    "requestId": "request_id",
}


@singledispatch
def file_unit(message: object, swarm: Swarm, require_registered: RequireRegistered) -> Any:
    """Run a write on the swarm's files, in the writer's thread. Ask it by actors/life_units.py, where it is whole."""
    raise NotImplementedError(type(message).__name__)


@file_unit.register
def _(message: SwarmWrite, swarm: Swarm, require_registered: RequireRegistered) -> SwarmWritten:
    require_registered(message.agent)
    swarm.access.require_writer(message.agent, message.kind)
    with spelled_for_agents():
        return _write(
            swarm,
            kind=message.kind,
            worker=None if message.kind == "shared" else swarm.access.worker_of(message.agent),
            mission=message.mission,
            event=event_of(message.event_type, message.assignment, message.summary, message.content, message.event),
            file=message.file,
            base_hash=message.base_hash,
            request_id=message.request_id,
        )


@file_unit.register
def _(message: PageWrite, swarm: Swarm, _: RequireRegistered) -> SwarmWritten:
    if message.scaffold:
        _require_absent(
            "scaffold makes folders and pages alone; send it in a call of its own",
            content=message.content,
            summary=message.summary,
            event=message.event,
        )
        who = Persona(name=message.name, role=message.role, specialty=message.specialty, model=message.model)
        return swarm.memory.scaffold(given("workerId", message.workerId), who)
    detail = _titled(message.event, message.title)
    return _write(
        swarm,
        kind=given("kind", message.kind),
        worker=message.workerId,
        mission=message.missionId,
        event=event_of(message.eventType, message.assignmentId, message.summary, message.content, detail),
        file=message.file,
        base_hash=message.baseHash,
        request_id=message.requestId,
        mirror=message.mirrorShared,
    )


@file_unit.register
def _(message: PageHook, swarm: Swarm, _: RequireRegistered) -> SwarmWritten:
    detail = _titled(message.event, message.title)
    event = event_of(message.hook, message.assignmentId, message.summary, message.content, detail)
    if message.hook != "handoff-written":
        return _record(swarm, message.workerId, message.missionId, event, message.requestId)
    event = replace(event, worker=message.workerId, mission=message.missionId, request_id=message.requestId)
    return _told_handoff(swarm, event, mirror=message.mirrorShared)


def _told_handoff(swarm: Swarm, asked: NewEvent, *, mirror: bool) -> SwarmWritten:
    """Write a handoff and the event that tells of it."""
    given("missionId", asked.mission)
    return swarm.memory.write_told_handoff(asked, _content(asked), mirror=mirror)


def event_of(
    kind: Any, assignment: str | None, summary: str | None, content: str | None, detail: Mapping[str, Any] | None
) -> NewEvent:
    """An event whose worker and mission are filled in later."""
    return NewEvent(
        type=kind or "note",
        worker="",
        assignment=assignment,
        summary=summary,
        content=content,
        detail=detail or {},
    )


def _write(
    swarm: Swarm,
    *,
    kind: Kind,
    worker: str | None,
    mission: str | None,
    event: NewEvent,
    file: str | None,
    base_hash: str | None,
    request_id: str | None,
    mirror: bool = True,
) -> SwarmWritten:
    """Write one of five kinds. Ids are checked first; what the kind has no place for is refused, not dropped."""
    if worker is not None:
        layout.worker_id(worker)
    if mission is not None:
        layout.mission_id(mission)
    if kind in ("mission", "episodic"):
        _require_absent(f"{kind} memory takes events; pages are of profile and shared", file=file, baseHash=base_hash)
        return _write_event(swarm, kind, worker, replace(event, mission=mission, request_id=request_id))
    why = f"events have one, kind {kind} does not; put it into content"
    kind_of_event = None if event.type == "note" else event.type
    _require_absent(
        why, summary=event.summary, event=event.detail or None, eventType=kind_of_event, assignmentId=event.assignment
    )
    if kind == "handoff":
        _require_absent("a handoff is named by its mission and always replaced", file=file, baseHash=base_hash)
        worker, mission = given("workerId", worker), given("missionId", mission)
        if request_id is not None or swarm.renewals.is_open(worker, mission):
            asked = replace(event, worker=worker, mission=mission, request_id=request_id)
            return _told_handoff(swarm, asked, mirror=mirror)
        return swarm.memory.write_handoff(worker, given("missionId", mission), _content(event), mirror=mirror)
    if base_hash is None:
        _require_absent("an append to a page keeps none; send baseHash, which makes a retry safe", requestId=request_id)
    return swarm.memory.write_page(kind, worker, file, _content(event), base_hash=base_hash)


def _write_event(swarm: Swarm, kind: Kind, worker: str | None, event: NewEvent) -> SwarmWritten:
    event = replace(event, worker=given("workerId", worker))
    if kind == "mission":
        given("missionId", event.mission)
    elif event.summary is None and event.content is None:
        raise InvalidRequest("content: is missing or empty; an episode needs it, or a summary.")
    return replace(swarm.memory.write_event(event), kind=kind)


def _content(event: NewEvent) -> str:
    content: str = given("content", event.content)
    return content


def _record(swarm: Swarm, worker: str, mission: str | None, event: NewEvent, request_id: str | None) -> SwarmWritten:
    return swarm.memory.write_event(replace(event, worker=worker, mission=mission, request_id=request_id))


def _require_absent(why: str, **fields: object) -> None:
    """Refuse fields that this write has no place for.

    Raises:
        InvalidRequest: names the first that is there.
    """
    for field, value in fields.items():
        if value is not None:
            raise InvalidRequest(f"{field}: {why}.")


@contextmanager
def spelled_for_agents() -> Iterator[None]:
    """Name the field of a refusal as agents spell it; the page and the layout spell it otherwise."""
    try:
        yield
    except Rejection as refusal:
        field, colon, rest = refusal.detail.partition(":")
        if colon and field in _AGENTS_SPELL:
            raise type(refusal)(f"{_AGENTS_SPELL[field]}:{rest.replace('baseHash', 'base_hash')}") from refusal
        raise


def given(field: str, value: Any) -> Any:
    """A value that must be there.

    Raises:
        InvalidRequest: it is not.
    """
    if value is None:
        raise InvalidRequest(f"{field}: is missing or empty.")
    return value


def _titled(detail: Mapping[str, Any] | None, title: str | None) -> Mapping[str, Any] | None:
    return detail if title is None else {"title": title, **(detail or {})}


@singledispatch
def file_read_unit(message: object, swarm: Swarm, require_registered: RequireRegistered) -> Any:
    """Answer a read of the swarm's files, in a reader's thread. Ask it by actors/life_units.py, where it is whole."""
    raise NotImplementedError(type(message).__name__)


@file_read_unit.register
def _(message: SwarmRead, swarm: Swarm, require_registered: RequireRegistered) -> SwarmFiles:
    require_registered(message.agent)
    with spelled_for_agents():
        worker = swarm.access.worker_to_read(message.agent, message.kind, message.worker)
        return _files(swarm, message.kind, worker, message.mission, message.date)


@file_read_unit.register
def _(message: SwarmSearchFiles, swarm: Swarm, require_registered: RequireRegistered) -> SwarmResults:
    require_registered(message.agent)
    if message.scope == "worker":
        own = [swarm.access.worker_of(message.agent)]
    else:
        own = [] if (worker := swarm.access.worker_or_none(message.agent)) is None else [worker]
    workers = {"worker": own, "shared": [], "all": None}[message.scope]
    return swarm.search.search(
        message.query,
        workers=workers,
        private=[] if message.scope == "shared" else own,
        shared=message.scope != "worker",
        limit=message.limit,
        fresh=message.fresh,
    )


@file_read_unit.register
def _(message: PageRead, swarm: Swarm, _: RequireRegistered) -> SwarmFiles:
    return _files(swarm, message.kind, message.workerId, message.missionId, message.date)


def _files(swarm: Swarm, kind: Kind, worker: str | None, mission: str | None, date: str | None) -> SwarmFiles:
    """Files as they are, and whether pages among them are behind their logs."""
    files = swarm.reading.files(kind, worker, mission=mission, date=date)
    behind = files.workerId is not None and swarm.memory.is_behind(files.workerId)
    return replace(files, pagesBehind=behind) if behind else files


@file_read_unit.register
def _(message: PageSearch, swarm: Swarm, _: RequireRegistered) -> SwarmResults:
    query = given("query", message.query or message.q)
    if message.query is not None and message.q is not None and message.query != message.q:
        raise InvalidRequest("q: differs from query; send one of them.")
    workers = None if message.workerId is None else [layout.worker_id(message.workerId)]
    if message.scope == "shared":
        workers = []
    return swarm.search.search(
        query,
        workers=workers,
        private=workers,
        shared=message.scope != "worker",
        limit=message.limit,
        fresh=message.fresh,
    )
