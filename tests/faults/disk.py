"""What is on disk, seen by APSW: actors and stores of the same process have the file open (see foreign.py)."""

from pathlib import Path

from storage.database import fetch, open_reader


def facts(database: Path) -> list[str]:
    """The facts in the order of their ids."""
    db = open_reader(database)
    try:
        return [fact for (fact,) in fetch(db, "SELECT fact FROM memory_longterm ORDER BY id")]
    finally:
        db.close()
