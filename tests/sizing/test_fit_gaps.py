"""Percentiles of the gaps between tokens in the fit: what they are, that they are replayed, and what they tell."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import Batching, Replica, StepLaw
from sizing.fitting import fit
from sizing.fitting.levels import FULL, RAMPED, Observed, even_lengths, point_runs
from sizing.points import Point
from sizing.simulator import simulate_closed
from sizing.simulator.replay import GAPS, MEASURES, Replay, closed_run
from sizing.workload import Lengths
from tests.sizing.test_fitting import GPU, LONG, SHORT, measure

CHUNKED = Replica(GPU, Batching("chunked"))
P50, P95 = (MEASURES.index(name) for name in GAPS)


def with_gaps(points: list[Point], replica: Replica, noise: float, seed: int) -> list[Point]:
    """The points of `measure` with the gaps that their users saw, off by `noise`."""
    rng, found = np.random.default_rng(seed), []
    for point in points:
        users = int(point.load_value)
        isl, osl = point.lengths.sample(point.requests or 12 * users, np.random.default_rng(seed + users))
        ramp_s = float(users / point.requests_per_s)
        gaps = simulate_closed(replica, users, isl, osl, ramp_s, token_gaps=True).watched
        luck = np.exp(noise * rng.standard_normal(2))
        found.append(dataclasses.replace(point, gap_p50_s=gaps.gap_p50_s * luck[0], gap_p95_s=gaps.gap_p95_s * luck[1]))
    return found


def test_gaps_of_one_user_are_the_steps_of_the_law() -> None:
    run = simulate_closed(CHUNKED, 1, np.full(8, 1000), np.full(8, 401), token_gaps=True).watched
    steps_s = np.array([GPU.decode_s(1, 1000 + token) for token in range(400)])
    assert run.gap_p50_s == pytest.approx(np.percentile(steps_s, 50), rel=0.005)
    assert run.gap_p95_s == pytest.approx(np.percentile(steps_s, 95), rel=0.005)


def test_a_closed_loop_tells_gaps_only_when_asked() -> None:
    isl, osl = np.full(32, 200), np.full(32, 20)
    assert np.isnan(simulate_closed(CHUNKED, 4, isl, osl).watched.gap_p50_s)
    replay = Replay([closed_run(0, 4, isl, osl, 0.1)], CHUNKED)
    assert np.isnan(replay.means(CHUNKED)[0, [P50, P95]]).all()


@pytest.mark.parametrize("policy", ["prefill_first", "chunked"])
def test_a_replay_counts_the_gaps_that_the_users_saw(policy: str) -> None:
    replica = Replica(GPU, Batching(policy))  # type: ignore[arg-type]
    isl, osl = Lengths(800, 100, 0.5, 0.8).sample(640, np.random.default_rng(3))
    seen = simulate_closed(replica, 32, isl, osl, 2.0, token_gaps=True).watched
    replay = Replay([closed_run(0, 32, isl, osl, 2.0)], replica, token_gaps=True)
    for _ in range(2):  # the second run starts from empty counts
        row = replay.means(replica)[0]
        assert (row[P50], row[P95]) == (seen.gap_p50_s, seen.gap_p95_s)


def test_ramp_and_drain_are_not_counted() -> None:
    """Users who start over a request time decode nearly alone at first: such gaps are not those of the level."""
    isl, osl = np.full(160, 64), np.full(160, 200)
    slow = Replica(StepLaw(1e-3, 0.0, 1e-6, 1e-3, 0.0), Batching("chunked"))
    together = simulate_closed(slow, 16, isl, osl, token_gaps=True).watched
    ramped = simulate_closed(slow, 16, isl, osl, 3.0, token_gaps=True).watched
    assert ramped.gap_p50_s == pytest.approx(together.gap_p50_s, rel=0.02)


def test_littles_law_gives_the_rate_that_the_sendings_give() -> None:
    isl, osl = Lengths(500, 80, 0.5, 0.8).sample(16 * 400, np.random.default_rng(0))
    by_sendings = simulate_closed(CHUNKED, 16, isl, osl, 2.0).requests_per_s
    assert Replay([closed_run(0, 16, isl, osl, 2.0)], CHUNKED).means(CHUNKED)[0, 0] == pytest.approx(
        by_sendings, rel=0.005
    )


@settings(max_examples=50)
@given(mean=st.floats(100, 5000), cv=st.floats(0.1, 1.0), block=st.integers(32, 256), seed=st.integers(0, 99))
def test_every_block_of_lengths_has_the_mean_and_nearly_the_spread(
    mean: float, cv: float, block: int, seed: int
) -> None:
    tokens = even_lengths(mean, cv, block, 3, np.random.default_rng(seed)).reshape(3, block)
    assert np.allclose(np.sort(tokens, axis=1), np.sort(tokens[0]))
    assert tokens[0].mean() == pytest.approx(mean, rel=0.01)
    assert 0.85 * cv <= tokens[0].std() / tokens[0].mean() <= cv * 1.001 + 1 / mean


def test_the_measured_window_holds_whole_blocks() -> None:
    point = measure(CHUNKED, [Lengths(1000, 200, 0.5, 0.8)], (8,))[0]
    for run in point_runs([point], RAMPED):
        ((begin, end, _),) = run.windows
        assert run.osl[begin:end].mean() == pytest.approx(200, rel=0.01)
        assert run.isl[begin:end].mean() == pytest.approx(1000, rel=0.01)


def test_gaps_tell_what_means_cannot() -> None:
    """Means leave it open whether decodes wait for prompts or for each other; the gaps between tokens show it."""
    off: dict[str, list[float]] = {"means": [], "gaps": []}
    for prefill_s in (0.05e-3, 1.5e-3):
        law = GPU.with_values(prefill_s=prefill_s, request_s=4e-3 - prefill_s)
        engine = Replica(law, Batching("prefill_first"))
        for seed in range(2):
            points = measure(engine, levels=(1, 8, 64, 256), seed=seed)
            for name, known in (("means", points), ("gaps", with_gaps(points, engine, 0.02, seed))):
                step_s = fit(known, batching=engine.batching).law.decode_s(96, 96 * 200)
                off[name].append(step_s / law.decode_s(96, 96 * 200) - 1)
    assert np.std(off["gaps"]) + abs(np.mean(off["gaps"])) < 0.7 * (np.std(off["means"]) + abs(np.mean(off["means"])))


def test_gaps_of_open_loops_are_of_no_use_yet() -> None:
    point = dataclasses.replace(
        measure(CHUNKED, [SHORT], (8,))[0], load_kind="poisson_rate", gap_p50_s=0.01, gap_p95_s=0.02
    )
    assert np.isnan(Observed((point,)).measured[0, [P50, P95]]).all()


def test_a_percentile_at_a_jump_has_a_wide_error() -> None:
    """Gaps with a prompt and gaps without: a law a little off moves a percentile from one kind to the other."""
    points = with_gaps(measure(CHUNKED, [SHORT, LONG], (1, 64), noise=0.0), CHUNKED, 0.0, 0)
    seen = Observed(tuple(points))
    calm, busy = seen.errors(CHUNKED, seen.replay(FULL, CHUNKED, token_gaps=True))[:2, P95]
    assert calm == pytest.approx(0.04, rel=0.05)
    assert busy >= calm


def test_a_prompt_is_not_mistaken_for_a_fixed_cost() -> None:
    """One pair of lengths: the arithmetic of a prompt and what a request pays beside look alike from many starts."""
    engine = Replica(GPU.with_values(prefill_s=0.0, request_s=4e-3), Batching("chunked"))
    for seed in range(3):
        points = with_gaps(measure(engine, [Lengths(1000, 1000)], seed=seed), engine, 0.02, seed)
        law = fit(points, batching=engine.batching).law
        assert law.prefill_alone_s(2000) == pytest.approx(GPU.prefill_alone_s(2000), rel=0.15)
