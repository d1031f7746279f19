"""A disk that breaks on demand below a service, and what a service must say of it then.

The service runs on a file system of SQLite's that asks a control file before it touches a file: see `Disk`. Errors of
the system itself come from a small tmpfs.
"""

import contextlib
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apsw

from tests.support import Service, eventually

BREAKABLE = """
import errno, json, os
import apsw

class BreakableFile(apsw.VFSFile):
    def __init__(self, name, flags):
        super().__init__("unix", name, flags)
        self.name = name if isinstance(name, str) else "" if name is None else name.filename()

    def _touch(self, op):
        try:
            with open(os.environ["BROKEN_DISK"]) as control:
                fault = json.load(control)
        except (FileNotFoundError, ValueError):
            return
        if op in fault["ops"] and os.path.basename(self.name) in fault["files"]:
            error = getattr(apsw, fault["error"])("planted by a test")
            error.extendedresult = {
                ("IOError", "read"): apsw.SQLITE_IOERR_READ,
                ("IOError", "write"): apsw.SQLITE_IOERR_WRITE,
                ("IOError", "sync"): apsw.SQLITE_IOERR_FSYNC,
            }.get((fault["error"], op), 0)
            raise error

    def xRead(self, amount, offset):
        self._touch("read")
        return super().xRead(amount, offset)

    def xWrite(self, data, offset):
        self._touch("write")
        super().xWrite(data, offset)

    def xSync(self, flags):
        self._touch("sync")
        return super().xSync(flags)

class BreakableDisk(apsw.VFS):
    def __init__(self):
        super().__init__("breakable", base="unix", makedefault=True)

    def xOpen(self, name, flags):
        return BreakableFile(name, flags)

DISK = BreakableDisk()
fsync = os.fsync

def breakable_fsync(fd):
    if os.path.exists(os.environ["BROKEN_DISK"] + ".files"):
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    fsync(fd)

os.fsync = breakable_fsync
"""
"""Planted before the program starts. SQLite's files ask the control file named BROKEN_DISK; files of the swarm, which
are written without SQLite, cannot be synced while one with the ending `.files` is there."""

QUICK = """
import actors.janitor, actors.sentry
actors.sentry._PERIOD_S = 0.1
actors.janitor._LOOK_AGAIN_S = 0.2
"""
"""The service looks at its files and for foreign rows more often than as shipped, so that no test waits so long."""

WRITE = ("write", "sync")
READ = ("read",)
MENDED_WITHIN_S = 12.0


class Disk:
    """The control file of one service."""

    def __init__(self, folder: Path) -> None:
        self._control = folder / "broken-disk"
        self.env = {"BROKEN_DISK": str(self._control)}

    def breaks(self, error: str, ops: Sequence[str], *files: str) -> None:
        """From now on operations on these files end with an APSW error of this name."""
        beside = self._control.with_suffix(".new")
        beside.write_text(json.dumps({"error": error, "ops": list(ops), "files": files}))
        beside.rename(self._control)

    def breaks_for_files(self) -> None:
        """From now on no file that is written without SQLite can be synced."""
        self._control.with_name(self._control.name + ".files").touch()

    def is_mended(self) -> None:
        """All is well again."""
        self._control.unlink(missing_ok=True)
        self._control.with_name(self._control.name + ".files").unlink(missing_ok=True)


def refused(service: Service, code: str, *, write: bool, **fields: Any) -> None:
    """A write, or a recall, is refused with this code on REST and on MCP, with a sentence and a next step."""
    if write:
        body = {"agent": "sol", "fact": "refused", **fields}
        status, answer = service.rest("POST", "/v1/long", body)
        is_error, result = service.mcp("remember_long", body)
    else:
        status, answer = service.rest("GET", "/v1/recall", agent="sol", q="zebra", **fields)
        is_error, result = service.mcp("recall", {"agent": "sol", "q": "zebra", **fields})
    assert status == (507 if code == "storage_full" else 503), answer
    assert is_error is True
    for body in (answer, result):
        assert body["ok"] is False
        assert body["error"]["code"] == code, body
        assert body["error"]["detail"]
        assert body["error"]["hint"]
        assert "results" not in body


def health(service: Service) -> tuple[int, str, list[str]]:
    """(status of /health/ready, status, reasons)."""
    status, body = service.rest("GET", "/health/ready")
    return status, body["status"], body["reasons"]


def is_ready(service: Service) -> bool:
    """Whether it is well, without a reason."""
    return health(service) == (200, "ok", [])


def recovers(service: Service) -> None:
    """It is well again by itself."""
    eventually(lambda: is_ready(service), MENDED_WITHIN_S)


def honest(service: Service, word: str) -> list[str]:
    """The texts that a recall finds; it may say that it cannot find all, and be refused, but not be silently empty."""
    status, body = service.rest("GET", "/v1/recall", agent="sol", q=word, k=50)
    if status != 200:
        assert status == 503, body
        assert body["error"]["detail"]
        return []
    if not body["results"]:
        assert {"index_rebuilding", "index_behind"} & set(body["degraded_reasons"]), body
    return [memory["text"] for memory in body["results"]]


@contextlib.contextmanager
def small_disk(folder: Path, size_kib: int) -> Iterator[Path]:
    """A file system of its own of this size, mounted and unmounted."""
    place = folder / "disk"
    place.mkdir()
    options = f"size={size_kib}k"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True, timeout=10)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=10)


def fill(place: Path, *, leave_bytes: int = 0) -> Path:
    """Write a file until the disk is full; it is returned, to be removed."""
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"\0" * 4096)
    if leave_bytes:
        with filler.open("r+b") as file:
            file.truncate(max(0, filler.stat().st_size - leave_bytes))
    return filler


def page_of(database: Path, name: str) -> tuple[int, int]:
    """(offset, length) of the root page of a table or an index in the file."""
    with contextlib.closing(apsw.Connection(str(database))) as db:
        ((root,),) = list(db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (name,)))
        size = int(db.pragma("page_size"))
    return (int(root) - 1) * size, size


def overwrite(path: Path, offset: int, content: bytes) -> bytes:
    """Write over a part of a file that stays the same file; what was there before."""
    with path.open("r+b") as file:
        file.seek(offset)
        before = file.read(len(content))
        file.seek(offset)
        file.write(content)
    return before
