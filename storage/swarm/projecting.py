"""How our text gets into a page that a person may be editing at this moment, without losing what he writes.

The new page takes the old one's place in one step, and what came out is looked at: at once, and goes back if it is not
what was read; and again when an editor that still had it open has finished, to be merged in. Two edits that exclude
each other are both kept.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from storage.swarm.folders import FILE_BYTES_MAX, FolderHandle, Seen, Version
from storage.swarm.merging import is_whole

QUIET_S: Final = 0.02
"""A page that was written less than this ago may still be half written: left alone."""
CUT_QUIET_S: Final = 1.0
"""The same of a page that is empty or cut short: its editor may have been held up before he has written all of it."""
LOOK_AGAIN_S: Final = 0.05
"""How long what came out of a page's place is kept, for editors that write into it."""

Merge = Callable[[str | None], str]
"""From a person's page, None where there is none, to the page with our text in it."""


@dataclass(frozen=True, slots=True, eq=False)
class Displaced:
    """A file that came out of a page's place."""

    page: str
    temporary: str
    content: bytes
    """When it came out."""
    instead: bytes
    """What we put in its place."""


class Busy(Exception):
    """Somebody is writing the page at this moment; nothing was done."""


def project(
    folder: FolderHandle, page: str, merge: Merge, *, ours: Version | None, displaced: list[Displaced]
) -> Version:
    """Bring a page up to date. Returns what it is then.

    `ours` is what we wrote last, which needs no waiting. What came out of the page's place is added to `displaced`, to
    be looked at again.

    Raises:
        Busy: somebody is writing the page, or has written it since it was read here. It is as he left it.
        StorageFull, FileFailed, Forbidden, TooLarge: the page is as it was.
    """
    seen = folder.read(page)
    if seen is None:
        made = folder.create(page, encoded(merge(None)))
        if made is None:
            raise Busy
        return made
    if seen.version != ours and _age_s(seen) < (QUIET_S if is_whole(decoded(seen.content)) else CUT_QUIET_S):
        raise Busy
    text = encoded(merge(decoded(seen.content)))
    if text == seen.content:
        return seen.version
    # Not merged at once with what was saved meanwhile: until that is quiet, the page would lack it, and who reads the
    # page in that time and saves it later undoes his own edit. Pinned by
    # test_no_edit_and_no_event_is_lost_while_an_editor_saves.
    placed = folder.exchange(page, text, seen)
    if placed is None:
        raise Busy
    displaced.append(Displaced(page, placed.temporary, seen.content, text))
    return placed.version


def look_again(folder: FolderHandle, old: Displaced, merge: Merge | None, displaced: list[Displaced]) -> None:
    """Look at what came out of a page's place once more, keep what was written into it since, and remove it.

    It is merged into the page where that holds nothing else of a person's since, and kept beside it otherwise, or
    where `merge` is None. What comes out of the page's place is added to `displaced`.

    Raises:
        Busy: an editor has emptied it and is about to write, or is writing it at this moment.
    """
    seen = folder.read(old.temporary, FILE_BYTES_MAX + len(old.content))
    if seen is None:
        return
    if seen.content == old.content:
        folder.remove(old.temporary)
        return
    if not seen.content:
        raise Busy
    now = None if merge is None else folder.read(old.page)
    if merge is None or now is None or merge(decoded(now.content)) != merge(decoded(old.instead)):
        folder.keep(old.temporary, old.page)
        return
    if _age_s(seen) < QUIET_S:
        raise Busy
    text = encoded(merge(decoded(seen.content)))
    if text != now.content:
        placed = folder.exchange(old.page, text, now)
        if placed is None:
            folder.keep(old.temporary, old.page)
            return
        displaced.append(Displaced(old.page, placed.temporary, now.content, text))
    folder.remove(old.temporary)


def _age_s(seen: Seen) -> float:
    """How far a file's time is from now; one in the future was set, by no editor that is writing at this moment."""
    return abs(time.time_ns() - seen.version.mtime_ns) / 1e9


def encoded(text: str) -> bytes:
    """A page's text as bytes; what was no UTF-8 comes out as it went in."""
    return text.encode("utf-8", "surrogateescape")


def decoded(content: bytes) -> str:
    """A page's bytes as text, whatever they are."""
    return content.decode("utf-8", "surrogateescape")
