"""What kernel timings tell of a model on a GPU: its law, how well it follows them, and its memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sizing.catalog import Model, Precision
from sizing.engine import StepLaw
from sizing.estimate import kernels
from sizing.estimate.memory import Memory
from sizing.layout import Layout

GRID_LENGTH = 4096
"""Length of the sequences by which the KV cache is counted when it bounds the grid."""
LEAST_GRID = 32768
"""Tokens up to which steps are asked for even where the KV cache is smaller: a law needs some."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An engine as the kernel database sees it: version, law of a rank with its mean and rms error over the grid, and
    memory of one GPU."""

    backend: str
    version: str
    law: StepLaw
    mean_error: float
    rms_error: float
    memory: Memory


def time_kernels(model: Model, gpu: str, layout: Layout, precision: Precision, engine: str) -> Timed:
    """What the engine's kernels tell. Raises EstimateUnavailable with the reason where they were not timed."""
    return time_engine(kernels.open_engine(model, gpu, engine, layout, precision), model.unrouted)


@lru_cache(maxsize=1024)
def time_engine(engine: kernels.TimedModel, unrouted: float) -> Timed:
    """What the kernels of one engine tell; `unrouted`: share of a mixture's experts that a token leaves out. All ranks
    have the same, so that a token more in each leaves out that share to the power of their number."""
    # Costs scipy.optimize, a quarter of a second that shipped laws do without.
    from sizing.estimate.step_grid import fit_steps, observe

    memory = kernels.memory(engine)
    steps = observe(engine, max(memory.kv_tokens(GRID_LENGTH), LEAST_GRID))
    fit = fit_steps(steps, unread_decay=unrouted**engine.layout.dp)
    return Timed(engine.backend, engine.version, fit.law, fit.mean_error, fit.rms_error, memory)
