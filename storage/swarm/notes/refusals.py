"""What is refused of notes. Each text is the one that the documentation of Claude's memory tool gives for the case."""

from storage.errors import Conflict, InvalidRequest, NotFound


class BadNotePath(InvalidRequest):
    """A path that names nothing below /memories, or that nobody may name."""

    hint = "Name /memories or what is below it: names joined by single slashes, none of them . or .., at most 8 deep."


class BadNoteLine(InvalidRequest):
    """A line or a range of lines that the note has not."""

    hint = "View the note and take the numbers of its lines."


class NoNote(NotFound):
    """There is no such note, or it is a folder where a file is asked for."""

    hint = "View /memories to see what there is."


class NoteConflict(Conflict):
    """The note is not as the command takes it to be; nothing was changed."""

    hint = "View the path, then send a command that fits what is there."


def no_note(path: str) -> NoNote:
    """What view and str_replace find nothing at; the latter with an "Error: " in front."""
    return NoNote(f"The path {path} does not exist. Please provide a valid path.")


def error_no_note(path: str) -> NoNote:
    """What insert, delete and rename find nothing at."""
    return NoNote(f"Error: The path {path} does not exist")
