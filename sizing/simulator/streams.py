"""Several workloads on one fleet: interactive users beside a batch job, short questions beside long documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sizing.errors import ScenarioError
from sizing.replica import Replica
from sizing.simulator.closed import backlog_rate_per_s
from sizing.simulator.fleet import UNWATCHED, serve
from sizing.simulator.records import Requests
from sizing.simulator.runs import MOST_REPLICAS, check_question, herding, whole_fleet
from sizing.simulator.sampling import sample_requests
from sizing.simulator.simulated import Simulated, open_loop
from sizing.simulator.watch import Watch
from sizing.workload import Routing, Tokens, Workload


@dataclass(frozen=True, slots=True)
class Stream:
    """A workload among others on a fleet; of the waiting requests those of priority 0 are served first, then 1, ..."""

    workload: Workload
    priority: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.priority <= 15:
            raise ScenarioError(f"priority must be from 0 (first) to 15, got {self.priority}")


def simulate_streams(
    replica: Replica,
    streams: Sequence[Stream],
    *,
    replicas: int = 1,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> tuple[Simulated, ...]:
    """Offer several workloads to one fleet of equal replicas; a result for each, in the order given.

    `requests` in all, shared in proportion to the rates, over the time for which all streams last. Behind *random*
    routing one replica stands for all: a sum of thinned streams is the thinned sum. Other routings simulate up to 32
    replicas at the load each would have. One seed at all rates times a factor uses the same random numbers.
    Rate and requests in flight are the stream's own; `utilization` counts the streams that go before it or with it,
    for those behind can hardly hinder it: an overloaded fleet may still be steady for its first priorities.

    Raises ScenarioError as `simulate` does, and for a stream so rare that fewer than 10 of the requests are its own.

    >>> from sizing.steptime import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> chat, summaries = Workload(Lengths(300, 200), rate_per_s=6), Workload(Lengths(8000, 100), rate_per_s=2)
    >>> first, second = simulate_streams(Replica(law), [Stream(chat), Stream(summaries, priority=1)], requests=8000)
    >>> bool(first.ttft_s.mean() < second.ttft_s.mean())
    True
    """
    check_question(replicas, routing, requests, warmup)
    if not streams:
        raise ScenarioError("give at least one stream")
    together = 1 if routing == "random" else min(replicas, MOST_REPLICAS)
    run, stream_of = _merged(replica, streams, requests, replicas, together, seed)
    rng = np.random.default_rng([seed, len(streams)])
    run["stream"] = stream_of
    seen = serve([replica] * together, run, routing, rng, watch=watch, warmup=warmup, streams=len(streams))
    lengths = {stream.workload.lengths for stream in streams}
    warnings = herding(routing, together, len(lengths) == 1 and streams[0].workload.lengths.fixed)
    results = []
    for number, stream in enumerate(streams):
        ahead = run[run["priority"] <= stream.priority]
        stable_per_s = backlog_rate_per_s(replica, ahead["isl"], ahead["osl"], ahead["cached_tokens"])
        rate_per_s = sum(other.workload.rate_per_s for other in streams if other.priority <= stream.priority)
        utilization = rate_per_s / replicas / stable_per_s
        result = open_loop(run[stream_of == number], replica.law.request_s, utilization, warmup=warmup)
        own_gaps = seen.measured_gaps[number : number + 1]
        result = replace(result, watched=replace(seen, measured_gaps=own_gaps))
        results.append(whole_fleet(result, replicas / together, warnings))
    return tuple(results)


def _merged(
    replica: Replica, streams: Sequence[Stream], requests: int, replicas: int, together: int, seed: int
) -> tuple[Requests, Tokens]:
    """All streams, as `together` of `replicas` replicas see them, by time up to the end of the first that ends; and
    the number of the stream that each request is of."""
    rate_per_s = sum(stream.workload.rate_per_s for stream in streams)
    parts = []
    for number, stream in enumerate(streams):
        own = int(requests * stream.workload.rate_per_s / rate_per_s)
        if own < 10:
            raise ScenarioError(
                f"stream {number} is {own} of {requests} requests, too few to measure: simulate more requests"
            )
        rng = np.random.default_rng([seed, number])
        if together == 1:
            part = sample_requests(replica, stream.workload, own, rng, replicas=replicas)
        else:
            slower = replace(stream.workload, rate_per_s=stream.workload.rate_per_s * together / replicas)
            part = sample_requests(replica, slower, own, rng)
        part["priority"] = stream.priority
        parts.append(part)
    end_s = min(part["arrival_s"][-1] for part in parts)
    run = np.concatenate(parts)
    stream_of = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    order = np.argsort(run["arrival_s"], kind="stable")
    order = order[run["arrival_s"][order] <= end_s]
    return run[order], stream_of[order]
