"""A stand-in for fuser on a machine without it: as much of it as the pages use (-v FILE). Not a test."""

import os
import sys
from contextlib import suppress
from pathlib import Path

path = sys.argv[-1]
wanted = os.path.realpath(path)
found = set()
for link in Path("/proc").glob("[0-9]*/fd/*"):
    with suppress(OSError):
        if os.path.realpath(link) == wanted:
            found.add(int(link.parts[2]))
lines = ["USER        PID ACCESS COMMAND"]
for process in sorted(found):
    name = Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
    lines.append(f"{process:>19} F.... {name}")
lines[1:2] = [f"{path}: {line}" for line in lines[1:2]]
print("\n".join(lines), file=sys.stderr)
sys.exit(not found)
