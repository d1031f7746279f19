"""What schemathesis is told beside the contract; it loads this module by its variable SCHEMATHESIS_HOOKS.

Made-up names name nothing that is there, so most of what is valid would end at "unknown agent": three in four of the
names in valid requests are exchanged for names that exist. And the contract says in words that some values are taken
which its schemas do not name (`info.description`): `as_meant` does by those words what the service does, and only a
request that is wrong as it was meant has to be refused.
"""

import json
import re
import zlib
from typing import Any
from urllib.parse import parse_qs, urlsplit

import schemathesis
from jsonschema import Draft202012Validator
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi.checks import negative_data_rejection

KNOWN = {
    "agent": ("sol", "mira"),
    "workerId": ("sol", "swarm-5"),
    "worker": ("sol",),
    "missionId": ("m-1",),
    "mission": ("m-1",),
    "id": ("long:1", "short:1"),
    "key": ("known",),
    "owner": ("sol",),
    "since": ("-3d", "2026-01-01"),
    "until": ("-1h",),
    "date": ("2026-01-01",),
    "path": ("/memories/known.md",),
    "file": ("notes.md", "MEMORY.md"),
    "step": ("request", "written"),
    "command": ("create", "insert"),
}
"""Names of what the test has made, by the field that holds them."""
ARCHIVED = ("m-2",)
"""A mission that is complete, and stays so."""
_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Put known names into most valid requests, each by its own text, so that a replay puts the same."""
    if case.meta is None or not case.meta.generation.mode.is_positive:
        return
    for part in (case.path_parameters, case.query, case.body):
        if isinstance(part, dict):
            for name in part.keys() & KNOWN.keys():
                names = ARCHIVED if case.path.endswith("/archive") and name == "missionId" else KNOWN[name]
                chance = zlib.crc32(repr((name, part[name])).encode("utf-8", "surrogatepass"))
                if chance % 4:
                    part[name] = names[chance // 4 % len(names)]
    if isinstance(case.body, dict) and "scaffold" in case.body and case.body["scaffold"]:
        case.body = {"workerId": "sol", "scaffold": True}  # of the rules between its fields the schema knows nothing


@schemathesis.check
def wrong_requests_are_refused(ctx: Any, response: Any, case: Any) -> None:
    """`negative_data_rejection`, but for arguments that are right as the contract's words mean them."""
    if response.status_code >= 300 or case.meta is None or not _is_meant_well(response, case):
        negative_data_rejection(ctx, response, case)


def _is_meant_well(response: Any, case: Any) -> bool:
    """Whether what is wrong is in the query or the body, and both are right as they are meant."""
    wrong = {place for place, part in case.meta.components.items() if part.mode.is_negative}
    if not wrong <= {ParameterLocation.QUERY, ParameterLocation.BODY}:
        return False
    if case.operation.method.upper() != "POST":
        return _is_right(_query(response.request.url), _query_schema(case.operation.definition.raw["parameters"]))
    (body,) = case.operation.body
    return isinstance(case.body, dict) and _is_right(case.body, body.raw_schema)


def _is_right(arguments: dict[str, Any], schema: dict[str, Any]) -> bool:
    return Draft202012Validator(schema).is_valid(as_meant(arguments, schema))


def _query(url: str) -> dict[str, Any]:
    """The query as it was sent; a name given twice is a list."""
    given = parse_qs(urlsplit(url).query, keep_blank_values=True)
    return {name: values if len(values) > 1 else values[0] for name, values in given.items()}


def _query_schema(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """The parameters of a query as the schema of one object."""
    own = [parameter for parameter in parameters if parameter["in"] == "query"]
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {parameter["name"]: parameter["schema"] for parameter in own},
        "required": [parameter["name"] for parameter in own if parameter["required"]],
    }


@schemathesis.check
class EveryOperationIsReached:
    """Each operation has answered at least once: a refusal of everything would prove nothing."""

    def __init__(self) -> None:
        self.asked: set[str] = set()
        self.answered: set[str] = set()

    def after_response(self, ctx: Any, response: Any, case: Any) -> None:
        self.asked.add(case.operation.label)
        if response.status_code < 300:
            self.answered.add(case.operation.label)

    def after_run(self, ctx: Any) -> None:
        assert self.answered == self.asked, f"never answered: {sorted(self.asked - self.answered)}"


def as_meant(body: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """The body as the words of the contract read it."""
    return {
        name: _value_as_meant(value, schema.get("properties", {}).get(name, {}))
        for name, value in body.items()
        if value not in (None, "")
    }


def _value_as_meant(value: Any, field: dict[str, Any]) -> Any:
    match field.get("type"):
        case "integer" | "number" if isinstance(value, str) and _NUMBER.fullmatch(value):
            return float(value)
        case "boolean" if isinstance(value, str) or value in (0, 1):
            return _WORDS.get(str(int(value)) if not isinstance(value, str) else value.lower(), value)
        case "array":
            return _list_as_meant(value)
        case "object" if isinstance(value, str):
            return _json(value)
    return value


def _list_as_meant(value: Any) -> Any:
    if isinstance(value, str):
        parsed = _json(value)
        value = parsed if isinstance(parsed, list) else [part.strip() for part in value.split(",")]
    if not isinstance(value, list):
        return value
    return [item for item in value if item is not None and str(item).strip().lower() not in ("", "null")]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
