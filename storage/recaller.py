"""A process that answers recalls, on connections of its own, for a process that must not compute them itself.

What a recall computes holds Python's interpreter: in the service's own process the event loop would wait for it, and it
for the event loop. This is the program of such a process; actors/recaller.py starts it and asks it.
"""

import os
import pickle
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from storage.errors import Rejection
from storage.paths import Paths
from storage.reading import Found, ReadingStore
from storage.recalling import Question
from storage.search.failures import IndexFailure

LENGTH: Final = struct.Struct("<I")
"""Before each message on the pipes: how many bytes of pickle follow."""
NUMBER: Final = struct.Struct("<Q")
"""What says on the third pipe that a look is to be cut: its number."""
READY: Final = "ready"
"""The first message of such a process."""

_PROGRAM: Final = "import sys; from storage.recaller import main; main(*sys.argv[1:])"
"""Not this module as a program: its classes would be those of `__main__` in what it sends."""


class Look(NamedTuple):
    """What is asked: a question, and whether it may wait for the index; see ReadingStore.look()."""

    number: int
    question: Question
    may_wait: bool


class Seen(NamedTuple):
    """What came of a look: what was found, or what was raised."""

    number: int
    found: Found | None
    refusal: Rejection | IndexFailure | None = None
    bug: str | None = None
    """Where anything else was raised, and of what type. Not what it says: that may be the text of a memory."""


def command(database: Path, *, refuse_unregistered: bool) -> Sequence[str]:
    """What starts such a process; the third pipe's number is to follow as its last argument."""
    # -P: no package of the working directory stands for one of ours.
    return (sys.executable, "-P", "-c", _PROGRAM, str(database), str(int(refuse_unregistered)))


def framed(message: object) -> bytes:
    """A message as it goes over a pipe."""
    body = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return LENGTH.pack(len(body)) + body


class _Cutting:
    """Interrupts the look that runs, when it is told its number. Ends the process when nobody is left to tell it."""

    def __init__(self, store: ReadingStore, told: BinaryIO) -> None:
        self._store = store
        self._told = told
        self._lock = threading.Lock()
        self._running: int | None = None

    def run(self) -> None:
        while len(number := self._told.read(NUMBER.size)) == NUMBER.size:
            with self._lock:  # or else the next look might have begun in between
                if NUMBER.unpack(number)[0] == self._running:
                    self._store.interrupt()
        os._exit(0)  # in the middle of whatever it is: it only reads

    def runs(self, number: int | None) -> None:
        with self._lock:
            self._running = number


def _seen(store: ReadingStore, look: Look) -> Seen:
    try:
        return Seen(look.number, store.look(look.question, may_wait=look.may_wait))
    except (Rejection, IndexFailure) as refusal:
        return Seen(look.number, None, refusal)
    except Exception as error:
        where = "".join(traceback.format_tb(error.__traceback__))
        return Seen(look.number, None, bug=f"{where}{type(error).__name__}")


def _message(asked: BinaryIO) -> Any:
    """The next message; None at the end of the pipe."""
    head = asked.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return pickle.loads(asked.read(LENGTH.unpack(head)[0]))  # noqa: S301 (from the process that started this one)


def _opened(database: Path, *, refuse_unregistered: bool) -> ReadingStore:
    try:
        return ReadingStore(Paths(database), refuse_unregistered=refuse_unregistered)
    except Rejection as refusal:  # who has started this one waits, and tries again
        raise SystemExit(f"storage.recaller: {refusal.code}") from refusal


def main(database: str, refuse_unregistered: str, told: str) -> None:
    """Answer each Look on the standard input with a Seen on the standard output, until the input ends."""
    for ending in (signal.SIGINT, signal.SIGTERM):  # sent to all of a service: it ends with the process that asks it
        signal.signal(ending, signal.SIG_IGN)
    store = _opened(Path(database), refuse_unregistered=bool(int(refuse_unregistered)))
    cutting = _Cutting(store, os.fdopen(int(told), "rb", buffering=0))
    threading.Thread(target=cutting.run, daemon=True).start()
    asked, answers = sys.stdin.buffer, sys.stdout.fileno()
    with suppress(BrokenPipeError):
        _send(answers, framed(READY))
        while (look := _message(asked)) is not None:
            cutting.runs(look.number)
            seen = _seen(store, look)
            cutting.runs(None)
            _send(answers, framed(seen))


def _send(pipe: int, message: bytes) -> None:
    rest = memoryview(message)
    while rest:
        rest = rest[os.write(pipe, rest) :]
