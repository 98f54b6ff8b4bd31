"""Measured: day-zero laws against the kernel database, and against servers."""

from __future__ import annotations

import csv
import importlib.resources
from collections import defaultdict

import numpy as np
import pytest

from sizing.catalog import Layout, gpus, models, unread_share
from sizing.errors import DoesNotFit, EstimateUnavailable
from sizing.estimate import estimate, kernels
from sizing.estimate.timed import time_engine
from sizing.workload import Lengths

LLAMA, QWEN = "meta-llama/Meta-Llama-3.1-8B", "Qwen/Qwen3-32B"

with_kernels = pytest.mark.skipif(not kernels.available(), reason=kernels.MISSING)


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
@pytest.mark.parametrize(
    ("name", "gpu", "tp", "precision"),
    [*DENSE[::4], *(pytest.param(*each, marks=pytest.mark.long) for each in DENSE if each not in DENSE[::4])],
)
def test_law_follows_the_kernel_timings(name: str, gpu: str, tp: int, precision: str) -> None:
    """On batches and contexts between those of the fit: mean error within 5 % for decode and 7 % for prefill."""
    engine = kernels.open_engine(models()[name], gpu, "trtllm", Layout(tp), precision)
    timed = time_engine(engine, models()[name].unrouted, unread_share(models()[name], engine.layout))
    law, kv_tokens = timed.law, timed.memory.kv_tokens(2256)
    decode = [
        law.decode_s(batch, batch * context) / engine.decode_s(batch, context) - 1
        for batch in (1, 3, 6, 12, 24, 48, 96, 192)
        for context in (400, 1500, 3000, 6000)
        if batch * context < kv_tokens
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
    assert models()[name].unrouted == pytest.approx(1 - chosen)
    engine = kernels.open_engine(models()[name], "h200_sxm", "trtllm", Layout(tp), precision)
    law = time_engine(engine, models()[name].unrouted, unread_share(models()[name], engine.layout)).law
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
    replica's batch, cache or token budget, experts are not split by tensor, or the engine has no timings.
    """
    batch, isl, osl = float(cells["batch_size"]), float(cells["isl"]), float(cells["osl"])
    if float(cells["pp_size"]) != 1 or float(cells["attention_dp_size"] or 1) != 1 or batch > 512:
        return None
    gpu, tp, backend = cells["system"], int(float(cells["tp_size"])), cells["backend"]
    if tp > gpus()[gpu].gpus_per_server or float(cells["moe_ep_size"]) != 1:
        return None
    try:
        found = estimate(name, gpu, tp, precision, Lengths(isl, osl), engine=backend, max_batch_size=512)
    except (DoesNotFit, EstimateUnavailable):
        return None
    law, room = found.replica.law, found.replica.batching.kv_tokens
    if batch * (isl + osl) > room or batch > osl or found.engine != backend:
        return None
    cached = batch * (isl + osl / 2)
    decode_s = law.decode_s(batch, cached)
    with_prompt_s = law.mixed_s(batch, cached, isl, isl * isl / 2)
    itl_s = decode_s + batch / osl * (with_prompt_s - decode_s)
    return itl_s / (float(cells["silicon_tpot_ms"]) / 1e3) - 1, found.relative_sigma
