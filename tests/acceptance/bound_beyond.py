"""Runs the acceptance command on a set-up that is bound to another address than 127.0.0.1: HOST DATABASE.

A process of its own, so that 0.0.0.0 is bound in a network namespace and never in the host's.
"""

import fcntl
import socket
import struct
import subprocess
import sys
from pathlib import Path

from tests.acceptance.faulty_proxy import none, proxied
from tests.support import PROGRAM, serving

SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 0x1
NAME_AND_FLAGS = struct.Struct("16sH14x")


def raise_loopback() -> None:
    """Bring `lo` up: in a new network namespace it is down."""
    with socket.socket() as any_socket:
        answered = fcntl.ioctl(any_socket, SIOCGIFFLAGS, NAME_AND_FLAGS.pack(b"lo", 0))
        name, flags = NAME_AND_FLAGS.unpack(answered)
        if not flags & IFF_UP:
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, NAME_AND_FLAGS.pack(name, flags | IFF_UP))


def main(host: str, database: Path) -> int:
    """The exit code of the command, whose output is ours."""
    raise_loopback()
    with serving(database) as service, proxied(service.url, none, host=host) as proxy:
        command = [*PROGRAM, "acceptance", "--url", proxy.url, "--db", str(database)]
        return subprocess.run(command, timeout=40, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
