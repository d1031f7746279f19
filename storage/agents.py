"""The registry of agents: who may write. Read live, never cached: an agent registered a second ago is known."""

import difflib

import apsw

from storage.database import fetch
from storage.errors import UnknownAgent
from storage.schema import Table

_SHOWN_CHARS = 80


def is_registered(db: apsw.Connection, registry: Table, agent: str) -> bool:
    """Whether the registry holds exactly this id, whatever collation its column has."""
    column = registry.sql("agent")
    rows = fetch(db, f"SELECT {column} FROM {registry.quoted} WHERE {column} = ?", (agent,))
    return any(found == agent for (found,) in rows)


def registered(db: apsw.Connection, registry: Table) -> list[str]:
    """Every registered id, sorted."""
    rows = fetch(db, f"SELECT CAST({registry.sql('agent')} AS BLOB) FROM {registry.quoted}")
    return sorted(agent.decode("utf-8", "replace") for (agent,) in rows if agent is not None)


def require_registered(db: apsw.Connection, registry: Table, agent: str) -> None:
    """Refuse an agent that the registry does not hold.

    Raises:
        UnknownAgent: names the agent and the nearest registered id.
    """
    if is_registered(db, registry, agent):
        return
    shown = agent if len(agent) <= _SHOWN_CHARS else agent[:_SHOWN_CHARS] + "…"
    near = difflib.get_close_matches(agent, registered(db, registry), n=1, cutoff=0.5)
    did_you_mean = f" Did you mean {near[0]!r}?" if near else ""
    raise UnknownAgent(f"The agent {shown!r} is not in agent_registry.{did_you_mean}")
