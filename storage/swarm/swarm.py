"""The swarm's files as the actors use them: one writer's side, one readers' side, and who may do what."""

from pathlib import Path

from storage.swarm.access import Access
from storage.swarm.layout import Folder, SwarmConfig
from storage.swarm.memory import SwarmMemory
from storage.swarm.reading import SwarmReading
from storage.swarm.search.searching import SwarmSearch


class Swarm:
    """The swarm's files. `memory` belongs to the writer's thread; the rest may be used by any."""

    def __init__(self, config: SwarmConfig, index: Path) -> None:
        """`index` is a cache of ours for the search; it may be deleted at any time. Nothing is opened yet."""
        self.memory = SwarmMemory(config.roots, touched=self._touch)
        self.reading = SwarmReading(config.roots)
        self.access = Access(config.workers, config.orchestrators)
        self._roots = config.roots
        self._index = index
        self._search: SwarmSearch | None = None

    def open(self) -> None:
        """Open the search's cache; once, before anything is asked."""
        self._search = SwarmSearch(self._roots, self._index)

    @property
    def search(self) -> SwarmSearch:
        """The search over the files."""
        assert self._search is not None
        return self._search

    def _touch(self, folder: Folder, name: str) -> None:
        self.search.touch(folder, name)

    def stop(self) -> None:
        """Let what goes on in the background end soon."""
        if self._search is not None:
            self._search.stop()

    def close(self) -> None:
        """Close the search's cache; call it when writer and readers are done."""
        if self._search is not None:
            self._search.close()
