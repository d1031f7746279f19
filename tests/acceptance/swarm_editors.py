"""Processes beside the service, which a test starts: workers that report events, and editors that rewrite a page.

  python -m tests.acceptance.swarm_editors report URL BODY NAME COUNT PAUSE_MAX_S
  python -m tests.acceptance.swarm_editors edit PAGE LOCK HOW COUNT

`report` sends COUNT events, one after another: BODY (JSON) with a summary of its own in each. `edit` adds COUNT lines
to PAGE, each in a turn of its own: it reads the page, thinks for up to 60 ms, adds its line outside the markers, and
writes all that it had read. HOW: by `replace` (a temporary file takes its place) or `truncate` (in place). Editors
take turns by a lock on the file LOCK, so that they lose nothing to each other; the service knows of no such lock.
Both end with 0 where all went well.
"""

import fcntl
import http.client
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

PATH = "/api/swarm-memory"
THINKS_MAX_S = 0.06
_PATIENCE_S = 30.0


def summary_of(name: str, number: int) -> str:
    """What an event of `report` says; no two are alike."""
    return f"event {number} of {name}."


def line_of(how: str, number: int) -> str:
    """What an edit of `edit` adds; no two are alike."""
    return f"- A note of the editor by {how}: {number}."


def report(url: str, body: str, name: str, count: int, pause_max_s: float) -> None:
    """Send events, each of which must be answered, with a pause before each."""
    chance = random.Random(name)
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=_PATIENCE_S)
    for number in range(count):
        time.sleep(chance.uniform(0, pause_max_s))
        event = json.loads(body) | {"summary": summary_of(name, number)}
        connection.request("POST", PATH, json.dumps(event), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode()
        assert answer.status < 300, text
        assert json.loads(text)["ok"] is True, text
    connection.close()


def edit(page: Path, lock: Path, how: str, count: int) -> None:
    """Add lines to a page, each in a turn of its own."""
    chance = random.Random(how)
    write: Callable[[Path, str], None] = {"replace": _by_replacing, "truncate": _in_place}[how]
    for number in range(count):
        with lock.open("a") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            lines = page.read_text(encoding="utf-8").split("\n")
            time.sleep(chance.uniform(0, THINKS_MAX_S))
            lines.insert(chance.choice(_outside(lines)), line_of(how, number))
            write(page, "\n".join(lines))
        time.sleep(chance.uniform(0, THINKS_MAX_S / 10))  # else the other one never gets its turn


def _outside(lines: list[str]) -> list[int]:
    """The places for a line of one's own: below the title, and not between markers."""
    places, inside = [], False
    for at, line in enumerate(lines[1:], 1):
        if not inside:
            places.append(at)
        inside = line.startswith("<!-- solos:begin") or (inside and not line.startswith("<!-- solos:end"))
    return places


def _by_replacing(page: Path, text: str) -> None:
    temporary = page.with_name(f"{page.name}.{os.getpid()}.swp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(page)


def _in_place(page: Path, text: str) -> None:
    page.write_text(text, encoding="utf-8")


def main(role: str, *arguments: str) -> None:
    """Run as a program."""
    if role == "report":
        url, body, name, count, pause_max_s = arguments
        report(url, body, name, int(count), float(pause_max_s))
    else:
        page, lock, how, count = arguments
        edit(Path(page), Path(lock), how, int(count))


if __name__ == "__main__":
    main(*sys.argv[1:])
