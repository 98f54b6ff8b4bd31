"""Seconds of one iteration, by the law and what an engine departs from it, and of a stretch of them; compiled."""

from __future__ import annotations

import math

import numpy as np

from sizing.simulator.heap import compiled, compiled_apart
from sizing.simulator.records import Engine, State
from sizing.steptime import KNEE
from sizing.workload import Seconds

_GOLDEN, _MIX_1, _MIX_2 = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_SHIFT_1, _SHIFT_2, _SHIFT_3, _TO_53_BITS = map(np.uint64, (30, 27, 31, 11))


@compiled
def iteration_s(
    engine: Engine, known_s: Seconds, lanes: int, context_tokens: float, prompt_tokens: int, attention: float
) -> float:
    """StepLaw.decode_s and StepLaw.mixed_s; decode lanes may be padded, and carry the tokens of a draft along.

    `known_s`: see `known_matrices_s`.
    """
    padded = lanes
    if engine.padding > 1:
        padded = -(-lanes // engine.padding) * engine.padding
    time_s = engine.overhead_s + known_matrices_s(engine, known_s, padded * engine.lane_tokens + prompt_tokens)
    time_s += engine.sequence_s * padded + engine.kv_token_s * context_tokens
    if prompt_tokens > 0:
        time_s += engine.attention_s * attention + engine.prefill_s
    if engine.lane_tokens > 1 and lanes > 0:
        time_s += engine.draft_pass_s + engine.draft_sequence_s * lanes + engine.draft_kv_token_s * context_tokens
    return time_s


@compiled
def known_matrices_s(engine: Engine, known_s: Seconds, tokens: int) -> float:
    """`matrices_s`, kept in `known_s`, by tokens as far as it goes; 0 where it has not been asked for."""
    if tokens >= len(known_s):
        return matrices_s(engine, tokens)
    if known_s[tokens] == 0:
        known_s[tokens] = matrices_s(engine, tokens)
    return float(known_s[tokens])


@compiled_apart
def matrices_s(engine: Engine, tokens: int) -> float:
    """Seconds of the matrix products of `tokens` tokens: StepLaw's knee; at k = 4 two square roots are the power."""
    weights_s = engine.weights_s
    if engine.unread > 0:
        weights_s *= 1 - engine.unread * engine.unread_decay ** (tokens - 1)
    dense_s = engine.token_s * tokens
    if engine.knee == KNEE:
        return math.sqrt(math.sqrt(weights_s**4 + dense_s**4))
    longer_s = max(weights_s, dense_s)
    if longer_s == 0:
        return 0.0
    share = min(weights_s, dense_s) / longer_s
    return float(longer_s * (1 + share**engine.knee) ** (1 / engine.knee))


@compiled
def growth_s(engine: Engine, state: State) -> float:
    """Seconds by which each decode step is longer than the one before: the contexts have grown."""
    return float((engine.kv_token_s + engine.draft_kv_token_s) * state.growth_tokens)


@compiled
def stretch_s(step_s: float, growth_s: float, steps: int) -> float:
    """Seconds of `steps` steps, the first of `step_s` seconds and each `growth_s` longer than the one before."""
    return step_s * steps + 0.5 * growth_s * steps * (steps - 1)


@compiled
def steps_to(step_s: float, growth_s: float, wait_s: float) -> int:
    """The fewest steps (at least one) that last `wait_s` seconds or more: the root of stretch_s, rounded up."""
    linear_s = step_s - 0.5 * growth_s
    root = 2 * wait_s / (linear_s + math.sqrt(linear_s * linear_s + 2 * growth_s * wait_s))
    steps = max(math.ceil(root), 1)
    if steps > 1 and stretch_s(step_s, growth_s, steps - 1) >= wait_s:
        return steps - 1
    if stretch_s(step_s, growth_s, steps) < wait_s:
        return steps + 1
    return steps


@compiled_apart
def jitter_factor(engine: Engine, state: State) -> float:
    """One draw of a lognormal factor with mean 1 and the engine's coefficient of variation."""
    radius = math.sqrt(-2 * math.log(1 - uniform(state)))
    normal = radius * math.cos(2 * math.pi * uniform(state))
    variance = math.log1p(engine.jitter * engine.jitter)
    return math.exp(math.sqrt(variance) * normal - variance / 2)


@compiled
def uniform(state: State) -> float:
    """The next number in [0, 1) of the replica's stream: SplitMix64 (Steele, Lea, Flood 2014) of (seed, count)."""
    state.draws += 1
    bits = np.uint64(state.seed) + np.uint64(state.draws) * _GOLDEN
    bits = (bits ^ (bits >> _SHIFT_1)) * _MIX_1
    bits = (bits ^ (bits >> _SHIFT_2)) * _MIX_2
    bits = bits ^ (bits >> _SHIFT_3)
    return float(bits >> _TO_53_BITS) * 2.0**-53
