"""LoRA adapters in requests: read, checked against the model, and identified by a digest.

An adapter adds B A x to the output of some of a layer's projections W x. Its two tensors, of release v0.8.0:
`lora_weights` FP16 [1, L, n], one row per adapted module: A [D, inputs] and then B [outputs, D], both row by row, and
padding; `lora_config` INT32 [1, L, 3], of each row (module, layer, adapter size D).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from lab.reference.engine.refusals import InputError
from lab.reference.engine.shape import Shape

Projection = Literal["qkv", "out", "gate_up", "down"]


@dataclass(frozen=True, slots=True)
class Module:
    """One module that can be adapted: the `outputs` rows of a projection's weight from row `first` on."""

    name: str
    projection: Projection
    inputs: int
    first: int
    outputs: int


@dataclass(frozen=True, slots=True)
class Part:
    """B A for one module of one layer: `down` is A [D, inputs], `up` is B [outputs, D], both float16."""

    layer: int
    module: Module
    down: NDArray[np.float16]
    up: NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter as sent. Two with the same `digest` are the same, whatever their requests."""

    digest: str
    parts: tuple[Part, ...] = field(compare=False, repr=False)


def modules(shape: Shape) -> tuple[Module, ...]:
    """The modules of a layer by module id, 0 to 7.

    As in the backend's own conversion of adapters, mlp_h_to_4h is the half of the feed-forward layer that goes through
    SiLU (Llama's gate_proj) and mlp_gate the half it is multiplied with (up_proj).
    """
    hidden, attention, key_value, inner = shape.hidden, shape.attention, shape.key_value, shape.inner
    return (
        Module("attn_qkv", "qkv", hidden, 0, attention + 2 * key_value),
        Module("attn_q", "qkv", hidden, 0, attention),
        Module("attn_k", "qkv", hidden, attention, key_value),
        Module("attn_v", "qkv", hidden, attention + key_value, key_value),
        Module("attn_dense", "out", attention, 0, hidden),
        Module("mlp_h_to_4h", "gate_up", hidden, 0, inner),
        Module("mlp_4h_to_h", "down", inner, 0, hidden),
        Module("mlp_gate", "gate_up", hidden, inner, inner),
    )


def read_adapter(weights: NDArray[Any] | None, config: NDArray[Any] | None, shape: Shape) -> Adapter | None:
    """The adapter of a request's `lora_weights` and `lora_config`; None if it has neither.

    Raises:
        InputError: one of the two is missing, their shapes do not belong together, or a row does not fit the model.
    """
    if weights is None and config is None:
        return None
    if weights is None or config is None:
        missing = "lora_weights" if weights is None else "lora_config"
        raise InputError(f"Request for LoRA inference must have both lora_weights and lora_keys: {missing} is missing")
    _check_shapes(weights, config)
    known = modules(shape)
    rows = zip(config[0].tolist(), weights[0], strict=True)
    parts = tuple(_part(number, keys, values, known, shape.layers) for number, (keys, values) in enumerate(rows))
    return Adapter(_digest(weights, config), parts)


def _check_shapes(weights: NDArray[Any], config: NDArray[Any]) -> None:
    for name, array in (("lora_weights", weights), ("lora_keys", config)):
        if array.ndim != 3:
            raise InputError(f"Invalid shape for {name} tensor: it must have 3 dimensions, got {array.shape}")
        if array.shape[0] != 1:
            raise InputError(f"Expected batch dimension to be 1 for each lora request, got {array.shape[0]} of {name}")
    if weights.shape[1] != config.shape[1]:
        raise InputError(
            "Expected dim1 lora_weights and lora_keys to have the same size, "
            f"got {weights.shape[1]} and {config.shape[1]}"
        )
    if config.shape[2] != 3:
        raise InputError(f"Expected dim2 of lora_keys to have a size of 3, got {config.shape[2]}")
    if not np.isfinite(weights).all():
        raise InputError("lora_weights holds values that are not finite")


def _part(row: int, keys: list[int], values: NDArray[Any], known: tuple[Module, ...], layers: int) -> Part:
    module_id, layer, size = keys
    if not 0 <= layer < layers:
        raise InputError(f"Expected layerId to be in the range [0, numModelLayers): row {row} has {layer} of {layers}")
    if size <= 0:
        raise InputError(f"Expected adapterSize to be > 0: row {row} has {size}")
    if not 0 <= module_id < len(known):
        raise InputError(f"lora module {module_id} not enabled for this model: row {row}; it has 0 to {len(known) - 1}")
    module = known[module_id]
    split, end = size * module.inputs, size * (module.inputs + module.outputs)
    if end > len(values):
        raise InputError(
            f"lora_weights has to few values for {module.name}: row {row} has {len(values)}, "
            f"adapter size {size} needs {size} x ({module.inputs} + {module.outputs}) = {end}"
        )
    half = values.astype(np.float16)
    return Part(layer, module, half[:split].reshape(size, -1), half[split:end].reshape(-1, size))


def _digest(weights: NDArray[Any], config: NDArray[Any]) -> str:
    """The same for the same values, however they lie in memory; the shape is part of it."""
    digest = hashlib.blake2b(repr(weights.shape).encode(), digest_size=16)
    digest.update(np.ascontiguousarray(weights, np.float16).tobytes())
    digest.update(np.ascontiguousarray(config, np.int32).tobytes())
    return digest.hexdigest()
