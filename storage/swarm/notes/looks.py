"""Notes that were edited are looked at once more: what an editor's late save has undone is kept beside."""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from storage.errors import Rejection
from storage.swarm.episodes import LOOK_AFTER_S
from storage.swarm.folders import FolderHandle, Seen, Version, opened
from storage.swarm.layout import Folder, Roots

_TRIES_MAX: Final = 20
_TEXTS_MAX: Final = 64
"""Of a note that is edited all the time: the last ones are looked for."""


@dataclass(slots=True)
class _Edited:
    """What a note is as we wrote it."""

    at_s: float
    version: Version
    content: bytes
    texts: list[bytes] = field(default_factory=list)
    """What edits have put into it."""


class NoteLooks:
    """Looks at notes again. A note is a person's as much as ours: nothing is ever put into his version of it."""

    def __init__(self, roots: Roots, monotonic: Callable[[], float]) -> None:
        self._roots = roots
        self._monotonic = monotonic
        self._edited: dict[tuple[Folder, str], _Edited] = {}

    def __bool__(self) -> bool:
        return bool(self._edited)

    def made(self, place: Folder, name: str, version: Version, content: bytes) -> None:
        """Note that a note was made."""
        self._edited[place, name] = _Edited(self._monotonic() + LOOK_AFTER_S, version, content, [content])

    def changed(
        self,
        folder: FolderHandle,
        place: Folder,
        name: str,
        seen: Seen,
        *,
        version: Version,
        content: bytes,
        text: bytes,
    ) -> None:
        """Note that an edit has made a note this out of what it had `seen`, putting in a text.

        What an editor's save had undone until then is kept at once.
        """
        before = self._edited.get((place, name))
        texts: list[bytes] = []
        if before is not None:
            if seen.version != before.version:
                _keep_undone(folder, name, before, seen.content)
            texts = [old for old in before.texts[-_TEXTS_MAX:] if old in content]
        texts += [text] if text.strip() else []
        self._edited[place, name] = _Edited(self._monotonic() + LOOK_AFTER_S, version, content, texts)

    def follow(self, *, whole: bool) -> None:
        """Look at the notes whose time has come; at all where `whole`."""
        now_s = self._monotonic()
        for (place, name), edited in list(self._edited.items()):
            if not whole and edited.at_s > now_s:
                continue
            del self._edited[place, name]
            with suppress(Rejection):  # a note that cannot be read any more
                if (folder := opened(self._roots, place)) is not None:
                    with folder:
                        _look(folder, name, edited)


def _look(folder: FolderHandle, name: str, edited: _Edited) -> None:
    """Keep what an edit made beside a note that lacks it now. One that is gone was removed, not saved."""
    if folder.version(name) == edited.version:
        return
    if (seen := folder.read(name)) is not None:
        _keep_undone(folder, name, edited, seen.content)


def _keep_undone(folder: FolderHandle, name: str, edited: _Edited, now: bytes) -> None:
    if all(text.strip() in now for text in edited.texts):
        return
    at_ms = time.time_ns() // 1_000_000
    for later in range(_TRIES_MAX):
        if folder.create(f"{name}.conflict-{at_ms + later}", edited.content) is not None:
            return
