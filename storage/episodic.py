"""The episodic log: what an agent did, and how it ended."""

import apsw

from storage.rows import insert_row
from storage.schema import Table

_DEFAULT_EVENT_TYPE = "note"


def insert_episode(
    db: apsw.Connection,
    table: Table,
    *,
    agent: str,
    event_type: str | None,
    summary: str,
    details: str | None,
    outcome: str | None,
    duration_s: float | None,
    session: str | None,
    at_s: float,
) -> int:
    """Insert one episode and return its row id. Runs in the writer's thread, inside its transaction."""
    if event_type is None and "topic" in table.columns:
        event_type = _DEFAULT_EVENT_TYPE
    at = table.time_form.stored(at_s)
    return insert_row(
        db,
        table,
        {
            "agent": agent,
            "topic": event_type,
            "text": summary,
            "details": details,
            "outcome": outcome,
            "duration_s": duration_s,
            "session": session,
            "created_at": at,
            "updated_at": at,
        },
        topic_field="event_type",
    )
