"""Promotion of lessons: where the line goes, what is a duplicate, what is refused; no byte of a person is lost."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import Conflict, FileFailed, Forbidden, InvalidRequest, Rejection, StorageFull, TooLarge
from storage.swarm.folders import FolderHandle, Placed, Seen
from storage.swarm.layout import Roots
from storage.swarm.life.promoting import HEADING, HEADINGS, Lesson, Promotions, found, lesson_of, put
from storage.swarm.life.records import Promoted
from storage.swarm.memory import SwarmMemory
from storage.swarm.pages import Persona, profile_pages
from storage.swarm.renames import hash_of
from tests.storage.conftest import Clock
from tests.storage.swarm.files import (
    DAY,
    WORKER,
    Swarm,
    conflicts,
    leftovers,
    long_ago,
    person_writes,
    picture,
)
from tests.storage.swarm.test_editors import EDITS, Editor, replaces, writes_in_place
from tests.storage.swarm.test_faults import ERRORS, OPERATIONS, Fault
from tests.storage.swarm.test_layout import HOSTILE

TEXT = "Point the name last."
LINE = f"- {TEXT} — from mission m-1, {DAY}"
TEMPLATE = dict(profile_pages(WORKER, Persona()))["MEMORY.md"]


def asked(
    text: str = TEXT, *, heading: str = HEADING, mission: str | None = "m-1", source: str | None = None
) -> Lesson:
    """A lesson that was sent."""
    return lesson_of(text, heading=heading, mission=mission, source=source, day=DAY)


def put_into(page: str, text: str = TEXT, *, heading: str = HEADING) -> str:
    """The page with a lesson in it."""
    return put(page.encode("utf-8", "surrogateescape"), asked(text, heading=heading)).page.decode("utf-8", "replace")


def promotions(swarm: Swarm, persona: Callable[[str], Persona] = lambda _: Persona()) -> Promotions:
    """The promotions of a swarm's writer."""
    return Promotions(swarm.roots, swarm.memory.pages, persona=persona, clock=swarm.clock)


def promote(swarm: Swarm, text: str = TEXT, **members: Any) -> Promoted:
    """Promote a lesson of mission m-1."""
    return promotions(swarm).promote(WORKER, text, **{"mission": "m-1", "source": None, **members})


# --- where a line goes ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("## Lessons learned\n\n- ...\n", "## Lessons learned\n\n- ...\n@\n"),
        ("# lessons LEARNED #\n- a\n\n\n## Next\n", "# lessons LEARNED #\n- a\n@\n\n\n## Next\n"),
        ("##  Lessons   learned\n## Next\n", "##  Lessons   learned\n\n@\n\n## Next\n"),
        ("### Lessons learned", "### Lessons learned\n\n@"),
        ("## Lessons learned\n\n\n\n", "## Lessons learned\n\n@\n\n\n\n"),
        ("## Lessons learned\n- a", "## Lessons learned\n- a\n@"),
        ("## Lessons learned\n- a\n   ", "## Lessons learned\n- a\n@\n   "),
        ("## Lessons learned\r\n- a\r\n", "## Lessons learned\r\n- a\r\n@\r\n"),
        ("x\r\n\r\n## Lessons learned\r\n- a", "x\r\n\r\n## Lessons learned\r\n- a\r\n@"),
        ("\ufeff## Lessons learned\n- a\n", "\ufeff## Lessons learned\n- a\n@\n"),
        ("## Lessons learned\n* a\n  more\n\n  more\n* b\n", "## Lessons learned\n* a\n  more\n\n  more\n* b\n* @\n"),
        ("## Lessons learned\n- a\nlazy\n\nText.\n", "## Lessons learned\n- a\nlazy\n@\n\nText.\n"),
        ("## Lessons learned\n* a\n  - b\n", "## Lessons learned\n* a\n  - b\n* @\n"),
        ("## Lessons learned\n1. a\n", "## Lessons learned\n1. a\n@\n"),
        ("## Lessons learned\nText.\n", "## Lessons learned\nText.\n\n@\n"),
        ("## Lessons learned\n- a\n### Of tests\n- b\n", "## Lessons learned\n- a\n@\n\n### Of tests\n- b\n"),
        ("## Lessons learned\n- a\n<!-- end -->\n", "## Lessons learned\n- a\n@\n\n<!-- end -->\n"),
        ("## Lessons learned\n- a\n  - b\n---\nx\n", "## Lessons learned\n- a\n  - b\n@\n\n---\nx\n"),
        ("Lessons learned\n---\n\n- a\n\nNext\n===\n", "Lessons learned\n---\n\n- a\n@\n\nNext\n===\n"),
        ("Lessons\nlearned\n===\nText.\n", "Lessons\nlearned\n===\nText.\n\n@\n"),
        (
            "## Lessons learned\n- a\n\n## Lessons learned\n- b\n",
            "## Lessons learned\n- a\n@\n\n## Lessons learned\n- b\n",
        ),
    ],
)
def test_a_lesson_goes_to_the_end_of_the_list_of_its_heading(before: str, after: str) -> None:
    expected = after.replace("* @", f"* {LINE[2:]}").replace("@", LINE)
    assert put_into(before) == expected


@pytest.mark.parametrize(
    "hidden",
    [
        "```\n## Lessons learned\n```\n",
        "~~~~ md\n~~~\n## Lessons learned\n```\n~~~~\n",
        "- a\n  ```\n  ## Lessons learned\n  ```\n",
        "1. ```\n   ## Lessons learned\n   ```\n",
        "<!--\n## Lessons learned\n-->\n",
        "- <!-- not yet\n## Lessons learned\n-->\n",
        "    ## Lessons learned\n",
        "#Lessons learned\n",
        "> ## Lessons learned\n",
        "- Lessons learned\n---\n",
    ],
)
def test_what_only_looks_like_a_heading_is_none(hidden: str) -> None:
    page = f"{hidden}\n## Lessons learned\n\n- a\n"
    assert put_into(page) == f"{page}{LINE}\n"


@pytest.mark.parametrize(
    "line",
    ["`## not code`", "```inline``` code", "<!-- closed -->", "text <!-- of a line", "***", "- - -", "===", "C#"],
)
def test_what_hides_nothing_hides_no_heading(line: str) -> None:
    page = f"# Memory\n\n{line}\n\n## Lessons learned\n\n- a\n"
    assert put_into(page) == f"{page}{LINE}\n"


def test_a_code_block_of_an_item_belongs_to_it() -> None:
    page = "## Lessons learned\n- a\n  ```\n- in code\n## in code\n  ```\n"
    assert put_into(f"{page}\nText.\n") == f"{page}{LINE}\n\nText.\n"


@pytest.mark.parametrize("heading", HEADINGS)
def test_a_heading_of_the_template_that_is_gone_comes_back(heading: str) -> None:
    for page, gap in (("# Mine\n\nText.\n", "\n"), ("# Mine\n\n", ""), ("", "")):
        assert put_into(page, heading=heading.upper()) == f"{page}{gap}## {heading}\n\n{LINE}\n"
    assert put_into("Text.", heading=heading) == f"Text.\n\n## {heading}\n\n{LINE}"
    assert put_into("Text.\r\n", heading=heading) == f"Text.\r\n\r\n## {heading}\r\n\r\n{LINE}\r\n"


def test_the_headings_that_come_back_are_those_of_the_template() -> None:
    titles = [line.removeprefix("## ") for line in TEMPLATE.split("\n") if line.startswith("## ")]
    assert titles == ["Role", *HEADINGS]


def test_a_heading_of_a_person_s_own_is_found() -> None:
    assert put_into("# Mine\n\n## C#\n- a\n", heading="## c#") == f"# Mine\n\n## C#\n- a\n{LINE}\n"


def test_another_heading_is_refused_with_those_that_are_there() -> None:
    for heading in ("Gotchas", "Role"):
        with pytest.raises(InvalidRequest, match=rf"heading: MEMORY\.md has no '{heading}'; it has 'Mine', 'Yours'\."):
            put_into("# Mine\n\nYours\n---\n", heading=heading)
    with pytest.raises(InvalidRequest, match=r"it has none\."):
        put_into("", heading="Gotchas")


@pytest.mark.parametrize("opening", ["```", "~~~", "<!--", "- ```"])
def test_what_is_not_closed_swallows_no_lesson(opening: str) -> None:
    with pytest.raises(Conflict, match=r"MEMORY\.md: the code block or comment of line 2 is not closed\."):
        put_into(f"# Mine\n{opening}\n## Lessons learned\n")
    page = f"## Lessons learned\n- a\n## Next\n{opening}\n"
    assert put_into(page) == page.replace("- a\n", f"- a\n{LINE}\n\n")


PIECES = [
    "## Lessons learned",
    "Lessons learned",
    "===",
    "---",
    "# Next",
    "### Of tests ##",
    "- a",
    "  - b",
    "* c",
    "1. d",
    "text",
    "  text",
    "    code",
    "```",
    "  ```",
    "~~~~",
    "<!--",
    "-->",
    "<!-- x -->",
    "- ```",
    "> quoted",
    "",
    "  ",
    "\ufeff",
    "é\udcff\udc80",
]
PAGES = st.lists(
    st.tuples(st.sampled_from(PIECES), st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"])), max_size=14
).map(lambda lines: "".join(text + end for text, end in lines))


@settings(max_examples=400, deadline=None)
@given(
    page=PAGES,
    cut=st.integers(0, 3),
    text=st.sampled_from([TEXT, "1. # x", "> ``` y", "<!-- z", "[ ] ~~~ t", "+ ## u"]),
)
def test_a_page_is_the_page_before_with_one_span_put_in(page: str, cut: int, text: str) -> None:
    before = page.encode("utf-8", "surrogateescape")[: len(page.encode("utf-8", "surrogateescape")) - cut]
    lesson = asked(text)
    assert found(before, lesson.text) is None
    try:
        new = put(before, lesson)
    except Conflict:
        assert any(opening in before for opening in (b"```", b"~~~", b"<!--"))
        return
    assert new.page[: new.start] + new.page[new.start + len(new.span) :] == before
    assert new.page[new.start : new.start + len(new.span)] == new.span
    assert lesson.line.encode() in new.page.splitlines()[new.line - 1]
    assert new.heading.casefold() == HEADING.casefold()
    again = found(new.page, lesson.text)
    assert again is not None
    assert (again.line, again.heading) == (new.line, new.heading)
    another = put(new.page, asked("another lesson"))
    assert (another.heading, another.line) == (new.heading, new.line + 1)
    if before.count(b"\r\n") == before.count(b"\r") == before.count(b"\n") > 0:
        assert new.span.count(b"\r\n") == new.span.count(b"\n") == new.span.count(b"\r")


@settings(max_examples=200, deadline=None)
@given(before=st.binary(max_size=80))
def test_a_page_in_no_utf8_is_kept(before: bytes) -> None:
    new = put(before, asked())
    assert new.page[: new.start] + new.page[new.start + len(new.span) :] == before


# --- what a lesson is ---


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("  two\r\nlines\u2028here ", "two lines here"),
        ("- - an item", "an item"),
        ("# no heading", "\\# no heading"),
        ("1. ## no heading", "1. \\## no heading"),
        ("> ```no fence", "> \\```no fence"),
        ("~~~ no fence", "\\~~~ no fence"),
        ("<!-- solos:begin state -->", "&lt;!-- solos:begin state --&gt;"),
        ("<script>x", "\\<script>x"),
        ("a\x00b\ud800c", "ab\ufffdc"),
    ],
)
def test_a_lesson_is_one_line_that_forges_nothing(text: str, line: str) -> None:
    assert asked(text).line == f"{line} — from mission m-1, {DAY}"


@pytest.mark.parametrize(
    ("mission", "source", "origin"),
    [
        ("M-1", None, "mission m-1"),
        (None, "the\nreview", "the review"),
        ("m-1", "the review — from Tam <!--", "mission m-1, the review - from Tam &lt;!--"),
    ],
)
def test_a_line_says_where_it_came_from(mission: str | None, source: str | None, origin: str) -> None:
    lesson = asked(mission=mission, source=source)
    assert lesson.line == f"{TEXT} — from {origin}, {DAY}"
    assert found(f"- {lesson.line}\n".encode(), TEXT) == (1, "")


@pytest.mark.parametrize("text", ["", "  ", "***", "🎉 …", "- - -", "—", "\x00", "_"])
def test_a_lesson_without_words_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="lesson: has no words"):
        asked(text)


@pytest.mark.parametrize("source", [None, "", " \n", "\x00"])
def test_a_lesson_from_nowhere_is_refused(source: str | None) -> None:
    with pytest.raises(InvalidRequest, match="source: is missing or empty, and so is missionId"):
        asked(mission=None, source=source)


@pytest.mark.parametrize("heading", ["", "  ", "##", "\n"])
def test_a_heading_that_is_empty_is_refused(heading: str) -> None:
    with pytest.raises(InvalidRequest, match="heading: is empty"):
        asked(heading=heading)


@pytest.mark.parametrize("field", ["text", "source", "heading"])
def test_what_is_longer_than_a_line_may_be_is_refused(field: str) -> None:
    def sent(length: int) -> Lesson:
        given = {"text": TEXT, "heading": HEADING, "source": "x", field: "x" * length}
        return lesson_of(given["text"], heading=given["heading"], mission=None, source=given["source"], day=DAY)

    assert "x" * 1_000 in (sent(1_000).heading, sent(1_000).text, sent(1_000).origin.partition(",")[0])
    with pytest.raises(TooLarge, match=rf"^{field.replace('text', 'lesson')}: has 1,001 characters; 1,000 is the most"):
        sent(1_001)


# --- duplicates ---

LONG = " ".join(f"word{number}" for number in range(60))


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("- Point the name last.\n", "point the NAME last"),
        ("- Pointing the names last — from the review, 2026-01-02\n", TEXT),
        ("* [x] **Point** the `name` last!\n", TEXT),
        ("7) Point the name last\n", TEXT),
        ("# H\n\n> Point the name last\n", TEXT),
        ("Some text.\nPoint the name last.\nMore.\n", TEXT),
        ("- Point the\n  name last\n", TEXT),
        ("- Point the name last — from mission\n  m-7, 2026-01-02\n", TEXT),
        ("- a\n  - Point the name last — from x, y, 2026-01-02 — from z, 2026-02-03\n", TEXT),
        ("- Point the name last\n", f"{TEXT} — from mission m-9, 2026-02-03"),
        ("- 名を最後に向ける\n", "名を最後に向ける。"),
        (f"- {LONG}.\n", LONG.upper()),
    ],
)
def test_what_a_page_says_already_is_found(page: str, text: str) -> None:
    assert found(page.encode(), asked(text).text) is not None


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("- Point the name first.\n", TEXT),
        ("## Point the name last\n", TEXT),
        ("```\nPoint the name last\n```\n", TEXT),
        ("<!--\n- Point the name last\n-->\n", TEXT),
        ("- Last the name point\n", TEXT),
        ("- keep x < 5\n", "keep x > 5"),
        (f"- {LONG}\n", f"do not {LONG}"),
        ("- Point the name last — from lab-01 to lab-02\n", TEXT),
        (f"- {'x ' * 5_000}\n", TEXT),
    ],
)
def test_what_a_page_does_not_say_is_not_found(page: str, text: str) -> None:
    assert found(page.encode(), asked(text).text) is None


# --- on disk ---


def test_a_lesson_is_promoted_once(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    first = promote(swarm, source="the review")
    line = f"- {TEXT} — from mission m-1, the review, {DAY}"
    assert page.read_text(encoding="utf-8") == f"{TEMPLATE}{line}\n"
    assert first == Promoted(
        workerId=WORKER,
        path=str(page),
        heading="Lessons learned",
        line=page.read_text(encoding="utf-8").split("\n").index(line) + 1,
        action="promoted",
        hash=hash_of(page.read_bytes()),
    )
    before = page.stat()
    again = promote(swarm, "Point the names last", mission="m-2", heading="Project conventions")
    assert (again.action, again.line, again.heading) == ("kept", first.line, "Lessons learned")
    assert again.hash == first.hash
    assert page.stat() == before
    swarm.follow()
    assert page.stat().st_ino == before.st_ino
    assert leftovers(swarm.folder) == []
    assert not swarm.memory.behind


def test_a_page_that_is_missing_is_made_from_its_template(swarm: Swarm) -> None:
    made = promotions(swarm, lambda worker: Persona(role=f"builder {worker}")).promote(
        "Swarm5", "builder swarm5", mission=None, source="the review"
    )
    text = (swarm.worker / "MEMORY.md").read_text(encoding="utf-8")
    assert "## Role\n\nbuilder swarm5 — ...\n" in text
    assert text.endswith(f"## Lessons learned\n\n- ...\n- builder swarm5 — from the review, {DAY}\n")
    assert (made.action, made.hash) == ("promoted", hash_of(text.encode()))


def test_a_refusal_writes_nothing(swarm: Swarm) -> None:
    sent: list[tuple[str, dict[str, Any]]] = [
        ("***", {}),
        (TEXT, {"heading": "Gotchas"}),
        (TEXT, {"mission": None}),
        *((TEXT, {"mission": hostile}) for hostile in HOSTILE),
    ]
    for text, members in sent:
        with pytest.raises(InvalidRequest):
            promote(swarm, text, **members)
    for hostile in HOSTILE:
        with pytest.raises(InvalidRequest):
            promotions(swarm).promote(hostile, TEXT, mission="m-1", source=None)
    assert list(swarm.folder.parent.iterdir()) == []


def test_a_page_does_not_become_larger_than_can_be_read(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    added = len(f"{LINE}\n".encode())
    monkeypatch.setattr("storage.swarm.life.promoting.PAGE_BYTES_MAX", page.stat().st_size + added - 1)
    before = picture(swarm.folder)
    with pytest.raises(TooLarge, match="lesson: "):
        promote(swarm)
    assert picture(swarm.folder) == before
    monkeypatch.setattr("storage.swarm.life.promoting.PAGE_BYTES_MAX", page.stat().st_size + added)
    assert promote(swarm).action == "promoted"


@pytest.mark.parametrize("place", ["MEMORY.md", "../memory"])
def test_no_link_is_followed(swarm: Swarm, place: str) -> None:
    elsewhere = swarm.folder.parent / "elsewhere"
    person_writes(elsewhere / "MEMORY.md", TEMPLATE)
    if place == "MEMORY.md":
        swarm.worker.mkdir(parents=True)
        (swarm.worker / place).symlink_to(elsewhere / place)
    else:
        swarm.worker.parent.mkdir(parents=True)
        swarm.worker.symlink_to(elsewhere)
    with pytest.raises(Forbidden):
        promote(swarm)
    assert picture(elsewhere) == {"MEMORY.md": TEMPLATE.encode()}


# --- editors ---


def test_a_save_at_the_same_moment_is_promoted_into(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    exchange = FolderHandle.exchange
    saves = iter([f"{TEMPLATE}- saved meanwhile\n"])

    def late(self: FolderHandle, name: str, content: bytes, seen: Seen | None) -> Placed | None:
        if (save := next(saves, None)) is not None:
            person_writes(page, save)
        return exchange(self, name, content, seen)

    monkeypatch.setattr(FolderHandle, "exchange", late)
    assert promote(swarm).action == "promoted"
    assert page.read_text(encoding="utf-8") == f"{TEMPLATE}- saved meanwhile\n{LINE}\n"


def test_a_page_that_is_made_at_the_same_moment_is_promoted_into(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    create = FolderHandle.create

    def late(self: FolderHandle, name: str, content: bytes) -> object:
        person_writes(page, "# Mine\n")
        return create(self, name, content)

    monkeypatch.setattr(FolderHandle, "create", late)
    assert promote(swarm).action == "promoted"
    assert page.read_text(encoding="utf-8") == f"# Mine\n\n## Lessons learned\n\n{LINE}\n"


def test_a_page_that_is_written_all_the_time_is_left(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    before = picture(swarm.folder)
    monkeypatch.setattr(FolderHandle, "exchange", lambda *_: None)
    with pytest.raises(FileFailed, match="all the time"):
        promote(swarm)
    assert picture(swarm.folder) == before
    assert not swarm.memory.behind


def test_a_page_that_is_half_written_is_waited_for(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "")
    page.touch()  # emptied at this moment
    pauses = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        person_writes(page, "# Mine\n\n## Gotchas\n")

    monkeypatch.setattr(time, "sleep", pause)
    assert promote(swarm, heading="gotchas").heading == "Gotchas"
    assert len(pauses) == 1
    promoter = promotions(swarm)
    for number in range(3):
        promoter.promote(WORKER, f"lesson {number}", mission="m-1", source=None)
    assert len(pauses) <= 2  # ours need no waiting


def test_what_an_editor_writes_into_the_page_that_came_out_is_merged(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    late = f"# Mine\n\n## Lessons learned\n- late edit\n\n{TEMPLATE}"
    with page.open("r+", encoding="utf-8") as editor:
        promote(swarm)
        editor.write(late)
    for path in swarm.worker.iterdir():
        long_ago(path)
    swarm.follow()
    assert page.read_text(encoding="utf-8") == late.replace("- late edit\n", f"- late edit\n{LINE}\n")
    assert conflicts(swarm.folder) == []
    assert leftovers(swarm.folder) == []


@pytest.mark.parametrize(
    ("saved", "after"),
    [
        ("# Mine\n\n## Lessons learned\n- a\n\n## Next\n", "# Mine\n\n## Lessons learned\n- a\n@\n\n## Next\n"),
        ("# Mine\r\n", "# Mine\r\n\r\n## Lessons learned\r\n\r\n@\r\n"),
        ("# Mine\n- Pointing the name last!\n", "# Mine\n- Pointing the name last!\n"),
        ("# Mine\n```\n", "# Mine\n```\n"),
    ],
    ids=["other text", "no heading", "said in other words", "no place for it"],
)
def test_a_lesson_that_an_editor_undid_comes_back_once(swarm: Swarm, saved: str, after: str) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    promote(swarm)
    assert swarm.memory.behind
    person_writes(page, saved)
    swarm.follow()
    assert page.read_bytes().decode() == after.replace("@", LINE)
    assert not swarm.memory.behind
    assert leftovers(swarm.folder) == []
    person_writes(page, "gone later\n")
    swarm.follow()
    assert page.read_text() == "gone later\n"


def test_a_heading_of_a_person_s_own_comes_back_with_its_lesson(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "## Gotchas\n")
    promote(swarm, heading="gotchas")
    person_writes(page, "# Mine\n")
    swarm.memory.close()
    assert page.read_text(encoding="utf-8") == f"# Mine\n\n## gotchas\n\n{LINE}\n"


def test_an_editor_undoes_lessons_and_appended_text_alike(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    swarm.memory.write_page("profile", WORKER, None, "- appended", base_hash=None)
    person_writes(page, TEMPLATE)  # undone
    promote(swarm)
    promote(swarm, "Another lesson")
    swarm.follow()
    text = page.read_text(encoding="utf-8")
    assert text == f"{TEMPLATE}{LINE}\n- Another lesson — from mission m-1, {DAY}\n- appended"
    person_writes(page, TEMPLATE)
    swarm.follow()
    assert page.read_text(encoding="utf-8") == TEMPLATE


def test_text_that_was_undone_before_more_was_appended_comes_back(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, "old\n")
    swarm.memory.write_page("profile", WORKER, None, "first\n", base_hash=None)
    person_writes(page, "old\n")
    swarm.memory.write_page("profile", WORKER, None, "second\n", base_hash=None)
    swarm.follow()
    assert page.read_text() == "old\nsecond\nfirst\n"
    assert not swarm.memory.behind


def test_a_lesson_is_not_put_back_into_a_page_that_was_replaced_or_removed(swarm: Swarm) -> None:
    page = swarm.worker / "MEMORY.md"
    written = promote(swarm)
    swarm.memory.write_page("profile", WORKER, None, "instead", base_hash=written.hash)
    swarm.follow()
    assert page.read_text() == "instead"
    promote(swarm)
    page.unlink()
    swarm.follow()
    assert not page.exists()


@pytest.mark.parametrize("save", [replaces, writes_in_place], ids=["replaces", "writes in place"])
def test_no_edit_and_no_lesson_is_lost_while_an_editor_saves(tmp_path: Path, save: Callable[[Path, str], None]) -> None:
    roots = Roots(profiles=tmp_path / "profiles", shared=tmp_path / "shared")
    memory = SwarmMemory(roots)
    promoter = Promotions(roots, memory.pages)
    folder = tmp_path / "profiles" / WORKER / "memory"
    page = folder / "MEMORY.md"
    promoter.promote(WORKER, "lesson 0", mission=None, source="test")
    editor = Editor(page, "editor", save)
    editor.start()
    promoted = ["lesson 0"]
    while editor.is_alive():
        text = f"lesson {len(promoted)}"
        try:
            promoter.promote(WORKER, text, mission=None, source="test")
            promoted.append(text)
        except FileFailed:
            pass
        memory.follow()
        time.sleep(0.02)
    editor.join()
    memory.close()
    assert len(editor.saved) == EDITS
    kept = [path.read_text(encoding="utf-8") for path in (page, *conflicts(folder))]
    assert [line for line in editor.saved if not any(f"{line}\n" in text for text in kept)] == []
    assert [text for text in promoted if kept[0].count(f"- {text} — from test") != 1] == []
    assert leftovers(tmp_path) == []


# --- faults ---


@pytest.mark.parametrize("fresh", [True, False], ids=["made", "put in"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_after_a_fault_the_page_is_the_old_or_the_new_one(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, *, operation: str, fresh: bool
) -> None:
    def prepared(name: str) -> Swarm:
        swarm = Swarm(tmp_path / name, clock)
        if not fresh:
            person_writes(swarm.worker / "MEMORY.md", TEMPLATE)
        return swarm

    def failed(swarm: Swarm, fault: Fault) -> type[Rejection] | None:
        try:
            with fault.planted(monkeypatch):
                promote(swarm)
        except Rejection as rejection:
            return type(rejection)
        return None

    whole = prepared("whole")
    promote(whole)
    whole.follow()
    expected = picture(whole.folder)
    counted, swarm = Fault(operation, 0, None), prepared("count")
    assert failed(swarm, counted) is None
    assert counted.calls or operation == "mkdir"
    for at in range(counted.calls):
        for code, error in ERRORS.items():
            swarm = prepared(f"{at}-{code}")
            before = picture(swarm.folder)
            if (refused := failed(swarm, Fault(operation, code, at))) is not None:
                assert refused is error
                assert picture(swarm.folder) == before
                assert promote(swarm).action == "promoted"
            swarm.follow()
            assert picture(swarm.folder) == expected
            assert leftovers(swarm.folder) == []


def test_a_full_disk_puts_a_lesson_back_later_or_never(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    page = swarm.worker / "MEMORY.md"
    person_writes(page, TEMPLATE)
    promote(swarm)
    person_writes(page, f"{TEMPLATE}my remark\n")

    def full(*_: Any) -> None:
        raise StorageFull

    with monkeypatch.context() as patched:
        patched.setattr(FolderHandle, "exchange", full)
        swarm.follow()
    assert page.read_text(encoding="utf-8") == f"{TEMPLATE}my remark\n"
    assert not swarm.memory.behind
