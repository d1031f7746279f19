"""Commands on the database itself, with the service stopped or none there yet."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from storage import limits
from storage.errors import ConfigurationError, Rejection
from transport.commands.endings import EX_UNAVAILABLE, fail
from transport.settings import EX_CONFIG

if TYPE_CHECKING:
    from storage.writing import WritingStore


@click.command()
@click.option("--db", type=click.Path(path_type=Path), required=True, help="Where to make the database.")
@click.option("--agents", required=True, help="The agents to register: a,b,c.")
def init(db: Path, agents: str) -> None:
    """Make a fresh database with some agents registered."""
    from storage.store import create_database

    names = list(dict.fromkeys(name for part in agents.split(",") if (name := part.strip())))
    if not names or any(len(name) > limits.AGENT_CHARS_MAX for name in names):
        raise click.UsageError(f"--agents takes ids of 1 to {limits.AGENT_CHARS_MAX} characters: a,b,c.")
    try:
        create_database(db, names)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    click.echo(f"made {db} with {len(names)} agents: {', '.join(names)}")


@click.command()
@click.option("--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", required=True, help="The database.")
def reindex(db: Path) -> None:
    """Build the search index anew from the tables. Takes the lock: stop the service first."""
    from storage.collection import collect_seldom
    from storage.database import check_database_file
    from storage.paths import Paths, ProcessLock
    from storage.writing import WritingStore

    paths = Paths(db)
    try:
        check_database_file(paths.database)
        paths.make_folders()
        lock = ProcessLock(paths)
        store = WritingStore(paths)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, f"{refusal.detail} {refusal.hint}")
    collect_seldom()
    try:
        _reindex(store)
    finally:
        store.close()
        lock.release()


def _reindex(store: "WritingStore") -> None:
    store.remake_index()
    total = store.rows_to_index()
    with click.progressbar(length=total, label="indexing", file=sys.stderr) as bar:
        done = 0
        while not store.catch_up(0.2):
            if store.index_error is not None:
                fail(EX_UNAVAILABLE, f"the index cannot be written: {store.index_error}")
            followed = store.rows_indexed()
            bar.update(followed - done)
            done = followed
        bar.update(total - done)
    click.echo(f"indexed {store.rows_held()} rows")


COMMANDS = (init, reindex)
