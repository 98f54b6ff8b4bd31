"""Fits the iteration-time law to step times asked for one by one, over the batches and contexts an engine can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from sizing.errors import FitError
from sizing.replica import Batching
from sizing.steptime import KNEE, StepLaw
from sizing.workload import Lengths

CONTEXTS = (256, 1024, 2048, 4096, 8192, 16384)
PROMPTS = (128, 256, 512, 1024, 2048, 4096, 8192)
CHUNKS = (256, 512, 2048, 8192)
EXPERTS_BUSY = 16
"""Tokens in a step from which most experts of a mixture are in use."""

Floats = NDArray[np.float64]
Row = tuple[float, float, float, float, float]


class StepTimes(Protocol):
    """What can say how long single steps take, in seconds; see sizing.estimate.kernels.Engine."""

    def decode_s(self, batch: int, context: int) -> float: ...
    def prefill_s(self, batch: int, isl: int) -> float: ...
    def mixed_s(self, prefill_tokens: int, batch: int, isl: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps and their seconds, arrays of shape (n,): what was in each batch, in the variables of StepLaw."""

    batch: Floats
    kv_tokens: Floats
    prefill_tokens: Floats
    attention: Floats
    seconds: Floats

    @property
    def decode(self) -> NDArray[np.bool_]:
        """Where a step only decodes."""
        return np.asarray(self.prefill_tokens == 0)

    @property
    def prefill(self) -> NDArray[np.bool_]:
        """Where a step only prefills."""
        return np.asarray((self.prefill_tokens > 0) & (self.batch == 0))


@dataclass(frozen=True, slots=True)
class GridFit:
    """A law, and its error at each step of the grid as a share of the step's time, shape (n,)."""

    law: StepLaw
    error: Floats

    @property
    def mean_error(self) -> float:
        """Mean absolute error as a share."""
        return float(np.abs(self.error).mean())

    @property
    def rms_error(self) -> float:
        """Root of the mean squared error, as a share."""
        return math.sqrt(float(np.mean(self.error**2)))


def observe(times: StepTimes, batching: Batching, lengths: Lengths) -> Steps:
    """Ask for decode, prefill and mixed steps that fit the batch and the KV cache, those of `lengths` included."""
    parts = (_decodes, _prefills, _mixed)
    rows = [row for part in parts for row in part(times, batching, lengths)]
    return Steps(*np.array(rows, float).reshape(-1, 5).T)


def _decodes(times: StepTimes, batching: Batching, lengths: Lengths) -> Iterator[Row]:
    most = batching.max_batch_size
    batches = sorted({*(1 << power for power in range(most.bit_length())), most})
    for context in sorted({*CONTEXTS, math.ceil(lengths.isl) + 1, math.ceil(lengths.isl + lengths.osl)}):
        for batch in batches:
            if batch * context <= batching.kv_tokens:
                yield batch, batch * context, 0, 0, times.decode_s(batch, context)


def _prefills(times: StepTimes, batching: Batching, lengths: Lengths) -> Iterator[Row]:
    for isl in sorted({*PROMPTS, math.ceil(lengths.isl)}):
        for prompts in (1, 2, 4):
            tokens = prompts * isl
            if tokens <= min(batching.token_budget, batching.kv_tokens):
                yield 0, 0, tokens, tokens * isl / 2, times.prefill_s(prompts, isl)


def _mixed(times: StepTimes, batching: Batching, lengths: Lengths) -> Iterator[Row]:
    for tokens in sorted({min(chunk, batching.token_budget) for chunk in CHUNKS}):
        for isl in sorted({512, 2048, 8192, max(16, math.ceil(lengths.isl))}):
            for batch in (8, 64, 256):
                if batch <= batching.max_batch_size and batch * isl + tokens <= batching.kv_tokens:
                    # On average over a prompt's chunks, a token attends to half the prompt.
                    yield batch, batch * isl, tokens, tokens * isl / 2, times.mixed_s(tokens, batch, isl)


def fit_steps(steps: Steps, *, experts: bool = False) -> GridFit:
    """The law with the least squared relative error, coefficients not negative.

    For a given ratio of `weights` to `token` the law is linear in the rest (non-negative least squares); the ratio is
    searched in one dimension. With `experts`, small steps count less: a mixture then reads only some of its experts,
    a saving for which the law has no term, and the law is to hold where replicas run.
    """
    if steps.seconds.size < len(StepLaw.__slots__):
        raise FitError(f"{steps.seconds.size} steps fit into the KV cache; a law needs {len(StepLaw.__slots__)}")
    tokens = steps.batch + steps.prefill_tokens
    weight = np.where(experts & (tokens < EXPERTS_BUSY), 0.3, 1.0)
    best = minimize_scalar(
        lambda log_ratio: _solve(steps, math.exp(log_ratio), weight)[1],
        bounds=(0, math.log(4096)),
        method="bounded",
        options={"xatol": 0.02},
    )
    ratio = math.exp(best.x)
    (overhead, token, sequence, kv_token, attention, prefill), _ = _solve(steps, ratio, weight)
    law = StepLaw(ratio * token, overhead, token, sequence, kv_token, attention, prefill)
    return GridFit(law, law_seconds(law, steps) / steps.seconds - 1)


def law_seconds(law: StepLaw, steps: Steps) -> Floats:
    """Seconds the law gives each step, shape (n,)."""
    decode = law.tokens_s(steps.batch + steps.prefill_tokens)
    decode = decode + law.sequence_s * steps.batch + law.kv_token_s * steps.kv_tokens
    return decode + law.attention_s * steps.attention + law.prefill_s * (steps.prefill_tokens > 0)


def _solve(steps: Steps, ratio: float, weight: Floats) -> tuple[tuple[float, ...], float]:
    tokens = steps.batch + steps.prefill_tokens
    knee = (ratio**KNEE + tokens**KNEE) ** (1 / KNEE)
    has_prefill = (steps.prefill_tokens > 0).astype(float)
    terms = (np.ones_like(tokens), knee, steps.batch, steps.kv_tokens, steps.attention, has_prefill)
    columns = np.stack(terms, axis=1) * (weight / steps.seconds)[:, None]
    scale = np.maximum(np.abs(columns).max(axis=0), np.finfo(float).tiny)
    values, residual = nnls(columns / scale, weight)
    return tuple(float(value) for value in values / scale), float(residual)
