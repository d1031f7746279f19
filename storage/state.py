"""state.db: the truth of ours beside the database: request ids, so that a retry writes nothing twice, and the
sessions of rows whose table has no column for them.

No commit spans two SQLite files in WAL mode. So a write with a request id is prepared in its transaction, its intent
(agent, request id, content digest, time, and the row id it is about to have) is committed here, then the row there,
then the intent is settled here. One that is still open after a crash is settled by looking whether that row is there
with that agent, time and content: the write lock was held, so no other id is possible and nothing is scanned.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from storage.database import close, fetch, open_own, transaction
from storage.errors import ConfigurationError
from storage.records import Tier
from storage.times import SQLValue

_REQUESTS = """CREATE TABLE requests (
  agent TEXT NOT NULL,
  request_id TEXT NOT NULL,
  digest BLOB NOT NULL,
  tier TEXT NOT NULL,
  at_s REAL NOT NULL,
  row INTEGER NOT NULL,
  row_digest INTEGER NOT NULL,
  reply TEXT NOT NULL,
  settled INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (agent, request_id)
) STRICT, WITHOUT ROWID"""
_SESSIONS = """CREATE TABLE sessions (
  tier TEXT NOT NULL,
  row INTEGER NOT NULL,
  digest INTEGER NOT NULL,
  session TEXT NOT NULL,
  PRIMARY KEY (tier, row)
) STRICT, WITHOUT ROWID"""
_AGE = "CREATE INDEX requests_by_age ON requests (at_s)"
_OPEN = "CREATE INDEX open_requests ON requests (at_s) WHERE NOT settled"
_FORMATS = ((_REQUESTS, _AGE, _OPEN), (_SESSIONS,))
"""What each format added to the one before it; a file of an older format is brought up to the newest."""


@dataclass(frozen=True, slots=True)
class Request:
    """A write that its caller may send again."""

    agent: str
    request_id: str
    digest: bytes
    """Of the whole content: the same id with another digest is a conflict."""
    tier: Tier

    @property
    def key(self) -> tuple[str, str]:
        """What identifies it: ids of different agents never meet."""
        return self.agent, self.request_id


@dataclass(frozen=True, slots=True)
class Recorded:
    """What state.db knows of a request."""

    request: Request
    at_s: float
    """When its row was, or was to be, written."""
    row: int
    """The row id that it has, or was to have."""
    row_digest: int
    """The row's digest then: another one there now means that the id was reused and the record is void."""
    reply: dict[str, Any]
    """The first answer."""
    settled: bool = False
    """False while the end of the write is unknown."""


SessionRow = tuple[Tier, int, int, str]
"""Tier, row id, the row's digest, session. Another digest in the table means that the record is void."""


class State:
    """The connection to state.db. Only the writer's thread uses it."""

    def __init__(self, path: Path) -> None:
        """Open the file, or make it on the first start.

        Raises:
            ConfigurationError: it is damaged or of a newer format. It is never recreated over an old one.
        """
        self.created = not path.exists()
        try:
            self._db = open_own(path, durable=True)
            version = int(self._db.pragma("user_version"))
            if version > len(_FORMATS):
                raise ConfigurationError(
                    f"{path} has format {version}; this program knows up to {len(_FORMATS)}. Upgrade it."
                )
            self._upgrade(version)
        except (apsw.CorruptError, apsw.NotADBError) as error:
            raise ConfigurationError(
                f"{path} is damaged ({error}). It holds request ids; restore it from a backup, or move it away "
                "and accept that writes retried across this restart may be written twice."
            ) from error

    def _upgrade(self, version: int) -> None:
        if version == len(_FORMATS):
            return
        with transaction(self._db):
            for statements in _FORMATS[version:]:
                for statement in statements:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {len(_FORMATS)}")

    def find(self, request: Request) -> Recorded | None:
        """What is recorded under the request's agent and id, whatever its digest."""
        found = self._select("agent = ? AND request_id = ?", request.key)
        return found[0] if found else None

    def open_intents(self) -> list[Recorded]:
        """The intents whose end is unknown, oldest first."""
        return self._select("NOT settled ORDER BY at_s", ())

    def _select(self, where: str, bindings: Sequence[SQLValue]) -> list[Recorded]:
        rows = fetch(
            self._db,
            "SELECT agent, request_id, digest, tier, at_s, row, row_digest, reply, settled "
            f"FROM requests WHERE {where}",
            tuple(bindings),
        )
        return [
            Recorded(Request(*key_and_content), at_s, row, row_digest, json.loads(reply), bool(settled))
            for *key_and_content, at_s, row, row_digest, reply, settled in rows
        ]

    def intend(self, intents: Sequence[Recorded], sessions: Sequence[SessionRow]) -> None:
        """Commit what a batch is about to write."""
        with transaction(self._db):
            for link in sessions:
                self._db.execute("INSERT OR REPLACE INTO sessions VALUES (?, ?, ?, ?)", link)
            for intent in intents:
                request = intent.request
                self._db.execute(
                    "INSERT OR REPLACE INTO requests (agent, request_id, digest, tier, at_s, row, row_digest, reply) "
                    "VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    (
                        *request.key,
                        request.digest,
                        request.tier,
                        intent.at_s,
                        intent.row,
                        intent.row_digest,
                        json.dumps(intent.reply),
                    ),
                )

    def settle(self, done: Sequence[Request], dropped: Sequence[Request]) -> None:
        """Commit how intents ended: `done` ones have their rows, `dropped` ones never happened."""
        with transaction(self._db):
            for request in done:
                self._db.execute("UPDATE requests SET settled = 1 WHERE agent = ? AND request_id = ?", request.key)
            for request in dropped:
                self._db.execute("DELETE FROM requests WHERE agent = ? AND request_id = ?", request.key)

    def sessions(self, tier: Tier, first: int, last: int) -> dict[int, tuple[int, str]]:
        """(digest, session) by row id, of the rows from one id to another, both included."""
        rows = fetch(
            self._db,
            "SELECT row, digest, session FROM sessions WHERE tier = ? AND row BETWEEN ? AND ?",
            (tier, first, last),
        )
        return {row: (digest, session) for row, digest, session in rows}

    def expire(self, before_s: float) -> int:
        """Forget settled requests from before an instant; return how many."""
        with transaction(self._db):
            self._db.execute("DELETE FROM requests WHERE settled AND at_s < ?", (before_s,))
            return self._db.changes()

    def close(self) -> None:
        """Close the connection."""
        close(self._db)
