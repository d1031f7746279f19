"""What a model reads: compact JSON, line by line, of about 8,000 characters."""

import json

from storage import limits
from transport.mcp_tools import TOOLS, text_of
from transport.operations import compact


def results(count: int, chars: int) -> list[dict[str, object]]:
    """A recall's rows."""
    return [
        {
            "id": f"long:{n}",
            "tier": "long",
            "agent": "mira",
            "text": "x" * chars,
            "cut": True,
            "topic": None,
            "tags": [],
        }
        for n in range(count)
    ]


def test_each_result_is_a_line_without_empty_fields() -> None:
    text = text_of({"ok": True, "relaxed": False, "results": results(2, 10)})
    assert text.splitlines()[1] == '{"id":"long:0","tier":"long","agent":"mira","text":"xxxxxxxxxx","cut":true},'
    assert json.loads(text)["relaxed"] is False


def test_an_empty_answer_stays_an_answer() -> None:
    assert text_of({"ok": True, "results": []}) == '{"ok":true,"results":[]}'


def test_rows_beyond_the_bound_are_named_by_their_ids() -> None:
    text = text_of({"ok": True, "results": results(50, 300)})
    body = json.loads(text)
    shown = [row["id"] for row in body["results"]]
    assert len(text) < limits.REPLY_CHARS * 1.2
    assert "more are available" in body["not_shown"]
    assert shown + body["not_shown"].rpartition(": ")[2].split(", ") == [f"long:{n}" for n in range(50)]


def test_whole_texts_are_not_cut() -> None:
    body = json.loads(text_of({"ok": True, "results": results(5, 20_000)}))
    assert [len(row["text"]) for row in body["results"]] == [20_000] * 5


def test_the_tool_list_is_small_and_described() -> None:
    listed = compact({"tools": [tool.model_dump(by_alias=True, exclude_none=True) for tool in TOOLS]})
    assert len(TOOLS) <= 14
    assert len(listed.encode()) <= 10_000
    for tool in TOOLS:
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name in {"recall", "get_memory", "get_short", "stats"})
