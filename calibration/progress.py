"""What a run looks like in a terminal: a bar with the time left, and the table of its points."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from calibration.plan import Level
from sizing.curves import Point, doubts

_HEAD = (
    "   ISL    OSL        load   req/s   TTFT ms      p95    ITL ms      p95    E2E ms      p95  Little  errors\n"
    "                                      mean               mean               mean\n"
)


class Bar:
    """Progress of a run as a rich bar. Its unit is expected seconds, so that long levels weigh more.

    Use as ``with``. `run_id` is None until the run is known to the store.
    """

    def __init__(self, console: Console) -> None:
        self.run_id: int | None = None
        self._console = console
        self._levels: list[Level] = []
        self._expected: Sequence[float] = ()
        self._before_s = 0.0
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            refresh_per_second=2,  # drawing takes time from the load generator
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("asking the server", total=None)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar off the screen."""
        self._progress.stop()

    def started(self, run_id: int, levels: Sequence[Level]) -> None:
        self.run_id = run_id
        self._levels = list(levels)

    def expects(self, seconds: Sequence[float]) -> None:
        self._expected = seconds
        total_s = self._before_s + sum(seconds)
        self._progress.update(self._task, total=total_s, completed=self._before_s, description=self._levels[0].label)

    def answered(self, done: int, wanted: int) -> None:
        share = min(1.0, done / wanted)
        self._progress.update(self._task, completed=self._before_s + share * self._expected[0])

    def measured(self, level: Level, point: Point) -> None:
        self._before_s += self._expected[0]
        self._levels = self._levels[1:]
        if not self._console.is_terminal:
            self._console.print(
                f"{level.label}: {point.requests_per_s:.3g} requests/s", highlight=False, soft_wrap=True
            )


def table(points: Sequence[Point]) -> str:
    """The points as text, one line each, times in milliseconds; what speaks against a point follows below."""
    lines = [_HEAD, *(_row(point) for point in points)]
    for point in points:
        remarks = [*doubts(point), *([point.notes] if point.notes else [])]
        if remarks:
            lines.append(f"ISL {point.isl:g}, OSL {point.osl:g}, {_load(point)}: {'; '.join(remarks)}\n")
    return "".join(lines)


def _row(point: Point) -> str:
    times = "".join(
        f"{_ms(mean_s):>10}{_ms(p95_s):>9}"
        for mean_s, p95_s in (
            (point.ttft_mean_s, point.ttft_p95_s),
            (point.itl_mean_s, point.itl_p95_s),
            (point.e2e_mean_s, point.e2e_p95_s),
        )
    )
    little = "" if point.little is None else f"{point.little:.3f}"
    head = f"{point.isl:6g} {point.osl:6g} {_load(point):>11} {point.requests_per_s:7.2f}"
    return f"{head}{times}  {little:>6}  {'' if point.errors is None else point.errors:>6}\n"


def _load(point: Point) -> str:
    return f"{point.load_value:g} users" if point.load_kind == "concurrency" else f"{point.load_value:g} req/s"


def _ms(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds * 1000:.4g}"
