"""LoRA adapters in the engine: read from a request's tensors, added to the right weights, mixed in one batch."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.reference.engine.lora import Adapter, read_adapter
from lab.reference.engine.refusals import InputError
from lab.reference.engine.shape import Shape
from tests.calibration.adapter_files import (
    ALL_MODULES,
    everywhere,
    make_adapter,
    read_adapter_files,
    widths,
    write_adapter,
)
from tests.calibration.engine_process import SMALL, run

MODEL = {name: int(SMALL[name]) for name in ("hidden", "layers", "heads", "kv_heads")}
SHAPE = Shape(**MODEL, vocab_size=300)
REUSING = SMALL | {"enable_kv_cache_reuse": "True", "kv_tokens": "1024"}
STATIC = SMALL | {"gpt_model_type": "V1"}
PROMPT = [3 + 7 * number % 290 for number in range(55)]  # read in two chunks
FIRST, SECOND = {"rows": everywhere(2, 4), "seed": 1}, {"rows": everywhere(2, 9, (1, 3, 6)), "seed": 2}
STATES = [None, FIRST, SECOND]
MIXED = [
    {"prompt": [5 + number, *PROMPT[: 8 * number + 3]], "max_tokens": 12, "adapter": STATES[number % 3]}
    for number in range(6)
]

SAME = [{"prompt": PROMPT, "max_tokens": 6, "adapter": STATES[number % 3], "waits": True} for number in range(6)]


def lone(modules: tuple[int, ...]) -> dict[str, Any]:
    """One request whose adapter has other sizes in the two layers."""
    rows = [(module, layer, size) for module in modules for layer, size in ((0, 4), (1, 7))]
    request = {
        "prompt": PROMPT,
        "max_tokens": 9,
        "adapter": {"rows": rows, "seed": 3},
        "scalars": {"return_generation_logits": True, "return_context_logits": True},
        "outputs": ["output_ids", "context_logits", "generation_logits"],
        "compare": True,
    }
    return {"parameters": SMALL, "requests": [request]}


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """All scenarios of this module in one process: importing torch is most of the time."""
    scenarios = {f"module_{module}": lone((module,)) for module in ALL_MODULES}
    scenarios["all"] = lone(tuple(ALL_MODULES))
    scenarios["none"] = lone(())
    scenarios["none"]["requests"][0]["adapter"] = None
    scenarios["mixed"] = {"parameters": SMALL, "requests": MIXED}
    scenarios["same_prompts"] = {"parameters": SMALL, "requests": SAME[:3]}
    scenarios["same_prompts_reused"] = {"parameters": REUSING, "requests": SAME}
    scenarios["mixed_static"] = {"parameters": STATIC, "requests": MIXED}
    for number, request in enumerate(MIXED):
        scenarios[f"alone_{number}"] = {"parameters": SMALL, "requests": [request]}
        scenarios[f"bare_{number}"] = {"parameters": SMALL, "requests": [{**request, "adapter": None}]}
    return dict(zip(scenarios, run("engine_answers.py", *scenarios.values()), strict=True))


def ids(found: dict[str, Any], number: int = 0) -> list[int]:
    whole: list[int] = found["said"][number][0]["output_ids"][0][0]
    return whole


def logits(found: dict[str, Any]) -> np.ndarray:
    """Those of the prompt, and those that the tokens after the first were chosen from."""
    answer = found["said"][0][0]
    return np.concatenate([answer["context_logits"][0], answer["generation_logits"][0][0][1:]])


@pytest.mark.triton
@pytest.mark.parametrize("scenario", [*(f"module_{module}" for module in ALL_MODULES), "all"])
def test_an_adapter_is_what_changing_the_weights_by_hand_is(found: dict[str, Any], scenario: str) -> None:
    by_hand = np.array(found[scenario]["formulas"][0])[:-1]
    assert np.abs(logits(found[scenario]) - by_hand).max() < 1e-4 * by_hand.std()
    assert np.abs(by_hand[:5] - logits(found["none"])[:5]).max() > 0.02 * by_hand.std()  # it does change something


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["mixed", "mixed_static"])
def test_three_lora_states_in_one_batch_get_what_each_gets_alone(found: dict[str, Any], engine: str) -> None:
    for number in range(6):
        assert ids(found[engine], number) == ids(found[f"alone_{number}"])
    assert found[engine]["groups"] == 2  # both adapters were at work in one pass


@pytest.mark.triton
def test_adapters_change_the_tokens_and_only_of_their_own_requests(found: dict[str, Any]) -> None:
    for number, request in enumerate(MIXED):
        is_bare = ids(found["mixed"], number) == ids(found[f"bare_{number}"])
        assert is_bare == (request["adapter"] is None)


@pytest.mark.triton
def test_prefixes_are_kept_apart_by_adapter(found: dict[str, Any]) -> None:
    keys = [key for key, _ in found["mixed"]["keys"]]
    assert keys[:3] == keys[3:]
    assert keys[0] == ""
    assert len({*keys[:3]}) == 3


@pytest.mark.triton
def test_a_prefix_in_the_cache_is_used_by_the_same_adapter_alone(found: dict[str, Any]) -> None:
    """The same prompt one request after the other, with the cache keeping prefixes, and then all over again."""
    fresh = [ids(found["same_prompts"], number) for number in range(3)]
    assert [ids(found["same_prompts_reused"], number) for number in range(6)] == fresh * 2
    assert len({tuple(tokens) for tokens in fresh}) == 3


def changed(weights: np.ndarray, config: np.ndarray, at: tuple[int, ...], value: int) -> tuple[np.ndarray, np.ndarray]:
    config = config.copy()
    config[at] = value
    return weights, config


WEIGHTS, CONFIG = make_adapter(MODEL, [(1, 0, 4), (6, 1, 2)], seed=4)


@pytest.mark.parametrize(
    ("weights", "config", "says"),
    [
        (WEIGHTS, None, "must have both lora_weights and lora_keys: lora_config is missing"),
        (None, CONFIG, "must have both lora_weights and lora_keys: lora_weights is missing"),
        (WEIGHTS[0], CONFIG, "Invalid shape for lora_weights tensor"),
        (WEIGHTS, CONFIG[0], "Invalid shape for lora_keys tensor"),
        (np.repeat(WEIGHTS, 2, axis=0), CONFIG, "batch dimension to be 1 for each lora request, got 2"),
        (WEIGHTS[:, :1], CONFIG, "dim1 lora_weights and lora_keys to have the same size, got 1 and 2"),
        (WEIGHTS, CONFIG[:, :, :2], "dim2 of lora_keys to have a size of 3, got 2"),
        (*changed(WEIGHTS, CONFIG, (0, 0, 0), 8), "lora module 8 not enabled for this model: row 0"),
        (*changed(WEIGHTS, CONFIG, (0, 0, 0), -1), "lora module -1 not enabled"),
        (
            *changed(WEIGHTS, CONFIG, (0, 1, 1), 2),
            r"layerId to be in the range \[0, numModelLayers\): row 1 has 2 of 2",
        ),
        (*changed(WEIGHTS, CONFIG, (0, 1, 1), -1), "layerId to be in the range"),
        (*changed(WEIGHTS, CONFIG, (0, 1, 2), 0), "adapterSize to be > 0: row 1 has 0"),
        (
            *changed(WEIGHTS, CONFIG, (0, 0, 2), 5),
            r"to few values for attn_q: row 0 has 512, .* 5 x \(64 \+ 64\) = 640",
        ),
        (WEIGHTS * np.float16(np.inf), CONFIG, "not finite"),
    ],
)
@pytest.mark.filterwarnings("ignore:invalid value encountered")
def test_what_does_not_fit_the_model_is_refused_in_one_line(
    weights: np.ndarray | None, config: np.ndarray | None, says: str
) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_adapter(weights, config, SHAPE)
    assert "\n" not in str(caught.value)


def read(weights: np.ndarray, config: np.ndarray) -> Adapter:
    adapter = read_adapter(weights, config, SHAPE)
    assert adapter is not None
    return adapter


def test_rows_are_cut_into_a_and_b_and_the_filling_is_left() -> None:
    values = np.arange(600, dtype=np.float16)[None, None]
    part = read(values, np.array([[[2, 1, 3]]], np.int32)).parts[0]
    inputs, outputs = widths(**MODEL)[2]
    assert (part.layer, part.module.name, part.module.first) == (1, "attn_k", 64)
    assert np.array_equal(part.down, np.arange(3 * inputs).reshape(3, inputs))
    assert np.array_equal(part.up, np.arange(3 * inputs, 3 * (inputs + outputs)).reshape(outputs, 3))


def test_adapters_are_equal_when_their_values_are() -> None:
    first, again, other = read(WEIGHTS, CONFIG), read(np.asfortranarray(WEIGHTS), CONFIG), read(WEIGHTS * 2, CONFIG)
    assert first == again
    assert first.digest != other.digest
    assert first != read(*changed(WEIGHTS, CONFIG, (0, 0, 0), 4))  # attn_q and attn_dense have the same sizes here


def test_a_request_without_adapter_has_none() -> None:
    assert read_adapter(None, None, SHAPE) is None


@pytest.mark.parametrize("config_name", ["model.lora_config.npy", "model.lora_keys.npy"])
def test_adapter_files_are_read_under_both_names(tmp_path: Path, config_name: str) -> None:
    folder = write_adapter(tmp_path / "adapter", WEIGHTS, CONFIG, config_name)
    assert sorted(path.name for path in folder.iterdir()) == sorted(["model.lora_weights.npy", config_name])
    assert read(*read_adapter_files(folder)) == read(WEIGHTS, CONFIG)
