"""Which handoff of a mission is the latest: a worker's own or a shared one, and never one of another mission."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from storage.errors import Rejection
from storage.swarm import layout
from storage.swarm.folders import Seen, opened
from storage.swarm.handoffs import mission_named
from storage.swarm.layout import HANDOFF, LATEST, Folder, Roots
from storage.swarm.renames import hash_of
from storage.times import iso_of_file

_SUFFIX: Final = "-latest.md"


class Handed(NamedTuple):
    """A handoff as it was found."""

    place: Folder
    name: str
    seen: Seen
    of: str | None
    """The mission that its heading names; None where it names none."""
    written_ns: int
    """When the newest of its copies was written: they are written after it."""

    @property
    def written_at(self) -> str:
        """When it was written: ISO 8601, UTC."""
        return iso_of_file(self.written_ns)

    @property
    def hash(self) -> str:
        """Of its bytes."""
        return hash_of(self.seen.content)


def own_handoffs(roots: Roots, worker: str) -> Iterator[Handed]:
    """Those of a worker's handoffs whose place names no mission: its `latest.md` and its shared one."""
    for place, name in ((layout.handoffs(worker), LATEST), (layout.shared_handoffs(), layout.latest_file(worker))):
        if (found := _found(roots, place, name)) is not None:
            yield found


def handoffs_of(roots: Roots, worker: str, mission: str) -> Iterator[Handed]:
    """A worker's handoffs in the places of a mission, whatever their headings name."""
    own = (layout.handoffs(worker), layout.handoff_file(mission))
    for place, name in (own, (layout.mission(worker, mission), HANDOFF)):
        if (found := _found(roots, place, name)) is not None:
            yield found


def latest_of_worker(roots: Roots, worker: str, mission: str) -> Handed | None:
    """The latest handoff that a worker wrote for a mission, wherever it put it."""
    placed = list(handoffs_of(roots, worker, mission))
    hashes = {one.hash for one in placed}
    loose = [one for one in own_handoffs(roots, worker) if one.of == mission or (one.of is None and one.hash in hashes)]
    found = [*(one for one in placed if one.of in (None, mission)), *loose]
    newest = _latest(found)
    if newest is None:
        return None
    # What lies in several places is named by the first of them: the shared one is replaced by the next mission's.
    first = next(one for one in found if one.hash == newest.hash)
    return first._replace(written_ns=newest.written_ns)


def latest_of_mission(roots: Roots, worker: str, mission: str) -> Handed | None:
    """The latest handoff of a mission for a worker that resumes it: its own, or one that another worker left.

    Another worker's counts where it is shared, and where it lies among that worker's handoffs under the mission's
    name: missions and handoffs are the fleet's. The worker's own comes first where two are of the same instant.
    """
    found = [latest_of_worker(roots, worker, mission)]
    found += [latest_of_worker(roots, other, mission) for other in sorted(_workers(roots) - {worker})]
    return _latest([one for one in found if one is not None])


def _latest(found: list[Handed]) -> Handed | None:
    return max(found, key=lambda one: one.written_ns, default=None)


def _workers(roots: Roots) -> set[str]:
    """Every worker that may have left a handoff; of a folder that cannot be read, none."""
    found: set[str] = set()
    with suppress(Rejection):
        if (folder := opened(roots, Folder("profiles", ()))) is not None:
            with folder:
                found.update(filter(layout.WORKER_ID.fullmatch, folder.names()))
    with suppress(Rejection):
        if (folder := opened(roots, layout.shared_handoffs())) is not None:
            with folder:
                names = [name.removesuffix(_SUFFIX) for name in folder.names() if name.endswith(_SUFFIX)]
                found.update(filter(layout.WORKER_ID.fullmatch, names))
    return found


def _found(roots: Roots, place: Folder, name: str) -> Handed | None:
    """A handoff; None where there is none, or none that can be read."""
    with suppress(Rejection):
        if (folder := opened(roots, place)) is not None:
            with folder:
                seen = folder.read(name)
            if seen is not None and seen.content.strip():
                return Handed(place, name, seen, mission_named(seen.content), seen.version.mtime_ns)
    return None
