"""How notes are shown to Claude: the texts that the documentation of its memory tool gives. Pure functions."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from storage.errors import TooLarge
from storage.swarm.notes.refusals import BadNoteLine

ENTRIES_MAX: Final = 1_000
"""Of a listing."""
LINES_MAX: Final = 999_999
"""Of a file that is shown; the documented limit."""
VIEW_CHARS_MAX: Final = 16_000
"""Of a file that is shown without a range; what the tool's description tells Claude."""
RANGE_CHARS_MAX: Final = 262_144
"""Of the lines of a range."""
LEVELS: Final = 2
"""How deep a listing goes."""
_AROUND: Final = 2
_SNIPPET_CHARS_MAX: Final = VIEW_CHARS_MAX
_UNIT: Final = 1024
_RANGE_LENGTH: Final = 2


class Entry(NamedTuple):
    """What lies in or below a listed folder."""

    path: str
    """Relative to that folder; a folder's ends with a slash."""
    size: int


def is_listed(name: str) -> bool:
    """Whether a listing shows what has this name."""
    return not name.startswith(".") and name != "node_modules"


def listing(path: str, size: int, entries: Sequence[Entry]) -> str:
    """A folder as `view` shows it; the first thousand entries, and whether there are more."""
    path = path.removesuffix("/")
    header = f"Here're the files and directories up to {LEVELS} levels deep in {path}, "
    lines = [f"{header}excluding hidden items and node_modules:", f"{size_text(size)}\t{path}"]
    lines += [f"{size_text(entry.size)}\t{path}/{entry.path}" for entry in entries[:ENTRIES_MAX]]
    if len(entries) > ENTRIES_MAX:
        lines.append(f"[There are more than {ENTRIES_MAX:,} entries. View a directory below to see its own.]")
    return "\n".join(lines)


def size_text(size: int) -> str:
    """A number of bytes for people: 512B, 5.5K, 1.2M."""
    if size < _UNIT:
        return f"{size}B"
    value = float(size)
    for unit in "KMG":
        value /= _UNIT
        if round(value, 1) < _UNIT:
            return f"{value:.1f}{unit}"
    return f"{value / _UNIT:.1f}T"


def line_count(content: bytes) -> int:
    """How many lines a file has; what is behind its last line end is one."""
    return content.count(b"\n") + (not content.endswith(b"\n") and content != b"")


def file_view(path: str, content: bytes, view_range: Sequence[int] | None) -> str:
    """A file, or the lines of a range, as `view` shows it; of both at most so many characters, and that it is cut.

    Raises:
        BadNoteLine: the file has no such lines.
        TooLarge: it has more than 999,999 lines.
    """
    count = line_count(content)
    if count > LINES_MAX:
        raise TooLarge(f"File {path} exceeds maximum line limit of {LINES_MAX:,} lines.")
    first, last = (1, count) if view_range is None else _lines_of(view_range, count)
    rows = _numbered(content, first, max(last, 1))
    header = f"Here's the content of {path} with line numbers:"
    most = VIEW_CHARS_MAX if view_range is None else RANGE_CHARS_MAX
    if len(header) + sum(len(row) + 1 for row in rows) > most:
        rows = _cut(rows, most - len(header), count)
    return "\n".join([header, *rows])


def _lines_of(view_range: Sequence[int], count: int) -> tuple[int, int]:
    """The first and the last line of a range; one that ends behind the file ends with it."""
    if len(view_range) == _RANGE_LENGTH:
        first, last = view_range
        last = count if last == -1 else min(last, count)
        if 1 <= first <= last or (count == 0 and first == 1):
            return first, last
    raise BadNoteLine(
        f"Error: Invalid `view_range` parameter: {list(view_range)[:4]}. It should be [start_line, end_line] "
        f"within the range of lines of the file: [1, {count}]; an end_line of -1 is the last."
    )


def _cut(rows: list[str], room: int, count: int) -> list[str]:
    kept: list[str] = []
    for row in rows:
        room -= len(row) + 1
        if room < 0:
            break
        kept.append(row)
    if kept:
        return [*kept, f"[Lines 1 to {len(kept)} of {count} are shown. Use view_range to see the others.]"]
    return [rows[0][:room], f"[The beginning of line 1 of {count} is shown. Use view_range to see the others.]"]


def snippet(content: bytes, line: int, lines: int) -> str:
    """Some lines of a file from the index `line`, with those around them, as `str_replace` shows what it did."""
    first = max(line - _AROUND, 0) + 1
    rows = _numbered(content, first, max(min(line + lines + _AROUND, line_count(content)), 1))
    if sum(len(row) + 1 for row in rows) > _SNIPPET_CHARS_MAX:
        rows = ["\n".join(rows)[:_SNIPPET_CHARS_MAX], "[The snippet is cut here.]"]
    return "\n".join(rows)


def _numbered(content: bytes, first: int, last: int) -> list[str]:
    """Lines with their numbers; what is no UTF-8 is replaced."""
    lines = content.removesuffix(b"\n").split(b"\n")[first - 1 : last]
    return [f"{number:6}\t{line.decode('utf-8', 'replace')}" for number, line in enumerate(lines, first)]
