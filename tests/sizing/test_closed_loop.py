"""Closed loops that a fit predicts: percentiles beside those of the true engine, the luck of few requests, bands."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sizing.analyses.closed_loop import (
    ENOUGH,
    Banded,
    ClosedLoop,
    _shown,
    closed_loop,
    delivery_scatter_s,
    iterations_seen,
    point_at,
    repeated,
)
from sizing.analyses.next_level import Option
from sizing.edge import OF_SHAPE
from sizing.fitting import Fit, fit
from sizing.fitting.levels import luck_of_lengths, point_runs
from sizing.points import Point
from sizing.simulator import Simulated, simulate_closed
from sizing.workload import NO_PREFIX, PERCENTILES, Lengths, Metric
from tests.sizing.simulated_levels import SERVER, simulated_point
from validation.evidence import measured_levels
from validation.evidence.claim import Setup
from validation.evidence.measured_levels import Case, Found, rows

VARIED, EQUAL = Lengths(1000, 200, 0.3, 0.3), Lengths(1000, 200)


@cache
def fitted(lengths: Lengths = VARIED) -> Fit:
    return fit([simulated_point(Option(lengths, users, 400)) for users in (1, 8, 64)], batching=SERVER.batching)


@cache
def loop(users: int, requests: int | None = None, lengths: Lengths = VARIED) -> ClosedLoop:
    return closed_loop(fitted(lengths), lengths, NO_PREFIX, users, requests=requests)


@cache
def truth(users: int) -> Simulated:
    """The same loop of the true engine, at length and with other random numbers."""
    isl, osl = VARIED.sample(users * 400, np.random.default_rng(99))
    return simulate_closed(SERVER, users, isl, osl, ramp_s=2.0, token_gaps=True)


@pytest.mark.parametrize("users", [4, 24])
def test_percentiles_are_those_of_the_true_engine(users: int) -> None:
    seen, shown = truth(users), loop(users).latencies
    for metric, sample, within in (("ttft", seen.ttft_s, 0.12), ("itl", seen.itl_s, 0.05), ("e2e", seen.e2e_s, 0.05)):
        for percentile in (50, 90, 95):
            true_s = float(np.percentile(sample, percentile))
            assert shown[f"{metric}_p{percentile}_s"].value == pytest.approx(true_s, rel=within), (metric, percentile)
    assert shown["gap_p50_s"].value == pytest.approx(seen.watched.gap_p50_s, rel=0.05)
    assert shown["gap_p95_s"].value == pytest.approx(seen.watched.gap_p95_s, rel=0.12)


def test_percentiles_rise_and_means_obey_little() -> None:
    found = loop(24)
    for metric in ("ttft", "itl", "e2e"):
        values = [found.latencies[f"{metric}_p{percentile}_s"].value for percentile in PERCENTILES]
        assert values == sorted(values) and values[0] < values[-1]
    in_flight = found.requests_per_s.value * found.latencies["e2e_mean_s"].value
    assert in_flight == pytest.approx(24, rel=0.03)


def relative_error(found: Banded) -> float:
    return math.log(found.high / found.value) / 1.645


def test_bands_of_e2e_are_those_of_requests_and_gaps_allow_for_the_law() -> None:
    """By Little's law an error of the one is an error of the other; gaps have an error of the law of their own."""
    found = loop(24)
    of_rate = relative_error(found.requests_per_s)
    assert relative_error(found.latencies["e2e_mean_s"]) == pytest.approx(of_rate, rel=0.05)
    bent = tuple(replace(one, law_error=one.law_error._replace(gap=0.3)) for one in fitted().bent)
    assert [one.law_error.gap for one in fitted().bent] == [0.0]
    rough = replace(fitted(), bent=bent)
    wide = closed_loop(rough, VARIED, NO_PREFIX, 24).latencies
    for name in ("gap_p50_s", "gap_p95_s", "itl_p95_s"):
        more = relative_error(wide[name]) ** 2 - relative_error(found.latencies[name]) ** 2
        assert more == pytest.approx(0.09 if name.startswith("gap") else 0.0, abs=1e-9)


@pytest.mark.parametrize("users", [4, 24])
def test_bands_hold_a_ttft_that_was_never_measured(users: int) -> None:
    levels = [replace(error.point, ttft_mean_s=None, itl_mean_s=None) for error in fitted().errors]
    band = closed_loop(fit(levels, batching=SERVER.batching), VARIED, NO_PREFIX, users).latencies["ttft_mean_s"]
    assert band.low < truth(users).ttft_s.mean() < band.high


def test_gaps_of_one_iteration_are_one_whoever_sees_them() -> None:
    """As many iterations say as much of the gaps, be they of 8 users or of 32: 4 times the requests are 4 times the
    users."""
    engine = fitted().engine
    counted = []
    for users, requests in ((8, 80), (32, 320)):
        point = replace(point_at(fitted(), VARIED, NO_PREFIX, users), requests=requests)
        counted.append(iterations_seen(point, engine))
    assert counted[0] == counted[1] == pytest.approx(10 * 199)


def test_two_replicas_show_the_latencies_of_one_and_twice_its_requests() -> None:
    one, two = loop(12), closed_loop(fitted(), VARIED, NO_PREFIX, 24, 2)
    assert two.latencies == one.latencies
    assert two.requests_per_s.value == pytest.approx(2 * one.requests_per_s.value, rel=1e-12)


def test_few_requests_widen_every_band_of_lengths_that_vary() -> None:
    few, many = loop(8, 40), loop(8, 4000)
    for name in ("ttft_p95_s", "e2e_p95_s", "e2e_p50_s", "itl_p95_s", "gap_p95_s"):
        narrow, wide = (math.log(each.latencies[name].high / each.latencies[name].low) for each in (many, few))
        assert wide > narrow, name
        assert few.latencies[name].value == pytest.approx(many.latencies[name].value, rel=1e-9)
    spread = [math.log(each.requests_per_s.high / each.requests_per_s.value) / 1.645 for each in (few, many)]
    own = 0.3 / math.sqrt(40), 0.3 / math.sqrt(4000)
    assert spread[0] ** 2 - spread[1] ** 2 == pytest.approx(own[0] ** 2 - own[1] ** 2, rel=1e-6)


def test_the_luck_of_a_percentile_holds_that_of_its_mean_once() -> None:
    """Which the mean brings along: requests/s, and so E2E, that of the answers, TTFT that of the prompts."""
    point = replace(point_at(fitted(), VARIED, NO_PREFIX, 8), requests=80)
    replay, engine = repeated(fitted(), point), fitted().engine
    none, some = (_shown(replay, engine, point, 0.0, np.array(luck)) for luck in ((0, 0, 0), (0.02, 0.01, 0)))
    for name, of_mean in (("e2e_p50_s", 0.02), ("ttft_p95_s", 0.01), ("itl_p95_s", 0.0)):
        assert none[name].error ** 2 - some[name].error ** 2 == pytest.approx(of_mean**2, rel=1e-6, abs=1e-12), name
    few = replace(point, requests=8)
    asked = closed_loop(fitted(), VARIED, NO_PREFIX, 8, requests=8).latencies["e2e_p50_s"]
    shown = _shown(repeated(fitted(), few), engine, few, 0.0, fitted().luck(few))["e2e_p50_s"]
    assert relative_error(asked) == pytest.approx(math.hypot(fitted().mean_sigmas([few])[0, 0], shown.error), rel=0.01)


def test_the_luck_of_lengths_is_that_of_means_of_samples() -> None:
    lengths = Lengths(1000, 200, 0.5, 0.2)
    point = simulated_point(Option(lengths, 8, 50))
    rng = np.random.default_rng(1)
    means = [lengths.sample(50, rng) for _ in range(2000)]
    isl, osl = (np.log([draw[place].mean() for draw in means]).std() for place in (0, 1))
    assert luck_of_lengths(point) == (pytest.approx(osl, rel=0.08), pytest.approx(isl, rel=0.08), 0.0)
    assert luck_of_lengths(replace(point, requests=None)) == luck_of_lengths(replace(point, requests=80))
    assert luck_of_lengths(simulated_point(Option(EQUAL, 8, 50))) == (0.0, 0.0, 0.0)


def test_e2e_is_ttft_and_one_itl_less_than_the_tokens() -> None:
    two_tokens = Lengths(1000, 2)
    found = closed_loop(fitted(EQUAL), two_tokens, NO_PREFIX, 1).latencies
    expected_s = found["ttft_mean_s"].value + found["itl_mean_s"].value
    assert found["e2e_mean_s"].value == pytest.approx(expected_s, rel=1e-9)


def test_a_percentile_knows_less_than_its_mean_where_laws_differ() -> None:
    """Of a measurement without end, whose luck is nothing."""
    found = loop(24, 10**12).latencies
    assert relative_error(found["ttft_p95_s"]) > 1.0001 * relative_error(found["ttft_mean_s"])


@pytest.mark.parametrize("metric", ["ttft", "e2e", "itl"])
def test_no_simulation_knows_the_ratio_of_a_percentile_to_its_mean_exactly(metric: Metric) -> None:
    """However long the measurement: those of a real engine differed by this much."""
    found = loop(24, 10**12).latencies
    least = math.hypot(relative_error(found[f"{metric}_mean_s"]), OF_SHAPE[metric])
    assert relative_error(found[f"{metric}_p90_s"]) >= 0.999 * least > relative_error(found[f"{metric}_mean_s"])


def test_a_measurement_is_repeated_with_other_lengths() -> None:
    point = point_at(fitted(), VARIED, NO_PREFIX, 4)
    once = sum(end - begin for run in point_runs([point], fitted().protocol) for begin, end, _ in run.windows)
    isl = repeated(fitted(), point).measured(fitted().engine)[0]["isl"]
    assert len(isl) >= ENOUGH
    one, other = isl[:once], isl[once : 2 * once]
    assert not np.array_equal(one, other)
    assert one.mean() == pytest.approx(other.mean(), rel=1e-3)


def test_one_output_token_has_no_gaps() -> None:
    lengths = Lengths(1000, 1)
    found = closed_loop(fitted(), lengths, NO_PREFIX, 4).latencies
    assert {name.partition("_")[0] for name in found} == {"ttft", "e2e"}
    assert found["e2e_p95_s"].value == pytest.approx(found["ttft_p95_s"].value, rel=1e-9)


def test_a_user_alone_sees_every_prompt_by_itself() -> None:
    """One user, equal lengths: nothing varies, so that all percentiles are the mean."""
    found = loop(1, None, EQUAL).latencies
    for metric in ("ttft", "e2e"):
        assert found[f"{metric}_p99_s"].value == pytest.approx(found[f"{metric}_mean_s"].value, rel=1e-6)
    law = fitted(EQUAL).replica.law
    assert found["ttft_p50_s"].value == pytest.approx(law.prefill_alone_s(1000) + law.request_s, rel=0.1)


def off(error: float, line: float = math.nan) -> Found:
    return Found(math.log1p(error), 0.05, math.log1p(line))


def test_rows_judge_percentiles_beside_lines() -> None:
    figures = [{"e2e_p95_s": off(0.02, 0.2), "ttft_p95_s": off(-0.08)} for _ in range(30)]
    case = Case("vLLM on a CPU, measured here", "other loads", (), ())
    found = {row.metric + row.name[:4]: row for row in rows([case], [figures])}
    assert found["E2E p95clos"].holds and found["E2E p95clos"].median == pytest.approx(0.02)
    assert "interpolation 20.0 % / 20.0 %" in found["E2E p95clos"].note
    assert "interpolation" not in found["TTFT p95clos"].note
    assert "> 5 % optimistic in 100.0 %" in found["TTFT p95clos"].note, "shorter times than measured are promises"
    assert "> 5 % optimistic in 0.0 %" in found["E2E p95clos"].note
    assert "covers 100.0 %" in found["E2E p95band"].note and "covers 0.0 %" in found["TTFT p95band"].note
    worse = [{"e2e_p95_s": off(0.3, 0.2)} for _ in range(30)]
    assert rows([case], [worse])[0].holds is False


def test_rows_compare_only_where_there_is_a_line() -> None:
    figures = [{"e2e_p90_s": off(0.02, 0.2)}, {"e2e_p90_s": off(0.5)}] * 15
    row = rows([Case("vLLM on a CPU, measured here", "other loads", (), ())], [figures])[0]
    assert "interpolation 20.0 % in the median of 15, this 2.0 % there" in row.note


def test_each_engine_has_rows_of_its_own() -> None:
    tables = (
        "vLLM on a CPU, measured here",
        "vLLM on an H200, measured here",
        "SGLang at the pace of GPUs, measured here",
    )
    figures = [[{"e2e_p90_s": off(error)} for _ in range(30)] for error in (0.02, 0.06, 0.3)]
    both = rows([Case(table, "more users", (), ()) for table in tables], figures)
    vllm, sglang = (row for row in both if not row.name.startswith("band"))
    assert (vllm.name, vllm.data) == ("closed loops of vLLM, more users", "vLLM, measured here")
    assert (sglang.name, sglang.data) == ("closed loops of SGLang, more users", "SGLang, measured here")
    assert vllm.n == 60 and "vLLM on a CPU 2.0 %, vLLM on an H200 6.0 %" in vllm.note
    assert sglang.median == pytest.approx(0.3) and "median of" not in sglang.note


@pytest.mark.parametrize(("server", "most"), [("Qwen/Qwen3-235B-A22B", 0.085), ("mixture", 0.08)])
def test_experts_of_a_real_engine_are_told_beyond_the_users_measured(server: str, most: float) -> None:
    """vLLM with MoE models, fitted to up to 8 users and asked about 16 and 32: Qwen3-235B by its shape, a small one of
    8 experts without. The ITL of either was 40 to 86 % off with the experts' time put down to every sequence."""
    asked = [case for case in measured_levels.cases(Setup()) if case.asked_for == "more users"]
    own = [case for case in asked if case.fitted[0].model == server]
    fits = [fit(case.fitted) for case in own]
    assert all(len(set(found.extra)) == len(found.extra) for found in fits)
    off = [
        abs(float(means[2]) / point.itl_mean_s - 1)
        for case, found in zip(own, fits, strict=True)
        for point, means in zip(case.asked, found.means(case.asked), strict=True)
        if point.itl_mean_s
    ]
    print(f"{server}: ITL of more users off by {100 * np.mean(off):.1f} % on average, {100 * max(off):.0f} % at most")
    assert len(own) == 3 and np.mean(off) < most


def test_nothing_that_was_fitted_is_asked() -> None:
    everything = measured_levels.cases(Setup())
    assert {case.asked_for for case in everything} == {"other loads", "more users"}
    for case in everything:
        fitted_at = {point.load_value for point in case.fitted}
        asked_at = {point.load_value for point in case.asked}
        assert not fitted_at & asked_at
        if case.asked_for == "other loads":
            assert min(fitted_at) < min(asked_at) and max(asked_at) < max(fitted_at)
        else:
            assert max(fitted_at) < min(asked_at)


def test_the_claim_answers_a_real_servers_levels() -> None:
    (case,) = measured_levels.cases(Setup(quick=True))
    told = measured_levels.answer(case, np.random.SeedSequence(0))
    assert len(told) == len(case.asked)
    errors = [abs(math.expm1(one["requests_per_s"].off)) for one in told]
    print(f"requests/s of levels between: {100 * float(np.median(errors)):.1f} % off in the median")
    assert float(np.median(errors)) < 0.15


def test_the_delivery_of_a_single_users_tokens_scatters_all_gaps() -> None:
    still = [
        simulated_point(Option(VARIED, users, 400), gap_p50_s=0.01, gap_p95_s=0.01, itl_mean_s=0.01) for users in (1, 1)
    ]
    sigma_s = 0.002
    alone = [replace(point, gap_p95_s=0.01 + 1.645 * sigma_s) for point in still]
    chunked = [replace(point, gap_p50_s=0.001) for point in alone]
    crowd = [replace(point, load_value=8) for point in alone]
    for points, expected in ((still, 0.0), (alone, sigma_s), (chunked, 0.0), (crowd, 0.0)):
        errors = tuple(error._replace(point=point) for error, point in zip(fitted().errors, points, strict=False))
        assert delivery_scatter_s(replace(fitted(), errors=errors)) == pytest.approx(expected, abs=1e-9)
    quiet, noisy = fitted(), measured_with(sigma_s)
    silent, heard = (closed_loop(each, VARIED, NO_PREFIX, 1).latencies for each in (quiet, noisy))
    grown_s = heard["gap_p95_s"].value - heard["gap_p50_s"].value
    assert grown_s == pytest.approx(1.645 * sigma_s, rel=0.15)
    assert heard["gap_p50_s"].value == pytest.approx(silent["gap_p50_s"].value, rel=0.02)
    assert heard["ttft_p95_s"] == silent["ttft_p95_s"]


def measured_with(sigma_s: float) -> Fit:
    """The same fit, of a server whose single user saw its tokens scattered."""

    def scattered(point: Point) -> Point:
        itl_s = point.itl_mean_s
        assert itl_s
        return replace(point, gap_p50_s=itl_s, gap_p95_s=itl_s + 1.645 * sigma_s)

    errors = tuple(error._replace(point=scattered(error.point)) for error in fitted().errors)
    return replace(fitted(), errors=errors)
