"""What-ifs about the engine: weights, sparsity, drafts, LoRA, prefixes, scheduling."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.analyses.whatif import (
    BatchLimit,
    ChunkedPrefill,
    KvReuse,
    Lora,
    Medusa,
    ReDrafter,
    Setup,
    Sparse,
    Speculative,
    adapter_bytes,
    read_weights,
    reading_s,
    sheet_of,
    what_if,
)
from sizing.catalog import Layout
from sizing.edge import BY_FORMULA
from sizing.engine import StepLaw
from sizing.errors import ScenarioError
from sizing.estimate import estimate
from sizing.plans import Candidate, Fleet, Rejection
from sizing.queueing import predict
from sizing.workload import Lengths, Workload
from tests.sizing.whatif_cases import LENGTHS, MIXTURE, QUESTION, QWEN, after

# Reading the weights.


@given(share=st.floats(0.25, 2), weights_s=st.floats(0, 20e-3), overhead_s=st.floats(0, 20e-3))
def test_less_to_read_takes_less_time_in_proportion(
    share: float, weights_s: float, overhead_s: float, bf16: Candidate
) -> None:
    """The floor changes by (share - 1) times the reading in it, which is at least the data sheet's if it can be."""
    sheet = sheet_of(bf16)
    law = StepLaw(weights_s, overhead_s, 0.0, 0.0, 0.0)
    reading = reading_s(law, sheet)
    assert weights_s <= reading <= weights_s + overhead_s + 1e-12
    assert reading >= min(sheet.reading_s, weights_s + overhead_s) - 1e-12
    changed = read_weights(law, share, sheet)
    assert changed.decode_s(1, 0) - law.decode_s(1, 0) == pytest.approx((share - 1) * reading, abs=1e-12)


def test_the_sheet_counts_bytes(bf16: Candidate) -> None:
    """32.8 billion parameters in bf16 over two GPUs, at 4.8 TB/s; 64 layers x 8 KV heads x 128 x 2 values x 2 bytes."""
    sheet = sheet_of(bf16)
    assert sheet.weight_bytes == pytest.approx(32.8e9, rel=0.01)
    assert sheet.reading_s == pytest.approx(32.8e9 / 4.8e12, rel=0.01)
    assert sheet.token_bytes == 64 * 8 * 128 * 2 * 2 / 2
    assert dataclasses.replace(sheet, precision="fp8", layout=Layout(16)).token_bytes == 64 * 128 * 2


# Sparsity.


def test_sparsity_speeds_up_within_its_bound(bf16: Candidate) -> None:
    """Steps get faster, by no more than the speed-up of the matrix products; the more of it, the faster."""
    was = bf16.replica.law
    times = [after(Sparse(speedup), bf16).candidate.replica.law for speedup in (1.1, 1.5, 2.0)]
    for speedup, law in zip((1.1, 1.5, 2.0), times, strict=True):
        for seconds in (lambda law: law.decode_s(8, 16_000), lambda law: law.prefill_alone_s(2000)):
            assert seconds(was) / speedup * (1 - 1e-9) <= seconds(law) < seconds(was)
    assert times[2].decode_s(8, 16_000) < times[1].decode_s(8, 16_000) < times[0].decode_s(8, 16_000)


# Drafts.


def test_speculation_reaches_the_engine(bf16: Candidate) -> None:
    """A draft of 5 % of the size takes memory and time; one of no size takes neither."""
    replica = after(Speculative(4, 0.7, 0.05), bf16).candidate.replica
    assert replica.speculation is not None
    assert (replica.speculation.draft_tokens, replica.speculation.acceptance) == (4, 0.7)
    assert replica.speculation.draft.decode_s(8, 16_000) < 0.5 * bf16.replica.law.decode_s(8, 16_000)
    assert replica.batching.kv_tokens < bf16.replica.batching.kv_tokens
    assert replica.law == bf16.replica.law
    free = after(Speculative(4, 0.7, 0.0), bf16).candidate.replica
    assert free.speculation is not None
    assert free.speculation.draft.decode_s(8, 16_000) == 0
    assert free.batching.kv_tokens == bf16.replica.batching.kv_tokens


@given(st.floats(0.01, 0.5))
def test_larger_drafts_cost_more(size: float) -> None:
    candidate = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
    small = after(Speculative(4, 0.7, size), candidate).candidate.replica
    large = after(Speculative(4, 0.7, size * 1.5), candidate).candidate.replica
    assert small.speculation is not None
    assert large.speculation is not None
    assert small.speculation.draft.decode_s(8, 16_000) < large.speculation.draft.decode_s(8, 16_000)
    assert small.batching.kv_tokens > large.batching.kv_tokens


def test_a_wider_tree_costs_arithmetic_only(bf16: Candidate) -> None:
    """Candidates beyond the chain cost `token_s` each, over the passes of a step; memory does not change."""
    chain, tree = (after(Medusa(4, 0.6, tree), bf16).candidate.replica for tree in (0, 64))
    assert chain.speculation is not None
    assert tree.speculation is not None
    assert chain.batching == tree.batching
    more = 4 * (tree.speculation.draft.sequence_s - chain.speculation.draft.sequence_s)
    assert more == pytest.approx(60 * bf16.replica.law.token_s)
    assert after(Medusa(4, 0.6, 4), bf16).candidate.replica == chain


def test_one_draft_at_a_time(bf16: Candidate) -> None:
    with pytest.raises(ScenarioError, match="another draft"):
        Medusa().apply(after(ReDrafter(), bf16))


# LoRA, prefixes, scheduling.


@given(st.integers(1, 64), st.integers(1, 32))
def test_adapters_cost_time_and_memory_by_rank(rank: int, adapters: int) -> None:
    """Per sequence, at 4.8 TB/s: rank x 64 layers x 2 bytes x the in- and outputs of four matrices. Each of two GPUs
    has its heads' side of a matrix, and all of the other side, which vLLM shards only with fully_sharded_loras."""
    candidate = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
    replica, was = after(Lora(adapters, rank), candidate).candidate.replica, candidate.replica
    queries, keys, values, out = (8192 + 8192 / 2, 8192 + 1024 / 2, 8192 + 1024 / 2, 8192 / 2 + 8192)
    one_bytes = rank * 64 * 2 * (queries + keys + values + out)
    assert replica.law.sequence_s - was.law.sequence_s == pytest.approx(one_bytes / 4.8e12, rel=1e-6)
    lost = (was.batching.kv_tokens - replica.batching.kv_tokens) * sheet_of(candidate).token_bytes
    assert lost == pytest.approx(0.9 * adapters * one_bytes, abs=2 * sheet_of(candidate).token_bytes)


@pytest.mark.parametrize("layout", [Layout(dp=8, ep=8), Layout(2, dp=4, ep=8)])
def test_each_rank_holds_every_adapter_and_reads_those_of_its_own_sequences(layout: Layout) -> None:
    candidate = estimate(MIXTURE, "h200_sxm", layout, "bf16", LENGTHS, engine="trtllm")
    was, sheet = candidate.replica, sheet_of(candidate)
    replica = after(Lora(adapters=8, rank=16), candidate).candidate.replica
    one_bytes = adapter_bytes(sheet, 16)
    added_s = replica.law.sequence_s - was.law.sequence_s
    assert added_s * layout.dp == pytest.approx(one_bytes / sheet.gpu.bandwidth_bytes_per_s, rel=1e-6)
    lost = (was.batching.kv_tokens - replica.batching.kv_tokens) * sheet.token_bytes
    assert lost == pytest.approx(0.9 * 8 * one_bytes * layout.dp, abs=2 * sheet.token_bytes)


@pytest.mark.parametrize("layout", [Layout(dp=8, ep=8), Layout(4, pp=2)])
def test_a_chunk_is_that_of_a_rank_or_stage(layout: Layout) -> None:
    """An estimate's engines are set to 8,192 tokens: asking for that changes nothing, half of it halves the budget."""
    candidate = estimate(MIXTURE, "h200_sxm", layout, "bf16", LENGTHS, engine="trtllm")
    assert after(ChunkedPrefill(8192), candidate).candidate == candidate
    halved = after(ChunkedPrefill(4096), candidate)
    assert halved.candidate.replica.batching.token_budget == candidate.replica.batching.token_budget / 2
    assert f"in each of {layout.lanes} ranks and stages" in halved.assumptions[0]


def test_reuse_changes_the_workload_only(bf16: Candidate) -> None:
    changed = after(KvReuse(1000, 0.8), bf16)
    assert changed.candidate.replica == bf16.replica
    assert (changed.question.workload.prefix.tokens, changed.question.workload.prefix.hit_rate) == (1000, 0.8)
    assert changed.question.workload.lengths == LENGTHS
    for none in (KvReuse(1000, 0.0), KvReuse(0)):
        assert none.apply(changed).question == QUESTION, "without what was found, it is the question before"


def test_smaller_chunks_stall_decodes_less(bf16: Candidate) -> None:
    """p95 ITL of the same load falls with the chunk, where one more chunk costs nothing beside its tokens; whole
    prompts need a budget of one prompt beside the decode of every sequence."""
    law = bf16.replica.law.with_values(prefill_s=0.0)
    free = dataclasses.replace(bf16, replica=dataclasses.replace(bf16.replica, law=law))
    replicas = [after(ChunkedPrefill(chunk), free).candidate.replica for chunk in (512, 4096)]
    small, large = (predict(replica, Workload(LENGTHS, 2)).itl.p95_s for replica in replicas)
    assert small < large
    long = dataclasses.replace(QUESTION, workload=Workload(Lengths(20_000, 100), 1))
    whole = ChunkedPrefill(0).apply(Setup(bf16, long)).candidate.replica.batching
    assert (whole.policy, whole.token_budget) == ("whole_prompt", 20_000 + whole.max_batch_size)


def test_a_batch_limit_never_adds_capacity(bf16: Candidate) -> None:
    """Fewer at once: no fewer GPUs; one at a time serves at most one request per its service time."""
    fleets = [what_if(QUESTION, bf16, [BatchLimit(size)], BY_FORMULA).after for size in (4, 16, 256)]
    capacities = [fleet.capacity_per_s if isinstance(fleet, Fleet) else 0.0 for fleet in fleets]
    assert capacities == sorted(capacities)
    law = bf16.replica.law
    one = what_if(QUESTION, bf16, [BatchLimit(1)], BY_FORMULA).after
    service_s = law.prefill_alone_s(2000) + 255 * law.decode_s(1, 2000)
    assert isinstance(one, Rejection) or one.capacity_per_s < 1 / service_s
