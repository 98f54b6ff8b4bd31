"""How many GPUs for N requests/s of a model under a latency SLA: the library for programs.

>>> import sizing
>>> plan = sizing.plan(
...     "Qwen/Qwen3-32B", gpus="h200_sxm", precisions="bf16",
...     rate=20, isl=2000, osl=256, ttft="p95:1s", itl="p95:30ms",
... )
>>> plan.answer.gpus
16

- `plan`: the smallest fleet whose latency percentiles meet the SLA at a load
- `capacity`: the largest load that an existing fleet carries under the SLA
- `read_points`: measured points from a table, which `plan` and `capacity` take as `points`
- `fit`: the iteration-time law of measured points, with its uncertainty
- `predict`: latency percentiles of equal replicas at a load, by formula or by simulation
- `simulate`: every single request of such a load
- `caution`: one of an answer's `warnings` in words; each has a `kind` and its figures

Times are seconds, rates are requests per second, lengths are tokens. Every error raised on purpose is a `SizingError`
with one line of text. Names are loaded on first use, so that a command line that needs less starts without the rest. To
read the code, start at sizing/planner.py.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sizing.library import (
        Arrivals,
        Batching,
        Candidate,
        Caution,
        Existing,
        Fit,
        Fleet,
        Lengths,
        Limit,
        NoFeasiblePlan,
        Plan,
        Point,
        Prediction,
        Prefix,
        Quantiles,
        Question,
        Rejection,
        Replica,
        Simulated,
        SizingError,
        Sla,
        StepLaw,
        TokenLaw,
        Workload,
        capacity,
        caution,
        fit,
        plan,
        predict,
        read_points,
        simulate,
    )

__all__ = [
    "Arrivals",
    "Batching",
    "Candidate",
    "Caution",
    "Existing",
    "Fit",
    "Fleet",
    "Lengths",
    "Limit",
    "NoFeasiblePlan",
    "Plan",
    "Point",
    "Prediction",
    "Prefix",
    "Quantiles",
    "Question",
    "Rejection",
    "Replica",
    "Simulated",
    "SizingError",
    "Sla",
    "StepLaw",
    "TokenLaw",
    "Workload",
    "capacity",
    "caution",
    "fit",
    "plan",
    "predict",
    "read_points",
    "simulate",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module("sizing.library"), name)
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
