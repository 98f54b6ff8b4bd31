"""What the answers about fleets say: where numbers come from, what was left out, what was asked."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing import planner
from sizing import text as answer
from sizing.analyses import pools, sharing
from sizing.analyses.existing import Existing, best_first, largest_rate
from sizing.analyses.sharing import Share, SharedFleet, Terms, least_gpus, shared_fleet
from sizing.candidates import Choice, find
from sizing.cli.shapes import existing_json, shared_json
from sizing.edge import BY_FORMULA, Method, SlaMissed
from sizing.engine import Replica
from sizing.plans import Candidate, Fleet, Rejection, basis_of, beyond_measured
from sizing.prediction import Prediction
from sizing.question import FEW, Question, Setting
from sizing.report.model import Quantity
from sizing.report.tables import text_of
from sizing.workload import Arrivals, Lengths, Limit, Sla, Workload
from tests.sizing.engines import LAW, SLA, candidate, question
from tests.sizing.test_cli import ONE, replaced, run

LENGTHS = Lengths(1000, 200)
EVEN = Arrivals("constant", 0.0)


def test_a_load_beyond_the_measured_one_is_extrapolated_in_every_answer() -> None:
    measured = dataclasses.replace(candidate(), basis="fitted", calibrated_in_flight=1.0)
    found = largest_rate(question(), measured, 8, BY_FORMULA)
    shared = shared_fleet([Share("one", question(20.0).workload, SLA)], measured, Terms())
    assert isinstance(found, Existing)
    assert isinstance(shared, SharedFleet)
    for shape in (existing_json(found), shared_json(shared, Terms())):
        assert shape["basis"] == "extrapolated"
        assert any("measured were at most 1" in warning for warning in shape["warnings"])
    within = largest_rate(question(), dataclasses.replace(measured, calibrated_in_flight=1e6), 8, BY_FORMULA)
    assert isinstance(within, Existing)
    assert within.basis == "fitted"


def test_a_load_far_below_the_measured_ones_is_extrapolated() -> None:
    """From many users on, what a step of a few sequences takes was not measured."""
    measured = dataclasses.replace(candidate(), basis="fitted", calibrated_in_flight=64.0, calibrated_from=16.0)
    assert [basis_of(measured, held) for held in (0.1, 7.9, 8.0, 64.0)] == ["extrapolated"] * 2 + ["fitted"] * 2
    assert [each.kind for each in beyond_measured(measured, 7.9)] == ["below_measured"]
    assert not beyond_measured(measured, 8.0)
    from_one = dataclasses.replace(measured, calibrated_from=1.0)
    assert basis_of(from_one, 0.1) == "fitted", "a lone request was measured, however rarely one is there"


def jumping(least_per_s: float) -> Method:
    """A method whose latencies are ten times too long from `least_per_s` requests/s on, unlike its capacity."""

    def predict(replica: Replica, setting: Setting, rate_per_s: float) -> Prediction:
        found = BY_FORMULA.predict(replica, setting, rate_per_s)
        slow = dataclasses.replace(found.ttft, p95_s=10 * setting.sla.limits[0].limit_s)
        return found if rate_per_s < least_per_s else dataclasses.replace(found, ttft=slow)

    return dataclasses.replace(BY_FORMULA, predict=predict)


def test_latencies_that_jump_lower_the_rate_or_reject_it() -> None:
    plain = largest_rate(question(), candidate(), 8, BY_FORMULA)
    assert isinstance(plain, Existing)
    each_per_s = plain.rate_per_s / plain.working
    lower = largest_rate(question(), candidate(), 8, jumping(0.9 * each_per_s))
    assert isinstance(lower, Existing)
    assert lower.predicted.meets(SLA)
    assert 0.8 * plain.rate_per_s < lower.rate_per_s < 0.9 * plain.rate_per_s
    assert isinstance(largest_rate(question(), candidate(), 8, jumping(0.0)), Rejection)


def test_the_engine_that_carries_most_is_found_where_another_has_the_faster_steps() -> None:
    """As in a plan: pace alone decides which of them is sized first, and a front end takes the limit on TTFT."""
    quick, ready = (
        dataclasses.replace(candidate(law=law), engine=engine, basis="estimated", variants=())
        for engine, law in (("trtllm", LAW.with_values(request_s=0.45)), ("vllm", LAW.scaled(1.05)))
    )
    assert planner.fastest_engines([ready, quick], question().workload.lengths)[0] == [quick]
    carried, left_out = best_first(question(), [ready, quick], 8)
    assert [fleet.candidate.engine for fleet in carried] == ["vllm", "trtllm"] and not left_out
    plan = planner.plan(question(carried[0].rate_per_s, spare=0), [ready, quick])
    assert plan.answer.gpus <= 8


def test_pools_are_of_gpus_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def of_first(_: Question, ways: list[Candidate]) -> SimpleNamespace:
        return SimpleNamespace(gpus=6, decode=SimpleNamespace(candidate=ways[0]))

    monkeypatch.setattr(pools, "pools_of", of_first)
    ways = [candidate(), candidate(gpu="h")]
    assert pools.pools_within(question(), ways, {}).decode.candidate.gpu == "g"  # type: ignore[union-attr]
    assert pools.pools_within(question(), ways, {"g": 5}).decode.candidate.gpu == "h"  # type: ignore[union-attr]
    missed = pools.pools_within(question(), ways, {"g": 5, "h": 5})
    assert isinstance(missed, Rejection) and missed.kind == "too_few"


def test_fleets_of_their_own_have_the_routing_of_all() -> None:
    """And their own arrivals: sized together with others or alone, a workload is the same."""
    shares = [
        Share("one", Workload(Lengths(1000, 200), 40.0), SLA),
        Share("two", Workload(Lengths(1000, 200), 40.0, Arrivals("constant")), SLA),
    ]
    for routing in ("random", "least_outstanding"):
        found = shared_fleet(shares, candidate(), Terms(routing=routing))
        assert isinstance(found, SharedFleet)
        alone = [planner.plan(question(workload=each.workload, routing=routing), [candidate()]) for each in shares]
        assert abs(found.apart - sum(each.answer.working for each in alone)) <= 1


def test_too_few_gpus_are_a_kind_of_their_own() -> None:
    missed = largest_rate(question(spare=2), candidate(4), 8, BY_FORMULA)
    assert isinstance(missed, Rejection)
    assert missed.kind == "too_few"


def test_what_cannot_win_is_named_on_a_shared_fleet_too() -> None:
    ways = [candidate(1), candidate(8, LAW.scaled(0.9)), candidate(8, LAW.scaled(0.9), gpu="h")]
    shares = [Share("one", question(40.0).workload, SLA)]
    fleets, rejected = least_gpus(shares, ways, Terms())
    assert [fleet.candidate.gpu for fleet in fleets] == ["g", "h"]
    assert [(miss.kind, str(miss.layout), miss.gpu) for miss in rejected] == [("cost", "TP8", "g")]
    priced, _ = least_gpus(shares, ways, Terms(prices=(("g", 100.0), ("h", 0.1))))
    assert priced[0].candidate.gpu == "h"


def test_all_layouts_together_cost_no_more_than_each_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long prompts in a hurry alone need many idle engines, which short ones with long answers have use for: the sum of
    what both need one by one, 15 GPUs of TP1, is no lower bound."""
    monkeypatch.setattr(sharing, "HOPELESS", 1.0)
    ways = [candidate(1), candidate(2, LAW.scaled(0.7)), candidate(4, LAW.scaled(0.5))]
    hurried = Share("hurried", Workload(Lengths(8000, 2), 2.5), Sla(Limit("ttft", 95, 0.264)))
    patient = Share("patient", Workload(Lengths(50, 1000), 100.0), Sla(Limit("e2e", 95, 600.0)))
    terms = Terms(headroom=0.0, spare=0)
    (best, *_), rejected = least_gpus([hurried, patient], ways, terms)
    alone = [shared_fleet([hurried, patient], way, terms) for way in ways]
    assert best.gpus == min(fleet.gpus for fleet in alone if isinstance(fleet, SharedFleet))
    assert all(miss.kind == "cost" for miss in rejected)


def test_a_shared_fleet_costs_its_gpus_and_has_no_band() -> None:
    terms = Terms(price_per_gpu_hour=2.0)
    shared = shared_fleet([Share("one", question(20.0).workload, SLA)], candidate(2), terms)
    assert isinstance(shared, SharedFleet)
    shape = shared_json(shared, terms)
    assert shape["cost_per_hour"] == 2.0 * shared.gpus
    assert shape["cost_per_million_output_tokens"] == pytest.approx(2.0 * shared.gpus / (20 * 200 * 3600) * 1e6)
    assert shape["gpus_low"] is shape["gpus_high"] is None
    assert shape["requests_per_s_per_gpu"] == pytest.approx(20.0 / (2 * shared.working))
    assert 0 < shape["utilization"] < 1
    assert "cost_per_hour" not in shared_json(shared, Terms())


FALLING = {
    "equal requests to the least busy replica": question(
        routing="least_outstanding", headroom=0.0, workload=Workload(LENGTHS, 1.0)
    ),
    "even arrivals, routed at random": question(headroom=0.0, workload=Workload(LENGTHS, 1.0, EVEN)),
}


@pytest.mark.parametrize("asked", FALLING.values(), ids=FALLING)
@settings(max_examples=60, deadline=None)
@given(rate=st.floats(0.5, 200), least_share=st.floats(0.5, 1.0), start=st.integers(1, 60))
def test_the_smallest_fleet_is_found_where_capacity_falls(
    asked: Question, rate: float, least_share: float, start: int
) -> None:
    """Capacity per replica falls from 3 to `least_share` of it as the fleet grows; fleets of its size are asked."""
    asked = dataclasses.replace(asked, workload=dataclasses.replace(asked.workload, rate_per_s=rate))

    def capacity_per_s(setting: Setting) -> float:
        return 3.0 * (least_share + (1 - least_share) / setting.replicas)

    def enough(replicas: int) -> bool:
        setting = Setting(asked.workload, asked.sla, asked.routing, replicas)
        return replicas * capacity_per_s(setting) >= rate * (1 - 1e-9)

    found, _ = planner.smallest_fleet(asked, capacity_per_s, start)
    assert enough(found)
    smallest = next(replicas for replicas in range(1, 10_000) if enough(replicas))
    if found <= FEW:
        assert found == smallest
    assert found <= math.ceil(1.25 * smallest)  # fleets of more than 16 are rounded to a quarter at most


@settings(max_examples=60, deadline=None)
@given(rate=st.floats(0.5, 40), alone=st.integers(1, 14), start=st.integers(1, 60))
def test_fleets_that_miss_the_sla_even_without_load_are_too_few(rate: float, alone: int, start: int) -> None:
    """Requests take turns: up to `alone` replicas none keeps the SLA; beyond, each carries 3 requests/s. At random each
    replica sees the same in any fleet."""
    asked = question(rate, routing="round_robin", headroom=0.0)

    def capacity_per_s(setting: Setting) -> float:
        if setting.replicas <= alone:
            raise SlaMissed(asked.sla.limits[0], 9.0)
        return 3.0

    found, capacity = planner.smallest_fleet(asked, capacity_per_s, start)
    assert capacity == 3.0
    assert found == max(alone + 1, math.ceil(rate / 3 * (1 - 1e-9)))
    with pytest.raises(SlaMissed):
        planner.smallest_fleet(dataclasses.replace(asked, routing="random"), capacity_per_s, 1)


def test_a_plan_and_the_capacity_of_one_replica_fewer_agree() -> None:
    """Even arrivals routed at random: two replicas carry more each than three do. At a load that two carry by that, and
    not by what three carry, the plan is two, and one does not carry it."""
    lengths = Lengths(8729, 28, 0.5, 0.3)
    (trtllm, *_), _ = find("Qwen/Qwen3-235B-A22B", lengths, Choice(("gb200",), ("nvfp4",), (1,)))
    asked = Question(
        "Qwen/Qwen3-235B-A22B",
        Workload(lengths, 3.0, EVEN),
        Sla(Limit("e2e", 95, 2.6219)),
        headroom=0.0,
        spare=0,
    )

    def carried_per_s(replicas: int) -> float:
        found = largest_rate(asked, trtllm, replicas)
        assert not isinstance(found, Rejection)
        return found.rate_per_s

    two, by_three = carried_per_s(2), carried_per_s(3) * 2 / 3
    assert by_three < two
    asked = dataclasses.replace(asked, workload=Workload(lengths, (by_three + two) / 2, EVEN))
    fleet = planner.plan(asked, [trtllm]).answer
    assert fleet.replicas == 2
    assert carried_per_s(1) < asked.workload.rate_per_s


@given(replicas=st.integers(1, 5000))
def test_large_fleets_are_counted_to_the_safe_side(replicas: int) -> None:
    for falling in FALLING.values():
        assert falling.setting(replicas).replicas >= replicas
    for evened_out in (question(routing="least_outstanding"), question(routing="power_of_two")):
        assert evened_out.setting(replicas).replicas <= replicas


def test_a_saved_plan_says_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [*ONE, "--arrivals", "gamma:cv=2", "--routing", "round_robin", "--peak-factor", "1.5"]
    asked = json.loads(run([*arguments, "--json"], capsys)[1])["question"]
    again = ["plan", "--gpu", "h200_sxm", "--precision", "bf16", "--tp", "2", "--engine", "trtllm"]
    for name in ("model", "isl", "osl", "arrivals", "routing", "headroom", "spare"):
        again += [f"--{name}", str(asked[name])]
    again += ["--rate", str(asked["rate_per_s"] / asked["peak_factor"]), "--peak-factor", str(asked["peak_factor"])]
    for metric, limit in asked["sla"].items():
        again += [f"--{metric}", limit]
    assert json.loads(run([*again, "--json"], capsys)[1])["question"] == asked


def test_the_sentences_name_price_spares_method_and_band(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run([*replaced(tp="2,4"), "--price", "2.5"], capsys)
    text = " ".join(out.split())
    for words in (
        "2.5 per GPU-hour, spares included",
        "at the planned rate all day",
        "GPUs draw at most",
        "without servers and cooling",
        "no headroom or spare",
        "before headroom",
        "verified by",
        "corrected by measured servers",
    ):
        assert words in text


def test_one_of_anything_is_said_in_the_singular_and_thousands_are_set_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A request a second in the last hour of a day, without spares, and a thousand."""
    asked = "plan --model Qwen/Qwen3-8B --gpu h100_sxm --tp 1 --engine vllm --isl 1000 --osl 200 --ttft p95:1s".split()
    said = {}
    for rate in (1, 1000):
        _, out, _ = run([*asked, "--spare", "0", "--daily", "0," * 23 + str(rate)], capsys)
        said[rate] = " ".join(out.split())
    assert "1 GPU-hour a day when the fleet follows the load, 24 when it does not" in said[1]
    assert "│ 1 request/s │" in said[1] and "as asked: 1 GPU (" in said[1]
    assert not re.search(r"(?<![\d,.])1 (GPUs|GPU-hours|requests/s|replicas)\b", said[1])
    assert re.search(r"GPU-hours a day when the fleet follows the load, 1,\d{3} when it does not", said[1000])
    assert text_of(Quantity(1, "GPU-hours", "given")) == "1 GPU-hour"
    assert text_of(Quantity(1, "requests/s per GPU", "given")) == "1 request/s per GPU"


def test_a_wide_band_says_why() -> None:
    fleets = [
        planner.size(question(100.0), dataclasses.replace(candidate(), relative_sigma=sigma), BY_FORMULA)
        for sigma in (0.05, 0.4)
    ]
    lines = [answer.why_wide(fleet) for fleet in fleets if isinstance(fleet, Fleet)]
    assert len(lines) == 2
    narrow, wide = lines
    assert narrow == ""
    assert "measure" in wide
