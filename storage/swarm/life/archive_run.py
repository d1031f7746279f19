"""How an archive is made: its files first, each durably, and then its manifest."""

import re
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final

from storage.errors import FileFailed, NoFileOfOurs
from storage.swarm import layout
from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, made, opened
from storage.swarm.layout import Folder, Roots
from storage.swarm.life.manifest import MANIFEST, Entry, Manifest, entry_of, shown
from storage.swarm.life.mission_files import (
    BYTES_MAX,
    DEPTH_MAX,
    Found,
    Listing,
    MissionFiles,
    Patience,
    Source,
    read_whole,
    require_room,
)
from storage.swarm.projecting import Displaced
from storage.swarm.renames import Temporary, hash_of
from storage.swarm.watching import Watch

_TRIES_MAX: Final = 20
_TIMES: Final = 2
"""What is in an archive may be so many times as much as a mission: what workers have no more is kept there."""
_CONFLICT: Final = re.compile(r".+\.conflict-\d+", re.DOTALL)


def archive_listing(*, strict: bool) -> Listing:
    """A listing of an archive; not of its mission."""
    return Listing("the archive", times=_TIMES, depth_max=DEPTH_MAX + 1, strict=strict)


def is_conflict(name: str) -> bool:
    """Whether a file's name is that of a version that was kept beside the file."""
    return _CONFLICT.fullmatch(name) is not None


def read_manifest(folder: FolderHandle, mission: str) -> tuple[bytes | None, Manifest | None]:
    """(what lies in the manifest's place, None where nothing does; the manifest, None where it is none of the mission).

    Raises:
        Forbidden: it is a link.
    """
    seen = folder.read(MANIFEST, BYTES_MAX)
    if seen is None:
        return None, None
    manifest = Manifest.parsed(seen.content)
    return seen.content, manifest if manifest is not None and manifest.mission == mission else None


class ArchiveRun:
    """One run that archives a mission.

    What of an archive is ours, its last manifest says. A file that is not as it says was damaged, or edited by a
    person; so, as far as can be told, was one that is in no manifest and not as the worker's. Where such a one stands
    in our way it is renamed to `NAME.conflict-<time>`. These are a person's to look at and to delete: no manifest lists
    them. Any other file that we find in an archive, whoever put it there, is listed from then on.
    A run that was stopped half way has files of ours that no manifest lists. They are the same as the worker's, and
    stay; if a worker's file has changed since, they count as a person's: rather one version too many than one too few.
    """

    def __init__(self, roots: Roots, watch: Watch, touched: Callable[[Folder, str], None], mission: str) -> None:
        self._roots = roots
        self._watch = watch
        self._touched = touched
        self._mission = mission
        self._place = layout.archive(mission)
        self._old: Manifest | None = None
        self._of_old: dict[str, Entry] = {}
        self._manifests: set[str] = set()
        """The hashes of the manifest that lies there, if it is as we wrote it."""
        self._changing = False
        self._entries: dict[str, Entry] = {}
        self.replayed = False
        """Whether all was there already."""

    def make(self, files: MissionFiles, now: str, patience: Patience) -> Manifest:
        """Make the archive. Returns its manifest, which is on disk then.

        Raises:
            Conflict, Forbidden, TooLarge: what is in the archive does not allow it. Nothing was written.
            StorageFull, FileFailed: it is half made. The next run completes it.
        """
        self._sweep()
        self._read_old()
        self._require_room(files)
        for source in files.sources:
            self._copy(source, patience)
        self._take_the_rest()
        workers = {*files.workers, *(() if self._old is None else self._old.workers)}
        return self._commit(
            Manifest(
                mission=self._mission,
                archived_at=now,
                workers=tuple(sorted(workers)),
                files=tuple(sorted(self._entries.values())),
                lost=self._lost(),
            )
        )

    def conflicts(self) -> int:
        """How many versions of files lie beside them, after the run."""
        there = self._listed(archive_listing(strict=False))
        return sum(found.path not in self._entries for found in there)

    # --- what is there ---

    def _read_old(self) -> None:
        folder = opened(self._roots, self._place)
        if folder is None:
            return
        with folder:
            content, self._old = read_manifest(folder, self._mission)
        if content is not None and self._old is not None:
            self._of_old = {entry.path: entry for entry in self._old.files}
            if self._old.encoded() == content:
                self._manifests.add(hash_of(content))

    def _listed(self, listing: Listing) -> list[Found]:
        folder = opened(self._roots, self._place)
        if folder is None:
            return []
        with folder:
            return [found for found in listing.files(folder) if found.path != MANIFEST]

    def _require_room(self, files: MissionFiles) -> None:
        listing = archive_listing(strict=True)
        there = self._listed(listing)
        folders = ("/".join(parts) for parts in listing.folders)
        require_room([source.path for source in files.sources], [found.path for found in there], folders)

    def _content(self, place: Folder, name: str) -> bytes | None:
        folder = opened(self._roots, place)
        if folder is None:
            return None
        with folder:
            seen = folder.read(name, BYTES_MAX)
        return None if seen is None else seen.content

    # --- temporary files of runs that were killed ---

    def _sweep(self) -> None:
        listing = archive_listing(strict=False)
        self._listed(listing)
        for parts in ((), *listing.folders):
            place = layout.archive(self._mission, *parts)
            folder = opened(self._roots, place)
            if folder is None:
                continue
            with folder:
                for temporary in folder.temporaries():
                    if not self._watch.holds(place, temporary.name):
                        _sweep_one(folder, temporary)

    # --- making ---

    def _copy(self, source: Source, patience: Patience) -> None:
        content = source.content
        if content is None:
            content = read_whole(self._roots, source.place, source.name, patience)
        if content is None:  # gone since it was listed
            return
        place = layout.archive(self._mission, *source.parts)
        if self._content(place, source.name) != content:
            self._withdraw()
            old = self._of_old.get(source.path)
            self._put(place, source.name, content, () if old is None else (old.sha256,))
        self._entries[source.path] = entry_of(source.path, content)

    def _take_the_rest(self) -> None:
        """Take in what no worker has, or has any more."""
        for found in self._listed(archive_listing(strict=True)):
            if found.path in self._entries:
                continue
            old = self._of_old.get(found.path)
            if old is None and is_conflict(found.name):
                continue
            place = layout.archive(self._mission, *found.parts)
            content = self._content(place, found.name)
            if content is None:
                continue
            entry = entry_of(found.path, content)
            if old is None or old == entry:
                self._entries[found.path] = entry
            else:
                self._withdraw()
                self._set_aside(place, found.name)

    def _set_aside(self, place: Folder, name: str) -> None:
        """A file that is not as we made it, and that cannot be made again."""
        with made(self._roots, place) as folder:
            folder.keep(name, name)
        self._touched(place, name)

    def _lost(self) -> tuple[Entry, ...]:
        if self._old is None:
            return ()
        lost = {entry.path: entry for entry in (*self._old.lost, *self._old.files) if entry.path not in self._entries}
        return tuple(sorted(lost.values()))

    def _withdraw(self) -> None:
        """Before the first change: let the manifest vouch for nothing, and keep what it says is ours."""
        if self._changing:
            return
        if self._old is not None and self._old.whole:
            withdrawn = self._old.withdrawn().encoded()
            self._put(self._place, MANIFEST, withdrawn, self._manifests)
            self._manifests = {hash_of(withdrawn)}
        self._changing = True

    def _commit(self, manifest: Manifest) -> Manifest:
        if self._old is not None and not self._changing and manifest.says_as(self._old):
            self.replayed = True
            return self._old
        self._put(self._place, MANIFEST, manifest.encoded(), self._manifests)
        return manifest

    # --- putting ---

    def _put(self, place: Folder, name: str, content: bytes, ours: Collection[str]) -> None:
        """Put a file there. What was there goes if its hash is among `ours`, and is kept beside otherwise.

        Raises:
            FileFailed: somebody writes it all the time.
        """
        with made(self._roots, place) as folder:
            for _ in range(_TRIES_MAX):
                if folder.create(name, content) is not None:
                    break
                seen = folder.read(name, BYTES_MAX)
                if seen is not None and self._instead(folder, place, name, content, seen, ours=ours):
                    break
            else:
                raise FileFailed(f"{shown(name)}: is being written by somebody all the time; the archive is half made.")
        self._touched(place, name)

    def _instead(
        self, folder: FolderHandle, place: Folder, name: str, content: bytes, seen: Seen, *, ours: Collection[str]
    ) -> bool:
        """Whether the file is in the place of what was seen there."""
        if seen.content == content:
            return True
        # What came out is read again, which has a bound: a larger one is kept beside, whosever it is.
        if hash_of(seen.content) not in ours or len(seen.content) > FILE_BYTES_MAX:
            folder.keep(name, name)
            return False
        placed = folder.exchange(name, content, seen)
        if placed is None:
            return False
        self._watch.add(place, [Displaced(name, placed.temporary, seen.content, content)])
        return True


def _sweep_one(folder: FolderHandle, temporary: Temporary) -> None:
    """Remove a temporary file of a dead process; what a person wrote into one is kept beside its page."""
    edited = False
    if temporary.known is not None:
        with suppress(NoFileOfOurs):  # it has a second name, which stays: the process died between two steps
            seen = folder.read(temporary.name, BYTES_MAX)
            edited = seen is not None and bool(seen.content) and not temporary.may_hold(hash_of(seen.content))
    if edited:
        folder.keep(temporary.name, temporary.page)
    else:
        folder.remove(temporary.name)
