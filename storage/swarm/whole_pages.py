"""Pages that callers write as they are: those of a profile, and shared notes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from storage.errors import Conflict, Rejection, TooLarge
from storage.swarm import layout
from storage.swarm.episodes import LOOK_AFTER_S
from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, Version, made, opened
from storage.swarm.layout import Folder, Kind, Roots
from storage.swarm.projecting import Displaced
from storage.swarm.records import SwarmWritten
from storage.swarm.renames import hash_of
from storage.swarm.watching import Watch

_TRIES_MAX: Final = 3
_LOOKS_MAX: Final = 4


@dataclass(slots=True)
class _Appended:
    """Text that an editor's save may still undo."""

    at_s: float
    version: Version | None
    """Of the page when it had them all."""
    texts: dict[bytes, int] = field(default_factory=dict)
    """And how often the page has each."""
    looks: int = 0


class WholePages:
    """Writes pages of profiles and of shared memory."""

    def __init__(
        self, roots: Roots, watch: Watch, *, monotonic: Callable[[], float], touched: Callable[[Folder, str], None]
    ) -> None:
        self._roots = roots
        self._watch = watch
        self._monotonic = monotonic
        self._touched = touched
        self._appended: dict[tuple[Folder, str], _Appended] = {}

    def __bool__(self) -> bool:
        return bool(self._appended)

    def write(self, kind: Kind, worker: str | None, name: str, text: bytes, base_hash: str | None) -> SwarmWritten:
        """Write a page instead of the version `base_hash`, or without one behind what is there.

        The hash of nothing stands for a page that does not exist yet.

        Raises:
            Conflict: the page is not the version that the new one was made from.
            TooLarge: the page is, or would become, larger than can be read.
        """
        place = layout.shared() if worker is None else layout.memory(worker)
        with made(self._roots, place) as folder:
            seen = folder.read(name)
            if len(text) + (0 if base_hash is not None or seen is None else len(seen.content)) >= FILE_BYTES_MAX:
                raise TooLarge(f"content: {name} would become larger than {FILE_BYTES_MAX:,} bytes.")
            if base_hash is not None:
                self._replace(folder, place, name, seen, text, base_hash=base_hash.lower())
                self._appended.pop((place, name), None)  # whoever replaced it had read it
            elif seen is not None or folder.create(name, text) is None:
                _append(folder, name, text)
            self._touched(place, name)
            now: Seen | None = None
            with suppress(Rejection):  # it is written: what has happened to it since is another matter
                now = folder.read(name)
            if base_hash is None and now is not None and text.strip():
                self._look_later(place, name, text, now)
        return SwarmWritten(
            workerId=worker,
            kind=kind,
            action="appended" if base_hash is None else "replaced",
            path=str(self._roots.path(place, name)),
            hash=None if now is None else hash_of(now.content),
        )

    def _replace(
        self, folder: FolderHandle, place: Folder, name: str, seen: Seen | None, text: bytes, *, base_hash: str
    ) -> None:
        if seen is None:
            if base_hash != hash_of(b""):
                raise Conflict(f"baseHash: there is no {name}; send the hash of nothing to make it, or no hash.")
            if folder.create(name, text) is None:
                raise Conflict(f"baseHash: {name} was made meanwhile; read it and merge.")
            return
        if seen.content == text:  # a retry, or nobody's loss
            return
        if hash_of(seen.content) != base_hash:
            raise Conflict(f"baseHash: {name} is another version by now; read it and merge.")
        placed = folder.exchange(name, text, seen)
        if placed is None:
            raise Conflict(f"baseHash: {name} was written or removed meanwhile; read it and merge.")
        self._watch.add(place, [Displaced(name, placed.temporary, seen.content, text)])

    # --- editors ---

    def _look_later(self, place: Folder, name: str, text: bytes, now: Seen) -> None:
        appended = self._appended.setdefault((place, name), _Appended(0.0, None))
        there, least = _count(now.content, text), appended.texts.get(text, 0) + 1
        appended.texts[text] = max(there, least)
        appended.at_s, appended.looks = self._monotonic() + LOOK_AFTER_S, 0
        appended.version = now.version if there >= least else None

    def follow(self, *, whole: bool) -> None:
        """Append once more what an editor's save has undone: he saved what he had read before it was appended."""
        now_s = self._monotonic()
        for (place, name), appended in list(self._appended.items()):
            if not whole and appended.at_s > now_s:
                continue
            del self._appended[place, name]
            with suppress(Rejection):  # a page that cannot be read any more
                if self._look(place, name, appended) and appended.looks < _LOOKS_MAX:
                    appended.at_s, appended.looks = now_s + LOOK_AFTER_S, appended.looks + 1
                    self._appended[place, name] = appended

    def _look(self, place: Folder, name: str, appended: _Appended) -> bool:
        """Whether the page is to be looked at once more."""
        folder = opened(self._roots, place)
        if folder is None:
            return False
        with folder:
            if folder.version(name) == appended.version:
                return False
            seen = folder.read(name)
            if seen is None:  # removed, not saved
                return False
            missing = [text for text, times in appended.texts.items() if _count(seen.content, text) < times]
            if sum(map(len, missing)) + len(seen.content) >= FILE_BYTES_MAX:
                return False
            for text in missing:
                _append(folder, name, text)
                self._touched(place, name)
            appended.version = folder.version(name)
        return bool(missing)


def _append(folder: FolderHandle, name: str, text: bytes) -> None:
    """Add text behind a page, on a line of its own; into the file that an editor puts there meanwhile as well."""
    for _ in range(_TRIES_MAX):
        seen = folder.read(name)
        before = b"" if seen is None else seen.content
        version = folder.append(name, _gap(before) + text)
        now = folder.version(name)
        if now is None or now.inode == version.inode:
            return
        saved = folder.read(name)
        if saved is None or text in saved.content[len(before) :]:
            return


def _count(page: bytes, text: bytes) -> int:
    """How often a page has a text on lines of its own, whatever ends them."""
    return _apart(page).count(_apart(text))


def _apart(text: bytes) -> bytes:
    """Text with a line end on both sides of each line, so that neighbours share none."""
    return b"\n%b\n" % text.replace(b"\r\n", b"\n").removesuffix(b"\n").replace(b"\n", b"\n\n")


def _gap(before: bytes) -> bytes:
    if not before or before.endswith(b"\n"):
        return b""
    return b"\r\n" if b"\r\n" in before else b"\n"
