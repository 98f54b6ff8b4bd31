"""Both scheduler policies and KV reuse in the engine: blocks are conserved, nobody starves, tokens stay the same."""

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.environment import PROJECT, ensure
from lab.reference.server import TRITON

PROGRAM = Path(__file__).with_name("policies_trace.py")
BLOCK = 16
LONGEST = 96
TINY = {
    "device": "cpu",
    "threads": "1",
    "precision": "fp32",
    "hidden": "16",
    "layers": "2",
    "heads": "2",
    "kv_heads": "1",
    "vocab_size": "60",
    "seed": "3",
    "max_sequence_tokens": str(LONGEST),
    "kv_tokens": "160",
    "max_batch_size": "5",
    "token_budget": "40",
    "batch_delay_s": "0",
    "gpt_model_type": "inflight_fused_batching",
    "batch_scheduler_policy": "guaranteed_no_evict",
    "enable_kv_cache_reuse": "False",
    "enable_chunked_context": "True",
}
GREEDY = TINY | {"batch_scheduler_policy": "max_utilization"}
REUSING = TINY | {"enable_kv_cache_reuse": "True"}
SHARED = [3 + 11 * number % 57 for number in range(64)]  # what prompts begin with

Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Run one scenario in the engine's process, which stays: importing torch is most of the time."""
    ready = ensure(TRITON)
    variables = {**os.environ, "PYTHONPATH": str(PROJECT), "PYTHONWARNINGS": "error"}
    command = [str(ready.python), str(PROGRAM)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=variables, bufsize=1
    ) as process:
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None and stdout is not None

        def answer(parameters: dict[str, str], requests: list[dict[str, Any]]) -> dict[str, Any]:
            stdin.write(json.dumps({"parameters": parameters, "requests": requests}) + "\n")
            found: dict[str, Any] = json.loads(stdout.readline())
            return found

        yield answer
        stdin.close()
        assert process.wait(timeout=30) == 0


@st.composite
def entries(draw: st.DrawFn) -> dict[str, Any]:
    """A request: part of its prompt is shared with others, it arrives some time, and may be cancelled."""
    shared = draw(st.sampled_from((0, 0, 16, 33, 64)))
    own = draw(st.lists(st.integers(3, 59), min_size=1, max_size=LONGEST - shared - 1))
    prompt = SHARED[:shared] + own
    entry: dict[str, Any] = {"prompt": prompt, "max_tokens": draw(st.integers(1, LONGEST - len(prompt)))}
    entry |= {"arrives": draw(st.integers(0, 20)), "reuse_key": draw(st.sampled_from(("", "", "adapter")))}
    entry |= {"streamed": draw(st.booleans()), "may_reuse": draw(st.sampled_from((True, True, False)))}
    if draw(st.integers(0, 3)) == 0:
        entry["cancelled"] = draw(st.integers(0, 60))
    return entry


@st.composite
def parameters(draw: st.DrawFn) -> dict[str, str]:
    flags = st.sampled_from(("True", "False"))
    return TINY | {
        "gpt_model_type": draw(st.sampled_from(("inflight_fused_batching", "inflight_fused_batching", "V1"))),
        "batch_scheduler_policy": draw(st.sampled_from(("guaranteed_no_evict", "max_utilization"))),
        "enable_kv_cache_reuse": draw(flags),
        "enable_chunked_context": draw(flags),
        "kv_tokens": str(BLOCK * draw(st.integers(LONGEST // BLOCK, 14))),
        "max_batch_size": str(draw(st.integers(1, 6))),
    }


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK)


def check_blocks(found: dict[str, Any], requests: list[dict[str, Any]], reuses: bool) -> None:
    """After every pass each block is free or held, and held by two only for the tokens that both begin with."""
    for step in found["passes"]:
        owners: dict[int, list[tuple[int, int]]] = {}
        for name, blocks in step["held"].items():
            assert len(blocks) == len(set(blocks))
            assert step["computed"][name] <= BLOCK * len(blocks)
            for place, block in enumerate(blocks):
                owners.setdefault(block, []).append((int(name), place))
        assert len(owners) + step["free"] == found["max"]
        assert len(step["rows"]) == len(set(step["rows"]))
        for held in owners.values():
            ends = {(place + 1) * BLOCK for _, place in held}
            assert len(held) == 1 or (reuses and len(ends) == 1)
            if len(held) > 1:
                entries = [requests[name] for name, _ in held]
                beginnings = {tuple(entry["prompt"][: max(ends)]) for entry in entries}
                assert len(beginnings) == 1 and len(beginnings.pop()) == max(ends)  # full blocks of prompts only
                assert len({entry["reuse_key"] for entry in entries}) == 1


def check_tokens(found: dict[str, Any], requests: list[dict[str, Any]]) -> None:
    """Everybody hears what they hear alone, each token once, and is told once that it is over."""
    spoken: dict[int, list[tuple[int | None, bool]]] = {number: [] for number in range(len(requests))}
    for step in found["passes"]:
        for name, token, is_last in step["spoke"]:
            spoken[name].append((token, is_last))
    for name, entry in enumerate(requests):
        made, alone = found["generated"][name], found["alone"][name]
        assert made == alone[: len(made)]
        assert len(made) == entry["max_tokens"] or "cancelled" in entry
        assert [token for token, _ in spoken[name] if token is not None] == made
        assert [is_last for _, is_last in spoken[name]].count(True) == 1
        assert spoken[name][-1][1]


@pytest.mark.triton
@given(parameters(), st.lists(entries(), min_size=1, max_size=9))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
def test_whatever_comes_blocks_are_conserved_and_everyone_ends_with_their_own_tokens(
    ask: Ask, chosen: dict[str, str], requests: list[dict[str, Any]]
) -> None:
    found = ask(chosen, requests)
    assert not found["has_work"]
    assert found["free"] == found["max"] == int(chosen["kv_tokens"]) // BLOCK
    check_blocks(found, requests, reuses=chosen["enable_kv_cache_reuse"] == "True")
    check_tokens(found, requests)
    if chosen["batch_scheduler_policy"] == "guaranteed_no_evict" or chosen["gpt_model_type"] == "V1":
        assert not any(step["paused"] for step in found["passes"])


GROWING = [{"prompt": [5 + number] * 10, "max_tokens": 80} for number in range(8)]  # 1 block at first, 6 in the end


@pytest.mark.triton
def test_max_utilization_runs_more_at_once_where_the_cache_is_small(ask: Ask) -> None:
    reserved, greedy = ask(TINY, GROWING), ask(GREEDY, GROWING)
    most = {
        name: max(len(step["held"]) for step in found["passes"]) for name, found in (("r", reserved), ("g", greedy))
    }
    assert most == {"r": 160 // BLOCK // blocks_of(90), "g": int(TINY["max_batch_size"])}
    assert len(greedy["passes"]) < len(reserved["passes"])  # what is computed again costs less than it brings
    assert reserved["generated"] == greedy["generated"] == greedy["alone"]


@pytest.mark.triton
@pytest.mark.parametrize("reuse", ["True", "False"])
def test_paused_requests_come_back_and_end_in_the_order_of_arrival(ask: Ask, reuse: str) -> None:
    found = ask(GREEDY | {"enable_kv_cache_reuse": reuse}, GROWING)
    assert max(step["paused"] for step in found["passes"]) > 1
    assert all(step["paused"] <= step["waiting"] for step in found["passes"])
    assert found["passes"][-1]["paused"] == 0
    paused_in_between = [
        name
        for before, after in zip(found["passes"], found["passes"][1:], strict=False)
        for name in set(before["held"]) - set(after["held"])
        if not any(name == str(spoken) and is_last for spoken, _, is_last in after["spoke"])
    ]
    assert "0" not in paused_in_between  # the oldest is paused for nobody
    ends = [name for step in found["passes"] for name, _, is_last in step["spoke"] if is_last]
    assert ends == sorted(ends)  # all are of one length
    check_tokens(found, GROWING)


@pytest.mark.triton
def test_a_request_as_large_as_the_cache_gets_through_a_crowd(ask: Ask) -> None:
    small = [{"prompt": [7, 8, 9 + number], "max_tokens": 40, "arrives": number} for number in range(12)]
    large = {"prompt": SHARED[:10], "max_tokens": LONGEST - 10, "arrives": 3}
    found = ask(GREEDY | {"kv_tokens": str(LONGEST)}, [*small, large])
    assert not found["has_work"]
    check_tokens(found, [*small, large])


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["inflight_fused_batching", "V1"])
def test_a_prompt_that_was_here_is_read_from_its_first_new_token_on(ask: Ask, kind: str) -> None:
    prompts = [[*SHARED[:48], 5], SHARED[:40], SHARED[:32], [9, *SHARED[:40]]]
    requests = [{"prompt": prompt, "max_tokens": 6, "arrives": 20 * n} for n, prompt in enumerate(prompts)]
    with_reuse = ask(REUSING | {"gpt_model_type": kind}, requests)
    without = ask(TINY | {"gpt_model_type": kind}, requests)
    # three full blocks of the first; two are there for the second; the third must still read its last token
    assert with_reuse["reused"] == [0, 32, 16, 0]
    assert with_reuse["reused_blocks"] == 3
    assert without["prompt_tokens_read"] == sum(map(len, prompts))
    assert with_reuse["prompt_tokens_read"] == sum(map(len, prompts)) - 48
    assert with_reuse["generated"] == without["generated"] == without["alone"]


@pytest.mark.triton
def test_requests_under_way_share_blocks_with_newer_ones(ask: Ask) -> None:
    requests = [{"prompt": SHARED[:40], "max_tokens": 30, "arrives": 3 * number} for number in range(3)]
    found = ask(REUSING, requests)
    assert found["reused"] == [0, 32, 32]
    alone, shared = blocks_of(70), 40 // BLOCK
    used = max(found["max"] - step["free"] for step in found["passes"])
    assert used <= shared + 3 * (alone - shared) < 3 * alone
    check_blocks(found, [entry | {"reuse_key": ""} for entry in requests], reuses=True)


@pytest.mark.triton
def test_other_weights_and_those_who_must_read_all_reuse_nothing(ask: Ask) -> None:
    ways: list[dict[str, Any]] = [{}, {"reuse_key": "adapter"}, {"may_reuse": False}, {"reuse_key": "adapter"}]
    requests = [{"prompt": SHARED[:40], "max_tokens": 2, "arrives": 5 * n, **way} for n, way in enumerate(ways)]
    assert ask(REUSING, requests)["reused"] == [0, 0, 0, 32]


@pytest.mark.triton
def test_room_that_is_needed_is_taken_from_the_prompt_unused_for_longest(ask: Ask) -> None:
    """A cache of six blocks: the third prompt drives out the second, because the first was used in between."""
    first, second, third = ([start, *SHARED[:31]] for start in (40, 41, 42))
    order = [first, second, first, third, first, second]
    requests = [{"prompt": [*prompt, 50], "max_tokens": 2, "arrives": 8 * n} for n, prompt in enumerate(order)]
    found = ask(REUSING | {"kv_tokens": "96"}, requests)
    assert found["reused"][:5] == [0, 0, 32, 0, 32]
    assert found["reused"][5] < 32


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["inflight_fused_batching", "V1"])
def test_without_chunks_every_prompt_is_read_in_one_pass(ask: Ask, kind: str) -> None:
    prompts = [SHARED[:length] for length in (30, 20, 60, 9)]  # a budget of 40 takes neither two of them nor the third
    requests = [{"prompt": prompt, "max_tokens": 3} for prompt in prompts]
    found = ask(TINY | {"enable_chunked_context": "False", "gpt_model_type": kind}, requests)
    for step in found["passes"]:
        for name, computed in step["computed"].items():
            assert computed == 0 or computed >= len(prompts[int(name)])
    assert found["generated"] == found["alone"]
