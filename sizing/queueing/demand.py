"""Requests as work for an engine: moments of their lengths, and how many of them fit at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from sizing.engine import Batching, Replica, Speculation, StepLaw
from sizing.errors import ScenarioError
from sizing.numbers import Floats
from sizing.queueing.points import token_sum
from sizing.token_law import TokenLaw
from sizing.workload import NO_PREFIX, Lengths, Prefix

# --- Prompts of a law of their own, or that a shared prefix splits into hits and misses: their sums, by quantiles
#
# Lognormal prompts need none of this: their sums are lognormal nearly enough.

SUMMED = 8
"""Sums of more prompts than this are approximated as lognormal."""
PARTS = 256
"""Equally likely parts of a distribution, each represented by its mean."""


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """Computed tokens of prompts: `table` (SUMMED, PARTS), the parts of the law of 1, 2, ... prompts together.

    `longest`: what no prompt exceeds, 0 where the law has no end.
    """

    mean: float
    cv: float
    table: Floats
    longest: float = 0.0

    @classmethod
    def of(cls, tokens: Floats, weight: Floats, longest: float = 0.0) -> Prompts:
        """Of a population with probabilities `weight`; sums are of independent prompts. Means are kept exactly."""
        one = _parts(tokens, weight)
        rows = [one]
        for _ in range(1, SUMMED):
            both = (rows[-1][:, None] + one).ravel()
            rows.append(np.sort(both).reshape(PARTS, PARTS).mean(axis=1))
        mean = float(one.mean())
        return cls(mean, float(one.std()) / mean, np.array(rows), longest)

    def sum_at(self, count: Floats, normal: Floats) -> Floats:
        """Tokens of `count` prompts together at the standard normal deviates `normal`; 0 for none."""
        place = np.clip(ndtr(normal) * PARTS - 0.5, 0, PARTS - 1.001)
        part = place.astype(np.int64)
        row = np.clip(count.astype(np.int64), 1, SUMMED) - 1
        low, high = self.table[row, part], self.table[row, part + 1]
        few = low + (high - low) * (place - part)
        return np.where(count > SUMMED, token_sum(count, self.mean, self.cv, normal), np.where(count > 0, few, 0.0))

    def in_quanta(self, quantum: float, prompts: int, count: int) -> Floats:
        """P(j prompts are m quanta), shape (prompts, count); what overflows is in the last column.

        Each prompt is split between the two multiples of the quantum next to it, which keeps the mean.
        """
        exact = np.minimum(self.table[0] / quantum, count - 1.0)
        below = np.minimum(exact.astype(np.int64), count - 2)
        one = np.zeros(count)
        np.add.at(one, below, (1 - (exact - below)) / PARTS)
        np.add.at(one, below + 1, (exact - below) / PARTS)
        law = np.zeros((prompts, count))
        law[0, 0] = 1.0
        for number in range(1, prompts):
            law[number] = np.convolve(law[number - 1], one)[:count]
            law[number, -1] += max(0.0, 1 - law[number].sum())
        return law


def _parts(value: Floats, weight: Floats) -> Floats:
    """Means of PARTS equally likely parts of a law, ascending."""
    order = np.argsort(value)
    reached = np.concatenate([[0.0], np.cumsum(weight[order])])
    total = np.concatenate([[0.0], np.cumsum((weight * value)[order])])
    edges = np.linspace(0.0, reached[-1], PARTS + 1)
    return np.asarray(np.diff(np.interp(edges, reached, total)) * PARTS / reached[-1])


ANY_LAW = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests as an engine sees them, arrays of one shape (or broadcastable).

    `isl` tokens of the prompt are attended to, `prompt_tokens` of them computed (those not found in the cache);
    `gaps` = OSL - 1 tokens follow the first one, in `steps` decode steps.
    """

    isl: Floats
    prompt_tokens: Floats
    gaps: Floats
    steps: Floats

    @property
    def attention(self) -> Floats:
        """The sum A of the step law over the whole prompt: n (c + n/2) for n computed tokens after c cached ones."""
        return np.asarray(self.prompt_tokens * (self.isl - self.prompt_tokens / 2))

    def at(self, places: NDArray[np.int64]) -> Requests:
        """Some of them."""
        return self._each(lambda values: values if values.size == 1 else values[places])

    def compact(self) -> Requests:
        """The same, read-only, with one value where all are equal."""
        return self._each(lambda values: read_only(values[:1] if (values == values[0]).all() else values))

    def _each(self, change: Callable[[Floats], Floats]) -> Requests:
        return Requests(*(change(values) for values in (self.isl, self.prompt_tokens, self.gaps, self.steps)))


def read_only(values: Floats) -> Floats:
    """The values, read-only because they are shared."""
    values.setflags(write=False)
    return values


@dataclass(frozen=True, slots=True)
class WorkVariance:
    """Variances and covariance of two parts of a request's work, each as a share of its mean: prompt and decoding."""

    prompt: float
    decode: float
    both: float

    @classmethod
    def of(cls, prompt: Floats, decode: Floats, weight: Floats) -> WorkVariance:
        """From values with probabilities; zero if the mean is zero."""
        first, second = (part / mean - 1 if (mean := float(weight @ part)) else 0 * part for part in (prompt, decode))
        return cls(float(weight @ first**2), float(weight @ second**2), float(weight @ (first * second)))

    def cv(self, prompt_share: float) -> float:
        """Coefficient of variation of the whole, of which prompts make this share on average."""
        a, b = prompt_share, 1 - prompt_share
        return math.sqrt(max(a * a * self.prompt + b * b * self.decode + 2 * a * b * self.both, 0.0))


@dataclass(frozen=True, slots=True)
class Demand:
    """Moments of the law of requests that the queue needs.

    `prompt_tokens`, `prompt_cv`: computed tokens of a prompt, mean and coefficient of variation; `decode_steps` too
    (OSL - 1 without speculation). A sequence seen *while decoding* is a length-biased one: long outputs are
    seen for longer. With s steps and g = OSL - 1 gaps, `context_tokens` = E[s (ISL + (g - 1)/2)] / E[s] is the mean
    context of a running sequence, `context_sd` its standard deviation between sequences, `memory_tokens` the KV cache
    it holds: promised to it, or, under max_utilization, taken. `request_tokens`: the same for one request that asks.
    `attention_per_token` = E[A] / E[prompt tokens], A the attention sum of the step law. `overlap` = E[min(s, s')] /
    E[s] for two requests: 1 for equal lengths, 1/2 for exponential ones. What counts when requests wait: `memory_cv` of
    what running sequences hold; of prompt tokens and memory x steps, as shares of their means, the variances and the
    covariance, `memory_work`; the same with steps alone, `slot_work`. `prompts`: the law of computed tokens where it is
    other than lognormal, by the workload or by a shared prefix.
    """

    prompt_tokens: float
    prompt_cv: float
    decode_steps: float
    decode_steps_cv: float
    context_tokens: float
    context_sd: float
    memory_tokens: float
    request_tokens: float
    attention_per_token: float
    overlap: float
    memory_cv: float
    memory_work: WorkVariance
    slot_work: WorkVariance
    prompts: Prompts | None = None


def demand_of(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> Demand:
    """Moments by quadrature over the normal densities: rounding to tokens included; error below 1e-3.

    Cached by what they depend on, see `any_engine`.
    """
    return _moments(any_engine(replica), lengths, prefix)


def any_engine(replica: Replica) -> Replica:
    """The settings that demand depends on: engines with other laws, slots or memory share it."""
    rule = replica.batching
    reserving = Batching(
        policy=rule.policy,
        kv_policy=rule.kv_policy,
        max_tokens=rule.max_tokens,
        kv_block_tokens=rule.kv_block_tokens,
    )
    return Replica(ANY_LAW, reserving, replica.speculation)


@lru_cache(maxsize=256)
def _moments(replica: Replica, lengths: Lengths, prefix: Prefix) -> Demand:
    requests, weight = _population(replica, lengths, prefix)
    steps, prompt = requests.steps, requests.prompt_tokens
    steps_mean, steps_cv = _mean_and_cv(steps, weight)
    prompt_mean, prompt_cv = _mean_and_cv(prompt, weight)
    seen = weight * steps / steps_mean if steps_mean > 0 else weight
    own = requests.isl + (requests.gaps - 1) / 2
    context = float(seen @ own)
    spread = float(seen @ (own - context) ** 2) + float(seen @ requests.gaps**2) / 12
    memory = _memory_tokens(replica.batching, requests)
    return Demand(
        prompt_tokens=prompt_mean,
        prompt_cv=prompt_cv,
        decode_steps=steps_mean,
        decode_steps_cv=steps_cv,
        context_tokens=context,
        context_sd=math.sqrt(spread),
        memory_tokens=float(seen @ memory),
        request_tokens=float(weight @ memory),
        attention_per_token=float(weight @ requests.attention) / prompt_mean,
        overlap=_overlap(steps, weight),
        memory_cv=_mean_and_cv(memory, seen)[1],
        memory_work=WorkVariance.of(prompt, memory * steps, weight),
        slot_work=WorkVariance.of(prompt, steps, weight),
        prompts=_prompts(lengths, prefix, prompt, weight) if prompt_cv > 0 else None,
    )


def _prompts(lengths: Lengths, prefix: Prefix, tokens: Floats, weight: Floats) -> Prompts | None:
    """The law of computed tokens, None where it is lognormal."""
    if lengths.isl_law is not None:
        return Prompts.of(tokens, weight, float(tokens.max()))
    return Prompts.of(tokens, weight) if prefix.hit_rate * prefix.tokens > 0 else None


def _mean_and_cv(value: Floats, weight: Floats) -> tuple[float, float]:
    mean = float(weight @ value)
    variance = float(weight @ (value - mean) ** 2)
    return mean, math.sqrt(variance) / mean if variance > 1e-12 * mean**2 else 0.0


def _memory_tokens(rule: Batching, requests: Requests) -> Floats:
    """KV tokens that each request holds: reserved for its life, or on average over it, with the empty part of its last
    block (max_utilization)."""
    if rule.kv_policy == "max_utilization":
        return np.asarray(requests.prompt_tokens + (requests.gaps + 1) / 2 + (rule.kv_block_tokens - 1) / 2)
    promised = requests.prompt_tokens + np.maximum(requests.gaps + 1, rule.max_tokens)
    return np.asarray(np.ceil(promised / rule.kv_block_tokens) * rule.kv_block_tokens)


def requests_at(
    replica: Replica,
    lengths: Lengths,
    prefix: Prefix,
    of_isl: Floats,
    of_osl: Floats,
    hit: Floats,
    luck: Floats | float = 0.0,
) -> Requests:
    """The requests at standard normal deviates of ISL and OSL, `hit` uniform: a prefix hit where it is below hit_rate.

    Outputs end at the engine's `max_tokens`. `luck`: normal deviate of the tokens that speculation accepted.
    """
    isl, osl = lengths.at(of_isl, of_osl)
    if replica.batching.max_tokens:
        osl = np.minimum(osl, replica.batching.max_tokens)
    cached = np.where(hit < prefix.hit_rate, np.minimum(prefix.tokens, isl - 1), 0.0)
    return Requests(isl, isl - cached, osl - 1, _steps(osl - 1, replica.speculation, luck))


def _steps(gaps: Floats, speculation: Speculation | None, luck: Floats | float) -> Floats:
    """Decode steps that yield `gaps` tokens.

    Renewals of T tokens each, T = 1 + the accepted ones. Wald: E[steps] = (gaps + overshoot)/E[T], overshoot
    E[T (T - 1)]/(2 E[T]) for long outputs; Var[steps] = gaps Var[T]/E[T]^3. At most one step a token.
    """
    if speculation is None:
        return gaps
    number = np.arange(1, speculation.draft_tokens + 2)
    reached = speculation.acceptance ** (number - 1.0)
    chance = reached - np.append(reached[1:], 0.0)
    mean = float(chance @ number)
    variance = float(chance @ number**2) - mean**2
    if variance < 1e-12:  # every step yields as many
        return np.asarray(np.ceil(gaps / mean - 1e-9))
    overshoot = float(chance @ (number * (number - 1))) / (2 * mean)
    middle = (gaps + overshoot) / mean
    drawn = middle + np.sqrt(np.maximum(gaps * variance, 0.0) / mean**3) * luck
    least = np.ceil(gaps / (speculation.draft_tokens + 1))
    return np.asarray(np.clip(drawn, least, gaps))


def _overlap(steps: Floats, weight: Floats) -> float:
    """E[min(s, s')] / E[s] of two independent draws, by E[min] = sum over t of P(s > t)^2."""
    order = np.argsort(steps)
    steps, weight = steps[order], weight[order]
    reached = np.cumsum(weight[::-1])[::-1]
    increments = np.diff(steps, prepend=0.0)
    whole = float(increments @ reached)
    return float(increments @ reached**2) / whole if whole > 0 else 1.0


def _population(replica: Replica, lengths: Lengths, prefix: Prefix) -> tuple[Requests, Floats]:
    """Requests on a grid of deviates and their probabilities, shape (n,), as `Lengths.sample` draws them."""
    nodes = 4001 if lengths.isl_cv * lengths.osl_cv == 0 else 257
    laws = (None, None) if lengths.correlation else (lengths.isl_law, lengths.osl_law)  # whose cells a tilt would cross
    of_isl, weight_in = _nodes_of(laws[0], nodes if lengths.isl_cv > 0 else 1)
    of_osl, weight_out = _nodes_of(laws[1], nodes if lengths.osl_cv > 0 else 1)
    hit, weight_hit = np.zeros(1), np.ones(1)
    if prefix.hit_rate * prefix.tokens > 0:
        hit, weight_hit = np.array([0.0, 1.0]), np.array([prefix.hit_rate, 1 - prefix.hit_rate])
    grid = (axis.ravel() for axis in np.meshgrid(of_isl, of_osl, hit, indexing="ij"))
    weight = weight_in[:, None, None] * weight_out[:, None] * weight_hit
    return requests_at(replica, lengths, prefix, *grid), weight.ravel()


def _nodes_of(law: TokenLaw | None, count: int) -> tuple[Floats, Floats]:
    """Normal deviates and their probabilities: evenly spaced, or those that `law` is exact at."""
    if law is None or count == 1:
        return _normal_nodes(count)
    uniform, weight = law.nodes(count)
    return np.asarray(ndtri(uniform)), weight


def _normal_nodes(count: int) -> tuple[Floats, Floats]:
    z = np.linspace(-7, 7, count) if count > 1 else np.zeros(1)
    weight = np.exp(-z * z / 2)
    return z, weight / weight.sum()


def slots(replica: Replica, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> int:
    """Sequences that run at once: the least of `slot_limit` and what the KV cache holds.

    In steady state running requests are length-biased, so KV / `memory_tokens` of them fit, less half a mean request
    that no longer fits when memories vary.

    Raises ScenarioError when not even one mean request fits.

    >>> from sizing.engine import StepLaw
    >>> law = StepLaw(weights_s=5e-3, overhead_s=0, token_s=0, sequence_s=0, kv_token_s=0)
    >>> slots(Replica(law, Batching(kv_tokens=100_000)), Lengths(isl=1500, osl=500))
    50
    """
    most = slot_limit(replica, demand_of(replica, lengths, prefix))
    return max(1, min(most, math.floor(slots_of_memory(replica, lengths, prefix))))


def slot_limit(replica: Replica, demand: Demand) -> int:
    """Sequences that run at once, memory aside: `max_batch_size`, and of whole prompts one more than leave room for the
    mean prompt in the token budget, unless it holds none at all."""
    rule = replica.batching
    room = math.floor(rule.token_budget - demand.prompt_tokens)
    if rule.policy != "whole_prompt" or rule.budget_guessed or room < 0:
        return rule.max_batch_size
    return min(rule.max_batch_size, room // replica.lane_tokens + 1)


@lru_cache(maxsize=1024)
def slots_of_memory(replica: Replica, lengths: Lengths, prefix: Prefix) -> float:
    """Mean sequences that the KV cache holds, ignoring the slot limit."""
    rule, demand = replica.batching, demand_of(replica, lengths, prefix)
    one = lengths.isl + (min(lengths.osl, rule.max_tokens) if rule.max_tokens else lengths.osl)
    if rule.kv_tokens < one:
        raise ScenarioError(
            f"a request of {one:g} tokens (ISL + OSL) does not fit the KV cache of {rule.kv_tokens} tokens; "
            "use shorter requests or more GPU memory per replica"
        )
    if rule.kv_policy == "max_utilization":  # admission leaves room for the prompt and a token for each sequence
        spare, each = demand.prompt_tokens / 2, demand.memory_tokens + 1
    else:
        equal = lengths.fixed and demand.prompt_cv == 0
        spare, each = 0.0 if equal else demand.request_tokens / 2, demand.memory_tokens
    return _fitting(rule.kv_tokens - spare, each, prefix, rule.kv_block_tokens)


def _fitting(tokens: float, each: float, prefix: Prefix, block_tokens: int) -> float:
    """Sequences of `each` tokens of their own that fit into `tokens` beside the prefix that they share, by bisection:
    more than beside all of it, fewer than beside none."""
    if prefix.tokens * prefix.hit_rate == 0:
        return tokens / each
    low, high = max(tokens - prefix.held_tokens(math.inf, block_tokens), 0.0) / each, tokens / each
    for _ in range(50):
        middle = (low + high) / 2
        if middle * each + prefix.held_tokens(middle, block_tokens) > tokens:
            high = middle
        else:
            low = middle
    return low
