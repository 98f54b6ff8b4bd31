"""The gaps between single tokens of running sequences, from the two chains: stalls in full.

A running sequence has a token at the end of every iteration in which it decodes. So a gap is an iteration of the fast
chain, met by every sequence that runs: n of them with probability P(n), for 1/ITL(n) gaps a second each. Under
prefill_first a decode step is followed by the prompts that came during it, those that came during these, and so on,
before the next. The first gap of a request is unlike the others: it follows the iteration of its own prompt, which
lasted longer than most, so that more has arrived. An answer of a few tokens takes the sum of its first gaps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from sizing.numbers import Floats
from sizing.prediction import NOT_COUNTED, Quantiles
from sizing.queueing.demand import Requests
from sizing.queueing.iteration_chain import DecodeCost, prefill_room
from sizing.queueing.latency import Scene, places_in_rows, prompts_arriving
from sizing.queueing.points import POINTS_LOG2, Points

FOLLOWED, SHORT = 8, 64
"""Gaps after its own prompt that are followed one by one, where outputs have fewer than `SHORT` on average: of longer
outputs only the first, for the others are as any."""
WHOLE = 16
"""Decode steps up to which an answer is followed from its first token to its last."""
MOST_ITERATIONS = 24
"""Consecutive prompt iterations that are followed; longer series are very rare below the stable rate."""
Who = NDArray[np.int64] | slice
ALL = slice(None)


def gap_quantiles(
    scene: Scene, requests: Requests, found: Floats, own_s: Floats, left: Floats, points: Points
) -> Quantiles:
    """Of all gaps of all requests; NaN where no request has any. `own_s`: the iteration that ended each prompt, which
    came while the request had `found` others, and `left` so many tokens of prompts.

    Every point stands for the first gaps of one request, and for one gap of a sequence at any time.
    """
    steps = np.broadcast_to(requests.steps, found.shape)
    if not steps.any():
        return NOT_COUNTED
    prompts_alone = scene.replica.batching.policy == "prefill_first"  # every decode step then starts afresh
    followed = FOLLOWED if steps.mean() < SHORT and not prompts_alone else 1
    rest = np.maximum(steps - followed, 0.0).sum()
    parts, weights = [], []
    firsts = _after_own(scene, np.minimum(found + 1, scene.state.slots), own_s, left, points, followed)
    for number, gap_s in enumerate(firsts):
        parts.append(gap_s)
        weights.append(np.clip(steps - number, 0.0, 1.0))
    if rest > 0:
        parts.append(_at_any_time(scene, points))
        weights.append(np.full(len(found), rest / len(found)))
    return weighted_quantiles(np.concatenate(parts), np.concatenate(weights))


def decoding_s(
    scene: Scene, requests: Requests, found: Floats, own_s: Floats, left: Floats, points: Points, longer_s: Floats
) -> Floats:
    """Seconds from the first token of each request to its last: the sum of its gaps for answers of up to `WHOLE` steps,
    `longer_s` for others.

    A short answer meets one prompt, or none: its stalls have no smooth law, as those of a long one have in sum. Error
    against the simulator of ITL p50 to p99 of 2 to 17 tokens, chunked and whole_prompt, median / 90th centile: 0.9 and
    7 %, before 15 and 96 % (2,304 percentiles: 36 workloads on two engines at 5 to 80 % of the stable rate).
    """
    steps = np.broadcast_to(requests.steps, found.shape)
    who = np.flatnonzero((steps > 0) & (steps <= WHOLE))
    if not len(who) or scene.replica.batching.policy == "prefill_first":  # of which only the first gap is followed
        return longer_s
    running, steps = np.minimum(found[who] + 1, scene.state.slots), steps[who]
    followed_s = np.zeros(len(who))
    gaps = _after_own(scene, running, own_s[who], left[who], points, math.ceil(steps.max()), who)
    for number, gap_s in enumerate(gaps):
        followed_s += np.clip(steps - number, 0.0, 1.0) * gap_s
    found_s = longer_s.copy()
    found_s[who] = followed_s
    return found_s


def weighted_quantiles(seconds: Floats, weights: Floats) -> Quantiles:
    """Mean and percentiles of values that count by their weights."""
    order = np.argsort(seconds)
    seconds, share = seconds[order], np.cumsum(weights[order])
    places = np.minimum(np.searchsorted(share, np.array([0.5, 0.9, 0.95, 0.99]) * share[-1]), len(seconds) - 1)
    mean_s = float(seconds @ weights[order] / share[-1])
    return Quantiles(mean_s, *map(float, seconds[places]))


def _running(scene: Scene, uniform: Floats) -> Floats:
    """Sequences that run at a gap taken at random: n with weight P(n) n/ITL(n), for so many gaps end each second."""
    states = np.minimum(np.arange(len(scene.state.probability)), scene.state.slots).astype(float)
    weight = scene.state.probability * states / scene.itl_s(np.maximum(states, 1.0))
    share = np.cumsum(weight)
    if share[-1] == 0:
        return np.ones_like(uniform)
    return np.asarray(states[np.minimum(np.searchsorted(share, uniform * share[-1]), len(states) - 1)])


def _decode_s(scene: Scene, running: Floats, points: Points, who: Who = ALL) -> Floats:
    """A decode step of so many sequences, whose contexts are longer or shorter than the mean."""
    cost = DecodeCost.of(scene.replica)
    step_s = scene.step_s(running)
    context = np.sqrt(running) * scene.demand.context_sd * cost.context_token_s * points.context[who]
    return np.maximum(step_s + context, 0.5 * step_s)


def _after_own(
    scene: Scene, running: Floats, own_s: Floats, left: Floats, points: Points, followed: int, who: Who = ALL
) -> Iterator[Floats]:
    """The first gaps of each request, or of those of the points `who`, one after the other."""
    decode_s = _decode_s(scene, running, points, who)
    if scene.replica.batching.policy == "prefill_first":
        yield decode_s + _prompts_alone_s(scene, own_s, left)
        return
    step_s, room = scene.step_s(running), prefill_room(scene.replica, scene.demand, running)
    before_s, waiting = own_s, left
    for number in range(followed):
        waiting = waiting + _arriving(scene, before_s, number, who)
        tokens = np.minimum(waiting, room)
        with_prompts_s = scene.iteration_s(running, tokens, tokens * scene.demand.attention_per_token)
        before_s = decode_s + np.where(tokens > 0, with_prompts_s - step_s, 0.0)
        yield before_s
        waiting = waiting - tokens


def _at_any_time(scene: Scene, points: Points) -> Floats:
    """A random gap of a running sequence."""
    running = _running(scene, points.state)
    decode_s = _decode_s(scene, running, points)
    if scene.replica.batching.policy == "prefill_first":
        interval = scene.replica.batching.receive_interval_steps
        looks = points.iteration * interval < 1  # prompts of several steps run after the last of them
        return decode_s + _prompts_alone_s(scene, looks * interval * decode_s, np.zeros_like(decode_s))
    return decode_s + _added_by_prompts_s(scene, running, points)


def _added_by_prompts_s(scene: Scene, running: Floats, points: Points) -> Floats:
    """What the prompts of a random iteration add to it, while so many sequences run."""
    chain = scene.iterations
    least = 1 if chain.batch[0] == 0 and len(chain.batch) > 1 else 0  # no sequence decodes in the first row
    grid = np.arange(float(len(chain.batch)))
    row = np.minimum((np.interp(running, chain.batch, grid) + points.row).astype(np.int64), len(grid) - 1)
    row = np.maximum(row, least)
    place = places_in_rows(np.cumsum(chain.share, axis=1), row, points.iteration)
    added = chain.duration_s - chain.duration_s[:, :1]
    return np.asarray(added.ravel()[place])


def _prompts_alone_s(scene: Scene, before_s: Floats, left: Floats) -> Floats:
    """Seconds of the iterations of prompts alone that follow `before_s` seconds in which prompts could come."""
    room = float(prefill_room(scene.replica, scene.demand, np.zeros(1))[0])
    stalled_s, waiting = np.zeros_like(before_s), left + _arriving(scene, before_s, 0)
    for number in range(1, MOST_ITERATIONS):
        who = np.flatnonzero(waiting > 0)
        if not len(who):
            break
        tokens = np.minimum(waiting[who], room)
        lasts_s = scene.iteration_s(np.zeros(len(who)), tokens, tokens * scene.demand.attention_per_token)
        stalled_s[who] += lasts_s
        waiting[who] += _arriving(scene, lasts_s, number, who) - tokens
    return stalled_s


def _arriving(scene: Scene, seconds: Floats, number: int, who: Who = ALL) -> Floats:
    """Prompt tokens that arrive in `seconds`, with separate deviates for each iteration of a row."""
    uniform, normal = _deviates(number)
    return prompts_arriving(scene, seconds, uniform[who], normal[who], np.zeros_like(seconds))


@lru_cache(maxsize=64)
def _deviates(number: int) -> tuple[Floats, Floats]:
    """A uniform and a standard normal deviate for each point, the same at every rate."""
    uniform = np.random.default_rng(number).random((2, 1 << POINTS_LOG2))
    uniform = np.clip(uniform, 1e-9, 1 - 1e-9)
    return uniform[0], np.asarray(ndtri(uniform[1]))
