"""The simulator against queueing theory: engines degenerate enough to have closed forms.

Each system is simulated 12 times with independent seeds; the mean must lie within 4 standard errors of theory, and the
standard error be below 2 %, so that agreement means something. Coefficients not named are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq

from sizing.engine import Batching, Replica, StepLaw
from sizing.simulator import Simulated, simulate, simulate_trace
from sizing.workload import Arrivals, Lengths, Workload

TICK_S = 1e-3
NOTHING = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)
N = 40_000
ONES = np.ones(N, np.int64)
ONE_BY_ONE = Batching("prefill_first", max_batch_size=1, token_budget=10**6)


def geometric(mean: float, rng: np.random.Generator) -> Any:
    """The exponential law in whole tokens: cv^2 = 1 - 1/mean."""
    return rng.geometric(1 / mean, N)


def poisson(rate_per_s: float, rng: np.random.Generator) -> Any:
    return np.cumsum(rng.exponential(1 / rate_per_s, N))


def steady(seconds: Any) -> float:
    """Mean without the first tenth."""
    return float(np.mean(seconds[len(seconds) // 10 :]))


def agree(theory: float, run: Callable[[np.random.Generator], float], runs: int = 12) -> None:
    values = np.array([run(np.random.default_rng(1000 + k)) for k in range(runs)])
    error = values.std(ddof=1) / math.sqrt(runs)
    assert error < 0.02 * abs(theory)
    assert abs(values.mean() - theory) < 4 * error + 1e-9 * abs(theory)


def serve_exponential(slots: int, arrival_s: Any, rng: np.random.Generator) -> Simulated:
    """Every iteration lasts one tick whatever it holds; outputs are geometric with mean 1000: service of 1 s."""
    law = NOTHING.with_values(overhead_s=TICK_S)
    return simulate_trace(Replica(law, Batching("whole_prompt", slots)), arrival_s, ONES, geometric(1000, rng))


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_m_1(load: float) -> None:
    """E2E is exponential with mean 1 / (1 - load) seconds: mean and p90."""
    agree(1 / (1 - load), lambda rng: steady(serve_exponential(1, poisson(load, rng), rng).e2e_s))
    p90 = math.log(10) / (1 - load)
    agree(p90, lambda rng: float(np.percentile(serve_exponential(1, poisson(load, rng), rng).e2e_s[N // 10 :], 90)))


def erlang_c(servers: int, offered: float) -> float:
    """Chance to wait in M/M/c."""
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking / (1 - offered / servers * (1 - blocking))


def test_m_m_8() -> None:
    """Erlang C. TTFT is the wait, half a tick up to the next iteration, and one tick of prefill."""
    servers, load = 8, 0.8
    chance = erlang_c(servers, servers * load)

    def wait_s(rng: np.random.Generator) -> float:
        return steady(serve_exponential(servers, poisson(servers * load, rng), rng).ttft_s) - 1.5 * TICK_S

    def waits(rng: np.random.Generator) -> float:
        return steady(serve_exponential(servers, poisson(servers * load, rng), rng).ttft_s > 2.001 * TICK_S)

    agree(chance / (servers * (1 - load)), wait_s)
    agree(chance, waits)


@pytest.mark.parametrize("load", [0.5, 0.8])
def test_m_d_1(load: float) -> None:
    """One prompt at a time, one second each, one output token: the mean wait is load / (2 (1 - load))."""
    replica = Replica(NOTHING.with_values(overhead_s=1.0), ONE_BY_ONE)
    agree(
        load / (2 * (1 - load)),
        lambda rng: steady(simulate_trace(replica, poisson(load, rng), ONES, ONES).ttft_s) - 1,
    )


def test_m_g_1_pollaczek_khinchine() -> None:
    """Prefill of geometric prompts, mean 200 tokens of 1 ms: wait = rate E[S^2] / (2 (1 - load))."""
    replica, rate = Replica(NOTHING.with_values(token_s=1e-3), ONE_BY_ONE), 0.7 / 0.2
    second_moment = (2 - 1 / 200) * 0.2**2

    def wait_s(rng: np.random.Generator) -> float:
        isl = geometric(200, rng)
        return steady(simulate_trace(replica, poisson(rate, rng), isl, ONES).ttft_s - isl * 1e-3)

    agree(rate * second_moment / (2 * (1 - 0.7)), wait_s)


OUTPUTS: dict[str, Callable[[np.random.Generator], Any]] = {
    "fixed": lambda rng: np.full(N, 300),
    "geometric": lambda rng: geometric(300, rng),
    "hyperexponential": lambda rng: np.where(rng.random(N) < 0.9, geometric(120, rng), geometric(1920, rng)),
}


@pytest.mark.parametrize("outputs", ["fixed", "geometric"])
def test_processor_sharing_is_insensitive(outputs: str) -> None:
    """A step of d sequences takes d ticks: M/G/1 processor sharing, E2E = E[S] / (1 - load) for any law of outputs."""
    slots, load = 2000, 0.7
    replica = Replica(NOTHING.with_values(token_s=TICK_S), Batching("whole_prompt", slots, token_budget=16_000))
    service_s = 300 * TICK_S
    agree(
        service_s / (1 - load),
        lambda rng: steady(simulate_trace(replica, poisson(load / service_s, rng), ONES, OUTPUTS[outputs](rng)).e2e_s),
    )


@pytest.mark.parametrize("outputs", ["fixed", "geometric", "hyperexponential"])
def test_generalised_processor_sharing(outputs: str) -> None:
    """A step of n sequences takes G(n) = 5 + 0.2 n ticks: Cohen's product form, and half an iteration to be noticed."""
    slots, rate = 400, 0.8 / (300 * 0.2 * TICK_S)
    law = NOTHING.with_values(overhead_s=5 * TICK_S, sequence_s=0.2 * TICK_S)
    replica = Replica(law, Batching("whole_prompt", slots, token_budget=16_000))
    n = np.arange(slots + 1)
    step_s = (5 + 0.2 * n) * TICK_S
    log_chance = np.concatenate([[0.0], np.cumsum(np.log(rate * 300 * step_s[1:] / n[1:]))])
    chance = np.exp(log_chance - log_chance.max())
    chance /= chance.sum()
    theory = float(chance @ n) / rate + float(chance @ step_s) / 2
    e2e_s = [
        steady(simulate_trace(replica, poisson(rate, rng), ONES, OUTPUTS[outputs](rng)).e2e_s)
        for rng in map(np.random.default_rng, range(12))
    ]
    assert np.mean(e2e_s) == pytest.approx(theory, rel=0.02)  # joining sequences do not decode in their first step


def test_round_robin_is_erlang_arrivals() -> None:
    """Behind round robin over 4 a replica sees E4 gaps: E4/M/1, E2E = 1 / (1 - s), s = (4 l / (4 l + 1 - s))^4."""
    load, fleet = 0.8, 4
    root = brentq(lambda s: s - (fleet * load / (fleet * load + 1 - s)) ** fleet, 0, 0.999)

    def e2e_s(rng: np.random.Generator) -> float:
        gaps_s = Arrivals().gaps(N, fleet * load, rng, merged=fleet)
        return steady(serve_exponential(1, np.cumsum(gaps_s), rng).e2e_s)

    agree(1 / (1 - root), e2e_s)


def serve_one_second(arrivals: Arrivals, rate: float, fleet: int, routing: Any, seed: int) -> Simulated:
    """A fleet of engines that take one prompt at a time and one second for it."""
    replica = Replica(NOTHING.with_values(overhead_s=1.0), ONE_BY_ONE)
    load = Workload(Lengths(1, 1), rate, arrivals)
    return simulate(replica, load, replicas=fleet, routing=routing, requests=N, seed=seed)


def test_poisson_splits_into_poisson() -> None:
    """Random routing over 5: each replica is an M/D/1 queue at a fifth of the rate."""
    load = 0.7
    agree(
        load / (2 * (1 - load)),
        lambda rng: float(
            serve_one_second(Arrivals(), 5 * load, 5, "random", int(rng.integers(10**9))).queue_s.mean(),
        ),
    )


def test_constant_arrivals_split_at_random_are_geometric() -> None:
    """Geo/D/1: an arrival each third of a second goes here with chance p = 1/4; wait = p k (k - 1) / (2 (1 - p k))."""
    chance, service = 1 / 4, 3
    slots = chance * service * (service - 1) / (2 * (1 - chance * service))
    even = Arrivals("constant", 0.0)
    agree(
        slots / 3, lambda rng: float(serve_one_second(even, 3.0, 4, "random", int(rng.integers(10**9))).queue_s.mean())
    )


@pytest.mark.parametrize("routing", ["round_robin", "least_outstanding"])
def test_even_arrivals_dealt_in_turn_never_wait(routing: str) -> None:
    """D/D/1 below its capacity."""
    run = serve_one_second(Arrivals("constant", 0.0), 3.9, 4, routing, 0)
    assert run.queue_s.max() < 1e-6


def test_least_outstanding_lies_between_one_queue_and_many() -> None:
    """Fixed service: a counting router in front of four engines beats random routing (M/D/1), not one queue (M/D/4)."""
    load = 0.8
    counted = serve_one_second(Arrivals(), 4 * load, 4, "least_outstanding", 1).queue_s.mean()
    one_queue = erlang_c(4, 4 * load) / (4 * (1 - load)) / 2 * 0.9  # M/D/4, at least 0.9 of half of M/M/4
    assert one_queue < counted < 0.6 * load / (2 * (1 - load))
