"""Logs: one line per event on stdout, JSON for machines, readable on a terminal. Memory text is never logged."""

import contextlib
import logging
import sys
from typing import Any, TextIO, cast

import structlog


class _Stdout:
    """stdout, for as long as somebody reads it: a reader that has gone ends the log and not the service."""

    def write(self, text: str) -> None:
        """Write a line, or drop it."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.write(text)

    def flush(self) -> None:
        """Flush, or not."""
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()


def configure(level: str, form: str) -> None:
    """Set up structlog, and route the libraries' own logging through it."""
    out = _Stdout()
    readable = form == "console" or (form == "auto" and sys.stdout.isatty())
    renderer: Any = structlog.processors.JSONRenderer(ensure_ascii=False)
    if readable:  # with its default formatter it may show the locals of each frame, and so memory text
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    tail: list[Any] = [renderer] if readable else [structlog.processors.format_exc_info, renderer]
    number = getattr(logging, level.upper())
    structlog.configure(
        processors=[*shared, *tail],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(cast(TextIO, out)),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(cast(TextIO, out))
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *tail],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
