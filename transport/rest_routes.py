"""REST: a loop over the registry of operations, and the few routes that are none (health, metrics, contract)."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import (
    HTTPException,
    NotFound,
    RequestEntityTooLarge,
)
from werkzeug.exceptions import (
    MethodNotAllowed as WerkzeugMethodNotAllowed,
)

from actors.errors import Internal
from actors.system import Asked
from storage import limits
from storage.errors import InvalidRequest, Rejection, TooLarge
from transport.execute import Answer, Caller, Executor
from transport.metrics import metrics_text
from transport.openapi import openapi
from transport.operations import OPERATIONS, Operation, compact
from transport.page import is_page, page_answer
from transport.rejections import MethodNotAllowed, UnknownRoute, UnsupportedMediaType

_JSON = "application/json"
_SERVER_ERROR = 500
_SHOWN_CHARS = 80


def create_rest(system: Asked, executor: Executor) -> QuartTrio:
    """The Quart application with every route."""
    app = QuartTrio("solos_memory", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = limits.BODY_BYTES_MAX
    for operation in OPERATIONS:
        for method in operation.methods:
            app.add_url_rule(
                operation.path,
                endpoint=f"{operation.name}_{method}",
                view_func=_view(executor, operation),
                methods=[method],
                provide_automatic_options=False,
            )
    _add_health(app, system)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await metrics_text(system), content_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/openapi.json")
    async def contract() -> Response:
        return Response(compact(openapi()), content_type=_JSON)

    @app.errorhandler(HTTPException)
    async def refused(error: HTTPException) -> Response:
        answer = await executor.refuse(_caller(), _rejection_of(error))
        response = respond(answer)
        if isinstance(error, WerkzeugMethodNotAllowed) and error.valid_methods:
            response.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return response

    return app


def _add_health(app: QuartTrio, system: Asked) -> None:
    @app.get("/health")
    async def health() -> Response:
        return _health(system, 200)

    @app.get("/health/ready")
    async def ready() -> Response:
        return _health(system, 503)

    @app.get("/health/live")
    async def live() -> Response:
        return Response(compact({"status": "ok"}), content_type=_JSON)


def _health(system: Asked, status_when_not_ready: int) -> Response:
    health = system.health()
    body = {"status": health.status, "reasons": health.reasons, "demo": system.stats.demo}
    status = 503 if health.status == "not_ready" else 200
    return Response(compact(body), status=status, content_type=_JSON)


def _view(executor: Executor, operation: Operation) -> Callable[..., Awaitable[Response]]:
    async def view(**in_path: str) -> Response:
        caller = _caller()
        try:
            arguments = await _arguments(operation)
            if doubled := next((name for name in in_path if name in arguments), None):
                raise InvalidRequest(f"{doubled}: is in the path; leave it out elsewhere.")
            arguments |= in_path
        except Rejection as rejection:
            return respond(await executor.refuse(caller, rejection))
        return respond(await executor.execute(operation, arguments, caller))

    return view


def _caller() -> Caller:
    return Caller("rest", request.headers.get("X-Agent-Id"), request.headers.get("Idempotency-Key"))


async def _arguments(operation: Operation) -> dict[str, Any]:
    """The arguments of a request: its JSON body for POST, its query otherwise; a name given twice is a list.

    Raises:
        UnsupportedMediaType, InvalidRequest: the body is no JSON object.
    """
    if request.method != "POST":
        return {name: values if len(values) > 1 else values[0] for name, values in request.args.lists()}
    body = await request.get_data()
    if not body and operation.name == "purge":
        return {}
    if not request.is_json:
        raise UnsupportedMediaType
    return json_object(body)


def json_object(body: bytes | str) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        InvalidRequest: it holds none.
    """
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is no JSON ({type(error).__name__}).") from error
    if not isinstance(parsed, dict):
        raise InvalidRequest("The body must be a JSON object.")
    return parsed


def _rejection_of(error: HTTPException) -> Rejection:
    if isinstance(error, RequestEntityTooLarge):
        return TooLarge(f"The body is larger than {limits.BODY_BYTES_MAX:,} bytes.")
    if isinstance(error, WerkzeugMethodNotAllowed):
        return MethodNotAllowed(f"{request.method} is not allowed here.")
    if isinstance(error, NotFound):
        return UnknownRoute(f"There is nothing at {request.method} {request.path[:_SHOWN_CHARS]}.")
    if (error.code or _SERVER_ERROR) >= _SERVER_ERROR:
        return Internal("A bug of ours stopped the request; the log has the traceback.")
    return InvalidRequest(f"The request cannot be read ({error.name}).")


def respond(answer: Answer) -> Response:
    """An answer as an HTTP response, in the form of the path that was asked."""
    if is_page(request.path):
        answer = page_answer(answer)
    response = Response(compact(answer.body), status=answer.status, content_type=_JSON)
    if answer.degraded:
        response.headers["X-Memory-Degraded"] = "true"
    if answer.retry_after_s is not None:
        response.headers["Retry-After"] = str(answer.retry_after_s)
    return response
