"""What a replica can carry: prefix hits count, closed loops tell the same with and without their utilization."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sizing import edge
from sizing.edge import BY_FORMULA
from sizing.engine import Batching, Replica
from sizing.question import Setting
from sizing.queueing import stable_rate_per_s
from sizing.queueing.demand import demand_of
from sizing.simulator import Simulated, measure_closed, simulate_closed
from sizing.workload import Lengths, Limit, Prefix, Sla, Workload
from validation.evidence.server import LAW

REPLICA = Replica(LAW)
LONG_PROMPTS = Lengths(4000, 20)
LOOSE = Sla(Limit("ttft", 95, 100.0))


def capacity_per_s(prefix: Prefix) -> float:
    """By formula, under a limit that only a growing queue passes."""
    return BY_FORMULA.capacity_per_s(REPLICA, Setting(Workload(LONG_PROMPTS, 1.0, prefix=prefix), LOOSE, "random"))


def test_prefix_hits_raise_the_capacity_beyond_the_stable_rate_without_them() -> None:
    """Nine tenths of nearly all prompt tokens are found: the replica carries a multiple."""
    known = Prefix(3900, 0.9)
    assert capacity_per_s(Prefix(3900, 0.0)) <= stable_rate_per_s(REPLICA, LONG_PROMPTS)
    assert capacity_per_s(known) > 2 * stable_rate_per_s(REPLICA, LONG_PROMPTS)
    assert capacity_per_s(known) <= stable_rate_per_s(REPLICA, LONG_PROMPTS, known)


def test_moments_are_shared_by_engines_that_reserve_alike() -> None:
    lengths = Lengths(700, 90, 0.4, 0.7)
    faster = Replica(LAW.scaled(0.5), Batching(max_batch_size=17, kv_tokens=50_000))
    assert demand_of(REPLICA, lengths) is demand_of(faster, lengths)
    assert demand_of(REPLICA, lengths) != demand_of(Replica(LAW, Batching(max_tokens=400)), lengths)


def test_a_closed_loop_is_the_same_without_its_utilization() -> None:
    isl, osl = Lengths(300, 60, 0.3, 0.5).sample(200, np.random.default_rng(1))
    whole, quick = simulate_closed(REPLICA, 8, isl, osl, 0.5), measure_closed(REPLICA, 8, isl, osl, 0.5)
    assert math.isnan(quick.utilization) and 0 < whole.utilization <= 1.01
    assert quick.requests_per_s == whole.requests_per_s
    assert np.array_equal(quick.e2e_s, whole.e2e_s)
    assert quick.mean_in_flight == pytest.approx(whole.mean_in_flight)


def test_one_search_serves_all_fleets_that_the_simulator_takes_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the least busy replica 32 stand for more: a fleet of half a million is not searched again as 600,000."""
    runs: list[float] = []
    run_at = edge.run_at

    def counted(replica: Replica, setting: Setting, rate_per_s: float, requests: int) -> Simulated:
        runs.append(rate_per_s)
        return run_at(replica, setting, rate_per_s, requests // 20)

    monkeypatch.setattr(edge, "run_at", counted)
    load = Workload(Lengths(1000, 200, 0.3, 0.5), 1.0)
    sla = Sla(Limit("ttft", 95, 0.5))
    fleet = Replica(LAW.scaled(1.0001))  # asked about by nobody else: nothing is remembered
    found = [edge.simulated_capacity_per_s(fleet, Setting(load, sla, "least_outstanding", 2**n)) for n in (19, 18)]
    once = len(runs)
    assert found[0] == found[1]
    assert edge.simulated_capacity_per_s(fleet, Setting(load, sla, "least_outstanding", 32)) == found[0]
    assert len(runs) == once
    assert edge.simulated_capacity_per_s(fleet, Setting(load, sla, "least_outstanding", 2)) != found[0]
