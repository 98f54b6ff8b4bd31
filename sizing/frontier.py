"""Throughput against interactivity: what a replica gives at rising load, and the front that nothing surpasses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sizing.capacity import IDLE, predict_at
from sizing.cost import cost_at
from sizing.plan import Candidate, Question
from sizing.planner import replicas_for, setting_of
from sizing.prediction import Prediction
from sizing.queueing import predict, stable_rate_per_s
from sizing.replica import Replica
from sizing.workload import Routing, Workload

SHARES = (IDLE, 0.08, 0.16, 0.25, 0.35, 0.45, 0.55, 0.65, 0.74, 0.82, 0.88, 0.93, 0.97)
"""Shares of the stable rate at which a replica is asked: beyond, a queue says more of itself than of the engine."""

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Speed:
    """One replica at one load, all rates per second: requests it serves, per GPU too, and output tokens each user sees.

    The tokens of a user are 1 / mean ITL. `meets`: the SLA holds here.
    """

    requests_per_s: float
    requests_per_s_per_gpu: float
    tokens_per_s_per_user: float
    meets: bool


@dataclass(frozen=True, slots=True)
class SpeedCurve:
    """The speeds of one candidate by rising load. Empty for outputs of a single token, which know no ITL."""

    candidate: Candidate
    speeds: tuple[Speed, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """A quantity that curves are compared by: its name with its unit, the unit as said after a number, and which way is
    better.

    `of(speed, osl, price)`: its value at a speed, for outputs of `osl` tokens and a price per GPU-hour.
    """

    title: str
    unit: str
    better: Better
    of: Callable[[Speed, float, float], float]


def _cost(speed: Speed, osl: float, price: float) -> float:
    per_s = speed.requests_per_s_per_gpu
    return cost_at(price, per_s, per_s * osl).per_million_output_tokens


INTERACTIVITY = Measure(
    "Interactivity (output tokens/s per user)",
    "output tokens/s per user",
    "higher",
    lambda speed, osl, price: speed.tokens_per_s_per_user,
)
REQUESTS = Measure(
    "Requests/s per GPU",
    "requests/s per GPU",
    "higher",
    lambda speed, osl, price: speed.requests_per_s_per_gpu,
)
TOKENS = Measure(
    "Output tokens/s per GPU",
    "output tokens/s per GPU",
    "higher",
    lambda speed, osl, price: speed.requests_per_s_per_gpu * osl,
)
COST = Measure("Cost per million output tokens", "per million output tokens", "lower", _cost)
THROUGHPUT = MappingProxyType({"requests": REQUESTS, "tokens": TOKENS, "cost": COST})
"""What may stand against interactivity. The cost is that of a working replica at the load, without spares."""


def speed_curve(question: Question, candidate: Candidate, capacity_per_s: float | None = None) -> SpeedCurve:
    """The candidate from no load to near its stable rate, by formula, in the question's workload.

    `capacity_per_s`, where the planner found it, is a point of its own and decides where the SLA holds; without it
    each load's own prediction does.
    """
    workload = question.workload
    stable_per_s = stable_rate_per_s(candidate.replica, workload.lengths, workload.prefix)
    setting = setting_of(question, replicas_for(question, stable_per_s))
    gaps = question.sla.gap is not None
    asked = list(
        _predictions(candidate.replica, setting.workload, setting.routing, setting.replicas, stable_per_s, gaps)
    )
    if capacity_per_s is not None:
        asked.append((capacity_per_s, predict_at(candidate.replica, setting, capacity_per_s)))
    speeds = []
    for rate_per_s, predicted in sorted(asked, key=lambda pair: pair[0]):
        itl_s = predicted.itl.mean_s
        if predicted.saturated or not 0 < itl_s < math.inf:
            continue
        meets = predicted.meets(question.sla) if capacity_per_s is None else rate_per_s <= capacity_per_s
        speeds.append(Speed(rate_per_s, rate_per_s / candidate.gpus, 1 / itl_s, meets))
    return SpeedCurve(candidate, tuple(speeds))


def resampled(curves: Sequence[SpeedCurve]) -> list[SpeedCurve]:
    """The curves with a speed wherever any other has one, so that they can be compared at the same interactivity.

    Between two neighbours everything is linear in the tokens of a user; the SLA holds where it does at the slower one.
    No curve is drawn out beyond its ends.
    """
    wanted = np.unique([speed.tokens_per_s_per_user for curve in curves for speed in curve.speeds])
    return [SpeedCurve(curve.candidate, tuple(_filled(curve.speeds, wanted))) for curve in curves]


def _filled(speeds: Sequence[Speed], wanted: NDArray[np.float64]) -> Iterator[Speed]:
    for one, other in pairwise(speeds):
        yield one
        first, last = one.tokens_per_s_per_user, other.tokens_per_s_per_user
        inside = wanted[(wanted > min(first, last)) & (wanted < max(first, last))]
        for tokens_per_s in inside if first < last else inside[::-1]:
            yield _between(one, other, float(tokens_per_s))
    yield from speeds[-1:]


def _between(one: Speed, other: Speed, tokens_per_s_per_user: float) -> Speed:
    first, last = one.tokens_per_s_per_user, other.tokens_per_s_per_user
    share = (tokens_per_s_per_user - first) / (last - first)
    return Speed(
        one.requests_per_s + share * (other.requests_per_s - one.requests_per_s),
        one.requests_per_s_per_gpu + share * (other.requests_per_s_per_gpu - one.requests_per_s_per_gpu),
        tokens_per_s_per_user,
        min(one, other, key=lambda speed: speed.tokens_per_s_per_user).meets,
    )


@lru_cache(maxsize=1024)
def _predictions(
    replica: Replica, workload: Workload, routing: Routing, replicas: int, stable_per_s: float, gaps: bool
) -> tuple[tuple[float, Prediction], ...]:
    """Requests/s per replica and what the formula says there: kept, since neither load nor SLA of a fleet matter."""
    rates = [float(rate) for rate in stable_per_s * np.array(SHARES)]

    def at(rate_per_s: float) -> Prediction:
        busy = Workload(workload.lengths, rate_per_s * replicas, workload.arrivals, workload.prefix)
        return predict(replica, busy, replicas=replicas, routing=routing, gaps=gaps)

    return tuple((rate, at(rate)) for rate in rates)


def front(points: Sequence[tuple[float, float]], better: tuple[Better, Better] = ("higher", "higher")) -> list[int]:
    """Places of the points that no other surpasses (Pareto), by rising x.

    A point surpasses another when it is better in one coordinate and no worse in the other; of equal points the first
    stays. Points with a coordinate that is not finite are left out. O(n log n).

    >>> front([(1, 5), (2, 5), (3, 1), (2, 4)])
    [1, 2]
    >>> front([(1, 5), (2, 5), (3, 1), (2, 4)], better=("higher", "lower"))
    [2]
    """
    signs = [1 if way == "higher" else -1 for way in better]
    gains = [(signs[0] * x, signs[1] * y) for x, y in points]
    finite = [place for place, gain in enumerate(gains) if all(map(math.isfinite, gain))]
    kept: list[int] = []
    highest = -math.inf
    for place in sorted(finite, key=lambda place: (-gains[place][0], -gains[place][1])):
        if gains[place][1] > highest:
            highest = gains[place][1]
            kept.append(place)
    return sorted(kept, key=lambda place: points[place][0])
