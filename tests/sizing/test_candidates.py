"""Which candidates a choice and the points at hand give: measured where measured, estimated elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sizing.candidates import Choice, find
from sizing.errors import CatalogueError, ScenarioError
from sizing.points import Point
from sizing.text import caution
from sizing.workload import Lengths

LENGTHS = Lengths(100, 20)
MODEL = "Qwen/Qwen3-8B"


def measured(model: str, gpu: str, tp: int = 1) -> list[Point]:
    """A small closed loop: 10 ms a token, 50 ms a prompt, a little more with every user."""
    points = []
    for users in (1, 2, 4, 8):
        ttft, itl = 0.05 + 0.002 * users, 0.010 + 0.0005 * users
        e2e = ttft + 19 * itl
        points.append(
            Point(
                model=model,
                precision="bf16",
                gpu=gpu,
                tp=tp,
                isl=100,
                osl=20,
                load_kind="concurrency",
                load_value=users,
                requests_per_s=users / e2e,
                ttft_mean_s=ttft,
                itl_mean_s=itl,
                e2e_mean_s=e2e,
            )
        )
    return points


def test_a_deployment_that_cannot_hold_the_request_is_left_out_of_the_others() -> None:
    """Long prompts among those of varied lengths never fit."""
    small = [replace(point, kv_tokens=1000, isl_cv=3.0) for point in measured("acme/m", "acme-gpu", tp=2)]
    found, rejected = find("acme/m", LENGTHS, Choice(), [*measured("acme/m", "acme-gpu"), *small])
    assert [candidate.layout.tp for candidate in found] == [1]
    assert [(each.kind, each.layout.tp) for each in rejected] == [("memory", 2)]


def bases(model: str, choice: Choice, points: list[Point]) -> dict[tuple[str, int], str]:
    found, _ = find(model, LENGTHS, choice, points)
    return {(candidate.gpu, candidate.layout.tp): candidate.basis for candidate in found}


def test_a_measured_configuration_replaces_its_estimate_and_no_other() -> None:
    choice = Choice(("h200_sxm",), ("bf16",), (1, 2))
    assert bases(MODEL, choice, measured(MODEL, "h200_sxm")) == {
        ("h200_sxm", 1): "fitted",
        ("h200_sxm", 2): "estimated",
    }


@pytest.mark.parametrize(("model", "gpu"), [("another/model", "h200_sxm"), (MODEL, "b200_sxm")])
def test_points_of_another_model_or_gpu_leave_the_estimates_alone_and_the_answer_says_so(model: str, gpu: str) -> None:
    choice, points = Choice(("h200_sxm",), ("bf16",), (1,)), measured(model, gpu)
    (*found,), _ = find(MODEL, LENGTHS, choice, points)
    assert {each.basis for each in found} == {"estimated"}
    (unused,) = (each for each in found[0].warnings if each.kind == "unused_points")
    assert f"the points hold: {model} on {gpu} TP1 bf16" in caution(unused)
    of_a_store, _ = find(MODEL, LENGTHS, choice, points, expected=False)
    assert "unused_points" not in {warning.kind for each in of_a_store for warning in each.warnings}


def test_a_model_is_the_same_by_each_of_its_names() -> None:
    """`Qwen3-8B` is the catalogue's short name: points under either are of one model."""
    choice = Choice(("h200_sxm",), ("bf16",), (1,))
    for asked, told in ((MODEL, "Qwen3-8B"), ("Qwen3-8B", MODEL), ("qwen/QWEN3-8b", MODEL)):
        assert bases(asked, choice, measured(told, "h200_sxm")) == {("h200_sxm", 1): "fitted"}


def test_estimates_beside_points_are_of_the_measured_engine_whichever_layout_is_asked_for() -> None:
    points = [replace(point, engine="vllm") for point in measured(MODEL, "h200_sxm")]
    for tps in ((1, 2), (2,)):
        found, _ = find(MODEL, LENGTHS, Choice(("h200_sxm",), ("bf16",), tps), points)
        assert {each.engine for each in found} == {"vllm"}


def test_a_model_and_a_gpu_of_ones_own_need_no_catalogue() -> None:
    points = measured("own/model", "My GPU")
    assert bases("own/model", Choice(("My GPU",)), points) == {("My GPU", 1): "fitted"}
    assert bases("own/model", Choice(("My GPU", "h200_sxm")), points) == {("My GPU", 1): "fitted"}


def test_basis_measured_leaves_estimates_out() -> None:
    choice = Choice(("h200_sxm",), ("bf16",), (1, 2), "measured")
    assert bases(MODEL, choice, measured(MODEL, "h200_sxm")) == {("h200_sxm", 1): "fitted"}


def test_lengths_far_from_the_measured_ones_are_extrapolated() -> None:
    found, _ = find(MODEL, Lengths(2000, 20), Choice(), measured(MODEL, "h200_sxm"))
    assert [candidate.basis for candidate in found] == ["extrapolated"]


def test_what_nobody_knows_is_refused() -> None:
    with pytest.raises(CatalogueError):
        find("no/such", LENGTHS, Choice(("h200_sxm",)))
    with pytest.raises(ScenarioError, match="--gpu"):
        find(MODEL, LENGTHS, Choice())
    with pytest.raises(ScenarioError, match="give measured points"):
        find(MODEL, LENGTHS, Choice(("h200_sxm",), basis="measured"))
    with pytest.raises(ScenarioError, match="the points hold"):
        find(MODEL, LENGTHS, Choice(), measured("another/model", "My GPU"))
