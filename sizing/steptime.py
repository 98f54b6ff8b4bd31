"""The iteration-time law: how long one forward pass of the engine takes, given what is in the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import NDArray

KNEE = 4.0
"""Sharpness of the change from memory-bound to compute-bound; 4 follows measured curves closely."""

LEAST_EXPONENT = -40.0
"""exp of it is less than the rounding of 1; numbers that are next to 0 make a processor slow."""

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class StepLaw:
    """Eight coefficients, in seconds, of the time of one engine iteration.

    An iteration decodes `d` sequences (one token each) whose contexts hold `C` tokens in the KV cache, and
    prefills `P` prompt tokens. With n = d + P tokens through the matrix products:

        T = overhead + knee(n) + sequence d + kv_token C                                   (no prefill)
        T = overhead + knee(n) + sequence d + kv_token C + attention A + prefill           (P > 0)
        knee(n) = (weights^k + (token n)^k)^(1/k),     k = 4

    `weights` is the time to read the weights once (memory-bound floor), `token` the arithmetic of one token
    (compute-bound slope); the knee joins them, as in a roofline. A = sum of p (s + p/2) over the prompt chunks of
    p tokens that follow s tokens already cached: the quadratic part of prefill attention.
    `request_s` is what every request pays once outside the iterations: network, tokenizer, first detokenization.

    Two shares tell how much of the weights few tokens need: n tokens read weights x (1 - unread x unread_decay^(n-1)).
    A mixture of experts with k of E experts a token has unread_decay = 1 - k/E; an engine that has a faster kernel for
    a single sequence has an unread share and no decay (0). With unread = 0, the default, all weights are always read.

    Linear laws of this family reproduce measured per-token times within 1-5 % inside the calibrated range and
    lose up to 20 % at twice the highest calibrated concurrency: hence the basis "extrapolated" outside it.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> round(law.decode_s(32, 32 * 1000) * 1e3, 2)      # milliseconds for one decode step of 32 sequences
    7.69
    """

    weights_s: float
    overhead_s: float
    token_s: float
    sequence_s: float
    kv_token_s: float
    attention_s: float = 0.0
    prefill_s: float = 0.0
    request_s: float = 0.0
    unread: float = 0.0
    unread_decay: float = 0.0

    def weights_of_s(self, tokens: float | Floats) -> Floats:
        """Seconds to read the weights that `tokens` tokens (1 or more) need (elementwise)."""
        if self.unread == 0:
            return np.full(np.shape(tokens), self.weights_s)
        beyond_one = np.maximum(np.asarray(tokens, float) - 1, 0.0)
        if self.unread_decay == 0:
            return np.where(beyond_one > 0, self.weights_s, self.weights_s * (1 - self.unread))
        exponent = np.maximum(beyond_one * math.log(self.unread_decay), LEAST_EXPONENT)
        return np.asarray(self.weights_s * (1 - self.unread * np.exp(exponent)), float)

    def tokens_s(self, tokens: float | Floats) -> Floats:
        """Seconds of the matrix products of `tokens` tokens and the fixed overhead (elementwise).

        The knee of sharpness KNEE = 4 by squares and square roots, three times as fast as powers.
        """
        arithmetic_s = self.token_s * np.asarray(tokens, float)
        fourth_powers = np.square(np.square(self.weights_of_s(tokens))) + np.square(np.square(arithmetic_s))
        return np.asarray(self.overhead_s + np.sqrt(np.sqrt(fourth_powers)), float)

    def decode_s(self, batch: float, kv_tokens: float) -> float:
        """Seconds of one decode step of `batch` sequences holding `kv_tokens` tokens in all."""
        return float(self.tokens_s(batch)) + self.sequence_s * batch + self.kv_token_s * kv_tokens

    def mixed_s(self, batch: float, kv_tokens: float, prefill_tokens: float, attention: float) -> float:
        """Seconds of an iteration that decodes `batch` sequences and prefills `prefill_tokens` (> 0) tokens."""
        dense = float(self.tokens_s(batch + prefill_tokens)) + self.sequence_s * batch + self.kv_token_s * kv_tokens
        return dense + self.attention_s * attention + self.prefill_s

    def prefill_alone_s(self, isl: float) -> float:
        """Seconds to prefill one prompt of `isl` tokens on an idle engine."""
        return self.mixed_s(0, 0, isl, isl * isl / 2)

    @property
    def seconds(self) -> tuple[float, ...]:
        """The eight coefficients in the order of COEFFICIENTS."""
        return tuple(float(getattr(self, name)) for name in COEFFICIENTS)

    def scaled(self, factor: float) -> StepLaw:
        """The law of an engine whose every time is `factor` times as long."""
        return replace(self, **{name: factor * getattr(self, name) for name in COEFFICIENTS})

    def with_values(self, **seconds: float) -> StepLaw:
        """A copy with some coefficients replaced."""
        return replace(self, **seconds)


COEFFICIENTS: tuple[str, ...] = tuple(field.name for field in fields(StepLaw) if field.name.endswith("_s"))
"""The eight that are times; the two shares are not among them."""
