"""Who may read and write which of the swarm's files: the sharing rule for workers."""

from collections.abc import Collection, Mapping

from storage.errors import Forbidden, InvalidRequest
from storage.swarm import layout
from storage.swarm.layout import Kind

_PRIVATE: tuple[Kind, ...] = ("profile", "episodic")
_SHOWN_CHARS = 80


class NotYours(Forbidden):
    """Another worker's profile or episodes, or shared memory that only orchestrators write."""

    hint = "Write your own memory; read it, all missions and handoffs, and shared memory: see runbooks/swarm.md."


class Access:
    """Which agent is which worker, and which of them orchestrate."""

    def __init__(self, workers: Mapping[str, str], orchestrators: Collection[str]) -> None:
        """`workers` maps worker ids to agents of other names; an agent without an entry is the worker of its name."""
        self._agent_of = dict(workers)
        self._worker_of = {agent: worker for worker, agent in workers.items()}
        self._orchestrators = frozenset(orchestrators)

    def worker_or_none(self, agent: str) -> str | None:
        """The worker that an agent is; None where its name is no worker's, or is that of another agent's worker."""
        if (mapped := self._worker_of.get(agent)) is not None:
            return mapped
        if agent != agent.lower():  # the registry tells Sol from sol; as workers they would be one
            return None
        try:
            worker = layout.worker_id(agent)
        except InvalidRequest:
            return None
        return None if worker in self._agent_of else worker

    def agent_of(self, worker: str) -> str | None:
        """The agent that a worker is: the one of its own name, where no setting maps another.

        None where the agent of its name is another worker.
        """
        agent = self._agent_of.get(worker, worker)
        return agent if self._worker_of.get(agent, worker) == worker else None

    def worker_of(self, agent: str) -> str:
        """The worker that an agent is.

        Raises:
            Forbidden: it is none.
        """
        worker = self.worker_or_none(agent)
        if worker is None:
            raise NotYours(f"agent: {agent[:_SHOWN_CHARS]!r} is no worker; the setting swarm_workers can make it one.")
        return worker

    def worker_to_read(self, agent: str, kind: Kind, worker: str | None) -> str | None:
        """The worker whose files of a kind an agent may read: the one asked for, else its own.

        Raises:
            Forbidden: another worker's profile or episodes; or no worker was named, and the agent is none.
            InvalidRequest: the worker's id is none.
        """
        asked = None if worker is None else layout.worker_id(worker)
        if kind == "shared":
            return asked
        if asked is None:
            return self.worker_of(agent)
        if kind in _PRIVATE and asked != self.worker_or_none(agent):
            raise NotYours(f"worker: the {kind} memory of {asked} is read by {asked} alone.")
        return asked

    def require_writer(self, agent: str, kind: Kind) -> None:
        """Refuse shared memory to whoever does not orchestrate.

        Raises:
            Forbidden: it does not.
        """
        if kind == "shared" and agent not in self._orchestrators:
            raise NotYours("kind: shared memory is written by the agents that the setting orchestrators names.")
