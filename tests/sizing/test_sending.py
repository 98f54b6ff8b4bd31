"""The server's front end, which sends the tokens of an iteration one after another: what it adds to TTFT and E2E."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sizing.engine import MOST_BUSY, Batching, Policy, Replica, StepLaw
from sizing.engine_defaults import engine_defaults
from sizing.explain import front_end
from sizing.fitting import Protocol, fit
from sizing.fitting.levels import RAMPED, Replay, point_runs
from sizing.queueing import predict
from sizing.simulator import Simulated, simulate, simulate_closed
from sizing.text import caution
from sizing.workload import Lengths, Workload
from tests.sizing.test_fitting import GPU, measure

SLOW = 0.15e-3
"""What vLLM's API server was seen to take for a token."""
MIX = Lengths(500, 200, 0.3, 0.5)
seconds = st.floats(1e-6, 1e-3)
counts = st.floats(1, 1000)


def sent_by(send_s: float, policy: Policy = "chunked") -> Replica:
    return Replica(GPU.with_values(send_s=send_s), Batching(policy))


@given(send_s=seconds, sequences=counts, more=counts, per_s=st.floats(0, 1e5), faster=st.floats(0, 1e5))
def test_more_sequences_or_tokens_take_no_less(
    send_s: float, sequences: float, more: float, per_s: float, faster: float
) -> None:
    law = GPU.with_values(send_s=send_s)
    one = float(law.sending_s(sequences, per_s))
    assert float(law.sending_s(sequences + more, per_s)) >= one >= send_s * sequences
    assert float(law.sending_s(sequences, per_s + faster)) >= one
    assert one <= send_s * sequences / (1 - MOST_BUSY) * (1 + 1e-12)


@given(send_s=seconds, sequences=counts, per_s=st.floats(0, 1e5), factor=st.floats(0.01, 100))
def test_the_unit_of_time_does_not_matter(send_s: float, sequences: float, per_s: float, factor: float) -> None:
    one, other = GPU.with_values(send_s=send_s), GPU.with_values(send_s=factor * send_s)
    both = factor * one.sending_s(sequences, per_s), other.sending_s(sequences, per_s / factor)
    assert both[0] == pytest.approx(both[1], rel=1e-9)


def test_a_batch_queue_waits_that_long() -> None:
    """Lindley's recursion: batches of n tokens at random times, `send_s` each. Work found and the work of one's own
    batch, a place in it at random, come to n send / 2 / (1 - busy) each way; the own token is the newest."""
    n, send_s, per_s = 40, 0.2e-3, 2500.0
    rng = np.random.default_rng(0)
    gaps_s = rng.exponential(n / per_s, 400_000)
    found_s, total_s = 0.0, 0.0
    for gap_s in gaps_s:
        total_s += found_s
        found_s = max(found_s + n * send_s - gap_s, 0.0)
    work_s = total_s / len(gaps_s)
    both_ways_s = work_s + (work_s + n * send_s)
    law = StepLaw(5e-3, 0.0, 0.0, 0.0, 0.0, send_s=send_s)
    assert float(law.sending_s(n, per_s)) == pytest.approx(both_ways_s, rel=0.05)


def run(replica: Replica, rate_per_s: float) -> Simulated:
    return simulate(replica, Workload(MIX, rate_per_s), requests=20_000, seed=3)


@pytest.mark.parametrize("policy", ["chunked", "prefill_first", "whole_prompt"])
def test_first_and_last_token_come_later_and_the_steps_stay(policy: Policy) -> None:
    """TTFT and E2E move by what the front end takes at the sequences and tokens/s of the load; ITL does not."""
    plain, sent = run(sent_by(0.0, policy), 15), run(sent_by(SLOW, policy), 15)
    assert np.array_equal(sent.itl_s, plain.itl_s, equal_nan=True)
    assert sent.requests_per_s == plain.requests_per_s
    later_s = sent.ttft_s - plain.ttft_s
    assert np.allclose(later_s, sent.e2e_s - plain.e2e_s)
    running = plain.requests_per_s * np.nanmean(plain.itl_s) * MIX.osl + 1
    expected_s = float(sent_by(SLOW).law.sending_s(running, plain.requests_per_s * MIX.osl))
    assert later_s.mean() == pytest.approx(expected_s, rel=0.12)
    assert later_s.min() >= SLOW


def test_static_batches_send_as_well() -> None:
    plain, sent = run(sent_by(0.0, "static"), 4), run(sent_by(SLOW, "static"), 4)
    assert np.all(sent.ttft_s - plain.ttft_s >= SLOW)
    assert np.array_equal(sent.itl_s, plain.itl_s, equal_nan=True)


@pytest.mark.parametrize("rate_per_s", [5, 12, 18])
def test_formula_and_simulation_agree_on_it(rate_per_s: float) -> None:
    found = {}
    for send_s in (0.0, SLOW):
        workload, replica = Workload(MIX, rate_per_s), sent_by(send_s)
        found[send_s] = predict(replica, workload), run(replica, rate_per_s)
    for percentile, tolerance in ((50, 0.15), (95, 0.25)):
        formula_s = found[SLOW][0].ttft.at(percentile) - found[0.0][0].ttft.at(percentile)
        simulated_s = np.percentile(found[SLOW][1].ttft_s, percentile) - np.percentile(found[0.0][1].ttft_s, percentile)
        assert formula_s == pytest.approx(simulated_s, rel=tolerance)


def test_a_front_end_does_not_limit_the_throughput() -> None:
    """It sends several tokens of a sequence at once when it falls behind: one by one they would take twice the time."""
    isl, osl = MIX.sample(2000, np.random.default_rng(0))
    plain, sent = (simulate_closed(sent_by(send_s), 64, isl, osl) for send_s in (0.0, 0.5e-3))
    assert 0.5e-3 * plain.requests_per_s * MIX.osl > 2
    assert sent.requests_per_s > 0.9 * plain.requests_per_s
    assert sent.ttft_s.mean() > plain.ttft_s.mean() + 0.1


def test_a_closed_loop_hides_a_part_of_it() -> None:
    """Whose answer comes late asks late, and waits that much less for the next iteration."""
    replica = sent_by(SLOW)
    [point] = measure(replica, [MIX], (48,))
    means = [Replay(point_runs([point], RAMPED), one).means(one)[0] for one in (sent_by(0.0), replica)]
    running, tokens_per_s = 48 * (1 - means[1][1] * point.requests_per_s / 48), point.requests_per_s * point.osl
    assert 0 < means[1][1] - means[0][1] < float(replica.law.sending_s(running, tokens_per_s))


def test_a_plan_says_how_much_of_ttft_the_front_end_takes() -> None:
    """Where it is much, and in whose figures: what the simulation shows beside a server that sends at once."""
    workload = Workload(MIX, 18)
    at_once, one_by_one = (predict(sent_by(send_s), workload) for send_s in (0.0, SLOW))
    assert not [*front_end(sent_by(0.0), MIX, 18, at_once)]
    [found] = front_end(sent_by(SLOW), MIX, 18, one_by_one)
    added_s = one_by_one.ttft.mean_s - at_once.ttft.mean_s
    assert found.facts["sending_s"] == pytest.approx(added_s, rel=0.1)
    assert "--api-server-count" in caution(found)
    few = predict(sent_by(SLOW), Workload(MIX, 1))
    assert not [*front_end(sent_by(SLOW), MIX, 1, few)]


LEVELS = (1, 4, 16, 48, 128)


def test_the_fit_finds_it_where_many_users_show_it() -> None:
    """Of a vLLM, which is known to have such a front end, closed loops of up to 128 users tell what a token takes, and
    TTFT under random arrivals comes out right; a fit without it is too short there by a fifth."""
    truth = sent_by(SLOW)
    points = measure(truth, [MIX, Lengths(1500, 60, 0.3, 0.5)], LEVELS)
    dense = [dataclasses.replace(point, model="Qwen/Qwen3-32B") for point in points]  # not to be told from an MoE model
    named = [dataclasses.replace(point, engine="vllm", engine_version="0.9") for point in dense]
    found, without = (fit(each, protocol=Protocol("ramp")) for each in (named, points))
    assert found.extra == ("send_s",)
    assert found.law.send_s == pytest.approx(SLOW, rel=0.35)
    assert without.extra == ()
    true_s, told_s, missed_s = (
        run(each, 20).ttft_s.mean() for each in (truth, found.at(500, 200).replica, without.at(500, 200).replica)
    )
    assert told_s == pytest.approx(true_s, rel=0.10)
    assert abs(told_s - true_s) < abs(missed_s - true_s)


def test_the_fit_finds_that_there_is_none() -> None:
    """Where random arrivals tell, a fast front end is seen, whatever other servers of the engine took."""
    points = measure(sent_by(0.0), [MIX], LEVELS)
    told = [dataclasses.replace(point, engine="vllm", engine_version="0.9") for point in points]
    found = fit(told, protocol=Protocol("ramp"))
    assert found.law.send_s < 0.5 * engine_defaults("vllm").send_s
