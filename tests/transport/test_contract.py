"""The contract: OpenAPI, the tools, the commands and the messages are the same thing said four times."""

import json
import re
from typing import Any

import click
import pytest
from click.testing import CliRunner
from pydantic import TypeAdapter

from storage import limits
from tests.support import Service
from transport.cli import main
from transport.openapi import codes_of
from transport.operations import OPERATIONS, Operation
from transport.page import is_page
from transport.rejections import RENDERINGS

PLAIN: dict[str, dict[str, Any]] = {
    "recall": {"agent": "sol", "q": "contract"},
    "briefing": {"agent": "sol", "q": "contract"},
    "get_memory": {"agent": "sol", "id": "long:1"},
    "remember_short": {"agent": "sol", "key": "contract", "value": "v"},
    "get_short": {"agent": "sol", "key": "contract"},
    "forget_short": {"agent": "sol", "key": "contract"},
    "remember_long": {"agent": "sol", "fact": "contract"},
    "remember_episodic": {"agent": "sol", "summary": "contract"},
    "swarm_read": {"agent": "sol", "kind": "mission", "mission": "m-1"},
    "swarm_write": {"agent": "sol", "kind": "mission", "mission": "m-1", "summary": "contract"},
    "swarm_search": {"agent": "sol", "query": "contract"},
    "swarm_resume": {"agent": "sol"},
    "swarm_notes": {"agent": "sol", "path": "/memories"},
    "swarm_edit_notes": {"agent": "sol", "command": "create", "path": "/memories/contract.md", "file_text": "kept"},
    "swarm_files": {"kind": "profile", "workerId": "sol"},
    "swarm_record": {"workerId": "sol", "scaffold": True},
    "swarm_find": {"workerId": "sol", "query": "contract"},
    "swarm_hook": {"hook": "dispatch", "workerId": "sol", "missionId": "m-1"},
    "swarm_load": {"workerId": "sol"},
    "swarm_renew": {"workerId": "sol", "step": "request", "missionId": "m-1"},
    "swarm_promote": {"workerId": "sol", "lesson": "A contract is kept.", "missionId": "m-1"},
    "swarm_archive": {"missionId": "m-2"},
    "swarm_verify": {"missionId": "m-2"},
    "swarm_recommend": {"task": "contract"},
    "stats": {},
    "purge": {},
}
"""Arguments with which each operation succeeds, called in the registry's order."""


def by_name(operation: Operation) -> str:
    """The name of a case."""
    return operation.name


def flag_of(name: str) -> str:
    """A field's name as its flag has it."""
    return re.sub("([A-Z])", r"-\1", name).lower().replace("_", "-")


def command_of(operation: Operation) -> tuple[click.Command, list[str]]:
    """An operation's command, and how it is typed: those of the swarm's files are a group."""
    if operation.name.startswith("swarm_"):
        name = flag_of(operation.name.removeprefix("swarm_"))
        group = main.commands["swarm"]
        assert isinstance(group, click.Group)
        return group.commands[name], ["swarm", name]
    name = flag_of(operation.name)
    return main.commands[name], [name]


def path_of(operation: Operation) -> str:
    """Its path as OpenAPI writes it."""
    return operation.path.replace("<", "{").replace(">", "}")


@pytest.fixture(scope="module")
def contract(shared_service: Service) -> dict[str, Any]:
    """What /openapi.json says."""
    status, body = shared_service.rest("GET", "/openapi.json")
    assert status == 200
    return body


@pytest.fixture(scope="module")
def tools(shared_service: Service) -> dict[str, dict[str, Any]]:
    """What tools/list says, by name."""
    listed = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"]["tools"]
    return {tool["name"]: tool for tool in listed}


def without_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic gives; a field may be called `title` all the same."""
    if isinstance(schema, list):
        return [without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_titles(part) for name, part in schema.items() if name != "title" or not isinstance(part, str)}


def without_lengths(schema: Any) -> Any:
    """A schema without the bounds of texts."""
    if isinstance(schema, list):
        return [without_lengths(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: without_lengths(part) for name, part in schema.items() if name not in ("minLength", "maxLength")}


def without_null(field: dict[str, Any]) -> dict[str, Any]:
    """What a field may be, if it is not null."""
    if {"type": "null"} not in field.get("anyOf", ()):
        return field
    (kind, null) = field["anyOf"]
    assert null == {"type": "null"}
    assert field["default"] is None
    assert kind.pop("minLength", 1) == 1
    return {**kind, "description": field["description"]}


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_input_schema_is_the_messages(operation: Operation) -> None:
    """Nothing is added to the message's own schema; only `agent` is not required, since a header may name it, and
    null and the empty text, which count as left out, are not shown."""
    schema = without_titles(TypeAdapter(operation.message).json_schema())
    schema["properties"] = {name: without_null(field) for name, field in schema["properties"].items()}
    del schema["description"]
    required = [name for name in schema.pop("required", []) if name != "agent"]
    assert operation.input_schema.get("required", []) == required
    assert {name: part for name, part in operation.input_schema.items() if name != "required"} == schema
    assert tuple(schema["properties"]) == operation.fields
    assert schema["additionalProperties"] is False
    assert all(field["description"] for field in schema["properties"].values())


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_openapi_request_is_the_message(contract: dict[str, Any], operation: Operation) -> None:
    """A body's schema is the input schema; a query's parameters are its fields, one by one."""
    for method in operation.methods:
        described = contract["paths"][path_of(operation)][method.lower()]
        parameters = described.get("parameters", [])
        in_path = [parameter["name"] for parameter in parameters if parameter["in"] == "path"]
        assert in_path == re.findall(r"<(\w+)>", operation.path)
        fields = {
            parameter["name"]: {**parameter["schema"], "description": parameter["description"]}
            for parameter in parameters
        }
        required = [parameter["name"] for parameter in parameters if parameter["required"]]
        assert ("requestBody" in described) is (method == "POST")
        if method == "POST":
            assert set(fields) == set(in_path)
            body = described["requestBody"]["content"]["application/json"]["schema"]
            assert body["additionalProperties"] is False
            fields |= body["properties"]
            required += body.get("required", [])
        assert fields == operation.input_schema["properties"]
        assert required == operation.input_schema.get("required", [])


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_tool_input_is_the_message(tools: dict[str, Any], operation: Operation) -> None:
    """A tool's input schema and description are the message's, without lengths; what is no tool is not listed."""
    assert (operation.name in tools) == operation.tool
    if operation.tool:
        assert tools[operation.name]["inputSchema"] == without_lengths(operation.input_schema)
        assert tools[operation.name]["description"] == operation.summary
        assert tools[operation.name]["annotations"]["readOnlyHint"] is not operation.writes


def test_nothing_is_offered_beside_the_registry(contract: dict[str, Any], tools: dict[str, Any]) -> None:
    """OpenAPI and tools/list hold the registry's operations and no others."""
    offered = {(path, method.upper()) for path, methods in contract["paths"].items() for method in methods}
    assert offered == {(path_of(operation), method) for operation in OPERATIONS for method in operation.methods}
    assert list(tools) == [operation.name for operation in OPERATIONS if operation.tool]
    ids = [described["operationId"] for methods in contract["paths"].values() for described in methods.values()]
    assert len(set(ids)) == len(ids)


def resolved(contract: dict[str, Any], part: Any) -> Any:
    """A part of the contract with each reference in it followed; a KeyError where one leads nowhere."""
    if isinstance(part, list):
        return [resolved(contract, one) for one in part]
    if not isinstance(part, dict):
        return part
    if "$ref" in part:
        target: Any = contract
        for step in part["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return resolved(contract, target)
    return {name: resolved(contract, one) for name, one in part.items()}


def test_every_reference_of_the_contract_leads_somewhere(contract: dict[str, Any]) -> None:
    """Once they pointed into the schema that they stood in, where no reader of OpenAPI looks for them."""
    assert "$ref" not in json.dumps(resolved(contract, contract["paths"]))


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_openapi_reply_is_the_records(contract: dict[str, Any], operation: Operation) -> None:
    """The answer's schema is the reply's with every field, and `ok`; each refusal stands under its status."""
    for method in operation.methods:
        responses = resolved(contract, contract["paths"][path_of(operation)][method.lower()]["responses"])
        answer = responses.pop(str(operation.status))["content"]["application/json"]["schema"]
        (record,) = answer["allOf"]
        assert set(record["properties"]) == set(record["required"]) == set(operation.output_schema["properties"])
        assert (answer["properties"], answer["required"]) == ({"ok": {"const": True}}, ["ok"])
        codes = codes_of(operation, method)
        assert set(responses) == {str(RENDERINGS[code].status) for code in codes}
        for status, response in responses.items():
            refusal = response["content"]["application/json"]["schema"]["properties"]
            named = refusal["code"] if is_page(operation.path) else refusal["error"]["properties"]["code"]
            assert set(named["enum"]) == {code for code, shown in RENDERINGS.items() if str(shown.status) == status}


def test_every_code_stands_in_the_contract() -> None:
    """But of the one that a documented method never meets."""
    named = set().union(*(codes_of(operation, method) for operation in OPERATIONS for method in operation.methods))
    assert named == set(RENDERINGS) - {"method_not_allowed"}


def test_a_field_of_the_path_is_named_there_alone(shared_service: Service) -> None:
    """Said twice, one of the two would be dropped in silence."""
    body = {"hook": "complete", "workerId": "sol", "missionId": "m-9"}
    status, answer = shared_service.rest("POST", "/api/swarm-memory/hooks/dispatch", body)
    assert (status, answer["error"]) == (400, "hook: is in the path; leave it out elsewhere.")
    status, answer = shared_service.rest("GET", "/v1/memory/long:1", agent="sol", id="long:2")
    assert (status, answer["error"]["detail"]) == (400, "id: is in the path; leave it out elsewhere.")


def make_ready(service: Service, name: str) -> None:
    """What an operation acts on is there."""
    match name:
        case "get_memory":
            service.long("sol", "contract")
        case "forget_short":
            assert service.rest("POST", "/v1/short", PLAIN["remember_short"])[0] == 201
        case "swarm_archive" | "swarm_verify":
            complete = {"workerId": "sol", "missionId": "m-2", "requestId": "completed"}
            assert service.rest("POST", "/api/swarm-memory/hooks/complete", complete)[0] == 200
            assert service.rest("POST", "/api/swarm-memory/archive", PLAIN["swarm_archive"])[0] == 200


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_every_operation_is_reached_and_answers_its_schema(shared_service: Service, operation: Operation) -> None:
    """Each route answers with its status, each tool with ok; the fields are those that the contract names."""
    arguments = PLAIN[operation.name]
    make_ready(shared_service, operation.name)
    described = set(operation.output_schema["properties"]) | {"ok"}
    for method in operation.methods:
        path = re.sub(r"<(\w+)>", lambda found: str(arguments[found[1]]), operation.path)
        sent = {name: value for name, value in arguments.items() if f"<{name}>" not in operation.path}
        status, body = (
            shared_service.rest(method, path, sent) if method == "POST" else shared_service.rest(method, path, **sent)
        )
        assert status == operation.status, body
        assert set(body) == described
    if operation.tool:
        make_ready(shared_service, operation.name)
        error, body = shared_service.mcp(operation.name, arguments)
        assert (error, body["ok"]) == (False, True)
        assert set(body) <= described


@pytest.mark.parametrize("operation", OPERATIONS, ids=by_name)
def test_every_operation_is_a_command_with_every_field(operation: Operation) -> None:
    """Each operation is a command; each field an option, or a place on the line; its help is the field's own."""
    command, typed = command_of(operation)
    names = {parameter.name for parameter in command.params}
    own = {"report"} if operation.name == "purge" else set()
    assert names == {*operation.fields, "url", "offline", "db", *own}
    shown = CliRunner().invoke(main, [*typed, "--help"], terminal_width=200)
    assert shown.exit_code == 0
    assert operation.summary in " ".join(shown.output.split())
    for name in set(operation.fields) - set(operation.positional):
        assert "--" + flag_of(name) in shown.output


def test_command_prints_the_contract(contract: dict[str, Any]) -> None:
    """`solos-memory openapi` prints what /openapi.json serves."""
    printed = CliRunner().invoke(main, ["openapi"])
    assert printed.exit_code == 0
    assert json.loads(printed.output) == contract


def test_bounds_of_the_schema_are_those_of_the_table(contract: dict[str, Any]) -> None:
    """The contract's numbers are the table's of limits: k is 1 to 50, q up to 32,768 characters."""
    body = contract["paths"]["/v1/recall"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    fields = body["properties"]
    assert (fields["k"]["minimum"], fields["k"]["maximum"], fields["k"]["default"]) == (1, limits.K_MAX, 5)
    assert (limits.K_MAX, limits.QUERY_CHARS_MAX) == (50, 32_768)
    assert fields["q"]["maxLength"] == limits.QUERY_CHARS_MAX
