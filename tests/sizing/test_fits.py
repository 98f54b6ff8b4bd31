"""What fits where a model does not, and how many servers a fleet fills."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as some

from sizing import catalog
from sizing.candidates import Choice, find
from sizing.catalog import BITS, Layout
from sizing.errors import DoesNotFit, ScenarioError
from sizing.estimate import estimate
from sizing.memory_use import elsewhere, misfits
from sizing.plans import servers, usual_server
from sizing.workload import Lengths

MODEL, LENGTHS = "Qwen/Qwen3-32B", Lengths(2000, 256)


def test_what_fits_instead_does_fit_and_nothing_smaller_does() -> None:
    choice = Choice(("l40s",), ("bf16",), (1,), engines=("trtllm",))
    (misfit,) = misfits(MODEL, LENGTHS, find(MODEL, LENGTHS, choice)[1])
    with pytest.raises(DoesNotFit) as lacking:
        estimate(MODEL, "l40s", 1, "bf16", LENGTHS)
    assert misfit.missing_bytes == lacking.value.missing_bytes > 0
    assert misfit.larger is not None and misfit.smaller is not None
    assert misfit.larger.precision == "bf16" and misfit.larger.gpus > 1
    bits = dict(BITS)
    assert bits[misfit.smaller.precision] < bits["bf16"] and misfit.smaller.layout == Layout()
    for fits in (misfit.larger, misfit.smaller):
        assert estimate(MODEL, "l40s", fits.layout, fits.precision, LENGTHS).layout == fits.layout


def test_what_lacks_is_counted_by_the_engine_that_does_not_fit() -> None:
    """For 141 GB of weights on an H200 vLLM has 0.9 of 151 GB: eleven lack, with its runtime; TensorRT-LLM has all."""
    choice = Choice(("h200_sxm",), ("bf16",), (1,), engines=("vllm", "sglang", "trtllm"))
    found, rejected = find("meta-llama/Meta-Llama-3.1-70B", LENGTHS, choice)
    assert [each.engine for each in found] == ["trtllm"]
    lacking = [misfit.missing_bytes for misfit in misfits("meta-llama/Meta-Llama-3.1-70B", LENGTHS, rejected)]
    weights, vllm = 2 * 70.55e9, 0.9 * 150.8e9
    assert len(lacking) == 2
    assert lacking[0] == pytest.approx(weights - vllm + 5 * 2**30, abs=1e9)
    assert lacking[1] == pytest.approx(lacking[0] + 0.02 * 150.8e9, abs=1e9)  # SGLang has 0.88


def test_the_least_lacking_comes_first() -> None:
    rejected = find("deepseek-ai/DeepSeek-R1", LENGTHS, Choice(("l40s", "h100_sxm")))[1]
    found = misfits("deepseek-ai/DeepSeek-R1", LENGTHS, rejected)
    lacking = [misfit.missing_bytes for misfit in found]
    assert len(found) == len(rejected) and lacking == sorted(lacking)


def test_elsewhere_is_another_gpu_with_the_fewest_per_replica() -> None:
    found = elsewhere(MODEL, LENGTHS, ("l40s",))
    assert found is not None and found.gpu != "l40s" and found.layout == Layout()
    assert elsewhere(MODEL, LENGTHS, tuple(catalog.gpus())) is None


counts = some.integers(1, 64)


@given(some.integers(0, 500), counts, counts)
def test_servers_hold_all_replicas_and_not_one_server_less_would(replicas: int, each: int, server: int) -> None:
    filled = servers(replicas, each, server)
    assert filled * server >= replicas * each
    if each <= server:
        assert (filled - 1) * (server // each) < max(replicas, 1) <= max(filled, 1) * (server // each)
    else:
        assert filled % max(replicas, 1) == 0


def test_servers_of_nothing_are_refused_and_an_own_gpu_has_no_usual_server() -> None:
    with pytest.raises(ScenarioError):
        servers(1, 1, 0)
    assert usual_server("h200_sxm") == catalog.gpu("h200_sxm").gpus_per_server
    assert usual_server("H200_SXM") == usual_server("h200_sxm")
    assert usual_server("my own") is None
