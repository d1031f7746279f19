"""A process that takes texts apart while this one stores what came of the last.

Analysis is most of what building an index costs, and pure Python: in the service's own process it would hold the
interpreter's lock against the recalls that are answered meanwhile.
"""

import pickle
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import BinaryIO, cast

from storage.search.contents import Contents, contents_of

Texts = Sequence[Sequence[str]]
"""The parts of each row."""


class Analyst:
    """One such process. It ends with close(), and with this process, however that ends: its input is closed then."""

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: the system has no process for us.
        """
        # -P: no package of the working directory stands for one of ours. A session of its own: Ctrl-C is not for it.
        command = (sys.executable, "-P", "-m", __name__)
        self._process = subprocess.Popen(  # noqa: S603 (our own module)
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._asked = cast(BinaryIO, self._process.stdin)
        self._answers = cast(BinaryIO, self._process.stdout)
        self._thread = ThreadPoolExecutor(1, "analyst")

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def begin(self, texts: Texts) -> Future[list[Contents]]:
        """Have the contents of rows computed, after those that were begun before.

        Where the process is gone, a thread of this one computes them.
        """
        return self._thread.submit(self._ask, texts)

    def _ask(self, texts: Texts) -> list[Contents]:
        try:
            pickle.dump(texts, self._asked)
            self._asked.flush()
            answer: list[Contents] = pickle.load(self._answers)  # noqa: S301 (from our own process)
        except (OSError, EOFError, pickle.UnpicklingError):
            return [contents_of(parts) for parts in texts]
        return answer

    def close(self) -> None:
        """Drop what was begun and end the process."""
        self._process.kill()  # first: whoever waits for its answer gets none
        self._thread.shutdown(cancel_futures=True)
        with suppress(OSError):  # what it did not read any more cannot be written
            self._process.communicate()


def _serve(asked: BinaryIO, answers: BinaryIO) -> None:
    with suppress(EOFError, BrokenPipeError):
        while True:
            texts: Texts = pickle.load(asked)  # noqa: S301 (from our own process)
            pickle.dump([contents_of(parts) for parts in texts], answers)
            answers.flush()


if __name__ == "__main__":
    _serve(sys.stdin.buffer, sys.stdout.buffer)
