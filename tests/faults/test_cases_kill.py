"""The cases about processes that end, in order or not, while others write."""

import random
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path

from tests.faults.kill_checks import check_calm, check_counts, check_index, check_settled, check_sound
from tests.faults.kill_foreign import Inserter
from tests.faults.kill_rounds import STRETCHED, Starts, calling, run_and_kill, writing
from tests.faults.kill_rows import Books, row_clients
from tests.faults.scale import scaled, seeded
from tests.support import PROGRAM, Service, eventually

CLIENTS = scaled(4, 16)
ENDS = scaled(3, 40)
"""Of our process and of the foreign ones, each while the others write."""
KILLS = scaled(3, 50)
WRITTEN_BETWEEN = 5
OVER_WITHIN_S = 20.0


def check_end(service: Service, database: Path, books: Books) -> None:
    """Whatever was not answered is sent again; then all of it is there once, and found."""
    with calling(service.url) as http:
        books.repeat(http)
    assert len(books.acknowledged) == books.sent
    assert books.open == []
    books.check(database)
    check_settled(database)
    check_index(database)
    check_counts(service, database)


# --- C048: processes that end in order ---


def write_on(books: Books, inserters: list[Inserter]) -> None:
    """Wait until everybody has written something more."""
    ours, theirs = len(books.acknowledged), [inserter.committed for inserter in inserters]
    eventually(lambda: len(books.acknowledged) >= ours + WRITTEN_BETWEEN, within_s=OVER_WITHIN_S)
    for inserter, before in zip(inserters, theirs, strict=True):
        eventually(lambda one=inserter, before=before: one.committed > before, within_s=OVER_WITHIN_S)


def test_c048_a_process_that_ends_in_order_damages_nothing_that_others_write(database: Path) -> None:
    """Ours by SIGTERM, theirs by closing; and one that opens and closes all the time, as a script of cron does."""
    chance = random.Random(seeded().random())
    books = Books(chance)
    clients = row_clients(books, CLIENTS)
    inserters = [Inserter(database, "main"), Inserter(database, "or", closes_after=2)]
    starts = Starts(database)
    with ExitStack() as running:
        for inserter in inserters:
            running.enter_context(inserter)
        for _ in range(ENDS):
            with starts.serving() as service, writing(service, clients):
                write_on(books, inserters)
                for inserter in inserters:
                    inserter.end()
                    inserter.start()
                write_on(books, inserters)
                threading.Event().wait(chance.uniform(0.0, 0.1))
                assert service.stop() == 0
            check_calm(service)
            books.check(database)
            check_sound(database)
            for inserter in inserters:
                inserter.check()
        for inserter in inserters:
            inserter.end()
        with starts.serving() as service:
            check_sound(database)
            rows_there = sum(inserter.check() for inserter in inserters)
            check_end(service, database, books)
    print(f"{ENDS} ends; {len(books.acknowledged)} writes, {rows_there} foreign transactions")


# --- C050: processes that are killed ---


def test_c050_a_write_storm_that_is_killed_again_and_again_loses_no_acknowledged_row(database: Path) -> None:
    """After each kill the files are sound; at the end the rows are those that were acknowledged."""
    chance = random.Random(seeded().random())
    books = Books(chance)
    clients = row_clients(books, CLIENTS)
    starts = Starts(database, same_port=True)
    settled = 0
    for number in range(KILLS):
        with starts.serving(fault="" if number % 3 else STRETCHED) as service:
            check_sound(database)
            books.check(database)
            run_and_kill(service, clients, chance)
        check_calm(service)
        settled += service.events("store_opened")[0]["intents_settled"]
    with starts.serving() as service:
        check_sound(database)
        check_end(service, database, books)
        assert service.rest("GET", "/health")[1]["status"] == "ok"
        examined = subprocess.run(
            [*PROGRAM, "doctor", "--db", str(database)], capture_output=True, text=True, timeout=60, check=False
        )
        assert "quick_check found nothing" in examined.stdout, examined.stdout
    print(f"{KILLS} kills; {len(books.acknowledged)} writes, {books.replayed} of them replayed, {settled} settled")
    starts.check()
    assert len(books.acknowledged) > KILLS
