"""`solos-memory swarm`: the swarm's files from the command line, with the service and without."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.swarm_files import files_now, memory_of, shared_of, summary_shows
from tests.support import PROGRAM, Service, serving, swarm_folders

TEXT = "状态数据库 🦓 Müller – naïve"
FOREIGN_LOCALES = (
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"},
    {"LC_ALL": "en_US.CP1252", "LANG": "en_US.CP1252", "PYTHONUTF8": "0", "PYTHONIOENCODING": "cp1252"},
)


def done(service: Service, *arguments: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """What a command printed that must succeed."""
    code, body = service.cli("swarm", *arguments, env=env)
    assert (code, body["ok"]) == (0, True), body
    return body


def offline(database: Path, *arguments: str, env: dict[str, str] | None = None) -> tuple[int, dict[str, Any], str]:
    """(exit code, the JSON printed, what was said on stderr) of one command with the service stopped."""
    environment = os.environ | swarm_folders(database) | (env or {})
    command = [*PROGRAM, "swarm", *arguments, "--offline", "--db", str(database)]
    ended = subprocess.run(command, capture_output=True, timeout=60, env=environment, check=False)
    return ended.returncode, json.loads(ended.stdout.decode("utf-8")), ended.stderr.decode("utf-8")


def test_every_command_has_its_help(shared_service: Service) -> None:
    for command in ("read", "write", "search", "files", "record", "find", "hook"):
        ended = subprocess.run([*PROGRAM, "swarm", command, "--help"], capture_output=True, text=True, check=True)
        assert "Usage:" in ended.stdout
        assert "--offline" in ended.stdout


def test_an_agent_writes_reads_and_searches(shared_service: Service) -> None:
    me = ("--agent", "sol")
    event = json.dumps({"state": "REVIEW", "decisions": [TEXT]})
    arguments = ("--mission", "cli", "--event-type", "checkpoint", "--summary", "the quokka gate", "--event", event)
    written = done(shared_service, "write", "mission", *me, *arguments)
    assert (written["workerId"], written["eventType"], written["missionId"]) == ("sol", "checkpoint", "cli")
    page = summary_shows(shared_service, "sol", "cli", "- Status: review")
    assert f"- {TEXT}" in page.splitlines()
    read = done(shared_service, "read", "mission", *me, "--mission", "cli")
    assert read["files"][0]["content"] == page
    hits = done(shared_service, "search", "quokka gate", *me, "--limit", "1", "--fresh")["results"]
    assert [hit["workerId"] for hit in hits] == ["sol"]


def test_the_operator_records_reads_finds_and_hooks(shared_service: Service) -> None:
    of = ("--worker-id", "swarm1")
    persona = ("--name", "Nova", "--role", "builder", "--specialty", "UI", "--model", "m-1")
    assert done(shared_service, "record", *of, "--scaffold", *persona)["action"] == "scaffolded"
    files = done(shared_service, "files", "profile", *of)["files"]
    assert {file["name"] for file in files} == {"MEMORY.md", "SOUL.md", "IDENTITY.md"}
    in_mission = (*of, "--mission-id", "m")
    hooked = done(shared_service, "hook", "dispatch", *in_mission, "--title", "Wombat", "--assignment-id", "a-1")
    assert hooked["eventType"] == "dispatch"
    recorded = done(
        shared_service, "record", "--kind", "mission", *in_mission, "--event-type", "blocked", "--summary", "s"
    )
    assert recorded["eventType"] == "blocked"
    summary_shows(shared_service, "swarm1", "m", "- Status: blocked")
    hits = done(shared_service, "find", "Wombat", *of, "--scope", "all", "--fresh")["results"]
    assert any(hit["path"].endswith("SUMMARY.md") for hit in hits)


def test_no_mirror_shared_keeps_a_handoff_with_its_worker(shared_service: Service) -> None:
    latest = shared_of(shared_service) / "handoffs" / "swarm" / "swarm2-latest.md"
    handoff = ("--worker-id", "swarm2", "--mission-id", "m", "--content", "# Mine")
    quiet = done(shared_service, "record", "--kind", "handoff", *handoff, "--no-mirror-shared")
    assert (quiet["sharedPath"], latest.exists()) == (None, False)
    assert done(shared_service, "hook", "handoff-written", *handoff, "--no-mirror-shared")["sharedPath"] is None
    assert not latest.exists()
    assert done(shared_service, "record", "--kind", "handoff", *handoff)["sharedPath"] == str(latest)
    assert latest.read_text("utf-8") == "# Mine"


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("kind", ("files", "diary", "--worker-id", "swarm1")),
        ("workerId", ("files", "profile", "--worker-id", "../x")),
        ("missionId", ("record", "--kind", "handoff", "--worker-id", "never-made", "--content", "x")),
        ("event", ("hook", "dispatch", "--worker-id", "never-made", "--event", "state=REVIEW")),
        ("hook", ("hook", "finished", "--worker-id", "never-made")),
        ("mission", ("write", "mission", "--agent", "sol", "--mission", "a/b")),
    ],
)
def test_a_refusal_of_any_command_has_one_form(
    shared_service: Service, database: Path, field: str, arguments: tuple[str, ...]
) -> None:
    before = files_now(shared_service)
    code, body = shared_service.cli("swarm", *arguments)
    assert (code, body["ok"], body["error"]["code"]) == (1, False, "invalid_request")
    assert body["error"]["detail"].startswith(f"{field}: ")
    assert files_now(shared_service) == before
    code, without, told = offline(database, *arguments)
    assert (code, without) == (1, body)
    assert told.startswith(f"invalid_request: {field}: ")


def test_offline_writes_the_files_itself(database: Path) -> None:
    code, body, _ = offline(
        database, "hook", "checkpoint", "--worker-id", "swarm3", "--mission-id", "m", "--event", '{"state": "REVIEW"}'
    )
    assert (code, body["eventType"]) == (0, "checkpoint")
    memory = database.parent / "profiles" / "swarm3" / "memory"
    assert "- Status: review\n" in (memory / "missions" / "m" / "SUMMARY.md").read_text("utf-8")
    code, read, _ = offline(database, "files", "mission", "--worker-id", "swarm3", "--mission-id", "m")
    assert [file["name"] for file in read["files"]] == ["SUMMARY.md", "events.jsonl"]
    code, found, _ = offline(database, "find", "checkpoint", "--worker-id", "swarm3")
    assert (code, bool(found["results"])) == (0, True)
    with serving(database) as service:
        code, refused, _ = offline(database, "hook", "dispatch", "--worker-id", "swarm3")
        assert (code, f"pid {service.process.pid}" in refused["error"]["detail"]) == (1, True)


# --- C039 ---


@pytest.mark.parametrize("locale", FOREIGN_LOCALES)
def test_c039_text_round_trips_byte_for_byte_under_any_locale(shared_service: Service, locale: dict[str, str]) -> None:
    """Through the command line, under a locale that is not UTF-8, into Markdown files and back."""
    worker = f"c039-{FOREIGN_LOCALES.index(locale)}"
    content = f"# {TEXT}\r\n\ttail  "
    of = ("--worker-id", worker, "--mission-id", "m")
    done(shared_service, "record", "--kind", "handoff", *of, "--content", content, env=locale)
    memory = memory_of(shared_service, worker)
    for copy in (
        memory / "handoffs" / "m.md",
        shared_of(shared_service) / "handoffs" / "swarm" / f"{worker}-latest.md",
    ):
        assert copy.read_bytes() == content.encode("utf-8")
    (file,) = done(shared_service, "files", "handoff", *of, env=locale)["files"]
    assert file["content"] == content
    event = json.dumps({"decisions": [TEXT]}, ensure_ascii=False)
    done(shared_service, "hook", "checkpoint", *of, "--summary", TEXT, "--title", TEXT, "--event", event, env=locale)
    page = summary_shows(shared_service, worker, "m", f"- {TEXT}")
    assert page.startswith(f"# Mission m — {TEXT}\n")
    assert json.loads((memory / "missions" / "m" / "events.jsonl").read_bytes().decode("utf-8"))["summary"] == TEXT
    (episodes,) = done(shared_service, "files", "episodic", "--worker-id", worker, env=locale)["files"]
    assert f"- Summary: {TEXT}\n" in episodes["content"]
    assert episodes["content"].encode("utf-8") == Path(episodes["path"]).read_bytes()


@pytest.mark.parametrize("locale", FOREIGN_LOCALES)
def test_c039_files_of_an_offline_command_are_utf_8_under_any_locale(database: Path, locale: dict[str, str]) -> None:
    code, _, _ = offline(
        database, "record", "--kind", "shared", "--file", "c039.md", "--content", f"{TEXT}\n", env=locale
    )
    assert code == 0
    assert (database.parent / "shared" / "swarm" / "c039.md").read_bytes() == f"{TEXT}\n".encode()
    _, read, _ = offline(database, "files", "shared", env=locale)
    assert read["files"][0]["content"] == f"{TEXT}\n"


@pytest.mark.parametrize("locale", FOREIGN_LOCALES)
def test_c039_a_service_under_any_locale_writes_utf_8(database: Path, locale: dict[str, str]) -> None:
    with serving(database, env=locale) as service:
        done(service, "hook", "checkpoint", "--worker-id", "w", "--mission-id", "m", "--summary", TEXT)
        page = memory_of(service, "w") / "missions" / "m" / "SUMMARY.md"
        summary_shows(service, "w", "m", "- Status: executing")
        assert TEXT.encode("utf-8") in page.read_bytes()
        (answered, _) = done(service, "files", "mission", "--worker-id", "w", "--mission-id", "m")["files"]
        assert answered["content"].encode("utf-8") == page.read_bytes()
