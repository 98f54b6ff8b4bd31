"""The lesson's engine against published runs of it, runs worked out by hand, and laws of any run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learn.lesson import BATCHINGS, Figures, Load, Outcome, Setting, draws, figures, run
from learn.lesson.outcome import empty_share
from learn.lesson.picture import picture
from sizing.errors import ScenarioError

IN_FLIGHT = Setting(batching="in_flight", chunks=2)
ONE = Setting(batching="one_prefill", chunks=2)
PUBLISHED = {
    "static": (Setting(), (19, 100, 58.16, 52.80, 1.00, 190.00, 1680.00, 80)),
    "in flight": (Setting(batching="in_flight"), (27, 101, 58.44, 52.90, 1.39, 267.33, 2376.24, 69)),
    "in flight, 2 chunks": (IN_FLIGHT, (31, 100, 57.42, 54.51, 1.14, 310.00, 2730.00, 65)),
    "one prompt, 2 chunks": (ONE, (36, 100, 55.94, 52.13, 1.00, 360.00, 3170.00, 60)),
    "3 users, in flight": (
        replace(IN_FLIGHT, load=Load("concurrency", 3)),
        (26, 100, 11.00, 3.19, 1.06, 260.00, 2240.00, 0),
    ),
    "3 users, one prompt": (
        replace(ONE, load=Load("concurrency", 3)),
        (28, 100, 10.14, 2.67, 1.00, 280.00, 2470.00, 0),
    ),
    "6 users": (replace(ONE, load=Load("concurrency", 6)), (36, 100, 15.14, 7.87, 1.00, 360.00, 3170.00, 2)),
    "rate 0.2": (replace(ONE, load=Load("rate", 0.2)), (17, 100, 10.06, 2.00, 1.00, 170.00, 1650.00, 0)),
    "rate 0.46": (replace(ONE, load=Load("rate", 0.46)), (35, 100, 17.66, 11.03, 1.00, 350.00, 3060.00, 6)),
}
"""Completed, end, mean E2E, TTFT and ITL, requests and tokens per 1,000 ticks, queue at the end: seed 42."""


def of(setting: Setting) -> Figures:
    return figures(run(setting))


@pytest.mark.parametrize("case", PUBLISHED)
def test_the_published_runs_come_out_to_every_printed_digit(case: str) -> None:
    setting, expected = PUBLISHED[case]
    found = of(setting)
    assert (
        found.completed,
        found.end,
        *(round(value or 0, 2) for value in (found.e2e_mean, found.ttft_mean, found.itl_mean)),
        round(found.requests_per_1k, 2),
        round(found.tokens_per_1k, 2),
        found.queue,
    ) == expected


@pytest.mark.parametrize(("case", "p50"), [("static", 62.0), ("in flight", 60.0), ("6 users", 14.5)])
def test_the_median_is_the_50th_percentile(case: str, p50: float) -> None:
    assert of(PUBLISHED[case][0]).e2e_p50 == p50


def test_half_a_percentile_is_what_was_once_printed_as_a_median() -> None:
    latencies = [mark.latency_ticks for mark in run(Setting()).last]
    assert np.percentile(latencies, 0.5) == pytest.approx(16.27)


@pytest.mark.parametrize(
    ("load", "short", "long"),
    [
        (Load("rate", 0.46), (6, 11.03, 17.66), (1138, 1245.77, None)),
        (Load("concurrency", 6), (2, 7.87, 15.14), (2, 8.61, 17.32)),
    ],
)
def test_an_overloaded_open_loop_gets_worse_for_ever_and_a_closed_one_does_not(
    load: Load, short: tuple[float, ...], long: tuple[float | None, ...]
) -> None:
    rng = draws(42)
    for ticks, expected in ((100, short), (10_000, long)):
        found = figures(run(replace(ONE, load=load, ticks=ticks), rng))
        seen = (found.queue, round(found.ttft_mean or 0, 2), round(found.e2e_mean or 0, 2))
        assert all(want is None or got == want for got, want in zip(seen, expected, strict=True))


@pytest.mark.parametrize("batching", ["static", "in_flight"])
def test_equal_lengths_leave_nothing_for_in_flight_batching_to_gain(batching: str) -> None:
    outcome = run(Setting(batching=batching, std_tokens=0))  # type: ignore[arg-type]
    assert figures(outcome).requests_per_1k == 200
    assert {mark.latency_ticks for mark in outcome.first[:4]} == {8}
    assert {mark.latency_ticks for mark in outcome.last[:4]} == {17}


def test_equal_lengths_one_prompt_at_a_time() -> None:
    assert of(replace(ONE, std_tokens=0)).requests_per_1k == 330


def test_the_first_picture_of_the_course() -> None:
    outcome = run(Setting())
    first = outcome.steps[0]
    assert (first.letters, first.ticks, first.queue) == ("pppp", 8, 96)
    assert {(mark.at, mark.latency_ticks) for mark in outcome.first[:4]} == {(8, 8)}
    assert [(mark.at, mark.latency_ticks) for mark in outcome.last[:4]] == [(16, 16), (19, 19), (20, 20), (24, 24)]
    assert list(dict.fromkeys(step.queue for step in outcome.steps)) == [96, 92, 88, 84, 80]


@pytest.mark.parametrize(("requests", "ttft", "e2e"), [(1, 2, 5), (2, 4, 7)])
def test_one_and_two_requests_of_four_tokens(requests: int, ttft: float, e2e: float) -> None:
    outcome = run(Setting(load=Load("batch", requests), mean_tokens=4, std_tokens=0, ticks=12))
    assert {(mark.at, mark.latency_ticks) for mark in outcome.first} == {(ttft, ttft)}
    assert {(mark.at, mark.latency_ticks) for mark in outcome.last} == {(e2e, e2e)}
    assert set(outcome.itl_ticks) == {1} and outcome.queue == 0


BY_HAND = Setting(load=Load("batch", 4), slots=2, mean_tokens=3, std_tokens=0, ticks=12)


def latencies(outcome: Outcome) -> tuple[list[float], list[float]]:
    return [mark.latency_ticks for mark in outcome.first], [mark.latency_ticks for mark in outcome.last]


def slot(outcome: Outcome, place: int) -> str:
    return "".join(step.letters[place] for step in outcome.steps).rstrip("e")


@pytest.mark.parametrize("batching", ["static", "in_flight"])
def test_four_requests_on_two_slots_by_hand(batching: str) -> None:
    outcome = run(replace(BY_HAND, batching=batching))
    assert [*(step.start for step in outcome.steps), outcome.end] == [0, 4, 5, 6, 10, 11, 12]
    assert [slot(outcome, 0), slot(outcome, 1)] == ["pddpdd", "pddpdd"]
    assert [step.queue for step in outcome.steps] == [2, 2, 2, 0, 0, 0]
    assert latencies(run(replace(BY_HAND, batching=batching, ticks=13))) == ([4, 4, 10, 10], [6, 6, 12, 12])


def test_one_prompt_at_a_time_by_hand() -> None:
    outcome = run(replace(BY_HAND, batching="one_prefill"))
    assert [step.start for step in outcome.steps][:8] == [0, 2, 4, 5, 7, 9, 10, 11]
    assert [slot(outcome, 0), slot(outcome, 1)] == ["pddpdd", "epddpdd"]
    assert latencies(outcome) == ([2, 4, 7, 9], [5, 7, 10, 11])
    assert outcome.itl_ticks == (1, 2, 1, 1)
    chunked = run(replace(BY_HAND, batching="one_prefill", chunks=2))
    assert latencies(chunked) == ([2, 4, 6, 8], [4, 6, 8, 10]) and set(chunked.itl_ticks) == {1}


def test_a_gap_between_the_first_two_tokens_counts_in_the_gap_of_the_field() -> None:
    """By hand: E2E less TTFT over tokens less one: (5-2)/2, (7-4)/2, (10-7)/2, (11-9)/2."""
    assert of(replace(BY_HAND, batching="one_prefill")).gap_mean == pytest.approx((1.5 + 1.5 + 1.5 + 1) / 4)


SETTINGS = st.builds(
    Setting,
    batching=st.sampled_from(BATCHINGS),
    load=st.one_of(
        st.builds(Load, st.sampled_from(["batch", "concurrency"]), st.integers(1, 40)),
        st.builds(Load, st.just("rate"), st.floats(0.01, 2)),
    ),
    slots=st.integers(1, 8),
    prefill_ticks=st.sampled_from([0.5, 1, 2, 3.5]),
    itl_ticks=st.sampled_from([0.5, 1, 1.5]),
    chunks=st.integers(1, 4),
    mean_tokens=st.sampled_from([1, 3, 10]),
    std_tokens=st.sampled_from([0, 4]),
    ticks=st.integers(1, 80),
    seed=st.integers(0, 99),
)


@settings(max_examples=40)
@given(SETTINGS)
def test_in_any_run_the_clock_the_slots_and_the_order_are_kept(setting: Setting) -> None:
    outcome = run(setting)
    for step, following in pairwise(outcome.steps):
        assert following.start == step.start + step.ticks
    for step in outcome.steps:
        numbers = [held.request for held in step.slots if held.request >= 0]
        assert len(set(numbers)) == len(numbers)
        if setting.batching == "one_prefill":
            assert step.letters.count("p") <= 1
        least = setting.prefill_ticks / setting.chunks * step.letters.count("p")
        assert step.ticks == pytest.approx(max(least, setting.itl_ticks if "d" in step.letters else 0, 1))
    first = {mark.request: mark for mark in outcome.first}
    assert sorted(first) == list(range(len(first))), "first come, first served"
    for mark in outcome.last:
        assert mark.latency_ticks >= first[mark.request].latency_ticks + (mark.tokens - 1) * setting.itl_ticks - 1e-9
    assert outcome.end >= setting.ticks and 0 <= empty_share(outcome.steps) <= 1


@settings(max_examples=40)
@given(SETTINGS)
def test_static_batches_start_and_end_together(setting: Setting) -> None:
    steps = run(replace(setting, batching="static")).steps
    for before, after in pairwise(steps):
        was = {held.request for held in before.slots if held.request >= 0}
        now = {held.request for held in after.slots if held.request >= 0}
        assert now <= was or not now & was


@settings(max_examples=40)
@given(st.integers(1, 50), st.integers(1, 60))
def test_a_closed_loop_holds_as_many_requests_as_it_has_users(users: int, ticks: int) -> None:
    for step in run(Setting(batching="in_flight", load=Load("concurrency", users), ticks=ticks)).steps:
        assert step.queue + sum(held.request >= 0 for held in step.slots) == users


@settings(max_examples=40)
@given(SETTINGS)
def test_a_setting_survives_its_text(setting: Setting) -> None:
    rounded = replace(setting, load=Load(setting.load.kind, float(f"{setting.load.amount:g}")))
    assert Setting.of(rounded.text) == rounded


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("slots=0", "slots"),
        ("slots=1.5", "slots"),
        ("load=batch:0", "load batch"),
        ("load=rate:nan", "load"),
        ("load=users:3", "concurrency:3"),
        ("batching=magic", "one_prefill"),
        ("speed=3", "'speed'"),
        ("ticks=1e9", "20,000"),
        ("mean_tokens=x", "mean_tokens"),
    ],
)
def test_a_setting_that_cannot_be_run_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        Setting.of(text)


def test_the_picture_has_a_letter_for_each_step_a_character_for_each_tick() -> None:
    lines = picture(run(BY_HAND).steps, until=12)
    assert lines == [
        "   ticks  0         10",
        "  slot 1  p---ddp---dd",
        "  slot 2  p---ddp---dd",
        "   queue  2     0",
    ]
    narrow = picture(run(BY_HAND).steps, until=12, width=6)
    assert narrow[:4] == ["   ticks  0", "  slot 1  p---dd", "  slot 2  p---dd", "   queue  2"]
    assert narrow[6] == "  slot 1  p---dd"


def test_a_deviation_of_minus_nothing_is_none() -> None:
    """A link may say -0, which is not below 0."""
    assert run(Setting.of("std_tokens=-0")).steps == run(Setting.of("std_tokens=0")).steps


def test_a_number_that_no_float_holds_is_refused_like_any_other() -> None:
    with pytest.raises(ScenarioError, match=r"seed must be a whole number from 0 to \S+, got a far larger number"):
        Setting(seed=10**400)
