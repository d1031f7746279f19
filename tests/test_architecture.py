"""The shape of the code: imports point down only, modules and functions stay small, everything public is documented."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BELOW = {
    "storage": {"storage"},
    "actors": {"actors", "storage"},
    "transport": {"transport", "actors", "storage"},
}
"""The packages of ours that each layer may import."""
THIRD_PARTY = {
    "storage": {"apsw", "numpy", "Stemmer", "yaml"},
    "actors": {"outcome", "pydantic", "structlog", "trio"},
    "transport": {
        "anthropic",  # of transport/claude_memory.py, which agents import, and the service does not
        "click",
        "hypercorn",
        "mcp",
        "mcp_types",
        "prometheus_client",
        "pydantic",
        "pydantic_core",
        "pydantic_settings",
        "quart",
        "quart_trio",
        "structlog",
        "trio",
        "werkzeug",
    },
}
"""The packages of others that each layer may import; CONTRIBUTING has the same table."""
STANDARD = sys.stdlib_module_names - {"sqlite3", "asyncio"}
SHADOWING = {"mcp", "logging", "signal"}
"""Module names that would shadow a library of the same name."""
MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
NINE_IN_TEN_LINES_MAX = 30
SQL = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE FROM|BEGIN|COMMIT|ROLLBACK|PRAGMA|CREATE TABLE|ALTER TABLE)\b")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function

MODULES = [path for layer in BELOW for path in sorted((ROOT / layer).rglob("*.py"))]
every_module = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def tree_of(path: Path) -> ast.Module:
    """The syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def layer_of(path: Path) -> str:
    """The layer that a module is in."""
    return path.relative_to(ROOT).parts[0]


def imported(tree: ast.Module) -> set[str]:
    """The top-level packages that a module imports, wherever in it."""
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: absolute imports only"
            packages.add((node.module or "").split(".")[0])
    return packages


def lines_of(function: Function) -> int:
    """How long a function is, its decorators not counted."""
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def functions_of(tree: ast.Module) -> list[Function]:
    """Every function of a module, methods and inner ones included."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def public(node: ast.Module | ast.ClassDef, name: str = "") -> Iterator[tuple[str, Documented]]:
    """A module or class, and what is public in it; not the inside of functions."""
    yield name or "the module", node
    for child in node.body:
        if isinstance(child, ast.ClassDef | Function) and not child.name.startswith("_"):
            path = f"{name}.{child.name}".lstrip(".")
            if isinstance(child, ast.ClassDef):
                yield from public(child, path)
            else:
                yield path, child


def test_there_is_something_to_check() -> None:
    assert {layer_of(path) for path in MODULES} == set(BELOW)
    assert len(MODULES) > 30


@every_module
def test_imports_point_down(path: Path) -> None:
    layer = layer_of(path)
    ours = imported(tree_of(path)) & set(BELOW)
    assert ours <= BELOW[layer], f"{layer} must not import {ours - BELOW[layer]}"


@every_module
def test_each_layer_imports_its_own_third_party_packages_only(path: Path) -> None:
    layer = layer_of(path)
    others = imported(tree_of(path)) - set(BELOW) - STANDARD
    assert others <= THIRD_PARTY[layer], f"{layer} must not import {others - THIRD_PARTY[layer]}"


@every_module
def test_sql_stays_in_storage(path: Path) -> None:
    if layer_of(path) == "storage":
        return
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            assert not SQL.match(node.value), f"line {node.lineno}: SQL outside of storage"


@every_module
def test_no_module_shadows_a_library(path: Path) -> None:
    assert path.stem not in SHADOWING


@every_module
def test_modules_stay_small(path: Path) -> None:
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= MODULE_LINES_MAX, f"{lines} lines; split it by its nouns"


@every_module
def test_functions_stay_small(path: Path) -> None:
    for function in functions_of(tree_of(path)):
        assert lines_of(function) <= FUNCTION_LINES_MAX, f"{function.name}: {lines_of(function)} lines"


def test_nine_in_ten_functions_are_short() -> None:
    lengths = [lines_of(function) for path in MODULES for function in functions_of(tree_of(path))]
    short = sum(length <= NINE_IN_TEN_LINES_MAX for length in lengths)
    assert short >= 0.9 * len(lengths), f"{len(lengths) - short} of {len(lengths)} exceed {NINE_IN_TEN_LINES_MAX} lines"


@every_module
def test_everything_public_has_a_docstring(path: Path) -> None:
    missing = [name for name, node in public(tree_of(path)) if not ast.get_docstring(node)]
    assert not missing, f"without a docstring: {', '.join(missing)}"


@pytest.mark.parametrize("layer", BELOW)
def test_each_package_is_typed(layer: str) -> None:
    assert (ROOT / layer / "py.typed").is_file()
