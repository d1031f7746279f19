"""Commands that copy a fleet's memory: backup and restore of the files, export and import of the rows."""

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from storage.errors import ConfigurationError, Rejection
from transport.commands.endings import EX_UNAVAILABLE, fail
from transport.settings import EX_CONFIG

if TYPE_CHECKING:
    from storage.copies.importing import Tally
    from storage.copies.manifest import Manifest
    from storage.paths import Paths

EX_REFUSED = 2
"""The exit code of an import that refused a line."""
_EX_TERMINATED = 128 + signal.SIGTERM
_PROGRESS_S = 2.0

_db_option = click.option(
    "--db", type=click.Path(path_type=Path), envvar="SOLOS_MEMORY_DB", required=True, help="The database."
)


@click.command()
@_db_option
@click.option("--to", type=click.Path(path_type=Path), required=True, help="The folder to make; it must not exist.")
def backup(db: Path, to: Path) -> None:
    """Copy the database and state.db into a new folder, and verify the copies. The service may run."""
    from storage.copies.backup import back_up
    from storage.paths import Paths

    _clean_up_when_terminated()
    paths = Paths(db)
    try:
        made = back_up(paths, to)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, refusal.detail)
    if made.state is None:
        click.echo(f"solos-memory: {paths.state} is not there: the backup has no request ids and sessions", err=True)
    click.echo(f"backed up {paths.database} to {to}: {_amount(made)}, verified")


@click.command()
@click.option("--from", "source", type=click.Path(path_type=Path), required=True, help="The folder of a backup.")
@click.option("--db", type=click.Path(path_type=Path), required=True, help="The new path; nothing may be there.")
def restore(source: Path, db: Path) -> None:
    """Put a backup at a new path, after checking that it is whole. Nothing is ever written over."""
    from storage.copies.backup import restore as put_back
    from storage.paths import Paths

    _clean_up_when_terminated()
    paths = Paths(db)
    try:
        manifest = put_back(source, paths)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, refusal.detail)
    click.echo(f"restored {paths.database} from {source}: {_amount(manifest)}, as of {manifest.at}")


def _amount(manifest: "Manifest") -> str:
    copy = manifest.database
    return f"{copy.total:,} rows in {len(copy.rows)} tables, {manifest.bytes:,} bytes"


@click.command()
@_db_option
@click.option("--durable", is_flag=True, help="Also memory_durable; its lines are never imported.")
@click.option("--out", default="-", show_default=True, help="A new file, or - for the standard output.")
def export(db: Path, durable: bool, out: str) -> None:
    """Write every row as a line of JSON, without row ids, ordered by time, author and text. The service may run."""
    from storage.copies.exporting import export as export_to
    from storage.copies.exporting import export_file
    from storage.paths import Paths

    _clean_up_when_terminated()
    try:
        if out == "-":
            exported = export_to(Paths(db), _print, durable=durable)
            sys.stdout.buffer.flush()
        else:
            exported = export_file(Paths(db), Path(out), durable=durable)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, refusal.detail)
    if exported.left_out:
        click.echo(f"in no line: {', '.join(exported.left_out)} (columns whose meaning is unknown here)", err=True)
    click.echo(f"exported {exported.lines:,} rows", err=True)


def _print(line: bytes) -> None:
    try:
        sys.stdout.buffer.write(line)
    except BrokenPipeError:  # whoever reads has enough; click ends the program
        raise
    except OSError as error:
        fail(EX_UNAVAILABLE, f"the standard output cannot be written: {error}")


@click.command("import")
@_db_option
@click.option("--in", "source", default="-", show_default=True, help="A file of lines, or - for the standard input.")
def import_(db: Path, source: str) -> None:
    """Add the rows of an export that are not there yet. Takes the lock: stop the service first.

    A line that cannot be kept exactly is refused by its number; the others are imported. Ends with 0 where nothing
    was refused, else with 2.
    """
    try:
        file: BinaryIO = sys.stdin.buffer if source == "-" else Path(source).open("rb")  # noqa: SIM115 (closed below)
    except OSError as error:
        fail(EX_CONFIG, f"{source} cannot be read: {error}.")
    _clean_up_when_terminated()
    with file:
        tally = _import(db, file)
    if tally.rounded:
        click.echo(f"{tally.rounded:,} rows have their times cut off to the unit of their table", err=True)
    click.echo(_summary(tally))
    sys.exit(EX_REFUSED if tally.refused else 0)


def _import(db: Path, file: BinaryIO) -> "Tally":
    from storage.database import check_database_file
    from storage.paths import Paths, ProcessLock

    paths = Paths(db)
    try:
        check_database_file(paths.database)  # before our folder is made beside a mistyped path
        paths.make_folders()
        lock = ProcessLock(paths)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    try:
        return _import_locked(paths, file)
    finally:
        lock.release()


def _import_locked(paths: "Paths", file: BinaryIO) -> "Tally":
    from storage.copies.importing import import_lines

    teller = _Teller()
    try:
        return import_lines(paths, file, refused=teller.refused, progress=teller.progress)
    except ConfigurationError as error:
        fail(EX_CONFIG, str(error))
    except Rejection as refusal:
        fail(EX_UNAVAILABLE, f"ended early; it may be run again. {_summary(teller.tally)}. {refusal.detail}")


class _Teller:
    """Tells on the standard error how an import goes on; each refusal by its line's number."""

    def __init__(self) -> None:
        from storage.copies.importing import Tally

        self.tally = Tally()
        self._told_at = time.monotonic()

    def refused(self, number: int, reason: str) -> None:
        click.echo(f"line {number}: {reason}", err=True)

    def progress(self, tally: "Tally") -> None:
        self.tally = tally
        if time.monotonic() - self._told_at >= _PROGRESS_S:
            self._told_at = time.monotonic()
            click.echo(f"line {tally.line:,}: {_summary(tally)}", err=True)


def _summary(tally: "Tally") -> str:
    return f"imported {tally.imported:,}, already there {tally.already_there:,}, refused {tally.refused:,}"


def _clean_up_when_terminated() -> None:
    """End on SIGTERM as on Ctrl-C: with an exception, so that nothing half made is left."""
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(_EX_TERMINATED))


COMMANDS = (backup, restore, export, import_)
