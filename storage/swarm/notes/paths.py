"""A path as Claude's memory tool names it, checked: nothing but what is below a worker's notes can be named."""

import re
from typing import Final, NamedTuple

from storage.swarm.folders import TEMPORARY
from storage.swarm.notes.refusals import BadNotePath

ROOT: Final = "/memories"
NAME_BYTES_MAX: Final = 255
"""Of UTF-8, in a name."""
NEW_NAME_BYTES_MAX: Final = 180
"""The same of a name that is given: the names of our temporary files hold it, and have to fit as well."""
DEPTH_MAX: Final = 8
"""How many names a path has below /memories."""
_SHOWN_CHARS: Final = 80
# The separators, dots and NUL in percent-encoding: nothing here decodes them, but what is behind us might.
_ENCODED: Final = re.compile("%(2e|2f|5c|00)", re.IGNORECASE)
_UNFIT: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\\\\]")


class NotePath(NamedTuple):
    """A path that was checked."""

    given: str
    """For answers."""
    parts: tuple[str, ...]
    """The names below /memories; none for /memories itself."""

    @property
    def name(self) -> str:
        """The last of them; there must be one."""
        return self.parts[-1]

    @property
    def parent(self) -> tuple[str, ...]:
        """All but the last of them."""
        return self.parts[:-1]


def note_path(given: str) -> NotePath:
    """Check a path; one slash at its end is no harm.

    Raises:
        BadNotePath: it leads out of /memories, or has a name that no note may have.
    """
    if given != ROOT and not given.startswith(f"{ROOT}/"):
        raise BadNotePath(f"Error: Path must start with {ROOT}, got: {shown(given)}")
    if _UNFIT.search(given) or _ENCODED.search(given):
        raise _refused(given, "backslashes, control characters, encoded dots and slashes, and lone surrogates")
    below = given.removeprefix(ROOT).removeprefix("/").removesuffix("/")
    parts = tuple(below.split("/")) if below else ()
    if any(part in (".", "..") for part in parts):
        raise BadNotePath(f"Error: Path {shown(given)} would escape {ROOT} directory")
    if given.endswith("//") or "" in parts:
        raise _refused(given, "empty names")
    if any(len(part.encode()) > NAME_BYTES_MAX or part.startswith(TEMPORARY) for part in parts):
        raise _refused(given, f"names over {NAME_BYTES_MAX} bytes or that begin with {TEMPORARY}")
    if len(parts) > DEPTH_MAX:
        raise _refused(given, f"more than {DEPTH_MAX} names")
    return NotePath(given, parts)


def new_note_path(given: str) -> NotePath:
    """As `note_path`, of what is to be made there.

    Raises:
        BadNotePath: see there; or the last name is too long to be given.
    """
    path = note_path(given)
    if any(len(part.encode()) > NEW_NAME_BYTES_MAX for part in path.parts):
        raise _refused(given, f"names over {NEW_NAME_BYTES_MAX} bytes for what is made")
    return path


def shown(text: str) -> str:
    """A caller's text that may be anything, for a message: its beginning, on one line, in valid Unicode."""
    return _UNFIT.sub("\ufffd", text[:_SHOWN_CHARS])


def _refused(given: str, what: str) -> BadNotePath:
    return BadNotePath(f"Error: Path {shown(given)} is not allowed: a path has no {what}.")
