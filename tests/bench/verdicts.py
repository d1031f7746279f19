"""The rules of a benchmark, and whether all of them held."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Verdicts:
    """What must hold, and whether all of it did."""

    lines: list[dict[str, Any]] = field(default_factory=list)

    def require(self, name: str, value: Any, limit: Any, *, holds: bool) -> str:
        """Note a rule; what to print of it."""
        self.lines.append({"name": name, "value": value, "limit": limit, "kept": holds})
        return "kept" if holds else "MISSED"

    @property
    def broken(self) -> list[dict[str, Any]]:
        """The rules that did not hold."""
        return [line for line in self.lines if not line["kept"]]

    @property
    def kept(self) -> bool:
        """Whether every rule held."""
        return not self.broken
