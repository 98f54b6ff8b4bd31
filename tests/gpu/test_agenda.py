"""What is measured when time is short: order, budget, resumption."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from lab.gpu.agenda import PAIRS, START_S, Card, Item, Served, agenda, next_item, users_of
from lab.gpu.engine.shapes import SHAPES

H200 = (4.0e12, 7.0e14)


Rates = dict[tuple[str, tuple[int, int]], float]


def simulated(budget_s: float, done: set[str], highest: Rates | None = None) -> Iterator[tuple[Item, float]]:
    """Items as they would be measured, each with the seconds left before it, if the estimates came true.

    `done` and `highest` are what is known from earlier calls, and are added to.
    """
    card, highest = Card("cuda", *H200), {} if highest is None else highest
    running: Served | None = None
    while item := next_item(agenda(), done, budget_s, card, highest, running):
        users = users_of(item, highest, card)
        assert users is not None
        yield item, budget_s
        budget_s -= card.expected_s(item, users) + (0 if item.served.runs_on(running) else START_S["cuda"])
        running = item.served
        done.add(item.key)
        if item.kind == "users":
            rate = item.load / card.e2e_s(item.served, item.pair, item.load)
            place = item.served.label, item.pair
            highest[place] = max(rate, highest.get(place, 0.0))
        assert budget_s >= 0


def test_every_item_has_a_name_of_its_own() -> None:
    names = [item.key for item in agenda()]
    assert len(names) == len(set(names))


@settings(deadline=None, max_examples=20)
@given(st.floats(min_value=0, max_value=3000))
def test_no_budget_is_overdrawn(budget_s: float) -> None:
    for _ in simulated(budget_s, set()):
        pass  # asserts that the rest never falls below zero


def test_three_calls_of_nine_minutes_do_what_one_long_call_does_first() -> None:
    done: set[str] = set()
    highest: Rates = {}
    first = [item for item, _ in simulated(520, done, highest)]
    later = [item for _ in range(2) for item, _ in simulated(520, done, highest)]
    keys = [item.key for item in (*first, *later)]
    assert len(keys) == len(set(keys)), "nothing twice"
    assert {item.pair for item in first} == set(PAIRS), "every pair has points after the first call"
    assert all(item.served.shape == "llama-3.1-8b" for item in first)
    assert sum(item.kind == "share" for item in (*first, *later)) >= 2 * len(PAIRS)


def test_random_arrivals_wait_for_a_closed_loop_of_their_pair() -> None:
    seen: set[tuple[Served, tuple[int, int]]] = set()
    for item, _ in simulated(3000, set()):
        if item.kind == "share":
            assert (item.served, item.pair) in seen
        seen.add((item.served, item.pair))


def test_a_server_is_started_once() -> None:
    setups = [(item.served.shape, item.served.batching) for item, _ in simulated(3000, set())]
    changes = sum(a != b for a, b in itertools.pairwise(setups))
    assert changes == len(set(setups)) - 1


def test_estimates_follow_what_was_measured() -> None:
    card, served = Card("cuda", *H200), Served("llama-3.1-8b")
    before = card.e2e_s(served, (1000, 200), 16)
    for _ in range(2):  # learning the same twice changes nothing more
        card.learn(served, (1000, 200), 16, 3 * before)
        assert abs(card.e2e_s(served, (1000, 200), 16) / (3 * before) - 1) < 1e-9
    assert card.e2e_s(Served("qwen3-8b"), (1000, 200), 16) < 3 * before


def test_a_step_is_never_estimated_below_what_memory_allows() -> None:
    shape, card = SHAPES["llama-3.1-8b"], Card("cuda", *H200)
    for isl, osl in PAIRS:
        for users in (1, 64, 256):
            least_s = 2 * (shape.step_weights + users * isl * shape.kv_values_per_token) / card.bytes_per_s
            assert card.e2e_s(Served("llama-3.1-8b"), (isl, osl), users) > osl * least_s
