"""What can be done inside a write transaction. Each method is one unit: synchronous, in the writer's thread."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import apsw

from storage import limits
from storage.agents import require_registered
from storage.episodic import insert_episode
from storage.long_term import insert_long
from storage.records import Forgotten, Purged, Remembered, Tier
from storage.rows import Row, select_rows, table_of
from storage.schema import Schema
from storage.short_term import count_short, forget_short, purge_short, upsert_short
from storage.state import Recorded
from storage.times import iso, iso_or_none

_CLOCK_SET_BACK_S = 1.0


class WriteUnits:
    """The units over the writer's connection, and the rows they touch."""

    def __init__(self, db: apsw.Connection, schema: Schema, clock: Callable[[], float]) -> None:
        self.db = db
        self._schema = schema
        self._clock = clock
        self._last_s = 0.0
        self.touched: list[tuple[Tier, int]] = []
        """The rows that the current unit wrote or deleted; whoever runs units empties it before each."""
        self.session: str | None = None
        """The session of the row that the current unit wrote, where its table has no column for it."""

    def tick(self) -> float:
        """The instant of the next write: later than the last one, unless the clock was set back."""
        now_s = self._clock()
        if now_s <= self._last_s < now_s + _CLOCK_SET_BACK_S:
            now_s = self._last_s + 1e-6
        self._last_s = now_s
        return now_s

    def row_at(self, tier: Tier, row: int) -> Row | None:
        """The row with this id as it is now."""
        return next(select_rows(self.db, self._schema, tier, "WHERE t.rowid = ?", (row,)), None)

    def happened(self, recorded: Recorded) -> bool:
        """Whether the row that a request wrote, or was about to write, is there with its author and text."""
        row = self.row_at(recorded.request.tier, recorded.row)
        return row is not None and row.content == recorded.row_digest

    def answered(self, recorded: Recorded) -> bool:
        """Whether a recorded request is to be answered with its first reply.

        A settled short key is: a later upsert under the same key is no reason to write the older value again. The
        record of a fact or an episode is void once its row id holds something else.
        """
        return (recorded.settled and recorded.request.tier == "short") or self.happened(recorded)

    def remember_short(
        self, at_s: float, *, agent: str, key: str, value: str, ttl_s: float | None, tags: Sequence[str]
    ) -> Remembered:
        """Upsert one of the agent's own short keys."""
        require_registered(self.db, self._schema.registry, agent)
        row, expires_at = upsert_short(self.db, agent=agent, key=key, value=value, ttl_s=ttl_s, tags=tags, at_s=at_s)
        return replace(self._remembered("short", row, agent, at_s), expires_at=iso_or_none(expires_at))

    def remember_long(
        self,
        at_s: float,
        *,
        agent: str,
        topic: str | None,
        fact: str,
        source: str | None,
        confidence: float | None,
        tags: Sequence[str],
        session: str | None = None,
    ) -> Remembered:
        """Insert one fact."""
        require_registered(self.db, self._schema.registry, agent)
        row = insert_long(
            self.db, self._schema.long, agent=agent, topic=topic, fact=fact, source=source, confidence=confidence,
            tags=tags, session=self._in_column("long", session), at_s=at_s,
        )  # fmt: skip
        return self._remembered("long", row, agent, at_s)

    def remember_episode(
        self,
        at_s: float,
        *,
        agent: str,
        event_type: str | None,
        summary: str,
        details: str | None,
        outcome: str | None,
        duration_s: float | None,
        session: str | None = None,
    ) -> Remembered:
        """Insert one episode."""
        require_registered(self.db, self._schema.registry, agent)
        row = insert_episode(
            self.db, self._schema.episodic, agent=agent, event_type=event_type, summary=summary, details=details,
            outcome=outcome, duration_s=duration_s, session=self._in_column("episodic", session), at_s=at_s,
        )  # fmt: skip
        return self._remembered("episodic", row, agent, at_s)

    def forget_short(self, at_s: float, *, agent: str, key: str) -> Forgotten:
        """Delete one of the agent's own live keys."""
        require_registered(self.db, self._schema.registry, agent)
        row = forget_short(self.db, agent=agent, key=key, at_s=at_s)
        self.touched.append(("short", row))
        return Forgotten(id=f"short:{row}", agent=agent, key=key)

    def purge_short(self, at_s: float) -> Purged:
        """Delete up to PURGE_ROWS of the short rows that have expired; 200,000 at once held other writes up for 3 s."""
        rows = purge_short(self.db, at_s=at_s, rows_max=limits.PURGE_ROWS)
        self.touched += [("short", row) for row in rows]
        return Purged(purged=len(rows), remaining=count_short(self.db, owner=None, now_s=at_s))

    def _in_column(self, tier: Tier, session: str | None) -> str | None:
        """The session where the tier's table has a column for it; else it is noted for state.db."""
        if "session" in table_of(self._schema, tier).columns:
            return session
        self.session = session
        return None

    def _remembered(self, tier: Tier, row: int, agent: str, at_s: float) -> Remembered:
        self.touched.append((tier, row))
        return Remembered(id=f"{tier}:{row}", tier=tier, agent=agent, created_at=iso(at_s))
