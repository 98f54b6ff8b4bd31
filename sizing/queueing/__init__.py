"""Latency percentiles by formula: the two-time-scale queueing model of one replica, and of a fleet.

`percentiles.predict` is the main path. The parts, in the order in which it uses them: `demand` (what a
request asks for, and sums of prompts under a shared prefix), `stability` (the highest rate), `stream` (arrivals at
one replica), `iteration_chain` (prompts waiting at iteration boundaries), `slow_chain` (requests
in the replica, and those that wait for a slot), `latency` (TTFT and ITL of a request that meets both), `points` (the
integration points), `static_queue`.
"""

from sizing.queueing.demand import slots
from sizing.queueing.percentiles import disagreement, predict
from sizing.queueing.stability import Stability, stability, stable_rate_per_s

__all__ = ["Stability", "disagreement", "predict", "slots", "stability", "stable_rate_per_s"]
