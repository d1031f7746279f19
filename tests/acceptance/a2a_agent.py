"""Run deploy/a2a/example_agent.py for the tests: in the a2a-sdk's own venv, as a process of its own.

`--skip-s` shortens the time in which the memory is left alone after a time-out, so that no test waits 30 s for its end.
`--plain` serves the same echo without a memory, to measure what the memory costs. All else is the example's.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "deploy" / "a2a"))

import example_agent
import solos_memory_client
import uvicorn


def main() -> None:
    """Serve until ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--skip-s", type=float, required=True)
    parser.add_argument("--plain", type=int)
    given, rest = parser.parse_known_args()
    solos_memory_client.SKIP_S = given.skip_s
    if given.plain is not None:
        echo = example_agent.application(example_agent.Echo(), "plain", given.plain)
        uvicorn.run(echo, host="127.0.0.1", port=given.plain, log_level="warning")
        return
    sys.argv[1:] = rest
    example_agent.main()


main()
