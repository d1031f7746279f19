"""What systemd gives a unit and wants of it: a held socket, READY and STATUS, and a watchdog that is fed.

The socket is systemd's (`lab-memory.socket`): it outlives a restart, so that callers wait in its backlog instead of
being refused. Plain environment variables and datagrams; no library is needed for three lines of protocol.
"""

import math
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog
import trio

from storage.errors import ConfigurationError

log = structlog.get_logger()

_FIRST_FD = 3
_LOOPBACKS = ("127.", "::1")


def held_socket(environ: Mapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd holds for us, None where there is none.

    Raises:
        ConfigurationError: what was given is not one TCP socket that listens on loopback.
    """
    owner, count = environ.get("LISTEN_PID"), environ.get("LISTEN_FDS")
    if count is None or (owner is not None and owner != str(os.getpid())):
        return None
    if count != "1":
        raise ConfigurationError(f"LISTEN_FDS is {count}: lab-memory.socket must have exactly one ListenStream.")
    try:
        held = socket.socket(fileno=_FIRST_FD)
        held.set_inheritable(False)
        listening = held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        address = held.getsockname()[0] if held.family in (socket.AF_INET, socket.AF_INET6) else ""
    except OSError as error:
        raise ConfigurationError(f"The file descriptor that systemd passed is no socket ({error.strerror}).") from error
    if not listening or not str(address).startswith(_LOOPBACKS):
        raise ConfigurationError("The socket that systemd passed does not listen on 127.0.0.1 or [::1].")
    return held


class Notifier:
    """Tells the service manager how things are. Without one it says nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        path = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + path[1:] if path.startswith("@") else path
        watchdog_us = environ.get("WATCHDOG_USEC", "")
        self.watchdog_s = int(watchdog_us) / 1e6 if watchdog_us.isdigit() and int(watchdog_us) else None
        """Within how many seconds the watchdog wants to be fed; None where there is none."""
        self._silent_s: Callable[[], float] = lambda: 0.0

    def say(self, *lines: str) -> None:
        """Send assignments such as READY=1. Never raises and never waits: a lost word is no failure of ours."""
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
            sender.sendto("\n".join(line.replace("\n", " ") for line in lines).encode(), self._address)

    def watch(self, silent_s: Callable[[], float]) -> None:
        """Feed the watchdog only while this is shorter than it allows: seconds without a sign of life of the writer."""
        self._silent_s = silent_s

    async def feed(self) -> None:
        """Feed the watchdog from this event loop until cancelled."""
        if self.watchdog_s is None:
            return
        starved = False
        while True:
            silent_s = self._silent_s()
            if silent_s < self.watchdog_s:
                self.say("WATCHDOG=1")
            elif not starved:
                log.critical("watchdog_starved", writer_silent_s=math.floor(silent_s))
            starved = silent_s >= self.watchdog_s
            await trio.sleep(self.watchdog_s / 4)
