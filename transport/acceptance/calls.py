"""One HTTP call within a bounded time. Standard library only: what is accepted is not asked through itself."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from transport.acceptance.results import Failed

_BYTES_MAX = 8 * 1_048_576


class NoAnswer(Failed):
    """A call got no whole answer: nobody listens, the connection broke, or the time is over."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An answer."""

    call: str
    """What was asked, such as `GET /health`."""
    status: int
    headers: dict[str, str]
    """By lower-case name."""
    content: bytes

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object in it.

        Raises:
            Failed: it holds none.
        """
        try:
            parsed = json.loads(self.content)
        except (ValueError, RecursionError):
            parsed = None
        if not isinstance(parsed, dict):
            raise Failed(f"{self.call} answered {self.status} with a body that is no JSON object")
        return parsed

    def require(self, status: int) -> dict[str, Any]:
        """The body of an answer that must have this status.

        Raises:
            Failed: it has another one, or no JSON object as its body.
        """
        self.require_status(status)
        return self.body

    def require_status(self, status: int) -> None:
        """Raise Failed where the answer has another status; says what it says of itself."""
        if self.status == status:
            return
        said = error_of(self.body) if self.content[:1] == b"{" else ""
        raise Failed(f"{self.call} answered {self.status}{said and f' ({said})'}, not {status}")


def error_of(body: dict[str, Any]) -> str:
    """The code and the detail of a refusal; empty where the body holds none."""
    error = body.get("error")
    return f"{error.get('code')}: {error.get('detail')}" if isinstance(error, dict) else ""


def code_of(body: dict[str, Any]) -> object:
    """The code of a refusal; None where the body holds none."""
    error = body.get("error")
    return error.get("code") if isinstance(error, dict) else None


class Endpoint:
    """An address that is asked, one connection a call."""

    def __init__(self, host: str, port: int, *, limit_s: float) -> None:
        """`limit_s` is the time of one call, from the connection to the last byte."""
        self.host = host
        self.port = port
        self._limit_s = limit_s

    def ask(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        *,
        query: dict[str, Any] | None = None,
        headers: dict[str, str] | None = None,
    ) -> Seen:
        """Make one call. No proxy of the environment is used.

        Raises:
            NoAnswer: there was no whole answer in time; says which call, and why.
        """
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode("utf-8", "backslashreplace")
        sent = {} if body is None else {"Content-Type": "application/json"}
        target = path + ("?" + urlencode(query) if query else "")
        with self._connection(f"{method} {path}") as connection:
            connection.request(method, target, content, {**sent, "Connection": "close", **(headers or {})})
            response = connection.getresponse()
            return Seen(
                f"{method} {path}",
                response.status,
                {name.lower(): value for name, value in response.getheaders()},
                response.read(_BYTES_MAX),
            )

    @contextmanager
    def _connection(self, call: str) -> Iterator[http.client.HTTPConnection]:
        """A connection that is cut when the time is over: a socket's own time-out begins anew with each byte."""
        until = time.monotonic() + self._limit_s
        over = threading.Event()
        connection = http.client.HTTPConnection(self.host, self.port, timeout=self._limit_s)
        cut: threading.Timer | None = None
        try:
            connection.connect()
            cut = threading.Timer(until - time.monotonic(), _cut, (connection.sock, over))
            cut.daemon = True
            cut.start()
            yield connection
        except (OSError, http.client.HTTPException) as error:
            if over.is_set() or isinstance(error, TimeoutError):
                raise NoAnswer(f"{call} got no whole answer within {self._limit_s:g} s") from error
            raise NoAnswer(f"{call} got no answer from {self.host}:{self.port} ({_reason(error)})") from error
        else:
            if over.is_set():  # a body without a length looks whole when it is cut
                raise NoAnswer(f"{call} got no whole answer within {self._limit_s:g} s")
        finally:
            if cut is not None:
                cut.cancel()
            connection.close()


def _cut(connected: socket.socket, over: threading.Event) -> None:
    over.set()
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
