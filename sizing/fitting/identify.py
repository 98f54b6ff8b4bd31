"""Which coefficients the points tell and which they do not, and the measurement that would."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sizing.fitting.fitted import Unknown

Floats = NDArray[np.float64]

HARDLY = 0.7
"""A coefficient with more than this share of its prior standard error left is called unknown."""

MEASURES = {
    "weights_s": "measure one user, and a batch large enough to be compute-bound: weights and overhead part there",
    "overhead_s": "measure one user, and a batch large enough to be compute-bound: weights and overhead part there",
    "token_s": "measure long prompts, or the highest concurrency",
    "sequence_s": "measure high concurrency at short contexts",
    "kv_token_s": "measure long contexts at high concurrency",
    "attention_s": "measure long prompts, 4,000 tokens or more",
    "prefill_s": "measure one open-loop point, or lengths that vary: then prompts hold up decodes one by one",
    "request_s": "measure one open-loop point, or lengths that vary: then prompts hold up decodes one by one",
    "unread": "measure one and two users",
    "kv_tokens": "measure more users than the KV cache holds, or give its size",
}


def unknowns(names: Sequence[str], slopes: Floats, prior_sigma: Floats) -> tuple[Unknown, ...]:
    """The coefficients whose standard error the points leave at over 70 % of that of the prior, the worst first.

    `slopes`, shape (residuals, names): of all residuals, those of the prior included. By the rule of linear Bayesian
    regression: an upper end that the points set to a coefficient too small to be seen does not count as knowledge.
    """
    ratios = np.sqrt(np.diag(np.linalg.inv(slopes.T @ slopes))) / prior_sigma
    found = [Unknown(name, float(ratio), MEASURES[name]) for name, ratio in zip(names, ratios, strict=True)]
    return tuple(sorted((one for one in found if one.ratio > HARDLY), key=lambda one: -one.ratio))
