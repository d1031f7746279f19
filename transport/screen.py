"""What `solos-memory status` shows: the answers of /health and /v1/stats as one screen of text."""

from collections import Counter
from typing import Any

from storage.times import instant

_COUNTS = ("issued", "acknowledged", "replayed", "refused", "unknown", "in_flight")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400
_UNTIL = 2
"""A span is told in a unit from two of it on: 119 s, then 2 min."""
_KIB = 1024


def head(url: str, health: dict[str, Any]) -> str:
    """The first line: whether it is well, and why not."""
    reasons = f" ({', '.join(health['reasons'])})" if health["reasons"] else ""
    demo = ", the demo database" if health["demo"] else ""
    return f"solos-memory at {url}: {health['status']}{reasons}{demo}"


def screen(stats: dict[str, Any], now_s: float) -> str:
    """The rest of the screen.

    Raises:
        KeyError: the statistics are those of another version.
    """
    return "\n".join(
        [
            _line("since", _moment(stats["since"], now_s)),
            "",
            *_writes(stats["writes"]),
            "",
            *_figures(stats, now_s),
            "",
            *_answers(stats["latency"]),
        ]
    )


def _line(label: str, text: str) -> str:
    return f"{label:<16} {text}"


def _writes(writes: dict[str, dict[str, int]]) -> list[str]:
    """One line for each tier that takes writes, and one for all of them."""
    total = {name: sum(counts[name] for counts in writes.values()) for name in _COUNTS}
    titles = [name.replace("_", " ") for name in _COUNTS]
    lines = [_line("writes", "  ".join(titles))]
    for tier, counts in [*writes.items(), ("all", total)]:
        cells = (f"{counts[name]:>{len(title)},}" for name, title in zip(_COUNTS, titles, strict=True))
        lines.append(_line(tier, "  ".join(cells)))
    return lines


def _figures(stats: dict[str, Any], now_s: float) -> list[str]:
    store = stats["store"]
    mailboxes, restarts = _mailboxes(stats["actors"])
    return [
        _line("rows", ", ".join(f"{tier} {count:,}" for tier, count in store["rows"].items())),
        _line("refusals", _refusals(stats)),
        _line("index", f"{_lag(store)}, {_size(store['index_bytes'])}"),
        _line("foreign change", _moment(stats["foreign_change_at"], now_s, never="none seen")),
        _line("integrity", _integrity(stats["integrity"], now_s)),
        _line("WAL", _wal(store)),
        _line("last backup", _moment(store["last_backup_at"], now_s, never="none recorded")),
        _line("mailboxes", mailboxes),
        _line("restarts", restarts),
    ]


def _refusals(stats: dict[str, Any]) -> str:
    """How many, and the most frequent codes."""
    codes: Counter[str] = Counter()
    for refusal in stats["refusals"]:
        codes[refusal["code"]] += refusal["count"]
    named = ", ".join(f"{code} {count:,}" for code, count in codes.most_common(4))
    return f"{stats['refused']:,}" + (f": {named}" if named else "")


def _lag(store: dict[str, Any]) -> str:
    behind = store["index_rows_behind"]
    if behind:
        return f"{behind:,} rows behind, {store['index_share']:.1%} done"
    return "up to the tables"


def _integrity(integrity: dict[str, Any] | None, now_s: float) -> str:
    """What the last check of the database said."""
    if integrity is None:
        return "not known: the writer is down"
    read = "read whole" if integrity["whole"] else "a sample was read"
    found = "sound" if integrity["sound"] else f"DAMAGED ({integrity['problem']})"
    return f"{found}, {read} {_moment(integrity['checked_at'], now_s)}"


def _wal(store: dict[str, Any]) -> str:
    mode = store["journal_mode"]
    return _size(store["wal_bytes"]) + ("" if mode == "wal" else f"; the database is in mode {mode}")


def _mailboxes(actors: dict[str, dict[str, int]]) -> tuple[str, str]:
    depths = (f"{name} {actor['depth']:,} of {actor['bound']:,}" for name, actor in actors.items())
    restarts = (f"{name} {actor['restarts']:,}" for name, actor in actors.items())
    return ", ".join(depths), ", ".join(restarts)


def _answers(latency: dict[str, dict[str, float]]) -> list[str]:
    """Answer times by operation, the most frequent first."""
    lines = [_line("answers", f"{'count':>9}  {'p50 ms':>9}  {'p99 ms':>9}  {'max ms':>9}")]
    for operation, times in sorted(latency.items(), key=lambda item: -item[1]["count"]):
        cells = (f"{times[name]:>9,.2f}" for name in ("p50_ms", "p99_ms", "max_ms"))
        lines.append(_line(operation, "  ".join([f"{times['count']:>9,}", *cells])))
    return lines if latency else [_line("answers", "none yet")]


def _moment(at: str | None, now_s: float, *, never: str = "never") -> str:
    at_s = instant(at)
    return never if at_s is None else f"{at} ({_span(now_s - at_s)} ago)"


def _span(seconds: float) -> str:
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= _UNTIL * unit_s:
            return f"{int(seconds / unit_s)} {name}"
    return f"{max(int(seconds), 0)} s"


def _size(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if number < _KIB:
            return f"{number:,.0f} bytes" if unit == "bytes" else f"{number:,.1f} {unit}"
        number /= _KIB
    return f"{number:,.1f} GiB"
