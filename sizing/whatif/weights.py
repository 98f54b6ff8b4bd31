"""What if the weights were smaller or spread over more GPUs: another precision, another TP, 2:4 sparsity."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sizing.catalog import BITS
from sizing.errors import ScenarioError
from sizing.estimate.kernels import LIBRARY
from sizing.numbers import percent
from sizing.steptime import StepLaw
from sizing.whatif.setup import Setup, Sheet, precision_named, read_weights, refilled, sheet_of
from sizing.whatif.transfer import timed_ratios

TIMED_SIGMA = 0.10
"""Of a change whose ratio of step times was timed, kernel by kernel."""
SHEET_SIGMA = 0.25
"""Of one that follows from data sheets."""
SPARSITY_SIGMA = 0.15
REALISED = 0.35
"""Share of the data sheet's saving by a smaller precision that kernel timings show, on average over models and GPUs."""
ALL_REDUCE_S = 10e-6
"""Latency of one all-reduce between the GPUs of a server."""
LINK_SHARE = 0.5
"""Share of the link's bandwidth that an all-reduce reaches."""


@dataclass(frozen=True, slots=True)
class AtPrecision:
    """The model quantized, weights and KV cache: `to` is bf16, fp8, fp8_block, nvfp4, mxfp4 or int4."""

    to: str

    def apply(self, setup: Setup) -> Setup:
        """Step times change as the kernel timings of both precisions do; without them, by what data sheets promise."""
        before = sheet_of(setup.candidate)
        after = replace(before, precision=precision_named(self.to))
        if after.precision == before.precision:
            return setup.unchanged(f"the model is already in {before.precision}")
        cache = after.token_bytes / before.token_bytes
        held = (
            f"{after.precision} instead of {before.precision}: weights take {_weights(before, after):.2f} times the "
            f"bytes, the KV cache {cache:.2f} times; what that costs in quality is not looked at"
        )
        return _resized(setup, before, after, held)


@dataclass(frozen=True, slots=True)
class AtTp:
    """Another number of GPUs to a replica: tensor parallelism of `to`."""

    to: int

    def apply(self, setup: Setup) -> Setup:
        """Step times change as the kernel timings at both TPs do; without them, by what data sheets promise."""
        before = sheet_of(setup.candidate)
        if self.to < 1 or before.model.heads % self.to:
            heads = f"{before.model.name} has {before.model.heads} attention heads"
            raise ScenarioError(f"tp: {heads}, which {self.to} does not divide")
        after = replace(before, tp=self.to)
        if after == before:
            return setup.unchanged(f"a replica already has TP{self.to}")
        held = f"TP{after.tp} instead of TP{before.tp}: weights and KV cache are divided over the GPUs"
        return _resized(setup, before, after, held)


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


def _resized(setup: Setup, before: Sheet, after: Sheet, held: str) -> Setup:
    """The setup moved from one sheet to another, and where the new times come from."""
    replica = setup.candidate.replica
    kv_tokens = refilled(setup, before, after)
    ratios = timed_ratios(before, after, setup.question.workload.lengths)
    if ratios:
        law, sigma = ratios.of(replica.law), TIMED_SIGMA
        source = (
            f"decode steps take {ratios.decode:.2f} times as long, prompts {ratios.prefill:.2f} times: the ratio of "
        )
        source += f"the kernel timings of {LIBRARY} for both"
    else:
        law, sigma = by_data_sheet(replica.law, before, after), SHEET_SIGMA
        source = f"no kernel timings of both: arithmetic and bytes from the data sheet of {after.gpu.name}"
        source += f", of whose savings by precision {percent(REALISED)} are taken to be realised"
    return setup.changed(
        held,
        f"{source}; the KV cache holds {kv_tokens:,} tokens, before {replica.batching.kv_tokens:,}",
        sigma=sigma,
        tp=after.tp,
        precision=after.precision,
        replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
    )


def by_data_sheet(law: StepLaw, before: Sheet, after: Sheet) -> StepLaw:
    """The law with weights, arithmetic and cache divided by TP and shrunk by precision, all-reduces added.

    Overheads stay, but for two all-reduces a layer. Against kernel timings, on average: another TP over NVLink 10 % off
    in decode and 13 % in prefill, over PCIe 18 and 36 %; another precision 20 and 17 %.
    """
    share = before.tp / after.tp
    slower = before.gpu.peak_flops_per_s(before.precision) / after.gpu.peak_flops_per_s(after.precision)
    narrower = replace(before, precision=after.precision).token_bytes / before.token_bytes
    spread = after.token_bytes / before.token_bytes / narrower
    law = read_weights(law, share * _realised(_weights(before, after)), before)
    return law.with_values(
        overhead_s=max(0.0, law.overhead_s + all_reduces_s(after) - all_reduces_s(before)),
        token_s=max(0.0, law.token_s * share * _realised(slower) + reducing_s(after) - reducing_s(before)),
        sequence_s=law.sequence_s * share,
        kv_token_s=law.kv_token_s * spread * _realised(narrower),
        attention_s=law.attention_s * share,
    )


def all_reduces_s(sheet: Sheet) -> float:
    """Seconds an iteration waits for its all-reduces, however few tokens it has."""
    return 2 * sheet.model.layers * ALL_REDUCE_S if sheet.tp > 1 else 0.0


def reducing_s(sheet: Sheet) -> float:
    """Seconds for one token's bytes in these all-reduces: 2 (n - 1) / n times its bf16 activations over the link."""
    moved_bytes = 2 * (sheet.tp - 1) / sheet.tp * 2 * sheet.hidden_size
    return 2 * sheet.model.layers * moved_bytes / (sheet.gpu.link_bytes_per_s * LINK_SHARE)


def _weights(before: Sheet, after: Sheet) -> float:
    return BITS[after.precision] / BITS[before.precision]


def _realised(ratio: float) -> float:
    """The ratio of times for a ratio of the data sheet's; the way back is the inverse."""
    return 1 - REALISED * (1 - ratio) if ratio <= 1 else 1 / (1 - REALISED * (1 - 1 / ratio))
