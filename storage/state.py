"""state.db: the truth of ours beside the database: request ids, so that a retry writes nothing twice, and the
sessions of rows whose table has no column for them.

No commit spans two SQLite files in WAL mode. So a write with a request id is prepared in its transaction, its intent
(agent, request id, content digest, time, and the row id it is about to have) is committed here, then the row there,
then the intent is settled here. One that is still open after a crash is settled by looking whether that row is there
with that agent, time and content: the write lock was held, so no other id is possible and nothing is scanned.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from storage.database import (
    FileIdentity,
    LogFiles,
    close_opened,
    fetch,
    open_alone,
    open_own,
    open_reader,
    prove_writable,
    transaction,
)
from storage.errors import ConfigurationError, StorageFull, StorageUnavailable
from storage.records import Tier
from storage.times import SQLValue

_BUSY_MS = 200  # nobody else writes it, and the database's write lock is held meanwhile
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
_MADE = "CREATE TABLE made (at_s REAL NOT NULL) STRICT"
_FORMATS = ((_REQUESTS, _AGE, _OPEN), (_SESSIONS,), (_MADE,))
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

    def __init__(self, path: Path, *, first_start: bool, now_s: float) -> None:
        """Open the file, or make it on the first start; `now_s` is noted as the time of that.

        Raises:
            ConfigurationError: it is missing or empty though this is no first start, damaged, or of a newer format. It
                is never recreated over an old one: retries of writes that it knows would write twice.
            StorageFull: it may be sound, and its disk is full.
        """
        self._path = path
        self.damaged = False
        """True once SQLite has found damage in the file."""
        self.works = True
        """False from a use of the file that failed until a write of it works."""
        self.created = not path.exists()
        if not first_start and (self.created or path.stat().st_size == 0):
            raise ConfigurationError(
                f"{path} is missing or empty. It holds request ids and sessions: restore it from a backup, or delete "
                f"the folder {path.parent} and accept that writes retried from before may be written twice."
            )
        path.touch()
        self._identity = FileIdentity(path)  # before it is opened: a replacement in between must be noticed
        try:
            self._db = open_own(path, durable=True)
            self._db.set_busy_timeout(_BUSY_MS)
            self._require_sound(path)
            self._upgrade(int(self._db.pragma("user_version")), path, now_s)
            self.known_from_s = float(fetch(self._db, "SELECT at_s FROM made")[0][0])
            """Of what happened before, it knows no request ids of events: it was made, or began to keep them, then."""
            self._logs = LogFiles(path)
        except apsw.FullError as error:
            raise StorageFull(f"The disk of {path} is full ({error}).") from error
        except apsw.Error as error:
            raise ConfigurationError(
                f"{path} cannot be used ({error}). It holds request ids and sessions: restore it from a backup, or "
                f"delete the folder {path.parent} and accept that writes retried from before may be written twice."
            ) from error

    def _require_sound(self, path: Path) -> None:
        problems = [str(row[0]) for row in fetch(self._db, "PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            raise apsw.CorruptError(problems[0])

    @property
    def in_place(self) -> bool:
        """False when the file, or its -wal or -shm, was removed or replaced since it was opened."""
        return self._identity.unchanged and self._logs.unchanged

    @property
    def may_be_reopened(self) -> bool:
        """True where the file is no longer the one that is open, or was damaged, and what is there now can be used."""
        unchanged = self._identity.unchanged
        if unchanged and not self.damaged:
            return not self._logs.unchanged
        alone = not unchanged and self._logs.is_ours_in_place
        try:
            with closing(open_alone(self._path) if alone else open_reader(self._path)) as db:
                version = int(db.pragma("user_version"))
                return 0 < version <= len(_FORMATS) and fetch(db, "PRAGMA quick_check(1)") == [("ok",)]
        except apsw.Error:
            return False

    @contextmanager
    def _usable(self, *, writing: bool = False) -> Iterator[None]:
        """Run the block with the file that is on disk, and name it where it cannot be used.

        Raises:
            StorageUnavailable: it was removed or replaced, or SQLite cannot use it.
            StorageFull: the disk is full.
        """
        if not self.in_place:
            raise StorageUnavailable(
                "state.db was removed or replaced while the service had it open; when a sound one is in its place, it "
                "is used without a restart."
            )
        try:
            yield
        except apsw.FullError as error:
            self.works = False
            raise StorageFull(f"The disk of state.db is full ({error}).") from error
        except apsw.Error as error:
            self.works = False
            self.damaged = self.damaged or isinstance(error, apsw.CorruptError | apsw.NotADBError)
            raise StorageUnavailable(f"state.db cannot be used ({type(error).__name__}: {error}).") from error
        self.works = self.works or (writing and not self.damaged)

    def prove_writable(self) -> None:
        """See whether a write works."""
        with self._usable(writing=True):
            prove_writable(self._db)

    def _upgrade(self, version: int, path: Path, now_s: float) -> None:
        if version > len(_FORMATS):
            raise ConfigurationError(
                f"{path} has format {version}; this program knows up to {len(_FORMATS)}. Upgrade it."
            )
        if version == len(_FORMATS):
            return
        with transaction(self._db):
            for statements in _FORMATS[version:]:
                for statement in statements:
                    self._db.execute(statement)
            self._db.execute("INSERT INTO made VALUES (?)", (now_s,))
            self._db.execute(f"PRAGMA user_version = {len(_FORMATS)}")

    def find(self, request: Request) -> Recorded | None:
        """What is recorded under the request's agent and id, whatever its digest."""
        found = self._select("agent = ? AND request_id = ?", request.key)
        return found[0] if found else None

    def open_intents(self) -> list[Recorded]:
        """The intents whose end is unknown, oldest first."""
        return self._select("NOT settled ORDER BY at_s", ())

    def _select(self, where: str, bindings: Sequence[SQLValue]) -> list[Recorded]:
        statement = (
            f"SELECT agent, request_id, digest, tier, at_s, row, row_digest, reply, settled FROM requests WHERE {where}"
        )
        with self._usable():
            rows = fetch(self._db, statement, bindings)
        return [
            Recorded(Request(*key_and_content), at_s, row, row_digest, json.loads(reply), bool(settled))
            for *key_and_content, at_s, row, row_digest, reply, settled in rows
        ]

    def intend(self, intents: Sequence[Recorded], sessions: Sequence[SessionRow]) -> None:
        """Commit what a batch is about to write."""
        with self._usable(writing=True), transaction(self._db):
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

    def open_again(self, tier: Tier) -> None:
        """Take back that the requests of a tier have their rows: the database that had them is not there."""
        with self._usable(writing=True), transaction(self._db):
            self._db.execute("UPDATE requests SET settled = 0 WHERE tier = ?", (tier,))

    def settle(self, done: Collection[Request], dropped: Collection[Request]) -> None:
        """Commit how intents ended: `done` ones have their rows, `dropped` ones never happened."""
        with self._usable(writing=True), transaction(self._db):
            for request in done:
                self._db.execute("UPDATE requests SET settled = 1 WHERE agent = ? AND request_id = ?", request.key)
            for request in dropped:
                self._db.execute("DELETE FROM requests WHERE agent = ? AND request_id = ?", request.key)

    def sessions(self, tier: Tier, first: int, last: int) -> dict[int, tuple[int, str]]:
        """(digest, session) by row id, of the rows from one id to another, both included."""
        statement = "SELECT row, digest, session FROM sessions WHERE tier = ? AND row BETWEEN ? AND ?"
        with self._usable():
            rows = fetch(self._db, statement, (tier, first, last))
        return {row: (digest, session) for row, digest, session in rows}

    def expire(self, before_s: float) -> int:
        """Forget settled requests from before an instant; return how many."""
        with self._usable(), transaction(self._db):
            self._db.execute("DELETE FROM requests WHERE settled AND at_s < ?", (before_s,))
            return self._db.changes()

    def close(self) -> None:
        """Close the connection."""
        close_opened(self._db, self._identity, self._logs)
