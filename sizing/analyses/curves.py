"""Latency against load for one replica of a fleet: what the chart with the SLA line and the operating point shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from sizing.analyses.sensitivity import at_lengths, capacity_beside
from sizing.candidates import check_context
from sizing.edge import IDLE, MOST_SHARE, capacity_band, load_response, predict_at
from sizing.engine import Replica
from sizing.errors import DoesNotFit, EstimateUnavailable, ScenarioError
from sizing.estimate import estimate
from sizing.numbers import gpus, significant
from sizing.plans import Basis, Candidate, Fleet, cost_at, cost_of
from sizing.prediction import Prediction
from sizing.question import Question, Setting, replicas_for
from sizing.queueing import stable_rate_per_s
from sizing.text import counts
from sizing.workload import MOST_TOKENS, Lengths


@dataclass(frozen=True, slots=True)
class LoadCurve:
    """Predictions at rising requests/s per replica, up to just below the stable rate.

    `planned_per_s` is the load of a working replica in the answer, `capacity_per_s` where the SLA is about to fail.
    """

    rates_per_s: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    planned_per_s: float
    capacity_per_s: float


LOADS = 24


def load_curve(question: Question, fleet: Fleet) -> LoadCurve:
    """The curve of the fleet's replicas at `LOADS` loads from idle to the end of the stable range, by formula."""
    candidate = fleet.candidate
    setting = question.setting(fleet.working)
    stable = stable_rate_per_s(candidate.replica, question.workload.lengths, question.workload.prefix)
    rates = np.linspace(0.02, min(MOST_SHARE, 1.25 * fleet.capacity_per_s / stable), LOADS) * stable
    predictions = tuple(predict_at(candidate.replica, setting, float(rate)) for rate in rates)
    return LoadCurve(tuple(map(float, rates)), predictions, fleet.load_per_s, fleet.capacity_per_s)


def knee_per_s(curve: LoadCurve) -> float | None:
    """Requests/s per replica at which load over mean E2E is highest: Kleinrock's "power" (1979, ICC'79, 43.1).

    For M/M/1 it is half the service rate. Read off the curve's own loads, so no finer than they are. None where power
    still rises at the last load: the knee lies beyond, or there is none.
    """
    powers = [
        0.0 if prediction.saturated or not prediction.e2e.mean_s > 0 else rate_per_s / prediction.e2e.mean_s
        for rate_per_s, prediction in zip(curve.rates_per_s, curve.predictions, strict=True)
    ]
    best = max(range(len(powers)), key=powers.__getitem__, default=0)
    if not powers or not math.isfinite(powers[best]) or best == len(powers) - 1:
        return None
    return curve.rates_per_s[best]


BEYOND = 1.1
"""Times the capacity up to which the curve goes: the limit is crossed on the picture."""


USE_STEPS = 12


def sla_use(question: Question, fleet: Fleet) -> tuple[float, ...]:
    """Predicted over allowed latency of the tightest limit at 12 even loads from idle to `BEYOND` x the capacity.

    1 is the limit; never falling; read off the formula's response, which the planner has already asked for.
    """
    response = load_response(fleet.candidate.replica, question.setting(fleet.working))
    rates = np.linspace(float(response.rates_per_s[0]), BEYOND * fleet.capacity_per_s, USE_STEPS)
    return tuple(math.exp(response.excess_at(float(rate))) for rate in rates)


# --- Throughput against interactivity: what a replica delivers at rising load, and the Pareto front

SHARES = (IDLE, 0.08, 0.16, 0.25, 0.35, 0.45, 0.55, 0.65, 0.74, 0.82, 0.88, 0.93, 0.97)
"""Shares of the stable rate at which a replica is asked: beyond, latency is that of the queue, not of the engine."""
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


def _cost_per_million_tokens(speed: Speed, osl: float, price: float) -> float:
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
COST = Measure("Cost per million output tokens", "per million output tokens", "lower", _cost_per_million_tokens)
THROUGHPUT = MappingProxyType({"requests": REQUESTS, "tokens": TOKENS, "cost": COST})
"""What may stand against interactivity. The cost is that of a working replica at the load, without spares."""


def speed_curve(question: Question, candidate: Candidate, capacity_per_s: float | None = None) -> SpeedCurve:
    """The candidate from no load to near its stable rate, by formula, in the question's workload.

    `capacity_per_s`, where the planner found it, is a point of its own and decides where the SLA holds; without it
    each load's own prediction does.
    """
    workload = question.workload
    stable_per_s = stable_rate_per_s(candidate.replica, workload.lengths, workload.prefix)
    setting = question.setting(question.replicas_at(stable_per_s))
    rates = [share * stable_per_s for share in SHARES]
    if capacity_per_s is not None:
        rates.append(capacity_per_s)
    speeds = []
    for rate_per_s in sorted(rates):
        predicted = predict_at(candidate.replica, setting, rate_per_s)
        itl_s = predicted.itl.mean_s
        if predicted.saturated or not 0 < itl_s < math.inf:
            continue
        meets = predicted.meets(question.sla) if capacity_per_s is None else rate_per_s <= capacity_per_s
        speeds.append(Speed(rate_per_s, rate_per_s / candidate.gpus, 1 / itl_s, meets))
    return SpeedCurve(candidate, tuple(speeds))


def resampled(curves: Sequence[SpeedCurve]) -> list[SpeedCurve]:
    """The curves with a speed wherever any other has one, so that they can be compared at the same interactivity.

    Between two neighbours everything is linear in the tokens of a user; the SLA holds where it does at the slower one.
    No curve is extended beyond its ends.
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


# --- GPUs against load: the steps that a fleet takes as its load grows, and the ends of the band around them

MOST_STEPS = 300
"""Most steps to list one by one; a larger fleet is sampled at this many evenly spaced loads."""


@dataclass(frozen=True, slots=True)
class FleetSizes:
    """GPUs to own at rising load, spares included.

    `gpus[i]` hold from `rates_per_s[i]` to `rates_per_s[i + 1]`, the last also beyond. `low` and `high` are the ends of
    the 90 % band at the same loads; high is None where no number of GPUs meets the SLA at the slow end.
    """

    rates_per_s: tuple[float, ...]
    gpus: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...] | None


def gpus_for(question: Question, fleet: Fleet, rate_per_s: float, factor: float = 1.0) -> int:
    """GPUs for a load, spares included, when a replica carries `factor` times what it was found to carry.

    The fleet's own capacity is kept: exact for Poisson arrivals routed at random, else within the little that a
    replica's capacity changes with the size of its fleet.
    """
    working = replicas_for(rate_per_s, fleet.requests_per_s_per_replica * factor)
    return (max(working, 1) + question.spare) * fleet.candidate.gpus


def fleet_sizes(question: Question, fleet: Fleet, low_per_s: float, high_per_s: float) -> FleetSizes:
    """The steps from one load to another, in requests/s of the whole fleet.

    Raises ScenarioError unless 0 <= low_per_s < high_per_s.
    """
    if not 0 <= low_per_s < high_per_s < math.inf:
        raise ScenarioError(f"loads must rise from 0 or more, got {low_per_s:g} to {high_per_s:g} requests/s")
    slow, fast = capacity_band(fleet.candidate, question.setting(fleet.working))
    factors = [factor for factor in (1.0, fast, slow) if factor > 0]
    rates = _corners(fleet.requests_per_s_per_replica, factors, low_per_s, high_per_s)
    # The next replica is needed just above a corner, so counts are taken slightly beyond it.
    beyond = [rate * (1 + 1e-6) + 1e-12 for rate in rates]
    counts = [tuple(gpus_for(question, fleet, rate, factor) for rate in beyond) for factor in factors]
    return FleetSizes(tuple(rates), counts[0], counts[1], counts[2] if len(counts) > 2 else None)


def _corners(per_replica_per_s: float, factors: list[float], low_per_s: float, high_per_s: float) -> list[float]:
    """Loads at which a replica is added at any of the factors on its capacity; evenly spaced ones where too many."""
    counts = [(high_per_s - low_per_s) / (per_replica_per_s * factor) for factor in factors]
    if sum(counts) > MOST_STEPS:
        return [float(rate) for rate in np.linspace(low_per_s, high_per_s, MOST_STEPS)]
    corners = {low_per_s}
    for factor in factors:
        each = per_replica_per_s * factor
        first, last = math.floor(low_per_s / each) + 1, math.ceil(high_per_s / each)
        corners.update(number * each for number in range(first, last))
    return sorted(corner for corner in corners if low_per_s <= corner < high_per_s)


# --- Requests/s per GPU of one configuration at other lengths: what happens when prompts or answers grow

ISL_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
OSL_FACTORS = (0.5, 1.0, 2.0)
"""Times the scenario's lengths at which the grid stands."""


@dataclass(frozen=True, slots=True)
class LengthCell:
    """One pair of lengths, in tokens: planned requests/s per GPU there, or None and `why` there are none."""

    isl: float
    osl: float
    requests_per_s_per_gpu: float | None
    basis: Basis
    why: str = ""


def length_grid(question: Question, fleet: Fleet, covers: Callable[[Lengths], bool]) -> tuple[LengthCell, ...]:
    """The fleet's configuration at multiples of the question's ISL and OSL, row by row of rising OSL.

    By formula, scaled by the fleet's own capacity over the formula's; headroom kept. `covers` tells whether lengths lie
    within what was measured; it is not asked of estimates.
    """
    beside = capacity_beside(question, fleet)
    lengths = question.workload.lengths
    cells = []
    for osl in _around(lengths.osl, OSL_FACTORS):
        for isl in _around(lengths.isl, ISL_FACTORS):
            asked = replace(lengths, isl=isl, osl=osl)
            cells.append(_cell(question, fleet, asked, beside, covers))
    return tuple(cells)


def _around(tokens: float, factors: tuple[float, ...]) -> list[float]:
    return sorted({min(max(1.0, float(round(tokens * factor))), MOST_TOKENS) for factor in factors})


def _cell(
    question: Question,
    fleet: Fleet,
    lengths: Lengths,
    beside: Callable[[Replica, Setting], float],
    covers: Callable[[Lengths], bool],
) -> LengthCell:
    basis: Basis = fleet.candidate.basis
    if basis != "estimated":
        basis = "fitted" if covers(lengths) else "extrapolated"
    try:
        candidate = _at_lengths(fleet.candidate, lengths)
        asked = at_lengths(question, lengths)
    except (ScenarioError, DoesNotFit, EstimateUnavailable) as error:
        return LengthCell(lengths.isl, lengths.osl, None, basis, str(error))
    capacity_per_s = beside(candidate.replica, asked.setting(fleet.working))
    if capacity_per_s == 0:
        return LengthCell(lengths.isl, lengths.osl, None, basis, "misses the SLA even alone")
    per_gpu = capacity_per_s * (1 - question.headroom) / candidate.gpus
    return LengthCell(lengths.isl, lengths.osl, per_gpu, basis)


def _at_lengths(candidate: Candidate, lengths: Lengths) -> Candidate:
    """The candidate for requests of other lengths: an estimate computes its KV cache again.

    Raises ScenarioError beyond the model's context, DoesNotFit where one request does not fit into the KV cache.
    """
    check_context(candidate.model, lengths)
    if candidate.unmeasured:
        names = (candidate.model, candidate.gpu, candidate.layout, candidate.precision)
        return estimate(*names, lengths, engine=candidate.engine)
    tokens = lengths.isl + lengths.osl
    if tokens > candidate.replica.batching.kv_tokens:
        held = candidate.replica.batching.kv_tokens
        raise DoesNotFit(f"the KV cache holds {held:,} tokens, a request has {tokens:,.0f}", 0.0)
    return candidate


def versus(question: Question, one: Fleet, other: Fleet) -> str:
    """What `one` needs, as a multiple of what `other` needs, with both bases; and whether the bands overlap.

    For instance: h200_sxm TP2 fp8 (estimated) needs 0.69 × the GPUs of h100_sxm TP4 fp8 (fitted): 11 against 16.
    """
    first, second = (f"{fleet.candidate.label} ({fleet.basis})" for fleet in (one, other))
    counts = f"{one.gpus:,} against {other.gpus:,}"
    if one.gpus == other.gpus:
        said = f"{first} needs as many GPUs as {second}: {one.gpus:,}"
    else:
        said = f"{first} needs {significant(one.gpus / other.gpus)} × the GPUs of {second}: {counts}"
    return f"{said}{_cost_beside(question, one, other)}. {_bands(one, other)}".rstrip()


def _cost_beside(question: Question, one: Fleet, other: Fleet) -> str:
    first, second = cost_of(question, one), cost_of(question, other)
    if first is None or second is None:
        return ""
    if first.per_hour == second.per_hour:
        return f", and costs as much: {significant(first.per_hour)} per hour"
    against = f"{significant(first.per_hour)} against {significant(second.per_hour)} per hour"
    if second.per_hour == 0:
        return f", and costs {against}"
    return f", and costs {significant(first.per_hour / second.per_hour)} × as much: {against}"


def bands_overlap(one: Fleet, other: Fleet) -> bool:
    """True when the 90 % bands of the two counts have a number of GPUs in common."""
    ends = ((one.gpus_high, other.gpus_low), (other.gpus_high, one.gpus_low))
    return all(high is None or low <= high for high, low in ends)


def _bands(one: Fleet, other: Fleet) -> str:
    if not bands_overlap(one, other):
        return "Their 90 % bands do not overlap."
    if one.gpus_low == one.gpus_high == other.gpus_low == other.gpus_high:
        return "So do they at both ends of their 90 % bands."
    fewer, more = sorted((one, other), key=lambda fleet: fleet.gpus)
    if fewer.gpus < more.gpus and fewer.gpus_high == more.gpus_low:
        return f"Their 90 % bands meet at {gpus(more.gpus_low)}: measuring both may show that they need as many."
    first, second = (counts(fleet.gpus_low, fleet.gpus_high) for fleet in (one, other))
    may = "show that one needs fewer" if one.gpus == other.gpus else "reverse the order"
    return f"Their 90 % bands overlap ({first} and {second} GPUs): measuring both may {may}."
