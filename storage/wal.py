"""The database's write-ahead log (WAL): how much of it is in use, and how it is copied back beside the writes.

Whoever keeps a read transaction open keeps what is written after its beginning from being copied back, and the WAL
grows until the reader has gone. Then the next COMMIT would copy all of it in one piece (measured: 1.5 GB in 5.9 s, and
every write waits). So a long WAL is copied back on a connection of its own while writes go on: a PASSIVE checkpoint
waits for nobody, and nobody waits for it. RESTART and TRUNCATE do wait, for readers of other processes: never here.
What a checkpoint leaves is used anew by whoever writes next; our connection then cuts the file (journal_size_limit).
"""

from contextlib import closing
from pathlib import Path

import apsw

from storage import limits
from storage.database import fetch, passive_checkpoint
from storage.errors import translated

_FRAME_HEAD_BYTES = 24


class WriteAheadLog:
    """What the last look at the WAL of a database found. Any thread may ask; one at a time may look."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self._file = database.with_name(database.name + "-wal")
        self.used_bytes = self.bytes
        """How much of the file is in use; until a look all of it counts."""
        self.left_bytes = self.used_bytes
        """How much of that could not be copied back."""

    @property
    def bytes(self) -> int:
        """The size of the file; 0 where there is none."""
        try:
            return self._file.stat().st_size
        except OSError:
            return 0

    @property
    def is_held(self) -> bool:
        """Whether more is left than a write can copy back by the way."""
        return self.left_bytes > limits.WAL_BYTES_KEPT

    @property
    def is_large(self) -> bool:
        """Whether it has grown beyond WAL_BYTES_WARN, and somebody keeps it from being used anew."""
        return self.used_bytes > limits.WAL_BYTES_WARN and self.left_bytes > 0

    def look(self) -> bool:
        """Copy a long WAL back as far as readers allow, and note what is left; False where it is short.

        Takes as long as the disk needs. Writes, ours and those of others, go on meanwhile.

        Raises:
            Rejection: the database cannot be opened or written at the moment.
        """
        if self.bytes <= limits.WAL_BYTES_KEPT:
            self.used_bytes = self.left_bytes = 0
            return False
        try:
            self._copy_back()
        except BaseException:
            self.used_bytes = self.left_bytes = self.bytes  # not known: all of it, as before the first look
            raise
        return True

    def _copy_back(self) -> None:
        with translated(), closing(apsw.Connection(str(self._database), flags=apsw.SQLITE_OPEN_READWRITE)) as db:
            page_bytes = int(fetch(db, "PRAGMA page_size")[0][0])
            used, copied = passive_checkpoint(db)
            if used >= 0:  # else another process copies it back in this moment
                self.used_bytes = used * (page_bytes + _FRAME_HEAD_BYTES)
                self.left_bytes = (used - copied) * (page_bytes + _FRAME_HEAD_BYTES)
