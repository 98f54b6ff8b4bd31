"""Progress of a run in a terminal: a bar with the time left, and a line for each point."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from calibration.plan import Level
from calibration.records import Measurement
from calibration.run import Listener
from sizing.errors import one_line
from sizing.numbers import per_second

LONGEST_SAID = 2000
"""Characters of a line; what it says of a server, this may have chosen."""


def drawn_bar(console: Console) -> Progress:
    """A bar with the time left, drawn rarely because drawing takes time from the load; nothing outside a terminal."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=2,
        transient=True,
        disable=not console.is_terminal,
    )


class Bar(Listener):
    """Progress of a run as a rich bar, in expected seconds, so that long levels count for more.

    Use as ``with``. `run_id` is None until the run is in the store.
    """

    def __init__(self, console: Console) -> None:
        self.run_id: int | None = None
        self._console = console
        self._before_s = self._expected_s = 0.0
        self._progress = drawn_bar(console)
        self._task = self._progress.add_task("querying the server", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar from the screen."""
        self._progress.stop()

    def started(self, run_id: int) -> None:
        self.run_id = run_id
        self._progress.update(self._task, description="checking the load generator")

    def says(self, text: str) -> None:
        self._console.print(one_line(text, LONGEST_SAID), highlight=False, markup=False, soft_wrap=True)

    def expects(self, level: Level, seconds: float, after_s: float) -> None:
        self._expected_s = seconds
        total_s = self._before_s + seconds + after_s
        self._progress.update(self._task, total=total_s, completed=self._before_s, description=level.label)

    def share(self, done: float) -> None:
        self._progress.update(self._task, completed=self._before_s + min(1.0, done) * self._expected_s)

    def measured(self, level: Level, found: Measurement) -> None:
        self._before_s += self._expected_s
        verdict = f", {found.point.verdict}: not fitted" if found.point.void else ""
        self.says(f"{level.label}: {per_second(found.point.requests_per_s)}{verdict}")
