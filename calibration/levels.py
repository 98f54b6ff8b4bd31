"""Load levels: what a sweep consists of, and how the points measured at them are told apart."""

from __future__ import annotations

from dataclasses import dataclass

from sizing.curves import LoadKind, Point
from sizing.workload import Lengths

LevelKey = tuple[float, float, float, float, LoadKind, float]


@dataclass(frozen=True, slots=True)
class Level:
    """One load level of a sweep: `value` users (closed loop) or requests/s (open loop).

    About `requests` are measured where the plan says so, else at least. `index` is its place in the
    plan, `entry` that of its lengths, whose means and variations `lengths` are.
    """

    index: int
    lengths: Lengths
    kind: LoadKind
    value: float
    requests: int
    entry: int = 0

    @property
    def key(self) -> LevelKey:
        """What tells levels of one run apart; the same for the point that was measured at it."""
        return (
            self.lengths.isl,
            self.lengths.osl,
            self.lengths.isl_cv,
            self.lengths.osl_cv,
            self.kind,
            self.value,
        )

    @property
    def label(self) -> str:
        """For progress lines: ``ISL 64, OSL 32, concurrency 4``."""
        load = f"concurrency {self.value:g}" if self.kind == "concurrency" else f"{self.value:.3g} requests/s"
        return f"ISL {self.lengths.isl:g}, OSL {self.lengths.osl:g}, {load}"


def level_key(point: Point) -> LevelKey:
    """The key of the level at which `point` was measured."""
    return (point.isl, point.osl, point.isl_cv, point.osl_cv, point.load_kind, point.load_value)
