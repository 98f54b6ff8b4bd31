"""Memory of one GPU under an engine: what the KV cache may have, and how many tokens that holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sizing.engine_defaults import engine_defaults

KV_LENGTHS = (128, 1024, 8192, 131072)
"""Lengths at which a sequence's KV cache is known; between them it is linear, as it is in every attention known here:
full attention, windows of 128, 1,024 or 8,192 tokens, and states of fixed size."""
BUDGET = 8192
"""Token budget at which `fixed_bytes` is known."""
LEAST_BUDGET = 1024
"""Below this budget activations shrink no further."""
UNCOUNTED = 0.01
"""Share of the shortest sequence's cache up to which what remains without tokens counts as nothing."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one GPU in bytes: all of it, what the KV cache cannot have, and what sequences take.

    `fixed_bytes` are weights, activations and runtime at a budget of BUDGET tokens an iteration; a token more or less
    of budget takes or frees `budget_token_bytes`. `sequence_bytes_at`: KV cache of one sequence at each of KV_LENGTHS.
    `backend` decides how the rest is shared.
    """

    backend: str
    capacity_bytes: float
    fixed_bytes: float
    budget_token_bytes: float
    sequence_bytes_at: tuple[float, ...]

    def kv_bytes(self, token_budget: int = BUDGET) -> float:
        """Bytes left for the KV cache; negative if the model does not fit."""
        fixed = self.fixed_bytes + (max(token_budget, LEAST_BUDGET) - BUDGET) * self.budget_token_bytes
        usual = engine_defaults(self.backend)
        if usual.memory_of == "free":
            return (self.capacity_bytes - fixed) * usual.memory_share
        return self.capacity_bytes * usual.memory_share - fixed

    def with_states(self, state_bytes: float) -> Memory:
        """With states of `state_bytes` for each sequence on a GPU, unless they are counted already: unchanged where a
        sequence's cache is not in proportion to its tokens."""
        if self.sequence_bytes(0) > UNCOUNTED * self.sequence_bytes_at[0]:
            return self
        return replace(self, sequence_bytes_at=tuple(size + state_bytes for size in self.sequence_bytes_at))

    def staged(self, stages: int, weight_bytes: float) -> Memory:
        """Memory of a GPU with one of `stages` equal parts of the layers; `weight_bytes`: weights of all parts."""
        return replace(
            self,
            fixed_bytes=self.fixed_bytes - weight_bytes * (1 - 1 / stages),
            sequence_bytes_at=tuple(size / stages for size in self.sequence_bytes_at),
        )

    def sequence_bytes(self, length: int) -> float:
        """KV cache bytes of one sequence on one GPU. Less than proportional where layers keep a window only.

        Below the first length the line goes on downwards: exact with full attention and with states of fixed size,
        up to half too much with windows.
        """
        lengths, sizes = KV_LENGTHS, self.sequence_bytes_at
        if lengths[0] <= length <= lengths[-1]:
            return float(np.interp(length, lengths, sizes))
        at, beside = (0, 1) if length < lengths[0] else (-1, -2)
        slope = (sizes[at] - sizes[beside]) / (lengths[at] - lengths[beside])
        return sizes[at] + slope * (length - lengths[at])

    def kv_tokens(self, length: int, token_budget: int = BUDGET) -> int:
        """Tokens the KV cache holds in sequences of `length`; 0 or less if not even one fits."""
        free = self.kv_bytes(token_budget)
        return int(free / self.sequence_bytes(length) * length) if free > 0 else 0

    def missing_bytes(self, length: int, token_budget: int = BUDGET) -> float:
        """Bytes a GPU lacks to hold one sequence of `length`; 0 if it fits."""
        lacking = self.sequence_bytes(length) - self.kv_bytes(token_budget)
        return max(0.0, lacking / engine_defaults(self.backend).share_of_freed)
