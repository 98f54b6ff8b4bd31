"""Fits the iteration-time law to step times asked for one by one, over the batches and contexts an engine can hold."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar, nnls

from sizing.engine import StepLaw
from sizing.errors import FitError
from sizing.numbers import Floats

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
CONTEXTS = (64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
PROMPTS = (128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192)
CHUNKS = (256, 512, 2048, 8192)
FAR_CONTEXT, FAR_BATCH, FAR_WEIGHT = 16384, 256, 0.3
"""Steps beyond this context or batch are rare and count less."""
MOST_PREFILL = 16384
"""Prompt tokens of the largest step asked for."""
WORTH = 0.98
"""A share of unread weights is kept where it lowers the residual to this share of it or less."""

Row = tuple[float, float, float, float, float]


class StepTimes(Protocol):
    """What can say how long single steps take, in seconds; see sizing.estimate.kernels.TimedModel."""

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
    def weight(self) -> Floats:
        """How much each step counts in a fit."""
        far = (self.kv_tokens > FAR_CONTEXT * self.batch) | (self.batch > FAR_BATCH)
        return np.where(far, FAR_WEIGHT, 1.0)

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


def observe(times: StepTimes, kv_tokens: int) -> Steps:
    """Ask for decode, prefill and mixed steps that fit into a KV cache of `kv_tokens`.

    The grid knows nothing of the lengths a plan is asked for, so that a law can be fitted beforehand: with them added
    it is closer there by 0.3 % of the step time on average for dense models, and no closer for MoE models.
    """
    parts = (_decodes(times, kv_tokens), _prefills(times, kv_tokens), _mixed(times, kv_tokens))
    return Steps(*np.array([row for part in parts for row in part], float).reshape(-1, 5).T)


def _decodes(times: StepTimes, kv_tokens: int) -> Iterator[Row]:
    for batch, context in product(BATCHES, CONTEXTS):
        if batch * context <= kv_tokens:
            yield batch, batch * context, 0, 0, times.decode_s(batch, context)


def _prefills(times: StepTimes, kv_tokens: int) -> Iterator[Row]:
    for isl, prompts in product(PROMPTS, (1, 2, 4)):
        tokens = prompts * isl
        if tokens <= min(MOST_PREFILL, kv_tokens):
            yield 0, 0, tokens, tokens * isl / 2, times.prefill_s(prompts, isl)


def _mixed(times: StepTimes, kv_tokens: int) -> Iterator[Row]:
    for tokens, isl, batch in product(CHUNKS, (512, 2048, 8192), (8, 64, 256)):
        if batch * isl + tokens <= kv_tokens:
            # On average over a prompt's chunks, a token attends to half the prompt.
            yield batch, batch * isl, tokens, tokens * isl / 2, times.mixed_s(tokens, batch, isl)


def fit_steps(steps: Steps, *, unread_decay: float = 0.0) -> GridFit:
    """The law with the least squared relative error, coefficients not negative.

    For a given ratio of `weights` to `token` and a given share `unread` the law is linear in the rest (non-negative
    least squares); both are searched, one inside the other. `unread_decay`: share of an MoE model's experts that a
    token leaves out, 0 for a dense model, whose only saving is a faster kernel for a single sequence.
    """
    if steps.seconds.size < len(StepLaw.__slots__):
        raise FitError(f"{steps.seconds.size} steps fit into the KV cache; a law needs {len(StepLaw.__slots__)}")

    def solved(unread: float) -> _Solution:
        return _best_ratio(steps, unread, unread_decay)

    best = minimize_scalar(
        lambda unread: solved(unread).residual, bounds=(0, 1), method="bounded", options={"xatol": 0.005}
    )
    some, none = solved(float(best.x)), solved(0.0)
    law = some.law if some.residual < WORTH * none.residual else none.law
    return GridFit(law, law_seconds(law, steps) / steps.seconds - 1)


@dataclass(frozen=True, slots=True)
class _Solution:
    law: StepLaw
    residual: float


def _best_ratio(steps: Steps, unread: float, unread_decay: float) -> _Solution:
    def solved(log_ratio: float) -> _Solution:
        return _solve(steps, StepLaw(math.exp(log_ratio), 0, 1, 0, 0, unread=unread, unread_decay=unread_decay))

    found = minimize_scalar(
        lambda log_ratio: solved(log_ratio).residual,
        bounds=(0, math.log(4096)),
        method="bounded",
        options={"xatol": 0.02},
    )
    return solved(float(found.x))


def _solve(steps: Steps, shape: StepLaw) -> _Solution:
    """The law whose matrix products take a factor times those of `shape`, with everything else as the steps demand."""
    tokens = steps.batch + steps.prefill_tokens
    knee = shape.tokens_s(tokens)
    has_prefill = (steps.prefill_tokens > 0).astype(float)
    terms = (np.ones_like(tokens), knee, steps.batch, steps.kv_tokens, steps.attention, has_prefill)
    columns = np.stack(terms, axis=1) * (steps.weight / steps.seconds)[:, None]
    scale = np.maximum(np.abs(columns).max(axis=0), np.finfo(float).tiny)
    values, residual = nnls(columns / scale, steps.weight)
    overhead, token, sequence, kv_token, attention, prefill = (float(value) for value in values / scale)
    law = StepLaw(shape.weights_s * token, overhead, token, sequence, kv_token, attention, prefill)
    return _Solution(law.with_values(unread=shape.unread, unread_decay=shape.unread_decay), float(residual))


def law_seconds(law: StepLaw, steps: Steps) -> Floats:
    """Seconds the law gives each step, shape (n,)."""
    mixed_s = law.mixes_s(steps.batch, steps.kv_tokens, steps.prefill_tokens, steps.attention)
    return np.where(steps.prefill_tokens > 0, mixed_s, law.decodes_s(steps.batch, steps.kv_tokens))
