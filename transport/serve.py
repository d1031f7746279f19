"""The composition root: settings → logs → package check → lock → writer → readers → MCP → serve, and back."""

import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import structlog
import trio
from hypercorn.config import Config

from actors.errors import ActorGaveUp
from actors.messages import RememberLong
from actors.refusing import Refusing
from actors.stats import Stats
from actors.system import System
from storage import limits
from storage.collection import collect_seldom
from storage.errors import ConfigurationError
from storage.paths import Paths
from storage.store import DEMO_AGENTS, create_database
from transport import logs, settings
from transport.asgi import Front
from transport.door import Door
from transport.execute import Executor
from transport.hypercorn_trio import serve as hypercorn_serve
from transport.packages import require_own_packages
from transport.refusing import RefusingExecutor, RefusingFront
from transport.settings import EX_CONFIG, Settings
from transport.systemd import Notifier, held_socket

log = structlog.get_logger()

_KEEP_ALIVE_S = 75  # Hypercorn's 5 s equal httpx's expiry: a reused connection would meet a closing one
_USER_TIMEOUT_MS = 25_000
_BACKLOG = 1_024
RETRY_S = 5.0
"""How long a start that failed behind a held socket waits until it is tried again."""
_DEMO_FACTS = (
    ("mira", "network", "The hermes gateway on lab-01 listens on port 18789."),
    ("atlas", "deploy", "Restart lab-memory.service from a separate shell, never from inside a gateway turn."),
    ("tam", "database", "solos.db is shared: keep write transactions short."),
)


def run(load: Callable[[], Settings]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 0, 1 after an actor gave up, 78 for a bad configuration.

    Behind a socket that systemd holds, a bad configuration is no end: every call is refused with the reason, and
    `load` and what follows is tried again every RETRY_S.

    Raises:
        ConfigurationError: the settings or the socket that was passed cannot be used; nothing was begun.
    """
    held = held_socket(os.environ)
    config = load() if held is None else None
    try:
        if config is not None:
            _prepare(config)
        return trio.run(_main, load, config, held)
    except (ConfigurationError, BaseExceptionGroup) as error:
        _log_end(error)
        return _exit_code(error)


def _prepare(config: Settings) -> None:
    """Logs as the settings say, in a program whose packages are its own.

    Raises:
        ConfigurationError: another package has the name of one of ours.
    """
    logs.configure(config.log_level, config.log_format)
    for name in settings.unknown_variables(os.environ):
        log.warning("unknown_variable", name=name, hint="No setting has this name; see `solos-memory serve --help`.")
    require_own_packages()
    collect_seldom()


def _cause(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _exit_code(error: BaseException) -> int:
    """The code that says why the program ends."""
    return EX_CONFIG if isinstance(_cause(error), ConfigurationError) else 1


def _log_end(error: BaseException) -> None:
    """Log why the program ends; what is neither reason is a bug and is raised again."""
    cause = _cause(error)
    if isinstance(cause, ConfigurationError):
        log.critical("configuration_refused", reason=str(cause))
    elif isinstance(cause, ActorGaveUp):
        log.critical("gave_up", reason=str(cause))
    else:
        raise error


def _database(config: Settings) -> tuple[Path, bool, bool]:
    """(path, whether it is the demo, whether it was made just now).

    Raises:
        ConfigurationError: there is no database to serve, or none can be made.
    """
    if config.db is not None:
        path = config.db.expanduser()
        made = config.create and not path.exists()
        if made:
            create_database(path, ())
        return path, False, made
    if settings.under_systemd(os.environ):
        raise ConfigurationError(
            "No database is configured (SOLOS_MEMORY_DB or --db), and the demo is refused under a service manager: "
            "a lost environment file must not swallow a fleet's memories."
        )
    path = settings.demo_database()
    made = not path.exists()
    if made:
        create_database(path, DEMO_AGENTS)
    return path, True, made


async def _main(load: Callable[[], Settings], config: Settings | None, held: socket.socket | None) -> int:
    notifier = Notifier(os.environ)
    async with trio.open_nursery() as http, _ending_in_time():
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            door = Door(lambda door, fd: http.start(_serve_http, door, fd))
            http.start_soon(_stop_on_signal, signals, door.stop)
            http.start_soon(notifier.feed)
            if config is not None:
                await _serve_database(config, door, notifier)
            else:
                assert held is not None
                await _serve_held(load, door, held, notifier)
            log.info("stopped")
            if not door.stopped.is_set():
                _leave_hard()
            http.cancel_scope.cancel()
    return 0


async def _serve_held(load: Callable[[], Settings], door: Door, held: socket.socket, notifier: Notifier) -> None:
    """Serve on a held socket, and refuse every call on it while that is not possible.

    A start that goes well accepts nothing before it is ready: calls of a restart wait in the backlog and are answered.
    """
    _give_up_deaf_peers(held)
    logs.configure("info", "auto")
    refused: Exception | None = None
    while not door.stop.is_set():
        try:
            if refused is None:
                await _start(load, door, held, notifier)
                return
            async with _refusing(door, held, f"The service cannot start: {refused}", notifier):
                with trio.move_on_after(RETRY_S):
                    await door.stop.wait()
                if not door.stop.is_set():
                    await _start(load, door, held, notifier)
                    return
        except (ConfigurationError, ActorGaveUp, OSError, BaseExceptionGroup) as error:
            cause = _cause(error)
            has_served = door.is_open and refused is None
            if not isinstance(cause, ConfigurationError | ActorGaveUp | OSError):
                raise
            if has_served and not isinstance(cause, ConfigurationError):
                raise  # the process ends, and its successor begins anew
            refused = cause
            log.critical("configuration_refused", reason=str(cause), retry_s=RETRY_S)
    with trio.move_on_after(limits.DRAIN_S):
        await door.stopped.wait()


@asynccontextmanager
async def _refusing(door: Door, held: socket.socket, reason: str, notifier: Notifier) -> AsyncIterator[None]:
    refusing = Refusing(Stats(), reason)
    port = door.port or held.getsockname()[1]
    async with door.behind(refusing, RefusingExecutor(refusing), port, partial(RefusingFront, refusing)):
        if not door.is_open:
            await door.open(held)
        notifier.say("READY=1", f"STATUS=refusing: {reason}")
        yield


async def _start(load: Callable[[], Settings], door: Door, held: socket.socket, notifier: Notifier) -> None:
    config = load()
    _prepare(config)
    await _serve_database(config, door, notifier, held)


async def _serve_database(config: Settings, door: Door, notifier: Notifier, held: socket.socket | None = None) -> None:
    """Open the database, put its front behind the door, and return when everything is drained and closed.

    Raises:
        ConfigurationError: it cannot be served as configured.
        ActorGaveUp: an actor failed too often.
    """
    host, port = settings.address_of(config.bind)
    if held is None:
        _listen(host, port).close()  # a taken address is told before anything is opened
    path, demo, made = await trio.to_thread.run_sync(_database, config)
    system = System(
        Paths(path),
        Stats(demo=demo),
        swarm=None if demo else settings.swarm_of(config, os.environ),
        refuse_unregistered_reads=config.refuse_unregistered_reads,
    )
    async with system.running():
        notifier.watch(system.writer_silent_s)
        if demo and made:
            await _seed(system)
        listener = None if door.is_open else held or _listen(host, port)
        port = door.port if listener is None else listener.getsockname()[1]
        front = partial(Front, allowed_hosts=config.allowed_hosts, allowed_origins=config.allowed_origins)
        async with door.behind(system, Executor(system), port, front):
            if listener is not None:
                await door.open(listener)
            log.info("serving", url=f"http://{_in_url(host)}:{port}", db=str(path), demo=demo, pid=os.getpid())
            notifier.say("READY=1", "STATUS=serving")
            await door.stop.wait()
            log.info("stopping")
            notifier.say("STOPPING=1", "STATUS=draining")
            with trio.move_on_after(limits.DRAIN_S):
                await door.stopped.wait()


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _stop_on_signal(signals: Any, stop: trio.Event) -> None:
    async for number in signals:
        log.info("signal_received", signal=signal.Signals(number).name)
        stop.set()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket.

    Raises:
        ConfigurationError: the address is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _give_up_deaf_peers(listener)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"bind: {host}:{port} cannot be bound ({error.strerror}).") from error
    return listener


def _give_up_deaf_peers(listener: socket.socket) -> None:
    """Let connections give up a peer that does not read.

    TCP_USER_TIMEOUT is set here because accepted sockets inherit it: Hypercorn on Trio sends shielded and without a
    deadline. Pinned by test_client_that_stops_reading.
    """
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)


async def _serve_http(
    door: Door,
    listener_fd: int,
    task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Hypercorn on a socket that is already open. It is a child beside the actors, never their parent: an actor that
    raised inside an application's nursery or lifespan died in silence. Pinned by test_dead_writer_ends_the_process.
    """
    config = Config()
    config.bind = [f"fd://{listener_fd}"]
    config.backlog = _BACKLOG
    config.accesslog = None
    config.errorlog = logging.getLogger("hypercorn.error")
    config.keep_alive_timeout = _KEEP_ALIVE_S
    config.keep_alive_max_requests = sys.maxsize
    config.h11_max_incomplete_size = limits.HEAD_BYTES_MAX
    config.graceful_timeout = limits.DRAIN_S - 2
    config.include_server_header = False
    await hypercorn_serve(door, config, shutdown_trigger=door.stop.wait, task_status=task_status)
    door.stopped.set()


async def _seed(system: System) -> None:
    for agent, topic, fact in _DEMO_FACTS:
        await system.ask(RememberLong(agent=agent, topic=topic, fact=fact, source="demo", tags=("demo",)))


@asynccontextmanager
async def _ending_in_time() -> AsyncIterator[None]:
    """Run the body; where it fails, end the process within a drain's time even if clients do not read.

    Hypercorn's sends are shielded: the nursery around would wait for them as long as TCP_USER_TIMEOUT. A system task
    does not keep the run alive, so an ordinary end is not delayed.
    """
    try:
        yield
    except Exception as error:
        trio.lowlevel.spawn_system_task(_leave_hard_after, limits.DRAIN_S, error)
        raise


async def _leave_hard_after(seconds: float, error: Exception) -> None:
    await trio.sleep(seconds)
    try:
        _log_end(error)
    except Exception:
        log.exception("failed")
    _leave_hard(_exit_code(error))


def _leave_hard(code: int = 0) -> None:
    """Everything is drained and closed; only connections whose clients do not read are left."""
    log.warning("left_hard", hint="Clients did not read their answers; nothing that was acknowledged is lost.")
    with suppress(OSError):
        sys.stdout.flush()
    os._exit(code)
