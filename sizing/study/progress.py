"""A bar on standard error for work of many items, with the time left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


def bar(label: str, done: int = 0) -> Callable[[int], AbstractContextManager[Callable[[], None]]]:
    """What `run_all` takes as `progress`; `done` items were done before. Nothing is drawn off a terminal."""

    @contextmanager
    def drawn(total: int) -> Iterator[Callable[[], None]]:
        console = Console(stderr=True)
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        progress = Progress(
            TextColumn("{task.description}"), *columns, console=console, disable=not console.is_terminal
        )
        with progress:
            task = progress.add_task(label, total=total, completed=done)
            yield lambda: progress.advance(task)

    return drawn
