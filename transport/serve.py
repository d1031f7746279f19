"""The composition root: settings → logs → package check → lock → writer → readers → MCP → serve, and back."""

import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import structlog
import trio
from hypercorn.config import Config

from actors.errors import ActorGaveUp
from actors.messages import RememberLong
from actors.stats import Stats
from actors.system import System
from storage import limits
from storage.errors import ConfigurationError
from storage.paths import Paths
from storage.store import DEMO_AGENTS, create_database
from transport import logs, settings
from transport.asgi import Front
from transport.execute import Executor
from transport.hypercorn_trio import serve as hypercorn_serve
from transport.mcp_tools import create_mcp
from transport.packages import require_own_packages
from transport.rest_routes import create_rest
from transport.settings import EX_CONFIG, Settings

log = structlog.get_logger()

_KEEP_ALIVE_S = 75  # Hypercorn's 5 s equal httpx's expiry: a reused connection would meet a closing one
_USER_TIMEOUT_MS = 25_000
_BACKLOG = 1_024
_DEMO_FACTS = (
    ("mira", "network", "The hermes gateway on lab-01 listens on port 18789."),
    ("atlas", "deploy", "Restart lab-memory.service from a separate shell, never from inside a gateway turn."),
    ("tam", "database", "solos.db is shared: keep write transactions short."),
)


def run(config: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code: 0, 1 after an actor gave up, 78 for a bad configuration."""
    logs.configure(config.log_level, config.log_format)
    for name in settings.unknown_variables(os.environ):
        log.warning("unknown_variable", name=name, hint="No setting has this name; see `solos-memory serve --help`.")
    try:
        require_own_packages()
        return trio.run(_main, config)
    except (ConfigurationError, BaseExceptionGroup) as error:
        _log_end(error)
        return _exit_code(error)


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


async def _main(config: Settings) -> int:
    host, port = settings.address_of(config.bind)
    _listen(host, port).close()  # a taken address is told before anything is opened
    path, demo, made = _database(config)
    system = System(Paths(path), Stats(demo=demo), refuse_unregistered_reads=config.refuse_unregistered_reads)
    stop = trio.Event()
    stopped = trio.Event()
    async with trio.open_nursery() as http, _ending_in_time():
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            http.start_soon(_stop_on_signal, signals, stop)
            async with system.running():
                if demo and made:
                    await _seed(system)
                executor = Executor(system)
                manager = create_mcp(executor)
                async with manager.run():
                    with _listen(host, port) as listener:
                        port = listener.getsockname()[1]
                        front = Front(
                            create_rest(system, executor),
                            manager,
                            executor,
                            allowed_hosts=config.allowed_hosts,
                            port=port,
                        )
                        await http.start(_serve_http, front, listener.detach(), stop, stopped)
                    log.info("serving", url=f"http://{_in_url(host)}:{port}", db=str(path), demo=demo, pid=os.getpid())
                    await stop.wait()
                    log.info("stopping")
                    with trio.move_on_after(limits.DRAIN_S):
                        await stopped.wait()
            log.info("stopped")
            if not stopped.is_set():
                _leave_hard()
            http.cancel_scope.cancel()
    return 0


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _stop_on_signal(signals: Any, stop: trio.Event) -> None:
    async for number in signals:
        log.info("signal_received", signal=signal.Signals(number).name)
        stop.set()


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket whose connections give up a peer that does not read.

    TCP_USER_TIMEOUT is set here because accepted sockets inherit it: Hypercorn on Trio sends shielded and without a
    deadline. Pinned by test_client_that_stops_reading.

    Raises:
        ConfigurationError: the address is taken.
    """
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT_MS)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"bind: {host}:{port} cannot be bound ({error.strerror}).") from error
    return listener


async def _serve_http(
    front: Front,
    listener_fd: int,
    stop: trio.Event,
    stopped: trio.Event,
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
    await hypercorn_serve(front, config, shutdown_trigger=stop.wait, task_status=task_status)  # type: ignore[arg-type]
    stopped.set()


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
