"""The A2A mesh beside the service: every port must answer before and after, or the rollout has cost one."""

from concurrent.futures import ThreadPoolExecutor

from transport.acceptance.calls import Endpoint, NoAnswer
from transport.acceptance.results import Failed, Skipped
from transport.acceptance.run import Run

PORT_MAX = 65_535

_OK = 200
_AT_ONCE = 16


def ports_of(text: str) -> tuple[int, ...]:
    """The ports of a list such as `8300-8307,8310`, each once, in order.

    Raises:
        ValueError: it is none.
    """
    found: set[int] = set()
    for part in filter(None, (part.strip() for part in text.split(","))):
        low, dash, high = part.partition("-")
        first, last = int(low), int(high if dash else low)
        if not 1 <= first <= last <= PORT_MAX:
            raise ValueError(f"{part} is no port and no range of ports (1 to {PORT_MAX})")
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def mesh_before(run: Run) -> str:
    """Every port of the mesh answers 200, before anything is written."""
    dead = _sweep(run)
    run.mesh_alive = tuple(port for port in _swept(run) if port not in dead)
    if dead:
        raise Failed(f"{_shown(dead)}; a port that is known to be dead is left out with --a2a-except")
    return f"{_ports(run.mesh_alive)} answer 200{_left_out(run)}"


def mesh_after(run: Run) -> str:
    """Every port of the mesh answers 200, still."""
    dead = _sweep(run)
    if lost := {port: why for port, why in dead.items() if port in (run.mesh_alive or ())}:
        raise Failed(f"lost since the sweep before: {_shown(lost)}")
    if dead:
        raise Failed(f"{_shown(dead)}, as before")
    return f"{_ports(_swept(run))} answer 200, as before{_left_out(run)}"


def _swept(run: Run) -> tuple[int, ...]:
    return tuple(port for port in run.wanted.mesh_ports if port not in run.wanted.mesh_except)


def _sweep(run: Run) -> dict[int, str]:
    """The ports that do not answer 200, and why not.

    Raises:
        Skipped: there is none to ask.
    """
    ports = _swept(run)
    if not ports:
        raise Skipped("no port is named with --a2a-ports")
    with ThreadPoolExecutor(_AT_ONCE) as callers:
        seen = callers.map(lambda port: _look(run, port), ports)
        return {port: why for port, why in zip(ports, seen, strict=True) if why}


def _look(run: Run, port: int) -> str:
    """Why a port does not answer as it must; empty where it does."""
    try:
        seen = Endpoint(run.wanted.mesh_host, port, limit_s=run.limit_s).ask("GET", run.wanted.mesh_path)
    except NoAnswer as error:
        return str(error)
    return "" if seen.status == _OK else f"{seen.call} on port {port} answered {seen.status}"


def _shown(dead: dict[int, str]) -> str:
    return "; ".join(f"{port}: {why}" for port, why in dead.items())


def _ports(ports: tuple[int, ...]) -> str:
    return ", ".join(map(str, ports))


def _left_out(run: Run) -> str:
    return f" ({_ports(run.wanted.mesh_except)} left out)" if run.wanted.mesh_except else ""
