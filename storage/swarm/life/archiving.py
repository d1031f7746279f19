"""A completed mission, whole, in the memory of all: made, made again, and verified.

The manifest is the commit point. It is written last, and withdrawn before a file that it vouches for is changed: what
was stopped half way is no archive, and the next try makes it one. Nothing of a worker's is changed.
"""

import time
from collections.abc import Callable, Iterable
from typing import Final

from storage.errors import Conflict, NoFileOfOurs, NotFound
from storage.swarm import layout
from storage.swarm.events import stamp
from storage.swarm.folders import FolderHandle, opened
from storage.swarm.layout import Folder, Roots
from storage.swarm.life.archive_run import ArchiveRun, archive_listing, is_conflict, read_manifest
from storage.swarm.life.manifest import MANIFEST, Entry, Manifest, entry_of, shown
from storage.swarm.life.mission_files import BYTES_MAX, Found, Patience, mission_files
from storage.swarm.life.records import Archived, Verified
from storage.swarm.renames import hash_of
from storage.swarm.watching import Watch

DAMAGES_SHOWN: Final = 20
_TRIES_MAX: Final = 3


class ArchiveDamaged(Conflict):
    """An archive is not what its manifest says."""

    hint = "Archive the mission again: what its workers still have is restored, what was changed is kept beside."


class NotArchived(NotFound):
    """There is no archive of the mission, or one that is only half made."""

    hint = "Archive the mission; a half-made archive is completed by that."


class Archives:
    """Archives missions, and verifies what was archived."""

    def __init__(
        self,
        roots: Roots,
        watch: Watch,
        touched: Callable[[Folder, str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`touched` is told every file that is written; `watch` looks after what came out of files' places."""
        self._roots = roots
        self._watch = watch
        self._touched = touched
        self._clock = clock

    def archive(self, mission: str) -> Archived:
        """Copy a completed mission of all workers into the shared archive, byte for byte, and write its manifest.

        Runs in the writer's thread, and holds the largest file and all logs in memory. What is written of a mission
        after it was archived is archived by the next call; what the workers have no more stays in the archive. Which
        files there are a person's, and what becomes of them, `ArchiveRun` says. Pages are taken as they are: let those
        follow first that are behind their log. Waits at most a second for files that are being written.

        Raises:
            InvalidRequest: the id is none.
            NotFound: no worker has the mission.
            Conflict: it is not complete, or two files would have one place. Nothing was written.
            Forbidden: a link, or what is no file of its own, is among its files or in the archive. Nothing was written.
            TooLarge: there are too many files, or too large, deep or long-named ones. Nothing was written.
            StorageFull, FileFailed: the archive may be half made; the next call completes it.
        """
        mission = layout.mission_id(mission)
        patience = Patience()
        files = mission_files(self._roots, mission, patience)
        run = ArchiveRun(self._roots, self._watch, self._touched, mission)
        manifest = run.make(files, stamp(self._clock(), None, ()), patience)
        place = layout.archive(mission)
        return Archived(
            missionId=mission,
            path=str(self._roots.path(place)),
            manifestPath=str(self._roots.path(place, MANIFEST)),
            files=len(manifest.files),
            bytes=_bytes(manifest),
            workers=manifest.workers,
            hash=hash_of(manifest.encoded()),
            replayed=run.replayed,
            conflicts=run.conflicts(),
            lost=len(manifest.lost),
        )

    def verify(self, mission: str) -> Verified:
        """Read a mission's whole archive and compare it with its manifest. From any thread; writes nothing.

        Versions that were kept beside a file (`NAME.conflict-<time>`) are counted, and are no damage.

        Raises:
            InvalidRequest: the id is none.
            NotFound: there is no archive, or a half-made one; the text says which.
            ArchiveDamaged: files are missing, changed or unlisted; the text names the first DAMAGES_SHOWN.
            TooLarge: more is there than is ever archived.
            FileFailed: it cannot be read.
        """
        mission = layout.mission_id(mission)
        for at in range(_TRIES_MAX):
            content, manifest, there = self._look(mission)
            damages = list(self._damages(mission, manifest, there))
            if not damages:
                return self._verified(content, manifest, there)
            if at + 1 < _TRIES_MAX and self._look(mission)[0] != content:
                continue  # it was archived again meanwhile
            break
        raise ArchiveDamaged(f"missionId: the archive of {mission} is damaged: {_told(damages)}.")

    # --- verifying ---

    def _look(self, mission: str) -> tuple[bytes, Manifest, dict[str, Found]]:
        """(the manifest as it lies there, what it says, the other files by their paths)."""
        folder = opened(self._roots, layout.archive(mission))
        if folder is None:
            raise NotArchived(f"missionId: {mission} is not archived.")
        with folder:
            content, manifest = _manifest(folder, mission)
            there = {found.path: found for found in archive_listing(strict=False).files(folder)}
        if content is None or (manifest is not None and not manifest.whole):
            raise NotArchived(f"missionId: the archive of {mission} is half made; it has no manifest yet.")
        if manifest is None:
            raise ArchiveDamaged(f"missionId: the archive of {mission} is damaged: {MANIFEST} is none of it.")
        there.pop(MANIFEST, None)
        return content, manifest, there

    def _damages(self, mission: str, manifest: Manifest, there: dict[str, Found]) -> Iterable[str]:
        listed = {entry.path: entry for entry in manifest.files}
        for path, entry in listed.items():
            if path not in there:
                yield f"missing {shown(path)}"
            elif not self._is_as(mission, there[path], entry):
                yield f"changed {shown(path)}"
        for path, found in there.items():
            if path not in listed and not (is_conflict(found.name) and found.size is not None):
                yield f"unlisted {shown(path)}"

    def _is_as(self, mission: str, found: Found, entry: Entry) -> bool:
        """Whether a file is as the manifest says; one of another size is not read."""
        if found.size != entry.bytes:
            return False
        folder = opened(self._roots, layout.archive(mission, *found.parts))
        if folder is None:
            return False
        with folder:
            seen = folder.read(found.name, BYTES_MAX)
        return seen is not None and entry_of(entry.path, seen.content) == entry

    def _verified(self, content: bytes, manifest: Manifest, there: dict[str, Found]) -> Verified:
        place = layout.archive(manifest.mission)
        return Verified(
            missionId=manifest.mission,
            path=str(self._roots.path(place)),
            manifestPath=str(self._roots.path(place, MANIFEST)),
            files=len(manifest.files),
            bytes=_bytes(manifest),
            workers=manifest.workers,
            hash=hash_of(content),
            archivedAt=manifest.archived_at,
            conflicts=len(there.keys() - {entry.path for entry in manifest.files}),
            lost=len(manifest.lost),
        )


def _manifest(folder: FolderHandle, mission: str) -> tuple[bytes | None, Manifest | None]:
    try:
        return read_manifest(folder, mission)
    except NoFileOfOurs as error:
        raise ArchiveDamaged(f"missionId: the archive of {mission} is damaged: {MANIFEST} is a link.") from error


def _bytes(manifest: Manifest) -> int:
    return sum(entry.bytes for entry in manifest.files)


def _told(damages: list[str]) -> str:
    more = len(damages) - DAMAGES_SHOWN
    return ", ".join(damages[:DAMAGES_SHOWN]) + (f" and {more} more" if more > 0 else "")
