"""Fleets: the compiled router against a naive one, failures by hand, theory of routing."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sizing.engine import KV_POLICIES, Batching, KvPolicy, Replica, Speculation, StepLaw
from sizing.errors import ScenarioError
from sizing.question import Setting
from sizing.queueing import predict
from sizing.simulator import Failure, simulate, simulate_fleet, simulate_trace, simulated_stable_rate_per_s
from sizing.simulator.closed import fleet_utilization
from sizing.simulator.fleet import serve
from sizing.simulator.runs import Stream, simulate_streams
from sizing.simulator.state import CANCELLED, SERVED, TIMED_OUT, requests_of
from sizing.workload import ROUTINGS, Lengths, Limit, Prefix, Routing, Sla, Workload
from tests.sizing.reference_simulator import Slot, SlowReplica

GPU = StepLaw(4.8e-3, 1e-3, 20e-6, 10e-6, 49e-9, attention_s=1.3e-9, prefill_s=0.5e-3, request_s=3e-3)
VARIED = Lengths(isl=600, osl=150, isl_cv=0.5, osl_cv=0.8)
SECOND = StepLaw(0.0, 1.0, 0.0, 0.0, 0.0)  # every iteration takes one second
OUTCOMES = ("served", "rejected", "timed_out", "cancelled")


class SlowFleet:
    """A router over naive replicas, each asked at every arrival."""

    def __init__(self, replicas: list[Replica], routing: Routing, rng: np.random.Generator) -> None:
        self.engines = [SlowReplica(replica) for replica in replicas]
        self.leaving = [0] * len(replicas)
        self.up = list(range(len(replicas)))
        self.routing, self.rng, self.turn = routing, rng, -1
        self.held: list[Slot] = []

    def run_to(self, now_s: float) -> None:
        for number, engine in enumerate(self.engines):
            while not engine.idle and engine.now_s < now_s:
                self.leaving[number] = len(engine.iterate())
            engine.drop_late(now_s)

    def unfinished(self, number: int, now_s: float) -> int:
        engine = self.engines[number]
        return len(engine.waiting) + len(engine.slots) + self.leaving[number] * (engine.now_s > now_s)

    def asked(self) -> list[int]:
        living = len(self.up)
        if self.routing == "round_robin":
            self.turn += 1
            return [self.up[self.turn % living]]
        first = int(self.rng.random() * living)
        around = [self.up[(first + turn) % living] for turn in range(living)]
        if self.routing == "least_outstanding" or living == 1:
            return around
        if self.routing == "random":
            return around[:1]
        return [around[0], around[1 + int(self.rng.random() * (living - 1))]]

    def give(self, sequence: Slot, now_s: float) -> None:
        if np.isnan(sequence.arrival_s):
            sequence.arrival_s = now_s
        if not self.up:
            self.held.append(sequence)
            return
        self.run_to(now_s)
        best = min(self.asked(), key=lambda number: self.unfinished(number, now_s))
        self.engines[best].arrive(sequence, now_s)

    def change(self, time_s: float, number: int, lives: bool) -> None:
        self.run_to(time_s)
        orphans, self.held = self.held, []
        if lives:
            self.up.append(number)
        else:
            self.up.remove(number)
            orphans += self.orphans(number)
        for sequence in sorted(orphans, key=lambda sequence: sequence.place):
            sequence.start_anew()
            self.give(sequence, time_s)

    def orphans(self, number: int) -> list[Slot]:
        """Who loses the replica: all but those whose clients give up before the iteration in progress ends."""
        engine = self.engines[number]
        lost = engine.slots + engine.waiting
        engine.slots, engine.waiting, self.leaving[number] = [], [], 0
        return lost


@st.composite
def outages(draw: st.DrawFn, replicas: int) -> list[Failure]:
    """Up to two for each replica but the last, within the 4 seconds or so of a run."""
    time = st.floats(0.05, 4.0)
    found = []
    for number in range(replicas - 1):
        times = sorted(draw(st.lists(time, max_size=4, unique=True)))
        found += [Failure(number, start, end) for start, end in zip(times[::2], times[1::2], strict=False)]
    return found


@settings(max_examples=30, deadline=None)
@given(data=st.data(), routing=st.sampled_from(ROUTINGS), rate=st.sampled_from([5.0, 20.0, 80.0]))
def test_the_router_equals_a_naive_one(data: st.DataObject, routing: Routing, rate: float) -> None:
    fleet, seed = data.draw(st.integers(1, 5)), data.draw(st.integers(0, 10**6))
    slots = data.draw(st.sampled_from([2, 24]))
    speeds = data.draw(st.lists(st.sampled_from([1.0, 1.7]), min_size=fleet, max_size=fleet))
    replicas = [Replica(GPU.scaled(speed), Batching("chunked", slots, token_budget=512)) for speed in speeds]
    failures = data.draw(outages(fleet))
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate, 80))
    isl, osl = rng.integers(1, 801, 80), rng.integers(1, 301, 80)
    patience_s = data.draw(st.sampled_from([0.2, 1.0, np.inf])) * rng.exponential(1.0, (2, 80))
    run = requests_of(isl, osl, arrival_s)
    run["queue_timeout_s"], run["cancel_s"] = patience_s[0], 4 * patience_s[1]
    serve(replicas, run, routing, np.random.default_rng(seed), failures)

    slow = [
        Slot(place, int(a), int(b), queue_timeout_s=timeout_s, cancel_s=4 * cancel_s)
        for place, (a, b, timeout_s, cancel_s) in enumerate(zip(isl, osl, *patience_s, strict=True))
    ]
    naive = SlowFleet(replicas, routing, np.random.default_rng(seed))
    events: list[tuple[float, int, Any]] = [(time_s, 2, place) for place, time_s in enumerate(arrival_s)]
    events += [(failure.from_s, 1, failure.replica) for failure in failures]
    events += [(failure.until_s, 0, failure.replica) for failure in failures]
    for time_s, kind, number in sorted(events):
        if kind == 2:
            naive.give(slow[number], time_s)
        else:
            naive.change(time_s, number, lives=kind == 0)
    naive.run_to(np.inf)
    assert [OUTCOMES[outcome] for outcome in run["outcome"]] == [s.outcome for s in slow]
    assert run["done_s"] == pytest.approx([s.done_s for s in slow], abs=1e-6)
    served = np.flatnonzero(run["outcome"] == SERVED)
    assert run["first_token_s"][served] == pytest.approx([slow[place].first_token_s for place in served], abs=1e-6)


def test_the_line_is_joined_anew_after_a_death() -> None:
    """One slot, one token a second. The second replica is busy until 6 s; the orphan of 2 s waits there its 2.5 s."""
    run = requests_of(np.array([9, 9]), np.array([5, 6]), np.array([0.0, 0.0]))
    run["queue_timeout_s"] = 2.5
    one_slot = Replica(SECOND, Batching(max_batch_size=1))
    serve([one_slot] * 2, run, "round_robin", np.random.default_rng(0), [Failure(0, 2.0)])
    assert run["outcome"].tolist() == [TIMED_OUT, SERVED]
    assert run["done_s"] == pytest.approx([4.5, 6.0])


@pytest.mark.parametrize(("cancel_s", "end_s"), [(4.0, 4.0), (2.5, 2.5)])
def test_a_client_does_not_wait_anew(cancel_s: float, end_s: float) -> None:
    run = requests_of(np.array([9, 9]), np.array([5, 6]), np.array([0.0, 0.0]))
    run["queue_timeout_s"], run["cancel_s"] = 2.5, [cancel_s, np.inf]
    one_slot = Replica(SECOND, Batching(max_batch_size=1))
    serve([one_slot] * 2, run, "round_robin", np.random.default_rng(0), [Failure(0, 2.0)])
    assert run["outcome"].tolist() == [CANCELLED, SERVED]
    assert run["done_s"] == pytest.approx([end_s, 6.0])


@pytest.mark.parametrize("seed", range(8))
def test_a_router_does_not_count_who_has_given_up(seed: int) -> None:
    """Both replicas run one request and have one in line; that of the first gives up, so the next goes there."""
    run = requests_of(np.ones(5, int), np.array([9, 9, 1, 1, 1]), np.array([0.0, 0.0, 0.1, 0.2, 0.6]))
    run["queue_timeout_s"][2] = 0.3
    one_slot = Replica(SECOND, Batching(max_batch_size=1))
    serve([one_slot] * 2, run, "least_outstanding", np.random.default_rng(seed))
    assert run["outcome"][2] == TIMED_OUT
    assert run["replica"][4] == run["replica"][2] != run["replica"][3]


def test_a_request_of_a_dead_replica_starts_anew_on_another() -> None:
    """One token a second. Dead at 2.5 s: its third iteration ends, unseen; the other replica begins again at once."""
    run = requests_of(np.array([10]), np.array([5]), np.zeros(1))
    serve([Replica(SECOND)] * 2, run, "round_robin", np.random.default_rng(0), [Failure(0, 2.5)])
    assert run["replica"] == [1]
    assert run["scheduled_s"] == pytest.approx([2.5])
    assert run["first_token_s"] == pytest.approx([3.5])
    assert run["done_s"] == pytest.approx([7.5])


def test_the_last_token_of_the_iteration_in_progress_still_counts() -> None:
    run = requests_of(np.array([10]), np.array([3]), np.zeros(1))
    serve([Replica(SECOND)] * 2, run, "round_robin", np.random.default_rng(0), [Failure(0, 2.5)])
    assert run["done_s"] == pytest.approx([3.0])


def test_while_all_are_dead_the_router_holds_what_comes() -> None:
    run = requests_of(np.array([10, 10]), np.array([1, 1]), np.array([0.0, 2.0]))
    serve([Replica(SECOND)], run, "random", np.random.default_rng(0), [Failure(0, 0.5, 10.0)])
    assert run["done_s"] == pytest.approx([1.0, 11.0])


@settings(max_examples=40, deadline=None)
@given(data=st.data(), routing=st.sampled_from(ROUTINGS), policy=st.sampled_from(KV_POLICIES))
def test_nobody_is_forgotten(data: st.DataObject, routing: Routing, policy: KvPolicy) -> None:
    """Deaths, short lines, little memory, impatient clients: every request has an end, and one that fits its fate."""
    fleet, n = data.draw(st.integers(1, 4)), 120
    rule = Batching(max_batch_size=8, token_budget=256, kv_tokens=2500, kv_policy=policy, max_waiting=6)
    failures = data.draw(outages(fleet)) + data.draw(st.sampled_from([[], [Failure(fleet - 1, 0.5, 2.0)]]))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    run = requests_of(rng.integers(1, 801, n), rng.integers(1, 301, n), np.cumsum(rng.exponential(1 / 30, n)))
    run["queue_timeout_s"], run["cancel_s"] = rng.exponential(1.0, n), rng.exponential(5.0, n)
    run["priority"] = rng.integers(0, 3, n)
    serve([Replica(GPU, rule)] * fleet, run, routing, rng, failures)
    served, rejected, timed_out, cancelled = (run[run["outcome"] == fate] for fate in range(4))
    assert len(served) + len(rejected) + len(timed_out) + len(cancelled) == n
    assert np.all(served["arrival_s"] <= served["scheduled_s"])
    assert np.all(served["scheduled_s"] < served["first_token_s"])
    assert np.all(served["first_token_s"] <= served["done_s"])
    assert np.all(served["done_s"] <= served["arrival_s"] + served["cancel_s"])
    assert np.all(rejected["done_s"] >= rejected["arrival_s"])
    waited_s = timed_out["done_s"] - timed_out["arrival_s"]  # longer than the timeout where the first replica died
    assert np.all(waited_s > timed_out["queue_timeout_s"] - 1e-9)
    assert failures or waited_s == pytest.approx(timed_out["queue_timeout_s"])
    assert cancelled["done_s"] == pytest.approx(cancelled["arrival_s"] + cancelled["cancel_s"])


def test_prefix_hits_and_speculation_carry_more() -> None:
    """All but one prompt token in the cache, four tokens a step: the load of the plain replica is a part of theirs."""
    load = Workload(Lengths(2000, 200, 0.5, 0.8), 6.0)
    plain = simulate(Replica(GPU), load, requests=4000)
    hits = simulate(Replica(GPU), replace(load, prefix=Prefix(10**6, 1.0)), requests=4000)
    guesses = simulate(Replica(GPU, speculation=Speculation(3, 1.0)), load, requests=4000)
    assert hits.utilization < 0.7 * plain.utilization
    assert guesses.utilization < plain.utilization
    assert hits.ttft_s.mean() < 0.5 * plain.ttft_s.mean()
    assert np.nanmean(guesses.itl_s) < 0.5 * np.nanmean(plain.itl_s)


@pytest.mark.parametrize(
    ("failures", "words"),
    [
        ([Failure(2, 1.0)], "failure of replica 2: the fleet has replicas 0 to 1"),
        ([Failure(0, 1.0, 5.0), Failure(0, 4.0, 6.0)], "failures of replica 0 overlap"),
        ([Failure(0, 1.0), Failure(1, 2.0)], "every replica fails without recovering"),
    ],
)
def test_failures_that_make_no_sense_are_refused(failures: list[Failure], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        simulate_fleet([Replica(GPU)] * 2, Workload(VARIED, 2.0), failures=failures, requests=20)


def test_a_failure_needs_a_beginning_before_its_end() -> None:
    with pytest.raises(ScenarioError, match="from_s from 0 to below until_s"):
        Failure(0, 5.0, 5.0)


def test_a_fleet_cannot_mix_output_limits() -> None:
    fleet = [Replica(GPU), Replica(GPU, Batching(max_tokens=100))]
    with pytest.raises(ScenarioError, match="same speculation and the same max_tokens"):
        simulate_fleet(fleet, Workload(VARIED, 2.0), requests=20)


@pytest.mark.parametrize("routing", ["power_of_two", "least_outstanding"])
def test_equal_replicas_are_a_fleet_like_any_other(routing: Routing) -> None:
    load = Workload(VARIED, 60.0)
    one = simulate(Replica(GPU), load, replicas=6, routing=routing, requests=3000, seed=4)
    other = simulate_fleet([Replica(GPU)] * 6, load, routing=routing, requests=3000, seed=4)
    assert np.array_equal(one.e2e_s, other.e2e_s)
    assert one.requests_per_s == other.requests_per_s
    assert one.utilization == pytest.approx(other.utilization)


def test_round_robin_over_a_trace_deals_it_out() -> None:
    rng = np.random.default_rng(5)
    isl, osl = VARIED.sample(900, rng)
    arrival_s = np.cumsum(rng.exponential(1 / 30, 900))
    fleet = simulate_trace(Replica(GPU), arrival_s, isl, osl, replicas=3, routing="round_robin")
    for first in range(3):
        alone = simulate_trace(Replica(GPU), arrival_s[first::3], isl[first::3], osl[first::3])
        assert fleet.e2e_s[first::3] == pytest.approx(alone.e2e_s)


@pytest.mark.parametrize("load", [0.7, 0.9])
def test_power_of_two_is_the_supermarket_model(load: float) -> None:
    """Mitzenmacher 2001: exponential service, many servers: mean time in system = sum of load^(2^i - 2), i >= 1."""
    theory = sum(load ** (2**i - 2) for i in range(1, 12))
    servers, n, tick_s = 200, 200_000, 1e-3
    replica = Replica(SECOND.scaled(tick_s), Batching("whole_prompt", max_batch_size=1))
    rng = np.random.default_rng(6)
    arrival_s = np.cumsum(rng.exponential(1 / (load * servers), n))
    ones, outputs = np.ones(n, np.int64), rng.geometric(tick_s, n)
    run = simulate_trace(replica, arrival_s, ones, outputs, replicas=servers, routing="power_of_two")
    assert run.e2e_s[n // 5 :].mean() == pytest.approx(theory, rel=0.03)


def test_knowing_more_helps_and_two_choices_are_nearly_all() -> None:
    rate = 8 * 0.85 * simulated_stable_rate_per_s(Replica(GPU, Batching(max_batch_size=32)), VARIED)
    p95_s = []
    for routing in ("random", "power_of_two", "least_outstanding"):
        replica = Replica(GPU, Batching(max_batch_size=32))
        run = simulate(replica, Workload(VARIED, rate), replicas=8, routing=routing, requests=40_000)
        p95_s.append(float(np.percentile(run.ttft_s, 95)))
    assert p95_s[0] > p95_s[1] > 0.98 * p95_s[2]
    assert p95_s[0] - p95_s[1] > 5 * (p95_s[1] - p95_s[2])


def test_thirty_two_replicas_stand_for_a_hundred() -> None:
    replica = Replica(GPU, Batching(max_batch_size=32))
    load = Workload(VARIED, 100 * 0.8 * simulated_stable_rate_per_s(replica, VARIED))
    small = simulate(replica, load, replicas=100, routing="power_of_two", requests=60_000)
    whole = simulate_fleet([replica] * 100, load, routing="power_of_two", requests=150_000)
    assert np.percentile(small.ttft_s, 95) == pytest.approx(np.percentile(whole.ttft_s, 95), rel=0.05)
    assert small.requests_per_s == pytest.approx(whole.requests_per_s, rel=0.03)


def test_a_slow_replica_drowns_unless_the_router_counts() -> None:
    """One of three at a third of the speed, at 60 % of what the fleet could carry if the load were spread by speed."""
    replica = Replica(GPU, Batching(max_batch_size=32))
    fleet = [replica, replica, Replica(GPU.scaled(3.0), replica.batching)]
    load = Workload(VARIED, 0.6 * (2 + 1 / 3) * simulated_stable_rate_per_s(replica, VARIED))
    blind = simulate_fleet(fleet, load, routing="random", requests=12_000)
    counting = simulate_fleet(fleet, load, routing="least_outstanding", requests=12_000)
    assert blind.saturated and not counting.saturated
    assert blind.utilization == pytest.approx(0.6 * 7 / 3, rel=0.02)  # a third of the load on a third of the speed
    assert counting.utilization == pytest.approx(0.6, rel=0.02)


@given(rates=st.lists(st.floats(0.1, 10), min_size=1, max_size=6), load=st.floats(0.1, 50))
def test_utilization_never_falls_with_less_knowledge(rates: list[float], load: float) -> None:
    fair = load / sum(rates)
    known = [fleet_utilization(load, rates, routing) for routing in ("least_outstanding", "power_of_two", "random")]
    assert known[0] == pytest.approx(fair)
    assert all(more <= less * (1 + 1e-12) for more, less in pairwise(known))
    equal = fleet_utilization(load, [2.0] * len(rates), "power_of_two")
    assert equal == pytest.approx(load / (2 * len(rates)))


@pytest.mark.parametrize(("lengths", "herds"), [((1000, 200, 0.3), True), ((1000, 200, 0.3, 0.3), False)])
def test_equal_answers_may_herd_whatever_their_prompts(lengths: tuple[float, ...], herds: bool) -> None:
    """Requests that begin together end together if their outputs are equal: behind the least busy replica."""
    replica, load = Replica(GPU), Workload(Lengths(*lengths), 8.0)
    asked = {"replicas": 8, "routing": "least_outstanding"}
    seen = [each.kind for each in simulate(replica, load, requests=2000, **asked).warnings]
    assert ("herding" in seen) == herds
    assert ("unseen_herding" in [each.kind for each in predict(replica, load, **asked).warnings]) == herds
    streams = [Stream(Workload(Lengths(isl, *lengths[1:]), 4.0)) for isl in (1000, 3000)]
    both, *_ = simulate_streams(replica, streams, requests=2000, **asked)
    assert ("herding" in [each.kind for each in both.warnings]) == herds
    setting = Setting(load, Sla(Limit("ttft", 95, 1.0)), "least_outstanding", 8)
    assert setting.herds == herds
