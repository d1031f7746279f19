"""What a model reads: compact JSON, line by line, of about 8,000 characters."""

import json

from storage import limits
from transport.mcp_tools import TOOLS, text_of
from transport.operations import compact

READING = {"recall", "briefing", "get_memory", "get_short", "stats", "swarm_read", "swarm_search", "swarm_resume"}


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


def hits(count: int) -> list[dict[str, object]]:
    """What a search in the swarm's files found: rows without ids."""
    return [
        {
            "path": f"/profiles/swarm{n}/memory/MEMORY.md",
            "line": 3,
            "score": 1.0,
            "snippet": "y" * 300,
            "workerId": None,
        }
        for n in range(count)
    ]


def test_hits_beyond_the_bound_are_named_by_their_files() -> None:
    body = json.loads(text_of({"ok": True, "results": hits(50), "scanned": 50}))
    shown = [row["path"] for row in body["results"]]
    assert 0 < len(shown) < 50
    assert "narrow the question" in body["not_shown"]
    assert shown + body["not_shown"].rpartition(": ")[2].split(", ") == [row["path"] for row in hits(50)]


def test_files_are_cut_to_what_a_model_takes() -> None:
    """Of a page the beginning is shown, of a log its end; what is left out is named."""
    files = [
        {"name": name, "content": "begin" + "z" * 200_000 + "end", "cut": False}
        for name in ("SUMMARY.md", "events.jsonl")
    ]
    text = text_of({"ok": True, "kind": "mission", "files": files})
    summary, events = json.loads(text)["files"]
    assert len(text) < 5 * limits.REPLY_CHARS
    assert summary["content"].startswith("begin")
    assert events["content"].endswith("end")
    assert (summary["cut"], events["cut"]) == (True, True)
    many = [{"name": f"{n}.md", "content": "z" * 5_000, "cut": False} for n in range(200)]
    body = json.loads(text_of({"ok": True, "kind": "episodic", "files": many}))
    left_out = body["not_shown"].rpartition(": ")[2].split(", ")
    assert [file["name"] for file in body["files"]] + left_out == [f"{n}.md" for n in range(200)]


def test_short_files_are_whole() -> None:
    body = {"ok": True, "kind": "profile", "files": [{"name": "MEMORY.md", "content": "# Memory\n", "cut": False}]}
    assert json.loads(text_of(body))["files"] == [{"name": "MEMORY.md", "content": "# Memory\n"}]


def test_the_tool_list_is_small_and_described() -> None:
    listed = compact({"tools": [tool.model_dump(by_alias=True, exclude_none=True) for tool in TOOLS]})
    assert len(TOOLS) <= 14
    assert len(listed.encode()) <= 10_000
    for tool in TOOLS:
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name in READING)
