"""The engine behind the reference server, run in its own environment: same tokens in any company, a true cache."""

import random
from typing import Any

import numpy as np
import pytest

from lab.reference.engine.inputs import read_request, sent_prompt
from lab.reference.engine.refusals import InputError
from lab.reference.engine.request import Limits
from lab.reference.engine.shape import Shape
from tests.calibration.engine_process import SMALL, run

STATIC = SMALL | {"gpt_model_type": "V1"}
BLOCK = 16


def ask(*scenarios: dict[str, Any]) -> list[dict[str, Any]]:
    return run("engine_trace.py", *scenarios)


def crowd(seed: int, count: int, latest: int) -> list[dict[str, Any]]:
    """Requests of mixed lengths that arrive at random passes."""
    rng = random.Random(seed)
    return [
        {
            "prompt": [rng.randrange(3, 300) for _ in range(rng.randint(1, 70))],
            "max_tokens": rng.randint(1, 40),
            "arrives": rng.randint(0, latest),
        }
        for _ in range(count)
    ]


CROWD = crowd(seed=1, count=24, latest=30)
LONG_PROMPT = [3 + 7 * number % 290 for number in range(95)]  # three passes' worth of budget
ALONE = [{**entry, "arrives": 0} for entry in CROWD]
CANCELLED = [{**entry, "cancelled": 12} if number % 3 == 0 else entry for number, entry in enumerate(CROWD)]


@pytest.fixture(scope="module")
def traces() -> dict[str, Any]:
    """All scenarios of this module in one process: importing torch is most of the time."""
    names_and_scenarios: list[tuple[str, dict[str, Any]]] = [
        ("in_flight", {"what": "trace", "parameters": SMALL, "requests": CROWD}),
        ("static", {"what": "trace", "parameters": STATIC, "requests": CROWD}),
        ("in_flight_cancelled", {"what": "trace", "parameters": SMALL, "requests": CANCELLED}),
        ("static_cancelled", {"what": "trace", "parameters": STATIC, "requests": CANCELLED}),
        (
            "static_unstreamed",
            {"what": "trace", "parameters": STATIC, "requests": [{**entry, "streamed": False} for entry in ALONE[:6]]},
        ),
        ("cache", {"what": "cache_error", "parameters": SMALL, "prompt": LONG_PROMPT, "max_tokens": 30}),
        ("cache_whole", {"what": "cache_error", "parameters": SMALL, "prompt": [5, 9, 200], "max_tokens": 60}),
    ]
    names_and_scenarios += [
        (f"alone_{number}", {"what": "trace", "parameters": SMALL, "requests": [entry]})
        for number, entry in enumerate(ALONE)
    ]
    answers = ask(*(scenario for _, scenario in names_and_scenarios))
    return dict(zip((name for name, _ in names_and_scenarios), answers, strict=True))


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static"])
def test_a_request_gets_the_same_tokens_alone_and_among_others(traces: dict[str, Any], engine: str) -> None:
    alone = [traces[f"alone_{number}"]["generated"][0] for number in range(len(CROWD))]
    assert traces[engine]["generated"] == alone
    assert len({tuple(tokens[:5]) for tokens in alone}) > len(CROWD) / 2  # they are not all the same anyway


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static"])
def test_every_request_gets_all_its_tokens_one_at_a_time_and_ends_once(traces: dict[str, Any], engine: str) -> None:
    spoken: dict[int, list[tuple[int, bool]]] = {number: [] for number in range(len(CROWD))}
    for step in traces[engine]["passes"]:
        speakers = [number for number, _, _ in step["spoke"]]
        assert len(speakers) == len(set(speakers))
        for number, token, is_last in step["spoke"]:
            spoken[number].append((token, is_last))
    for number, entry in enumerate(CROWD):
        assert len(spoken[number]) == entry["max_tokens"]
        assert [is_last for _, is_last in spoken[number]] == [False] * (entry["max_tokens"] - 1) + [True]


@pytest.mark.triton
@pytest.mark.parametrize("scenario", ["cache", "cache_whole"])
def test_cached_logits_are_those_of_recomputation(traces: dict[str, Any], scenario: str) -> None:
    """Chunked prompt, paged cache and packed passes against the formulas alone: equal to float32 rounding."""
    found = traces[scenario]
    assert found["largest"] < 1e-4 * found["spread"]
    assert found["if_order_were_ignored"] > 1e-2 * found["spread"]  # the context does matter to these logits


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static", "in_flight_cancelled", "static_cancelled"])
def test_cache_is_never_over_capacity_and_comes_back_whole(traces: dict[str, Any], engine: str) -> None:
    found = traces[engine]
    assert found["max_blocks"] == int(SMALL["kv_tokens"]) // BLOCK
    for step in found["passes"]:
        held = step["held_blocks"]
        assert len(held) == len(set(held))
        assert len(held) + step["free_blocks"] == found["max_blocks"]
        reserved = [-(-(len(CROWD[n]["prompt"]) + CROWD[n]["max_tokens"]) // BLOCK) for n in step["running"]]
        assert len(held) == sum(reserved)
        assert len(step["running"]) <= int(SMALL["max_batch_size"])
    assert found["free_blocks"] == found["max_blocks"]
    longest = max(-(-(len(entry["prompt"]) + entry["max_tokens"]) // BLOCK) for entry in CROWD)
    assert max(len(step["held_blocks"]) for step in found["passes"]) > found["max_blocks"] - longest  # it was full


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight", "static"])
def test_no_pass_holds_more_tokens_than_the_budget_and_long_prompts_use_it_up(
    traces: dict[str, Any], engine: str
) -> None:
    tokens = [step["tokens"] for step in traces[engine]["passes"]]
    assert max(tokens) == int(SMALL["token_budget"])
    if engine == "in_flight":  # in-flight batching computes each token once; static computes padding too
        assert sum(tokens) == sum(len(entry["prompt"]) + entry["max_tokens"] - 1 for entry in CROWD)


@pytest.mark.triton
def test_in_flight_requests_join_and_leave_between_passes(traces: dict[str, Any]) -> None:
    joined_company = left_company = 0
    for before, after in zip(traces["in_flight"]["passes"], traces["in_flight"]["passes"][1:], strict=False):
        stayed = set(before["running"]) & set(after["running"])
        joined_company += bool(stayed and set(after["running"]) - stayed)
        left_company += bool(stayed and set(before["running"]) - stayed)
    assert joined_company > 3
    assert left_company > 3


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["static", "static_cancelled"])
def test_static_admits_nobody_mid_batch_and_lets_nobody_leave(traces: dict[str, Any], engine: str) -> None:
    batches = 1
    for before, after in zip(traces[engine]["passes"], traces[engine]["passes"][1:], strict=False):
        if before["running"] and after["running"]:
            assert after["running"] == before["running"]
        batches += bool(after["running"] and not before["running"])
    assert batches >= 3


@pytest.mark.triton
def test_in_flight_needs_fewer_passes_than_static(traces: dict[str, Any]) -> None:
    assert len(traces["in_flight"]["passes"]) < len(traces["static"]["passes"])


@pytest.mark.triton
def test_unstreamed_answers_of_a_static_batch_end_together(traces: dict[str, Any]) -> None:
    ends = [
        n for n, step in enumerate(traces["static_unstreamed"]["passes"]) for *_, is_last in step["spoke"] if is_last
    ]
    assert len(ends) == 6
    first_batch = traces["static_unstreamed"]["passes"][0]["running"]
    assert ends.count(ends[0]) == len(first_batch) > 1


@pytest.mark.triton
@pytest.mark.parametrize("engine", ["in_flight_cancelled", "static_cancelled"])
def test_a_cancelled_request_ends_early_and_the_others_do_not_notice(traces: dict[str, Any], engine: str) -> None:
    for number, entry in enumerate(CANCELLED):
        alone = traces[f"alone_{number}"]["generated"][0]
        made = traces[engine]["generated"][number]
        assert made == alone[: len(made)]
        assert "cancelled" in entry or made == alone
    cut = [n for n, entry in enumerate(CANCELLED) if len(traces[engine]["generated"][n]) < entry["max_tokens"]]
    assert cut
    lasts = [n for step in traces[engine]["passes"] for n, _, is_last in step["spoke"] if is_last]
    assert sorted(lasts) == list(range(len(CANCELLED)))  # everyone is told once that it is over


LIMITS = Limits(max_sequence_tokens=20, kv_tokens=16, vocab_size=100)
SHAPE = Shape(hidden=32, layers=1, heads=2, kv_heads=1, vocab_size=100)


def tensors(**given: Any) -> dict[str, Any]:
    asked = {"input_ids": [[5, 6, 7]], "input_lengths": [[3]], "request_output_len": [[4]]} | given
    return {name: np.array(value) for name, value in asked.items()}


def test_tensors_become_a_request() -> None:
    request = read_request(
        tensors(
            input_lengths=[[2]],
            end_id=[[9]],
            streaming=[[True]],
            runtime_top_k=[[3]],
            random_seed=[[11]],
            stop_words_list=[[[8, 9, 10], [2, 3, -1]]],
            bad_words_list=np.zeros((1, 2, 0), np.int32),
        ),
        LIMITS,
        SHAPE,
    )
    assert (request.prompt, request.max_tokens, request.end_id) == ([5, 6], 4, 9)
    assert request.is_streamed
    assert request.stop_words == ((8, 9), (10,))
    assert (request.sampling.top_k, request.sampling.seed, request.sampling.bad_words) == (3, 11, ())


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"input_ids": [[1], [2]]}, "batch dimension to be 1"),
        ({"input_lengths": [[0]]}, "prompt is empty"),
        ({"input_ids": [[5, -1, 7]]}, "must not be negative, got -1"),
        ({"request_output_len": [[0]]}, "at least 1, got 0"),
        ({"request_output_len": [[18]]}, "maximum sequence length of 20"),
        ({"request_output_len": [[15]]}, "whole KV cache of 16 tokens"),
        (
            {"input_ids": [[7] * 20], "input_lengths": [[20]]},
            r"Prompt length \(20\) exceeds maximum input length \(19\)",
        ),
        ({"beam_width": [[2]]}, "Requested beam width 2 is larger than configured max beam width 1"),
        ({"beam_width": [[0]]}, "Requested value: 0 for beamWidth is invalid"),
        ({"prompt_vocab_size": [[3]]}, "must both be provided"),
        ({"embedding_bias": [[0.5, 1.0]]}, r"one value per vocabulary entry \(100\), got 2"),
        ({"temperature": [[float("nan")]]}, "temperature must be a finite number"),
    ],
)
def test_what_cannot_be_served_is_refused_in_one_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says) as caught:
        read_request(tensors(**given), LIMITS, SHAPE)
    assert "\n" not in str(caught.value)


def test_a_token_outside_the_vocabulary_stands_for_its_remainder_and_is_repeated_as_sent() -> None:
    given = tensors(input_ids=[[5, 2_131_054_248, 100]])
    assert read_request(given, LIMITS, SHAPE).prompt == [5, 48, 0]
    assert sent_prompt(given) == [5, 2_131_054_248, 100]


def test_a_word_outside_the_vocabulary_cannot_come_and_need_not_be_kept_away() -> None:
    request = read_request(tensors(bad_words_list=[[[8, 200, 9], [2, 3, -1]]]), LIMITS, SHAPE)
    assert request.sampling.bad_words == ((9,),)


def test_the_longest_request_that_fits_is_taken() -> None:
    assert read_request(tensors(request_output_len=[[13]]), LIMITS, SHAPE).longest == LIMITS.kv_tokens
    assert read_request(tensors(request_output_len=[[17]]), Limits(20, 32, 100), SHAPE).longest == 20
