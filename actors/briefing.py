"""The briefing of an agent at the start of a turn, put together from what the stores answer."""

from dataclasses import replace

from actors.life_messages import Brief
from storage import limits
from storage.briefing import (
    FACTS,
    OTHERS,
    OTHERS_SINCE,
    Briefing,
    BriefingPart,
    Lines,
    briefed,
    memory_lines,
    persona_lines,
    room_of_resume,
    short_lines,
)
from storage.errors import Rejection
from storage.reading import ReadingStore
from storage.recalling import Question
from storage.records import Recalled, Tier
from storage.swarm.life.resume import HEADINGS_CHARS, as_text
from storage.swarm.swarm import Swarm

_NO_QUESTION = "q: was left out, so nothing was recalled."


def facts_of(agent: str, q: str) -> Question:
    """The recall of shared facts about a turn."""
    return _question(agent, q, FACTS, "long")


def deeds_of(agent: str, q: str) -> Question:
    """The recall of what others did lately."""
    return replace(_question(agent, q, OTHERS, "episodic"), since=OTHERS_SINCE, without=agent)


def _question(agent: str, q: str, k: int, tier: Tier) -> Question:
    return Question(
        agent=agent,
        q=q,
        k=k,
        scope="shared",
        tiers=(tier,),
        topic=None,
        tags=(),
        since=None,
        until=None,
        full=False,
        explain=False,
    )


def brief_unit(
    message: Brief, store: ReadingStore, swarm: Swarm, facts: Recalled | None, deeds: Recalled | None
) -> Briefing:
    """Put a briefing together; runs in a reader's thread."""
    agent = message.agent
    entries = store.short(agent=agent, owner=None, key=None, after=None, limit=limits.LIST_MAX, scope="own").entries
    parts = [
        persona_lines(store.persona(agent)),
        short_lines(entries),
        memory_lines("facts", () if facts is None else facts.results, _why("facts", facts)),
        memory_lines("others", () if deeds is None else deeds.results, _why("others", deeds)),
    ]
    reasons = [reason for answer in (facts, deeds) if answer is not None for reason in answer.degraded_reasons]
    resume = _resume(message, store, swarm, parts, reasons)
    return briefed(agent, parts, resume, budget=message.budget, reasons=reasons)


def _why(name: str, answer: Recalled | None) -> str:
    return _NO_QUESTION if answer is None else f"{name}: nothing matched."


def _resume(
    message: Brief, store: ReadingStore, swarm: Swarm, parts: list[Lines], reasons: list[str]
) -> BriefingPart | str:
    """The resume of the worker that the agent is, or why there is none."""
    worker = swarm.access.worker_or_none(message.agent)
    if worker is None:
        return "resume: the agent is no worker."
    if not store.is_registered(message.agent):
        return "resume: the agent is not registered."
    try:
        if not swarm.resumes.knows(worker):
            return f"resume: there is no profile of worker {worker}."
    except Rejection as refusal:
        return f"resume: {refusal.detail}"
    room = room_of_resume(parts, message.budget)
    resume = swarm.resumes.resume(worker, budget=room - HEADINGS_CHARS)
    if swarm.memory.is_behind(worker):
        reasons.append("pages_behind")
    text, cut = as_text(resume, room)
    return BriefingPart(name="resume", content=text, cut=cut)
