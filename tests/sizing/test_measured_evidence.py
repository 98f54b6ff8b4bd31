"""Evidence against measured data, on tables of the same shapes made by engines whose law is known: the law must be
found again and predict what was held out; what cannot be used must be counted, what is missing must be said."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import SeedSequence

from sizing.candidates import from_fit
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import PointsError
from sizing.fitting import fit
from sizing.points import Point
from sizing.simulator import closed_loop, simulate, simulate_trace
from sizing.workload import Arrivals, Lengths, Prefix, Workload
from validation.evidence import measured_guidellm, measured_silicon, measured_stages, measured_static, measured_trace
from validation.evidence.claim import Setup
from validation.evidence.measured_design import on_line, spread
from validation.evidence.measured_silicon_rows import LEAST_LEVELS, grouped, is_kept_apart
from validation.evidence.measured_tables import find_table, number, read_table
from validation.evidence.table import Goal, beside, row_of_errors

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
SEED = SeedSequence(7)
CLAIMS = [measured_stages.STAGES, measured_guidellm.GUIDELLM, measured_static.STATIC, measured_trace.TRACE]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


# Tables


def test_a_table_is_found_by_its_columns_whatever_its_name(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", [{"x": 1, "z": 2}])
    wanted = write(tmp_path / "b.csv", [{"y": 1, "x": 2, "w": 3}])
    assert find_table(tmp_path, ("x", "y")) == wanted
    assert find_table(tmp_path, ("x", "q")) is None
    assert find_table(tmp_path / "nowhere", ("x",)) is None
    assert find_table(None, ("x",)) is None


def test_faulty_cells_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("x,y\n1,2\n3\n")
    with pytest.raises(PointsError, match="row 3"):
        list(read_table(path))
    with pytest.raises(PointsError, match="'fast' is not a number"):
        number({"x": "fast"}, "x")
    assert math.isnan(number({"x": " "}, "x"))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.name)
def test_missing_data_is_said_and_nothing_fails(claim: Any, tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        cases = claim.cases(Setup(data=folder))
        (row,) = claim.rows(cases, [])
        assert list(cases) == []
        assert row.n == 0
        assert row.holds is None
        assert "not at hand" in row.note


# Which points calibrate


@given(
    st.lists(st.tuples(*[st.integers(1, 512)] * 3), min_size=2, max_size=20, unique=True),
    st.tuples(*[st.integers(0, 6)] * 3),
)
def test_spread_points_are_distinct_hold_an_end_and_know_no_units(
    places: list[tuple[int, ...]], units: tuple[int, ...]
) -> None:
    coordinates = np.array(places, float)
    chosen = spread(coordinates)
    assert len(chosen) == len(set(chosen)) == min(6, len(places))
    assert spread(coordinates * 2.0 ** np.array(units)) == chosen


def test_the_corners_of_a_grid_come_first() -> None:
    grid = np.array([(isl, users) for isl in (100, 200, 400, 800) for users in (1, 4, 16, 64)], float)
    corners = {(100, 1), (100, 64), (800, 1), (800, 64)}
    assert {tuple(grid[place]) for place in spread(grid, 4)} == corners


def test_points_that_repeat_are_not_chosen_twice() -> None:
    assert len(spread(np.array([[1.0, 1], [2, 2], [1, 1], [2, 2]]))) == 2


# Static batches


def static_rows() -> list[dict[str, Any]]:
    loads = [(isl, 128, 1) for isl in (128, 512, 1024, 4096, 8192)]
    loads += [(512, 128, batch) for batch in (2, 4, 8, 16, 32, 64)]
    loads += [(512, osl, 1) for osl in (512, 2048, 8192)]
    return [
        {
            "model": "m",
            "hardware": "g",
            "tensor_parallel": 2,
            "prompt_size": isl,
            "token_size": osl,
            "batch_size": batch,
            "prompt_time_ms_median": 1e3 * LAW.mixed_s(0, 0, batch * isl, batch * isl * isl / 2),
            "token_time_ms_median": 1e3 * LAW.decode_s(batch, batch * (isl + osl / 2)),
        }
        for isl, osl, batch in loads
    ]


def test_static_batches_of_a_law_are_predicted(tmp_path: Path) -> None:
    write(tmp_path / "static.csv", static_rows())
    cases = measured_static.cases(Setup(data=tmp_path))
    answers = [measured_static.answer(case, SEED) for case in cases]
    prompt, token = measured_static.rows(cases, answers)
    assert prompt.n == token.n == len(static_rows()) - 6
    assert prompt.worst < 0.02
    assert token.worst < 0.02


def test_a_larger_batch_in_less_time_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = static_rows()
    rows[10]["prompt_time_ms_median"] = rows[5]["prompt_time_ms_median"] / 2
    write(tmp_path / "static.csv", rows)
    (case,) = measured_static.cases(Setup(data=tmp_path))
    assert case.dropped == 1
    assert max(case.batch) == 32


# A sweep at constant rates

VLLM = Replica(LAW, measured_guidellm.ENGINE)
SWEEP_S = 20.0


def sweep_rows(isl: int, osl: int, rates: list[float]) -> list[dict[str, Any]]:
    return [sweep_row(isl, osl, rate, np.random.default_rng(place)) for place, rate in enumerate([0.0, *rates])]


def sweep_row(isl: int, osl: int, rate: float, rng: np.random.Generator) -> dict[str, Any]:
    """One run of the sweep; rate 0 is one user alone."""
    arrivals = np.arange(0, SWEEP_S, 1 / rate) if rate else np.arange(100) * 1000.0
    lengths = [rng.integers(mean // 2, mean * 3 // 2 + 1, len(arrivals)) for mean in (isl, osl)]
    run = simulate_trace(VLLM, arrivals, *lengths)
    done = run.arrival_s + run.e2e_s <= (SWEEP_S if rate else math.inf)
    first_s, e2e_s = run.ttft_s[done], run.e2e_s[done]
    return {
        "strategy": "constant" if rate else "synchronous",
        "target_rps": rate or "",
        "isl_nominal": isl,
        "osl_nominal": osl,
        **{
            f"{name}_{f.__name__}": f(of[done])
            for name, of in zip(("isl", "osl"), lengths, strict=True)
            for f in (np.mean, np.std)
        },
        "n_ok": done.sum(),
        "n_incomplete": (~done).sum(),
        "duration_s": SWEEP_S if rate else e2e_s.sum(),
        "ttft_ms_p50": 1e3 * np.median(first_s),
        "ttft_ms_p95": 1e3 * np.percentile(first_s, 95),
        "itl_ms_mean": 1e3 * run.itl_s[done].mean(),
        "e2e_s_p95": np.percentile(e2e_s, 95),
        "e2e_s_p99": np.percentile(e2e_s, 99),
    }


def test_the_highest_rates_of_a_sweep_are_predicted(tmp_path: Path) -> None:
    burst = sweep_rows(200, 64, [])[0] | {"strategy": "throughput"}
    write(tmp_path / "sweep.csv", [*sweep_rows(1024, 64, [2, 4, 6, 8, 10, 13]), burst])
    joint, alone = measured_guidellm.cases(Setup(data=tmp_path))
    assert (joint.joint, alone.joint) == (True, False)
    assert [level.point.load_value for level in alone.held_out] == [10, 13]
    assert joint.calibration == alone.calibration
    found = measured_guidellm.answer(alone, SEED)
    table = measured_guidellm.rows([alone], [found])
    assert [row.metric for row in table] == 2 * ["ITL mean", "TTFT p50", "TTFT p95", "E2E p95", "E2E p99"]
    assert all(row.n == 2 for row in table)
    assert table[0].worst < 0.06
    assert max(row.median for row in table) < 0.10
    errors, bands = table[:5], table[5:]
    assert all(row.name == f"band, {other.name}" for row, other in zip(bands, errors, strict=True))
    assert all("line in load" in row.note for row in errors)
    assert all("covers 100.0 %" in row.note for row in bands)


def test_of_a_sweep_is_asked_what_the_planner_answers_for_each_mix(tmp_path: Path) -> None:
    """With the bend of the law at its lengths, not the law of all."""
    slow = [row | {"itl_ms_mean": 1.4 * row["itl_ms_mean"]} for row in sweep_rows(256, 64, [2, 4, 6, 8, 10, 13])]
    write(tmp_path / "sweep.csv", [*sweep_rows(1024, 64, [2, 4, 6, 8, 10, 13]), *slow])
    joint = measured_guidellm.cases(Setup(data=tmp_path))[0]
    found = measured_guidellm.answer(joint, SEED)
    points = [level.point for level in joint.calibration]
    fitted = fit(points, batching=measured_guidellm.ENGINE, open_loop=True, protocol=measured_guidellm.PROTOCOL)
    for level, figures in zip(joint.held_out, found, strict=True):
        lengths = measured_guidellm.workload_of(level.point).lengths

        def error(replica: Replica, level: measured_guidellm.Level = level) -> float:
            run = measured_guidellm.run_quantiles(replica, level.point, np.random.default_rng(0))
            return 1 - run["itl"].mean_s / level.measured_s[0]

        of_planner, of_all = error(from_fit(fitted, lengths).replica), error(fitted.engine)
        assert abs(figures[0].simulated - of_planner) < 0.3 * abs(of_planner - of_all)


# A trace


def test_the_second_half_of_an_overload_is_predicted(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    limits = Batching("chunked", 256, 2048, kv_tokens=20_000, kv_policy="max_utilization", kv_block_tokens=16)
    arrival_s = np.cumsum(rng.exponential(1 / 20, 300))
    isl, osl = rng.integers(200, 1500, 300), rng.integers(100, 400, 300)
    run = simulate_trace(Replica(LAW, limits), arrival_s, isl, osl)
    columns = {
        "input_tokens": isl, "output_tokens": osl, "arrival_s": arrival_s, "ttft_s": run.ttft_s, "e2e_s": run.e2e_s,
    }  # fmt: skip
    fixed = {"max_num_seqs": 256, "max_num_batched_tokens": 2048}
    rows = [{name: values[place] for name, values in columns.items()} | fixed for place in range(300)]
    write(tmp_path / "trace.csv", rows[::-1])
    cases = measured_trace.cases(Setup(data=tmp_path))
    found = measured_trace.answer(cases[0], SEED)
    table = measured_trace.rows(cases, [found])
    assert [row.n for row in table] == [1, 1, 150]
    assert max(row.median for row in table) < 0.10


# Straight lines


@given(st.floats(0.01, 100), st.floats(-2, 2), st.floats(0.1, 1000))
def test_a_line_follows_a_power_law_inside_and_beyond(scale: float, power: float, load: float) -> None:
    loads = np.array([1.0, 4.0, 10.0, 64.0])
    figures = np.stack([scale * loads**power, loads], axis=1)
    assert on_line(loads, figures, load) == pytest.approx([scale * load**power, load])


def test_a_simpler_way_that_is_better_makes_a_missed_goal() -> None:
    row = row_of_errors("a", "b", "c", [0.01] * 20 + [0.2] * 5, Goal(0.02))
    assert row.holds
    assert beside(row, "line", [0.0] * 25).holds
    for rival, holds in (([0.02] * 20 + [0.3] * 5, True), ([0.005] * 20 + [0.3] * 5, False), ([0.02] * 25, False)):
        judged = beside(row, "line", rival, never_worse=True)
        assert judged.holds is holds and judged.goal == "median ≤ 2 %, no worse than line"
    missed = row_of_errors("a", "b", "c", [0.1] * 25, Goal(0.02))
    assert beside(missed, "line", [0.5] * 25, never_worse=True).holds is False


# Servers of the sample


def measured_level(replica: Replica, isl: int, osl: int, users: int) -> Point:
    """Ten requests a user, all users at once, every request in the means."""
    run = closed_loop(replica, users, np.full(10 * users, isl), np.full(10 * users, osl))
    ttft_s = float((run["first_token_s"] - run["arrival_s"]).mean()) + replica.law.request_s
    itl_s = float((run["done_s"] - run["first_token_s"]).mean()) / (osl - 1)
    return Point(
        model="m", precision="bf16", gpu="unknown", tp=1, engine="vllm", isl=isl, osl=osl, load_kind="concurrency",
        load_value=users, requests=10 * users, requests_per_s=users / (ttft_s + (osl - 1) * itl_s),
        ttft_mean_s=ttft_s, itl_mean_s=itl_s,
    )  # fmt: skip


def test_the_loads_of_a_server_are_predicted_from_four() -> None:
    server = Replica(LAW, Batching("chunked", 512, 8192))
    points = tuple(measured_level(server, 2000, 100, users) for users in (1, 4, 8, 16, 32, 64))
    case = measured_silicon.Case(
        measured_silicon.WITHIN, True, measured_silicon.four(points), (points[1], points[3]), points
    )
    assert [point.load_value for point in case.fitted] == [1, 8, 16, 64]
    found = measured_silicon.answer(case, SEED)
    assert np.abs(found.line).max() < 1e-9  # the lines go through the very points that are asked
    assert np.abs(found.fit[:, [0, 2]]).max() < 0.05
    assert (found.half_width > 0.01).all()


def test_errors_of_the_sample_are_judged_by_question_and_kind_of_model() -> None:
    case = measured_silicon.Case(measured_silicon.WITHIN, True, (), (), ())
    beyond = measured_silicon.Case(measured_silicon.BEYOND, False, (), (), ())
    off = measured_silicon.Found(np.full((9, 3), 0.1), np.full((9, 3), 0.2), np.full((9, 3), 0.15))
    late = off._replace(fit=np.full((9, 3), 0.3), line=np.full((9, 3), 0.4))
    table = measured_silicon.rows([case, case, case, beyond, beyond, beyond], [off, off, late, late, late, late])
    within = [row for row in table if row.name == "dense servers, other loads"]
    assert [row.metric for row in within] == ["requests/s", "TTFT mean", "ITL mean"]
    assert [row.holds for row in within] == [True, True, False]
    assert within[0].median == pytest.approx(math.expm1(0.1))
    assert [row.n for row in table if row.name == "mixtures of experts, more users"] == [27] * 3
    bands = [row for row in table if row.name.startswith("band")]
    assert [row.name.removeprefix("band, ") for row in bands[::3]] == [
        "dense servers, other loads",
        "mixtures of experts, more users",
    ]
    assert all(
        f"covers {share} %" in row.note and row.holds is False
        for row, share in zip(bands, ["66.7"] * 3 + ["0.0"] * 3, strict=True)
    )


def sample_row(users: int, **cells: str) -> dict[str, str]:
    row = {
        "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm", "precision": "", "backend": "vllm",
        "backend_version": "1", "tp_size": "2.0", "pp_size": "1.0", "attention_dp_size": "", "moe_tp_size": "",
        "moe_ep_size": "", "mode": "agg", "batch_size": f"{users}.0", "isl": "1000", "osl": "101",
        "silicon_ttft_ms": "50", "silicon_tpot_ms": f"{8 + users}",
        "silicon_data_source": f"aic-auto-gap-analysis a.csv; silicon_concurrency={users}; measured=2025; x",
    }  # fmt: skip
    return row | cells


LEVELS = range(1, LEAST_LEVELS + 1)


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    good = [sample_row(users) for users in LEVELS]
    newer = "aic-auto-gap-analysis; silicon_concurrency=2; measured=2026; x"
    later = sample_row(2, silicon_ttft_ms="70", silicon_data_source=newer)
    useless = [
        sample_row(1, mode="disagg"),
        sample_row(1, silicon_data_source="b.csv"),
        sample_row(1, batch_size="2"),
        sample_row(1, tp_size="8"),
        *(sample_row(users, tp_size="4", silicon_ttft_ms="70" if users == 2 else "50") for users in LEVELS),
        *(sample_row(users, tp_size="1", silicon_tpot_ms=f"{20 - 4 * users}") for users in LEVELS),
    ]
    sample = grouped([later, *good, *useless])
    (series,) = sample.series
    assert series.dense and series.server[5] == "2.0"
    assert [point.load_value for point in series.points] == list(LEVELS)
    first, second, *_ = series.points
    assert (first.isl, first.isl_cv, first.precision, first.tp) == (1000, 0, "bf16", 2)
    assert first.requests_per_s == pytest.approx(1 / (0.05 + 100 * 0.009))
    assert (first.engine, first.engine_version) == ("vllm", "1")
    (unnamed,) = grouped([sample_row(users, backend_version="") for users in LEVELS]).series
    assert unnamed.points[0].engine_version == ""
    assert second.ttft_mean_s == 0.07
    assert sorted(count for _, count in sample.dropped) == [1, 1, 1, 1, 1, LEAST_LEVELS, LEAST_LEVELS]
    for why in ("separate servers", "1 measured again later", "fewer than 5", "ITL falls", "repeat another's"):
        assert why in str(sample)


def test_attention_of_several_ranks_has_a_batch_on_each() -> None:
    (series,) = grouped(
        [sample_row(users, model_path="some/MoE", attention_dp_size="2", batch_size=f"{users / 2}") for users in LEVELS]
    ).series
    assert not series.dense
    assert series.points[0].tp == 4


def test_a_server_of_eight_gpus_is_not_one_of_64() -> None:
    """InferenceX's "tp: 8, ep: 8" is in the sample as a TP of 64, alone and with data-parallel attention; its halves
    stay as they were."""
    source = "silicon_concurrency={}; workflow_run_id=337"
    product = {"model_path": "some/MoE", "moe_tp_size": "8.0", "moe_ep_size": "8.0"}

    def gpus(**cells: str) -> int:
        ranks = int(cells.get("attention_dp_size", "1"))
        rows = [
            sample_row(n, silicon_data_source=source.format(n), batch_size=f"{n / ranks}") | product | cells
            for n in LEVELS
        ]
        (series,) = grouped(rows).series
        assert series.server[5] == str(float(cells["tp_size"]))
        return series.points[0].tp

    assert gpus(tp_size="64") == gpus(tp_size="1", attention_dp_size="64") == 8
    assert gpus(tp_size="8", moe_ep_size="1") == 8
    pools = {"tp_size": "72", "moe_tp_size": "72", "moe_ep_size": "1"}  # three of 8 GPUs and one of 48
    rows = [sample_row(n, silicon_data_source=source.format(n)) | product | pools for n in LEVELS]
    assert grouped(rows).dropped == (("with prefill and decode on separate servers", LEAST_LEVELS),)


@pytest.mark.parametrize("mark", ["; wip=False", ""])
def test_lengths_of_rows_from_inferencex_vary(mark: str) -> None:
    """Marked or not: all rows but NVIDIA's own are InferenceX's."""
    rows = [sample_row(users, silicon_data_source=f"silicon_concurrency={users}{mark}") for users in LEVELS]
    (series,) = grouped(rows).series
    assert series.varied
    drawn = np.random.default_rng(0).uniform(800, 1000, 100_000)
    for point in series.points:
        assert point.isl == pytest.approx(drawn.mean(), rel=1e-3)
        assert point.isl_cv == pytest.approx(drawn.std() / drawn.mean(), rel=1e-2)


def test_what_was_measured_once_counts_once() -> None:
    """Rounded, on fewer GPUs or with a level less; not where the figures of one level differ."""

    def rows(ttft_ms: str, **cells: str) -> list[dict[str, str]]:
        return [sample_row(users, silicon_ttft_ms=ttft_ms, **cells) for users in LEVELS]

    first = rows("50")
    rounded = [*rows("50.2", tp_size="4")[1:], sample_row(9, tp_size="4")]
    sample = grouped([*first, *rounded])
    assert [series.server[5] for series in sample.series] == ["2.0"]
    assert "5 of series that repeat another's figures" in str(sample)
    assert len(grouped([*first, *rows("50.5", tp_size="4")]).series) == 2


def test_a_series_is_on_the_half_that_its_mark_puts_it_on() -> None:
    """Reading its lengths otherwise moves no series to the half that the table shows."""
    source = "silicon_concurrency={}; wip=False"
    plain, told = (
        grouped([sample_row(users, silicon_data_source=text.format(users)) for users in LEVELS]).series[0].key
        for text in (source, source.partition(";")[0])
    )
    assert plain != told and plain[:-1] == told[:-1]


def test_about_half_of_the_series_are_kept_apart() -> None:
    apart = [is_kept_apart((f"server {number}", "vllm")) for number in range(400)]
    assert 150 < sum(apart) < 250


# Open loops with prompts that repeat


def stage(number: int, rate: float) -> dict[str, Any]:
    """One stage of a server that finds 576 of 591 tokens of nearly every prompt."""
    workload = Workload(Lengths(591, 100), rate, Arrivals("constant", 0.0), Prefix(576, 1.0 if number else 0.98))
    run = simulate(STAGED, workload, requests=5000).prediction()
    shown = {
        f"{metric}_{name}_s": getattr(run.of(metric), f"{name}_s")
        for metric in ("ttft", "itl", "e2e")
        for name in ("mean", "p50", "p95", "p99")
    }
    fixed = {
        "model": "m", "precision": "bf16", "gpu": "unknown", "tp": 1, "engine": "vllm", "engine_version": "0.15.1",
        "max_batch_size": 128, "isl": 591, "osl": 100, "load_kind": "constant_rate", "verdict": "",
    }  # fmt: skip
    load = {"load_value": rate, "duration_s": 5000 / rate, "requests": 5000, "requests_per_s": rate}
    return fixed | load | {"source": f"x stage {number}", "mean_in_flight": rate * run.of("e2e").mean_s} | shown


STAGED = Replica(LAW, Batching("chunked", 128, measured_stages.TOKEN_BUDGET, lookahead_steps=1.0))


def test_a_stage_left_out_is_predicted_from_the_others(tmp_path: Path) -> None:
    stages = [stage(0, 4), stage(1, 8), stage(0, 12), stage(1, 20), stage(1, 30)]
    write(tmp_path / "stages.csv", [*stages, stages[0] | {"verdict": "overloaded", "load_value": 90}])
    cases = measured_stages.cases(Setup(data=tmp_path))
    assert [case.stage.load_value for case in cases] == [4, 8, 12, 20, 30]
    assert [case.stage.prefix_hit for case in cases] == [0.98, 1.0, 0.98, 1.0, 1.0]
    assert all(case.stage.prefix_tokens == 576 and len(case.others) == 4 for case in cases)
    table = measured_stages.rows([cases[3]], [measured_stages.answer(cases[3], SEED)])
    assert [row.metric for row in table] == ["TTFT p50", "TTFT p95", "ITL mean", "E2E p95", "E2E p99"]
    assert max(row.worst for row in table) < 0.08
    assert "line in load" in table[0].note and "rule of means" not in table[2].note
