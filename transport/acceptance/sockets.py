"""Who listens on a port, by the kernel's own list; and whether a relay's configuration names the port."""

import re
import struct
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path

from transport.acceptance.results import Failed

KERNEL_LIST = Path("/proc/net")
"""Where the kernel lists the sockets of this network namespace; `/proc/PID/net` has those of a process's."""

_LISTEN = "0A"
_LOOPBACK = ("127.0.0.1", "::1")
_TABLES = {"tcp": 8, "tcp6": 32}
"""The tables, and how many hexadecimal digits their addresses have."""
_RANGES = (
    re.compile(r"(?<![\d.])(\d{1,5})\s*(?:-|–|\.\.)\s*(\d{1,5})(?![\d.])"),
    re.compile(r"range\(\s*(\d{1,5})\s*,\s*(\d{1,5})"),
)


def listeners(port: int, kernel_list: Path = KERNEL_LIST) -> list[str]:
    """The addresses on which somebody listens on a TCP port, each once, in order.

    Raises:
        Failed: the list cannot be read.
    """
    found: set[str] = set()
    for table, digits in _TABLES.items():
        try:
            lines = (kernel_list / table).read_text().splitlines()[1:]
        except FileNotFoundError:
            if table == "tcp":
                raise Failed(f"{kernel_list / table} is not there: the socket list cannot be read") from None
            continue  # a kernel without IPv6
        except OSError as error:
            raise Failed(f"{kernel_list / table} cannot be read ({error.strerror})") from error
        for line in lines:
            columns = line.split()
            address, _, number = columns[1].partition(":")
            if columns[3] == _LISTEN and int(number, 16) == port and len(address) == digits:
                found.add(_address(address))
    return sorted(found)


def _address(shown: str) -> str:
    """An address as it is written: the kernel shows each 32 bits of it in the host's order of bytes."""
    words = [int(shown[at : at + 8], 16) for at in range(0, len(shown), 8)]
    packed = struct.pack(f"={len(words)}I", *words)
    return str(IPv4Address(packed) if len(words) == 1 else IPv6Address(packed))


def loopback_alone(port: int, kernel_list: Path) -> str:
    """What was seen where 127.0.0.1 or ::1 listens on a port, and no other address does.

    Raises:
        Failed: another address listens, or none.
    """
    found = listeners(port, kernel_list)
    if beyond := [address for address in found if address not in _LOOPBACK]:
        raise Failed(f"{', '.join(_with_port(address, port) for address in beyond)} listens, too")
    if not found:
        raise Failed(f"nobody listens on port {port} of this host, by {kernel_list}")
    return f"{', '.join(_with_port(address, port) for address in found)} listens and no other address"


def _with_port(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def unnamed(port: int, config: Path) -> str:
    """What was seen where a relay's configuration does not name a port, by itself or in a range `a-b`.

    Comments count: a line that somebody takes back must not publish it.

    Raises:
        Failed: it names the port, with the number of the line, or cannot be read.
    """
    try:
        text = config.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise Failed(f"{config} cannot be read ({error.strerror})") from error
    for number, line in enumerate(text.splitlines(), 1):
        if _names(line, port):
            raise Failed(f"{config} names port {port} in line {number}")
    return f"{config} does not name port {port}"


def _names(line: str, port: int) -> bool:
    if re.search(rf"(?<!\d){port}(?!\d)", line):
        return True
    spans = (span for form in _RANGES for span in form.findall(line))
    return any(int(low) <= port <= int(high) for low, high in spans)
