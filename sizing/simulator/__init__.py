"""Discrete events of replicas and fleets under an iteration-time law, compiled by numba.

`runs` holds the public functions for one workload on a fleet, `streams` several at once, `disaggregated` two pools,
`closed` a fixed number of users. `iterations` is the scheduler of one replica, to be read first; `loops` drives it by a
stream or a closed loop, `fleet` by a router; `sampling` draws the requests; `records` and `heap` are its state;
`tally` sums a run up, `simulated` is what it returns, `steady` how sure it is, `watch` what else it can record;
`replay` repeats measured closed loops.
"""

from sizing.simulator.closed import (
    backlog_rate_per_s,
    closed_loop,
    measure_closed,
    simulate_closed,
    stable_rate_per_s,
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
    "stable_rate_per_s",
]
