"""What-ifs about two pools, one for prompts and one for decoding."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.analyses.pools import (
    Pair,
    Pool,
    Pools,
    decode_only,
    decode_question,
    disaggregate,
    enlarged,
    pools_of,
    prefill_question,
    reduced,
    run_together,
)
from sizing.analyses.whatif import KvReuse, Setup, what_if
from sizing.edge import BY_FORMULA
from sizing.errors import ScenarioError
from sizing.estimate import estimate
from sizing.plans import Candidate, Fleet, Rejection
from sizing.question import Question
from sizing.simulator import simulate_disaggregated
from sizing.text import pools_lines
from sizing.workload import Lengths, Limit, Sla, Workload
from tests.sizing.whatif_cases import LENGTHS, QUESTION, QWEN, SLA, after

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


def test_prompts_are_computed_faster_where_an_e2e_limit_leaves_little_for_tokens(
    bf16: Candidate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What prompts may take by the limit on TTFT is missing for tokens: a larger prefill pool pays for itself,
    and both limits hold in the simulation of both pools."""
    alone_s = decode_only(bf16.replica, QUESTION).law.decode_s(1, 1) * LENGTHS.osl + bf16.replica.law.prefill_alone_s(
        2000
    )
    question = dataclasses.replace(QUESTION, sla=Sla(SLA.ttft, Limit("e2e", 95, 1.2 * alone_s)))
    pools = disaggregate(Setup(bf16, question))
    monkeypatch.setattr("sizing.analyses.pools.TIGHTER", 1)
    by_ttft = disaggregate(Setup(bf16, question))
    assert isinstance(pools, Pools)
    assert isinstance(by_ttft, Rejection) or pools.gpus < by_ttft.gpus
    assert pools.predicted is not None
    assert pools.predicted.meets(question.sla)


def test_the_band_of_pools_is_worded_as_that_of_a_fleet(bf16: Candidate) -> None:
    """One number where both ends are one, and open where the slow end has none."""
    fleet = what_if(QUESTION, bf16, [], BY_FORMULA).before
    assert isinstance(fleet, Fleet)
    narrow = dataclasses.replace(fleet, working=2, spare=0, working_low=2, working_high=2)
    for end, said in ((narrow, "band 8)"), (dataclasses.replace(narrow, working_high=None), "band 8 or more)")):
        first, *_ = pools_lines(Pools(end, narrow, 0.0, ()), QUESTION, "9 GPUs")
        assert said in first


def test_pools_pay_off_where_itl_is_tight(bf16: Candidate) -> None:
    """A tighter ITL needs more for tokens and no more for prompts; at the tight end two pools beat one."""
    gpus = []
    for limit in ("p95:40ms", "p95:15ms"):
        question = dataclasses.replace(QUESTION, sla=Sla(SLA.ttft, Limit.parse("itl", limit)))
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
        QUESTION, workload=Workload(Lengths(2000, 1), QUESTION.workload.rate_per_s), sla=Sla(SLA.ttft)
    )
    alone = what_if(one_token, bf16, [], BY_FORMULA).after
    assert isinstance(alone, Fleet)
    assert pools.prefill.gpus == alone.gpus
    assert pools.gpus == pools.prefill.gpus + pools.decode.gpus
    assert pools.transfer_s == pytest.approx(2000 * 64 * 8 * 128 * 2 * 2 / 2 / 25e9)


def test_pools_hold_the_sla_together(bf16: Candidate) -> None:
    """Run together at the planned load over (1 - headroom), seed and length of the product's own run changed."""
    varied = dataclasses.replace(
        QUESTION,
        workload=Workload(Lengths(2000, 256, 0.5, 0.8), 40),
        sla=Sla(SLA.ttft, Limit.parse("itl", "p95:20ms")),
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
    prefill, decode = Pool(of_prefill, pools.prefill, bf16.replica), Pool(of_decode, pools.decode, bf16.replica)
    small = prefill.of(pools.prefill.working - 1)
    joint = enlarged(QUESTION, Pair(small, decode, pools.transfer_s))
    assert isinstance(joint, Pair)
    grown = joint.prefill.fleet
    assert grown.working > small.fleet.working
    assert grown.working * grown.load_per_s == pytest.approx(QUESTION.workload.rate_per_s)
    assert grown.requests_per_s_per_replica == pytest.approx(grown.load_per_s)
    assert run_together(QUESTION, joint, QUESTION.workload.rate_per_s).meets(QUESTION.sla)


def test_pools_that_the_formula_sized_too_large_shrink(bf16: Candidate) -> None:
    """From three replicas too many in each pool: none of what is left can go."""
    pools = disaggregate(Setup(bf16, QUESTION))
    assert isinstance(pools, Pools)
    of_prefill, of_decode = prefill_question(QUESTION), decode_question(QUESTION, 0.5, pools.transfer_s)
    prefill, decode = Pool(of_prefill, pools.prefill, bf16.replica), Pool(of_decode, pools.decode, bf16.replica)
    counts = prefill.fleet.working, decode.fleet.working
    large = Pair(prefill.of(counts[0] + 3), decode.of(counts[1] + 3), pools.transfer_s)
    small = reduced(QUESTION, large)
    assert small.gpus <= pools.gpus
    planned_for = QUESTION.workload.rate_per_s / (1 - QUESTION.headroom)
    assert run_together(QUESTION, small, planned_for).meets(QUESTION.sla)
    for name, pool in (("prefill", small.prefill), ("decode", small.decode)):
        if pool.fleet.working > 1:
            fewer = dataclasses.replace(small, **{name: pool.of(pool.fleet.working - 1)})
            assert not run_together(QUESTION, fewer, planned_for).meets(QUESTION.sla)


def test_pools_that_no_growth_helps_are_a_rejection(bf16: Candidate) -> None:
    """An ITL that even an idle decode replica misses: the search ends, with the limit named."""
    pools = disaggregate(Setup(bf16, QUESTION), BY_FORMULA)
    assert isinstance(pools, Pools)
    hopeless = dataclasses.replace(QUESTION, sla=Sla(SLA.ttft, Limit.parse("itl", "p95:1ms")))
    prefill, decode = (Pool(QUESTION, fleet, bf16.replica) for fleet in (pools.prefill, pools.decode))
    lost = enlarged(hopeless, Pair(prefill, decode, pools.transfer_s))
    assert isinstance(lost, Rejection)
    assert "p95 ITL" in lost.why


@pytest.mark.parametrize(("model", "limit_s"), [("Qwen/Qwen3-8B", 1.3), (QWEN, 2.5)])
def test_prompts_that_make_answers_late_get_more_replicas_or_another_layout(model: str, limit_s: float) -> None:
    """Prompts that vary miss a limit on p99 E2E whose TTFT is fine: no decode replica makes up for that."""
    lengths = Lengths(8000, 20, 0.5)
    sla = Sla(Limit.parse("ttft", "p50:1.67s"), Limit("e2e", 99, limit_s))
    candidates = [estimate(model, "h200_sxm", tp, "bf16", lengths) for tp in (1, 4)]
    pools = pools_of(Question(model, Workload(lengths, 2.0), sla), candidates)
    assert isinstance(pools, Pools)
    assert pools.predicted is not None
    assert pools.predicted.meets(sla)


@pytest.mark.parametrize(
    ("sla", "text"),
    [
        (Sla(SLA.itl), "TTFT limit"),
        (Sla(SLA.ttft), "limit on ITL or E2E"),
    ],
)
def test_pools_need_a_limit_each(sla: Sla, text: str, bf16: Candidate) -> None:
    with pytest.raises(ScenarioError, match=text):
        disaggregate(Setup(bf16, dataclasses.replace(QUESTION, sla=sla)))


def test_prompts_that_are_too_slow_on_one_gpu_leave_the_others_their_pools(bf16: Candidate) -> None:
    slow = dataclasses.replace(
        bf16, gpu="l40s", replica=dataclasses.replace(bf16.replica, law=bf16.replica.law.scaled(20))
    )
    question = dataclasses.replace(QUESTION, sla=Sla(Limit.parse("ttft", "p95:20s"), Limit.parse("e2e", "p95:8s")))
    alone = pools_of(question, [slow])
    assert isinstance(alone, Rejection)
    assert "alone exceed" in alone.why
    assert isinstance(pools_of(question, [slow, bf16]), Pools)


def test_a_cache_that_never_holds_the_longest_request_leaves_the_pools_to_the_other_layouts(bf16: Candidate) -> None:
    small = dataclasses.replace(bf16.replica.batching, kv_tokens=12_000)
    little = dataclasses.replace(bf16, replica=dataclasses.replace(bf16.replica, batching=small))
    question = dataclasses.replace(QUESTION, workload=Workload(Lengths(2000, 256, 0.5), 3.0))
    alone = pools_of(question, [little])
    assert isinstance(alone, Rejection)
    assert alone.kind == "memory"
    assert isinstance(pools_of(question, [little, estimate(QWEN, "h200_sxm", 4, "bf16", LENGTHS)]), Pools)
