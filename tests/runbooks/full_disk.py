"""`solos-memory` on a disk that is full while DB.fills-the-disk exists. Started by a page; not a test.

SQLite asks its file system for room, and is told what a full disk tells it.
"""

import os
import sys

import apsw


class FullFile(apsw.VFSFile):
    """A file that takes no byte while there is no room."""

    def xWrite(self, data: bytes, offset: int) -> None:
        """Write, or say that the disk is full."""
        if any(os.path.exists(f"{path}.fills-the-disk") for path in DATABASES):
            raise apsw.FullError("database or disk is full")
        super().xWrite(data, offset)


class FullDisk(apsw.VFS):
    """The default file system, with files that may be told to be full."""

    def __init__(self) -> None:
        super().__init__("full", base="unix", makedefault=True)

    def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:
        """Open a file of it."""
        return FullFile("unix", name, flags)


DATABASES = [argument for argument in sys.argv if argument.endswith(".db")]
DISK = FullDisk()

if __name__ == "__main__":
    from transport.cli import main

    main()
