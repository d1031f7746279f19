"""A stand-in for SQLite's shell on a machine without it: as much of it as the pages use (DB [SQL]). Not a test.

A process of its own, like the shell: no other SQLite of this process has the file open.
"""

import sqlite3
import sys
from pathlib import Path

Path("/proc/self/comm").write_text("sqlite3", encoding="ascii")  # what fuser and ps show of the shell
database, *given = sys.argv[1:]
db = sqlite3.connect(database, isolation_level=None, timeout=0)
try:
    for statement in given or sys.stdin:
        for row in db.execute(statement):
            print("|".join("" if value is None else str(value) for value in row))
except sqlite3.Error as error:
    sys.exit(f"Error: {error}")
