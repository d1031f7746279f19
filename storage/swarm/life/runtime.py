"""What a worker's runtime.json says it is at. The worker's own, and the swarm server's; never written here."""

import json
from dataclasses import dataclass
from typing import Any, Final

from storage.errors import Rejection
from storage.swarm import layout
from storage.swarm.folders import Seen, opened
from storage.swarm.layout import RUNTIME, Roots

_BYTES_MAX: Final = 1_048_576
_SHOWN: Final = ("state", "phase", "checkpointStatus", "needsHuman", "blockedReason", "nextAction")
_TEXT_CHARS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Runtime:
    """What was found."""

    seen: Seen | None
    """The file; None where it is missing or cannot be read."""
    mission: str | None = None
    assignment: str | None = None
    shown: str = ""
    """Its members about the present, as JSON: those of other missions are not among them."""
    missing: str = ""
    """Why there is no mission; empty where there is one."""


def runtime_of(roots: Roots, worker: str) -> Runtime:
    """What a worker's runtime.json says now. Never raises: what is wrong with it is in `missing`."""
    try:
        folder = opened(roots, layout.profile(worker))
        if folder is None:
            return Runtime(None, missing=f"{RUNTIME}: is not there.")
        with folder:
            seen = folder.read(RUNTIME, _BYTES_MAX)
    except Rejection as refusal:
        return Runtime(None, missing=refusal.detail)
    if seen is None:
        return Runtime(None, missing=f"{RUNTIME}: is not there.")
    try:
        members = json.loads(seen.content)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        return Runtime(seen, missing=f"{RUNTIME}: is no JSON object.")
    return _read(seen, members)


def _read(seen: Seen, members: dict[str, Any]) -> Runtime:
    shown = _clean(json.dumps(_present(members), ensure_ascii=False, indent=1))
    assignment = members.get("currentAssignmentId")
    mission = members.get("currentMissionId")
    if not isinstance(mission, str) or not mission:
        return Runtime(seen, shown=shown, missing=f"{RUNTIME}: names no currentMissionId.")
    try:
        mission = layout.mission_id(mission)
    except Rejection as refusal:
        return Runtime(seen, shown=shown, missing=f"{RUNTIME}: currentMissionId is none ({refusal.detail})")
    return Runtime(seen, mission, _clean(assignment) if isinstance(assignment, str) else None, shown)


def _present(members: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in members if name.startswith("current") or name in _SHOWN]
    return {name: _short(members[name]) for name in names if isinstance(members[name], str | int | float | bool)}


def _clean(text: str) -> str:
    """Text that UTF-8 can hold: JSON may have escaped half a character."""
    return text.encode("utf-8", "replace").decode()


def _short(value: Any) -> Any:
    return value[:_TEXT_CHARS_MAX] if isinstance(value, str) else value
