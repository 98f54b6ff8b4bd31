"""What kernel timings tell of a model on a GPU: its law, how well it follows them, and its memory; made on the spot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from sizing.catalog import Gpu, Model, Precision
from sizing.engine import StepLaw
from sizing.errors import EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.checkpoints import left_out
from sizing.estimate.memory import Memory

GRID_LENGTH = 4096
"""Length of the sequences by which the KV cache is counted when it bounds the grid."""
LEAST_GRID = 32768
"""Tokens up to which steps are asked for even where the KV cache is smaller: a law needs some."""


@dataclass(frozen=True, slots=True)
class Timed:
    """An engine as the kernel database sees it: version, law with its mean and rms error over the grid, memory.

    `memory_at(tp)`: memory of one GPU at another TP of the same model; None where that is not known.
    """

    backend: str
    version: str
    law: StepLaw
    mean_error: float
    rms_error: float
    memory: Memory
    memory_at: Callable[[int], Memory | None]


def time_kernels(model: Model, gpu: Gpu, tp: int, precision: Precision, backend: str) -> Timed:
    """The first engine with timings, `backend` before the others. Raises EstimateUnavailable with every reason."""
    reasons: list[str] = []
    for name in _backends(model, gpu, backend):
        try:
            return time_engine(kernels.open_engine(model, gpu.id, name, tp, precision))
        except EstimateUnavailable as error:
            reasons.append(str(error))
    raise EstimateUnavailable("; ".join(reasons) or kernels.MISSING)


def _backends(model: Model, gpu: Gpu, first: str) -> Iterator[str]:
    """The engine asked for, then those known to serve the model on this GPU, then the rest."""
    if kernels.available():
        yield from dict.fromkeys((first, *model.timed_on(gpu.id), *kernels.BACKENDS))


@lru_cache(maxsize=1024)
def time_engine(engine: kernels.TimedModel) -> Timed:
    """What the kernels of one engine tell."""
    # Costs scipy.optimize, a quarter of a second that shipped laws do without.
    from sizing.estimate.step_grid import fit_steps, observe

    memory = kernels.memory(engine, engine.tp)
    steps = observe(engine, max(memory.kv_tokens(GRID_LENGTH), LEAST_GRID))
    fit = fit_steps(steps, unread_decay=left_out(engine.model_id))
    return Timed(
        engine.backend,
        engine.version,
        fit.law,
        fit.mean_error,
        fit.rms_error,
        memory,
        lambda tp: kernels.memory_at(engine, tp),
    )
