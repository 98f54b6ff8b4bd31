"""Discrete events of replicas and fleets under an iteration-time law, compiled by numba.

`runs` holds the public functions; `iterations` is the scheduler of one replica, to be read first; `loops` drives it
by a stream, a closed loop or a router; `records` and `heap` are its state; `replay` repeats measured closed loops.
"""

from sizing.simulator.runs import (
    backlog_rate_per_s,
    closed_loop,
    simulate,
    simulate_closed,
    simulate_trace,
    stable_rate_per_s,
)
from sizing.simulator.simulated import Simulated

__all__ = [
    "Simulated",
    "backlog_rate_per_s",
    "closed_loop",
    "simulate",
    "simulate_closed",
    "simulate_trace",
    "stable_rate_per_s",
]
