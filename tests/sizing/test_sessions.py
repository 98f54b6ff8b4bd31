"""Sessions and the prefix cache: a naive cache block by block, the theory of LRU caches, and laws that must hold."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from sizing.cli import main
from sizing.engine import FREE, KV_POLICIES, Batching, Policy, Replica, StepLaw
from sizing.errors import ScenarioError
from sizing.simulator import sessions as sessions_module
from sizing.simulator import simulate_trace
from sizing.simulator.fleet import Failure, serve
from sizing.simulator.sampling import checked_requests
from sizing.simulator.sessions import (
    SESSION_ROUTINGS,
    SessionRouting,
    SimulatedSessions,
    drawn_sessions,
    put_in_order,
    serve_sessions,
    simulate_sessions,
)
from sizing.simulator.state import NOBODY, SERVED, requests_of
from sizing.workload import Sessions
from tests.sizing.reference_sessions import Turn, serve_sessions_slowly

LAW = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, 1.3e-9, 0.5e-3, 4e-3)
RULE = Batching("chunked", 64, 2048, 400_000, "max_utilization", kv_block_tokens=16, prefix_cache=True)
SERVER = Replica(LAW, RULE)
CHAT = Sessions(
    *(0.5, 5, 800, 80, 150),
    first_cv=0.8,
    user_cv=0.7,
    output_cv=0.6,
    think_s=20,
    system_tokens=200,
    context_tokens=6000,
    turn_law="fixed",
)


def with_kv(kv_tokens: int, **rule: Any) -> Replica:
    return replace(SERVER, batching=replace(RULE, kv_tokens=kv_tokens, **rule))


# --- Against a naive cache, block by block and iteration by iteration


@st.composite
def small(draw: st.DrawFn) -> tuple[Replica, Sessions]:
    """An engine with little memory and sessions that fill it."""
    policy: Policy = draw(st.sampled_from(("chunked", "whole_prompt", "prefill_first")))
    rule = Batching(
        policy,
        draw(st.integers(1, 8)),
        draw(st.sampled_from((24, 64, 400))),
        draw(st.integers(400, 1500)),
        draw(st.sampled_from(KV_POLICIES)),
        kv_block_tokens=draw(st.sampled_from((1, 4, 16))),
        lookahead_steps=draw(st.sampled_from((0.0, 1.0))),
        prefix_cache=draw(st.booleans()) or draw(st.booleans()),
    )
    sessions = Sessions(
        draw(st.sampled_from((0.3, 3.0, 30.0))),
        turns=draw(st.sampled_from((1.0, 3.0, 6.0))),
        first_tokens=draw(st.sampled_from((5, 30))),
        user_tokens=draw(st.sampled_from((1, 10))),
        output_tokens=draw(st.sampled_from((1, 12, 60))),
        first_cv=0.7,
        user_cv=0.7,
        output_cv=draw(st.sampled_from((0.0, 0.7))),
        think_s=draw(st.sampled_from((1e-4, 0.05, 1.0))),
        system_tokens=draw(st.sampled_from((0, 16, 41))),
        context_tokens=300,
    )
    return Replica(LAW, rule), sessions


@settings(max_examples=80, deadline=None)
@given(case=small(), seed=st.integers(0, 2**31), fleet=st.integers(1, 3), routing=st.sampled_from(SESSION_ROUTINGS))
def test_every_turn_is_that_of_a_cache_of_single_blocks(
    case: tuple[Replica, Sessions], seed: int, fleet: int, routing: SessionRouting
) -> None:
    replica, sessions = case
    fleet = 1 if routing == "affinity" else fleet
    run, think_s = drawn_sessions(replica, sessions, 25, seed)
    block = replica.batching.kv_block_tokens
    shared = sessions.system_tokens // block * block if replica.batching.prefix_cache else 0
    turns = [
        Turn(place, int(request["isl"]), int(request["osl"]), int(request["session"]), shared)
        for place, request in enumerate(run)
    ]
    routes = np.random.default_rng([seed, len(run)])

    def route(engines: Any, turn: Turn, time_s: float) -> int:
        if fleet == 1:
            return 0
        place = int(routes.random() * fleet)
        if routing == "random":
            return place
        in_turn = [(place + ahead) % fleet for ahead in range(fleet)]
        aware = routing == "prefix_aware"
        rank = {one: (-engines[one].cached(turn.session) * aware, engines[one].outstanding(time_s)) for one in in_turn}
        return min(in_turn, key=lambda one: rank[one])

    start_s = run["arrival_s"].tolist()
    slow = serve_sessions_slowly(replica, turns, start_s, think_s.tolist(), fleet, route)
    states = serve_sessions(replica, run, think_s, sessions.system_tokens, fleet, routing, seed)
    assert run["found_tokens"].tolist() == [turn.found for turn in turns]
    for field in ("arrival_s", "first_token_s", "done_s"):
        assert run[field] == pytest.approx([getattr(turn, field) for turn in turns], rel=1e-9)
    assert states["paused"].tolist() == [engine.pauses for engine in slow]
    for engine in slow:
        engine.evict()
    assert states["cached_blocks"].tolist() == [len(engine.queue) for engine in slow]


def test_the_small_cases_evict_and_pause() -> None:
    """What the comparison is for: found prompts, prompts found in part or no more, and pauses."""
    replica = Replica(LAW, replace(RULE, kv_tokens=500, max_batch_size=8, kv_block_tokens=4))
    sessions = Sessions(2.0, 6, 30, 10, 30, 0.7, 0.7, 0.7, think_s=0.05, context_tokens=300)
    run, think_s = drawn_sessions(replica, sessions, 100, 1)
    states = serve_sessions(replica, run, think_s)
    later = np.diff(run["session"], prepend=NOBODY) == 0
    before = np.roll(run["isl"] + run["osl"] - 1, 1) // 4 * 4
    whole, none = run["found_tokens"] == before, run["found_tokens"] == 0
    assert min(np.count_nonzero(later & part) for part in (whole, none, ~whole & ~none)) > 10
    assert states["paused"].sum() > 10


# --- What becomes of a request that does not end well


def found_later(first: dict[str, float], engine: Replica = SERVER, failures: Sequence[Failure] = ()) -> int:
    """Prompt tokens that a session's second request finds, 20 s after a first one with these fields."""
    run = checked_requests(engine, np.array([1000, 4000]), np.array([1000, 1]), np.array([0.0, 20.0]))
    run["session"] = 0
    for field, value in first.items():
        run[field][0] = value
    serve([engine], run, "random", np.random.default_rng(0), failures)
    return int(run["found_tokens"][1])


@settings(max_examples=30, deadline=None)
@given(patience_s=st.floats(0.001, 3.0))
def test_what_was_computed_for_a_client_who_left_is_found(patience_s: float) -> None:
    """Chunks of 64 tokens, then one token a step, until the end of the iteration in which the client leaves."""
    engine, now_s, tokens = with_kv(400_000, token_budget=64), 0.0, 0
    while now_s < patience_s and tokens < 1000:
        chunk = min(64, 1000 - tokens)
        now_s += LAW.mixed_s(0, 0, chunk, chunk * (tokens + chunk / 2))
        tokens += chunk
    while now_s < patience_s:
        now_s += LAW.decode_s(1, tokens)
        tokens += 1
    assert found_later({"cancel_s": patience_s}, engine) == tokens // 16 * 16


def test_a_replica_that_fails_loses_its_cache() -> None:
    assert found_later({}) == (1000 + 999) // 16 * 16
    assert found_later({}, failures=[Failure(0, 15.0, 16.0)]) == 0


# --- Theory


def closed_form(sessions: Sessions, block: int) -> list[int]:
    """Prompt tokens of each turn that a cache without limit holds, of sessions that are all alike."""
    prompt, found = sessions.system_tokens + int(sessions.first_tokens), [sessions.system_tokens // block * block]
    for _ in range(1, int(sessions.turns)):
        found.append((prompt + int(sessions.output_tokens) - 1) // block * block)
        prompt += int(sessions.output_tokens + sessions.user_tokens)
    return found


@pytest.mark.parametrize("routing", ["affinity", "prefix_aware"])
@pytest.mark.parametrize("block", [1, 16, 64])
def test_with_memory_for_all_every_whole_block_before_is_found(block: int, routing: SessionRouting) -> None:
    alike = replace(CHAT, first_cv=0, user_cv=0, output_cv=0)
    room = with_kv(10**9, kv_block_tokens=block)
    run = simulate_sessions(room, alike, replicas=3, routing=routing, requests=3000)
    found = np.array(closed_form(alike, block))
    assert run.found_tokens.tolist() == found[run.number].tolist()
    prompts = 1000 + 230 * np.arange(5)
    assert run.hit_rate == pytest.approx(found.sum() / prompts.sum(), rel=0.02)


@pytest.mark.parametrize("replicas", [4, 256])
def test_random_routing_finds_what_an_earlier_turn_left_at_the_same_replica(replicas: int) -> None:
    """With memory for all, turn k finds that of turn j if j < k is the last that was sent to its replica, chance 1/R
    each time."""
    alike = replace(CHAT, rate_per_s=0.125 * replicas, first_cv=0, user_cv=0, output_cv=0)
    run = simulate_sessions(with_kv(10**9), alike, replicas=replicas, routing="random", requests=60_000)
    left, share = np.array(closed_form(alike, 16)), 1 / replicas
    for number in range(1, 5):
        chances = np.array([share * (1 - share) ** (number - 1 - before) for before in range(number)])
        expected = chances @ left[1 : number + 1] + (1 - chances.sum()) * left[0]
        mine = run.found_tokens[run.number == number]
        assert mine.mean() == pytest.approx(expected, abs=4 * mine.std() / np.sqrt(len(mine)))


def test_lru_under_independent_references_hits_as_often_as_che_says() -> None:
    """Che, Tung and Wang 2002: an item asked for with chance q is found with 1 - exp(-q T), where T fills the cache.

    400 documents of 10 blocks by Zipf's law, room for 80: the approximation is within 1 % of exact there (Fricker,
    Robert and Roberts 2012). One token is computed and one comes out, so that nothing else is cached.
    """
    items, room, blocks, asked = 400, 80, 10, 60_000
    chances = 1 / np.arange(1, items + 1) ** 0.8
    chances /= chances.sum()
    rng = np.random.default_rng(3)
    isl = np.full(asked, 16 * blocks + 1)
    arrival_s = np.cumsum(rng.exponential(1.0, asked))
    engine = with_kv(16 * blocks * room)
    run = checked_requests(engine, isl, np.ones(asked, np.int64), arrival_s)
    run["session"] = rng.choice(items, asked, p=chances)
    serve([engine], run, "random", rng)
    found = run["found_tokens"][5000:].sum() / (16 * blocks * (asked - 5000))
    time = brentq(lambda time: np.sum(1 - np.exp(-chances * time)) - room, 1, 1e5)
    assert found == pytest.approx(chances @ (1 - np.exp(-chances * time)), abs=0.01)


def test_sessions_in_flight_are_their_rate_times_their_time() -> None:
    """Little's law, users who think included."""
    run = simulate_sessions(SERVER, replace(CHAT, turn_law="geometric"), requests=60_000)
    assert run.in_flight == pytest.approx(0.5 * run.latencies["session"].mean_s, rel=0.05)
    assert run.turns_per_s == pytest.approx(2.5, rel=0.05)
    assert not run.saturated


def test_the_longest_sessions_are_measured() -> None:
    """A geometric number of exponential thinking times, one fewer than turns: 0 or, in 3 of 4 cases, exponential."""
    free = Replica(FREE, replace(RULE, kv_tokens=10**7))
    run = simulate_sessions(free, Sessions(50.0, 4, 1, 1, 1, think_s=20), requests=1000)
    assert run.latencies["session"].p99_s == pytest.approx(4 * 20 * np.log(0.75 / 0.01), rel=0.05)


# --- Laws


def are_one(one: SimulatedSessions, other: SimulatedSessions) -> None:
    for field in ("arrival_s", "ttft_s", "itl_s", "e2e_s"):
        np.testing.assert_array_equal(getattr(one.turns, field), getattr(other.turns, field))
    np.testing.assert_array_equal(one.found_tokens, other.found_tokens)
    np.testing.assert_array_equal(one.session_s, other.session_s)


def test_sessions_of_one_turn_are_requests() -> None:
    single = replace(CHAT, turns=1, rate_per_s=8.0, system_tokens=0)
    run, think_s = drawn_sessions(SERVER, single, 3000, 5)
    plain = simulate_trace(SERVER, run["arrival_s"], run["isl"], run["osl"])
    serve_sessions(SERVER, run, think_s)
    assert not run["found_tokens"].any()
    np.testing.assert_array_equal(run["done_s"] - run["arrival_s"] + LAW.request_s, plain.e2e_s)


def test_a_cache_without_room_is_none() -> None:
    """No block is ever whole."""
    blocks = with_kv(6_000_000, kv_block_tokens=60_000)
    run = simulate_sessions(blocks, CHAT, requests=4000)
    assert run.hit_rate == 0
    are_one(run, simulate_sessions(with_kv(6_000_000, prefix_cache=False), CHAT, requests=4000))


def test_more_memory_finds_more() -> None:
    caches = [simulate_sessions(with_kv(kv), CHAT, requests=20_000) for kv in (8_000, 15_000, 30_000, 60_000, 200_000)]
    rates = [run.hit_rate for run in caches]
    assert rates == sorted(rates) and rates[0] < 0.5 < 0.8 < rates[-1]
    ttfts_s = [run.latencies["later_ttft"].mean_s for run in caches]
    assert ttfts_s == sorted(ttfts_s, reverse=True)


def test_one_replica_stands_for_all_that_sessions_stay_with() -> None:
    one = simulate_sessions(SERVER, CHAT, requests=5000, seed=2)
    four = simulate_sessions(SERVER, replace(CHAT, rate_per_s=4 * 0.5), replicas=4, requests=5000, seed=2)
    are_one(one, four)
    assert four.in_flight == pytest.approx(4 * one.in_flight)
    assert four.turns_per_s == pytest.approx(4 * one.turns_per_s)


@pytest.mark.parametrize("routing", SESSION_ROUTINGS)
def test_a_single_replica_leaves_no_choice(routing: SessionRouting) -> None:
    are_one(
        simulate_sessions(with_kv(20_000), CHAT, routing=routing, requests=3000),
        simulate_sessions(with_kv(20_000), CHAT, requests=3000),
    )


def test_routers_that_know_the_cache_find_more() -> None:
    rates = {
        routing: simulate_sessions(
            *(with_kv(30_000), replace(CHAT, rate_per_s=2.0)), replicas=4, routing=routing, requests=10_000
        ).hit_rate
        for routing in SESSION_ROUTINGS
    }
    assert max(rates["random"], rates["least_outstanding"]) < min(rates["affinity"], rates["prefix_aware"]) - 0.1


@pytest.mark.parametrize("routing", ["random", "least_outstanding"])
def test_few_replicas_stand_for_a_fleet_in_which_turns_scatter(
    routing: SessionRouting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents of 30 turns: in a fleet of 64 a turn finds half of what it does in one of 32."""
    agents = Sessions(22.5, 30, 1000, 100, 100, first_cv=0.5, user_cv=0.7, output_cv=0.6, think_s=1)
    few = simulate_sessions(with_kv(2_000_000), agents, replicas=64, routing=routing, requests=10_000)
    monkeypatch.setattr(sessions_module, "MOST_REPLICAS", 64)
    all_of_them = simulate_sessions(with_kv(2_000_000), agents, replicas=64, routing=routing, requests=10_000)
    assert few.hit_rate == pytest.approx(all_of_them.hit_rate, abs=0.01)
    for place, field in (("later_ttft", "mean_s"), ("itl", "mean_s")):
        one, other = (getattr(run.latencies[place], field) for run in (few, all_of_them))
        assert one == pytest.approx(other, rel=0.1)


def test_too_many_sessions_saturate() -> None:
    assert simulate_sessions(SERVER, replace(CHAT, rate_per_s=20.0), requests=20_000).saturated


def test_a_rejected_turn_ends_its_session() -> None:
    short = with_kv(60_000, max_batch_size=1, max_waiting=1)
    run, think_s = drawn_sessions(short, replace(CHAT, rate_per_s=5.0, think_s=1.0), 200, 0)
    serve_sessions(short, run, think_s)
    sent = np.isfinite(run["arrival_s"])
    lost = sent & (run["outcome"] != SERVED)
    assert 0 < np.count_nonzero(lost) < 200
    last_sent = np.append(~sent[1:] | (np.diff(run["session"]) > 0), True)
    assert np.all(last_sent[lost])
    assert simulate_sessions(short, replace(CHAT, rate_per_s=5.0), requests=2000).turns.rejected > 0


def test_engines_that_cannot_have_a_prefix_cache_say_so() -> None:
    with pytest.raises(ScenarioError, match="in-flight batching"):
        replace(RULE, policy="static")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"rate_per_s": 0}, "rate"),
        ({"turns": 0.5}, "turns must be from 1"),
        ({"turns": 2.5}, "whole number"),
        ({"user_tokens": float("nan")}, "user_tokens"),
        ({"think_s": -1.0}, "think_s"),
        ({"system_tokens": -1}, "system_tokens"),
        ({"turn_law": "poisson"}, "geometric, fixed"),
    ],
)
def test_sessions_out_of_range_are_one_line(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ScenarioError, match=why):
        replace(CHAT, **change)


def test_what_cannot_be_simulated_is_one_line() -> None:
    with pytest.raises(ScenarioError, match="never fits"):
        simulate_sessions(with_kv(1000), CHAT)
    with pytest.raises(ScenarioError, match="no first turn fits"):
        simulate_sessions(SERVER, replace(CHAT, context_tokens=100))
    with pytest.raises(ScenarioError, match="affinity, random"):
        simulate_sessions(SERVER, CHAT, routing="round_robin")  # type: ignore[arg-type]


# --- Memory of long runs


@given(st.integers(1, 40).flatmap(lambda count: st.permutations(range(count))))
def test_requests_are_put_in_order_in_place(order: list[int]) -> None:
    run = requests_of(np.arange(1, len(order) + 1), np.ones(len(order), np.int64), 0.0)
    expected = run[order]
    put_in_order(run, np.array(order))
    assert np.array_equal(run, expected)


def test_a_run_takes_less_than_twice_the_memory_of_its_records() -> None:
    """Nothing of a finished run is copied as a whole; arrays of single quantities come to about 60 % of the records."""
    simulate_sessions(SERVER, CHAT, requests=2000)
    tracemalloc.start()
    try:
        simulate_sessions(SERVER, CHAT, requests=200_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 2 * 200_000 * requests_of(np.ones(1, np.int64), np.ones(1, np.int64), 0.0).itemsize


# --- The command


BASE = (
    "sessions --weights 4.8ms --overhead 1ms --token 20us --sequence 10us --kv-token 49ns --attention 1.3ns "
    "--prefill 0.5ms --request 4ms --first-tokens 800 --user-tokens 80 --output-tokens 150 --requests 2000"
)


def command(options: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stop:
        main([*BASE.split(), *options.split()])
    out, err = capsys.readouterr()
    return int(stop.value.code or 0), out, err


def test_the_options_are_those_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    replica = with_kv(30_000, max_batch_size=8, token_budget=512, kv_block_tokens=32, lookahead_steps=1.0)
    options = (
        "--sessions-per-s 0.8 --turns 5 --turn-law fixed --first-cv 0.8 --user-cv 0.7 --output-cv 0.6 --think 20s "
        "--system-tokens 200 --context-tokens 6000 --max-batch-size 8 --token-budget 512 --kv-tokens 30000 "
        "--block-tokens 32 --lookahead-steps 1 --replicas 2 --routing least_outstanding --seed 3 --json"
    )
    chat = replace(CHAT, rate_per_s=0.8)
    run = simulate_sessions(replica, chat, replicas=2, routing="least_outstanding", requests=2000, seed=3)
    code, out, err = command(options, capsys)
    found = json.loads(out)
    assert (code, err) == (0, "")
    assert found["hit_rate"] == run.hit_rate and found["pauses"] == run.pauses
    assert found["predicted"]["session"]["mean_s"] == run.session_s.mean()
    later_s = run.turns.ttft_s[run.number > 0]
    assert found["predicted"]["later_ttft"]["p95_s"] == pytest.approx(np.percentile(later_s, 95))
    assert json.loads(command(f"{options} --no-prefix-cache", capsys)[1])["hit_rate"] == 0


def test_the_table_has_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    several, single = (command(f"--sessions-per-s 0.5 --turns {turns}", capsys)[1] for turns in (4, 1))
    assert "later turns" in several and "later turns" not in single
    assert "0 % of prompt tokens found" in single


def test_a_saturated_fleet_has_no_latencies(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Saturated" in command("--sessions-per-s 50 --turns 4", capsys)[1]
    found = json.loads(command("--sessions-per-s 50 --turns 4 --json", capsys)[1])
    assert found["saturated"] and set(found["predicted"]["e2e"].values()) == {None}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--sessions-per-s 0 --turns 4", "rate (sessions/s) must be a number above 0"),
        ("--sessions-per-s 1 --turns 4 --user-cv -1", "user_cv must be a number from 0 on, got -1"),
        ("--sessions-per-s 1 --turns 4 --output-cv 1e308", "output_cv must be at most 1000"),
        ("--sessions-per-s 1 --turns 0.5", "turns must be from 1"),
        ("--sessions-per-s 1 --turns 4 --think 20", "needs a unit"),
        ("--sessions-per-s 1 --turns 4 --kv-tokens 500", "never fits"),
        ("--sessions-per-s 1 --turns 4 --block-tokens 0", "kv_block_tokens must be at least 1"),
        ("--sessions-per-s 1", "--turns"),
        ("--sessions-per-s 1 --turns 4 --token 1e20s", "times must be from 0 to 3,600 s"),
    ],
)
def test_options_that_make_no_sense_are_one_line(options: str, why: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(options, capsys)
    assert (code, out) == (2, "")
    assert why in err and err.count("\n") == 1
