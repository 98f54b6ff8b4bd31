"""The next point: the criterion is exact where theory gives it, and never chooses what it must not."""

from __future__ import annotations

import dataclasses
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.analyses import next_level
from sizing.analyses.next_level import (
    Belief,
    LevelChoice,
    Option,
    Prospects,
    Stop,
    believe,
    choose,
    is_settled,
    margin,
    outlook,
    prospects,
    reductions,
    spent_s,
    surplus,
)
from sizing.engine import Replica
from sizing.errors import FitError
from sizing.plans import Fleet
from sizing.points import Point, Verdict
from sizing.question import Question, Setting
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.sizing.simulated_levels import LAW, SERVER, simulated_point

NEAR, FAR = Lengths(1000, 250, 0.3, 0.3), Lengths(128, 128, 0.3, 0.3)
USERS = (1, 4, 16, 64)
OPTIONS = tuple(Option(lengths, users, max(50, 10 * users)) for lengths in (FAR, NEAR) for users in USERS)
SLA = Sla(Limit("ttft", 95, 0.5), Limit("itl", 95, 0.02))
QUESTION = Question("m", Workload(NEAR, 100.0), SLA)
FIRST_TWO = tuple(option for option in OPTIONS if option.lengths == NEAR and option.users in (1, 16))
LEFT = [option for option in OPTIONS if option not in FIRST_TWO]


def ask(points: list[Point], budget_s: float = 1e9, guess_s: float = 10.0) -> LevelChoice | Stop:
    return choose(points, OPTIONS, QUESTION, budget_s=budget_s, guess_s=lambda option: guess_s)


@cache
def two_points() -> tuple[Point, ...]:
    return tuple(map(simulated_point, FIRST_TWO))


def law_of_two() -> Belief:
    found = believe(two_points(), QUESTION)
    assert found is not None
    return found


# --- the criterion -------------------------------------------------------------------------------------------------


def cases() -> st.SearchStrategy[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Effects (k,), a precision matrix (k, k) and slopes (n, 3, k) of a linear problem."""

    def build(seed: int, k: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(seed)
        before = rng.standard_normal((2 * k, k))
        return rng.standard_normal(k), np.eye(k) + before.T @ before, 3 * rng.standard_normal((n, 3, k))

    return st.builds(build, st.integers(0, 2**32), st.integers(1, 8), st.integers(1, 6))


@given(cases())
def test_the_reduction_is_that_of_bayesian_regression(case: tuple[np.ndarray, np.ndarray, np.ndarray]) -> None:
    """Precision matrices add: the variance before less the variance after, inverted in full, to rounding."""
    effects, knowledge, slopes = case
    before = effects @ np.linalg.inv(knowledge) @ effects
    after = [effects @ np.linalg.inv(knowledge + rows.T @ rows) @ effects for rows in slopes]
    assert reductions(effects, knowledge, slopes) == pytest.approx(before - np.array(after), rel=1e-6, abs=1e-9)


@given(cases(), st.floats(1.0, 10.0))
def test_a_better_instrument_never_tells_less(case: tuple[np.ndarray, np.ndarray, np.ndarray], sharper: float) -> None:
    effects, knowledge, slopes = case
    plain, better = reductions(effects, knowledge, slopes), reductions(effects, knowledge, sharper * slopes)
    assert np.all(plain >= -1e-12)
    assert np.all(better >= plain * (1 - 1e-9) - 1e-12)
    assert np.all(better <= effects @ np.linalg.inv(knowledge) @ effects + 1e-9)


def test_the_option_thought_best_narrows_more_than_the_one_thought_worst() -> None:
    """Both are then measured and fitted, with two seeds: the prediction of the linear rule is borne out."""
    belief = law_of_two()
    gains = reductions(belief.effects, np.eye(len(belief.effects)), prospects(belief, LEFT).slopes)
    best, worst = LEFT[int(np.argmax(gains))], LEFT[int(np.argmin(gains))]
    sigmas: dict[Option, list[float]] = {best: [], worst: []}
    for seed in (1, 2):
        for option, found in sigmas.items():
            after = believe((*two_points(), simulated_point(option, seed=seed)), QUESTION)
            assert after is not None
            found.append(after.sigma)
    assert np.mean(sigmas[best]) < np.mean(sigmas[worst])
    assert np.mean(sigmas[best]) < belief.sigma


@settings(max_examples=20, deadline=None)
@given(budget_s=st.floats(0, 500), more_s=st.floats(0, 500))
def test_the_outlook_keeps_the_budget_and_gets_surer_with_it(budget_s: float, more_s: float) -> None:
    belief = law_of_two()
    seconds = ahead_of_two().seconds
    spent, sigma = outlook(belief, ahead_of_two(), budget_s, 0.0)
    assert spent <= budget_s
    assert sigma <= belief.sigma
    if budget_s >= seconds.sum():
        assert (spent, sigma) == pytest.approx(outlook(belief, ahead_of_two(), budget_s + more_s, 0.0))
    if budget_s < seconds.min():
        assert (spent, sigma) == (0.0, belief.sigma)


@cache
def ahead_of_two() -> Prospects:
    return prospects(law_of_two(), LEFT)


def test_the_margin_falls_without_a_jump_where_capacity_ends() -> None:
    """Engines ever slower, from well within the SLA to well beyond it: each has less room, by steps that fit."""
    setting = Setting(QUESTION.workload, SLA, "random")
    factors = np.exp(np.linspace(0, 1.6, 17))
    replicas = [Replica(LAW.scaled(float(factor)), SERVER.batching) for factor in factors]
    margins = np.array([margin(replica, setting) for replica in replicas])
    within = np.array([surplus(replica, setting) > 0 for replica in replicas])
    assert within[0]
    assert not within[-1]
    assert np.all(np.diff(margins) < 0)
    edge = int(np.flatnonzero(~within)[0])
    assert margins[edge] - margins[edge + 1] == pytest.approx(0.2, abs=0.02)  # twice 0.1: later, and further over


# --- what is known before and after ---------------------------------------------------------------------------------


def test_no_law_before_two_levels_are_measured_well() -> None:
    one, two = two_points()
    void = dataclasses.replace(two, verdict="unsteady")
    offered = dataclasses.replace(two, load_kind="poisson_rate")
    assert believe((one, void, offered), QUESTION) is None
    assert believe((one,), QUESTION) is None
    assert law_of_two().working is not None


def test_an_sla_out_of_reach_is_believed_as_no_count() -> None:
    hard = dataclasses.replace(QUESTION, sla=Sla(Limit("itl", 95, 0.001)))
    found = believe(two_points(), hard)
    assert found is not None
    assert found.working is None
    assert found.surplus < 0
    assert "even at 1 % of the load" in str(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_levels_take_the_time_expected(seed: int) -> None:
    """From a law of two levels, lengths never measured included: hardly one of 18 takes longer than said at most."""
    taken = np.array([option.spent_s(simulated_point(option, seed=seed)) for option in LEFT])
    assert np.mean(taken <= ahead_of_two().longest_s) >= 5 / 6
    assert np.all(ahead_of_two().seconds < ahead_of_two().longest_s)
    assert np.median(np.abs(ahead_of_two().seconds / taken - 1)) < 0.15


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_levels_that_took_twice_their_plan_double_what_is_expected(factor: float) -> None:
    """Levels that ended early are expected to do so again, but not counted on: the budget is for the plan's time."""
    points = []
    for option, point in zip(FIRST_TWO, two_points(), strict=True):
        outside_s = option.extra_rounds * option.users / point.requests_per_s
        taken_s = factor * option.seconds(point.requests_per_s) - outside_s
        points.append(dataclasses.replace(point, duration_s=taken_s))
    choice = ask(points)
    assert isinstance(choice, LevelChoice)
    planned_s = dict(zip(LEFT, ahead_of_two().seconds, strict=True))[choice.option]
    assert choice.seconds == pytest.approx(factor * planned_s)
    cheapest_s = max(1.0, factor) * ahead_of_two().longest_s.min()
    spent = spent_s(points, OPTIONS)
    too_little = ask(points, budget_s=spent + 0.99 * cheapest_s)
    assert isinstance(too_little, Stop)
    assert too_little.because == "budget"
    decision = ask(points, budget_s=spent + 1.01 * cheapest_s)
    assert not isinstance(decision, Stop) or decision.because == "worth"


def test_a_round_is_one_request_of_every_user() -> None:
    option = Option(NEAR, users=10, requests=100, extra_rounds=4)
    assert option.seconds(requests_per_s=5.0) == pytest.approx(100 / 5 + 4 * 10 / 5)
    assert dataclasses.replace(option, limit_s=3.0).seconds(5.0) == pytest.approx(3 + 8)


# --- the choice -----------------------------------------------------------------------------------------------------


def test_the_start_spans_the_lengths_asked_for() -> None:
    """The fewest users at the nearest lengths, then the middle (on a log scale) of the range."""
    first = ask([])
    assert isinstance(first, LevelChoice)
    assert (first.option.lengths, first.option.users, first.aim) == (NEAR, 1, "start")
    second = ask([simulated_point(first.option)])
    assert isinstance(second, LevelChoice)
    assert second.option.lengths == NEAR
    assert second.option.users in (4, 16)


def test_the_choice_after_a_law_is_new_and_of_the_most_gain_per_second() -> None:
    choice = ask(list(two_points()))
    assert isinstance(choice, LevelChoice)
    assert choice.aim == "gain"
    effects = law_of_two().effects
    rates = reductions(effects, np.eye(len(effects)), ahead_of_two().slopes) / ahead_of_two().seconds
    assert choice.option == LEFT[int(np.argmax(rates))]
    assert 0 < choice.narrows < 1
    assert choice.seconds <= choice.remaining_s


@settings(max_examples=15, deadline=None)
@given(budget_s=st.floats(0.1, 400))
def test_a_level_fits_the_budget_or_is_not_chosen(budget_s: float) -> None:
    points = list(two_points())
    decision = ask(points, budget_s)
    left_s = budget_s - spent_s(points, OPTIONS)
    if isinstance(decision, LevelChoice):
        assert 1.1 * decision.seconds <= left_s
        assert decision.remaining_s <= left_s
    else:
        assert decision.because == ("worth" if ahead_of_two().longest_s.min() <= left_s else "budget")


def test_no_time_at_all_is_said_before_anything_is_measured() -> None:
    assert ask([], budget_s=5.0, guess_s=10.0) == Stop("budget")


@pytest.mark.parametrize("verdict", ["overloaded", "client_limited", "errors", "unsteady", "little", "wrong_lengths"])
def test_a_void_level_is_not_chosen_again(verdict: Verdict) -> None:
    """Above one that the load itself has spoilt, none higher of those lengths is chosen: of the client's lag two."""
    spoilt = [simulated_point(option, verdict=verdict) for option in OPTIONS if option.users == 4]
    decision = ask(spoilt)
    chosen = set()
    while isinstance(decision, LevelChoice):
        assert decision.aim == "start"
        chosen.add(decision.option.users)
        spoilt.append(simulated_point(decision.option, verdict=verdict))
        decision = ask(spoilt)
    assert decision == Stop("nothing")
    assert chosen == ({1} if verdict in ("overloaded", "client_limited", "errors") else {1, 16, 64})


@pytest.mark.parametrize(("verdict", "goes_on"), [("client_limited", True), ("errors", False), ("overloaded", False)])
def test_a_moment_s_lag_of_the_client_does_not_end_a_sweep(verdict: Verdict, goes_on: bool) -> None:
    """A fixed lag is the largest share of the shortest times, which are those of the fewest users."""
    spoilt = [simulated_point(option, verdict=verdict) for option in OPTIONS if option.users == 1]
    assert isinstance(ask(spoilt), LevelChoice) == goes_on


def counted(working: int, low: int, high: int | None, load_per_s: float = 1.0) -> Belief:
    """What is believed of `two_points`, but with this count and band."""
    belief = law_of_two()
    assert isinstance(belief.sized, Fleet)
    fleet = dataclasses.replace(
        belief.sized, working=working, working_low=low, working_high=high, load_per_s=load_per_s
    )
    return dataclasses.replace(belief, sized=fleet)


@pytest.mark.parametrize(
    ("counts", "band_now", "settled"),
    [
        ((12, 12, 12), (11, 13), True),
        ((12, 12, 12), (11, 14), False),  # a quarter of the count is open
        ((12, 12, 13), (11, 13), True),  # the last but one point changed it by one replica, within the band
        ((12, 12, 13), (11, 12), False),  # outside it
        ((12, 12, 14), (12, 14), False),  # two replicas
        ((9, 9, 9), (8, 10), True),  # a fifth of nine is two, as counts go
        ((3, 3, 3), (3, 4), True),  # one replica
        ((3, 3, 3), (2, 4), False),
        ((12, 12, 12), (11, None), False),  # no number would do at the slow end
        ((100, 102, 104), (95, 110), True),  # within 5 %
        ((100, 102, 107), (95, 110), False),
        ((12, 12), (11, 13), False),  # too early to tell
    ],
)
def test_when_a_count_is_settled(counts: tuple[int, ...], band_now: tuple[int, int | None], settled: bool) -> None:
    assert is_settled([counted(count, *band_now) for count in counts], band=0.2) is settled


@given(st.integers(1, 200), st.integers(0, 40), st.integers(0, 40), st.floats(0.01, 1), st.floats(0.01, 1))
def test_who_asks_for_less_is_never_later_satisfied(working: int, down: int, up: int, band: float, more: float) -> None:
    belief = counted(working, max(1, working - down), working + up)
    assert belief.is_narrow(max(band, more)) or not belief.is_narrow(min(band, more))
    assert belief.sigma_for(max(band, more)) >= belief.sigma_for(min(band, more))


def test_a_settled_count_beyond_what_was_measured_is_reached_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planned replica would hold about 40 requests, 16 were measured: 64 users at the lengths asked for come next."""
    belief = counted(12, 12, 12)
    assert isinstance(belief.sized, Fleet)
    held = counted(12, 12, 12, load_per_s=40 / belief.sized.predicted.e2e.mean_s)
    assert held.beyond == pytest.approx(40)
    points = [*two_points(), simulated_point(OPTIONS[0])]
    for now, aim in ((held, "reach"), (belief, None)):
        monkeypatch.setattr(next_level, "believe", lambda points, question, now=now: now)
        decision = ask(points)
        assert (decision.aim, decision.option) == ("reach", OPTIONS[-1]) if aim else decision == Stop("settled", now)
    monkeypatch.setattr(next_level, "believe", lambda points, question: held)
    assert ask(points, budget_s=spent_s(points, OPTIONS) + 10) == Stop("settled", held)


def test_prompts_of_another_length_are_measured_before_a_sweep_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """All points have one ISL, and the count is settled: the quickest level of the other ISL comes next."""
    belief = counted(12, 12, 12)
    points = list(two_points())
    monkeypatch.setattr(next_level, "believe", lambda points, question: belief)
    monkeypatch.setattr(next_level, "history", lambda points, question: [belief] * next_level.STEADY_FOR)
    decision = ask(points)
    assert isinstance(decision, LevelChoice)
    assert (decision.aim, decision.option.lengths) == ("contrast", FAR)
    assert ask(points, budget_s=spent_s(points, OPTIONS) + 0.01) == Stop("settled", belief)


def test_a_server_that_no_law_fits_is_left_to_the_grid() -> None:
    """Every other level ran beside a noisy neighbour and took four times as long: soon told, and said."""
    levels = [option for option in OPTIONS if option.lengths == NEAR]
    points = [simulated_point(option) for option in [*levels, OPTIONS[2]]]
    disturbed = [
        dataclasses.replace(point, itl_mean_s=4 * (point.itl_mean_s or 0), requests_per_s=point.requests_per_s / 4)
        for point in points[1::2]
    ]
    points[1::2] = disturbed
    decision = ask(points)
    assert isinstance(decision, Stop)
    assert decision.because == "misfit"
    assert decision.belief is not None
    assert "the law misses the points" in decision.belief.warning


def test_when_all_is_measured_there_is_nothing_left() -> None:
    decision = ask([*two_points(), *(simulated_point(o, verdict="unsteady") for o in OPTIONS if o not in FIRST_TWO)])
    assert isinstance(decision, Stop)
    assert decision.because == "nothing"
    assert decision.belief is law_of_two()


def test_the_points_alone_decide() -> None:
    """After a restart, with nothing remembered, the same points lead to the same level."""
    before = ask(list(two_points()))
    believe.cache_clear()
    after = ask(list(two_points()))
    assert isinstance(before, LevelChoice)
    assert isinstance(after, LevelChoice)
    assert (after.option, after.seconds, after.narrows) == (before.option, before.seconds, before.narrows)


def test_points_of_two_deployments_are_refused() -> None:
    one, two = two_points()
    with pytest.raises(FitError, match="2 deployments"):
        ask([one, dataclasses.replace(two, gpu="h")])
