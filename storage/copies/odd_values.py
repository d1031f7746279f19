"""Values that a table may hold and JSON cannot say plainly, and instants to the microsecond."""

import base64
import binascii
import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from storage.errors import InvalidRequest
from storage.times import SQLValue, TimeForm, instant

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_FIRST_US = (datetime.min.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_LAST_US = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND
_INTEGERS = 2**63  # SQLite's integers have 64 bits, one of them for the sign
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True, slots=True)
class RawText:
    """Text whose bytes are no valid UTF-8, such as a lone surrogate's; any process with the C API can write it."""

    utf8: bytes


@dataclass(frozen=True, slots=True)
class Instant:
    """An instant of the calendar, to be written in the form that its table uses."""

    us: int
    """Microseconds since 1970 UTC."""


Value = SQLValue | RawText | Instant
"""What a row of any table holds in a column, or is to hold."""


def text_of(utf8: bytes) -> str | RawText:
    """The text that these bytes are."""
    try:
        return utf8.decode("utf-8")
    except UnicodeDecodeError:
        return RawText(utf8)


def to_json(value: Value) -> Any:
    """A stored value as JSON: itself where JSON can hold it, else an object that says what it is."""
    match value:
        case bytes():
            return {"base64": base64.b64encode(value).decode("ascii")}
        case RawText():
            return {"text_base64": base64.b64encode(value.utf8).decode("ascii")}
        case float() if not math.isfinite(value):
            return {"real": str(value)}
    return value


def from_json(name: str, given: Any) -> Value:
    """The value that `to_json` gave this for.

    Raises:
        InvalidRequest: it is none; the text names the field.
    """
    match given:
        case None:
            return None
        case bool():
            pass
        case str():
            return _encodable(name, given)
        case int() if -_INTEGERS <= given < _INTEGERS:
            return given
        case float() if math.isfinite(given):
            return given
        case {"base64": str(text), **rest} if not rest:
            return _bytes(name, text)
        case {"text_base64": str(text), **rest} if not rest:
            return text_of(_bytes(name, text))
        case {"real": "inf" | "-inf" as text, **rest} if not rest:
            return _INFINITIES[text]
    raise InvalidRequest(f"{name}: is no value that a column can hold.")


def _encodable(name: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{name}: holds a lone surrogate, which is no text.") from error
    return text


def _bytes(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{name}: is no base64.") from error


# --- instants ---


def micros_of(value: Value) -> int | None:
    """Microseconds since 1970 of whatever a column holds; None where that is no instant of the calendar.

    Rounded exactly, so that the nearest float of these microseconds has these microseconds again.
    """
    if isinstance(value, Instant):
        return value.us
    at_s = None if isinstance(value, bytes | RawText) else instant(value)
    if at_s is None:
        return None
    numerator, denominator = at_s.as_integer_ratio()
    at_us = (2_000_000 * numerator + denominator) // (2 * denominator)
    return at_us if _FIRST_US <= at_us <= _LAST_US else None


def rfc3339(at_us: int) -> str:
    """An instant as lines show it, such as 2026-11-30T12:00:00.000000Z."""
    return (_EPOCH + at_us * _MICROSECOND).isoformat(timespec="microseconds").replace("+00:00", "Z")


def stored_instant(form: TimeForm, at_us: int) -> SQLValue:
    """The value that a table of this form holds for an instant: what is finer than its unit is cut off."""
    match form:
        case TimeForm.SECONDS:
            return at_us / 1_000_000
        case TimeForm.WHOLE_SECONDS:
            return at_us // 1_000_000
        case TimeForm.MILLIS:
            return at_us // 1_000
        case TimeForm.ISO:
            text = rfc3339(at_us)
            return text if at_us % 1_000 else text.removesuffix("000Z") + "Z"
