"""LoRA adapters in use: the low-rank matrices on the device, and their addition to the rows of one forward pass."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from lab.reference.engine.lora import Adapter, Part, Projection
from lab.reference.engine.shape import Shape

KEPT = 32

LowRank = tuple[Tensor, Tensor]
"""A [R, inputs] and B [outputs, R] of a whole projection: its modules' adapters side by side, R their sizes' sum."""
Layers = Sequence[Mapping[Projection, LowRank]]
Group = tuple[Tensor, Layers]
"""Rows of the pass, and their requests' adapter."""


class Adapters:
    """Adapters as tensors on the model's device. Every request contains its own, so the last ones used are cached."""

    def __init__(self, shape: Shape, device: torch.device, dtype: torch.dtype) -> None:
        self._shape, self._device, self._dtype = shape, device, dtype
        self._loaded: OrderedDict[str, Layers] = OrderedDict()

    def load(self, adapter: Adapter) -> Layers:
        """The adapter's matrices, layer by layer."""
        layers = self._loaded.pop(adapter.digest, None) or self._convert(adapter)
        self._loaded[adapter.digest] = layers
        if len(self._loaded) > KEPT:
            self._loaded.popitem(last=False)
        return layers

    def _convert(self, adapter: Adapter) -> Layers:
        places: list[dict[Projection, list[Part]]] = [defaultdict(list) for _ in range(self._shape.layers)]
        for part in adapter.parts:
            places[part.layer][part.module.projection].append(part)
        return [{name: self._joined(name, parts) for name, parts in layer.items()} for layer in places]

    def _joined(self, name: Projection, parts: Sequence[Part]) -> LowRank:
        shape = self._shape
        outputs = {
            "qkv": shape.attention + 2 * shape.key_value,
            "out": shape.hidden,
            "gate_up": 2 * shape.inner,
            "down": shape.hidden,
        }
        down = torch.cat([self._tensor(part.down) for part in parts])
        up = torch.zeros(outputs[name], len(down), device=self._device, dtype=self._dtype)
        start = 0
        for part in parts:
            end = start + len(part.down)
            up[part.module.first : part.module.first + part.module.outputs, start:end] = self._tensor(part.up)
            start = end
        return down, up

    def _tensor(self, values: object) -> Tensor:
        return torch.tensor(values, device=self._device, dtype=self._dtype)


def add(groups: Sequence[Group], layer: int, projection: Projection, x: Tensor, y: Tensor) -> None:
    """Add B A x to `y` [N, outputs], the projection of `x` [N, inputs], in the rows of each group, in place."""
    for rows, layers in groups:
        if matrices := layers[layer].get(projection):
            down, up = matrices
            y.index_add_(0, rows, F.linear(F.linear(x[rows], down), up))
