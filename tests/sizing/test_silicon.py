"""What measured servers have beyond their kernels: laws of the correction, and that a fit finds effects put in."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.catalog import Layout
from sizing.engine import COEFFICIENTS, StepLaw
from sizing.errors import CatalogueError
from sizing.estimate import day_zero, estimate
from sizing.estimate import silicon as silicon_module
from sizing.estimate.silicon import (
    EFFECTS,
    HALF,
    MIXTURES,
    WHOLE,
    Server,
    Shares,
    Silicon,
    corrected,
    silicon,
    with_effects,
)
from sizing.estimate.timed import RELATIVE_SIGMA
from sizing.files import resource
from sizing.points import Point
from sizing.workload import Lengths
from validation.evidence import silicon_fit
from validation.evidence.silicon_fit import (
    METRICS,
    Row,
    Studies,
    Study,
    as_started,
    given_sigmas,
    left_sigmas,
    predicted,
    sigmas,
)

LAW = StepLaw(5e-3, 1e-3, 20e-6, 10e-6, 50e-9, attention_s=1e-9, prefill_s=0.5e-3)
SEEN = Server("vllm", "h200_sxm", "fp8", "dense", model="dense 7.055e+10 80 64")
GROUPS = ("dense", "moe_hopper", "moe_blackwell")
effects = st.lists(st.floats(-2, 2), min_size=len(EFFECTS), max_size=len(EFFECTS)).map(np.array)
steps = st.tuples(st.integers(1, 512), st.integers(1, 8192), st.integers(1, 8192))


@given(effects, st.sampled_from(EFFECTS), st.floats(0.01, 1.0), steps)
def test_no_iteration_gets_shorter_as_an_effect_grows(
    effect: np.ndarray, grown: str, by: float, step: tuple[int, int, int]
) -> None:
    batch, context, prompt = step
    larger = effect.copy()
    larger[EFFECTS.index(grown)] += by
    before, after = with_effects(LAW, effect), with_effects(LAW, larger)
    assert after.decode_s(batch, batch * context) >= before.decode_s(batch, batch * context)
    held = batch, batch * context, prompt, prompt**2 / 2
    assert after.mixed_s(*held) >= before.mixed_s(*held)
    assert after.request_s >= before.request_s


@given(effects, st.floats(0.1, 10.0))
def test_what_scales_with_kernels_scales_and_the_host_does_not(effect: np.ndarray, factor: float) -> None:
    nothing = with_effects(StepLaw(0, 0, 0, 0, 0), effect)
    one, scaled = with_effects(LAW, effect), with_effects(LAW.scaled(factor), effect)
    for name in COEFFICIENTS:
        host_s = getattr(nothing, name)
        kernels_s = getattr(one, name) - host_s
        assert getattr(scaled, name) - host_s == pytest.approx(factor * kernels_s, rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("kind", silicon_fit.KINDS)
def test_a_server_of_no_known_class_has_the_mean_of_its_kind(kind: str) -> None:
    known = silicon()
    stranger = Server("an engine", "a gpu", "int3", kind)
    of_kind = known.effects[kind]
    expected = np.add(of_kind["all"][""], of_kind["kind"][kind])
    assert known.effect(stranger).tolist() == expected.tolist()
    assert corrected(LAW, stranger)[0] == with_effects(LAW, expected, HALF if kind == "dense" else MIXTURES)


@given(effects, st.floats(0, 1), st.floats(0, 1))
def test_a_share_lies_between_kernels_and_the_whole(effect: np.ndarray, steps: float, prompts: float) -> None:
    whole, part = with_effects(LAW, effect), with_effects(LAW, effect, Shares(steps, prompts))
    for kernels_s, part_s, whole_s in zip(LAW.seconds, part.seconds, whole.seconds, strict=True):
        assert min(kernels_s, whole_s) * (1 - 1e-9) <= part_s <= max(kernels_s, whole_s) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("engine", "kind", "steps", "prompts"),
    [("trtllm", "dense", 1.0, 0.5), ("trtllm", "moe", 0.5, 0.8), ("vllm", "dense", 0.5, 0.5)],
)
def test_steps_of_tensorrt_llm_dense_models_are_corrected_whole_their_prompts_least(
    engine: str, kind: str, steps: float, prompts: float
) -> None:
    server = replace(SEEN, engine=engine, kind=kind)
    law, whole = corrected(LAW, server)[0], with_effects(LAW, silicon().effect(server))

    def share(name: str) -> float:
        kernels_s = getattr(LAW, name)
        return float((getattr(law, name) - kernels_s) / (getattr(whole, name) - kernels_s))

    for name in ("weights_s", "overhead_s", "sequence_s", "kv_token_s"):
        assert share(name) == pytest.approx(steps)
    for name in ("token_s", "attention_s", "prefill_s", "request_s"):
        assert share(name) == pytest.approx(prompts)


def test_the_method_names_the_spread_of_estimates() -> None:
    told = resource("data/method/5-plan.md").read_text(encoding="utf-8")

    def wide(sigma: float) -> str:
        return f"{100 * math.sinh(1.645 * sigma):.0f}"

    both, model, gpu = (
        [wide(spread[group]["itl"]) for group in ("dense", "moe_hopper", "moe_blackwell")]
        for spread in (silicon().spread[left_out] for left_out in ("both", "model", "gpu"))
    )
    assert "{} % for dense models, {} % for MoE models, {} % for MoE models on Blackwell".format(*both) in told
    assert (
        "{}, {} and {} % if no server ran the model, {}, {} and {} % if none had the GPU".format(*model, *gpu) in told
    )
    relative, roofline = map(wide, RELATIVE_SIGMA.values()), map(wide, day_zero.ROOFLINE_SIGMA.values())
    assert "adds {} % (dense) or {} % (MoE) in quadrature, a roofline {} % or {} %".format(*relative, *roofline) in told
    further = map(wide, (day_zero.UNTIMED_SIGMA, day_zero.RANKS_SIGMA, day_zero.STAGES_SIGMA))
    assert "timings {} %; data-parallel attention adds {} %, pipeline stages {} %".format(*further) in told


@given(st.sampled_from(("vllm", "trtllm", "sglang")), st.sampled_from(("dense", "moe")), st.sampled_from(METRICS))
def test_less_known_is_never_surer(engine: str, kind: str, metric: str) -> None:
    known, server = silicon(), replace(SEEN, engine=engine, kind=kind)
    spread = [
        known.sigma(one, metric)
        for one in (server, replace(server, model="a model"), replace(server, model="a model", gpu="a gpu"))
    ]
    assert spread == sorted(spread)
    assert known.sigma(replace(server, gpu="a gpu"), metric) >= spread[0]


def test_the_shipped_file_tells_every_class() -> None:
    known = silicon()
    assert set(known.spread) == {"both", "model", "gpu"}
    for of_kind in known.spread.values():
        assert set(of_kind) == set(GROUPS)
        assert all(0 < of_kind[kind][metric] < 2 for kind in GROUPS for metric in METRICS)
    assert set(known.effects) == set(silicon_fit.KINDS)
    for levels in known.effects.values():
        assert all(len(row) == len(EFFECTS) for level in levels.values() for row in level.values())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "No such file"),
        ("{", "JSON"),
        ('{"effects": 3}', "effects"),
        ('{"effects": {"all": {"": [0.1]}}, "spread": {}, "models": [], "gpus": []}', "effects.all"),
        ('{"effects": {"dense": {}}, "spread": {}, "models": [], "gpus": []}', "no effects of moe"),
    ],
)
def test_a_faulty_file_of_effects_is_one_line(
    text: str | None, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "silicon.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(silicon_module, "SILICON", path)
    with pytest.raises(CatalogueError) as told:
        silicon.__wrapped__()
    assert str(path) in str(told.value) and why in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(("kind", "other"), [("dense", "moe"), ("moe", "dense")])
def test_no_kind_is_told_what_only_the_other_has(kind: str, other: str) -> None:
    levels = silicon().effects[kind]
    assert not any(other in name.split() for names in levels.values() for name in names)


@pytest.mark.parametrize("kind", silicon_fit.KINDS)
def test_what_an_engine_shows_with_one_kind_counts_for_the_other(kind: str) -> None:
    """All measured servers of SGLang ran mixtures; dense models are told of it, and of Blackwell."""
    levels = silicon().effects[kind]
    assert any(levels["engine"]["sglang"]) and any(levels["generation"]["blackwell"])


@given(st.floats(1.0, 5.0))
def test_the_spread_grows_with_the_errors(factor: float) -> None:
    off = np.random.default_rng(3).normal(size=(50, len(METRICS)))
    assert np.allclose(sigmas(factor * off), factor * np.array(sigmas(off)))


def test_the_spread_of_a_group_is_that_of_the_others() -> None:
    kinds, groups = np.array(["dense"] * 4), np.array(["a", "a", "b", "b"])
    off = np.array([[9.0] * 3, [9.0] * 3, [0.1] * 3, [0.1] * 3])
    found = left_sigmas(off, kinds, groups)
    assert np.allclose(found[:2], 0.1 / 1.645)
    assert np.allclose(found[2:], 9.0 / 1.645)


def _rows(truth: dict[str, np.ndarray], of_b: np.ndarray | float = 0.0, kind: str = "dense") -> list[Row]:
    """Closed loops of three models on two GPUs, measured on servers that have the effects of their engine, and those of
    model b `of_b` beside."""
    asked = []
    for engine, gpu, model in [(e, g, m) for e in truth for g in ("h100_sxm", "h200_sxm") for m in "abc"]:
        law = LAW.scaled({"a": 0.5, "b": 1.0, "c": 2.0}[model])
        server = Server(engine, gpu, "fp8", kind, model=model)
        for users in (2, 8, 32, 128):
            point = Point(
                model=model,
                precision="fp8",
                gpu=gpu,
                tp=1,
                engine=engine,
                isl=1000,
                osl=200,
                load_kind="concurrency",
                load_value=users,
                requests=10 * users,
                requests_per_s=1.0,
            )
            effect = truth[engine] + of_b * (model == "b")
            ttft, itl, _ = np.exp(predicted([with_effects(law, effect)], [10**7], [point])[0])
            told = replace(point, ttft_mean_s=float(ttft), itl_mean_s=float(itl))
            asked.append(Row(told, law, 10**7, server, "a client", (1, 1)))
    return asked


def test_effects_put_in_are_found_where_groups_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two engines that differ: errors of servers left out are half of those of bare kernels, or less, by the whole of
    the correction."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    slow, fast = np.array([0.3, 0.4, 0.0, 0.1, 0.2, 0.3]), np.array([-0.2, -0.3, 0.0, 0.0, 0.0, 0.0])
    rows = _rows({"vllm": slow, "trtllm": fast})
    study = Studies(rows)
    bare = predicted([row.law for row in rows], [row.kv_tokens for row in rows], [row.point for row in rows])
    before, after = np.abs(bare - study.measured), np.abs(study.off["both"])
    print("median error", np.median(before, axis=0), np.median(after, axis=0))
    assert (np.median(after, axis=0) < np.median(before, axis=0) / 2).all()
    found = study.silicon()
    assert isinstance(found, Silicon)
    one, other = (found.effect(Server(engine, "h100_sxm", "fp8", "dense"))[0] for engine in ("vllm", "trtllm"))
    assert one - other == pytest.approx(0.5, abs=0.15)


def test_the_spread_is_that_of_the_share_that_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing of a correction is, what is left is the error of bare kernels with a host that takes no time."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: Shares(0.0, 0.0))
    rows = _rows({"vllm": np.array([0.3, 0.4, 0.0, 0.1, 0.2, 0.3])})
    study = Studies(rows, steps=1)
    bare = predicted([row.law for row in rows], [row.kv_tokens for row in rows], [row.point for row in rows])
    assert study.off["both"] == pytest.approx(bare - study.measured)


def test_what_a_model_has_shown_on_one_gpu_counts_on_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of one model are a third too fast: ITL errs by a third less where it is left out on one GPU, not both."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    nothing = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    study = Studies(_rows({"vllm": nothing, "trtllm": nothing}, of_b=np.array([0.4, 0.0, 0.0, 0.0, 0.0, 0.0])))
    own = [row.server.model == "b" for row in study.rows]
    pair, everywhere = (float(np.median(np.abs(study.off[left_out][own, 1]))) for left_out in ("both", "model"))
    print(f"median error of ITL: {pair:.3f} left out on one GPU, {everywhere:.3f} on both")
    assert pair < 0.7 * everywhere


def test_prompts_of_a_mixture_may_differ_more_than_those_of_a_dense_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of model b take half as long again beyond its kernels, on both GPUs: left out on one, most of that is
    known of a mixture, and little of a dense model; what is left out of a mixture's fit errs by less."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    nothing, slower = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0]), np.array([0.0, 0.0, 0.0, 0.4, 0.0, 0.0])
    found = {}
    for kind in silicon_fit.KINDS:
        studies = Studies(_rows({"vllm": nothing}, of_b=slower, kind=kind), steps=2)
        own = [row.server.model == "b" for row in studies.rows]
        found[kind] = float(np.median(np.abs(studies.off["both"][own, 0])))
    print(f"median error of TTFT: {found['moe']:.3f} of a mixture, {found['dense']:.3f} of a dense model")
    assert found["moe"] < found["dense"] / 2


def test_each_kind_is_predicted_by_its_own_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of both kinds come back in their own places, with the errors of their own kind's study."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    effect = np.array([0.3, 0.0, 0.0, 0.2, 0.0, 0.0])
    dense, moe = (_rows({"vllm": effect}, kind=kind)[::3] for kind in silicon_fit.KINDS)
    rows = [row for pair in zip(moe, dense, strict=True) for row in pair]
    studies = Studies(rows, steps=1)
    assert [study.kind for study in studies.of_kind] == ["dense", "moe"]
    for place, study in enumerate(studies.of_kind):
        assert study.off("gpu") == pytest.approx(studies.off["gpu"][1 - place :: 2])
        assert study.own.tolist() == [row.server.kind == study.kind for row in rows]
    assert set(studies.silicon().effects) == {"dense", "moe"}


def test_only_mixtures_are_told_widely_of_mixtures() -> None:
    """The wider deviations are those of mixtures' own columns, in the mixtures' study; an engine that ran one kind only
    is told of to both, a model or class to its own kind."""
    effect = np.zeros(len(EFFECTS))
    ours = _rows({"vllm": effect}, kind="dense")[::4]
    mixtures = _rows({"sglang": effect}, kind="moe")[::4]
    rows = ours + [replace(row, server=replace(row.server, model=f"{row.server.model} moe")) for row in mixtures]
    dense, moe = (Study(rows, kind, steps=0) for kind in silicon_fit.KINDS)
    for (level, name), place in moe.columns.items():
        assert dense.sigmas[place].tolist() == given_sigmas(level).tolist()
        own = not any(row.levels[level] == name for row in ours)
        assert moe.sigmas[place].tolist() == given_sigmas(level, own).tolist(), name
    assert not np.array_equal(dense.sigmas, moe.sigmas)
    for study, models in ((dense, {"a", "b", "c"}), (moe, {"a moe", "b moe", "c moe"})):
        found = study.found()
        assert set(found["model"]) == models
        assert set(found["engine"]) == {"vllm", "sglang"}
        assert set(found["kind"]) == {study.kind}
        assert len(found["class"]) == 1


def test_one_server_that_is_far_off_hardly_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row whose TTFT and ITL are e^4 times the others' moves the mean of all servers by little."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    rows = _rows({"vllm": np.array([0.3, 0.0, -1.0, 0.0, 0.0, 0.0])})
    point = rows[5].point
    assert point.ttft_mean_s and point.itl_mean_s
    far = replace(point, ttft_mean_s=point.ttft_mean_s * math.exp(4), itl_mean_s=point.itl_mean_s * math.exp(4))
    with_it = [*rows[:5], replace(rows[5], point=far), *rows[6:]]
    clean, spoilt = (Study(one, "dense", steps=1).found()["all"][""][0] for one in (rows, with_it))
    print(f"mean effect on steps {clean:.3f}, with one row far off {spoilt:.3f}")
    assert abs(spoilt - clean) < 0.03


@pytest.mark.parametrize("apart", [0.0, 0.8])
def test_the_likely_deviations_are_those_that_the_rows_have(apart: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models whose prompts differ by e^0.8 are told to differ more than is given; models that do not, less."""
    monkeypatch.setattr(silicon_fit, "shares_of", lambda server: WHOLE)
    of_engine = np.array([0.0, 0.0, -1.0, 0.0, 0.0, 0.0])
    rows = _rows({"vllm": of_engine}, of_b=np.array([0.0, 0.0, 0.0, apart, 0.0, 0.0]))
    found = Study(rows, "dense", steps=2).likely_sigmas()
    likely, given = found["model"][3], given_sigmas("model")[3]
    print(f"deviation between models: {likely:.3f}, given {given:.3f}")
    assert likely > 1.4 * given if apart else likely < given
    assert found["gpu"][3] <= 1.02 * given_sigmas("gpu")[3]
    assert set(found) == set(silicon_fit.LEVEL_SIGMAS) - {"kind", "engine, kind"}
    assert all((row[:3] == given_sigmas(level)[:3]).all() for level, row in found.items())


def test_models_of_one_shape_are_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Llama 3.3 is Llama 3.1 to a GPU, and as well known."""
    servers: list[Server] = []
    monkeypatch.setattr(day_zero, "corrected", lambda law, server: (servers.append(server), corrected(law, server))[1])
    asked = ("h200_sxm", Layout(4), "fp8", Lengths(1000, 200))
    one, other = (estimate(f"meta-llama/{name}", *asked) for name in ("Meta-Llama-3.1-70B", "Llama-3.3-70B-Instruct"))
    assert one.replica.law == other.replica.law
    assert one.relative_sigma == other.relative_sigma
    assert {server.model in silicon().models for server in servers} == {True}


def started(engine: str, gpu: str, precision: str, kind: str, users: int, isl: float, osl: float, **more: Any) -> Point:
    """A row of a client with how its server was started."""
    version, tp = more.get("version", ""), more.get("tp", 8)
    point = Point(
        model="m",
        precision=precision,
        gpu=gpu,
        tp=tp,
        engine=engine,
        isl=isl,
        osl=osl,
        load_kind="concurrency",
        load_value=users,
        requests_per_s=1.0,
    )
    return as_started(point, Server(engine, gpu, precision, kind, version), more.get("client", "InferenceX"))


@pytest.mark.parametrize(
    ("tp", "isl", "osl", "steps"),
    [(4, 921.6, 921.6, 20), (8, 921.6, 921.6, 0), (4, 921.6, 7372.8, 0), (1, 7373, 922, 0)],
)
def test_prompts_of_some_measured_servers_waited_for_others(tp: int, isl: float, osl: float, steps: int) -> None:
    """InferenceX, benchmarks/70b_*_trt_slurm.sh: 1k/1k on fewer than eight GPUs."""
    point = started("trtllm", "b200_sxm", "fp8", "dense", 64, isl, osl, tp=tp)
    assert (point.policy, point.token_budget) == ("whole_prompt", 16_384)
    assert (point.batch_wait_steps, point.batch_wait_ratio) == (steps, 0.9)


@pytest.mark.parametrize(
    ("precision", "users", "isl", "version", "budget"),
    [
        ("mxfp4", 64, 921.6, "1.2.0rc2", 20_000),
        ("nvfp4", 64, 921.6, "", 2200),
        ("fp8_block", 64, 921.6, "1.1.0rc2.post2", 1152),
        ("fp8_block", 100, 7372.8, "", 8384),
        ("fp8_block", 64, 921.6, "1.2.0rc6.post2", 8192),
        ("fp8_block", 100, 7372.8, "1.2.0rc6.post2", 8384),
    ],
)
def test_budgets_of_measured_mixtures(precision: str, users: int, isl: float, version: str, budget: int) -> None:
    """InferenceX, benchmarks/{gptoss,dsr1}_*_trt*.sh."""
    point = started("trtllm", "b200_sxm", precision, "moe", users, isl, 921.6, version=version)
    assert (point.policy, point.token_budget, point.batch_wait_steps) == ("whole_prompt", budget, None)


@pytest.mark.parametrize(
    ("gpu", "precision", "users", "budget", "interval"),
    [("b200_sxm", "nvfp4", 8, 16_384, 10), ("b300_sxm", "fp8", 16, 32_768, 30), ("h200_sxm", "fp8", 64, 32_768, 1)],
)
def test_measured_sglang_looked_for_requests_now_and_then(
    gpu: str, precision: str, users: int, budget: int, interval: int
) -> None:
    """InferenceX, benchmarks/dsr1_*.sh."""
    point = started("sglang", gpu, precision, "moe", users, 921.6, 921.6)
    assert (point.token_budget, point.receive_interval_steps) == (budget, interval)


def test_what_nothing_is_known_of_is_started_by_its_defaults() -> None:
    rows = ("vllm", "InferenceX"), ("sglang", "NVIDIA")
    for engine, client in rows:
        point = started(engine, "h200_sxm", "fp8", "dense", 64, 1024, 512, client=client)
        assert (point.policy, point.token_budget, point.receive_interval_steps) == ("", None, None)
    for engine, policy in (("trtllm", "whole_prompt"), ("vllm", "")):
        point = started(engine, "h100_sxm", "fp8", "dense", 64, 1024, 512, client="NVIDIA")
        assert (point.policy, point.token_budget) == (policy, 512 + 1024 + 1500)
