"""The highest rate at which one replica of a fleet still meets the SLA, by formula and by simulation, and its band."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from sizing.engine import Replica
from sizing.numbers import Floats
from sizing.plans import Candidate
from sizing.prediction import Method as MethodName
from sizing.prediction import Prediction
from sizing.question import Setting
from sizing.queueing import predict, stable_rate_per_s
from sizing.selection import order_statistics
from sizing.simulator import Simulated, Watch, simulate, simulated_replicas
from sizing.simulator.runs import MOST_REPLICAS
from sizing.simulator.state import SERVED
from sizing.stats import Z90, batch_shares, interpolated, rank
from sizing.workload import Arrivals, Limit, Metric, Routing, Sla, Within, Workload

# --- How one replica uses up an SLA from no load to saturation, by formula: the curve that searches and bands read

FAR = 3.0
"""Bound on the log of predicted over allowed, so that a root finder can work with it."""
LEVEL = 1e-9
"""Rise of the excess between two loads that use up the SLA equally: less than any that matters."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadResponse:
    """Excess over the SLA (see `log_excess`) at rising requests/s per replica, both shape (n,), excess rising.

    `predictions`: the formula's result at each of the rates; the first is a replica without load.
    """

    rates_per_s: Floats
    excess: Floats
    predictions: tuple[Prediction, ...] = ()

    @classmethod
    def of(cls, predictions: Mapping[float, Prediction], sla: Sla) -> LoadResponse:
        """From the formula's results, by requests/s."""
        rates_per_s = sorted(predictions)
        ordered = tuple(predictions[rate_per_s] for rate_per_s in rates_per_s)
        excess = [log_excess(prediction, sla) for prediction in ordered]
        return cls(np.array(rates_per_s), np.maximum.accumulate(excess), ordered)  # latencies may jump down at a load

    @property
    def idle(self) -> Prediction:
        """Latencies at the lowest rate: those of a request that meets no other."""
        return self.predictions[0]

    def missed_alone(self, sla: Sla) -> SlaMissed:
        """The limit that a request misses most although it meets no other."""
        limit = self.idle.binding(sla)
        return SlaMissed(limit, self.idle.value_s(limit))

    def rate_per_s(self, level: float) -> float:
        """The rate at which the excess reaches `level`, by a monotone curve through the known points.

        0 when the excess is higher even at the lowest rate; the highest rate when it is never reached.
        """
        same = np.diff(self.excess) == 0
        kept = ~(np.append(False, same) & np.append(same, False))  # of equal excesses the first and the last
        rising, rates = self.excess[kept], self.rates_per_s[kept]
        if level < rising[0]:
            return 0.0
        if level >= rising[-1]:
            return float(self.rates_per_s[-1])
        rising[1:][np.diff(rising) == 0] += LEVEL
        return interpolated(level, rising, rates)

    def excess_at(self, rate_per_s: float) -> float:
        """The excess at a rate, the inverse of `rate_per_s`; constant beyond both ends."""
        rising, kept = np.unique(self.excess, return_index=True)
        return float(np.interp(rate_per_s, self.rates_per_s[kept], rising))

    def reached(self, rate_per_s: float, sla: Sla) -> Limit:
        """The limit that is used up most at a rate, by lines between the known loads: at the edge the first to fail."""

        def used(limit: Limit) -> float:
            logs = [log_ratio(each.value_s(limit), limit.limit_s) for each in self.predictions]
            return float(np.interp(rate_per_s, self.rates_per_s, logs))

        return max(sla.limits, key=used)

    def next_rate_per_s(self, level: float, most_per_s: float, within: float, number: int) -> float | None:
        """The next rate at which to evaluate the formula, for the `number`-th time from 0, to find the rate of `level`.

        None if the rate is known to `within` (a share of it) between two loads, or near one by the flatter of the
        slopes at its sides; or if not even the lowest load is below the level, or `most_per_s` above it. The rate is
        where the curve expects the level, well inside the interval, and every second time the middle of the interval.
        If the excess jumps, as percentiles of gaps do at the load from which more gaps hold a prompt than the
        percentile leaves, the curve says little, and the interval must be `AT_CLIFFS` times as short.
        """
        rates, excess = self.rates_per_s, self.excess
        if level < excess[0]:
            return None
        if level >= excess[-1]:
            return most_per_s if rates[-1] < most_per_s else None
        above = int(np.searchsorted(excess, level, side="right"))
        low, width = float(rates[above - 1]), math.log(rates[above] / rates[above - 1])
        slopes = np.diff(excess) / np.diff(np.log(rates))
        jumps = excess[above] - excess[above - 1] > CLIFF

        def rate_off(end: int, beside: Floats) -> float:
            flattest = 0.0 if jumps and len(beside) < 2 else min(beside)  # the slope of a jump says nothing
            return float(abs(excess[end] - level) / max(flattest, LEVEL))

        before, after = slopes[max(above - 2, 0) : above], slopes[above - 1 : above + 1]
        nearest = min(rate_off(above - 1, before), rate_off(above, after))
        if width <= 2 * within / (AT_CLIFFS if jumps else 1) or nearest <= within:
            return None
        place = math.log(self.rate_per_s(level) / low) / width
        return low * math.exp(width * (0.5 if number % 2 else min(max(place, INSIDE), 1 - INSIDE)))


def log_excess(prediction: Prediction, sla: Sla) -> float:
    """Log of predicted over allowed for the tightest limit; `FAR` for a load without steady state."""
    if prediction.saturated:
        return FAR
    limit = prediction.binding(sla)
    return log_ratio(prediction.value_s(limit), limit.limit_s)


def log_ratio(value_s: float, limit_s: float) -> float:
    """Log of value over limit, from -FAR to FAR."""
    return min(FAR, max(-FAR, math.log(max(value_s, 1e-12) / limit_s)))


TOLERANCE = 0.004
"""Relative step in the rate below which the search stops."""
NEARBY, SLIGHT = 0.015, 0.06
"""Two runs this near each other in rate, one slightly below the limit and one slightly above, determine the edge
between them: the curve is practically straight there."""
CLIFF = 0.3
"""If the excess rises by more than this between two runs it may jump, and a line through them says little."""
WIDE = 0.1
"""Relative width of a bracket beyond which a line that meets 0 at one of its ends says little: the curve may be flat
there."""
MOST_STEP = 1.6
"""Largest factor on the rate in one step, up or down."""
SURE = 3.0
"""Standard errors by which a percentile must meet its limit: a fleet that one run accepts must not fail in the next
run, which adds its own error."""
BATCHES = 30
"""Consecutive batches whose differences give the standard error of a share (batch means)."""
SAME = 1e-6
"""Relative difference of two latencies below which they are equal. Equal requests that meet no others take the same
time but for the rounding of the clock, which grows over a long run. Without this tolerance all of them lay beyond the
percentile in one batch and none in another, and the longest latency was taken for the percentile's upper end."""
MOST_RUNS = 20
HALVING = 10
"""Runs after which the bracket is halved: if the curve is flat up to the edge, lines through two runs creep."""
FLAT = 1e-6
"""Excesses this close together are equal: nobody queues yet."""


def upper_excess(run: Simulated, sla: Sla, sure: float = SURE) -> float:
    """Log of predicted over allowed for the tightest limit; above 0 the SLA fails, or cannot be said to hold.

    The prediction is the upper end of the percentile, `sure` (0 or more) standard errors up. Requests near each other
    in time share their queue, so the error of the share beyond the percentile comes from the differences between
    batches.
    """
    if run.saturated:
        return FAR
    excess = max(log_ratio(upper_percentile(run, limit, sure), limit.limit_s) for limit in sla.limits)
    return excess if run.meets(sla) else max(excess, TOLERANCE)


def upper_percentile(run: Simulated, limit: Limit, sure: float) -> float:
    """Upper end, in seconds, of the percentile that `limit` refers to; infinite when nothing was measured.

    A request that was not served has infinite latency; one with a single token has no ITL and does not count there. For
    goodput, the share of the limits used up; for rejected requests, their share.
    """
    if limit.metric == "gap":
        return run.gaps.upper_s(limit.percentile, sure)
    if limit.metric == "rejected":
        of_batch = batch_shares(run.turned_away, BATCHES)
        return float(np.mean(run.turned_away) + sure * of_batch.std(ddof=1) / math.sqrt(BATCHES))
    values = run.used_up(limit.within) if limit.metric == "goodput" else run.of(limit.metric)
    if limit.metric != "goodput" and (run.lost or np.isnan(values).any()):
        values = np.where(run.outcome == SERVED, values, math.inf)
        values = values[~np.isnan(values)]
    return upper_end(values, limit.percentile, sure)


def upper_end(values: Floats, percentile: float, sure: float) -> float:
    """Upper end of a percentile of values in time order, none of them NaN; infinite if there are none."""
    share, count = percentile / 100, len(values)
    if count < BATCHES:
        return float(values.max()) if count else math.inf
    place = rank(share, count)
    middle = order_statistics(values, np.array([place]))
    over = values[: count - count % BATCHES] > middle * (1 + SAME)
    beyond = over.reshape(BATCHES, -1).mean(axis=1)
    error = float(beyond.std(ddof=1)) / math.sqrt(BATCHES)
    further = rank(min(share + sure * error, 1.0), count)
    return float(order_statistics(values, np.array([further]))[0])


@dataclass(frozen=True, slots=True)
class Probe:
    """A run: its rate and its excess over the SLA."""

    rate: float
    over: float


def crossing(one: Probe, other: Probe) -> float | None:
    """Where the line through two runs, in log rate, is 0; None if it falls or one is too far over for an answer."""
    if max(one.over, other.over) >= FAR:
        return None
    slope = (other.over - one.over) / math.log(other.rate / one.rate)
    return one.rate * math.exp(min(max(-one.over / slope, -FAR), FAR)) if slope > 0 else None


@dataclass(slots=True)
class Bracket:
    """The nearest runs at which the SLA holds (`low`) and fails (`high`); None until there is one."""

    low: Probe | None = None
    high: Probe | None = None

    def learn(self, run: Probe) -> None:
        """Runs at lower rates than one that holds, or at higher ones than one that fails, add nothing."""
        if run.over > 0 and (self.high is None or run.rate < self.high.rate):
            self.high = run
        elif run.over <= 0 and (self.low is None or run.rate > self.low.rate):
            self.low = run


def step_factor(model: LoadResponse, run: Probe) -> float:
    """Factor on the rate of a run that brings its excess to 0, by the model's curve.

    The curve may be wrong in height or in place; of the two steps that this gives, the shorter one is taken. Curves
    bend upwards: beyond the edge, where they are steep, the place counts, and before it the height. If the curve ends
    or has no steady state, a step in the right direction.
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


def between(low: Probe, high: Probe, last: Probe) -> tuple[float, bool]:
    """The best rate between two runs that bracket the edge, and whether it is the answer or the next rate to run."""
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


def beyond(model: LoadResponse, last: Probe, before: Probe | None, least_step: float) -> tuple[float, bool]:
    """The same while all runs lie on one side of the edge: a step of at least the share `least_step` across it."""
    factor = step_factor(model, last)
    if before is not None and (root := crossing(before, last)) is not None:
        if abs(root / last.rate - 1) < TOLERANCE and abs(last.over) < CLIFF:
            return root, True
        factor = min(max(root / last.rate, 1 / MOST_STEP), MOST_STEP)
    factor = min(factor, 1 - least_step) if last.over > 0 else max(factor, 1 + least_step)
    return last.rate * factor, False


def edge_rate(excess: Callable[[float], float], model: LoadResponse, guess_per_s: float, ceiling_per_s: float) -> float:
    """The requests/s at which ``excess(rate)`` is 0, to `TOLERANCE`; 0 if over even at a hundredth of the guess.

    At most `ceiling_per_s`, if that still holds.

    The first run is at the guess, the second 1 % beyond the edge that the `model`'s curve expects after it, so that the
    two usually bracket it. Smooth curves are then followed by the line through the two nearest runs; cliffs are halved,
    and so is anything that takes more than `HALVING` runs. As long as no run lies on the other side, the steps grow, at
    once if two runs are the same.
    """
    least, most = guess_per_s / 100, ceiling_per_s
    bracket, before, rate, least_step = Bracket(), None, min(guess_per_s, most), 0.01
    for number in range(1, MOST_RUNS + 1):
        last = Probe(rate, excess(rate))
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


IDLE = 0.01
"""Share of the stable rate taken as "alone": an SLA missed here is missed at any load."""
FIRST = (0.5, 0.85)
"""Shares of the stable rate at which the formula is evaluated first."""
MOST_SHARE = 0.995
"""Share of the stable rate beyond which percentiles have no finite meaning."""
ENOUGH = 1.0
"""Excess over the SLA (log) beyond which higher loads are not evaluated until a level is known to lie there."""
EDGE_WITHIN, ENDS_WITHIN = 0.02, 0.1
"""Log of the rate to which loads around the edge, and around other levels, are narrowed. For 1,872 limits on estimated
engines, the error of the curve through them is then 0.3 % of the rate at the edge, and 0.8 % where the excess is 0.3
less or more (means; in 95 % of the cases below 0.6, 2 and 4 %)."""
AT_CLIFFS = 5
"""How many times closer two loads must be where the excess jumps between them."""
INSIDE = 0.12
"""Share of an interval, in log rate, that the next load keeps from its ends."""
MOST_ASKED = 9
"""Most loads evaluated for one level."""
REQUESTS = 240_000
"""Requests of a run that decides; the Monte-Carlo error of a capacity is then 0.5-1 %."""
FINER, WORTH = 4, 0.03
"""Factor on the requests of a run whose standard error costs more than this share of the rate (log), as where a
percentile hardly rises with the load. The planner would pay for the error with replicas; the longer runs halve it."""
BALANCED_REQUESTS = 160_000
HERDING_REQUESTS = 800_000
HERDING_RUNS = 3
"""Runs that decide where equal requests may fall into lockstep: the time when they do is chance, and one run sees it
only a few times, so its own standard error is too small."""
NEAR = 1.1
"""Factor by which the formula's percentiles may be off: a miss within it is checked by simulation."""


class SlaMissed(Exception):
    """Even a replica with hardly any load (`IDLE`) misses `limit`: there its value is `alone`, `simulated` or by
    formula, in the limit's own measure: seconds, or for goodput and rejections a share. The planner turns this into a
    rejection."""

    def __init__(self, limit: Limit, alone: float, simulated: bool = False) -> None:
        super().__init__(f"{limit}: {limit.said(alone)} with hardly any load")
        self.limit = limit
        self.alone = alone
        self.simulated = simulated

    @property
    def near(self) -> bool:
        """True when the formula may have been wrong to reject."""
        return self.alone < NEAR * self.limit.limit_s


@dataclass(frozen=True, slots=True)
class Method:
    """A way to answer both questions about a replica in its setting: how much it can carry, and what users see.

    `capacity_per_s(replica, setting)`: requests/s of one replica at which the SLA is about to fail; raises SlaMissed if
    it fails without load. `predict(replica, setting, rate_per_s)`: percentiles when every replica gets that rate.
    `reached(replica, setting, capacity_per_s)`: the limit that fails at that capacity. It need not be the one with the
    least room at a lower load: percentiles of gaps jump.
    """

    name: MethodName
    capacity_per_s: Callable[[Replica, Setting], float]
    predict: Callable[[Replica, Setting, float], Prediction]
    reached: Callable[[Replica, Setting, float], Limit]


def ample_replicas(arrivals: Arrivals, routing: Routing) -> int:
    """Replicas of a fleet so large that more of them hardly help: bursts are thin among them, and a router that is not
    random keeps requests apart, as it cannot where there is one replica."""
    return max(arrivals.thin_among, 1 if routing == "random" else MOST_REPLICAS)


def predict_at(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
    """Percentiles by formula when every replica gets `rate_per_s` requests/s."""
    sla, load = setting.sla, setting.at(rate_per_s)
    return _known_at(replica, load, setting.routing, setting.replicas, sla.gap is not None, sla.within)


def analytic_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """Requests/s of one replica at which the first limit of the SLA is reached, by formula.

    Raises SlaMissed when a replica without load exceeds a limit.
    """
    response = load_response(replica, setting)
    capacity_per_s = response.rate_per_s(0.0)
    if capacity_per_s == 0:
        raise response.missed_alone(setting.sla)
    return capacity_per_s


@lru_cache(maxsize=1024)
def load_response(replica: Replica, setting: Setting, levels: tuple[float, ...] = ()) -> LoadResponse:
    """How the SLA is used up from no load on, by formula; accurate near its edge, and at other `levels`.

    The formula is evaluated for an idle replica, at the shares `FIRST` of the stable rate, and then where the levels
    are expected; only for the idle one if that misses the SLA by more than a near miss. Cached for a while.
    """
    stable_per_s = _stable_per_s(replica, setting)
    known: dict[float, Prediction] = {}

    def response_with(rate_per_s: float, at: Setting = setting) -> LoadResponse:
        known[rate_per_s] = predict_at(replica, at, rate_per_s)
        return LoadResponse.of(known, setting.sla)

    # A router that counts requests finds an idle replica, where the formula would let two requests meet: on an idle
    # fleet it routes as round robin does.
    apart = setting if setting.routing == "random" else replace(setting, routing="round_robin")
    response = response_with(IDLE * stable_per_s, apart)
    if response.excess[0] > math.log(NEAR):
        return response
    for share in FIRST:
        if response.excess[-1] <= ENOUGH:
            response = response_with(share * stable_per_s)
    for level, within in ((0.0, EDGE_WITHIN), *((level, ENDS_WITHIN) for level in levels)):
        for number in range(MOST_ASKED):
            rate_per_s = response.next_rate_per_s(level, MOST_SHARE * stable_per_s, within, number)
            if rate_per_s is None:
                break
            response = response_with(rate_per_s)
    return response


@lru_cache(maxsize=8192)
def _known_at(
    replica: Replica, workload: Workload, routing: Routing, replicas: int, gaps: bool, within: Within
) -> Prediction:
    """Percentiles by formula, cached: a band evaluates again where the capacity did, another SLA at some of the same
    loads, and a chart of latency against load shows the same ones for every load of the fleet."""
    return predict(replica, workload, replicas=replicas, routing=routing, gaps=gaps, within=within)


def requests_for(setting: Setting) -> int:
    """Requests of a run that decides: fewer if 32 replicas are simulated, whose load is steadier.

    More if equal requests may fall into lockstep behind the least busy replica, which takes them long.
    """
    if setting.replicas == 1 or setting.routing not in ("power_of_two", "least_outstanding"):
        return REQUESTS
    return HERDING_REQUESTS if setting.herds else BALANCED_REQUESTS


def run_at(replica: Replica, setting: Setting, rate_per_s: float, requests: int, seed: int = 0) -> Simulated:
    """A simulated run in which every replica gets `rate_per_s` requests/s; the same seed whatever the rate."""
    return simulate(
        replica,
        setting.at(rate_per_s),
        replicas=setting.replicas,
        routing=setting.routing,
        requests=requests,
        seed=seed,
        watch=Watch(token_gaps=setting.sla.gap is not None),
    )


def simulate_at(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
    """Percentiles by simulation when every replica gets `rate_per_s` requests/s; if requests may fall into lockstep,
    those of the worst of several runs."""
    seeds, requests = range(HERDING_RUNS if setting.herds else 1), requests_for(setting)
    runs = (run_at(replica, setting, rate_per_s, requests, seed) for seed in seeds)
    return max((run.prediction(setting.sla.within) for run in runs), key=lambda seen: log_excess(seen, setting.sla))


def simulated_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """The same rate by discrete-event simulation; the search begins at the formula's answer.

    The same random numbers serve every rate, so that the search sees a smooth function. Raises SlaMissed when a replica
    without load exceeds a limit.
    """
    return _searched_per_s(replica, replace(setting, replicas=simulated_replicas(setting.replicas, setting.routing)))


@lru_cache(maxsize=512)
def _searched_per_s(replica: Replica, setting: Setting) -> float:
    """The same, for a fleet with as many replicas as the simulator uses for one of that size."""
    response, requests = load_response(replica, setting), requests_for(setting)
    by_formula_per_s = response.rate_per_s(0.0)
    guess_per_s = by_formula_per_s or float(response.rates_per_s[0])
    if by_formula_per_s == 0:
        # If the simulation too rejects an idle replica, this one run is enough; the search comes down step by step.
        idle = run_at(replica, setting, IDLE * guess_per_s, requests)
        if upper_excess(idle, setting.sla) > 0:
            raise _missed(idle, setting.sla)

    last: deque[tuple[Probe, Simulated]] = deque(maxlen=2)

    def excess(requests: int, rate_per_s: float) -> float:
        run = run_at(replica, setting, rate_per_s, requests)
        over = upper_excess(run, setting.sla)
        last.append((Probe(rate_per_s, over), run))
        return over

    ceiling_per_s = MOST_SHARE * _stable_per_s(replica, setting)
    found = edge_rate(partial(excess, requests), response, guess_per_s, ceiling_per_s)
    if found and len(last) == 2 and not setting.herds:
        (one, run), (other, _) = last
        lost = lost_to_doubt(one.over - upper_excess(run, setting.sla, 0.0), one, other)
        if lost > WORTH:
            again_per_s = raised(found, lost / 2, ceiling_per_s)
            found = edge_rate(partial(excess, FINER * requests), response, again_per_s, ceiling_per_s) or found
    if found == 0:
        raise _missed(run_at(replica, setting, IDLE * guess_per_s, requests), setting.sla)
    return found


def raised(rate_per_s: float, log: float, ceiling_per_s: float) -> float:
    """The rate times exp(`log`), at most the ceiling; `log` may be so large that exp overflows."""
    return rate_per_s * math.exp(min(log, math.log(ceiling_per_s / rate_per_s)))


def lost_to_doubt(doubt: float, one: Probe, other: Probe) -> float:
    """By how much lower a rate (log) a search ends because the excess of its runs is raised by `doubt`: along the line
    through two of them; 0 if they give no slope."""
    if max(one.over, other.over) >= FAR or one.rate == other.rate:
        return 0.0
    slope = (other.over - one.over) / math.log(other.rate / one.rate)
    return doubt / slope if slope > 0 else 0.0


def _missed(idle: Simulated, sla: Sla) -> SlaMissed:
    """The limit that a replica without load misses, as the search judges it. If the value itself keeps the limit, the
    upper end of its error is what misses it."""
    prediction = idle.prediction(sla.within)
    upper = {limit: upper_percentile(idle, limit, SURE) for limit in sla.limits}
    limit = max(sla.limits, key=lambda each: log_ratio(upper[each], each.limit_s))
    value = prediction.value_s(limit)
    return SlaMissed(limit, value if value > limit.limit_s else upper[limit], simulated=True)


def analytic_reached(replica: Replica, setting: Setting, capacity_per_s: float) -> Limit:
    """The limit that fails at the capacity, by formula."""
    return load_response(replica, setting).reached(capacity_per_s, setting.sla)


def simulated_reached(replica: Replica, setting: Setting, capacity_per_s: float) -> Limit:
    """The same by a run just beyond the capacity, judged as in the search; by formula if that run is not steady."""
    if len(setting.sla.limits) == 1:
        return setting.sla.limits[0]
    fleet = replace(setting, replicas=simulated_replicas(setting.replicas, setting.routing))
    ceiling_per_s = MOST_SHARE * _stable_per_s(replica, setting)
    run = run_at(replica, fleet, min((1 + TOLERANCE) * capacity_per_s, ceiling_per_s), requests_for(fleet))
    if run.saturated:
        return analytic_reached(replica, setting, capacity_per_s)
    return max(setting.sla.limits, key=lambda limit: log_ratio(upper_percentile(run, limit, SURE), limit.limit_s))


BY_FORMULA = Method("analytic", analytic_capacity_per_s, predict_at, analytic_reached)
BY_SIMULATION = Method("simulation", simulated_capacity_per_s, simulate_at, simulated_reached)


def first_capacity_per_s(replica: Replica, setting: Setting) -> float:
    """Requests/s of one replica by formula; by simulation if the formula puts an idle one just over a limit."""
    try:
        return analytic_capacity_per_s(replica, setting)
    except SlaMissed as missed:
        if not missed.near:
            raise
        return simulated_capacity_per_s(replica, setting)


# --- The least whole number for which something holds, where each trial is expensive: searched from a good guess


FINE = 256
"""Large fleets are sized to within one part in so many."""


def least(holds: Callable[[int], bool], start: int, most: int, fine: int = 0) -> int | None:
    """The least whole number from 1 that `holds`, searched from `start` in growing steps; None if none up to `most`.

    `holds` must be false below some number and true above it. `fine`: within one part in so many; 0: exactly.

    >>> least(lambda n: n >= 37, start=20, most=1000)
    37
    """
    low, high = 0, start
    step = max(1, start // 16)
    if holds(start):
        while high - step > 0 and holds(high - step):
            high, step = high - step, 2 * step
        low = max(0, high - step)
    else:
        low = start
        while not holds(high := min(low + step, most)):
            if high == most:
                return None
            low, step = high, 2 * step
    while high - low > (max(1, high // fine) if fine else 1):
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


# --- How certain the answer is: the 90 % band of a replica's capacity, from what the law's data leave open

MONTE_CARLO_SIGMA = 0.015
"""Standard error of a simulated capacity at the number of requests the planner uses: 0.4 to 1.2 % over four questions
with sixteen seeds each, more where an SLA lies close to the idle latency."""
OF_SHAPE: Mapping[Metric, float] = MappingProxyType({"ttft": 0.06, "e2e": 0.015, "itl": 0.02, "gap": 0.0})
"""Error of a simulated percentile over the mean, beside the luck of the measurement: of vLLM, measured here. What gaps
are off by is in the law's error."""
MEDIAN = 50
CLOSE, SHORT, STEPS = 0.02, 0.004, 4
"""Log of latency over limit, and of a step in the rate, below which no further step is taken; most steps."""


def tail_sigma(limit: Limit) -> float:
    """Relative error of a percentile of TTFT above the median beside that of the law's times; 0 of other figures.

    The tail depends on which prompts meet in an iteration, of which a law of eight times knows the mean. More measured
    levels make the law surer, but not this.
    """
    return OF_SHAPE["ttft"] if limit.metric == "ttft" and limit.percentile > MEDIAN else 0.0


@lru_cache(maxsize=512)
def capacity_band(candidate: Candidate, setting: Setting) -> tuple[float, float]:
    """The 90 % band of a replica's capacity under the SLA as factors of it: (low, high).

    Low is 0 when, at the slow end, the SLA cannot be met at all. A fitted law comes with pairs of laws one standard
    error apart along each eigenvector of its covariance: the changes of log capacity along them add in quadrature
    (sigma points), with the change that the `tail_sigma` of the limit reached first makes. If one of a pair fails
    without load, so does the slow end, and the fast end is at most what such engines carry at all. A law without
    covariance is made slower and faster by its relative error. Cached: it is the same for every load, and for the fleet
    by formula and the one by simulation.
    """
    if candidate.variants:
        middle = Middle.of(candidate.replica, setting)
        ends = [[_capacity(replica, setting, middle) for replica in pair] for pair in candidate.variants]
        ends.append(middle.by_tail(setting.sla))
        if min(map(min, ends)) > 0:
            sigma = math.hypot(MONTE_CARLO_SIGMA, *(math.log(one / other) / 2 for one, other in ends))
            return spread(sigma)
        rises = [math.log(max(*pair, middle.capacity_per_s) / middle.capacity_per_s) for pair in ends]
        stable_per_s = max(_stable_per_s(replica, setting) for pair in candidate.variants for replica in pair)
        high = math.exp(Z90 * math.hypot(MONTE_CARLO_SIGMA, *rises))
        return 0.0, max(1.0, min(high, stable_per_s / middle.capacity_per_s))
    return scaled_capacities(candidate.replica, setting, math.exp(Z90 * candidate.relative_sigma))


def scaled_capacities(replica: Replica, setting: Setting, factor: float) -> tuple[float, float]:
    """Capacity of an engine `factor` times slower and of one that much faster, relative to that of `replica`;
    interpolated.

    An engine `factor` times slower under rate r is this engine under rate r factor, in slower time: its latencies meet
    the SLA where this engine's are `factor` below it. So both ends are read off one curve of the excess over the SLA.
    If the formula puts even the faster engine over a limit that the simulation found met, the band ends at 1.
    """
    step = math.log(factor)
    response = load_response(replica, setting, (step, -step))
    middle = response.rate_per_s(0.0) or float(response.rates_per_s[0])
    return response.rate_per_s(-step) / factor / middle, max(1.0, response.rate_per_s(step) * factor / middle)


class Middle(NamedTuple):
    """The law between the pairs: its response to load, its stable rate, and the level of the response at its own edge,
    which is not quite 0 because the response is interpolated."""

    response: LoadResponse
    stable_per_s: float
    level: float

    @classmethod
    def of(cls, replica: Replica, setting: Setting) -> Middle:
        """By formula."""
        roughly = cls(load_response(replica, setting), _stable_per_s(replica, setting), 0.0)
        return roughly._replace(level=_level(replica, setting, roughly) or 0.0)

    def rate_per_s(self, level: float) -> float:
        """The rate at which the response reaches a level; the lowest rate if it is already above it there."""
        return self.response.rate_per_s(level) or float(self.response.rates_per_s[0])

    @property
    def capacity_per_s(self) -> float:
        """Capacity of the law between the pairs."""
        return self.rate_per_s(self.level)

    def by_tail(self, sla: Sla) -> list[float]:
        """Capacities if the latency whose limit is reached first is shorter and longer by its `tail_sigma`."""
        sigma = tail_sigma(self.response.reached(self.capacity_per_s, sla))
        return [self.rate_per_s(self.level + change) for change in (sigma, -sigma)]


def half_change(pair: tuple[Replica, Replica], setting: Setting, middle: Middle) -> float:
    """Half the change of log capacity between two laws; a law that fails alone counts as a hundredth of the middle."""
    one, other = (max(_capacity(replica, setting, middle), middle.capacity_per_s / 100) for replica in pair)
    return math.log(one / other) / 2


def _capacity(replica: Replica, setting: Setting, middle: Middle) -> float:
    """Capacity by formula of a replica much like the middle one; 0 when the SLA is missed without load.

    A response of its own takes ten times as long; it is computed if steps along the middle's do not settle.
    """
    level = _level(replica, setting, middle)
    if level is not None:
        return _stable_per_s(replica, setting) / middle.stable_per_s * middle.rate_per_s(level)
    return load_response(replica, setting).rate_per_s(0.0)


def _level(replica: Replica, setting: Setting, middle: Middle) -> float | None:
    """Level of the middle's response at the share of the stable rate where this replica's edge is; None if not found.

    At equal shares of their stable rates the two use up the SLA alike, up to a constant. Evaluating the formula where
    the middle's edge is, and again where the constant leads, gives that constant. Usually once is enough.
    """
    level, scale = middle.level, _stable_per_s(replica, setting) / middle.stable_per_s
    rate_per_s = scale * middle.rate_per_s(level)
    for _ in range(STEPS):
        over = log_excess(predict_at(replica, setting, rate_per_s), setting.sla)
        level -= over
        step_per_s = scale * middle.response.rate_per_s(level)
        if step_per_s == 0:
            return None
        if abs(over) <= CLOSE or abs(math.log(step_per_s / rate_per_s)) <= SHORT:
            return level
        rate_per_s = step_per_s
    return None


def _stable_per_s(replica: Replica, setting: Setting) -> float:
    return stable_rate_per_s(replica, setting.workload.lengths, setting.workload.prefix)


Factors = Callable[[Limit], tuple[float, float]]


def latency_band(candidate: Candidate, setting: Setting, rate_per_s: float) -> Factors:
    """For the metric and percentile of each limit, the ends of the 90 % band of the latency at a load of `rate_per_s`
    per replica, as factors of the prediction: (low, high).

    By formula. A fitted law comes with pairs of laws one standard error apart: the changes of log latency along them
    add in quadrature, with the `tail_sigma` of the limit. A law without them is made slower and faster by its relative
    error. High is infinite if the slow end cannot carry the load at all.
    """

    def at_load(replica: Replica) -> Prediction:
        return predict_at(replica, setting, rate_per_s)

    if candidate.variants:
        seen, pairs = at_load(candidate.replica), [tuple(map(at_load, pair)) for pair in candidate.variants]

        def ends(limit: Limit) -> tuple[float, float]:
            changes = zip(*(_changes(pair, seen, limit) for pair in pairs), strict=True)
            down, up = (math.hypot(tail_sigma(limit), *each) for each in changes)
            return spread(down)[0], spread(up)[1]

        return ends
    factor = math.exp(Z90 * candidate.relative_sigma)
    fast, middle, slow = (
        at_load(replace(candidate.replica, law=candidate.replica.law.scaled(scale)))
        for scale in (1 / factor, 1.0, factor)
    )
    return lambda limit: (_ratio(fast, middle, limit), _ratio(slow, middle, limit))


def spread(sigma: float) -> tuple[float, float]:
    """The band of a value whose logarithm has this standard error."""
    return math.exp(-Z90 * sigma), math.exp(Z90 * sigma)


def _changes(pair: tuple[Prediction, ...], middle: Prediction, limit: Limit) -> tuple[float, float]:
    """How far log latency goes down and up between two laws: half their change either way. If one of them cannot carry
    the load, up without end, and down to the other."""
    known = [value for value in (each.value_s(limit) for each in pair) if math.isfinite(value) and value > 0]
    if len(known) == 2:
        half = abs(math.log(known[0] / known[1])) / 2
        return half, half
    base = middle.value_s(limit)
    return max([0.0, *(math.log(base / value) for value in known if math.isfinite(base))]), math.inf


def _ratio(changed: Prediction, middle: Prediction, limit: Limit) -> float:
    """A changed prediction over the unchanged one; 1 if there is none to compare with."""
    value, base = changed.value_s(limit), middle.value_s(limit)
    if not math.isfinite(base) or base <= 0 or math.isnan(value):
        return 1.0
    return value / base
