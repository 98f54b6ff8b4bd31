"""What if requests brought LoRA adapters: low-rank weights of their own beside the shared ones, in one batch."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from sizing.whatif.setup import Setup, Sheet, refilled, sheet_of

LORA_SIGMA = 0.10
LAYER_S = 2e-3 / 32
"""Seconds that the adapters' kernels add to a layer: Punica measured 2 ms a token over the 32 layers of a 7B model."""


@dataclass(frozen=True, slots=True)
class Lora:
    """`adapters` different adapters of rank `rank` on the attention's four matrices, all kept on the GPU."""

    adapters: int = 8
    rank: int = 16

    def apply(self, setup: Setup) -> Setup:
        """Each sequence reads its adapter at every step; the adapters take memory; their kernels take time a layer."""
        if self.adapters < 0 or self.rank < 0:
            raise ScenarioError(f"lora: adapters and rank must be 0 or more, got {self.adapters} and {self.rank}")
        if not self.adapters * self.rank:
            return setup.unchanged("adapters of rank 0, or none")
        sheet, replica = sheet_of(setup.candidate), setup.candidate.replica
        one_bytes = adapter_bytes(sheet, self.rank)
        kv_tokens = refilled(setup, sheet, sheet, taken_bytes=self.adapters * one_bytes)
        law = replica.law.with_values(
            overhead_s=replica.law.overhead_s + sheet.model.layers * LAYER_S,
            sequence_s=replica.law.sequence_s + one_bytes / sheet.gpu.bandwidth_bytes_per_s,
        )
        return setup.changed(
            f"{self.adapters} LoRA adapters of rank {self.rank} on the attention matrices, {one_bytes / 1e6:.1f} MB "
            "each on every GPU, all resident; each sequence of the batch reads its own at every step",
            f"their kernels add {LAYER_S * 1e6:.0f} µs a layer, whatever the batch (Punica, arXiv 2310.18547: 2 ms a "
            f"token over 32 layers); the KV cache holds {kv_tokens:,} tokens",
            sigma=LORA_SIGMA,
            replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
        )


def adapter_bytes(sheet: Sheet, rank: int) -> float:
    """Bytes of one adapter on one GPU: rank x (inputs + outputs) of the four attention matrices, two bytes a weight."""
    model, width = sheet.model, sheet.hidden_size
    keys = model.kv_heads * model.head_size
    sides = 2 * (width + width) + 2 * (width + keys)
    return 2.0 * rank * sides * model.layers / sheet.tp / sheet.pp
