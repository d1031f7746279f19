"""The torture: all clients and foreign processes write while the service is killed again and again."""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults.kill_checks import (
    check_authors,
    check_calm,
    check_counts,
    check_index,
    check_recall,
    check_settled,
    check_sound,
)
from tests.faults.kill_events import WORKERS, Files
from tests.faults.kill_foreign import Inserter
from tests.faults.kill_pages import Fleet
from tests.faults.kill_rounds import STRETCHED, Starts, calling, run_and_kill
from tests.faults.kill_rows import AGENTS, Books, row_clients
from tests.faults.scale import scaled
from tests.support import Service

ROUNDS = scaled(8, 10)
"""Of each part: one kill each while all kinds are written."""
START_KILLED_EVERY = 3
"""After so many rounds the service is killed once more, while it makes up for the kill before."""
START_SHARES = (0.5, 1.1)
"""When, as a share of the time that a start takes."""
ALL_KILLED_EVERY = 3
"""After so many rounds the foreign processes are killed, too: nobody holds the database, and nobody writes the next
time that it is looked at."""
SAMPLED = 5


class Torture:
    """One database under it. Each part begins with swarm folders of its own, so that no page grows without bound."""

    def __init__(
        self,
        database: Path,
        chance: random.Random,
        *,
        clients: int = 0,
        foreign: Sequence[str] = (),
        tells: bool = False,
        fault: str = "",
    ) -> None:
        """`clients` write rows, and a process for each agent of `foreign`; with `tells` events are episodes, too."""
        self.books = Books(chance)
        self.starts = Starts(database, fault=fault)
        self._faults = (fault, f"{fault}\n{STRETCHED}")
        self.kills = 0
        self.intents: Counter[str] = Counter()
        """How the requests ended whose end a kill had left open."""
        self.events = 0
        self.foreign_rows = 0
        self._database = database
        self._chance = chance
        self._row_clients = row_clients(self.books, clients)
        self._inserters = [Inserter(database, agent) for agent in foreign]
        self._tells = tells

    @contextmanager
    def foreign(self) -> Iterator[None]:
        """The foreign processes insert while the block runs."""
        with ExitStack() as running:
            for inserter in self._inserters:
                running.enter_context(inserter)
            yield

    def part(self, name: str, rounds: int = ROUNDS) -> None:
        """Rounds of writing and killing, each of which begins with a look at what the one before has left."""
        files = Files(self._database.parent / name)
        settings = files.settings | ({"SOLOS_MEMORY_SWARM_EPISODES": "1"} if self._tells else {})
        with self.starts.serving(env=settings) as service:
            with calling(service.url) as http:
                fleet = Fleet(http, files, self._chance, name)
            self._write_and_kill(service, fleet, quiet=False)
        quiet = False
        for number in range(1, rounds):
            print(f"{name}, round {number}")
            if number % START_KILLED_EVERY == 0:
                self.starts.kill_one_at(self._chance.uniform(*START_SHARES), env=settings)
                self.kills += 1
            with self.starts.serving(env=settings, fault=self._fault(number)) as service:
                self._check(service, fleet, quiet=quiet)
                quiet = number % ALL_KILLED_EVERY == 0
                self._write_and_kill(service, fleet, quiet=quiet)
        with self.starts.serving(env=settings) as service:
            self._check(service, fleet, quiet=quiet)
            self._end(service, fleet)
        fleet.check()
        assert files.matching(".solos-*") == []
        assert fleet.answered > rounds
        self.events += fleet.answered

    def _write_and_kill(self, service: Service, fleet: Fleet, *, quiet: bool) -> None:
        """A round; with `quiet` the foreign processes end in the same moment."""
        run_and_kill(service, [*fleet.clients, *self._row_clients], self._chance)
        self.kills += 1
        if quiet:
            self._end_foreign()
        check_calm(service)
        (opened,) = service.events("store_opened")
        self.intents += Counter(settled=opened["intents_settled"], dropped=opened["intents_dropped"])

    def _fault(self, number: int) -> str:
        """Every other round has a slow disk."""
        return self._faults[number % len(self._faults)]

    def _end_foreign(self) -> None:
        for inserter in self._inserters:
            inserter.kill()

    def _check(self, service: Service, fleet: Fleet, *, quiet: bool) -> None:
        """What the last kill has left; then what was not answered is sent again."""
        check_sound(self._database)
        self.books.check(self._database)
        self.foreign_rows = sum(inserter.check() for inserter in self._inserters)
        fleet.check()
        if quiet:
            self._check_agreement(service, fleet)
            for inserter in self._inserters:
                inserter.start()
        with calling(service.url) as http:
            fleet.repeat(http)

    def _check_agreement(self, service: Service, fleet: Fleet) -> None:
        """Index, counts, recall and episodes agree with the tables and the logs. Nobody writes now."""
        if self._tells:
            fleet.check_told(self._database)
        check_authors(self._database, (*AGENTS, *WORKERS.values(), *(inserter.agent for inserter in self._inserters)))
        check_index(self._database)
        check_counts(service, self._database)
        newest = [inserter.newest(SAMPLED) for inserter in self._inserters]
        fleet.check_found(service)
        check_recall(service, [*self.books.newest(SAMPLED), *(row for rows in newest for row in rows)])

    def _end(self, service: Service, fleet: Fleet) -> None:
        """Whatever was not answered is sent again; then it is there once, like all the rest."""
        self._end_foreign()
        with calling(service.url) as http:
            self.books.repeat(http)
        assert (self.books.open, fleet.open) == ([], 0)
        assert len(self.books.acknowledged) == self.books.sent
        self.books.check(self._database)
        check_settled(self._database)
        self._check_agreement(service, fleet)
        for inserter in self._inserters:
            inserter.start()

    def check(self) -> None:
        """Print what was done, and hold the starts to their promise."""
        replayed = self.books.replayed
        print(
            f"{self.kills} kills; {len(self.books.acknowledged)} writes of rows, {replayed} of them replayed; "
            f"{self.events} events; {self.foreign_rows} foreign transactions; intents: {dict(self.intents)}"
        )
        self.starts.check()
