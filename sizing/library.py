"""The planner for programs: one function per question, with plain values as arguments; part of `import sizing`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Literal

from sizing import planner, queueing
from sizing.analyses.existing import Existing, best_first
from sizing.candidates import Choice, find
from sizing.catalog import Layout
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import SizingError
from sizing.estimate.checkpoints import is_config, known, own
from sizing.fitting import Fit, fit
from sizing.plans import Candidate, Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.points import Point, read_points
from sizing.prediction import Caution, Prediction, Quantiles
from sizing.question import Question, sla_of, workload_of
from sizing.simulator import Simulated, simulate
from sizing.text import caution
from sizing.token_law import TokenLaw
from sizing.workload import Arrivals, Lengths, Limit, Prefix, Routing, Sla, Workload

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

Names = str | Iterable[str]
Basis = Literal["measured", "any"]
Config = str | PathLike[str] | Mapping[str, Any]


def plan(
    model: str = "",
    *,
    rate: float,
    config: Config | None = None,
    isl: float | None = None,
    osl: float | None = None,
    gpus: Names = (),
    precisions: Names = (),
    tps: int | Iterable[int] = (),
    engines: Names = (),
    layouts: Names = (),
    ttft: str | None = None,
    itl: str | None = None,
    gap: str | None = None,
    e2e: str | None = None,
    goodput: str | None = None,
    rejected: str | None = None,
    queue_limit: int = 0,
    queue_timeout_s: float = math.inf,
    isl_cv: float = 0.0,
    osl_cv: float = 0.0,
    isl_law: TokenLaw | str | None = None,
    osl_law: TokenLaw | str | None = None,
    correlation: float = 0.0,
    arrivals: str = "poisson",
    prefix_tokens: int = 0,
    prefix_hit: float = 0.0,
    routing: Routing = "random",
    headroom: float = 0.2,
    spare: int = 1,
    price_per_gpu_hour: float | None = None,
    points: Sequence[Point] = (),
    basis: Basis = "any",
) -> Plan:
    """The fewest GPUs that serve `rate` requests/s of `model` under the SLA: ``plan(...).answer``.

    `config`: the public config.json of a model that the catalogue lacks, as a path or as its contents; `model` then
    names it. A `model` that is the path of a folder with a config.json needs no more. `isl`, `osl`: mean input and
    output tokens; `isl_cv`, `osl_cv` their coefficients of variation, `correlation` that of their logarithms.
    `isl_law`, `osl_law`: distributions other than lognormal, a `TokenLaw` or its text, for instance
    ``"uniform:100-300"``, which imply the means. `ttft`, `itl`, `gap` and `e2e` are the limits, at least one of them,
    written as on the command line: ``"p95:1s"``, or ``"1s"`` with `goodput`, for instance ``"99%"``, the share of the
    requests that meet them all at once. `rejected`, for instance ``"0.5%"``: the share that may be turned away when a
    replica has `queue_limit` requests waiting or `queue_timeout_s` has passed. `arrivals`: ``"poisson"``,
    ``"constant"``, ``"gamma:cv=2"`` or ``"batch:size=8"``. `prefix_tokens`, `prefix_hit`: a prefix that prompts share,
    and the chance that the KV cache holds it. Empty `gpus`: those that `points` were measured on; empty `precisions`,
    neither `tps` nor `layouts` (``"tp4pp2"``, ``"dp8ep8"``): all sensible ones; empty `engines`: those that the model
    was measured with, else every engine with kernel timings, side by side. `points`: measured ones, which take
    precedence over estimates; `basis` "measured" leaves estimates out. `headroom`: the share of a replica's capacity
    that is kept free, 0 to 0.95; `spare`: idle replicas in addition to the working ones.

    Raises NoFeasiblePlan, which carries every rejection, when no fleet meets the SLA, and another SizingError for a
    question that cannot be asked.
    """
    question, candidates, left_out = _asked(locals())
    return planner.plan(question, candidates, left_out)


def capacity(
    model: str = "",
    *,
    fleet_gpus: int,
    config: Config | None = None,
    isl: float | None = None,
    osl: float | None = None,
    gpus: Names = (),
    precisions: Names = (),
    tps: int | Iterable[int] = (),
    engines: Names = (),
    layouts: Names = (),
    ttft: str | None = None,
    itl: str | None = None,
    gap: str | None = None,
    e2e: str | None = None,
    goodput: str | None = None,
    rejected: str | None = None,
    queue_limit: int = 0,
    queue_timeout_s: float = math.inf,
    isl_cv: float = 0.0,
    osl_cv: float = 0.0,
    isl_law: TokenLaw | str | None = None,
    osl_law: TokenLaw | str | None = None,
    correlation: float = 0.0,
    arrivals: str = "poisson",
    prefix_tokens: int = 0,
    prefix_hit: float = 0.0,
    routing: Routing = "random",
    headroom: float = 0.2,
    spare: int = 1,
    points: Sequence[Point] = (),
    basis: Basis = "any",
) -> Existing:
    """The largest rate that `fleet_gpus` GPUs serve under the SLA, and with which replicas; other arguments as in
    `plan`.

    Raises NoFeasiblePlan, which carries every rejection, when these GPUs carry no load under the SLA.
    """
    question, candidates, left_out = _asked(locals())
    fleets, _ = best_first(question, candidates, fleet_gpus, left_out)
    return fleets[0]


def _asked(given: Mapping[str, Any]) -> tuple[Question, list[Candidate], list[Rejection]]:
    """The question in the arguments of `plan` or `capacity`, and what may be bought: candidates, and what was left
    out."""
    model = model_id(given["model"], given["config"])
    workload = replace(workload_of(given), queue_timeout_s=given["queue_timeout_s"])
    terms = (given["routing"], given["headroom"], given["spare"], given.get("price_per_gpu_hour"))
    question = Question(model, workload, sla_of(given), *terms)
    which = names(given["gpus"]), names(given["precisions"]), numbers(given["tps"])
    layouts = tuple(map(Layout.parse, names(given["layouts"])))
    choice = Choice(*which, given["basis"], names(given["engines"]), layouts)
    return question, *find(model, workload.lengths, choice, given["points"])


def predict(
    replica: Replica,
    workload: Workload,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    method: Literal["analytic", "simulation"] = "analytic",
    seed: int = 0,
) -> Prediction:
    """Percentiles of TTFT, ITL and E2E when `workload` is spread over equal replicas, such as ``fit(points).replica``.

    Raises ScenarioError for a request longer than the replica's KV cache, and for numbers out of range.
    """
    if method == "analytic":
        return queueing.predict(replica, workload, replicas=replicas, routing=routing, seed=seed)
    return simulate(replica, workload, replicas=replicas, routing=routing, seed=seed).prediction()


def model_id(model: str, config: Config | None) -> str:
    """The name by which the planner finds the model: from `config`, a folder, points or the catalogue."""
    if config is not None:
        return own(config, model).id
    return known(model).id if is_config(model) else model


def names(given: Names) -> tuple[str, ...]:
    """One name or several as a tuple."""
    return (given,) if isinstance(given, str) else tuple(given)


def numbers(given: int | Iterable[int]) -> tuple[int, ...]:
    """One number or several as a tuple."""
    return (given,) if isinstance(given, int) else tuple(given)
