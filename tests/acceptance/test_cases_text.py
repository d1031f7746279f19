"""The cases about words: operators that are words, identifiers, punctuation, scripts, accents."""

from typing import Any

import pytest

from tests.acceptance.asking import answer, answers, ask, ids, refusals
from tests.support import Service

# --- operators and punctuation are text ---


def test_c001_hyphens_and_underscores_are_no_syntax(shared_service: Service) -> None:
    """`kebab-case-query` finds its row; `snake_case_var`, which is nowhere, is an empty answer and no failure."""
    written = shared_service.long("atlas", "set kebab-case-query flag")
    assert ids(shared_service, "kebab-case-query") == [written["id"]]
    nothing = answer(shared_service, "snake_case_var")
    assert nothing["results"] == []
    assert nothing["relaxed"] is False
    assert "unreachable" not in str(nothing)


@pytest.mark.parametrize("q", ["foo-bar AND baz", "foo-bar OR tier-1"])
def test_c002_hyphen_is_no_not(shared_service: Service, q: str) -> None:
    """A hyphen is text, AND and OR are words: the row that holds foo-bar is found."""
    written = shared_service.long("atlas", f"the foo-bar of {q.split()[1].lower()} hyphens")
    assert written["id"] in ids(shared_service, q, k=50)


@pytest.mark.parametrize("apostrophe", ["'", "\u2019"])
def test_c004_apostrophe_is_harmless(shared_service: Service, apostrophe: str) -> None:
    """A typewriter's or a typesetter's apostrophe, in the row or in the question: the same words."""
    written = shared_service.long("atlas", f"don{apostrophe}t restart c004-{ord(apostrophe)}")
    for asked in ("don't restart the gateway", "don\u2019t restart the gateway"):
        assert written["id"] in ids(shared_service, asked, k=50)


C005 = ["AND", "OR", "NOT", "NEAR", "foo OR", "NOT foo", "(", ")", "*", "^", "{x}", "+", "-", "-foo"]


@pytest.mark.parametrize("q", [*C005, *(f'"{q}"' for q in C005), '"', "'", "foo*", "terms:foo", "NEAR(foo, 2)"])
def test_c005_no_question_is_a_syntax_error(shared_service: Service, q: str) -> None:
    """Operators, brackets and wildcards of FTS5 are answered like every other text, quoted or not."""
    for body in answers(shared_service, q).values():
        assert isinstance(body["results"], list)
        assert "syntax" not in str(body)


def test_c005_operators_find_the_words_they_are_made_of(shared_service: Service) -> None:
    """`NOT foo` asks for foo: nothing is negated."""
    written = shared_service.long("atlas", "quxfoo stands alone")
    for q in ("NOT quxfoo", "quxfoo OR", "-quxfoo", "{quxfoo}", "quxfoo*", "(quxfoo", '"quxfoo'):
        assert ids(shared_service, q) == [written["id"]], q


def test_c007_names_with_symbols_are_kept(shared_service: Service) -> None:
    """C++ is no C: its row comes first."""
    written = shared_service.long("atlas", "written in C++")
    shared_service.long("atlas", "path C:\\tmp")
    shared_service.long("atlas", "grade C")
    assert ids(shared_service, "C++")[0] == written["id"]
    sharp = shared_service.long("atlas", "written in C#")
    assert ids(shared_service, "C#")[0] == sharp["id"]


C008 = {
    "ubuntu 20.04": "the runner boots ubuntu 20.04",
    "node.js": "the page is built with node.js",
    "v2.0.31": "the fix is in v2.0.31",
    "100%": "the disk was at 100% by noon",
    "user@example.com": "write to user@example.com",
    "#tag": "it is filed under #tag",
    "GB/s": "the link carries 40 GB/s",
}


@pytest.mark.parametrize(("q", "fact"), C008.items(), ids=list(C008))
def test_c008_inner_punctuation(shared_service: Service, q: str, fact: str) -> None:
    """Versions, addresses, paths and units find their rows, and the row that has them whole comes first."""
    written = shared_service.long("atlas", fact)
    shared_service.long("atlas", "version 20 of 04 and 2 0 31, a node for js, GB in s, a user of an example")
    assert ids(shared_service, q)[0] == written["id"]


# --- empty questions, NUL ---


@pytest.mark.parametrize("given", [{}, {"q": ""}, {"q": "   "}, {"q": "\t\n \u3000"}], ids=repr)
def test_c012_a_question_without_text_is_refused(shared_service: Service, given: dict[str, Any]) -> None:
    """Missing, empty and blank are the same mistake: 400 with one reason that names q, the same everywhere."""
    errors = refusals(shared_service, **given)
    details = {error["detail"] for error in errors.values()}
    assert len(details) == 1
    assert details.pop().startswith("q: ")


@pytest.mark.parametrize("q", ["???", "!", "...", "«»", "—", "🙂"])
def test_c012_punctuation_alone_has_no_results(shared_service: Service, q: str) -> None:
    """A question with neither letter nor digit has no results, and no recent rows are dressed as some."""
    shared_service.long("atlas", "what is this???! ... «so» — 🙂")
    nothing = answer(shared_service, q)
    assert (nothing["results"], nothing["relaxed"]) == ([], False)


@pytest.mark.parametrize("q", ["\x00nulword", "nul\x00word", "nulword\x00"])
def test_c014_nul_in_a_question_is_dropped(shared_service: Service, q: str) -> None:
    """NUL in a question is as if it were not there."""
    written = shared_service.long("atlas", f"the nulword of {q.index(chr(0))}")
    assert written["id"] in ids(shared_service, q, k=50)


def test_c014_nul_in_an_address(shared_service: Service) -> None:
    """%00 in an address is the same."""
    written = shared_service.long("atlas", "percentnul word")
    response = shared_service.http.get(f"{shared_service.url}/v1/recall?agent=sol&q=%00percentnul")
    assert response.status_code == 200, response.text
    assert [memory["id"] for memory in response.json()["results"]] == [written["id"]]


C014 = [
    ("long", "fact"),
    ("long", "topic"),
    ("long", "source"),
    ("long", "session"),
    ("long", "tags"),
    ("episodic", "summary"),
    ("episodic", "event_type"),
    ("episodic", "details"),
    ("episodic", "outcome"),
    ("short", "key"),
    ("short", "value"),
]


@pytest.mark.parametrize(("tier", "field"), C014)
def test_c014_nul_in_text_to_be_stored_is_refused(shared_service: Service, tier: str, field: str) -> None:
    """Text with NUL would end early for other readers of the database: 400 that names the field, and no row."""
    whole = {"long": {"fact": "a"}, "episodic": {"summary": "a"}, "short": {"key": "c014", "value": "a"}}[tier]
    body = {"agent": "sol", **whole, field: ["ab\x00cd"] if field == "tags" else "ab\x00cd"}
    before = shared_service.stats()["store"]["rows"]
    status, refused = shared_service.rest("POST", f"/v1/{tier}", body)
    assert (status, refused["error"]["code"]) == (400, "invalid_request")
    assert refused["error"]["detail"].startswith(f"{field}: ")
    error, by_mcp = shared_service.mcp(f"remember_{tier}", body)
    assert (error, by_mcp["ok"], by_mcp["error"]["code"]) == (False, False, "invalid_request")
    assert by_mcp["error"]["detail"] == refused["error"]["detail"]
    assert shared_service.stats()["store"]["rows"] == before


# --- scripts without spaces, accents ---


def test_c028_words_inside_a_run_of_chinese(shared_service: Service) -> None:
    """A word inside a sentence without spaces is found."""
    written = shared_service.long("atlas", "状态数据库写入失败需要重试")
    for q in ("数据库", "写入失败"):
        assert ids(shared_service, q) == [written["id"]], q


@pytest.mark.parametrize(
    ("word", "fact"), [("模型", "新模型训练完毕"), ("会議", "会議は三時"), ("회의", "회의는 세 시")]
)
def test_c030_words_of_two_characters(shared_service: Service, word: str, fact: str) -> None:
    """Two characters are a word; nothing has a minimum length."""
    written = shared_service.long("atlas", fact)
    assert ids(shared_service, word) == [written["id"]]


def test_c030_one_character_is_a_word_too(shared_service: Service) -> None:
    """So is one."""
    written = shared_service.long("atlas", "這隻龘很大")
    assert ids(shared_service, "龘") == [written["id"]]


def test_c032_mixed_scripts(shared_service: Service) -> None:
    """A question of an English word that is not there and a Chinese run that is."""
    written = shared_service.long("atlas", "Worker/Server 队列端口错配导致任务无人消费")
    assert ids(shared_service, "docker 队列端口错配")[0] == written["id"]


def test_c033_kana_and_korean_particles(shared_service: Service) -> None:
    """A run of kana inside a sentence, and a Korean word with a particle that the row does not have."""
    japanese = shared_service.long("atlas", "今日は成語しりとりをした")
    korean = shared_service.long("atlas", "오늘 끝말잇기 게임을 했다")
    assert ids(shared_service, "しりとり")[0] == japanese["id"]
    assert ids(shared_service, "끝말잇기를")[0] == korean["id"]


def test_c035_diacritics_and_case(shared_service: Service) -> None:
    """Diacritics and case are folded on both sides, composed or not."""
    written = shared_service.long("atlas", "München office, Müller on call")
    for q in ("Muller", "munchen", "MÜLLER", "Mu\u0308ller", "MUNCHEN"):
        assert ids(shared_service, q) == [written["id"]], q
    plain = shared_service.long("atlas", "the cafe of Malaga")
    assert ids(shared_service, "Café Málaga")[0] == plain["id"]


NAMES = {"Cyrillic": "Отладка", "Chinese": "调试", "Japanese": "デバッグ", "emoji": "🐛🙂", "300 emoji": "🙂" * 300}


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_c040_topics_in_any_script(shared_service: Service, name: str) -> None:
    """A topic of up to 300 characters, whatever they are, is stored as it is and filtered by."""
    written = shared_service.long("mira", "scriptprobe topic", topic=name)
    (found,) = ask(shared_service, "scriptprobe", topic=name)
    assert (found["id"], found["topic"]) == (written["id"], name)


@pytest.mark.parametrize("name", list(NAMES.values())[:-1], ids=list(NAMES)[:-1])
def test_c040_tags_in_any_script(shared_service: Service, name: str) -> None:
    """A tag of up to 100 characters likewise."""
    written = shared_service.long("mira", "scriptprobe tag", tags=[name])
    (found,) = ask(shared_service, "scriptprobe", tags=[name])
    assert (found["id"], found["tags"]) == (written["id"], [name])


@pytest.mark.parametrize("name", NAMES.values(), ids=list(NAMES))
def test_c040_keys_in_any_script(shared_service: Service, name: str) -> None:
    """A key of 300 emoji is a key; it is read back by itself, over both transports."""
    body = {"agent": "mira", "key": name, "value": "v"}
    status, written = shared_service.rest("POST", "/v1/short", body)
    assert status == 201, written
    (entry,) = shared_service.rest("GET", "/v1/short", agent="mira", key=name)[1]["entries"]
    assert (entry["id"], entry["key"]) == (written["id"], name)
    _, by_mcp = shared_service.mcp("get_short", {"agent": "mira", "key": name})
    assert [entry["key"] for entry in by_mcp["entries"]] == [name]


@pytest.mark.parametrize(("field", "chars"), [("tags", 101), ("topic", 301)])
def test_c040_what_is_too_long_is_said(shared_service: Service, field: str, chars: int) -> None:
    """One character more than the rule is refused with the rule, and nothing is cut in silence."""
    long = "🙂" * chars
    body = {"agent": "mira", "fact": "a fact", field: [long] if field == "tags" else long}
    status, refused = shared_service.rest("POST", "/v1/long", body)
    assert (status, refused["error"]["code"]) == (413, "too_large")
    assert refused["error"]["detail"] == f"{field}: is longer than {chars - 1} characters."
    error, by_mcp = shared_service.mcp("remember_long", body)
    assert (error, by_mcp["error"]) == (False, refused["error"])
