"""Day-zero estimates: right units and settings reach the kernel database, the law follows it, and failures say why."""

from __future__ import annotations

import logging
import socket

import pytest

from sizing.candidates import Choice, find
from sizing.catalog import Layout, gpus, models
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable, ScenarioError
from sizing.estimate import KERNEL_SIGMA, day_zero, estimate, kernels
from sizing.estimate.day_zero import roofline_law
from sizing.estimate.silicon import silicon
from sizing.prediction import Caution
from sizing.text import caution
from sizing.workload import Lengths

LLAMA, QWEN = "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B"
LENGTHS = Lengths(2000, 256)

with_kernels = pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)


# The kernel database: settings, units, memory.


@with_kernels
def test_reference_values_reach_us_in_seconds() -> None:
    """Llama-3.1-8B, H100, TensorRT-LLM, fp8: as the library gives them when called directly, in milliseconds."""
    engine = kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", Layout(), "fp8")
    assert engine.prefill_s(1, 2048) * 1e3 == pytest.approx(34.50, abs=0.01)
    assert engine.decode_s(32, 2049) * 1e3 == pytest.approx(6.93, abs=0.01)
    assert engine.handle.mixed_step_latency(2048, 32, 2048, 256) == pytest.approx(36.51, abs=0.01)
    assert engine.mixed_s(2048, 32, 2048) * 1e3 == pytest.approx(36.51, rel=0.02)  # contexts 128 tokens shorter
    assert kernels.memory(engine).kv_tokens(2256) == pytest.approx(993_196, abs=1)
    assert estimate(LLAMA, "h100_sxm", 1, "fp8", LENGTHS).replica.batching.kv_tokens == pytest.approx(993_196, abs=1)


@with_kernels
def test_memory_shares_are_those_of_each_engine() -> None:
    """TensorRT-LLM shares what is left after the weights, vLLM all memory; both then fit as many tokens as bytes."""
    of_free = kernels.memory(kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", Layout(), "bf16"))
    of_total = kernels.memory(kernels.open_engine(models()[LLAMA], "h100_sxm", "vllm", Layout(), "bf16"))
    assert of_free.kv_bytes() == pytest.approx(0.9 * (of_free.capacity_bytes - of_free.fixed_bytes))
    assert of_total.kv_bytes() == pytest.approx(0.9 * of_total.capacity_bytes - of_total.fixed_bytes)
    for memory in (of_free, of_total):
        assert memory.kv_tokens(1000) * 2 * 65536 == pytest.approx(memory.kv_bytes(), rel=1e-4)
        assert memory.missing_bytes(1000) == 0


@with_kernels
@pytest.mark.parametrize(
    ("gpu", "engine", "bits"),
    [
        ("b200_sxm", "trtllm", 8),
        ("b300_sxm", "trtllm", 8),
        ("gb200", "sglang", 8),
        ("gb300", "sglang", 8),
        ("b200_sxm", "vllm", 16),
        ("h200_sxm", "trtllm", 16),
        ("rtx_pro_6000_server", "sglang", 16),
    ],
)
def test_mxfp4_is_multiplied_in_the_form_that_the_engine_takes(gpu: str, engine: str, bits: int) -> None:
    """gpt-oss on Blackwell: activations in MXFP8 by TensorRT-LLM and SGLang, whose kernels are then the shorter."""
    model = models()["openai/gpt-oss-20b"]
    engine_of = kernels.open_engine(model, gpu, engine, Layout(), "mxfp4")
    assert dict(engine_of.settings).get("moe_quant_mode", "") == ("w4a8_mxfp4_mxfp8" if bits == 8 else "")
    if bits == 8:
        in_bf16 = kernels._compile(model.id, gpu, engine, Layout(), (("moe_quant_mode", "w4a16_mxfp4"),))
        assert engine_of.decode_s(64, 2048) < in_bf16.decode_s(64, 2048)
        assert engine_of.prefill_s(1, 2048) < in_bf16.prefill_s(1, 2048)


@with_kernels
def test_other_formats_are_read_from_their_checkpoints() -> None:
    model = models()["Qwen/Qwen3-32B-FP8"]
    assert kernels.open_engine(model, "b200_sxm", "trtllm", Layout(), model.checkpoint).settings == ()


@with_kernels
def test_windowed_layers_keep_less_of_long_sequences() -> None:
    """gpt-oss: half the layers attend to 128 tokens, so a token of a long sequence takes about half the bytes."""
    engine = kernels.open_engine(models()["openai/gpt-oss-20b"], "h100_sxm", "trtllm", Layout(), "mxfp4")
    memory = kernels.memory(engine)
    short, long = memory.sequence_bytes(128) / 128, memory.sequence_bytes(16384) / 16384
    assert 0.5 < long / short < 0.55
    tokens_in = kernels._breakdown(engine, 8192)["tokens_from_kv_bytes"]
    for length in (128, 500, 3000, 16384, 200_000):  # between the lengths at which the memory was asked
        assert tokens_in(memory.sequence_bytes(length)) == pytest.approx(length, abs=1)


@with_kernels
@pytest.mark.parametrize("budget", [1024, 2048, 16384])
def test_activations_follow_the_token_budget(budget: int) -> None:
    engine = kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", Layout(), "fp8")
    free = (kernels.memory(engine).capacity_bytes - kernels._breakdown(engine, budget)["non_kv_bytes"]) * 0.9
    assert kernels.memory(engine).kv_bytes(budget) == pytest.approx(free, rel=1e-3)


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_more_tp_is_faster_and_holds_more(precision: str) -> None:
    one, two, four = (estimate(QWEN, "h200_sxm", tp, precision, LENGTHS) for tp in (1, 2, 4))
    for fewer, more in ((one, two), (two, four)):
        assert more.replica.law.decode_s(32, 64_000) < fewer.replica.law.decode_s(32, 64_000)
        assert more.replica.law.prefill_alone_s(2000) < fewer.replica.law.prefill_alone_s(2000)
        assert more.replica.batching.kv_tokens > 2 * fewer.replica.batching.kv_tokens


def test_fp8_decodes_faster_and_holds_more() -> None:
    bf16, fp8 = (estimate(QWEN, "h200_sxm", 1, precision, LENGTHS) for precision in ("bf16", "fp8"))
    assert fp8.replica.law.decode_s(32, 64_000) < bf16.replica.law.decode_s(32, 64_000)
    assert fp8.replica.batching.kv_tokens > 2 * bf16.replica.batching.kv_tokens


def test_candidate_says_what_it_rests_on() -> None:
    dense = estimate("qwen3-32b", "H200_SXM", 2, "BF16", LENGTHS, max_batch_size=128, token_budget=4096)
    assert (dense.model, dense.gpu, dense.layout, dense.precision) == (QWEN, "h200_sxm", Layout(2), "bf16")
    assert dense.basis == "estimated"
    assert dense.source.startswith(f"{kernels.LIBRARY}, trtllm 1.3.0rc20")
    assert silicon().spread["both"]["dense"]["itl"] < dense.relative_sigma < KERNEL_SIGMA["dense"]
    assert dense.warnings == ()
    assert (dense.replica.batching.max_batch_size, dense.replica.batching.token_budget) == (128, 4096)
    mixture = estimate("openai/gpt-oss-120b", "h200_sxm", 1, "mxfp4", LENGTHS)
    assert mixture.relative_sigma > silicon().spread["both"]["moe_hopper"]["itl"]
    assert mixture.warnings == ()
    doubtful = estimate("openai/gpt-oss-120b", "b200_sxm", 1, "mxfp4", LENGTHS)
    assert mixture.relative_sigma < doubtful.relative_sigma
    assert silicon().spread["both"]["moe_blackwell"]["itl"] < KERNEL_SIGMA["moe_blackwell"]
    assert doubtful.warnings[0].kind == "moe_on_blackwell"


@pytest.mark.parametrize(("engine", "gpu", "slow"), [("vllm", "h200_sxm", True), ("trtllm", "h200_sxm", False)])
def test_kernels_that_are_slower_with_fewer_bits_are_named(engine: str, gpu: str, slow: bool) -> None:
    """Experts in fp8 on vLLM: more than twice as long as in bf16, of which half as many bytes are read."""
    eight, sixteen = (
        estimate("Qwen/Qwen3-30B-A3B", gpu, 2, precision, LENGTHS, engine=engine) for precision in ("fp8", "bf16")
    )
    told = [warning.facts["factor"] for warning in eight.warnings if warning.kind == "slower_than_bf16"]
    assert bool(told) == slow and sixteen.warnings == ()
    assert all(isinstance(factor, float) and factor > 2 for factor in told)


def test_only_what_is_far_slower_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def told() -> list[float | str | tuple[str, ...]]:
        found = estimate("Qwen/Qwen3-30B-A3B", "h200_sxm", 2, "fp8", LENGTHS, engine="vllm").warnings
        return [warning.facts["factor"] for warning in found if warning.kind == "slower_than_bf16"]

    (factor,) = told()
    assert isinstance(factor, float)
    for least, named in ((factor * 0.999, [factor]), (factor * 1.001, [])):
        monkeypatch.setattr(day_zero, "SLOW", least)
        assert told() == named


@pytest.mark.parametrize("model", ["01-ai/Yi-6B", "meta-llama/Meta-Llama-3-8B"])
def test_slower_kernels_of_a_relative_are_told_too(model: str) -> None:
    """By vLLM on L40S, blocks of fp8 take twice as long as bf16 of Llama-3.1-8B, whose law these have."""
    found, relative = (estimate(name, "l40s", 4, "fp8_block", LENGTHS, engine="vllm") for name in (model, LLAMA))
    (slower,) = (each for each in found.warnings if each.kind == "slower_than_bf16")
    assert slower in relative.warnings


def test_other_engine_steps_in_and_is_named() -> None:
    """The Intel GPU has vLLM timings only."""
    assert estimate(LLAMA, "b60", 2, "bf16", LENGTHS).engine == "vllm"
    candidate = estimate(LLAMA, "b60", 2, "bf16", LENGTHS, engine="trtllm")
    assert candidate.engine == "vllm"
    other = Caution("other_engine", {"asked": "trtllm", "used": "vllm"})
    assert candidate.warnings[0] == other
    for scaled in ("01-ai/Yi-6B", "meta-llama/Meta-Llama-3-8B"):  # from a relative, and from a model of the same shape
        assert estimate(scaled, "b60", 2, "bf16", LENGTHS, engine="trtllm").warnings[0] == other
        assert other not in estimate(scaled, "b60", 2, "bf16", LENGTHS, engine="vllm").warnings


def test_published_fp8_checkpoint_answers_to_fp8() -> None:
    assert estimate("deepseek-ai/DeepSeek-R1", "h200_sxm", 8, "fp8", LENGTHS).precision == "fp8_block"


@pytest.mark.parametrize(
    ("engine", "policy", "steps"), [("vllm", "chunked", 1), ("trtllm", "chunked", 0), ("sglang", "prefill_first", 1)]
)
def test_engines_schedule_by_their_defaults(engine: str, policy: str, steps: float) -> None:
    batching = estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS, engine=engine).replica.batching
    assert (batching.policy, batching.lookahead_steps) == (policy, steps)


def test_one_without_timings_of_its_own_schedules_by_its_own_defaults() -> None:
    """The Intel GPU has vLLM timings only."""
    assert estimate(LLAMA, "b60", 2, "bf16", LENGTHS, engine="sglang").replica.batching.policy == "prefill_first"


def test_missing_timings_are_those_of_a_relative_and_say_why() -> None:
    """The A100 has no timings for the attention of Gemma 4 with any engine."""
    candidate = estimate("google/gemma-4-26B-A4B", "a100_sxm", 1, "bf16", LENGTHS)
    assert candidate.source.startswith("law of ")
    assert candidate.warnings[0].kind == "scaled_law"
    why = caution(candidate.warnings[0])
    assert all(f"{engine}: " in why for engine in kernels.BACKENDS)
    assert "/" not in why


# Faults.


def test_what_does_not_fit_says_by_how_much() -> None:
    """bf16 weights of 32.8 billion parameters alone exceed the L40S's 48.3 GB by 17.2 GB."""
    with pytest.raises(DoesNotFit, match=r"needs \d+\.\d GB more per GPU; TP2 is the smallest that fits") as caught:
        estimate(QWEN, "l40s", 1, "bf16", LENGTHS)
    assert 17.2e9 < caught.value.missing_bytes < 30e9
    estimate(QWEN, "l40s", 2, "bf16", LENGTHS)


def test_what_no_server_holds_says_so() -> None:
    with pytest.raises(DoesNotFit, match="no layout that is known fits"):
        estimate("deepseek-ai/DeepSeek-R1", "l40s", Layout(dp=32, ep=32), "fp8_block", Lengths(100_000, 256))


def test_weights_without_arithmetic_of_their_own_are_unpacked() -> None:
    """vLLM computes an fp8 checkpoint in 16 bits on an A100: half the weights, arithmetic and cache as before."""
    llama, lengths = models()["nvidia/Llama-3.1-70B-Instruct-FP8"], Lengths(1000, 200)
    packed = estimate(llama.id, "a100_sxm", 4, "fp8", lengths)
    a100, layout = gpus()["a100_sxm"], Layout(4)
    law, whole = packed.replica.law, roofline_law(llama, a100, layout, "bf16")
    assert law.weights_s == pytest.approx(whole.weights_s / 2)
    assert (law.token_s, law.kv_token_s) == (whole.token_s, whole.kv_token_s)
    [told] = [each for each in packed.warnings if each.kind == "no_timings"]
    assert "unpacks the weights" in caution(told)
    nobody_timed = estimate(llama.id, "h100_pcie", 4, "fp8", lengths)
    assert packed.relative_sigma == nobody_timed.relative_sigma  # though the A100 was timed, in bf16


def test_a_gpu_that_does_not_run_the_checkpoint_is_left_out_and_says_so() -> None:
    """It was named: asking to name one would not help."""
    candidates, rejected = find("nvidia/Qwen3-235B-A22B-NVFP4", Lengths(1000, 200), Choice(gpus=("mi300x",)))
    assert not candidates and {each.kind for each in rejected} == {"no_data"}
    assert all("published in nvfp4, which mi300x does not run" in each.why for each in rejected)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("qwen3-32", "h200_sxm", 1, "bf16"), CatalogueError, "Qwen/Qwen3-32B"),
        ((QWEN, "h200", 1, "bf16"), CatalogueError, "h200_sxm"),
        ((QWEN, "h200_sxm", 3, "bf16"), EstimateUnavailable, "TP3"),
        ((QWEN, "h200_sxm", 0, "bf16"), ScenarioError, "tp of a layout"),
        ((QWEN, "a100_sxm", 1, "fp8"), EstimateUnavailable, "runs in bf16 on a100_sxm, not in fp8"),
        ((QWEN, "h200_sxm", 1, "int3"), EstimateUnavailable, "runs in bf16 or fp8 or fp8_block"),
        (
            ("deepseek-ai/DeepSeek-R1", "gaudi3", 8, "bf16"),
            EstimateUnavailable,
            "fp8_block, which gaudi3 does not",
        ),
    ],
)
def test_impossible_questions_are_refused(arguments, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        estimate(*arguments, LENGTHS)
    assert "\n" not in str(caught.value)


def test_unknown_engine_and_batch_are_refused() -> None:
    with pytest.raises(EstimateUnavailable, match="trtllm, vllm, sglang"):
        estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS, engine="llama.cpp")
    with pytest.raises(ScenarioError, match="max_batch_size"):
        estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS, max_batch_size=0)


@with_kernels
def test_no_network_no_noise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(logging.getLogger("aisimulate_core"), "level", logging.DEBUG)
    with pytest.raises(CatalogueError):
        estimate("someone/their-own-model", "h200_sxm", 1, "bf16", LENGTHS)
    assert not kernels.bundled("someone/their-own-model")
    estimate("Qwen/Qwen3-8B", "l40s", 2, "fp8", LENGTHS)
    assert capfd.readouterr() == ("", "")
