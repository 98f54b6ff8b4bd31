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

from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import PointsError
from sizing.simulator import closed_loop, simulate_trace
from validation.evidence import measured_guidellm, measured_silicon, measured_static, measured_trace
from validation.evidence.claim import Setup
from validation.evidence.measured_design import spread
from validation.evidence.measured_silicon_rows import LEAST_ROWS, Group, Load, grouped
from validation.evidence.measured_tables import find_table, number, read_table

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
SEED = SeedSequence(7)
CLAIMS = [measured_guidellm.GUIDELLM, measured_static.STATIC, measured_trace.TRACE]


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
    assert [row.metric for row in table] == ["ITL mean", "TTFT p50", "TTFT p95", "E2E p95", "E2E p99"]
    assert all(row.n == 2 for row in table)
    assert table[0].worst < 0.05
    assert max(row.median for row in table) < 0.10


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


# Servers of the sample


def measured_load(replica: Replica, isl: int, osl: int, users: int) -> Load:
    """Ten requests a user, all users at once, every request in the means."""
    run = closed_loop(replica, users, np.full(10 * users, isl), np.full(10 * users, osl))
    first_s = run["first_token_s"] - run["arrival_s"] + replica.law.request_s
    itl_s = (run["done_s"] - run["first_token_s"]) / (osl - 1)
    return Load(isl, osl, users, float(first_s.mean()), float(itl_s.mean()), 1.0)


def test_the_loads_of_a_server_are_predicted_from_six() -> None:
    server = Replica(LAW, Batching("chunked", 512, 8192))
    shapes = [(512, 128), (512, 512), (4096, 128)]
    loads = tuple(measured_load(server, *shape, users) for shape in shapes for users in (4, 8, 16, 32))
    # A GPU that the kernel database does not know: the KV cache is then taken for unlimited.
    group = Group("m", "Qwen/Qwen3-32B", "unknown", "bf16", "vllm", 1, loads)
    found = measured_silicon.answer(group, SEED)
    assert len(found.tpot) == len(found.ttft) == len(loads) - 6
    assert np.median(np.abs(found.tpot)) < 0.03
    assert np.median(np.abs(found.ttft)) < 0.15


def sample_row(users: int, **cells: str) -> dict[str, str]:
    row = {
        "model_path": "Qwen/Qwen3-32B", "system": "h100_sxm", "precision": "", "backend": "vllm",
        "backend_version": "1", "tp_size": "2.0", "mode": "agg", "batch_size": f"{users}.0", "isl": "1000",
        "osl": "100", "silicon_ttft_ms": "50", "silicon_tpot_ms": "8",
        "silicon_data_source": f"a.csv; silicon_concurrency={users}; measured=x",
    }  # fmt: skip
    return row | cells


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    good = [sample_row(users) for users in range(1, LEAST_ROWS + 1)]
    useless = [
        sample_row(1, model_path="some/MoE"),
        sample_row(1, mode="disagg"),
        sample_row(1, precision="int3"),
        sample_row(1, silicon_data_source="b.csv"),
        sample_row(1, batch_size="2"),
        sample_row(1, tp_size="8"),
    ]
    sample = grouped([*good, *useless])
    (group,) = sample.groups
    assert [load.users for load in group.loads] == list(range(1, LEAST_ROWS + 1))
    assert group.loads[0].shortest == 1
    assert [count for _, count in sample.dropped] == [1] * 6
    assert "1 of mixtures of experts" in str(sample)


def test_lengths_of_rows_from_inferencex_vary() -> None:
    varied = sample_row(4, silicon_data_source="silicon_concurrency=4; wip=False")
    (group,) = grouped([varied] * LEAST_ROWS).groups
    assert {load.shortest for load in group.loads} == {0.8}
