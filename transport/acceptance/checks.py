"""Every check in its order, and how each is ended: with what was seen, and never with a hang."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from storage.errors import Rejection
from transport.acceptance.calls import NoAnswer
from transport.acceptance.memories import cross_agent_recall, degraded_mode, durable, row_count_delta, unknown_agent
from transport.acceptance.mesh import mesh_after, mesh_before
from transport.acceptance.protocol import discover, handshake, methods
from transport.acceptance.results import Failed, Outcome, Result, Skipped, one_line
from transport.acceptance.run import Run
from transport.acceptance.sockets import loopback_alone, unnamed


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must be so."""

    name: str
    sections: str
    """Of the spec."""
    look: Callable[[Run], str]
    """Returns what was seen; raises Failed, Skipped, or what the database refuses."""
    asks: bool = True
    """Whether it asks the service."""


def loopback(run: Run) -> str:
    """The service's port is open on loopback alone, by the kernel's list, and it is the service that answers there."""
    seen = loopback_alone(run.service.port, run.wanted.kernel_list)
    answer = run.service.ask("GET", "/health")
    return f"{seen}; GET /health answers {answer.status}"


def relay(run: Run) -> str:
    """No relay's configuration names the port."""
    if not run.wanted.relay_configs:
        raise Skipped("no file is named with --relay-config")
    return "; ".join(unnamed(run.service.port, config) for config in run.wanted.relay_configs)


def health(run: Run) -> str:
    """The service is ready."""
    body = run.service.ask("GET", "/health").require(200)
    status, reasons = body.get("status"), body.get("reasons")
    if status not in ("ok", "degraded") or not isinstance(reasons, list):
        raise Failed(f"GET /health answered 200 with the status {status!r}: is it solos-memory that answers?")
    named = f" ({', '.join(map(str, reasons))})" if reasons else ""
    return f"GET /health is 200, status {status}{named}, demo {str(body.get('demo')).lower()}"


CHECKS = (
    Check("mesh before", "8.3, 11.5", mesh_before, asks=False),
    Check("loopback", "8.1, 11.1", loopback, asks=False),
    Check("relay", "3", relay, asks=False),
    Check("health", "8.1", health, asks=False),
    Check("cross-agent recall", "6, 8.2, 11.2", cross_agent_recall),
    Check("row-count delta", "8, 11.3", row_count_delta),
    Check("degraded mode", "7, 11.6", degraded_mode),
    Check("durable", "6", durable),
    Check("unknown agent", "7", unknown_agent),
    Check("mcp handshake", "4, 11.4", handshake),
    Check("mcp discover", "4, 11.4", discover),
    Check("mcp methods", "4", methods),
    Check("mesh after", "8.3, 11.5", mesh_after, asks=False),
)
"""The sweeps of the mesh enclose everything that could cost it a port."""


def perform(run: Run) -> Iterator[Result]:
    """Perform the checks, each to its end whatever the ones before have seen.

    Where `health` got no answer, what would ask the service is skipped: it would wait for each.
    """
    silent = False
    for check in CHECKS:
        if silent and check.asks:
            yield Result(check.name, check.sections, "SKIPPED", "the service does not answer: see health")
            continue
        outcome, seen, answered = _end_of(check, run)
        silent = silent or (check.look is health and not answered)
        yield Result(check.name, check.sections, outcome, one_line(seen))


def _end_of(check: Check, run: Run) -> tuple[Outcome, str, bool]:
    """How a check ends, what was seen, and whether its calls were answered."""
    try:
        return "OK", check.look(run), True
    except NoAnswer as error:
        return "FAIL", str(error), False
    except Failed as error:
        return "FAIL", str(error), True
    except Skipped as error:
        return "SKIPPED", str(error), True
    except Rejection as refusal:
        return "FAIL", f"the database cannot be read: {refusal.detail}", True
