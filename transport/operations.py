"""The registry of operations: each is defined once here and offered by REST, MCP, OpenAPI and the command line.

A new parameter is a field on the message; if you edit a route for it, stop.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema

from actors.life_messages import (
    Brief,
    PageArchive,
    PagePromote,
    PageRecommend,
    PageRenew,
    PageResume,
    PageVerify,
    SwarmEditNotes,
    SwarmNotes,
    SwarmResume,
)
from actors.messages import (
    FileMessage,
    ForgetShort,
    GetMemory,
    GetShort,
    GetStatistics,
    Message,
    Purge,
    Recall,
    RememberEpisodic,
    RememberLong,
    RememberShort,
    WriteMessage,
)
from actors.stats import Statistics
from actors.swarm_messages import PageHook, PageRead, PageSearch, PageWrite, SwarmRead, SwarmSearchFiles, SwarmWrite
from storage.briefing import Briefing
from storage.errors import InvalidRequest, Rejection, TooLarge
from storage.records import Forgotten, Memory, Purged, Recalled, Remembered, ShortEntries
from storage.swarm.life.records import Archived, Promoted, Recommended, Renewed, Resume, Verified
from storage.swarm.records import NoteAnswer, SwarmFiles, SwarmResults, SwarmWritten

Method = Literal["GET", "POST", "DELETE"]
_SHOWN_CHARS = 64


class _PlainSchema(GenerateJsonSchema):
    """JSON schemas without titles: a tool list is paid for in every prompt."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One thing a caller can ask for."""

    name: str
    """Also the tool's name; with hyphens the command's."""
    message: type[Message[Any]]
    reply: type[Any]
    path: str
    methods: tuple[Method, ...]
    status: int = 200
    tool: bool = True
    """Whether MCP offers it."""
    positional: tuple[str, ...] = ()
    """The fields that the command line takes without an option's name."""

    @cached_property
    def _in(self) -> TypeAdapter[Message[Any]]:
        return TypeAdapter(self.message)

    @cached_property
    def _out(self) -> TypeAdapter[Any]:
        return TypeAdapter(self.reply)

    @property
    def summary(self) -> str:
        """The first line of the message's contract."""
        return (self.message.__doc__ or "").strip().splitlines()[0]

    @property
    def writes(self) -> bool:
        """Whether it changes anything."""
        return issubclass(self.message, WriteMessage | FileMessage)

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the arguments."""
        return tuple(self.message.__dataclass_fields__)  # type: ignore[attr-defined]

    def parse(self, arguments: dict[str, Any]) -> Message[Any]:
        """The message of these arguments. "" and null count as left out.

        Raises:
            InvalidRequest, TooLarge: names the first field that breaks a rule, and the rule.
        """
        given = {name: value for name, value in arguments.items() if value is not None and value != ""}
        try:
            return self._in.validate_python(given)
        except ValidationError as error:
            raise _refusal(error, self.input_schema) from None

    def render(self, value: Any) -> dict[str, Any]:
        """A reply as the JSON object that every transport shows."""
        return {"ok": True, **self._out.dump_python(value, mode="json")}

    @cached_property
    def input_schema(self) -> dict[str, Any]:
        """The message's JSON schema. `agent` is not required: the header X-Agent-Id may name the caller.

        That a field may be null or empty is not said: both count as left out.
        """
        schema = self._in.json_schema(schema_generator=_PlainSchema)
        schema["properties"] = {name: _without_null(field) for name, field in schema["properties"].items()}
        schema.pop("title", None)
        schema.pop("description", None)
        if required := [name for name in schema.get("required", []) if name != "agent"]:
            schema["required"] = required
        else:
            schema.pop("required", None)
        return schema

    @cached_property
    def output_schema(self) -> dict[str, Any]:
        """The reply's JSON schema."""
        return self._out.json_schema(schema_generator=_PlainSchema, mode="serialization")


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that may be left out, without saying that null and "" are ways to do so."""
    kinds = [kind for kind in field.get("anyOf", ()) if kind != {"type": "null"}]
    if len(kinds) != 1 or field.get("default", "") is not None:
        return field
    left = {name: part for name, part in (kinds[0] | field).items() if name not in ("anyOf", "default")}
    return {name: part for name, part in left.items() if (name, part) != ("minLength", 1)}


def _refusal(error: ValidationError, schema: dict[str, Any]) -> Rejection:
    """The first broken rule as a refusal. The value itself is never repeated: it may be a memory, or a secret."""
    problem = error.errors(include_url=False, include_context=True, include_input=False)[0]
    name = str(problem["loc"][0]) if problem["loc"] else "arguments"
    field = name[:_SHOWN_CHARS].encode("utf-8", "replace").decode()
    context = problem.get("ctx", {})
    match problem["type"]:
        case "missing":
            return InvalidRequest(f"{field}: is missing or empty.")
        case "unexpected_keyword_argument":
            return InvalidRequest(f"{field}: is no argument of this operation.")
        case "string_too_long":
            return TooLarge(f"{field}: is longer than {context['max_length']:,} characters.")
        case "string_unicode":
            return InvalidRequest(f"{field}: is no valid Unicode text (it holds a lone surrogate).")
        case "string_pattern_mismatch":
            return InvalidRequest(f"{field}: must look like {context['pattern']}.")
    if bounds := _bounds(schema["properties"].get(name, {})):
        return InvalidRequest(f"{field}: must be {bounds}.")
    return InvalidRequest(f"{field}: {problem['msg'].removeprefix('Value error, ')}.")


def _bounds(field: dict[str, Any]) -> str | None:
    """The rule of a number's field in words; None for any other field."""
    kinds = [kind for kind in field.get("anyOf", [field]) if kind.get("type") in ("integer", "number")]
    if not kinds:
        return None
    (kind,) = kinds
    noun = "a whole number" if kind["type"] == "integer" else "a number"
    if "minimum" not in kind and "exclusiveMinimum" not in kind:
        return noun
    least = f"more than {kind['exclusiveMinimum']}" if "exclusiveMinimum" in kind else f"at least {kind['minimum']}"
    most = f" and at most {kind['maximum']}" if "maximum" in kind else ""
    return f"{noun}, {least}{most}"


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        name="recall",
        message=Recall,
        reply=Recalled,
        path="/v1/recall",
        methods=("GET", "POST"),
        positional=("q",),
    ),
    Operation(
        name="briefing",
        message=Brief,
        reply=Briefing,
        path="/v1/briefing",
        methods=("GET", "POST"),
        positional=("q",),
    ),
    Operation(
        name="get_memory",
        message=GetMemory,
        reply=Memory,
        path="/v1/memory/<id>",
        methods=("GET",),
        positional=("id",),
    ),
    Operation(
        name="remember_short",
        message=RememberShort,
        reply=Remembered,
        path="/v1/short",
        methods=("POST",),
        status=201,
        positional=("key", "value"),
    ),
    Operation(
        name="get_short",
        message=GetShort,
        reply=ShortEntries,
        path="/v1/short",
        methods=("GET",),
    ),
    Operation(
        name="forget_short",
        message=ForgetShort,
        reply=Forgotten,
        path="/v1/short",
        methods=("DELETE",),
        positional=("key",),
    ),
    Operation(
        name="remember_long",
        message=RememberLong,
        reply=Remembered,
        path="/v1/long",
        methods=("POST",),
        status=201,
        positional=("fact",),
    ),
    Operation(
        name="remember_episodic",
        message=RememberEpisodic,
        reply=Remembered,
        path="/v1/episodic",
        methods=("POST",),
        status=201,
        positional=("summary",),
    ),
    Operation(
        name="swarm_read",
        message=SwarmRead,
        reply=SwarmFiles,
        path="/v1/swarm",
        methods=("GET",),
        positional=("kind",),
    ),
    Operation(
        name="swarm_write",
        message=SwarmWrite,
        reply=SwarmWritten,
        path="/v1/swarm",
        methods=("POST",),
        status=201,
        positional=("kind",),
    ),
    Operation(
        name="swarm_search",
        message=SwarmSearchFiles,
        reply=SwarmResults,
        path="/v1/swarm/search",
        methods=("GET",),
        positional=("query",),
    ),
    Operation(
        name="swarm_resume",
        message=SwarmResume,
        reply=Resume,
        path="/v1/swarm/resume",
        methods=("GET",),
    ),
    Operation(
        name="swarm_notes",
        message=SwarmNotes,
        reply=NoteAnswer,
        path="/v1/swarm/notes",
        methods=("GET",),
        tool=False,
        positional=("path",),
    ),
    Operation(
        name="swarm_edit_notes",
        message=SwarmEditNotes,
        reply=NoteAnswer,
        path="/v1/swarm/notes",
        methods=("POST",),
        tool=False,
        positional=("command",),
    ),
    Operation(
        name="swarm_files",
        message=PageRead,
        reply=SwarmFiles,
        path="/api/swarm-memory",
        methods=("GET",),
        tool=False,
        positional=("kind",),
    ),
    Operation(
        name="swarm_record",
        message=PageWrite,
        reply=SwarmWritten,
        path="/api/swarm-memory",
        methods=("POST",),
        tool=False,
    ),
    Operation(
        name="swarm_find",
        message=PageSearch,
        reply=SwarmResults,
        path="/api/swarm-memory/search",
        methods=("GET",),
        tool=False,
        positional=("query",),
    ),
    Operation(
        name="swarm_hook",
        message=PageHook,
        reply=SwarmWritten,
        path="/api/swarm-memory/hooks/<hook>",
        methods=("POST",),
        tool=False,
        positional=("hook",),
    ),
    Operation(
        name="swarm_load",
        message=PageResume,
        reply=Resume,
        path="/api/swarm-memory/resume",
        methods=("GET",),
        tool=False,
        positional=("workerId",),
    ),
    Operation(
        name="swarm_renew",
        message=PageRenew,
        reply=Renewed,
        path="/api/swarm-memory/renew",
        methods=("POST",),
        tool=False,
        positional=("workerId", "step"),
    ),
    Operation(
        name="swarm_promote",
        message=PagePromote,
        reply=Promoted,
        path="/api/swarm-memory/promote",
        methods=("POST",),
        tool=False,
        positional=("workerId", "lesson"),
    ),
    Operation(
        name="swarm_archive",
        message=PageArchive,
        reply=Archived,
        path="/api/swarm-memory/archive",
        methods=("POST",),
        tool=False,
        positional=("missionId",),
    ),
    Operation(
        name="swarm_verify",
        message=PageVerify,
        reply=Verified,
        path="/api/swarm-memory/archive",
        methods=("GET",),
        tool=False,
        positional=("missionId",),
    ),
    Operation(
        name="swarm_recommend",
        message=PageRecommend,
        reply=Recommended,
        path="/api/swarm-memory/recommend",
        methods=("GET",),
        tool=False,
        positional=("task",),
    ),
    Operation(name="stats", message=GetStatistics, reply=Statistics, path="/v1/stats", methods=("GET",)),
    Operation(name="purge", message=Purge, reply=Purged, path="/v1/purge", methods=("POST",), tool=False),
)

BY_NAME = {operation.name: operation for operation in OPERATIONS}


def compact(body: dict[str, Any]) -> str:
    """JSON without spaces, in characters rather than escapes."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
