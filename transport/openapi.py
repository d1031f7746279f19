"""The contract: OpenAPI 3.1, a loop over the registry of operations."""

from functools import cache
from importlib.metadata import version
from typing import Any

from transport.operations import OPERATIONS, Operation
from transport.rejections import RENDERINGS

_ERROR = {
    "type": "object",
    "required": ["ok", "error"],
    "properties": {
        "ok": {"const": False},
        "error": {
            "type": "object",
            "required": ["code", "detail", "hint"],
            "properties": {
                "code": {"type": "string", "enum": sorted(RENDERINGS)},
                "detail": {"type": "string"},
                "hint": {"type": "string"},
                "retry_after_s": {"type": "integer"},
            },
        },
    },
}


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
        "info": {"title": "solos-memory", "version": version("solos-memory")},
        "paths": paths,
        "components": {"schemas": {"Error": _ERROR}},
    }


def _described(operation: Operation, method: str) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name if method == operation.methods[0] else f"{operation.name}_{method.lower()}",
        "summary": operation.summary,
        "responses": {
            str(operation.status): {
                "description": "The answer.",
                "content": {"application/json": {"schema": operation.output_schema}},
            },
            "default": {
                "description": "A refusal or a failure.",
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            },
        },
    }
    if method == "POST":
        described["requestBody"] = {"content": {"application/json": {"schema": operation.input_schema}}}
    else:
        described["parameters"] = _parameters(operation)
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    schema = operation.input_schema
    return [
        {
            "name": name,
            "in": "path" if f"<{name}>" in operation.path else "query",
            "required": name in schema.get("required", []),
            "description": field.get("description", ""),
            "schema": {key: value for key, value in field.items() if key != "description"},
        }
        for name, field in schema["properties"].items()
    ]
