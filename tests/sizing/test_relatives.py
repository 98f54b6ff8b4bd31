"""A law scaled from a relative: what causes a coefficient scales it, and its error is the one that is stated."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.catalog import Layout, Model, models
from sizing.engine import StepLaw
from sizing.estimate import estimate
from sizing.estimate.day_zero import LAWS, layout_of, read_rows, timed_of
from sizing.estimate.timed import RELATIVE_SIGMA, distance, nearest, scaled
from sizing.numbers import Floats
from sizing.text import caution
from sizing.workload import Lengths
from tests.sizing.steps_of_laws import steps

LLAMA, QWEN = models()["meta-llama/Meta-Llama-3.1-8B"], models()["Qwen/Qwen3-8B"]
LAW = StepLaw(4e-3, 1e-3, 1e-5, 1e-6, 1e-8, 1e-10, 1e-4)
MODELS = st.sampled_from(sorted(models().values(), key=lambda model: model.id))


def shape(model: Model) -> tuple[float, ...]:
    """What models that differ only by name or training share."""
    return model.layers, model.heads, model.head_size, round(model.parameters / 1e8)


@given(MODELS, st.sampled_from([1, 2, 4, 8]))
def test_a_model_scaled_from_itself_keeps_its_law(model: Model, tp: int) -> None:
    assert scaled(LAW, model, model, Layout(tp)).seconds == pytest.approx(LAW.seconds)
    assert distance(model, model) == 0


@given(MODELS, MODELS, MODELS)
def test_distance_is_a_metric(one: Model, two: Model, three: Model) -> None:
    assert distance(one, two) == pytest.approx(distance(two, one))
    assert distance(one, three) <= distance(one, two) + distance(two, three) + 1e-9


@pytest.mark.parametrize("times", [2, 3])
def test_more_layers_take_as_much_longer(times: int) -> None:
    """A model of twice the layers, all else alike, has every step twice as long."""
    deeper = replace(
        LLAMA,
        layers=times * LLAMA.layers,
        parameters=times * LLAMA.parameters,
        active_parameters=times * LLAMA.active_parameters,
        kv_values_per_token=times * LLAMA.kv_values_per_token,
    )
    assert steps(scaled(LAW, LLAMA, deeper, Layout(2))) == pytest.approx(steps(LAW) + np.log(times))


def test_the_nearest_is_of_the_same_kind() -> None:
    assert nearest(LLAMA, [models()["openai/gpt-oss-20b"], QWEN, models()["Qwen/Qwen3-32B"]]) is QWEN
    assert nearest(LLAMA, [models()["openai/gpt-oss-20b"]]) is None


def test_a_model_under_another_name_has_the_law_of_its_shape() -> None:
    """Llama 3.3 70B is Llama 3.1 70B trained on: the same law, with no more doubt."""
    lengths = Lengths(2000, 256)
    again = estimate("meta-llama/Llama-3.3-70B-Instruct", "h200_sxm", 4, "fp8", lengths)
    known = estimate("meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 4, "fp8", lengths)
    assert again.replica.law.seconds == pytest.approx(known.replica.law.seconds, rel=1e-3)
    assert again.replica.batching.kv_tokens == pytest.approx(known.replica.batching.kv_tokens, rel=0.05)
    assert again.relative_sigma == pytest.approx(known.relative_sigma)
    assert again.warnings == ()
    assert "of the same shape" in again.source


def test_a_scaled_law_says_so() -> None:
    found = estimate("01-ai/Yi-34B", "h100_sxm", 2, "bf16", Lengths(2000, 256))
    assert found.relative_sigma > RELATIVE_SIGMA["dense"]
    assert [each.kind for each in found.warnings] == ["scaled_law"]
    assert "scaled from the law of " in caution(found.warnings[0])


@cache
def nearest_of_another_shape(name: str, among: tuple[str, ...]) -> Model | None:
    """The nearest relative among these; kept, for most GPUs and layouts have laws of the same models."""
    model = models()[name]
    return nearest(model, (other for other in map(models().__getitem__, among) if shape(other) != shape(model)))


@pytest.mark.long
def test_laws_of_models_left_out_lie_in_the_stated_band() -> None:
    """Every shape of the catalogue left out, its laws predicted from its nearest relative of another shape: 90 % of the
    steps within 1.645 sigma, each shape with the same weight."""
    laws = {
        (cells["gpu"], layout_of(cells), cells["precision"], cells["engine"], cells["model"]): timed_of(cells).law
        for cells in read_rows(LAWS)
        if not cells["why_not"]
    }
    groups: dict[tuple[str, Layout, str, str], list[str]] = defaultdict(list)
    for gpu, layout, precision, engine, name in laws:
        groups[gpu, layout, precision, engine].append(name)
    errors: dict[str, dict[tuple[float, ...], list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for group, members in groups.items():
        for model in map(models().__getitem__, members):
            relative = nearest_of_another_shape(model.id, tuple(members))
            if relative is not None:
                guess = scaled(laws[*group, relative.id], relative, model, group[1])
                errors[model.kind][shape(model)].append(np.abs(steps(guess) - steps(laws[*group, model.id])))
    for kind, shapes in errors.items():
        of_shape = [np.concatenate(found) for found in shapes.values()]
        within = np.mean([np.mean(each < 1.645 * RELATIVE_SIGMA[kind]) for each in of_shape])
        middle = np.mean([np.median(each) for each in of_shape])
        factor = np.exp(1.645 * RELATIVE_SIGMA[kind])
        print(f"{kind}: {len(shapes)} shapes, {within:.1%} within a factor of {factor:.2f}, median error {middle:.1%}")
        assert 0.88 < within < 0.95
