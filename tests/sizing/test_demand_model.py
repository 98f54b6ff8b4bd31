"""Models of demand: laws of what is drawn, dispersions against theory, fits against the processes behind the data."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from sizing.demand_model import (
    DAY_S,
    FEWEST,
    SCHEMA,
    DemandModel,
    Gamma,
    Mmpp,
    Poisson,
    as_json,
    compared,
    drawn,
    fitted,
    hourly,
    on_profile,
    parse_model,
    two_state_third,
)
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.token_law import TokenLaw
from sizing.trace import HOUR_S, Trace, TraceError
from tests.sizing.token_laws import law_of, laws

ISL, OSL = law_of("points:200@0.5,1000@0.3,4000@0.2"), law_of("points:50@0.4,300@0.6")
ONE_LENGTH = law_of("points:100")
BURSTS = Mmpp(low_factor=0.5, low_s=120.0, high_s=30.0)
"""Three times the rate for half a minute, else half of it: its factor has a variance of 1 and forgets within 24 s."""
PROCESSES = [Poisson(), Gamma(0.5), Gamma(2.0), BURSTS]
names = [f"{each.kind} {each.cv:g}" for each in PROCESSES]

sojourns = st.floats(1, 500)
processes = (
    st.builds(Poisson)
    | st.builds(Gamma, st.floats(0.1, 5))
    | st.builds(Mmpp, st.floats(0, 1), low_s=sojourns, high_s=sojourns)
)
rate = st.just(0.0) | st.floats(0.01, 20)
profiles = (
    st.sampled_from([1, 24, 168])
    .flatmap(lambda hours: st.lists(rate, min_size=hours, max_size=hours))
    .filter(any)
    .map(tuple)
)
models = st.builds(DemandModel, profiles, processes, laws, laws, st.floats(-1, 1))


def day(mean_per_s: float, swing: float = 0.6) -> tuple[float, ...]:
    """Rates of the hours of a day, least at midnight."""
    return tuple((mean_per_s * (1 - swing * np.cos(2 * np.pi * (np.arange(24) + 0.5) / 24))).tolist())


def model(arrivals: Poisson | Gamma | Mmpp, *rates_per_s: float, correlation: float = 0.0) -> DemandModel:
    return DemandModel(rates_per_s, arrivals, ISL, OSL, correlation)


def alike(arrivals: Poisson | Gamma | Mmpp, *rates_per_s: float) -> DemandModel:
    """Requests of one length, where only arrivals are asked about: lengths need no fit."""
    return DemandModel(rates_per_s, arrivals, ONE_LENGTH, ONE_LENGTH)


# --- Values and files


@settings(max_examples=40)
@given(models)
def test_a_model_is_read_back_from_its_json(found: DemandModel) -> None:
    assert parse_model(as_json(found).encode(), "demand.json") == found


GOOD = json.loads(as_json(model(BURSTS, 2.0)))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": "sizing-report/2"}, SCHEMA),
        ({"rates_per_s": [1.0, 2.0]}, "1, 24 or 168 rates"),
        ({"rates_per_s": [0.0]}, "above 0"),
        ({"rates_per_s": [-1.0]}, "rates_per_s.0"),
        ({"rates_per_s": [math.nan]}, "rates_per_s.0"),
        ({"rates_per_s": [1.0] * 200}, "rates_per_s"),
        ({"arrivals": {"kind": "pareto"}}, "arrivals"),
        ({"arrivals": {"kind": "gamma"}}, "arrivals.gamma.cv"),
        ({"arrivals": {"kind": "gamma", "cv": 0.0}}, "arrivals.gamma.cv"),
        ({"arrivals": {"kind": "mmpp", "low_factor": 2, "low_s": 1, "high_s": 1}}, "arrivals.mmpp.low_factor"),
        ({"isl": "points:0"}, "isl"),
        ({"isl": "histogram:lengths.csv"}, "isl"),
        ({"osl": "lognormal"}, "osl"),
        ({"osl": 12}, "osl"),
        ({"correlation": 1.5}, "correlation"),
        ({"run": "rm -r /"}, "unknown key"),
    ],
)
def test_a_faulty_model_is_one_line_that_names_the_key(change: dict[str, object], says: str) -> None:
    with pytest.raises(ScenarioError, match=r"^demand\.json: ") as raised:
        parse_model(json.dumps(GOOD | change).encode(), "demand.json")
    assert says in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"null", b"{}", b"[" * 9999, b" " * 2**21])
def test_what_is_no_model_is_one_line(content: bytes) -> None:
    with pytest.raises(ScenarioError, match=r"^demand\.json: "):
        parse_model(content, "demand.json")


# --- The profile


@settings(max_examples=40)
@given(profiles)
def test_every_hour_has_its_mean_and_the_periods_follow_each_other(rates_per_s: tuple[float, ...]) -> None:
    hours = np.arange(3 * len(rates_per_s) + 1)
    expected = model(Poisson(), *rates_per_s).expected(hours * HOUR_S)
    assert np.diff(expected) == pytest.approx(np.tile(rates_per_s, 3) * HOUR_S, rel=1e-6, abs=1e-6)
    minutes = model(Poisson(), *rates_per_s).expected(60.0 * np.arange(60 * len(rates_per_s)))
    assert np.diff(minutes).min(initial=0) >= -1e-6


def test_hours_of_a_dated_trace_are_those_of_its_clock() -> None:
    """Two days from a Friday, 14:30 UTC, with a rush from 16:00 to 17:00; and three weeks with busy Mondays."""
    rng = np.random.default_rng(1)
    began_s = datetime(2024, 5, 10, 14, 30, tzinfo=UTC).timestamp()
    rush = 1.5 * HOUR_S + rng.uniform(0, HOUR_S, 3600)
    at_s = np.sort(np.concatenate([rng.uniform(0, 2 * DAY_S, 20_000), rush, rush + DAY_S]))
    trace = Trace(at_s, *(np.ones(len(at_s), np.int32),) * 2, began_s)
    rates = hourly(on_profile(trace, 24, 0), 24)
    assert np.argmax(rates) == 16 and max(rates) == pytest.approx(1 + 20_000 / 2 / DAY_S, rel=0.05)
    monday = datetime(2024, 5, 13, tzinfo=UTC).timestamp() - began_s
    at_s = np.sort(np.concatenate([rng.uniform(0, 21 * DAY_S, 40_000), monday + rng.uniform(0, DAY_S, 20_000)]))
    trace = Trace(at_s, *(np.ones(len(at_s), np.int32),) * 2, began_s)
    rates = fitted(trace).rates_per_s
    assert len(rates) == 168 and min(rates[:24]) > max(rates[24:])


# --- What is drawn


@settings(max_examples=40)
@given(models, st.floats(0.01, 0.1), st.floats(0.1, 2), st.integers(0, 2**32))
def test_drawn_requests_ascend_within_the_days_and_have_lengths_of_the_laws(
    of: DemandModel, days: float, scale: float, seed: int
) -> None:
    try:
        trace = drawn(of, days, seed=seed, scale=scale)
    except ScenarioError as error:
        assert "ask for more days" in str(error)
        assume(False)
    assert trace.arrival_s[0] >= 0 and trace.arrival_s[-1] <= days * DAY_S
    assert np.diff(trace.arrival_s).min() >= 0
    for law, tokens in ((of.isl, trace.isl), (of.osl, trace.osl)):
        assert law.cells[0][0] <= tokens.min() and tokens.max() <= law.cells[-1][1]
    again = drawn(of, days, seed=seed, scale=scale)
    assert np.array_equal(trace.arrival_s, again.arrival_s) and np.array_equal(trace.isl, again.isl)


@pytest.mark.parametrize("arrivals", PROCESSES, ids=names)
@pytest.mark.parametrize("seed", [1, 2])
def test_scale_multiplies_the_rate(arrivals: Poisson | Gamma | Mmpp, seed: int) -> None:
    """Counts of a renewal process scatter by cv^2 times their mean; of states by as much once the states are given,
    which the scale leaves as they are."""
    one, three = (len(drawn(model(arrivals, *day(2.0)), 1.0, seed=seed, scale=scale)) for scale in (1.0, 3.0))
    assert abs(three - 3 * one) < 4 * arrivals.cv * math.sqrt(12 * one)


def test_hours_of_a_drawn_trace_have_the_rates_of_the_profile() -> None:
    rates = np.array(day(3.0))
    trace = drawn(model(Poisson(), *rates.tolist()), 1.0, seed=3)
    counts = np.bincount((trace.arrival_s // HOUR_S).astype(int), minlength=24)
    assert np.abs((counts - HOUR_S * rates) / np.sqrt(HOUR_S * rates)).max() < 4


def index_of(trace: Trace, rate_per_s: float, every_s: float) -> tuple[float, float]:
    """Index of dispersion around a known rate, and its standard error by twenty parts."""
    last = int(trace.arrival_s[-1] // every_s)
    counts = np.bincount((trace.arrival_s // every_s).astype(int))[:last]
    squares: Floats = (counts - rate_per_s * every_s) ** 2 / (rate_per_s * every_s)
    means = np.array([part.mean() for part in np.array_split(squares, 20)])
    return float(means.mean()), float(means.std(ddof=1) / math.sqrt(20))


def cookbook(states: Mmpp, rate_per_s: float, every_s: float) -> float:
    """Fischer and Meier-Hellstern (1993), by the rates l1, l2 and the transition rates r1, r2 of the two states."""
    (l1, r1), (l2, r2) = (
        (rate_per_s * states.low_factor, 1 / states.low_s),
        (rate_per_s * states.high_factor, 1 / states.high_s),
    )
    limit = 2 * (l1 - l2) ** 2 * r1 * r2 / ((r1 + r2) ** 2 * (l1 * r2 + l2 * r1))
    return 1 + limit - limit / ((r1 + r2) * every_s) * (1 - math.exp(-(r1 + r2) * every_s))


@pytest.mark.parametrize("states", [BURSTS, Mmpp(0.0, 20.0, 5.0), Mmpp(0.9, 3.0, 300.0)])
@pytest.mark.parametrize("seed", [1, 2])
def test_drawn_states_have_the_dispersion_of_the_cookbook(states: Mmpp, seed: int) -> None:
    trace = drawn(model(states, 10.0), 0.5, seed=seed)
    for every_s in (1.0, 10.0, 60.0):
        theory = cookbook(states, 10.0, every_s)
        assert states.dispersion(10.0, every_s) == pytest.approx(theory, rel=1e-9)
        found, error = index_of(trace, 10.0, every_s)
        assert abs(found - theory) < 4 * error


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("cv", [0.3, 1.0, 3.0])
def test_gaps_have_the_dispersion_of_their_renewal_process(cv: float, seed: int) -> None:
    """1 of Poisson, towards cv^2 of gamma gaps, and in between what the renewal function says."""
    arrivals = Poisson() if cv == 1 else Gamma(cv)
    trace = drawn(model(arrivals, 5.0), 0.5, seed=seed)
    for every_s, limit in ((0.5, None), (2.0, None), (60.0, cv**2)):
        theory = limit or arrivals.dispersion(5.0, every_s)
        found, error = index_of(trace, 5.0, every_s)
        assert abs(found - theory) < 4 * error + 0.002 * theory


@given(st.floats(1e-3, 1e3))
def test_the_dispersion_of_erlang_gaps(expected: float) -> None:
    """Of two exponential stages the renewal function is known: x - 1/4 + exp(-4 x)/4 (Cox 1962, 4.4)."""
    theory = 0.5 + (1 - math.exp(-4 * expected)) / (8 * expected)
    assert Gamma(math.sqrt(0.5)).dispersion(expected, 1.0) == pytest.approx(theory, rel=1e-6)
    assert Gamma(1.0).dispersion(expected, 1.0) == pytest.approx(1, rel=1e-6)


@given(st.floats(1e-3, 100))
def test_the_third_cumulant_of_two_states(passed: float) -> None:
    """Its integral over pairs of gaps between three moments, by numbers."""
    gaps = np.linspace(0, 1, 20_001)
    theory = 6 * np.trapezoid((1 - gaps) * gaps * np.exp(-passed * gaps), gaps)
    assert two_state_third(passed, 1.0) == pytest.approx(float(theory), rel=1e-4)


@given(st.floats(0, 0.95), st.floats(1, 500), st.floats(1, 500))
def test_states_follow_from_their_moments(low_factor: float, low_s: float, high_s: float) -> None:
    states = Mmpp(low_factor, low_s, high_s)
    share = states.high_share
    assert (1 - share) * low_factor + share * states.high_factor == pytest.approx(1)
    skewness = (1 - 2 * share) / math.sqrt(share * (1 - share))
    again = Mmpp.of(states.variance, states.relaxing_per_s, skewness)
    assert again.low_factor == pytest.approx(low_factor, abs=1e-3)
    assert (again.low_s, again.high_s) == pytest.approx((low_s, high_s), rel=1e-3)


# --- What is fitted


@pytest.mark.parametrize("seed", range(3))
def test_a_fit_recovers_two_states(seed: int) -> None:
    """From two days of 3 requests/s: factors within 15 %, sojourns within 30 %, for they are seen some 1,150 times."""
    found = fitted(drawn(alike(BURSTS, *day(3.0)), 2.0, seed=seed)).arrivals
    assert isinstance(found, Mmpp)
    assert (found.low_factor, found.high_factor) == pytest.approx((0.5, 3.0), rel=0.15)
    assert (found.low_s, found.high_s) == pytest.approx((120.0, 30.0), rel=0.3)


@pytest.mark.parametrize("cv", [0.5, 2.0, 4.0])
def test_a_fit_recovers_gamma_gaps(cv: float) -> None:
    found = fitted(drawn(alike(Gamma(cv), *day(3.0)), 1.0, seed=4)).arrivals
    assert isinstance(found, Gamma) and found.cv == pytest.approx(cv, rel=0.04)


@pytest.mark.parametrize("arrivals", PROCESSES, ids=names)
@pytest.mark.parametrize("rates", [day(1.0), (1.0,)], ids=["by hour", "flat"])
def test_the_process_that_made_the_data_is_chosen(arrivals: Poisson | Gamma | Mmpp, rates: tuple[float, ...]) -> None:
    """In 9 of 10 cases or more: of a day with a profile, and of eight hours without one."""
    days = 1.0 if len(rates) > 1 else 1 / 3
    kinds = [fitted(drawn(alike(arrivals, *rates), days, seed=seed)).arrivals.kind for seed in range(10)]
    assert kinds.count(arrivals.kind) >= 9


def test_rounded_times_are_no_bursts() -> None:
    trace = drawn(alike(Poisson(), 4.0), 0.5, seed=5)
    for step_s in (1.0, 3.0):
        rounded = replace(trace, arrival_s=step_s * np.floor(trace.arrival_s / step_s))
        assert fitted(rounded).arrivals.kind == "poisson"


@pytest.mark.parametrize("seed", range(2))
def test_a_model_of_what_a_model_drew_is_the_model(seed: int) -> None:
    """Rates of hours within 4 standard errors, lengths within 2 %, dispersion within 20 % at every scale."""
    rng = np.random.default_rng(seed)
    isl, osl = (TokenLaw.of(rng.lognormal(mu, 0.8, 30_000).astype(int) + 1) for mu in (7.0, 5.0))
    first = DemandModel(day(2.0), BURSTS, isl, osl, 0.4)
    second = fitted(drawn(first, 5.0, seed=seed))
    errors = np.sqrt(BURSTS.dispersion(2.0, HOUR_S) / (5 * HOUR_S * np.array(first.rates_per_s)))
    assert (np.abs(np.log(np.divide(second.rates_per_s, first.rates_per_s))) < 4 * errors).all()
    for one, other in ((first.isl, second.isl), (first.osl, second.osl)):
        assert (other.mean, other.cv) == pytest.approx((one.mean, one.cv), rel=0.02)
    assert second.correlation == pytest.approx(0.4, abs=0.02)
    for every_s in (1.0, 10.0, 60.0, 600.0):
        one, other = (each.arrivals.dispersion(2.0, every_s) for each in (first, second))
        assert other == pytest.approx(one, rel=0.2)


@settings(max_examples=15)
@given(
    st.integers(FEWEST, 3000),
    st.floats(-3, 2),
    st.floats(0, 3),
    st.sampled_from([0.0, 0.001, 1.0, 60.0]),
    st.sampled_from([math.nan, 1.7e9, 1.7e9 + 0.123]),
    st.integers(1, 5000),
    st.integers(0, 2**32),
)
def test_any_trace_has_a_model(
    requests: int, log_gap: float, spread: float, step_s: float, began_s: float, longest: int, seed: int
) -> None:
    """Or is refused in a line: gaps from equal ones to a few that are nearly all of the time, rounded or not."""
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(10**log_gap * rng.lognormal(0, spread, requests))
    if step_s:
        arrival_s = step_s * np.floor(arrival_s / step_s)
    trace = Trace(arrival_s, *rng.integers(1, longest + 1, (2, requests), np.int32), began_s)
    try:
        found = fitted(trace, seed=seed)
    except TraceError as error:
        assert re.search("needs 100 requests and 40 s|400 days at most", str(error))
        return
    assert parse_model(as_json(found).encode(), "x") == found
    assert all(math.isfinite(figure) for row in compared(found, trace, seed=seed) for figure in row[1:5])


def test_too_little_and_too_long_is_refused() -> None:
    some = np.ones(FEWEST, np.int32)
    cases = (
        (np.arange(50.0), "50 requests"),
        (np.linspace(0, 9, FEWEST), "in 9 s"),
        (np.array([0, 3410]), "in 3,410 s"),
    )
    for at_s, says in (*cases, (np.linspace(0, 1e9, FEWEST), "got 11,574: check the times")):
        with pytest.raises(TraceError, match=says):
            fitted(Trace(at_s, some[: len(at_s)], some[: len(at_s)]))


@pytest.mark.parametrize(
    ("days", "scale", "says"),
    [
        (0.0, 1.0, "days must be"),
        (math.nan, 1.0, "days must be"),
        (math.inf, 1.0, "days must be"),
        (1.0, -1.0, "scale must be"),
        (1e9, 1.0, "at most"),
        (1.0, 1e9, "at most"),
        (1e-6, 1.0, "ask for more days"),
    ],
)
def test_what_cannot_be_drawn_is_refused(days: float, scale: float, says: str) -> None:
    with pytest.raises(ScenarioError, match=says):
        drawn(model(BURSTS, 2.0), days, scale=scale)


# --- How well a model meets a trace


@pytest.mark.parametrize("arrivals", PROCESSES, ids=names)
def test_a_model_meets_what_it_drew(arrivals: Poisson | Gamma | Mmpp) -> None:
    trace = drawn(model(arrivals, *day(2.0), correlation=0.5), 2.0, seed=6)
    assert [row.figure for row in compared(fitted(trace), trace) if not row.met] == []


def test_what_two_states_cannot_explain_is_told() -> None:
    """Groups of twenty requests at once, on top of states that last for half an hour."""
    rng = np.random.default_rng(7)
    groups = drawn(model(Mmpp(0.3, 3600.0, 1800.0), 0.05), 4.0, seed=7)
    arrival_s = np.repeat(groups.arrival_s, 20)
    tokens = rng.integers(1, 100, (2, len(arrival_s)), np.int32)
    trace = Trace(arrival_s, *tokens)
    missed = [row.figure for row in compared(fitted(trace), trace) if not row.met]
    assert any("dispersion" in figure for figure in missed)
    assert not any("ISL" in figure for figure in missed)


def test_a_short_trace_is_compared_over_its_flat_rate() -> None:
    trace = drawn(model(Poisson(), 50.0), 1 / 24, seed=8)
    found = fitted(trace)
    assert len(found.rates_per_s) == 1
    rows = compared(found, trace)
    assert all(row.met for row in rows)
    figures = {row.figure for row in rows}
    assert figures >= {"dispersion of requests in 60 s", "p99 of requests in a minute, over the profile"}
