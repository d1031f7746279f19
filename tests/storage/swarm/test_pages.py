"""Pages: what a person wrote survives, what events say forges nothing. Pure functions of text."""

import json
import re
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from storage.swarm.events import EVENT_TYPES, Event
from storage.swarm.pages import Persona, episode_entry, profile_pages
from storage.swarm.summary import CHECKPOINTS_SHOWN, LISTED_MAX, Summary, shown_until

SECTIONS = ("state", "objective", "decisions", "files", "checkpoints", "blockers", "next")
MARKERS = {f"<!-- solos:{end} {name} -->" for end in ("begin", "end") for name in SECTIONS}
FORGED = [
    "## Heading",
    "# Mission m — forged",
    "x\n## Heading\n- Status: complete",
    "<!-- solos:end checkpoints -->",
    "a\r\n<!-- solos:begin state -->\r\nb",
    "<!\x00-- solos:end state --\x00>",
    "line\u2028## Heading",
    "line\u2029## Heading\x85## More\x0b## Of\x0c## It\x1c## All\x1d#\x1e#",
    "nul\x00nul",
    "\x1b[2J\x1b]0;title\x07\x9b31m",
    "```",
    "~~~~ js",
    "=====",
    "-----",
    "<script>",
    "<!-- open",
    "\ud800 and \udc80",
    "   ## indented",
    "\t# tab",
    "> quote\n## out",
    "\x00# hidden",
    "\ufeff# marked",
]
hostile = st.one_of(
    st.sampled_from(FORGED), st.text(max_size=40), st.lists(st.sampled_from(FORGED), max_size=3).map(" ".join)
)
items = st.one_of(hostile, st.lists(hostile, max_size=3))
details = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("state", "result", "nextAction", "title", "objective"), hostile),
        **dict.fromkeys(("decisions", "filesTouched", "commandsRun", "blockers"), items),
    },
)


def event(at: int = 0, **members: Any) -> Event:
    """An event as it is read from its line."""
    given_ = {"type": "checkpoint", "worker": "w", "mission": "m", **members}
    return Event(at=f"2026-01-01T00:{at // 60 % 60:02d}:{at % 60:02d}.{at // 3600:03d}Z", **given_).as_read()


@st.composite
def events(draw: st.DrawFn) -> list[Event]:
    """Some events of a mission."""
    count = draw(st.integers(1, 5))
    optional = st.none() | hostile
    return [
        event(
            at,
            type=draw(st.sampled_from(EVENT_TYPES)),
            assignment=draw(optional),
            summary=draw(optional),
            content=draw(optional),
            detail=draw(details),
        )
        for at in range(count)
    ]


OURS_IN_PARTS = [
    "# Mission m — m",
    "## Checkpoints",
    "##  checkpoints ",
    "## current state",
    "- Status: planning",
    "- Total: 1 events, 1 of them checkpoints",
    "- ...",
    "...",
    "<!-- solos:begin somebody-elses -->",
    "<!-- solos:end somebody-elses -->",
    *sorted(MARKERS),
    *(f"  {marker} " for marker in sorted(MARKERS)[:2]),
]
persons_line = st.one_of(
    st.sampled_from(OURS_IN_PARTS),
    st.sampled_from(["", "my own note", "- [ ] my task", "## My heading", "    code", "| a | b |"]),
    st.binary(max_size=12).map(lambda raw: raw.replace(b"\n", b"").decode("utf-8", "surrogateescape")),
)


@st.composite
def pages(draw: st.DrawFn) -> str:
    """A person's page: with markers or without, LF or CRLF, with a final newline or none."""
    lines = draw(st.lists(persons_line, max_size=25))
    if draw(st.booleans()):  # what we wrote, and he edited
        made = summary_of(draw(events())).page(None).split("\n")
        for line in lines:
            made.insert(draw(st.integers(0, len(made))), line)
        for _ in range(draw(st.integers(0, 4))):
            del made[draw(st.integers(0, len(made) - 1))]
        lines = made
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines) + draw(st.sampled_from(["", "\n"]))


def summary_of(told: list[Event]) -> Summary:
    """What a mission's page shows after some events."""
    summary = Summary("m")
    for one in told:
        summary.add(one)
    return summary


def lines_of_ours(told: list[Event]) -> set[str]:
    """Every line that we may have written after any of the events."""
    return {line for count in range(len(told) + 1) for line in summary_of(told[:count]).page(None).split("\n")}


def is_in_order(part: list[str], whole: list[str]) -> bool:
    """Whether lines are all among others, in their order."""
    rest = iter(whole)
    return all(line in rest for line in part)


@given(page=pages(), told=events())
@settings(max_examples=400, deadline=None)
def test_every_line_of_a_person_survives_in_its_order(page: str, told: list[Event]) -> None:
    ours = lines_of_ours(told)
    theirs = [
        line
        for line in page.split("\n")
        if line.strip() and line.strip() not in MARKERS and line.rstrip("\r") not in ours
    ]
    assert is_in_order(theirs, summary_of(told).page(page).split("\n"))


@given(page=pages(), told=events())
@settings(max_examples=400, deadline=None)
def test_merging_twice_is_merging_once(page: str, told: list[Event]) -> None:
    once = summary_of(told).page(page)
    assert summary_of(told).page(once) == once


@given(page=pages(), told=events(), more=events())
@settings(max_examples=200, deadline=None)
def test_every_event_and_every_section_is_in_the_page_once(page: str, told: list[Event], more: list[Event]) -> None:
    summary = summary_of(told)
    first = summary.page(page)
    for one in more:
        summary.add(one)
    lines = summary.page(first).split("\n")
    begin, end = (lines.index(f"<!-- solos:{word} checkpoints -->") for word in ("begin", "end"))
    assert len(lines[begin + 1 : end]) == 1 + len(told) + len(more)
    assert lines[begin + 1].startswith(f"- Total: {len(told) + len(more)} events, ")
    for marker in MARKERS:
        assert sum(line.strip() == marker for line in lines) == 1


@given(page=pages(), told=events())
@settings(max_examples=200, deadline=None)
def test_a_page_tells_how_far_it_has_come(page: str, told: list[Event]) -> None:
    assert shown_until(summary_of(told).page(page)) == told[-1].at


@given(told=events())
@settings(max_examples=400, deadline=None)
def test_what_events_say_forges_nothing_in_a_summary(told: list[Event]) -> None:
    page = summary_of(told).page(None)
    assert page.splitlines() == page.split("\n")[:-1]
    headings = [line for line in page.split("\n") if re.match(r"\s*#", line)]
    assert len(headings) == 1 + len(SECTIONS)
    assert [line for line in headings if not line.startswith("# Mission m — ")] == [
        "## Current state",
        "## Objective",
        "## Decisions",
        "## Files touched",
        "## Checkpoints",
        "## Blockers",
        "## Next action",
    ]
    assert sorted(re.findall(r"<!--.*?-->", page)) == sorted(MARKERS)
    assert page.count("<!--") == page.count("-->") == len(MARKERS)
    assert not re.search(r"^(- )?(#+ (?!Mission)|```|~~~|<script|=+$|-+$)", page.replace("## ", ""), re.MULTILINE)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", page)


@given(told=events())
@settings(max_examples=300, deadline=None)
def test_what_events_say_forges_nothing_in_an_episode(told: list[Event]) -> None:
    for one in told:
        entry = episode_entry(one)
        lines = entry.split("\n")
        assert entry.splitlines() == lines[:-1]
        assert lines[0] == lines[3] == lines[-1] == ""
        assert lines[1] == f"## {one.at[11:16]} UTC — {one.type}"
        assert lines[2] == f"<!-- solos:event m {one.at} -->"
        for line in lines[4:-1]:
            assert line == "" or re.match(
                r"- (Mission|Assignment|Summary|Result|Next action|Blockers|Files touched|Commands run): |>", line
            )
            assert not re.match(r">\s*(#|=+$|-+$)", line)
        assert entry.count("<!--") == entry.count("-->") == 1
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", entry)


@given(hostile, hostile, hostile, hostile)
@settings(max_examples=200, deadline=None)
def test_a_roster_forges_nothing_in_a_profile(name: str, role: str, specialty: str, model: str) -> None:
    plain = {file: text.split("\n") for file, text in profile_pages("w", Persona(name="n", role="r"))}
    for file, text in profile_pages("w", Persona(name=name, role=role, specialty=specialty, model=model)):
        assert text.splitlines() == text.split("\n")[:-1]
        assert len(text.split("\n")) == len(plain[file])
        assert [line for line in text.split("\n") if line.lstrip().startswith("#")] == [
            line for line in plain[file] if line.startswith("#")
        ]
        text.encode("utf-8")


@given(told=events())
@settings(max_examples=200, deadline=None)
def test_an_event_is_one_line_for_any_reader_of_lines(told: list[Event]) -> None:
    for one in told:
        line = one.line()
        assert line.count(b"\n") == 1
        assert len(line.decode().splitlines()) == 1
        assert json.loads(line)["type"] == one.type


def test_a_line_between_markers_moves_below_and_one_of_ours_comes_back() -> None:
    told = [event(0, summary="one"), event(1, summary="two")]
    page = summary_of(told).page(None).split("\n")
    at = page.index("<!-- solos:begin checkpoints -->")
    gone = page[at + 2]
    page[at + 1 : at + 3] = ["my remark"]
    merged = summary_of(told).page("\n".join(page)).split("\n")
    assert merged[merged.index("<!-- solos:end checkpoints -->") + 1] == "my remark"
    assert gone in merged


def test_a_page_without_markers_gets_them_under_its_own_headings() -> None:
    page = "# My title\n\nIntro.\n\n## Checkpoints\n\nMine.\n\n## Other\n\nText"
    lines = summary_of([event(0, summary="one")]).page(page).split("\n")
    at = lines.index("## Checkpoints")
    assert lines[at + 2] == "<!-- solos:begin checkpoints -->"
    assert lines.count("## Checkpoints") == 1
    assert is_in_order(page.split("\n"), lines)


def test_a_page_of_another_system_keeps_its_line_ends() -> None:
    told = [event(0, summary="one")]
    page = summary_of(told).page(None).replace("\n", "\r\n") + "mine\r\nlast"
    merged = summary_of([*told, event(1, summary="two")]).page(page)
    assert merged.endswith("mine\r\nlast")
    assert merged.count("two") == 1
    assert merged.count("- Status: ") == 1


def test_a_summary_shows_the_newest_and_counts_all() -> None:
    told = [event(at, summary=f"step {at}", detail={"decisions": [f"decision {at}"]}) for at in range(LISTED_MAX + 60)]
    page = summary_of(told).page(None)
    assert f"- Total: {LISTED_MAX + 60} events, {LISTED_MAX + 60} of them checkpoints; the newest 50 are shown" in page
    assert len(re.findall(r" — checkpoint — step ", page)) == CHECKPOINTS_SHOWN
    assert f"step {LISTED_MAX + 59}" in page
    assert f"step {LISTED_MAX + 9}\n" not in page
    assert "- (60 older ones are in events.jsonl)" in page
    assert page.count("- decision ") == LISTED_MAX
    older = summary_of(told[:-1]).page(None)
    assert summary_of(told).page(older) == page


def test_a_long_text_is_shown_in_part_and_says_where_the_whole_is() -> None:
    page = summary_of([event(at, content="x" * 60_000, detail={"objective": "o" * 60_000}) for at in range(60)]).page(
        None
    )
    assert len(page) < 100_000
    assert "… (the whole is in events.jsonl)" in page


def test_status_follows_the_events() -> None:
    steps = [
        (event(0, type="mission-start"), "planning"),
        (event(1, type="dispatch"), "executing"),
        (event(2, type="blocked", detail={"blockers": "no key"}), "blocked"),
        (event(3, type="note"), "blocked"),
        (event(4, type="resume"), "executing"),
        (event(5, type="handoff-requested"), "executing"),
        (event(6, detail={"state": "review"}), "review"),
        (event(7, type="handoff-written"), "review"),
        (event(8, detail={"state": "DONE"}), "executing"),
        (event(9, type="complete"), "complete"),
    ]
    summary = Summary("m")
    page: str | None = None
    for step, status in steps:
        summary.add(step)
        page = summary.page(page)
        assert f"- Status: {status}\n" in page
        assert page.count("- Status: ") == 1
        assert ("- no key" in page) == (step.at < steps[4][0].at and step.at >= steps[2][0].at)


def test_what_was_read_into_a_quotation_keeps_its_empty_lines() -> None:
    entry = episode_entry(event(0, content="first\n\n    code\r\nlast"))
    assert entry.endswith("\n> first\n>\n>     code\n> last\n")
