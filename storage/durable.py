"""Personas. memory_durable is never written; each agent may read its own `persona/` row and no other."""

import re

import apsw

from storage.database import fetch
from storage.errors import Forbidden
from storage.rows import Row
from storage.schema import Schema

PERSONA = "persona/"
_NAMED = re.compile(r"persona/([^\s\"',;]+)", re.IGNORECASE)


def own_persona(db: apsw.Connection, schema: Schema, agent: str) -> Row | None:
    """The caller's own persona row; None where it has none."""
    key = schema.durable.sql("key")
    rows = list(select_persona(db, schema, f"WHERE t.{key} = ?", PERSONA + agent))
    return next((row for row in rows if row.topic == PERSONA + agent), None)


def select_persona(db: apsw.Connection, schema: Schema, where: str, value: str | int) -> list[Row]:
    """Durable rows with their key as topic and the agent that the key names as author."""
    table = schema.durable
    rows = fetch(
        db,
        f"SELECT t.rowid, {table.sql('key')}, {table.sql('value')}, {table.sql('created_at')} "
        f"FROM {table.quoted} AS t {where}",
        (value,),
    )
    return [
        Row(
            "durable",
            row,
            str(key).removeprefix(PERSONA),
            str(key),
            "" if text is None else str(text),
            None,
            None,
            None,
            None,
            (),
            created,
            None,
        )
        for row, key, text, created in rows
    ]


def require_own(question: str, agent: str) -> None:
    """Refuse a durable recall that asks for another agent's persona by name.

    Raises:
        Forbidden: the question names `persona/` of somebody else.
    """
    for named in _NAMED.findall(question):
        if named.rstrip(".?!)") != agent:
            raise Forbidden(f"A persona is readable by its own agent alone; {agent!r} may not ask for another's.")
