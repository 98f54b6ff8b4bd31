"""The search for what explains the levels best: batching rule, law, and whatever else the misfit asks for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.first_guess import guess
from sizing.fitting.levels import SKETCH, concurrency, held_tokens
from sizing.fitting.observed import Observed
from sizing.fitting.parameters import Parameters, law_parameters
from sizing.fitting.trial import Trial
from sizing.replica import Batching
from sizing.steptime import StepLaw

SOUND = 1.0
"""chi2 per point up to which the errors of the measurement explain the misfits."""
POOR = 2.0
"""chi2 per point above which the law or the batching policy is called wrong."""
GAIN = 6.0
"""A further parameter must lower the cost (half the sum of squares) by this much: a chance of 1 in 2,000 if idle."""
STARTS = (-0.4, -0.2, 0.0, 0.2, 0.4)
"""Where the search for a further number may start, beside its rough guess."""
LESS_ATTENTION = MappingProxyType({"attention_s": 0.25})
MORE_ARITHMETIC = MappingProxyType({"token_s": 1.4, "request_s": 0.4})
"""Factors on coefficients, for another search to start from."""
ALIKE = 1.0
"""Difference of costs at the same law below which two batching rules are one."""
OUTLIER = 4.0
"""Robust standard deviations of the misfits, or standard errors where these are larger, beyond which a point is
distrusted."""
APART = 2.5
"""How much worse a distrusted point's misfit is than the worst of the points that are trusted."""
LAW_ERROR_ROUNDS = 3
"""Turns of: how far is the law off, and which law then fits best. The second changes little as a rule."""
MOST_DISTRUSTED = 0.2
"""Share of the points; where more stand out the law is wrong, not they."""


@dataclass(frozen=True, slots=True)
class Known:
    """What is known before the fit: possible batching rules, a law to lean on, whether the KV cache is known."""

    batchings: tuple[Batching, ...]
    prior: StepLaw | None
    kv_known: bool


def best_trial(observed: Observed, known: Known) -> Trial:
    """The explanation that fits best: all rules in a sketch, then those near the best in full, then extensions."""
    best = best_rule(observed, known)
    best = perhaps_together(best, known)
    if not known.kv_known:
        best = perhaps(best, kv_candidate(best), starts=3)
    best = perhaps(best, unread_candidate(best))
    return settle(best)


def best_rule(observed: Observed, known: Known) -> Trial:
    """The batching rule with the least cost.

    The rough search takes large misfits at their face; softened from the start, a point far off would have no pull.
    """
    centre, sigma = guess(observed.points, known.prior)
    sketches: list[Trial] = []
    for batching in known.batchings:
        parameters = law_parameters(centre, sigma, batching, known.prior)
        start = min(sketches, key=lambda trial: trial.cost).numbers if sketches else None
        trial = Trial(observed, parameters, start, effort=SKETCH)
        trial.search(evaluations=4 if sketches else 8, stride=0.1)
        if all(abs(trial.cost - other.cost) > 1e-9 * trial.cost for other in sketches):  # else the same engine
            sketches.append(trial)
    sketches.sort(key=lambda trial: trial.cost)
    best = finished(from_less_attention(sketches[0]))
    for sketch in sketches[1:]:
        if sketch.cost <= 1.5 * sketches[0].cost + 3 and is_another_engine(sketch, best):
            best = min(best, finished(sketch), key=lambda trial: trial.cost)
    return best if best.chi2_per_point <= SOUND else from_other_valley(best)


def finished(sketch: Trial) -> Trial:
    """The sketch carried on with all requests and softened misfits."""
    trial = Trial(sketch.observed, sketch.parameters, sketch.numbers, robust=True)
    trial.search(evaluations=5, stride=0.03).search(evaluations=3, stride=0.1, central=True)
    if trial.chi2_per_point > POOR:  # perhaps caught at a jump of the simulated TTFT
        trial.search(evaluations=6, stride=0.03).search(evaluations=4, stride=0.1, central=True)
    return trial


def is_another_engine(sketch: Trial, best: Trial) -> bool:
    """False when the rule of the sketch gives what the best rule gives: prompts that fit the token budget are chunked
    whole. It is then a matter of name."""
    same = Trial(sketch.observed, sketch.parameters, best.numbers, robust=True)
    return abs(same.cost_at(same.numbers) - best.cost) > ALIKE


def from_less_attention(sketch: Trial) -> Trial:
    """A second sketch from a quarter of the attention, if it ends better.

    A prompt's time splits into arithmetic, attention and fixed parts in ways that look alike from a rough start.
    """
    start = sketch.numbers + changes(sketch, LESS_ATTENTION)
    second = Trial(sketch.observed, sketch.parameters, start, effort=SKETCH)
    second.search(evaluations=4, stride=0.1)
    return min(sketch, second, key=lambda trial: trial.cost)


def changes(trial: Trial, factors: Mapping[str, float]) -> NDArray[np.float64]:
    """What multiplies coefficients by `factors`, as a change of the numbers."""
    return np.array([math.log(factors.get(name, 1.0)) for name in trial.parameters.names])


def from_other_valley(best: Trial) -> Trial:
    """The same explanation from a prompt of more arithmetic, all requests and the token gaps counted, if it ends
    better."""
    other = Trial(best.observed, best.parameters, best.numbers + changes(best, MORE_ARITHMETIC), robust=True)
    other.search(evaluations=5, stride=0.1).search(evaluations=3, stride=0.1, central=True)
    return min(best, other, key=lambda trial: trial.cost)


def perhaps_together(best: Trial, known: Known) -> Trial:
    """Where no rule fits, lengths are equal and nobody told the start: perhaps the users had all started at once."""
    observed = best.observed
    closed = [point for point in observed.points if point.load_kind == "concurrency"]
    told = observed.protocol.start != "unknown"
    if told or not closed or best.chi2_per_point <= POOR or any(not point.lengths.fixed for point in closed):
        return best
    at_once = replace(observed, protocol=replace(observed.protocol, start="together"))
    together = best_rule(at_once, known)
    return together if together.cost < best.cost / 2 else best


def perhaps(best: Trial, wider: Parameters | None, starts: int = 1) -> Trial:
    """The explanation with one number more, if it fits far better, searched from the best `starts` of STARTS; `wider`
    None: the data do not ask for it."""
    if wider is None:
        return best
    trials = [
        Trial(best.observed, wider, np.append(best.numbers, wider.centre[-1] + offset), robust=True)
        for offset in STARTS
    ]
    trials.sort(key=lambda trial: trial.cost_at(trial.numbers))
    for trial in trials[:starts]:
        trial.search(evaluations=8, stride=0.1).search(evaluations=4, stride=0.1, central=True)
    trial = min(trials[:starts], key=lambda trial: trial.cost)
    if trial.cost >= best.cost - GAIN:
        return best
    # Before a further number is asked for, this one is given its chance.
    return trial if trial.chi2_per_point <= SOUND else trial.search(evaluations=8, stride=0.1, central=True)


def unread_candidate(best: Trial) -> Parameters | None:
    """A share of the weights that one sequence does not read, where points of one or two users are faster than the
    law: an engine with a kernel of its own for single sequences, or a mixture of experts."""
    points, misfits = best.observed.points, best.misfits(best.numbers)
    few = [row for row, point in enumerate(points) if concurrency(point) == 1 and point.load_kind == "concurrency"]
    if not few or best.chi2_per_point <= POOR or len(few) == len(points):
        return None
    slow_alone = np.nanmean(misfits[few][:, 2]) if np.isfinite(misfits[few][:, 2]).any() else 0.0
    others = misfits[[row for row in range(len(points)) if row not in few]][:, 2]
    fast_beside = np.nanmin(others) if np.isfinite(others).any() else 0.0
    if slow_alone < 1 and fast_beside > -3:
        return None
    return best.parameters.plus("unread", -1.0, 1.5)


def kv_candidate(best: Trial) -> Parameters | None:
    """A KV cache that limits the batch, where fewer sequences decoded at once than there were users and slots.

    The sequences that decode, by Little's law X (OSL - 1) ITL, hold at most their prompts and answers.
    """
    # Memory is reserved for whole answers, or taken as they grow.
    answered = 0.5 if best.parameters.base.batching.kv_policy == "max_utilization" else 1.0
    trace = best.observed.trace
    held: list[float] = [held_tokens(trace, answered)] if trace is not None else []
    for point in best.observed.points:
        if not point.itl_mean_s or point.load_kind != "concurrency":
            continue
        decoding = point.requests_per_s * (point.osl - 1) * point.itl_mean_s
        slots = min(concurrency(point), best.parameters.base.batching.max_batch_size)
        if slots >= 4 and decoding < 0.8 * slots:
            held.append(decoding * (point.isl + answered * point.osl))
    if not held or best.chi2_per_point <= POOR:
        return None
    largest = max(int((run.isl + run.osl).max()) for run in best.runs)
    wider = best.parameters.plus("kv_tokens", math.log(max(max(held), 1.1 * largest)), 0.5)
    return Parameters(wider.names, wider.centre, wider.sigma, wider.base, least_kv_tokens=largest)


def settle(best: Trial) -> Trial:
    """Weigh down points that stand far out, with the errors of open loops by the law found; allow for the law's own
    error, and finish."""
    best.grant(best.replica)
    misfits = best.misfits(best.numbers)
    for row in outliers(misfits):  # the further out, the less its pull: as with Cauchy's weights
        best.doubt[row] = float(np.nanmax(np.abs(misfits[row]))) ** 2
    if np.any(best.doubt > 1) or any(point.load_kind != "concurrency" for point in best.observed.points):
        best.search(evaluations=3, stride=0.1, central=True)
    for _ in range(LAW_ERROR_ROUNDS):
        if not best.allow_for_law():
            break
        best.search(evaluations=4, stride=0.1, central=True)
    best.allow_for_law()
    return best


def outliers(misfits: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[int]:
    """Rows whose largest misfit stands out and apart from the rest; none where too many do.

    NaN: not measured. A row without any measurement (requests of a trace that all went unanswered) does not stand out.
    """
    worst = np.fmax.reduce(np.abs(misfits), axis=1, initial=0.0)
    robust = 1.4826 * float(np.nanmedian(np.abs(misfits)))
    order = np.argsort(worst)[::-1]
    for count in range(int(MOST_DISTRUSTED * len(worst)), 0, -1):
        inside = worst[order[count]]
        if all(worst[row] > max(OUTLIER * max(1.0, robust), APART * inside) for row in order[:count]):
            return sorted(int(row) for row in order[:count])
    return []
