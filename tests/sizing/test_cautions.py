"""Cautions: every kind has its words, and the words carry the figures."""

import math
import re
from typing import get_args

import pytest

from sizing.explain import beyond_context
from sizing.prediction import Caution, CautionKind
from sizing.text import CAUTIONS, LIKELY, NOT_MODELLED, caution
from sizing.workload import Lengths


def test_every_kind_has_words_and_no_words_are_left_over() -> None:
    assert set(CAUTIONS) == set(get_args(CautionKind))


def test_no_words_name_an_option_of_this_program() -> None:
    """The page shows them too, and its reader has fields; --api-server-count is vLLM's."""
    words = " ".join((*CAUTIONS.values(), *LIKELY.values()))
    assert set(re.findall(r"--[a-z-]+", words)) == {"--api-server-count"}


@pytest.mark.parametrize(
    ("found", "part"),
    [
        (
            Caution("beyond_measured", {"in_flight": 12.4, "most": 8.0}),
            "hold 12 requests at once, measured were at most 8",
        ),
        (
            Caution("below_measured", {"in_flight": 2.4, "fewest": 16.0}),
            "hold 2.4 requests at once, measured were at least 16",
        ),
        (Caution("lost_requests", {"share": 0.0625}), "6.25 % of the requests"),
        (
            Caution("beyond_context", {"share": 0.004, "of_tokens": 0.056, "tokens": 40_960}),
            "0.4 % of the requests, with 5.6 % of the prompt tokens, are longer than the 40,960 tokens",
        ),
        (Caution("not_modelled", {"settings": ("cancel", "roughness")}), "clients that give up and padding"),
        (Caution("fitted_kv_tokens", {"kv_tokens": 26_000}), "about 26,000 tokens"),
        (Caution("estimated_kv_tokens", {"kv_tokens": 26_000}), "estimated to hold 26,000 tokens"),
        (
            Caution("refuted_kv_tokens", {"told": 50_000, "held": 136_020}),
            "holds 50,000 tokens, but their requests held 136,020",
        ),
        (Caution("refuted_slots", {"told": 64, "decoding": 119.7}), "at most 64 sequences run at once, but 120 did"),
        (Caution("unknown_kv_tokens", {"tokens": 4200.0}), "as long as these, 4,200 tokens, were not measured"),
        (Caution("no_ttft"), "measure with streaming"),
        (Caution("fell_behind", {"points": 2, "given": 3}), "left out of the fit: 2 of 3"),
        (Caution("fitted_slots", {"max_batch_size": 1024}), "at most 1,024 at once"),
        (Caution("fitted_budget", {"token_budget": 1024}), "1,024 tokens went through an iteration"),
        (Caution("fitted_lookahead", {"engine": "vllm"}), "by its defaults vllm fixes iterations ahead"),
        (Caution("fitted_dense", {"model": "prod"}), "the catalogue lacks prod, so it was taken for a dense model"),
        (Caution("fitted_experts", {"used": 0.0625}), "uses 6 % of its experts for a token"),
        (
            Caution("slower_than_bf16", {"precision": "fp8", "engine": "vllm", "factor": 2.51}),
            "the fp8 kernels of vllm were timed 2.5 times as long as its own in bf16",
        ),
        (Caution("rough_timings", {"rms_error": 0.2}), "within 20 % (rms)"),
    ],
)
def test_figures_are_written_in_their_units(found: Caution, part: str) -> None:
    assert part in caution(found)


def test_requests_that_the_model_does_not_take_are_told() -> None:
    """Qwen3-8B takes 40,960 tokens: of lognormal prompts of 30,000 with a spread of 2 a fifth is longer."""
    (found,) = beyond_context("Qwen/Qwen3-8B", Lengths(30_000, 200, 2.0))
    far = (math.log(40_960 / 30_000) + math.log(5) / 2) / math.sqrt(math.log(5))  # deviations of a normal variable
    assert dict(found.facts)["share"] == pytest.approx(0.5 * math.erfc(far / math.sqrt(2)), abs=0.01)
    assert not list(beyond_context("Qwen/Qwen3-8B", Lengths(2000, 200, 0.5, 0.5)))
    assert not list(beyond_context("a model of one's own", Lengths(30_000, 200, 2.0)))


def test_a_value_above_its_limit_on_an_idle_replica_is_the_formulas() -> None:
    near = {"limit": "p95 ITL", "metric": "itl", "limit_s": 0.02}
    assert "is 19 ms on a nearly idle replica" in caution(Caution("near_floor", {**near, "floor_s": 0.019}))
    assert "is 21 ms by formula on a nearly idle replica" in caution(Caution("near_floor", {**near, "floor_s": 0.021}))


def test_cautions_of_equal_kind_and_figures_are_equal_and_hashable() -> None:
    one, same = (Caution("few_points", {"points": 2}) for _ in range(2))
    assert one == same != Caution("few_points", {"points": 1})
    assert len({one, same}) == 1


def test_all_that_the_formulas_leave_out_can_be_said() -> None:
    assert all(words in caution(Caution("not_modelled", {"settings": (name,)})) for name, words in NOT_MODELLED.items())
