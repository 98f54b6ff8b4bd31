"""Fleets that exist, fleets by the hour, mixed and shared ones: round trips with the planner, exact small cases."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing import planner
from sizing.analyses.daily import daily_rates, gpus_by_hour, peak_over_mean
from sizing.analyses.existing import Existing, largest_rate
from sizing.analyses.mixed import ReplicaKind, Supply, asked_again, cheapest_counts, cheapest_mix, worth_mixing
from sizing.analyses.sharing import (
    Share,
    SharedFleet,
    Terms,
    parse_workload,
    read_scenario,
    scenario_of,
    share_of,
    shared_fleet,
)
from sizing.cli.plan import as_available, mixed
from sizing.cli.tables import alternatives_table
from sizing.edge import BY_FORMULA, BY_SIMULATION, SlaMissed, least
from sizing.errors import ScenarioError
from sizing.plans import Fleet, NoFeasiblePlan, Plan, Rejection
from sizing.question import Question
from sizing.text import daily_line, day_working, mix_line
from sizing.workload import Arrivals, Lengths, Limit, Routing, Sla, Workload
from tests.sizing.engines import BATCHING, LAW, SLA, candidate, question


def fleet_of(asked: Question, **values: object) -> Fleet:
    sized = planner.size(asked, candidate(**values), BY_FORMULA)  # type: ignore[arg-type]
    assert isinstance(sized, Fleet)
    return sized


def rate_of(asked: Question, gpus: int, tp: int = 1) -> Existing:
    found = largest_rate(asked, candidate(tp), gpus, BY_FORMULA)
    assert isinstance(found, Existing)
    return found


@settings(max_examples=6, deadline=None)
@given(gpus=st.integers(2, 60), routing=st.sampled_from(["random", "round_robin"]))
def test_the_largest_rate_of_a_planned_fleet_needs_that_fleet(gpus: int, routing: Routing) -> None:
    """Round trip: what G GPUs carry is served by G GPUs, and a few percent more need more."""
    asked = question(routing=routing)
    rate = rate_of(asked, gpus).rate_per_s
    assert fleet_of(question(rate * 0.999, routing=routing)).gpus <= gpus
    assert fleet_of(question(rate * 1.02, routing=routing)).gpus > gpus


def test_a_request_that_never_fits_leaves_a_candidate_out_of_every_question() -> None:
    """Of long-tailed lengths a small cache cannot hold all: it is left out with the reason, and the next is asked."""
    lengths, sla = Lengths(2000, 30, 0.9, 1.9), Sla(Limit("ttft", 95, 2.0))
    small = candidate(batching=replace(BATCHING, kv_tokens=25_000))
    for found in (
        largest_rate(question(workload=Workload(lengths, 1.0), sla=sla), small, 8),
        shared_fleet([Share("a", Workload(lengths, 5.0), sla)], small, Terms()),
    ):
        assert isinstance(found, Rejection)
        assert found.kind == "memory"
        assert "never fits in a KV cache of 25000 tokens" in found.why


def test_spares_headroom_and_odd_gpus_are_left_out_of_what_a_fleet_carries() -> None:
    asked = question(headroom=0.25, spare=2)
    found = rate_of(asked, 11, tp=2)
    assert (found.working, found.spare, found.unused) == (3, 2, 1)
    assert found.rate_per_s == pytest.approx(0.75 * found.limit_per_s)
    assert found.low < found.rate_per_s < found.high
    assert found.requests_per_s_per_gpu == pytest.approx(found.rate_per_s / 6)


def test_a_fleet_of_spares_only_carries_nothing() -> None:
    found = largest_rate(question(spare=1), candidate(8), 15, BY_FORMULA)
    assert isinstance(found, Rejection)
    assert "16" in found.why
    with pytest.raises(ScenarioError):
        largest_rate(question(), candidate(), 0, BY_FORMULA)


def test_a_day_costs_no_more_than_its_busiest_hour_all_day() -> None:
    rates = [0.0, 5.0, *[20.0] * 10, *[80.0] * 4, *[30.0] * 8]
    asked = question(max(rates), routing="round_robin")
    day = gpus_by_hour(asked, fleet_of(asked), rates)
    assert [hour.rate_per_s for hour in day.hours] == rates
    assert day.hours[0].gpus == asked.spare
    assert max(hour.gpus for hour in day.hours) == day.constant_gpus
    by_rate = sorted(day.hours, key=lambda hour: hour.rate_per_s)
    assert [hour.gpus for hour in by_rate] == sorted(hour.gpus for hour in by_rate)
    assert 0 < day.saved < 1
    assert day.gpu_hours == sum(hour.gpus for hour in day.hours)


def test_hours_below_the_busiest_are_said_to_be_by_formula() -> None:
    """In what the command prints, and in what pages and reports say; not where every hour is the busiest or empty."""
    asked = question(80.0)
    found = Plan(asked, (fleet_of(asked),), ())
    for rates, by_formula in (([*[40.0] * 23, 80.0], True), ([*[0.0] * 23, 80.0], False), ([80.0] * 24, False)):
        day = gpus_by_hour(asked, found.answer, rates)
        for said in (daily_line(day), day_working(found, day)):
            assert ("below the busiest hour by formula" in said) is by_formula


def test_the_busiest_hour_of_a_day_runs_the_fleet_that_is_planned_for_it() -> None:
    """Even where that has a replica more than its capacity says, because fewer miss the SLA at a load below it."""
    asked = question(80.0)
    fleet = fleet_of(asked)
    larger = replace(fleet, working=fleet.working + 1)
    day = gpus_by_hour(asked, larger, [*[40.0] * 23, 80.0])
    assert day.hours[-1].gpus == day.constant_gpus == larger.gpus > day.hours[0].gpus


def test_bands_in_the_table_of_configurations_are_worded_as_elsewhere() -> None:
    asked = question(80.0)
    fleet = replace(fleet_of(asked), working=15, working_low=12, working_high=22, spare=0)
    table = alternatives_table(Plan(asked, (fleet, replace(fleet, working_high=None)), ()))
    (cells,) = (column.cells for column in table.columns if column.header == "90 % band")
    assert [*cells] == ["12 to 22", "12 or more"]


def test_a_mix_of_thousands_of_gpus_is_the_cheapest_to_one_gpu() -> None:
    """Trying all numbers of the large replica, of which one may fail: the small ones fill what is left."""
    rate_per_s, large, small = 41_786.0, ReplicaKind("a", 8, 10.615), ReplicaKind("a", 1, 1.002)
    counts = range(1, 4000)
    left = (math.ceil(max(rate_per_s - (count - 1) * large.rate_per_s, 0.0) / small.rate_per_s) for count in counts)
    fewest = min(8 * count + beside for count, beside in zip(counts, left, strict=True))
    found = cheapest_counts([large, small], {"a": Supply(1.0)}, rate_per_s, spare=1)
    assert found is not None
    assert found[1] == fewest


@pytest.mark.parametrize("rate", [0.1, 1.1, 2.0, 7.3])
def test_a_day_of_equal_hours_has_no_peak(rate: float) -> None:
    """24 x 0.1 over 24 is not 0.1 to the last digit, and below 1 is no peak factor."""
    assert peak_over_mean([rate] * 24) == 1


@pytest.mark.parametrize(
    "text", ["1,2,3", ",".join(["1"] * 25), ",".join(["0"] * 24), "1," * 23 + "x", "1," * 23 + "-1", "1," * 23 + "1e-7"]
)
def test_a_day_that_is_no_day_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError, match="24"):
        daily_rates(text)


price = st.floats(0.5, 5)


def in_thousandths(least: int, most: int) -> st.SearchStrategy[float]:
    """Rates that are equal or well apart: the solver takes a millionth too little for enough."""
    return st.integers(least, most).map(lambda thousandths: thousandths / 1000)


kinds = st.lists(
    st.builds(
        ReplicaKind, st.sampled_from(["a", "b"]), st.integers(1, 4), in_thousandths(500, 6000), st.integers(1, 4)
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=40, deadline=None)
@given(
    kinds=kinds,
    rate=in_thousandths(500, 12_000),
    spare=st.integers(0, 3),
    prices=st.tuples(price, price),
    owned=st.sampled_from([2, 9]),
)
def test_the_cheapest_mix_is_the_one_found_by_trying_all(
    kinds: list[ReplicaKind], rate: float, spare: int, prices: tuple[float, float], owned: int
) -> None:
    """Against enumeration, where the strongest replicas fail. Of mixes at one cost, as of GPUs that are owned, it takes
    the smallest."""
    supplies = {"a": Supply(prices[0], owned=owned, available=9), "b": Supply(prices[1], available=9)}
    best, gpus_at = math.inf, dict[float, int]()
    for counts in itertools.product(range(10), repeat=len(kinds)):
        used = {name: sum(n * k.gpus for n, k in zip(counts, kinds, strict=True) if k.gpu == name) for name in supplies}
        carried = sum(n * k.rate_per_s for n, k in zip(counts, kinds, strict=True))
        each = sorted(k.rate_per_s for n, k in zip(counts, kinds, strict=True) for _ in range(n))
        lost = sum(each[len(each) - spare :] if spare < len(each) else each)
        some = all(n == 0 or n >= k.least for n, k in zip(counts, kinds, strict=True))
        if some and carried - lost >= rate - 1e-6 and all(used[name] <= 9 for name in supplies):
            cost = sum(s.price_per_hour * max(0, used[name] - s.owned) for name, s in supplies.items())
            gpus_at[cost] = min(gpus_at.get(cost, 99), sum(used.values()))
            best = min(best, cost)
    found = cheapest_counts(kinds, supplies, rate, spare)
    assert (found is None) == math.isinf(best)
    if found is not None:
        assert found[1] == pytest.approx(best, abs=1e-4)
        gpus = sum(n * k.gpus for n, k in zip(found[0], kinds, strict=True))
        assert gpus <= min(gpus for cost, gpus in gpus_at.items() if cost <= found[1] + 1e-9)


def test_of_two_failed_replicas_only_one_is_of_a_kind_that_is_there_once() -> None:
    """Four of 6 requests/s and one of 10 still carry 18 with the 10 and a 6 failed, as cheap as enumeration finds."""
    kinds = [ReplicaKind("a", 1, 6.0), ReplicaKind("b", 2, 10.0)]
    found = cheapest_counts(kinds, {"a": Supply(5.0, available=4), "b": Supply(4.0)}, 15.0, 2)
    assert found is not None and (found[0], round(found[1], 6)) == ((4, 1), 28.0)


def test_equal_costs_are_settled_by_gpus_whichever_kind_is_the_strongest() -> None:
    weak, strong = ReplicaKind("a", 2, 1.0), ReplicaKind("b", 2, 1.2)
    supplies = {"a": Supply(2.5, owned=100), "b": Supply(3.8, owned=100)}
    for kinds in ([weak, strong], [strong, weak]):
        found = cheapest_counts(kinds, supplies, 6.0, 1)
        assert found is not None and (sum(found[0]), found[1]) == (6, 0.0)


def test_the_mix_costs_no_more_than_the_answer_of_the_plan() -> None:
    """Two GPUs carry more for their number than one, and where a few are needed cost more with the spare."""
    ways = [candidate(1), candidate(2, LAW.scaled(0.45)), candidate(4, LAW.scaled(0.4))]
    plan = planner.plan(question(25.0, price_per_gpu_hour=2.0), ways)
    assert plan.answer.candidate.gpus == 1 and {fleet.candidate.gpus for fleet in worth_mixing(plan.fleets)} == {1, 2}
    mix = mixed(plan, {}, {})
    assert mix.cost_per_hour <= 2.0 * plan.answer.gpus
    assert dict(mix.alone) == {"g": mix.cost_per_hour}


def test_a_gpu_of_which_there_are_too_few_is_no_answer() -> None:
    """Unless no type alone is enough: then the plan stays, and a mix may do."""
    ways = [candidate(1), replace(candidate(1, LAW.scaled(1.2)), gpu="h")]
    plan = planner.plan(question(25.0), ways)
    assert plan.answer.candidate.gpu == "g" and plan.answer.gpus > 2
    of_others = as_available(plan, ways, {"g": 2})
    assert of_others.answer.candidate.gpu == "h"
    (refused,) = (each for each in of_others.rejected if each.kind == "too_few")
    assert refused.gpu == "g" and "2 available" in refused.why
    assert as_available(plan, ways, {"g": 1000}) == as_available(plan, ways, {"g": 2, "h": 2}) == plan


@pytest.mark.parametrize("rate", [2.0, 10.0, 40.0])
def test_a_mix_takes_bursts_with_its_spares_failed(rate: float) -> None:
    """Batches of 60 that one replica cannot take: a mix of one type is the fleet of the plan, whatever the rate."""
    asked = question(rate, sla=Sla(Limit("ttft", 95, 0.7)), price_per_gpu_hour=2.0)
    asked = replace(asked, workload=replace(asked.workload, arrivals=Arrivals("batch", size=60)))
    plan = planner.plan(asked, [candidate()])
    assert plan.answer.working > 1
    assert mixed(plan, {}, {}).gpus == plan.answer.gpus
    with pytest.raises(NoFeasiblePlan, match="too few"):
        mixed(plan, {}, {"g": plan.answer.gpus - 1})


def test_a_group_that_bursts_leave_over_its_limits_is_no_smaller_than_its_fleet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missed(*_: object) -> float:
        raise SlaMissed(SLA.limits[0], math.inf)

    asked = question(25.0)
    fleet = fleet_of(asked, gpu="g")
    kind = ReplicaKind("g", 1, fleet.requests_per_s_per_replica)
    monkeypatch.setattr("sizing.analyses.mixed.carried", missed)
    assert fleet.replicas > 1
    assert asked_again(asked, fleet, kind, 1) == [replace(kind, least=fleet.replicas)]
    assert asked_again(asked, fleet, kind, 0) == [kind]


def test_two_scarce_types_together_serve_what_neither_can_alone() -> None:
    asked = question(80.0, spare=0)
    fleets = [fleet_of(asked, gpu="g"), fleet_of(asked, gpu="h", law=LAW.scaled(1.5))]
    half = max(2, fleets[0].gpus // 2)
    mix = cheapest_mix(asked, fleets, {"g": Supply(3.0, available=half), "h": Supply(1.0)})
    assert {group.fleet.candidate.gpu for group in mix.groups} <= {"g", "h"}
    assert sum(group.load_per_s for group in mix.groups) == pytest.approx(80.0)
    for group in mix.groups:
        assert group.load_per_s <= group.replicas * group.rate_per_s * (1 + 1e-9)
    scarce = {"g": Supply(3.0, available=half), "h": Supply(1.0, available=fleets[1].gpus - 1)}
    both = cheapest_mix(asked, fleets, scarce)
    assert {group.fleet.candidate.gpu for group in both.groups} == {"g", "h"}
    assert dict(both.alone) == {"g": None, "h": None}
    assert " × g (" in mix_line(both) and " × h (" in mix_line(both)
    pair = tuple(replace(both.groups[0], fleet=replace(fleets[0], candidate=candidate(tp))) for tp in (1, 2))
    told = mix_line(replace(both, groups=pair))
    assert " × g TP1 (" in told and " × g TP2 (" in told
    with pytest.raises(NoFeasiblePlan, match="too few"):
        cheapest_mix(asked, fleets, {"g": Supply(3.0, available=1), "h": Supply(1.0, available=1)})
    with pytest.raises(ScenarioError, match="price"):
        cheapest_mix(asked, fleets, {"g": Supply(3.0)})


@given(edge=st.integers(1, 300), start=st.integers(1, 300))
def test_the_least_that_holds_is_found_from_anywhere(edge: int, start: int) -> None:
    assert least(lambda n: n >= edge, start, 1000) == edge
    assert least(lambda n: False, start, 1000) is None


def test_two_halves_of_a_workload_need_what_the_whole_needs() -> None:
    whole = question(60.0)
    halves = [Share(name, question(30.0).workload, SLA) for name in ("one", "other")]
    shared = shared_fleet(halves, candidate(), Terms("random", whole.headroom, whole.spare))
    alone = fleet_of(whole)
    assert isinstance(shared, SharedFleet)
    assert abs(shared.gpus - alone.gpus) <= 1
    assert shared.apart >= shared.working
    assert all(served.predicted.meets(SLA) for served in shared.served)


def test_the_tighter_sla_decides_on_a_shared_fleet() -> None:
    tight = Sla(Limit("itl", 95, 0.012))
    loose_only = shared_fleet([Share("a", question(60.0).workload, SLA)], candidate(), Terms())
    mixed = [Share("a", question(30.0).workload, SLA), Share("b", question(30.0).workload, tight)]
    both = shared_fleet(mixed, candidate(), Terms())
    assert isinstance(loose_only, SharedFleet)
    assert isinstance(both, SharedFleet)
    assert both.gpus > loose_only.gpus
    assert both.tightest.share.name == "b"


def test_a_router_that_keeps_requests_apart_keeps_limits_that_one_replica_misses() -> None:
    """One request in a hundred meets the prompt of another even on a replica with hardly any load, and none where
    several replicas take turns: one workload alone shares the fleet that a plan of it has."""
    sla = Sla(Limit("itl", 99, 1.5 * LAW.decode_s(1, 4000)))
    asked = question(40.0, workload=Workload(Lengths(4000, 2), 40.0), sla=sla, routing="round_robin")
    share, terms = Share("a", asked.workload, sla), Terms(asked.routing, asked.headroom, asked.spare)
    planned = planner.size(asked, candidate(), BY_SIMULATION)
    shared = shared_fleet([share], candidate(), terms)
    assert isinstance(planned, Fleet)
    assert isinstance(shared, SharedFleet)
    assert shared.working == pytest.approx(planned.working, abs=1)
    assert isinstance(shared_fleet([share], candidate(), replace(terms, routing="random")), Rejection)


def test_rare_bursts_share_as_many_replicas_as_they_need_alone() -> None:
    """A batch of 60 a minute is hardly a load, and takes ten replicas for its prompts to be served in time."""
    sla = Sla(Limit("ttft", 95, 0.2))
    load = Workload(Lengths(1000, 200, 0.3, 0.5), 1.0, Arrivals("batch", size=60))
    planned = planner.size(question(workload=load, sla=sla), candidate(), BY_SIMULATION)
    shared = shared_fleet([Share("a", load, sla)], candidate(), Terms())
    assert isinstance(planned, Fleet) and isinstance(shared, SharedFleet)
    assert shared.working == pytest.approx(planned.working, abs=1)


def test_a_workload_that_misses_alone_leaves_no_shared_fleet() -> None:
    hopeless = Share("a", question(1.0).workload, Sla(Limit("itl", 95, 0.001)))
    assert isinstance(shared_fleet([hopeless], candidate(), Terms()), Rejection)


def test_a_priority_for_those_in_a_hurry_saves_a_replica() -> None:
    """Few slots, mostly taken by answers that have a minute: who goes first waits for the next slot that is free."""
    few = candidate()
    few = replace(few, replica=replace(few.replica, batching=replace(few.replica.batching, max_batch_size=8)))
    chat = Share("chat", Workload(Lengths(500, 100), 3.0), Sla(Limit("ttft", 95, 1.0)))
    batch = Share("batch", Workload(Lengths(1000, 300), 12.0), Sla(Limit("e2e", 95, 60.0)))
    equal, behind = (
        shared_fleet([chat, replace(batch, priority=priority)], few, Terms(headroom=0.0)) for priority in (0, 1)
    )
    assert isinstance(equal, SharedFleet) and isinstance(behind, SharedFleet)
    assert behind.working < equal.working
    first, last = (served.predicted.ttft.p95_s for served in behind.served)
    assert first < 1 < last


SCENARIO = """
model: m
gpu: [h200_sxm]
workloads:
  - {name: chat, isl: 1000, osl: 200, rate: 5, ttft: "p95:1s", arrivals: "gamma:cv=2", priority: 1}
  - {name: batch, isl: 4000, osl: 500, rate: 1, e2e: "p95:60s"}
"""


def test_a_scenario_file_says_what_the_options_say(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(SCENARIO)
    shares = [share_of(stream) for stream in read_scenario(path).workloads]
    words = "chat:isl=1000,osl=200,rate=5,ttft=p95:1s,arrivals=gamma:cv=2,priority=1"
    asked = scenario_of({"model": "m", "workloads": [parse_workload(words)]}, "--workload")
    assert share_of(asked.workloads[0]) == shares[0]
    assert shares[1].sla.e2e == Limit("e2e", 95, 60.0)


@pytest.mark.parametrize(
    "old,new,words",
    [
        ("rate: 5", "rate: fast", "workloads.0.rate"),
        ("rate: 5", "rate: 5, speed: 5", "speed"),
        ("model: m", "modell: m", "model"),
        ("workloads:", "workloads: []\nother:", "other: unknown key"),
        ("gpu: [", "gpu: [[", "YAML"),
        ("name: chat", 'name: ""', "needs a name"),
        (SCENARIO, "", "it is empty"),
    ],
)
def test_a_faulty_scenario_is_one_line(old: str, new: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(SCENARIO.replace(old, new, 1))
    with pytest.raises(ScenarioError, match=words) as raised:
        [share_of(stream) for stream in read_scenario(path).workloads]
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value) or "name" in words


def test_a_workload_without_a_name_is_refused() -> None:
    for text in ("isl=1,osl=2", "chat:isl", ":isl=1"):
        with pytest.raises(ScenarioError, match="NAME"):
            parse_workload(text)
