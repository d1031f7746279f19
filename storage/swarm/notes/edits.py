"""What the editing commands make of a note. Pure functions of bytes: what is no UTF-8 stays as it is."""

from typing import Final

from storage.swarm.notes.refusals import BadNoteLine, NoteConflict
from storage.swarm.notes.showing import line_count

_SHOWN_LINES: Final = 100


def encoded(text: str) -> bytes:
    """A caller's text as it is kept; what UTF-8 cannot hold is replaced."""
    return text.encode("utf-8", "replace")


def only_position(content: bytes, old: bytes, old_str: str, path: str) -> int:
    """Where the one occurrence of a text is.

    Raises:
        NoteConflict: there is none, or more; of overlapping ones, each counts.
    """
    at = content.find(old) if old else -1
    shown = old_str.encode("utf-8", "replace").decode()
    if at < 0:
        raise NoteConflict(f"No replacement was performed, old_str `{shown}` did not appear verbatim in {path}.")
    if content.find(old, at + 1) < 0:
        return at
    raise NoteConflict(
        f"No replacement was performed. Multiple occurrences of old_str `{shown}` in lines: "
        f"{_lines_of(content, old)}. Please ensure it is unique"
    )


def _lines_of(content: bytes, old: bytes) -> str:
    """The line of each occurrence, of the first hundred."""
    lines: list[str] = []
    at, line, counted = content.find(old), 1, 0
    while at >= 0 and len(lines) < _SHOWN_LINES:
        line += content.count(b"\n", counted, at)
        counted = at
        lines.append(str(line))
        at = content.find(old, at + 1)
    return ", ".join([*lines, "and more"] if at >= 0 else lines)


def inserted(content: bytes, line: int, text: bytes) -> bytes:
    """Content with a text on lines of its own behind a line; only the ends of lines that were missing are added.

    Raises:
        BadNoteLine: there is no such line.
    """
    count = line_count(content)
    if not 0 <= line <= count:
        raise BadNoteLine(
            f"Error: Invalid `insert_line` parameter: {line}. "
            f"It should be within the range of lines of the file: [0, {count}]"
        )
    end = b"\r\n" if b"\r\n" in content else b"\n"
    at = _start_of(content, line, count)
    before = content[:at]
    gap = end if before and not before.endswith(b"\n") else b""
    return before + gap + text + (b"" if text.endswith(b"\n") else end) + content[at:]


def _start_of(content: bytes, line: int, count: int) -> int:
    """Where the line behind so many lines begins."""
    if line == count:
        return len(content)
    at = 0
    for _ in range(line):
        at = content.index(b"\n", at) + 1
    return at
