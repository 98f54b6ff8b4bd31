"""Steps over which laws are compared: decodes, prefills and both together, at batches and contexts that servers see."""

from __future__ import annotations

import numpy as np

from sizing.engine import StepLaw
from sizing.numbers import Floats

DECODES = [(batch, context) for batch in (1, 4, 16, 64, 256) for context in (512, 2048, 8192, 32768)]
PROMPTS = (256, 1024, 4096, 8192)


def steps(law: StepLaw) -> Floats:
    """Logarithms of the seconds of each step, shape (28,)."""
    decodes = [law.decode_s(batch, batch * context) for batch, context in DECODES]
    prefills = [law.prefill_alone_s(tokens) for tokens in PROMPTS]
    both = [law.mixed_s(batch, batch * 2048, tokens, tokens**2 / 2) for batch in (16, 64) for tokens in (512, 2048)]
    return np.log([*decodes, *prefills, *both])
