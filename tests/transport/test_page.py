"""The operator's page beside the other paths: which origins may use it from a browser, and how it says no."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from storage.errors import ConfigurationError
from tests.support import Service, fresh_database, serving
from transport import settings
from transport.execute import Answer
from transport.page import PAGE_PATH, Origins, is_page, page_answer

OLD_PAGE = "http://127.0.0.1:3000"
FOREIGN = "http://evil.test"
PAGE_PATHS = (PAGE_PATH, f"{PAGE_PATH}/search", f"{PAGE_PATH}/hooks/dispatch")
OTHER_PATHS = ("/v1/stats", "/v1/swarm", "/mcp", "/metrics", "/health", "/openapi.json", f"{PAGE_PATH}-2", "/api")


@pytest.fixture(scope="module")
def open_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service that the old page's origin is allowed at."""
    env = {"SOLOS_MEMORY_ALLOWED_ORIGINS": f"{OLD_PAGE}/, http://localhost:3000"}
    with serving(fresh_database(tmp_path_factory.mktemp("open")), env=env) as running:
        yield running


def cors(response: httpx2.Response) -> dict[str, str]:
    """The headers by which a browser is told that a page may read the answer."""
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def sent(service: Service, method: str, path: str, origin: str, **more: Any) -> httpx2.Response:
    """A request as a browser makes it for a page of an origin."""
    headers = {"Origin": origin, **more.pop("headers", {})}
    return service.http.request(method, service.url + path, headers=headers, **more)


# --- without the setting ---


@pytest.mark.parametrize("path", PAGE_PATHS + OTHER_PATHS)
def test_without_the_setting_no_foreign_page_is_served(shared_service: Service, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        for origin in (OLD_PAGE, FOREIGN, "null"):
            response = sent(shared_service, method, path, origin)
            body = response.json()
            assert (response.status_code, body["ok"]) == (403, False)
            assert cors(response) == {}
            code = body["code"] if is_page(path) else body["error"]["code"]
            assert code == "foreign_origin"


def test_without_an_origin_a_program_is_served(shared_service: Service) -> None:
    response = shared_service.http.get(shared_service.url + PAGE_PATH, params={"kind": "shared"})
    assert (response.status_code, cors(response)) == (200, {})


# --- with it ---


@pytest.mark.parametrize("path", PAGE_PATHS)
def test_a_preflight_of_the_old_page_is_answered(open_service: Service, path: str) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    response = sent(open_service, "OPTIONS", path, OLD_PAGE, headers=asked)
    assert (response.status_code, response.content) == (204, b"")
    assert response.headers["access-control-allow-origin"] == OLD_PAGE
    assert {"GET", "POST"} <= set(response.headers["access-control-allow-methods"].split(", "))
    assert "content-type" in response.headers["access-control-allow-headers"].split(", ")
    assert int(response.headers["access-control-max-age"]) > 0
    assert response.headers["vary"] == "Origin"
    assert "access-control-allow-credentials" not in response.headers


def test_answers_and_errors_on_the_page_are_readable_by_the_old_page(open_service: Service) -> None:
    body = {"workerId": "swarm1", "kind": "episodic", "summary": "by the page"}
    for status, response in (
        (200, sent(open_service, "POST", PAGE_PATH, OLD_PAGE, json=body)),
        (200, sent(open_service, "GET", PAGE_PATH, OLD_PAGE, params={"kind": "episodic", "workerId": "swarm1"})),
        (400, sent(open_service, "GET", PAGE_PATH, OLD_PAGE, params={"kind": "diary", "workerId": "swarm1"})),
        (
            400,
            sent(open_service, "POST", PAGE_PATH, OLD_PAGE, content=b"{", headers={"Content-Type": "application/json"}),
        ),
        (404, sent(open_service, "GET", PAGE_PATH + "/nowhere", OLD_PAGE)),
        (405, sent(open_service, "DELETE", PAGE_PATH, OLD_PAGE)),
        (413, sent(open_service, "POST", PAGE_PATH, OLD_PAGE, json={"content": "x" * 1_100_000})),
        (415, sent(open_service, "POST", PAGE_PATH, OLD_PAGE, content=b"x", headers={"Content-Type": "text/plain"})),
        (421, sent(open_service, "GET", PAGE_PATH, OLD_PAGE, headers={"Host": "evil.test"})),
    ):
        assert response.status_code == status, response.text
        assert cors(response) == {"access-control-allow-origin": OLD_PAGE}
        assert response.headers["vary"] == "Origin"
        if status != 200:
            answer = response.json()
            assert (answer["ok"], type(answer["error"]), type(answer["code"])) == (False, str, str)


@pytest.mark.parametrize("path", OTHER_PATHS)
def test_no_other_path_is_opened_with_the_page(open_service: Service, path: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        response = sent(open_service, method, path, OLD_PAGE, headers={"Access-Control-Request-Method": "POST"})
        assert response.status_code == 403
        assert response.json()["error"]["code"] == "foreign_origin"
        assert cors(response) == {}


@pytest.mark.parametrize(
    "origin",
    [FOREIGN, "null", "*", "http://127.0.0.1:3001", "https://127.0.0.1:3000", f"{OLD_PAGE}.evil.test", f"{OLD_PAGE}/"],
)
def test_other_origins_stay_foreign_on_the_page(open_service: Service, origin: str) -> None:
    for path in PAGE_PATHS:
        for method in ("GET", "OPTIONS"):
            response = sent(open_service, method, path, origin)
            assert (response.status_code, cors(response)) == (403, {})


@pytest.mark.parametrize(
    "path", ["/api/swarm-memory/../../v1/stats", "/api/swarm-memory/%2e%2e/%2e%2e/v1/stats", "/api//swarm-memory"]
)
def test_no_detour_through_the_page_reaches_another_path(open_service: Service, path: str) -> None:
    with httpx2.Client() as client:
        response = client.get(open_service.url + path, headers={"Origin": OLD_PAGE})
    assert response.status_code in (403, 404)
    assert "rows" not in response.text


def test_our_own_origin_is_served_everywhere_without_cors(open_service: Service) -> None:
    for path in ("/v1/stats", f"{PAGE_PATH}?kind=shared"):
        response = sent(open_service, "GET", path, open_service.url)
        assert (response.status_code, cors(response)) == (200, {})


# --- the settings, and the parts ---


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "null",
        "127.0.0.1:3000",
        "http://",
        "http://a b",
        "ftp://a.test",
        "http://a.test/page",
        "http://*.test",
        "http://a.test:x",
    ],
)
def test_what_is_no_origin_stops_the_start(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="allowed_origins"):
        settings.load({"allowed_origins": (origin,)})


def test_origins_are_taken_as_people_write_them() -> None:
    written = ("HTTP://Localhost:3000/", "https://page.test", "http://[::1]:3000")
    allowed = settings.load({"allowed_origins": written}).allowed_origins
    assert allowed == ("http://localhost:3000", "https://page.test", "http://[::1]:3000")
    origins = Origins(allowed)
    assert all(origins.allow(PAGE_PATH, origin) for origin in allowed)
    assert not origins.allow(PAGE_PATH, None)
    assert not origins.allow("/v1/stats", allowed[0])


def test_a_refusal_on_the_page_is_a_text_with_everything_beside() -> None:
    refused = Answer(
        503, {"ok": False, "error": {"code": "c", "detail": "d", "hint": "h", "retry_after_s": 2}}, True, 2
    )
    shown = page_answer(refused)
    assert shown.body == {"ok": False, "error": "d", "code": "c", "hint": "h", "retry_after_s": 2}
    assert (shown.status, shown.retry_after_s) == (503, 2)
    answered = Answer(200, {"ok": True, "files": []})
    assert page_answer(answered) is answered
