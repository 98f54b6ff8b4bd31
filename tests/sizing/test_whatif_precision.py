"""What-ifs about precision and TP: near the law timed there, and by data sheet where nothing was timed."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.analyses.whatif import (
    RELATED_SIGMA,
    SHEET_SIGMA,
    TIMED_SIGMA,
    AtPrecision,
    AtTp,
    BatchLimit,
    Ratios,
    Setup,
    Sheet,
    WhatIf,
    by_data_sheet,
    ratios_of,
    sheet_of,
    timed_ratios,
    what_if,
)
from sizing.catalog import Layout, Model, Precision, gpus, models
from sizing.edge import BY_FORMULA
from sizing.engine import Batching, Replica, StepLaw
from sizing.errors import DoesNotFit, ScenarioError
from sizing.estimate import estimate
from sizing.estimate.day_zero import ENGINES, rows, shipped
from sizing.estimate.timed import TWIN, distance, nearest, scaled
from sizing.plans import Candidate, Fleet, Rejection
from sizing.points import Point
from sizing.workload import Lengths, Workload
from tests.sizing.whatif_cases import LENGTHS, MIXTURE, QUESTION, QWEN, after

LLAMA = "meta-llama/Llama-3.3-70B-Instruct"


def measured(candidate: Candidate) -> Candidate:
    """The candidate as a fit to a point finds it that is just as estimated."""
    shape = {name: getattr(candidate, name) for name in ("model", "precision", "gpu", "engine")}
    shape |= {"tp": candidate.layout.tp, "isl": 2000, "osl": 256}
    point = Point(**shape, load_kind="concurrency", load_value=8, requests_per_s=1.0)
    return dataclasses.replace(candidate, basis="fitted", fitted_to=(point,))


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


def test_a_precision_whose_kernels_were_timed_slower_has_the_caution_of_its_estimate() -> None:
    """vLLM's of a small mixture of experts take twice as long in fp8 as in bf16: there is the caution, back there is
    none, and a change that leaves the precision as it is keeps it."""
    names = ("Qwen/Qwen3-30B-A3B", "h200_sxm", 1)
    narrow = estimate(*names, "fp8", LENGTHS, engine="vllm")
    (caution,) = narrow.warnings
    assert caution.kind == "slower_than_bf16"
    wide = estimate(*names, "bf16", LENGTHS, engine="vllm")
    assert after(AtPrecision("fp8"), wide).candidate.warnings == (caution,)
    assert after(AtPrecision("bf16"), narrow).candidate.warnings == ()
    assert [each.kind for each in after(AtTp(2), narrow).candidate.warnings] == ["slower_than_bf16"]


def test_fp8_is_blockwise_for_a_checkpoint_that_has_no_other() -> None:
    """DeepSeek-V3 is published in blocks of fp8: to ask for fp8 changes nothing, and one measured "in fp8" has the
    kernel timings of that."""
    there = estimate("deepseek-ai/DeepSeek-V3", "h200_sxm", 8, "fp8", LENGTHS)
    assert after(AtPrecision("fp8"), there).assumptions == ("the model is already in fp8_block: nothing changes",)
    measured = dataclasses.replace(there, precision="fp8", layout=Layout(4))
    assert "the ratio of the kernel timings" in after(AtTp(8), measured).assumptions[1]


@pytest.mark.parametrize(("change", "tp", "precision"), [(AtPrecision("fp8"), 2, "fp8"), (AtTp(4), 4, "bf16")])
def test_timed_changes_land_near_the_law_timed_there(change: WhatIf, tp: int, precision: str, bf16: Candidate) -> None:
    """Of an engine measured to be as its estimate, from one way to run the model to another: within 15 % of the
    estimate there at the question's lengths. What measured servers in fp8 have less beyond their kernels than those in
    bf16 is no part of the change: up to 13 %."""
    there = estimate(QWEN, "h200_sxm", tp, precision, LENGTHS).replica
    here = after(change, measured(bf16)).candidate.replica
    for batch in (1, 16, 64):
        kv_tokens = batch * 2128
        assert here.law.decode_s(batch, kv_tokens) == pytest.approx(there.law.decode_s(batch, kv_tokens), rel=0.15)
    assert here.law.prefill_alone_s(2000) == pytest.approx(there.law.prefill_alone_s(2000), rel=0.1)
    assert here.batching.kv_tokens == pytest.approx(there.batching.kv_tokens, rel=0.1)


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "precision", "change", "engine"),
    [
        (LLAMA, "h200_sxm", 1, "fp8", AtPrecision("bf16"), "trtllm"),  # timed of a model of the same shape
        ("01-ai/Yi-6B", "h100_sxm", 2, "fp8", AtPrecision("bf16"), "vllm"),  # scaled from a relative
        ("01-ai/Yi-6B", "b60", 2, "bf16", AtTp(4), "sglang"),  # by another engine's timings
        (QWEN, "mi300x", 2, "bf16", AtPrecision("fp8"), "sglang"),  # by roofline
        (QWEN, "h200_sxm", 2, "bf16", AtTp(4), "sglang"),  # timed itself
        (MIXTURE, "h200_sxm", 4, "fp8", AtTp(8), "trtllm"),
        ("openai/gpt-oss-120b", "h200_sxm", 2, "mxfp4", AtTp(4), "trtllm"),  # of whole experts, the only ones timed
    ],
)
def test_a_changed_estimate_is_the_one_asked_for_directly(
    model: str, gpu: str, tp: int, precision: str, change: AtPrecision | AtTp, engine: str
) -> None:
    """Law, memory, band and cautions; and back again."""
    here = estimate(model, gpu, tp, precision, LENGTHS, engine=engine)
    if isinstance(change, AtTp):
        there, back = estimate(model, gpu, change.to, precision, LENGTHS, engine=engine), AtTp(tp)
    else:
        there, back = estimate(model, gpu, tp, change.to, LENGTHS, engine=engine), AtPrecision(precision)
    changed = after(change, here)
    assert changed.candidate == dataclasses.replace(there, basis="what-if")
    assert back.apply(changed).candidate == dataclasses.replace(here, basis="what-if")  # type: ignore[attr-defined]


@pytest.mark.parametrize("layout", [Layout(8, ep=8), Layout(2, dp=4), Layout(4, pp=2)])
def test_another_tp_of_a_layout_that_was_asked_for_is_refused(layout: Layout) -> None:
    with pytest.raises(ScenarioError, match="ask for another one with --layout"):
        after(AtTp(2), estimate(MIXTURE, "h200_sxm", layout, "bf16", LENGTHS, engine="trtllm"))


@pytest.mark.parametrize("layout", [Layout(8, ep=8), Layout(dp=8, ep=8), Layout(2, dp=4, ep=8), Layout(4, pp=2)])
def test_the_cache_of_every_layout_grows_to_what_is_estimated_there(layout: Layout) -> None:
    bf16, fp8 = (estimate(MIXTURE, "h200_sxm", layout, form, LENGTHS, engine="trtllm") for form in ("bf16", "fp8"))
    here = after(AtPrecision("fp8"), bf16).candidate.replica
    assert here.batching.kv_tokens == pytest.approx(fp8.replica.batching.kv_tokens, rel=0.02)


def test_a_measured_model_changes_as_its_relative_does_where_it_was_not_timed_itself() -> None:
    """Llama-3.3-70B is Llama-3.1-70B trained on; Yi-34B lacks timings, of Qwen3-32B there are both."""
    ways = [(4, "bf16", AtPrecision("fp8")), (4, "fp8", AtTp(8))]
    for (tp, precision, change), model in product(ways, (LLAMA, "01-ai/Yi-34B")):
        here = measured(estimate(model, "h100_sxm", tp, precision, LENGTHS, engine="vllm"))
        changed = after(change, here)
        name = "Llama 3.1 70B" if model == LLAMA else "Qwen3 32B"
        assert f"for both, of its relative {name}" in changed.assumptions[1]
        before, there = sheet_of(here), sheet_of(changed.candidate)
        found = timed_ratios(before, there, LENGTHS)
        assert found is not None
        if model == LLAMA:
            twin = models()["meta-llama/Meta-Llama-3.1-70B"]
            own = timed_ratios(*(dataclasses.replace(each, model=twin) for each in (before, there)), LENGTHS)
            assert own == dataclasses.replace(found, relative="")
        else:
            assert found.sigma == RELATED_SIGMA["dense"]


def test_ratios_are_as_wrong_as_they_say() -> None:
    """Of a thousand pairs of timed laws: nine steps in ten lie within 1.645 sigma of their own ratio, by the timings of
    the model, by those of a relative, as if nobody had timed its shape, and by data sheet; in this order."""
    ways: list[tuple[Layout, Precision]] = [(Layout(tp), "bf16") for tp in (1, 2, 4, 8)]
    ways += [(layout, "fp8") for layout, _ in ways]
    pairs = [(one, other) for one, other in permutations(ways, 2) if (one[0] == other[0]) != (one[1] == other[1])]
    timed_gpus = [gpu for gpu in gpus().values() if gpu.timed]
    off: dict[str, dict[str, list[float]]] = {kind: defaultdict(list) for kind in ("dense", "moe")}
    rng = np.random.default_rng(3)
    for gpu, engine, pair in product(timed_gpus, ENGINES, pairs):
        known = [each for each in models().values() if all(was_timed(each, gpu.id, *way, engine) for way in pair)]
        for model in rng.choice(known, min(2, len(known)), replace=False):  # type: ignore[arg-type]
            relative = nearest(model, (each for each in known if distance(model, each) > TWIN))
            if relative is None:
                continue
            own, theirs = ([shipped(each, gpu.id, *way, engine).law for way in pair] for each in (model, relative))
            one, other = (scaled(law, relative, model, way[0]) for law, way in zip(theirs, pair, strict=True))
            laws = {
                "timed": ratios_of(*own, LENGTHS).of(own[0]),
                "relative": ratios_of(one, other, LENGTHS).of(own[0]),
                "sheet": by_data_sheet(own[0], *(Sheet(model, gpu, way[1], way[0], engine) for way in pair)),
            }
            for how, law in laws.items():
                off[model.kind][how] += list(abs(np.log(seconds(law)) - np.log(seconds(own[1]))))
    for kind, found in off.items():
        known_sigma = {"timed": TIMED_SIGMA[kind], "relative": RELATED_SIGMA[kind], "sheet": SHEET_SIGMA[kind]}
        for how, sigma in known_sigma.items():
            assert np.quantile(found[how], 0.9) == pytest.approx(1.645 * sigma, rel=0.15), (kind, how)
        assert np.mean(found["timed"]) < np.mean(found["relative"]) < np.mean(found["sheet"])


def was_timed(model: Model, gpu: str, layout: Layout, precision: str, engine: str) -> bool:
    row = rows(model.id).get((gpu, layout, precision, engine))
    return row is not None and not row["why_not"]


def seconds(law: StepLaw) -> list[float]:
    """Of decode steps of a few sequences and of many, and of prompts alone and beside them."""
    decodes = [law.decode_s(n, n * 2128) for n in (1, 8, 32, 128)]
    return [*decodes, law.prefill_alone_s(2000), law.mixed_s(32, 32 * 2128, 2048, 2048 * 1000)]


def test_there_and_back_is_where_we_were(bf16: Candidate) -> None:
    """fp8 and then bf16 again: the same law, and the same cache but for the tenth of freed memory the engine keeps."""
    back = AtPrecision("bf16").apply(after(AtPrecision("fp8"), measured(bf16))).candidate.replica
    assert back.law.seconds == pytest.approx(bf16.replica.law.seconds)
    assert back.batching.kv_tokens == pytest.approx(bf16.replica.batching.kv_tokens, rel=1e-5)


def test_data_sheet_ratios_where_nothing_was_timed(bf16: Candidate) -> None:
    """int4 was not timed on the H200: a quarter of the bytes, the same arithmetic, and the line says so."""
    sheet = sheet_of(bf16)
    int4 = dataclasses.replace(sheet, precision="int4")
    assert timed_ratios(sheet, int4, LENGTHS) is None
    law = by_data_sheet(bf16.replica.law, sheet, int4)
    assert law.decode_s(1, 0) < bf16.replica.law.decode_s(1, 0)
    assert law.token_s == pytest.approx(bf16.replica.law.token_s, rel=1e-12)
    changed = after(AtPrecision("int4"), bf16)
    assert "no kernel timings of both" in changed.assumptions[1]
    assert changed.candidate.relative_sigma > after(AtPrecision("fp8"), bf16).candidate.relative_sigma


def test_data_sheets_and_timings_agree_on_the_direction(bf16: Candidate) -> None:
    """TP4 by data sheet: decode between the timed law and half off, never slower than TP2."""
    sheet = sheet_of(bf16)
    four = by_data_sheet(bf16.replica.law, sheet, dataclasses.replace(sheet, layout=Layout(4)))
    timed = timed_ratios(sheet, dataclasses.replace(sheet, layout=Layout(4)), LENGTHS)
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


@pytest.mark.parametrize("engine", ["trtllm", "vllm", "sglang"])
@pytest.mark.parametrize(
    ("model", "gpu", "tp", "precision", "change", "there"),
    [
        (LLAMA, "h100_sxm", 2, "fp8", AtPrecision("bf16"), (2, "bf16")),  # by roofline: 9 GB for the cache, of 72
        (LLAMA, "h200_sxm", 2, "bf16", AtTp(1), (1, "bf16")),
        ("meta-llama/Llama-3.1-70B", "h100_sxm", 4, "bf16", AtTp(2), (2, "bf16")),
        ("meta-llama/Llama-3.1-70B", "h100_sxm", 2, "fp8", AtPrecision("bf16"), (2, "bf16")),
        (QWEN, "h100_sxm", 1, "fp8", AtPrecision("bf16"), (1, "bf16")),
        (QWEN, "h200_sxm", 2, "bf16", AtPrecision("fp8"), (2, "fp8")),
    ],
)
def test_a_changed_estimate_has_the_cache_of_the_direct_one(
    engine: str, model: str, gpu: str, tp: int, precision: str, change: WhatIf, there: tuple[int, str]
) -> None:
    """Where little is left beside the weights too: or neither fits. Llama-3.1-70B holds its embeddings in 16 bits and
    more activations in fp8; a roofline knows of no engine's share."""
    here = estimate(model, gpu, tp, precision, LENGTHS, engine=engine)
    try:
        direct = estimate(model, gpu, there[0], there[1], LENGTHS, engine=engine).replica.batching.kv_tokens
    except DoesNotFit:
        with pytest.raises(DoesNotFit):
            after(change, here)
        return
    assert after(change, here).candidate.replica.batching.kv_tokens == pytest.approx(direct, abs=2)


@pytest.mark.parametrize(("engine", "share"), [("vllm", 1.0), ("sglang", 1.0), ("trtllm", 0.9)])
def test_a_measured_cache_gets_what_the_engine_gives_it_of_freed_memory(engine: str, share: float) -> None:
    """vLLM and SGLang fill a share of all memory, so that every byte freed is the cache's; TensorRT-LLM gives nine
    tenths of what is free. Weights of 64 GB on two GPUs shrink to a quarter, in a precision that nobody timed: a tenth
    of what is freed, against what the cache then holds, is in the band."""
    bf16 = measured(estimate(QWEN, "h200_sxm", 2, "bf16", LENGTHS, engine=engine))
    changed = after(AtPrecision("int4"), bf16)
    was, now = sheet_of(bf16), sheet_of(changed.candidate)
    held = now.token_bytes * changed.candidate.replica.batching.kv_tokens
    freed = held - was.token_bytes * bf16.replica.batching.kv_tokens
    assert freed == pytest.approx(share * (was.weight_bytes - now.weight_bytes), rel=1e-3)
    added = math.sqrt(changed.candidate.relative_sigma**2 - bf16.relative_sigma**2 - SHEET_SIGMA["dense"] ** 2)
    assert added == pytest.approx(math.log(1 + 0.1 * freed / held), rel=1e-3)
    assert "by the weights alone" in changed.assumptions[1]
    assert "by the weights alone" not in after(AtPrecision("fp8"), bf16).assumptions[1]


def test_a_request_must_fit_in_the_cache_of_one_rank() -> None:
    """All eight ranks together would hold it in what they have left, and one alone does not."""
    layout, fp8 = Layout(dp=8, ep=8), estimate(MIXTURE, "h200_sxm", Layout(dp=8, ep=8), "fp8", LENGTHS, engine="trtllm")
    left = after(AtPrecision("bf16"), fp8).candidate.replica.batching.kv_tokens
    assert 0 < left < fp8.replica.batching.kv_tokens
    long = dataclasses.replace(QUESTION, workload=Workload(Lengths(left // layout.dp, 2), 1.0))
    with pytest.raises(DoesNotFit, match="GB more per GPU"):
        AtPrecision("bf16").apply(Setup(fp8, long))


def test_an_unknown_cache_stays_unknown(bf16: Candidate) -> None:
    """A fit that found no limit of the cache has none after the change either."""
    unlimited = Replica(bf16.replica.law, Batching())
    candidate = dataclasses.replace(bf16, replica=unlimited)
    assert after(AtPrecision("fp8"), candidate).candidate.replica.batching.kv_tokens == Batching().kv_tokens
