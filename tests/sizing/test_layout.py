"""Layouts: what a word means, what lanes make of a law, which ways to split a model can be asked for."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from sizing.analyses.pools import Pools, pools_of
from sizing.candidates import Choice, find
from sizing.catalog import Layout, gpu, layouts, model, models, of_layout, routed_share
from sizing.cli.plan import plan_command
from sizing.edge import BY_FORMULA
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import DoesNotFit, EstimateUnavailable, ScenarioError
from sizing.estimate import estimate, kernels
from sizing.question import Question
from sizing.queueing import stable_rate_per_s
from sizing.workload import Lengths, Limit, Sla, Workload

R1, QWEN = "deepseek-ai/DeepSeek-R1", "Qwen/Qwen3-32B"
LENGTHS = Lengths(4000, 1000)
LAW = StepLaw(8e-3, 2e-3, 20e-6, 10e-6, 30e-9, attention_s=2e-9, prefill_s=1e-3)
LANE = Replica(LAW, Batching(max_batch_size=64, token_budget=8192, kv_tokens=400_000))
WAYS = st.sampled_from([1, 2, 4, 8])
SHAPES = st.builds(
    lambda tp, pp, dp, whole: Layout(tp, pp, dp, tp * dp if whole else 1), WAYS, WAYS, WAYS, st.booleans()
)
BATCHES, CONTEXTS = st.integers(1, 64), st.integers(1, 10_000)


@given(SHAPES)
def test_a_layout_is_read_as_it_is_written(layout: Layout) -> None:
    assert Layout.parse(str(layout)) == Layout.parse(str(layout).lower().replace(" ", "")) == layout
    assert Layout(**layout.as_dict()) == layout


@pytest.mark.parametrize("word", ["", "8", "tp", "tp0", "tp3x", "tp8tp8", "ep8", "tp4ep8", "xp2", "tp-1", "tp9999"])
def test_other_words_are_refused(word: str) -> None:
    with pytest.raises(ScenarioError, match="layout"):
        Layout.parse(word)


@given(BATCHES, CONTEXTS, st.sampled_from([Layout(2, 4), Layout(dp=8), Layout(1, 2, 2)]))
def test_lanes_in_step_decode_as_one_lane_with_its_share(batch: int, context: int, layout: Layout) -> None:
    whole = of_layout(LANE, layout, model(QWEN), LENGTHS)
    lanes = layout.lanes
    alone_s = LAW.decode_s(batch, batch * context)
    assert whole.law.decode_s(lanes * batch, lanes * batch * context) == pytest.approx(alone_s)
    assert whole.law.decode_s(batch, batch * context) <= alone_s


@pytest.mark.parametrize(
    ("chip", "ranks", "precision", "weight_bytes"), [("a100_sxm", 8, "bf16", 2), ("l4", 32, "fp8", 1)]
)
def test_a_lone_request_reads_the_attention_of_its_rank(
    chip: str, ranks: int, precision: str, weight_bytes: int
) -> None:
    """Mixtral's 56 layers: query and output of 6,144 numbers, keys and values of 1,024; scaled law, and roofline."""
    least_s = 56 * 2 * 6144 * (6144 + 1024) * weight_bytes / gpu(chip).bandwidth_bytes_per_s
    found = estimate("mistralai/Mixtral-8x22B-v0.1", chip, Layout(dp=ranks, ep=ranks), precision, Lengths(1000, 200))
    assert found.replica.law.decode_s(1, 1000) > least_s


@given(st.integers(200, 8000), st.sampled_from([2, 4, 8]))
def test_a_prompt_passes_all_stages_and_delays_others_by_one(isl: int, stages: int) -> None:
    """Long enough to be bound by arithmetic: alone it takes as long as without stages, and holds up the pipeline for
    its share."""
    busy = Replica(LAW.with_values(weights_s=0.0), LANE.batching)
    whole = of_layout(busy, Layout(1, stages), model(QWEN), Lengths(isl, 100)).law
    assert whole.prefill_alone_s(isl) + whole.request_s == pytest.approx(busy.law.prefill_alone_s(isl), rel=1e-9)
    fixed_s = LAW.overhead_s + LAW.prefill_s
    assert whole.prefill_alone_s(isl) - fixed_s == pytest.approx((busy.law.prefill_alone_s(isl) - fixed_s) / stages)


@given(st.integers(500, 8000), st.sampled_from([2, 4, 8]))
def test_a_prompt_of_one_rank_takes_all_ranks_what_they_do_not_share(isl: int, ranks: int) -> None:
    """Never less than the layers every token passes take on one rank, never more than if every rank had a prompt."""
    busy = Replica(LAW.with_values(weights_s=0.0), LANE.batching)
    mixture = model(R1)
    whole = of_layout(busy, Layout(dp=ranks, ep=ranks), mixture, Lengths(isl, 100)).law
    everywhere_s = busy.law.prefill_alone_s(isl)
    own_s = (LAW.token_s * isl * (1 - routed_share(mixture)) + LAW.attention_s * isl**2 / 2) * (1 - 1e-9)
    assert own_s <= whole.prefill_alone_s(isl) <= everywhere_s * (1 + 1e-9)


@pytest.mark.parametrize("stages", [2, 4])
def test_stages_carry_as_much_as_so_many_engines(stages: int) -> None:
    """Each lane works as an engine of its own while the others do: where prompts are short, so many times its rate."""
    lengths = Lengths(100, 400)
    whole = of_layout(LANE, Layout(1, stages), model(QWEN), lengths)
    full = Replica(
        whole.law, Batching(max_batch_size=64 * stages, token_budget=8192 * stages, kv_tokens=400_000 * stages)
    )
    assert stable_rate_per_s(full, lengths) == pytest.approx(stages * stable_rate_per_s(LANE, lengths), rel=0.05)


@pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)
@pytest.mark.parametrize("stages", [2, 4])
def test_stages_take_as_long_together_as_all_layers_on_one(stages: int) -> None:
    """What the laws of stages follow from, against the kernel database's own account of a pipeline."""
    one, split = (kernels.open_engine(models()[QWEN], "h200_sxm", "vllm", Layout(2, pp), "bf16") for pp in (1, stages))
    for batch, context in ((1, 2048), (64, 2048), (256, 1024)):
        assert split.decode_s(batch, context) == pytest.approx(one.decode_s(batch, context), rel=0.01)
    assert split.prefill_s(1, 4096) == pytest.approx(one.prefill_s(1, 4096), rel=0.02)
    spread = estimate(QWEN, "h200_sxm", Layout(2, stages), "bf16", LENGTHS, engine="vllm")
    whole = kernels._breakdown(split, 8192)
    kept = spread.replica.batching.kv_tokens * whole["kv_size_per_token_bytes"] / stages
    free = whole["gpu_memory_capacity_bytes"] * 0.9 - whole["non_kv_bytes"]  # vLLM's gpu_memory_utilization
    assert kept == pytest.approx(free, rel=0.05)


ENUMERATED = [
    *[(tp, 1, 1, moe_tp, tp // moe_tp) for tp in (1, 2, 4, 8, 16) for moe_tp in (1, 2, 4, 8, 16) if tp % moe_tp == 0],
    *[(1, 1, dp, moe_tp, dp // moe_tp) for dp in (2, 4, 8, 16, 32) for moe_tp in (1, 2, 4, 8, 16) if dp % moe_tp == 0],
    *[(tp, 1, dp, 1, tp * dp) for tp in (2, 4, 8) for dp in (2, 4, 8)],
    *[(tp, pp, 1, tp, 1) for tp in (1, 2, 4, 8) for pp in (2, 4, 8)],
]
"""TP, PP, attention DP, experts by matrix and whole: what AIConfigurator enumerates for workers of a mixture."""


@pytest.mark.parametrize("ways", ENUMERATED)
def test_what_aiconfigurator_enumerates_can_be_asked_for(ways: tuple[int, ...]) -> None:
    """Each has an estimate, or too little memory: in the layout asked for, or with the experts split as was timed."""
    tp, pp, dp, moe_tp, ep = ways
    asked = Layout(tp, pp, dp, ep)
    assert asked.gpus == tp * pp * dp and asked.tp * asked.dp // asked.ep == moe_tp
    try:
        found = estimate(R1, "b200_sxm", asked, "fp8", LENGTHS)
    except DoesNotFit as error:
        assert str(asked.tp) in str(error) and error.missing_bytes > 0
    else:
        assert (found.layout.tp, found.layout.pp, found.layout.dp) == (tp, pp, dp) and found.gpus == asked.gpus


def test_large_models_are_spread_over_servers_and_small_ones_are_not() -> None:
    assert max(each.gpus for each in layouts(model(R1), gpu("h100_sxm"), "fp8_block")) == 32
    assert max(each.gpus for each in layouts(model(QWEN), gpu("h100_sxm"), "bf16")) == 8
    assert all(each.ep == each.dp == 1 for each in layouts(model(QWEN), gpu("l40s"), "bf16"))
    assert any(each.pp > 1 for each in layouts(model(QWEN), gpu("l40s"), "bf16"))


@pytest.mark.parametrize("asked", [Layout(dp=8, ep=8), Layout(2, dp=2)])
def test_a_dense_model_has_no_ranks(asked: Layout) -> None:
    with pytest.raises(EstimateUnavailable, match="no experts"):
        estimate(QWEN, "h200_sxm", asked, "bf16", LENGTHS)


def test_tp_alone_is_what_it_was_and_layouts_are_those_asked_for() -> None:
    by_tp, _ = find(R1, LENGTHS, Choice(("b200_sxm",), tps=(8,)))
    named, _ = find(R1, LENGTHS, Choice(("b200_sxm",), layouts=(Layout(dp=8, ep=8), Layout(8, 2))))
    anything, _ = find(R1, LENGTHS, Choice(("b200_sxm",)))
    assert {(each.layout.tp, each.layout.pp, each.layout.dp) for each in by_tp} == {(8, 1, 1)}
    assert {each.layout for each in named} == {Layout(dp=8, ep=8), Layout(8, 2)}
    assert {each.layout for each in named} <= {each.layout for each in anything}


def test_pools_are_never_larger_than_of_one_layout() -> None:
    """The search takes each pool's best: no layout alone needs fewer GPUs."""
    sla = Sla(Limit.parse("ttft", "p95:2s"), Limit.parse("itl", "p95:50ms"))
    question = Question(R1, Workload(LENGTHS, 10.0), sla)
    choice = Choice(("b200_sxm",), layouts=tuple(map(Layout.parse, ("tp8", "tp8ep8", "dp8ep8", "tp4dp2ep8"))))
    candidates = [each for each in find(R1, LENGTHS, choice)[0] if each.engine == "trtllm"]
    together = pools_of(question, candidates, BY_FORMULA)
    assert isinstance(together, Pools) and len(candidates) == 4
    alone = [pools_of(question, [each], BY_FORMULA) for each in candidates]
    assert together.gpus <= min(each.gpus for each in alone if isinstance(each, Pools))


def test_pools_are_the_cheapest_where_gpus_have_prices() -> None:
    """As one fleet is: the fewest GPUs may be the dearest."""
    limits = Sla(Limit.parse("ttft", "p95:2s"), Limit.parse("itl", "p95:50ms"))
    asked = Question(QWEN, Workload(LENGTHS, 20.0), limits)
    ways = [estimate(QWEN, gpu, 2, "fp8", LENGTHS) for gpu in ("h100_sxm", "h200_sxm")]
    fewest = pools_of(asked, ways, BY_FORMULA)
    assert isinstance(fewest, Pools)
    dear = fewest.decode.candidate.gpu
    (other,) = {"h100_sxm", "h200_sxm"} - {dear}
    cheapest = pools_of(replace(asked, prices=((dear, 90.0), (other, 2.5))), ways, BY_FORMULA)
    assert isinstance(cheapest, Pools) and cheapest.decode.candidate.gpu == other


def test_pools_tell_engines_of_one_layout_apart() -> None:
    """Two versions of an engine, say, one of them slower: the pools are the faster one's, whichever comes first."""
    question = Question(
        QWEN, Workload(LENGTHS, 20.0), Sla(Limit.parse("ttft", "p95:2s"), Limit.parse("itl", "p95:50ms"))
    )
    fast = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
    slow = replace(fast, replica=replace(fast.replica, law=fast.replica.law.scaled(1.3)))
    alone, *both = (pools_of(question, each, BY_FORMULA) for each in ([fast], [fast, slow], [slow, fast]))
    assert isinstance(alone, Pools)
    assert both == [alone, alone]


ASKED = ["--model", R1, "--gpu", "b200_sxm", "--isl", "4000", "--osl", "1000", "--rate", "10"]
SLA = ["--ttft", "p95:2s", "--itl", "p95:50ms", "--json"]


def test_on_the_command_line() -> None:
    ran = CliRunner().invoke(
        plan_command, [*ASKED, *SLA, "--layout", "dp8ep8", "--engine", "trtllm", "--disaggregated"]
    )
    found = json.loads(ran.stdout)
    assert (found["tp"], found["pp"], found["dp"], found["ep"]) == (1, 1, 8, 8)
    assert found["gpus"] == 8 * found["replicas"]
    apart = found["disaggregated"]
    assert apart["gpus"] == apart["prefill"]["gpus"] + apart["decode"]["gpus"] and apart["verified_by"] == "simulation"
    assert apart["gpus_low"] <= apart["gpus"] <= apart["gpus_high"]
