"""Theory of day-zero laws: the fit to a grid of step times finds the law that made them."""

from __future__ import annotations

import numpy as np
import pytest

from sizing.catalog import Layout, Precision, models
from sizing.engine import StepLaw
from sizing.errors import FitError
from sizing.estimate import kernels
from sizing.estimate.step_grid import FAR_WEIGHT, fit_steps, law_seconds, observe
from tests.sizing.test_estimate import with_kernels

ROOM = 2_000_000


class Exact:
    """Step times of a given law."""

    def __init__(self, law: StepLaw) -> None:
        self.law = law

    def decode_s(self, batch: int, context: int) -> float:
        return self.law.decode_s(batch, batch * context)

    def prefill_s(self, batch: int, isl: int) -> float:
        return self.law.mixed_s(0, 0, batch * isl, batch * isl * isl / 2)

    def mixed_s(self, prefill_tokens: int, batch: int, isl: int) -> float:
        return self.law.mixed_s(batch, batch * isl, prefill_tokens, prefill_tokens * isl / 2)


@pytest.mark.parametrize("weights_s", [2e-3, 5e-3, 20e-3])
def test_fit_returns_the_law_behind_the_steps(weights_s: float) -> None:
    law = StepLaw(weights_s, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    steps = observe(Exact(law), ROOM)
    assert np.allclose(law_seconds(law, steps), steps.seconds, rtol=1e-12)
    fit = fit_steps(steps)
    assert np.abs(fit.error).max() < 0.01
    assert fit.law.kv_token_s == pytest.approx(law.kv_token_s, rel=0.05)
    assert fit.law.weights_s == pytest.approx(law.weights_s, rel=0.1)


@pytest.mark.parametrize(("unread", "decay"), [(0.95, 0.9375), (0.6, 0.96875), (0.15, 0.0)])
def test_fit_finds_the_weights_that_small_batches_leave_unread(unread: float, decay: float) -> None:
    """Of a mixture with 8 of 128 or 1 of 32 experts, and of a dense model with a faster kernel for one sequence."""
    law = StepLaw(15e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3, unread=unread, unread_decay=decay)
    steps = observe(Exact(law), ROOM)
    fit = fit_steps(steps, unread_decay=decay)
    assert np.abs(fit.error).max() < 0.01
    assert fit.law.unread * fit.law.weights_s == pytest.approx(unread * law.weights_s, rel=0.02)
    assert fit.rms_error < 0.1 * fit_steps(steps, unread_decay=0.5).rms_error


def test_fit_claims_no_unread_weights_where_all_are_read() -> None:
    law = StepLaw(15e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    found = fit_steps(observe(Exact(law), ROOM), unread_decay=0.9).law
    assert found.unread * found.weights_s < 0.01 * law.weights_s


@with_kernels
@pytest.mark.measured
@pytest.mark.parametrize(
    ("model", "gpu", "layout", "precision", "engine"),
    [
        ("Qwen/Qwen3-30B-A3B", "h200_sxm", Layout(), "bf16", "vllm"),
        ("Qwen/Qwen3-235B-A22B", "h100_sxm", Layout(8), "fp8", "vllm"),
        ("openai/gpt-oss-120b", "b200_sxm", Layout(), "mxfp4", "trtllm"),
    ],
)
def test_kernels_of_a_mixture_take_a_straight_line_in_its_prompts_tokens(
    model: str, gpu: str, layout: Layout, precision: Precision, engine: str
) -> None:
    """From 512 to 16,384 tokens of short prompts: weights are read beside the arithmetic, not behind it."""
    tokens = 2.0 ** np.arange(9, 15)
    timed = kernels.open_engine(models()[model], gpu, engine, layout, precision)
    seconds = np.array([timed.mixed_s(int(each), 0, 32) for each in tokens])
    slope, start_s = np.polyfit(tokens, seconds, 1, w=1 / seconds)
    errors, reading_s = (start_s + slope * tokens) / seconds - 1, timed.decode_s(128, 32)
    print(f"{model}: {np.abs(errors).max():.1%} off; starts at {start_s:.4f} s, 128 sequences take {reading_s:.4f} s")
    assert np.abs(errors).max() < 0.08
    assert start_s == pytest.approx(reading_s, rel=0.35)


def test_fit_scales_with_time() -> None:
    """Steps three times as long give a law three times as long: nothing in the fit knows a unit."""
    law = StepLaw(5e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    one = fit_steps(observe(Exact(law), ROOM)).law
    three = fit_steps(observe(Exact(law.scaled(3)), ROOM)).law
    assert three.decode_s(32, 65536) == pytest.approx(3 * one.decode_s(32, 65536), rel=1e-3)
    assert three.prefill_alone_s(2000) == pytest.approx(3 * one.prefill_alone_s(2000), rel=1e-3)


def test_grid_stays_within_the_cache() -> None:
    steps = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), 30_000)
    assert (steps.kv_tokens + steps.prefill_tokens).max() <= 30_000
    assert steps.batch.max() <= 30_000 / 64
    whole = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), ROOM)
    assert set(whole.weight[whole.batch > 256]) == {FAR_WEIGHT}
    assert set(whole.weight[whole.prefill]) == {1.0}


def test_too_small_a_cache_carries_no_law() -> None:
    steps = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), 100)
    with pytest.raises(FitError, match="steps fit into the KV cache"):
        fit_steps(steps)
