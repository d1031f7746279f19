"""The cases about whose memory is whose: ids, reserved words, scope, personas, the registry."""

import contextlib
import sqlite3
import time
from pathlib import Path

import pytest

from tests.support import Service, rows

UUID = "00000000-0000-0000-0000-000000000001"
RESERVED = ("main", "or", "not", "null", "all")


def register(database: Path, *agents: str) -> None:
    """Another process adds agents to the registry."""
    with contextlib.closing(sqlite3.connect(database, timeout=10)) as db, db:
        db.executemany("INSERT OR IGNORE INTO agent_registry(agent_id) VALUES (?)", [(agent,) for agent in agents])


def ids(results: list[dict]) -> list[str]:
    """The ids of results, in order."""
    return [result["id"] for result in results]


def written_rows(database: Path) -> int:
    """How many rows the three written tables hold."""
    tables = ("memory_short", "memory_longterm", "memory_episodic")
    return sum(rows(database, f"SELECT count(*) FROM {table}")[0][0] for table in tables)


def refusal_count(service: Service, agent: str, operation: str, code: str) -> int:
    """One counter of /v1/stats."""
    return sum(
        refusal["count"]
        for refusal in service.stats()["refusals"]
        if (refusal["agent"], refusal["operation"], refusal["code"]) == (agent, operation, code)
    )


@pytest.mark.parametrize("agent", [UUID, "swarm-5"])
def test_c010_ids_with_hyphens_are_found_again(shared_service: Service, agent: str) -> None:
    """An id that a write accepts is one that a search finds: no syntax error, and no row that is lost on the way."""
    register(shared_service.database, agent)
    written = shared_service.long(agent, f"hyphenate probe of {agent}", topic=agent, tags=[agent])
    for query in ({"scope": "own"}, {"scope": "own", "topic": agent}, {"scope": "own", "tags": agent}):
        assert ids(shared_service.recall(agent, f"hyphenate {agent}", **query)) == [written["id"]]
    error, body = shared_service.mcp("recall", {"agent": agent, "q": f'hyphenate "{agent}"', "scope": "own"})
    assert not error
    assert ids(body["results"]) == [written["id"]]


@pytest.mark.parametrize("agent", RESERVED)
def test_c011_reserved_words_are_ids_like_others(shared_service: Service, agent: str) -> None:
    """`main`, `or`, `not`, `null` and `all` name agents: in the scope filter, in full text search and in SQL."""
    register(shared_service.database, agent)
    fact = shared_service.long(agent, f"reservation of {agent}", topic=agent, tags=["reserved"])
    status, key = shared_service.rest("POST", "/v1/short", {"agent": agent, "key": agent, "value": agent})
    assert status == 201
    assert ids(shared_service.recall(agent, f"reservation {agent}", scope="own")) == [fact["id"]]
    assert fact["id"] in ids(shared_service.recall("sol", "reservation", k=50, topic=agent))
    entries = shared_service.rest("GET", "/v1/short", agent="sol", owner=agent)[1]["entries"]
    assert [(entry["id"], entry["agent"]) for entry in entries] == [(key["id"], agent)]
    _, body = shared_service.mcp("recall", {"agent": agent, "q": "reservation", "scope": "own"})
    assert ids(body["results"]) == [fact["id"]]
    stats = shared_service.rest("GET", "/v1/stats", agent=agent, scope="own")[1]
    assert stats["store"]["rows"] == {"short": 1, "long": 1, "episodic": 0}


@pytest.mark.parametrize("agent", RESERVED)
def test_c011_a_reserved_word_alone_is_a_question(shared_service: Service, agent: str) -> None:
    """A question that is only an operator of FTS5 is searched as a word, never refused as syntax."""
    written = shared_service.long("ace", f"lonely {agent} lonely", topic="operators")
    for q in (agent, agent.upper(), f'"{agent}', f"{agent} (", f"lonely {agent.upper()} *"):
        assert written["id"] in ids(shared_service.recall("ace", q, topic="operators", k=50))


def test_c060_short_key_of_one_agent_is_read_by_another_at_once(shared_service: Service) -> None:
    """Straight after A's write B reads the new value, with nothing done in between: the first time and on change."""
    for value in ("blue", "green"):
        status, written = shared_service.rest("POST", "/v1/short", {"agent": "atlas", "key": "flag", "value": value})
        assert status == 201
        status, body = shared_service.rest("GET", "/v1/short", agent="ace", owner="atlas", key="flag")
        assert status == 200
        assert [(entry["id"], entry["value"]) for entry in body["entries"]] == [(written["id"], value)]
        _, by_mcp = shared_service.mcp("get_short", {"agent": "ace", "owner": "atlas", "key": "flag"})
        assert [entry["value"] for entry in by_mcp["entries"]] == [value]
        found = shared_service.recall("ace", f"flag {value}", tiers="short")
        assert [(memory["id"], memory["text"]) for memory in found] == [(written["id"], value)]


@pytest.fixture(scope="module")
def estate(shared_service: Service) -> dict[str, dict[str, str]]:
    """The same words by mira and by sol in each tier: ids by author and tier."""
    made: dict[str, dict[str, str]] = {}
    for agent in ("mira", "sol"):
        long = shared_service.long(agent, f"estatequest held by {agent}")
        body = {"agent": agent, "summary": f"estatequest visited by {agent}"}
        episode = shared_service.rest("POST", "/v1/episodic", body)[1]
        body = {"agent": agent, "key": "estate", "value": f"estatequest noted by {agent}"}
        short = shared_service.rest("POST", "/v1/short", body)[1]
        made[agent] = {"long": long["id"], "episodic": episode["id"], "short": short["id"]}
    return made


def test_c089_scope_own_on_every_read_surface(shared_service: Service, estate: dict) -> None:
    """With scope=own recall, list, get by id and stats show mira's rows and nobody else's."""
    mine, theirs = estate["mira"], estate["sol"]
    tiers = "short,long,episodic"
    shared = shared_service.recall("mira", "estatequest", tiers=tiers, k=50)
    assert set(ids(shared)) == {*mine.values(), *theirs.values()}
    own = shared_service.recall("mira", "estatequest", tiers=tiers, scope="own", k=50)
    assert set(ids(own)) == set(mine.values())

    listed = shared_service.rest("GET", "/v1/short", agent="mira", scope="own")[1]["entries"]
    assert {entry["agent"] for entry in listed} == {"mira"}
    status, refused = shared_service.rest("GET", "/v1/short", agent="mira", owner="sol", scope="own")
    assert status in (400, 403)
    assert refused["error"]["detail"].startswith("owner")

    for tier, own_id in mine.items():
        assert shared_service.rest("GET", f"/v1/memory/{own_id}", agent="mira", scope="own")[0] == 200
        assert shared_service.rest("GET", f"/v1/memory/{theirs[tier]}", agent="mira", scope="own")[0] == 404
        assert shared_service.rest("GET", f"/v1/memory/{theirs[tier]}", agent="mira")[0] == 200

    counted = shared_service.rest("GET", "/v1/stats", agent="mira", scope="own")[1]["store"]["rows"]
    in_tables = {
        tier: rows(shared_service.database, f"SELECT count(*) FROM {table} WHERE agent = 'mira'")[0][0]
        for tier, table in (("short", "memory_short"), ("long", "memory_longterm"), ("episodic", "memory_episodic"))
    }
    assert counted == in_tables


def test_c090_own_row_is_found_on_every_path(shared_service: Service, estate: dict) -> None:
    """What mira wrote is found with scope=own by each way of asking: the author travels with the row on all of them."""
    arguments = {"agent": "mira", "q": "estatequest", "scope": "own", "tiers": ["long", "episodic", "short"]}
    answers = {
        "GET": shared_service.rest("GET", "/v1/recall", **{**arguments, "tiers": "long,episodic,short"})[1],
        "POST": shared_service.rest("POST", "/v1/recall", arguments)[1],
        "header": shared_service.rest(
            "POST", "/v1/recall", {**arguments, "agent": None}, headers={"X-Agent-Id": "mira"}
        )[1],
        "MCP": shared_service.mcp("recall", arguments)[1],
        "command line": shared_service.cli(
            *("recall", "estatequest", "--agent", "mira", "--scope", "own"),
            *("--tiers", "long", "--tiers", "episodic", "--tiers", "short"),
        )[1],
    }
    for way, body in answers.items():
        found = {(memory["id"], memory["agent"]) for memory in body["results"]}
        assert found == {(memory_id, "mira") for memory_id in estate["mira"].values()}, way
    for memory_id in estate["mira"].values():
        _, whole = shared_service.mcp("get_memory", {"agent": "mira", "id": memory_id, "scope": "own"})
        assert (whole["id"], whole["agent"]) == (memory_id, "mira")


def test_c093_persona_is_its_owners_alone(shared_service: Service) -> None:
    """Sol who asks for mira's persona is refused as forbidden, and counted; mira who asks gets her own row."""
    before = refusal_count(shared_service, "sol", "recall", "forbidden")
    status, refused = shared_service.rest("GET", "/v1/recall", agent="sol", q="persona/mira", tiers="durable")
    assert (status, refused["error"]["code"]) == (403, "forbidden")
    error, refused = shared_service.mcp("recall", {"agent": "sol", "q": "persona/mira", "tiers": "durable"})
    assert (error, refused["ok"], refused["error"]["code"]) == (False, False, "forbidden")
    assert refusal_count(shared_service, "sol", "recall", "forbidden") == before + 2

    (own,) = shared_service.recall("mira", "persona/mira", tiers="durable")
    assert (own["agent"], own["text"], own["key"]) == ("mira", "mira is calm and exact.", "persona/mira")
    _, body = shared_service.mcp("recall", {"agent": "mira", "q": "persona/mira", "tiers": ["durable"]})
    assert ids(body["results"]) == [own["id"]]


def test_c093_persona_is_refused_by_id_too(shared_service: Service) -> None:
    """The id of mira's persona opens it for mira and for nobody else."""
    ((row,),) = rows(shared_service.database, "SELECT id FROM memory_durable WHERE key = 'persona/mira'")
    before = refusal_count(shared_service, "sol", "get_memory", "forbidden")
    status, refused = shared_service.rest("GET", f"/v1/memory/durable:{row}", agent="sol")
    assert (status, refused["error"]["code"]) == (403, "forbidden")
    error, refused = shared_service.mcp("get_memory", {"agent": "sol", "id": f"durable:{row}"})
    assert (error, refused["error"]["code"]) == (False, "forbidden")
    assert "calm" not in str(refused)
    assert refusal_count(shared_service, "sol", "get_memory", "forbidden") == before + 2
    status, own = shared_service.rest("GET", f"/v1/memory/durable:{row}", agent="mira")
    assert (status, own["text"]) == (200, "mira is calm and exact.")


@pytest.mark.parametrize(
    ("agent", "status", "code"),
    [
        ("ghost", 422, "unknown_agent"),
        ("", 400, "invalid_request"),
        ("Sol ", 422, "unknown_agent"),
        ("sol\u200b", 422, "unknown_agent"),
        ("x" * 10_000, 413, "too_large"),
    ],
    ids=["ghost", "empty", "space", "zero-width", "10000-characters"],
)
def test_c094_unregistered_writer_is_refused(shared_service: Service, agent: str, status: int, code: str) -> None:
    """A writer that the registry does not hold exactly is refused by name; no row, one label, one more in the count."""
    label = "(unregistered)" if agent else "(none)"
    rows_before = written_rows(shared_service.database)
    for path, operation, body in (
        ("/v1/long", "remember_long", {"fact": "orphaned"}),
        ("/v1/episodic", "remember_episodic", {"summary": "orphaned"}),
        ("/v1/short", "remember_short", {"key": "orphaned", "value": "orphaned"}),
    ):
        before = refusal_count(shared_service, label, operation, code)
        got, refused = shared_service.rest("POST", path, {"agent": agent, **body})
        assert (got, refused["error"]["code"]) == (status, code)
        detail = refused["error"]["detail"]
        assert (repr(agent) in detail) if code == "unknown_agent" else detail.startswith("agent")
        error, refused = shared_service.mcp(operation, {"agent": agent, **body})
        assert (error, refused["ok"], refused["error"]["detail"]) == (False, False, detail)
        assert refusal_count(shared_service, label, operation, code) == before + 2
    assert written_rows(shared_service.database) == rows_before
    labels = {refusal["agent"] for refusal in shared_service.stats()["refusals"]}
    assert not labels & {"ghost", "Sol ", "sol\u200b", "x" * 10_000}


def test_c094_nearest_id_is_hinted(shared_service: Service) -> None:
    """The refusal of a misspelt name says which registered one is nearest."""
    _, refused = shared_service.rest("POST", "/v1/long", {"agent": "mirra", "fact": "near"})
    assert "'mira'" in refused["error"]["detail"] + refused["error"]["hint"]


INJECTIONS = ("x' OR 1=1 --", "x%", "x_", "%", "_", "sol' --", '"; DROP TABLE memory_longterm; --')


@pytest.fixture(scope="module")
def bait(shared_service: Service) -> dict:
    """A row that a filter read as a pattern or as SQL would let through."""
    key = {"agent": "atlas", "key": "xy", "value": "baitword"}
    assert shared_service.rest("POST", "/v1/short", key)[0] == 201
    return shared_service.long("atlas", "baitword in the open", topic="xy", tags=["xy"])


@pytest.mark.parametrize("value", INJECTIONS)
def test_c100_filter_values_are_values(shared_service: Service, bait: dict, value: str) -> None:
    """SQL and LIKE patterns in agent, topic, tag, owner, key and after are plain text that matches only itself."""
    assert ids(shared_service.recall("atlas", "baitword", topic="xy", tags="xy")) == [bait["id"]]
    for query in ({"topic": value}, {"tags": [value]}, {"agent": value, "scope": "own"}):
        body = {"agent": "atlas", "q": "baitword", **query}
        assert shared_service.rest("POST", "/v1/recall", body)[1]["results"] == []
        assert shared_service.mcp("recall", body)[1]["results"] == []
    assert shared_service.rest("GET", "/v1/short", agent="atlas", owner=value)[1]["entries"] == []
    assert shared_service.rest("GET", "/v1/short", agent="atlas", key=value)[0] == 404
    assert shared_service.rest("DELETE", "/v1/short", agent="atlas", key=value)[0] == 404
    assert shared_service.rest("POST", "/v1/long", {"agent": value, "fact": "injected"})[0] == 422
    for name in ("since", "until", "scope", "tiers", "k"):
        assert shared_service.rest("GET", "/v1/recall", agent="atlas", q="baitword", **{name: value})[0] == 400
    assert ids(shared_service.recall("atlas", "baitword", topic="xy")) == [bait["id"]]


@pytest.mark.parametrize("value", INJECTIONS)
def test_c100_filter_values_match_themselves(shared_service: Service, value: str) -> None:
    """The same characters, written as topic, tag and key, are found by exactly that topic, tag and key."""
    token = f"selfmatch{INJECTIONS.index(value)}"
    written = shared_service.long("ace", token, topic=value, tags=[value])
    assert ids(shared_service.recall("ace", token, topic=value)) == [written["id"]]
    found = shared_service.rest("POST", "/v1/recall", {"agent": "ace", "q": token, "tags": [value]})[1]["results"]
    assert ids(found) == [written["id"]]
    body = {"agent": "ace", "key": value, "value": token}
    assert shared_service.rest("POST", "/v1/short", body)[0] == 201
    _, entries = shared_service.rest("GET", "/v1/short", agent="ace", key=value)
    assert [entry["value"] for entry in entries["entries"]] == [token]


@pytest.mark.parametrize("q", [*INJECTIONS, 'NEAR("a" "b")', "fact:baitword", "^baitword", "-baitword +", "a AND", "*"])
def test_c100_question_is_never_a_syntax_error(shared_service: Service, bait: dict, q: str) -> None:
    """Whatever a question holds, it is searched as words, in bounded time, and the tables are as before."""
    began = time.monotonic()
    status, body = shared_service.rest("POST", "/v1/recall", {"agent": "atlas", "q": q})
    assert (status, body["ok"]) == (200, True)
    assert time.monotonic() - began < 2
    assert bait["id"] in ids(shared_service.recall("atlas", f"baitword {q}", k=50))
