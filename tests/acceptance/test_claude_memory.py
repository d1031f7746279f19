"""Claude's memory tool over a worker's notes: the real `anthropic` package drives the real service, without network."""

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest
from anthropic import Anthropic
from anthropic.lib.tools import ToolError

from tests.acceptance.swarm_files import beside, memory_of, tree
from tests.storage.swarm.test_notes import HOSTILE_PATHS
from tests.support import AGENTS, Service, fresh_database, serving
from transport.claude_memory import PATH, SolosMemory

LISTING = "Here're the files and directories up to 2 levels deep in {}, excluding hidden items and node_modules:\n"
CONTENT = "Here's the content of {} with line numbers:\n"
NO_WORKER = "no worker's name"


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A fleet in which each agent is the worker of its name, but one."""
    database = fresh_database(tmp_path_factory.mktemp("fleet"), agents=(*AGENTS, NO_WORKER))
    with serving(database) as running:
        yield running


def notes_of(service: Service, worker: str) -> Path:
    """Where a worker's notes lie."""
    return memory_of(service, worker) / "notes"


def refused(tool: SolosMemory, **command: Any) -> str:
    """The text that Claude is told for a command that must be refused."""
    with pytest.raises(ToolError) as caught:
        tool.call(command)
    assert isinstance(caught.value.content, str)
    return caught.value.content


def viewed(service: Service, **query: Any) -> tuple[int, dict[str, Any]]:
    """(status, body) of a view over REST."""
    return service.rest("GET", f"{PATH}?{urlencode(query, doseq=True)}")


class Claude:
    """The API of Claude as far as a tool runner needs it: asks for one command after the other."""

    def __init__(self, *commands: dict[str, Any]) -> None:
        self.commands = commands
        self.tools: list[dict[str, Any]] = []
        self.results: list[dict[str, Any]] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        asked = json.loads(request.content)
        self.tools += asked.get("tools", [])
        self.results += [block for block in asked["messages"][-1]["content"] if isinstance(block, dict)]
        at = len(self.results)
        if at == len(self.commands):
            return self._message("end_turn", {"type": "text", "text": "done"})
        use = {"type": "tool_use", "id": f"toolu_{at}", "name": "memory", "input": self.commands[at]}
        return self._message("tool_use", use)

    def _message(self, stop_reason: str, block: dict[str, Any]) -> httpx2.Response:
        usage = {"input_tokens": 1, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test", "content": [block]}
        ends = {"stop_reason": stop_reason, "stop_sequence": None, "usage": usage}
        return httpx2.Response(200, json=message | ends)

    def run(self, tool: SolosMemory) -> list[tuple[bool, str]]:
        """Let the package's tool runner do what is asked for; (is_error, text) of each result."""
        transport = httpx2.MockTransport(self)
        with httpx2.Client(transport=transport) as http, Anthropic(api_key="none", http_client=http) as client:
            runner = client.beta.messages.tool_runner(
                model="claude-test",
                max_tokens=100,
                messages=[{"role": "user", "content": "Remember what you learn."}],
                tools=[tool],
            )
            assert runner.until_done().stop_reason == "end_turn"
        return [(block.get("is_error", False), block["content"]) for block in self.results]


# --- the six commands ---


def test_the_package_drives_all_six_commands(fleet: Service) -> None:
    tool, notes = SolosMemory("sol", fleet.url), notes_of(fleet, "sol")
    assert tool.call({"command": "view", "path": "/memories"}) == LISTING.format("/memories") + "0B\t/memories"
    assert not notes.exists()
    page = "/memories/plans/today.md"
    made = tool.call({"command": "create", "path": page, "file_text": "Hello World\nThis is line two\n"})
    assert made == f"File created successfully at: {page}"
    assert (notes / "plans" / "today.md").read_text() == "Hello World\nThis is line two\n"
    replaced = tool.call({"command": "str_replace", "path": page, "old_str": "World", "new_str": "Sol"})
    assert replaced == (
        "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n"
        "     1\tHello Sol\n     2\tThis is line two"
    )
    inserted = tool.call({"command": "insert", "path": page, "insert_line": 0, "insert_text": "# Über\n"})
    assert inserted == f"The file {page} has been edited."
    view = {"command": "view", "path": page}
    assert tool.call(view) == CONTENT.format(page) + "     1\t# Über\n     2\tHello Sol\n     3\tThis is line two"
    assert tool.call(view | {"view_range": [2, 2]}) == CONTENT.format(page) + "     2\tHello Sol"
    assert tool.call(view | {"view_range": [3, -1]}) == CONTENT.format(page) + "     3\tThis is line two"
    renamed = tool.call({"command": "rename", "old_path": page, "new_path": "/memories/done.md"})
    assert renamed == f"Successfully renamed {page} to /memories/done.md"
    assert (notes / "done.md").read_text() == "# Über\nHello Sol\nThis is line two\n"
    deleted = tool.call({"command": "delete", "path": "/memories/plans"})
    assert deleted == "Successfully deleted /memories/plans"
    assert [path.name for path in notes.iterdir() if not path.name.startswith(".")] == ["done.md"]


def test_the_package_s_tool_runner_hands_answers_and_refusals_to_claude(fleet: Service) -> None:
    page = "/memories/a.md"
    claude = Claude(
        {"command": "view", "path": "/memories"},
        {"command": "create", "path": page, "file_text": "one\ntwo"},
        {"command": "create", "path": page, "file_text": "other"},
        {"command": "str_replace", "path": page, "old_str": "one\n"},
        {"command": "str_replace", "path": page, "old_str": "one", "new_str": "three"},
        {"command": "insert", "path": page, "insert_line": 9, "insert_text": "x"},
        {"command": "insert", "path": page, "insert_line": 1, "insert_text": "three"},
        {"command": "view", "path": page},
        {"command": "view", "path": page, "view_range": [9, 10]},
        {"command": "rename", "old_path": page, "new_path": "/memories/b.md"},
        {"command": "delete", "path": page},
        {"command": "view", "path": page},
        {"command": "delete", "path": "/memories/b.md"},
        {"command": "create", "path": page},
        {"command": "delete", "path": "/memories"},
        {"command": "view", "path": "/memories/../MEMORY.md"},
    )
    assert claude.run(SolosMemory("mira", fleet.url)) == [
        (False, LISTING.format("/memories") + "0B\t/memories"),
        (False, f"File created successfully at: {page}"),
        (True, f"Error: File {page} already exists"),
        (
            False,
            "The memory file has been edited. Here is the snippet showing the change (with line numbers):\n     1\ttwo",
        ),
        (True, f"No replacement was performed, old_str `one` did not appear verbatim in {page}."),
        (
            True,
            "Error: Invalid `insert_line` parameter: 9. It should be within the range of lines of the file: [0, 1]",
        ),
        (False, f"The file {page} has been edited."),
        (False, CONTENT.format(page) + "     1\ttwo\n     2\tthree"),
        (
            True,
            "Error: Invalid `view_range` parameter: [9, 10]. It should be [start_line, end_line] within the range of "
            "lines of the file: [1, 2]; an end_line of -1 is the last.",
        ),
        (False, f"Successfully renamed {page} to /memories/b.md"),
        (True, f"Error: The path {page} does not exist"),
        (True, f"The path {page} does not exist. Please provide a valid path."),
        (False, "Successfully deleted /memories/b.md"),
        (False, f"File created successfully at: {page}"),
        (True, "Error: Cannot delete the /memories directory itself"),
        (True, "Error: Path /memories/../MEMORY.md would escape /memories directory"),
    ]
    assert claude.tools[:1] == [{"type": "memory_20250818", "name": "memory"}]
    assert (notes_of(fleet, "mira") / "a.md").read_bytes() == b""


def test_rest_gives_the_same_texts(fleet: Service) -> None:
    page = "/memories/rest.md"
    status, made = fleet.rest("POST", PATH, {"agent": "atlas", "command": "create", "path": page, "file_text": "x\ny"})
    assert (status // 100, made["ok"], made["text"]) == (2, True, f"File created successfully at: {page}")
    status, again = fleet.rest("POST", PATH, {"agent": "atlas", "command": "create", "path": page, "file_text": "z"})
    assert (status, again["ok"], again["error"]["code"]) == (409, False, "conflict")
    assert again["error"]["detail"] == f"Error: File {page} already exists"
    status, seen = viewed(fleet, agent="atlas", path=page, view_range=[2, 2])
    assert (status, seen["text"]) == (200, CONTENT.format(page) + "     2\ty")
    status, gone = viewed(fleet, agent="atlas", path="/memories/none")
    assert (status, gone["error"]["code"]) == (404, "not_found")
    assert gone["error"]["detail"] == "The path /memories/none does not exist. Please provide a valid path."
    status, odd = fleet.rest("POST", PATH, {"agent": "atlas", "command": "chmod", "path": page})
    assert (status, odd["error"]["code"]) == (400, "invalid_request")


def test_a_note_is_found_by_its_worker_alone(fleet: Service) -> None:
    tool = SolosMemory("ace", fleet.url)
    tool.call({"command": "create", "path": "/memories/gate.md", "file_text": "the quixotic gate is left\n"})
    own = fleet.rest("GET", "/v1/swarm/search", agent="ace", query="quixotic")[1]
    assert [result["file"] if "file" in result else Path(result["path"]).name for result in own["results"]] == [
        "gate.md"
    ]
    assert fleet.rest("GET", "/v1/swarm/search", agent="main", query="quixotic")[1]["results"] == []
    tool.call({"command": "delete", "path": "/memories/gate.md"})
    assert fleet.rest("GET", "/v1/swarm/search", agent="ace", query="quixotic")[1]["results"] == []


# --- nothing else can be named ---


# An empty argument counts as left out in every operation, and a view of no path is one of /memories.
@pytest.mark.parametrize("path", [path for path in HOSTILE_PATHS if path], ids=lambda path: ascii(path)[:40])
def test_nothing_outside_of_the_notes_can_be_named(fleet: Service, path: str) -> None:
    tool = SolosMemory("main", fleet.url)
    page = memory_of(fleet, "main") / "MEMORY.md"
    if not page.exists():
        fleet.rest("POST", "/v1/swarm", {"agent": "main", "kind": "profile", "content": "the left key\n"})
        tool.call({"command": "create", "path": "/memories/own.md", "file_text": "own\n"})
    before = tree(beside(fleet) / "profiles" / "main")
    commands: list[dict[str, Any]] = [
        {"command": "view", "path": path},
        {"command": "create", "path": path, "file_text": "x"},
        {"command": "str_replace", "path": path, "old_str": "left key", "new_str": "x"},
        {"command": "insert", "path": path, "insert_line": 0, "insert_text": "x"},
        {"command": "delete", "path": path},
        {"command": "rename", "old_path": path, "new_path": "/memories/x"},
        {"command": "rename", "old_path": "/memories/own.md", "new_path": path},
    ]
    for command in commands:
        assert "left key" not in refused(tool, **command)
        if path.isprintable():
            is_view = command["command"] == "view"
            sent = {"agent": "main"} | command
            status, answer = viewed(fleet, agent="main", path=path) if is_view else fleet.rest("POST", PATH, sent)
            assert answer["error"]["code"] in ("invalid_request", "too_large")
            assert status in (400, 413)
    assert tree(beside(fleet) / "profiles" / "main") == before


def test_claude_cannot_name_another_agent(fleet: Service) -> None:
    SolosMemory("or", fleet.url).call({"command": "create", "path": "/memories/a.md", "file_text": "of or"})
    tool = SolosMemory("not", fleet.url)
    for command in ({"command": "view"}, {"command": "delete"}):
        text = refused(tool, path="/memories/a.md", agent="or", **command)
        assert "does not exist" in text
    assert (notes_of(fleet, "or") / "a.md").read_text() == "of or"
    assert "workerId" in refused(tool, command="view", path="/memories", workerId="or")


def test_an_agent_that_is_no_worker_has_no_notes(fleet: Service) -> None:
    for agent, told in ((NO_WORKER, "is no worker"), ("stranger", "stranger")):
        for command in ({"command": "view"}, {"command": "create", "file_text": "x"}):
            assert told in refused(SolosMemory(agent, fleet.url), path="/memories/a", **command)
    assert not (beside(fleet) / "profiles" / "stranger").exists()


# --- a service that does not answer, or is none ---


def test_a_service_that_is_down_is_told_and_never_an_empty_success() -> None:
    tool = SolosMemory("sol", "http://127.0.0.1:1/")
    for command in ({"command": "view"}, {"command": "delete"}):
        text = refused(tool, path="/memories", **command)
        assert text.startswith("Error: the memory service does not answer at http://127.0.0.1:1/v1/swarm/notes (")
        assert text.endswith("; nothing was done.")


class Stranger(http.server.BaseHTTPRequestHandler):
    """Something else that listens where the service should."""

    status, body = 200, b""

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer()

    def _answer(self) -> None:
        if self.status == 0:
            self.connection.close()
            return
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def stranger() -> Iterator[str]:
    """Where a stranger listens."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (200, b"", "is no solos-memory."),
        (200, b"<html>", "is no solos-memory."),
        (200, b"{}", "is no solos-memory."),
        (200, b'{"ok": true}', "is no solos-memory."),
        (200, b'{"ok": true, "text": null}', "is no solos-memory."),
        (200, b'{"ok": false, "text": "done"}', "is no solos-memory."),
        (200, b'["text"]', "is no solos-memory."),
        (404, b"not here", "answered 404, and no more."),
        (500, b'{"error": "x"}', "answered 500, and no more."),
        (503, b'{"ok": false, "error": {"code": "mailbox_full", "detail": "Too much."}}', "Too much."),
    ],
    ids=str,
)
def test_what_is_no_answer_of_the_service_is_no_success(
    stranger: str, monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, told: str
) -> None:
    monkeypatch.setattr(Stranger, "status", status)
    monkeypatch.setattr(Stranger, "body", body)
    for command in ({"command": "view"}, {"command": "delete"}):
        assert refused(SolosMemory("sol", stranger), path="/memories/a", **command).endswith(told)


def test_a_command_whose_answer_is_lost_may_have_been_done(stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stranger, "status", 0)
    tool = SolosMemory("sol", stranger)
    assert "may have been done. View the path" in refused(tool, command="delete", path="/memories/a")
    assert "nothing was done" in refused(tool, command="view", path="/memories/a")


def test_a_proxy_of_the_environment_is_passed_by(fleet: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    assert "/memories" in str(SolosMemory("swarm-5", fleet.url).call({"command": "view", "path": "/memories"}))


# --- the package ---


def test_a_tool_can_be_cached() -> None:
    tool = SolosMemory("sol", cache_control={"type": "ephemeral"})
    assert tool.name == "memory"
    assert tool.to_dict() == {"type": "memory_20250818", "name": "memory", "cache_control": {"type": "ephemeral"}}


def test_without_the_package_the_import_names_the_extra() -> None:
    program = "import sys; sys.modules['anthropic'] = None; import transport.claude_memory"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: transport.claude_memory needs the anthropic package (")
    assert last.endswith("): pip install 'solos-memory[claude]'.")
