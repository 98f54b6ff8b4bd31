"""The engine reads a repository's parameters as the backend does: defaults, warnings in its words, refusals."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.reference.engine.parameters import ParameterError, Scheduling, read_scheduling

GIVEN = {
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "max_utilization",
    "enable_kv_cache_reuse": "True",
    "enable_chunked_context": "True",
    "max_tokens_in_paged_kv_cache": "1000",
    "kv_cache_free_gpu_mem_fraction": "0.5",
    "max_beam_width": "1",
    "max_attention_window_size": "100",
    "decoupled": "True",
    # what the machine and the engine can hold
    "kv_tokens": "1600",
    "max_batch_size": "32",
    "max_sequence_tokens": "100",
}


def read(**changed: str) -> tuple[Scheduling, list[str]]:
    said: list[str] = []
    return read_scheduling(GIVEN | changed, said.append), said


def test_what_is_said_is_done_without_a_word() -> None:
    assert read() == (Scheduling(False, "max_utilization", 800, 32, reuses_kv=True, chunks_prompts=True), [])
    assert read(enable_trt_overlap="True", max_num_sequences="9")[1] == []


@pytest.mark.parametrize(
    ("kind", "is_static"),
    [("V1", True), ("v1", True), ("inflight_batching", False), ("inflight_fused_batching", False)],
)
def test_batching_types(kind: str, is_static: bool) -> None:
    assert read(gpt_model_type=kind)[0].is_static == is_static


@pytest.mark.parametrize("kind", ["", "v2", "V1 ", "INFLIGHT_BATCHING", "${batching_strategy}"])
def test_another_batching_type_does_not_load(kind: str) -> None:
    with pytest.raises(ParameterError) as caught:
        read(gpt_model_type=kind)
    assert str(caught.value) == "Invalid gpt_model_type. Must be v1/inflight_batching/inflight_fused_batching."


@pytest.mark.parametrize(
    "policy", ["", "guaranteed_completion", "best", "MAX_UTILIZATION", "${batch_scheduler_policy}"]
)
def test_an_illegal_policy_becomes_guaranteed_no_evict_with_the_backends_warning(policy: str) -> None:
    found, said = read(batch_scheduler_policy=policy)
    assert found.policy == "guaranteed_no_evict"
    assert said == [
        "batch_scheduler_policy parameter was not found or is invalid (must be max_utilization or guaranteed_no_evict)"
    ]


def test_a_stream_with_max_utilization_needs_chunks() -> None:
    found, (said,) = read(enable_chunked_context="False")
    assert found.policy == "guaranteed_no_evict"
    assert said.startswith("Decoupled mode with a batch scheduler policy other than guaranteed_no_evict requires")
    assert read(enable_chunked_context="False", decoupled="False")[0].policy == "max_utilization"
    older = {key: value for key, value in GIVEN.items() if key != "enable_chunked_context"}  # a v0.5 repository
    assert read_scheduling(older, lambda _: None).policy == "guaranteed_no_evict"


def test_a_static_batch_reserves_whatever_the_policy() -> None:
    found, said = read(gpt_model_type="V1")
    assert found.policy == "guaranteed_no_evict"
    assert len(said) == 1 and "no effect on V1" in said[0]


@given(st.one_of(st.sampled_from(("True", "true", "TRUE", "1", "tRUE", "yes", "2", " 1", "on", "")), st.text()))
def test_a_boolean_is_one_of_four_words_or_not_given(text: str) -> None:
    found, said = read(enable_kv_cache_reuse=text)
    assert found.reuses_kv == (text in {"True", "true", "TRUE", "1"})
    known = {"True", "true", "TRUE", "1", "False", "false", "FALSE", "0"}
    assert said == ([] if text in known else ["enable_kv_cache_reuse is not specified, will be set to false"])


@pytest.mark.parametrize(
    ("changed", "tokens"),
    [
        ({"kv_cache_free_gpu_mem_fraction": ""}, 992),  # the limit in tokens, in whole blocks
        ({"kv_cache_free_gpu_mem_fraction": "2"}, 992),
        ({"max_tokens_in_paged_kv_cache": ""}, 800),
        ({"max_tokens_in_paged_kv_cache": "${max_tokens}"}, 800),
        ({"max_tokens_in_paged_kv_cache": "17"}, 16),
        ({"max_tokens_in_paged_kv_cache": "", "kv_cache_free_gpu_mem_fraction": "half"}, 1600),
    ],
)
def test_the_smaller_of_both_kv_limits_holds(changed: dict[str, str], tokens: int) -> None:
    found, said = read(**changed)
    assert found.kv_tokens == tokens
    unusable = [name for name, value in changed.items() if value != "17"]
    assert sorted(line.split(" is not specified")[0] for line in said) == sorted(unusable)


def test_a_cache_without_a_block_does_not_load() -> None:
    with pytest.raises(ParameterError, match="of 15 tokens holds no block of 16"):
        read(max_tokens_in_paged_kv_cache="15")


@pytest.mark.parametrize(("sequences", "requests"), [("4", 4), ("400", 32), ("", 32), ("0", 32)])
def test_at_most_the_engines_batch_and_the_repositorys_sequences_run(sequences: str, requests: int) -> None:
    assert read(max_num_sequences=sequences)[0].max_requests == requests


@pytest.mark.parametrize(
    ("changed", "says"),
    [({"max_beam_width": "4"}, "max_beam_width 4"), ({"max_attention_window_size": "50"}, "window_size 50")],
)
def test_what_this_engine_cannot_is_said(changed: dict[str, Any], says: str) -> None:
    assert says in read(**changed)[1][0]
