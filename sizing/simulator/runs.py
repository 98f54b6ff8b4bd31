"""Discrete-event simulation of replicas under load: what every single request would see.

Open loops: a workload offered to a fleet of equal replicas (`simulate`) or of any (`simulate_fleet`), and given
arrivals and lengths (`simulate_trace`); closed.py has the closed loop, streams.py several workloads on one fleet. The
scheduler is in iterations.py; it is exact for the law it is given: tests hold it against queueing theory, and against a
naive simulator written sequence by sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sizing.errors import ScenarioError
from sizing.replica import Replica
from sizing.simulator.closed import backlog_rate_per_s, fleet_utilization, stable_rate_per_s
from sizing.simulator.fleet import UNWATCHED, Failure, serve
from sizing.simulator.sampling import checked_requests, draw_steps, sample_requests
from sizing.simulator.simulated import Simulated, open_loop
from sizing.simulator.watch import Watch
from sizing.workload import ROUTINGS, Routing, Seconds, Tokens, Workload

MOST_REPLICAS = 32
"""A counting router over more replicas than this behaves as over this many, at the same load for each."""

COUNTING: tuple[Routing, ...] = ("power_of_two", "least_outstanding")


def simulate(
    replica: Replica,
    workload: Workload,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """Offer a workload to a fleet: open loop, `requests` requests, of which the first share `warmup` is not measured.

    The cost does not grow with the fleet. Behind *random* routing one replica sees the thinned stream (Poisson stays
    Poisson), behind *round_robin* every R-th request (Poisson becomes Erlang-R): one replica stands for all, exactly.
    *power_of_two* and *least_outstanding* simulate up to 32 replicas at the load each would have; a larger fleet
    smooths bursts a little more. Two runs with one seed at two rates use the same random numbers, so that their
    difference is the load's.

    Raises ScenarioError for a request longer than the KV cache, and for numbers out of range.

    >>> from sizing.steptime import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> run = simulate(Replica(law), Workload(Lengths(isl=1000, osl=100), rate_per_s=10), requests=5000)
    >>> run.saturated, round(run.utilization, 1)
    (False, 0.3)
    """
    check_question(replicas, routing, requests, warmup)
    rng = np.random.default_rng(seed)
    together = simulated_replicas(replicas, routing) if routing in COUNTING else 1
    if together > 1:
        offered = replace(workload, rate_per_s=workload.rate_per_s * together / replicas)
        run = sample_requests(replica, offered, requests, rng)
    else:
        run = sample_requests(replica, workload, requests, rng, replicas=replicas, routing=routing)
    seen = serve([replica] * together, run, routing, rng, watch=watch, warmup=warmup)
    utilization = workload.rate_per_s / replicas / stable_rate_per_s(replica, workload.lengths, workload.prefix)
    result = open_loop(run, replica.law.request_s, utilization, warmup=warmup)
    result = replace(result, watched=seen)
    return whole_fleet(result, replicas / together, herding(routing, together, workload.lengths.fixed))


def simulate_fleet(
    replicas: Sequence[Replica],
    workload: Workload,
    *,
    routing: Routing = "random",
    failures: Sequence[Failure] = (),
    requests: int = 100_000,
    seed: int = 0,
    warmup: float = 0.1,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """Offer a workload to replicas that may differ and may fail; every one is simulated.

    A request whose replica dies starts anew on another by the routing, its latency counted from its first arrival;
    while all are dead the router holds what comes. `utilization` is without failures, see `fleet_utilization`.

    Raises ScenarioError for a request that one of the replicas never fits, for replicas that speculate or end outputs
    differently (what a request asks would hang on where it goes), and for failures that make no sense.

    >>> from sizing.steptime import StepLaw
    >>> from sizing.workload import Lengths
    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> fleet = [Replica(law), Replica(law), Replica(law.scaled(1.5))]
    >>> load = Workload(Lengths(isl=1000, osl=100), rate_per_s=20)
    >>> even = simulate_fleet(fleet, load, routing="least_outstanding", requests=5000)
    >>> hit = simulate_fleet(fleet, load, routing="least_outstanding", failures=[Failure(0, 60, 120)], requests=5000)
    >>> bool(even.e2e_s.mean() < hit.e2e_s.mean())
    True
    """
    check_question(len(replicas), routing, requests, warmup)
    rng = np.random.default_rng(seed)
    if len({(member.speculation, member.batching.max_tokens) for member in replicas}) > 1:
        raise ScenarioError("the replicas of a fleet must have the same speculation and the same max_tokens")
    tightest = min(replicas, key=lambda member: member.batching.kv_tokens)
    run = sample_requests(tightest, workload, requests, rng)
    seen = serve(replicas, run, routing, rng, failures, watch, warmup=warmup)
    stable_per_s = [stable_rate_per_s(member, workload.lengths, workload.prefix) for member in replicas]
    utilization = fleet_utilization(workload.rate_per_s, stable_per_s, routing)
    outside_s = np.array([member.law.request_s for member in replicas])
    result = open_loop(run, outside_s[run["replica"]], utilization, warmup=warmup)
    return replace(result, warnings=herding(routing, len(replicas), workload.lengths.fixed), watched=seen)


def simulate_trace(
    replica: Replica,
    arrival_s: Seconds,
    isl: Tokens,
    osl: Tokens,
    *,
    replicas: int = 1,
    routing: Routing = "random",
    seed: int = 0,
    watch: Watch = UNWATCHED,
) -> Simulated:
    """A fleet serves requests that arrive at `arrival_s` (ascending seconds) with these lengths; all are measured.

    Every replica is simulated. `seed` matters to a routing that draws and to speculation.
    Raises ScenarioError if the arrays do not match, times fall, or a request is longer than the KV cache.
    """
    check_question(replicas, routing)
    arrivals = np.ascontiguousarray(arrival_s, np.float64)
    if arrivals.shape != np.shape(isl) or not np.all(np.isfinite(arrivals)) or np.any(np.diff(arrivals) < 0):
        raise ScenarioError("arrival_s must hold one finite time per request, in ascending order")
    rng = np.random.default_rng(seed)
    run = checked_requests(replica, isl, osl, arrivals)
    draw_steps(replica, run, rng)
    seen = serve([replica] * replicas, run, routing, rng, watch=watch)
    span_s = arrivals[-1] - arrivals[0]
    utilization = 0.0
    if len(run) > 1:
        stable_per_s = replicas * backlog_rate_per_s(replica, run["isl"], run["osl"])
        utilization = (len(run) - 1) / span_s / stable_per_s if span_s else np.inf
    return replace(open_loop(run, replica.law.request_s, utilization, drain=False), watched=seen)


def simulated_replicas(replicas: int, routing: Routing) -> int:
    """Size of the fleet whose requests see what those of `replicas` replicas are taken to see."""
    return min(replicas, MOST_REPLICAS) if routing in COUNTING else replicas


def check_question(replicas: int, routing: str, requests: int = 10, warmup: float = 0.0) -> None:
    """Raise ScenarioError for numbers out of range."""
    if replicas < 1:
        raise ScenarioError(f"replicas must be 1 or more, got {replicas}")
    if routing not in ROUTINGS:
        raise ScenarioError(f"routing {routing!r} is not one of {', '.join(ROUTINGS)}")
    if requests < 10:
        raise ScenarioError(f"requests to simulate must be 10 or more, got {requests}")
    if not 0 <= warmup < 1:
        raise ScenarioError(f"warmup must be a share from 0 to below 1, got {warmup:g}")


def whole_fleet(result: Simulated, times: float, warnings: tuple[str, ...]) -> Simulated:
    """The result of a fleet `times` as large as the part that was simulated."""
    return replace(
        result,
        requests_per_s=result.requests_per_s * times,
        mean_in_flight=result.mean_in_flight * times,
        warnings=warnings,
    )


def herding(routing: Routing, replicas: int, fixed_lengths: bool) -> tuple[str, ...]:
    """A warning for the routing that can do worse the more it knows."""
    if routing != "least_outstanding" or replicas == 1 or not fixed_lengths:
        return ()
    return (
        "least_outstanding with equal lengths can herd: replicas whose requests finish together attract the next "
        "burst; round_robin, or lengths that vary, show what the fleet can do",
    )
