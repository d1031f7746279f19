"""Time stamps along the path of one request, planted into a server's process before it starts; shipped code knows none.

`plant(PATH)` wraps the seams of the stack and of the service. Each request that is answered becomes one JSON line of
PATH: {kind, began_ns, marks, parts}; a look in a process for recalls becomes one of a file beside it, see look_files().
`marks` are [what had just been done, nanoseconds since the first, nanoseconds of CPU of the whole process since then]
in order, over whichever threads did it; `parts` are [nanoseconds, of CPU] of what lies within a mark. One connection at
a time: stamps of two requests would mix.
"""

import functools
import importlib
import inspect
import json
import os
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from hypercorn.events import RawData
from hypercorn.protocol.h11 import H11Protocol

RECEIVED = "received"
FIRST = "HTTP head parsed, task made"
ANSWERS = "framework, to the first byte"
SENT = "sent"
AFTERWARDS = "after the answer: connection made ready"
ASKED = "look asked for, pickle and pipes here"
THERE = "pickle and pipes there"
LOOK = "look"
BEGINS = (
    ("transport.asgi", "Front.__call__", FIRST),
    ("quart", "Quart.__call__", "guard, body"),
    ("mcp.server.streamable_http_manager", "StreamableHTTPSessionManager.handle_request", "guard, body"),
    ("transport.rest_routes", "_caller", "Quart, request and routing"),
    ("transport.execute", "Executor.execute", "arguments read"),
    ("actors.mailbox", "Mailbox.post", "message validated"),
    ("actors.reader", "Reader._answer", "mailbox hop"),
    ("actors.writer", "Writer._handle", "mailbox hop"),
    ("storage.writing", "WritingStore.apply", "hop into the thread"),
    ("storage.batch", "Batch.run", "BEGIN IMMEDIATE"),
    ("storage.batch", "Batch.settle", "COMMIT"),
    ("storage.writing", "WritingStore._follow", "intents settled"),
    ("actors.mailbox", "Envelope.reply", "hop back to the actor"),
    ("transport.operations", "Operation.render", "hop to the asker"),
    ("transport.rest_routes", "respond", "log line, counters"),
    ("transport.mcp_tools", "text_of", "log line, counters"),
)
"""(module, name, what its begin ends)."""
ENDS = (
    ("actors.recaller", "_Process.look", ASKED),
    ("storage.batch", "Batch.run", "row inserted"),
    ("storage.writing", "WritingStore.apply", "index follows"),
    ("transport.operations", "Operation.render", "rendered"),
    ("transport.rest_routes", "respond", "JSON, response object"),
    ("transport.mcp_tools", "text_of", "text for the model"),
)
"""(module, name, what its end ends)."""
PARTS = (
    ("storage.reading", "ReadingStore.admitted", "look: registry"),
    ("storage.reading", "ReadingStore.index_lag", "look: index's lag"),
    ("storage.recalling", "clauses_of", "look: question analysed"),
    ("storage.search.searching", "plan", "look: planned (frequencies)"),
    ("storage.search.searching", "Searcher._rows", "look: terms chosen, rows joined"),
    ("storage.search.index", "Index.matching", "look: matched (FTS5)"),
    ("storage.search.ranking", "scored", "look: scored (BM25)"),
    ("storage.search.searching", "Searcher._best", "look: best chosen"),
    ("storage.search.index", "Index.documents", "look: documents read"),
    ("storage.search.index", "Index.session", "look: neighbours read"),
    ("storage.search.ranking", "rank", "look: ranked"),
    ("storage.recalling", "Recollection._read", "look: rows read"),
    ("storage.recalling", "Recollection._found", "look: same sentences joined"),
    ("storage.recalling", "Recollection._memory", "look: memories made"),
    ("storage.reading", "fitted", "look: previews cut"),
    ("storage.following", "Follower._read_slice", "index follows: new rows read"),
    ("storage.following", "contents_of", "index follows: text analysed"),
    ("storage.search.index", "Index.follow", "index follows: names, digests"),
    ("storage.search.index", "Index._put", "index follows: terms added"),
    ("storage.following", "Follower._check_newest", "index follows: newest looked at"),
    ("storage.search.index", "Index.mark_complete", "index follows: completeness"),
    ("trio", "SocketStream.send_all", "sent: socket"),
)
"""(module, name, of what it is a part). Time of an inner part is the inner one's alone."""


class _Request:
    """What was done for one request, and when."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.marks: list[tuple[str, int, int]] = []
        self.parts: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self.mark(RECEIVED)

    def mark(self, done: str) -> None:
        """Something has been done."""
        self.marks.append((done, time.perf_counter_ns(), time.process_time_ns()))

    @property
    def answered(self) -> bool:
        """Whether its answer has begun."""
        return any(done == ANSWERS for done, _, _ in self.marks)

    def line(self) -> str:
        """The request as its line of JSON."""
        _, began_ns, cpu_began_ns = self.marks[0]
        marks = [[done, at_ns - began_ns, cpu_ns - cpu_began_ns] for done, at_ns, cpu_ns in self.marks]
        return json.dumps({"kind": self.kind, "began_ns": began_ns, "marks": marks, "parts": self.parts}) + "\n"


class _Inner(threading.local):
    """What was spent within each part that a thread is in, the outermost first."""

    def __init__(self) -> None:
        self.spent: list[list[int]] = []


class _Stamps:
    """The requests of the one connection, the oldest first, and the file of those that are done."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._requests: deque[_Request] = deque()
        self._inner = _Inner()

    def begin(self, data: bytes) -> None:
        """Bytes came in: of a new request, perhaps while the last one's answer is just being finished."""
        if b" HTTP/1.1\r\n" in data:
            self._requests.append(_Request(data.partition(b" HTTP/")[0].partition(b"?")[0].decode("latin-1")))

    def look(self) -> _Request:
        """A look begins."""
        self._requests.append(_Request(LOOK))
        return self._requests[0]

    def drop(self) -> None:
        """The look has ended."""
        self._requests.popleft()

    def mark(self, done: str) -> None:
        """Something has been done for the request that is under way."""
        if self._requests:
            self._requests[0].mark(done)

    def take(self) -> _Request | None:
        """The request whose answer is out; None where its end was told already."""
        return self._requests.popleft() if self._requests and self._requests[0].answered else None

    def keep(self, request: _Request) -> None:
        """Write a request down."""
        self._out.write(request.line())
        self._out.flush()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time a part, without the parts within it."""
        within = self._inner.spent
        within.append([0, 0])
        began = (time.perf_counter_ns(), time.thread_time_ns())
        try:
            yield
        finally:
            spent = [time.perf_counter_ns() - began[0], time.thread_time_ns() - began[1]]
            inner = within.pop()
            for clock in (0, 1):
                if self._requests:
                    self._requests[0].parts[name][clock] += spent[clock] - inner[clock]
                if within:
                    within[-1][clock] += spent[clock]


def plant(path: str) -> None:
    """Wrap every seam that this process has."""
    stamps = _Stamps(open(path, "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    for module, name, done in BEGINS:
        _replace(module, name, functools.partial(_beginning, stamps, done))
    for module, name, done in ENDS:
        _replace(module, name, functools.partial(_ending, stamps, done))
    for module, name, part in PARTS:
        _replace(module, name, functools.partial(_timed, stamps, part))
    _plant_ends(stamps)
    from storage import recaller  # the bare stack has it, too, and starts none

    here = str(Path(__file__).parents[2])
    recaller._PROGRAM = (  # it is started without the folder of the tests
        f"import sys; sys.path.append({here!r}); from tests.bench.stamps import plant_look; plant_look({path!r})\n"
        + recaller._PROGRAM
    )


def plant_look(path: str) -> None:
    """Wrap what a process for recalls does."""
    stamps = _Stamps(open(f"{path}.look-{os.getpid()}", "w", encoding="utf-8"))  # noqa: SIM115 (as long as the process)
    for module, name, part in PARTS:
        if module.startswith("storage."):
            _replace(module, name, functools.partial(_timed, stamps, part))
    _replace("storage.reading", "ReadingStore.look", functools.partial(_looked, stamps))


def look_files(path: Path) -> list[Path]:
    """The files of the processes for recalls of a server that was planted with PATH."""
    return sorted(path.parent.glob(f"{path.name}.look-*"))


def _looked(stamps: _Stamps, inner: Any) -> Any:
    """Make each look a request of its own; what the process did since the last one is the pipes'."""
    ended_ns = [time.process_time_ns()]

    @functools.wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        request = stamps.look()
        request.marks[0] = (RECEIVED, request.marks[0][1], ended_ns[0])
        request.mark(THERE)
        try:
            return inner(*arguments, **named)
        finally:
            request.mark(LOOK)
            stamps.keep(request)
            stamps.drop()
            ended_ns[0] = time.process_time_ns()  # to write the stamps down is nobody's

    return wrapped


def _replace(module: str, name: str, wrap: Callable[[Any], Any]) -> None:
    owner = importlib.import_module(module)
    *above, attribute = name.split(".")
    for part in above:
        owner = getattr(owner, part)
    setattr(owner, attribute, wrap(getattr(owner, attribute)))


def _beginning(stamps: _Stamps, done: str, inner: Any) -> Any:
    @functools.wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        stamps.mark(done)
        return inner(*arguments, **named)

    return wrapped


def _ending(stamps: _Stamps, done: str, inner: Any) -> Any:
    @functools.wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        try:
            return inner(*arguments, **named)
        finally:
            stamps.mark(done)

    @functools.wraps(inner)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        try:
            return await inner(*arguments, **named)
        finally:
            stamps.mark(done)

    return awaited if inspect.iscoroutinefunction(inner) else wrapped


def _timed(stamps: _Stamps, part: str, inner: Any) -> Any:
    @functools.wraps(inner)
    def wrapped(*arguments: Any, **named: Any) -> Any:
        with stamps.part(part):
            return inner(*arguments, **named)

    @functools.wraps(inner)
    async def awaited(*arguments: Any, **named: Any) -> Any:
        with stamps.part(part):
            return await inner(*arguments, **named)

    return awaited if inspect.iscoroutinefunction(inner) else wrapped


def _plant_ends(stamps: _Stamps) -> None:
    """The first byte that comes in, the first that goes out, and the end of the answer."""
    handle, send, recycle = H11Protocol.handle, H11Protocol._send_h11_event, H11Protocol._maybe_recycle

    async def handle_stamped(self: Any, event: Any) -> None:
        if isinstance(event, RawData):
            stamps.begin(event.data)
        await handle(self, event)

    async def send_stamped(self: Any, event: Any) -> None:
        if type(event).__name__ == "Response":
            stamps.mark(ANSWERS)
        await send(self, event)

    async def recycle_stamped(self: Any) -> None:
        request = stamps.take()
        if request is not None:
            request.mark(SENT)
        await recycle(self)
        if request is not None:
            request.mark(AFTERWARDS)
            stamps.keep(request)

    patched: Any = H11Protocol
    patched.handle, patched._send_h11_event, patched._maybe_recycle = handle_stamped, send_stamped, recycle_stamped
