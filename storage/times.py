"""Instants: how the legacy tables store them, and how callers write and read them.

Inside the program an instant is a float of seconds since 1970 UTC. A table may hold seconds, milliseconds,
microseconds or ISO text, even mixed (all seen in fleets' databases), so reading looks at the value and writing
follows the newest row.
"""

import enum
import math
import re
from datetime import UTC, datetime, timedelta

SQLValue = int | float | str | bytes | None
"""What SQLite can hold in one column."""

_MILLIS_FROM = 1e11  # as seconds this is the year 5138; as milliseconds it is 1973
_MICROS_FROM = 1e14
_NANOS_FROM = 1e17
_RELATIVE = re.compile(r"-(\d{1,6})([dhm])")
_UNIT_S = {"d": 86_400, "h": 3_600, "m": 60}
_CALENDAR_S = (-62_135_596_800, 253_402_300_799)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


class TimeForm(enum.Enum):
    """How a column stores an instant."""

    SECONDS = "seconds"
    WHOLE_SECONDS = "whole seconds"
    MILLIS = "milliseconds"
    ISO = "ISO text"

    def stored(self, at_s: float) -> SQLValue:
        """The value to write for an instant."""
        match self:
            case TimeForm.SECONDS:
                return at_s
            case TimeForm.WHOLE_SECONDS:
                return int(at_s)
            case TimeForm.MILLIS:
                return int(at_s * 1000)
            case TimeForm.ISO:
                return iso(at_s)


def form_of(value: SQLValue, declared: str) -> TimeForm:
    """Guess a column's form from its newest value, or from its declared type where it has none."""
    if isinstance(value, int | float):
        if abs(value) >= _MILLIS_FROM:
            return TimeForm.MILLIS
        return TimeForm.WHOLE_SECONDS if isinstance(value, int) else TimeForm.SECONDS
    if isinstance(value, str):
        return TimeForm.ISO
    kind = declared.upper()
    if "INT" in kind:
        return TimeForm.MILLIS
    return TimeForm.ISO if any(word in kind for word in ("TEXT", "CHAR", "DATE", "TIME")) else TimeForm.SECONDS


def instant(value: SQLValue) -> float | None:
    """Seconds since 1970 of whatever a legacy row holds; None where it is no instant."""
    if isinstance(value, str):
        return _instant_of_text(value.strip())
    if isinstance(value, int | float) and math.isfinite(value):
        size = abs(value)
        for bound, scale in ((_NANOS_FROM, 1e9), (_MICROS_FROM, 1e6), (_MILLIS_FROM, 1e3)):
            if size >= bound:
                return value / scale
        return float(value)
    return None


def _instant_of_text(text: str) -> float | None:
    try:
        return instant(float(text))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def iso(at_s: float) -> str:
    """ISO 8601 in UTC with milliseconds, such as 2026-11-30T12:00:00.000Z."""
    at = datetime.fromtimestamp(0, UTC) + timedelta(seconds=at_s)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def iso_within(at_s: float) -> str:
    """As `iso`; an instant beyond the calendar's years 1 to 9999 as its nearest end."""
    first, last = _CALENDAR_S
    return iso(min(max(at_s, first), last))


def iso_of_file(mtime_ns: int) -> str:
    """When a file was written, as `iso_within`."""
    return iso_within(mtime_ns // 1_000_000 / 1000)


def iso_or_none(value: SQLValue) -> str | None:
    """The ISO form of a stored instant, None where there is none or it lies outside the calendar."""
    at_s = instant(value)
    try:
        return None if at_s is None else iso(at_s)
    except OverflowError:
        return None


def parse_bound(text: str, now_s: float, *, end_of_day: bool) -> float | None:
    """Seconds of a `since` or `until`: an ISO date or instant (UTC unless it has an offset), or -3d, -12h, -30m.

    A bare date is its first instant, or its last one where `end_of_day`. None where the text is none of these.
    """
    if relative := _RELATIVE.fullmatch(text):
        return now_s - int(relative[1]) * _UNIT_S[relative[2]]
    try:
        at = datetime.fromisoformat(text)
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        if end_of_day and _DATE.fullmatch(text):
            at += timedelta(days=1, microseconds=-1)
        return at.timestamp()
    except (ValueError, OverflowError):
        return None
