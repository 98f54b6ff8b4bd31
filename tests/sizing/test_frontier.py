"""The front: nothing in it is surpassed, nothing outside it is not; the speeds it is drawn from follow the planner."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from sizing.analyses.curves import (
    COST,
    INTERACTIVITY,
    REQUESTS,
    TOKENS,
    Speed,
    SpeedCurve,
    front,
    resampled,
    speed_curve,
)
from sizing.workload import Lengths, Workload
from tests.sizing.fleets_at_hand import candidate, fleet, question

numbers = some.integers(-6, 6).map(float)  # few values, so that ties are common
points = some.lists(some.tuples(numbers, numbers), max_size=30)
ways = some.sampled_from(["higher", "lower"])


def surpasses(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] >= other[0] and one[1] >= other[1]


@given(points)
def test_the_front_is_what_nothing_surpasses_each_place_once(given: list[tuple[float, float]]) -> None:
    kept = {given[place] for place in front(given)}
    assert kept == {one for one in given if not any(surpasses(other, one) for other in given)}
    assert len(front(given)) == len(kept)


@given(points)
def test_along_the_front_more_of_one_is_less_of_the_other(given: list[tuple[float, float]]) -> None:
    for one, other in pairwise(given[place] for place in front(given)):
        assert one[0] < other[0] and one[1] > other[1]


@given(points, some.integers(-20, 20), some.integers(-20, 20))
def test_units_do_not_matter(given: list[tuple[float, float]], first: int, second: int) -> None:
    scaled = [(math.ldexp(x, first), math.ldexp(y, second)) for x, y in given]
    assert front(scaled) == front(given)


@given(points, ways, ways)
def test_lower_is_better_is_the_mirror_of_higher_is_better(given: list[tuple[float, float]], x: str, y: str) -> None:
    mirrored = [(a if x == "higher" else -a, b if y == "higher" else -b) for a, b in given]
    assert sorted(front(given, (x, y))) == sorted(front(mirrored))  # type: ignore[arg-type]


@given(points)
def test_a_front_is_its_own_front(given: list[tuple[float, float]]) -> None:
    once = [given[place] for place in front(given)]
    assert front(once) == list(range(len(once)))


def test_values_that_are_not_finite_are_left_out() -> None:
    assert front([(math.inf, 1.0), (1.0, math.nan), (1.0, 1.0)]) == [2]
    assert front([]) == []


def test_speeds_are_the_replica_s_and_the_sla_holds_up_to_the_capacity() -> None:
    asked, of = question(), candidate(tp=2)
    found = fleet(asked, of)
    speeds = speed_curve(asked, of, found.capacity_per_s).speeds
    rates = [speed.requests_per_s for speed in speeds]
    assert rates == sorted(rates) and found.capacity_per_s in rates
    assert all(speed.meets == (speed.requests_per_s <= found.capacity_per_s) for speed in speeds)
    assert all(speed.requests_per_s_per_gpu == speed.requests_per_s / 2 for speed in speeds)


def test_without_a_capacity_each_load_is_judged_by_itself_and_agrees_with_it() -> None:
    asked = question()
    capacity_per_s = fleet(asked).capacity_per_s
    for speed in speed_curve(asked, candidate()).speeds:
        if abs(speed.requests_per_s / capacity_per_s - 1) > 0.02:  # within 1 % is what the search promises
            assert speed.meets == (speed.requests_per_s < capacity_per_s)


def test_an_idle_replica_is_as_fast_as_its_decode_step() -> None:
    """One request alone: every output token takes one step over its own context of 1,000 to 1,200 tokens."""
    first = speed_curve(question(), candidate()).speeds[0]
    step_s = candidate().replica.law.decode_s(1, 1100)
    assert 1 / first.tokens_per_s_per_user == pytest.approx(step_s, rel=0.06)


def test_more_load_never_makes_users_faster() -> None:
    speeds = speed_curve(question(), candidate()).speeds
    assert all(one.tokens_per_s_per_user >= other.tokens_per_s_per_user for one, other in pairwise(speeds))


def test_outputs_of_one_token_have_no_curve() -> None:
    asked = question(workload=Workload(Lengths(1000, 1), 40.0), sla=question().sla.__class__(question().sla.ttft))
    assert speed_curve(asked, candidate()).speeds == ()


@given(some.floats(0.1, 100), some.floats(1, 4096), some.floats(0.01, 50))
def test_tokens_and_cost_follow_from_requests(rate: float, osl: float, price: float) -> None:
    """One GPU at `price` an hour that puts out n million tokens an hour costs price / n a million."""
    speed = Speed(rate, rate, 30.0, True)
    assert REQUESTS.of(speed, osl, price) == rate
    assert TOKENS.of(speed, osl, price) == pytest.approx(rate * osl)
    assert COST.of(speed, osl, price) == pytest.approx(price / (rate * osl * 3600 / 1e6))
    assert INTERACTIVITY.of(speed, osl, price) == 30.0


speeds = some.lists(
    some.builds(Speed, some.floats(0.1, 10), some.floats(0.1, 10), some.integers(1, 50).map(float), some.booleans()),
    max_size=6,
)


@settings(deadline=None)
@given(speeds, speeds)
def test_resampling_keeps_every_speed_and_adds_only_what_lies_between(one: list[Speed], other: list[Speed]) -> None:
    curves = [SpeedCurve(candidate(), tuple(given)) for given in (one, other)]
    for before, after in zip(curves, resampled(curves), strict=True):
        kept = iter(after.speeds)
        assert all(speed in kept for speed in before.speeds)  # in their order
        for name in ("requests_per_s", "requests_per_s_per_gpu", "tokens_per_s_per_user"):
            known = [getattr(speed, name) for speed in before.speeds]
            assert all(min(known) - 1e-9 <= getattr(speed, name) <= max(known) + 1e-9 for speed in after.speeds)


def test_resampled_curves_can_be_compared_at_the_same_interactivity() -> None:
    steep = SpeedCurve(candidate(), (Speed(1, 1, 40, True), Speed(3, 3, 20, False)))
    flat = SpeedCurve(candidate(), (Speed(2, 2, 30, True), Speed(2.5, 2.5, 10, False)))
    first, second = resampled([steep, flat])
    assert first.speeds == (Speed(1, 1, 40, True), Speed(2, 2, 30, False), Speed(3, 3, 20, False))
    assert [speed.tokens_per_s_per_user for speed in second.speeds] == [30, 20, 10]
