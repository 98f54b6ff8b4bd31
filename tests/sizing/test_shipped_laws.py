"""Laws shipped with the planner, and the roofline where nothing was timed."""

from __future__ import annotations

import math
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.catalog import PRECISIONS, Layout, Precision, gpus, models
from sizing.engine import Batching, StepLaw
from sizing.errors import CatalogueError, DoesNotFit
from sizing.estimate import ENGINES, estimate, kernels, timed_engines
from sizing.estimate.build_laws import BELIEVED, keys, row, times_over
from sizing.estimate.day_zero import (
    COLUMNS,
    EFFICIENCY,
    LAWS,
    RANKS_SIGMA,
    ROOFLINE_SIGMA,
    layout_of,
    memory_of,
    read_rows,
    roofline,
    roofline_law,
    row_of,
    rows,
    timed_of,
    token_bytes,
    weight_bytes,
)
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.timed import Timed
from sizing.numbers import Floats
from sizing.workload import Lengths
from tests.sizing.steps_of_laws import steps

LLAMA, QWEN = "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B"
LENGTHS = Lengths(2000, 256)
BATCHING = Batching("chunked", 256, 8192)

with_kernels = pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)


def test_shipped_laws_need_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole answer, with what does not fit and why: the kernel database is for who writes the laws."""
    monkeypatch.setattr(kernels, "available", lambda: pytest.fail("the kernel database was asked"))
    assert estimate(QWEN, "h200_sxm", 2, "fp8", LENGTHS).engine == "trtllm"
    with pytest.raises(DoesNotFit, match="TP2 is the smallest that fits"):
        estimate(QWEN, "l40s", 1, "bf16", LENGTHS)
    other = estimate(QWEN, "h200_sxm", 2, "fp8", LENGTHS, engine="vllm")
    assert other.engine == "vllm" and other.warnings == ()


def test_shipped_laws_cover_the_catalogue() -> None:
    """A law, or the reason for none, for every model, GPU, engine, precision and TP that can be asked for."""
    laws: dict[str, int] = dict.fromkeys(ENGINES, 0)
    timed_gpus = [gpu.id for gpu in gpus().values() if gpu.timed]
    covered = {model.id for model in models().values() if rows(model.id)}
    assert {model.id for model in models().values() if model.timings} <= covered
    for model in (models()[name] for name in sorted(covered)):
        asked = {
            (gpu, layout, precision, engine)
            for gpu, engine in product(timed_gpus, ENGINES)
            for _, _, precision, layout, _ in keys([model], gpu, engine)
        }
        by_tensor = {each for each in asked if each[1] == Layout(each[1].tp)}
        assert by_tensor <= set(rows(model.id)) <= asked, model.id
        for key, cells in rows(model.id).items():
            assert (not cells["why_not"]) == (key[3] in timed_engines(model, *key[:3])), key
            if cells["why_not"]:
                continue
            timed = timed_of(cells)
            laws[timed.backend] += 1
            assert min(timed.law.seconds) >= 0
            assert 0 <= timed.law.unread <= 1
            assert timed.law.decode_s(1, 1000) > 0
            assert timed.law.prefill_alone_s(1000) > 0
            assert times_over(timed.law, roofline_law(model, gpus()[key[0]], key[1], key[2])) <= BELIEVED, key
            assert list(timed.memory.sequence_bytes_at) == sorted(timed.memory.sequence_bytes_at)
    assert min(laws.values()) > 3000, laws


@with_kernels
@pytest.mark.parametrize(
    "key",
    [
        (LLAMA, "h100_sxm", Layout(), "fp8", "trtllm"),
        ("openai/gpt-oss-20b", "h200_sxm", Layout(2), "mxfp4", "sglang"),
        ("Qwen/Qwen3-30B-A3B", "h200_sxm", Layout(dp=4, ep=4), "bf16", "vllm"),
        (LLAMA, "b60", Layout(2), "bf16", "vllm"),
        ("google/gemma-4-26B-A4B", "a100_sxm", Layout(), "bf16", "trtllm"),
        ("openai/gpt-oss-120b", "b200_sxm", Layout(), "mxfp4", "trtllm"),
        ("deepseek-ai/DeepSeek-V4-Flash", "b200_sxm", Layout(4), "mxfp4", "sglang"),
    ],
)
def test_shipped_laws_are_those_fitted_now(key) -> None:
    """Built again, the row is the same: law, memory, error, engine, or the reason why there is none."""
    model, *rest = key
    gpu, layout, precision, engine = rest
    again, stored = row(models()[model], gpu, precision, layout, engine), rows(model)[tuple(rest)]
    for name in COLUMNS:
        if again[name] != stored[name]:
            assert float(again[name]) == pytest.approx(float(stored[name]), rel=1e-3), name


@with_kernels
def test_what_the_database_extrapolates_beyond_all_bounds_is_no_law() -> None:
    """A step of 64 sequences a rank of Llama 4 Maverick would take half a minute on eight B300."""
    maverick = models()["meta-llama/Llama-4-Maverick-17B-128E-Instruct"]
    cells = row(maverick, "b300_sxm", "fp8", Layout(dp=8, ep=8), "vllm")
    assert "times what the data sheet says" in cells["why_not"] and not cells["weights_s"]
    assert not row(maverick, "b300_sxm", "fp8", Layout(8), "vllm")["why_not"]


@given(st.floats(0.1, 1e4), st.sampled_from(("weights_s", "overhead_s", "kv_token_s", "token_s", "prefill_s")))
def test_a_law_is_over_another_by_its_worst_step(factor: float, name: str) -> None:
    law = StepLaw(5e-3, 1e-3, 20e-6, 10e-6, 50e-9, prefill_s=2e-3)
    assert times_over(law.scaled(factor), law) == pytest.approx(factor)
    longer = law.with_values(**{name: (1 + factor) * getattr(law, name)})
    assert 1 < times_over(longer, law) < 1 + factor
    assert times_over(law, longer) <= 1
    for n in (1, 256):
        assert times_over(longer, law) >= longer.decode_s(n, n * 2000) / law.decode_s(n, n * 2000)


def test_states_are_those_that_the_library_counts_where_it_counts_them() -> None:
    """Of the gated delta rule it does, of Mamba-2 it does not: a sequence of no length then still takes its state."""
    counted = uncounted = 0
    for model in (model for model in models().values() if model.state_values and "Kimi" not in model.id):
        for (_, layout, _, _), cells in rows(model.id).items():
            if cells["why_not"]:
                continue
            short, long = (float(cells[f"kv_{length}_bytes"]) for length in KV_LENGTHS[:2])
            by_library = short - (long - short) / (KV_LENGTHS[1] - KV_LENGTHS[0]) * KV_LENGTHS[0]
            state = 2 * model.state_values / layout.tp
            assert memory_of(cells).sequence_bytes(0) == pytest.approx(state, rel=1e-4)
            if by_library > 0.01 * short:
                assert by_library == pytest.approx(state, rel=1e-4)
                counted += 1
            else:
                uncounted += 1
    assert counted > 100 < uncounted


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_roofline_holds_a_state_for_each_sequence_however_short(precision: Precision) -> None:
    """Qwen3-Next: 36 layers of 48 keep a state in 32 bits, of 32 heads of 128 by 128, whatever the precision."""
    model, chip = models()["Qwen/Qwen3-Next-80B-A3B-Instruct"], gpus()["b200_sxm"]
    short, long = Lengths(100, 10), Lengths(1000, 100)
    held = {
        lengths: roofline(model, chip, Layout(2), precision, lengths, BATCHING).batching.kv_tokens / lengths.isl / 1.1
        for lengths in (short, long)
    }
    free = chip.memory_bytes * 0.9 - weight_bytes(model, Layout(2), precision) - 5 * 2**30
    state = 36 * 4 * 32 * 128 * 128 / 2
    assert free / held[short] > state
    growth = (free / held[long] - free / held[short]) / 990
    assert free / held[short] - 110 * growth == pytest.approx(state, rel=0.05)  # with the inputs of a convolution
    law = roofline_law(model, chip, Layout(2), precision)
    read_s = state / (chip.bandwidth_bytes_per_s * EFFICIENCY["moe"].cache)
    assert law.sequence_s == pytest.approx(read_s, rel=0.05)


def test_a_token_at_the_context_of_the_catalogue_takes_what_stands_there() -> None:
    """Its state and its growth together, where a GPU has the whole model: neither is counted twice."""
    for model in (each for each in models().values() if each.state_values):
        assert token_bytes(model, gpus()["h100_sxm"], Layout(), "bf16") == pytest.approx(2 * model.kv_values_per_token)


def timed() -> Timed:
    memory = Memory("trtllm", 80e9, 40e9, 0.0, tuple(1e5 * length for length in KV_LENGTHS))
    return Timed("trtllm", "1.0", StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8), 0.02, 0.03, memory)


def test_rows_are_read_back() -> None:
    key = (QWEN, "h100_sxm", 4, 1, 1, "fp8", "trtllm")
    back, one = timed_of(row_of(key, timed())), timed()
    assert back.law == one.law
    assert back.memory.sequence_bytes_at == one.memory.sequence_bytes_at
    assert (back.backend, back.version, back.mean_error, back.rms_error) == ("trtllm", "1.0", 0.02, 0.03)


@pytest.mark.parametrize(("text", "why"), [(None, "cannot be read"), ("model,gpu\na,b\n", "its columns are not")])
def test_a_faulty_table_says_so(text: str | None, why: str, tmp_path: Path) -> None:
    table = tmp_path / "laws.csv"
    if text is not None:
        table.write_text(text)
    with pytest.raises(CatalogueError, match=f"{why}.*build_laws"):
        read_rows(table)


# Roofline.


def test_a_gpu_of_which_nothing_was_timed_has_a_roofline() -> None:
    """With the widest band of all estimates, and a caution that says why."""
    candidate = estimate(QWEN, "mi300x", 1, "bf16", LENGTHS)
    assert "roofline" in candidate.source
    assert candidate.warnings[0].kind == "no_timings"
    assert "nothing was timed on AMD" in str(candidate.warnings[0].facts["why"])
    assert candidate.relative_sigma > estimate("openai/gpt-oss-120b", "b200_sxm", 1, "mxfp4", LENGTHS).relative_sigma
    with pytest.raises(DoesNotFit, match="GB more per GPU"):
        estimate(QWEN, "l4", 1, "bf16", LENGTHS)


@pytest.mark.parametrize(("engine", "gives"), [("vllm", 0.9), ("sglang", 0.88), ("trtllm", None), ("", 0.9)])
def test_a_cache_by_data_sheet_is_what_its_engine_makes_of_the_memory(engine: str, gives: float | None) -> None:
    """vLLM and SGLang take a share of all memory, weights included; TensorRT-LLM gives the cache nine tenths of what is
    free. 70.6 billion parameters in two bytes and 5 GiB beside them, 80 layers of 8 heads of 128."""
    chip, token = gpus()["mi300x"], 2 * 80 * 8 * 128 * 2
    beside = 2 * 70.55e9 + 5 * 2**30
    cache = (chip.memory_bytes - beside) * 0.9 if gives is None else chip.memory_bytes * gives - beside
    found = estimate("meta-llama/Llama-3.3-70B-Instruct", "mi300x", 1, "bf16", LENGTHS, engine=engine)
    assert found.replica.batching.kv_tokens == pytest.approx(cache / token, rel=0.01)
    assert found.engine == engine


def test_what_vllm_has_no_memory_for_is_said_of_models_like_timed_ones_too() -> None:
    """141 GB of weights are more than nine tenths of an H200's 141 GiB; of those TensorRT-LLM leaves a little."""
    for model in ("meta-llama/Llama-3.3-70B-Instruct", "meta-llama/Llama-3.1-70B"):
        for engine in ("vllm", "sglang"):
            with pytest.raises(DoesNotFit, match="GB more per GPU"):
                estimate(model, "h200_sxm", 1, "bf16", LENGTHS, engine=engine)
        assert estimate(model, "h200_sxm", 1, "bf16", LENGTHS, engine="trtllm").replica.batching.kv_tokens > 0


def test_roofline_reads_its_bytes_at_the_bandwidth() -> None:
    """What is left of a step beside its layers' overhead: two bytes a parameter, two FLOPs a parameter and token."""
    model, reached = models()[LLAMA], EFFICIENCY["dense"]
    law = roofline(model, gpus()["h100_sxm"], Layout(), "bf16", LENGTHS, BATCHING).law
    layers_s = 32 * reached.layer_s
    assert law.decode_s(1, 0) - layers_s == pytest.approx(2 * 8.03e9 / 3.35e12 / reached.weights, rel=1e-3)
    at_peak_s = 2 * 8.03e9 * 65536 / 989e12
    beside_s = layers_s + 32 * reached.prompt_layer_s + law.attention_s * 65536**2 / 2
    assert law.prefill_alone_s(65536) - beside_s == pytest.approx(at_peak_s / reached.arithmetic, rel=1e-3)


@pytest.mark.long
def test_rooflines_of_timed_gpus_are_as_wrong_as_they_say() -> None:
    """All shipped laws, each shape of model with the same weight: nine steps of ten within 1.645 sigma."""
    errors: dict[str, dict[tuple[float, int], list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for cells in read_rows(LAWS):
        if cells["why_not"]:
            continue
        model, gpu = models()[cells["model"]], cells["gpu"]
        bits = next(each for each in PRECISIONS if each == cells["precision"])
        law = roofline_law(model, gpus()[gpu], layout_of(cells), bits)
        sigma = math.hypot(ROOFLINE_SIGMA[model.kind], RANKS_SIGMA if layout_of(cells).dp > 1 else 0.0)
        off = np.abs(steps(law) - steps(timed_of(cells).law))
        errors[model.kind][model.parameters, model.layers].append(off / sigma)
    for kind, shapes in errors.items():
        within = [np.mean(np.concatenate(found) < 1.645) for found in shapes.values()]
        factor = np.exp(1.645 * ROOFLINE_SIGMA[kind])
        print(f"rooflines, {kind}: {len(shapes)} shapes, {np.mean(within):.1%} within a factor of {factor:.2f}")
        assert 0.88 < np.mean(within) < 0.95
