"""Memory of a GPU: the parts add up to it, however they are known; what is not known is said."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from sizing import catalog
from sizing.catalog import Layout
from sizing.engine import UNLIMITED_KV_TOKENS, Batching, Replica
from sizing.engine_defaults import engine_defaults
from sizing.estimate import estimate
from sizing.memory_use import (
    KV_FREE,
    KV_USED,
    UNKNOWN,
    WEIGHTS,
    MemoryUse,
    caching,
    kv_cache_tokens,
    mean_context_tokens,
    memory_use,
)
from sizing.plans import Candidate, Fleet
from sizing.workload import Lengths, Prefix
from tests.sizing.fleets_at_hand import candidate, fleet, question

LENGTHS = Lengths(1000, 200)


def of(candidate_: Candidate, load_per_s: float = 1.0) -> Fleet:
    """Some fleet of a candidate under a load: what a GPU holds depends on nothing else."""
    return dataclasses.replace(fleet(question()), candidate=candidate_, load_per_s=load_per_s)


def known(use: MemoryUse | str) -> MemoryUse:
    assert isinstance(use, MemoryUse)
    return use


ESTIMATE = estimate("Qwen/Qwen3-32B", "h200_sxm", 2, "fp8", LENGTHS)


@pytest.mark.parametrize("load_per_s", [0.1, 5.0, 1e4])
@pytest.mark.parametrize("basis", ["estimated", "fitted"])
def test_the_parts_add_up_to_the_gpu_and_none_is_negative(load_per_s: float, basis: str) -> None:
    use = known(memory_use(of(dataclasses.replace(ESTIMATE, basis=basis), load_per_s), LENGTHS))  # type: ignore[arg-type]
    assert sum(size for _, size in use.parts) == pytest.approx(use.capacity_bytes)
    assert all(size >= 0 for _, size in use.parts)
    assert use.capacity_bytes == catalog.gpus()["h200_sxm"].memory_bytes


def test_measured_points_may_write_the_gpu_in_capitals() -> None:
    measured = dataclasses.replace(
        ESTIMATE, basis="fitted", replica=Replica(ESTIMATE.replica.law, Batching(kv_tokens=UNLIMITED_KV_TOKENS))
    )
    capitals = dataclasses.replace(measured, gpu="H200_SXM")
    assert known(memory_use(of(capitals), LENGTHS)).parts == known(memory_use(of(measured), LENGTHS)).parts
    assert kv_cache_tokens(capitals) == kv_cache_tokens(measured) is not None


def test_weights_are_a_byte_a_parameter_in_fp8_over_the_gpus_of_the_replica() -> None:
    model = catalog.models()["Qwen/Qwen3-32B"]
    assert known(memory_use(of(ESTIMATE), LENGTHS)).of(WEIGHTS) == pytest.approx(model.parameters / 2)


def test_the_cache_in_use_is_requests_at_once_times_context_and_grows_with_load_until_it_is_full() -> None:
    light, heavy, full = (known(memory_use(of(ESTIMATE, load), LENGTHS)) for load in (1.0, 2.0, 1e6))
    assert heavy.of(KV_USED) == pytest.approx(2 * light.of(KV_USED))
    assert full.of(KV_FREE) == 0
    assert full.of(KV_USED) == pytest.approx(light.of(KV_USED) + light.of(KV_FREE))
    tokens = of(ESTIMATE).in_flight * mean_context_tokens(LENGTHS)
    share = tokens / ESTIMATE.replica.batching.kv_tokens
    assert light.of(KV_USED) / full.of(KV_USED) == pytest.approx(share, rel=0.01)


@pytest.mark.parametrize("layout", [Layout(8), Layout(dp=8, ep=8), Layout(4, pp=2)])
def test_the_cache_of_a_gpu_is_the_one_that_the_estimate_has(layout: Layout) -> None:
    """Of all ranks together, in sequences of the question's length: 94 layers of 4 heads of 128, a byte a value."""
    one = estimate("Qwen/Qwen3-235B-A22B", "h200_sxm", layout, "fp8", LENGTHS, engine="trtllm")
    use = known(memory_use(of(one), LENGTHS))
    token_bytes = 94 * 4 * 128 * 2 / min(layout.tp, 4) / layout.pp
    held = use.of(KV_USED) + use.of(KV_FREE)
    assert held == pytest.approx(one.replica.batching.kv_tokens / layout.dp * token_bytes, rel=1e-3)


def test_a_prefix_is_counted_once_for_all_who_found_it() -> None:
    """Of 1,000 tokens of a prompt 600 are shared: they are held for one request, and not for the others."""
    use = {
        prefix: known(memory_use(of(ESTIMATE, 10.0), LENGTHS, prefix)).of(KV_USED)
        for prefix in (Prefix(), Prefix(600, 0.0), Prefix(600, 0.5), Prefix(600, 1.0))
    }
    requests, apart = of(ESTIMATE, 10.0).in_flight, use[Prefix()]
    saved = 600 * (requests - 1) / (requests * mean_context_tokens(LENGTHS))
    assert use[Prefix(600, 0.0)] == apart
    assert 1 - use[Prefix(600, 1.0)] / apart == pytest.approx(saved, rel=0.01)
    assert apart > use[Prefix(600, 0.5)] > use[Prefix(600, 1.0)]


def test_a_gpu_without_kernel_timings_is_counted_from_the_data_sheet() -> None:
    rough = estimate("google/gemma-4-26B-A4B", "mi300x", 1, "bf16", LENGTHS)
    assert rough.source.startswith("roofline")
    use = known(memory_use(of(rough), LENGTHS))
    assert "data sheet" in use.note
    assert sum(size for _, size in use.parts) == pytest.approx(use.capacity_bytes)
    assert use.of(WEIGHTS) == pytest.approx(2 * catalog.models()["google/gemma-4-26B-A4B"].parameters)


def test_of_a_measured_engine_the_rest_is_not_known() -> None:
    use = known(memory_use(of(dataclasses.replace(ESTIMATE, basis="fitted")), LENGTHS))
    assert use.of(UNKNOWN) > 0 and use.of(KV_FREE) == 0 and "not measured" in use.note
    # 64 layers of 8 heads of 128, keys and values, a byte each in fp8, on two GPUs.
    tokens = of(ESTIMATE).in_flight * mean_context_tokens(LENGTHS)
    assert use.of(KV_USED) == pytest.approx(tokens * 64 * 8 * 128 * 2 / 2)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"model": "acme/m"}, "acme/m"), ({"gpu": "abacus"}, "abacus"), ({"precision": "fp7"}, "fp7")],
)
def test_what_the_catalogue_does_not_know_is_named(wrong: dict[str, str], named: str) -> None:
    told = memory_use(of(dataclasses.replace(ESTIMATE, **wrong)), LENGTHS)  # type: ignore[arg-type]
    assert isinstance(told, str) and named in told
    assert isinstance(memory_use(of(candidate()), LENGTHS), str)


@given(some.floats(1, 1e5), some.floats(1, 1e5))
def test_the_mean_context_of_equal_requests_is_half_way_through_the_output(isl: float, osl: float) -> None:
    assert mean_context_tokens(Lengths(isl, osl)) == pytest.approx(isl + osl / 2)


@pytest.mark.parametrize("cv", [0.3, 1.0])
def test_the_mean_context_of_varied_outputs_is_what_an_observer_sees(cv: float) -> None:
    """Sequences of lognormal outputs, looked at in every step of each of them: within 3 %."""
    lengths = Lengths(500, 400, 0.4, cv)
    isl, osl = lengths.sample(400_000, np.random.default_rng(5))
    held = (osl * (isl + osl / 2)).sum() / osl.sum()
    assert mean_context_tokens(lengths) == pytest.approx(held, rel=0.03)


def test_a_prefix_cache_is_as_large_as_memory_leaves_where_the_engine_does_not_say() -> None:
    """For a trace as for sessions; of a model and GPU that no catalogue knows, nothing is known."""
    measured, unknown = (
        dataclasses.replace(one, replica=Replica(one.replica.law, Batching(kv_tokens=UNLIMITED_KV_TOKENS)))
        for one in (ESTIMATE, candidate())
    )
    (ready,), (left_out,) = caching([measured, unknown])
    assert ready.replica.batching.prefix_cache and ready.replica.batching.kv_tokens == kv_cache_tokens(measured)
    assert left_out.gpu == unknown.gpu and left_out.kind == "no_data"


@pytest.mark.parametrize(
    ("engine", "tokens", "policy"),
    [
        ("sglang", 1, "max_utilization"),
        ("vllm", 16, "max_utilization"),
        ("trtllm", 32, "guaranteed_no_evict"),
        ("mine", 16, "max_utilization"),
    ],
)
def test_a_prefix_cache_has_the_blocks_of_its_engine(engine: str, tokens: int, policy: str) -> None:
    """SGLang's radix cache keeps single tokens (page size 1); the others have blocks of 16 and 32. TensorRT-LLM
    reserves whole answers by default, with block reuse as without."""
    batching = Batching(kv_tokens=100_000, kv_block_tokens=engine_defaults(engine).kv_block_tokens)
    (ready,), _ = caching(
        [dataclasses.replace(candidate(), engine=engine, replica=Replica(ESTIMATE.replica.law, batching))]
    )
    assert ready.replica.batching.kv_block_tokens == tokens
    assert ready.replica.batching.kv_policy == policy
