"""A burst of requests, simulated under static and in-flight batching: how long it takes, and each request in it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from sizing.engine import Batching, Replica, StepLaw
from sizing.simulator import simulate_trace
from sizing.workload import Lengths, Seconds, Tokens

PROMPTS = 98
ISL_CV, OSL_CV = 0.45, 0.4
"""How the lengths vary. The published runs tell means only. OSL: of 17 texts of the same data set that NVIDIA's backend
carries for another test, by the client's rule (words x 1.3). ISL: assumed; of little weight where prompts are packed.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Burst:
    """Requests sent at `sent_s` (ascending seconds, from 0) with these lengths; arrays of shape (n,)."""

    sent_s: Seconds
    isl: Tokens
    osl: Tokens


@dataclass(frozen=True, slots=True, eq=False)
class Answered:
    """When each request of a burst was answered, in seconds after the first was sent, and its latency; shape (n,).

    `engine_s`: processor seconds that the engine took for it, where it was measured.
    """

    end_s: Seconds
    latency_s: Seconds
    engine_s: float = math.nan

    @property
    def total_s(self) -> float:
        """From the first sending to the last answer."""
        return float(self.end_s.max())

    @property
    def requests_per_s(self) -> float:
        return len(self.end_s) / self.total_s

    @property
    def mean_s(self) -> float:
        return float(self.latency_s.mean())


def drawn(lengths: Lengths, seed: int, longest: int, requests: int = PROMPTS) -> Burst:
    """A burst sent all at once; no request has more than `longest` tokens of either kind."""
    isl, osl = lengths.sample(requests, np.random.default_rng(seed))
    return Burst(np.zeros(requests), np.minimum(isl, longest), np.minimum(osl, longest))


def engines(law: StepLaw, batching: Batching) -> tuple[Replica, Replica]:
    """One law under V1, its prompts packed, and under in-flight batching, its prompts whole."""
    rules = (replace(batching, policy="static", padded=False), replace(batching, policy="whole_prompt"))
    static, in_flight = (Replica(law, rule) for rule in rules)
    return static, in_flight


def simulated(replica: Replica, burst: Burst, replicas: int = 1) -> Answered:
    """The burst, dealt out to `replicas` in turn.

    A static batch (of one replica) gives all its answers when it ends, as V1 does without streaming.
    """
    run = simulate_trace(replica, burst.sent_s, burst.isl, burst.osl, replicas=replicas, routing="round_robin")
    end_s = run.arrival_s + run.e2e_s
    if replica.batching.policy == "static":
        _, batch = np.unique(np.round(run.arrival_s + run.queue_s, 9), return_inverse=True)
        ends_s = np.zeros(batch.max() + 1)
        np.maximum.at(ends_s, batch, end_s)
        end_s = ends_s[batch]
    return Answered(end_s, end_s - run.arrival_s)
