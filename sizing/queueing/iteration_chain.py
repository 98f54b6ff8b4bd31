"""The fast chain: prompts that wait at the iteration boundaries of an engine with a fixed decode batch.

Requests live for hundreds of iterations, prompts for one or two. So the decode batch d may be held fixed while the
prompts come and go: at each iteration boundary q prompt tokens wait; the iteration computes what its token budget
allows and lasts D(d, q); meanwhile a Poisson number of new prompts arrives. This is the embedded chain of an M/G/1
queue with batch service; its stationary law gives the mean time between tokens ITL(d), and the iteration that an
arriving request finds in progress. Solved for a dozen values of d together, prompt tokens counted in quanta.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, ndtr, pdtrc

from sizing.compiled import compiled_apart
from sizing.engine import Batching, Replica
from sizing.numbers import Floats
from sizing.queueing.demand import Demand, read_only
from sizing.queueing.points import LEAST_LOG, poisson_chances
from sizing.queueing.stream import Groups

# --- How long one iteration lasts and how many prompt tokens it takes: the step law at mean contexts, with speculation


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """What running sequences add to an iteration beside their tokens: seconds a step (the draft's passes), seconds a
    sequence and seconds a context token."""

    step_s: float
    sequence_s: float
    context_token_s: float

    @classmethod
    def of(cls, replica: Replica) -> DecodeCost:
        """What the law says, and a draft adds."""
        step_s, sequence_s, token_s = replica.draft_s
        return cls(step_s, replica.law.sequence_s + sequence_s, replica.law.kv_token_s + token_s)


def iteration_s(replica: Replica, demand: Demand, batch: Floats, tokens: Floats, attention: Floats) -> Floats:
    """Seconds of an iteration with `tokens` (0 = decode only) prompt tokens while `batch` sequences run (elementwise).

    Under prefill_first prompts run alone; otherwise they join the decode step. Contexts have their mean length.
    """
    law, with_prompt = replica.law, tokens > 0
    decoding = batch if replica.batching.policy != "prefill_first" else np.where(with_prompt, 0.0, batch)
    seconds = _straight_s(replica, demand, decoding, tokens)
    seconds = seconds + np.where(with_prompt, law.attention_s * attention + law.prefill_s, 0.0)
    if law.bend.sequences:
        some, all_ = with_prompt.any(), with_prompt.all()
        by_prompts = law.bent_by_prompts(batch + np.maximum(tokens / demand.prompt_tokens, 1.0)) if some else 1.0
        seconds = seconds * np.where(with_prompt, by_prompts, 1.0 if all_ else law.bent(batch))
    return np.asarray(seconds)


def decode_step_s(replica: Replica, demand: Demand, batch: Floats) -> Floats:
    """Seconds of an iteration without prompts (elementwise)."""
    seconds = _straight_s(replica, demand, batch, 0.0)
    return np.asarray(seconds * replica.law.bent(batch)) if replica.law.bend.sequences else seconds


def _straight_s(replica: Replica, demand: Demand, decoding: Floats, tokens: Floats | float) -> Floats:
    """Seconds of everything but prompts' own, without the bend."""
    cost = DecodeCost.of(replica)
    seconds = replica.law.tokens_s(replica.lane_tokens * decoding + tokens)
    seconds = seconds + (cost.sequence_s + cost.context_token_s * demand.context_tokens) * decoding
    return np.asarray(seconds + np.where(decoding > 0, cost.step_s, 0.0) if cost.step_s > 0 else seconds)


def prefill_room(replica: Replica, demand: Demand, batch: Floats) -> Floats:
    """Prompt tokens that one iteration takes while `batch` sequences run, for each value of `batch`.

    Chunks fill the budget completely. Whole prompts leave unused, on average, the mean remainder E[n^2]/(2 E[n]) of
    prompts of n tokens (equal prompts: what whole multiples leave); one always fits, see `slot_limit`. No more prompts
    than slots.
    """
    rule, one = replica.batching, demand.prompt_tokens
    decoding = 0.0 if rule.policy == "prefill_first" else replica.lane_tokens * batch
    room = rule.token_budget - decoding + 0.0 * batch
    if not rule.cuts_prompts:
        remainder = one * (1 + demand.prompt_cv**2) / 2
        room = room - remainder if demand.prompt_cv > 0 else np.floor(room / one) * one
        room = np.maximum(room, one)
    return np.asarray(np.clip(room, 1.0, rule.max_batch_size * one))


def awaited_tokens(replica: Replica, batch: Floats) -> Floats:
    """Prompt tokens that wait for no others, beside `batch` sequences; with nothing to decode none do."""
    rule = replica.batching
    awaited = rule.batch_wait_ratio * rule.token_budget - replica.lane_tokens * batch
    return np.asarray(np.where(batch > 0, np.maximum(awaited, 0.0), 0.0))


def steps_in_vain(replica: Replica, demand: Demand, batch: Floats) -> Floats:
    """Decode steps before a full iteration, beside `batch` sequences, in which its prompts wait for others that do not
    fit: whole prompts leave up to one of them unused, and where that is more than the wait is content with, they wait
    all its steps."""
    rule = replica.batching
    if rule.cuts_prompts:
        return np.zeros_like(batch)
    content = (1 - rule.batch_wait_ratio) * rule.token_budget / demand.prompt_tokens
    return np.asarray(np.where(batch > 0, rule.batch_wait_steps * max(1 - content, 0.0), 0.0))


SINGLE = Groups()
EARLY_ROUNDS = 5
"""Until the mean duration of prompts is that of the law that it leads to."""
WHILE_FULL = 0.8
"""Share of the tokens that a full iteration serves which may arrive during it, see `_attention_per_token`. With 0.8,
p95 TTFT of prompts with a cv of 0.5 to 1 is within 4 % of the simulation's up to 45 % of the stable rate and within
20 % from there to 80 %, on average; without the bound it is up to 30 times too long, with 1 up to 9 times."""
LONGEST_SPAN = 3.0
"""States reach to so many of the longest prompts: with 1, p95 TTFT under a long tail was 8 % too low, with 3 within
2 %, with 5 no better."""


@dataclass(frozen=True, slots=True)
class Iterations:
    """Stationary iterations for each decode batch of a grid; arrays are (grid, states) unless noted.

    `batch` (grid,): sequences that decode. `probability`: of q quanta waiting when the engine looks for new requests,
    at each iteration boundary unless it has a receive interval. `duration_s`: of the iteration that follows, and
    `look_s` up to the next look. `share`: of all iterations, those with q quanta. `left_tokens`: prompt tokens an
    iteration cannot serve. `room_tokens` (grid,): prompt tokens one takes. `itl_s` (grid,): mean time between two
    tokens of a running sequence. In the last `waits` states, if any, prompts that could run wait for others in decode
    steps, which count as one iteration up to the next look, until `awaited_tokens` (grid,) of them wait.
    """

    batch: Floats
    probability: Floats
    duration_s: Floats
    look_s: Floats
    share: Floats
    left_tokens: Floats
    room_tokens: Floats
    itl_s: Floats
    waits: int = 0
    awaited_tokens: Floats | None = None

    def running_s(self, seconds: Floats) -> Floats:
        """`duration_s` or `look_s` with none of an idle engine, which waits for the next request."""
        if self.batch[0] > 0:
            return seconds
        running_s = seconds.copy()
        running_s[0, 0] = 0.0
        return running_s

    def waited_s(self) -> Floats:
        """Mean seconds that prompts wait for others, per row."""
        waits = slice(self.look_s.shape[1] - self.waits, None)
        times = self.probability[:, waits].sum(axis=1)
        total_s = (self.probability * self.look_s)[:, waits].sum(axis=1)
        return np.asarray(np.divide(total_s, times, out=np.zeros_like(times), where=times > 1e-12))

    def seen_by_arrivals(self) -> Floats:
        """Cumulative law, per row, of the iteration in progress at a random instant, with the decode steps after it
        up to the next look: probability x their time (PASTA)."""
        share = self.probability * self.look_s
        return np.asarray(np.cumsum(share, axis=1) / share.sum(axis=1, keepdims=True))


def open_iterations(
    replica: Replica, demand: Demand, batch: Floats, rate_per_s: float, groups: Groups = SINGLE
) -> Iterations:
    """Iterations when requests arrive at random at `rate_per_s`, in `groups`.

    An idle engine (d = 0, q = 0) waits for the next group, then starts on it.
    """
    rule = replica.batching
    steps = max(rule.receive_interval_steps, 1 + rule.batch_wait_steps)
    states = _States.of(replica, demand, batch, groups, rate_per_s, steps)
    groups_per_s = rate_per_s / groups.mean
    if looks_early(rule):
        return states.solve_early(rule, groups_per_s)
    duration, look_s = states.duration_s.copy(), states.duration_s.copy()
    look_s[:, 0] *= rule.receive_interval_steps
    arriving = states.arrivals(groups_per_s * look_s)
    if batch[0] == 0:
        duration[0, 0] = look_s[0, 0] = 1 / groups_per_s
        arriving[0, 0] = np.arange(arriving.shape[2]) == 1
    if rule.batch_wait_steps > 0:
        per_step = groups_per_s * states.duration_s[:, 0]
        return states.solve_awaiting(rule, arriving, duration, per_step, awaited_tokens(replica, batch))
    return states.solve(rule, arriving, duration, look_s, rule.receive_interval_steps)


def looks_early(rule: Batching) -> bool:
    """True if the engine has looked for the requests of an iteration, and will not for those of the next few, before
    the prompts of the one in progress are done: a receive interval with look-ahead of about a step."""
    return rule.receive_interval_steps > 1 and rule.lookahead_steps >= 0.5


def closed_iterations(replica: Replica, demand: Demand, batch: Floats) -> Iterations:
    """Iterations of a saturated engine: every finished request is replaced at once.

    Each decode step of d sequences finishes d / E[s] of them on average, taken as Poisson; as many prompts come, which
    the engine saw long before.
    """
    states = _States.of(replica, demand, batch, SINGLE, 0.0)
    finishing = np.repeat((batch / demand.decode_steps)[:, None], states.duration_s.shape[1], axis=1)
    if replica.batching.policy == "prefill_first":
        finishing[:, 1:] = 0.0  # no sequence decodes, so none finishes, while prompts run
    arriving = states.arrivals(finishing)
    if replica.batching.batch_wait_steps > 0:
        awaited = awaited_tokens(replica, batch)
        return states.solve_awaiting(replica.batching, arriving, states.duration_s, finishing[:, 0], awaited)
    return states.solve(replica.batching, arriving, states.duration_s, states.duration_s)


@dataclass(frozen=True, slots=True)
class _States:
    """The state space: q = 0 .. Q-1 quanta of prompt tokens, for every decode batch of the grid. `one_prompt`: the
    mean prompt in quanta."""

    batch: Floats
    room_tokens: Floats
    quantum: float
    one_prompt: float
    duration_s: Floats
    quanta_of_groups: Floats

    @classmethod
    def of(
        cls, replica: Replica, demand: Demand, batch: Floats, groups: Groups, rate_per_s: float, steps: int = 1
    ) -> _States:
        room = prefill_room(replica, demand, batch)
        quantum, count = _quantum(demand, float(room.min()), steps * float(batch[-1]), groups.mean)
        waiting: Floats = quantum * np.arange(count, dtype=float)
        served = np.minimum(waiting, room[:, None])
        prompts = int(count * quantum / demand.prompt_tokens) + 2
        law = _quanta_of_prompts(demand, quantum, prompts, count)
        per_token = _attention_per_token(replica, demand, waiting, law, rate_per_s, groups)
        seconds = iteration_s(replica, demand, batch[:, None], served, served * per_token)
        if groups.mean > 1:
            law = groups.sums(int(prompts / groups.mean) + 2, prompts) @ law
        return cls(batch, room, quantum, demand.prompt_tokens / quantum, seconds, law)

    def arrivals(self, groups: Floats) -> Floats:
        """P(k groups arrive) in each state, shape (grid, Q, K), for Poisson counts with means `groups` (grid, Q).

        As many counts as are likely; overflow beyond the states is in the last one.
        """
        most = float(groups.max())
        counts = min(len(self.quanta_of_groups), int(most + 10 * math.sqrt(most) + 20))
        return poisson_chances(groups.ravel(), counts).reshape(*groups.shape, counts)

    def solve(
        self, rule: Batching, arriving: Floats, duration_s: Floats, look_s: Floats, steps_to_look: int = 1
    ) -> Iterations:
        """Stationary law of: next waiting = (waiting - room)+ + the quanta of the groups that arrive, see `arrivals`.

        Overflow stays in the last state. If an iteration drains the queue, the next state
        depends only on how many groups arrive, so a smaller chain suffices. From look to look pass `look_s` seconds,
        `steps_to_look` decode steps where nothing waits.
        """
        left = np.maximum(0.0, np.arange(duration_s.shape[1]) - self.room_tokens[:, None] / self.quantum)
        quanta = self.quanta_of_groups[: arriving.shape[2]]
        if left.any():
            probability = stationary(_shifted(arriving @ quanta, left))
        else:
            probability = stationary(quanta @ arriving) @ quanta
        return self._found(rule, probability, duration_s, look_s, self._iterations(1, steps_to_look))

    def solve_early(self, rule: Batching, groups_per_s: float) -> Iterations:
        """The same for open iterations of an engine that `looks_early`, in twice as many states: the look comes while a
        decode step runs, or while prompts do.

        What it finds runs next; if it finds nothing, the next look is an interval away. Prompts in progress have the
        mean duration of all, which follows from the law itself.
        """
        count, interval = self.duration_s.shape[1], rule.receive_interval_steps
        step_s, waiting = self.duration_s[:, :1], np.arange(count)
        duration_s = np.tile(self.duration_s, 2)
        left = np.maximum(0.0, waiting - self.room_tokens[:, None] / self.quantum)
        prompts_s = self.duration_s[:, min(round(self.one_prompt), count - 1), None]
        for _ in range(EARLY_ROUNDS):
            rest_s = np.where(waiting > 0, 0.0, (interval - 1) * step_s)
            look_s = np.hstack([step_s + rest_s, prompts_s + rest_s])
            arriving = self.arrivals(groups_per_s * look_s)
            if self.batch[0] == 0:
                duration_s[0, 0] = look_s[0, 0] = 1 / groups_per_s
                arriving[0, 0] = np.arange(arriving.shape[2]) == 1
            law = arriving @ self.quanta_of_groups[: arriving.shape[2]]
            of_steps, of_prompts = (_shifted(half, left) for half in (law[:, :count], law[:, count:]))
            # Watched only while prompts run (x P = x holds for a part of the states; Kemeny & Snell 1960, section 6.1):
            # having found nothing then, the engine comes to looks during decode steps, until one finds something.
            nothing = of_prompts[:, 0, 0] / np.maximum(1 - of_steps[:, 0, 0], 1e-12)
            visits = of_prompts[:, 0] + nothing[:, None] * of_steps[:, 0]
            of_prompts[:, 0] = np.einsum("dq,dqr->dr", visits[:, 1:], of_steps[:, 1:])
            late = stationary(of_prompts)
            probability = np.hstack([late[:, :1] * visits, late])
            probability /= probability.sum(axis=1, keepdims=True)
            prompts = probability * np.tile(waiting > 0, 2)
            prompts_s = (prompts * duration_s).sum(axis=1, keepdims=True) / prompts.sum(axis=1, keepdims=True)
        return self._found(rule, probability, duration_s, look_s, self._iterations(2, interval))

    def _iterations(self, times: int, steps_to_look: int) -> Floats:
        """Iterations up to the next look in each state, so many times repeated."""
        return np.tile(np.where(np.arange(self.duration_s.shape[1]) == 0, float(steps_to_look), 1.0), times)

    def solve_awaiting(
        self, rule: Batching, arriving: Floats, duration_s: Floats, per_step: Floats, awaited: Floats
    ) -> Iterations:
        """The same where prompts wait for others after each iteration, for so many decode steps or until `awaited`
        (grid,) tokens wait; `per_step` (grid,) groups arrive in a step. Such waits are states of their own.

        A wait ends with the prompt that brings the tokens, after an Erlang time, or with the steps.
        """
        count, steps = duration_s.shape[1], rule.batch_wait_steps
        waiting, one = np.arange(count), max(round(self.one_prompt), 1)
        left = np.maximum(0.0, waiting - self.room_tokens[:, None] / self.quantum)
        quanta = self.quanta_of_groups[: arriving.shape[2]]
        until = _shifted(arriving @ quanta, left)
        lacking = np.ceil(np.maximum(awaited[:, None] / self.quantum - waiting, 0.0) / self.one_prompt - 1e-9)
        lacking[:, 0] = 0.0  # nothing waits
        # E[min(time of the c-th arrival, steps)] = sum over i < c of P(more than i come) / rate
        fewer = np.arange(int(lacking.max()))
        more = pdtrc(fewer, (steps * per_step)[:, None]) / np.maximum(per_step, math.exp(LEAST_LOG))[:, None]
        held = np.minimum(np.hstack([np.zeros((len(per_step), 1)), np.cumsum(more, axis=1)]), steps)
        held_steps = np.take_along_axis(held, lacking.astype(np.int64), axis=1)
        counts = self.arrivals((steps * per_step)[:, None])[:, 0]
        come = counts @ self.quanta_of_groups[: counts.shape[1]]
        ended = np.tile(np.eye(count), (len(per_step), 1, 1))
        for row, place in zip(*np.nonzero(lacking), strict=True):
            last = min(place + int(lacking[row, place]) * one, count - 1)
            ended[row, place] = 0.0
            ended[row, place, place:last] = come[row, : last - place]
            ended[row, place, last] = max(0.0, 1 - come[row, : last - place].sum())
        # A prompt of which a chunk has run waits no more.
        awaits = left == 0 if rule.cuts_prompts else np.ones(left.shape, np.bool_)
        runs = stationary(np.where(awaits[..., None], until @ ended, until))
        waits = np.einsum("dq,dqr->dr", runs * awaits, until) * (lacking > 0)
        probability = np.hstack([runs, waits])
        probability /= probability.sum(axis=1, keepdims=True)
        step_s = np.repeat(duration_s[:, :1], count, axis=1)
        duration_s, look_s = np.hstack([duration_s, step_s]), np.hstack([duration_s, held_steps * step_s])
        iterations = np.hstack([np.ones_like(runs), held_steps])
        found = self._found(rule, probability, duration_s, look_s, iterations)
        tokens = np.hstack([found.left_tokens[:, :count], np.tile(self.quantum * waiting, (len(runs), 1))])
        return replace(found, left_tokens=tokens, waits=count, awaited_tokens=awaited)

    def _found(
        self, rule: Batching, probability: Floats, duration_s: Floats, look_s: Floats, iterations: Floats
    ) -> Iterations:
        """What the law of the states at looks says of iterations."""
        waiting = np.tile(np.arange(self.duration_s.shape[1]), probability.shape[1] // self.duration_s.shape[1])
        left = np.maximum(0.0, waiting - self.room_tokens[:, None] / self.quantum)
        share = probability * iterations
        share /= share.sum(axis=1, keepdims=True)
        mean_s = (share * duration_s).sum(axis=1)
        decodes = share[:, waiting == 0].sum(axis=1) if rule.policy == "prefill_first" else 1.0
        itl = mean_s / np.maximum(decodes, 1e-9)
        if self.batch[0] == 0 and len(self.batch) > 1:
            itl[0] = itl[1]
        left = left * self.quantum
        return Iterations(self.batch, probability, duration_s, look_s, share, left, self.room_tokens, itl)


def _quantum(demand: Demand, room: float, batch: float, group: float) -> tuple[float, int]:
    """Prompt tokens of one quantum, and the number of states.

    Fine enough to resolve one prompt (a whole number of quanta) and one iteration's room, long enough to hold the
    prompts of a busy spell; three times as long where the token budget nearly binds.
    """
    per_step = batch / demand.decode_steps if demand.decode_steps > 0 else np.inf
    prompts = min(per_step, room / demand.prompt_tokens)
    crowded = per_step * demand.prompt_tokens > 0.8 * room
    span = (8 + 6 * prompts) * (3 if crowded else 1) + 6 * (group - 1)
    if demand.prompts is not None:  # of a law that ends, the longest prompts among those that wait for it
        span = max(span, LONGEST_SPAN * demand.prompts.longest / demand.prompt_tokens)
    finest = 4.0 if group == 1 else 2.0  # quanta per prompt: groups need a long span more than a fine one
    parts = np.ceil(np.clip(64 / span, 1.0, finest)) if span < 64 / 1.5 else 1.0
    parts = max(parts, np.ceil(2 * demand.prompt_tokens / room))
    return demand.prompt_tokens / parts, int(np.clip(np.ceil(span * parts), 48, 160 if group == 1 else 112))


@lru_cache(maxsize=64)
def _quanta_of_prompts(demand: Demand, quantum: float, prompts: int, count: int) -> Floats:
    """P(j prompts are m quanta), shape (prompts, count): the law of a sum of j lognormal prompts, its mean preserved.

    Splitting each length between the two multiples of the quantum next to it gives the second difference of the
    expected excess E[(X - level)+]: exact in the mean, slightly wide in the variance (under quantum^2 / 4).
    """
    if demand.prompts is not None:
        return read_only(demand.prompts.in_quanta(quantum, prompts, count))
    level = quantum * np.arange(-1.0, count + 1)
    number = np.arange(prompts, dtype=float)[:, None]
    excess = _expected_excess(demand.prompt_tokens * number, demand.prompt_cv / np.sqrt(np.maximum(number, 1)), level)
    law = np.maximum(np.diff(excess, 2, axis=1) / quantum, 0.0)
    law[:, -1] += np.maximum(0.0, 1 - law.sum(axis=1))
    return read_only(law)


def _attention_per_token(
    replica: Replica, demand: Demand, tokens: Floats, law: Floats, rate_per_s: float, groups: Groups
) -> Floats:
    """E[A]/tokens of `tokens` prompt tokens that wait together: many tokens at a low rate are one long prompt.

    Of j prompts with n tokens in all, E[sum of squares] is about n^2 (1 + cv^2)/(j + cv^2); j has Poisson weights of
    mean rate x iteration with one prompt, and the steps in which prompts wait for others, plus the rest of a group, and
    the chance of n tokens under the `law` of j.

    What arrives while a long prompt runs is short, but a state knows only how many tokens wait and takes them for
    another long prompt. If more arrived in an iteration than it serves, such states would never end. So a full
    iteration lasts no longer than `WHILE_FULL` of the tokens that it serves take to arrive, or than its mean attention.
    """
    mean, cv = np.full(len(tokens), demand.attention_per_token), demand.prompt_cv
    if cv == 0 or rate_per_s == 0:
        return mean
    one = np.array([demand.prompt_tokens])
    expected = rate_per_s * float(iteration_s(replica, demand, 0 * one, one, one * demand.attention_per_token)[0])
    step_s = float(decode_step_s(replica, demand, np.ones(1))[0])
    expected += rate_per_s * replica.batching.batch_wait_steps * step_s
    expected += groups.mean - 1
    number = np.arange(1, len(law))
    weight = np.exp(number * math.log(expected) - gammaln(number + 1))[:, None] * law[1:]
    share = (weight / (number[:, None] + cv**2)).sum(axis=0) * (1 + cv**2)
    whole = weight.sum(axis=0)
    alone = demand.attention_per_token / (demand.prompt_tokens * (1 + cv**2))  # 1/2, more with cached tokens before
    known = (whole > 1e-12) & (tokens > 0)
    found = np.divide(alone * tokens * share, whole, out=mean.copy(), where=known)
    room = prefill_room(replica, demand, np.zeros(1))
    attention = room * np.array([0.0, demand.attention_per_token])
    bare_s, usual_s = iteration_s(replica, demand, np.zeros(2), room, attention)
    if usual_s > bare_s:
        longest_s = max(usual_s, WHILE_FULL * float(room[0]) / (rate_per_s * demand.prompt_tokens))
        most = demand.attention_per_token * (longest_s - bare_s) / (usual_s - bare_s)
        found = np.where(tokens >= room, np.minimum(found, most), found)
    return np.asarray(found)


def _expected_excess(mean: Floats, cv: Floats, level: Floats) -> Floats:
    """E[(X - level)+] of a lognormal X: mean Phi(u + sigma) - level Phi(u), u = (ln(mean/level) - sigma^2/2)/sigma."""
    sigma = np.sqrt(np.log1p(cv**2))
    certain = np.maximum(mean - level, 0.0)
    if not sigma.any():
        return np.asarray(certain)
    u = (np.log(np.maximum(mean, 1e-300) / np.maximum(level, 1e-300)) - sigma**2 / 2) / sigma
    return np.asarray(np.where((level > 0) & (mean > 0), mean * ndtr(u + sigma) - level * ndtr(u), certain))


def _shifted(law: Floats, left: Floats) -> Floats:
    """Transition matrices (grid, Q, Q): `law` moved up by `left` states, in place; fractions split between two."""
    _shift(law, left)
    law[..., -1] += np.where(left > 0, np.maximum(0.0, 1 - law.sum(axis=-1)), 0.0)
    return law


@compiled_apart
def _shift(law: Floats, left: Floats) -> None:
    """The same without what overflows."""
    rows, states = left.shape
    for row in range(rows):
        for state in range(states):
            if left[row, state] > 0:
                whole = int(left[row, state])
                part, moved = left[row, state] - whole, law[row, state]
                for to in range(states - 1, whole, -1):
                    moved[to] = (moved[to - whole - 1] - moved[to - whole]) * part + moved[to - whole]
                if whole < states:
                    moved[whole] = -moved[0] * part + moved[0]
                moved[: min(whole, states)] = 0.0


def stationary(transition: Floats) -> Floats:
    """Probability vectors x = x P of a stack of transition matrices."""
    balance = np.swapaxes(transition, 1, 2) - np.eye(transition.shape[-1])
    balance[:, -1, :] = 1.0
    right = np.zeros((*transition.shape[:2], 1))
    right[:, -1] = 1.0
    probability = np.maximum(np.linalg.solve(balance, right)[..., 0], 0.0)
    return np.asarray(probability / probability.sum(axis=1, keepdims=True))
