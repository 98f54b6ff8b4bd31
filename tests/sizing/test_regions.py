"""Memory-bound and compute-bound regions: shares add up, and the knee divides them."""

from __future__ import annotations

from dataclasses import astuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine import StepLaw
from sizing.fitting import is_compute_bound, knee_tokens, regime, shares

positive = st.floats(1e-9, 1e-2)
decays = st.floats(0, 0.9)
laws = st.builds(StepLaw, *[positive] * 8, unread=st.floats(0, 0.9), unread_decay=decays)
all_read = st.builds(StepLaw, *[positive] * 8, unread_decay=decays)


@given(laws, st.integers(0, 500), st.floats(0, 1e5), st.integers(0, 10_000))
def test_shares_are_those_of_the_iteration(law: StepLaw, batch: int, context: float, prompt: int) -> None:
    """They add up to 1, and the time of each is its own coefficient's part of the law's time."""
    if batch + prompt == 0:
        batch = 1
    found = shares(law, batch, context, prompt)
    assert sum(astuple(found)) == pytest.approx(1)
    assert min(astuple(found)) >= 0
    kv = batch * context
    time_s = law.mixed_s(batch, kv, prompt, prompt**2 / 2) if prompt else law.decode_s(batch, kv)
    assert found.overhead * time_s == pytest.approx(law.overhead_s)
    assert found.kv * time_s == pytest.approx(law.kv_token_s * kv)


@given(all_read, st.floats(1, 1e5))
def test_the_knee_parts_weights_from_arithmetic(law: StepLaw, tokens: float) -> None:
    found = shares(law, tokens, 0.0)
    assert is_compute_bound(law, tokens) == (found.arithmetic > found.weights) or tokens == pytest.approx(
        knee_tokens(law)
    )


def test_a_law_without_arithmetic_is_never_compute_bound() -> None:
    law = StepLaw(1e-3, 0.0, 0.0, 0.0, 0.0)
    assert not is_compute_bound(law, 1e9)
    assert shares(law, 8, 100).bound == "weights"


@given(laws, st.integers(1, 500), st.floats(1, 1e4), st.floats(1, 1e3), st.integers(1, 16_384))
def test_a_regime_is_of_its_two_iterations(law: StepLaw, batch: int, isl: float, osl: float, budget: int) -> None:
    """A prompt never makes an iteration less compute-bound, and takes no more than it has tokens or room."""
    found = regime(law, batch, isl, osl, budget)
    assert found.prompt_compute_bound or not found.decode_compute_bound
    assert 1 <= found.prompt_tokens <= max(1, min(isl, budget - batch))
    assert found.decode == shares(law, batch, isl + osl / 2)
    assert found.decode.prefill == 0
