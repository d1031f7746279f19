"""The contract is kept: requests that schemathesis makes from /openapi.json find nothing, and would find something."""

import os
import subprocess
import sys
from pathlib import Path

from tests.faults.scale import scaled, seeded
from tests.support import Service, serving

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_schema_conformance",
    "wrong_requests_are_refused",
    # A few examples do not always meet the rules between fields, such as that an archived mission is complete.
    *scaled((), ("EveryOperationIsReached",)),
)
EXAMPLES = scaled(10, 300)
"""Of each operation, beside the boundaries of each of its fields, which are always tried."""
WITHIN_S = scaled(120, 1_800)
ROOT = Path(__file__).parents[2]
CONFIG = """
[checks.negative_data_rejection]
# Beside its own list: a field that is too long is 413, which is what that status says.
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]
"""


def fuzz(service: Service, folder: Path, examples: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run schemathesis on the contract of a service."""
    config = folder / "schemathesis.toml"
    config.write_text(CONFIG)
    options = {
        "--checks": ",".join(CHECKS),
        # `stateful` follows links, of which there are none: test_model.py drives sequences.
        "--phases": "examples,coverage,fuzzing",
        "--max-examples": str(examples),
        "--seed": str(seeded().randrange(2**32)),
        "--generation-database": "none",
    }
    return subprocess.run(
        [
            *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(config), "--no-color"),
            *("run", f"{service.url}/openapi.json", "--continue-on-failure"),
            *(part for option in options.items() for part in option),
            *more,
        ],
        cwd=folder,
        env=os.environ
        | {"SCHEMATHESIS_HOOKS": "tests.faults.schema_checks", "HYPOTHESIS_STORAGE_DIRECTORY": str(folder)},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=False,
    )


def made_ready(service: Service) -> None:
    """Make what schema_checks.KNOWN names."""
    service.long("sol", "a known fact")
    page = "/api/swarm-memory"
    for method, path, body in (
        ("POST", "/v1/short", {"agent": "sol", "key": "known", "value": "v"}),
        ("POST", f"{page}/hooks/dispatch", {"workerId": "sol", "missionId": "m-1", "summary": "begun"}),
        ("POST", f"{page}/hooks/complete", {"workerId": "sol", "missionId": "m-2", "summary": "done"}),
        ("POST", f"{page}/archive", {"missionId": "m-2"}),
        (
            "POST",
            "/v1/swarm/notes",
            {"agent": "sol", "command": "create", "path": "/memories/known.md", "file_text": "a"},
        ),
    ):
        status, answer = service.rest(method, path, body)
        assert status in (200, 201), answer


def test_requests_made_from_the_contract_find_nothing(database: Path, tmp_path: Path) -> None:
    with serving(database) as service:
        made_ready(service)
        done = fuzz(service, tmp_path, EXAMPLES)
        assert service.rest("GET", "/health")[0] == 200
        assert service.events("unit_failed") == service.events("operation_failed") == []
        assert service.stats()["actors"]["writer"]["restarts"] == 0
    print(done.stdout[-1500:])
    assert done.returncode == 0, done.stdout + done.stderr


FAULT = """
import transport.execute as e, transport.operations as o, transport.rest_routes as r
from transport.rejections import Rendering
render, parse, respond = o.Operation.render, o.Operation.parse, r.respond
def broken(self, given):
    message = parse(self, given | {"k": 5})
    if message.explain: raise RuntimeError("planted")
    return message
def declared(answer):
    response = respond(answer)
    if answer.status == 413: response.content_type = "text/plain"
    return response
o.Operation.parse, r.respond = broken, declared
o.Operation.render = lambda self, value: render(self, value) | {"relaxed": "no"}
e.RENDERINGS = {**e.RENDERINGS, "invalid_request": Rendering(418, False)}
"""
"""A recall that ignores a wrong k, fails where it should explain, and answers in shapes that nobody promised."""
NOTICED = (
    "Server error",
    "Response violates schema",
    "Schema-violating request accepted",
    "Undocumented status code",
    "Undocumented Content-Type",
)


def test_a_broken_contract_is_noticed(database: Path, tmp_path: Path) -> None:
    with serving(database, fault=FAULT) as service:
        done = fuzz(service, tmp_path, 5, "--include-operation-id", "recall_post", "--no-shrink")
    assert done.returncode == 1, done.stdout + done.stderr
    assert [said for said in NOTICED if said not in done.stdout] == [], done.stdout
