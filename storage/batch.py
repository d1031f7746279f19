"""The writes of one transaction: replays, units, intents, and how each ended."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Generic, TypeVar

import apsw

from storage.database import savepoint
from storage.errors import Conflict, Rejection, rejection_of, translated
from storage.records import Remembered, Tier
from storage.rows import Row
from storage.state import Recorded, Request, SessionRow, State
from storage.write_units import WriteUnits

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Write(Generic[R]):
    """One message of a batch: what to do inside the transaction, and how to know it when it comes again."""

    unit: Callable[[WriteUnits, float], R]
    """Called with the units and the instant of the write."""
    request: Request | None = None


@dataclass(slots=True)
class Outcome:
    """How a write of a batch ended. Exactly one of `reply` and `error` is set."""

    reply: Any = None
    error: Exception | None = None
    """A Rejection for the caller, or the bug that stopped the unit."""
    replayed: bool = False


class RolledBack(Exception):
    """SQLite rolled the whole transaction back by itself; nothing of it may be acknowledged."""

    def __init__(self, cause: Exception) -> None:
        self.cause = cause


class Batch:
    """The writes of one transaction and how each ended."""

    def __init__(self, units: WriteUnits, state: State, writes: Sequence[Write[Any]]) -> None:
        self._units = units
        self._state = state
        self._writes = writes
        self._written: dict[tuple[str, str], tuple[Request, Outcome]] = {}
        self._intents: list[Recorded] = []
        self._sessions: list[SessionRow] = []
        self.outcomes: list[Outcome] = []
        self.touched: list[tuple[Tier, int]] = []

    def run(self, budget_s: float) -> None:
        """Run the units, at least one and for about `budget_s`, and commit their intents.

        Raises:
            RolledBack: the transaction is over, or must be.
        """
        until = time.monotonic() + budget_s
        for write in self._writes:
            assert self._units.db.in_transaction
            try:
                self.outcomes.append(self._replayed(write.request) or self._run(write))
            except Rejection as refusal:  # of state.db: without its record a request must not be written
                self._go_on_only_in_transaction(refusal)
                self.outcomes.append(Outcome(error=refusal))
            except apsw.Error as error:  # of the database, while looking whether a request happened
                self._go_on_only_in_transaction(error)
                self.outcomes.append(Outcome(error=as_answer(error)))
            if time.monotonic() >= until:
                break
        if self._intents or self._sessions:
            try:
                self._state.intend(self._intents, self._sessions)
            except Rejection as refusal:
                raise RolledBack(refusal) from refusal

    def _go_on_only_in_transaction(self, error: Exception) -> None:
        """After ANY error: a trigger's RAISE(ROLLBACK), a full disk or an I/O error have ended the transaction.

        Pinned by test_batch_rolled_back_by_a_trigger_runs_again_one_by_one.

        Raises:
            RolledBack: it is over; what was written in it is gone.
        """
        if not self._units.db.in_transaction:
            raise RolledBack(error) from error

    def _run(self, write: Write[Any]) -> Outcome:
        at_s = self._units.tick()
        self._units.touched = []
        self._units.session = None
        row = None
        try:
            with savepoint(self._units.db), translated():
                outcome = Outcome(reply=write.unit(self._units, at_s))
                if isinstance(outcome.reply, Remembered):
                    row = self._written_row(outcome.reply.agent)
        except Exception as error:
            self._go_on_only_in_transaction(error)
            return Outcome(error=error)
        self.touched += self._units.touched
        if row is not None:
            self._note(write.request, row, outcome, at_s)
        return outcome

    def _written_row(self, agent: str) -> Row:
        """The row that the unit has just written, as it will be.

        Raises:
            Conflict: a trigger moved, removed or gave away the row; it must not be acknowledged.
        """
        row = self._units.row_at(*self._units.touched[-1])
        if row is None or row.agent != agent:
            raise Conflict("A trigger of the table moved, removed or gave away the row; nothing was written.")
        return row

    def _note(self, request: Request | None, row: Row, outcome: Outcome, at_s: float) -> None:
        """Keep what state.db must know of a row that was written."""
        if self._units.session is not None:
            self._sessions.append((row.tier, row.row, row.content, self._units.session))
        if request is not None:
            self._intents.append(Recorded(request, at_s, row.row, row.content, _recorded(outcome.reply)))
            self._written[request.key] = (request, outcome)

    def _replayed(self, request: Request | None) -> Outcome | None:
        """The answer to a request that was written before, in this batch or earlier; None where it was not."""
        if request is None:
            return None
        if request.key in self._written:
            first, outcome = self._written[request.key]
            return self._answer_again(request, first.digest, outcome.reply)
        recorded = self._state.find(request)
        if recorded is None or not self._units.answered(recorded):
            return None
        return self._answer_again(request, recorded.request.digest, _replayed(recorded.reply))

    def _answer_again(self, request: Request, digest: bytes, reply: Remembered) -> Outcome:
        if digest != request.digest:
            return Outcome(error=Conflict(f"The request_id {request.request_id!r} was used for other content."))
        return Outcome(reply=replace(reply, replayed=True), replayed=True)

    def settle(self) -> None:
        """Record that the rows are there. A failure is no loss: an open intent is settled when it is next met."""
        if self._intents:
            with suppress(Exception):
                self._state.settle([intent.request for intent in self._intents], [])

    def mark_index_behind(self) -> None:
        """Say in each answer that its row is on disk and the index is not up to it."""
        for outcome in self.outcomes:
            if isinstance(outcome.reply, Remembered) and not outcome.replayed:
                outcome.reply = replace(outcome.reply, degraded_reasons=("index_behind",))


def _replayed(answer: dict[str, Any]) -> Remembered:
    """The first answer again, whatever other fields the version that gave it knew."""
    known = {field.name for field in fields(Remembered)}
    return Remembered(**{name: value for name, value in answer.items() if name in known})


def _recorded(reply: Remembered) -> dict[str, Any]:
    """The answer as state.db keeps it; how far the index was is of that moment only."""
    answer = asdict(reply)
    del answer["degraded_reasons"]
    return answer


def as_answer(error: Exception) -> Exception:
    """What the caller is told of an SQLite error; a bug stays what it is."""
    return (rejection_of(error) if isinstance(error, apsw.Error) else None) or error
