"""The smallest relaxation is one: the planner finds a fleet with it, and none with 2 % less."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as some

from sizing import planner
from sizing.analyses.existing import Existing, largest_rate
from sizing.analyses.relax import Relaxation, rounded_up, ways
from sizing.analyses.sharing import Share, workloads_ways_out
from sizing.edge import BY_FORMULA
from sizing.plans import Candidate, NoFeasiblePlan, Rejection
from sizing.question import Question
from sizing.simulator import simulate
from sizing.workload import METRICS, Arrivals, Lengths, Limit, Routing, Sla, Workload
from tests.sizing.engines import LAW, candidate, question

ENGINES = [candidate(), candidate(tp=2, law=LAW.scaled(0.6))]
IMPOSSIBLE_S = 1e-4


def feasible(asked: Question, *candidates: Candidate) -> bool:
    try:
        planner.plan(asked, candidates or ENGINES)
    except NoFeasiblePlan:
        return False
    return True


def with_limit(asked: Question, limit: Limit) -> Question:
    return replace(asked, sla=asked.sla.with_limits(limit))


def loosened(relaxation: Relaxation, by: float = 1.0) -> Limit:
    assert relaxation.smallest is not None
    return replace(relaxation.smallest, limit_s=relaxation.smallest.limit_s * by)


limits = some.builds(Limit, some.sampled_from(METRICS), some.sampled_from((50, 95, 99)), some.just(IMPOSSIBLE_S))
lengths = some.builds(
    Lengths, some.integers(100, 4000), some.integers(20, 500), some.sampled_from((0.0, 0.5)), some.just(0.3)
)


@settings(max_examples=4, deadline=None, phases=[Phase.generate])  # an example sizes three fleets
@given(limits, lengths, some.floats(0.5, 20.0))
def test_the_smallest_value_works_and_two_percent_less_does_not(limit: Limit, lengths: Lengths, rate: float) -> None:
    asked = question(sla=Sla(limit), workload=Workload(lengths, rate))
    (found,), _ = ways(asked, ENGINES[:1])
    assert not feasible(asked, ENGINES[0])
    assert feasible(with_limit(asked, loosened(found)), ENGINES[0])
    assert not feasible(with_limit(asked, loosened(found, by=0.98)), ENGINES[0])


@pytest.mark.parametrize("routing", ["round_robin", "power_of_two", "least_outstanding"])
def test_routers_that_keep_requests_apart_need_no_limit_that_one_replica_would(routing: Routing) -> None:
    """An answer of 5 tokens that meets a prompt stands still for most of its time, and without one does as at p50. So a
    fleet keeps what one replica cannot, however low the rate, and what is needed is said of the fleet that is asked."""
    alone = simulate(ENGINES[0].replica, Workload(Lengths(2000, 5), 1e-3)).prediction().itl.p50_s
    limit, workload = Limit("itl", 99, 0.9 * alone), Workload(Lengths(2000, 5), 0.5)
    asked = Question("m", workload, Sla(limit), routing, spare=0)
    (found,), _ = ways(asked, ENGINES[:1])
    ((_, ((shared,), _)),) = workloads_ways_out(
        [Rejection.of(ENGINES[0], "sla", "")], "m", [Share("all", workload, asked.sla)], ENGINES[:1], routing
    )
    assert found.smallest == shared.smallest and found.smallest.limit_s < 1.05 * alone
    assert planner.plan(with_limit(asked, loosened(found)), ENGINES[:1]).answer.working > 1
    (one,), _ = ways(asked, ENGINES[:1], gpus=1)
    assert isinstance(largest_rate(with_limit(asked, loosened(found)), ENGINES[0], 1, BY_FORMULA), Rejection)
    assert isinstance(largest_rate(with_limit(asked, loosened(one)), ENGINES[0], 1), Existing)


def test_a_candidate_whose_cache_never_holds_a_request_is_no_way_to_meet_the_sla() -> None:
    """Of long-tailed lengths some never fit in a small cache: the others are named, or nobody."""
    itl, ttft = Limit("itl", 95, IMPOSSIBLE_S), Limit("ttft", 95, IMPOSSIBLE_S)
    asked = question(sla=Sla(itl), workload=Workload(Lengths(2000, 30, 0.9, 1.9), 1.0))
    small = candidate()
    batching = replace(small.replica.batching, kv_tokens=25_000)
    small = replace(small, replica=replace(small.replica, batching=batching))
    (found,), _ = ways(asked, [small, ENGINES[1]])
    (nobody,), _ = ways(asked, [small])
    assert found.candidate is ENGINES[1]
    assert nobody.candidate is None and nobody.smallest is None
    both = with_limit(asked, ttft)
    _, nearest = ways(both, [small, ENGINES[1]])
    assert nearest is not None and nearest.candidate is ENGINES[1]
    assert ways(both, [small])[1] is None


def test_no_way_out_is_offered_of_too_many_rejections() -> None:
    """The formula knows none, so nothing can be read off it; and the limits that are kept need no other percentile."""
    workload = Workload(Lengths(2000, 256), 20.0, queue_timeout_s=0.002)
    kept = Limit("ttft", 95, 1.0), Limit("itl", 95, 0.03)
    asked = Question("m", workload, Sla(*kept, Limit.rejected(1)))
    assert not feasible(asked, ENGINES[0])
    found, _ = ways(asked, ENGINES[:1])
    assert [way.limit for way in found] == [*kept]
    assert all(way.smallest and way.smallest.limit_s < way.limit.limit_s and not way.percentile for way in found)
    missed = with_limit(asked, Limit("e2e", 50, 0.5))
    (*_, way), _ = ways(missed, ENGINES[:1])
    assert not feasible(missed, ENGINES[0]) and feasible(with_limit(missed, loosened(way)), ENGINES[0])


def test_bursts_that_are_turned_away_leave_no_limits_to_loosen_together() -> None:
    """Their E2E has no end at p99, though it has one at p50."""
    workload = Workload(Lengths(2000, 256), 20.0, queue_limit=1, arrivals=Arrivals("gamma", 5.0))
    asked = Question("m", workload, Sla(Limit("ttft", 50, 1.0), Limit("e2e", 99, 9.0)))
    assert ways(asked, ENGINES[:1])[1] is None


def test_the_candidate_named_is_one_that_does_it() -> None:
    asked = question(rate=2.0, sla=Sla(Limit("itl", 95, IMPOSSIBLE_S)))
    (found,), _ = ways(asked, ENGINES)
    assert found.candidate is not None
    assert feasible(with_limit(asked, loosened(found)), found.candidate)


def test_with_the_roomy_value_a_replica_carries_half_of_what_it_would_without_the_limit() -> None:
    others = Sla(Limit("ttft", 95, 0.5))
    asked = question(rate=20.0, sla=others.with_limits(Limit("itl", 95, IMPOSSIBLE_S)), headroom=0.0)
    (_, found), _ = ways(asked, ENGINES[:1])
    assert found.roomy is not None
    without = planner.plan(replace(asked, sla=others), ENGINES[:1]).answer.capacity_per_s
    with_it = planner.plan(with_limit(asked, found.roomy), ENGINES[:1]).answer.capacity_per_s
    assert with_it == pytest.approx(without / 2, rel=0.1)


def test_no_value_of_one_limit_helps_where_another_fails_too() -> None:
    asked = question(sla=Sla(Limit("ttft", 95, IMPOSSIBLE_S), Limit("itl", 95, IMPOSSIBLE_S)))
    alone, both = ways(asked, ENGINES)
    assert [found.smallest for found in alone] == [None, None]
    assert not feasible(with_limit(asked, Limit("ttft", 95, 3600.0)))
    assert both is not None and len(both.limits) == 2
    for limit in both.limits:
        asked = with_limit(asked, limit)
    assert feasible(asked, both.candidate)


def test_limits_are_loosened_together_only_where_no_single_one_is_enough() -> None:
    asked = question(sla=Sla(Limit("ttft", 95, 60.0), Limit("itl", 95, IMPOSSIBLE_S)))
    alone, both = ways(asked, ENGINES)
    assert [bool(found.smallest) for found in alone] == [False, True]
    assert both is None


def test_a_lower_percentile_is_offered_where_one_is_kept() -> None:
    varied = Workload(Lengths(1000, 200, 1.5, 0.5), 2.0)
    loose = question(workload=varied, sla=Sla(Limit("ttft", 99, 3600.0)))
    needed = {p: smallest(with_limit(loose, Limit("ttft", p, 3600.0))) for p in (99, 90)}
    between = question(workload=varied, sla=Sla(Limit("ttft", 99, (needed[99] * needed[90]) ** 0.5)))
    (found,), _ = ways(between, ENGINES[:1])
    assert found.percentile is not None
    assert found.percentile.limit_s == between.sla.limits[0].limit_s
    assert not feasible(between, *ENGINES[:1])
    assert feasible(with_limit(between, found.percentile), *ENGINES[:1])


def smallest(asked: Question) -> float:
    (found,), _ = ways(asked, ENGINES[:1])
    assert found.smallest is not None
    return found.smallest.limit_s


def test_a_limit_kept_by_simulation_alone_still_has_a_band() -> None:
    asked = question(rate=1.0, workload=Workload(Lengths(100, 20, 0.0, 0.3), 1.0))
    asked = replace(asked, sla=Sla(Limit("ttft", 95, IMPOSSIBLE_S)))
    (found,), _ = ways(asked, ENGINES)
    fleet = planner.plan(with_limit(asked, loosened(found)), ENGINES).answer
    assert fleet.working_low <= fleet.working


def test_nothing_to_choose_from_has_no_relaxation() -> None:
    asked = question(sla=Sla(Limit("itl", 95, IMPOSSIBLE_S)))
    assert ways(asked, []) == ((Relaxation(asked.sla.limits[0]),), None)


@given(some.floats(1e-6, 1e6))
def test_rounding_up_never_falls_below_and_stays_near(value: float) -> None:
    rounded = rounded_up(value)
    assert value <= rounded <= value * 1.01 * (1 + 1e-12)
    assert float(f"{rounded:.2e}") == pytest.approx(rounded, rel=1e-12)
