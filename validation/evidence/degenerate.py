"""Engines degenerate enough that queueing theory knows them, and the requests they serve.

A service is thousands of decode steps, so that whole steps do not blur an exponential law. Coefficients of the law that
are not named are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from sizing.engine import FREE, Batching, Policy, Replica, StepLaw
from sizing.numbers import Floats
from sizing.simulator import simulate
from sizing.simulator.fleet import run_stream
from sizing.simulator.recorded import replay
from sizing.simulator.state import engine_of, idle_states, requests_of, work_space
from sizing.trace import Trace
from sizing.workload import Arrivals, Lengths, Limit, Routing, Sla, Workload

Tokens = NDArray[np.int64]
OUTPUT = 10_000
"""Mean output tokens where a service is a geometric number of steps: cv² is 1 less one in 10,000 of it."""
STEP_S = 1 / OUTPUT
ONE_BY_ONE = Batching("prefill_first", max_batch_size=1, token_budget=10**9)
WARM_UP = 0.1


def serve(
    law: StepLaw, batching: Batching, arrival_s: Floats, isl: Tokens, osl: Tokens, **fields: Floats | Tokens | float
) -> Any:
    """The records of a stream on one replica, without the warm-up; `fields`: more that is known of the requests."""
    replica, run = Replica(law, batching), requests_of(isl, osl, arrival_s)
    for name, values in fields.items():
        run[name] = values
    run_stream(engine_of(replica), idle_states(1), work_space(replica, 1), run)
    return run[int(WARM_UP * len(run)) :]


def poisson(rate_per_s: float, n: int, rng: Generator) -> Floats:
    return np.cumsum(rng.exponential(1 / rate_per_s, n))


def ones(n: int) -> Tokens:
    return np.ones(n, np.int64)


def exponential_servers(slots: int = 1, max_waiting: int = 0) -> Replica:
    """`slots` servers for services of as many steps as a request has output tokens, whatever an iteration holds."""
    policy: Policy = "prefill_first" if slots == 1 else "whole_prompt"
    batching = Batching(policy, slots, token_budget=10**9, max_waiting=max_waiting)
    return Replica(FREE.with_values(overhead_s=STEP_S), batching)


def exponential_service(
    arrival_s: Floats, rng: Generator, slots: int = 1, max_waiting: int = 0, **fields: Floats | Tokens | float
) -> Any:
    """Services of mean 1 s on `slots` servers; `fields`: as in `serve`."""
    replica, n = exponential_servers(slots, max_waiting), len(arrival_s)
    return serve(replica.law, replica.batching, arrival_s, ones(n), rng.geometric(STEP_S, n), **fields)


def e2e_s(run: Any) -> Floats:
    return np.asarray(run["done_s"] - run["arrival_s"])


def queue_s(run: Any) -> Floats:
    return np.asarray(run["scheduled_s"] - run["arrival_s"])


def replayed_e2e_s(replica: Replica, trace: Trace) -> float:
    """Mean time in system of the requests of a trace that one replica serves."""
    never = Sla(Limit("e2e", 99, 1e9))
    return replay(replica, trace, Workload(Lengths(1, 1), 1.0), never).quantiles("e2e").mean_s


def one_prompt_each(arrival_s: Floats) -> Any:
    """Prompts one at a time, a second each, one output token."""
    n = len(arrival_s)
    return serve(FREE.with_values(overhead_s=1.0), ONE_BY_ONE, arrival_s, ones(n), ones(n))


def outputs(kind: str, n: int, rng: Generator) -> Tokens:
    """Output tokens of mean OUTPUT, from no spread to a cv of 2."""
    if kind == "equal":
        return np.full(n, OUTPUT)
    if kind == "geometric":
        return rng.geometric(1 / OUTPUT, n)
    short, long = rng.geometric(2.5 / OUTPUT, n), rng.geometric(0.15625 / OUTPUT, n)
    return np.where(rng.random(n) < 0.9, short, long)


def fleet_wait_s(
    arrivals: Arrivals, rate_per_s: float, replicas: int, routing: Routing, n: int, rng: Generator
) -> float:
    """Mean wait in a fleet of engines that take one prompt at a time and one second for it."""
    replica = Replica(FREE.with_values(overhead_s=1.0), ONE_BY_ONE)
    load = Workload(Lengths(1, 1), rate_per_s, arrivals)
    seed = int(rng.integers(2**31))
    run = simulate(replica, load, replicas=replicas, routing=routing, requests=n, seed=seed, warmup=WARM_UP)
    return float(run.queue_s.mean())
