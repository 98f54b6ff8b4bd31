"""One scenario of a study answered by the planner: the cells of its row."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from numpy.random import SeedSequence

from sizing import candidates, planner
from sizing.candidates import Choice, Found
from sizing.curves import Point
from sizing.errors import NoFeasiblePlan, SizingError
from sizing.plan import Plan
from sizing.study.scenarios import Scenario
from sizing.workload import Lengths

Cell = str | int | float | None
COLUMNS = (
    *("gpus", "gpus_low", "gpus_high", "replicas", "chosen", "requests_per_s_per_gpu", "utilization"),
    *("binding", "answer_basis", "verified_by", "why"),
)


def answer(item: tuple[Scenario, tuple[Point, ...]], seed: SeedSequence) -> dict[str, Cell]:
    """The cells COLUMNS; without a count where nothing meets the SLA, and `why` says what stands in the way.

    The planner draws nothing of its own (its simulations have fixed seeds): `seed` is not used.
    """
    scenario, points = item
    question = scenario.question
    try:
        found, rejected = _found(question.model, question.workload.lengths, scenario.choice, points)
        return _cells(planner.plan(question, found, rejected))
    except NoFeasiblePlan as error:
        nearest = f": {error.rejected[0].why}" if error.rejected else ""
        return dict.fromkeys(COLUMNS) | {"why": f"{error}{nearest}"}
    except SizingError as error:
        return dict.fromkeys(COLUMNS) | {"why": str(error)}


@lru_cache(maxsize=64)
def _found(model: str, lengths: Lengths, choice: Choice, points: Sequence[Point]) -> Found:
    """Candidates, kept for scenarios that differ in load and SLA only: fitting is half of a plan's time."""
    return candidates.find(model, lengths, choice, points)


def _cells(plan: Plan) -> dict[str, Cell]:
    fleet = plan.answer
    return {
        "gpus": fleet.gpus,
        "gpus_low": fleet.gpus_low,
        "gpus_high": fleet.gpus_high,
        "replicas": fleet.replicas,
        "chosen": fleet.candidate.label,
        "requests_per_s_per_gpu": fleet.requests_per_s_per_gpu,
        "utilization": fleet.predicted.utilization,
        "binding": str(fleet.binding),
        "answer_basis": fleet.basis,
        "verified_by": fleet.predicted.method,
        "why": "; ".join(fleet.warnings),
    }
