"""The size of the model: the widths that its weights, its KV cache and an adapter to it must agree on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of the model. `hidden` is a multiple of twice `heads`, `heads` of `kv_heads`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab_size: int

    @property
    def head_dim(self) -> int:
        return self.hidden // self.heads

    @property
    def attention(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def inner(self) -> int:
        """Width of the feed-forward layer: 2.75 times the model's, about Llama's 8/3."""
        return self.hidden * 11 // 4
