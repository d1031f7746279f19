"""What an archive vouches for: its files with their sizes and hashes, and how that is written down."""

import json
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from storage.swarm.renames import hash_of

MANIFEST: Final = "manifest.json"
FORMAT: Final = 1
"""Raised by a change that an older version would read wrongly."""
STATUS: Final = "complete"
"""Of every mission that is archived."""
_SHOWN_CHARS: Final = 200


class Entry(NamedTuple):
    """A file of an archive."""

    path: str
    """Below the archive's folder: `<workerId>/…`."""
    bytes: int
    sha256: str


def entry_of(path: str, content: bytes) -> Entry:
    """The entry of a file with such a content."""
    return Entry(path, len(content), hash_of(content))


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The list of an archive's files, which makes it one."""

    mission: str
    archived_at: str
    """ISO 8601, UTC."""
    workers: tuple[str, ...]
    """All that took part, in their order."""
    files: tuple[Entry, ...]
    """In the order of their paths."""
    lost: tuple[Entry, ...] = ()
    """What an earlier manifest had, and neither the archive nor a worker has any more."""
    whole: bool = True
    """False while the archive is made anew: then it says what had been ours, and vouches for nothing."""

    def withdrawn(self) -> "Manifest":
        """The manifest of the time until the next one is written."""
        return replace(self, whole=False)

    def says_as(self, other: "Manifest | None") -> bool:
        """Whether it says the same as another one; their times aside."""
        return other is not None and self == replace(other, archived_at=self.archived_at)

    def encoded(self) -> bytes:
        """The manifest as it is written: JSON. A name that is no UTF-8 is read again as it was."""
        members = {
            "format": FORMAT,
            "missionId": self.mission,
            "archivedAt": self.archived_at,
            "status": STATUS,
            "workers": self.workers,
            **({"lost": _members(self.lost)} if self.lost else {}),
            "files" if self.whole else "before": _members(self.files),
        }
        # What `backslashreplace` makes of a name's odd byte, a lone surrogate, is JSON's own escape of it.
        return json.dumps(members, ensure_ascii=False, indent=1).encode("utf-8", "backslashreplace") + b"\n"

    @classmethod
    def parsed(cls, content: bytes) -> "Manifest | None":
        """The manifest that was written so; None where it is none, or one of another format."""
        try:
            members = json.loads(content)
            if members["format"] != FORMAT or members["status"] != STATUS:
                return None
            return cls(
                mission=_text(members["missionId"]),
                archived_at=_text(members["archivedAt"]),
                workers=tuple(_text(worker) for worker in members["workers"]),
                files=_entries(members["files"] if "files" in members else members["before"]),
                lost=_entries(members.get("lost", [])),
                whole="files" in members,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


def shown(path: str) -> str:
    """A path as a message can hold it."""
    text = path if len(path) <= _SHOWN_CHARS else f"…{path[-_SHOWN_CHARS:]}"
    return text.encode("utf-8", "backslashreplace").decode()


def _members(entries: tuple[Entry, ...]) -> list[dict[str, Any]]:
    return [entry._asdict() for entry in entries]


def _entries(values: Any) -> tuple[Entry, ...]:
    return tuple(Entry(_text(value["path"]), _size(value["bytes"]), _text(value["sha256"])) for value in values)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _size(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value
