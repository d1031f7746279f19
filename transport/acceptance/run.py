"""One acceptance run: what it asks, as whom, and the word that marks its rows."""

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage.errors import ConfigurationError, Rejection
from storage.rows import Row
from storage.witness import MARKED_TIERS, Tally, Witness
from transport.acceptance.calls import Endpoint, Seen, code_of, error_of
from transport.acceptance.results import Failed
from transport.acceptance.sockets import KERNEL_LIST

SOURCE = "acceptance"
"""The source of every fact, and the event type of every episode, that a run leaves."""

_WRITER, _READER = "atlas", "sol"  # as in the spec's own proof
_MARK_LETTERS = 12
_ACCEPT = {"Accept": "application/json, text/event-stream"}
_K = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an operator wants to be looked at beside the service itself."""

    kernel_list: Path = KERNEL_LIST
    relay_configs: tuple[Path, ...] = ()
    mesh_host: str = "127.0.0.1"
    mesh_ports: tuple[int, ...] = ()
    mesh_except: tuple[int, ...] = ()
    mesh_path: str = "/.well-known/agent-card.json"


@dataclass(frozen=True, slots=True)
class Written:
    """A memory that the service says it has written."""

    id: str
    agent: str
    text: str


def two_agents(witness: Witness, writer: str | None, reader: str | None) -> tuple[str, str]:
    """Who writes and who recalls: those named, or two registered ones.

    Raises:
        ConfigurationError: there are no two.
    """
    registered = [] if writer and reader else witness.agents()
    preferred = [name for name in (_WRITER, _READER) if name in registered]
    free = [*preferred, *(name for name in registered if name not in preferred)]
    writer = writer or next((name for name in free if name != reader), None)
    reader = reader or next((name for name in [*reversed(preferred), *free] if name != writer), None)
    if writer is None or reader is None or writer == reader:
        raise ConfigurationError(
            "An acceptance run needs two different agents, one that writes and one that recalls: register them in "
            "agent_registry, or name them with --writer and --reader."
        )
    return writer, reader


def _new_mark() -> str:
    return "".join(secrets.choice(string.ascii_lowercase) for _ in range(_MARK_LETTERS))


@dataclass(kw_only=True)
class Run:
    """What the checks share."""

    service: Endpoint
    witness: Witness
    writer: str
    reader: str
    wanted: Wanted
    limit_s: float
    mark: str = field(
        default_factory=lambda: "".join(secrets.choice(string.ascii_lowercase) for _ in range(_MARK_LETTERS))
    )
    """In the text of every row of this run, and in no other."""
    mesh_alive: tuple[int, ...] | None = None
    """The mesh's ports that answered before; None until they were asked."""
    _before: dict[str, Tally] = field(default_factory=dict)
    _fact: Written | None = None

    def begin(self) -> None:
        """Note where the tables end, so that this run's rows are found again.

        Raises:
            Rejection: the database cannot answer.
        """
        self._before = {tier: self.witness.tally(tier) for tier in MARKED_TIERS}

    @property
    def question(self) -> str:
        """What a recall asks to be given this run's rows first."""
        return f"acceptance run {self.mark}"

    # --- calls ---

    def fact_of(self, what: str, agent: str | None = None) -> dict[str, Any]:
        """The arguments of a fact of this run."""
        named = {"topic": SOURCE, "source": SOURCE}
        kept = {role: value for role, value in named.items() if self.witness.keeps("long", role)}
        return {"agent": agent or self.writer, "fact": f"Acceptance run {self.mark}: {what}.", **kept}

    def remember(self, arguments: dict[str, Any]) -> Written:
        """Write a fact over REST.

        Raises:
            Failed: it was not acknowledged.
        """
        return _written(self.service.ask("POST", "/v1/long", arguments).require(201), arguments["fact"])

    def remember_by_tool(self, tool: str, arguments: dict[str, Any]) -> Written:
        """Write over MCP.

        Raises:
            Failed: it was not acknowledged.
        """
        body = self.tool(tool, arguments)
        if body.get("ok") is not True:
            raise Failed(f"the tool {tool} wrote nothing ({error_of(body)})")
        return _written(body, arguments.get("fact") or arguments["summary"])

    def fact(self) -> Written:
        """One fact of the writer, written at the first call.

        Raises:
            Failed: it was not acknowledged.
        """
        if self._fact is None:
            self._fact = self.remember(self.fact_of(f"{self.writer} wrote this over REST"))
        return self._fact

    def recall(self, **more: Any) -> Seen:
        """A recall of the reader over REST, of this run's rows unless `q` is given."""
        asked = {"agent": self.reader, "q": self.question, "k": _K, **more}
        return self.service.ask("GET", "/v1/recall", query=asked)

    def recall_by_tool(self, **more: Any) -> dict[str, Any]:
        """The same recall over MCP."""
        return self.tool("recall", {"agent": self.reader, "q": self.question, "k": _K, **more})

    def tool(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """What a tool answers, as an MCP client sees it.

        Raises:
            Failed: it is no result, or one with isError.
        """
        return text_of(name, self.rpc("tools/call", {"name": name, "arguments": arguments}))

    def rpc(self, method: str, params: dict[str, Any] | None = None, **headers: str) -> dict[str, Any]:
        """The result of one JSON-RPC request on /mcp.

        Raises:
            Failed: it is an error.
        """
        asked = {"jsonrpc": "2.0", "id": 1, "method": method, **({} if params is None else {"params": params})}
        body = self.service.ask("POST", "/mcp", asked, headers={**_ACCEPT, **headers}).require(200)
        result = body.get("result")
        if not isinstance(result, dict):
            error = body.get("error")
            said = error.get("message") if isinstance(error, dict) else "it holds no result"
            raise Failed(f"{method} on /mcp failed ({said})")
        return result

    def notify(self, method: str, **headers: str) -> Seen:
        """Send a JSON-RPC notification."""
        return self.service.ask("POST", "/mcp", {"jsonrpc": "2.0", "method": method}, headers={**_ACCEPT, **headers})

    def statistics(self) -> "Statistics":
        """What the service has counted so far."""
        return Statistics(self.service.ask("GET", "/v1/stats").require(200))

    # --- the rows it leaves ---

    def rows_left(self) -> list[Row]:
        """Every row of this run in the database, those that were never acknowledged included.

        Raises:
            Rejection: the database cannot answer.
        """
        found: list[Row] = []
        for tier in MARKED_TIERS:
            if tier in self._before:
                found += self.witness.growth(tier, self._before[tier], self.mark).marked
        return found

    def left(self) -> str:
        """The rows left, in a sentence."""
        try:
            ids = [row.id for row in self.rows_left()]
        except Rejection as refusal:
            return f"not known: {refusal.detail} They hold the word {self.mark}."
        if not ids:
            return "none"
        return f"{', '.join(ids)}: source and event type `{SOURCE}`, and the word {self.mark} in their text."


class Statistics:
    """`/v1/stats`, read without trust in its shape."""

    def __init__(self, body: dict[str, Any]) -> None:
        self._body = body

    @property
    def since(self) -> object:
        """When the service began to count: another value means another process."""
        return self._body.get("since")

    def written(self, tier: str, end: str) -> int:
        """How many writes of a tier ended in one way.

        Raises:
            Failed: it does not say.
        """
        found: object = self._body
        for name in ("writes", tier, end):
            found = found.get(name) if isinstance(found, dict) else None
        if not isinstance(found, int):
            raise Failed(f"GET /v1/stats has no number at writes.{tier}.{end}")
        return found

    def refused(self, code: str) -> int:
        """How many calls were refused with a code.

        Raises:
            Failed: it does not say.
        """
        refusals = self._body.get("refusals")
        if not isinstance(refusals, list):
            raise Failed("GET /v1/stats has no list of refusals")
        counts = [entry.get("count") for entry in refusals if isinstance(entry, dict) and entry.get("code") == code]
        return sum(count for count in counts if isinstance(count, int))


def text_of(tool: str, result: dict[str, Any]) -> dict[str, Any]:
    """The JSON object in the text of a tool's result.

    Raises:
        Failed: there is none, or the result is an error.
    """
    content = result.get("content")
    first = content[0] if isinstance(content, list) and content else None
    text = first.get("text") if isinstance(first, dict) else None
    said = Seen(f"the tool {tool}", 200, {}, str(text or "").encode("utf-8", "replace")).body
    if result.get("isError"):
        raise Failed(f"the tool {tool} answered isError ({error_of(said)})")
    return said


def results_of(body: dict[str, Any], call: str) -> list[dict[str, Any]]:
    """The results of a recall.

    Raises:
        Failed: it is a refusal, or holds no list of results.
    """
    if body.get("ok") is not True:
        raise Failed(f"{call} was refused ({error_of(body)})")
    results = body.get("results")
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise Failed(f"{call} answered without a list of results")
    return results


def require_found(written: Written, results: Sequence[dict[str, Any]], body: dict[str, Any], call: str) -> None:
    """Raise Failed where a recall does not hold a row, or not as its author's."""
    found = next((result for result in results if result.get("id") == written.id), None)
    if found is None:
        reasons = body.get("degraded_reasons") or []
        raise Failed(f"{call} did not return {written.id} of {written.agent}; degraded_reasons {reasons}")
    if found.get("agent") != written.agent:
        raise Failed(f"{call} names {found.get('agent')!r} as the author of {written.id}, which {written.agent} wrote")
    if found.get("text") != written.text:
        raise Failed(f"{call} returned {written.id} with another text than was written")


def require_code(body: dict[str, Any], code: str, call: str) -> None:
    """Raise Failed where an answer is not this refusal."""
    if code_of(body) != code:
        said = f"was refused ({error_of(body)})" if body.get("ok") is False else "was answered"
        raise Failed(f"{call} {said}; it must be refused as {code}")


def _written(body: dict[str, Any], text: str) -> Written:
    memory_id, agent = body.get("id"), body.get("agent")
    if body.get("ok") is not True or not isinstance(memory_id, str) or not isinstance(agent, str):
        raise Failed("a write was answered without the row's id and its author")
    return Written(memory_id, agent, text)
