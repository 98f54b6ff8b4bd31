"""TTFT and ITL of single requests, given the two chains: what an arrival finds and what happens during its life."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.compiled import compiled_apart
from sizing.engine import Replica
from sizing.numbers import Floats
from sizing.queueing.demand import Demand, Requests
from sizing.queueing.iteration_chain import DecodeCost, Iterations, decode_step_s, iteration_s, prefill_room
from sizing.queueing.points import Points, gamma_quantile, poisson_counts, token_sum
from sizing.queueing.slow_chain import SlowChain
from sizing.queueing.stream import Groups


@dataclass(frozen=True, slots=True)
class Scene:
    """What an arriving request encounters: the engine, its iterations and its state at one rate.

    `iterations` are those over its life, at `rate_per_s`; `near` those around its arrival, at `near_per_s`: lower for
    streams more regular than Poisson. `groups` arrive together. `dispersion`: of the arrivals' counts over a life.
    `company`: of the requests that come while the prompt of one runs, over those that Poisson arrivals would bring.
    """

    replica: Replica
    demand: Demand
    iterations: Iterations
    near: Iterations
    state: SlowChain
    rate_per_s: float
    near_per_s: float
    stable_per_s: float
    groups: Groups
    dispersion: float
    company: float

    def itl_s(self, batch: Floats) -> Floats:
        """ITL(d), linear between the batches of the fast chain's grid."""
        return np.interp(batch, self.iterations.batch, self.iterations.itl_s)

    def iteration_s(self, batch: Floats, tokens: Floats, attention: Floats) -> Floats:
        """Seconds of an iteration (elementwise), see `sizing.queueing.iteration_chain.iteration_s`."""
        return iteration_s(self.replica, self.demand, batch, tokens, attention)

    def step_s(self, batch: Floats) -> Floats:
        """Seconds of an iteration without prompts."""
        return decode_step_s(self.replica, self.demand, batch)


def stalled_share(step_s: Floats, itl_s: Floats) -> Floats:
    """Share of their time that running sequences lose to prompts: 1 - decode step / ITL, at most 0.9."""
    return np.clip(1 - step_s / itl_s, 1e-12, 0.9)


def first_token_s(scene: Scene, found: Floats, requests: Requests, points: Points) -> tuple[Floats, Floats, Floats]:
    """Seconds from arrival to first token: rest of the running iteration, those fixed already, full ones, the own one.

    Also returns the seconds of that iteration alone, and the prompt tokens that still wait after it.

    The arrival finds `found` sequences and, by PASTA, an iteration with probability x duration. What is left of that
    iteration, and its co-arrivals before and after, follow from a uniform instant in it; those of its own group are
    split by its place in the group. If all slots are taken, the wait for k departures at the stable rate comes instead:
    Gamma, mean k / rate, shape k / cv^2.
    """
    running = np.minimum(found, scene.state.slots)
    row, place, duration, backlog = _iteration_in_progress(scene, running, points)
    ahead, behind = scene.groups.companions(points.group_before, points.group_after)
    before = prompts_arriving(scene, duration * points.moment, points.before, points.before_tokens, ahead)
    rest_s = duration * (1 - points.moment)
    if scene.near.waits > 0:
        rest_s = _awaited_s(scene, row, place, rest_s, backlog + before + requests.prompt_tokens, points.slot)
    after = prompts_arriving(scene, rest_s, points.after, points.after_tokens, behind)
    room = scene.near.room_tokens[row]
    full_s, own_s, left = _service_s(scene, running, requests, backlog + before, after, room)
    served_s = rest_s + full_s + own_s
    if scene.replica.batching.lookahead_steps > 0:
        served_s = served_s + _fixed_s(scene, row, duration, np.floor(backlog / room), points)
    waiting = found + ahead - scene.state.slots + 1
    waits = np.flatnonzero(waiting > 0)
    if len(waits):
        own = requests.at(waits)
        own_s[waits] = scene.iteration_s(running[waits], own.prompt_tokens, own.attention)
        served_s[waits] = _slot_wait_s(scene, waiting[waits], points.slot[waits]) + own_s[waits]
    return served_s, own_s, left


def _iteration_in_progress(
    scene: Scene, running: Floats, points: Points
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Grid row next to `running` (randomized rounding), state of the iteration found, its seconds (0 = idle) and the
    tokens it leaves.

    Decode steps up to the next look at new requests, or in which prompts wait for others, count as one iteration.
    """
    chain = scene.near
    grid = np.arange(float(len(chain.batch)))
    position = np.interp(np.arange(scene.state.slots + 1.0), chain.batch, grid)[running.astype(np.int64)]
    row = np.minimum((position + points.row).astype(np.int64), len(grid) - 1)
    found = places_in_rows(chain.seen_by_arrivals(), row, points.iteration)
    states = chain.look_s.shape[1]
    return row, found - row * states, chain.running_s(chain.look_s).ravel()[found], chain.left_tokens.ravel()[found]


def _awaited_s(
    scene: Scene, row: NDArray[np.int64], place: NDArray[np.int64], rest_s: Floats, tokens: Floats, normal: Floats
) -> Floats:
    """Seconds until prompts that wait for others run, where an arrival brings them to `tokens`: what is left of the
    wait in progress, or `rest_s` of another state and a wait; either ends early with those that bring the rest of the
    tokens."""
    chain, batch_wait_steps = scene.near, scene.replica.batching.batch_wait_steps
    awaited = np.asarray(chain.awaited_tokens)[row]
    groups = np.ceil(np.maximum(awaited - tokens, 0.0) / (scene.groups.mean * scene.demand.prompt_tokens))
    come_s = groups * scene.groups.mean / scene.near_per_s * gamma_quantile(np.maximum(groups, 1.0), normal)
    waits = place >= chain.look_s.shape[1] - chain.waits
    left_s = np.where(waits, rest_s, batch_wait_steps * chain.duration_s[row, -1])
    return np.asarray(np.where(waits, 0.0, rest_s) + np.minimum(left_s, come_s))


def _fixed_s(scene: Scene, row: NDArray[np.int64], duration: Floats, full: Floats, points: Points) -> Floats:
    """Seconds of the iterations that were fixed before the arrival and follow the one in progress (look-ahead).

    None on an idle engine. What fills them came earlier: the first is drawn from the stationary law, others have its
    mean. The `full` ones that serve what is left of earlier prompts are among them, and counted elsewhere.
    """
    if scene.demand.decode_steps == 0:  # nothing runs on: whatever waits at the end of an iteration starts then
        return np.zeros_like(duration)
    whole, chain = math.floor(scene.replica.batching.lookahead_steps), scene.near
    part = scene.replica.batching.lookahead_steps - whole
    ahead = np.maximum(np.where(duration > 0, whole + (points.moment > 1 - part), 0.0) - full, 0.0)
    uniform = (points.row + points.hit) % 1.0  # independent of each of the two
    running_s = chain.running_s(chain.duration_s)
    drawn_s = running_s.ravel()[places_in_rows(np.cumsum(chain.share, axis=1), row, uniform)]
    mean_s = (chain.share * running_s).sum(axis=1)[row]
    return np.asarray(np.where(ahead > 0, drawn_s + (ahead - 1) * mean_s, 0.0))


@compiled_apart
def places_in_rows(law: Floats, row: NDArray[np.int64], uniform: Floats) -> NDArray[np.int64]:
    """First state, in `row` of a stack of cumulative laws (rows, states), that reaches `uniform`, both (n,); counted
    row by row."""
    states = law.shape[1]
    places = np.empty(len(row), np.int64)
    for point in range(len(row)):
        reached = law[row[point]]
        low, high = 0, states - 1
        while low < high:
            middle = (low + high) // 2
            if reached[middle] < uniform[point]:
                low = middle + 1
            else:
                high = middle
        places[point] = row[point] * states + low
    return places


def prompts_arriving(scene: Scene, seconds: Floats, uniform: Floats, normal: Floats, own: Floats) -> Floats:
    """Prompt tokens that arrive in `seconds`, a compound Poisson sum, and those of the `own` group."""
    demand, groups = scene.demand, scene.groups
    count = poisson_counts(scene.near_per_s / groups.mean * seconds, uniform)
    if groups.mean == 1:
        return _tokens_of(demand, count, normal)
    cv = np.sqrt((demand.prompt_cv**2 + groups.variance / groups.mean) / groups.mean)
    others = token_sum(count, groups.mean * demand.prompt_tokens, float(cv), normal)
    return others + _tokens_of(demand, own, normal)


def _tokens_of(demand: Demand, count: Floats, normal: Floats) -> Floats:
    """Computed tokens of `count` prompts at normal deviates."""
    if demand.prompts is not None:
        return demand.prompts.sum_at(count, normal)
    return token_sum(count, demand.prompt_tokens, demand.prompt_cv, normal)


def _service_s(
    scene: Scene, running: Floats, requests: Requests, before: Floats, after: Floats, room: Floats
) -> tuple[Floats, Floats, Floats]:
    """Seconds of the full iterations that serve `before` tokens and the first of the own prompt, and of the last one.

    The last takes what came `after` as far as it fits; the third are the tokens that it leaves.
    """
    demand, rule, own = scene.demand, scene.replica.batching, requests.prompt_tokens
    room = room if rule.cuts_prompts else np.maximum(room, own)
    full = np.maximum(np.ceil((before + own) / room - 1e-9), 1.0) - 1
    full_s = np.zeros_like(running)
    several = np.flatnonzero(full)
    full_s[several] = scene.iteration_s(running[several], room[several], np.zeros(1))
    after = after + scene.near_per_s * full * full_s * demand.prompt_tokens
    least = 1.0 if rule.cuts_prompts else own
    last = np.clip(before + own + after - full * room, least, room)
    others = np.maximum(full * room + last - own, 0.0)
    attention = requests.attention + others * demand.attention_per_token
    left = np.maximum(before + own + after - full * room - last, 0.0)
    return full * full_s, scene.iteration_s(running, last, attention), left


def _slot_wait_s(scene: Scene, ahead: Floats, normal: Floats) -> Floats:
    ahead = np.maximum(ahead, 1e-9)
    shape = ahead / max(scene.demand.decode_steps_cv**2, 0.05)
    return ahead / scene.stable_per_s * gamma_quantile(shape, normal)


def mean_step_over_life_s(scene: Scene, found: Floats, requests: Requests, points: Points, first_s: Floats) -> Floats:
    """Mean time between the decode steps of a request that found `found` sequences, in seconds; `first_s`: what it
    loses in its first steps, see `first_stall_s`.

    ITL at the batch averaged over its life, plus what makes two such requests differ: contexts of other requests, its
    own context, and prefill stalls. Never less than alone on the engine, and where prompts come in chunks no more than
    an iteration that the token budget fills: stalls are drawn as a sum without end. At 85 % of the stable rate p95 ITL
    of short answers was 35 to 60 % too high without that bound; now 3 %.
    """
    demand, cost = scene.demand, DecodeCost.of(scene.replica)
    batch, wander = _batch_over_life(scene, found, requests.steps, points.life)
    itl = scene.itl_s(batch)
    step_s = scene.step_s(batch)
    stalled = stalled_share(step_s, itl)
    stretch = np.maximum(itl / step_s, 1.0) if scene.replica.batching.policy == "prefill_first" else 1.0
    own = requests.isl + (requests.gaps - 1) / 2 - demand.context_tokens
    companions = np.sqrt(np.maximum(batch - 1, 0.0) * wander) * demand.context_sd * points.context
    contexts_s = stretch * cost.context_token_s * (own + companions)
    itl = itl + contexts_s
    itl = itl + _stall_noise_s(scene, stalled, requests.steps, itl, points.life)
    alone = scene.step_s(np.ones(1)) + cost.context_token_s * own
    itl = np.maximum(itl, alone) + first_s / np.maximum(requests.steps, 1.0)
    if scene.replica.batching.policy != "chunked":
        return itl
    room = prefill_room(scene.replica, demand, batch)
    full_s = scene.iteration_s(batch, room, room * demand.attention_per_token) + contexts_s
    return np.minimum(itl, np.maximum(full_s, alone))


def first_stall_s(scene: Scene, found: Floats, own_s: Floats, left: Floats, points: Points) -> Floats:
    """Extra seconds that a sequence loses in its first steps to prompts that arrived while its own ran.

    Its iteration, of `own_s`, is longer than the mean one, and what arrives in it runs next: stalled (own - ITL)
    seconds of prompts, over 1 - stalled for those that come meanwhile; a compound Poisson sum, taken as Gamma. Over
    short lives it matters: with few steps by speculation p95 ITL was up to 16 % too low without it. Of groups those
    that found no room in its iteration, `left` tokens, run next as well.
    """
    running, cv = np.arange(1.0, scene.state.slots + 1), scene.demand.prompt_cv
    itl = scene.itl_s(running)
    lost = stalled_share(scene.step_s(running), itl)
    place = np.minimum(found, scene.state.slots - 1).astype(np.int64)
    stalled = lost[place]
    came_s = scene.company * np.maximum(own_s - itl[place], 0.0)
    if scene.groups.mean > 1:
        came_s = came_s + left / scene.demand.prompt_tokens / scene.rate_per_s
    mean = (lost / (1 - lost))[place] * came_s
    shape = np.maximum(scene.near_per_s / (1 + cv * cv) * own_s * (1 - stalled), 0.15)
    return mean * gamma_quantile(shape, points.slot)


def _batch_over_life(scene: Scene, found: Floats, steps: Floats, normal: Floats) -> tuple[Floats, Floats]:
    """Mean batch over a life, and the share g of the state's variance that survives this averaging.

    The number of sequences relaxes to its mean m like an Ornstein-Uhlenbeck process, at rate kappa =
    (1 - m ITL'(m)/ITL(m)) / (E[OSL-1] ITL(m)). Over x = kappa life: mean m + (n - m) h, variance Var n (g - h^2), with
    h = (1 - e^-x)/x and g = 2 (x - 1 + e^-x)/x^2; Gamma-shaped, since a batch is never negative.
    """
    demand, most = scene.demand, scene.state.slots
    mean = max(scene.state.mean_running, 1e-9)
    if demand.decode_steps == 0:
        return np.ones_like(found), np.ones_like(found)
    near = np.clip(mean + np.array([-1, 0, 1]) * 0.01 * max(mean, 1.0), 0, most)
    itl = scene.itl_s(near)
    pull = max(0.05, 1 - mean * (itl[2] - itl[0]) / (near[2] - near[0]) / itl[1])
    x = np.maximum(pull * steps / demand.decode_steps, 1e-3)
    h = -np.expm1(-x) / x
    g = 2 * (x + np.expm1(-x)) / x**2
    others = np.maximum(mean + (np.minimum(found, most) - mean) * h, 1e-9)
    variance = np.maximum(scene.state.variance_running * (g - h * h), 1e-12)
    batch = others * gamma_quantile(np.maximum(others**2 / variance, 0.15), normal)
    return np.clip(np.where(found < most, batch + 1, batch), 1, most), g


def _stall_noise_s(scene: Scene, stalled: Floats, steps: Floats, itl: Floats, normal: Floats) -> Floats:
    """Deviation of a request's mean gap due to the prompts that interrupted it, in seconds.

    Interruptions of h seconds come at the request rate; over a life of `life` seconds they add up to a Gamma variable
    of mean rho life, rho = rate h, and variance rate life h^2 (c_a^2 + cv^2)/(1 - rho)^2, c_a^2 the dispersion of the
    arrivals, (1 - rho)^2 for the interruptions that come while one lasts. The same deviate drives the batch over the
    life: the same arrivals cause both.
    """
    life = np.maximum(steps, 1.0) * itl
    number = scene.rate_per_s * life
    variation = max(scene.dispersion + scene.demand.prompt_cv**2, 1e-3)
    shape = np.maximum(number * (1 - stalled) ** 2 / variation, 0.15)
    return stalled * itl * (gamma_quantile(shape, normal) - 1)
