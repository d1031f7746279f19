"""`solos-memory connect CLIENT --agent A`: what goes into a client's configuration."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import click

from storage import limits
from transport.commands.calling import url_option
from transport.settings import AGENT_VARIABLE

_NAME = "solos-memory"
_HEADER = "X-Agent-Id"
TIMEOUT_S = 15
"""How long a client waits for an answer: longer than the slowest one. Hermes: decision 0009."""
CONNECT_TIMEOUT_S = 10
"""How long a client waits for the connection."""


@dataclass(frozen=True, slots=True)
class Client:
    """One kind of client: its snippet for an endpoint and an agent, and what its operator must know."""

    snippet: Callable[[str, str], str]
    goes_into: str


def _hermes(endpoint: str, agent: str) -> str:
    # JSON strings are YAML strings: an agent called `null` or `on` stays a name.
    return (
        "mcp_servers:\n"
        f"  {_NAME}:\n"
        f"    url: {json.dumps(endpoint)}\n"
        f"    timeout: {TIMEOUT_S}\n"
        f"    connect_timeout: {CONNECT_TIMEOUT_S}\n"
        "    headers:\n"
        f"      {_HEADER}: {json.dumps(agent)}"
    )


def _opencode(endpoint: str, agent: str) -> str:
    server = {"type": "remote", "url": endpoint, "enabled": True, "oauth": False, "headers": {_HEADER: agent}}
    return _json({"mcp": {_NAME: server}})


def _claude_code(endpoint: str, agent: str) -> str:
    return _json({"mcpServers": {_NAME: {"type": "http", "url": endpoint, "headers": {_HEADER: agent}}}})


def _codex(endpoint: str, agent: str) -> str:
    # JSON strings without control characters are TOML strings, too.
    return (
        f"[mcp_servers.{_NAME}]\n"
        f"url = {json.dumps(endpoint)}\n"
        f"http_headers = {{ {json.dumps(_HEADER)} = {json.dumps(agent)} }}\n"
        f"startup_timeout_sec = {CONNECT_TIMEOUT_S}\n"
        f"tool_timeout_sec = {TIMEOUT_S}"
    )


def _cursor(endpoint: str, agent: str) -> str:
    return _json({"mcpServers": {_NAME: {"url": endpoint, "headers": {_HEADER: agent}}}})


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2)


CLIENTS = {
    "hermes": Client(
        _hermes,
        "Merge into config.yaml of the profile; then restart its gateway from a separate shell, never from inside a "
        "gateway turn.",
    ),
    "opencode": Client(
        _opencode,
        "Merge into opencode.json. OpenCode V2: the server goes under mcp.servers, without `enabled`.",
    ),
    "claude-code": Client(
        _claude_code,
        "Merge into .mcp.json of the project. Some versions drop headers: there the model names its agent itself.",
    ),
    "codex": Client(_codex, "Append to ~/.codex/config.toml."),
    "cursor": Client(_cursor, "Merge into ~/.cursor/mcp.json, or .cursor/mcp.json of the project."),
}
"""The clients whose configuration is known."""


def _agent(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """An agent's id that can be sent as a header."""
    if not value or len(value) > limits.AGENT_CHARS_MAX or value != value.strip():
        raise click.BadParameter(f"an agent's id has 1 to {limits.AGENT_CHARS_MAX} characters, and no space around it.")
    if not (value.isascii() and value.isprintable()):
        raise click.BadParameter(f"{value!r} cannot be sent as a header; let the model name it, in the argument agent.")
    return value


@click.command()
@click.argument("client", type=click.Choice(list(CLIENTS)))
@click.option("--agent", required=True, envvar=AGENT_VARIABLE, show_envvar=True, callback=_agent, help="Who will call.")
@url_option
def connect(client: str, agent: str, url: str) -> None:
    """Print what a client needs to reach the service as one agent: the snippet on stdout, where it goes on stderr."""
    endpoint = url.rstrip("/").removesuffix("/mcp") + "/mcp"
    click.echo(CLIENTS[client].goes_into, err=True)
    click.echo(CLIENTS[client].snippet(endpoint, agent))


COMMANDS = (connect,)
