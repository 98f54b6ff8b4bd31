"""A plan from the fields of a form, checked as every plan is; and how long it will take, before it is started."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from calibration.levels import Level
from calibration.plan import BUDGET_S, PlanFile, SweepPlan, parse_plan
from sizing.curves import Point
from sizing.workload import Lengths
from sizing.yaml_file import yaml_of

Text = str | int
Question = Mapping[str, str | float | int]


@dataclass(frozen=True, slots=True)
class NewRun:
    """The fields. `labels` are keys of a plan's ``deployment``; what is not there the server says itself.

    `metrics` is the host:port of the server's own metrics, empty for none. A level is measured until its means are
    known to `half_width`, for `longest_s` seconds at most. `question` are keys of a plan's ``adaptive``: with them only
    those levels of `concurrency` are measured that the question needs.
    """

    target: str
    lengths: Lengths
    concurrency: tuple[int, ...]
    model: str = "ensemble"
    protocol: Literal["grpc", "http"] = "grpc"
    metrics: str = ""
    labels: Mapping[str, Text] = field(default_factory=dict)
    longest_s: float = BUDGET_S
    half_width: float = 0.05
    check_load: float = 0.7
    seed: int = 0
    question: Question = field(default_factory=dict)


def plan_file(new: NewRun) -> PlanFile:
    """The plan of those fields. Raises PlanError, one line that names the field."""
    server: dict[str, object] = {"url": new.target, "model": new.model, "protocol": new.protocol}
    if new.metrics:
        server["metrics_url"] = f"http://{new.metrics}/metrics"
    lengths = {name: getattr(new.lengths, name) for name in ("isl", "osl", "isl_cv", "osl_cv")}
    content: dict[str, object] = {
        "server": server,
        "deployment": dict(new.labels),
        "lengths": [{name: float(value) for name, value in lengths.items()}],
        "concurrency": sorted(new.concurrency),
        "until": {"half_width": new.half_width},
        "budget_s": float(new.longest_s),
        "check_load": new.check_load,
        "seed": new.seed,
    }
    if new.question:
        content["adaptive"] = dict(new.question)
    return parse_plan(yaml_of(content), name="the form")


class Duration(NamedTuple):
    """Seconds of the server that a plan takes: as expected, or `at_most` so many."""

    seconds: float
    at_most: bool

    def gpu_minutes(self, gpus: int) -> float:
        """The same for all GPUs of the replica that is measured."""
        return self.seconds * gpus / 60


def duration(plan: SweepPlan, points: Sequence[Point], gpus: int = 1) -> Duration:
    """How long `plan` takes on a replica of `gpus` GPUs: of an adaptive one the budget, else the sum over its levels.

    `points` are of the same deployment, measured before: with one of the same lengths the sweep's own estimate is
    used; without any, every level is taken to be measured as long as it may (its warm-up is not known and left out).
    """
    if plan.adaptive is not None:
        return Duration(plan.adaptive.budget_s(gpus), True)
    levels = plan.levels()
    alike = [p for p in points if p.lengths == levels[0].lengths and p.load_kind == "concurrency" and p.e2e_mean_s]
    if not alike:
        each_s = [plan.until_of(level).budget_s or BUDGET_S for level in levels]
    else:
        each_s = [_expected_s(plan, level, alike) for level in levels]
    return Duration(sum(each_s) + plan.check_loads * max(each_s), not alike)


def _expected_s(plan: SweepPlan, level: Level, alike: Sequence[Point]) -> float:
    """The sweep's own estimate, as if the point with the most similar number of users had just been measured."""
    from calibration.measure import Pace  # loads the clients, which a page that starts nothing does without

    near = min(alike, key=lambda point: abs(math.log(point.load_value / level.value)))
    assert near.e2e_mean_s is not None, "only such points are asked"
    pace = Pace(level.lengths, near.load_value, near.e2e_mean_s, near.ttft_mean_s or 0.0, near.itl_mean_s or 0.0)
    return pace.expected_s(plan, level)
