"""The contract: OpenAPI 3.1, a loop over the registry of operations."""

from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from actors.messages import FileMessage, FileReadMessage
from transport.operations import OPERATIONS, Operation
from transport.page import is_page
from transport.rejections import RENDERINGS

_ABOUT = """Memory of a fleet of agents. Every refusal and failure is JSON with a stable `code` and the next step.

The schemas say what to send. Beyond them these are taken, since models send them: null and "" for a field that is left
out; a number or a boolean as text; true and false as 1 and 0; a list as its JSON in a text, or as "a,b"; an object as
its JSON in a text. In a query a list is its name several times. The header X-Agent-Id names the caller where `agent`
is left out, and Idempotency-Key the request id."""

_DETAIL = {"type": "string", "description": "One sentence; it begins with the field's name where one breaks a rule."}
_HINT = {"type": "string", "description": "The next step."}
_RETRY = {"type": "integer", "description": "Seconds to wait; the header Retry-After says the same."}

_ALWAYS = frozenset(
    (
        "invalid_request",
        "forbidden",
        "foreign_origin",
        "too_large",
        "wrong_host",
        "internal",
        "overloaded",
        "storage_busy",
        "storage_unavailable",
        "storage_damaged",
        "not_ready",
        "shutting_down",
        "deadline_exceeded",
    )
)
_NOT_FOUND = frozenset(
    ("get_memory", "get_short", "forget_short", "swarm_notes", "swarm_edit_notes", "swarm_archive", "swarm_verify")
)


@cache
def openapi() -> dict[str, Any]:
    """The whole document."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        for method in operation.methods:
            path = operation.path.replace("<", "{").replace(">", "}")
            paths.setdefault(path, {})[method.lower()] = _described(operation, method)
    return {
        "openapi": "3.1.0",
        "info": {"title": "solos-memory", "version": version("solos-memory"), "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": _records(), "responses": _refusals()},
    }


def codes_of(operation: Operation, method: str) -> frozenset[str]:
    """Every code that an operation can refuse or fail with over REST."""
    beside = {
        "not_found": operation.name in _NOT_FOUND or "<" in operation.path,
        "unknown_agent": "agent" in operation.fields,
        "unsupported_media_type": method == "POST",
        "conflict": operation.writes or operation.name == "swarm_verify",
        "storage_full": operation.writes,
        "outcome_unknown": operation.writes,
        "file_failed": issubclass(operation.message, FileMessage | FileReadMessage),
    }
    return _ALWAYS | {code for code, possible in beside.items() if possible}


def _described(operation: Operation, method: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name if method == operation.methods[0] else f"{operation.name}_{method.lower()}",
        "summary": operation.summary,
        "responses": _responses(operation, method),
    }
    in_path, rest = _split(operation)
    parameters = [_parameter(operation, name, "path") for name in in_path]
    if method == "POST":
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": rest}}}
        if operation.name == "purge":
            described["requestBody"]["required"] = False
    else:
        parameters += [_parameter(operation, name, "query") for name in rest["properties"]]
    return described | ({"parameters": parameters} if parameters else {})


def _split(operation: Operation) -> tuple[list[str], dict[str, Any]]:
    """The fields that the path holds, and the schema of the others."""
    schema = dict(operation.input_schema)
    in_path = [name for name in schema["properties"] if f"<{name}>" in operation.path]
    schema["properties"] = {name: field for name, field in schema["properties"].items() if name not in in_path}
    if required := [name for name in schema.pop("required", []) if name not in in_path]:
        schema["required"] = required
    return in_path, schema


def _parameter(operation: Operation, name: str, where: str) -> dict[str, Any]:
    field = operation.input_schema["properties"][name]
    return {
        "name": name,
        "in": where,
        "required": name in operation.input_schema.get("required", []),
        "description": field.get("description", ""),
        "schema": {key: value for key, value in field.items() if key != "description"},
    }


def _responses(operation: Operation, method: str) -> dict[str, Any]:
    record = {"$ref": f"#/components/schemas/{operation.output_schema['title']}"}
    answer = {"allOf": [record], "properties": {"ok": {"const": True}}, "required": ["ok"]}
    answered = {"description": "The answer.", "content": {"application/json": {"schema": answer}}}
    statuses = sorted({RENDERINGS[code].status for code in codes_of(operation, method)})
    refusal = "PageRefusal" if is_page(operation.path) else "Refusal"
    refused = {str(status): {"$ref": f"#/components/responses/{refusal}{status}"} for status in statuses}
    return {str(operation.status): answered, **refused}


def _records() -> dict[str, Any]:
    """Every record that an answer holds, by its name."""
    records: dict[str, Any] = {}
    for operation in OPERATIONS:
        schema = operation.output_schema
        for name, record in {**schema.get("$defs", {}), schema["title"]: schema}.items():
            whole = _whole(record)
            assert records.setdefault(name, whole) == whole, f"two records are called {name}"
    return records


def _whole(record: dict[str, Any]) -> dict[str, Any]:
    """The schema of a record as it is sent: every field is there, also one that holds its default."""
    schema: dict[str, Any] = _moved({name: part for name, part in record.items() if name != "$defs"})
    return {**schema, "required": [*schema["properties"]]}


def _moved(part: Any) -> Any:
    """The same with references to where this document keeps its records."""
    if isinstance(part, dict):
        return {name: _moved(value) for name, value in part.items()}
    if isinstance(part, list):
        return [_moved(value) for value in part]
    return part.replace("#/$defs/", "#/components/schemas/") if isinstance(part, str) else part


def _refusals() -> dict[str, Any]:
    """The responses by status; the operator's page has its own, whose `error` is a text."""
    responses: dict[str, Any] = {}
    for status in sorted({rendering.status for rendering in RENDERINGS.values()}):
        codes = sorted(code for code, rendering in RENDERINGS.items() if rendering.status == status)
        code = {"type": "string", "enum": codes}
        error = _object(("code", "detail", "hint"), code=code, detail=_DETAIL, hint=_HINT, retry_after_s=_RETRY)
        whole = _object(("ok", "error"), ok={"const": False}, error=error)
        page = _object(
            ("ok", "error", "code", "hint"),
            ok={"const": False},
            error=_DETAIL,
            code=code,
            hint=_HINT,
            retry_after_s=_RETRY,
        )
        for name, schema in (("Refusal", whole), ("PageRefusal", page)):
            responses[f"{name}{status}"] = {
                "description": HTTPStatus(status).phrase,
                "content": {"application/json": {"schema": schema}},
            }
    return responses


def _object(required: tuple[str, ...], **fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": [*required], "additionalProperties": False, "properties": fields}
