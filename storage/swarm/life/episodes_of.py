"""The recent episodes of a worker that concern one mission."""

import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from storage.errors import Rejection
from storage.fitting import blocks
from storage.swarm import layout
from storage.swarm.folders import FolderHandle, Seen, opened
from storage.swarm.layout import Roots

PAGES_MAX: Final = 400
"""How many of the newest days are looked through."""
_PAGE_BYTES: Final = 524_288
"""Of a day's page: its end, where it is longer."""
_PAGE: Final = re.compile(r"\d{4}-\d{2}-\d{2}\.md")
_MARK: Final = re.compile(r"^<!-- solos:event (\S+) ", re.MULTILINE)
_MISSION: Final = re.compile(r"^\s*[-*]\s+Mission:\s*(\S+)", re.MULTILINE | re.IGNORECASE)


class Day(NamedTuple):
    """What a day's page holds of a mission."""

    name: str
    seen: Seen
    entries: str


def days_of(roots: Roots, worker: str, mission: str) -> Iterator[Day]:
    """The days on which something of a mission happened, the newest first; each is read as it is asked for.

    An entry concerns the mission that it names as its own; one that names none, each mission that its text names.

    Raises:
        Rejection: the folder cannot be read; of a page that cannot, nothing is shown.
    """
    folder = opened(roots, layout.episodes(worker))
    if folder is None:
        return
    with folder:
        names = sorted(filter(_PAGE.fullmatch, folder.names()), reverse=True)
        for name in names[:PAGES_MAX]:
            if (day := _day(folder, name, mission)) is not None:
                yield day


def _day(folder: FolderHandle, name: str, mission: str) -> Day | None:
    with suppress(Rejection):
        seen = folder.part(name, _PAGE_BYTES, end=True)
        if seen is not None and re.search(_named(mission).encode(), seen.content.lower()):
            entries = [block for block in blocks(_plain(seen), "## ") if _concerns(block, mission)]
            if entries:
                return Day(name, seen, "".join(entries))
    return None


def _plain(seen: Seen) -> str:
    return seen.content.decode("utf-8", "replace")


def _concerns(entry: str, mission: str) -> bool:
    own = _MARK.search(entry) or _MISSION.search(entry)
    if own is not None and own[1] != "-":
        return own[1].lower() == mission
    return re.search(_named(mission), entry.lower()) is not None


def _named(mission: str) -> str:
    """What finds a mission's id where it is no part of another one.

    It begins with the id, which is looked for fast; what must not stand before it is asked where it was found.
    """
    name = re.escape(mission)
    return rf"{name}(?<![\w.:-]{name})(?!\w|[.:-]\w)"
