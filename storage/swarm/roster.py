"""Who the workers are, as swarm.yaml says. Read, never written; a roster that cannot be read says nothing."""

from pathlib import Path
from typing import Any, Final

import yaml

from storage.errors import Rejection
from storage.swarm.folders import open_folder
from storage.swarm.pages import Persona

_FILE: Final = "swarm.yaml"
_BYTES_MAX: Final = 262_144
_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LISTS: Final = ("workers", "agents", "swarm")


class Roster:
    """The roster of a workspace."""

    def __init__(self, workspace: Path | None) -> None:
        self._workspace = workspace

    def persona(self, worker: str) -> Persona:
        """What the roster says of a worker; nothing where it does not know it."""
        entry = next((entry for entry in self._entries() if _is(entry, worker)), {})
        return Persona(
            name=_text(entry.get("name") or entry.get("displayName")),
            role=_text(entry.get("role")),
            specialty=_text(entry.get("specialty") or entry.get("speciality")),
            model=_text(entry.get("model")),
        )

    def _text(self) -> str:
        """What the file holds; nothing where there is none."""
        folder = None if self._workspace is None else open_folder(self._workspace, ())
        if folder is None:
            return ""
        with folder:
            seen = folder.read(_FILE, _BYTES_MAX)
        return "" if seen is None else seen.content.decode("utf-8")

    def _entries(self) -> list[dict[str, Any]]:
        try:
            roster = yaml.load(self._text(), _LOADER)  # noqa: S506  # a safe loader
        except (Rejection, ValueError, RecursionError, yaml.YAMLError):
            return []
        found = [roster] if not isinstance(roster, dict) else [roster.get(name) for name in _LISTS]
        return [entry for part in found for entry in _as_entries(part)]


def _as_entries(part: Any) -> list[dict[str, Any]]:
    if isinstance(part, dict):
        return [{"id": key, **value} for key, value in part.items() if isinstance(value, dict)]
    return [entry for entry in part if isinstance(entry, dict)] if isinstance(part, list) else []


def _is(entry: dict[str, Any], worker: str) -> bool:
    return any((_text(entry.get(name)) or "").lower() == worker for name in ("id", "workerId", "worker", "name"))


def _text(value: Any) -> str | None:
    """A scalar as text. Of a list or a mapping of aliases, the text may be larger than all memory."""
    return str(value) if isinstance(value, str | int | float) else None
