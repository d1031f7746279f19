"""Tasks that run in the service's event loop while a test looks on: shipped code knows of none."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

Task = Callable[[str], Awaitable[None]]


def plant(task: Task, path: str) -> None:
    """Let the service's event loop run a task beside its upkeep; what it sees it writes to the path."""
    from actors.janitor import Janitor

    run = Janitor.run

    async def beside(janitor: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(task, path)
            await run(janitor)

    Janitor.run = beside  # type: ignore[method-assign]


def importing(names: str) -> str:
    """The Python that imports some of our modules of faults into a program of its own."""
    return f"import sys\nsys.path.insert(0, {str(Path(__file__).parents[2])!r})\nfrom tests.faults import {names}\n"


def fault(module: str, task: str, path: Path) -> str:
    """The Python that plants a task of one of these modules, for `fault=` of `serving`."""
    return f"{importing(f'{module}, planting')}planting.plant({module}.{task}, {str(path)!r})"
