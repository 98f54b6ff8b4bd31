"""The adaptive sweep, offline: a simulated server of a known law, against the whole grid."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from calibration import levels
from calibration.adapt import Adaptive
from calibration.errors import PlanError
from calibration.levels import Pace
from calibration.plan import AdaptivePlan, Level, parse_plan
from sizing.analyses.next_level import Option
from sizing.candidates import from_fit
from sizing.edge import BY_FORMULA
from sizing.errors import ScenarioError
from sizing.fitting import fit
from sizing.planner import size
from sizing.plans import Fleet
from sizing.points import Point, curves, read_points
from sizing.question import Question
from sizing.workload import Arrivals, Lengths, Limit
from tests.sizing.simulated_levels import simulated_point

NEAR, FAR = Lengths(1000, 250, 0.3, 0.3), Lengths(128, 128, 0.3, 0.3)
SHORT = Lengths(64, 32, 0.3, 0.3)
USERS = (1, 2, 4, 8, 16, 32, 64, 128)
LEVELS = [
    Level(index, lengths, "concurrency", float(users), max(50, 10 * users))
    for index, (lengths, users) in enumerate((lengths, users) for lengths in (NEAR, FAR) for users in USERS)
]
ASKED = AdaptivePlan(gpu_minutes=20, rate=100, ttft="p95:0.5s", itl="p95:20ms")
QUESTION = ASKED.question("m", NEAR)


def sweep(budget_s: float) -> Adaptive:
    return Adaptive(LEVELS, QUESTION, budget_s, lambda level: 60.0)


def measured(level: Level, seed: int, **fields: Any) -> Point:
    return simulated_point(option(level), seed=seed, **fields)


def option(level: Level) -> Option:
    return Option(level.lengths, round(level.value), level.requests)


class Swept(NamedTuple):
    adaptive: Adaptive
    levels: list[Level]
    points: list[Point]
    remaining_s: list[float]


@cache
def swept(seed: int, budget_s: float = 1200.0) -> Swept:
    """A whole sweep; with enough budget it ends because the count is sure."""
    done = Swept(sweep(budget_s), [], [], [])
    while (level := done.adaptive.next(done.points)) is not None:
        done.levels.append(level)
        done.points.append(measured(level, seed))
        done.remaining_s.append(done.adaptive.remaining_s)
    return done


def spent_s(levels: list[Level], points: list[Point]) -> float:
    return sum(option(level).spent_s(point) for level, point in zip(levels, points, strict=True))


def test_a_few_levels_give_the_count_of_the_grid() -> None:
    """The grid's count lies within the band; it took less than half of the grid's levels, two thirds of its time."""
    done = swept(0)
    grid = [measured(level, seed=0) for level in LEVELS]
    of_grid = size(QUESTION, from_fit(fit(grid), NEAR), BY_FORMULA)
    of_few = size(QUESTION, from_fit(fit(done.points), NEAR), BY_FORMULA)
    assert isinstance(of_grid, Fleet)
    assert isinstance(of_few, Fleet)
    assert of_few.gpus_high is not None
    assert of_few.gpus_low <= of_grid.gpus <= of_few.gpus_high
    assert len(set(done.levels)) == len(done.levels) < len(LEVELS) / 2
    assert spent_s(done.levels, done.points) < spent_s(LEVELS, grid) * 2 / 3
    summary = done.adaptive.summary(done.points)
    assert summary.spent_s == pytest.approx(spent_s(done.levels, done.points))
    assert summary.grid_s == pytest.approx(spent_s(LEVELS, grid), rel=0.2)
    assert summary.stopped == "the answer no longer changes"
    assert str(of_few.gpus) in summary.answer


@pytest.mark.measured
@pytest.mark.long
def test_measured_levels_of_a_real_server() -> None:
    """The shipped curves of a Triton server, played back: the count is settled after at most two thirds of the levels
    (two give a law, four the least history for a settled count, then one of longer prompts), and the count of all lies
    within a band."""
    shipped = Path(__file__).parents[2] / "data" / "curves" / "reference-cpu.csv"
    curve_points = [point for curve in curves(read_points(shipped)) for point in curve.points if point.isl_cv > 0]
    levels = [
        Level(index, point.lengths, "concurrency", point.load_value, point.requests or 0)
        for index, point in enumerate(curve_points)
    ]
    question = AdaptivePlan(gpu_minutes=30, rate=100, ttft="p95:0.5s", itl="p95:30ms").question("m", SHORT)
    adaptive, points = Adaptive(levels, question, 1800.0, lambda level: 40.0), list[Point]()
    while (level := adaptive.next(points)) is not None:
        points.append(curve_points[level.index])
    of_all, of_few = (size(question, from_fit(fit(some), SHORT), BY_FORMULA) for some in (curve_points, points))
    assert isinstance(of_all, Fleet)
    assert isinstance(of_few, Fleet)
    assert len(points) <= 2 * len(levels) / 3
    assert adaptive.summary(points).stopped == "the answer no longer changes"
    assert of_few.gpus_high is not None
    assert of_few.gpus_low <= of_all.gpus <= of_few.gpus_high


def test_a_level_is_measured_once_whatever_its_server_found_in_the_cache() -> None:
    """A chat template, which the server finds in every prompt and no plan tells of."""
    adaptive, levels, points = sweep(1200.0), list[Level](), list[Point]()
    while len(levels) < 3 and (level := adaptive.next(points)) is not None:
        levels.append(level)
        points.append(dataclasses.replace(measured(level, seed=0), prefix_tokens=32.0, prefix_hit=1.0))
    assert len(set(levels)) == len(levels) == 3
    assert adaptive.summary(points).spent_s == pytest.approx(spent_s(levels, points))


@settings(max_examples=4, deadline=None)
@given(budget_s=st.floats(20, 300))
def test_never_more_than_the_budget(budget_s: float) -> None:
    """Budgets too small for a sure count; the time of the first two levels is known, that of later ones by the law."""
    levels, points = list[Level](), list[Point]()
    adaptive = Adaptive(LEVELS, QUESTION, budget_s, lambda level: option(level).spent_s(measured(level, seed=0)))
    while (level := adaptive.next(points)) is not None:
        levels.append(level)
        assert adaptive.remaining_s <= budget_s - spent_s(levels[:-1], points)
        points.append(measured(level, seed=0))
        assert spent_s(levels, points) <= budget_s
    assert levels


def test_a_killed_sweep_goes_on_as_it_would_have() -> None:
    """A new process knows the points in the store and nothing else."""
    done = swept(0)
    for count in range(len(done.points) + 1):
        following = sweep(1200.0).next(done.points[:count])
        assert following == (done.levels[count] if count < len(done.levels) else None)


def test_void_levels_cost_time_and_are_left() -> None:
    done = swept(0)
    spoilt = [*done.points[:-1], dataclasses.replace(done.points[-1], verdict="unsteady")]
    adaptive = sweep(1200.0)
    following = adaptive.next(spoilt)
    assert following is not None
    assert following not in done.levels
    assert adaptive.summary(spoilt).spent_s == pytest.approx(spent_s(done.levels, spoilt))


def test_what_the_terminal_is_told() -> None:
    adaptive = sweep(1200.0)
    assert "at most 20.0 minutes" in adaptive.before
    assert "all 16 would take 16.0 minutes" in adaptive.before
    adaptive.next([])
    assert "no GPU count yet; next ISL 1000, OSL 250, concurrency 1" in adaptive.why
    assert adaptive.expected_s == 60.0
    done = swept(0)
    adaptive.next(done.points[:2])
    assert "GPUs, 90 % band" in adaptive.why
    assert "narrows the band" in adaptive.why
    assert done.adaptive.why.startswith("the answer no longer changes: ")
    assert done.adaptive.remaining_s == done.adaptive.expected_s == 0.0
    assert str(done.adaptive.summary(done.points)).startswith(f"{len(done.points)} of 16 levels in ")


def test_open_loop_levels_are_no_options() -> None:
    with pytest.raises(PlanError, match="give concurrency"):
        Adaptive([dataclasses.replace(LEVELS[0], kind="poisson_rate")], QUESTION, 60.0, lambda level: 1.0)


def test_points_of_two_deployments_are_refused() -> None:
    one, two = swept(0).points[:2]
    with pytest.raises(PlanError, match="2 deployments"):
        sweep(1200.0).next([one, dataclasses.replace(two, gpu="h")])


# --- the plan's key --------------------------------------------------------------------------------------------------


def test_the_question_of_a_plan() -> None:
    asked = AdaptivePlan(gpu_minutes=30, rate=20, e2e="p99:20s", isl=2000, arrivals="gamma:cv=2", spare=0)
    question = asked.question("llama", NEAR)
    assert question.model == "llama"
    assert question.workload.lengths == dataclasses.replace(NEAR, isl=2000)
    assert question.workload.arrivals == Arrivals("gamma", 2.0)
    assert question.sla.limits == (Limit("e2e", 99, 20.0),)
    assert question.spare == 0
    assert asked.budget_s(gpus=4) == pytest.approx(450)
    assert isinstance(question, Question)


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("rate", 0, "rate .* must be a number above 0"),
        ("gpu_minutes", -1, "greater than 0"),
        ("ttft", "1s", "percentile:time"),
        ("ttft", None, "at least one limit"),
        ("itl", "p95:30", "needs a unit"),
        ("e2e", "p42:1s", "p42"),
        ("arrivals", "bursty", "poisson, constant, gamma"),
        ("routing", "sticky", "least_outstanding"),
        ("headroom", 0.96, "headroom must be from 0 to 0.95"),
        ("spare", 10_001, "from 0 to 10,000 replicas"),
        ("isl", 0.5, "ISL must be at least 1 token"),
        ("rate", "20", "valid number"),
        ("budget", 3, "Extra inputs"),
    ],
)
def test_a_faulty_key_is_named(key: str, value: object, fault: str) -> None:
    values: dict[str, Any] = {"gpu_minutes": 30, "rate": 20, "ttft": "p95:1s"} | {key: value}
    with pytest.raises(ValidationError, match=fault):
        AdaptivePlan(**values)


def test_an_itl_limit_on_single_tokens_is_refused() -> None:
    with pytest.raises(ScenarioError, match="an ITL limit needs OSL"):
        AdaptivePlan(gpu_minutes=30, rate=20, itl="p95:1s").question("m", Lengths(100, 1))


def test_the_key_is_light_to_import() -> None:
    """Every command reads plans: none but an adaptive run shall wait for scipy and numba."""
    code = "import sys, calibration.plan; print(*{'scipy', 'numba', 'sizing.analyses.next_level'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


VERIFIES = """
lengths: [{isl: 50, osl: 20, isl_cv: 0, osl_cv: 0}, {isl: 400, osl: 20, isl_cv: 0, osl_cv: 0}]
concurrency: [1, 4]
adaptive: {gpu_minutes: 5, rate: 7, isl: %s, ttft: "p95:1s", verify_minutes: 2}
"""


class Chosen:
    """A sweep whose choice is made: a replica is to carry three and a third requests/s."""

    before = why = ""

    def __init__(self, question: Question) -> None:
        self.question = question

    def next(self, points: Sequence[Point]) -> None: ...

    def summary(self, points: Sequence[Point]) -> str:
        return ""

    def planned_per_s(self, points: Sequence[Point]) -> float:
        return 10 / 3


def ends(monkeypatch: pytest.MonkeyPatch, isl: float, points: Sequence[Point] = ()) -> tuple[list[Level], list[str]]:
    """The levels that are left once the choice is made, and what is said."""
    plan, said = parse_plan(VERIFIES % isl).plan, list[str]()
    assert plan.adaptive is not None
    question = plan.adaptive.question("m", Lengths(50, 20))
    monkeypatch.setattr(levels, "adaptive_of", lambda *_: Chosen(question))
    target: Any = SimpleNamespace(plan=plan, replica=None, levels=tuple(plan.levels()))
    order = levels.AsNeeded(target, [], Pace(Lengths(50, 20), 1.0, 1.0), said.append)
    left = iter(lambda: order.next(points), None)
    return [*left], said


def test_a_sweep_ends_with_the_planned_load_at_the_lengths_of_its_question(monkeypatch: pytest.MonkeyPatch) -> None:
    for isl, entry in ((50, 0), (400, 1)):
        (level,), said = ends(monkeypatch, isl)
        assert (level.entry, level.lengths, level.kind, level.value) == (entry, Lengths(isl, 20), "poisson_rate", 3.33)
        assert "verifying: 3.33 requests/s at random for 2.0 minutes" in said
        assert parse_plan(VERIFIES % isl).plan.until_of(level).budget_s == 120
    left, said = ends(monkeypatch, 100)
    assert left == [] and "none of the plan's lengths" in " ".join(said)


def test_a_load_is_verified_once_and_again_where_that_was_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    (level,), _ = ends(monkeypatch, 50)
    at = {"load_kind": "poisson_rate", "load_value": level.value, "isl": 50, "osl": 20, "isl_cv": 0.0, "osl_cv": 0.0}
    shown = dataclasses.replace(measured(LEVELS[0], 1), **at, ttft_p95_s=0.5)
    too_few = dataclasses.replace(shown, verdict="steady", ttft_p95_s=None)
    for telling in (dataclasses.replace(shown, verdict="steady"), dataclasses.replace(too_few, verdict="overloaded")):
        assert ends(monkeypatch, 50, [telling])[0] == []
    for useless in (dataclasses.replace(shown, verdict="client_limited"), too_few):
        (again,), _ = ends(monkeypatch, 50, [useless])
        assert 0.99 * level.value < again.value < level.value
    (other,), _ = ends(monkeypatch, 50, [dataclasses.replace(shown, verdict="steady", isl=400)])
    assert other.value == level.value, "a load of other requests is another load"
