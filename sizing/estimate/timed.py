"""What kernel timings say about a model on a GPU: its law, how closely it follows them, and its memory.

The law of a model that nobody has timed is that of its nearest relative among the timed ones, scaled to its size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from sizing.catalog import Layout, Model, Precision, unread_share
from sizing.engine import StepLaw
from sizing.estimate import kernels
from sizing.estimate.memory import Memory

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
    """What the engine's kernels say. Raises EstimateUnavailable with the reason where they were not timed."""
    opened = kernels.open_engine(model, gpu, engine, layout, precision)
    return time_engine(opened, model.unrouted, unread_share(model, layout))


@lru_cache(maxsize=1024)
def time_engine(engine: kernels.TimedModel, unrouted: float, unread: float) -> Timed:
    """What the kernels of one engine say; `unrouted`: share of an MoE model's experts that a token does not use. All
    ranks have the same, so one more token in each leaves out that share to the power of their number. `unread`: see
    `unread_share`, as the steps do not tell what is read for any token from overhead."""
    # Costs scipy.optimize, a quarter of a second that shipped laws do without.
    from sizing.estimate.step_grid import fit_steps, observe

    memory = kernels.memory(engine)
    steps = observe(engine, max(memory.kv_tokens(GRID_LENGTH), LEAST_GRID))
    fit = fit_steps(steps, unread_decay=unrouted**engine.layout.dp)
    law = fit.law.with_unread(unread) if unread and fit.law.unread else fit.law
    return Timed(engine.backend, engine.version, law, fit.mean_error, fit.rms_error, memory)


RELATIVE_SIGMA: Mapping[str, float] = MappingProxyType({"dense": 0.28, "moe": 0.40})
"""Relative standard error of scaled step times by the kind of the model, such that 1.645 of it covers 90 %.

Measured by leaving each shape of the catalogue out and scaling its laws from the nearest of another shape: 28 steps
(decode, prefill and mixed; batches to 256, contexts to 32,768) of 11,800 laws, each shape with the same weight. Half of
the steps of dense models are off by less than 16 %, those of MoE models by less than 23 %.
"""
MOST_UNREAD = 0.995
TWIN = 1e-3
"""Distance below which two models have the same shape, so that nothing needs to be scaled."""


def nearest(model: Model, known: Iterable[Model]) -> Model | None:
    """The model of `known` with the least distance to `model` among those of its kind; None where there is none."""
    alike = (other for other in known if other.kind == model.kind)
    return min(alike, key=lambda other: distance(model, other), default=None)


def distance(one: Model, other: Model) -> float:
    """How different the times of two models of a kind are: the sum of the logarithms of the ratios of their figures.

    Size, active size, layers, width of attention and cache per token count once; twice the share of a full cache that
    is kept, in which windows, states in place of a cache and latent attention differ.
    """
    pairs = zip(_figures(one), _figures(other), (1, 1, 1, 1, 1, 2), strict=True)
    return sum(weight * abs(math.log(mine / theirs)) for mine, theirs, weight in pairs)


def _figures(model: Model) -> tuple[float, ...]:
    full = 2 * model.layers * model.kv_heads * model.head_size
    return (
        model.parameters,
        model.active_parameters,
        model.layers,
        model.heads * model.head_size,
        model.kv_values_per_token,
        model.kv_values_per_token / full,
    )


def scaled(law: StepLaw, relative: Model, model: Model, layout: Layout) -> StepLaw:
    """The `law` of `relative` in a layout scaled to `model` in the same layout, each coefficient by what determines it.

    Reading the weights by their bytes, arithmetic by the parameters that a token passes through, reading the cache by
    its bytes per GPU, attention by layers times heads times head size, overheads by layers. The share of an MoE
    model that few tokens leave unread follows from its experts.
    """
    layers = model.layers / relative.layers
    pairs = layers * model.heads * model.head_size / (relative.heads * relative.head_size)
    unread, decay = law.unread, law.unread_decay
    if model.kind == "moe" and unread:
        share = unread_share(model, layout) / unread_share(relative, layout)
        unread, decay = min(MOST_UNREAD, unread * share), model.unrouted**layout.dp
    return replace(
        law,
        weights_s=law.weights_s * model.parameters / relative.parameters,
        token_s=law.token_s * model.active_parameters / relative.active_parameters,
        kv_token_s=law.kv_token_s * _kept(model, layout.tp) / _kept(relative, layout.tp),
        attention_s=law.attention_s * pairs,
        overhead_s=law.overhead_s * layers,
        sequence_s=law.sequence_s * layers,
        prefill_s=law.prefill_s * layers,
        unread=unread,
        unread_decay=decay,
    )


def _kept(model: Model, tp: int) -> float:
    """Numbers that a token leaves in the cache of one GPU."""
    return model.kv_values_per_token / min(tp, model.kv_heads)
