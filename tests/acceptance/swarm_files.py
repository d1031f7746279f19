"""What the tests of the swarm's files share: where they lie, operations over MCP and REST, the operator's page."""

import re
from pathlib import Path
from typing import Any

from tests.support import Service, eventually
from transport.operations import BY_NAME
from transport.rejections import RENDERINGS

PAGE = "/api/swarm-memory"
_FOLLOWING = re.compile(r"SUMMARY\.md|\.solos-.*")


def beside(service: Service) -> Path:
    """The folder that holds the roots `profiles` and `shared`."""
    assert service.database is not None
    return service.database.parent


def memory_of(service: Service, worker: str) -> Path:
    """A worker's memory."""
    return beside(service) / "profiles" / worker / "memory"


def shared_of(service: Service) -> Path:
    """The shared memory's root."""
    return beside(service) / "shared"


def tree(*roots: Path) -> dict[str, bytes | None]:
    """Everything below some folders: the bytes of each file, None for a folder.

    A temporary file may go while this looks: the service puts it in the place of the file that it writes anew.
    """
    found: dict[str, bytes | None] = {}
    for root in roots:
        for path in sorted([root, *root.rglob("*")]):
            try:
                if path.exists():
                    found[str(path)] = path.read_bytes() if path.is_file() else None
            except FileNotFoundError:
                assert path.name.startswith(".solos-"), f"{path} went while the tree was read"
    return found


def files_now(service: Service) -> dict[str, bytes | None]:
    """Everything below both roots but what may still follow from earlier events: SUMMARY.md and temporary files."""
    everything = tree(beside(service) / "profiles", shared_of(service))
    return {path: content for path, content in everything.items() if not _FOLLOWING.fullmatch(Path(path).name)}


def asked(service: Service, way: str, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer of an operation; what the caller can mend is a normal result on MCP, and has its status on REST."""
    if way == "mcp":
        is_error, answer = service.mcp(name, arguments)
        assert is_error is False
        return answer
    operation = BY_NAME[name]
    if "POST" in operation.methods:
        status, answer = service.rest("POST", operation.path, arguments)
    else:
        status, answer = service.rest("GET", operation.path, **arguments)
    assert status == (operation.status if answer["ok"] else RENDERINGS[answer["error"]["code"]].status)
    return answer


def done(service: Service, way: str, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer of an operation that must succeed."""
    answer = asked(service, way, name, **arguments)
    assert answer["ok"] is True, answer
    return answer


def refusal(service: Service, way: str, name: str, **arguments: Any) -> tuple[str, str]:
    """(code, text) of an operation that must be refused."""
    answer = asked(service, way, name, **arguments)
    assert answer["ok"] is False, answer
    assert answer["error"]["hint"]
    return answer["error"]["code"], answer["error"]["detail"]


def post(service: Service, path: str = "", /, **body: Any) -> dict[str, Any]:
    """The answer of a write on the page that must succeed."""
    status, answer = service.rest("POST", PAGE + path, body)
    assert (status, answer["ok"]) == (200, True), answer
    return answer


def get(service: Service, path: str = "", /, **query: Any) -> dict[str, Any]:
    """The answer of a read on the page that must succeed."""
    status, answer = service.rest("GET", PAGE + path, **query)
    assert (status, answer["ok"]) == (200, True), answer
    return answer


def refused(service: Service, method: str, path: str = "", /, **sent: Any) -> tuple[int, str, str]:
    """(status, code, text) of what the page refuses."""
    status, answer = service.rest(method, PAGE + path, sent) if method == "POST" else service.rest("GET", PAGE, **sent)
    assert answer["ok"] is False, answer
    return status, answer["code"], answer["error"]


def summary_shows(service: Service, worker: str, mission: str, line: str) -> str:
    """A mission's SUMMARY.md once it has a line; it follows an event within a moment."""
    page = memory_of(service, worker) / "missions" / mission / "SUMMARY.md"
    eventually(lambda: page.exists() and line in page.read_text("utf-8").splitlines())
    return page.read_text("utf-8")


def headings(page: str) -> list[str]:
    """Every line of a page that Markdown may take for a heading, or that is a marker of ours."""
    return [line for line in page.split("\n") if re.match(r" {0,3}#|\s*<!--", line)]
