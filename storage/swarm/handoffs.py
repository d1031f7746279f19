"""The handoffs of workers: the worker's own is the commit point, its mission's copy and the shared one follow.

What a person made of one is no handoff of ours: it is kept beside the next one, which takes its place.
"""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from storage.errors import Conflict, FileFailed, Rejection
from storage.swarm import layout
from storage.swarm.folders import FolderHandle, Seen, made, opened
from storage.swarm.layout import HANDOFF, Folder, Roots
from storage.swarm.projecting import Displaced
from storage.swarm.renames import hash_of
from storage.swarm.watching import Watch

_INTENT: Final = ".mirror-"
"""Before a mission: a file that lies beside its handoff until the copies are made.

It holds the handoff's hash, then LOCAL where it is not to be mirrored, then the hash of our handoff before it.
"""
_LOCAL: Final = b"local"
_LATEST: Final = ".latest"
"""A file beside the handoffs: the hash of the shared one, once a handoff that is not mirrored has replaced its own."""
_NAMED: Final = re.compile(
    r"#+[ \t]+Handoff[ \t]+[—–-][ \t]+(\S+)[ \t]+[—–-][ \t]+(\S+)[ \t]*([—–:;,(-].*)?", re.IGNORECASE
)
_AROUND: Final = "`*_\"'()[],;:."
"""What may stand around an id in a heading; none begins or ends with it but by mistake."""
_IDENTIFYING: Final = re.compile(r"[\d_.:-]")
_HEAD_CHARS: Final = 2_000
_TRIES_MAX: Final = 20
_WRITTEN_KEPT: Final = 4_096


class OfAnotherMission(Conflict):
    """A handoff names another mission than the one that it is written for; nothing was written."""

    hint = "Send it with the mission that its heading names, or correct the heading."


Place = tuple[Folder, str]
"""A folder and the name of a file in it."""


class Handoffs:
    """Writes handoffs and their copies. A handoff belongs to whoever wrote it last."""

    def __init__(self, roots: Roots, watch: Watch, touched: Callable[[Folder, str], None]) -> None:
        self._roots = roots
        self._watch = watch
        self._touched = touched
        self._written: OrderedDict[Place, str] = OrderedDict()
        """The hashes of what we wrote last."""

    def write(self, worker: str, mission: str, content: bytes, *, mirror: bool) -> bool:
        """Write a mission's handoff; whether its copies are written as well.

        Copies that cannot be written now are made by `make_up`, the shared one only where `mirror`.
        """
        own, copy, latest = _places(worker, mission)
        intent = _INTENT + mission
        with made(self._roots, own[0]) as folder:
            ours = self._ours(worker, mission)
            words = [hash_of(content).encode(), *([] if mirror else [_LOCAL]), (ours[own] or "").encode()]
            try:
                _replace(folder, intent, b" ".join(words))
                if not mirror and (shared := ours[latest]) is not None:
                    _replace(folder, _LATEST, shared.encode())
                self._put(folder, own, content, ours[own])
            except Rejection:
                for name in (intent, _LATEST):
                    with suppress(Rejection):
                        folder.remove(name)
                raise
            try:
                self._copy(copy, content, ours[copy])
                if mirror:
                    self._copy(latest, content, ours[latest])
                folder.remove(intent)
            except Rejection:
                return False
        return True

    def _copy(self, place: Place, content: bytes, ours: str | None) -> None:
        with made(self._roots, place[0]) as folder:
            self._put(folder, place, content, ours)

    # --- what is ours ---

    def _ours(self, worker: str, mission: str) -> dict[Place, str | None]:
        """Of each place of a handoff, the hash of what lies there if that is ours.

        What this process wrote is known. Of the rest, what lies in two places is ours: a person edits one of them. So
        is, as far as can be told, what has no other place.
        """
        own, copy, latest = _places(worker, mission)
        there = {place: self._found(place) for place in (own, copy, latest)}
        ours: dict[Place, str | None] = {}
        for place, pair in ((own, copy), (copy, own), (latest, copy)):
            found = there[place]
            if place in self._written:
                ours[place] = self._written[place]
            elif found is None or not found[0]:
                ours[place] = None
            elif any(found == other for at, other in there.items() if at != place):
                ours[place] = found[0]
            else:
                alone = self._is_of(worker, found) if place == latest else there[pair] is None
                ours[place] = found[0] if alone else None
        return ours

    def _found(self, place: Place) -> tuple[str, int] | None:
        """(the hash, the size) of a file; of one that cannot be read, what no other one has."""
        try:
            folder = opened(self._roots, place[0])
            if folder is None:
                return None
            with folder:
                seen = folder.read(place[1])
        except Rejection:
            return "", hash(place)
        return None if seen is None else (hash_of(seen.content), len(seen.content))

    def _is_of(self, worker: str, latest: tuple[str, int]) -> bool:
        """Whether a latest handoff is, or was, one of a worker's, or that has none."""
        place = layout.handoffs(worker)
        try:
            folder = opened(self._roots, place)
            if folder is None:
                return True
            with folder:
                if _words(folder, _LATEST) == [latest[0].encode()]:
                    return True
                sizes = {name: folder.version(name) for name in folder.names() if name.endswith(".md")}
        except Rejection:
            return False
        same = [name for name, version in sizes.items() if version is not None and version.size == latest[1]]
        return not sizes or any(self._found((place, name)) == latest for name in same)

    def _put(self, folder: FolderHandle, place: Place, content: bytes, ours: str | None) -> None:
        """Put a handoff there. What was there goes, unless its hash is neither `ours` nor the same: it is kept beside.

        Raises:
            FileFailed: somebody writes it all the time.
        """
        name = place[1]
        for _ in range(_TRIES_MAX):
            if folder.create(name, content) is not None:
                break
            seen = folder.read(name)
            if seen is not None and self._exchange(folder, place, content, seen, ours):
                break
        else:
            raise FileFailed(f"{name}: is being written by somebody all the time; nothing was changed.")
        self._written[place] = hash_of(content)
        self._written.move_to_end(place)
        while len(self._written) > _WRITTEN_KEPT:
            self._written.popitem(last=False)
        self._touched(*place)

    def _exchange(self, folder: FolderHandle, place: Place, content: bytes, seen: Seen, ours: str | None) -> bool:
        """Whether the handoff is in the place of what was seen there."""
        name = place[1]
        theirs = hash_of(seen.content) not in (ours, hash_of(content))
        # Kept before it comes out: a crash in between must not lose it.
        kept = _keep(folder, name, seen.content) if theirs else None
        placed = None
        try:
            placed = folder.exchange(name, content, seen)
        finally:
            if placed is None and kept is not None:
                with suppress(Rejection):
                    folder.remove(kept)
        if placed is not None:
            self._watch.add(place[0], [Displaced(name, placed.temporary, seen.content, content)])
        return placed is not None

    # --- what a crash or a failure left undone ---

    def make_up(self, worker: str) -> int:
        """Make the copies of a worker's handoffs that are missing, or were to be made and are older; returns how many.

        The shared one is made only of a handoff that was to be mirrored, and was not. A copy that is another text for
        any other reason is a person's affair.
        """
        folder = opened(self._roots, layout.handoffs(worker))
        if folder is None:
            return 0
        copies = 0
        newest: tuple[Seen, str] | None = None
        with folder:
            names = folder.names()
            for mission in filter(layout.MISSION_ID.fullmatch, (name[:-3] for name in names if name.endswith(".md"))):
                words = _words(folder, _INTENT + mission) if _INTENT + mission in names else []
                copies += self._make_up_copy(folder, worker, mission, words)
                seen = folder.read(layout.handoff_file(mission)) if words and _LOCAL not in words else None
                if seen is None or words[0] != hash_of(seen.content).encode():
                    continue
                if newest is None or newest[0].version.mtime_ns < seen.version.mtime_ns:
                    newest = seen, mission
            if newest is not None:
                latest = _places(worker, newest[1])[2]
                if self._is_older(latest, newest[0]):
                    self._copy(latest, newest[0].content, self._ours_again(worker, newest[1], folder, latest))
                    copies += 1
            for name in names:
                if name.startswith(_INTENT):
                    folder.remove(name)
        return copies

    def _make_up_copy(self, folder: FolderHandle, worker: str, mission: str, words: list[bytes]) -> bool:
        """Make a mission's copy where that is called for; whether it was."""
        own, copy, _ = _places(worker, mission)
        if not words and self._is_there(copy):
            return False
        seen = folder.read(own[1])
        if seen is None or not self._is_older(copy, seen):
            return False
        if self._is_there(copy) and words[:1] != [hash_of(seen.content).encode()]:
            return False
        self._copy(copy, seen.content, self._ours_again(worker, mission, folder, copy))
        return True

    def _ours_again(self, worker: str, mission: str, folder: FolderHandle, place: Place) -> str | None:
        """As `_ours` of one place, after a write that was not ended: what that was to replace is ours as well."""
        found = self._found(place)
        if place not in self._written and found is not None and found[0].encode() in _words(folder, _INTENT + mission):
            return found[0]
        return self._ours(worker, mission)[place]

    def _is_there(self, place: Place) -> bool:
        folder = opened(self._roots, place[0])
        if folder is None:
            return False
        with folder:
            return folder.version(place[1]) is not None

    def _is_older(self, place: Place, seen: Seen) -> bool:
        folder = opened(self._roots, place[0])
        if folder is None:
            return True
        with folder:
            there = folder.version(place[1])
        return there is None or there.mtime_ns < seen.version.mtime_ns


def _places(worker: str, mission: str) -> tuple[Place, Place, Place]:
    """Where the worker's own handoff, its mission's copy and the shared one lie."""
    return (
        (layout.handoffs(worker), layout.handoff_file(mission)),
        (layout.mission(worker, mission), HANDOFF),
        (layout.shared_handoffs(), layout.latest_file(worker)),
    )


def _words(folder: FolderHandle, intent: str) -> list[bytes]:
    seen = folder.read(intent)
    return [] if seen is None else seen.content.split()


def _keep(folder: FolderHandle, name: str, content: bytes) -> str:
    """Keep a text beside a file; returns its name."""
    at_ms = time.time_ns() // 1_000_000
    while folder.create(kept := f"{name}.conflict-{at_ms}", content) is None:
        at_ms += 1
    return kept


def _replace(folder: FolderHandle, name: str, content: bytes) -> None:
    """Put a file of ours alone there, unless it is."""
    if (seen := folder.read(name)) is not None and seen.content == content:
        return
    while folder.create(name, content) is None:
        placed = folder.exchange(name, content, None)
        if placed is not None:
            with suppress(Rejection):  # it is written; the next start sweeps
                folder.remove(placed.temporary)
            return


# --- what a handoff says of itself ---


def mission_named(content: bytes) -> str | None:
    """The mission that the first heading of a handoff names, in small letters; None where it names none.

    Where the heading goes on, a plain word may begin a title: an id has a digit, a dash or the like in it.
    """
    for line in content[:_HEAD_CHARS].decode("utf-8", "replace").splitlines():
        if line.strip():
            match = _NAMED.fullmatch(line.strip().lstrip("\ufeff"))
            named = "" if match is None else match[2].strip(_AROUND).lower()
            sure = match is not None and (not match[3] or _IDENTIFYING.search(named) is not None)
            return named if sure and layout.MISSION_ID.fullmatch(named) else None
    return None


def require_of_mission(content: bytes, mission: str) -> None:
    """Refuse a handoff that would lie under a mission and names another.

    Raises:
        OfAnotherMission: it does.
    """
    if (named := mission_named(content)) not in (None, mission):
        raise OfAnotherMission(f"content: its heading names mission {named}, not {mission}; nothing was written.")
