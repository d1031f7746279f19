"""One row as one line of JSON: what an export writes and an import reads.

A line names its tier, its author, its instants and the fields that the wire has for them; no row id, because ids are
of one database. It is canonical: rows that say the same give the same bytes, whichever types and time form their
table uses, and a row written from a line gives that line again. So lines can be compared, sorted and counted.
"""

import json
import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from storage.copies.odd_values import Instant, Value, from_json, micros_of, rfc3339, to_json
from storage.errors import InvalidRequest
from storage.records import Tier
from storage.rows import stored_tags

Kind = Literal["text", "number", "tags", "time"]
Values = dict[str, Value]
"""What a row holds, by role."""

_NUMBER = re.compile(r"[ \t\n\v\f\r]*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[ \t\n\v\f\r]*")
_EXACT_BELOW = 2.0**53


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a line."""

    name: str
    """As callers know it."""
    role: str
    """As the schema knows it."""
    kind: Kind = "text"
    always: bool = False
    """Written even where it is null; a line without it is refused."""


_HEAD = (Field("agent", "agent", always=True), Field("created_at", "created_at", "time", always=True))
FIELDS: dict[Tier, tuple[Field, ...]] = {
    "short": (
        *_HEAD,
        Field("expires_at", "expires_at", "time"),
        Field("key", "topic", always=True),
        Field("value", "text", always=True),
        Field("tags", "tags", "tags"),
    ),
    "long": (
        *_HEAD,
        Field("topic", "topic"),
        Field("fact", "text", always=True),
        Field("source", "source"),
        Field("confidence", "confidence", "number"),
        Field("tags", "tags", "tags"),
        Field("session", "session"),
    ),
    "episodic": (
        *_HEAD,
        Field("event_type", "topic"),
        Field("summary", "text", always=True),
        Field("details", "details"),
        Field("outcome", "outcome"),
        Field("duration_s", "duration_s", "number"),
        Field("session", "session"),
    ),
    "durable": (*_HEAD, Field("key", "topic", always=True), Field("value", "text", always=True)),
}
"""The fields of each tier's lines, in their order."""


def line_of(tier: Tier, values: Values) -> str:
    """The canonical line of a row, without a line end."""
    shown: dict[str, Any] = {"tier": tier}
    for field in FIELDS[tier]:
        value = _canonical(field.kind, values.get(field.role))
        if value is not None or field.always:
            shown[field.name] = value
    return json.dumps(shown, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def differing_field(tier: Tier, values: Values, others: Values) -> str | None:
    """The first field in which two rows differ as lines; None where their lines are the same."""
    for field in FIELDS[tier]:
        one, other = (_canonical(field.kind, given.get(field.role)) for given in (values, others))
        if (one, type(one)) != (other, type(other)):
            return field.name
    return None


def _canonical(kind: Kind, value: Value) -> Any:
    """A value as a line shows it, whatever type its column gave it."""
    match kind:
        case "text":
            return to_json(str(value) if isinstance(value, int | float) else value)
        case "number":
            return to_json(_number(value))
        case "tags":
            return _tags(str(value) if isinstance(value, int | float) else value)
        case "time":
            at_us = micros_of(value)
            if at_us is not None:
                return rfc3339(at_us)
            return None if value is None else {"as_stored": to_json(value)}


def _number(value: Value) -> Value:
    """A number however it is stored: 1, 1.0 and the text "1" are one. What is no number stays what it is."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < _EXACT_BELOW:
        return int(value)
    return value


def _tags(value: Value) -> Any:
    """A list where the stored text is the one that we write for it, else the text as it is."""
    if isinstance(value, str):
        try:
            tags = json.loads(value)
        except (ValueError, RecursionError):
            return value
        if isinstance(tags, list) and all(isinstance(tag, str) for tag in tags) and stored_tags(tags) == value:
            return tags
    return to_json(value)


# --- reading a line ---


def parse_line(line: bytes) -> tuple[Tier, Values]:
    """The tier of a line, and what its row is to hold.

    Raises:
        InvalidRequest: it is no line of ours; the text names the field and the rule, never the value.
    """
    given = _object(line)
    tier = given.pop("tier", None)
    if tier not in get_args(Tier):
        raise InvalidRequest(f"tier: must be one of {', '.join(get_args(Tier))}.")
    values: Values = {}
    for field in FIELDS[tier]:
        if field.always and field.name not in given:
            raise InvalidRequest(f"{field.name}: is missing; null stands for a row that has none.")
        values[field.role] = _value(field, given.pop(field.name, None))
    if given:
        raise InvalidRequest(f"{next(iter(given))[:80]!r}: a line of tier {tier} has no such field.")
    return tier, values


def _object(line: bytes) -> dict[str, Any]:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise InvalidRequest("A field is there twice.")
        return found

    def refuse(literal: str) -> None:
        raise InvalidRequest(f"{literal} is no JSON.")

    try:
        given = json.loads(line.rstrip().decode("utf-8"), object_pairs_hook=without_repeats, parse_constant=refuse)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"The line is no UTF-8 (byte {error.start}).") from error
    except (ValueError, RecursionError) as error:
        at = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise InvalidRequest(f"The line is no JSON{at}.") from error
    if not isinstance(given, dict):
        raise InvalidRequest("The line is no JSON object.")
    return given


def _value(field: Field, given: Any) -> Value:
    match field.kind:
        case "time":
            return _time(field.name, given)
        case "tags" if isinstance(given, list):
            if not all(isinstance(tag, str) for tag in given):
                raise InvalidRequest(f"{field.name}: a list of tags holds texts only.")
            return from_json(field.name, stored_tags(given))
        case "number":
            return from_json(field.name, given)
    value = from_json(field.name, given)
    if isinstance(value, int | float) and not isinstance(given, dict):
        raise InvalidRequest(f"{field.name}: must be a text.")
    return value


def _time(name: str, given: Any) -> Value:
    if isinstance(given, dict) and set(given) == {"as_stored"}:
        return from_json(name, given["as_stored"])
    value = from_json(name, given)
    if value is None:
        return None
    at_us = micros_of(value)
    if at_us is None:
        raise InvalidRequest(f"{name}: is no instant (ISO 8601, or seconds since 1970).")
    return Instant(at_us)
