"""Drive a real Hermes client: runs in Hermes's own venv, as a process of its own, with HERMES_HOME set.

Prints one JSON line after discovery: {"seconds", "tools", "status"}. Then answers each JSON line on stdin,
{"tool", "arguments"} or {"schema"}, by one JSON line: {"answer"}, which is the text that Hermes's model would see.
Ends when stdin ends.
"""

import json
import logging
import sys
import time
from typing import Any

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # Hermes may print; only our lines go to the real stdout
logging.basicConfig(level=logging.WARNING, stream=sys.stderr)

from tools import mcp_tool  # noqa: E402
from tools.registry import registry  # noqa: E402


def say(line: dict[str, Any]) -> None:
    """Print one JSON line for the test."""
    print(json.dumps(line), file=ANSWERS, flush=True)


def answer(request: dict[str, Any]) -> Any:
    """Do what one line asks."""
    if "schema" in request:
        return registry.get_schema(request["schema"])
    return registry.dispatch(request["tool"], request["arguments"])


def main() -> None:
    """Discover the tools, then call them as told."""
    began = time.perf_counter()
    names = mcp_tool.discover_mcp_tools()
    say({"seconds": time.perf_counter() - began, "tools": names, "status": mcp_tool.get_mcp_status()})
    for line in sys.stdin:
        say({"answer": answer(json.loads(line))})
    mcp_tool.shutdown_mcp_servers()


main()
