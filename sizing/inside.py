"""Inside a replica: one simulated run, and what a reader looks at in it: state over time, spreads, single requests."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sizing.errors import ScenarioError
from sizing.plan import Question
from sizing.planner import setting_of
from sizing.replica import Replica
from sizing.simulator import Simulated, TimeSeries, Watch, simulate
from sizing.simulator.fleet import serve
from sizing.simulator.records import Requests
from sizing.simulator.runs import COUNTING, MOST_REPLICAS
from sizing.simulator.sampling import sample_requests
from sizing.simulator.watch import MOST_SAMPLES
from sizing.workload import Routing, Seconds, Workload

MOST_ITERATIONS = 20_000_000
"""Iterations with some of a prompt that a run may need: about a second of one core."""
BACKLOG_REQUESTS = 20_000
"""Requests simulated beside those of the run, to find the highest stable rate."""
SETTLE, LOOK = 3.0, 2.0
"""A close look begins after so many mean lives of a request, and lasts so many."""


@dataclass(frozen=True, slots=True)
class Run:
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
        """Replicas that are simulated: routers that count requests need several, behind others one stands for all."""
        return min(self.replicas, MOST_REPLICAS) if self.routing in COUNTING else 1

    @property
    def lasts_s(self) -> float:
        """Seconds from the first arrival to the last, on average."""
        return self.requests * self.replicas / (self.workload.rate_per_s * self.together)


def run_in_fleet(
    question: Question, replica: Replica, load_per_s: float, working: int, requests: int, seed: int
) -> Run:
    """The run in which each of `working` replicas gets `load_per_s` requests/s, by the planner's own rules.

    Where one replica stands for all (random routing of Poisson arrivals) one is simulated.
    """
    setting = setting_of(question, working)
    return Run(replica, setting.at(load_per_s), setting.replicas, question.routing, requests, seed)


def simulated(run: Run) -> Simulated:
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


def close_look(run: Run, life_s: float) -> TimeSeries:
    """The first replica over `LOOK` lives of a request, once `SETTLE` have passed, iteration by iteration where there
    are few: the very same requests as those of the run, its end where it is shorter. `life_s`: mean E2E in seconds.
    """
    rng = np.random.default_rng(run.seed)
    requests = _requests_of(run, rng)
    begin_s, end_s = float(requests["arrival_s"][0]), float(requests["arrival_s"][-1])
    until_s = min(begin_s + (SETTLE + LOOK) * life_s, end_s)
    from_s = max(until_s - LOOK * life_s, begin_s)
    head = requests[requests["arrival_s"] <= until_s]
    watch = Watch(sample_every_s=until_s / MOST_SAMPLES)
    series = serve([run.replica] * run.together, head, run.routing, rng, watch=watch).series[0]
    return between(series, from_s, until_s)


def _requests_of(run: Run, rng: np.random.Generator) -> Requests:
    """The requests that `simulate` draws for the run."""
    if run.together == 1:
        return sample_requests(run.replica, run.workload, run.requests, rng, replicas=run.replicas, routing=run.routing)
    offered = replace(run.workload, rate_per_s=run.workload.rate_per_s * run.together / run.replicas)
    return sample_requests(run.replica, offered, run.requests, rng)


def between(series: TimeSeries, from_s: float, until_s: float) -> TimeSeries:
    """The samples from one time to another, both included."""
    inside = (series.time_s >= from_s) & (series.time_s <= until_s)
    return TimeSeries(*(getattr(series, name)[inside] for name in TimeSeries.__slots__))


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """A time series drawn together to a few hundred steps, arrays of shape (steps,).

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
    """At most `steps` steps of equally many samples; nothing that was highest in between is lost.

    Samples are of iterations: while an engine is idle there are none.
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
    """Consecutive requests, arrays of shape (n,): arrival, and seconds until the prompt was begun, from then to the
    first token, and from that to the last. NaN of requests not served. `slowest`: the place of the longest TTFT.
    """

    arrival_s: Seconds
    waiting_s: Seconds
    prompt_s: Seconds
    decoding_s: Seconds
    slowest: int


def lives_around_slowest(run: Simulated, before: int = 24, after: int = 8) -> Lives | None:
    """The request that waited longest for its first token, and those that arrived just before and after it.

    None when no request was served.
    """
    served = np.where(np.isfinite(run.ttft_s), run.ttft_s, -math.inf)
    slowest = int(np.argmax(served))
    if not math.isfinite(served[slowest]):
        return None
    first = max(0, slowest - before)
    part = slice(first, slowest + after + 1)
    return Lives(
        run.arrival_s[part],
        run.queue_s[part],
        (run.ttft_s - run.queue_s)[part],
        (run.e2e_s - run.ttft_s)[part],
        slowest - first,
    )
