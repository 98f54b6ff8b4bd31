"""Laws shipped with the planner, and the roofline where nothing was timed."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from sizing.catalog import BITS, gpus, models
from sizing.engine import Batching, StepLaw
from sizing.errors import CatalogueError, DoesNotFit
from sizing.estimate import ENGINES, day_zero, estimate, kernels, timed_engines
from sizing.estimate.build_laws import keys, row
from sizing.estimate.day_zero import (
    COLUMNS,
    DECODE_EFFICIENCY,
    PREFILL_EFFICIENCY,
    read_rows,
    roofline,
    row_of,
    rows,
    timed_of,
)
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.timed import Timed
from sizing.workload import Lengths

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
    for model in models().values():
        asked = {
            (gpu, tp, precision, engine)
            for gpu, engine in product(gpus(), ENGINES)
            for _, _, precision, tp, _ in keys([model], gpu, engine)
        }
        assert asked == set(rows(model.id)), model.id
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
            assert list(timed.memory.sequence_bytes_at) == sorted(timed.memory.sequence_bytes_at)
    assert min(laws.values()) > 3000, laws


@with_kernels
@pytest.mark.parametrize(
    "key",
    [
        (LLAMA, "h100_sxm", 1, "fp8", "trtllm"),
        ("openai/gpt-oss-20b", "h200_sxm", 2, "mxfp4", "sglang"),
        (LLAMA, "b60", 2, "bf16", "vllm"),
        ("google/gemma-4-26B-A4B", "a100_sxm", 1, "bf16", "trtllm"),
    ],
)
def test_shipped_laws_are_those_fitted_now(key) -> None:
    """Built again, the row is the same: law, memory, error, engine, or the reason why there is none."""
    model, *rest = key
    gpu, tp, precision, engine = rest
    again, stored = row(models()[model], gpu, precision, tp, engine), rows(model)[tuple(rest)]
    for name in COLUMNS:
        if again[name] != stored[name]:
            assert float(again[name]) == pytest.approx(float(stored[name]), rel=1e-3), name


def timed() -> Timed:
    memory = Memory("trtllm", 80e9, 40e9, 0.0, tuple(1e5 * length for length in KV_LENGTHS))
    return Timed("trtllm", "1.0", StepLaw(5e-3, 1e-3, 2e-5, 0, 4e-8), 0.02, 0.03, memory, lambda _: None)


def test_rows_are_read_back() -> None:
    key = (QWEN, "h100_sxm", 4, "fp8", "trtllm")
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


def test_without_a_law_a_roofline_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(day_zero, "rows", lambda _: {})
    candidate = estimate(QWEN, "h200_sxm", 1, "bf16", LENGTHS)
    assert candidate.relative_sigma == 0.5
    assert (candidate.engine, candidate.source.split()[0]) == ("", "roofline")
    assert "not among the shipped laws" in str(candidate.warnings[0].facts["why"])
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
