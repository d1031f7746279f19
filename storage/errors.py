"""Everything storage can answer instead of a result.

A `Rejection` is a reply: the caller is told a stable code, one sentence and the next step. A `ConfigurationError`
stops the program before it serves. Anything else that is raised is a bug.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

import apsw


class ConfigurationError(Exception):
    """The program cannot run as configured; nothing was changed. `serve` exits with 78."""


class Rejection(Exception):
    """A refusal, and why. Nothing was written unless the subclass says otherwise."""

    code: ClassVar[str]
    hint: ClassVar[str] = ""
    retry_after_s: ClassVar[int | None] = None

    def __init__(self, detail: str = "") -> None:
        super().__init__(detail or (type(self).__doc__ or "").splitlines()[0])

    @property
    def detail(self) -> str:
        """One sentence for the caller; never the text of a memory."""
        return str(self.args[0])


class InvalidRequest(Rejection):
    """The arguments break a rule of the operation."""

    code = "invalid_request"
    hint = "Correct the named field; /openapi.json lists every field with its bounds."


class UnknownAgent(Rejection):
    """The named agent is not in agent_registry; nothing was written."""

    code = "unknown_agent"
    hint = "Register the agent, or correct the name: see runbooks/errors.md#unknown_agent."


class Forbidden(Rejection):
    """The caller may not see or change this."""

    code = "forbidden"
    hint = "Ask as the owner: a persona is readable by its own agent alone."


class NoFileOfOurs(Forbidden):
    """A link, or what is no file or folder of its own, stands where one of the swarm's files should."""

    hint = "Put a real file or folder in its place; below the roots no link is followed: see runbooks/swarm.md."


class NotFound(Rejection):
    """There is no such memory, or it has expired."""

    code = "not_found"
    hint = "Take the id from a recall, or list the short keys first."


class Conflict(Rejection):
    """The write contradicts what is stored; nothing was written."""

    code = "conflict"
    hint = "Read the current state and send a new request (with a new request_id)."


class TooLarge(Rejection):
    """A field or the body exceeds its bound."""

    code = "too_large"
    hint = "Shorten the named field, or split the text over several memories."


class StorageBusy(Rejection):
    """Another process held the database's write lock for the whole budget; nothing was written."""

    code = "storage_busy"
    hint = "Try again; if it persists, find the process that holds the lock: runbooks/errors.md#storage_busy."
    retry_after_s = 2


class StorageUnavailable(Rejection):
    """The database cannot be read or written at the moment."""

    code = "storage_unavailable"
    hint = "See the service's log, then runbooks/errors.md#storage_unavailable."
    retry_after_s = 5


class StorageFailed(StorageUnavailable):
    """SQLite was told by the system that the database's file cannot be read or written, or has lost a table."""


class StorageDamaged(Rejection):
    """SQLite reports that the database file is damaged."""

    code = "storage_damaged"
    hint = "Stop writing and run `solos-memory doctor`: runbooks/errors.md#storage_damaged."


class FileFailed(Rejection):
    """The operating system refused a file of the swarm; nothing was changed."""

    code = "file_failed"
    hint = "See the service's log, then runbooks/errors.md#file_failed."


class StorageFull(Rejection):
    """The disk is full; nothing was written."""

    code = "storage_full"
    hint = "Free space on the volume of the database or of the swarm's files, then try again."


class Interrupted(Rejection):
    """The read was cut at its deadline."""

    code = "deadline_exceeded"
    hint = "Ask a narrower question, or try again when the service is less busy."
    retry_after_s = 1


def rejection_of(error: apsw.Error) -> Rejection | None:
    """Map an SQLite error to what the caller is told; None where only a bug of ours can explain it."""
    reason = f"{type(error).__name__}: {error}"
    match error:
        case apsw.BusyError() | apsw.LockedError():
            return StorageBusy(f"The database is locked by another process ({reason}).")
        case apsw.FullError():
            return StorageFull(f"The disk of the database is full ({reason}).")
        case apsw.CorruptError() | apsw.NotADBError():
            return StorageDamaged(f"The database file is damaged ({reason}).")
        case apsw.InterruptError():
            return Interrupted("The read took longer than its deadline and was cut.")
        case apsw.ConstraintError():
            return Conflict(f"The database refused the row ({reason}).")
        case apsw.IOError() if getattr(error, "extendedresult", 0) == apsw.SQLITE_IOERR_SHMSIZE:  # no room for the -shm
            return StorageFull(f"The disk of the database is full ({reason}).")
        case apsw.IOError() | apsw.CantOpenError() | apsw.ReadOnlyError() | apsw.PermissionsError():
            return StorageFailed(f"The database cannot be used ({reason}).")
        case apsw.SQLError() if "no such" in str(error):
            return StorageFailed(f"The database has lost a table or column that was there at start ({reason}).")
    return None


def is_damage(error: apsw.Error) -> bool:
    """Whether an error means that the file itself cannot be used, rather than this one statement."""
    damaged = (apsw.CorruptError, apsw.NotADBError, apsw.IOError, apsw.CantOpenError, apsw.FormatError)
    return isinstance(error, damaged) or (isinstance(error, apsw.SQLError) and "no such table" in str(error))


@contextmanager
def translated() -> Iterator[None]:
    """Run the block and raise the `Rejection` that stands for an SQLite error in it."""
    try:
        yield
    except OSError as error:
        raise StorageFailed(f"The database cannot be used ({type(error).__name__}: {error}).") from error
    except apsw.Error as error:
        rejection = rejection_of(error)
        if rejection is None:
            raise
        raise rejection from error
