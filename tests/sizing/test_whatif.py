"""What-ifs: each change moves times, memory and fleets the way it must, and nothing where it asks for what is there."""

from __future__ import annotations

import dataclasses
import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sizing.capacity import BY_FORMULA, BY_SIMULATION
from sizing.errors import DoesNotFit, NoFeasiblePlan, ScenarioError
from sizing.estimate import estimate
from sizing.plan import Candidate, Fleet, Question, Rejection
from sizing.queueing import predict
from sizing.replica import Batching, Replica
from sizing.simulator import simulate_disaggregated
from sizing.steptime import StepLaw
from sizing.whatif import (
    AtPrecision,
    AtTp,
    BatchLimit,
    ChunkedPrefill,
    KvReuse,
    Lora,
    Medusa,
    Pools,
    ReDrafter,
    Setup,
    Sparse,
    Speculative,
    WhatIf,
    disaggregate,
    parse_change,
    what_if,
)
from sizing.whatif.command import whatif_command
from sizing.whatif.joint_pools import Joint, Pool, enlarged
from sizing.whatif.parse import KINDS
from sizing.whatif.pools import decode_only, decode_question, prefill_question
from sizing.whatif.setup import Sheet, read_weights, reading_s, sheet_of
from sizing.whatif.transfer import Ratios, timed_ratios
from sizing.whatif.weights import by_data_sheet
from sizing.workload import Lengths, Limit, Sla, Workload

QWEN = "Qwen/Qwen3-32B"
LENGTHS = Lengths(2000, 256)
SLA = Sla(ttft=Limit.parse("ttft", "p95:2s"), itl=Limit.parse("itl", "p95:60ms"))
QUESTION = Question(QWEN, Workload(LENGTHS, 20), SLA)


@pytest.fixture(scope="module")
def bf16() -> Candidate:
    return estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)


def after(change: WhatIf, candidate: Candidate) -> Setup:
    return change.apply(Setup(candidate, QUESTION))


# Limit cases: no change, same answer.


def same(candidate: Candidate) -> list[WhatIf]:
    batching = candidate.replica.batching
    return [
        AtPrecision("bf16"),
        AtTp(2),
        Sparse(1),
        Speculative(0),
        Medusa(0),
        ReDrafter(0),
        Lora(8, 0),
        Lora(0, 64),
        KvReuse(1000, 0),
        KvReuse(0, 1),
        ChunkedPrefill(batching.token_budget),
        BatchLimit(batching.max_batch_size),
    ]


def test_no_change_gives_the_same_answer(bf16: Candidate) -> None:
    """The same candidate with the same basis and band, and hence the same fleet, object for object."""
    found = what_if(QUESTION, bf16, same(bf16), BY_FORMULA)
    assert found.setup.candidate == bf16
    assert found.setup.question == QUESTION
    assert found.after is found.before
    assert all("nothing changes" in line for line in found.assumptions)
    assert len(found.assumptions) == len(same(bf16))


# What every change does.


CHANGES = [
    AtPrecision("fp8"),
    AtTp(4),
    Sparse(1.3),
    Speculative(4, 0.7),
    Medusa(4, 0.6),
    ReDrafter(4, 0.7),
    Lora(8, 16),
    KvReuse(1000, 0.8),
    ChunkedPrefill(2048),
    ChunkedPrefill(0),
    BatchLimit(32),
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_every_change_says_so(change: WhatIf, bf16: Candidate) -> None:
    """Basis, a wider band, no laws of the fit before it, and at least one assumption; every kind is tried here."""
    fitted = dataclasses.replace(bf16, basis="fitted", variants=((bf16.replica, bf16.replica),))
    changed = after(change, fitted)
    assert changed.candidate.basis == "what-if"
    assert changed.candidate.relative_sigma > bf16.relative_sigma
    assert changed.candidate.variants == ()
    assert len(changed.assumptions) >= 2
    assert "band is widened" in changed.assumptions[-1]
    assert {type(change) for change in CHANGES} == set(KINDS.values())


def test_changes_add_up(bf16: Candidate) -> None:
    """Two changes: both sets of assumptions, and errors that add in quadrature."""
    one, two = after(BatchLimit(32), bf16), after(Lora(2, 8), bf16)
    both = Lora(2, 8).apply(one)
    assert both.assumptions == one.assumptions + two.assumptions
    base = bf16.relative_sigma**2
    added = one.candidate.relative_sigma**2 + two.candidate.relative_sigma**2 - 2 * base
    assert both.candidate.relative_sigma**2 == pytest.approx(base + added)


# Through fleets: GPUs and what a replica carries.


def fleets(question: Question, candidate: Candidate, *changes: WhatIf) -> tuple[Fleet, Fleet]:
    """Before and after, by formula."""
    found = what_if(question, candidate, changes, BY_FORMULA)
    assert isinstance(found.before, Fleet)
    assert isinstance(found.after, Fleet)
    return found.before, found.after


MEMORY_BOUND = dataclasses.replace(QUESTION, workload=Workload(Lengths(300, 600), 30), sla=Sla(itl=SLA.itl))


def test_drafts_that_are_never_right_are_no_better(bf16: Candidate) -> None:
    """Acceptance 0: a token a step, at the draft's cost; with a free draft still the arithmetic of the checks."""
    for draft_size in (0.05, 0.0):
        before, after = fleets(MEMORY_BOUND, bf16, Speculative(4, 0.0, draft_size))
        assert after.capacity_per_s < before.capacity_per_s
        assert after.gpus >= before.gpus


def test_good_small_drafts_pay_where_reading_the_weights_binds(bf16: Candidate) -> None:
    """Few sequences at a tight ITL: with acceptance .9 a step of hardly more time yields 4.1 tokens."""
    tight = dataclasses.replace(MEMORY_BOUND, sla=Sla(itl=Limit.parse("itl", "p95:12ms")))
    before, after = fleets(tight, bf16, Speculative(4, 0.9, 0.01))
    assert after.gpus < before.gpus
    assert after.capacity_per_s > before.capacity_per_s


def test_prompts_found_in_the_cache_need_fewer_gpus(bf16: Candidate) -> None:
    """The more hits the fewer GPUs; the changed workload reaches the simulation too."""
    tight = dataclasses.replace(QUESTION, sla=Sla(itl=Limit.parse("itl", "p95:15ms")))
    found = [fleets(tight, bf16, KvReuse(1500, hits))[1] for hits in (0.0, 0.5, 0.9)]
    gpus = [fleet.gpus for fleet in found]
    assert gpus[2] <= gpus[1] < gpus[0]
    assert found[2].capacity_per_s > found[1].capacity_per_s > found[0].capacity_per_s
    simulated = what_if(tight, bf16, [KvReuse(1500, 0.9)], BY_SIMULATION)
    assert isinstance(simulated.after, Fleet)
    assert isinstance(simulated.before, Fleet)
    assert simulated.after.verified
    assert simulated.after.gpus < simulated.before.gpus
    assert simulated.after.gpus == pytest.approx(gpus[2], abs=2)


def test_adapters_never_need_fewer_gpus_and_sparsity_never_more(bf16: Candidate) -> None:
    before, adapted = fleets(QUESTION, bf16, Lora(8, 16))
    assert adapted.capacity_per_s < before.capacity_per_s
    before, sparse = fleets(QUESTION, bf16, Sparse(1.3))
    assert sparse.capacity_per_s > before.capacity_per_s


def test_whole_prompts_carry_less_at_a_tight_itl(bf16: Candidate) -> None:
    """With prompts of 8,000 tokens one whole prompt stalls decodes for longer than chunks of 1,024 do."""
    long = dataclasses.replace(
        QUESTION, workload=Workload(Lengths(8000, 64), 5), sla=Sla(itl=Limit.parse("itl", "p95:80ms"))
    )
    chunked = fleets(long, bf16, ChunkedPrefill(1024))[1]
    whole = fleets(long, bf16, ChunkedPrefill(0))[1]
    assert whole.capacity_per_s < chunked.capacity_per_s


# Precision and TP.


def test_fp8_is_faster_holds_more_and_needs_fewer_gpus(bf16: Candidate) -> None:
    found = what_if(QUESTION, bf16, [AtPrecision("fp8")], BY_FORMULA)
    law, was = found.setup.candidate.replica.law, bf16.replica.law
    assert law.decode_s(32, 64_000) < was.decode_s(32, 64_000)
    assert law.prefill_alone_s(2000) < was.prefill_alone_s(2000)
    assert found.setup.candidate.replica.batching.kv_tokens > 2 * bf16.replica.batching.kv_tokens
    assert isinstance(found.before, Fleet)
    assert isinstance(found.after, Fleet)
    assert found.after.gpus < found.before.gpus
    assert found.after.basis == "what-if"


@pytest.mark.parametrize(("change", "tp", "precision"), [(AtPrecision("fp8"), 2, "fp8"), (AtTp(4), 4, "bf16")])
def test_timed_changes_land_near_the_law_timed_there(change: WhatIf, tp: int, precision: str, bf16: Candidate) -> None:
    """From the day-zero law of one way to run the model to that of another: within 10 % at the question's lengths."""
    there = estimate(QWEN, "h200_sxm", tp, precision, LENGTHS).replica
    here = after(change, bf16).candidate.replica
    for batch in (1, 16, 64):
        kv_tokens = batch * 2128
        assert here.law.decode_s(batch, kv_tokens) == pytest.approx(there.law.decode_s(batch, kv_tokens), rel=0.1)
    assert here.law.prefill_alone_s(2000) == pytest.approx(there.law.prefill_alone_s(2000), rel=0.1)
    assert here.batching.kv_tokens == pytest.approx(there.batching.kv_tokens, rel=0.1)


def test_there_and_back_is_where_we_were(bf16: Candidate) -> None:
    """fp8 and then bf16 again: the same law, and the same cache but for the tenth of freed memory the engine keeps."""
    back = AtPrecision("bf16").apply(after(AtPrecision("fp8"), bf16)).candidate.replica
    assert back.law.seconds == pytest.approx(bf16.replica.law.seconds)
    assert back.batching.kv_tokens == pytest.approx(bf16.replica.batching.kv_tokens, rel=1e-5)


def test_data_sheet_ratios_where_nothing_was_timed(bf16: Candidate) -> None:
    """int4 was not timed on the H200: a quarter of the bytes, the same arithmetic, and the line says so."""
    sheet = sheet_of(bf16)
    int4 = dataclasses.replace(sheet, precision="int4")
    assert timed_ratios(sheet, int4, LENGTHS) is None
    law = by_data_sheet(bf16.replica.law, sheet, int4)
    assert law.decode_s(1, 0) < bf16.replica.law.decode_s(1, 0)
    assert law.token_s == bf16.replica.law.token_s
    changed = after(AtPrecision("int4"), bf16)
    assert "no kernel timings of both" in changed.assumptions[1]
    assert changed.candidate.relative_sigma > after(AtPrecision("fp8"), bf16).candidate.relative_sigma


def test_data_sheets_and_timings_agree_on_the_direction(bf16: Candidate) -> None:
    """TP4 by data sheet: decode between the timed law and half off, never slower than TP2."""
    sheet = sheet_of(bf16)
    four = by_data_sheet(bf16.replica.law, sheet, dataclasses.replace(sheet, tp=4))
    timed = timed_ratios(sheet, dataclasses.replace(sheet, tp=4), LENGTHS)
    assert timed is not None
    ratio = four.decode_s(8, 16_000) / bf16.replica.law.decode_s(8, 16_000)
    assert timed.decode == pytest.approx(ratio, rel=0.3)
    assert 0.5 < ratio < 1


@given(st.floats(0.3, 3), st.floats(0.3, 3))
def test_ratios_scale_what_they_speak_of(decode: float, prefill: float) -> None:
    law = StepLaw(5e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    scaled = Ratios(decode, prefill).of(law)
    memory_bound = dataclasses.replace(law, token_s=0.0)
    assert dataclasses.replace(scaled, token_s=0.0).decode_s(16, 9e4) == pytest.approx(
        decode * memory_bound.decode_s(16, 9e4)
    )
    assert Ratios(1.0, 1.0).of(law) == law


def test_weights_that_no_longer_fit_are_a_rejection() -> None:
    """From TP2 to TP1, the bf16 weights of 32.8 billion parameters exceed the 48 GB of an L40S by 17 GB and more."""
    candidate = estimate(QWEN, "l40s", 2, "bf16", LENGTHS)
    with pytest.raises(DoesNotFit, match="GB more per GPU"):
        after(AtTp(1), candidate)
    found = what_if(QUESTION, candidate, [BatchLimit(64), AtTp(1)], BY_FORMULA)
    assert isinstance(found.after, Rejection)
    assert found.after.kind == "memory"


def test_an_unknown_cache_stays_unknown(bf16: Candidate) -> None:
    """A fit that found no limit of the cache has none after the change either."""
    unlimited = Replica(bf16.replica.law, Batching())
    candidate = dataclasses.replace(bf16, replica=unlimited)
    assert after(AtPrecision("fp8"), candidate).candidate.replica.batching.kv_tokens == Batching().kv_tokens


# Reading the weights.


@given(share=st.floats(0.25, 2), weights_s=st.floats(0, 20e-3), overhead_s=st.floats(0, 20e-3))
def test_less_to_read_takes_less_time_in_proportion(share: float, weights_s: float, overhead_s: float) -> None:
    """The floor changes by (share - 1) times the reading in it, which is at least the data sheet's if it can be."""
    sheet = sheet_of(estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS))
    law = StepLaw(weights_s, overhead_s, 0.0, 0.0, 0.0)
    reading = reading_s(law, sheet)
    assert weights_s <= reading <= weights_s + overhead_s + 1e-12
    assert reading >= min(sheet.reading_s, weights_s + overhead_s) - 1e-12
    changed = read_weights(law, share, sheet)
    assert changed.decode_s(1, 0) - law.decode_s(1, 0) == pytest.approx((share - 1) * reading, abs=1e-12)


def test_the_sheet_counts_bytes() -> None:
    """32.8 billion parameters in bf16 over two GPUs, at 4.8 TB/s; 64 layers x 8 KV heads x 128 x 2 values x 2 bytes."""
    sheet = sheet_of(estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS))
    assert sheet.weight_bytes == pytest.approx(32.8e9, rel=0.01)
    assert sheet.reading_s == pytest.approx(32.8e9 / 4.8e12, rel=0.01)
    assert sheet.token_bytes == 64 * 8 * 128 * 2 * 2 / 2
    assert dataclasses.replace(sheet, precision="fp8", tp=16).token_bytes == 64 * 128 * 2


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
    """Per sequence: rank x 64 layers x 2 bytes x the in- and outputs of four matrices over two GPUs, at 4.8 TB/s."""
    candidate = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
    replica, was = after(Lora(adapters, rank), candidate).candidate.replica, candidate.replica
    sides = 2 * (64 * 128 + 64 * 128) + 2 * (64 * 128 + 8 * 128)
    one_bytes = rank * 64 * 2 * sides / 2
    assert replica.law.sequence_s - was.law.sequence_s == pytest.approx(one_bytes / 4.8e12, rel=1e-6)
    lost = (was.batching.kv_tokens - replica.batching.kv_tokens) * sheet_of(candidate).token_bytes
    assert lost == pytest.approx(0.9 * adapters * one_bytes, abs=2 * sheet_of(candidate).token_bytes)


def test_reuse_changes_the_workload_only(bf16: Candidate) -> None:
    changed = after(KvReuse(1000, 0.8), bf16)
    assert changed.candidate.replica == bf16.replica
    assert (changed.question.workload.prefix.tokens, changed.question.workload.prefix.hit_rate) == (1000, 0.8)
    assert changed.question.workload.lengths == LENGTHS


def test_smaller_chunks_stall_decodes_less(bf16: Candidate) -> None:
    """p95 ITL of the same load falls with the chunk; whole prompts need a budget of at least one prompt."""
    replicas = [after(ChunkedPrefill(chunk), bf16).candidate.replica for chunk in (512, 4096)]
    small, large = (predict(replica, Workload(LENGTHS, 2)).itl.p95_s for replica in replicas)
    assert small < large
    long = dataclasses.replace(QUESTION, workload=Workload(Lengths(20_000, 100), 1))
    whole = ChunkedPrefill(0).apply(Setup(bf16, long)).candidate.replica.batching
    assert (whole.policy, whole.token_budget) == ("whole_prompt", 20_000)


def test_a_batch_limit_never_adds_capacity(bf16: Candidate) -> None:
    """Fewer at once: no fewer GPUs; one at a time serves at most one request per its service time."""
    fleets = [what_if(QUESTION, bf16, [BatchLimit(size)], BY_FORMULA).after for size in (4, 16, 256)]
    capacities = [fleet.capacity_per_s if isinstance(fleet, Fleet) else 0.0 for fleet in fleets]
    assert capacities == sorted(capacities)
    law = bf16.replica.law
    one = what_if(QUESTION, bf16, [BatchLimit(1)], BY_FORMULA).after
    service_s = law.prefill_alone_s(2000) + 255 * law.decode_s(1, 2000)
    assert isinstance(one, Rejection) or one.capacity_per_s < 1 / service_s


# Two pools.


@given(st.integers(1, 200), st.integers(0, 1000))
def test_a_decode_pool_pays_for_the_prompt_in_every_step(batch: int, generated: int) -> None:
    """Told as prompts of one token, sequences cost what they do with their whole context."""
    replica = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS).replica
    alike = decode_only(replica, QUESTION)
    whole, told = batch * (2000 + generated), batch * (1 + generated)
    assert alike.law.decode_s(batch, told) == pytest.approx(replica.law.decode_s(batch, whole), rel=1e-12)
    sequences = replica.batching.kv_tokens / 2256, alike.batching.kv_tokens / 257
    assert sequences[0] == pytest.approx(sequences[1], rel=1e-3)


def test_pools_pay_off_where_itl_is_tight(bf16: Candidate) -> None:
    """A tighter ITL needs more for tokens and no more for prompts; at the tight end two pools beat one."""
    gpus = []
    for limit in ("p95:40ms", "p95:15ms"):
        question = dataclasses.replace(QUESTION, sla=Sla(ttft=SLA.ttft, itl=Limit.parse("itl", limit)))
        pools = disaggregate(Setup(bf16, question), BY_FORMULA)
        assert isinstance(pools, Pools)
        assert pools.verified_by == "analytic"
        together = what_if(question, bf16, [], BY_FORMULA).after
        gpus.append((pools.prefill.gpus, pools.decode.gpus, together.gpus if isinstance(together, Fleet) else 10**6))
    loose, tight = gpus
    assert tight[0] == loose[0]
    assert tight[1] > loose[1]
    assert sum(tight[:2]) < tight[2]


def test_prompts_found_in_the_cache_matter_to_the_prefill_pool_only(bf16: Candidate) -> None:
    """Its question keeps the prefix, the decode pool's has none: there every prompt arrives computed."""
    reusing = after(KvReuse(1000, 0.8), bf16).question
    assert prefill_question(reusing).workload.prefix == reusing.workload.prefix
    assert decode_question(reusing, 0.1, 0.001).workload.prefix.tokens == 0


def test_the_prefill_pool_is_the_fleet_of_one_token_requests(bf16: Candidate) -> None:
    pools = disaggregate(Setup(bf16, QUESTION), BY_FORMULA)
    assert isinstance(pools, Pools)
    one_token = dataclasses.replace(
        QUESTION, workload=Workload(Lengths(2000, 1), QUESTION.workload.rate_per_s), sla=Sla(ttft=SLA.ttft)
    )
    alone = what_if(one_token, bf16, [], BY_FORMULA).after
    assert isinstance(alone, Fleet)
    assert pools.prefill.gpus == alone.gpus
    assert pools.gpus == pools.prefill.gpus + pools.decode.gpus
    assert pools.transfer_s == pytest.approx(2000 * 64 * 8 * 128 * 2 * 2 / 2 / 225e9)


def test_pools_hold_the_sla_together(bf16: Candidate) -> None:
    """Run together at the planned load over (1 - headroom), seed and length of the product's own run changed."""
    varied = dataclasses.replace(
        QUESTION,
        workload=Workload(Lengths(2000, 256, 0.5, 0.8), 40),
        sla=Sla(ttft=SLA.ttft, itl=Limit.parse("itl", "p95:20ms")),
    )
    pools = disaggregate(Setup(bf16, varied))
    assert isinstance(pools, Pools)
    assert pools.verified_by == "simulation"
    assert pools.predicted is not None
    assert pools.predicted.meets(varied.sla)
    again = simulate_disaggregated(
        bf16.replica,
        bf16.replica,
        dataclasses.replace(varied.workload, rate_per_s=40 / 0.8),
        prefill_replicas=pools.prefill.working,
        decode_replicas=pools.decode.working,
        transfer_token_s=pools.transfer_s / 2000,
        requests=60_000,
        seed=7,
    )
    for limit in varied.sla.limits:
        assert again.prediction().value_s(limit) < 1.05 * limit.limit_s


def test_pools_that_the_formula_sized_too_small_grow(bf16: Candidate) -> None:
    """From one replica each: the pool whose limit fails grows, until the SLA holds; the fleets' arithmetic follows."""
    pools = disaggregate(Setup(bf16, QUESTION), BY_FORMULA)
    assert isinstance(pools, Pools)
    of_prefill = prefill_question(QUESTION)
    of_decode = decode_question(QUESTION, 0.5, pools.transfer_s)
    prefill, decode = Pool(of_prefill, pools.prefill), Pool(of_decode, pools.decode)
    small = prefill.of(pools.prefill.working - 1)
    joint = enlarged(QUESTION, bf16.replica, small, decode, pools.transfer_s)
    assert isinstance(joint, Joint)
    grown = joint.prefill.fleet
    assert grown.working > small.fleet.working
    assert grown.working * grown.load_per_s == pytest.approx(QUESTION.workload.rate_per_s)
    assert grown.requests_per_s_per_replica == pytest.approx(grown.load_per_s)
    assert joint.predicted.meets(QUESTION.sla)


def test_pools_that_no_growth_helps_are_a_rejection(bf16: Candidate) -> None:
    """An ITL that even an idle decode replica misses: the search ends, with the limit named."""
    pools = disaggregate(Setup(bf16, QUESTION), BY_FORMULA)
    assert isinstance(pools, Pools)
    hopeless = dataclasses.replace(QUESTION, sla=Sla(ttft=SLA.ttft, itl=Limit.parse("itl", "p95:1ms")))
    prefill, decode = (Pool(QUESTION, fleet) for fleet in (pools.prefill, pools.decode))
    lost = enlarged(hopeless, bf16.replica, prefill, decode, pools.transfer_s)
    assert isinstance(lost, Rejection)
    assert "p95 ITL" in lost.why


@pytest.mark.parametrize(
    ("sla", "text"),
    [
        (Sla(itl=SLA.itl), "TTFT limit"),
        (Sla(ttft=SLA.ttft), "limit on ITL or E2E"),
        (Sla(ttft=SLA.ttft, e2e=Limit.parse("e2e", "p95:1ms")), "alone exceed"),
    ],
)
def test_pools_need_a_limit_each(sla: Sla, text: str, bf16: Candidate) -> None:
    with pytest.raises(ScenarioError, match=text):
        disaggregate(Setup(bf16, dataclasses.replace(QUESTION, sla=sla)))


# Faults.


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (AtPrecision("int3"), "bf16, fp8"),
        (AtTp(3), "64 attention heads"),
        (AtTp(0), "64 attention heads"),
        (Sparse(2.5), "from 1 to 2"),
        (Speculative(4, 1.2), "acceptance"),
        (Speculative(4, 0.5, 1.0), "draft_size"),
        (Speculative(-1, 0.5), "draft_tokens"),
        (Medusa(4, 0.6, 2), "tree"),
        (Lora(-1, 8), "adapters and rank"),
        (KvReuse(2000, 1), "fewer than the prompt"),
        (KvReuse(100, 2), "hit_rate"),
        (ChunkedPrefill(-1), "chunk must be 0"),
        (BatchLimit(0), "max_batch_size"),
    ],
)
def test_impossible_changes_are_refused(change: WhatIf, text: str, bf16: Candidate) -> None:
    with pytest.raises(ScenarioError, match=text) as caught:
        after(change, bf16)
    assert "\n" not in str(caught.value)


def test_models_outside_the_catalogue_have_no_sizes(bf16: Candidate) -> None:
    own = dataclasses.replace(bf16, model="our/own")
    with pytest.raises(ScenarioError, match="sizes from the catalogue"):
        after(Sparse(), own)
    assert after(BatchLimit(8), own).candidate.replica.batching.max_batch_size == 8


# The command line.


@pytest.mark.parametrize(
    ("text", "change"),
    [
        ("precision=fp8", AtPrecision("fp8")),
        ("precision:to=fp8", AtPrecision("fp8")),
        ("speculative:draft_tokens=4,acceptance=0.7", Speculative(4, 0.7)),
        ("medusa", Medusa()),
        (" lora:rank=8, adapters=3", Lora(3, 8)),
        ("chunked_prefill=off", ChunkedPrefill(0)),
        ("kv_reuse:tokens=500", KvReuse(500, 1.0)),
    ],
)
def test_changes_are_read(text: str, change: WhatIf) -> None:
    assert parse_change(text) == change


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("faster", "the changes are precision, tp, sparsity"),
        ("", "the changes are"),
        ("precision", "give to, for instance precision=fp8"),
        ("speculative:tokens=4", "there are draft_tokens, acceptance, draft_size"),
        ("tp=two", "to must be a whole number, got 'two'"),
        ("sparsity=fast", "speedup must be a number"),
    ],
)
def test_unreadable_changes_name_the_choices(text: str, why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        parse_change(text)


OPTIONS = f"--model {QWEN} --gpu h200_sxm --precision bf16 --tp 2 --isl 500 --osl 64 --rate 4 --itl p95:60ms".split()


def test_the_command_compares_and_prints_what_it_assumes() -> None:
    ran = CliRunner().invoke(whatif_command, ["--change", "precision=fp8", *OPTIONS, "--json"])
    assert ran.exit_code == 0, ran.output
    shown = json.loads(ran.output)
    assert shown["after"]["precision"] == "fp8"
    assert shown["after"]["basis"] == "what-if"
    assert shown["after"]["requests_per_s_per_gpu"] > shown["before"]["requests_per_s_per_gpu"]
    assert any("kernel timings" in line for line in shown["assumptions"])
    pools = ["--disaggregated", "--ttft", "p95:1s"]
    printed = CliRunner().invoke(whatif_command, ["--change", "batch_limit=64", *OPTIONS, *pools])
    assert printed.exit_code == 0, printed.output
    assert "for 4 requests/s of Qwen/Qwen3-32B" in printed.output
    assert "Prompts: 4 GPUs" in printed.output
    assert "Verified by simulation" in printed.output
    assert "This assumes:" in printed.output
    assert "at most 64 sequences at once" in printed.output


def test_the_command_reports_a_change_that_breaks_the_sla() -> None:
    tight = [*OPTIONS[:-1], "p95:7ms"]
    ran = CliRunner().invoke(whatif_command, ["--change", "lora:adapters=4,rank=64", *tight])
    assert isinstance(ran.exception, NoFeasiblePlan), ran.output


def test_the_command_wants_a_change() -> None:
    ran = CliRunner().invoke(whatif_command, OPTIONS)
    assert isinstance(ran.exception, ScenarioError)
    assert "precision, tp, sparsity" in str(ran.exception)


def test_sheet_is_of_one_gpu() -> None:
    sheet = sheet_of(estimate(QWEN, "h200_sxm", 4, "bf16", LENGTHS))
    assert isinstance(sheet, Sheet)
    assert sheet.weight_bytes * 4 == pytest.approx(65.5e9, rel=0.01)
