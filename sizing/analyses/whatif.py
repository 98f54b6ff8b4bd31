"""The fleet before and after changes nobody has measured, with the assumptions the second one stands on."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Protocol

from sizing import catalog
from sizing.catalog import BITS, Gpu, Layout, Model, Precision
from sizing.edge import BY_SIMULATION, Method
from sizing.engine import UNLIMITED_KV_TOKENS, Speculation, StepLaw
from sizing.engine_defaults import engine_defaults
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable, ScenarioError
from sizing.estimate.day_zero import (
    ENGINES,
    Room,
    estimate,
    relative_of,
    room,
    shipped,
    slower_than_bf16,
    timed_engines,
    token_bytes,
    weight_bytes,
)
from sizing.estimate.kernels import LIBRARY
from sizing.estimate.timed import TWIN, distance, scaled
from sizing.numbers import percent
from sizing.planner import size
from sizing.plans import Candidate, Fleet, Rejection
from sizing.prediction import Caution
from sizing.prediction import Method as MethodName
from sizing.question import Question
from sizing.workload import Lengths, Prefix


@dataclass(frozen=True, slots=True)
class Comparison:
    """`before`: the candidate as it is; `after`: with all changes; each a fleet, or why there is none.

    `question` is the one asked; `setup` holds the changed candidate and question; where memory runs out, those
    reached before the change that failed. `sized_by`: formula or simulation, both fleets alike.
    """

    question: Question
    before: Fleet | Rejection
    after: Fleet | Rejection
    setup: Setup
    sized_by: MethodName

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the answer after the changes rests on, one line each."""
        return self.setup.assumptions


def what_if(
    question: Question, candidate: Candidate, changes: Sequence[WhatIf], method: Method = BY_SIMULATION
) -> Comparison:
    """Size `candidate` as it is and with `changes` made: precision and TP first, because times and bytes of the other
    changes depend on them, then the others in their order.

    A change that leaves no room for one request is a rejection; raises ScenarioError for one that cannot be made.

    >>> from sizing.estimate import estimate
    >>> from sizing.edge import BY_FORMULA
    >>> from sizing.question import Question
    >>> from sizing.analyses.whatif import AtPrecision
    >>> from sizing.workload import Lengths, Limit, Sla, Workload
    >>> question = Question("Qwen/Qwen3-32B", Workload(Lengths(2000, 256), 20), Sla(Limit.parse("itl", "p95:30ms")))
    >>> bf16 = estimate("Qwen/Qwen3-32B", "h200_sxm", 2, "bf16", question.workload.lengths)
    >>> found = what_if(question, bf16, [AtPrecision("fp8")], BY_FORMULA)
    >>> found.after.gpus < found.before.gpus
    True
    """
    setup = Setup(candidate, question)
    before = size(question, candidate, method)
    for change in sorted(changes, key=lambda change: not isinstance(change, (AtPrecision, AtTp))):
        try:
            setup = change.apply(setup)
        except DoesNotFit as error:
            lost = Rejection.of(candidate, "memory", str(error))
            return Comparison(question, before, lost, setup, method.name)
    same = setup.candidate == candidate and setup.question == question
    after = before if same else size(setup.question, setup.candidate, method)
    return Comparison(question, before, after, setup, method.name)


# --- What if the weights were smaller or spread over more GPUs: another precision, another TP, 2:4 sparsity

TIMED_SIGMA: Mapping[str, float] = MappingProxyType({"dense": 0.10, "moe": 0.19})
"""By kind of model, of a change whose ratio of step times was timed, kernel by kernel, which is a mean over batches:
such that 1.645 of it covers 90 % of the steps of shipped laws, decodes and prompts, at another TP or precision."""
RELATED_SIGMA: Mapping[str, float] = MappingProxyType({"dense": 0.16, "moe": 0.28})
"""Of one whose ratio is that of another model's timings: of the nearest of another shape."""
SHEET_SIGMA: Mapping[str, float] = MappingProxyType({"dense": 0.34, "moe": 0.45})
"""Of one that follows from data sheets."""
WEIGHTS_SIGMA = 0.10
"""Error of the bytes of weights freed or taken by another precision, against the memory of estimates with timings of
both, on average over models, GPUs and TPs: engines keep embeddings and some layers in 16 bits, activations differ."""
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
        """An estimate becomes that of the other precision. Measured step times change as the kernel timings of both
        precisions do; without them, by what data sheets promise."""
        before = sheet_of(setup.candidate)
        after = replace(before, precision=precision_of(before.model, self.to))
        if after.precision == before.precision:
            return setup.unchanged(f"the model is already in {before.precision}")
        cache = after.token_bytes / before.token_bytes
        held = (
            f"{after.precision} instead of {before.precision}: weights take {_weights(before, after):.2f} times the "
            f"bytes, the KV cache {cache:.2f} times; its effect on quality is not considered"
        )
        return _resized(setup, before, after, held)


@dataclass(frozen=True, slots=True)
class AtTp:
    """Another number of GPUs to a replica: tensor parallelism of `to`."""

    to: int

    def apply(self, setup: Setup) -> Setup:
        """An estimate becomes that at the other TP. Measured step times change as kernel timings at both do; without
        them, by what data sheets promise."""
        before = sheet_of(setup.candidate)
        if self.to < 1 or before.model.heads % self.to:
            heads = f"{before.model.name} has {before.model.heads} attention heads"
            raise ScenarioError(f"tp: {heads}, which {self.to} does not divide")
        # An estimate of tensor parallelism has whole experts where only these were timed: nobody asked for them.
        by_tp = replace(before, layout=replace(before.layout, ep=1))
        if before.layout.lanes > 1 or (by_tp != before and not _is_estimate(setup, by_tp)):
            raise ScenarioError(f"tp: the replica has the layout {before.layout}; ask for another one with --layout")
        after = replace(before, layout=Layout(self.to))
        if after == by_tp:
            return setup.unchanged(f"a replica already has TP{self.to}")
        held = f"{after.layout} instead of {by_tp.layout}: weights and KV cache are divided over the GPUs"
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
        kv_tokens = refilled(setup, sheet, sheet, taken_bytes=(kept - 1) * sheet.weight_bytes).tokens
        return setup.changed(
            f"2:4 sparsity: matrix products {self.speedup:g} times as fast (data sheet: up to 2; measured end to end: "
            "1.1 to 1.5, for instance 1.27 by HPC-AI 2025 with Llama-3-8B fp8 in vLLM)",
            f"weights take {kept:.2f} times the bytes (half the values and 2 bits for the place of each); all of them "
            "are pruned, and the effect on quality is not considered",
            sigma=SPARSITY_SIGMA,
            replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=kv_tokens)),
        )


def _resized(setup: Setup, before: Sheet, after: Sheet, held: str) -> Setup:
    """The setup moved from one sheet to another, and where its times come from. An estimate becomes the estimate that
    would be made of the other sheet, if there is one."""
    if _is_estimate(setup, before) and (direct := _estimated(setup, after)):
        there, was = replace(direct, basis="what-if"), setup.candidate.replica.batching.kv_tokens
        source = f"times, memory and band are those of the estimate asked for directly: {direct.source}"
        source += f"; the KV cache holds {direct.replica.batching.kv_tokens:,} tokens, before {was:,}"
        return replace(setup, candidate=there, assumptions=(*setup.assumptions, held, source))
    replica = setup.candidate.replica
    cache = refilled(setup, before, after)
    ratios = timed_ratios(before, after, setup.question.workload.lengths)
    cautions = tuple(each for each in setup.candidate.warnings if each.kind != "slower_than_bf16")
    if ratios:
        law, sigma, cautions = ratios.of(replica.law), ratios.sigma, (*cautions, *ratios.cautions)
        source = (
            f"decode steps take {ratios.decode:.2f} times as long, prompts {ratios.prefill:.2f} times: the ratio of "
        )
        source += f"the kernel timings of {LIBRARY} for both"
        source += f", of its relative {ratios.relative}" if ratios.relative else ""
    else:
        law, sigma = by_data_sheet(replica.law, before, after), SHEET_SIGMA[before.model.kind]
        source = f"no kernel timings of both: arithmetic and bytes from the data sheet of {after.gpu.name}"
        source += f", of whose savings from lower precision {percent(REALISED)} are assumed to be realised"
    memory = f"the KV cache holds {cache.tokens:,} tokens, before {replica.batching.kv_tokens:,}"
    if not cache.counted:
        memory += (
            ": by the weights alone, parameters times bits, as no memory of both is known; "
            f"that is {percent(WEIGHTS_SIGMA)} off in the bytes freed or taken, which the band includes"
        )
    return setup.changed(
        held,
        f"{source}; {memory}",
        sigma=math.hypot(sigma, cache.sigma),
        layout=after.layout,
        precision=after.precision,
        replica=replace(replica, law=law, batching=replace(replica.batching, kv_tokens=cache.tokens)),
        warnings=cautions,
    )


def _is_estimate(setup: Setup, sheet: Sheet) -> bool:
    """Whether the candidate is the estimate of this sheet: neither measured nor changed in another way."""
    candidate = setup.candidate
    if candidate.fitted_to or candidate.variants:
        return False
    try:
        found = _estimated(setup, sheet)
    except DoesNotFit:
        return False
    return found is not None and found.replica == candidate.replica


def _estimated(setup: Setup, sheet: Sheet) -> Candidate | None:
    """The estimate of a data sheet with the candidate's batches, of the engine that it was asked of; None where there
    is none. Raises DoesNotFit."""
    rule, layout = setup.candidate.replica.batching, setup.candidate.layout
    instead = (each.facts["asked"] for each in setup.candidate.warnings if each.kind == "other_engine")
    names = sheet.model.id, sheet.gpu.id, sheet.layout, sheet.precision
    try:
        return estimate(
            *names,
            setup.question.workload.lengths,
            engine=str(next(instead, sheet.engine)),
            max_batch_size=rule.max_batch_size // layout.dp,
            token_budget=rule.token_budget // layout.lanes,
        )
    except EstimateUnavailable:
        return None


def by_data_sheet(law: StepLaw, before: Sheet, after: Sheet) -> StepLaw:
    """The law with weights, arithmetic and cache divided by TP and shrunk by precision, all-reduces added.

    Overheads stay, but for two all-reduces a layer. Against kernel timings, on average: another TP over NVLink 10 % off
    in decode and 13 % in prefill, over PCIe 18 and 36 %; another precision 20 and 17 %.
    """
    share = before.layout.tp / after.layout.tp
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
    return 2 * sheet.model.layers * ALL_REDUCE_S if sheet.layout.tp > 1 else 0.0


def reducing_s(sheet: Sheet) -> float:
    """Seconds for one token's bytes in these all-reduces: 2 (n - 1) / n times its bf16 activations over the link."""
    moved_bytes = 2 * (sheet.layout.tp - 1) / sheet.layout.tp * 2 * sheet.hidden_size
    return 2 * sheet.model.layers * moved_bytes / (sheet.gpu.link_bytes_per_s * LINK_SHARE)


def _weights(before: Sheet, after: Sheet) -> float:
    return BITS[after.precision] / BITS[before.precision]


def _realised(ratio: float) -> float:
    """The realised ratio of times for a ratio on the data sheet; the reverse change is its inverse."""
    return 1 - REALISED * (1 - ratio) if ratio <= 1 else 1 / (1 - REALISED * (1 - 1 / ratio))


# --- What if a cheap draft proposed tokens for the model to check: a draft model, Medusa's heads, ReDrafter

DRAFT_SIGMA = 0.20
TEXT = "acceptance depends on the text, the temperature and the draft's training: measure it on your own prompts"


@dataclass(frozen=True, slots=True)
class Speculative:
    """A draft model of `draft_size` times the parameters proposes `draft_tokens` tokens a step, one by one."""

    draft_tokens: int = 4
    acceptance: float = 0.7
    draft_size: float = 0.05

    def apply(self, setup: Setup) -> Setup:
        """Adds the draft's passes to each decode step, its weights and its KV cache to the memory."""
        _check_share("speculative", "draft_size", self.draft_size)
        # Parameters grow as layers x width^2 and, width with layers: depth as the cube root, KV cache as depth x width.
        depth, cache = self.draft_size ** (1 / 3), self.draft_size ** (2 / 3)
        law = setup.candidate.replica.law
        weights_s = reading_s(law, sheet_of(setup.candidate))
        draft = StepLaw(
            weights_s=self.draft_size * weights_s,
            overhead_s=depth * (law.overhead_s + law.weights_s - weights_s),
            token_s=self.draft_size * law.token_s,
            sequence_s=depth * law.sequence_s,
            kv_token_s=cache * law.kv_token_s,
        )
        lines = (
            f"a draft model of {percent(self.draft_size, 1)} of the parameters: its passes take that share of the "
            f"model's weights and arithmetic, {percent(depth)} of its overheads (fewer layers) and {percent(cache)} of "
            "its KV cache",
            "the draft's own reading of the prompts is left out",
        )
        return _drafted(setup, "speculative", self.draft_tokens, self.acceptance, draft, self.draft_size, cache, lines)


@dataclass(frozen=True, slots=True)
class Medusa:
    """`heads` extra output heads propose a token each from the model's own last state; `tree` candidate tokens checked.

    `acceptance`: chance that a head is right (in the tree: that one of its candidates is) if those before it were.
    `head_size`: weights of one head over the model's, 2 % for 7 billion parameters and 32,000 words.
    """

    heads: int = 4
    acceptance: float = 0.6
    tree: int = 0
    head_size: float = 0.02

    def apply(self, setup: Setup) -> Setup:
        """Adds the heads to each step; candidates beyond one chain cost the arithmetic of a token each."""
        _check_share("medusa", "head_size", self.head_size)
        if self.tree and self.tree < self.heads:
            raise ScenarioError(f"medusa: tree must be 0 (one chain) or at least heads ({self.heads}), got {self.tree}")
        law, beyond = setup.candidate.replica.law, max(self.tree - self.heads, 0)
        draft = StepLaw(
            weights_s=self.head_size * reading_s(law, sheet_of(setup.candidate)),
            overhead_s=0.0,
            token_s=self.head_size * law.token_s,
            sequence_s=law.token_s * beyond / max(self.heads, 1),
            kv_token_s=0.0,
        )
        lines = (
            f"{self.heads} heads of {percent(self.head_size, 1)} of the weights each, {self.tree or self.heads} "
            "candidate tokens checked for each sequence and step, those beyond one chain at their full arithmetic",
            "claimed by its authors for one sequence: 2.2 times as fast, 2.3 to 3.6 with the model trained along "
            "(arXiv 2401.10774); in full batches less, since checking costs arithmetic",
        )
        taken = self.heads * self.head_size
        return _drafted(setup, "medusa", self.heads, self.acceptance, draft, taken, 0.0, lines)


@dataclass(frozen=True, slots=True)
class ReDrafter:
    """A small recurrent network fed with the model's state proposes `draft_tokens` tokens a step."""

    draft_tokens: int = 4
    acceptance: float = 0.7
    draft_size: float = 0.02

    def apply(self, setup: Setup) -> Setup:
        """Adds the recurrent passes to each step; they have no KV cache."""
        _check_share("redrafter", "draft_size", self.draft_size)
        law = setup.candidate.replica.law
        weights_s = self.draft_size * reading_s(law, sheet_of(setup.candidate))
        draft = StepLaw(weights_s, 0.0, self.draft_size * law.token_s, 0.0, 0.0)
        lines = (
            f"a recurrent draft of {percent(self.draft_size, 1)} of the weights, run once a proposed token, no KV "
            "cache",
            "claimed by its authors: 2.7 times the tokens/s of a greedy H100 with TensorRT-LLM at small batches "
            "(arXiv 2403.09919 and Apple 2024)",
        )
        taken = self.draft_size
        return _drafted(setup, "redrafter", self.draft_tokens, self.acceptance, draft, taken, 0.0, lines)


def _drafted(
    setup: Setup, name: str, tokens: int, acceptance: float, draft: StepLaw, taken: float, cache: float,
    lines: tuple[str, ...],
) -> Setup:  # fmt: skip
    """The setup with a draft whose weights take the share `taken` of the model's, its KV cache the share `cache`."""
    if tokens == 0:
        return setup.unchanged("no tokens are proposed")
    replica, speculation = setup.candidate.replica, Speculation(tokens, acceptance, draft)
    if replica.speculation is not None:
        raise ScenarioError(f"{name}: the engine already checks the proposals of another draft")
    sheet = sheet_of(setup.candidate)
    held = refilled(setup, sheet, sheet, taken_bytes=taken * sheet.weight_bytes).tokens
    batching = replace(replica.batching, kv_tokens=_beside_a_draft(held, cache))
    step = (
        f"{tokens} proposed tokens a step, each accepted with chance {acceptance:g} if those before it were: "
        f"{speculation.tokens_per_step:.2f} tokens a step (Leviathan, Kalman, Matias 2023, arXiv 2211.17192)"
    )
    changed = replace(replica, batching=batching, speculation=speculation)
    return setup.changed(step, *lines, TEXT, sigma=DRAFT_SIGMA, replica=changed)


def _beside_a_draft(kv_tokens: int, cache: float) -> int:
    return max(1, int(kv_tokens / (1 + cache)))


def _check_share(name: str, field: str, value: float) -> None:
    if not 0 <= value < 1:
        raise ScenarioError(f"{name}: {field} must be a share of the model from 0 to below 1, got {value:g}")


# --- What if the engine formed its batches otherwise, or found part of the prompts in its cache

SCHEDULING_SIGMA = 0.03
REUSE_SIGMA = 0.05


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """Prompts computed in chunks beside the decodes, `chunk` tokens an iteration; 0: whole prompts (chunking off)."""

    chunk: int

    def apply(self, setup: Setup) -> Setup:
        """The policy and the token budget change; the law of an iteration stays. Every rank and stage is set so, and
        the replica's budget is that of all."""
        if self.chunk < 0:
            raise ScenarioError(f"chunked_prefill: chunk must be 0 (off) or more tokens, got {self.chunk}")
        replica = setup.candidate.replica
        if self.chunk:
            lanes = setup.candidate.layout.lanes
            batching = replace(replica.batching, policy="chunked", token_budget=self.chunk * lanes)
            line = f"prompts are computed in chunks of up to {self.chunk:,} tokens an iteration, decodes beside them"
            line += f", in each of {lanes} ranks and stages" if lanes > 1 else ""
        elif replica.batching.policy == "whole_prompt":
            batching, line = replica.batching, ""
        else:
            prompt = math.ceil(setup.question.workload.lengths.isl)
            beside = replica.batching.max_batch_size * replica.lane_tokens
            budget = max(replica.batching.token_budget, prompt + beside)
            batching = replace(replica.batching, policy="whole_prompt", token_budget=budget)
            line = f"each prompt is computed whole, in one iteration of up to {budget:,} tokens with decodes beside it"
        if batching == replica.batching:
            return setup.unchanged("batches are formed so already")
        memory = "the KV cache keeps its size, although activations grow and shrink with the chunk"
        return setup.changed(line, memory, sigma=SCHEDULING_SIGMA, replica=replace(replica, batching=batching))


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """At most `size` sequences run at once in a replica."""

    size: int

    def apply(self, setup: Setup) -> Setup:
        """The limit changes; the law of an iteration stays."""
        replica = setup.candidate.replica
        if self.size == replica.batching.max_batch_size:
            return setup.unchanged(f"the limit is already {self.size} sequences")
        batching = replace(replica.batching, max_batch_size=self.size)
        line = f"at most {self.size} sequences at once, before {replica.batching.max_batch_size}; the law stays"
        return setup.changed(line, sigma=SCHEDULING_SIGMA, replica=replace(replica, batching=batching))


@dataclass(frozen=True, slots=True)
class KvReuse:
    """The first `tokens` of a prompt are found in the KV cache with chance `hit_rate` (enable_kv_cache_reuse)."""

    tokens: int
    hit_rate: float = 1.0

    def apply(self, setup: Setup) -> Setup:
        """The workload gets a shared prefix; cached tokens cost no arithmetic, and memory once in a replica."""
        prefix, workload = Prefix(self.tokens, self.hit_rate), setup.question.workload
        if self.tokens >= workload.lengths.isl:
            raise ScenarioError(
                f"kv_reuse: {self.tokens} tokens are not fewer than the prompt's {workload.lengths.isl:g}"
            )
        found, before = self.tokens * self.hit_rate, workload.prefix.tokens * workload.prefix.hit_rate
        if prefix == workload.prefix or not (found or before):
            return setup.unchanged("no more of the prompts is found in the cache")
        lines = ["nothing of the prompts is found in the KV cache any more: all of it is computed"]
        if found:
            lines = [
                f"the first {self.tokens:,} tokens of {percent(self.hit_rate)} of the prompts are found in the KV "
                "cache: not computed again, held once in a replica, but attended to",
                "the cache never drops the shared part, and routing finds it on every replica",
            ]
        prefix = prefix if found else Prefix()
        changed = setup.changed(*lines, sigma=REUSE_SIGMA)
        question = replace(setup.question, workload=replace(workload, prefix=prefix))
        return replace(changed, question=question)


# --- What if requests brought LoRA adapters: low-rank weights of their own beside the shared ones, in one batch

LORA_SIGMA = 0.10
LAYER_S = 2e-3 / 32
"""Seconds that the adapters' kernels add to a layer: Punica measured 2 ms a token over the 32 layers of a 7B model."""


@dataclass(frozen=True, slots=True)
class Lora:
    """`adapters` different adapters of rank `rank` on the attention's four matrices, all kept on the GPU."""

    adapters: int = 8
    rank: int = 16

    def apply(self, setup: Setup) -> Setup:
        """Each sequence reads its adapter at every step, in its own rank, while the other ranks read theirs; the
        adapters take memory; their kernels take time a layer."""
        if self.adapters < 0 or self.rank < 0:
            raise ScenarioError(f"lora: adapters and rank must be 0 or more, got {self.adapters} and {self.rank}")
        if not self.adapters * self.rank:
            return setup.unchanged("adapters of rank 0, or none")
        sheet, replica = sheet_of(setup.candidate), setup.candidate.replica
        one_bytes = adapter_bytes(sheet, self.rank)
        kv_tokens = refilled(setup, sheet, sheet, taken_bytes=self.adapters * one_bytes).tokens
        law = replica.law.with_values(
            overhead_s=replica.law.overhead_s + sheet.model.layers * LAYER_S,
            sequence_s=replica.law.sequence_s + one_bytes / sheet.gpu.bandwidth_bytes_per_s / sheet.layout.dp,
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
    """Bytes of one adapter on one GPU: rank x (inputs + outputs) of the four attention matrices, two bytes a weight.

    Each GPU holds the side of its own heads in part, and the model's width whole: so engines do unless told otherwise
    (vLLM: fully_sharded_loras is off).
    """
    model, layout, width = sheet.model, sheet.layout, sheet.hidden_size
    keys = model.kv_heads * model.head_size / min(layout.tp, model.kv_heads)
    sides = 4 * width + 2 * width / layout.tp + 2 * keys
    return 2.0 * rank * sides * model.layers / layout.pp


KINDS: Mapping[str, type[WhatIf]] = MappingProxyType(
    {
        "precision": AtPrecision,
        "tp": AtTp,
        "sparsity": Sparse,
        "speculative": Speculative,
        "medusa": Medusa,
        "redrafter": ReDrafter,
        "kv_reuse": KvReuse,
        "lora": Lora,
        "chunked_prefill": ChunkedPrefill,
        "batch_limit": BatchLimit,
    }
)
_READERS: Mapping[str, Callable[[str], Any]] = MappingProxyType({"int": int, "float": float, "str": str})


def parse_change(text: str) -> WhatIf:
    """One change: ``KIND``, ``KIND=VALUE`` (its first setting) or ``KIND:NAME=VALUE,...``.

    Raises ScenarioError, which names the choices.

    >>> parse_change("precision=fp8")
    AtPrecision(to='fp8')
    >>> parse_change("speculative:draft_tokens=3,acceptance=0.8")
    Speculative(draft_tokens=3, acceptance=0.8, draft_size=0.05)
    >>> parse_change("chunked_prefill=off")
    ChunkedPrefill(chunk=0)
    """
    found = re.fullmatch(r"\s*(\w+)\s*(?:([:=])(.*))?", text)
    if not found or found[1] not in KINDS:
        raise ScenarioError(f"--change {text!r}: the changes are {', '.join(KINDS)}")
    kind, sign, rest = KINDS[found[1]], found[2], found[3] or ""
    known = {field.name: field for field in fields(kind)}  # type: ignore[arg-type]
    if sign == "=":
        rest = f"{next(iter(known))}={rest}"
    given = dict(_setting(text, part, known) for part in rest.split(",") if part.strip())
    missing = [name for name, field in known.items() if field.default is MISSING and name not in given]
    if missing:
        raise ScenarioError(f"--change {text!r}: give {missing[0]}, for instance {example(found[1])}")
    return kind(**given)


def _setting(text: str, part: str, known: Mapping[str, Field[Any]]) -> tuple[str, Any]:
    name, _, value = (piece.strip() for piece in part.partition("="))
    if name not in known:
        raise ScenarioError(f"--change {text!r}: no setting {name!r}; there are {', '.join(known)}")
    value = "0" if value == "off" else value
    read = _READERS[str(known[name].type)]
    try:
        return name, read(value)
    except ValueError:
        what = "a whole number" if read is int else "a number"
        raise ScenarioError(f"--change {text!r}: {name} must be {what}, got {value!r}") from None


def example(kind: str) -> str:
    """How to write a change of this kind.

    >>> example("medusa")
    'medusa:heads=4,acceptance=0.6,tree=0,head_size=0.02'
    """
    needed = {"precision": "precision=fp8", "tp": "tp=4", "chunked_prefill": "chunked_prefill=2048 (or =off)"}
    needed |= {"batch_limit": "batch_limit=64", "kv_reuse": "kv_reuse:tokens=1000,hit_rate=0.8"}
    settings = ",".join(f"{field.name}={field.default}" for field in fields(KINDS[kind]))  # type: ignore[arg-type]
    return needed.get(kind, f"{kind}:{settings}")


@dataclass(frozen=True, slots=True)
class Setup:
    """A candidate for a question, and what had to be assumed to get there, one line each."""

    candidate: Candidate
    question: Question
    assumptions: tuple[str, ...] = ()

    def changed(self, *assumptions: str, sigma: float, **fields: Any) -> Setup:
        """The setup with some of the candidate's fields replaced, its basis "what-if".

        `sigma`: the relative standard error that the change adds to the law's; the two add in quadrature. The laws a
        fit gives either side of its own are dropped: they know nothing of the change.
        """
        candidate = self.candidate
        widened = math.hypot(candidate.relative_sigma, sigma)
        band = f"the band is widened for this by {percent(sigma)} of the step times"
        changed = replace(candidate, basis="what-if", relative_sigma=widened, variants=(), open_loops=(), **fields)
        return replace(self, candidate=changed, assumptions=(*self.assumptions, *assumptions, band))

    def unchanged(self, why: str) -> Setup:
        """The same setup: the change asks for what is there already."""
        return replace(self, assumptions=(*self.assumptions, f"{why}: nothing changes"))


class WhatIf(Protocol):
    """A change of an engine, its model's weights or its requests."""

    def apply(self, setup: Setup) -> Setup:
        """The setup after the change; ScenarioError where it cannot be made, DoesNotFit where memory lacks."""
        ...


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the catalogue says of a model in a layout at a precision, for one GPU."""

    model: Model
    gpu: Gpu
    precision: Precision
    layout: Layout
    engine: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one GPU."""
        return weight_bytes(self.model, self.layout, self.precision)

    @property
    def reading_s(self) -> float:
        """Seconds to read the weights once at the data sheet's bandwidth; no engine is faster."""
        return self.weight_bytes / self.gpu.bandwidth_bytes_per_s * self.layout.pp

    @property
    def token_bytes(self) -> float:
        """Bytes that a token leaves in the KV cache of one GPU: two a value, one where the cache is fp8."""
        return token_bytes(self.model, self.gpu, self.layout, self.precision)

    def room(self, length: int, token_budget: int) -> Room:
        """Memory of one GPU as an estimate counts it, for sequences of `length` tokens."""
        return room(self.model, self.gpu, self.layout, self.precision, self.engine, length, token_budget)

    @property
    def hidden_size(self) -> int:
        """Width of the model, taken as that of its attention."""
        return self.model.heads * self.model.head_size


def sheet_of(candidate: Candidate) -> Sheet:
    """The candidate's data sheet. Raises ScenarioError where the catalogue lacks its model, GPU or precision."""
    try:
        model, gpu = catalog.model(candidate.model), catalog.gpu(candidate.gpu)
    except CatalogueError as error:
        raise ScenarioError(f"this what-if needs sizes from the catalogue: {error}") from None
    return Sheet(model, gpu, precision_of(model, candidate.precision), candidate.layout, candidate.engine)


def precision_of(model: Model, name: str) -> Precision:
    """A precision of a model of the catalogue from its common spellings, else ScenarioError with the choices."""
    if precision := catalog.precision_of(model, name):
        return precision
    raise ScenarioError(f"precision {name!r} is not one of {', '.join(catalog.PRECISIONS)}")


def reading_s(law: StepLaw, sheet: Sheet) -> float:
    """Seconds of the law's floor (overhead and weights) that go into reading the weights.

    A fit may book part of the reading as overhead, where steps look alike. So at least the data sheet's time for it,
    where the floor is that long, is taken to be reading.
    """
    return max(law.weights_s, min(law.overhead_s + law.weights_s, sheet.reading_s))


def read_weights(law: StepLaw, share: float, sheet: Sheet) -> StepLaw:
    """The law of an engine that reads `share` of the bytes of the weights."""
    booked_s = reading_s(law, sheet) - law.weights_s
    return law.with_values(weights_s=share * law.weights_s, overhead_s=law.overhead_s + (share - 1) * booked_s)


@dataclass(frozen=True, slots=True)
class Cache:
    """Tokens of the KV cache; `counted`: by the memory of an estimate. Otherwise the relative error `sigma` of what is
    left beside the weights is that of their bytes."""

    tokens: int
    counted: bool = True
    sigma: float = 0.0


def refilled(setup: Setup, before: Sheet, after: Sheet, *, taken_bytes: float = 0.0) -> Cache:
    """The KV cache after weights and activations of `before` are replaced by those of `after`.

    Memory is counted as in estimates, so that a changed estimate has the cache of the direct one. For a measured engine
    this needs kernel timings of both; without them its cache gains the bytes that the weights lose. `taken_bytes`: what
    else now lies in the memory of each GPU. Each rank has a cache of its own; the replica's is their sum. Raises
    DoesNotFit if not one request fits.
    """
    batching, lengths = setup.candidate.replica.batching, setup.question.workload.lengths
    if batching.kv_tokens >= UNLIMITED_KV_TOKENS:
        return Cache(batching.kv_tokens)
    length, ranks = math.ceil(lengths.isl + lengths.osl), before.layout.dp
    budget = batching.token_budget // before.layout.lanes
    one, other = (sheet.room(length, budget) for sheet in (before, after))
    kept = engine_defaults(setup.candidate.engine).share_of_freed
    estimated, engine = not setup.candidate.fitted_to, setup.candidate.engine
    counted = before == after or estimated or one.engine == other.engine == engine != ""
    if counted:
        freed, held, each = other.free_bytes - one.free_bytes, one.token_bytes, other.token_bytes
    else:
        freed, held, each = (before.weight_bytes - after.weight_bytes) * kept, before.token_bytes, after.token_bytes
    tokens = int((batching.kv_tokens * held + ranks * (freed - taken_bytes * kept)) / each)
    if (lacking := lengths.isl + lengths.osl - tokens / ranks) > 0:
        missing = lacking * each / kept
        where = f"{after.model.name} {after.precision} on {after.gpu.id} {after.layout}"
        raise DoesNotFit(f"{where} with this change needs {missing / 1e9:.1f} GB more per GPU", missing)
    wrong = 0.0 if counted else WEIGHTS_SIGMA * ranks * abs(freed) / each
    return Cache(tokens, counted, math.log1p(wrong / tokens))


BATCHES = (1, 8, 32, 128)
CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Ratios:
    """Times after over times before, of decode steps and of what prompts add, and the error of both; `relative`: whose
    they are, if not the model's own; `cautions` on the times after."""

    decode: float
    prefill: float
    sigma: float = 0.0
    relative: str = ""
    cautions: tuple[Caution, ...] = ()

    def of(self, law: StepLaw) -> StepLaw:
        """The law with what decodes pay scaled by one ratio and what prompts pay by the other."""
        return law.with_values(
            weights_s=law.weights_s * self.decode,
            overhead_s=law.overhead_s * self.decode,
            sequence_s=law.sequence_s * self.decode,
            kv_token_s=law.kv_token_s * self.decode,
            token_s=law.token_s * self.prefill,
            attention_s=law.attention_s * self.prefill,
            prefill_s=law.prefill_s * self.prefill,
        )


def timed_ratios(before: Sheet, after: Sheet, lengths: Lengths) -> Ratios | None:
    """Ratios of the shipped day-zero laws at these lengths, of the model, else of its nearest relative, scaled; None
    unless one engine was timed both ways."""
    if before.layout.lanes * after.layout.lanes != 1:
        return None
    ways = [(each.layout, each.precision) for each in (before, after)]
    model, gpu, known = before.model, before.gpu.id, _engines(after)
    own = [(model, engine) for engine in _engines(before) if engine in known]
    found = own[0] if own else relative_of(model, gpu, ways, (before.engine, *ENGINES))
    if found is None:
        return None
    relative, engine = found
    timed = shipped(relative, gpu, *ways[1], engine)
    one = scaled(shipped(relative, gpu, *ways[0], engine).law, relative, model, before.layout)
    other = scaled(timed.law, relative, model, after.layout)
    longest = math.ceil(lengths.isl + lengths.osl)
    cautions = slower_than_bf16(timed, relative, gpu, after.layout, after.precision, longest)
    return replace(
        ratios_of(one, other, lengths),
        sigma=(TIMED_SIGMA if distance(model, relative) < TWIN else RELATED_SIGMA)[model.kind],
        relative=relative.name if relative != model else "",
        cautions=tuple(cautions),
    )


def ratios_of(one: StepLaw, other: StepLaw, lengths: Lengths) -> Ratios:
    """Mean ratios of the times by two laws, in logarithms, over batches and chunks of prompts at these lengths."""
    context, isl = lengths.isl + lengths.osl / 2, lengths.isl

    def log_ratio(seconds: Callable[[StepLaw], float]) -> float:
        return math.log(seconds(other) / seconds(one))

    decode = [log_ratio(lambda law, n=n: law.decode_s(n, n * context)) for n in BATCHES]  # type: ignore[misc]
    alone = log_ratio(lambda law: law.prefill_alone_s(isl))
    beside = log_ratio(lambda law: law.mixed_s(32, 32 * context, CHUNK, CHUNK * isl / 2))
    return Ratios(math.exp(sum(decode) / len(decode)), math.exp((alone + beside) / 2))


def _engines(sheet: Sheet) -> tuple[str, ...]:
    """Those with timings, the candidate's own first."""
    timed = timed_engines(sheet.model, sheet.gpu.id, sheet.layout, sheet.precision)
    return tuple(sorted(timed, key=lambda engine: engine != sheet.engine))
