"""Points whose prompts share a prefix: kept, told apart, and fitted as the server computed them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri

from calibration.metrics.measurement import prefix_columns
from calibration.server_metrics import counter_means, parse_page
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import PointsError
from sizing.fitting import fit
from sizing.fitting.levels import RAMPED, point_runs
from sizing.points import COLUMNS, Point, curves, read_points, write_points
from sizing.simulator import closed_loop
from sizing.simulator.closed import measured_rounds
from sizing.simulator.replay import Replay
from sizing.simulator.sampling import cached_tokens, evenly_cached
from sizing.workload import Lengths, Prefix

LAW = StepLaw(4.8e-3, 1e-3, 60e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
ENGINE = Replica(LAW, Batching("chunked"))
POINT = Point(
    model="m",
    precision="bf16",
    gpu="g",
    tp=1,
    batching="chunked",
    isl=1000,
    osl=100,
    load_kind="concurrency",
    load_value=4,
    requests_per_s=3.0,
)


def written(*points: Point) -> str:
    file = StringIO()
    write_points(points, file)
    return file.getvalue()


def test_the_columns_stand_at_the_end_and_may_be_missing(tmp_path: Path) -> None:
    added = (
        "verdict",
        "prefix_tokens",
        "prefix_hit",
        "kv_tokens",
        "protocol",
        "policy",
        "token_budget",
        "lookahead_steps",
        "receive_interval_steps",
        "batch_wait_steps",
        "batch_wait_ratio",
        "kv_block_tokens",
    )
    assert COLUMNS[-len(added) :] == added
    told = replace(POINT, prefix_tokens=600.0, prefix_hit=0.25, protocol="burst")
    (tmp_path / "new.csv").write_text(written(POINT, told))
    assert read_points(tmp_path / "new.csv") == [POINT, told]
    lines = [line.split(",") for line in written(POINT).splitlines()]
    (tmp_path / "old.csv").write_text("\n".join(",".join(cells[: -len(added)]) for cells in lines))
    assert read_points(tmp_path / "old.csv") == [POINT]


@pytest.mark.parametrize(("column", "value"), [("prefix_hit", "1.2"), ("prefix_hit", "-1"), ("prefix_tokens", "-3")])
def test_impossible_values_name_their_column(tmp_path: Path, column: str, value: str) -> None:
    header, row = written(POINT).splitlines()
    cells = row.split(",")
    cells[COLUMNS.index(column)] = value
    (tmp_path / "points.csv").write_text(f"{header}\n{','.join(cells)}\n")
    with pytest.raises(PointsError, match=f"row 2, column '{column}'"):
        read_points(tmp_path / "points.csv")


@pytest.mark.parametrize("known", [{}, {"prefix_tokens": 500.0}, {"prefix_hit": 0.5}, {"prefix_tokens": 0.0}])
def test_an_unknown_prefix_counts_as_none(known: dict[str, float]) -> None:
    point = replace(POINT, **known)
    assert point.prefix == Prefix()
    assert point.computed_tokens == point.isl
    assert point.series == POINT.series


def test_a_mean_request_computes_what_is_not_found() -> None:
    assert replace(POINT, prefix_tokens=600.0, prefix_hit=0.5).computed_tokens == 700
    assert replace(POINT, prefix_tokens=1000.0, prefix_hit=1.0).computed_tokens == 1  # the last token always is


def test_points_with_other_prefixes_are_other_curves() -> None:
    found = [replace(POINT, load_value=users, prefix_tokens=600.0, prefix_hit=0.9 + users / 1000) for users in (1, 2)]
    rarely = replace(POINT, prefix_tokens=600.0, prefix_hit=0.2)
    drawn = curves([POINT, *found, rarely])
    assert [(curve.prefix, len(curve.points)) for curve in drawn] == [
        (Prefix(), 1),
        (Prefix(600, 0.9), 2),
        (Prefix(600, 0.2), 1),
    ]


@pytest.mark.parametrize("hit", [0.1, 0.37, 0.9, 1.0])
def test_blocks_of_requests_have_their_share_of_hits(hit: float) -> None:
    cached = evenly_cached(Prefix(600, hit), np.full(3200, 1000), np.random.default_rng(0))
    assert cached is not None
    assert set(cached) <= {0, 600}
    found = (cached == 600).reshape(-1, 32)
    assert np.abs(found.sum(axis=1) - 32 * hit).max() <= 1
    order = (np.flatnonzero(block).tolist() for block in found)
    assert hit == 1 or len(set(map(tuple, order))) > 50  # another order in every block
    assert evenly_cached(Prefix(600, 0.0), np.full(10, 1000), np.random.default_rng(0)) is None


def level(users: int, prefix: Prefix, isl: int, osl: int = 60) -> Point:
    """A closed loop of requests that find the prefix at random, as measured."""
    rng = np.random.default_rng([users, isl])
    lengths = Lengths(isl, osl, 0.2, 0.3).sample(max(20, 2000 // users) * users, rng)
    cached = cached_tokens(prefix, lengths[0], rng)
    run = closed_loop(ENGINE, users, *lengths, ramp_s=1.0, cached=cached)
    first, last = measured_rounds(len(run), users)
    seen = run[first:last]
    ttft_s = seen["first_token_s"] - seen["arrival_s"] + LAW.request_s
    itl_s = (seen["done_s"] - seen["first_token_s"]) / (seen["osl"] - 1)
    e2e_s = seen["done_s"] - seen["arrival_s"] + LAW.request_s
    values: dict[str, Any] = {"isl": isl, "osl": osl, "load_value": users, "requests_per_s": users / e2e_s.mean()}
    values |= {"isl_cv": 0.2, "osl_cv": 0.3, "requests": len(seen)}
    values |= {"ttft_mean_s": ttft_s.mean(), "itl_mean_s": itl_s.mean(), "e2e_mean_s": e2e_s.mean()}
    return replace(POINT, **values, prefix_tokens=prefix.tokens, prefix_hit=prefix.hit_rate, max_batch_size=256)


def test_the_replay_of_a_point_computes_what_was_computed() -> None:
    """Nothing found, all found, half found; within what the luck of lengths and hits makes."""
    for prefix in (Prefix(), Prefix(900, 1.0), Prefix(900, 0.5)):
        point = level(8, prefix, 1000)
        means = Replay(point_runs([point], RAMPED), ENGINE).means(ENGINE)[0]
        assert means[0] == pytest.approx(point.requests_per_s, rel=0.03)
        assert means[1] == pytest.approx(point.ttft_mean_s, rel=0.06)


def test_the_fit_finds_the_law_behind_repeated_prompts() -> None:
    """A prompt token costs 60 us. Three quarters of each prompt are found; taken as computed, they look too cheap."""
    points = [level(users, Prefix(round(0.75 * isl), 1.0), isl) for isl in (1000, 4000) for users in (1, 4, 16, 64)]
    found = fit(points, protocol=RAMPED)
    blind = fit([replace(point, prefix_tokens=None, prefix_hit=None) for point in points], protocol=RAMPED)
    assert found.law.prefill_alone_s(1000) == pytest.approx(LAW.prefill_alone_s(1000), rel=0.1)
    assert blind.law.prefill_alone_s(1000) < 0.5 * LAW.prefill_alone_s(1000)


@pytest.mark.parametrize(
    ("isl", "planned", "server", "columns"),
    [
        (1000, 0, {}, {}),
        (1000, 608, {}, {"prefix_tokens": 608}),  # how often it was found is not known
        (1000, 608, {"prefix_tokens_found_mean": 456.0}, {"prefix_tokens": 608, "prefix_hit": 0.75}),
        (1000, 608, {"prefix_tokens_found_share": 0.304}, {"prefix_tokens": 608, "prefix_hit": 0.5}),
        (1000, 608, {"prefix_tokens_found_mean": 616.0}, {"prefix_tokens": 608, "prefix_hit": 1.0}),
        (1000, 600, {"prefix_tokens_found_mean": 592.0}, {"prefix_tokens": 600, "prefix_hit": 1.0}),  # whole blocks
        (600, 600, {"prefix_tokens_found_mean": 592.0}, {"prefix_tokens": 600, "prefix_hit": 1.0}),  # but the last
        (1000, 608, {"prefix_tokens_found_mean": 600.0}, {"prefix_tokens": 608, "prefix_hit": 1.0}),  # window's edges
        # a queue grew: 20 % more prompts were admitted than requests finished
        (
            1000,
            608,
            {"prefix_tokens_found_share": 0.304, "prefix_tokens_found_mean": 365.0},
            {"prefix_tokens": 608, "prefix_hit": 0.5},
        ),
        (1000, 0, {"prefix_tokens_found_mean": 3.0}, {}),  # less than a block: chance
        (
            1000,
            200,
            {"prefix_tokens_found_mean": 128.0, "kv_cache_tokens_per_block": 128.0},  # vLLM on a CPU
            {"prefix_tokens": 200, "prefix_hit": 1.0},
        ),
        (591, 0, {"prefix_tokens_found_mean": 583.0}, {"prefix_tokens": 576, "prefix_hit": 1.0}),  # prompts repeat
        (1000, 100, {"prefix_tokens_found_mean": 900.0}, {"prefix_tokens": 896, "prefix_hit": 1.0}),
    ],
)
def test_a_calibration_tells_what_it_planned_and_the_server_counted(
    isl: int, planned: int, server: dict[str, float], columns: dict[str, float]
) -> None:
    assert prefix_columns(np.full(3, isl), planned, server) == columns


@given(isl=st.floats(20, 4000), isl_cv=st.floats(0.05, 1.5), share=st.floats(0.1, 1.2), hit=st.floats(0.0, 1.0))
def test_the_mean_found_in_a_prompt_is_that_of_many(isl: float, isl_cv: float, share: float, hit: float) -> None:
    """By the sum of 20,000 prompts at even quantiles, within the rounding of lengths to whole tokens."""
    prefix = Prefix(max(1, round(share * isl)), hit)
    prompts = Lengths(isl, 10, isl_cv).isl_at(ndtri((np.arange(20_000) + 0.5) / 20_000))
    expected = hit * np.minimum(prefix.tokens, prompts - 1).mean()
    assert prefix.found_tokens(isl, isl_cv) == pytest.approx(expected, abs=0.6, rel=0.003)


def test_prompts_shorter_than_the_prefix_are_no_misses() -> None:
    """A prompt of 401 tokens holds 400 of the 800; the mean by weight is 600 where all find all."""
    prompts, weight = np.array([2000, 401]), np.array([0.5, 0.5])
    for found, hit in ((600.0, 1.0), (300.0, 0.5)):
        columns = prefix_columns(prompts, 800, {"prefix_tokens_found_mean": found}, weight)
        assert columns == {"prefix_tokens": 800, "prefix_hit": pytest.approx(hit)}


def page(at_s: float, text: str) -> Any:
    return parse_page(f'nv_inference_request_success{{model="m"}} {at_s:g}\n{text}', "url", at_s)


def test_counters_of_vllm_tell_the_tokens_found() -> None:
    pages = [
        page(
            number,
            f'vllm:prefix_cache_queries_total{{engine="0",model_name="m"}} {1000.0 * number}\n'
            f'vllm:prefix_cache_hits_total{{engine="0",model_name="m"}} {720.0 * number}\n'
            f'vllm:request_success_total{{engine="0",finished_reason="length",model_name="m"}} {1.0 * number}\n'
            f'vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {1.0 * number}\n'
            "vllm:num_requests_running 5\n",
        )
        for number in (10, 30)
    ]
    assert counter_means(pages[0], pages[1], "m")["prefix_tokens_found_mean"] == pytest.approx(360)


def test_blocks_of_tensorrt_llm_tell_the_tokens_found() -> None:
    family = "nv_trt_llm_kv_cache_block_metrics"
    pages = [
        page(
            number,
            f'{family}{{kv_cache_block_type="reused",model="m"}} {30 * number}\n'
            f'{family}{{kv_cache_block_type="tokens_per",model="m"}} 16\n',
        )
        for number in (10, 30)
    ]
    assert counter_means(pages[0], pages[1], "m")["prefix_tokens_found_mean"] == pytest.approx(480)
    assert "prefix_tokens_found_mean" not in counter_means(page(1, ""), page(2, ""), "m")
