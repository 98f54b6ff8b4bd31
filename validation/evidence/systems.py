"""Systems with known answers: what theory says of a degenerate engine, beside a function that measures it once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from scipy.optimize import brentq

from sizing.engine import FREE, Batching
from sizing.numbers import Floats
from sizing.simulator.state import REJECTED
from sizing.workload import Arrivals
from validation.evidence.degenerate import (
    ONE_BY_ONE,
    OUTPUT,
    STEP_S,
    e2e_s,
    exponential_service,
    fleet_wait_s,
    one_prompt_each,
    ones,
    outputs,
    poisson,
    queue_s,
    serve,
)


@dataclass(frozen=True, slots=True)
class System:
    """`run(requests, rng)` measures once what theory says is `exact`; `weight`: how many runs more than others it needs
    for the same standard error."""

    name: str
    exact: float
    run: Callable[[int, Generator], float]
    weight: int = 1


def erlang_c(servers: int, offered: float) -> float:
    """Chance to wait in M/M/c, by the recursion of Erlang B."""
    blocking = 1.0
    for k in range(1, servers + 1):
        blocking = offered * blocking / (k + offered * blocking)
    return blocking / (1 - offered / servers * (1 - blocking))


def m_m_1(load: float) -> list[System]:
    """The time in system is exponential with mean 1/(1 - load)."""
    weight = 4 if load > 0.85 else 1
    return [
        System(
            f"M/M/1 at {load}, mean",
            1 / (1 - load),
            lambda n, rng: float(e2e_s(exponential_service(poisson(load, n, rng), rng)).mean()),
            weight,
        ),
        System(
            f"M/M/1 at {load}, p99",
            math.log(100) / (1 - load),
            lambda n, rng: float(np.percentile(e2e_s(exponential_service(poisson(load, n, rng), rng)), 99)),
            3 * weight,
        ),
    ]


def m_m_c(servers: int, load: float) -> list[System]:
    """Erlang C. Who finds a slot free still waits for the end of a step, half of one on average."""
    chance = erlang_c(servers, servers * load)

    def waits_s(n: int, rng: Generator) -> Floats:
        return queue_s(exponential_service(poisson(servers * load, n, rng), rng, servers)) - STEP_S / 2

    return [
        System(
            f"M/M/{servers} at {load}, wait",
            chance / (servers * (1 - load)),
            lambda n, rng: float(waits_s(n, rng).mean()),
            8 if load > 0.85 else 3,
        ),
        System(
            f"M/M/{servers} at {load}, P(wait)", chance, lambda n, rng: float((waits_s(n, rng) > STEP_S / 2).mean()), 2
        ),
    ]


def m_d_1(load: float) -> System:
    def run(n: int, rng: Generator) -> float:
        return float(queue_s(one_prompt_each(poisson(load, n, rng))).mean())

    return System(f"M/D/1 at {load}, wait", load / (2 * (1 - load)), run, 3 if load > 0.85 else 1)


def pollaczek_khinchine() -> System:
    """Prompts of a geometric number of tokens, mean 200, a millisecond each: wait = rate E[S²] / (2 (1 - load))."""
    load, mean_s = 0.7, 0.2
    second_moment = (2 - 1 / 200) * mean_s**2

    def run(n: int, rng: Generator) -> float:
        arrival_s, isl = poisson(load / mean_s, n, rng), rng.geometric(1 / 200, n)
        return float(queue_s(serve(FREE.with_values(token_s=1e-3), ONE_BY_ONE, arrival_s, isl, ones(n))).mean())

    return System("M/G/1 at 0.7 (Pollaczek, Khinchine), wait", load / mean_s * second_moment / (2 * (1 - load)), run, 2)


def processor_sharing(kind: str) -> System:
    """A step of d sequences takes d times as long: M/G/1-PS, E2E = E[S] / (1 - load) for any law of service."""
    load = 0.7
    batching = Batching("whole_prompt", 4000, token_budget=10**9)

    def run(n: int, rng: Generator) -> float:
        law = FREE.with_values(token_s=STEP_S)
        return float(e2e_s(serve(law, batching, poisson(load, n, rng), ones(n), outputs(kind, n, rng))).mean())

    return System(f"M/G/1-PS at {load}, {kind} outputs, E2E", 1 / (1 - load), run, 4 if kind == "spread" else 2)


def generalised_sharing(kind: str) -> System:
    """A step of n sequences takes G(n) = 5 + 0.2 n units: Cohen's product form (1979) for any law of service."""
    slots, unit_s = 400, STEP_S
    rate = 0.8 / (OUTPUT * 0.2 * unit_s)
    n = np.arange(slots + 1)
    step_s = (5 + 0.2 * n) * unit_s
    weight = np.concatenate([[0.0], np.cumsum(np.log(rate * OUTPUT * step_s[1:] / n[1:]))])
    chance = np.exp(weight - weight.max())
    chance /= chance.sum()
    batching = Batching("whole_prompt", slots, token_budget=10**9)

    def run(count: int, rng: Generator) -> float:
        law = FREE.with_values(overhead_s=5 * unit_s, sequence_s=0.2 * unit_s)
        return float(
            e2e_s(serve(law, batching, poisson(rate, count, rng), ones(count), outputs(kind, count, rng))).mean()
        )

    return System(f"generalised processor sharing, {kind} outputs, E2E", float(chance @ n) / rate, run)


def m_m_1_k(places: int, load: float) -> System:
    """At most `places` in the system, the others are turned away: blocking (1 - r) r^K / (1 - r^(K+1))."""

    def run(n: int, rng: Generator) -> float:
        served = exponential_service(poisson(load, n, rng), rng, max_waiting=places - 1)
        return float((served["outcome"] == REJECTED).mean())

    return System(f"M/M/1/{places} at {load}, blocked", (1 - load) * load**places / (1 - load ** (places + 1)), run, 2)


def splits() -> list[System]:
    """What a replica of a fleet sees of the stream: a Poisson one at random, Erlang gaps in turn, Geo/D/1, batches."""
    load, fleet, size = 0.7, 4, 5
    root = brentq(lambda s: s - (fleet * load / (fleet * load + 1 - s)) ** fleet, 0, 0.999)

    def in_turn(n: int, rng: Generator) -> float:
        gaps_s = Arrivals().gaps(n, fleet * load, rng, merged=fleet)
        return float(e2e_s(exponential_service(np.cumsum(gaps_s), rng)).mean())

    def at_random(n: int, rng: Generator) -> float:
        return fleet_wait_s(Arrivals(), 5 * load, 5, "random", n, rng)

    def even_at_random(n: int, rng: Generator) -> float:
        return fleet_wait_s(Arrivals("constant", 0.0), 3.0, 4, "random", n, rng)

    def in_batches(n: int, rng: Generator) -> float:
        gaps_s = Arrivals.batches(size).gaps(n, load, rng)
        return float(queue_s(one_prompt_each(np.cumsum(gaps_s))).mean())

    return [
        System("Poisson stream split at random over 5: M/D/1, wait", load / (2 * (1 - load)), at_random, 2),
        System("Poisson stream dealt in turn to 4: E4/M/1, E2E", 1 / (1 - root), in_turn),
        System(
            "even stream split at random over 4: Geo/D/1, wait", (3 / 4 * 2 / (2 * (1 - 3 / 4))) / 3, even_at_random, 2
        ),
        System(f"batches of {size}: M[X]/D/1, wait", (load + size - 1) / (2 * (1 - load)), in_batches, 4),
    ]


def static_batching(load: float) -> System:
    """Static batches of all who wait, service of 1 s and 0.1 s each (Inoue 2021, arXiv 1912.06322), one output token.

    The chain of batch sizes is solved numerically (no approximation): who arrives during a service of D seconds waits
    half of it, then is served with its batch.
    """
    fixed_s, each_s = 1.0, 0.1
    rate = load / each_s
    exact = take_all_e2e_s(rate, fixed_s, each_s)
    batching = Batching("static", 2000, token_budget=10**9)

    def run(n: int, rng: Generator) -> float:
        law = FREE.with_values(overhead_s=fixed_s, token_s=each_s)
        return float(e2e_s(serve(law, batching, poisson(rate, n, rng), ones(n), ones(n))).mean())

    return System(f"static batches of all who wait at {load}, E2E", exact, run)


def take_all_e2e_s(rate_per_s: float, fixed_s: float, each_s: float, most: int = 400) -> float:
    """Mean time in system of a server that takes everybody who waits, at most `most` in all but impossible cases."""
    b = np.arange(1, most + 1)
    service_s = fixed_s + each_s * b
    mean = rate_per_s * service_s
    k = np.arange(most + 1)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])
    follow = np.exp(k * np.log(mean)[:, None] - mean[:, None] - log_factorial)
    follow[:, 1] += follow[:, 0]  # nobody came: the next batch is the first to come, who does not wait
    chain = follow[:, 1:] / follow[:, 1:].sum(axis=1, keepdims=True)
    balance = np.vstack([chain.T - np.eye(most), np.ones(most)])
    share = np.linalg.lstsq(balance, np.append(np.zeros(most), 1.0), rcond=None)[0]
    return float(share @ (b * service_s + rate_per_s * service_s**2 / 2) / (share @ b))


SYSTEMS: tuple[System, ...] = (
    *(system for load in (0.5, 0.8, 0.9) for system in m_m_1(load)),
    *(system for servers, load in ((8, 0.8), (32, 0.9), (64, 0.9)) for system in m_m_c(servers, load)),
    *map(m_d_1, (0.5, 0.8, 0.9)),
    pollaczek_khinchine(),
    *map(processor_sharing, ("equal", "geometric", "spread")),
    *map(generalised_sharing, ("equal", "geometric")),
    m_m_1_k(5, 0.9),
    m_m_1_k(10, 1.2),
    *splits(),
    *map(static_batching, (0.3, 0.7)),
)
