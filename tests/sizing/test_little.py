"""Little's law in every kind of run: what is counted in the replicas against the rate times the time requests spend.

The two sides come from different places: the left one from samples that the scheduler takes of its own state, the right
one from the times it writes to each request.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from sizing.engine import POLICIES, Batching, Policy, Replica, Roughness, Speculation, StepLaw
from sizing.simulator import Simulated, Watch, simulate, simulated_stable_rate_per_s
from sizing.simulator.state import CANCELLED, SERVED, TIMED_OUT
from sizing.workload import ROUTINGS, Arrivals, Lengths, Prefix, Routing, Workload

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
LENGTHS = Lengths(600, 150, 0.5, 0.8)
REPLICA = Replica(LAW, Batching(max_batch_size=32, kv_tokens=60_000))
IN_FLIGHT: tuple[Policy, ...] = ("chunked", "prefill_first", "whole_prompt")

ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "outputs reserved to the limit": {"max_tokens": 600},
    "blocks of 64 tokens": {"kv_block_tokens": 64},
    "paused when the cache is full": {"kv_policy": "max_utilization", "kv_tokens": 12_000},
    "a short line": {"max_waiting": 4},
}
LOADS: dict[str, dict[str, Any]] = {
    "bursts": {"arrivals": Arrivals("gamma", 2.0)},
    "groups": {"arrivals": Arrivals("batch", size=6)},
    "evenly spaced": {"arrivals": Arrivals("constant", 0.0)},
    "half the prompts cached": {"prefix": Prefix(300, 0.5)},
    "the line is left after 1 s": {"queue_timeout_s": 1.0},
    "clients give up after 4 s": {"cancel_s": 4.0},
}


def held(run: Simulated) -> float:
    """Requests in all replicas on average, by the samples."""
    return sum(float(np.mean(one.running + one.waiting + one.prefilling)) for one in run.watched.series)


def stays_s(run: Simulated, load: Workload) -> np.ndarray:
    """How long each request was in the engine: those turned away not at all."""
    stay_s = np.where(run.outcome == SERVED, run.e2e_s - LAW.request_s, 0.0)
    stay_s[run.outcome == TIMED_OUT] = load.queue_timeout_s
    stay_s[run.outcome == CANCELLED] = load.cancel_s
    return stay_s


def check(
    replica: Replica, load: Workload, replicas: int = 1, routing: Routing = "random", requests: int = 8000
) -> None:
    watch = Watch(sample_every_s=requests / load.rate_per_s / 3000)
    run = simulate(
        replica, load, replicas=replicas, routing=routing, requests=requests, seed=5, warmup=0.0, watch=watch
    )
    seen = len(run.watched.series)
    rate_per_s = load.rate_per_s * seen / replicas
    assert not run.saturated
    assert held(run) == pytest.approx(rate_per_s * stays_s(run, load).mean(), rel=0.05)
    if not run.lost:
        span_s = run.arrival_s[-1] - run.arrival_s[0]
        through_per_s = len(run.arrival_s) / span_s * replicas / seen
        assert run.mean_in_flight == pytest.approx(through_per_s * run.e2e_s.mean(), rel=0.01)


def at(share: float, replica: Replica = REPLICA, replicas: int = 1, **values: Any) -> Workload:
    """A load of this share of the stable rate."""
    stable = simulated_stable_rate_per_s(replica, LENGTHS, values.get("prefix", Prefix()))
    return Workload(LENGTHS, share * stable * replicas, **values)


@pytest.mark.parametrize(
    ("engine", "policy"),
    [(engine, policy) for engine in ENGINES for policy in POLICIES if policy != "static" or "paused" not in engine],
)
def test_every_batching_rule(engine: str, policy: Policy) -> None:
    batching = dataclasses.replace(REPLICA.batching, policy=policy, **ENGINES[engine])
    replica = Replica(LAW, batching)
    check(replica, at(0.75, replica))


@pytest.mark.parametrize("policy", IN_FLIGHT)
@pytest.mark.parametrize("load", LOADS)
def test_every_kind_of_load(load: str, policy: Policy) -> None:
    replica = Replica(LAW, dataclasses.replace(REPLICA.batching, policy=policy))
    lost = not math.isinf(LOADS[load].get("queue_timeout_s", math.inf) + LOADS[load].get("cancel_s", math.inf))
    check(replica, at(1.1 if lost else 0.75, replica, **LOADS[load]))


@pytest.mark.parametrize("routing", ROUTINGS)
def test_every_routing(routing: Routing) -> None:
    check(REPLICA, at(0.75, replicas=3), replicas=3, routing=routing, requests=16_000)


@pytest.mark.parametrize(
    "replica",
    [
        dataclasses.replace(REPLICA, speculation=Speculation(4, 0.7)),
        dataclasses.replace(REPLICA, rough=Roughness(padding=8, knee=2.5, jitter=0.05)),
    ],
    ids=["speculation", "rough"],
)
def test_every_kind_of_engine(replica: Replica) -> None:
    check(replica, at(0.75, replica))
