"""What tests of the swarm's files share: time that a test moves, a person's hand, and pictures of folders."""

import os
import stat
import time
from pathlib import Path
from typing import Any

from storage.swarm.layout import Roots
from storage.swarm.memory import NewEvent, SwarmMemory

WORKER = "swarm5"
MISSION = "mission-1"
BUILT = "2026-05-28T20:26:40.000Z"
"""When the clock of the tests stands still: 1,780,000,000 s."""
DAY = BUILT[:10]


class Ticks:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Swarm:
    """A writer's side over fresh roots, and where its files lie."""

    def __init__(self, folder: Path, clock: Any) -> None:
        self.folder = folder
        self.clock = clock
        self.ticks = Ticks()
        self.roots = Roots(profiles=folder / "profiles", shared=folder / "shared")
        self.memory = SwarmMemory(self.roots, clock=clock, monotonic=self.ticks)

    def again(self) -> SwarmMemory:
        """The writer's side of a process that starts now, a while after the last write."""
        for page in self.folder.rglob("SUMMARY.md"):
            if page.is_file() and not page.is_symlink() and page.stat().st_nlink == 1:
                long_ago(page)
        self.memory = SwarmMemory(self.roots, clock=self.clock, monotonic=self.ticks)
        return self.memory

    def follow(self) -> None:
        """Let time pass, and every page that is due be made."""
        for _ in range(6):
            self.ticks.now_s += 2.0
            self.memory.follow()

    @property
    def worker(self) -> Path:
        return self.roots.profiles / WORKER / "memory"

    @property
    def mission(self) -> Path:
        return self.worker / "missions" / MISSION

    @property
    def summary(self) -> Path:
        return self.mission / "SUMMARY.md"

    @property
    def log(self) -> Path:
        return self.mission / "events.jsonl"

    @property
    def episode(self) -> Path:
        return self.worker / "episodes" / f"{DAY}.md"

    @property
    def handoff(self) -> Path:
        return self.worker / "handoffs" / f"{MISSION}.md"

    @property
    def latest(self) -> Path:
        return self.roots.shared / "handoffs" / "swarm" / f"{WORKER}-latest.md"


def asked(summary: str = "built it", **members: Any) -> NewEvent:
    """An event of the mission."""
    given = {"type": "checkpoint", "worker": WORKER, "mission": MISSION, "summary": summary, "detail": {}}
    return NewEvent(**{**given, **members})


def person_writes(path: Path, content: str | bytes) -> None:
    """Save a file as an editor did a while ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    long_ago(path)


def long_ago(path: Path) -> None:
    """Let a file be one that nobody is writing at this moment."""
    then = time.time_ns() - 5_000_000_000
    os.utime(path, ns=(then, then))


def picture(folder: Path) -> dict[str, Any]:
    """Every file below a folder with its content, and where each link points."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            found[str(path.relative_to(folder))] = os.readlink(path)
        elif stat.S_ISREG(mode):
            found[str(path.relative_to(folder))] = path.read_bytes()
        elif not stat.S_ISDIR(mode):
            found[str(path.relative_to(folder))] = stat.S_IFMT(mode)
    return found


def outside(folder: Path) -> dict[str, Any]:
    """As `picture`, with folders, times and inodes."""
    states = {path: path.lstat() for path in sorted(folder.rglob("*"))}
    return {str(path): (state.st_ino, state.st_mtime_ns, state.st_size) for path, state in states.items()}


def leftovers(folder: Path) -> list[str]:
    """The temporary files below a folder."""
    return [path.name for path in folder.rglob("*") if path.name.startswith((".solos-", ".mirror-"))]


def conflicts(folder: Path) -> list[Path]:
    """The versions of pages that could not be merged."""
    return sorted(path for path in folder.rglob("*") if ".conflict-" in path.name)
