"""Parsing: what models send, and how a broken rule is named."""

import math

import pytest

from storage.errors import InvalidRequest, Rejection
from transport.operations import BY_NAME, OPERATIONS, Operation


def refusal(name: str, **arguments: object) -> tuple[str, str]:
    """(code, detail) of arguments that must be refused."""
    with pytest.raises(Rejection) as caught:
        BY_NAME[name].parse(arguments)
    return caught.value.code, caught.value.detail


def parsed(name: str, **arguments: object) -> object:
    """The message of arguments that must be accepted."""
    return BY_NAME[name].parse(arguments)


@pytest.mark.parametrize(
    ("field", "given", "meant"),
    [
        ("k", "5", 5),
        ("k", None, 5),
        ("k", "", 5),
        ("tags", "a,b", ("a", "b")),
        ("tags", '["a"]', ("a",)),
        ("tags", ["null"], ()),
        ("tags", "null", ()),
        ("tags", "", ()),
        ("tags", [None, " ", "x"], ("x",)),
        ("tiers", "short", ("short",)),
        ("tiers", '["long","short"]', ("long", "short")),
        ("scope", "", "shared"),
        ("since", None, None),
        ("full", "true", True),
    ],
)
def test_what_models_send_is_coerced_where_that_is_safe(field: str, given: object, meant: object) -> None:
    assert getattr(parsed("recall", agent="sol", q="x", **{field: given}), field) == meant


@pytest.mark.parametrize("value", ["2026-01-01", 0.5, [], {}, True])
def test_a_number_without_bounds_names_its_field(value: object) -> None:
    given = {"agent": "sol", "command": "insert", "path": "/memories/a", "insert_line": value}
    with pytest.raises(InvalidRequest, match=r"^insert_line: must be a"):
        BY_NAME["swarm_edit_notes"].parse(given)


@pytest.mark.parametrize(
    ("field", "given", "rule"),
    [
        ("k", 0, "k: must be a whole number, at least 1 and at most 50."),
        ("k", -1, "k: must be a whole number, at least 1 and at most 50."),
        ("k", 51, "k: must be a whole number, at least 1 and at most 50."),
        ("k", True, "k: must be a whole number, at least 1 and at most 50."),
        ("k", 1e9, "k: must be a whole number"),
        ("k", "many", "k: must be a whole number"),
        ("scope", "all", "scope: Input should be 'own' or 'shared'."),
        ("tiers", "secret", "tiers: Input should be 'short', 'long', 'episodic', 'durable' or 'swarm'."),
        ("tags", 5, "tags:"),
        ("tags", ["x" * 101], "tags: is longer than 100 characters."),
        ("q", "x" * 32_769, "q: is longer than 32,768 characters."),
        ("q", "\ud83d", "q: is no valid Unicode"),
        ("colour", "red", "colour: is no argument of this operation."),
        ("q", "", "q: is missing or empty."),
    ],
)
def test_a_broken_rule_names_the_field(field: str, given: object, rule: str) -> None:
    assert rule in refusal("recall", **({"agent": "sol", "q": "x"} | {field: given}))[1]


@pytest.mark.parametrize("ttl_s", [0, -5, 1e18, "abc", math.nan, math.inf, True, 10 * 365 * 86_400 + 1])
def test_a_time_to_live_must_be_a_bounded_positive_number(ttl_s: object) -> None:
    code, detail = refusal("remember_short", agent="sol", key="k", value="v", ttl_s=ttl_s)
    assert (code, detail.startswith("ttl_s:")) == ("invalid_request", True)


@pytest.mark.parametrize("ttl_s", [None, 0.5, "3600", 10 * 365 * 86_400])
def test_a_good_time_to_live_is_accepted(ttl_s: object) -> None:
    assert parsed("remember_short", agent="sol", key="k", value="v", ttl_s=ttl_s)


def test_a_nul_in_text_to_be_stored_names_the_field_and_in_a_question_is_dropped() -> None:
    assert refusal("remember_long", agent="sol", fact="ab\x00cd")[1] == "fact: must not contain NUL characters."
    assert parsed("recall", agent="sol", q="\x00foo")


def test_a_refusal_never_repeats_the_value() -> None:
    for operation in OPERATIONS:
        given = {name: {"secret": "hunter2"} for name in operation.fields}
        with pytest.raises(Rejection) as caught:
            operation.parse(given)
        assert "hunter2" not in caught.value.detail


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: operation.name)
def test_every_operation_is_described(operation: Operation) -> None:
    assert operation.summary.endswith(".")
    assert all(field.get("description") for field in operation.input_schema["properties"].values())
    assert operation.input_schema["additionalProperties"] is False
    assert "agent" not in operation.input_schema.get("required", [])
