"""Shapes of real models, from their published configurations, with the sizes of their weights and of their KV cache."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RealShape:
    """The size of a dense model. `name` is the catalogue's; `inner` is the width of the feed-forward layer.

    `has_qk_norm`: queries and keys are normalised head by head (Qwen3).
    """

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab_size: int
    rope_base: float
    has_qk_norm: bool = False

    @property
    def attention(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def key_value(self) -> int:
        """Width of all key heads together, and of all value heads."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """The number of weights in matrices: without norms, and with the output head even if it is tied."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.inner) + 2 * self.vocab_size * self.hidden

    @property
    def step_weights(self) -> int:
        """The number of weights that one forward pass reads: all but the embedding, of which it reads rows."""
        return self.parameters - self.vocab_size * self.hidden

    @property
    def kv_values_per_token(self) -> int:
        """How many numbers the KV cache holds for one token of context."""
        return 2 * self.layers * self.kv_heads * self.head_dim


SHAPES = {
    "llama-3.1-8b": RealShape("meta-llama/Meta-Llama-3.1-8B", 4096, 32, 32, 8, 128, 14_336, 128_256, 500_000.0),
    "qwen3-8b": RealShape("Qwen/Qwen3-8B", 4096, 36, 32, 8, 128, 12_288, 151_936, 1_000_000.0, has_qk_norm=True),
    "qwen3-1.7b": RealShape("Qwen/Qwen3-1.7B", 2048, 28, 16, 8, 128, 6144, 151_936, 1_000_000.0, has_qk_norm=True),
    "qwen3-32b": RealShape("Qwen/Qwen3-32B", 5120, 64, 64, 8, 128, 25_600, 151_936, 1_000_000.0, has_qk_norm=True),
    "small": RealShape("small", 512, 4, 8, 4, 64, 1408, 2048, 10_000.0),
}
