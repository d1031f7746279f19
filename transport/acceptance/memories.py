"""The checks on what is remembered: sharing, counting, degraded recall, personas, unknown agents."""

import secrets
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from storage.rows import Row
from transport.acceptance.calls import Seen
from transport.acceptance.results import Failed
from transport.acceptance.run import (
    SOURCE,
    Run,
    Statistics,
    Written,
    require_code,
    require_found,
    results_of,
)

_WRITES = 6
_PERSONAS_TRIED = 3
_WORDS_ASKED = 12


def cross_agent_recall(run: Run) -> str:
    """What one agent writes over REST or MCP, another recalls over both, with its author; scope=own hides it."""
    summary = {"agent": run.writer, "summary": f"Acceptance run {run.mark}: {run.writer} logged this over MCP."}
    if run.witness.keeps("episodic", "topic"):
        summary["event_type"] = SOURCE
    written = [run.fact(), run.remember_by_tool("remember_episodic", summary)]
    for memory in written:
        if memory.agent != run.writer:
            raise Failed(f"{memory.id} was written as {memory.agent!r}, not as {run.writer}")
    recalled = {"GET /v1/recall": run.recall().require(HTTPStatus.OK), "the tool recall": run.recall_by_tool()}
    for call, body in recalled.items():
        for memory in written:
            require_found(memory, results_of(body, call), body, call)
    own = results_of(run.recall(scope="own").require(HTTPStatus.OK), "GET /v1/recall with scope=own")
    if shown := {result.get("id") for result in own} & {memory.id for memory in written}:
        raise Failed(f"scope=own of {run.reader} shows {', '.join(map(str, shown))}, which {run.writer} wrote")
    ids = " and ".join(memory.id for memory in written)
    return f"{run.reader} recalls {ids} of {run.writer} over REST and MCP, and not with scope=own"


# --- the row count ---


def row_count_delta(run: Run) -> str:
    """memory_longterm grows by exactly the writes issued; a retry is no row; the rest of its growth is explained."""
    mark = f"counted {run.mark}"
    before = run.witness.tally("long")
    counted_before = run.statistics()
    written = _write_some(run, mark)
    counted_after = run.statistics()
    growth = run.witness.growth("long", before, mark)
    _require_rows(run, written, growth.marked)
    others = _require_no_lost_row_of_others(counted_before, counted_after, len(growth.marked) + growth.others)
    explained = f"{growth.others} of others{others}"
    if growth.unexplained:
        explained += f", {abs(growth.unexplained)} {'more below its end' if growth.unexplained > 0 else 'deleted'}"
    return (
        f"{len(written)} writes issued, {len(growth.marked)} rows; memory_longterm grew by {growth.rows}: "
        f"{len(growth.marked)} of this run, {explained}"
    )


def _write_some(run: Run, mark: str) -> list[Written]:
    """Facts over REST and MCP in turn; the last one is sent twice with one request id."""
    facts = [run.fact_of(f"{mark} {number}") for number in range(_WRITES)]
    written = []
    for number, fact in enumerate(facts[:-1]):
        written.append(run.remember_by_tool("remember_long", fact) if number % 2 else run.remember(fact))
    retried = facts[-1] | {"request_id": f"{SOURCE}-{secrets.token_hex(8)}"}
    first, again = run.remember(retried), run.remember_by_tool("remember_long", retried)
    if again.id != first.id:
        raise Failed(f"a retry with the same request_id was answered with {again.id} after {first.id}")
    return [*written, first]


def _require_rows(run: Run, written: list[Written], marked: tuple[Row, ...]) -> None:
    """Every write issued has its row, as it was written, and no other row has the mark."""
    found = {row.id: row for row in marked}
    for memory in written:
        # an id that was used before lies below the end that was noted
        if memory.id not in found and (row := run.witness.row(memory.id)) is not None:
            found[memory.id] = row
    lost = [memory.id for memory in written if not _is_row(memory, found.get(memory.id))]
    if lost:
        raise Failed(f"{len(lost)} of {len(written)} writes were acknowledged and have no row: {', '.join(lost)}")
    if len(found) != len(written):
        raise Failed(f"{len(written)} writes were issued, and {len(found)} rows written: {', '.join(sorted(found))}")


def _is_row(memory: Written, row: Row | None) -> bool:
    return row is not None and (row.agent, row.text) == (memory.agent, memory.text)


def _require_no_lost_row_of_others(before: Statistics, after: Statistics, rows: int) -> str:
    """What the service acknowledged meanwhile, other agents' writes included, is in the table."""
    if before.since != after.since:
        return " (the service was restarted meanwhile)"
    acknowledged = after.written("long", "acknowledged") - before.written("long", "acknowledged")
    # a write in flight at the first look may have its row from before
    if acknowledged - before.written("long", "in_flight") > rows:
        raise Failed(f"the service acknowledged {acknowledged} writes meanwhile, and the table got {rows} new rows")
    return ""


# --- degraded mode ---


def degraded_mode(run: Run) -> str:
    """A recall without an embedder says so, in its body, its reasons and its header, and still returns rows."""
    fact = run.fact()
    asked = {"agent": run.reader, "q": run.question, "k": 10}
    for seen in (run.recall(), run.service.ask("POST", "/v1/recall", asked)):
        body = seen.require(HTTPStatus.OK)
        _require_degraded(body, seen.call)
        _require_header(seen)
        require_found(fact, results_of(body, seen.call), body, seen.call)
    body = run.recall_by_tool()
    _require_degraded(body, "the tool recall")
    results = results_of(body, "the tool recall")
    require_found(fact, results, body, "the tool recall")
    reasons = ", ".join(map(str, body["degraded_reasons"]))
    return f"degraded: true ({reasons}), X-Memory-Degraded: true, and {len(results)} rows all the same"


def _require_degraded(body: dict[str, Any], call: str) -> None:
    reasons = body.get("degraded_reasons")
    if body.get("degraded") is not True:
        raise Failed(f"{call} answered degraded: {body.get('degraded')!r}, not true, without an embedder")
    if not isinstance(reasons, list) or not reasons:
        raise Failed(f"{call} is degraded and names no reason")


def _require_header(seen: Seen) -> None:
    said = seen.headers.get("x-memory-degraded")
    if said != "true":
        raise Failed(f"{seen.call} is degraded, and its header X-Memory-Degraded is {said!r}, not 'true'")


# --- personas ---


def durable(run: Run) -> str:
    """Another agent's persona is refused when asked for, and never comes in a shared recall."""
    personas = run.witness.personas(but=run.reader, at_most=_PERSONAS_TRIED)
    owner = personas[0].agent if personas else run.writer
    _require_refused(run, owner)
    for persona in personas:
        seen = run.service.ask("GET", f"/v1/memory/{persona.id}", query={"agent": run.reader})
        require_code(seen.require(HTTPStatus.FORBIDDEN), "forbidden", seen.call)
    words = [" ".join(persona.text.split()[:_WORDS_ASKED]) for persona in personas]
    asked = [word for word in words if word] or [run.question]
    for question in asked:
        for tiers in ("long,episodic", "long,episodic,durable"):
            _require_none_shown(run, question, tiers)
    tried = ", ".join(persona.agent for persona in personas) or "the database holds none but the reader's"
    return f"{run.reader} is refused persona/{owner} (403 forbidden), and no shared recall shows one; tried: {tried}"


def _require_refused(run: Run, owner: str) -> None:
    asked = {"q": f"persona/{owner}", "tiers": "durable"}
    seen = run.recall(**asked)
    call = f"{seen.call} of persona/{owner} by {run.reader}"
    require_code(replace(seen, call=call).require(HTTPStatus.FORBIDDEN), "forbidden", call)
    require_code(run.recall_by_tool(**asked), "forbidden", f"the tool recall of persona/{owner}")


def _require_none_shown(run: Run, question: str, tiers: str) -> None:
    """No durable row but the caller's own persona; a question that names another's may be refused instead."""
    seen = run.recall(q=question, tiers=tiers)
    if seen.status == HTTPStatus.FORBIDDEN:
        return
    over_mcp = run.recall_by_tool(q=question, tiers=tiers)
    answers = {seen.call: results_of(seen.require(HTTPStatus.OK), seen.call)}
    answers["the tool recall"] = results_of(over_mcp, "the tool recall")
    for call, results in answers.items():
        for result in results:
            kept_in = str(result.get("id")).partition(":")[0]
            own = result.get("agent") == run.reader and "durable" in tiers
            if "durable" in (kept_in, result.get("tier")) and not own:
                raise Failed(
                    f"{call} with tiers={tiers} shows {run.reader} {result.get('id')} of {result.get('agent')}"
                )


# --- agents that nobody registered ---


def unknown_agent(run: Run) -> str:
    """A write of an agent that is not in the registry is refused by name, counted, and leaves no row."""
    name = f"nobody-{run.mark}"
    fact = run.fact_of("nobody may write this", agent=name)
    before = run.statistics()
    seen = run.service.ask("POST", "/v1/long", fact)
    answers = {
        seen.call: seen.require(HTTPStatus.UNPROCESSABLE_ENTITY),
        "the tool remember_long": run.tool("remember_long", fact),
    }
    for call, body in answers.items():
        require_code(body, "unknown_agent", call)
        if name not in str(body.get("error", {}).get("detail")):
            raise Failed(f"{call} refuses an unknown agent without naming it")
    after = run.statistics()
    counted = after.refused("unknown_agent") - before.refused("unknown_agent")
    if counted < len(answers) and before.since == after.since:
        raise Failed(f"{len(answers)} writes were refused, and /v1/stats counted {counted}")
    if orphans := [row.id for row in run.rows_left() if row.agent == name]:
        raise Failed(f"the refused agent has rows: {', '.join(orphans)}")
    return f"{name} is refused by name (422 unknown_agent), {counted} refusals counted in /v1/stats, no row"
