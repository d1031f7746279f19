"""The pages say what the program does: every code, setting, bound, link and command in them is checked against it."""

import ast
import importlib
import json
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import pytest

import actors
import storage
import transport
from actors.swarm_messages import Hook
from storage import limits
from storage.errors import Rejection
from storage.swarm.events import LISTS, TEXTS
from tests.runbooks.markdown import Step, steps_of
from tests.runbooks.runner import check, shell
from tests.test_architecture import THIRD_PARTY
from transport import settings
from transport.operations import BY_NAME, OPERATIONS
from transport.rejections import RENDERINGS
from transport.settings import Settings

ROOT = Path(__file__).parents[1]
NOT_OURS = {".git", ".venv", ".cache", "build", "dist", "__pycache__"}
"""Folders that hold no source of ours; other hidden ones are caches, but .ci is ours."""
LAYERS = (storage, actors, transport)

Row = list[str]


def files() -> list[Path]:
    """Every text file of the repository."""
    found: list[Path] = []
    folders = [ROOT]
    while folders:
        for path in sorted(folders.pop().iterdir()):
            hidden = path.name.startswith(".") and path.is_dir() and path.name != ".ci"
            if path.name in NOT_OURS or hidden or path.name.endswith((".egg-info", ".solos-memory")):
                continue
            if path.is_dir():
                folders.append(path)
            elif ".db" not in path.suffixes and not path.name.endswith(("-wal", "-shm")):
                found.append(path)
    return found


FILES = files()
DEPLOYED = [path for path in FILES if path.relative_to(ROOT).parts[0] == "deploy"]
PAGES = [path for path in FILES if path.suffix == ".md"]
SOURCES = [path for path in FILES if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests"]


def relative(path: Path) -> str:
    """How a test names a file."""
    return str(path.relative_to(ROOT))


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(markdown: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", markdown, flags=re.MULTILINE | re.DOTALL)


def tables(markdown: str) -> list[list[Row]]:
    """The tables of a page: each a list of rows of cells, without its head."""
    found = re.findall(r"(?:^\|.*\|\n)+", without_code(markdown), re.MULTILINE)
    return [[_cells(line) for line in table.splitlines()[2:]] for table in found]


def _cells(line: str) -> Row:
    return [cell.strip() for cell in line.strip().strip("|").split(" | ")]


def section(markdown: str, heading: str) -> str:
    """What stands under a heading of the second level."""
    return markdown.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def headings(markdown: str, level: int) -> list[str]:
    """The headings of one level."""
    return re.findall(rf"^{'#' * level} (.+)$", without_code(markdown), re.MULTILINE)


# --- errors ---


def rejections() -> dict[str, set[type[Rejection]]]:
    """Every refusal of the three packages by its code."""
    for layer in LAYERS:
        for module in pkgutil.walk_packages(layer.__path__, layer.__name__ + "."):
            importlib.import_module(module.name)
    found: dict[str, set[type[Rejection]]] = {}
    waiting = list(Rejection.__subclasses__())
    while waiting:
        rejection = waiting.pop()
        waiting += rejection.__subclasses__()
        if rejection.__module__.partition(".")[0] in THIRD_PARTY:
            found.setdefault(rejection.code, set()).add(rejection)
    return found


def client_codes() -> set[str]:
    """The codes that the command line itself prints: literals {"code": "…"} in the source."""
    found: set[str] = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                found |= {
                    value.value
                    for key, value in zip(node.keys, node.values, strict=True)
                    if isinstance(key, ast.Constant)
                    and key.value == "code"
                    and isinstance(value, ast.Constant)
                    and isinstance(value.value, str)
                }
    return found


def test_every_rejection_has_a_rendering_and_every_rendering_a_rejection() -> None:
    assert set(rejections()) == set(RENDERINGS)


def test_every_rejection_says_what_it_is_and_what_to_do() -> None:
    for rejection in set().union(*rejections().values()):
        assert rejection.__doc__, rejection.__name__
        assert rejection.hint, rejection.__name__


def test_every_code_has_its_section() -> None:
    assert headings(page("runbooks/errors.md"), 2) == [*RENDERINGS, *sorted(client_codes(), reverse=True)]


@pytest.mark.parametrize("code", RENDERINGS)
def test_section_of_a_code_says_what_the_caller_sees(code: str) -> None:
    rendering = RENDERINGS[code]
    waits = {rejection.retry_after_s for rejection in rejections()[code]}
    seen = f"Status {rendering.status} · MCP: {'isError' if rendering.is_error else 'a result'}"
    assert len(waits - {None}) <= 1
    # Of some refusals of a code waiting helps, and of others it does not: that is said.
    seen += "".join(f" · retry after {wait_s} s" for wait_s in waits - {None})
    seen += " in some cases." if {None} < waits else "."
    text = section(page("runbooks/errors.md"), code)
    assert text.strip().splitlines()[0] == seen
    assert "\n- Caller: " in text
    assert "\n- Operator: " in text


def test_every_reason_of_health_is_explained() -> None:
    """The reasons are literals of health(), of the system and of what stands for it."""
    nodes = [node for name in ("system", "refusing") for node in ast.walk(ast.parse(page(f"actors/{name}.py")))]
    healths = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in ("health", "_failing")]
    literals = [node.value for health in healths for node in ast.walk(health) if isinstance(node, ast.Constant)]
    words = {literal for literal in literals if isinstance(literal, str)}
    statuses = {"ok", "degraded", "not_ready"}
    told = {row[0].strip("`") for row in tables(section(page("runbooks/health.md"), "Reasons"))[0]}
    assert told == {word for word in words if re.fullmatch(r"[a-z_]+", word)} - statuses - {"wal"}


# --- settings and bounds ---


def shown(default: Any) -> str:
    """A default as settings.md writes it."""
    if default is None:
        return "unset"
    return default if isinstance(default, str) else json.dumps(default)


def test_settings_page_is_the_table_of_settings() -> None:
    expected = [
        [f"`{name}`", f"`{settings.PREFIX}{name.upper()}`", f"`{shown(field.default)}`", field.description]
        for name, field in Settings.model_fields.items()
    ]
    assert tables(page("runbooks/settings.md"))[0] == expected


def test_settings_page_has_the_other_variables() -> None:
    others = {settings.CONFIG_VARIABLE, settings.AGENT_VARIABLE, settings.URL_VARIABLE, settings.SPOOL_VARIABLE}
    assert {row[0].strip("`") for row in tables(page("runbooks/settings.md"))[1]} == others


@pytest.mark.parametrize("path", [*PAGES, ROOT / "deploy/solos-memory.env.example"], ids=relative)
def test_every_variable_named_in_a_page_exists(path: Path) -> None:
    named = set(re.findall(r"SOLOS_MEMORY_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8")))
    assert settings.unknown_variables(dict.fromkeys(named, "")) == []


def test_bounds_page_is_the_table_of_bounds() -> None:
    rows = [row for table in tables(page("runbooks/bounds.md")) for row in table]
    assert {row[0].strip("`"): float(row[1].replace(",", "")) for row in rows} == limits.BOUNDS
    assert len(rows) == len(limits.BOUNDS)
    assert all(meaning for _, _, meaning in rows)


# --- contributing ---


def test_contributing_has_every_dependency_with_its_reason() -> None:
    project = tomllib.loads(page("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    wanted = [project["dependencies"], extras.pop("claude"), *extras.values()]
    told = tables(section(page("CONTRIBUTING.md"), "Dependencies"))
    names = [[re.split(r"[<>=]", requirement)[0] for requirement in requirements] for requirements in wanted]
    assert [[row[0].strip("`") for row in table] for table in told] == names
    assert all(reason for table in told for _, reason in table)


def test_contributing_has_the_layer_table_that_is_enforced() -> None:
    (table,) = tables(section(page("CONTRIBUTING.md"), "Layers"))
    assert {row[0].strip("`/"): set(row[3].split(", ")) for row in table} == THIRD_PARTY


def test_comments_name_tests_that_exist() -> None:
    """`Pinned by test_…` is a promise."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in FILES if relative(path).startswith("tests/"))
    for path in SOURCES:
        for name in re.findall(r"[Pp]inned\s+by\s+(?:#\s+)?(test_\w+)", path.read_text(encoding="utf-8")):
            assert f"def {name}(" in tests, f"{relative(path)} names {name}"


# --- the swarm ---


def test_table_of_the_swarm_names_tests_that_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)(?:::(test_\w+))?`", page("runbooks/swarm-spec.md"))
    assert len(named) >= 40
    for module, test in named:
        file = ROOT / "tests" / module
        assert file.is_file(), module
        assert not test or f"def {test}(" in file.read_text(encoding="utf-8"), f"{module} has no {test}"


@pytest.mark.parametrize("name", ["swarm.md", "swarm-life.md"])
def test_limits_of_the_swarm_are_those_of_its_modules(name: str) -> None:
    (table,) = tables(section(page(f"runbooks/{name}"), "Limits"))
    for bound, value, _ in table:
        module, _, constant = bound.strip("`").rpartition(".")
        assert getattr(place_of(module), constant) == float(value.replace(",", "")), bound


def place_of(module: str) -> ModuleType:
    """The module that a table of limits names: by its whole name, or below storage/swarm or storage/."""
    if module.startswith("actors."):
        return importlib.import_module(module)
    above = "storage" if module in ("limits", "briefing") else "storage.swarm"
    return importlib.import_module(f"{above}.{module}")


def test_every_deliverable_of_the_swarm_is_somewhere() -> None:
    rows = [row for table in tables(page("runbooks/swarm-spec.md")) for row in table]
    assert [row[0] for row in rows if len(row) != 3 or not row[1]] == []
    waived = ("to come", "respected")
    assert [row[0] for row in rows if not row[2] and not any(word in row[1] for word in waived)] == []


def test_hooks_of_the_callers_are_those_of_the_service() -> None:
    hooks = set(get_args(Hook))
    script = page("deploy/hermes-workspace/swarm-memory-hooks.ts")
    typed = script.partition("export type Hook =")[2].partition(";")[0]
    told = {row[1].strip("`") for row in tables(section(page("runbooks/swarm.md"), "2. Call the hooks"))[0]}
    assert set(re.findall(r'"([\w-]+)"', typed)) == hooks == told
    named = page("deploy/hermes-workspace/swarm-hook.sh").partition("# HOOK: ")[2].partition(". JSON")[0]
    assert set(re.split(r", | or ", named)) == hooks


def test_reports_of_the_callers_have_the_fields_of_the_service() -> None:
    script = page("deploy/hermes-workspace/swarm-memory-hooks.ts")
    fields = re.findall(
        r"^  (\w+)\??:", script.partition("export interface Report {")[2].partition("\n}")[0], re.MULTILINE
    )
    assert set(fields) | {"hook"} == set(BY_NAME["swarm_hook"].fields)
    members = re.findall(r"^    (\w+)\?:", script.partition("event?: {")[2].partition("};")[0], re.MULTILINE)
    assert {*members, "title"} == {*LISTS, *TEXTS}


# --- links and paths ---


def anchors(markdown: str) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(markdown), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(path: Path) -> Iterator[str]:
    """The targets of a page's links, but those to other sites."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            yield target


def resolve(target: str, base: Path) -> str:
    """What is wrong with a link; empty where nothing is."""
    name, _, anchor = target.partition("#")
    found = (base.parent / name).resolve() if name else base
    if not found.exists():
        return f"{target}: no such file"
    if anchor and anchor not in anchors(found.read_text(encoding="utf-8")):
        return f"{target}: no such heading"
    return ""


@pytest.mark.parametrize("path", PAGES, ids=relative)
def test_links_of_a_page_resolve(path: Path) -> None:
    assert [problem for target in links(path) if (problem := resolve(target, path))] == []


@pytest.mark.parametrize("path", [*SOURCES, *PAGES, *DEPLOYED], ids=relative)
def test_runbooks_that_are_named_exist(path: Path) -> None:
    """Hints, log lines and comments name pages with their anchors."""
    named = re.findall(r"\brunbooks/[\w./-]+\.md(?:#[\w-]+)?", path.read_text(encoding="utf-8"))
    assert [problem for target in named if (problem := resolve(target, ROOT / "README.md"))] == []


def test_every_decision_is_listed() -> None:
    decisions = {path.name for path in (ROOT / "runbooks/decisions").glob("[0-9]*.md")}
    assert decisions == set(links(ROOT / "runbooks/decisions/README.md"))
    assert sorted(name[:4] for name in decisions) == [f"{number:04}" for number in range(1, len(decisions) + 1)]


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_no_file_names_a_path_of_a_developers_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8", errors="replace")
    here = [str(ROOT)] if len(ROOT.parts) > 2 else []
    for folder in ["/" + "work", "/tmp" + "/w", *here]:
        assert not re.search(rf"(?<![\w.~}}-]){re.escape(folder)}/", text), f"names {folder}/"


# --- README and deploy ---


def test_readme_shows_the_files_of_deploy() -> None:
    readme = page("README.md")
    for name, language in (("hermes.yaml", "yaml"), ("mcp.json", "json"), ("opencode.json", "json")):
        assert f"](deploy/{name})" in readme
        blocks = re.findall(rf"^```{language}\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        assert [block for block in blocks if page(f"deploy/{name}").endswith(block)], f"no block shows {name}"


def test_readme_names_every_tool() -> None:
    mcp = readme_section("MCP")
    tools = [operation.name for operation in OPERATIONS if operation.tool]
    assert re.findall(r"`(\w+)`", mcp.partition("Its ")[2].partition(".\n")[0]) == tools
    assert "Its thirteen tools" in mcp
    assert len(tools) == 13


def readme_section(heading: str) -> str:
    """A step of the tour."""
    return page("README.md").partition(f"\n### {heading}\n")[2].partition("\n### ")[0]


def test_tour_of_the_readme_prints_what_it_shows(tmp_path: Path) -> None:
    steps = steps_of(page("README.md"))
    assert len(steps) >= 15
    with shell(tmp_path) as bash:
        check(bash, [Step("solos-memory serve --bind 127.0.0.1:8437 &")])  # what `make serve` ends with
        check(bash, steps, page="README.md")


def test_make_serve_starts_what_the_tour_expects() -> None:
    assert "solos-memory serve --bind $(BIND)" in page("Makefile")
    assert "BIND ?= 127.0.0.1:8437" in page("Makefile")
