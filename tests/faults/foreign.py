"""Another process that uses the database, as the fleet's own programs do.

A process, never a second SQLite in this one: POSIX locks belong to a process, so a `sqlite3` connection would neither
conflict with an APSW connection here nor leave its locks alone.
"""

import subprocess
import sys
from pathlib import Path
from typing import Self

_PROGRAM = """
import sqlite3, sys, time
db = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=10)
for line in sys.stdin:
    word, _, rest = line.strip().partition(" ")
    db.execute("BEGIN IMMEDIATE" if word == "HOLD" else line)
    print("done", flush=True)
    if word == "HOLD":
        time.sleep(float(rest))
        db.execute("ROLLBACK")
"""


class ForeignProcess:
    """A process with an SQLite connection of its own; a context manager that ends it."""

    def __init__(self, database: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(database)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def execute(self, statement: str) -> None:
        """Run one statement there and wait for its end."""
        self._order(statement)

    def hold(self, hold_s: float) -> None:
        """Take the write lock, return, and give it back after `hold_s`."""
        self._order(f"HOLD {hold_s}")

    def _order(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "done\n", "the foreign process failed; see its traceback"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
