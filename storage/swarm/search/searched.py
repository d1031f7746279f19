"""Which files of the swarm are searched, and how one is read for the index: in pieces of whole lines.

A log that grew costs the analysis of its last piece only. No link is followed and nothing outside the roots is read.
"""

import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, get_args

from storage.errors import Rejection
from storage.search.text import STOP_WORDS, analyse
from storage.swarm.failing import failures
from storage.swarm.folders import TEMPORARY, open_folder
from storage.swarm.layout import EVENTS, HANDOFF, LATEST, MISSION_ID, PROFILE_FILES, WORKER_ID, Folder, RootName, Roots
from storage.times import iso_of_file

Scope = Literal["private", "fleet", "shared"]
"""A worker's profile, episodes and notes; its missions and handoffs; the memory of all."""

Sort = Literal["profile", "note", "summary", "handoff", "episode"]
SORTS: Final[tuple[Sort, ...]] = get_args(Sort)
"""What the files of a worker are, but for its logs: its summaries repeat those."""

FILE_BYTES_MAX: Final = 16 * 1_048_576
"""Of a larger file the first so many bytes are searched."""
PIECE_BYTES: Final = 65_536
_DEPTH_MAX: Final = 8
"""Of folders below the shared memory, and below the notes of a worker."""
_LATEST: Final = re.compile(rf"({WORKER_ID.pattern})-latest\.md")
"""The years 1 to 9999."""
_RACY_NS: Final = 50_000_000
"""A file written this shortly before it was read may be written again without another time on it."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_WORD: Final = re.compile("[a-z]+")
_ESCAPE: Final = re.compile(r"(?:\\u[0-9a-fA-F]{4})+|\\.")


class Place(NamedTuple):
    """A file that may be searched."""

    folder: Folder
    name: str


class State(NamedTuple):
    """What tells that a file is another one, or was written since. An editor may restore mtime, never ctime."""

    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @property
    def written_at(self) -> str:
        """When the file was last written: ISO 8601 with milliseconds, UTC."""
        return iso_of_file(self.mtime_ns)


class Piece(NamedTuple):
    """Some whole lines of a file; of a line that is longer, a part."""

    start: int
    """In bytes."""
    size: int
    """In bytes."""
    line: int
    """The number of its first line, from 1."""
    digest: bytes


@dataclass(frozen=True, slots=True)
class Reading:
    """A file as it was read just now, to be put into the index; without a state, it is gone."""

    place: Place
    state: State | None = None
    sure: bool = True
    pieces: tuple[tuple[Piece, str | None], ...] = ()
    """With their terms, joined; None where the index has that piece already."""


class Searched(NamedTuple):
    """What a search covers; None stands for every worker."""

    workers: Collection[str] | None
    """Whose missions and handoffs."""
    private: Collection[str] | None
    """Whose profile, episodes and notes."""
    shared: bool

    def covers(self, facet: str) -> bool:
        """Whether files with such a facet are searched."""
        scope, _, worker = facet[1:].partition(":")
        if scope == "shared":
            return self.shared
        those = self.private if scope == "private" else self.workers
        return those is None or worker in those


# --- which files there are ---


def scope_of(folder: Folder) -> Scope | None:
    """Whose the searched files of a folder are; None where none lie in it."""
    match folder:
        case Folder("profiles", (worker, "memory", *below)) if WORKER_ID.fullmatch(worker):
            match below:
                case [] | ["episodes"]:
                    return "private"
                case ["notes", *deeper] if len(deeper) <= _DEPTH_MAX and all(map(_is_name, deeper)):
                    return "private"
                case ["handoffs"]:
                    return "fleet"
                case ["missions", mission] if MISSION_ID.fullmatch(mission):
                    return "fleet"
        case Folder("shared", ("swarm", *below)) if len(below) <= _DEPTH_MAX and all(map(_is_name, below)):
            return "shared"
        case Folder("shared", ("handoffs", "swarm")):
            return "shared"
    return None


def worker_of(place: Place) -> str | None:
    """Whose a searched file is, or who left it in shared memory; None for what is of all."""
    match place.folder:
        case Folder("profiles", (worker, *_)):
            return worker
        case Folder("shared", ("handoffs", *_)) if latest := _LATEST.fullmatch(place.name):
            return latest[1]
        case Folder("shared", ("swarm", "missions", mission, worker, *_)):
            return worker if MISSION_ID.fullmatch(mission) and WORKER_ID.fullmatch(worker) else None
    return None


def mission_of(place: Place) -> str | None:
    """The mission whose file a searched file is; None for any other."""
    match place.folder:
        case Folder("profiles", (_, "memory", "missions", given)) | Folder("shared", ("swarm", "missions", given, *_)):
            pass
        case Folder("profiles", (_, "memory", "handoffs")) if place.name.endswith(".md") and place.name != LATEST:
            given = place.name.removesuffix(".md")
        case _:
            return None
    return given if MISSION_ID.fullmatch(given) else None


def sort_of(place: Place) -> Sort | None:
    """What a searched file is among those of its worker; None for a log, and for shared memory."""
    match place.folder:
        case Folder("profiles", (_, "memory", *_)) if place.name == EVENTS:
            return None
        case Folder("profiles", (_, "memory")):
            return "profile" if place.name in PROFILE_FILES else "note"
        case Folder("profiles", (_, "memory", "notes", *_)):
            return "note"
        case Folder("profiles", (_, "memory", "missions", _)):
            return "handoff" if place.name == HANDOFF else "summary"
        case Folder("profiles", (_, "memory", "handoffs")):
            return "handoff"
        case Folder("profiles", (_, "memory", "episodes")):
            return "episode"
    return None


def is_page(name: str) -> bool:
    """Whether a file of such a name is searched, where it lies in a folder that is. One that is no UTF-8 is not."""
    return (name.endswith(".md") or name == EVENTS) and not name.startswith(TEMPORARY) and _is_name(name)


def _is_name(name: str) -> bool:
    """Whether it names something in a folder, in UTF-8."""
    return name not in (".", "..") and "/" not in name and _SURROGATE.search(name) is None


def _enters(folder: Folder, name: str) -> bool:
    """Whether searched files may lie in or below a folder of this folder."""
    match folder:
        case Folder("profiles", ()):
            return WORKER_ID.fullmatch(name) is not None
        case Folder("profiles", (_,)):
            return name == "memory"
        case Folder("profiles", (_, _)):
            return name in ("episodes", "handoffs", "missions", "notes")
        case Folder("profiles", (_, _, "missions")):
            return MISSION_ID.fullmatch(name) is not None
        case Folder("shared", ()):
            return name in ("swarm", "handoffs")
        case Folder("shared", ("handoffs",)):
            return name == "swarm"
        case Folder("profiles", (_, _, "notes", *below)) | Folder("shared", ("swarm", *below)):
            return len(below) < _DEPTH_MAX and _is_name(name)
    return False


def walk(roots: Roots) -> dict[Place, State]:
    """Every file that is searched. Links, hard links and what is no file are passed over, and folders closed to us.

    Costs about 20 µs for a folder and 4 µs for a file.

    Raises:
        FileFailed: the files cannot be looked at.
    """
    found: dict[Place, State] = {}
    names: tuple[RootName, ...] = ("profiles", "shared")
    for root in names:
        with failures(f"the swarm's {root}"), suppress(FileNotFoundError):
            fd = os.open(roots.of(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                _walk(fd, Folder(root, ()), found)
            finally:
                os.close(fd)
    return found


def _walk(fd: int, folder: Folder, found: dict[Place, State]) -> None:
    takes = scope_of(folder) is not None
    below: list[str] = []
    with os.scandir(fd) as entries:
        for entry in entries:
            name = entry.name
            if takes and is_page(name):
                with suppress(FileNotFoundError):
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                        found[Place(folder, name)] = _state(status)
            elif _enters(folder, name) and entry.is_dir(follow_symlinks=False):
                below.append(name)
    for name in below:
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            inner = _opened(fd, name)
            if inner is not None:
                try:
                    _walk(inner, Folder(folder.root, (*folder.parts, name)), found)
                finally:
                    os.close(inner)


def _opened(fd: int, name: str) -> int | None:
    """A folder by its handle; None where it became a link since it was seen."""
    try:
        return os.open(name, _FOLDER, dir_fd=fd)
    except OSError:
        if stat.S_ISLNK(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode):
            return None
        raise


@contextmanager
def opened(roots: Roots, place: Place) -> Iterator[tuple[int, State] | None]:
    """A file that is searched, open to be read, and its state; None where it is gone, or is no file of its own."""
    fd = None
    with suppress(OSError, Rejection):
        folder = open_folder(roots.of(place.folder.root), place.folder.parts)
        if folder is not None:
            with folder:
                fd = os.open(place.name, _FILE, dir_fd=folder.fd)
    if fd is None:
        yield None
        return
    try:
        status = os.fstat(fd)
        regular = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        yield (fd, _state(status)) if regular else None
    finally:
        os.close(fd)


def _state(status: os.stat_result) -> State:
    return State(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


# --- what is in a file ---


def read(roots: Roots, place: Place, known: Iterable[Piece], now_ns: int) -> Reading:
    """A file as it is, its pieces analysed but for those that are known. Costs 0.2 ms for each KB analysed."""
    if scope_of(place.folder) is None or not is_page(place.name):
        return Reading(place)
    have = set(known)
    with opened(roots, place) as file, suppress(OSError):
        if file is None:
            return Reading(place)
        fd, state = file
        pieces = tuple(
            (piece, None if piece in have else _terms(plain(place.name, content))) for piece, content in _pieces(fd)
        )
        sure = _state(os.fstat(fd)) == state and now_ns - max(state.mtime_ns, state.ctime_ns) > _RACY_NS
        return Reading(place, state, sure, pieces)
    return Reading(place)


def _pieces(fd: int) -> Iterator[tuple[Piece, bytes]]:
    """A file in pieces; what is appended to it changes the last one only."""
    start, line = 0, 1
    while start < FILE_BYTES_MAX and (content := os.pread(fd, PIECE_BYTES, start)):
        if len(content) == PIECE_BYTES:
            cut = content.rfind(b"\n") + 1 or content.rfind(b" ") + 1
            content = content[: cut or PIECE_BYTES]
        yield Piece(start, len(content), line, blake2b(content, digest_size=16).digest()), content
        start += len(content)
        line += content.count(b"\n")


def plain(name: str, content: bytes) -> str:
    """The text of a file or of a part of it, line by line; of JSON, with its escapes resolved."""
    text = content.decode("utf-8", "replace")
    return _ESCAPE.sub(_unescaped, text) if name == EVENTS and "\\" in text else text


def _unescaped(escape: re.Match[str]) -> str:
    found = escape[0]
    if len(found) == len("\\n"):
        return " " if found[1] in "nrtbf" else found[1]
    units = b"".join(int(unit, 16).to_bytes(2, "big") for unit in found.split("\\u")[1:])
    return units.decode("utf-16-be", "replace").replace("\n", " ")


def _terms(text: str) -> str:
    """The terms of a piece; its stop words, each once, at the end, since they may be all that is asked for."""
    return " ".join([*analyse(text), *STOP_WORDS.intersection(_WORD.findall(text.casefold()))])
