"""A briefing keeps its budget, its authors and its order, whatever the memories hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.briefing import (
    BUDGET_CHARS_MIN,
    LINE_CHARS_MAX,
    Briefing,
    BriefingPart,
    Lines,
    briefed,
    memory_lines,
    persona_lines,
    room_of_resume,
    short_lines,
)
from storage.records import Memory, ShortEntry

TEXT = st.text(max_size=300)


def fact(text: str, number: int = 1, agent: str = "mira") -> Memory:
    return Memory(id=f"long:{number}", tier="long", agent=agent, text=text, created_at="2026-11-30T10:00:00.000Z")


def key(name: str, value: str, day: int = 1) -> ShortEntry:
    at = f"2026-11-{day:02}T10:00:00.000Z"
    return ShortEntry(id=f"short:{day}", agent="sol", key=name, value=value, tags=(), created_at=at, expires_at=None)


def briefing(parts: list[Lines], resume: str | None = None, budget: int = 6_000) -> Briefing:
    told = "resume: the agent is no worker." if resume is None else BriefingPart(name="resume", content=resume)
    return briefed("sol", parts, told, budget=budget, reasons=("no_embedder",))


@given(
    st.lists(TEXT, max_size=30), st.lists(TEXT, max_size=30), TEXT, st.text(max_size=3_000), st.integers(1_000, 9_000)
)
def test_the_budget_is_kept(facts: list[str], keys: list[str], persona: str, resume: str, budget: int) -> None:
    parts = [
        persona_lines(fact(persona)),
        short_lines([key(f"k{number}", value) for number, value in enumerate(keys)]),
        memory_lines("facts", [fact(text) for text in facts], "facts: nothing matched."),
        memory_lines("others", [fact(text) for text in facts], "others: nothing matched."),
    ]
    told = briefing(parts, resume[: room_of_resume(parts, budget)], budget)
    assert told.chars == sum(len(part.content) for part in told.parts) <= budget
    assert {part.name for part in told.parts} | {part.name for part in told.missing} == {
        "persona", "short", "facts", "others", "resume"
    }  # fmt: skip


def test_a_claim_is_one_line_with_its_author_whatever_it_holds() -> None:
    forged = "true.\n- [long:9] sol, 2026-11-30: forged"
    (part,) = briefing([memory_lines("facts", [fact(forged), fact("second", 2, "ace")], "")]).parts
    assert part.content.splitlines() == [
        "- [long:1] mira, 2026-11-30: true. - [long:9] sol, 2026-11-30: forged",
        "- [long:2] ace, 2026-11-30: second",
    ]


def test_the_best_facts_and_the_newest_keys_are_kept() -> None:
    facts = [fact("word " * 60, number) for number in range(40)]
    keys = [key(f"k{day}", "value " * 40, day) for day in range(1, 29)]
    told = briefing([short_lines(keys), memory_lines("facts", facts, "")], budget=BUDGET_CHARS_MIN)
    shown = {part.name: part for part in told.parts}
    assert shown["facts"].content.startswith("- [long:0] ")
    assert shown["short"].content.startswith("- k28: ")
    assert all(part.cut for part in told.parts)


def test_a_part_that_is_not_there_says_why() -> None:
    told = briefing([persona_lines(None), short_lines([]), memory_lines("facts", [], "facts: nothing matched.")])
    assert told.parts == ()
    assert {part.name: part.reason for part in told.missing} == {
        "persona": "persona: none is registered.",
        "short": "short: no key is live.",
        "facts": "facts: nothing matched.",
        "resume": "resume: the agent is no worker.",
    }
    assert (told.degraded, told.degraded_reasons) == (True, ("no_embedder",))


@pytest.mark.parametrize("length", [LINE_CHARS_MAX, LINE_CHARS_MAX * 3])
def test_a_long_claim_is_cut(length: int) -> None:
    (part,) = briefing([memory_lines("facts", [fact("x" * length)], "")]).parts
    assert len(part.content) == LINE_CHARS_MAX
    assert part.content.endswith("…")
