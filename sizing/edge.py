"""Where the SLA is about to fail, by simulation: the rate at which an upper percentile meets its limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sizing.response import FAR, LoadResponse, log_ratio
from sizing.simulator import Simulated
from sizing.simulator.records import SERVED
from sizing.workload import Limit, Sla

TOLERANCE = 0.004
"""Relative step in the rate below which the search stops."""

NEARBY, SLIGHT = 0.015, 0.06
"""Two runs so near each other in rate, one slightly below the limit and one slightly above, tell the edge between them:
the curve is as good as straight there."""

CLIFF = 0.3
"""Where the excess rises by more than this between two runs it may jump, and a line through them tells little."""

WIDE = 0.1
"""Relative width of a bracket beyond which a line that meets 0 at one of its ends says little: the curve may be flat
there."""

MOST_STEP = 1.6
"""Factor on the rate that one step goes at most, up or down."""

SURE = 3.0
"""Standard errors by which a percentile must keep its limit: a fleet that one run lets pass must not fail in the next
run, whose own error comes on top."""

BATCHES = 30
"""Consecutive batches whose differences tell the standard error of a share (batch means)."""

MOST_RUNS = 20
HALVING = 10
"""Runs after which the bracket is halved: where the curve is flat up to the edge, lines through two runs creep."""

FLAT = 1e-6
"""Excesses this near each other are the same: nobody queues yet."""


def upper_excess(run: Simulated, sla: Sla, sure: float = SURE) -> float:
    """Log of predicted over allowed for the tightest limit; above 0 the SLA fails, or cannot be said to hold.

    Predicted is the upper end of the percentile, `sure` (0 or more) standard errors up. Requests near each other in
    time share their queue: the error of the share beyond the percentile comes from the differences between batches.
    """
    if run.saturated:
        return FAR
    excess = max(log_ratio(upper_percentile(run, limit, sure), limit.limit_s) for limit in sla.limits)
    return excess if run.meets(sla) else max(excess, TOLERANCE)


def upper_percentile(run: Simulated, limit: Limit, sure: float) -> float:
    """Upper end, in seconds, of the percentile that `limit` speaks of; infinite when nothing was measured.

    A request that was not served takes for ever; one with a single token has no ITL and does not count there.
    """
    if limit.metric == "gap":
        return run.gaps.upper_s(limit.percentile, sure)
    values = run.of(limit.metric)
    if run.lost or np.isnan(values).any():
        values = np.where(run.outcome == SERVED, values, math.inf)
        values = values[~np.isnan(values)]
    share, count = limit.percentile / 100, len(values)
    if count < BATCHES:
        return float(values.max()) if count else math.inf
    place = rank(share, count)
    upper = np.partition(values, place)[place:]  # quicker than a sort, and what lies below is not asked for
    beyond = (values[: count - count % BATCHES] > upper[0]).reshape(BATCHES, -1).mean(axis=1)
    error = float(beyond.std(ddof=1)) / math.sqrt(BATCHES)
    further = rank(min(share + sure * error, 1.0), count) - place
    return float(np.partition(upper, further)[further])


def rank(share: float, count: int) -> int:
    """Index of a quantile among `count` sorted values: at most 1 - share of them lie above."""
    return min(max(math.ceil(share * count - 1e-9) - 1, 0), count - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """A run: its rate and its excess over the SLA."""

    rate: float
    over: float


def crossing(one: Run, other: Run) -> float | None:
    """Where the line through two runs, in log rate, is 0; None if it falls or one is too far over to tell."""
    if max(one.over, other.over) >= FAR:
        return None
    slope = (other.over - one.over) / math.log(other.rate / one.rate)
    return one.rate * math.exp(min(max(-one.over / slope, -FAR), FAR)) if slope > 0 else None


@dataclass(slots=True)
class Bracket:
    """The nearest runs at which the SLA holds (`low`) and fails (`high`); None until there is one."""

    low: Run | None = None
    high: Run | None = None

    def learn(self, run: Run) -> None:
        """Runs at lower rates than one that holds, or at higher ones than one that fails, tell nothing more."""
        if run.over > 0 and (self.high is None or run.rate < self.high.rate):
            self.high = run
        elif run.over <= 0 and (self.low is None or run.rate > self.low.rate):
            self.low = run


def step_factor(model: LoadResponse, run: Run) -> float:
    """Factor on the rate of a run that brings its excess to 0, by the model's curve.

    The curve may be wrong in height or in place: of the two steps that this makes the shorter one is taken. Curves bend
    upwards, and beyond the edge, where they are steep, it is the place that counts, before it the height. Where the
    curve ends or knows no steady state, a step in the right direction.
    """
    height, place = model.excess_at(run.rate), model.rate_per_s(run.over)
    here = model.rate_per_s(height)
    raised = model.rate_per_s(height - run.over) / here if here else 1.0
    moved = model.rate_per_s(0.0) / place if place else math.inf
    if run.over > 0:
        factor = max(raised, moved) if run.over < FAR else min(moved, 0.95)
        lost = factor >= 1 and run.over > SLIGHT
        return 0.75 if lost else min(max(factor, 1 / MOST_STEP), 1.0)
    factor = min(raised, moved)
    lost = factor <= 1 and run.over < -SLIGHT
    return 1.25 if lost else max(min(factor, MOST_STEP), 1.0)


def between(low: Run, high: Run, last: Run) -> tuple[float, bool]:
    """The best rate between two runs that bracket the edge, and whether it is the answer or to be run next."""
    width, rise = high.rate / low.rate - 1, high.over - low.over
    root = crossing(low, high)
    if root is not None and max(high.over, -low.over) <= SLIGHT and width < NEARBY:
        return root, True
    if width < TOLERANCE:
        return low.rate, True
    near = root is not None and abs(root / last.rate - 1) < TOLERANCE
    if root is None or rise > CLIFF or (near and width > WIDE):
        return math.sqrt(low.rate * high.rate), False
    if near:
        return root, True
    return min(max(root, low.rate * (1 + TOLERANCE / 3)), high.rate / (1 + TOLERANCE / 3)), False


def beyond(model: LoadResponse, last: Run, before: Run | None, least_step: float) -> tuple[float, bool]:
    """The same while all runs lie on one side of the edge: a step of at least the share `least_step` across it."""
    factor = step_factor(model, last)
    if before is not None and (root := crossing(before, last)) is not None:
        if abs(root / last.rate - 1) < TOLERANCE and abs(last.over) < CLIFF:
            return root, True
        factor = min(max(root / last.rate, 1 / MOST_STEP), MOST_STEP)
    factor = min(factor, 1 - least_step) if last.over > 0 else max(factor, 1 + least_step)
    return last.rate * factor, False


def edge_rate(
    excess: Callable[[float, int], float],
    model: LoadResponse,
    guess_per_s: float,
    ceiling_per_s: float,
    requests: int,
) -> float:
    """The requests/s at which ``excess(rate, requests)`` is 0, to `TOLERANCE`; 0 if over even at a hundredth of guess.

    At most `ceiling_per_s`, where that still holds.

    The first run is at the guess, the second where the `model`'s curve expects the edge after it and 1 % further, so
    that the two as a rule have it between them. Smooth curves are then followed by the line through the two nearest
    runs, cliffs halved, and whatever takes more than `HALVING` runs. As long as no run lies on the other side, the
    steps grow, at once where two runs are the same.
    """
    least, most = guess_per_s / 100, ceiling_per_s
    bracket, before, rate, least_step = Bracket(), None, min(guess_per_s, most), 0.01
    for number in range(1, MOST_RUNS + 1):
        last = Run(rate, excess(rate, requests))
        bracket.learn(last)
        low, high = bracket.low, bracket.high
        if (high and high.rate < least) or (low and low.rate >= most):
            break
        if low and high:
            rate, found = between(low, high, last)
            if number >= HALVING and not found:
                rate = math.sqrt(low.rate * high.rate)
        else:
            flat = before is not None and abs(last.over - before.over) < FLAT
            rate, found = beyond(model, last, before, MOST_STEP - 1 if flat else least_step)
            least_step = min(2 * least_step, 0.4)
        rate = min(max(rate, 0.9 * least), most)
        if found:
            return rate
        before = last
    return bracket.low.rate if bracket.low else 0.0
