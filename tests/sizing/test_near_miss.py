"""A limit that the formula puts just below an idle replica's latency: every command looks again by simulation."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sizing import edge, planner
from sizing.analyses.daily import gpus_by_hour
from sizing.analyses.existing import best_first, largest_rate
from sizing.analyses.sensitivity import sensitivities
from sizing.analyses.sharing import Share, Terms, alone
from sizing.edge import (
    BY_FORMULA,
    BY_SIMULATION,
    NEAR,
    SlaMissed,
    capacity_band,
    first_capacity_per_s,
    load_response,
)
from sizing.engine import Replica
from sizing.plans import Fleet, NoFeasiblePlan, Rejection
from sizing.question import Question, Setting
from sizing.queueing import stable_rate_per_s
from sizing.simulator import Simulated
from sizing.workload import Lengths, Limit, Prefix, Sla, Workload
from tests.sizing.engines import candidate, question


def just_over() -> Question:
    """Equal requests whose p99 TTFT the formula puts over the limit on an idle replica and the simulation within it."""
    equal = Workload(Lengths(2000, 256), 0.5)
    loose = question(workload=equal, sla=Sla(Limit("ttft", 99, 1.0)))
    idle_s = load_response(candidate().replica, loose.setting(1)).idle.ttft.p99_s
    return replace(loose, sla=Sla(Limit("ttft", 99, idle_s / 1.05)))


@pytest.fixture(scope="module")
def asked() -> Question:
    return just_over()


@pytest.fixture(scope="module")
def fleet(asked: Question) -> Fleet:
    return planner.plan(asked, [candidate()]).answer


def test_the_formula_alone_rejects_it(asked: Question) -> None:
    with pytest.raises(SlaMissed) as missed:
        BY_FORMULA.capacity_per_s(candidate().replica, asked.setting(1))
    assert missed.value.near


def test_shorter_prompts_that_are_all_prefix_are_no_miss() -> None:
    """A quarter shorter, a prompt of which nine tenths are shared is shorter than its prefix."""
    shared = Workload(Lengths(1000, 200), 20.0, prefix=Prefix(900, 0.9))
    asked = question(workload=shared, sla=Sla(Limit("ttft", 95, 1.0)))
    rows = {row.name: row.effects for row in sensitivities(asked, planner.plan(asked, [candidate()]).answer)}
    counts = [effect.gpus for effect in rows["ISL"]]
    assert None not in counts
    assert counts == sorted(counts, key=lambda gpus: gpus or 0)


def test_sensitivities_keep_the_answer_and_its_direction(asked: Question, fleet: Fleet) -> None:
    rows = {row.name: row.effects for row in sensitivities(asked, fleet)}
    rates = [effect.gpus for effect in rows["rate"]]
    assert None not in rates
    assert rates == sorted(rates, key=lambda gpus: gpus or 0)
    fewer, more = rows["rate"][1].gpus, rows["rate"][2].gpus
    assert fewer is not None
    assert more is not None
    assert fewer <= fleet.gpus <= more
    looser = rows["p99 TTFT limit"][-1].gpus
    assert looser is not None
    assert looser < fleet.gpus
    [limit] = asked.sla.limits
    planned = planner.plan(replace(asked, sla=Sla(replace(limit, limit_s=1.25 * limit.limit_s))), [candidate()]).answer
    assert abs(looser - planned.gpus) <= planned.candidate.gpus


def test_a_day_is_planned_hour_by_hour(asked: Question, fleet: Fleet) -> None:
    day = gpus_by_hour(asked, fleet, [0.25] * 12 + [0.5] * 12)
    assert day.hours[-1].gpus == fleet.gpus
    assert asked.spare < day.hours[0].gpus < fleet.gpus


def test_the_planned_fleet_carries_its_load(asked: Question, fleet: Fleet) -> None:
    assert isinstance(largest_rate(asked, candidate(), fleet.gpus, BY_FORMULA), Rejection)
    found, rejected = best_first(asked, [candidate()], fleet.gpus)
    assert not rejected
    assert found[0].rate_per_s >= 0.5 * (1 - 1e-9)


def test_a_shared_fleet_looks_again(asked: Question) -> None:
    need = alone(Share("one", asked.workload, asked.sla), candidate(), Terms(headroom=asked.headroom))
    capacity_per_s = first_capacity_per_s(candidate().replica, asked.setting(1))
    assert need == pytest.approx(0.5 / (capacity_per_s * (1 - asked.headroom)))


def test_a_far_miss_is_not_simulated(asked: Question) -> None:
    limit = asked.sla.limits[0]
    far = Sla(replace(limit, limit_s=limit.limit_s / NEAR / 1.1))
    with pytest.raises(SlaMissed) as missed:
        first_capacity_per_s(candidate().replica, replace(asked.setting(1), sla=far))
    assert not missed.value.near


@pytest.mark.parametrize(("share", "by"), [(0.93, "simulation"), (0.5, "formula")])
def test_a_reason_says_what_found_it(asked: Question, share: float, by: str) -> None:
    """A limit up to a tenth below what the formula says of an idle replica is looked at by simulation."""
    idle_s = load_response(candidate().replica, asked.setting(1)).idle.itl.p95_s
    with pytest.raises(NoFeasiblePlan) as raised:
        planner.plan(replace(asked, sla=Sla(Limit("itl", 95, share * idle_s))), [candidate()])
    assert f" by {by}, the limit is" in raised.value.rejected[0].why


def test_the_band_of_a_fitted_law_stays_finite(asked: Question) -> None:
    engine = candidate().replica
    pair = (replace(engine, law=engine.law.scaled(0.98)), replace(engine, law=engine.law.scaled(1.02)))
    low, high = capacity_band(replace(candidate(), variants=(pair,)), asked.setting(1))
    assert 0 <= low < 1 < high < math.inf


def test_a_law_that_may_fail_alone_promises_no_more_than_its_engine_carries(asked: Question) -> None:
    """A limit just above the latency without load: a little slower, no fleet keeps it; a little faster, one is stable
    at most. The failure must not be mirrored to the fast side."""
    engine = candidate().replica
    setting = asked.setting(1)
    idle_s = load_response(engine, setting).idle.value_s(asked.sla.limits[0])
    near = replace(setting, sla=Sla(replace(asked.sla.limits[0], limit_s=1.01 * idle_s)))
    pair = (replace(engine, law=engine.law.scaled(0.98)), replace(engine, law=engine.law.scaled(1.02)))
    low, high = capacity_band(replace(candidate(), variants=(pair,)), near)
    capacity_per_s = load_response(engine, near).rate_per_s(0.0)
    assert low == 0 and capacity_per_s
    stable_per_s = stable_rate_per_s(pair[0], near.workload.lengths)
    assert high > 1 and high * capacity_per_s <= stable_per_s * (1 + 1e-9)


def test_one_run_tells_that_an_idle_replica_misses_by_simulation_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formula puts p99 TTFT of varied prompts 5 % over, and so it is: the search for a load is left out."""
    varied = Workload(Lengths(2000, 256, 0.5, 0.5), 1.0)
    loose = question(workload=varied, sla=Sla(Limit("ttft", 99, 5.0)))
    idle_s = load_response(candidate().replica, loose.setting(1)).idle.ttft.p99_s
    tight = replace(loose, sla=Sla(Limit("ttft", 99, idle_s / 1.05)))
    runs: list[float] = []
    run_at = edge.run_at

    def counted(replica: Replica, setting: Setting, rate_per_s: float, requests: int) -> Simulated:
        runs.append(rate_per_s)
        return run_at(replica, setting, rate_per_s, requests)

    monkeypatch.setattr(edge, "run_at", counted)
    with pytest.raises(SlaMissed) as missed:
        BY_SIMULATION.capacity_per_s(candidate().replica, tight.setting(1))
    assert len(runs) == 1
    assert missed.value.near and missed.value.alone > idle_s / 1.05
