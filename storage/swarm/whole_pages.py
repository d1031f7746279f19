"""Pages that callers write as they are: those of a profile, and shared notes."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from storage.errors import Conflict, Rejection, TooLarge
from storage.swarm import layout
from storage.swarm.episodes import LOOK_AFTER_S
from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, Version, made, opened
from storage.swarm.layout import Folder, Kind, Roots
from storage.swarm.projecting import Displaced, decoded, encoded
from storage.swarm.records import SwarmWritten
from storage.swarm.renames import hash_of
from storage.swarm.watching import Watch

_TRIES_MAX: Final = 3
_LOOKS_MAX: Final = 4


Merge = Callable[[bytes], bytes]
"""From a page to the page with a text in it; the same page where it has that, or has no place for it."""


Page = tuple[Folder, str]
"""A folder, and a file of it."""


class _Text(NamedTuple):
    """A text that was put into a page."""

    times: int
    """How often the page had it then."""
    merge: Merge | None
    """How it is put there again; None: at the end."""


@dataclass(slots=True)
class _Watched:
    """Texts of a page that an editor's save may still undo."""

    at_s: float
    version: Version | None
    """Of the page when it had them all."""
    texts: dict[bytes, _Text] = field(default_factory=dict)
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
        self._watched: dict[Page, _Watched] = {}

    def __bool__(self) -> bool:
        return bool(self._watched)

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
                self._watched.pop((place, name), None)  # whoever replaced it had read it
            elif seen is not None or folder.create(name, text) is None:
                _append(folder, name, text)
            self._touched(place, name)
            now: Seen | None = None
            with suppress(Rejection):  # it is written: what has happened to it since is another matter
                now = folder.read(name)
            if base_hash is None and now is not None and text.strip():
                before = seen.version if seen is not None and now.content.startswith(seen.content) else None
                self._look_later((place, name), before, now, text=text, merge=None)
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

    def put(
        self, folder: FolderHandle, page: Page, seen: Seen | None, content: bytes, *, text: bytes, merge: Merge
    ) -> Version | None:
        """Put `content` in the place of `seen`: the same with `text` in it, on lines of its own. Returns its version.

        `merge` puts it in again where an editor, who had read the page before, undoes it. None where another version is
        there by now, or one where `seen` is None: nothing was done then.

        Raises:
            Forbidden, StorageFull, FileFailed: the page is as it was.
        """
        if seen is None:
            before, version = None, folder.create(page[1], content)
        else:
            before, version = seen.version, self._exchange(folder, page, seen, content, merge)
        if version is not None:
            self._touched(*page)
            self._look_later(page, before, Seen(content, version), text=text, merge=merge)
        return version

    def _exchange(self, folder: FolderHandle, page: Page, seen: Seen, content: bytes, merge: Merge) -> Version | None:
        placed = folder.exchange(page[1], content, seen)
        if placed is None:
            return None

        def merged(theirs: str | None) -> str:
            return decoded(merge(encoded(theirs or "")))

        out = Displaced(page[1], placed.temporary, seen.content, content)
        self._watch.add(page[0], [out], lambda _: merged)
        return placed.version

    # --- editors ---

    def _look_later(self, page: Page, before: Version | None, now: Seen, *, text: bytes, merge: Merge | None) -> None:
        """Look later whether a page has a text still that is in it `now`; it was `before`, where that is known."""
        watched = self._watched.setdefault(page, _Watched(0.0, None))
        unbroken = not watched.texts or (before is not None and before == watched.version)
        known = watched.texts.get(text)
        there, least = _count(now.content, text), 1 if known is None else known.times + 1
        watched.texts[text] = _Text(max(there, least), merge)
        watched.at_s, watched.looks = self._monotonic() + LOOK_AFTER_S, 0
        watched.version = now.version if unbroken and there >= least else None

    def follow(self, *, whole: bool) -> None:
        """Put in once more what an editor's save has undone: he saved what he had read before it was put in."""
        now_s = self._monotonic()
        for page, watched in list(self._watched.items()):
            if not whole and watched.at_s > now_s:
                continue
            del self._watched[page]
            with suppress(Rejection):  # a page that cannot be read any more
                if self._look(page, watched) and watched.looks < _LOOKS_MAX:
                    watched.at_s, watched.looks = now_s + LOOK_AFTER_S, watched.looks + 1
                    self._watched[page] = watched

    def _look(self, page: Page, watched: _Watched) -> bool:
        """Whether the page is to be looked at once more."""
        place, name = page
        folder = opened(self._roots, place)
        if folder is None:
            return False
        with folder:
            if folder.version(name) == watched.version:
                return False
            seen = folder.read(name)
            if seen is None:  # removed, not saved
                return False
            missing = [text for text, (times, _) in watched.texts.items() if _count(seen.content, text) < times]
            if sum(map(len, missing)) + len(seen.content) >= FILE_BYTES_MAX:
                return False
            for text in missing:
                self._put_again(folder, page, text, watched.texts[text].merge)
                self._touched(place, name)
            watched.version = folder.version(name)
        return bool(missing)

    def _put_again(self, folder: FolderHandle, page: Page, text: bytes, merge: Merge | None) -> None:
        if merge is None:
            _append(folder, page[1], text)
            return
        for _ in range(_TRIES_MAX):
            seen = folder.read(page[1])
            if seen is None or (content := merge(seen.content)) == seen.content:
                return
            if self._exchange(folder, page, seen, content, merge) is not None:
                return


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
