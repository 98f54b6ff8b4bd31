"""Points of one load level scale a day-zero law: what they tell, what they do not, and what the answer says of it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sizing.analyses.next_level import LevelChoice, Option, believe, choose
from sizing.candidates import Choice, from_fit, measured
from sizing.edge import capacity_band
from sizing.engine import Replica, StepLaw
from sizing.errors import FitError
from sizing.estimate import estimate, prior_law
from sizing.fitting import Fit, Protocol, fit
from sizing.fitting.carried import closed_sigmas
from sizing.fitting.levels import little_per_s, point_runs
from sizing.plans import basis_of
from sizing.points import Deployment, Point, write_points
from sizing.question import Question
from sizing.simulator.replay import Replay
from sizing.text import caution
from sizing.workload import Lengths
from tests.sizing.simulated_levels import simulated_point
from tests.sizing.test_cli import run

QWEN: dict[str, Any] = {"model": "Qwen/Qwen3-32B", "gpu": "h200_sxm", "tp": 2}
LENGTHS = Lengths(2000, 256, 0.3, 0.3)
ESTIMATE = estimate(QWEN["model"], QWEN["gpu"], QWEN["tp"], "bf16", LENGTHS)
LEANT_ON = prior_law(Deployment(QWEN["model"], "bf16", QWEN["gpu"], QWEN["tp"], 1, "", "", "", None), LENGTHS)
assert LEANT_ON is not None and LEANT_ON.law is not None
KERNELS: StepLaw = LEANT_ON.law
"""The law that a fit leans on: of kernels alone."""
PLAN = "--isl 2000 --osl 256 --rate 20 --ttft p95:2s --itl p95:60ms"
QUESTION = Question.of(
    {"model": QWEN["model"], "isl": 2000, "osl": 256, "rate": 20, "ttft": "p95:2s", "itl": "p95:60ms"}
)


@cache
def level(users: int, slower: float = 1.0, lengths: Lengths = LENGTHS) -> Point:
    """What a level would show of a server that is everywhere so many times slower than its kernels, without noise.

    A request's way to the engine takes a moment, so that it misses the iteration in which its user's last one ended.
    """
    law = KERNELS.with_values(request_s=1e-3)
    server = Replica(law.scaled(slower), ESTIMATE.replica.batching)
    point = simulated_point(Option(lengths, users, 10 * users), server, **QWEN)
    for _ in range(2):  # the users of a replay start over a time that follows from requests/s
        rate_per_s, ttft_s, itl_s = Replay(point_runs([point]), server).means(server)[0, :3].tolist()
        point = dataclasses.replace(point, requests_per_s=rate_per_s, ttft_mean_s=ttft_s, itl_mean_s=itl_s)
    return point


@cache
def fitted(users: tuple[int, ...], slower: float = 1.0) -> Fit:
    return fit([level(each, slower) for each in users], protocol=Protocol("ramp"))


def steps_s(law: StepLaw) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Decode steps of few and of many sequences, and prompts alone, what is outside an iteration included."""
    steps = [law.decode_s(batch, batch * context) for batch in (1, 8, 32, 128) for context in (1000, 2500)]
    return np.array([*steps, *(law.prefill_alone_s(isl) + law.request_s for isl in (1000, 2000))], float)


def test_a_point_equal_to_the_prediction_leaves_the_law_as_it_is() -> None:
    assert steps_s(fitted((16,)).law) == pytest.approx(steps_s(KERNELS), rel=0.1)
    shown = fitted((16,)).means([level(users) for users in (4, 16, 64)])[:, 2]
    assert shown == pytest.approx([level(users).itl_mean_s for users in (4, 16, 64)], rel=0.08)


@pytest.mark.parametrize("slower", [0.7, 1.5])
def test_a_server_uniformly_slower_or_faster_is_found_with_one_point(slower: float) -> None:
    """Mean ITL at a quarter of the users and at four times as many, 30 to 50 % off by the estimate, within 10 %."""
    shown = fitted((16,), slower).means([level(users, slower) for users in (4, 16, 64)])[:, 2]
    off = np.abs(shown / [level(users, slower).itl_mean_s for users in (4, 16, 64)] - 1)
    assert off[1] < 0.02
    assert off.max() < 0.10


@pytest.mark.parametrize("slower", [0.7, 1.4])
def test_one_level_of_a_mixture_scales_its_experts_and_not_what_every_step_takes(slower: float) -> None:
    """Experts 30 or 40 % off their kernels: at a quarter of the users and at four times as many at most a third of that
    is left in ITL."""
    mixture: dict[str, Any] = {
        "model": "Qwen/Qwen3-235B-A22B",
        "gpu": "h200_sxm",
        "tp": 4,
        "precision": "fp8",
        "engine": "vllm",
    }
    told = prior_law(dataclasses.replace(level(16), **mixture).deployment, LENGTHS)
    assert told is not None and told.law is not None and told.law.unread > 0
    law = told.law.with_values(weights_s=slower * told.law.weights_s, request_s=1e-3)
    server = Replica(law, ESTIMATE.replica.batching)
    points = [simulated_point(Option(LENGTHS, users, 10 * users), server, **mixture) for users in (4, 16, 64)]
    found = fit([points[1]], protocol=Protocol("ramp"))
    weights, overhead = (getattr(found.law, name) / getattr(told.law, name) for name in ("weights_s", "overhead_s"))
    assert (weights - 1) * (slower - 1) > 0
    assert abs(np.log(overhead)) < 0.5 * abs(np.log(weights))
    off = np.abs(found.means(points)[:, 2] / [point.itl_mean_s for point in points] - 1)
    assert off.max() < abs(slower - 1) / 3


def test_the_band_lies_between_those_of_an_estimate_and_of_a_fit() -> None:
    candidates = [ESTIMATE, *(from_fit(fitted(users), LENGTHS) for users in ((16,), (1, 16, 64)))]
    """An estimate knows servers of its kind, one level leans on kernels alone: their upper ends are alike."""
    bands = [capacity_band(each, QUESTION.setting(8)) for each in candidates]
    lows, highs = zip(*bands, strict=True)
    assert 0 < lows[0] < lows[1] < lows[2] < 1 < highs[2] < min(highs[:2])


def test_away_from_the_level_the_band_is_wider() -> None:
    one = fitted((16,))
    near, far = (one.mean_sigmas([level(users)])[0, 2] for users in (16, 2))
    assert far > 1.5 * near


def test_at_the_level_measured_ttft_is_as_measured_and_littles_law_holds_everywhere() -> None:
    """TTFT three times the engine's, as of prompts that wait for each other at a start: the more of them, the longer.
    What was measured holds some luck of the lengths, which is left out."""
    burst = dataclasses.replace(level(16), verdict="", ttft_mean_s=3 * (level(16).ttft_mean_s or 0.0))
    found = fit([burst])
    asked = [level(users) for users in (4, 16, 64)]
    means = found.means(asked)
    assert means[1, 1] == pytest.approx(burst.ttft_mean_s, rel=0.03)
    waits_s = means[:, 1] - found.engine_means(asked)[:, 1]
    assert 0 < waits_s[0] < waits_s[1] < waits_s[2] < 4 * waits_s[1]
    in_server = means[:, 0] * (means[:, 1] + (LENGTHS.osl - 1) * means[:, 2])
    counted = burst.requests_per_s / little_per_s(burst)
    assert in_server / counted == pytest.approx([4, 16, 64], rel=1e-6)
    away = [closed_sigmas([burst], found.protocol, level(users))[1] for users in (16, 64, 256)]
    squares = np.square(away) - away[0] ** 2  # of what each unit of ln(users) adds by itself
    assert squares[2] == pytest.approx(2 * squares[1]) and away[0] < 0.1 < squares[1]


def test_a_start_that_nobody_told_is_not_taken_for_the_engine() -> None:
    """TTFT six times as long, as where all prompts came at once: without a word on the start no step is longer."""
    burst = dataclasses.replace(level(16), ttft_mean_s=6 * (level(16).ttft_mean_s or 0.0))
    steps, as_before = (steps_s(fit([point]).law)[:8] for point in (burst, level(16)))
    assert steps == pytest.approx(as_before, rel=0.15)


@pytest.mark.parametrize("longer_s", [0.0, 0.1, 0.3])
def test_a_long_ttft_of_a_mixture_does_not_tilt_its_itl(longer_s: float) -> None:
    """A server that is as fast as its kernels, with prompts apart and a front end of 60 ms; a TTFT of 139 ms is longer
    still by a start that nobody told of. At a quarter of the users and at four times as many ITL is within 10 %."""
    mixture: dict[str, Any] = {
        "model": "Qwen/Qwen3-235B-A22B",
        "gpu": "h200_sxm",
        "tp": 4,
        "precision": "fp8",
        "engine": "sglang",
    }
    lengths = Lengths(1000, 1000, 0.13, 0.13)
    told = prior_law(dataclasses.replace(level(16), **mixture).deployment, lengths)
    assert told is not None and told.law is not None
    batching = dataclasses.replace(ESTIMATE.replica.batching, policy="prefill_first")
    server = Replica(told.law.with_values(request_s=0.06), batching)
    points = [simulated_point(Option(lengths, users, 10 * users), server, **mixture) for users in (4, 16, 64)]
    found = fit([dataclasses.replace(points[1], ttft_mean_s=points[1].ttft_mean_s + longer_s)])
    shown = found.means(points)[:, 2]
    assert shown == pytest.approx([point.itl_mean_s for point in points], rel=0.1)


def test_the_memory_stays_that_of_the_estimate() -> None:
    assert fitted((16,)).batching.kv_tokens == ESTIMATE.replica.batching.kv_tokens


def test_the_basis_is_an_estimate_at_any_load_and_says_what_scaled_it() -> None:
    found = from_fit(fitted((16,)), LENGTHS)
    assert found.basis == basis_of(found, in_flight=200.0) == "estimated"
    assert not found.unmeasured
    assert found.source.startswith("scaled by 1 measured point")
    assert "scaled by 1 measured point at 16 users" in caution(found.warnings[0])
    assert from_fit(fitted((1, 64)), LENGTHS).basis == "fitted"


def test_one_concurrency_at_two_lengths_is_one_level() -> None:
    other = level(16, lengths=Lengths(500, 64))
    assert fit([level(16), other]).of_one_level


def test_where_only_measurements_count_one_level_is_left_out() -> None:
    points: Sequence[Point] = [level(16)]
    found, rejected = measured(str(QWEN["model"]), LENGTHS, Choice(basis="measured"), points)
    assert not found
    assert "one load level" in rejected[0].why


@pytest.mark.parametrize("unknown", [{"model": "my/own"}, {"gpu": "my_gpu"}])
def test_without_an_estimate_one_level_is_refused(unknown: dict[str, str]) -> None:
    point = dataclasses.replace(level(16), **unknown)  # type: ignore[arg-type]
    with pytest.raises(FitError, match=r"no estimate of .* measure at two levels or more, such as 1 and 64"):
        fit([point])
    with pytest.raises(FitError, match="two levels"):
        fit([level(16)], prior=None)
    assert believe((point,), QUESTION) is None


def test_a_sweep_believes_its_first_level_and_goes_on_to_a_second() -> None:
    options = [Option(LENGTHS, users, 10 * users) for users in (1, 8, 64)]
    found = choose([level(1)], options, QUESTION, budget_s=3600.0, guess_s=lambda option: 60.0)
    assert isinstance(found, LevelChoice)
    assert found.aim == "start"
    assert found.option.users == 8
    assert found.belief is not None
    assert "90 % band" in str(found.belief)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A points table of one row."""
    path = tmp_path / "one.csv"
    with path.open("w") as table:
        write_points([level(16)], table)
    return path


def test_the_command_line_plans_from_one_row(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = f"plan --model Qwen/Qwen3-32B --gpu h200_sxm --tp 2 --precision bf16 --points {file} {PLAN} --json"
    answer = json.loads(run(arguments.split(), capsys)[1])
    assert answer["basis"] == "estimated"
    assert answer["source"].startswith("scaled by 1 measured point")
    assert any("scaled by 1 measured point at 16 users" in each for each in answer["warnings"])
    code, out, _ = run(["fit", "--points", str(file)], capsys)
    assert code == 0
    assert "scaled by 1 measured point at 16 users" in out


def test_the_command_line_refuses_one_row_of_an_unknown_model(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(file.read_text().replace("Qwen/Qwen3-32B", "my/own"))
    code, _, said = run(["fit", "--points", str(file)], capsys)
    assert code == 2
    assert "measure at two levels or more" in said
    assert said.count("\n") == 1
