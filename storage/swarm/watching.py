"""What came out of pages' places, until it has been looked at again."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from storage.errors import Rejection
from storage.swarm.folders import FolderHandle, opened
from storage.swarm.layout import Folder, Roots
from storage.swarm.projecting import LOOK_AGAIN_S, Busy, Displaced, Merge, look_again

_BUSY_TRIES_MAX: Final = 20
"""Of LOOK_AGAIN_S each: how long an editor that is writing is waited for."""
_FAILED_TRIES_MAX: Final = 5
_FAILED_WAIT_S: Final = 1.0

MergeOf = Callable[[FolderHandle], Merge]
"""How a person's text is merged into a page of the folder."""


@dataclass(slots=True, eq=False)
class _Watched:
    place: Folder
    displaced: Displaced
    merge_of: MergeOf | None
    at_s: float
    busy: int = 0
    failed: int = 0


class Watch:
    """Files that came out of pages' places."""

    def __init__(self, roots: Roots, monotonic: Callable[[], float]) -> None:
        self._roots = roots
        self._monotonic = monotonic
        self._watched: list[_Watched] = []

    def __bool__(self) -> bool:
        return bool(self._watched)

    def add(self, place: Folder, displaced: Iterable[Displaced], merge_of: MergeOf | None = None) -> None:
        """Look at these again a little later. Without `merge_of`, what was written into them is kept beside."""
        at_s = self._monotonic() + LOOK_AGAIN_S
        self._watched += [_Watched(place, old, merge_of, at_s) for old in displaced]

    def holds(self, place: Folder, temporary: str) -> bool:
        """Whether a temporary file is one that is looked at again."""
        return any(one.place == place and one.displaced.temporary == temporary for one in self._watched)

    def follow(self) -> None:
        """Look at those that are due."""
        now_s = self._monotonic()
        due = [one for one in self._watched if one.at_s <= now_s]
        self._watched = [one for one in self._watched if one.at_s > now_s]
        for one in due:
            more: list[Displaced] = []
            try:
                self._look(one, more)
            except Busy:
                self._look_later(one)
            except Rejection:
                one.failed += 1
                one.at_s = now_s + _FAILED_WAIT_S
                if one.failed < _FAILED_TRIES_MAX:  # else it stays in the folder: the next start sweeps it
                    self._watched.append(one)
            self.add(one.place, more, one.merge_of)

    def _look(self, one: _Watched, more: list[Displaced]) -> None:
        folder = opened(self._roots, one.place)
        if folder is None:
            return
        with folder:
            merge = None if one.merge_of is None else one.merge_of(folder)
            look_again(folder, one.displaced, merge, more)

    def _look_later(self, one: _Watched) -> None:
        one.busy += 1
        one.at_s = self._monotonic() + LOOK_AGAIN_S
        if one.busy < _BUSY_TRIES_MAX:
            self._watched.append(one)
            return
        with suppress(Rejection):  # else it stays in the folder: the next start sweeps it
            folder = opened(self._roots, one.place)
            if folder is not None:
                with folder:
                    _let_go(folder, one.displaced)


def _let_go(folder: FolderHandle, old: Displaced) -> None:
    """Wait no longer: what was written into it is kept beside the page; emptied, and left so, there is nothing to."""
    version = folder.version(old.temporary)
    if version is not None and version.size:
        folder.keep(old.temporary, old.page)
    else:
        folder.remove(old.temporary)
