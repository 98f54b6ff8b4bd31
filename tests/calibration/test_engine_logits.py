"""Log-probabilities and logits in answers: those of the model, for the right tokens, and only where they are wanted."""

from typing import Any

import numpy as np
import pytest

from lab.reference.engine.answers import Answer
from lab.reference.engine.inputs import ALL_OUTPUTS
from lab.reference.engine.request import Request, Token
from tests.calibration.engine_process import SMALL, run

VOCABULARY = 300
PAUSING = SMALL | {"batch_scheduler_policy": "max_utilization", "kv_tokens": "176"}
REUSING = SMALL | {"enable_kv_cache_reuse": "True"}
STATIC = SMALL | {"gpt_model_type": "V1"}
PROMPT = [3 + 7 * number % 290 for number in range(95)]  # three passes' worth of budget
EVERYTHING = dict.fromkeys(("return_log_probs", "return_context_logits", "return_generation_logits"), True)
SAMPLED = {"temperature": 1.3, "runtime_top_k": 20, "random_seed": 5, "repetition_penalty": 1.4}


def request(length: int, max_tokens: int, compare: bool = True, **scalars: Any) -> dict[str, Any]:
    asked = {"prompt": PROMPT[:length], "max_tokens": max_tokens, "scalars": scalars, "compare": compare}
    return asked | {"outputs": list(ALL_OUTPUTS)}


COMPANY = [
    request(95, 12, **EVERYTHING),
    request(7, 30, compare=False),
    request(61, 8, streaming=True, **EVERYTHING),
    request(1, 10, **EVERYTHING, **SAMPLED),
    request(20, 6, streaming=True, return_generation_logits=True),
    request(30, 6, return_context_logits=True),
]
NARROW = [
    {**request(9, 4, compare=False, **EVERYTHING), "outputs": ["output_ids"]},
    {**request(9, 4, compare=False, **EVERYTHING, streaming=True), "outputs": ["output_ids", "output_log_probs"]},
    {**request(9, 4, compare=False), "excludes_prompt": True},
    {**request(9, 4, compare=False, streaming=True), "excludes_prompt": True},
]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    scenarios = {
        "in_flight": {"parameters": SMALL | {"kv_tokens": "512"}, "requests": COMPANY},
        "pausing": {"parameters": PAUSING, "requests": COMPANY},
        "reusing": {"parameters": REUSING, "requests": [{**COMPANY[0], "waits": True}] * 2},
        "static": {"parameters": STATIC | {"kv_tokens": "512"}, "requests": COMPANY},
        "narrow": {"parameters": SMALL, "requests": NARROW},
    }
    return dict(zip(scenarios, run("engine_answers.py", *scenarios.values()), strict=True))


def joined(parts: list[dict[str, Any]], name: str, axis: int) -> np.ndarray:
    return np.concatenate([np.array(part[name]) for part in parts], axis=axis)


def generated(parts: list[dict[str, Any]], asked: dict[str, Any]) -> list[int]:
    ids: list[int] = joined(parts, "output_ids", 2)[0, 0].tolist()
    return ids if asked["scalars"].get("streaming") else ids[len(asked["prompt"]) :]


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static", "pausing"])
@pytest.mark.parametrize("number", [0, 2, 5])
def test_context_logits_are_those_of_the_whole_prompt_at_once(found: dict[str, Any], engine: str, number: int) -> None:
    by_hand = np.array(found[engine]["formulas"][number])[: len(COMPANY[number]["prompt"])]
    context = np.array(found[engine]["said"][number][0]["context_logits"])
    assert context.shape == (1, *by_hand.shape)
    assert np.abs(context[0] - by_hand).max() < 1e-4 * by_hand.std()


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static", "pausing"])
@pytest.mark.parametrize("number", [0, 2, 3, 4])
def test_generation_logits_are_those_each_token_was_chosen_from(
    found: dict[str, Any], engine: str, number: int
) -> None:
    """The model's own, also where penalties and temperature changed what was drawn."""
    asked, parts = COMPANY[number], found[engine]["said"][number]
    by_hand = np.array(found[engine]["formulas"][number])[len(asked["prompt"]) - 1 : -1]
    made = joined(parts, "generation_logits", 2)
    assert made.shape == (1, 1, asked["max_tokens"], VOCABULARY)
    assert np.abs(made[0, 0] - by_hand).max() < 1e-4 * by_hand.std()
    greedy = made[0, 0].argmax(axis=-1).tolist() == generated(parts, asked)
    assert greedy == ("temperature" not in asked["scalars"])


@pytest.mark.triton
@pytest.mark.parametrize("number", [0, 2, 3])
def test_log_probs_are_the_log_softmax_of_the_generation_logits(found: dict[str, Any], number: int) -> None:
    asked, parts = COMPANY[number], found["in_flight"]["said"][number]
    made = joined(parts, "generation_logits", 2)[0, 0].astype(np.float64)
    ids = generated(parts, asked)
    expected = made[np.arange(len(ids)), ids] - np.log(np.exp(made).sum(axis=-1))
    assert joined(parts, "output_log_probs", 2)[0, 0] == pytest.approx(expected, abs=1e-5)
    sums = joined(parts, "cum_log_probs", 1)[0]
    streamed = asked["scalars"].get("streaming", False)
    assert sums == pytest.approx(np.cumsum(expected) if streamed else [expected.sum()], abs=1e-4)


@pytest.mark.triton
def test_a_streamed_part_has_its_own_token_and_the_prompts_logits_come_once(found: dict[str, Any]) -> None:
    parts = found["in_flight"]["said"][2]
    assert len(parts) == COMPANY[2]["max_tokens"]
    for number, part in enumerate(parts):
        shapes = {name: np.array(part[name]).shape for name in ALL_OUTPUTS}
        assert shapes["output_ids"] == shapes["output_log_probs"] == (1, 1, 1)
        assert shapes["generation_logits"] == (1, 1, 1, VOCABULARY)
        assert shapes["context_logits"] == ((1, 61, VOCABULARY) if number == 0 else (1, 1, 1))


@pytest.mark.triton
def test_what_was_not_asked_for_is_a_zero_of_the_contracts_shape(found: dict[str, Any]) -> None:
    (answer,) = found["in_flight"]["said"][1]
    assert answer["context_logits"] == [[[0.0]]]
    assert answer["generation_logits"] == [[[[0.0]]]]
    assert answer["cum_log_probs"] == [[0.0]]
    assert not np.array(answer["output_log_probs"]).any()
    assert list(answer) == list(ALL_OUTPUTS)


@pytest.mark.triton
def test_only_the_wanted_outputs_are_there_and_their_logits_alone_are_computed(found: dict[str, Any]) -> None:
    whole, *streamed = [[list(part) for part in parts] for parts in found["narrow"]["said"][:2]]
    assert whole == [["output_ids"]]
    assert streamed == [[["output_ids", "output_log_probs"]] * 4]
    assert [may_reuse for _, may_reuse in found["narrow"]["keys"]] == [True] * 4  # no context logits are wanted


@pytest.mark.triton
def test_a_request_for_context_logits_must_not_reuse_a_prefix(found: dict[str, Any]) -> None:
    may_reuse = [entry for _, entry in found["in_flight"]["keys"]]
    assert may_reuse == [not asked["scalars"].get("return_context_logits", False) for asked in COMPANY]
    first, second = (np.array(parts[0]["context_logits"]) for parts in found["reusing"]["said"])
    assert first.shape == second.shape == (1, len(PROMPT), VOCABULARY)
    assert np.abs(first - second).max() < 1e-4 * first.std()


@pytest.mark.triton
def test_the_prompt_can_be_left_out_and_is_never_in_a_stream(found: dict[str, Any]) -> None:
    with_prompt, _, without, streamed = found["narrow"]["said"]
    tokens = without[0]["output_ids"][0][0]
    assert with_prompt[0]["output_ids"][0][0] == PROMPT[:9] + tokens
    assert without[0]["sequence_length"] == [[4]]
    assert [part["output_ids"][0][0] for part in streamed] == [[token] for token in tokens]


def test_a_stopped_request_is_answered_with_what_it_has() -> None:
    logits = np.arange(6, dtype=np.float32).reshape(2, 3)
    asked = Request([1, 2], 9, wants_context_logits=True, computed=2, context_logits=logits)
    answer = Answer(asked, ALL_OUTPUTS, asked.prompt)
    answer.add(Token(asked, 4, -0.5, is_last=False, logits=logits[0]))
    answer.add(Token(asked, None, 0.0, is_last=True))
    whole = answer.whole()
    assert whole["output_ids"].tolist() == [[[1, 2, 4]]]
    assert whole["output_log_probs"].tolist() == [[[-0.5]]]
    assert whole["context_logits"].tolist() == [logits.tolist()]
    assert whole["generation_logits"].tolist() == [[[logits[0].tolist()]]]


def test_a_part_is_the_token_it_was_made_for_however_far_the_engine_has_come() -> None:
    asked = Request([1, 2], 9, is_streamed=True)
    answer = Answer(asked, ["output_ids"])
    asked.generated += [4, 5, 6]
    answer.add(Token(asked, 4, 0.0, is_last=False))
    assert answer.part()["output_ids"].tolist() == [[[4]]]
