"""Where each file of the swarm lies. Every path is built here, from ids that were checked."""

import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Final, Literal, NamedTuple

from storage.errors import ConfigurationError, InvalidRequest

Kind = Literal["profile", "mission", "episodic", "handoff", "shared"]
RootName = Literal["profiles", "shared"]

WORKER_ID: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
MISSION_ID: Final = re.compile(r"[a-z0-9][a-z0-9_.:-]{0,127}")
PROFILE_FILES: Final = ("MEMORY.md", "SOUL.md", "IDENTITY.md")
SUMMARY: Final = "SUMMARY.md"
EVENTS: Final = "events.jsonl"
HANDOFF: Final = "handoff.md"
NOTES: Final = "notes.md"
RUNTIME: Final = "runtime.json"
LATEST: Final = "latest.md"
"""What some workers call the newest handoff of their own."""
_SHARED_FILE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.md")
_DATE: Final = re.compile(r"\d{4}-\d{2}-\d{2}")
_REFUSED: Final = ((".openclaw", "profiles"), (".ocplatform", "workspace"))
_SHOWN_CHARS: Final = 80


class Folder(NamedTuple):
    """A folder below a root."""

    root: RootName
    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Roots:
    """The folders that the swarm's files lie in, resolved once; no link is followed below them."""

    profiles: Path
    """Holds `<workerId>/memory/` of each worker."""
    shared: Path
    """Holds `swarm/` and `handoffs/swarm/`."""
    workspace: Path | None = None
    """Holds `swarm.yaml` and `.runtime/swarm-missions.json`, which are read and never written."""

    def of(self, name: RootName) -> Path:
        """A root by its name."""
        return self.profiles if name == "profiles" else self.shared

    def path(self, folder: Folder, name: str = "") -> Path:
        """Where a folder, or a file of it, lies; to be shown, never to be opened."""
        return self.of(folder.root).joinpath(*folder.parts, *([name] if name else ()))


@dataclass(frozen=True, slots=True)
class SwarmConfig:
    """What settings say of the swarm."""

    roots: Roots
    workers: Mapping[str, str] = field(default_factory=dict)
    """Agents of another name, by worker id."""
    orchestrators: Collection[str] = ()
    """The agents that may write shared memory."""
    episodes: bool = False
    """Whether events are also episodes of the agents that their workers are."""


def roots(environ: Mapping[str, str], *, profiles: Path | None, shared: Path | None, workspace: Path | None) -> Roots:
    """The roots that settings and environment name.

    Raises:
        ConfigurationError: one of them is a folder that the swarm's files must not lie in.
    """
    return Roots(
        profiles=_root("swarm_profiles", profiles or _profiles(environ)),
        shared=_root("swarm_shared", shared or _shared(environ)),
        workspace=None if workspace is None else _root("swarm_workspace", workspace),
    )


def _profiles(environ: Mapping[str, str]) -> Path:
    if not (home := environ.get("HERMES_HOME")):
        return Path("~/.hermes/profiles")
    parent = Path(home).expanduser().parent
    return parent if parent.name == "profiles" else Path(home) / "profiles"


def _shared(environ: Mapping[str, str]) -> Path:
    if root := environ.get("HERMES_SWARM_MEMORY_ROOT"):
        return Path(root) / "memory"
    return Path("~/.openclaw/workspace/memory")


def _root(setting: str, given: Path) -> Path:
    try:
        named = given.expanduser().absolute()
        resolved = named.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(f"{setting}: {given} is no folder's path ({error}).") from error
    for path in (named, resolved):
        for refused in _REFUSED:
            if any(path.parts[at : at + 2] == refused for at in range(len(path.parts))):
                raise ConfigurationError(f"{setting}: {path} lies in {os.sep.join(refused)}, which is not for memory.")
    return resolved


def worker_id(given: str) -> str:
    """A worker's id in lower case.

    Raises:
        InvalidRequest: it is none.
    """
    return _id("workerId", given, WORKER_ID)


def mission_id(given: str) -> str:
    """A mission's id in lower case.

    Raises:
        InvalidRequest: it is none.
    """
    return _id("missionId", given, MISSION_ID)


def _id(field: str, given: str, rule: re.Pattern[str]) -> str:
    low = given.lower() if given.isascii() else given
    if not rule.fullmatch(low):
        raise InvalidRequest(f"{field}: {given[:_SHOWN_CHARS]!r} does not match {rule.pattern}.")
    return low


def day(given: str) -> str:
    """A day as it names an episode page.

    Raises:
        InvalidRequest: it is no YYYY-MM-DD of the calendar.
    """
    try:
        if _DATE.fullmatch(given):
            return date.fromisoformat(given).isoformat()
    except ValueError:
        pass
    raise InvalidRequest(f"date: {given[:_SHOWN_CHARS]!r} is no day; write YYYY-MM-DD.")


def profile(worker: str) -> Folder:
    """A worker's profile. Of it only runtime.json is read; the rest is not ours."""
    return Folder("profiles", (worker,))


def memory(worker: str) -> Folder:
    """A worker's memory."""
    return Folder("profiles", (worker, "memory"))


def missions(worker: str) -> Folder:
    """The folders of a worker's missions."""
    return Folder("profiles", (worker, "memory", "missions"))


def mission(worker: str, mission_: str) -> Folder:
    """One mission of a worker."""
    return Folder("profiles", (worker, "memory", "missions", mission_))


def episodes(worker: str) -> Folder:
    """A worker's episode pages, one for each day."""
    return Folder("profiles", (worker, "memory", "episodes"))


def handoffs(worker: str) -> Folder:
    """A worker's handoffs, one for each mission."""
    return Folder("profiles", (worker, "memory", "handoffs"))


def notes(worker: str, *parts: str) -> Folder:
    """A worker's notes, or a folder below them."""
    return Folder("profiles", (worker, "memory", "notes", *parts))


def shared() -> Folder:
    """The swarm's shared memory."""
    return Folder("shared", ("swarm",))


def shared_handoffs() -> Folder:
    """The latest handoff of each worker."""
    return Folder("shared", ("handoffs", "swarm"))


def archive(mission_: str, *parts: str) -> Folder:
    """A completed mission in the shared memory, or a folder of it: first the worker's that it is of."""
    return Folder("shared", ("swarm", "missions", mission_, *parts))


def episode_file(day_: str) -> str:
    """The page of a day."""
    return f"{day_}.md"


def handoff_file(mission_: str) -> str:
    """A mission's handoff among those of its worker."""
    return f"{mission_}.md"


def latest_file(worker: str) -> str:
    """A worker's latest handoff among the shared ones."""
    return f"{worker}-latest.md"


def page_file(kind: Kind, given: str | None) -> str:
    """The page that a whole-file write of a profile or of shared memory means.

    Raises:
        InvalidRequest: there is no such page.
    """
    if kind == "profile":
        name = given or PROFILE_FILES[0]
        if name not in PROFILE_FILES:
            raise InvalidRequest(f"file: a profile has {', '.join(PROFILE_FILES)}; not {name[:_SHOWN_CHARS]!r}.")
        return name
    name = given or NOTES
    if not _SHARED_FILE.fullmatch(name):
        raise InvalidRequest(f"file: {name[:_SHOWN_CHARS]!r} does not match {_SHARED_FILE.pattern}.")
    return name
