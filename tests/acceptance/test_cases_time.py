"""The cases about time: dates in questions, instants in legacy rows, the zone of the machine."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage.times import iso
from tests.acceptance.asking import ask, ids, refusals
from tests.support import Service, eventually, fresh_database, rows, serving

INSERT = "INSERT INTO memory_longterm(agent, fact, created_at) VALUES (?, ?, ?)"


def at(instant: str, text: str) -> str:
    """The fact of a row that was written at an instant."""
    return f"{text} {instant}"


# --- C068: the zone of the machine plays no part ---

EDGES = {
    "2026-09-26T23:59:59Z": 1_790_467_199.0,
    "2026-09-27T00:00:00Z": 1_790_467_200.0,
    "2026-09-28T00:00:00Z": 1_790_553_600.0,
    "2026-09-28T23:59:59Z": 1_790_639_999.0,
    "2026-09-29T00:00:00Z": 1_790_640_000.0,
}
WITHIN = {"2026-09-27T00:00:00Z", "2026-09-28T00:00:00Z", "2026-09-28T23:59:59Z"}


@pytest.fixture(scope="module")
def edges(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with rows at the edges of days."""
    database = fresh_database(tmp_path_factory.mktemp("edges"))
    for text, at_s in EDGES.items():
        rows(database, INSERT, "sol", at(text, "edgeword"), at_s)
    return database


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "UTC"])
def test_c068_dates_are_utc_wherever_the_machine_is(edges: Path, zone: str) -> None:
    """The same rows under every TZ: days of UTC, `until` through its day; instants with an offset are what they say."""
    with serving(edges, env={"TZ": zone}) as service:
        found = ask(service, "edgeword", since="2026-09-27", until="2026-09-28", k=50)
        assert {memory["text"].split()[1] for memory in found} == WITHIN
        assert {memory["created_at"].replace(".000Z", "Z") for memory in found} == WITHIN
        local = ask(service, "edgeword", since="2026-09-27T09:00+09:00", until="2026-09-28T17:00-07:00", k=50)
        assert {memory["text"].split()[1] for memory in local} == WITHIN | {"2026-09-29T00:00:00Z"}
        naive = ask(service, "edgeword", since="2026-09-29T00:00:00", k=50)
        assert [memory["text"].split()[1] for memory in naive] == ["2026-09-29T00:00:00Z"]
        code, by_cli = service.cli(
            *("recall", "edgeword", "--agent", "sol", "--since", "2026-09-27", "--until", "2026-09-28", "--k", "50"),
            env={"TZ": zone},
        )
        assert code == 0
        assert {memory["text"].split()[1] for memory in by_cli["results"]} == WITHIN


def test_c068_the_rule_is_documented(shared_service: Service) -> None:
    """What a caller reads before asking, in the contract and in the tool list, says UTC and how a date ends."""
    parameters = shared_service.rest("GET", "/openapi.json")[1]["paths"]["/v1/recall"]["get"]["parameters"]
    said = {parameter["name"]: parameter.get("description", "") for parameter in parameters}
    listed = shared_service.mcp_raw({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}).json()["result"]["tools"]
    (tool,) = (tool for tool in listed if tool["name"] == "recall")
    for name, word in (("since", "UTC"), ("until", "through that day")):
        assert word in said[name]
        assert word in tool["inputSchema"]["properties"][name]["description"]


# --- C069, C070: what is a date ---


@pytest.fixture(scope="module")
def aged(shared_service: Service) -> dict[str, str]:
    """Rows of different ages; ids by age."""
    now_s = time.time()
    ages = {"10 m": 600.0, "6 h": 6 * 3600.0, "2 d": 2 * 86_400.0, "30 d": 30 * 86_400.0, "300 d": 300 * 86_400.0}
    made = {}
    for age, age_s in ages.items():
        rows(shared_service.database, INSERT, "mira", f"agedword {age}", now_s - age_s)
        ((made[age],),) = rows(shared_service.database, "SELECT 'long:' || max(id) FROM memory_longterm")
    return made


RELATIVE = {
    "-3d": {"10 m", "6 h", "2 d"},
    "-12h": {"10 m", "6 h"},
    "-30m": {"10 m"},
    "-31d": {"10 m", "6 h", "2 d", "30 d"},
    "-999999d": {"10 m", "6 h", "2 d", "30 d", "300 d"},
}


@pytest.mark.parametrize(("given", "expected"), RELATIVE.items())
def test_c069_relative_dates(shared_service: Service, aged: dict[str, str], given: str, expected: set[str]) -> None:
    """-Nd, -Nh and -Nm mean the same on every transport, as `since` and, from the other side, as `until`."""
    newer = {aged[age] for age in expected}
    assert set(ids(shared_service, "agedword", since=given, k=50)) == newer
    assert set(ids(shared_service, "agedword", until=given, k=50)) == set(aged.values()) - newer
    code, by_cli = shared_service.cli("recall", "agedword", "--agent", "sol", f"--since={given}", "--k", "50")
    assert code == 0
    assert {memory["id"] for memory in by_cli["results"]} == newer


ABSOLUTE: dict[str, Callable[[float], str]] = {
    "date": lambda at_s: iso(at_s)[:10],
    "instant": iso,
    "with an offset": lambda at_s: iso(at_s + 2 * 3600)[:19] + "+02:00",
    "without seconds": lambda at_s: iso(at_s)[:16] + "Z",
    "without a zone": lambda at_s: iso(at_s)[:19],
}


@pytest.mark.parametrize("form", ABSOLUTE.values(), ids=list(ABSOLUTE))
def test_c069_iso_dates(shared_service: Service, aged: dict[str, str], form: Callable[[float], str]) -> None:
    """ISO 8601 in each of its forms: here ten days ago."""
    given = form(time.time() - 10 * 86_400)
    newer = {aged[age] for age in ("10 m", "6 h", "2 d")}
    assert set(ids(shared_service, "agedword", since=given, k=50)) == newer
    assert set(ids(shared_service, "agedword", until=given, k=50)) == set(aged.values()) - newer


def test_c069_offset_to_the_instant(shared_service: Service) -> None:
    """2026-09-01T10:00+02:00 is 08:00 UTC, to the instant and on both sides."""
    eight_s = 1_788_249_600.0
    rows(shared_service.database, INSERT, "sol", "offsetword at eight", eight_s)
    given = "2026-09-01T10:00+02:00"
    for bound, shift, found in (("since", "", 1), ("until", "", 1), ("since", "10:01", 0), ("until", "09:59", 0)):
        moved = given.replace("10:00", shift) if shift else given
        assert len(ask(shared_service, "offsetword", **{bound: moved})) == found, (bound, moved)


NO_DATES = ["last week", "yesterday", "March 2026", "2026-13-45", "tomorrow", "3d", "-3w", "-d", "- 3d", "soon", "0000"]


@pytest.mark.parametrize("bound", ["since", "until"])
@pytest.mark.parametrize("given", NO_DATES)
def test_c069_c070_what_is_no_date_is_refused(shared_service: Service, bound: str, given: str) -> None:
    """400 that says `unrecognised date` and names the parameter: never ignored, never an empty list."""
    for way, error in refusals(shared_service, q="agedword", **{bound: given}).items():
        assert error["detail"].startswith(f"{bound}: unrecognised date"), way
        assert given in error["detail"], way


@pytest.mark.parametrize("given", ["last week", "-3w"])
def test_c069_what_is_no_date_is_refused_on_the_command_line(shared_service: Service, given: str) -> None:
    """The same refusal, and an exit code that says so."""
    code, by_cli = shared_service.cli("recall", "agedword", "--agent", "sol", f"--since={given}")
    assert code != 0
    assert by_cli["error"]["detail"].startswith("since: unrecognised date")


def test_c069_refused_even_where_nothing_would_match(shared_service: Service) -> None:
    """A bad date is refused before anything is looked up: with an unknown tag, no words, or a persona asked for."""
    for asked in (
        {"q": "nowhereatall"},
        {"q": "???"},
        {"q": "x", "tags": "no-such-tag"},
        {"q": "x", "tiers": "durable"},
    ):
        refusals(shared_service, since="yesterday", **asked)


# --- C074: legacy instants ---

FORMS: dict[str, Any] = {
    "iso": "2026-03-01T12:00:00+00:00",
    "iso-z": "2026-03-02T12:00:00Z",
    "naive": "2026-03-03 12:00:00",
    "seconds": 1_772_625_600,
    "fraction": 1_772_712_000.5,
    "millis": 1_772_798_400_000,
    "micros": 1_772_884_800_000_000,
    "digits": "1772971200",
}
"""How rows of one column hold noon of the 1st to the 8th of March 2026, each newer than the one before it."""


@pytest.fixture(scope="module")
def mixed(shared_service: Service) -> dict[str, str]:
    """The same column in every form, the newest row first in the table; ids by form."""
    made = {}
    for form, value in reversed(FORMS.items()):
        rows(shared_service.database, INSERT, "sol", f"mixedclock {form.replace('-', '')}", value)
        ((made[form],),) = rows(shared_service.database, "SELECT 'long:' || max(id) FROM memory_longterm")
    return made


def test_c074_every_form_is_shown_as_one(shared_service: Service, mixed: dict[str, str]) -> None:
    """ISO text, seconds, milliseconds: recall and get show the one correct ISO form in UTC."""
    shown = {memory["id"]: memory["created_at"] for memory in ask(shared_service, "mixedclock", k=50)}
    for day, (form, memory_id) in enumerate(sorted(mixed.items(), key=lambda item: list(FORMS).index(item[0])), 1):
        fraction = "500" if form == "fraction" else "000"
        expected = f"2026-03-{day:02}T12:00:00.{fraction}Z"
        assert shown[memory_id] == expected, form
        assert shared_service.rest("GET", f"/v1/memory/{memory_id}", agent="sol")[1]["created_at"] == expected


def test_c074_order_is_that_of_the_instants(shared_service: Service, mixed: dict[str, str]) -> None:
    """Among equals the newer comes first, whatever form its time has."""
    newest_first = [mixed[form] for form in reversed(FORMS)]
    eventually(lambda: len(ids(shared_service, "mixedclock", k=50)) == len(FORMS))
    assert ids(shared_service, "mixedclock", k=50) == newest_first
    assert ids(shared_service, "mixedclock", k=3) == newest_first[:3]


def test_c074_bounds_see_the_instants(shared_service: Service, mixed: dict[str, str]) -> None:
    """`since` and `until` compare instants, not what the column holds."""
    for day, form in enumerate(FORMS, 1):
        date = f"2026-03-{day:02}"
        assert ids(shared_service, "mixedclock", since=date, until=date) == [mixed[form]], form


def test_c074_a_time_that_is_none_hides_no_row(shared_service: Service) -> None:
    """Null, nonsense and a number outside of the calendar: the row is found, its time is null."""
    for number, value in enumerate((None, "noonish", 1e300, "")):
        rows(shared_service.database, INSERT, "sol", f"brokenclock number{number}", value)
    found = ask(shared_service, "brokenclock", k=50)
    assert [memory["created_at"] for memory in found] == [None] * 4
    assert ask(shared_service, "brokenclock", since="1970-01-01", until="2100-01-01", k=50) == []
