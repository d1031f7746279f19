"""What the load benchmarks send: the fleet's known-item questions as REST and MCP recalls, and writes of new facts."""

import itertools
import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.bench.stores import row_ids

AGENT = "sol"
"""An agent of every fleet's database that gen_fleet.py makes."""
K = 5
TOPIC = "load-bench"
WRITES = 2_000
WORDS = (12, 30)
"""Words of a written fact: as many as one of gen_fleet.py's has."""
_VOCABULARY = 5_000
SEED = 31


@dataclass(frozen=True)
class Known:
    """A question, and the ids of which it should find one."""

    q: str
    gold: frozenset[str]


@dataclass(frozen=True)
class Requests:
    """One line a request: a path for GET, a body for POST; and the files that load.py reads them from."""

    known: Sequence[Known]
    recalls: Sequence[str]
    mcp_recalls: Sequence[str]
    mcp_nothings: Sequence[str]
    writes: Sequence[str]
    folder: Path

    def file(self, name: str) -> Path:
        """The file of one kind of request, by the name of its field."""
        path = self.folder / f"{name}.txt"
        if not path.exists():
            path.write_text("".join(f"{line}\n" for line in getattr(self, name)), encoding="utf-8")
        return path


def requests_of(database: Path, folder: Path, most: int = 2_000) -> Requests:
    """The requests for a database of gen_fleet.py.

    Raises:
        SystemExit: its questions do not lie beside it.
    """
    path = Path(f"{database}.queries.jsonl")
    if not path.is_file():
        raise SystemExit(f"{path} is no file; tests/bench/gen_fleet.py makes it")
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines()[:most])
    known = [Known(line["q"], frozenset(row_ids(line["gold"]))) for line in lines]
    return Requests(
        known,
        [recall_path(one.q) for one in known],
        [tool_call("recall", {"agent": AGENT, "q": one.q, "k": K}) for one in known],
        [tool_call("nothing", {"agent": AGENT, "q": one.q, "k": K}) for one in known],
        list(itertools.islice(facts(), WRITES)),
        folder,
    )


def recall_path(q: str) -> str:
    """The path of a recall over REST."""
    return "/v1/recall?" + urlencode({"agent": AGENT, "q": q, "k": K})


def tool_call(tool: str, arguments: dict[str, Any]) -> str:
    """The body of a tool call, without a session: as MCP 2026 wants it and earlier ones take it."""
    params = {"name": tool, "arguments": arguments}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, ensure_ascii=False)


def facts() -> Iterator[str]:
    """Bodies of writes, no two alike: invented words, a few of them common and most of them rare."""
    pick = random.Random(SEED)
    words = [
        "".join(pick.choices("bdfgklmnprstvz", k=2)) + pick.choice("aeiou") * 2 + str(n) for n in range(_VOCABULARY)
    ]
    for number in itertools.count():
        said = " ".join(words[int(pick.paretovariate(0.7)) % _VOCABULARY] for _ in range(pick.randint(*WORDS)))
        yield json.dumps({"agent": AGENT, "fact": f"load fact {number}: {said}", "topic": TOPIC})
