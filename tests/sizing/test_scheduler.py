"""The scheduler of one replica, rule by rule of docs/simulator.md: cases computed by hand.

Most engines here take one second for every iteration, or one second for every token.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import KV_POLICIES, POLICIES, STRAIGHT, Batching, Bend, Replica, Roughness, Speculation, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator.closed import run_users
from sizing.simulator.fleet import advance, row_of
from sizing.simulator.sampling import prefixes_found
from sizing.simulator.scheduler import fail, iteration_s, work_of
from sizing.simulator.state import (
    CANCELLED,
    GAP_BINS,
    NOBODY,
    PRIORITIES,
    REJECTED,
    SERVED,
    TIMED_OUT,
    engine_of,
    idle_states,
    requests_of,
    work_space,
)
from sizing.simulator.token_gaps import EDGES_S, count_gaps, gap_quantiles, no_gaps
from sizing.simulator.waiting import enqueue
from tests.sizing.replica_runs import CLOCK, COUNT, NOTHING, asked, serve, times

ONE_SLOT = Replica(CLOCK, Batching("chunked", max_batch_size=1))
NAN = pytest.approx(math.nan, nan_ok=True)


def test_a_full_line_rejects() -> None:
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=1, max_waiting=1))
    assert times(replica, {"at": 0, "osl": 3}, {"at": 0.5}, {"at": 0.75}, {"at": 3.5}) == [
        (SERVED, 1, 3),
        (SERVED, 4, 4),
        (REJECTED, NAN, 0.75),
        (SERVED, 5, 5),
    ]


def test_who_has_given_up_makes_room_in_the_line() -> None:
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=1, max_waiting=1))
    impatient = {"at": 0.25, "queue_timeout_s": 0.25}
    assert times(replica, {"at": 0, "osl": 3}, impatient, {"at": 0.375}, {"at": 0.5}) == [
        (SERVED, 1, 3),
        (TIMED_OUT, NAN, 0.5),
        (REJECTED, NAN, 0.375),
        (SERVED, 4, 4),
    ]


@pytest.mark.parametrize(
    ("timeout_s", "cancel_s", "expected"),
    [(1.25, 9.0, (TIMED_OUT, NAN, 1.75)), (9.0, 1.25, (CANCELLED, NAN, 1.75)), (1.0, 1.0, (CANCELLED, NAN, 1.5))],
)
def test_the_line_is_left_at_the_deadline(timeout_s: float, cancel_s: float, expected: Any) -> None:
    waits = {"at": 0.5, "queue_timeout_s": timeout_s, "cancel_s": cancel_s}
    assert times(ONE_SLOT, {"at": 0, "osl": 5}, waits, {"at": 0.75})[1:] == [expected, (SERVED, 6, 6)]


def test_a_timeout_does_not_hold_for_those_who_have_started() -> None:
    assert times(ONE_SLOT, {"at": 0, "osl": 5, "queue_timeout_s": 0.5}) == [(SERVED, 1, 5)]


@pytest.mark.parametrize(
    ("osl", "cancel_s", "expected", "next_end_s"),
    [
        (9, 3.5, (CANCELLED, 1, 3.5), 5),
        (4, 3.5, (CANCELLED, 1, 3.5), 5),  # the last token would come at 4
        (4, 4.0, (SERVED, 1, 4), 5),
        (5, 4.0, (CANCELLED, 1, 4.0), 5),
        (9, 0.5, (CANCELLED, NAN, 0.5), 2),
    ],
)
def test_a_client_who_gives_up_frees_the_slot_at_the_next_boundary(
    osl: int, cancel_s: float, expected: Any, next_end_s: float
) -> None:
    gives_up = {"at": 0, "osl": osl, "cancel_s": cancel_s}
    assert times(ONE_SLOT, gives_up, {"at": 0.25}) == [expected, (SERVED, next_end_s, next_end_s)]


def test_a_dropped_head_of_the_line_lets_the_next_one_in() -> None:
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=4, kv_tokens=100))
    big, small = {"at": 0.25, "isl": 50, "queue_timeout_s": 2.0}, {"at": 0.5, "isl": 5}
    assert times(replica, {"at": 0, "isl": 60, "osl": 10}, big, small) == [
        (SERVED, 1, 10),
        (TIMED_OUT, NAN, 2.25),
        (SERVED, 4, 4),
    ]


def test_priority_goes_before_age_but_stops_nobody() -> None:
    ends = times(
        ONE_SLOT,
        {"at": 0, "osl": 3, "priority": 2},
        {"at": 0.1, "priority": 1},
        {"at": 0.2, "priority": 0},
        {"at": 0.3, "priority": 120},  # as the last class
        {"at": 0.4, "priority": PRIORITIES - 1},
        {"at": 0.5, "priority": 1},
    )
    assert [end_s for _, _, end_s in ends] == [3, 5, 4, 7, 8, 6]


@pytest.mark.parametrize(("max_tokens", "block", "second_s"), [(0, 1, 1), (40, 1, 1), (40, 64, 6), (50, 16, 6)])
def test_reservation_counts_the_most_output_in_blocks(max_tokens: int, block: int, second_s: float) -> None:
    rule = Batching("chunked", kv_tokens=100, max_tokens=max_tokens, kv_block_tokens=block)
    ends = times(Replica(CLOCK, rule), {"at": 0, "isl": 10, "osl": 5}, {"at": 0, "isl": 10, "osl": 1})
    assert ends == [(SERVED, 1, 5), (SERVED, second_s, second_s)]


@pytest.mark.parametrize("policy", POLICIES)
def test_what_can_never_fit_is_rejected(policy: Any) -> None:
    replica = Replica(CLOCK, Batching(policy, kv_tokens=20))
    assert times(replica, {"at": 1, "isl": 15, "osl": 6}, {"at": 1}) == [(REJECTED, NAN, 1), (SERVED, 2, 2)]


def full_cache(law: StepLaw) -> Replica:
    return Replica(law, Batching("chunked", max_batch_size=4, kv_tokens=10, kv_policy="max_utilization"))


def test_the_last_admitted_is_paused_and_computed_again() -> None:
    """8 tokens at the first iteration, 10 after a step; B waits with 2 tokens until A has gone, then 6 are computed."""
    twins = {"at": 0, "isl": 4, "osl": 6}, {"at": 0, "isl": 4, "osl": 6}
    assert times(full_cache(CLOCK), *twins) == [(SERVED, 1, 6), (SERVED, 1, 10)]
    assert times(full_cache(COUNT), *twins) == [(SERVED, 8, 14), (SERVED, 8, 23)]
    ran = serve(full_cache(CLOCK), asked(*twins))
    assert ran.state["paused"] == 1
    assert ran.gaps.sum() == 10
    assert gap_quantiles(ran.gaps, [50, 95]) == pytest.approx([1, 5], rel=0.02)


def test_a_paused_request_goes_to_the_front_and_may_give_up() -> None:
    rows = ({"at": 0, "isl": 4, "osl": 6}, {"at": 0, "isl": 4, "osl": 6}, {"at": 1.5, "isl": 8, "osl": 1})
    assert [end_s for _, _, end_s in times(full_cache(CLOCK), *rows)] == [6, 10, 11]
    rows[1]["cancel_s"] = 4.5
    assert times(full_cache(CLOCK), *rows) == [(SERVED, 1, 6), (CANCELLED, 1, 4.5), (SERVED, 7, 7)]


def test_the_last_priority_is_paused_first_and_of_it_who_came_last() -> None:
    """Full after a step: of twins the second is paused, admitted last, or the first where its priority is last."""
    urgent = {"at": 0, "isl": 4, "osl": 6}
    assert [end_s for _, _, end_s in times(full_cache(CLOCK), urgent, urgent | {"priority": 1})] == [6, 10]
    assert [end_s for _, _, end_s in times(full_cache(CLOCK), urgent | {"priority": 1}, urgent)] == [10, 6]
    rows = [{"at": at, "isl": isl, "osl": osl, "priority": 1} for at, isl, osl in ((0, 4, 9), (0.5, 3, 9))]
    ahead = {"at": 0.25, "isl": 1, "osl": 2}
    assert [end_s for _, _, end_s in times(full_cache(CLOCK), *rows, ahead)] == [9, 17, 3]


def test_a_prefix_in_the_cache_is_not_computed_but_attended_to() -> None:
    row = {"at": 0, "isl": 10, "cached_tokens": 6, "osl": 3}
    assert times(Replica(COUNT), row) == [(SERVED, 4, 6)]
    assert times(Replica(NOTHING.with_values(attention_s=1.0)), row) == [(SERVED, 4 * (6 + 2), 32)]
    assert times(Replica(NOTHING.with_values(kv_token_s=1.0)), row) == [(SERVED, 0, 10 + 11)]
    chunks = Replica(NOTHING.with_values(attention_s=1.0), Batching("chunked", token_budget=3))
    assert times(chunks, row) == [(SERVED, 3 * (6 + 1.5) + 1 * (6 + 3 + 0.5), 32)]


def test_a_shared_prefix_takes_memory_once() -> None:
    """Beside its 80 tokens, 12 each for two who found them; who did not holds all 92 and waits until both have left."""
    replica = Replica(CLOCK, Batching("chunked", kv_tokens=105))
    found = [{"at": 0, "isl": 90, "cached_tokens": 80, "osl": 2} for _ in range(3)]
    assert [end_s for _, _, end_s in times(replica, *found)] == [2, 2, 4]
    missed = {"at": 0, "isl": 90, "osl": 2}
    assert [end_s for _, _, end_s in times(replica, *found[:2], missed)] == [2, 2, 4]
    assert [end_s for _, _, end_s in times(replica, missed, *found[:2])] == [2, 4, 4]


def test_each_workload_holds_a_prefix_of_its_own() -> None:
    """80 tokens and 70, and 12 each: with room for one prefix they go one by one."""
    rows = [{"at": 0, "isl": 10 + own, "cached_tokens": own, "osl": 2, "stream": own == 70} for own in (80, 70, 80, 70)]
    for kv_tokens, ends_s in ((150 + 4 * 12, [2, 2, 2, 2]), (150 + 3 * 12, [2, 2, 2, 4]), (149, [2, 4, 6, 8])):
        replica = Replica(CLOCK, Batching("chunked", kv_tokens=kv_tokens))
        assert [end_s for _, _, end_s in times(replica, *rows)] == ends_s


def test_a_prefix_longer_than_its_prompt_does_not_keep_a_request_out() -> None:
    replica = Replica(CLOCK, Batching("chunked", kv_tokens=100))
    long, short = {"at": 0, "isl": 96, "cached_tokens": 95, "osl": 2}, {"at": 0, "isl": 6, "cached_tokens": 5, "osl": 9}
    assert [end_s for _, _, end_s in times(replica, long, short)] == [2, 11]


@pytest.mark.parametrize("kv_policy", KV_POLICIES)
def test_whole_blocks_of_a_prefix_are_held(kv_policy: Any) -> None:
    """Two of them, and one for each of the requests that share them."""
    found = [{"at": 0, "isl": 50, "cached_tokens": 40, "osl": 2} for _ in range(2)]
    for own_blocks, last_s in ((1, 4), (2, 2)):
        rule = Batching("chunked", kv_tokens=64 + 32 * own_blocks, kv_policy=kv_policy, kv_block_tokens=32)
        assert [end_s for _, _, end_s in times(Replica(CLOCK, rule), *found)] == [2, last_s]


def test_prefilled_elsewhere() -> None:
    """A lane of the very iteration it is admitted to, unless prompts run alone."""
    came, prompt = {"at": 0.5, "isl": 10, "cached_tokens": 10, "osl": 3}, {"at": 0.5, "isl": 7, "osl": 1}
    assert times(Replica(CLOCK), came) == [(SERVED, 0.5, 2.5)]
    chunks = Replica(CLOCK, Batching("chunked", token_budget=4))  # 4 tokens, then 3 beside the lane
    assert times(chunks, prompt, came) == [(SERVED, 2.5, 2.5), (SERVED, 0.5, 2.5)]
    assert times(chunks, {"at": 0, "isl": 7}, came) == [(SERVED, 2, 2), (SERVED, 1, 3)]
    assert times(Replica(CLOCK, Batching("whole_prompt")), prompt, came) == [(SERVED, 1.5, 1.5), (SERVED, 0.5, 2.5)]
    assert times(Replica(CLOCK, Batching("prefill_first")), prompt, came) == [(SERVED, 1.5, 1.5), (SERVED, 0.5, 3.5)]
    assert times(Replica(CLOCK), {**came, "osl": 1}, {"at": 2}) == [(SERVED, 0.5, 0.5), (SERVED, 3, 3)]


def test_speculation_takes_fewer_and_wider_steps() -> None:
    row = {"at": 0, "isl": 2, "osl": 9, "steps": 4}
    assert times(Replica(COUNT, speculation=Speculation(2, 0.5)), row) == [(SERVED, 2, 2 + 4 * 3)]
    reads = Replica(NOTHING.with_values(kv_token_s=1.0), speculation=Speculation(2, 0.5))
    assert times(reads, row) == [(SERVED, 0, 2 + 4 + 6 + 8)]
    draft = StepLaw(weights_s=1.0, overhead_s=2.0, token_s=4.0, sequence_s=8.0, kv_token_s=16.0)
    drafted = Replica(NOTHING, speculation=Speculation(2, 0.5, draft))
    assert times(drafted, row) == [(SERVED, 0, 4 * 2 * (3 + 12) + 2 * 16 * (2 + 4 + 6 + 8))]


def test_speculation_uses_up_the_token_budget() -> None:
    """Two lanes of 3 tokens leave 2 of 8 for a prompt of 4: two chunks."""
    replica = Replica(CLOCK, Batching("chunked", token_budget=8), Speculation(2, 0.5))
    lane = {"at": 0, "osl": 9, "steps": 8}
    assert times(replica, lane, lane, {"at": 0.5, "isl": 4})[2] == (SERVED, 3, 3)


NOTHING_KEPT = row_of(work_space(Replica(CLOCK), 1), 0)._replace(matrices_s=np.zeros(0))


def test_padded_decode_batches_and_a_softer_knee() -> None:
    law = StepLaw(weights_s=3.0, overhead_s=0.0, token_s=1.0, sequence_s=10.0, kv_token_s=0.0)
    padded = engine_of(Replica(law.with_values(weights_s=0.0), rough=Roughness(padding=4)))
    assert [iteration_s(padded, NOTHING_KEPT, d, 0.0, 0, 0.0, d) for d in (1, 4, 5)] == pytest.approx([44, 44, 88])
    assert iteration_s(padded, NOTHING_KEPT, 5, 0.0, 2, 0.0, 6) == pytest.approx(8 + 2 + 80)
    for knee in (1.0, 2.5, 4.0, 60.0):
        soft = engine_of(Replica(law, rough=Roughness(knee=knee)))
        softened = (3**knee + 2**knee) ** (1 / knee) + 20
        assert iteration_s(soft, NOTHING_KEPT, 2, 0.0, 0, 0.0, 2) == pytest.approx(softened)


@settings(max_examples=30, deadline=None)
@given(
    unread=st.floats(0, 0.9),
    decay=st.floats(0, 1),
    lanes=st.integers(1, 300),
    prompt=st.integers(0, 3000),
    bend=st.sampled_from((STRAIGHT, Bend((1.0, 24.0, 130.0), (0.0, 0.1, -0.2), (0.3, -0.1, 0.05)))),
)
def test_an_iteration_lasts_what_the_law_says(unread: float, decay: float, lanes: int, prompt: int, bend: Bend) -> None:
    law = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 5e-4, unread=unread, unread_decay=decay, bend=bend)
    expected = law.mixed_s(lanes, 5e4, prompt, 7e5) if prompt else law.decode_s(lanes, 5e4)
    replica = Replica(law, Batching(max_batch_size=200))
    kept = row_of(work_space(replica, 1), 0)._replace(matrices_s=np.zeros(200))
    for _ in range(2):  # worked out, then kept if there is room
        found = iteration_s(engine_of(replica), kept, lanes, 5e4, prompt, 7e5, lanes + 1)
        assert found == pytest.approx(expected)
    assert np.count_nonzero(kept.matrices_s) == (lanes + prompt < 200)
    assert np.count_nonzero(kept.bends) == (bool(bend.sequences) and lanes + bool(prompt) <= 200)


def test_jitter_has_mean_one_and_repeats_with_its_seed() -> None:
    replica = Replica(CLOCK, Batching("prefill_first", max_batch_size=1), rough=Roughness(jitter=0.3))
    n = 20_000
    one, again, other = (
        serve(replica, asked(*({"at": 0} for _ in range(n))), seed=seed).run["done_s"].copy() for seed in (5, 5, 6)
    )
    assert np.array_equal(one, again)
    assert not np.array_equal(one, other)
    draws = np.diff(one, prepend=0)
    assert draws.mean() == pytest.approx(1, abs=4 * 0.3 / math.sqrt(n))
    assert draws.std() == pytest.approx(0.3, rel=0.04)
    logs = np.log(draws)
    assert np.mean(((logs - logs.mean()) / logs.std()) ** 3) == pytest.approx(0, abs=4 * math.sqrt(6 / n))  # normal
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(0, abs=4 / math.sqrt(n))


@settings(max_examples=60, deadline=None)
@given(first_s=st.floats(2e-5, 2.0), growth_s=st.sampled_from([0.0, 1e-7, 1e-4, 0.3]), steps=st.integers(1, 3000))
def test_gaps_of_a_stretch_fall_in_their_bins(first_s: float, growth_s: float, steps: int) -> None:
    counts = np.zeros(GAP_BINS, np.int64)
    count_gaps(counts, first_s, growth_s, steps, 3)
    each = np.searchsorted(EDGES_S, first_s + growth_s * np.arange(steps), side="right") - 1
    expected = np.bincount(np.clip(each, 0, GAP_BINS - 1), minlength=GAP_BINS)
    assert counts.sum() == 3 * steps
    on_an_edge = steps if growth_s == 0 else 1  # alike, they are all on it
    assert np.abs(np.cumsum(counts / 3 - expected)).max() <= on_an_edge


def test_prompts_that_run_alone_make_a_gap() -> None:
    rows = ({"at": 0, "osl": 3}, {"at": 1.5, "osl": 1})
    stalls = serve(Replica(CLOCK, Batching("prefill_first")), asked(*rows)).gaps
    assert gap_quantiles(stalls, [50, 100]) == pytest.approx([1, 2], rel=0.02)
    mixes = serve(Replica(CLOCK, Batching("chunked")), asked(*rows)).gaps
    assert gap_quantiles(mixes, [50, 100]) == pytest.approx([1, 1], rel=0.02)
    assert np.isnan(gap_quantiles(0 * mixes, [50])).all()


def test_a_prompt_that_the_budget_does_not_hold_is_cut_where_prompts_run_first() -> None:
    """Three prompts of 3 tokens and a budget of 8: the third gives 2 tokens to the first iteration, for which all
    wait, and the last in a second one. A prompt of 7 takes two iterations of 4, with no decode step between."""
    three = [{"at": 0, "isl": 3, "osl": 1}] * 3
    cut = Replica(COUNT, Batching("prefill_first", token_budget=8))
    assert times(cut, *three) == [(SERVED, 8, 8), (SERVED, 8, 8), (SERVED, 9, 9)]
    whole = Replica(COUNT, Batching("whole_prompt", token_budget=8))
    assert times(whole, *three) == [(SERVED, 6, 6), (SERVED, 6, 6), (SERVED, 9, 9)]
    small = Replica(CLOCK, Batching("prefill_first", token_budget=4))
    assert times(small, {"at": 0, "isl": 1, "osl": 2}, {"at": 0.5, "isl": 7}) == [(SERVED, 1, 4), (SERVED, 3, 3)]


def test_whole_prompts_wait_for_room_beside_the_decodes() -> None:
    """Beside the decode of A a budget of 8 has no room for B's 8 tokens: B and C behind it start when A has left, at
    5 s, one after the other. A prompt of 9 tokens would never have room, and starts beside A; if a fit guessed the
    budget, so does B."""
    whole = Replica(CLOCK, Batching("whole_prompt", token_budget=8))
    a, b, c = {"at": 0, "isl": 1, "osl": 5}, {"at": 0.5, "isl": 8}, {"at": 0.5, "isl": 1}
    assert times(whole, a, b, c) == [(SERVED, 1, 5), (SERVED, 6, 6), (SERVED, 7, 7)]
    assert times(whole, a, {**b, "isl": 9}) == [(SERVED, 1, 5), (SERVED, 2, 2)]
    guessed = replace(whole.batching, budget_guessed=True)
    assert times(Replica(CLOCK, guessed), a, b) == [(SERVED, 1, 5), (SERVED, 2, 2)]


def test_gaps_of_sequences_that_began_while_others_were_stalled() -> None:
    """A has its first token at 1, B at 2 (alone), C at 3 (alone): their next come at 4, after 3, 2 and 1 seconds."""
    rows = [{"at": at, "osl": 2} for at in (0.0, 0.5, 1.5)]
    gaps = serve(Replica(CLOCK, Batching("prefill_first")), asked(*rows)).gaps
    assert gap_quantiles(gaps, [30, 60, 100]) == pytest.approx([1, 2, 3], rel=0.02)


def test_series_tell_what_the_replica_holds() -> None:
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=2, token_budget=5))
    rows = asked({"at": 0, "isl": 3, "osl": 9}, {"at": 0.5, "isl": 12}, {"at": 0.75, "osl": 2})
    seen = serve(replica, rows, every_s=2.0, samples=20).rows
    assert [tuple(row) for row in seen] == [
        (2.0, 1, 1, 1, 3 + 1 + 12, 0),  # the prompt of 12 is cut in chunks of 4 beside the lane
        (4.0, 1, 1, 0, 3 + 3, 0),
        (6.0, 1, 0, 0, 3 + 5, 0),
        (8.0, 1, 0, 0, 3 + 7, 0),
    ]


def test_series_of_a_run_longer_than_planned_get_coarser() -> None:
    seen = serve(Replica(CLOCK), asked({"at": 0, "osl": 100}), every_s=1.0, samples=8).rows
    assert list(seen[:, 0]) == [16, 32, 48, 64, 80, 96]
    with pytest.raises(ScenarioError, match="sample_every_s"):
        idle_states(1, sample_every_s=0.0)


def test_a_dead_replica_gives_its_requests_back() -> None:
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=2, token_budget=4))
    run = asked({"at": 0, "osl": 9}, {"at": 0.1, "isl": 20}, {"at": 0.2, "priority": 3}, {"at": 0.3, "osl": 2})
    engine, states, work = engine_of(replica), idle_states(1), work_space(replica, 1)
    for place in range(4):
        enqueue(engine, states[0], work_of(work, 0), run, place, float(run["arrival_s"][place]))
        advance(engine, states[0], work_of(work, 0), run, float(run["arrival_s"][place]) + 0.05)
    advance(engine, states[0], work_of(work, 0), run, 3.0)
    assert fail(engine, states[0], work_of(work, 0), run) == 4
    assert set(run["replica"]) == {NOBODY}
    assert not run["first_token_s"].any()
    for place in (3, 0):  # a new life for two of them
        enqueue(engine, states[0], work_of(work, 0), run, place, 10.0)
    advance(engine, states[0], work_of(work, 0), run, math.inf)
    assert [float(run["done_s"][place]) for place in (3, 0)] == [12, 19]


def test_with_a_dead_replica_its_prefix_is_gone() -> None:
    """Room for a prefix of 80 tokens and 12 for each of two: as many as before death, and not one more."""
    replica = Replica(CLOCK, Batching("chunked", kv_tokens=105))
    run = asked(*({"at": 0, "isl": 90, "cached_tokens": 80, "osl": 2} for _ in range(3)))
    engine, states, works = engine_of(replica), idle_states(1), work_space(replica, 1, prefixes=prefixes_found(run))
    state, work = states[0], work_of(works, 0)
    for place in range(3):
        enqueue(engine, state, work, run, place, 0.0)
    advance(engine, state, work, run, 0.5)
    assert fail(engine, state, work, run) == 3
    for place in range(3):
        enqueue(engine, state, work, run, place, 10.0)
    advance(engine, state, work, run, math.inf)
    assert list(run["done_s"]) == [12, 12, 14]


def test_users_whose_requests_are_turned_away_try_again() -> None:
    """One slot, nobody may wait but one: the third user is rejected at 0.5 and every 10 ms until the line is free."""
    replica = Replica(CLOCK, Batching("chunked", max_batch_size=1, max_waiting=1))
    run = requests_of(np.ones(60, int), np.ones(60, int), 0.0)
    run["arrival_s"][:3] = 0.0, 0.25, 0.5
    run_users(engine_of(replica), idle_states(1), work_space(replica, 1), run, 3, 0, no_gaps(counted=False))
    assert run["arrival_s"][:52] == pytest.approx([0, 0.25, *(0.5 + 0.01 * np.arange(50))])
    assert list(run["outcome"][:5]) == [SERVED, SERVED, REJECTED, REJECTED, REJECTED]


def test_users_who_give_up_send_their_next_request_at_once() -> None:
    """The second leaves the line at 1.75, the first the slot at 2.5 (free at 3); the third starts then, at 3."""
    run = requests_of(np.ones(4, int), np.full(4, 9), 0.0)
    run["cancel_s"], run["queue_timeout_s"] = 2.5, 1.5
    run["arrival_s"][:2] = 0.0, 0.25
    run_users(engine_of(ONE_SLOT), idle_states(1), work_space(ONE_SLOT, 1), run, 2, 0, no_gaps(counted=False))
    assert list(run["arrival_s"]) == [0, 0.25, 1.75, 2.5]
    assert list(run["outcome"]) == [CANCELLED, TIMED_OUT, CANCELLED, TIMED_OUT]
    assert list(run["done_s"]) == [2.5, 1.75, 4.25, 4.0]
