"""The cases about short-term keys and their time to live."""

import time
from typing import Any

import pytest

from tests.support import Service, eventually, rows


def upsert(service: Service, agent: str, key: str, value: str = "v", **fields: Any) -> dict[str, Any]:
    """A short key that must be acknowledged."""
    status, body = service.rest("POST", "/v1/short", {"agent": agent, "key": key, "value": value, **fields})
    assert status == 201, body
    return body


def keys(service: Service, agent: str) -> list[str]:
    """The keys that a list shows."""
    status, body = service.rest("GET", "/v1/short", agent=agent)
    assert status == 200, body
    return [entry["key"] for entry in body["entries"]]


def test_c062_upsert_without_ttl_clears_the_expiry(shared_service: Service) -> None:
    """An upsert without ttl_s makes the key permanent, and the answer shows so."""
    first = upsert(shared_service, "sol", "c062", "one", ttl_s=3600)
    assert first["expires_at"] > first["created_at"]
    second = upsert(shared_service, "sol", "c062", "two")
    assert "expires_at" in second
    assert second["expires_at"] is None
    (entry,) = shared_service.rest("GET", "/v1/short", agent="sol", key="c062")[1]["entries"]
    assert (entry["value"], entry["expires_at"]) == ("two", None)


def test_c062_upsert_without_value_is_refused(shared_service: Service) -> None:
    """Tags alone are no write: 400 that names `value`, and the key is as before."""
    upsert(shared_service, "sol", "c062-tags", "kept", ttl_s=3600, tags=["old"])
    before = shared_service.rest("GET", "/v1/short", agent="sol", key="c062-tags")[1]
    body = {"agent": "sol", "key": "c062-tags", "tags": ["new"]}
    status, refused = shared_service.rest("POST", "/v1/short", body)
    assert (status, refused["error"]["code"]) == (400, "invalid_request")
    assert refused["error"]["detail"].startswith("value")
    error, refused = shared_service.mcp("remember_short", body)
    assert (error, refused["ok"]) == (False, False)
    assert refused["error"]["detail"].startswith("value")
    assert shared_service.rest("GET", "/v1/short", agent="sol", key="c062-tags")[1] == before


def test_c063_expired_keys_are_invisible_before_any_purge(shared_service: Service) -> None:
    """Ten keys that expired are gone from get, list, recall and counts, though their rows are still in the table."""
    made = [upsert(shared_service, "atlas", f"c063-{n}", f"evanescent {n}", ttl_s=1) for n in range(10)]
    kept = upsert(shared_service, "atlas", "c063-kept", "evanescent evanescent kept after all of the others")
    last_s = rows(shared_service.database, "SELECT max(expires_at) FROM memory_short WHERE key LIKE 'c063-_'")[0][0]
    assert len(keys(shared_service, "atlas")) == 11
    eventually(lambda: time.time() > last_s)

    assert keys(shared_service, "atlas") == ["c063-kept"]
    assert shared_service.rest("GET", "/v1/short", agent="mira", owner="atlas")[1]["more"] == 0
    found = shared_service.recall("atlas", "evanescent", tiers="short", k=1)
    assert [memory["id"] for memory in found] == [kept["id"]], "an expired key took a slot of the top k"
    assert len(shared_service.recall("atlas", "evanescent", tiers="short", k=50)) == 1
    counted = shared_service.rest("GET", "/v1/stats", agent="atlas", scope="own")[1]["store"]["rows"]["short"]
    assert counted == 1
    for number, expired in enumerate(made):
        key = f"c063-{number}"
        assert shared_service.rest("GET", "/v1/short", agent="atlas", key=key)[0] == 404
        assert shared_service.rest("GET", f"/v1/memory/{expired['id']}", agent="atlas")[0] == 404
        assert shared_service.rest("DELETE", "/v1/short", agent="atlas", key=key)[0] == 404
    _, by_mcp = shared_service.mcp("get_short", {"agent": "atlas"})
    assert [entry["key"] for entry in by_mcp["entries"]] == ["c063-kept"]
    stored = rows(shared_service.database, "SELECT count(*) FROM memory_short WHERE key LIKE 'c063-%'")
    assert stored == [(11,)], "no purge may be needed for that"


def test_c063_upsert_after_expiry_is_a_fresh_row(shared_service: Service) -> None:
    """A key written again after its end has nothing of the old row: no tags, a new time, no expiry."""
    first = upsert(shared_service, "ace", "c063-again", "old", ttl_s=0.2, tags=["old"])
    eventually(lambda: "c063-again" not in keys(shared_service, "ace"))
    second = upsert(shared_service, "ace", "c063-again", "new")
    (entry,) = shared_service.rest("GET", "/v1/short", agent="ace", key="c063-again")[1]["entries"]
    assert (entry["value"], entry["tags"], entry["expires_at"]) == ("new", [], None)
    assert entry["created_at"] == second["created_at"] > first["created_at"]


ACCEPTED = [("null", None), ("absent", ...), ("half", 0.5), ("text-number", "3600"), ("ten-years", 315_360_000)]
REFUSED = [
    ("zero", "0"),
    ("negative", "-5"),
    ("1e18", "1e18"),
    ("text", '"abc"'),
    ("nan", "NaN"),
    ("nan-text", '"NaN"'),
    ("infinite", "Infinity"),
    ("infinite-text", '"inf"'),
    ("1e400", "1e400"),
    ("ten-years-and-a-second", "315360001"),
    ("list", "[5]"),
]


@pytest.mark.parametrize(("name", "ttl_s"), ACCEPTED, ids=[name for name, _ in ACCEPTED])
def test_c064_ttl_that_is_accepted(shared_service: Service, name: str, ttl_s: Any) -> None:
    """Null and absent mean no expiry; half a second is a time to live, and so is everything up to ten years."""
    fields = {} if ttl_s is ... else {"ttl_s": ttl_s}
    written = upsert(shared_service, "swarm-5", f"c064-{name}", **fields)
    created_s, expires_s = rows(
        shared_service.database, "SELECT created_at, expires_at FROM memory_short WHERE key = ?", f"c064-{name}"
    )[0]
    if ttl_s in (None, ...):
        assert written["expires_at"] is None
        assert expires_s is None
    else:
        assert expires_s - created_s == pytest.approx(float(ttl_s), abs=1e-3)
        assert written["expires_at"] is not None
    error, by_mcp = shared_service.mcp(
        "remember_short", {"agent": "swarm-5", "key": f"c064-mcp-{name}", "value": "v", **fields}
    )
    assert (error, by_mcp["ok"]) == (False, True)
    assert ("expires_at" in by_mcp) == (ttl_s not in (None, ...))


@pytest.mark.parametrize(("name", "ttl_s"), REFUSED, ids=[name for name, _ in REFUSED])
def test_c064_ttl_that_is_refused(shared_service: Service, name: str, ttl_s: str) -> None:
    """Zero, negative, not finite, no number, or more than ten years: 400 with the field and the reason; no row."""
    key = f"c064-{name}"
    body = f'{{"agent": "sol", "key": "{key}", "value": "v", "ttl_s": {ttl_s}}}'
    response = shared_service.http.post(
        shared_service.url + "/v1/short", content=body, headers={"Content-Type": "application/json"}
    )
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["code"] == "invalid_request"
    assert "ttl_s" in error["detail"]
    assert len(error["detail"]) > len("ttl_s: ."), "the reason is missing"
    assert shared_service.rest("GET", "/v1/short", agent="sol", key=key)[0] == 404


@pytest.mark.parametrize("ttl_s", [0, -5, 1e18, "abc", "NaN"])
def test_c064_ttl_that_is_refused_over_mcp(shared_service: Service, ttl_s: Any) -> None:
    """Over MCP the same values are results with ok: false that name the field."""
    arguments = {"agent": "sol", "key": "c064-refused", "value": "v", "ttl_s": ttl_s}
    error, refused = shared_service.mcp("remember_short", arguments)
    assert (error, refused["ok"], refused["error"]["code"]) == (False, False, "invalid_request")
    assert refused["error"]["detail"].startswith("ttl_s")


def test_c065_reading_never_extends_the_ttl(shared_service: Service) -> None:
    """A key that is read all the time on every surface ends at its instant all the same."""
    written = upsert(shared_service, "mira", "c065", "ephemeralword", ttl_s=1.5)
    ends_s = rows(shared_service.database, "SELECT expires_at FROM memory_short WHERE key = 'c065'")[0][0]
    seen_s = 0.0

    def gone() -> bool:
        nonlocal seen_s
        asked_s = time.time()
        status, body = shared_service.rest("GET", "/v1/short", agent="mira", key="c065")
        shared_service.rest("GET", "/v1/short", agent="mira")
        shared_service.rest("GET", f"/v1/memory/{written['id']}", agent="mira")
        shared_service.recall("mira", "ephemeralword", tiers="short")
        if status == 200:
            seen_s = asked_s
            assert body["entries"][0]["expires_at"] == written["expires_at"]
        return status == 404

    eventually(gone, within_s=4)
    assert seen_s < ends_s, "it was seen after its end"
    assert ends_s - seen_s < 1.0, "it ended before its time"
    assert time.time() >= ends_s
    stored = rows(shared_service.database, "SELECT expires_at FROM memory_short WHERE key = 'c065'")
    assert stored == [(ends_s,)]
    assert shared_service.recall("mira", "ephemeralword", tiers="short") == []
