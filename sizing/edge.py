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

COARSE = (20_000, 60_000)
"""Requests of the first runs, which only show where to look."""

TOLERANCE = 0.004
"""Relative step in the rate below which the search stops."""

SURE = 1.0
"""Standard errors by which a percentile must keep its limit: a lucky run must not buy too few GPUs."""

BATCHES = 30
"""Consecutive batches whose differences tell the standard error of a share (batch means)."""

MOST_RUNS = 20


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


@dataclass(slots=True)
class Bracket:
    """What full runs have shown: the SLA holds at `low` requests/s and fails at `high`."""

    low: float
    high: float

    def learn(self, rate: float, over: float) -> None:
        """A run at `rate` was over the limit (over > 0) or within it."""
        if over > 0:
            self.high = min(self.high, rate)
        else:
            self.low = max(self.low, rate)

    def inside(self, rate: float) -> float:
        """`rate` if it lies in the bracket, else a rate that halves it."""
        if self.low < rate < self.high:
            return rate
        return math.sqrt(self.low * self.high) if self.low else 0.7 * self.high

    @property
    def closed(self) -> bool:
        """True when both ends are known and as near as the search goes."""
        return self.low > 0 and self.high / self.low - 1 < TOLERANCE


@dataclass(frozen=True, slots=True)
class Run:
    """A full run: its rate and its excess over the SLA."""

    rate: float
    over: float


def step_factor(model: LoadResponse, last: Run, before: Run | None) -> float:
    """Factor on the last run's rate that should bring the excess to 0, 0.6 to 1.6 at once.

    By the line through the last two full runs in log rate, or by the model's curve where there is no such line.
    """
    if before is not None and max(last.over, before.over) < FAR:
        slope = (last.over - before.over) / math.log(last.rate / before.rate)
        if slope > 0:
            return math.exp(min(max(-last.over / slope, math.log(0.6)), math.log(1.6)))
    return model.step(last.over, last.rate)


def edge_rate(
    excess: Callable[[float, int], float],
    model: LoadResponse,
    guess_per_s: float,
    ceiling_per_s: float,
    requests: int,
    first_runs: tuple[int, ...] = COARSE,
) -> float:
    """The requests/s at which ``excess(rate, requests)`` is 0, to `TOLERANCE`; 0 if over even at a hundredth of guess.

    At most `ceiling_per_s`, where that still holds.

    The excess is taken for the `model`'s plus a constant: after a run the model is asked where the sum is 0, and the
    next run is there. The `first_runs` have fewer requests and only show where to look. Two runs of `requests` requests
    at least then tell the true slope and bracket the answer; a step out of the bracket halves it instead.
    """
    least, most = guess_per_s / 100, ceiling_per_s
    bracket, rate = Bracket(0.0, most * (1 + TOLERANCE)), min(guess_per_s, most)
    for count in first_runs:
        over = excess(rate, count)
        rate = min(max(rate * model.step(over, rate), least), most)
    before: Run | None = None
    for _ in range(MOST_RUNS):
        last = Run(rate, excess(rate, requests))
        bracket.learn(last.rate, last.over)
        step = rate * step_factor(model, last, before)
        if bracket.closed or (before is not None and abs(step / rate - 1) < TOLERANCE):
            return step if bracket.low <= step < bracket.high else bracket.low or step
        if bracket.high < least or bracket.low >= most:
            return bracket.low
        if last.over >= FAR and bracket.low:
            step = 0.0  # a cliff has no slope to follow: halve the bracket
        elif before is None:
            step = min(step, 0.99 * rate) if last.over > 0 else max(step, 1.01 * rate)
        before, rate = last, max(bracket.inside(min(step, most)), 0.9 * least)
    return bracket.low
