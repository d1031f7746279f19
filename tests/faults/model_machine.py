"""A state machine of calls, foreign edits, kills and restarts, held to a dictionary (model_fleet.py) at every step."""

import itertools
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import httpx2
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.faults.foreign import ForeignProcess
from tests.faults.model_calls import Refused, call
from tests.faults.model_fleet import Fleet, Row
from tests.faults.scale import scaled
from tests.support import Service, eventually, fresh_database, rows

AGENTS = ("sol", "mira", "atlas", "or", "null-agent")
TABLES = {
    "long": ("memory_longterm", "fact"),
    "episodic": ("memory_episodic", "summary"),
    "short": ("memory_short", "value"),
}
TEXT_FIELD = {"remember_long": "fact", "remember_episodic": "summary", "remember_short": "value"}

transports = st.sampled_from(("rest", "mcp"))
agents = st.sampled_from(AGENTS)
numbers = st.integers(0, 10_000)
sessions = st.sampled_from(({}, {}, {"session": "s"}))
fillers = st.one_of(
    st.sampled_from(
        ("", "the gateway", "端口 8437 開放", 'It\'s "quoted"; DROP--', "naïve ✨ Straße", "a-b_c.d/e 1.2")
    ),
    st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=40),
    st.integers(1, 60).map(lambda times: "padding words " * times),
)

LAST_RECALLS = 6


class Memory(RuleBasedStateMachine):
    """The service under test, another process at its database, and the model of both."""

    fault = ""
    found_within_s = 60.0
    restarts_max, waits_max = scaled((1, 1), (4, 2))
    """In one example: they are what takes time."""
    steps: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="model-")
        self.database = fresh_database(Path(self.folder.name))
        self.fleet = Fleet()
        self.service = Service(self.database, fault=self.fault).wait()
        self.foreign = ForeignProcess(self.database)
        self.restarts = self.waits = 0

    def teardown(self) -> None:
        """Some rows are found and all agrees at the end, too, where no step has failed.

        One row is written for it: the steps may have left none, and what no example recalls proves nothing.
        """
        try:
            if sys.exc_info()[0] is None:
                self.remember_long("rest", AGENTS[0], "the last", again=False, session={})
                for number in range(LAST_RECALLS):
                    self.recall(("rest", "mcp")[number % 2], AGENTS[0], number)
                self._agree()
        finally:
            self.close()

    def close(self) -> None:
        """End both processes."""
        try:
            self.foreign.__exit__()
            assert self.service.stop() == 0
        finally:
            self.folder.cleanup()

    @initialize(filler=fillers)
    def begin(self, filler: str) -> None:
        """There is something from the start, so that few steps find nothing to act on."""
        for number, (agent, tool) in enumerate(itertools.product(AGENTS[:2], TEXT_FIELD)):
            arguments, word = self._arguments(agent, filler, tool, again=True)
            keyed = {"key": "begun"} if tool == "remember_short" else {}
            self._write(("rest", "mcp")[number % 2], tool, arguments | keyed, word)

    # --- agents write ---

    def _write(self, transport: str, tool: str, arguments: dict[str, Any], word: str) -> None:
        before_s = time.time()
        answer = call(self.service, transport, tool, arguments)
        ends = None
        if ttl_s := arguments.get("ttl_s"):
            ends = (before_s + ttl_s, time.time() + ttl_s)
        assert (answer["agent"], answer.get("replayed", False)) == (arguments["agent"], False)
        request = (tool, arguments) if "request_id" in arguments else None
        text = arguments[TEXT_FIELD[tool]]
        linked = arguments.get("session")
        row = Row(answer["id"], arguments["agent"], text, word, arguments.get("key"), ends, request, session=linked)
        assert row.tier == answer["tier"] == tool.removeprefix("remember_")
        self.fleet.put(row)
        self.fleet.acknowledged[row.tier] += 1
        self.steps[tool] += 1

    def _arguments(self, agent: str, filler: str, tool: str, *, again: bool) -> tuple[dict[str, Any], str]:
        word = self.fleet.new_word()
        text = f"{filler} {word} {filler}"
        return {"agent": agent, TEXT_FIELD[tool]: text, **({"request_id": f"r-{word}"} if again else {})}, word

    @rule(transport=transports, agent=agents, filler=fillers, again=st.booleans(), session=sessions)
    def remember_long(self, transport: str, agent: str, filler: str, again: bool, session: dict[str, str]) -> None:
        arguments, word = self._arguments(agent, filler, "remember_long", again=again)
        self._write(transport, "remember_long", arguments | {"tags": ["model"], **session}, word)

    @rule(transport=transports, agent=agents, filler=fillers, again=st.booleans(), session=sessions)
    def remember_episodic(self, transport: str, agent: str, filler: str, again: bool, session: dict[str, str]) -> None:
        arguments, word = self._arguments(agent, filler, "remember_episodic", again=again)
        self._write(transport, "remember_episodic", arguments | session, word)

    @rule(
        transport=transports,
        agent=agents,
        filler=fillers,
        again=st.booleans(),
        life=st.tuples(st.sampled_from(("a", "b", "ключ")), st.sampled_from((None, 1.0, 1.0, 3_600.0))),
    )
    def remember_short(
        self, transport: str, agent: str, filler: str, again: bool, life: tuple[str, float | None]
    ) -> None:
        key, ttl_s = life
        self.fleet.settle()
        arguments, word = self._arguments(agent, filler, "remember_short", again=again)
        lives = {} if ttl_s is None else {"ttl_s": ttl_s}
        self._write(transport, "remember_short", arguments | {"key": key} | lives, word)

    @rule(transport=transports, number=numbers)
    def send_again(self, transport: str, number: int) -> None:
        """A retry of what is there writes nothing, on whichever transport, in whichever life of the service."""
        sent = [row for row in self.fleet.rows.values() if row.request and row.lives(time.time() + 1.0)]
        if sent:
            row = sent[number % len(sent)]
            assert row.request is not None
            answer = call(self.service, transport, *row.request)
            assert (answer["id"], answer["replayed"]) == (row.id, True)
            other = row.request[1] | {TEXT_FIELD[row.request[0]]: "other content"}
            assert self._refusal(transport, row.request[0], other) == "conflict"
            self.steps["sent again"] += 1

    @rule(transport=transports, filler=fillers)
    def refused(self, transport: str, filler: str) -> None:
        """What is refused is not there; `_agree` would find it."""
        arguments, _ = self._arguments("nobody", filler, "remember_long", again=False)
        assert self._refusal(transport, "remember_long", arguments) == "unknown_agent"
        assert self._refusal(transport, "remember_long", {"agent": "sol"}) == "invalid_request"
        self.steps["refused"] += 1

    def _refusal(self, transport: str, operation: str, arguments: dict[str, Any]) -> str:
        with pytest.raises(Refused) as refused:
            call(self.service, transport, operation, arguments)
        return refused.value.code

    @rule(transport=transports, number=numbers)
    def forget(self, transport: str, number: int) -> None:
        if row := self.fleet.pick(number, "short"):
            stranger = next(agent for agent in AGENTS if agent != row.agent)
            if not any((one.agent, one.key) == (stranger, row.key) for one in self.fleet.rows.values()):
                asked = {"agent": stranger, "key": row.key}
                assert self._refusal(transport, "forget_short", asked) == "not_found"
            answer = call(self.service, transport, "forget_short", {"agent": row.agent, "key": row.key})
            assert answer["id"] == row.id
            self.fleet.drop(row.id)
            self.fleet.acknowledged["short"] += 1
            self.steps["forgotten"] += 1

    @rule()
    def purge(self) -> None:
        self.fleet.settle()
        ((there,),) = rows(self.database, "SELECT count(*) FROM memory_short")
        _, answer = self.service.rest("POST", "/v1/purge")
        self.fleet.purged()
        left = sum(row.tier == "short" for row in self.fleet.rows.values())
        assert (answer["purged"], answer["remaining"]) == (there - left, left)
        self.fleet.acknowledged["short"] += 1
        self.steps["purged"] += 1

    # --- agents read ---

    def _recalled(self, transport: str, agent: str, word: str, **more: Any) -> list[tuple[str, str, str]]:
        """(id, author, text) of what a recall finds; asked again while it says that it does not know all rows yet."""
        asked = {"agent": agent, "q": word, "k": 50, "full": "true", "tiers": "long,episodic,short", **more}
        answers: list[dict[str, Any]] = []

        def is_whole() -> bool:
            answers.append(call(self.service, transport, "recall", asked))
            return answers[-1]["degraded_reasons"] == ["no_embedder"]

        eventually(is_whole, self.found_within_s)
        return [(found["id"], found["agent"], found["text"]) for found in answers[-1]["results"]]

    @rule(transport=transports, agent=agents, number=numbers)
    def recall(self, transport: str, agent: str, number: int) -> None:
        """A row is found by its word, first and whole, by every agent; with scope=own by its author alone.

        What comes after it are its neighbours, as they are now; a row without a session has none.
        """
        if row := self.fleet.pick(number):
            expected = (row.id, row.agent, row.text)
            if row.edited:
                eventually(lambda: expected in self._recalled(transport, agent, row.word), self.found_within_s)
                self.fleet.seen(row)
            found = self._recalled(transport, agent, row.word)
            assert found[:1] == [expected]
            there = {one.id: one for one in self.fleet.rows.values() if row.session and one.session == row.session}
            for neighbour in found[1:]:
                assert neighbour[0] in there, (row, neighbour)
                assert neighbour == (neighbour[0], there[neighbour[0]].agent, there[neighbour[0]].text)
            own = self._recalled(transport, agent, row.word, scope="own")
            assert own[:1] == ([expected] if agent == row.agent else [])
            assert {author for _, author, _ in own} <= {agent}
            self.steps["recalled"] += 1

    @rule(transport=transports, agent=agents, number=numbers)
    def recall_what_is_gone(self, transport: str, agent: str, number: int) -> None:
        """What was deleted, replaced, changed or has expired is shown to nobody."""
        over = [row.word for row in self.fleet.rows.values() if row.is_over(time.time())]
        if gone := self.fleet.gone + over:
            word = gone[number % len(gone)]
            assert [text for _, _, text in self._recalled(transport, agent, word) if word in text] == []
            self.steps["gone"] += 1

    @rule(transport=transports, agent=agents, number=numbers)
    def read_by_id(self, transport: str, agent: str, number: int) -> None:
        """By its id a row is what it is now, at once, whoever changed it."""
        if row := self.fleet.pick(number):
            found = call(self.service, transport, "get_memory", {"agent": agent, "id": row.id})
            assert (found["id"], found["agent"], found["text"]) == (row.id, row.agent, row.text)
            self.steps["read by id"] += 1
        missing = {"agent": agent, "id": "long:999999"}
        assert self._refusal(transport, "get_memory", missing) == "not_found"

    @rule(transport=transports, agent=agents, owner=agents)
    def list_keys(self, transport: str, agent: str, owner: str) -> None:
        self.fleet.settle()
        live = {row.key: row.text for row in self.fleet.rows.values() if row.agent == owner and row.key}
        over = {row.key for row in self.fleet.rows.values() if row.agent == owner and row.is_over(time.time())}
        answer = call(self.service, transport, "get_short", {"agent": agent, "owner": owner})
        expected = {key: text for key, text in live.items() if key not in over}
        assert {entry["key"]: entry["value"] for entry in answer["entries"]} == expected
        self.steps["listed"] += 1

    @precondition(lambda self: self.waits < self.waits_max and any(row.ends for row in self.fleet.rows.values()))
    @rule()
    def wait_for_an_expiry(self) -> None:
        self.waits += 1
        time.sleep(1.2)
        self.steps["waited"] += 1

    # --- another process ---

    @rule(agent=agents, filler=fillers, tier=st.sampled_from([*TABLES]))
    def foreign_insert(self, agent: str, filler: str, tier: str) -> None:
        """Found by the next recall, or that recall says that it does not know all rows yet."""
        table, column = TABLES[tier]
        word = self.fleet.new_word()
        text = f"{filler} {word}"
        names, values = f"agent, {column}, created_at", f"'{agent}', {_sql(text)}, 1.7e9"
        key = f"foreign-{word}" if tier == "short" else None
        if key:
            names, values = f"{names}, key", f"{values}, '{key}'"
        self.foreign.execute(f"INSERT INTO {table}({names}) VALUES ({values})")
        ((number,),) = rows(self.database, f"SELECT id FROM {table} WHERE {column} = ?", text)
        row = Row(f"{tier}:{number}", agent, text, word, key)
        self.fleet.put(row)
        assert self._recalled("rest", "sol", word) == [(row.id, agent, text)]
        self.steps["foreign insert"] += 1

    @rule(number=numbers, filler=fillers)
    def foreign_edit(self, number: int, filler: str) -> None:
        if row := self.fleet.pick(number):
            table, column = TABLES[row.tier]
            word = self.fleet.new_word()
            text = f"{word} {filler} {word}"
            self.foreign.execute(f"UPDATE {table} SET {column} = {_sql(text)} WHERE id = {row.number}")
            self.fleet.edit(row, text, word)
            self.steps["foreign edit"] += 1

    @rule(number=numbers)
    def foreign_delete(self, number: int) -> None:
        if row := self.fleet.pick(number):
            self.foreign.execute(f"DELETE FROM {TABLES[row.tier][0]} WHERE id = {row.number}")
            self.fleet.drop(row.id)
            self.steps["foreign delete"] += 1

    # --- ends and beginnings ---

    def _start_again(self) -> None:
        self.service = Service(self.database, port=self.service.port, fault=self.fault).wait()
        self.fleet.acknowledged.clear()
        self.restarts += 1

    @precondition(lambda self: self.restarts < self.restarts_max)
    @rule()
    def stop_and_start(self) -> None:
        assert self.service.stop() == 0
        self._start_again()
        self.steps["stopped"] += 1

    @precondition(lambda self: self.restarts < self.restarts_max)
    @rule(after_ms=st.integers(0, 120), filler=fillers)
    def kill_in_the_middle(self, after_ms: int, filler: str) -> None:
        """kill -9 under writes: what was acknowledged is there, the rest can be sent again and is written once."""
        tools = ("remember_long", "remember_episodic", "remember_long", "remember_short")
        sent = []
        for number, tool in enumerate(tools * 3):
            arguments, word = self._arguments(AGENTS[number % len(AGENTS)], filler, tool, again=True)
            keyed = {"key": f"killed-{word}"} if tool == "remember_short" else {}
            sent.append((("rest", "mcp")[number % 2], tool, arguments | keyed, word))
        with ThreadPoolExecutor(len(tools)) as clients:
            answers = [clients.submit(_acknowledgement, self.service, *write[:3]) for write in sent]
            threading.Event().wait(after_ms / 1000)
            self.service.kill()
        told = [answer.result() for answer in answers]
        self._start_again()
        for (transport, tool, arguments, word), first in zip(sent, told, strict=True):
            again = call(self.service, transport, tool, arguments)
            assert first in (None, again["id"])
            assert again["replayed"] or first is None
            self.fleet.acknowledged[tool.removeprefix("remember_")] += not again["replayed"]
            text = arguments[TEXT_FIELD[tool]]
            key = arguments.get("key")
            self.fleet.put(Row(again["id"], arguments["agent"], text, word, key, request=(tool, arguments)))
            self.steps["replayed after a kill" if again["replayed"] else "lost by a kill"] += 1

    # --- all of it ---

    @rule()
    def agree(self) -> None:
        self._agree()

    def _agree(self) -> None:
        """The tables hold the model's rows and no others, and `/v1/stats` counts them."""
        self.fleet.settle()
        there = {
            f"{tier}:{number}": (agent, text)
            for tier, (table, column) in TABLES.items()
            for number, agent, text in rows(self.database, f"SELECT id, agent, {column} FROM {table}")
        }
        now_s = time.time()
        known = {row.id: (row.agent, row.text) for row in self.fleet.rows.values()}
        removed = {row.id for row in self.fleet.rows.values() if row.is_over(now_s)} - there.keys()
        assert there == {row: value for row, value in known.items() if row not in removed}
        eventually(lambda: self.service.stats()["store"]["rows"] == self.fleet.counts(), self.found_within_s)
        writes = self.service.stats()["writes"]
        assert {tier: writes[tier]["acknowledged"] for tier in TABLES} == {
            tier: self.fleet.acknowledged[tier] for tier in TABLES
        }
        assert self.service.rest("GET", "/health")[1]["status"] == "ok"
        self.steps["agreed"] += 1


def _sql(text: str) -> str:
    """A text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"


def _acknowledgement(service: Service, transport: str, tool: str, arguments: dict[str, Any]) -> str | None:
    """The id that a write was acknowledged with; None where the service was gone before."""
    try:
        return call(service, transport, tool, arguments)["id"]
    except (httpx2.TransportError, RuntimeError, json.JSONDecodeError):
        return None
