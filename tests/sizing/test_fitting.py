"""The fit recovers the engine that made the points, says how sure it is, and refuses points that carry no law."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from sizing.engine import COEFFICIENTS, Batching, Policy, Replica, StepLaw
from sizing.errors import FitError
from sizing.fitting import Fit, fit
from sizing.points import UNSAID, Point
from sizing.prediction import Caution
from sizing.simulator import simulate_closed, simulated_stable_rate_per_s
from sizing.workload import Lengths

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
SHORT, LONG = Lengths(128, 128), Lengths(4000, 500)
fit_module = importlib.import_module("sizing.fitting.fit")  # the package has the function under this name
LEVELS = (1, 4, 16, 64, 256)


def measure(
    replica: Replica,
    mixes: Sequence[Lengths] = (SHORT, LONG),
    levels: Sequence[int] = LEVELS,
    noise: float = 0.02,
    seed: int = 0,
    lockstep: bool = False,
    **fields: Any,
) -> list[Point]:
    """Points as a calibration run would make them: 12 rounds, users started over one request time, noisy means."""
    rng, points = np.random.default_rng(seed), []
    for lengths in mixes:
        for users in levels:
            requests = users * max(12, 400 // users if not lengths.fixed else 1)
            isl, osl = lengths.sample(requests, rng)
            run = simulate_closed(replica, users, isl, osl)
            if not lockstep:
                run = simulate_closed(replica, users, isl, osl, float(run.e2e_s.mean()))
            luck = np.exp(noise * rng.standard_normal(3))
            values: dict[str, Any] = {
                "model": "m",
                "precision": "bf16",
                "gpu": "g",
                "tp": 1,
                "isl": lengths.isl,
                "osl": lengths.osl,
                "isl_cv": lengths.isl_cv,
                "osl_cv": lengths.osl_cv,
                "load_kind": "concurrency",
                "load_value": users,
                "requests": requests,
                "requests_per_s": run.requests_per_s * luck[0],
                "ttft_mean_s": run.ttft_s.mean() * luck[1],
                "itl_mean_s": np.nanmean(run.itl_s) * luck[2] if lengths.osl > 1 else None,
            }
            points.append(Point(**(values | fields)))
    return points


@cache
def fitted(policy: Policy, seed: int = 0) -> Fit:
    return fit(measure(Replica(GPU, Batching(policy)), seed=seed))


def times_s(law: StepLaw) -> np.ndarray[Any, Any]:
    """Iterations inside the calibrated range: decode steps of 1 to 128 sequences, then TTFT of idle prompts."""
    decode = [law.decode_s(batch, batch * context) for batch in (1, 16, 64, 128) for context in (200, 1500)]
    prefill = [law.prefill_alone_s(isl) + law.request_s for isl in (128, 1000, 2000, 4000)]
    return np.array(decode + prefill)


@pytest.mark.parametrize("policy", ["chunked", "prefill_first"])
@pytest.mark.parametrize("seed", [0, 1])
def test_iteration_times_are_recovered(policy: Policy, seed: int) -> None:
    """From ten points with 2 % noise: every time within 10 %, lengths that were not measured included; median 4 %."""
    errors = np.abs(times_s(fitted(policy, seed).law) / times_s(GPU) - 1)
    assert errors.max() < 0.10
    assert np.median(errors) < 0.04
    assert fitted(policy, seed).chi2_per_point < 2


def test_lengths_that_vary_are_replayed() -> None:
    mixes = [dataclasses.replace(lengths, isl_cv=0.4, osl_cv=0.6) for lengths in (SHORT, LONG)]
    found = fit(measure(Replica(GPU), mixes))
    errors = np.abs(times_s(found.law) / times_s(GPU) - 1)
    assert errors[:8].max() < 0.06
    assert found.chi2_per_point < 2


def test_points_are_reproduced_and_predicted_unseen() -> None:
    found = fitted("chunked")
    assert len(found.errors) == 2 * len(LEVELS)
    assert np.median([abs(error.requests_per_s_error) for error in found.errors]) < 0.03
    assert np.median([abs(error.itl_error) for error in found.errors]) < 0.03
    assert found.leave_one_out < 0.06


def test_a_void_point_changes_nothing() -> None:
    """A level that an overwhelmed client measured at a tenth of the truth leaves the fit exactly as it was."""
    points = measure(Replica(GPU), (SHORT,))
    worthless = dataclasses.replace(points[2], requests_per_s=points[2].requests_per_s / 10, verdict="client_limited")
    assert fit([*points, worthless]).law == fit(points).law
    with pytest.raises(FitError, match="void: client_limited"):
        fit([worthless])


def test_intervals_cover() -> None:
    """Over six noise seeds and eight coefficients, at least 80 % of the 90 % intervals hold the true value."""
    inside = []
    for seed in range(6):
        found = fitted("chunked", seed)
        for name in COEFFICIENTS:
            low_s, high_s = found.interval(name)
            inside.append(low_s <= getattr(GPU, name) <= high_s)
            assert 0 < low_s < getattr(found.law, name) < high_s
    assert np.mean(inside) > 0.8


def test_the_policy_is_told_from_the_points() -> None:
    assert fitted("prefill_first").batching.policy == "prefill_first"
    assert fitted("chunked").batching.policy in ("chunked", "whole_prompt")  # the same engine while prompts are short


@pytest.mark.parametrize(
    ("engine", "has"),
    [
        ("trtllm", {"chunked", "whole_prompt"}),
        ("sglang", {"chunked", "prefill_first"}),
        ("", {"chunked", "prefill_first", "whole_prompt"}),
    ],
)
def test_a_fit_tries_the_policies_that_the_engine_has(engine: str, has: set[Policy]) -> None:
    """TensorRT-LLM runs no prompts apart from the decodes, and SGLang no whole ones beside them."""
    points = measure(Replica(GPU, Batching("prefill_first")), [SHORT], (1, 8), engine=engine)
    assert {rule.policy for rule in fit_module._candidates(points, None, None, UNSAID)} == has


@pytest.mark.parametrize("told", [None, 8192])
def test_whole_prompts_wait_for_room_in_a_budget_that_was_told(told: int | None) -> None:
    points = measure(Replica(GPU, Batching("whole_prompt")), batching="whole_prompt", token_budget=told)
    batching = fit(points).batching
    assert (batching.policy, batching.budget_guessed) == ("whole_prompt", told is None)


def test_the_wrong_policy_is_noticed() -> None:
    points = measure(Replica(GPU, Batching("static", max_batch_size=64)), levels=(1, 8, 32, 64, 128))
    wrong = fit(points, batching=Batching("chunked", max_batch_size=64))
    right = fit(points, batching=Batching("static", max_batch_size=64))
    assert right.chi2_per_point < 2 < wrong.chi2_per_point
    assert "poor_fit" in [each.kind for each in wrong.warnings]
    assert "poor_fit" not in [each.kind for each in right.warnings]


def test_points_that_say_static_are_fitted_as_static() -> None:
    replica = Replica(GPU, Batching("static", max_batch_size=32))
    found = fit(measure(replica, [SHORT], (1, 8, 32), batching="static", max_batch_size=32))
    assert found.batching == replica.batching


@pytest.mark.parametrize("padded", [True, False])
def test_points_that_say_static_tell_whether_prompts_are_padded(padded: bool) -> None:
    replica = Replica(GPU, Batching("static", max_batch_size=32, padded=padded))
    varied = Lengths(800, 40, 0.6, 0.3)
    longer = Lengths(3200, 40, 0.6, 0.3)  # tells attention from the arithmetic of prompts
    found = fit(measure(replica, [varied, longer], (1, 8, 32, 64), batching="static", max_batch_size=32))
    assert found.batching == replica.batching
    # And so V1's points tell what the same engine carries with in-flight batching; a batch padded to its longest prompt
    # tells the time of a token less well, as the longest differs from draw to draw.
    carried = [
        simulated_stable_rate_per_s(Replica(law, Batching(max_batch_size=32)), varied) for law in (found.law, GPU)
    ]
    assert carried[0] == pytest.approx(carried[1], rel=0.1 if padded else 0.08)


def test_a_slow_engine_is_fitted_like_a_fast_one() -> None:
    """A CPU's steps are ten times a GPU's: every time and every coefficient is ten times as long."""
    points = measure(Replica(GPU, Batching("chunked")))
    slow = [
        dataclasses.replace(
            point,
            requests_per_s=point.requests_per_s / 10,
            ttft_mean_s=10 * (point.ttft_mean_s or 0),
            itl_mean_s=10 * (point.itl_mean_s or 0),
        )
        for point in points
    ]
    assert times_s(fit(slow).law) == pytest.approx(10 * times_s(fitted("chunked").law), rel=0.02)


def test_variants_carry_the_covariance() -> None:
    found = fitted("chunked")
    for place, name in enumerate(COEFFICIENTS):
        spread = [
            (getattr(a.law, name) - getattr(b.law, name)) / 2 / getattr(found.law, name) for a, b in found.variants
        ]
        assert np.sum(np.square(spread)) == pytest.approx(found.covariance[place, place])
    for faster, slower in found.variants:
        batch, context = 256, 256 * 2221
        assert faster.law.decode_s(batch, context) <= slower.law.decode_s(batch, context)
    assert 0.002 < found.relative_sigma < 0.1


def test_more_points_are_surer() -> None:
    """Of the same thing: the time of a step at the highest concurrency, 256 in both."""
    few = fit(measure(Replica(GPU), levels=(1, 256)))
    assert fitted("chunked").relative_sigma < few.relative_sigma


def test_a_prior_law_holds_what_two_points_cannot_tell() -> None:
    points = measure(Replica(GPU), [SHORT], (1, 16))
    alone, led = fit(points), fit(points, prior=GPU)
    far = slice(8, None)  # prompts far longer than those measured
    off = [np.abs(np.log(times_s(found.law) / times_s(GPU)))[far].max() for found in (led, alone)]
    assert off[0] < 0.2
    assert off[0] < off[1]


def test_points_without_ttft_or_itl_still_serve() -> None:
    """Decode steps within 20 %: without TTFT prompts and decodes are harder to tell apart, and the fit says so."""
    points = [dataclasses.replace(point, ttft_mean_s=None) for point in measure(Replica(GPU))]
    found = fit(points)
    assert np.abs(times_s(found.law) / times_s(GPU) - 1)[:8].max() < 0.20
    assert found.relative_sigma > 1.5 * fitted("chunked").relative_sigma
    assert all(np.isnan(error.ttft_error) for error in found.errors)


def test_one_output_token_has_no_gaps_to_fit() -> None:
    found = fit(measure(Replica(GPU), [Lengths(500, 1)], (1, 4, 16)))
    assert all(np.isnan(error.itl_error) for error in found.errors)
    assert np.isfinite(found.leave_one_out)


def test_of_two_points_none_is_predicted_from_the_other() -> None:
    assert np.isnan(fit(measure(Replica(GPU), [Lengths(500, 100)], (1, 8))).leave_one_out)


def test_the_calibrated_range() -> None:
    found = fitted("chunked")
    assert found.covers(Lengths(1000, 300), 200)
    assert not found.covers(Lengths(1000, 300), 400)
    assert not found.covers(Lengths(20_000, 300), 10)
    assert not found.covers(Lengths(1000, 10), 10)
    of_many = fit(measure(Replica(GPU), [SHORT], (16, 64)))
    assert [of_many.covers(SHORT, users) for users in (1, 4, 8, 64)] == [False, False, True, True]
    assert of_many.covers(SHORT)


def test_thin_calibrations_carry_warnings() -> None:
    warned = fit(measure(Replica(GPU), [SHORT], (1, 64))).warnings
    assert Caution("few_points", {"points": 2}) in warned
    assert Caution("one_isl", {"isl": SHORT.isl, "longer": 4 * SHORT.isl}) in warned
    assert [each.kind for each in fitted("chunked").warnings] == ["fitted_dense"]


def test_users_in_lockstep_are_noticed_and_replayed() -> None:
    """TTFT is up to 50 times that of spread users; taken for what it is, it does not spoil the law."""
    found = fit(measure(Replica(GPU, Batching("prefill_first")), lockstep=True))
    assert "lockstep" in [each.kind for each in found.warnings]
    assert found.chi2_per_point < 2
    assert np.abs(times_s(found.law) / times_s(GPU) - 1)[:8].max() < 0.10


def test_open_loop_points_are_left_aside_where_it_is_asked() -> None:
    points = measure(Replica(GPU), levels=(1, 16))
    offered = dataclasses.replace(points[0], load_kind="poisson_rate", load_value=3.0, itl_mean_s=9.0)
    assert fit([*points, offered], open_loop=False).law == fit(points).law


def test_points_that_carry_no_law_are_refused() -> None:
    points = measure(Replica(GPU), [SHORT], (1, 8))
    offered = [dataclasses.replace(point, load_kind="constant_rate") for point in points]
    with pytest.raises(FitError, match="no points to fit a law to: measure at fixed concurrency"):
        fit(offered, open_loop=False)
    with pytest.raises(FitError, match="or at a rate that the server keeps up with"):
        fit([])
    with pytest.raises(FitError, match=r"2 deployments.*g TP1.*h TP1"):
        fit([points[0], dataclasses.replace(points[1], gpu="h")])
    with pytest.raises(FitError, match="two levels"):
        fit([points[0], points[0]])
