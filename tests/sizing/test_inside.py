"""What is shown of a simulated run is the run: nothing added, no peak lost, every sentence true of its numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.analyses.inside import (
    LOOK,
    SHARES,
    InsideRun,
    close_look,
    compared,
    exceedances,
    learned,
    lives_around_slowest,
    run_in_fleet,
    simulated,
    spread,
    timeline,
)
from sizing.edge import run_at
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.numbers import significant
from sizing.question import Question
from sizing.simulator import TimeSeries, Watch, simulate, simulated_stable_rate_per_s
from sizing.workload import Arrivals, Lengths, Limit, Routing, Sla, Workload

LAW = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
LENGTHS = Lengths(1000, 100, 0.5, 0.5)
ENGINE = Replica(LAW, Batching("chunked", 64, 2048, 100_000))
SLA = Sla(Limit("ttft", 95, 1.0), Limit("itl", 95, 0.05))
STABLE_PER_S = simulated_stable_rate_per_s(ENGINE, LENGTHS)


def run_of(engine: Replica = ENGINE, share: float = 0.6, requests: int = 2000, seed: int = 0) -> InsideRun:
    return InsideRun(engine, Workload(LENGTHS, share * STABLE_PER_S), requests=requests, seed=seed)


@pytest.mark.parametrize("routing", ["random", "round_robin", "least_outstanding"])
@pytest.mark.parametrize("arrivals", [Arrivals(), Arrivals("gamma", 2.0)])
def test_the_run_is_the_one_by_which_a_plan_is_verified(routing: Routing, arrivals: Arrivals) -> None:
    question = Question("m", Workload(LENGTHS, 40.0, arrivals), SLA, routing)
    run = run_in_fleet(question, ENGINE, 6.0, 5, 1000, 0)
    planners = run_at(ENGINE, question.setting(5), 6.0, 1000)
    np.testing.assert_allclose(simulated(run).e2e_s, planners.e2e_s, rtol=1e-9)


@pytest.mark.parametrize(("routing", "replicas"), [("random", 1), ("round_robin", 3), ("least_outstanding", 3)])
def test_a_close_look_shows_states_of_the_very_run(routing: Routing, replicas: int) -> None:
    slow = Replica(LAW.scaled(10), ENGINE.batching)
    run = InsideRun(slow, Workload(Lengths(500, 12, 0.3, 0.3), 3.0 * replicas), replicas, routing, 400)
    life_s = float(np.mean(simulated(run).e2e_s))
    near = close_look(run, life_s)
    whole = simulate(
        slow, run.workload, replicas=replicas, routing=routing, requests=400, watch=Watch(sample_every_s=1e-3)
    ).watched.series[0]
    seen = rows_of(near)
    assert seen and seen <= rows_of(whole)
    assert near.time_s[-1] - near.time_s[0] <= LOOK * life_s


def rows_of(series: TimeSeries) -> set[tuple[float, ...]]:
    """The samples, times to the nanosecond."""
    return {tuple(row) for row in np.round(np.transpose([getattr(series, n) for n in TimeSeries.__slots__]), 9)}


def test_a_close_look_at_a_run_shorter_than_a_life_is_its_end() -> None:
    run = run_of(requests=500)
    series = close_look(run, life_s=1e6)
    assert len(series.time_s) and series.time_s[-1] <= 1.5 * run.lasts_s


@given(
    st.lists(st.tuples(*(st.integers(0, 50) for _ in range(4))), min_size=1, max_size=300),
    st.integers(1, 40),
)
def test_a_timeline_loses_no_peak_and_no_pause(rows: list[tuple[int, int, int, int]], steps: int) -> None:
    running, waiting, kv, more = (np.array(column, float) for column in zip(*rows, strict=True))
    time_s = np.arange(len(rows), dtype=float)
    line = timeline(TimeSeries(time_s, running, waiting, np.minimum(running, 1), kv, np.cumsum(more)), steps)
    assert len(line.time_s) == min(steps, len(rows)) and np.all(np.diff(line.time_s) > 0)
    assert line.running_most.max() == running.max() and line.waiting_most.max() == waiting.max()
    assert line.kv_tokens_most.max() == kv.max()
    assert line.pauses.sum() == more.sum() and np.all(line.pauses >= 0)
    count = np.diff(np.append(line.time_s, len(rows)))
    assert line.running @ count == pytest.approx(running.sum())
    assert np.all((line.prefilling >= 0) & (line.prefilling <= 1))


def test_a_timeline_of_nothing_is_empty() -> None:
    assert all(len(getattr(timeline(TimeSeries(*(np.zeros(0),) * 6)), name)) == 0 for name in ("time_s", "pauses"))


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=200), st.integers(0, 5))
def test_a_spread_rises_from_the_least_to_the_most_and_ignores_the_unserved(values: list[float], lost: int) -> None:
    shown = spread(np.array([*values, *[np.nan] * lost]))
    assert shown[0] == min(values) and shown[-1] == max(values)
    assert np.all(np.diff(shown) >= -1e-12 * max(values)) and len(shown) == len(SHARES)


def test_a_spread_of_nothing_is_not_a_number() -> None:
    assert np.isnan(spread(np.full(3, np.nan))).all()


def test_the_slowest_first_token_is_among_its_neighbours_and_parts_add_up() -> None:
    result = simulated(run_of())
    lives = lives_around_slowest(result)
    assert lives is not None
    ttft_s = lives.waiting_s + lives.prompt_s
    assert ttft_s[lives.slowest] == pytest.approx(result.ttft_s.max())
    place = int(np.argmax(result.ttft_s))
    assert lives.arrival_s[lives.slowest] == result.arrival_s[place]
    assert ttft_s[lives.slowest] + lives.decoding_s[lives.slowest] == pytest.approx(result.e2e_s[place])


def test_prompts_too_long_for_the_budget_are_refused_before_they_are_simulated() -> None:
    tiny = replace(ENGINE, batching=replace(ENGINE.batching, token_budget=16, kv_tokens=10**9))
    with pytest.raises(ScenarioError, match="raise the token budget"):
        InsideRun(tiny, Workload(Lengths(1_000_000, 10), 0.1))
    InsideRun(replace(tiny, batching=replace(tiny.batching, policy="static")), Workload(Lengths(1_000_000, 10), 0.1))


def test_an_overload_is_said_first_with_the_rate_that_would_be_stable() -> None:
    run = run_of(share=2.0)
    said = learned(simulated(run), SLA, run.workload.rate_per_s)
    assert len(said) == 1 and said[0].startswith("No steady state")
    assert f"a replica carries {significant(STABLE_PER_S)}," in said[0]


def test_losses_pauses_and_missed_limits_are_told_with_their_counts() -> None:
    rule = replace(ENGINE.batching, kv_tokens=6000, kv_policy="max_utilization", max_waiting=2)
    run = run_of(Replica(LAW, rule), share=0.9)
    result = simulated(run)
    said = " / ".join(learned(result, SLA, run.workload.rate_per_s))
    assert result.lost and result.watched.pauses and not result.meets(SLA)
    assert f"{result.rejected:,} turned away" in said and f"{result.watched.pauses:,} times" in said
    for limit, share, allowed in exceedances(result, SLA):
        assert (share > allowed) == (
            f"{significant(100 * share)} % of the requests exceed the {limit.metric.upper()}" in said
        )
    of_gaps = learned(result, Sla(Limit("gap", 99, 0.001)), run.workload.rate_per_s)
    assert any("gaps between tokens exceed" in line and "no answer" not in line for line in of_gaps)


def test_a_kept_sla_is_said_with_the_limit_that_has_the_least_room() -> None:
    result = simulated(run_of(share=0.3))
    tight = Sla(Limit("ttft", 50, float(np.quantile(result.ttft_s, 0.6))), Limit("itl", 99, 60.0))
    first = learned(result, tight, 1.0)[0]
    assert (
        result.meets(tight)
        and first.startswith("The SLA is kept")
        and "TTFT limit" in first
        and "50 % are allowed" in first
    )
    loose = Sla(Limit("ttft", 50, 60.0), Limit("itl", 99, 60.0))
    assert learned(result, loose, 1.0)[0] == "The SLA is kept: No request exceeds a limit"


def test_stalls_are_told_where_prompts_interrupt_the_reading_and_not_where_they_cannot() -> None:
    def told(isl: int) -> bool:
        load = Workload(Lengths(isl, 200), 0.3 * simulated_stable_rate_per_s(ENGINE, Lengths(isl, 200)))
        return any(
            "hide stalls" in line for line in learned(simulated(InsideRun(ENGINE, load, requests=1000)), SLA, 1.0)
        )

    assert told(8000) and not told(10)


def test_a_run_compared_with_its_own_figures_agrees_in_all_twenty() -> None:
    result = simulated(run_of())
    figures = compared(result, result.prediction())
    assert len(figures) == 20 and all(figure.apart == 0 and not figure.far for figure in figures)
    for figure in figures:
        assert (figure.interval_s is None) == (figure.percentile is None or figure.metric == "gap")
        if figure.interval_s is not None:
            assert figure.interval_s[0] <= figure.simulated_s <= figure.interval_s[1]


def test_figures_that_do_not_exist_are_not_compared() -> None:
    one_token = simulated(InsideRun(ENGINE, Workload(Lengths(1000, 1), 2.0), requests=1000))
    assert {figure.metric for figure in compared(one_token, one_token.prediction())} == {"ttft", "e2e"}
    overload = simulated(run_of(share=2.0))
    assert compared(overload, overload.prediction()) == []
