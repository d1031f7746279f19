"""Long-term facts."""

from collections.abc import Sequence

import apsw

from storage.rows import insert_row, stored_tags
from storage.schema import Table


def insert_long(
    db: apsw.Connection,
    table: Table,
    *,
    agent: str,
    topic: str | None,
    fact: str,
    source: str | None,
    confidence: float | None,
    tags: Sequence[str],
    session: str | None,
    at_s: float,
) -> int:
    """Insert one fact and return its row id. Runs in the writer's thread, inside its transaction."""
    at = table.time_form.stored(at_s)
    return insert_row(
        db,
        table,
        {
            "agent": agent,
            "topic": topic,
            "text": fact,
            "source": source,
            "confidence": confidence,
            "tags": stored_tags(tags),
            "session": session,
            "created_at": at,
            "updated_at": at,
        },
    )
