"""Recalls in a process of their own, beside the event loop: see storage/recaller.py and decision 0015."""

import os
import pickle
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any, Final

import structlog
import trio

from storage import limits
from storage.reading import Found
from storage.recaller import LENGTH, NUMBER, Look, Seen, framed
from storage.recalling import Question

log = structlog.get_logger()

_PAUSE_S: Final = 5.0
"""After one has ended by itself, until the next one is started."""
_CUTS_MAX: Final = 50
"""A look that goes on after so many interrupts, 20 ms apart, is ended with its process: that one hangs."""


class RecallerGone(Exception):
    """There is no such process, or it ended in the middle: whoever asked has to look himself."""


class Recaller:
    """Keeps the process that looks for one reader, once that has been asked enough to be worth it."""

    def __init__(self, command: Sequence[str]) -> None:
        """`command` starts one: see storage.recaller.command()."""
        self._command = command
        self._asked = 0
        self._wanted = trio.Event()
        self._running: _Process | None = None

    async def run(self) -> None:
        """Keep a process, until cancelled; where one ends, begin another. It is gone when this has ended."""
        await self._wanted.wait()
        while True:
            try:
                async with _process(self._command) as process:
                    self._running = process
                    log.info("recaller_started", pid=process.pid)
                    await process.end()
            except (OSError, RecallerGone) as error:  # no process to be had, or it could not read the database
                log.warning("recaller_not_started", reason=str(error))
            else:
                log.warning("recaller_ended", pid=process.pid)
            finally:
                self._running = None
            await trio.sleep(_PAUSE_S)

    async def look(self, question: Question, *, may_wait: bool) -> Found | None:
        """What ReadingStore.look() says there.

        Raises:
            RecallerGone: nobody has looked.
            Rejection, IndexFailure: as there.
        """
        if self._running is None:
            self._asked += 1
            if self._asked >= limits.RECALLER_FROM_LOOKS:
                self._wanted.set()
            raise RecallerGone("there is none yet")
        seen = await self._running.look(question, may_wait)
        if seen.bug is not None:
            raise RuntimeError(f"in the process for recalls:\n{seen.bug}")
        if seen.refusal is not None:
            raise seen.refusal
        return seen.found

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._running is None else self._running.pid

    def interrupt(self) -> None:
        """Cut the look that runs, if one does."""
        if self._running is not None:
            self._running.interrupt()


class _Process:
    """A process that looks, one question at a time."""

    def __init__(self, process: trio.Process, cut: int) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self._process = process
        self._ended = trio.Event()
        self._asked: Any = process.stdin
        self._answers: Any = process.stdout
        self._cut = cut
        self._numbers = count(1)
        self._number: int | None = None
        """Of the look that runs."""
        self._cuts = 0
        """How often that was interrupted."""

    async def end(self) -> None:
        """Wait until it has ended, or can no longer be asked."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._exit)
            await self._ended.wait()
            nursery.cancel_scope.cancel()

    async def _exit(self) -> None:
        await self._process.wait()
        self._ended.set()

    async def look(self, question: Question, may_wait: bool) -> Seen:
        if self._ended.is_set():
            raise RecallerGone("it has ended")
        self._number, self._cuts = next(self._numbers), 0
        try:
            await self._asked.send_all(framed(Look(self._number, question, may_wait)))
            seen: Seen = await self.message()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise RecallerGone("its pipe is closed") from error
        else:
            assert seen.number == self._number
            self._number = None
            return seen
        finally:
            if self._number is not None:  # its answer, should one come, would be taken for the next one's
                self._ended.set()

    async def message(self) -> Any:
        received = bytearray()
        while len(received) < LENGTH.size or len(received) < LENGTH.size + LENGTH.unpack_from(received)[0]:
            some = await self._answers.receive_some()
            if not some:
                raise RecallerGone("it has ended")
            received += some
        return pickle.loads(memoryview(received)[LENGTH.size :])  # noqa: S301 (from our own process)

    def interrupt(self) -> None:
        if self._number is None:
            return
        self._cuts += 1
        if self._cuts == _CUTS_MAX:
            log.error("recaller_hung", pid=self.pid)
            self._process.kill()
        with suppress(OSError):  # full: it has been told; broken: it has ended
            os.write(self._cut, NUMBER.pack(self._number))


@asynccontextmanager
async def _process(command: Sequence[str]) -> AsyncIterator[_Process]:
    """Start a process that looks, and end it with the block; it also ends with this process, however that ends."""
    told, cut = os.pipe()
    os.set_blocking(cut, False)
    try:
        try:
            # A session of its own: Ctrl-C is not for it.
            process = await trio.lowlevel.open_process(
                [*command, str(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=[told],
                start_new_session=True,
            )
        finally:
            os.close(told)
        try:
            looking = _Process(process, cut)
            await looking.message()  # that it is ready
            yield looking
        finally:
            await _end(process)
    finally:
        os.close(cut)


async def _end(process: trio.Process) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.kill()
    with trio.CancelScope(shield=True):
        await process.wait()
        await process.stdin.aclose()
        await process.stdout.aclose()
