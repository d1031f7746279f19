"""`solos-memory connect`: each client's snippet has the shape that the client documents, and names the agent."""

import json
import subprocess
import tomllib
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support import PROGRAM
from tests.test_documentation import page
from transport.cli import main
from transport.commands.connect import CLIENTS

ENDPOINT = "http://127.0.0.1:8437/mcp"
HEADERS = {"X-Agent-Id": "sol"}
DOCUMENTED: dict[str, dict[str, Any]] = {
    # https://opencode.ai/docs/mcp-servers: McpRemoteConfig
    "opencode": {
        "mcp": {
            "solos-memory": {"type": "remote", "url": ENDPOINT, "enabled": True, "oauth": False, "headers": HEADERS}
        }
    },
    # https://code.claude.com/docs/en/mcp: .mcp.json
    "claude-code": {"mcpServers": {"solos-memory": {"type": "http", "url": ENDPOINT, "headers": HEADERS}}},
    # https://developers.openai.com/codex/mcp: streamable HTTP servers
    "codex": {
        "mcp_servers": {
            "solos-memory": {
                "url": ENDPOINT,
                "http_headers": HEADERS,
                "startup_timeout_sec": 10,
                "tool_timeout_sec": 15,
            }
        }
    },
    # https://cursor.com/docs/context/mcp: mcp.json
    "cursor": {"mcpServers": {"solos-memory": {"url": ENDPOINT, "headers": HEADERS}}},
}


def printed(client: str, *options: str, agent: str = "sol") -> str:
    """The snippet on stdout; the command must succeed."""
    done = CliRunner().invoke(main, ["connect", client, "--agent", agent, *options])
    assert done.exit_code == 0, done.output
    return done.stdout


def parsed(client: str, text: str) -> dict[str, Any]:
    """The snippet as the client reads it."""
    return tomllib.loads(text) if client == "codex" else json.loads(text)


@pytest.mark.parametrize("client", DOCUMENTED)
def test_snippet_has_the_shape_that_the_client_documents(client: str) -> None:
    assert parsed(client, printed(client)) == DOCUMENTED[client]


def test_hermes_is_told_15_and_10_seconds() -> None:
    assert printed("hermes").splitlines() == [
        "mcp_servers:",
        "  solos-memory:",
        f'    url: "{ENDPOINT}"',
        "    timeout: 15",
        "    connect_timeout: 10",
        "    headers:",
        '      X-Agent-Id: "sol"',
    ]


def test_every_client_is_tested() -> None:
    assert set(CLIENTS) == {*DOCUMENTED, "hermes"}


def test_hermes_snippet_is_that_of_deploy() -> None:
    """deploy/hermes.yaml is shown in the README; quotes apart it is what the command prints."""
    shown = "".join(line for line in page("deploy/hermes.yaml").splitlines(keepends=True) if not line.startswith("#"))
    assert shown.replace('"', "") == printed("hermes").replace('"', "")


@pytest.mark.parametrize(("client", "file"), [("claude-code", "mcp.json"), ("opencode", "opencode.json")])
def test_files_of_deploy_are_the_snippets_without_an_agent(client: str, file: str) -> None:
    snippet = json.loads(printed(client))
    (servers,) = snippet.values()
    del servers["solos-memory"]["headers"]
    assert json.loads(page(f"deploy/{file}")) == snippet


@pytest.mark.parametrize("url", ["http://127.0.0.1:9000", "http://127.0.0.1:9000/", "http://127.0.0.1:9000/mcp"])
def test_url_of_the_service_becomes_the_endpoint(url: str) -> None:
    assert (
        json.loads(printed("cursor", "--url", url))["mcpServers"]["solos-memory"]["url"] == "http://127.0.0.1:9000/mcp"
    )


@pytest.mark.parametrize("agent", ['a"b', "a\\b", "null", "on", "it's", "a b", "x" * 128])
@pytest.mark.parametrize("client", DOCUMENTED)
def test_agent_is_quoted_as_the_format_wants(client: str, agent: str) -> None:
    text = json.dumps(parsed(client, printed(client, agent=agent)))
    assert json.dumps(agent) in text


@pytest.mark.parametrize("agent", ["", " sol", "sol\n", "sol\nX-Evil: 1", "é", "x" * 129])
def test_agent_that_no_header_can_carry_is_refused(agent: str) -> None:
    done = CliRunner().invoke(main, ["connect", "hermes", "--agent", agent])
    assert (done.exit_code, done.stdout) == (2, "")
    assert "--agent" in done.stderr


def test_unknown_client_is_refused_with_the_known_ones() -> None:
    done = CliRunner().invoke(main, ["connect", "emacs", "--agent", "sol"])
    assert done.exit_code == 2
    for client in CLIENTS:
        assert client in done.stderr


@pytest.mark.parametrize("client", CLIENTS)
def test_where_it_goes_is_told_beside_the_snippet(client: str) -> None:
    """On stderr, so that stdout can be redirected into a file."""
    done = subprocess.run(
        [*PROGRAM, "connect", client, "--agent", "sol"], capture_output=True, text=True, timeout=30, check=True
    )
    assert CLIENTS[client].goes_into in done.stderr
    assert CLIENTS[client].goes_into not in done.stdout
