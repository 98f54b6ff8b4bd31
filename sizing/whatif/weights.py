"""What if the weights were smaller: another precision, 2:4 sparsity, more GPUs to a replica."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.catalog import BITS
from sizing.errors import ScenarioError
from sizing.whatif.setup import Setup, Sheet, precision_named, read_weights, refilled, sheet_of

PRECISION_SIGMA = 0.10
TP_SIGMA = 0.15
SPARSITY_SIGMA = 0.15
ALL_REDUCE_S = 10e-6
"""Latency of one all-reduce between the GPUs of a server."""


@dataclass(frozen=True, slots=True)
class AtPrecision:
    """The model quantized, weights and KV cache: `to` is bf16, fp8, fp8_block, nvfp4, mxfp4 or int4."""

    to: str

    def apply(self, setup: Setup) -> Setup:
        """Bytes of the weights and of the KV cache and the tensor throughput change by the data sheet's ratios."""
        before = sheet_of(setup.candidate)
        after = replace(before, precision=precision_named(self.to))
        if after.precision == before.precision:
            return setup.unchanged(f"the model is already in {before.precision}")
        replica, gpu = setup.candidate.replica, before.gpu
        weights, cache = BITS[after.precision] / BITS[before.precision], after.token_bytes / before.token_bytes
        faster = gpu.peak_flops_per_s(after.precision) / gpu.peak_flops_per_s(before.precision)
        law = read_weights(replica.law, weights, before)
        law = law.with_values(token_s=law.token_s / faster, kv_token_s=law.kv_token_s * cache)
        kv_tokens = refilled(setup, before, after)
        return setup.changed(
            f"{after.precision} instead of {before.precision}: weights take {weights:.2f} times the bytes, the KV "
            f"cache {cache:.2f} times, matrix products run {faster:.2f} times as fast (data sheet of {gpu.name})",
            f"overheads stay; the KV cache holds {kv_tokens:,} tokens, before {replica.batching.kv_tokens:,}; "
            "what the precision costs in quality is not looked at",
            sigma=PRECISION_SIGMA,
            precision=after.precision,
            replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
        )


@dataclass(frozen=True, slots=True)
class Sparse:
    """Weights pruned to 2:4: two of every four are zero, which the tensor cores skip.

    `speedup` of the matrix products, from 1 to the 2 of the data sheet. Measured end to end: 1.27 (Llama-3-8B, fp8,
    vLLM, HPC-AI 2025), hence the default.
    """

    speedup: float = 1.3

    def apply(self, setup: Setup) -> Setup:
        """Arithmetic and reading of the weights are faster by `speedup`; reading never by more than the bytes allow."""
        if not 1 <= self.speedup <= 2:
            raise ScenarioError(f"sparsity: speedup must be from 1 to 2, got {self.speedup:g}")
        if self.speedup == 1:
            return setup.unchanged("2:4 sparsity that speeds nothing up")
        sheet, replica = sheet_of(setup.candidate), setup.candidate.replica
        bits = BITS[sheet.precision]
        kept = (bits + 2) / (2 * bits)
        law = read_weights(replica.law, max(kept, 1 / self.speedup), sheet)
        law = law.with_values(token_s=law.token_s / self.speedup)
        kv_tokens = refilled(setup, sheet, sheet, taken_bytes=(kept - 1) * sheet.weight_bytes)
        return setup.changed(
            f"2:4 sparsity: matrix products {self.speedup:g} times as fast (data sheet: up to 2; measured end to end: "
            "1.1 to 1.5, for instance 1.27 by HPC-AI 2025 with Llama-3-8B fp8 in vLLM)",
            f"weights take {kept:.2f} times the bytes (half the values and 2 bits for the place of each); all of them "
            "are pruned, and the quality that costs is not looked at",
            sigma=SPARSITY_SIGMA,
            replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
        )


@dataclass(frozen=True, slots=True)
class AtTp:
    """Another number of GPUs to a replica: tensor parallelism of `to`."""

    to: int

    def apply(self, setup: Setup) -> Setup:
        """Weights, arithmetic and cache are divided over the GPUs; two all-reduces a layer are added."""
        before = sheet_of(setup.candidate)
        if self.to < 1 or before.model.heads % self.to:
            raise ScenarioError(
                f"tp: {before.model.name} has {before.model.heads} heads; {self.to} does not divide them"
            )
        after = replace(before, tp=self.to)
        if after == before:
            return setup.unchanged(f"a replica already has TP{self.to}")
        replica, share = setup.candidate.replica, before.tp / after.tp
        law = read_weights(replica.law, share, before)
        law = law.with_values(
            overhead_s=max(0.0, law.overhead_s + all_reduces_s(after) - all_reduces_s(before)),
            token_s=max(0.0, law.token_s * share + reducing_token_s(after) - reducing_token_s(before)),
            sequence_s=law.sequence_s * share,
            kv_token_s=law.kv_token_s * after.token_bytes / before.token_bytes,
            attention_s=law.attention_s * share,
        )
        kv_tokens = refilled(setup, before, after)
        return setup.changed(
            f"TP{after.tp} instead of TP{before.tp}: weights, arithmetic and KV cache divided over the GPUs, other "
            f"overheads as before; the KV cache holds {kv_tokens:,} tokens",
            f"two all-reduces a layer of {ALL_REDUCE_S * 1e6:.0f} µs each, and {before.gpu.link_bytes_per_s / 1e9:.0f} "
            f"GB/s between GPUs ({before.gpu.source})",
            sigma=TP_SIGMA,
            tp=after.tp,
            replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
        )


def all_reduces_s(sheet: Sheet) -> float:
    """Seconds an iteration waits for its all-reduces, however few tokens it has."""
    return 2 * sheet.model.layers * ALL_REDUCE_S if sheet.tp > 1 else 0.0


def reducing_token_s(sheet: Sheet) -> float:
    """Seconds for one token's bytes in these all-reduces: 2 (n - 1) / n times its bf16 activations over the link."""
    moved_bytes = 2 * (sheet.tp - 1) / sheet.tp * 2 * sheet.hidden_size
    return 2 * sheet.model.layers * moved_bytes / sheet.gpu.link_bytes_per_s
