"""Systems with known answers: what theory says of a degenerate engine, beside a function that measures it once."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.optimize import brentq

from sizing.demand_model import DemandModel, Mmpp, drawn
from sizing.engine import FREE, Batching
from sizing.numbers import Floats
from sizing.simulator.state import REJECTED, SERVED, TIMED_OUT
from sizing.token_law import TokenLaw
from sizing.trace import DAY_S
from sizing.workload import Arrivals
from validation.evidence.degenerate import (
    ONE_BY_ONE,
    OUTPUT,
    STEP_S,
    e2e_s,
    exponential_servers,
    exponential_service,
    fleet_wait_s,
    one_prompt_each,
    ones,
    outputs,
    poisson,
    queue_s,
    replayed_e2e_s,
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


def m_m_c_k(servers: int, places: int, load: float) -> list[System]:
    """At most `places` in the system, and the wait of those let in: a birth-death chain (Gross and Harris 1998,
    Fundamentals of Queueing Theory, 2.4)."""
    chance = birth_death([servers * load] * places, [min(n + 1, servers) for n in range(places)])
    waiting = np.maximum(np.arange(places + 1) - servers, 0)
    name = f"M/M/{servers}/{places} at {load}"

    def run(n: int, rng: Generator) -> Any:
        return exponential_service(poisson(servers * load, n, rng), rng, servers, max_waiting=places - servers)

    def blocked(n: int, rng: Generator) -> float:
        return float((run(n, rng)["outcome"] == REJECTED).mean())

    def wait_s(n: int, rng: Generator) -> float:
        served = run(n, rng)
        return float(queue_s(served[served["outcome"] == SERVED]).mean()) - STEP_S / 2

    wait = float(chance @ waiting) / (servers * load * (1 - chance[-1]))
    return [System(f"{name}, blocked", float(chance[-1]), blocked, 2), System(f"{name}, wait", wait, wait_s, 2)]


def birth_death(births: Sequence[float], deaths: Sequence[float]) -> Floats:
    """Probabilities of 0, 1, ... in a chain that goes from n to n + 1 at `births[n]`, and back at `deaths[n]`."""
    weight = np.cumprod(np.append(1.0, np.asarray(births) / np.asarray(deaths)))
    return np.asarray(weight / weight.sum())


def m_m_c_patience(servers: int, load: float, patience_s: float) -> list[System]:
    """Requests leave if not started after `patience_s`: M/M/c+D (Barrer 1957, Queuing with impatient customers and
    ordered service; Gnedenko and Kovalenko 1968; Boots and Tijms 1999).

    The wait offered to an arrival has the density f(x) = l p(c-1) exp(-(c - l) x) up to the patience D, as without
    impatience, and beyond it falls as exp(-c x), for those who would wait longer bring no work. p(n): chance of n busy
    servers, services last a second on average, l arrivals come a second.
    """
    rate = servers * load
    busy = np.cumprod(np.append(1.0, rate / np.arange(1.0, servers)))
    slack = servers - rate
    begins = rate * busy[-1]
    beyond = begins * math.exp(-slack * patience_s) / servers
    whole = float(busy.sum()) + begins * -math.expm1(-slack * patience_s) / slack + beyond
    before_s = (1 - (1 + slack * patience_s) * math.exp(-slack * patience_s)) / slack**2
    lost = beyond / whole
    name = f"M/M/{servers}+D at {load}, patience {patience_s:g} s"

    def run(n: int, rng: Generator) -> Any:
        return exponential_service(poisson(rate, n, rng), rng, servers, queue_timeout_s=patience_s)

    def gone(n: int, rng: Generator) -> float:
        return float((run(n, rng)["outcome"] == TIMED_OUT).mean())

    def wait_s(n: int, rng: Generator) -> float:
        served = run(n, rng)
        return float(queue_s(served[served["outcome"] == SERVED]).mean()) - STEP_S / 2

    wait = begins * before_s / whole / (1 - lost)
    return [System(f"{name}, timed out", lost, gone, 2), System(f"{name}, wait of the served", wait, wait_s, 2)]


def erlang_a(servers: int, load: float, patience_s: float) -> System:
    """Exponential patience, Erlang A (Palm 1957): a birth-death chain, out of which those who wait leave one by one."""
    rate, most = servers * load, 400
    leaving = [min(n, servers) + max(n - servers, 0) / patience_s for n in range(1, most + 1)]
    chance = birth_death([rate] * most, leaving)
    waiting = float(chance @ np.maximum(np.arange(most + 1) - servers, 0))

    def gone(n: int, rng: Generator) -> float:
        arrival_s, patience = poisson(rate, n, rng), rng.exponential(patience_s, n)
        run = exponential_service(arrival_s, rng, servers, queue_timeout_s=patience)
        return float((run["outcome"] == TIMED_OUT).mean())

    return System(f"M/M/{servers}+M at {load} (Erlang A), timed out", waiting / patience_s / rate, gone, 2)


def priorities() -> list[System]:
    """Classes of which none interrupts another (Cobham 1954, Priority assignment in waiting line problems).

    Class k waits W / ((1 - s(k-1)) (1 - s(k))), s(k) the load of the classes up to k, W the time until the server, or
    one of them, is free for an arrival that goes before all who wait. One server: prompts of other laws; several: those
    of Erlang C, of equal means.
    """
    rates, tokens = np.array([1.0, 1.5, 0.25]), (100, 200, 1000)  # the second class is geometric
    moments = np.array([tokens[0] ** 2, (2 - 1 / tokens[1]) * tokens[1] ** 2, tokens[2] ** 2]) * 1e-6
    reached = np.cumsum(rates * np.array(tokens)) * 1e-3
    waits = float(rates @ moments) / 2 / (1 - np.append(0.0, reached[:-1])) / (1 - reached)

    def prompts(number: int) -> Callable[[int, Generator], float]:
        def run(n: int, rng: Generator) -> float:
            kind = rng.choice(3, n, p=rates / rates.sum())
            isl = np.where(kind == 1, rng.geometric(1 / tokens[1], n), np.array(tokens)[kind])
            arrival_s = poisson(float(rates.sum()), n, rng)
            served = serve(FREE.with_values(token_s=1e-3), ONE_BY_ONE, arrival_s, isl, ones(n), priority=kind)
            return float(queue_s(served[served["priority"] == number]).mean())

        return run

    servers, load, urgent = 8, 0.85, 0.4
    wait = erlang_c(servers, servers * load) / servers

    def several(number: int) -> Callable[[int, Generator], float]:
        def run(n: int, rng: Generator) -> float:
            kind = (rng.random(n) > urgent).astype(np.int64)
            served = exponential_service(poisson(servers * load, n, rng), rng, servers, priority=kind)
            return float(queue_s(served[served["priority"] == number]).mean()) - STEP_S / 2

        return run

    ahead, behind = wait / (1 - urgent * load), wait / (1 - urgent * load) / (1 - load)
    return [
        *(System(f"M/G/1, priority {k} of 3 (Cobham), wait", float(waits[k]), prompts(k), 2) for k in range(3)),
        System(f"M/M/{servers} at {load}, priority 0 of 2, wait", ahead, several(0), 2),
        System(f"M/M/{servers} at {load}, priority 1 of 2, wait", behind, several(1), 4),
    ]


def mmpp_m_1() -> list[System]:
    """Arrivals in two states, as a demand model draws them, replayed as a trace: MMPP/M/1 by Neuts' matrix R (1981,
    Matrix-Geometric Solutions in Stochastic Models, ch. 3). Sojourns like a service, and much longer than one."""

    def system(arrivals: Mmpp, load: float, weight: int) -> System:
        one = TokenLaw(((1, 1, 1.0),))
        model = DemandModel((load,), arrivals, one, one)

        def run(n: int, rng: Generator) -> float:
            trace = drawn(model, n / load / DAY_S, seed=int(rng.integers(2**31)))
            trace = replace(trace, osl=rng.geometric(STEP_S, len(trace)).astype(np.int32))
            return replayed_e2e_s(exponential_servers(), trace)

        name = f"MMPP/M/1 at {load}, states of {arrivals.low_s:g} and {arrivals.high_s:g} s, replayed, E2E"
        return System(name, mmpp_m_1_number(arrivals, load) / load, run, weight)

    return [system(Mmpp(0.3, 4.0, 2.0), 0.7, 2), system(Mmpp(0.2, 60.0, 20.0), 0.5, 4)]


def mmpp_m_1_number(arrivals: Mmpp, rate_per_s: float) -> float:
    """Mean number in system, services of a second on average: levels n, two states each, with the probabilities
    x(0) R^n. R solves R^2 + R (Q - L - I) + L = 0, Q the generator of the states, L their rates."""
    rates = rate_per_s * np.diag([arrivals.low_factor, arrivals.high_factor])
    turns = np.array([[-1 / arrivals.low_s, 1 / arrivals.low_s], [1 / arrivals.high_s, -1 / arrivals.high_s]])
    inside = turns - rates - np.eye(2)
    ratio = np.zeros((2, 2))
    for _ in range(100_000):
        following = -(rates + ratio @ ratio) @ np.linalg.inv(inside)
        converged, ratio = float(np.abs(following - ratio).max()) < 1e-14, following
        if converged:
            break
    sums = np.linalg.inv(np.eye(2) - ratio)
    balance = np.column_stack([turns - rates + ratio, sums.sum(axis=1)])
    empty = np.linalg.lstsq(balance.T, np.array([0.0, 0.0, 1.0]), rcond=None)[0]
    return float((empty @ ratio @ sums @ sums).sum())


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
        gaps_s = Arrivals("batch", size=size).gaps(n, load, rng)
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
    *m_m_c_k(4, 10, 0.9),
    *m_m_c_k(8, 12, 1.3),
    *m_m_c_patience(1, 0.8, 2.0),
    *m_m_c_patience(8, 1.2, 0.5),
    erlang_a(8, 1.1, 2.0),
    *priorities(),
    *mmpp_m_1(),
)
