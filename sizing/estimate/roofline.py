"""A replica's law from the data sheet alone, where there are no kernel timings. Good to a factor of two."""

from __future__ import annotations

import math
from dataclasses import replace

from sizing.catalog import BITS, Gpu, Model, Precision
from sizing.errors import DoesNotFit
from sizing.replica import Batching, Replica
from sizing.steptime import StepLaw
from sizing.workload import Lengths

DECODE_EFFICIENCY = (0.28, 0.94)
"""Share of the memory bandwidth that decode steps of one sequence reach, lowest (70B, TP8) and highest (8B, L40S)."""
PREFILL_EFFICIENCY = (0.21, 0.71)
"""Share of the peak FLOP/s that prefill steps reach, lowest and highest over models, chips and TP across NVLink.

TP across PCIe is slower still (0.09 for 32 billion parameters on four L40S).
"""
RELATIVE_SIGMA = 0.5
MEMORY_FRACTION = 0.9
RESERVED_BYTES = 5 * 2**30
"""Per GPU, for the runtime, communication buffers and activations."""


def roofline(
    model: Model,
    gpu: Gpu,
    tp: int,
    precision: Precision,
    lengths: Lengths,
    batching: Batching,
) -> Replica:
    """A replica whose steps take bytes over bandwidth and FLOPs over peak, at the middle of the ranges above.

    Raises DoesNotFit if the weights leave no room for one request's KV cache.
    """
    cache_bytes = 2.0 if precision in ("bf16", "int4", "mxfp4") else 1.0
    token_bytes = model.kv_values_per_token * cache_bytes / min(tp, model.kv_heads)
    weight_bytes = model.parameters * BITS[precision] / 8 / tp
    free_bytes = (gpu.memory_bytes - weight_bytes - RESERVED_BYTES) * MEMORY_FRACTION
    missing = token_bytes * (lengths.isl + lengths.osl) - free_bytes
    if missing > 0:
        raise DoesNotFit(
            f"{model.name} {precision} on {gpu.id} TP{tp} needs {missing / MEMORY_FRACTION / 1e9:.1f} GB more per GPU",
            missing / MEMORY_FRACTION,
        )
    law = roofline_law(model, gpu, tp, precision, weight_bytes, token_bytes)
    return Replica(law, replace(batching, kv_tokens=int(free_bytes / token_bytes)))


def roofline_law(
    model: Model, gpu: Gpu, tp: int, precision: Precision, weight_bytes: float, token_bytes: float
) -> StepLaw:
    """Reading the weights and the KV cache at a share of the bandwidth; 2 FLOPs a parameter and token; attention's
    4 FLOPs per head dimension and pair of tokens, in bf16."""
    bandwidth = gpu.bandwidth_bytes_per_s * math.sqrt(math.prod(DECODE_EFFICIENCY))
    efficiency = math.sqrt(math.prod(PREFILL_EFFICIENCY))
    pair_flops = 4 * model.layers * model.heads * model.head_size / tp
    return StepLaw(
        weights_s=weight_bytes / bandwidth,
        overhead_s=0.0,
        token_s=2 * model.active_parameters / tp / (gpu.peak_flops_per_s(precision) * efficiency),
        sequence_s=0.0,
        kv_token_s=token_bytes / bandwidth,
        attention_s=pair_flops / (gpu.peak_flops_per_s("bf16") * efficiency),
    )
