"""Day-zero estimates: right units and settings reach the kernel database, the law follows it, and failures say why."""

from __future__ import annotations

import csv
import importlib.resources
import json
import logging
import socket
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from sizing.catalog import BITS, gpus, models
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable, FitError, ScenarioError
from sizing.estimate import KERNEL_SIGMA, day_zero, estimate, kernels, shipped
from sizing.estimate.build_laws import keys, row
from sizing.estimate.checkpoints import left_out
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.roofline import DECODE_EFFICIENCY, PREFILL_EFFICIENCY, roofline
from sizing.estimate.shipped import COLUMNS, row_of, rows, timed_of
from sizing.estimate.step_grid import FAR_WEIGHT, fit_steps, law_seconds, observe
from sizing.estimate.timed import Timed
from sizing.replica import Batching
from sizing.steptime import StepLaw
from sizing.workload import Lengths

LLAMA, QWEN = "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B"
LENGTHS = Lengths(2000, 256)
BATCHING = Batching("chunked", 256, 8192)
ROOM = 2_000_000

with_kernels = pytest.mark.skipif(not kernels.available(), reason="no aiconfigurator-core on this platform")


# Theory: the fit finds a law that made the steps.


class Exact:
    """Step times of a given law."""

    def __init__(self, law: StepLaw) -> None:
        self.law = law

    def decode_s(self, batch: int, context: int) -> float:
        return self.law.decode_s(batch, batch * context)

    def prefill_s(self, batch: int, isl: int) -> float:
        return self.law.mixed_s(0, 0, batch * isl, batch * isl * isl / 2)

    def mixed_s(self, prefill_tokens: int, batch: int, isl: int) -> float:
        return self.law.mixed_s(batch, batch * isl, prefill_tokens, prefill_tokens * isl / 2)


@pytest.mark.parametrize("weights_s", [2e-3, 5e-3, 20e-3])
def test_fit_returns_the_law_behind_the_steps(weights_s: float) -> None:
    law = StepLaw(weights_s, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    steps = observe(Exact(law), ROOM)
    assert np.allclose(law_seconds(law, steps), steps.seconds, rtol=1e-12)
    fit = fit_steps(steps)
    assert np.abs(fit.error).max() < 0.01
    assert fit.law.kv_token_s == pytest.approx(law.kv_token_s, rel=0.05)
    assert fit.law.weights_s == pytest.approx(law.weights_s, rel=0.1)


@pytest.mark.parametrize(("unread", "decay"), [(0.95, 0.9375), (0.6, 0.96875), (0.15, 0.0)])
def test_fit_finds_the_weights_that_small_batches_leave_unread(unread: float, decay: float) -> None:
    """Of a mixture with 8 of 128 or 1 of 32 experts, and of a dense model with a faster kernel for one sequence."""
    law = StepLaw(15e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3, unread=unread, unread_decay=decay)
    steps = observe(Exact(law), ROOM)
    fit = fit_steps(steps, unread_decay=decay)
    assert np.abs(fit.error).max() < 0.01
    assert fit.law.unread * fit.law.weights_s == pytest.approx(unread * law.weights_s, rel=0.02)
    assert fit.rms_error < 0.1 * fit_steps(steps, unread_decay=0.5).rms_error


def test_fit_claims_no_unread_weights_where_all_are_read() -> None:
    law = StepLaw(15e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    found = fit_steps(observe(Exact(law), ROOM), unread_decay=0.9).law
    assert found.unread * found.weights_s < 0.01 * law.weights_s


def test_fit_scales_with_time() -> None:
    """Steps three times as long give a law three times as long: nothing in the fit knows a unit."""
    law = StepLaw(5e-3, 1e-3, 20e-6, 8e-6, 45e-9, 9e-10, 1e-3)
    one = fit_steps(observe(Exact(law), ROOM)).law
    three = fit_steps(observe(Exact(law.scaled(3)), ROOM)).law
    assert three.decode_s(32, 65536) == pytest.approx(3 * one.decode_s(32, 65536), rel=1e-3)
    assert three.prefill_alone_s(2000) == pytest.approx(3 * one.prefill_alone_s(2000), rel=1e-3)


def test_grid_stays_within_the_cache() -> None:
    steps = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), 30_000)
    assert (steps.kv_tokens + steps.prefill_tokens).max() <= 30_000
    assert steps.batch.max() <= 30_000 / 64
    whole = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), ROOM)
    assert set(whole.weight[whole.batch > 256]) == {FAR_WEIGHT}
    assert set(whole.weight[whole.prefill]) == {1.0}


def test_too_small_a_cache_carries_no_law() -> None:
    steps = observe(Exact(StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8)), 100)
    with pytest.raises(FitError, match="steps fit into the KV cache"):
        fit_steps(steps)


# The kernel database: settings, units, memory.


@with_kernels
def test_reference_values_reach_us_in_seconds() -> None:
    """Llama-3.1-8B, H100, TensorRT-LLM, fp8: as the library gives them when called directly, in milliseconds."""
    engine = kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", 1, "fp8")
    assert engine.prefill_s(1, 2048) * 1e3 == pytest.approx(34.50, abs=0.01)
    assert engine.decode_s(32, 2049) * 1e3 == pytest.approx(6.93, abs=0.01)
    assert engine.handle.mixed_step_latency(2048, 32, 2048, 256) == pytest.approx(36.51, abs=0.01)
    assert engine.mixed_s(2048, 32, 2048) * 1e3 == pytest.approx(36.51, rel=0.02)  # contexts 128 tokens shorter
    assert kernels.memory(engine, 1).kv_tokens(2256) == pytest.approx(993_196, abs=1)
    assert estimate(LLAMA, "h100_sxm", 1, "fp8", LENGTHS).replica.batching.kv_tokens == pytest.approx(993_196, abs=1)


@with_kernels
def test_memory_shares_are_those_of_each_engine() -> None:
    """TensorRT-LLM shares what is left after the weights, vLLM all memory; both then fit as many tokens as bytes."""
    of_free = kernels.memory(kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", 1, "bf16"), 1)
    of_total = kernels.memory(kernels.open_engine(models()[LLAMA], "h100_sxm", "vllm", 1, "bf16"), 1)
    assert of_free.kv_bytes() == pytest.approx(0.9 * (of_free.capacity_bytes - of_free.fixed_bytes))
    assert of_total.kv_bytes() == pytest.approx(0.9 * of_total.capacity_bytes - of_total.fixed_bytes)
    for memory in (of_free, of_total):
        assert memory.kv_tokens(1000) * 2 * 65536 == pytest.approx(memory.kv_bytes(), rel=1e-4)
        assert memory.missing_bytes(1000) == 0


@with_kernels
def test_windowed_layers_keep_less_of_long_sequences() -> None:
    """gpt-oss: half the layers attend to 128 tokens, so a token of a long sequence takes about half the bytes."""
    engine = kernels.open_engine(models()["openai/gpt-oss-20b"], "h100_sxm", "trtllm", 1, "mxfp4")
    memory = kernels.memory(engine, 1)
    short, long = memory.sequence_bytes(128) / 128, memory.sequence_bytes(16384) / 16384
    assert 0.5 < long / short < 0.55
    tokens_in = kernels._breakdown(engine, 1, 8192)["tokens_from_kv_bytes"]
    for length in (128, 500, 3000, 16384, 200_000):  # between the lengths at which the memory was asked
        assert tokens_in(memory.sequence_bytes(length)) == pytest.approx(length, abs=1)


@with_kernels
@pytest.mark.parametrize("budget", [1024, 2048, 16384])
def test_activations_follow_the_token_budget(budget: int) -> None:
    engine = kernels.open_engine(models()[LLAMA], "h100_sxm", "trtllm", 1, "fp8")
    free = (kernels.memory(engine, 1).capacity_bytes - kernels._breakdown(engine, 1, budget)["non_kv_bytes"]) * 0.9
    assert kernels.memory(engine, 1).kv_bytes(budget) == pytest.approx(free, rel=1e-3)


@with_kernels
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_more_tp_is_faster_and_holds_more(precision: str) -> None:
    one, two, four = (estimate(QWEN, "h200_sxm", tp, precision, LENGTHS) for tp in (1, 2, 4))
    for fewer, more in ((one, two), (two, four)):
        assert more.replica.law.decode_s(32, 64_000) < fewer.replica.law.decode_s(32, 64_000)
        assert more.replica.law.prefill_alone_s(2000) < fewer.replica.law.prefill_alone_s(2000)
        assert more.replica.batching.kv_tokens > 2 * fewer.replica.batching.kv_tokens


@with_kernels
def test_fp8_decodes_faster_and_holds_more() -> None:
    bf16, fp8 = (estimate(QWEN, "h200_sxm", 1, precision, LENGTHS) for precision in ("bf16", "fp8"))
    assert fp8.replica.law.decode_s(32, 64_000) < bf16.replica.law.decode_s(32, 64_000)
    assert fp8.replica.batching.kv_tokens > 2 * bf16.replica.batching.kv_tokens


@with_kernels
def test_candidate_says_what_it_rests_on() -> None:
    dense = estimate("qwen3-32b", "H200_SXM", 2, "BF16", LENGTHS, max_batch_size=128, token_budget=4096)
    assert (dense.model, dense.gpu, dense.tp, dense.precision) == (QWEN, "h200_sxm", 2, "bf16")
    assert dense.basis == "estimated"
    assert "aiconfigurator-core 0.12.0, trtllm 1.3.0rc20" in dense.source
    assert KERNEL_SIGMA["dense"] < dense.relative_sigma < 0.25
    assert dense.warnings == ()
    assert (dense.replica.batching.max_batch_size, dense.replica.batching.token_budget) == (128, 4096)
    mixture = estimate("openai/gpt-oss-120b", "h200_sxm", 1, "mxfp4", LENGTHS)
    assert KERNEL_SIGMA["moe"] < mixture.relative_sigma < KERNEL_SIGMA["moe_blackwell"]
    assert mixture.warnings == ()
    doubtful = estimate("openai/gpt-oss-120b", "b200_sxm", 1, "mxfp4", LENGTHS)
    assert doubtful.relative_sigma > KERNEL_SIGMA["moe_blackwell"]
    assert "Blackwell" in doubtful.warnings[0]


@with_kernels
def test_other_engine_steps_in_and_is_named() -> None:
    """The Intel GPU has vLLM timings only."""
    candidate = estimate(LLAMA, "b60", 2, "bf16", LENGTHS)
    assert "vllm" in candidate.source
    assert "no trtllm timings" in candidate.warnings[0]


@with_kernels
def test_published_fp8_checkpoint_answers_to_fp8() -> None:
    assert estimate("deepseek-ai/DeepSeek-R1", "h200_sxm", 8, "fp8", LENGTHS).precision == "fp8_block"


@with_kernels
def test_missing_timings_fall_back_to_the_roofline_and_say_why() -> None:
    """The A100 has no timings for the attention of Gemma 4 with any engine."""
    candidate = estimate("google/gemma-4-26B-A4B", "a100_sxm", 1, "bf16", LENGTHS)
    assert candidate.source.startswith("roofline")
    assert candidate.relative_sigma == 0.5
    assert all(f"{engine}: " in candidate.warnings[0] for engine in kernels.BACKENDS)
    assert "/" not in candidate.warnings[0]


# Faults.


@with_kernels
def test_what_does_not_fit_says_by_how_much() -> None:
    """bf16 weights of 32.8 billion parameters alone exceed the L40S's 48.3 GB by 17.2 GB."""
    with pytest.raises(DoesNotFit, match=r"needs \d+\.\d GB more per GPU; TP2 is the smallest that fits") as caught:
        estimate(QWEN, "l40s", 1, "bf16", LENGTHS)
    assert 17.2e9 < caught.value.missing_bytes < 30e9
    estimate(QWEN, "l40s", 2, "bf16", LENGTHS)


@with_kernels
def test_what_no_server_holds_says_so() -> None:
    with pytest.raises(DoesNotFit, match="no TP within one server fits"):
        estimate("deepseek-ai/DeepSeek-R1", "h100_sxm", 4, "fp8_block", LENGTHS)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("qwen3-32", "h200_sxm", 1, "bf16"), CatalogueError, "Qwen/Qwen3-32B"),
        ((QWEN, "h200", 1, "bf16"), CatalogueError, "h200_sxm"),
        ((QWEN, "h200_sxm", 3, "bf16"), EstimateUnavailable, "TP3"),
        ((QWEN, "h200_sxm", 0, "bf16"), EstimateUnavailable, "TP0"),
        ((QWEN, "a100_sxm", 1, "fp8"), EstimateUnavailable, "a100_sxm offers bf16"),
        ((QWEN, "h200_sxm", 1, "int3"), EstimateUnavailable, "offers bf16, fp8"),
        (("deepseek-ai/DeepSeek-R1", "a100_sxm", 8, "bf16"), EstimateUnavailable, "fp8_block checkpoint"),
    ],
)
def test_impossible_questions_are_refused(arguments, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        estimate(*arguments, LENGTHS)
    assert "\n" not in str(caught.value)


def test_unknown_engine_and_batch_are_refused() -> None:
    with pytest.raises(EstimateUnavailable, match="trtllm, vllm, sglang"):
        estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS, backend="llama.cpp")
    with pytest.raises(ScenarioError, match="max_batch_size"):
        estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS, max_batch_size=0)


@with_kernels
def test_no_network_no_noise(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a network connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(logging.getLogger("aiconfigurator_core"), "level", logging.DEBUG)
    with pytest.raises(CatalogueError):
        estimate("someone/their-own-model", "h200_sxm", 1, "bf16", LENGTHS)
    assert not kernels.bundled("someone/their-own-model")
    estimate("Qwen/Qwen3-8B", "l40s", 2, "fp8", LENGTHS)
    assert capfd.readouterr() == ("", "")


@with_kernels
def test_a_local_folder_is_a_model(tmp_path: Path) -> None:
    """The config of Qwen3-8B in a folder of its own gives the law of Qwen3-8B."""
    source = importlib.resources.files("aiconfigurator_core") / "model_configs" / "Qwen--Qwen3-8B_config.json"
    (tmp_path / "config.json").write_text(source.read_text())
    own = estimate(str(tmp_path), "h200_sxm", 1, "bf16", LENGTHS)
    known = estimate("Qwen/Qwen3-8B", "h200_sxm", 1, "bf16", LENGTHS)
    assert own.replica.law.seconds == pytest.approx(known.replica.law.seconds, rel=1e-5)  # shipped with six digits
    assert own.replica.batching == known.replica.batching
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Unheard"]}))
    kernels_cached = tmp_path / "other"
    kernels_cached.mkdir()
    (kernels_cached / "config.json").write_text(json.dumps({"architectures": ["Unheard"]}))
    with pytest.raises(CatalogueError, match=r"config\.json cannot be used"):
        estimate(str(kernels_cached), "h200_sxm", 1, "bf16", LENGTHS)


# Shipped laws.


def without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiconfigurator_core", None)
    monkeypatch.setitem(sys.modules, "aiconfigurator_core.sdk", None)


def test_shipped_laws_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole answer, with what does not fit and why, where the kernel database cannot be installed."""
    usual = estimate(QWEN, "h200_sxm", 2, "fp8", LENGTHS)
    without_the_library(monkeypatch)
    assert estimate(QWEN, "h200_sxm", 2, "fp8", LENGTHS) == usual
    with pytest.raises(DoesNotFit, match="TP2 is the smallest that fits"):
        estimate(QWEN, "l40s", 1, "bf16", LENGTHS)
    other = estimate(QWEN, "h200_sxm", 2, "fp8", LENGTHS, backend="vllm")
    assert other.replica == usual.replica
    assert "no vllm timings" in other.warnings[0]


def test_shipped_laws_cover_the_catalogue() -> None:
    """A law, or the reason for none, for every model, GPU, precision and TP that can be asked for."""
    wanted = {(model.id, gpu, tp, precision) for model, gpu, precision, tp in keys(models().values())}
    assert wanted == set(rows())
    assert len(wanted) > 5000
    laws = [timed_of(cells) for cells in rows().values() if not cells["why_not"]]
    assert len(laws) > 4500
    for timed in laws:
        assert min(timed.law.seconds) >= 0
        assert 0 <= timed.law.unread <= 1
        assert timed.law.decode_s(1, 1000) > 0
        assert timed.law.prefill_alone_s(1000) > 0
        assert list(timed.memory.sequence_bytes_at) == sorted(timed.memory.sequence_bytes_at)


@with_kernels
@pytest.mark.parametrize(
    "key",
    [
        (LLAMA, "h100_sxm", 1, "fp8"),
        ("openai/gpt-oss-20b", "h200_sxm", 2, "mxfp4"),
        (LLAMA, "b60", 2, "bf16"),
        ("google/gemma-4-26B-A4B", "a100_sxm", 1, "bf16"),
    ],
)
def test_shipped_laws_are_those_fitted_now(key) -> None:
    """Built again, the row is the same: law, memory, error, engine, or the reason why there is none."""
    model, gpu, tp, precision = key
    again, stored = row(models()[model], gpu, precision, tp), rows()[key]
    for name in COLUMNS:
        if again[name] != stored[name]:
            assert float(again[name]) == pytest.approx(float(stored[name]), rel=1e-3), name


def test_another_version_of_the_library_is_asked_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "version", lambda _: "0.13.0")
    monkeypatch.setattr(day_zero, "shipped", lambda *_: pytest.fail("a law of another version"))
    asked: list[str] = []
    monkeypatch.setattr(day_zero, "time_kernels", lambda model, *_: asked.append(model.id) or timed())
    estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS)
    assert asked == [QWEN]


def timed() -> Timed:
    memory = Memory("trtllm", 80e9, 40e9, 0.0, tuple(1e5 * length for length in KV_LENGTHS))
    return Timed("trtllm", "1.0", StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8), 0.02, 0.03, memory, lambda _: None)


def test_rows_are_read_back() -> None:
    key = (QWEN, "h100_sxm", 4, "fp8")
    back, one = timed_of(row_of(key, timed())), timed()
    assert back.law == one.law
    assert back.memory.sequence_bytes_at == one.memory.sequence_bytes_at
    assert (back.backend, back.version, back.mean_error, back.rms_error) == ("trtllm", "1.0", 0.02, 0.03)


@pytest.mark.parametrize(("text", "why"), [(None, "cannot be read"), ("model,gpu\na,b\n", "its columns are not")])
def test_a_faulty_table_says_so(text: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "laws.csv"
    if text is not None:
        table.write_text(text)
    monkeypatch.setattr(shipped, "LAWS", table)
    with pytest.raises(CatalogueError, match=f"{why}.*build_laws"):
        rows.__wrapped__()


# Roofline.


def test_without_the_library_a_roofline_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    without_the_library(monkeypatch)
    monkeypatch.setattr(day_zero, "shipped", lambda *_: None)
    candidate = estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS)
    assert candidate.relative_sigma == 0.5
    assert "roofline" in candidate.source
    assert "not installed" in candidate.warnings[0]
    with pytest.raises(DoesNotFit, match="GB more per GPU"):
        estimate(QWEN, "l40s", 1, "bf16", LENGTHS)


def test_roofline_reads_its_bytes_at_the_bandwidth() -> None:
    """Two bytes a parameter for one sequence: the weights' time lies within the stated range of efficiency."""
    law = roofline(models()[LLAMA], gpus()["h100_sxm"], 1, "bf16", LENGTHS, BATCHING).law
    at_full_speed_s = 2 * 8.03e9 / 3.35e12
    assert at_full_speed_s / DECODE_EFFICIENCY[1] < law.decode_s(1, 1000) < at_full_speed_s / DECODE_EFFICIENCY[0]
    at_peak_s = 2 * 8.03e9 * 4096 / 989e12
    assert at_peak_s / PREFILL_EFFICIENCY[1] < law.prefill_alone_s(4096) < at_peak_s / PREFILL_EFFICIENCY[0] * 1.2


@with_kernels
@pytest.mark.measured
@pytest.mark.parametrize("gpu", ["l40s", "h100_sxm", "h200_sxm", "b200_sxm"])
def test_database_lies_in_the_rooflines_range(gpu: str) -> None:
    """One GPU, and four where NVLink joins them: over PCIe (L40S) TP4 prefills at a mere 0.09 of peak."""
    # A decode step reads all parameters but the input embedding; a prefill multiplies by all but both embeddings.
    for name, tp, embedding in ((LLAMA, 1, 128_256 * 4096), (QWEN, 4, 151_936 * 5120)):
        if gpu == "l40s" and tp > 1:
            continue
        model, chip = models()[name], gpus()[gpu]
        engine = kernels.open_engine(model, gpu, "trtllm", tp, "bf16")
        weights_s = (model.parameters - embedding) * BITS["bf16"] / 8 / tp / chip.bandwidth_bytes_per_s
        arithmetic_s = 2 * (model.parameters - 2 * embedding) * 4096 / tp / chip.flops_per_s["bf16"]
        decode, prefill = weights_s / engine.decode_s(1, 1024), arithmetic_s / engine.prefill_s(1, 4096)
        print(f"{model.name} {gpu} TP{tp}: {decode:.2f} of bandwidth, {prefill:.2f} of peak")
        assert DECODE_EFFICIENCY[0] < decode < DECODE_EFFICIENCY[1]
        assert PREFILL_EFFICIENCY[0] < prefill < PREFILL_EFFICIENCY[1]


# Measured: the law against the database, and against servers.

DENSE = [
    (LLAMA, "h100_sxm", 1, "bf16"),
    (LLAMA, "h100_sxm", 1, "fp8"),
    (LLAMA, "l40s", 1, "bf16"),
    ("Qwen/Qwen3-8B", "a100_sxm", 1, "bf16"),
    (QWEN, "h200_sxm", 1, "bf16"),
    (QWEN, "h200_sxm", 4, "fp8"),
    (QWEN, "h100_sxm", 8, "bf16"),
    ("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, "fp8"),
    ("meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 2, "nvfp4"),
]


@with_kernels
@pytest.mark.measured
@pytest.mark.parametrize(("name", "gpu", "tp", "precision"), DENSE)
def test_law_follows_the_kernel_timings(name: str, gpu: str, tp: int, precision: str) -> None:
    """On batches and contexts between those of the fit: mean error within 5 % for decode and 7 % for prefill."""
    replica = estimate(name, gpu, tp, precision, LENGTHS).replica
    law, engine = replica.law, kernels.open_engine(models()[name], gpu, "trtllm", tp, precision)
    decode = [
        law.decode_s(batch, batch * context) / engine.decode_s(batch, context) - 1
        for batch in (1, 3, 6, 12, 24, 48, 96, 192)
        for context in (400, 1500, 3000, 6000)
        if batch * context < replica.batching.kv_tokens
    ]
    prefill = [law.prefill_alone_s(isl) / engine.prefill_s(1, isl) - 1 for isl in (200, 700, 1500, 3000, 6000)]
    print(
        f"{name} {gpu} TP{tp} {precision}: decode mean {np.abs(decode).mean():.1%} worst {np.abs(decode).max():.1%}, "
        f"prefill mean {np.abs(prefill).mean():.1%} worst {np.abs(prefill).max():.1%}"
    )
    assert np.abs(decode).mean() < 0.05
    assert np.abs(prefill).mean() < 0.07


MIXTURES = [
    ("Qwen/Qwen3-30B-A3B", 1, "bf16", 8 / 128),
    ("openai/gpt-oss-120b", 1, "mxfp4", 4 / 128),
    ("deepseek-ai/DeepSeek-R1", 8, "fp8_block", 8 / 256),
]


@with_kernels
@pytest.mark.measured
@pytest.mark.parametrize(("name", "tp", "precision", "chosen"), MIXTURES)
def test_law_follows_mixtures_of_experts(name: str, tp: int, precision: str, chosen: float) -> None:
    """Decode between the points of the fit within 6 % on average, a single sequence's within 12 %."""
    assert left_out(name) == pytest.approx(1 - chosen)
    replica = estimate(name, "h200_sxm", tp, precision, LENGTHS).replica
    law, engine = replica.law, kernels.open_engine(models()[name], "h200_sxm", "trtllm", tp, precision)
    assert law.unread_decay == pytest.approx(1 - chosen)
    grid = [(batch, context) for batch in (1, 3, 6, 12, 24, 48, 96, 192) for context in (400, 1500, 3000, 6000)]
    errors = np.array([law.decode_s(n, n * context) / engine.decode_s(n, context) - 1 for n, context in grid])
    print(f"{name}: decode mean {np.abs(errors).mean():.1%}, of one sequence {np.abs(errors[:4]).mean():.1%}")
    assert np.abs(errors).mean() < 0.06
    assert np.abs(errors[:4]).mean() < 0.12


SAMPLE: dict[str, dict[str, tuple[str, dict[str, str]]]] = {
    "dense": {
        "meta-llama/Llama-3.1-8B-Instruct": (LLAMA, {"fp8": "fp8", "": "bf16"}),
        "nvidia/Llama-3.1-8B-Instruct-FP8": (LLAMA, {"fp8": "fp8"}),
        "Qwen/Qwen3-32B": (QWEN, {"fp8": "fp8", "fp4": "nvfp4", "": "bf16"}),
        "meta-llama/Llama-3.1-70B": ("meta-llama/Meta-Llama-3.1-70B", {"fp8": "fp8", "fp4": "nvfp4"}),
    },
    "moe": {
        "openai/gpt-oss-120b": ("openai/gpt-oss-120b", {"fp4": "mxfp4"}),
        "deepseek-ai/DeepSeek-R1": ("deepseek-ai/DeepSeek-R1", {"fp8": "fp8"}),
        "deepseek-ai/DeepSeek-V3": ("deepseek-ai/DeepSeek-V3", {"fp8": "fp8"}),
        "Qwen/Qwen3-235B-A22B-FP8": ("Qwen/Qwen3-235B-A22B-FP8", {"fp8": "fp8"}),
        "moonshotai/Kimi-K2.5": ("moonshotai/Kimi-K2.5", {"int4": "int4"}),
    },
}


@with_kernels
@pytest.mark.measured
@pytest.mark.parametrize("kind", ["dense", "moe"])
def test_itl_of_real_servers(kind: str) -> None:
    """Mean time per output token in a closed loop, on the sample measured by NVIDIA and InferenceX.

    The 90 % band of the candidate's own error covers at least 80 % of each kind.
    """
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    table = importlib.resources.files("aiconfigurator_core") / "systems" / "silicon_sample.csv"
    with table.open() as file:
        for cells in csv.DictReader(file):
            name, precisions = SAMPLE[kind].get(cells["model_path"], ("", {}))
            if cells["mode"] == "agg" and cells["precision"] in precisions:
                error = _itl_error(cells, name, precisions[cells["precision"]])
                if error is not None:
                    errors[f"{cells['model_path']} {cells['system']} {cells['backend']}"].append(error)
    for group, values in errors.items():
        shares = np.array(values)[:, 0]
        print(f"{group}: {len(values)} rows, mean |error| {np.abs(shares).mean():.0%}, bias {shares.mean():+.0%}")
    share, sigma = np.concatenate([np.array(values) for values in errors.values()]).T
    covered = (np.abs(np.log1p(share)) < 1.645 * sigma).mean()
    print(f"{kind}: {share.size} rows, mean |error| {np.abs(share).mean():.1%}, in the 90 % band {covered:.0%}")
    assert share.size > 500
    assert covered > 0.8


def _itl_error(cells: dict[str, str], name: str, precision: str) -> tuple[float, float] | None:
    """Error of the law's closed-loop ITL, and the error the candidate claims.

    Each iteration decodes all and prefills what finished requests are replaced by. None where the row lies outside one
    replica's batch, cache or token budget, or the engine has no timings.
    """
    batch, isl, osl = float(cells["batch_size"]), float(cells["isl"]), float(cells["osl"])
    if float(cells["pp_size"]) != 1 or float(cells["attention_dp_size"] or 1) != 1 or batch > 512:
        return None
    gpu, tp, backend = cells["system"], int(float(cells["tp_size"])), cells["backend"]
    try:
        found = estimate(name, gpu, tp, precision, Lengths(isl, osl), backend=backend, max_batch_size=512)
    except (DoesNotFit, EstimateUnavailable):
        return None
    law, room = found.replica.law, found.replica.batching.kv_tokens
    if batch * (isl + osl) > room or batch > osl or f", {backend} " not in found.source:
        return None
    cached = batch * (isl + osl / 2)
    decode_s = law.decode_s(batch, cached)
    with_prompt_s = law.mixed_s(batch, cached, isl, isl * isl / 2)
    itl_s = decode_s + batch / osl * (with_prompt_s - decode_s)
    return itl_s / (float(cells["silicon_tpot_ms"]) / 1e3) - 1, found.relative_sigma
