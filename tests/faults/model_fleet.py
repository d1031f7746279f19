"""A fleet's memory as a plain dictionary: what the service must show, whatever happened to it."""

import time
from collections import Counter
from dataclasses import dataclass, field, replace

_LETTERS = "bcdfghjklm"
"""No word of theirs has a stem, a stop word or another word as its beginning."""
SURE_S = 0.1
"""How near to a key's end nothing is said of it: clocks of two processes, and the call's own time."""


@dataclass(frozen=True)
class Row:
    """One memory. Its word is in no other."""

    id: str
    agent: str
    text: str
    word: str
    key: str | None = None
    ends: tuple[float, float] | None = None
    """Of a short key: the earliest and the latest instant of its end."""
    request: tuple[str, dict[str, object]] | None = None
    """Tool and arguments of a write that may be sent again."""
    session: str | None = None
    """Links it to its neighbours."""
    edited: bool = False
    """Changed by another process, so that the index may not know its words yet."""

    @property
    def tier(self) -> str:
        """Its tier."""
        return self.id.partition(":")[0]

    @property
    def number(self) -> int:
        """Its row id."""
        return int(self.id.partition(":")[2])

    def lives(self, until_s: float) -> bool:
        """Whether it is there for certain up to an instant."""
        return self.ends is None or until_s < self.ends[0] - SURE_S

    def is_over(self, from_s: float) -> bool:
        """Whether it has expired for certain at an instant."""
        return self.ends is not None and from_s > self.ends[1] + SURE_S


@dataclass
class Fleet:
    """What is there, and what must never be seen again."""

    rows: dict[str, Row] = field(default_factory=dict)
    """By id; a short key that has expired is among them until it is purged."""
    gone: list[str] = field(default_factory=list)
    """Words of what was deleted, replaced or changed."""
    acknowledged: Counter[str] = field(default_factory=Counter)
    """Writes by tier since the service started."""
    words: int = 0

    def new_word(self) -> str:
        """A word that nothing else holds."""
        self.words += 1
        return "zq" + "".join(_LETTERS[int(digit)] for digit in f"{self.words:06}") + "x"

    def put(self, row: Row) -> None:
        """A row is written; one of the same id or short key is no more."""
        same_key = [one.id for one in self.rows.values() if row.key and (one.agent, one.key) == (row.agent, row.key)]
        for old in {row.id, *same_key}:
            self.drop(old)
        self.rows[row.id] = row

    def drop(self, row_id: str) -> None:
        """A row is no more."""
        if old := self.rows.pop(row_id, None):
            self.gone.append(old.word)

    def edit(self, row: Row, text: str, word: str) -> None:
        """Another process changed a row's text: a request that wrote it is void."""
        self.gone.append(row.word)
        self.rows[row.id] = replace(row, text=text, word=word, edited=True, request=None)

    def seen(self, row: Row) -> None:
        """A recall has found an edited row under its new word."""
        if self.rows.get(row.id) == row:
            self.rows[row.id] = replace(row, edited=False)

    def pick(self, number: int, *tiers: str) -> Row | None:
        """One of the rows that are there now."""
        now_s = time.time()
        there = [row for row in self.rows.values() if (not tiers or row.tier in tiers) and row.lives(now_s + 1.0)]
        return there[number % len(there)] if there else None

    def purged(self) -> None:
        """What has expired is removed."""
        now_s = time.time()
        for row in [row for row in self.rows.values() if row.is_over(now_s)]:
            self.drop(row.id)

    def settle(self) -> None:
        """Wait until no key is near its end."""
        while any(not row.lives(time.time() + 0.3) and not row.is_over(time.time()) for row in self.rows.values()):
            time.sleep(0.02)

    def counts(self) -> dict[str, int]:
        """What `/v1/stats` must count."""
        now_s = time.time()
        live = Counter(row.tier for row in self.rows.values() if row.lives(now_s))
        return {tier: live[tier] for tier in ("short", "long", "episodic")}
