"""Inside a replica: one simulated run, and what a reader looks at in it: state over time, spreads, single requests."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from sizing.engine import Replica
from sizing.errors import ScenarioError
from sizing.numbers import milliseconds, per_second, significant
from sizing.prediction import Prediction
from sizing.question import Question
from sizing.queueing.percentiles import TOLERANCE
from sizing.simulator import Simulated, TimeSeries, Watch, simulate
from sizing.simulator.fleet import serve
from sizing.simulator.result import MOST_SAMPLES
from sizing.simulator.runs import run_together
from sizing.simulator.sampling import sample_requests, shared_prefixes
from sizing.workload import METRICS, PERCENTILES, Limit, Limited, Metric, Routing, Seconds, Sla, Workload, metric_name

MOST_ITERATIONS = 20_000_000
"""Iterations with some of a prompt that a run may need: about a second of one core."""
BACKLOG_REQUESTS = 20_000
"""Requests simulated beside those of the run, to find the highest stable rate."""
SETTLE, LOOK = 3.0, 2.0
"""A close look begins after so many mean lives of a request, and lasts so many."""


@dataclass(frozen=True, slots=True)
class InsideRun:
    """What is simulated: `workload` offered to `replicas` equal replicas behind `routing`; `workload.rate_per_s` is
    the rate of them all. `requests` in all, drawn with `seed`.

    Raises ScenarioError where prompts are so long against the token budget that the run would take minutes.
    """

    replica: Replica
    workload: Workload
    replicas: int = 1
    routing: Routing = "random"
    requests: int = 20_000
    seed: int = 0

    def __post_init__(self) -> None:
        if self.iterations > MOST_ITERATIONS:
            raise ScenarioError(
                f"{self.requests:,} prompts of {self.workload.lengths.isl:,g} tokens in iterations of "
                f"{self.replica.batching.token_budget:,} take too long to simulate here: raise the token budget or "
                "simulate fewer requests"
            )

    @property
    def iterations(self) -> float:
        """Iterations that hold some of a prompt, at most: those cost time, stretches of pure decoding do not."""
        each = max(self.workload.lengths.isl / self.replica.batching.token_budget, 1.0)
        return (self.requests + BACKLOG_REQUESTS) * (each if self.replica.batching.policy == "chunked" else 1.0)

    @property
    def together(self) -> int:
        """Replicas that are simulated, see there."""
        return run_together(self.replicas, self.routing)

    @property
    def lasts_s(self) -> float:
        """Seconds from the first arrival to the last, on average."""
        return self.requests * self.replicas / (self.workload.rate_per_s * self.together)


def run_in_fleet(
    question: Question, replica: Replica, load_per_s: float, working: int, requests: int, seed: int
) -> InsideRun:
    """The run in which each of `working` replicas gets `load_per_s` requests/s, by the planner's own rules.

    Where one replica stands for all (random routing of Poisson arrivals) one is simulated.
    """
    setting = question.setting(working)
    return InsideRun(replica, setting.at(load_per_s), setting.replicas, question.routing, requests, seed)


def simulated(run: InsideRun) -> Simulated:
    """The run, with token gaps and the state of the replicas over time.

    Raises ScenarioError for numbers out of range and for requests that never fit in the KV cache.
    """
    watch = Watch(token_gaps=True, sample_every_s=run.lasts_s / MOST_SAMPLES)
    return simulate(
        run.replica,
        run.workload,
        replicas=run.replicas,
        routing=run.routing,
        requests=run.requests,
        seed=run.seed,
        watch=watch,
    )


def close_look(run: InsideRun, life_s: float) -> TimeSeries:
    """The first replica over `LOOK` lives of a request, once `SETTLE` have passed, iteration by iteration where there
    are few: the same requests as in the run, and its end if it is shorter. `life_s`: mean E2E in seconds.
    """
    rng = np.random.default_rng(run.seed)
    fleet = {"replicas": run.replicas, "together": run.together}
    requests = sample_requests(run.replica, run.workload, run.requests, rng, routing=run.routing, **fleet)
    begin_s, end_s = float(requests["arrival_s"][0]), float(requests["arrival_s"][-1])
    until_s = min(begin_s + (SETTLE + LOOK) * life_s, end_s)
    from_s = max(until_s - LOOK * life_s, begin_s)
    head = requests[requests["arrival_s"] <= until_s]
    watch = Watch(sample_every_s=until_s / MOST_SAMPLES)
    series = serve(
        [run.replica] * run.together, head, run.routing, rng, watch=watch, prefixes=shared_prefixes(run.workload)
    ).series[0]
    return between(series, from_s, until_s)


def between(series: TimeSeries, from_s: float, until_s: float) -> TimeSeries:
    """The samples from one time to another, both included."""
    inside = (series.time_s >= from_s) & (series.time_s <= until_s)
    return TimeSeries(*(getattr(series, name)[inside] for name in TimeSeries.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A time series condensed to a few hundred steps, arrays of shape (steps,).

    Of each step: when it begins; the mean of running sequences and the most; the most waiting requests; the most KV
    tokens held; the share of samples with a prompt cut in chunks in progress; pauses in it.
    """

    time_s: Seconds
    running: Seconds
    running_most: Seconds
    waiting_most: Seconds
    kv_tokens_most: Seconds
    prefilling: Seconds
    pauses: Seconds


def timeline(series: TimeSeries, steps: int = 400) -> Timeline:
    """At most `steps` steps with an equal number of samples each; peaks are kept.

    Samples are taken at iterations, so an idle engine has none.
    """
    samples = len(series.time_s)
    if samples == 0:
        return Timeline(*(np.zeros(0) for _ in Timeline.__slots__))
    starts = np.unique(np.linspace(0, samples, min(steps, samples), endpoint=False).astype(np.int64))
    count = np.diff(np.append(starts, samples))
    last = np.append(starts[1:], samples) - 1
    return Timeline(
        time_s=series.time_s[starts],
        running=np.add.reduceat(series.running, starts) / count,
        running_most=np.maximum.reduceat(series.running, starts),
        waiting_most=np.maximum.reduceat(series.waiting, starts),
        kv_tokens_most=np.maximum.reduceat(series.kv_tokens, starts),
        prefilling=np.add.reduceat(series.prefilling, starts) / count,
        pauses=np.diff(series.paused[last], prepend=0.0),
    )


SHARES = np.concatenate([np.linspace(0, 0.96, 97), np.linspace(0.965, 0.995, 7), [0.999, 1.0]])
"""Shares of the requests at which a distribution is drawn: closely in the tail, which an SLA speaks of."""


def spread(seconds: Seconds) -> Seconds:
    """The values that `SHARES` of the requests stay at or below, shape (SHARES,); NaN where nothing was measured."""
    known = seconds[np.isfinite(seconds)]
    return np.quantile(known, SHARES) if known.size else np.full(len(SHARES), math.nan)


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """Consecutive requests, arrays of shape (n,): arrival, and seconds until the prompt was started, from then to the
    first token, and from that to the last. NaN of requests not served. `slowest`: the place of the longest TTFT.
    """

    arrival_s: Seconds
    waiting_s: Seconds
    prompt_s: Seconds
    decoding_s: Seconds
    slowest: int


BEFORE, AFTER = 24, 8


def lives_around_slowest(run: Simulated) -> Lives | None:
    """The request that waited longest for its first token, and those that arrived just before and after it.

    None when no request was served.
    """
    served = np.where(np.isfinite(run.ttft_s), run.ttft_s, -math.inf)
    slowest = int(np.argmax(served))
    if not math.isfinite(served[slowest]):
        return None
    first = max(0, slowest - BEFORE)
    part = slice(first, slowest + AFTER + 1)
    return Lives(
        run.arrival_s[part],
        run.queue_s[part],
        (run.ttft_s - run.queue_s)[part],
        (run.e2e_s - run.ttft_s)[part],
        slowest - first,
    )


# --- What a simulated run shows, in sentences

STALLED = 3.0
"""Multiple of the mean ITL from which the p99 of token gaps is worth a sentence."""
SLOWEST = 0.05
"""Share of the requests, those with the longest TTFT, whose waiting is described."""


def learned(run: Simulated, sla: Sla, load_per_s: float) -> list[str]:
    """Sentences, what matters most first; `load_per_s`: requests/s offered to each replica."""
    if run.saturated:
        return [_saturated(run, load_per_s)]
    found = [_lost(run), _paused(run), *(_missed(run, limit) for limit in sla.limits), _stalls(run), _first_token(run)]
    said = [sentence for sentence in found if sentence]
    return said if any(found[:-2]) else [_kept(run, sla), *said]


def _saturated(run: Simulated, load_per_s: float) -> str:
    rate = per_second(load_per_s)
    if run.utilization >= 1:
        most = significant(load_per_s / run.utilization)
        return f"No steady state: {rate} arrive, a replica carries {most}, and the queue only grows"
    return f"No steady state at {rate}: the queue grew throughout"


def _lost(run: Simulated) -> str:
    if not run.lost:
        return ""
    reasons = {"turned away": run.rejected, "dropped from the queue": run.timed_out, "given up": run.cancelled}
    told = ", ".join(f"{count:,} {name}" for name, count in reasons.items() if count)
    return f"{_share(run.lost / len(run.outcome))} of the requests got no answer: {told}"


def _paused(run: Simulated) -> str:
    pauses = run.watched.pauses
    if not pauses:
        return ""
    times = "once" if pauses == 1 else f"{pauses:,} times"
    return f"The KV cache overflowed: {times} a sequence lost its tokens to others and had them computed again"


def _missed(run: Simulated, limit: Limit) -> str:
    share, allowed = run.exceeding_share(limit), limit.may_exceed
    if limit.allows(share):
        return ""
    if limit.metric == "rejected":
        return f"{_share(share)} of the requests are rejected or time out; {_share(allowed)} are allowed"
    if limit.metric == "goodput":
        return f"{_share(1 - share)} of the requests keep all limits at once; {_share(1 - allowed)} are required"
    over = f"exceed the {metric_name(limit.metric)} limit of {limit.allowed}"
    lost = " or got no answer" if run.lost and limit.metric != "gap" else ""  # whose share is of the gaps there were
    return f"{_share(share)} of the {_many(limit.metric)} {over}{lost}; {_share(allowed)} are allowed"


def _kept(run: Simulated, sla: Sla) -> str:
    """The limit with the least room, as shares of requests or of gaps."""
    limit = max(sla.limits, key=lambda limit: run.exceeding_share(limit) / limit.may_exceed)
    share = run.exceeding_share(limit)
    nobody = "No gap between tokens" if limit.metric == "gap" else "No request"
    beyond = f"{nobody} exceeds" if share == 0 else f"{_share(share)} of the {_many(limit.metric)} exceed"
    allowed = f"{_share(limit.may_exceed)} are allowed"
    if limit.metric not in METRICS:
        held = share if limit.metric == "rejected" else 1 - share
        return f"The SLA is kept: {limit.name}: {_share(held)}"
    every = "a limit" if len(sla.limits) > 1 and share == 0 else f"the {metric_name(limit.metric)} limit"
    return f"The SLA is kept: {beyond} {every}" + ("" if share == 0 else f" of {limit.allowed}; {allowed}")


def _stalls(run: Simulated) -> str:
    """Token gaps against their means: stalls that users see and a request's ITL hides."""
    itl_s = run.itl_s[np.isfinite(run.itl_s)]
    if not itl_s.size or not run.watched.gap_p99_s > STALLED * itl_s.mean():
        return ""
    mean, gap = milliseconds(float(itl_s.mean())), milliseconds(run.watched.gap_p99_s)
    return (
        f"Means hide stalls: ITL is {mean} on average, yet one token in a hundred comes more than {gap} after the one "
        "before it, while prompts of others are computed"
    )


def _first_token(run: Simulated) -> str:
    """What the slowest first tokens waited for."""
    known = np.isfinite(run.ttft_s)
    if not known.any():
        return ""
    ttft_s, queue_s = run.ttft_s[known], run.queue_s[known]
    slowest = ttft_s >= np.quantile(ttft_s, 1 - SLOWEST)
    waited = float(queue_s[slowest].sum() / ttft_s[slowest].sum())
    return (
        f"In the slowest {_share(SLOWEST)} of first tokens {waited * 100:.0f} % of the time is spent waiting for the "
        "prompt to start"
    )


def _many(metric: Limited) -> str:
    return "gaps between tokens" if metric == "gap" else "requests"


def _share(share: float) -> str:
    """A share in per cent, three digits of it, never 0 where there is something."""
    return f"{significant(100 * share)} %"


def exceedances(run: Simulated, sla: Sla) -> list[tuple[Limit, float, float]]:
    """For each limit the share of requests (or gaps) beyond it and the share that may be."""
    return [(limit, run.exceeding_share(limit), limit.may_exceed) for limit in sla.limits]


# --- A simulated run beside the formula: every figure that both give, and the difference


@dataclass(frozen=True, slots=True)
class Compared:
    """One figure in seconds: `percentile` of a metric, or its mean (None).

    `interval_s`: the 90 % confidence interval of the simulated percentile; None of means, gaps and short runs.
    """

    metric: Metric
    percentile: int | None
    simulated_s: float
    formula_s: float
    interval_s: tuple[float, float] | None = None

    @property
    def name(self) -> str:
        """For instance: p95 TTFT."""
        return f"{'mean' if self.percentile is None else f'p{self.percentile}'} {metric_name(self.metric)}"

    @property
    def apart(self) -> float:
        """Formula over simulation, less 1."""
        return self.formula_s / self.simulated_s - 1

    @property
    def far(self) -> bool:
        """True when the two differ by more than can be expected of either at moderate load."""
        return abs(self.apart) > TOLERANCE


def compared(run: Simulated, said: Prediction) -> list[Compared]:
    """Mean, p50, p90, p95 and p99 of TTFT, ITL, gaps and E2E, those that both give; none where one is saturated."""
    if run.saturated or said.saturated:
        return []
    figures = []
    for metric in METRICS:
        found, formula = run.quantiles(metric), said.of(metric)
        if not found.mean_s > 0:  # no ITL where every answer has one token, no gaps where they were not counted
            continue
        figures.append(Compared(metric, None, found.mean_s, formula.mean_s))
        for percentile in PERCENTILES:
            interval_s = _interval(run, metric, percentile)
            figures.append(Compared(metric, percentile, found.at(percentile), formula.at(percentile), interval_s))
    return [figure for figure in figures if figure.simulated_s > 0 and figure.formula_s > 0]


def _interval(run: Simulated, metric: Metric, percentile: int) -> tuple[float, float] | None:
    if metric == "gap":
        return None
    try:
        return run.interval(metric, percentile)
    except ScenarioError:  # too few requests have the metric
        return None
