"""Line charts over time as inline SVG, and the one HTML file that holds them; readable in light and dark.

Our own hundred lines rather than matplotlib: that draws no colours which follow the reader's light or dark scheme, and
brings numpy's weight three times over (with pillow, fonttools, contourpy …) to a project that draws six lines.
"""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float | None]]
"""(x, y) in order of x; y None where there was nothing to measure: the line has a gap."""

WIDTH, HEIGHT = 860, 230
LEFT, RIGHT, TOP, BOTTOM = 64, 26, 14, 28
_TICKS = 5
_STEPS = (1, 2, 2.5, 5, 10)
_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #656d76; --rule: #d0d7de; --paper: #ffffff;
  --a: #0969da; --b: #bc4c00; --c: #8250df; --d: #1a7f37; --bad: #cf222e; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #8d96a0; --rule: #30363d; --paper: #0d1117;
  --a: #4493f8; --b: #f0883e; --c: #ab7df8; --d: #3fb950; --bad: #f85149; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 900px;
  margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .2rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; } th { text-align: left; font-weight: 600; }
td, th { padding: .2rem 1rem .2rem 0; border-bottom: 1px solid var(--rule); } .bad { color: var(--bad); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--soft); }
.rule { stroke: var(--rule); } .mark { stroke: var(--soft); stroke-dasharray: 3 3; }
.line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.key { display: inline-block; width: .8rem; height: .2rem; margin: 0 .4rem .25rem 1rem; }
"""
_COLOURS = ("--a", "--b", "--c", "--d")


@dataclass(frozen=True)
class Chart:
    """Lines over the minutes of a run."""

    title: str
    unit: str
    lines: Mapping[str, Points]
    marks: Sequence[tuple[float, str]] = ()
    """(minute, what happened then)."""
    log: bool = False
    """A logarithmic scale, for what lies decades apart."""
    minutes: float = 0.0
    """As far as the axis goes at least, so that the charts of one run can be laid beside each other."""

    def svg(self) -> str:
        """The chart; an empty one where there is nothing to show."""
        xs = [x for points in self.lines.values() for x, _ in points] or [0.0]
        ys = [y for points in self.lines.values() for _, y in points if y is not None]
        across = _Scale(0.0, max(*xs, self.minutes, 0.1), LEFT, WIDTH - RIGHT)
        up = _Scale(*_range(ys, log=self.log), HEIGHT - BOTTOM, TOP, log=self.log)
        body = [*self._axes(across, up), *self._marks(across), *self._lines(across, up)]
        label = html.escape(f"{self.title}, {self.unit}")
        return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(body)}</svg>'

    def _axes(self, across: "_Scale", up: "_Scale") -> Iterable[str]:
        for value in up.ticks():
            y = up.at(value)
            yield f'<line class="rule" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>'
        for value in across.ticks():
            yield f'<text x="{across.at(value):.1f}" y="{HEIGHT - 8}" text-anchor="middle">{value:g} min</text>'

    def _marks(self, across: "_Scale") -> Iterable[str]:
        for minute, what in self.marks:
            x = across.at(minute)
            yield f'<line class="mark" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
            yield f'<text x="{x + 4:.1f}" y="{TOP + 10}">{html.escape(what)}</text>'

    def _lines(self, across: "_Scale", up: "_Scale") -> Iterable[str]:
        for colour, points in zip(_COLOURS, self.lines.values(), strict=False):
            for run in _unbroken(points):
                path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in run)
                yield f'<polyline class="line" style="stroke:var({colour})" points="{path}"/>'

    def html(self) -> str:
        """The chart under its title and the key of its lines."""
        keys = "".join(
            f'<span class="key" style="background:var({colour})"></span>{html.escape(name)}'
            for colour, name in zip(_COLOURS, self.lines, strict=False)
        )
        return f"<h2>{html.escape(self.title)}, {html.escape(self.unit)}{keys}</h2>{self.svg()}"


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """Where a value lies, in the units of the picture."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log10(low), math.log10(high), math.log10(max(value, self.low))
        return self.start + (self.end - self.start) * (value - low) / (high - low)

    def ticks(self) -> list[float]:
        """Round values, some four to eight of them."""
        if self.log:
            return [10.0**n for n in range(round(math.log10(self.low)), round(math.log10(self.high)) + 1)]
        rough = (self.high - self.low) / _TICKS
        unit = 10 ** math.floor(math.log10(rough))
        step = next(unit * part for part in _STEPS if unit * part >= rough)
        first = math.ceil(self.low / step)
        return [round(n * step, 10) for n in range(first, math.floor(self.high / step) + 1)]


def _range(ys: Sequence[float], *, log: bool) -> tuple[float, float]:
    if log:
        low, high = min(ys, default=1.0), max(ys, default=10.0)
        bottom = math.floor(math.log10(max(low, 1e-3)))
        return 10.0**bottom, 10.0 ** max(math.ceil(math.log10(max(high, 1e-3))), bottom + 1)
    return 0.0, max(ys, default=1.0) * 1.08 or 5.0


def _unbroken(points: Points) -> Iterable[list[tuple[float, float]]]:
    """The points cut where there was nothing to measure."""
    run: list[tuple[float, float]] = []
    for x, y in points:
        if y is not None:
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


@dataclass(frozen=True)
class Row:
    """A line of a table: a name, what was measured, and what it must be."""

    name: str
    value: str
    limit: str = ""
    kept: bool = True


@dataclass(frozen=True)
class Page:
    """A report as one file that needs no other."""

    title: str
    about: str
    rows: Sequence[Row] = field(default_factory=list)
    charts: Sequence[Chart] = field(default_factory=list)

    def html(self) -> str:
        """The whole file."""
        title = html.escape(self.title)
        table = "".join(_line(row) for row in self.rows)
        head = "<tr><th>what</th><th>measured</th><th>limit</th><th></th></tr>"
        charts = "\n".join(chart.html() for chart in self.charts)
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
            f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>\n'
            f"<body><h1>{title}</h1><p>{html.escape(self.about)}</p>\n<table>{head}{table}</table>\n{charts}</body></html>\n"
        )


def _line(row: Row) -> str:
    said = "" if not row.limit else "kept" if row.kept else "MISSED"
    cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in (row.name, row.value, row.limit, said))
    return f"<tr>{cells}</tr>" if row.kept else f'<tr class="bad">{cells}</tr>'
