"""Discrete-event simulation of replicas and fleets under an iteration-time law, compiled by numba.

`runs` has the public functions: one workload on a fleet, several at once, two disaggregated pools.
`scheduler` runs one replica: read it first. `closed` drives it by a fixed number of users, `fleet` by a stream of
requests, or several of them behind a router; `sampling` draws the requests; `state` and `waiting` hold its state;
`sessions` has requests that follow from answers, and `prefix_cache` the tokens they find; `result` summarizes a run:
latencies, confidence intervals, and its other records; `replay` repeats measured closed loops.
"""

from sizing.simulator.closed import (
    backlog_rate_per_s,
    closed_loop,
    measure_closed,
    simulate_closed,
    simulated_stable_rate_per_s,
)
from sizing.simulator.fleet import Failure
from sizing.simulator.result import Simulated, TimeSeries, Watch, Watched
from sizing.simulator.runs import (
    Stream,
    simulate,
    simulate_disaggregated,
    simulate_fleet,
    simulate_streams,
    simulate_trace,
    simulated_replicas,
)

__all__ = [
    "Failure",
    "Simulated",
    "Stream",
    "TimeSeries",
    "Watch",
    "Watched",
    "backlog_rate_per_s",
    "closed_loop",
    "measure_closed",
    "simulate",
    "simulate_closed",
    "simulate_disaggregated",
    "simulate_fleet",
    "simulate_streams",
    "simulate_trace",
    "simulated_replicas",
    "simulated_stable_rate_per_s",
]
