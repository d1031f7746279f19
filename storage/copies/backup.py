"""Backup and restore: the database and state.db of one instant, copied while others write, and verified.

Page by page, not VACUUM INTO: a vacuum gives rows new ids in tables without an INTEGER PRIMARY KEY, and state.db knows
rows by their ids. Never a copy of the file: of a database in WAL mode it lacks what is in the WAL, or mixes two states.
"""

import json
import random
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import apsw

from storage import limits
from storage.copies.backup_record import LastBackup, last_backup, record_path
from storage.copies.manifest import DATABASE, STATE, Copy, Manifest, look_at, read_manifest, rows_by_table
from storage.copies.snapshot import snapshot
from storage.copies.staging import place, place_folder, refuse_existing, replace_text, sha256_of, staged, translated_at
from storage.errors import ConfigurationError, StorageBusy, StorageDamaged, StorageUnavailable
from storage.paths import Paths
from storage.times import iso

__all__ = ("LastBackup", "back_up", "last_backup", "restore")

_SLICE_PAGES = 256


def back_up(paths: Paths, folder: Path, *, clock: Callable[[], float] = time.time) -> Manifest:
    """Copy the database and state.db into a new folder, verify the copies, and record the backup beside the database.

    The service and other processes may write meanwhile. The folder appears when it is whole; after a failure nothing
    is there.

    Raises:
        ConfigurationError: the folder exists, or the path holds no database.
        StorageBusy: no instant could be found at which to read both files.
        StorageDamaged: a copy fails its integrity check: so does the database.
        StorageFull: the disk of the folder is full.
        Rejection: a file cannot be read or written.
    """
    folder = folder.expanduser().absolute()
    with staged(folder) as staging:
        manifest = _copied(paths, staging, clock)
        manifest.write(staging)
        place_folder(staging, folder)
    _record(paths, LastBackup(iso(clock()), str(folder), manifest.bytes))
    return manifest


def _copied(paths: Paths, staging: Path, clock: Callable[[], float]) -> Manifest:
    with snapshot(paths) as seen:
        at = iso(clock())
        expected = rows_by_table(seen.db)
        _copy_pages(seen.db, staging / DATABASE)
        if seen.state is not None:
            _copy_pages(seen.state, staging / STATE)
    database = look_at(staging / DATABASE)
    if database.rows != expected:
        raise StorageDamaged("The copy does not hold the rows of the database; nothing was kept of it.")
    state = look_at(staging / STATE) if seen.state is not None else None
    return Manifest(at, str(paths.database), database, state)


def _copy_pages(source: apsw.Connection, target: Path) -> None:
    """Copy a database in slices. The source is in a read transaction, so that foreign commits do not start it anew."""
    with closing(apsw.Connection(str(target))) as copy:
        copy.execute("PRAGMA synchronous = OFF")  # it is synced before it gets its name
        until = time.monotonic() + limits.WRITE_BUDGET_S
        with copy.backup("main", source, "main") as pages:
            while not pages.done:
                try:
                    pages.step(_SLICE_PAGES)
                    until = time.monotonic() + limits.WRITE_BUDGET_S
                except (apsw.BusyError, apsw.LockedError) as error:
                    if time.monotonic() >= until:
                        raise StorageBusy("Another process held the database locked all the time.") from error
                    time.sleep(random.uniform(0.01, 0.1))  # noqa: S311 (spreads retries)


def _record(paths: Paths, made: LastBackup) -> None:
    """Write the record that statistics and doctor read.

    Without our folder nobody serves the database, and making it would look like a folder that has lost its state.db.
    """
    if not paths.folder.exists():
        return
    try:
        replace_text(record_path(paths), json.dumps(asdict(made), ensure_ascii=False) + "\n")
    except OSError as error:
        raise StorageUnavailable(
            f"The backup is whole in {made.to}, but {record_path(paths)} could not be written ({error})."
        ) from error


def restore(folder: Path, paths: Paths) -> Manifest:
    """Put a backup at a new path. All of it, or nothing.

    Raises:
        ConfigurationError: the folder holds no backup, its files are not those of its manifest, or something is at
            the path already (the database, its WAL, or our folder).
        StorageFull: the disk of the path is full.
        Rejection: a file cannot be read or written.
    """
    folder = folder.expanduser().absolute()
    beside = [paths.database.with_name(paths.database.name + end) for end in ("-wal", "-shm", "-journal")]
    refuse_existing(paths.database, paths.folder, *beside)
    manifest = read_manifest(folder)
    copies = {DATABASE: manifest.database} | ({STATE: manifest.state} if manifest.state else {})
    for name, copy in copies.items():
        _require_unchanged(folder / name, copy)
    with staged(paths.database) as staging:
        own = staging / "own"
        own.mkdir()
        made = {DATABASE: staging / DATABASE, STATE: own / STATE}
        for name, copy in copies.items():
            shutil.copyfile(folder / name, made[name])
            if look_at(made[name]) != copy:
                raise StorageDamaged(f"{name} changed while it was copied from {folder}; nothing was restored.")
        _place(made[DATABASE], own if manifest.state else None, paths)
    return manifest


def _require_unchanged(path: Path, copy: Copy) -> None:
    with translated_at(path):
        if not path.is_file():
            raise ConfigurationError(f"{path} is missing; nothing was restored. Take another backup.")
        if path.stat().st_size != copy.bytes or sha256_of(path) != copy.sha256:
            raise ConfigurationError(
                f"{path} is not the file that the manifest describes (size or SHA-256 differ); nothing was restored. "
                "Take another backup."
            )


def _place(database: Path, own: Path | None, paths: Paths) -> None:
    """The database comes last: alone it would be served without the request ids that belong to it."""
    if own is not None:
        place_folder(own, paths.folder)
    try:
        place(database, paths.database)
    except BaseException:
        if own is not None:
            shutil.rmtree(paths.folder, ignore_errors=True)
        raise
