"""A bar for runs that take more than two seconds."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console

from calibration.progress import drawn_bar

PATIENCE_S = 2.0


class LateBar:
    """A bar on `console` that appears after two seconds. A context manager; call it with the fraction done, 0 to 1."""

    def __init__(self, console: Console, description: str) -> None:
        self._progress = drawn_bar(console)
        self._task = self._progress.add_task(description, total=1.0)
        self._since_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, share: float) -> None:
        self._progress.update(self._task, completed=share)
        if time.monotonic() - self._since_s > PATIENCE_S:
            self._progress.start()
