"""Fleets for recorded traffic: the count against all counts, its bands, and what the command prints."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from sizing.analyses.sensitivity import sensitivities
from sizing.analyses.traced import (
    Replays,
    busiest_rate_per_s,
    by_memory,
    class_slas,
    lengths_of,
    loosest,
    of_trace,
    peak_factor,
    plan_trace,
    smallest,
)
from sizing.demand_model import ranks
from sizing.edge import Z90
from sizing.errors import ScenarioError
from sizing.plans import Fleet, NoFeasiblePlan
from sizing.question import Question
from sizing.report import build
from sizing.report.build import traffic_of
from sizing.report.charts import traffic_chart
from sizing.report.model import Quantity
from sizing.report.tables import classes
from sizing.simulator.recorded import replay
from sizing.text import sizing_by_means
from sizing.trace import HOUR_S, Trace, TraceError, busiest_hour
from sizing.workload import PERCENTILES, Limit, Metric, Sla, Workload
from tests.sizing.engines import candidate
from tests.sizing.report_cases import report as a_report

SLA = Sla(Limit("ttft", 95, 0.4), Limit("itl", 90, 0.015))


def traffic(seed: int, rate_per_s: float, hours: float = 0.5, swing: float = 0.6, burst: float = 3.0) -> Trace:
    """A rate that swings over the trace, and bursts: groups of requests within a second."""
    rng = np.random.default_rng(seed)
    span_s = hours * HOUR_S
    groups = rng.uniform(0, span_s, int(1.5 * rate_per_s / burst * span_s))
    kept = groups[rng.uniform(0, 1 + swing, len(groups)) < 1 + swing * np.sin(2 * np.pi * groups / span_s)]
    sizes = rng.geometric(1 / burst, len(kept))
    arrival_s = np.sort(np.repeat(kept, sizes) + rng.uniform(0, 1, sizes.sum()))
    isl = np.minimum(rng.lognormal(6.0, 0.8, len(arrival_s)), 12_000).astype(np.int32) + 1
    osl = np.minimum(rng.lognormal(4.5, 0.7, len(arrival_s)), 3_000).astype(np.int32) + 1
    return Trace(arrival_s - arrival_s[0], isl, osl)


def asked(trace: Trace, **terms: float) -> Question:
    usual = {"headroom": 0.0, "spare": 0} | terms
    return Question("m", Workload(lengths_of(trace), busiest_rate_per_s(trace)), SLA, **usual)  # type: ignore[arg-type]


@given(st.integers(1, 5000), st.integers(1, 300))
def test_the_search_finds_the_least_count(least: int, start: int) -> None:
    found = smallest(lambda count: count >= least, start)
    if least > 64 * start:
        assert found is None
    else:
        assert found is not None and least <= found <= max(least, math.ceil(least * (1 + 1 / 256)))


@pytest.mark.parametrize("part", [0, 1, *(pytest.param(part, marks=pytest.mark.long) for part in range(2, 6))])
def test_the_count_is_that_of_trying_every_fleet(part: int) -> None:
    """Sixty cases in all: the least fleet that meets the SLA, among all from one replica on."""
    right = 0
    for number in range(10 * part, 10 * part + 10):
        rng = np.random.default_rng([1, number])
        trace = traffic(number, float(rng.uniform(3, 30)), 0.05, float(rng.uniform(0, 0.9)), float(rng.uniform(1, 8)))
        question = replace(asked(trace, headroom=float(rng.choice([0.0, 0.2]))), routing=str(rng.choice(ROUTINGS)))
        answer = plan_trace(question, trace, [candidate()]).plan.answer
        least = next(count for count in range(1, 200) if meets(question, trace, count))
        right += answer.working == least
    assert right >= 9


def meets(question: Question, trace: Trace, count: int) -> bool:
    speed = 1 / (1 - question.headroom)
    replica, routing = candidate().replica, question.routing
    return replay(replica, trace, question.workload, SLA, replicas=count, routing=routing, speed=speed).meets


ROUTINGS = ("random", "round_robin", "power_of_two", "least_outstanding")


def test_the_answer_is_replayed_and_has_its_headroom() -> None:
    trace = traffic(1, 40.0)
    found = plan_trace(asked(trace, headroom=0.25, spare=2), trace, [candidate()])
    answer = found.plan.answer
    assert answer.verified and answer.predicted.meets(SLA)
    assert found.replayed.replicas == answer.working and found.replayed.speed == 1
    assert answer.replicas == answer.working + 2
    faster = Trace(trace.arrival_s * 0.75, trace.isl, trace.osl)
    least = plan_trace(asked(faster), faster, [candidate()]).plan.answer.working
    assert answer.working == least


@pytest.mark.parametrize(("rate_per_s", "working"), [(1.0, 1), (40.0, None)])
def test_a_replica_carries_what_the_fleet_serves_at_most(rate_per_s: float, working: int | None) -> None:
    """The trace may become faster until a replica has its capacity; no larger fleet is then needed than before."""
    trace = traffic(1, rate_per_s, 0.2)
    question = asked(trace, headroom=0.2)
    answer = plan_trace(question, trace, [candidate()]).plan.answer
    assert answer.working == working or working is None
    speed = answer.capacity_per_s / answer.load_per_s
    fleet = partial(replay, candidate().replica, trace, question.workload, SLA, replicas=answer.working)
    assert speed > 1 / (1 - 0.2) and fleet(speed=speed).meets
    one_fewer_fails_at = answer.working / (answer.working - 1 or math.nan) / (1 - 0.2)
    assert 1.06 * speed > one_fewer_fails_at or not fleet(speed=1.06 * speed).meets
    assert question.replicas_at(answer.capacity_per_s) == answer.working
    rate = next(row for row in sensitivities(question, answer) if row.name == "rate")
    slower, faster = (effect.gpus for effect in rate.effects[1:3])
    assert slower is not None and faster is not None and slower <= answer.gpus <= faster
    assert question.workload.rate_per_s < answer.working * answer.requests_per_s_per_replica


@pytest.mark.parametrize("rate_per_s", [2.0, 24.0])
def test_the_band_ends_at_the_fleets_that_a_faster_and_a_slower_engine_need(rate_per_s: float) -> None:
    """The room of the last replica counts: one that is hardly busy serves the trace with a slower engine too."""
    trace, engine = traffic(5, rate_per_s, 0.1), candidate()
    question = asked(trace)

    def fleet(times: float) -> Fleet:
        replica = replace(engine.replica, law=engine.replica.law.scaled(times))
        slower = replace(engine, replica=replica, relative_sigma=0.12)
        found = of_trace(Replays(question, trace, slower, (), 0, lambda _: None), 1)
        assert isinstance(found, Fleet)
        return found

    factor = math.exp(Z90 * 0.12)
    ends = fleet(1 / factor).working, fleet(factor).working
    found = fleet(1.0)
    assert (found.working_low, found.working_high) == ends


def test_hours_are_paid_for_as_long_as_they_last() -> None:
    """An hour, two without requests, and 32 s: the fleet runs for three hours and 32 s, not for two hours."""
    rng = np.random.default_rng(8)
    hour_s = np.sort(rng.uniform(0, HOUR_S, 5 * 3600))
    arrival_s = np.concatenate([[0.0], hour_s, 3 * HOUR_S + np.array([0.0, 32.0])])
    trace = Trace(arrival_s, np.full(len(arrival_s), 800, np.int32), np.full(len(arrival_s), 100, np.int32))
    found = plan_trace(asked(trace, spare=1), trace, [candidate()])
    answer, hours = found.plan.answer, 3 + 32 / 3600
    assert found.constant_gpu_hours == pytest.approx(answer.gpus * hours)
    working = found.needed[0] + found.needed[1] * 32 / 3600
    assert found.gpu_hours == pytest.approx((working + 1 * hours) * answer.candidate.gpus)


def test_bursts_need_more_than_their_rate_says() -> None:
    even, bursty = (traffic(2, 40.0, burst=burst) for burst in (1.0, 12.0))
    counts = [plan_trace(asked(trace), trace, [candidate()]).plan.answer.working for trace in (even, bursty)]
    assert counts[0] < counts[1]


def test_the_rule_of_means_is_judged_by_the_replay() -> None:
    """Two hundred requests within a second, once a minute: by their mean rate a fleet of one does, and all wait."""
    arrival_s = (np.arange(20)[:, None] * 60.0 + np.arange(200) * 0.005).ravel()
    trace = Trace(arrival_s, np.full(4000, 1000, np.int32), np.full(4000, 200, np.int32))
    plan = plan_trace(asked(trace), trace, [candidate()]).plan
    means = plan.mean_based
    assert means is not None and means.replayed and means.replicas < plan.answer.working
    assert not means.predicted.meets(SLA)
    assert "with the trace's arrivals" in (sizing_by_means(plan) or "")


def test_the_answer_keeps_its_sla_at_the_trace_s_own_pace() -> None:
    """Evenly spaced requests: with headroom, which is a faster trace, others share an iteration than without."""
    trace = Trace(np.arange(600) / 3000, np.full(600, 1000, np.int32), np.full(600, 50, np.int32))
    question = replace(asked(trace, headroom=0.2), sla=Sla(Limit("ttft", 95, 1.0), Limit("itl", 95, 0.016)))
    runs = Replays(question, trace, candidate(), (), 0, lambda _: None)
    with_headroom = smallest(runs.meets, 10)
    assert with_headroom is not None and not runs.at(with_headroom, speed=1.0).meets
    found = of_trace(runs, 10)
    assert isinstance(found, Fleet) and found.working > with_headroom
    assert runs.meets(found.working) and runs.at(found.working, speed=1.0).meets


def test_the_best_of_several_is_replayed() -> None:
    trace = traffic(3, 30.0, 0.2)
    slow, fast = candidate(tp=1, law=candidate().replica.law.scaled(1.5)), candidate(tp=1, gpu="h")
    plan = plan_trace(asked(trace), trace, [slow, fast]).plan
    assert plan.answer.candidate is fast and plan.answer.verified
    assert plan.answer.gpus == plan_trace(asked(trace), trace, [fast]).plan.answer.gpus


def test_a_limit_that_no_fleet_meets() -> None:
    trace = traffic(4, 10.0, 0.1)
    question = replace(asked(trace), sla=Sla(Limit("ttft", 95, 1e-3)))
    with pytest.raises(NoFeasiblePlan) as raised:
        plan_trace(question, trace, [candidate()])
    assert raised.value.rejected[0].kind == "sla"
    assert " by formula, the limit is 1 ms" in raised.value.rejected[0].why


def test_a_fleet_whose_replay_misses_is_refused_by_simulation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sizing.analyses.traced.smallest", lambda meets, start: None)
    trace = traffic(4, 10.0, 0.1)
    with pytest.raises(NoFeasiblePlan) as raised:
        plan_trace(asked(trace), trace, [candidate()])
    assert " ms by simulation, the limit is" in raised.value.rejected[0].why


def test_a_request_longer_than_the_cache_leaves_a_candidate_out() -> None:
    trace = Trace(np.arange(4.0), np.array([9, 9, 9, 500_000], np.int32), np.full(4, 5, np.int32))
    fitting, left_out = by_memory(trace, [candidate()])
    assert not fitting and "500,005 tokens" in left_out[0].why and left_out[0].kind == "memory"


@pytest.mark.parametrize("correlation", [-0.7, 0.0, 0.5])
def test_lengths_and_their_correlation_are_those_of_the_trace(correlation: float) -> None:
    rng = np.random.default_rng(5)
    normal = rng.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]], 40_000)
    isl, osl = (np.exp(6 + 0.5 * normal[:, side]).astype(np.int32) for side in (0, 1))
    found = lengths_of(Trace(np.arange(40_000.0), isl, osl))
    assert found.isl == pytest.approx(isl.mean(), rel=0.01) and found.osl_cv == pytest.approx(
        osl.std() / osl.mean(), rel=0.03
    )
    assert found.correlation == pytest.approx(correlation, abs=0.02)


def test_requests_of_two_kinds_are_as_often_long_in_both_lengths_as_in_the_trace() -> None:
    """Lengths with many ties, whose ranks say less than those of lengths that all differ."""
    rng = np.random.default_rng(3)
    long = rng.random(40_000) < 0.2
    swapped = long ^ (rng.random(40_000) < 0.03)
    isl, osl = np.where(long, 4000, 200).astype(np.int32), np.where(swapped, 1000, 50).astype(np.int32)
    found = lengths_of(Trace(np.arange(40_000.0), isl, osl))
    drawn = found.at(*np.random.default_rng(4).standard_normal((2, 200_000)))
    both = float(np.mean((drawn[0] == 4000) & (drawn[1] == 1000)))
    assert both == pytest.approx(float(np.mean(long & swapped)), abs=0.004)


def test_resampled_traffic_varies_more_where_hours_differ() -> None:
    """Sampling bands hold the count; twelve alike hours leave a narrower one than hours of which one is a storm."""
    alike = traffic(6, 8.0, hours=12, swing=0.0)
    storm = np.flatnonzero(np.floor(alike.arrival_s / HOUR_S) == 5)
    arrival_s = alike.arrival_s.copy()
    arrival_s[storm] = 5 * HOUR_S + (arrival_s[storm] - 5 * HOUR_S) / 6
    bands = []
    for trace in (alike, Trace(np.sort(arrival_s), alike.isl, alike.osl)):
        found = plan_trace(asked(trace), trace, [candidate()])
        assert found.sampling is not None and found.sampling.high is not None
        assert found.sampling.low <= found.plan.answer.working <= found.sampling.high
        assert found.sampling.of == "hours"
        bands.append(found.sampling.high - found.sampling.low)
    assert bands[0] < bands[1]


def test_a_short_trace_has_no_sampling_band() -> None:
    trace = traffic(7, 10.0)
    assert plan_trace(asked(trace), trace, [candidate()]).sampling is None


def test_hours_need_what_their_rate_needs() -> None:
    """Quiet hours need fewer replicas, none more than the fleet, and the worst hour is the busy one."""
    rng = np.random.default_rng(8)
    parts = [
        np.sort(hour * HOUR_S + rng.uniform(0, HOUR_S, int(rate * HOUR_S))) for hour, rate in enumerate((20, 160, 60))
    ]
    arrival_s = np.concatenate(parts)
    trace = Trace(arrival_s, np.full(len(arrival_s), 800, np.int32), np.full(len(arrival_s), 100, np.int32))
    found = plan_trace(asked(trace), trace, [candidate()])
    assert found.needed[0] < found.needed[2] < found.needed[1] <= found.plan.answer.working
    assert found.worst_hour == 1


def test_a_peak_thousands_of_times_the_mean_is_priced_at_the_mean() -> None:
    """3,600 requests in one hour and one 3,000 hours later: the peak is 1/s, the mean a three-thousandth of it."""
    arrival_s = np.append(np.arange(3600.0), 3000 * 3600.0)
    tokens = np.ones(len(arrival_s), np.int32)
    found = Trace(arrival_s, tokens, tokens)
    assert busiest_rate_per_s(found) / peak_factor(found) == pytest.approx(found.rate_per_s)


def at_rates(parts: list[tuple[float, int]]) -> Trace:
    """So many minutes at each of these requests/s, evenly, a request each at the end of its gap; no dates."""
    begins_s = 60 * np.cumsum([0, *(minutes for _, minutes in parts)])
    arrival_s = np.concatenate(
        [
            begin_s + np.arange(1, 1 + round(rate * 60 * minutes)) / rate
            for begin_s, (rate, minutes) in zip(begins_s, parts, strict=False)
            if rate
        ]
    )
    return Trace(arrival_s, np.full(len(arrival_s), 800, np.int32), np.full(len(arrival_s), 100, np.int32))


def test_the_busiest_hour_is_the_60_minutes_with_most_requests_whatever_the_clock() -> None:
    """An hour at 10 requests/s and ten minutes without any, from 13:25 on: neither hour of the clock has the rate of
    10, and the mean of all is 8.6."""
    trace = at_rates([(0.1, 1), (10.0, 60), (0.0, 10), (0.1, 1)])
    for began_s in (math.nan, 13 * HOUR_S + 1500.0):
        assert busiest_rate_per_s(replace(trace, began_s=began_s)) == pytest.approx(10.0, rel=1e-3)
    hour = busiest_hour(trace)
    assert (hour.from_s, hour.until_s) == pytest.approx((60, 60 + HOUR_S), abs=0.1)
    rng = np.random.default_rng(3)
    for _ in range(20):
        arrival_s = np.sort(rng.choice(3 * 3600, 300) + rng.choice([0, 0.25], 300))
        trace = replace(trace, arrival_s=arrival_s, isl=trace.isl[:300], osl=trace.osl[:300])
        each = [np.count_nonzero((first <= arrival_s) & (arrival_s < first + HOUR_S)) for first in arrival_s]
        assert busiest_rate_per_s(trace) == max(max(each) / HOUR_S, trace.rate_per_s)


def test_a_fleet_that_follows_hours_runs_whole_in_both_that_share_the_busiest_60_minutes() -> None:
    """Traffic from 00:30 to 01:30 and hardly any around: each hour of the clock has half of the rate planned for, and
    half of the fleet would not carry it."""
    trace = at_rates([(0.1, 30), (80.0, 60), (0.1, 60)])
    found = plan_trace(asked(trace), trace, [candidate()])
    assert found.question.workload.rate_per_s == pytest.approx(80.0, rel=1e-3)
    working = found.plan.answer.working
    assert working > 2 and found.needed == (working, working, 1)


def test_ranks_are_those_of_scipy() -> None:
    values = np.random.default_rng(9).integers(1, 40, 500)
    np.testing.assert_array_equal(ranks(values), rankdata(values))


# --- Classes of requests, each with an SLA of its own


def classed(trace: Trace, seed: int) -> Trace:
    """Code has long prompts and short answers."""
    of_class = np.random.default_rng(seed).integers(0, 2, len(trace)).astype(np.uint8)
    isl = np.where(of_class == 1, 2 * trace.isl, trace.isl).astype(np.int32)
    osl = np.where(of_class == 1, trace.osl // 4 + 1, trace.osl).astype(np.int32)
    return replace(trace, isl=isl, osl=osl, classes=("chat", "code"), of_class=of_class)


@pytest.mark.parametrize("part", range(3))
def test_the_count_for_classes_is_that_of_trying_every_fleet(part: int) -> None:
    """Twelve cases: the least fleet on which each class keeps its SLA, among all from one replica on."""
    right = 0
    for number in range(4 * part, 4 * part + 4):
        rng = np.random.default_rng([2, number])
        trace = classed(traffic(number, float(rng.uniform(3, 30)), 0.05, burst=float(rng.uniform(1, 8))), number)
        slas = class_slas(trace, SLA, [f"code:ttft=p95:{rng.uniform(0.15, 0.6):.3f}s,itl=none"])
        found = plan_trace(asked(trace), trace, [candidate()], slas=slas)

        def meets(count: int, trace: Trace = trace, slas: tuple[Sla, ...] = slas) -> bool:
            question = asked(trace)
            run = replay(candidate().replica, trace, question.workload, SLA, replicas=count, class_slas=slas)
            return all(each.meets for each in run.classes)

        least = next(count for count in range(1, 200) if meets(count))
        right += found.plan.answer.working == least
        assert found.plan.question.sla == loosest(slas)
        assert found.binding[1] in found.binding[0].sla.limits
    assert right >= 3


def test_one_class_needs_what_the_trace_needs() -> None:
    trace = traffic(3, 25.0, 0.1)
    plain = plan_trace(asked(trace), trace, [candidate()])
    named = plan_trace(asked(trace), trace.as_class("chat"), [candidate()], slas=[SLA])
    assert replace(named.plan.answer, of_class=None) == plain.plan.answer and named.needed == plain.needed


def test_a_class_without_requests_has_no_say() -> None:
    """As in a window in which none of its requests came, where it may share no limit with the others."""
    trace = traffic(3, 25.0, 0.1)
    with_absent = replace(trace.as_class("chat"), classes=("chat", "absent"))
    for absent in (Sla(Limit("e2e", 99, 20.0)), Sla(Limit("ttft", 50, 30.0))):
        found = plan_trace(asked(trace), with_absent, [candidate()], slas=[SLA, absent])
        assert found.plan.question.sla == SLA
        assert found.plan.answer.working == plan_trace(asked(trace), trace, [candidate()]).plan.answer.working


def test_a_stricter_class_needs_more_and_a_looser_one_no_more() -> None:
    trace = classed(traffic(5, 200.0, 0.05), 5)
    counts = [
        plan_trace(asked(trace), trace, [candidate()], slas=class_slas(trace, SLA, [text])).plan.answer.working
        for text in ("code:ttft=p99:150ms", "code:ttft=p95:400ms", "code:ttft=p50:2s,itl=none")
    ]
    assert counts[0] > counts[1] >= counts[2]


@given(
    st.lists(
        st.tuples(st.sampled_from(PERCENTILES), st.integers(1, 9), st.lists(st.integers(0, 12), min_size=1)), min_size=1
    )
)
def test_where_every_class_keeps_its_limit_all_keep_the_loosest(
    classes: list[tuple[int, int, list[int]]],
) -> None:
    common = loosest([Sla(Limit("ttft", percentile, limit)) for percentile, limit, _ in classes]).limits[0]

    def keeps(seconds: list[int], limit: Limit) -> bool:
        return 100 * sum(each > limit.limit_s for each in seconds) <= (100 - limit.percentile) * len(seconds)

    if all(keeps(seen, Limit("ttft", percentile, limit)) for percentile, limit, seen in classes):
        assert keeps([each for *_, seen in classes for each in seen], common)


def test_limits_of_classes_stand_in_place_of_those_of_all() -> None:
    trace = classed(traffic(1, 10.0, 0.1), 1)
    chat, code = class_slas(trace, SLA, ["code:ttft=p99:2s,itl=none,e2e=p95:60s"])
    assert chat == SLA
    assert [str(limit) for limit in code.limits] == ["p99 TTFT <= 2000 ms", "p95 E2E <= 60000 ms"]
    of_team = replace(trace, classes=("chat", "team:code"))
    assert class_slas(of_team, SLA, ["team:code:ttft=p99:2s,itl=none,e2e=p95:60s"]) == (chat, code)
    assert class_slas(traffic(1, 10.0, 0.1), SLA, []) == ()
    metrics: list[Metric] = [limit.metric for limit in loosest([chat, code]).limits]
    assert metrics == ["ttft"]


GOODPUT = Sla(Limit("ttft", 95, 1.0), Limit("itl", 0, 0.03), Limit.goodput(99), Limit.rejected(1))


def test_classes_keep_what_goodput_judges_by() -> None:
    """Limits without a percentile count for goodput in every class; all together keep the loosest of them."""
    trace = classed(traffic(1, 10.0, 0.1), 1)
    assert class_slas(trace, GOODPUT, []) == (GOODPUT, GOODPUT) and loosest([GOODPUT, GOODPUT]) == GOODPUT
    chat, code = class_slas(trace, GOODPUT, ["code:ttft=2s"])
    assert (chat.within, code.within) == ((("ttft", 1.0), ("itl", 0.03)), (("ttft", 2.0), ("itl", 0.03)))
    assert loosest([chat, code]) == code
    _, code = class_slas(trace, GOODPUT, ["code:ttft=none,e2e=20s"])
    assert loosest([chat, code]).within == (("itl", 0.03),)


def test_goodput_that_not_all_classes_can_share_is_none_of_all() -> None:
    """Nor is a limit that has no percentile in one of them, unless goodput judges by it."""
    plain = Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.02))
    assert loosest([GOODPUT, plain]) == Sla(Limit("ttft", 95, 1.0))
    apart = [
        Sla(Limit("ttft", 0, 1.0), Limit.goodput(99), Limit.rejected(1)),
        Sla(Limit("itl", 95, 0.02), GOODPUT.rejected),
    ]
    assert loosest(apart) == Sla(Limit.rejected(1))
    both = [Sla(Limit("ttft", 0, 1.0), Limit.goodput(99)), Sla(Limit("e2e", 0, 9.0), Limit.goodput(99))]
    with pytest.raises(ScenarioError, match="no limit in common"):
        loosest(both)


@pytest.mark.parametrize("hours", [1, 2])
def test_the_chart_shows_every_hour_and_the_last_as_wide_as_the_others(hours: int) -> None:
    trace = traffic(1, 40.0, 0.02)
    found = traffic_of(plan_trace(asked(trace), trace, [candidate()]))
    quiet = replace(found.hours[0], gpus=Quantity(1, "GPUs", "estimated"))
    shown = replace(found, hours=(found.hours[0], quiet)[:hours])
    steps = re.findall(r'd="M ([^"]*)" clip-path="[^"]*" style="fill: none; stroke: #0072b2', traffic_chart(shown).svg)
    assert len(steps) == 2, "a percentile over its limit, and GPUs"
    assert re.search(r"^Of \d hours?, a limit is exceeded: p95 TTFT in \d, p90 ITL in \d; ", traffic_chart(shown).alt)
    for step in steps:
        across = sorted({float(place.split()[0]) for place in step.split("L")})
        assert len(across) == hours + 1 and np.diff(across) == pytest.approx(np.full(hours, np.diff(across)[0]))


def test_of_more_hours_than_a_report_holds_the_worst_are_kept_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traffic(1, 40.0, 3.0, swing=0.9)
    found = plan_trace(asked(trace), trace, [candidate()])
    whole = traffic_of(found)
    assert len(whole.hours) > 2 and "are listed" not in whole.lines[-1]
    monkeypatch.setattr(build, "MOST_ROWS", 2)
    cut = traffic_of(found)
    worst = sorted(whole.hours, key=lambda hour: hour.inside.value or 0.0)[:2]
    assert sorted(cut.hours, key=lambda hour: hour.inside.value or 0.0) == worst
    assert f"Of {len(whole.hours)} hours the 2 in which" in cut.lines[-1]


def test_a_fleet_for_classes_keeps_the_goodput_of_each() -> None:
    trace = classed(traffic(2, 80.0, 0.02), 2)
    sla = Sla(Limit("ttft", 0, 0.4), Limit("itl", 0, 0.015), Limit.goodput(95))
    slas = class_slas(trace, sla, ["code:ttft=200ms"])
    found = plan_trace(replace(asked(trace), sla=sla), trace, [candidate()], slas=slas)
    assert found.plan.question.sla == sla
    assert all(
        part.goodput() >= 0.95 and part.sla == own for part, own in zip(found.replayed.classes, slas, strict=True)
    )
    shown = replace(a_report(), traffic=traffic_of(found))
    assert {row[2] for row in classes(shown).rows} == {"limits used at 95 % goodput"}, "that is what is replayed"
    drawing = traffic_chart(traffic_of(found))
    assert "limit" not in drawing.alt, "hours have no percentile to draw over its limit"
    assert len(re.findall('id="axes_', drawing.svg)) == 1


@pytest.mark.parametrize(
    ("texts", "why"),
    [
        (["cod:ttft=p95:1s"], "the trace has 'chat', 'code'"),
        (["code:ttft=p95:1s", "code:itl=none"], "is there twice"),
        (["code:ttft=none,itl=none"], "^class 'code': "),
        (["code:tft=p95:1s"], "'tft' is not one of ttft"),
        (["code:ttft=1s"], "^class 'code': .*write it as percentile:time"),
        (["code"], "write it as NAME:ttft"),
        (["code:ttft=none,itl=none"], "at least one limit"),
    ],
)
def test_limits_that_no_class_can_have(texts: list[str], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        class_slas(classed(traffic(1, 10.0, 0.1), 1), SLA, texts)


def test_classes_need_a_limit_in_common() -> None:
    with pytest.raises(ScenarioError, match="no limit in common"):
        loosest([Sla(Limit("ttft", 95, 1.0)), Sla(Limit("e2e", 95, 60.0))])


# --- Sessions on engines with a prefix cache


def talks(seed: int, sessions: int = 150) -> Trace:
    """Sessions of one to seven turns whose prompts repeat all before, within some minutes."""
    rng = np.random.default_rng(seed)
    rows = []
    for session in range(sessions):
        at_s, prompt = float(rng.uniform(0, 240)), int(rng.integers(200, 4000))
        for _ in range(int(rng.integers(1, 8))):
            answer = int(rng.integers(5, 120))
            rows.append((at_s, prompt, answer, session))
            at_s, prompt = at_s + float(rng.uniform(5, 30)), prompt + answer + int(rng.integers(10, 100))
    rows.sort()
    arrival_s, isl, osl, session_of = (np.array(column) for column in zip(*rows, strict=True))
    return Trace(arrival_s, *(of.astype(np.int32) for of in (isl, osl)), session=session_of.astype(np.int32))


@pytest.mark.parametrize("number", range(4))
def test_with_a_prefix_cache_the_count_is_that_of_trying_every_fleet(number: int) -> None:
    trace = talks(number, 150 + 250 * number)
    found = plan_trace(asked(trace), trace, [candidate()], prefix_cache=True)
    engine = found.plan.answer.candidate.replica
    assert engine.batching.prefix_cache

    def meets(count: int) -> bool:
        return replay(engine, trace.continued(), Workload(lengths_of(trace), 1.0), SLA, replicas=count).meets

    assert found.plan.answer.working == next(count for count in range(1, 200) if meets(count))
    assert found.plan.question.workload.prefix.tokens == int(found.replayed.hit_rate() * lengths_of(trace).isl)
    assert found.replayed.hit_rate() > 0.3
    assert found.plan.answer.working <= plan_trace(asked(trace), trace, [candidate()]).plan.answer.working


def test_engines_without_a_prefix_cache_are_left_out() -> None:
    trace = talks(1)
    rules = (
        replace(candidate().replica.batching, policy="static"),
        replace(candidate().replica.batching, kv_tokens=10**9),
    )
    with pytest.raises(NoFeasiblePlan) as raised:
        plan_trace(asked(trace), trace, [candidate(batching=rule) for rule in rules], prefix_cache=True)
    assert {each.why.split()[0] for each in raised.value.rejected} == {"static", "how"}


def test_requests_that_all_come_at_once_have_no_rate() -> None:
    at_once = Trace(np.zeros(3), np.full(3, 100, np.int32), np.full(3, 10, np.int32))
    with pytest.raises(TraceError, match="arrive at once"):
        busiest_rate_per_s(at_once)
