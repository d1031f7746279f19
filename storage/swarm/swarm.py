"""The swarm's files as the actors use them: one writer's side, one readers' side, and who may do what."""

from pathlib import Path

from storage.recalling import Question
from storage.records import Recalled
from storage.swarm.access import Access
from storage.swarm.layout import Folder, SwarmConfig
from storage.swarm.life.archiving import Archives
from storage.swarm.life.promoting import Promotions
from storage.swarm.life.recommending import Recommendations
from storage.swarm.life.renewing import Renewals
from storage.swarm.life.resume import Resumes
from storage.swarm.memory import SwarmMemory
from storage.swarm.reading import SwarmReading
from storage.swarm.recalled import FileRecall, Reach
from storage.swarm.search.searching import SwarmSearch
from storage.swarm.telling import Telling


class Swarm:
    """The swarm's files.

    `memory`, `telling`, `renewals` and `promotions` belong to the writer's thread, and what `archives` and `notes`
    write; the rest may be used by any.
    """

    def __init__(self, config: SwarmConfig, index: Path) -> None:
        """`index` is a cache of ours for the search; it may be deleted at any time. Nothing is opened yet."""
        self.access = Access(config.workers, config.orchestrators)
        self.telling = Telling(config.roots, self.access.agent_of) if config.episodes else None
        self.memory = SwarmMemory(config.roots, touched=self._touch, telling=self.telling)
        self.reading = SwarmReading(config.roots)
        self.resumes = Resumes(config.roots)
        self.renewals = Renewals(config.roots, self.memory, self.resumes)
        self.promotions = Promotions(config.roots, self.memory.pages, persona=self.memory.roster.persona)
        self.archives = Archives(config.roots, self.memory.watch, self._touch)
        self.notes = self.memory.notes
        self._roots = config.roots
        self._index = index
        self._search: SwarmSearch | None = None
        self._recommendations: Recommendations | None = None
        self._file_recall: FileRecall | None = None

    def open(self) -> None:
        """Open the search's cache; once, before anything is asked."""
        self._search = SwarmSearch(self._roots, self._index)
        self._recommendations = Recommendations(self.memory.roster, self._search, self._roots)
        self._file_recall = FileRecall(self._roots, self._search, self.access.agent_of)

    def recall(self, question: Question, now_s: float, *, registered: bool) -> Recalled:
        """The lines of the files that answer a question, under the sharing rule.

        Nothing is the own of an agent that is not registered: anybody may call himself so.

        Raises:
            InvalidRequest: a date is none.
            FileFailed: the files cannot be read.
        """
        assert self._file_recall is not None
        return self._file_recall.recall(question, self._reach(question, registered=registered), now_s)

    def _reach(self, question: Question, *, registered: bool) -> Reach:
        worker = self.access.worker_or_none(question.agent) if registered else None
        own = [] if worker is None else [worker]
        shared = question.scope == "shared"
        return Reach(None if shared else own, own, shared)

    @property
    def search(self) -> SwarmSearch:
        """The search over the files."""
        assert self._search is not None
        return self._search

    @property
    def recommendations(self) -> Recommendations:
        """Who fits a task."""
        assert self._recommendations is not None
        return self._recommendations

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
