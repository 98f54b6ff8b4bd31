"""Latency percentiles by formula: the two-time-scale queueing model of one replica, and of a fleet.

`percentiles` has the main path, `predict`, and the highest rate, `stable_rate_per_s`. Their parts, in the order of use:
`demand` (what a request asks for, and sums of prompts under a shared prefix), `stream` (arrivals at
one replica), `iteration_chain` (prompts waiting at iteration boundaries), `slow_chain` (requests
in the replica, and those that wait for a slot), `latency` (TTFT and ITL of a request that meets both), `points` (the
integration points), `static_queue`.
"""

from sizing.queueing.demand import slots
from sizing.queueing.percentiles import disagreement, predict, stable_rate_per_s

__all__ = ["disagreement", "predict", "slots", "stable_rate_per_s"]
