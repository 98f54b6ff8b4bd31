"""Goodput: limits that requests keep all at once; requests that are turned away; what the last per cent costs."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from sizing import planner
from sizing.analyses.curves import load_curve
from sizing.analyses.pools import pools_of
from sizing.analyses.relax import ways
from sizing.analyses.sensitivity import goodput_prices, sensitivities
from sizing.analyses.traced import plan_trace
from sizing.edge import BY_FORMULA, BY_SIMULATION, SlaMissed, load_response, log_excess, upper_excess
from sizing.engine import Batching, Replica
from sizing.errors import ScenarioError
from sizing.numbers import significant
from sizing.plans import Fleet, NoFeasiblePlan
from sizing.prediction import Joint, Quantiles, used_up
from sizing.question import Question, Setting
from sizing.queueing import predict, stable_rate_per_s
from sizing.report.build import Cover, report_of
from sizing.report.model import Report, as_dict, as_json
from sizing.report.sections import cards
from sizing.report.tables import curve_data, number_of
from sizing.report.write import render
from sizing.simulator import simulate
from sizing.simulator.recorded import replay
from sizing.simulator.state import REJECTED, SERVED, TIMED_OUT
from sizing.text import GOODPUT_PRICE, Extras, against, binding, on_all_requests, question_json
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.sizing.engines import LAW, candidate, question
from tests.sizing.replica_runs import NOTHING
from tests.sizing.report_cases import Page, pdf_text, rows_below, sheets, squeezed
from tests.sizing.test_cli import run
from tests.sizing.test_traced import asked, traffic

TTFT_S, ITL_S, E2E_S = 0.4, 0.015, 4.0
LENGTHS = Lengths(1000, 200, 0.3, 0.5)


def of(metric: str, percentile: float) -> Limit:
    return Limit(metric, percentile, {"ttft": TTFT_S, "itl": ITL_S, "e2e": E2E_S}[metric])  # type: ignore[arg-type]


def joint(percent: float, *metrics: str) -> Sla:
    """Limits that count for goodput alone."""
    return Sla(*(of(metric, 0) for metric in metrics), Limit.goodput(percent))


# what can be asked


def test_a_limit_without_a_percentile_counts_for_goodput_alone() -> None:
    sla = Sla(Limit.parse("ttft", "400ms"), Limit.parse("itl", "p95:15ms"), Limit.parse("goodput", "99%"))
    assert [limit.metric for limit in sla.limits] == ["itl", "goodput"]
    assert sla.within == (("ttft", 0.4), ("itl", 0.015))
    assert str(sla) == "p95 ITL <= 15 ms and 99 % goodput within TTFT 400 ms, ITL 15 ms"
    assert sla.with_limits(Limit("itl", 95, 0.02)).within == (("ttft", 0.4), ("itl", 0.02))


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"ttft": "1s"}, "needs a percentile"),
        ({"goodput": "99%"}, "goodput needs a limit on TTFT, ITL or E2E"),
        ({"goodput": "99%", "gap": "p99:100ms"}, "goodput needs a limit on TTFT, ITL or E2E"),
        ({"goodput": "99", "ttft": "1s"}, "in per cent"),
        ({"goodput": "99.99%", "ttft": "1s"}, "from 50 to 99.9"),
        ({"goodput": "99.55%", "ttft": "1s"}, "in tenths"),
        ({"goodput": "99%", "ttft": "1s", "gap": "100ms"}, "percentile:time"),
        ({"ttft": "p95:1s", "rejected": "1%"}, "needs a queue limit or timeout"),
        ({"ttft": "p95:1s", "rejected": "0%", "queue_limit": 5}, "above 0"),
        ({"ttft": "p95:1s", "rejected": "60%", "queue_limit": 5}, "at most 50"),
        ({"ttft": "p95:1s", "queue_timeout": "2"}, "needs a unit"),
        ({"ttft": "p95:1s", "queue_limit": -1}, "queue"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_line(limits: dict[str, object], why: str) -> None:
    with pytest.raises(ScenarioError, match=why) as found:
        Question.of({"model": "m", "isl": 1000, "osl": 200, "rate": 5, **limits})
    assert "\n" not in str(found.value)


def test_a_question_reads_back_from_its_own_json() -> None:
    given = {"ttft": "0.4s", "itl": "p95:0.015s", "goodput": "99.5%", "rejected": "0.25%"}
    queue = {"queue_limit": 8, "queue_timeout": "2s"}
    one = Question.of({"model": "m", "isl": 1000, "osl": 200, "rate": 5, **given, **queue})
    said = question_json(one)
    assert said["sla"] == given and {key: said[key] for key in queue} == queue
    assert Question.of({**said, **said["sla"], "rate": said["rate_per_s"]}) == one
    assert not {"queue_limit", "queue_timeout"} & question_json(question()).keys()


# one request, one value: the largest share of a limit that it uses up


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=2, max_size=60), st.floats(0.1, 5))
def test_a_request_keeps_its_limits_where_it_uses_up_no_more_than_one(
    values: list[tuple[float, float]], limit_s: float
) -> None:
    ttft, e2e = np.array(values).T
    within = (("ttft", limit_s), ("e2e", 1.0))
    used = used_up(within, {"ttft": ttft, "e2e": e2e}.__getitem__)  # type: ignore[arg-type]
    kept = (ttft <= limit_s) & (e2e <= 1.0)
    assert Joint.of(within, used).goodput == pytest.approx(np.mean(kept))  # type: ignore[arg-type]


def test_percentiles_of_the_share_are_those_of_a_latency_where_there_is_one_limit() -> None:
    seconds = np.random.default_rng(1).gamma(2.0, 0.1, 5000)
    found = Joint.of((("e2e", 0.7),), seconds / 0.7)
    for percentile in (50, 90, 95, 99):
        assert 0.7 * found.at(percentile) == pytest.approx(Quantiles.of(seconds).at(percentile), rel=1e-12)
    assert 0.7 * found.at(99.9) == pytest.approx(np.percentile(seconds, 99.9), rel=1e-12)


def test_requests_that_are_not_served_use_up_more_than_any_limit() -> None:
    used = np.concatenate([np.full(98, 0.5), np.full(2, math.inf)])
    found = Joint.of((("ttft", 1.0),), used)
    assert found.at(97) == 0.5 and found.at(99) == math.inf and found.goodput == 0.98
    assert not np.isnan(found.used).any()


# fleets: against each limit alone, against goodput itself, by formula and by simulation

METHODS = pytest.mark.parametrize("method", [BY_FORMULA, BY_SIMULATION], ids=["formula", "simulation"])


def capacity_per_s(sla: Sla, method: planner.Method, lengths: Lengths = LENGTHS) -> float:
    return method.capacity_per_s(candidate().replica, Setting(Workload(lengths, 1.0), sla, "random"))


@METHODS
@pytest.mark.parametrize("metric", ["ttft", "itl", "e2e"])
@pytest.mark.parametrize("percent", [50, 90, 99])
def test_with_one_limit_goodput_is_the_percentile(metric: str, percent: int, method: planner.Method) -> None:
    """Outputs of two tokens or more: each request has an ITL."""
    lengths = Lengths(1000, 200, 0.3, 0.2)
    alone = capacity_per_s(Sla(of(metric, percent)), method, lengths)
    assert capacity_per_s(joint(percent, metric), method, lengths) == pytest.approx(alone, rel=1e-9)


@METHODS
def test_all_limits_at_once_take_no_less_than_each_alone(method: planner.Method) -> None:
    for percent in (90, 99):
        together = capacity_per_s(joint(percent, "ttft", "itl", "e2e"), method)
        apart = [capacity_per_s(Sla(of(metric, percent)), method) for metric in ("ttft", "itl", "e2e")]
        assert together <= min(apart) * (1 + 1e-9)


@METHODS
def test_higher_goodput_takes_no_less(method: planner.Method) -> None:
    carried = [capacity_per_s(joint(percent, "ttft", "itl"), method) for percent in (50, 80, 90, 95, 99, 99.9)]
    assert all(more >= less * (1 - 0.004) for more, less in pairwise(carried))
    assert carried[0] > 1.2 * carried[-1]


def test_goodput_that_a_replica_without_load_misses_is_told_as_a_share() -> None:
    with pytest.raises(SlaMissed, match=r"goodput within TTFT 1 ms: \d[\d,]* % of the limits with hardly any load"):
        capacity_per_s(Sla(Limit("ttft", 0, 1e-3), Limit.goodput(99)), BY_FORMULA)


def test_the_formula_counts_goodput_as_the_simulator_does() -> None:
    """At 0.3 to 0.8 of the stable rate, chunked and prefill_first: shares of requests, and of limits used up."""
    for policy in ("chunked", "prefill_first"):
        replica = Replica(LAW, Batching(policy, 64))  # type: ignore[arg-type]
        for load in (0.3, 0.6, 0.8):
            workload = Workload(LENGTHS, load * stable_rate_per_s(replica, LENGTHS))
            sla = joint(99, "ttft", "itl", "e2e")
            by_formula = predict(replica, workload, within=sla.within)
            run = simulate(replica, workload, requests=150_000)
            seen = run.prediction(sla.within)
            assert by_formula.joint is not None and seen.joint is not None
            assert by_formula.joint.goodput == pytest.approx(seen.joint.goodput, abs=0.02)
            assert seen.joint.goodput == pytest.approx(run.goodput(sla), abs=1e-12)
            for percent in (50, 90, 95, 99):
                assert by_formula.joint.at(percent) == pytest.approx(seen.joint.at(percent), rel=0.03)


def test_the_response_to_load_rises_with_the_share_that_is_used_up() -> None:
    setting = Setting(Workload(LENGTHS, 1.0), joint(95, "ttft", "itl"), "random")
    response = load_response(candidate().replica, setting)
    assert all(np.diff(response.excess) >= 0)
    assert response.excess[0] == log_excess(response.idle, setting.sla)


def test_goodput_that_was_not_asked_for_is_never_taken_for_kept() -> None:
    run = simulate(Replica(LAW), Workload(LENGTHS, 5.0), requests=2000)
    other = joint(99, "e2e")
    with pytest.raises(ScenarioError, match="goodput is not known"):
        run.prediction().meets(other)
    with pytest.raises(ScenarioError, match="goodput is not known"):
        run.prediction(joint(99, "ttft").within).meets(other)


# a plan, and what stands beside it


def test_a_plan_for_goodput_keeps_it() -> None:
    one = question(sla=joint(99, "ttft", "itl"))
    plan = planner.plan(one, [candidate()])
    fleet = plan.answer
    assert fleet.verified and fleet.binding.metric == "goodput"
    assert fleet.predicted.joint is not None and fleet.predicted.joint.goodput >= 0.99
    assert "of the requests keep all limits" in binding(fleet)
    apart = planner.plan(question(sla=Sla(of("ttft", 99), of("itl", 99))), [candidate()]).answer
    assert fleet.gpus >= apart.gpus
    rows = {row.name: row for row in sensitivities(one, fleet)}
    tighter, *_, looser = rows["limits of 99 % goodput"].effects
    assert looser.gpus is not None and (tighter.gpus or math.inf) >= fleet.gpus >= looser.gpus


def test_a_limit_that_counts_for_goodput_changes_it_too() -> None:
    """A looser p95 TTFT is a looser limit of goodput as well, for which the formula is asked anew."""
    one = question(sla=Sla(of("ttft", 95), of("itl", 0), Limit.goodput(95)))
    rows = {row.name: row for row in sensitivities(one, planner.plan(one, [candidate()]).answer)}
    counts = [effect.gpus for effect in rows["p95 TTFT limit"].effects]
    assert None not in counts and counts == sorted(counts, reverse=True)  # type: ignore[type-var]


def test_an_impossible_goodput_is_relaxed_by_its_limits_or_by_its_percent() -> None:
    """ITL is 6 ms on an idle replica; prompts of others stall it."""
    idle_s = LAW.decode_s(1, 1100)
    one = question(sla=Sla(Limit("itl", 0, 0.9 * idle_s), Limit.goodput(99)), rate=2.0)
    with pytest.raises(NoFeasiblePlan, match="99 % goodput"):
        planner.plan(one, [candidate()])
    (way,), _ = ways(one, [candidate()])
    assert way.smallest is not None and way.smallest.limit_s > 1
    loosened = Limit("itl", 0, 0.9 * idle_s * way.smallest.limit_s)
    assert planner.plan(replace(one, sla=one.sla.with_limits(loosened)), [candidate()]).answer.gpus > 0


def test_two_pools_say_that_they_know_no_goodput() -> None:
    with pytest.raises(ScenarioError, match="none on goodput"):
        pools_of(question(sla=joint(99, "ttft", "itl")), [candidate()])


def test_prices_rise_with_goodput_and_hold_the_answer() -> None:
    one = question(sla=joint(97, "ttft", "itl"))
    plan = planner.plan(one, [candidate()])
    prices = goodput_prices(one, plan.answer.candidate)
    assert [price.percent for price in prices] == [90, 95, 97, 99, 99.9]
    counts = [price.fleet.gpus for price in prices if price.fleet]
    assert counts == sorted(counts) and counts[2] == plan.answer.gpus
    with_percentiles = replace(one, sla=Sla(of("ttft", 95), of("itl", 95)))
    assert [price.fleet.gpus for price in goodput_prices(with_percentiles, candidate(), (97.0,)) if price.fleet] == [
        plan.answer.gpus
    ]


# requests that are turned away


def test_a_queue_limit_of_the_question_is_one_of_the_engine() -> None:
    rule = Batching("chunked", 4, max_waiting=3)
    load = Workload(LENGTHS, 1.2 * stable_rate_per_s(Replica(LAW, rule), LENGTHS))
    of_engine = simulate(Replica(LAW, rule), load, requests=5000)
    of_question = simulate(Replica(LAW, replace(rule, max_waiting=0)), replace(load, queue_limit=3), requests=5000)
    assert np.array_equal(of_engine.outcome, of_question.outcome) and of_engine.rejected > 0
    stricter = simulate(Replica(LAW, rule), replace(load, queue_limit=1), requests=5000)
    assert stricter.rejected > of_engine.rejected


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(0, 5), st.floats(0.3, 1.5))
def test_the_share_turned_away_is_counted_and_judged(places: int, waiting: int, load: float) -> None:
    """The share is counted once and judged as it is; what the search takes for kept is."""
    replica = Replica(NOTHING.with_values(overhead_s=0.1), Batching("chunked", places, max_waiting=waiting + 1))
    lengths = Lengths(10, 10)
    run = simulate(replica, Workload(lengths, load * stable_rate_per_s(replica, lengths)), requests=3000)
    sla = Sla(Limit.rejected(1))
    (limit,) = sla.limits
    share = float(np.mean((run.outcome == REJECTED) | (run.outcome == TIMED_OUT)))
    assert run.exceeding_share(limit) == share == run.prediction().rejected
    if not run.saturated:
        assert run.meets(sla) == (share <= 0.01 + 1e-12)
        assert upper_excess(run, sla) > 0 or share <= 0.01


@pytest.mark.parametrize("queue", [{"queue_limit": 2}, {"queue_timeout_s": 0.05}])
def test_a_plan_with_a_limit_on_rejections_keeps_it_in_another_run(queue: dict[str, float]) -> None:
    rule = Batching("chunked", 8)
    load = Workload(LENGTHS, 40.0, **queue)  # type: ignore[arg-type]
    one = Question("m", load, Sla(Limit.rejected(0.5)), headroom=0.0)
    fleet = planner.plan(one, [candidate(batching=rule)]).answer
    assert fleet.verified and fleet.predicted.rejected <= 0.005
    again = simulate(candidate(batching=rule).replica, one.workload, replicas=fleet.working, requests=100_000, seed=9)
    assert again.exceeding_share(fleet.binding) <= 0.005
    fewer = simulate(
        candidate(batching=rule).replica, one.workload, replicas=math.ceil(0.9 * fleet.working) - 1, requests=100_000
    )
    assert fewer.exceeding_share(Limit.rejected(0.5)) > 0.005
    (said,) = on_all_requests(one)
    assert "sized by simulation" in said


@pytest.mark.parametrize("percent", [0.5, 5.0, 20.0])
def test_the_rate_under_a_limit_on_rejections_is_that_of_a_loss_queue(percent: float) -> None:
    """M/D/1 with one place to wait: a departure leaves nobody behind where none came, with the chance e^-rho, so that
    1 - 1/(e^-rho + rho) of the requests are lost (M/G/1/K: Gross and Harris, Fundamentals of Queueing Theory)."""
    replica = Replica(NOTHING.with_values(overhead_s=0.05), Batching("chunked", 1))
    service_s = 10 * 0.05
    load = Workload(Lengths(10, 10), 1.0, queue_limit=1)
    found = BY_SIMULATION.capacity_per_s(replica, Setting(load, Sla(Limit.rejected(percent)), "random"))
    exact = brentq(lambda rho: 1 - 1 / (math.exp(-rho) + rho) - percent / 100, 1e-3, 2) / service_s
    assert 0.9 * exact <= found <= 1.01 * exact
    run = simulate(replica, replace(load, rate_per_s=exact), requests=200_000)
    assert run.prediction().rejected == pytest.approx(percent / 100, rel=0.06)


def test_figures_by_formula_say_that_they_know_no_queue_limit() -> None:
    load = Workload(LENGTHS, 5.0, queue_limit=4)
    (found,) = predict(Replica(LAW), load).warnings
    assert found.kind == "not_modelled" and found.facts["settings"] == ("max_waiting",)


def test_requests_turned_away_do_not_keep_their_limits() -> None:
    """Every request that is served is within the limits, and yet goodput is less than all."""
    replica = Replica(LAW, Batching("chunked", 4))
    load = Workload(LENGTHS, 1.3 * stable_rate_per_s(replica, LENGTHS), queue_limit=1)
    run = simulate(replica, load, requests=5000)
    generous = Sla(Limit("e2e", 0, 1e4), Limit.goodput(99))
    served = float(np.mean(run.outcome == SERVED))
    assert served < 1 and run.goodput(generous) == pytest.approx(served)
    assert run.prediction(generous.within).joint.goodput == pytest.approx(served)  # type: ignore[union-attr]
    assert not run.meets(generous)
    assert "%" in against(generous.limits[0], run.prediction(generous.within))


# recorded traffic


def test_a_replay_judges_goodput_as_a_simulated_trace_does() -> None:
    trace = traffic(1, 12.0, 0.1)
    one = asked(trace)
    sla = joint(95, "ttft", "itl")
    seen = replay(candidate().replica, trace, one.workload, sla, replicas=2, part=500)
    plain = Sla(of("ttft", 95), of("itl", 95))
    same = replay(candidate().replica, trace, one.workload, plain, replicas=2)
    assert seen.goodput() == same.goodput()
    (limit,) = sla.limits
    assert seen.exceeding_share(limit) == pytest.approx(1 - seen.goodput())
    found = seen.prediction(0.5).joint
    assert found is not None and found.goodput == seen.goodput()
    for percent in (50, 90, 95, 99):
        assert (found.at(percent) <= 1) == (percent / 100 <= seen.goodput())


def test_a_fleet_for_a_trace_keeps_goodput_and_one_replica_less_does_not() -> None:
    trace = traffic(2, 80.0, 0.05)
    one = replace(asked(trace), sla=joint(95, "ttft", "itl"))
    found = plan_trace(one, trace, [candidate()])
    fleet = found.plan.answer
    assert found.replayed.goodput() >= 0.95 and fleet.binding.metric == "goodput"
    fewer = replay(candidate().replica, trace, one.workload, one.sla, replicas=fleet.working - 1)
    assert not fewer.meets
    apart = plan_trace(replace(one, sla=Sla(of("ttft", 95), of("itl", 95))), trace, [candidate()]).plan.answer
    assert fleet.working >= apart.working


def test_a_replay_turns_requests_away_where_the_question_limits_the_queue() -> None:
    trace = traffic(3, 30.0, 0.1)
    one = asked(trace)
    sla = Sla(of("ttft", 95), Limit.rejected(1))
    small = candidate(batching=Batching("chunked", 4)).replica
    seen = replay(small, trace, replace(one.workload, queue_limit=1), sla, replicas=1)
    lost = int(seen.tally.lost.sum())
    assert lost > 0 and seen.exceeding_share(sla.limits[1]) == lost / len(trace)
    assert seen.prediction(0.5).rejected == lost / len(trace)
    assert not replay(small, trace, one.workload, sla, replicas=1).tally.lost.any()


def test_a_fleet_of_goodput_stands_in_a_plan_as_any_other() -> None:
    found = planner.size(question(sla=joint(90, "ttft", "itl")), candidate(), BY_FORMULA)
    assert isinstance(found, Fleet) and found.working_low <= found.working <= (found.working_high or math.inf)


def test_every_format_of_a_report_has_the_price_and_none_had_it_unasked() -> None:
    one = question(sla=joint(99, "ttft", "itl"))
    plan = planner.plan(one, [candidate()])
    plain = report_of(plan, load_curve(one, plan.answer), Extras(), Cover("2026-01-01T00:00:00+00:00"))
    assert "goodput" not in as_dict(plain)
    prices = goodput_prices(one, plan.answer.candidate, (90.0, 99.0))
    found = report_of(
        plan, load_curve(one, plan.answer), Extras(goodput_prices=prices), Cover("2026-01-01T00:00:00+00:00")
    )
    assert Report.from_json(as_json(found)) == found
    assert [row.metric for row in found.limits] == ["goodput"] and found.limits[0].predicted.unit == "share"
    assert [row.gpus.value for row in found.goodput] == [price.fleet and price.fleet.gpus for price in prices]
    for suffix in ("html", "pdf", "xlsx", "json"):
        assert len(render(found, suffix)) > len(render(plain, suffix)) > 1000
    assert GOODPUT_PRICE in render(found, "html").decode()


def test_a_report_does_not_tell_the_use_of_the_limits_as_the_share_of_requests_that_keep_them() -> None:
    one = question(sla=joint(99, "ttft", "itl"))
    plan = planner.plan(one, [candidate()])
    used = plan.answer.predicted.value_s(one.sla.limits[0])
    found = report_of(plan, load_curve(one, plan.answer), Extras(), Cover("2026-01-01T00:00:00+00:00"))
    name, said = "limits used at 99 % goodput", number_of(found.limits[0].predicted)
    assert said == f"{significant(100 * used)} %"
    rows = {row[0]: row for row in Page(render(found, "html").decode()).table("Limit")}
    assert rows[name][1:3] == ["100 %", said] and "99 % goodput" not in rows
    assert (cards(found)[2].name, cards(found)[2].value) == (name, said)
    assert squeezed("".join(rows[name])) in pdf_text(render(found, "pdf"))
    (in_book,) = rows_below(sheets(render(found, "xlsx"))["Answer"], "Limit")
    assert in_book[:3] == (name, 1, pytest.approx(used))
    assert curve_data(found).columns[1:] == (name,)


def test_a_share_of_rejected_requests_has_no_band() -> None:
    """The formula, from which bands are, takes all requests as admitted."""
    load = Workload(LENGTHS, 5.0, queue_limit=4)
    one = Question("m", load, Sla(Limit("ttft", 95, 2.0), Limit.rejected(0.5)), headroom=0.0)
    found = report_of(planner.plan(one, [candidate()]), None, Extras(), Cover("2026-01-01T00:00:00+00:00"))
    ttft, rejected = found.limits
    assert None not in (ttft.low.value, ttft.high.value)
    assert rejected.predicted.value is not None and (rejected.low.value, rejected.high.value) == (None, None)


PLAN = (
    "plan --model Qwen/Qwen3-8B --gpu h100_sxm --precision bf16 --tp 1 --engine vllm --isl 1000 --osl 200 --rate 8 "
    "--ttft 400ms --itl 20ms --goodput 99%"
).split()


def test_the_command_line_takes_goodput_and_its_price(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run([*PLAN, "--goodput-price", "--json"], capsys)
    answer = json.loads(out)
    assert (code, err) == (0, "") and answer["goodput"] >= 0.99
    assert answer["question"]["sla"] == {"ttft": "0.4s", "itl": "0.02s", "goodput": "99%"}
    assert [row["goodput"] for row in answer["goodput_price"]] == [0.9, 0.95, 0.99, 0.999]
    assert answer["goodput_price"][2]["gpus"] == answer["gpus"]
    assert "goodput_price" not in json.loads(run([*PLAN, "--json"], capsys)[1])
    code, out, _ = run([*PLAN, "--queue-limit", "64", "--rejected", "1%", "--goodput-price"], capsys)
    assert code == 0 and GOODPUT_PRICE in out and "sized by simulation" in out
    code, _, err = run([*PLAN, "--disaggregated"], capsys)
    assert code == 2 and "none on goodput" in err
