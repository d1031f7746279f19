"""Personas. memory_durable is never written; each agent may read its own `persona/` row and no other."""

import re
from dataclasses import replace

import apsw

from storage.errors import Forbidden
from storage.rows import Row, select_rows
from storage.schema import Schema

PERSONA = "persona/"
_NAMED = re.compile(r"persona/([^\s\"',;]+)", re.IGNORECASE)


def own_persona(db: apsw.Connection, schema: Schema, agent: str) -> Row | None:
    """The caller's own persona row; None where it has none."""
    found = select_personas(db, schema, f"WHERE t.{schema.durable.sql('topic')} = ?", PERSONA + agent)
    return next((row for row in found if row.topic == PERSONA + agent), None)


def select_personas(db: apsw.Connection, schema: Schema, where: str, value: str | int) -> list[Row]:
    """Durable rows with the agent that their key names as author."""
    rows = select_rows(db, schema, "durable", where, (value,))
    return [replace(row, agent=(row.topic or "").removeprefix(PERSONA)) for row in rows]


def require_own(question: str, agent: str) -> None:
    """Refuse a durable recall that asks for another agent's persona by name.

    Raises:
        Forbidden: the question names `persona/` of somebody else.
    """
    for named in _NAMED.findall(question):
        name = named.rstrip(".?!):")
        if name != agent and not agent.startswith(f"{name} "):
            raise Forbidden(f"A persona is readable by its own agent alone; {agent!r} may not ask for another's.")
