"""Steps over which laws are compared: decodes, prefills and both together, at batches and contexts that servers see."""

from __future__ import annotations

import numpy as np

from sizing.engine import StepLaw
from sizing.numbers import Floats


def _pairs(firsts: tuple[float, ...], seconds: tuple[float, ...]) -> tuple[Floats, Floats]:
    """Every first with every second: both as arrays."""
    first, second = np.meshgrid(firsts, seconds, indexing="ij")
    return first.ravel(), second.ravel()


BATCHES, CONTEXTS = _pairs((1, 4, 16, 64, 256), (512, 2048, 8192, 32768))
BESIDE, PROMPTS = (
    np.concatenate(each)
    for each in zip(_pairs((0,), (256, 1024, 4096, 8192)), _pairs((16, 64), (512, 2048)), strict=True)
)
"""Sequences that decode beside a prompt (none: it is prefilled alone), and its tokens."""


def steps(law: StepLaw) -> Floats:
    """Logarithms of the seconds of each step, shape (28,)."""
    decodes_s = law.decodes_s(BATCHES, BATCHES * CONTEXTS)
    prefills_s = law.mixes_s(BESIDE, BESIDE * 2048, PROMPTS, PROMPTS**2 / 2)
    return np.log(np.concatenate([decodes_s, prefills_s]))
