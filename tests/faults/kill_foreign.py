"""Processes of the fleet that insert rows into the same database without asking the service, and note what they did.

Each transaction is noted in a journal before its COMMIT and after it: what a kill leaves between the two may be there.
"""

import re
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Self

from tests.support import rows

_PROGRAM = """
import os, random, signal, sqlite3, sys, time

database, journal, agent, number, closes_after = *sys.argv[1:4], *map(int, sys.argv[4:])
chance, over = random.Random(f"{agent} {number}"), []
signal.signal(signal.SIGTERM, lambda *_: over.append(True))
notes = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
tables = {
    "long": "INSERT INTO memory_longterm(agent, fact, created_at) VALUES (?, ?, 1.7e9)",
    "episodic": "INSERT INTO memory_episodic(agent, event_type, summary, created_at) VALUES (?, 'note', ?, 1.7e9)",
    "short": "INSERT INTO memory_short(agent, key, value, created_at) VALUES (?, hex(randomblob(8)), ?, 1.7e9)",
}

def opened():
    return sqlite3.connect(database, isolation_level=None, timeout=30)

db = opened()
while not over:
    number += 1
    tiers = chance.sample([*tables], chance.randint(1, 3))
    db.execute("BEGIN IMMEDIATE")
    for tier in tiers:
        db.execute(tables[tier], (agent, f"{agent} foreign{number} to {tier}"))
    os.write(notes, f"begun {number} {' '.join(tiers)}\\n".encode())
    db.execute("COMMIT")
    os.write(notes, f"done {number}\\n".encode())
    if closes_after and number % closes_after == 0:
        db.close()
        db = opened()
    time.sleep(chance.uniform(0.0, 0.05))
db.close()
"""
_FOUND = """
SELECT 'long', fact FROM memory_longterm WHERE agent = ?1 UNION ALL
SELECT 'episodic', summary FROM memory_episodic WHERE agent = ?1 UNION ALL
SELECT 'short', value FROM memory_short WHERE agent = ?1"""
"""One statement, so that it sees one state: the process may go on meanwhile."""
_ENDS_WITHIN_S = 30.0


class Inserter:
    """A foreign process that inserts as one agent, whose rows are its alone; a context manager that ends it.

    It can be killed and started again, and then goes on with the next number.
    """

    def __init__(self, database: Path, agent: str, *, closes_after: int = 0) -> None:
        """`closes_after` so many transactions it closes its connection and opens another; 0: never."""
        self.agent = agent
        self._database = database
        self._closes_after = closes_after
        self._journal = database.with_name(f"{agent}.journal")
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Begin to insert."""
        begun, _ = self._notes()
        arguments = [str(self._database), str(self._journal), self.agent, str(len(begun)), str(self._closes_after)]
        self._process = subprocess.Popen([sys.executable, "-c", _PROGRAM, *arguments], stderr=subprocess.PIPE)

    def kill(self) -> None:
        """kill -9, if it runs. Fails where it had ended by itself: SQLite had refused it something."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._require_ended(-signal.SIGKILL)

    def end(self) -> None:
        """Let it finish its transaction and close its connection."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self._require_ended(0)

    def _require_ended(self, code: int) -> None:
        assert self._process is not None
        ended, self._process = self._process, None
        try:
            _, errors = ended.communicate(timeout=_ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:
            ended.kill()
            ended.communicate()
            raise
        assert (ended.returncode, errors.decode()) == (code, "")

    def _notes(self) -> tuple[dict[int, set[str]], set[int]]:
        """The tiers of each transaction that was begun, and which of them were committed for certain."""
        notes = self._journal.read_text() if self._journal.exists() else ""
        begun = {int(number): set(tiers.split()) for number, tiers in re.findall(r"^begun (\d+) (.*)$", notes, re.M)}
        return begun, {int(number) for number in re.findall(r"^done (\d+)$", notes, re.M)}

    @property
    def committed(self) -> int:
        """How many transactions are certainly committed."""
        return len(self._notes()[1])

    def check(self) -> int:
        """Each transaction that was committed is there once and whole, and nothing else; how many those are.

        It may go on meanwhile.
        """
        _, done = self._notes()
        found: defaultdict[int, list[str]] = defaultdict(list)
        for tier, text in rows(self._database, _FOUND, self.agent):
            ((number, told),) = re.findall(rf"^{self.agent} foreign(\d+) to (\w+)$", text)
            assert told == tier
            found[int(number)].append(tier)
        begun, _ = self._notes()
        assert done <= set(found)
        assert {number: sorted(tiers) for number, tiers in found.items()} == {
            number: sorted(begun[number]) for number in found
        }
        return len(done)

    def newest(self, count: int) -> list[tuple[str, str, str]]:
        """(tier, agent, text) of rows of the last transactions that were committed."""
        begun, done = self._notes()
        return [
            (tier, self.agent, f"{self.agent} foreign{number} to {tier}")
            for number in sorted(done)[-count:]
            for tier in sorted(begun[number])[:1]
        ]
