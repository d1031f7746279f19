"""A stand-in for ss on a machine without it: as much of it as the pages use (-ltn, IPv4). Not a test."""

from pathlib import Path

LISTENING = "0A"

print("State  Recv-Q Send-Q Local Address:Port Peer Address:Port")
for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
    _, local, _, state, *_ = line.split()
    address, _, port = local.partition(":")
    if state == LISTENING:
        dotted = ".".join(str(byte) for byte in reversed(bytes.fromhex(address)))
        print(f"LISTEN 0      1024   {dotted}:{int(port, 16)}      0.0.0.0:*")
