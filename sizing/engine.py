"""The iteration-time law: how long one forward pass of the engine takes, given what is in the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np

from sizing.errors import ScenarioError
from sizing.numbers import Floats

KNEE = 4.0
"""Sharpness of a dense model's change from memory-bound to compute-bound; 4 follows measured curves closely."""
LEAST_EXPONENT = -40.0
"""Its exp is below the rounding error of 1; numbers next to 0 slow a processor down."""


BEND_KNOTS = np.log(2.0) * np.arange(23) / 2
"""Logarithms of the batches, half octaves from 1 to 2,048 sequences, between which a bend is interpolated."""
BEND_REACH = math.log(4.0)
"""Distance in ln(sequences) over which a bend fades to 1/e of what was measured."""


@dataclass(frozen=True, slots=True)
class Bend:
    """How far an engine's times depart from its law at the batches where they were measured, as logarithms.

    Engines change kernels, tiles and captured graphs with the batch, which no smooth law follows. An iteration lasts
    exp(g(n)) times as long as the law says: without a prompt n is the number of sequences that decode, and g(n) at the
    batches `sequences` is `decode`; with prompts n counts the slots taken, and g is `prompt` there. Between and beyond
    them g is the mean of a Gaussian process with the covariance exp(-|ln n - ln n'| / BEND_REACH) (Rasmussen and
    Williams 2006, section 2.2): it joins the values and fades, so that far from all measurements the law stands alone.

    >>> bend = Bend((1, 64), decode=(0.0, 0.10), prompt=(0.0, 0.0))
    >>> decode = np.exp(bend.tables[0])                  # factors at 1, 1.41, 2, 2.83, ... sequences
    >>> [round(float(factor), 3) for factor in decode[[0, 6, 12, 16, 20]]]     # at 1, 8, 64, 256 and 1,024
    [1.0, 1.021, 1.105, 1.037, 1.014]
    """

    sequences: tuple[float, ...] = ()
    decode: tuple[float, ...] = ()
    prompt: tuple[float, ...] = ()

    @property
    def tables(self) -> Floats:
        """g at BEND_KNOTS, shape (2, 23): of decode steps, and of iterations with a prompt."""
        return _bend_tables(self)


def bend_covariance(logs: Floats, others: Floats) -> Floats:
    """Correlation of a bend between batches, from the logarithms of their sequences: shape (logs, others)."""
    return np.asarray(np.exp(-np.abs(np.subtract.outer(logs, others)) / BEND_REACH))


@lru_cache(maxsize=1024)
def _bend_tables(bend: Bend) -> Floats:
    reach = _reach(bend.sequences)
    return np.asarray(np.stack([reach @ np.array(bend.decode), reach @ np.array(bend.prompt)]))


@lru_cache(maxsize=256)
def _reach(sequences: tuple[float, ...]) -> Floats:
    """Weights that give g at BEND_KNOTS from g at these batches, shape (23, batches)."""
    at = np.log(sequences)
    return np.asarray(bend_covariance(BEND_KNOTS, at) @ np.linalg.inv(bend_covariance(at, at)))


STRAIGHT = Bend()
MOST_BUSY = 0.9
"""Share of the time that a front end is busy above which it sends several tokens of a sequence together."""


@dataclass(frozen=True, slots=True)
class StepLaw:
    """Eight coefficients, in seconds, of the time of one engine iteration.

    An iteration decodes `d` sequences (one token each) whose contexts hold `C` tokens in the KV cache, and
    prefills `P` prompt tokens. With n = d + P tokens through the matrix products:

        T = overhead + knee(n) + sequence d + kv_token C                                   (no prefill)
        T = overhead + knee(n) + sequence d + kv_token C + attention A + prefill           (P > 0)
        knee(n) = (weights^k + (token n)^k)^(1/k),     k = 4; of an MoE model k = 1

    `weights` is the time to read the weights once (memory-bound floor), `token` the arithmetic of one token
    (compute-bound slope); the knee joins them, as in a roofline. In an MoE model they add up: products of experts, few
    tokens each, still wait for weights where those of attention already wait for arithmetic, and one follows the other.
    Its kernels' times are straight lines in n, up to 16,384 tokens.
    A = sum of p (s + p/2) over the prompt chunks of p tokens that follow s tokens already cached: the quadratic part of
    prefill attention.
    `request_s` is the time that every request pays once outside the iterations: network, tokenizer, first
    detokenization. `send_s` is the time that the server's front end takes to send one token; see `sending_s`.

    Two shares say how much of the weights few tokens need: n tokens read weights x (1 - unread x unread_decay^(n-1)).
    An MoE model with k of E experts per token has unread_decay = 1 - k/E; an engine with a faster kernel for a single
    sequence has an unread share and no decay (0). With unread = 0, the default, all weights are always read.

    `bend` holds a measured engine's remaining departure from the law, by batch; `STRAIGHT` (none) unless it was fitted.

    Linear laws of this family reproduce measured per-token times within 1-5 % inside the calibrated range and
    lose up to 20 % at twice the highest calibrated concurrency: hence the basis "extrapolated" outside it.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> round(law.decode_s(32, 32 * 1000) * 1e3, 2)      # milliseconds for one decode step of 32 sequences
    7.69
    """

    weights_s: float
    overhead_s: float
    token_s: float
    sequence_s: float
    kv_token_s: float
    attention_s: float = 0.0
    prefill_s: float = 0.0
    request_s: float = 0.0
    unread: float = 0.0
    unread_decay: float = 0.0
    send_s: float = 0.0
    bend: Bend = STRAIGHT

    @property
    def has_experts(self) -> bool:
        """True for an MoE model: the more tokens, the more of its weights are read."""
        return self.unread_decay > 0

    def weights_of_s(self, tokens: float | Floats) -> Floats:
        """Seconds to read the weights that `tokens` tokens (1 or more) need (elementwise; one value if always all)."""
        if self.unread == 0:
            return np.asarray(self.weights_s)
        beyond_one = np.maximum(np.asarray(tokens, float) - 1, 0.0)
        if self.unread_decay == 0:
            return np.where(beyond_one > 0, self.weights_s, self.weights_s * (1 - self.unread))
        exponent = np.maximum(beyond_one * math.log(self.unread_decay), LEAST_EXPONENT)
        return np.asarray(self.weights_s * (1 - self.unread * np.exp(exponent)), float)

    def tokens_s(self, tokens: float | Floats) -> Floats:
        """Seconds of the matrix products of `tokens` tokens and the fixed overhead (elementwise).

        A dense model's knee of sharpness KNEE = 4 by squares and square roots, three times as fast as powers.
        """
        arithmetic_s = self.token_s * np.asarray(tokens, float)
        if self.has_experts:
            return np.asarray(self.overhead_s + self.weights_of_s(tokens) + arithmetic_s, float)
        fourth_powers = np.square(np.square(self.weights_of_s(tokens))) + np.square(np.square(arithmetic_s))
        return np.asarray(self.overhead_s + np.sqrt(np.sqrt(fourth_powers)), float)

    def decode_s(self, batch: float, kv_tokens: float) -> float:
        """Seconds of one decode step of `batch` sequences holding `kv_tokens` tokens in all."""
        return float(self.decodes_s(batch, kv_tokens))

    def decodes_s(self, batch: float | Floats, kv_tokens: float | Floats) -> Floats:
        """The same, elementwise."""
        straight_s = self.tokens_s(batch) + self.sequence_s * batch + self.kv_token_s * kv_tokens
        return np.asarray(straight_s * self.bent(batch))

    def mixed_s(self, batch: float, kv_tokens: float, prefill_tokens: float, attention: float) -> float:
        """Seconds of an iteration that decodes `batch` sequences and prefills `prefill_tokens` (> 0) tokens."""
        return float(self.mixes_s(batch, kv_tokens, prefill_tokens, attention))

    def mixes_s(
        self,
        batch: float | Floats,
        kv_tokens: float | Floats,
        prefill_tokens: float | Floats,
        attention: float | Floats,
    ) -> Floats:
        """The same, elementwise."""
        dense = self.tokens_s(batch + prefill_tokens) + self.sequence_s * batch + self.kv_token_s * kv_tokens
        return np.asarray((dense + self.attention_s * attention + self.prefill_s) * self.bent_by_prompts(batch + 1))

    def bent(self, sequences: float | Floats) -> Floats:
        """Factor on a decode step of `sequences` sequences, 1 without a bend (elementwise)."""
        return self._bent(0, sequences)

    def bent_by_prompts(self, sequences: float | Floats) -> Floats:
        """Factor on an iteration with prompt tokens and `sequences` slots taken, 1 without a bend (elementwise)."""
        return self._bent(1, sequences)

    def _bent(self, table: int, sequences: float | Floats) -> Floats:
        if not self.bend.sequences:
            return np.ones(np.shape(sequences))
        logs = np.log(np.maximum(np.asarray(sequences, float), 1.0))
        return np.asarray(np.exp(np.interp(logs, BEND_KNOTS, self.bend.tables[table])))

    def prefill_alone_s(self, isl: float) -> float:
        """Seconds to prefill one prompt of `isl` tokens on an idle engine."""
        return self.mixed_s(0, 0, isl, isl * isl / 2)

    def sending_s(self, sequences: float | Floats, tokens_per_s: float | Floats) -> Floats:
        """Seconds that a request loses in the server's front end, if it gets its first token in an iteration of
        `sequences` sequences, itself included, and `tokens_per_s` are sent (elementwise).

        The front end (in vLLM one Python process: detokenizer, event loop, server-sent events) sends the tokens of an
        iteration one after another, `send_s` each, and is busy a share `send_s` x `tokens_per_s` of the time. A request
        waits for its turn twice, to come in and with its first token, each time like a customer of a queue with batches
        of n = `sequences`, about n send_s / 2 / (1 - busy) (M^X/D/1; Chaudhry and Templeton 1983, *A First Course in
        Bulk Queues*). A front end that falls behind sends several tokens of a sequence at once: busy stays at MOST_BUSY
        or below, and the front end does not limit the throughput.

        >>> law = StepLaw(5e-3, 0.0, 23e-6, 19e-6, 26e-9, send_s=0.15e-3)
        >>> [round(1e3 * float(law.sending_s(n, each)), 1) for n, each in ((1, 200), (47, 3700), (128, 5040))]      # ms
        [0.2, 15.8, 78.7]
        """
        busy = np.minimum(self.send_s * np.asarray(tokens_per_s, float), MOST_BUSY)
        return np.asarray(self.send_s * np.asarray(sequences, float) / (1 - busy))

    @property
    def seconds(self) -> tuple[float, ...]:
        """The eight coefficients in the order of COEFFICIENTS."""
        return tuple(float(getattr(self, name)) for name in COEFFICIENTS)

    def scaled(self, factor: float) -> StepLaw:
        """The law of an engine whose every time is `factor` times as long."""
        return replace(self, **{name: factor * getattr(self, name) for name in COEFFICIENTS})

    def with_unread(self, unread: float) -> StepLaw:
        """The law of an MoE model with the share `unread` (above 0) and all times as they are.

        Overhead and what is read for any token are one constant of an iteration, of which nothing tells the parts.
        Where the share would leave no overhead, it is larger.

        >>> law = StepLaw(20e-3, 5e-3, 30e-6, 0.0, 0.0, unread=0.6, unread_decay=0.9)
        >>> other = law.with_unread(0.8)
        >>> [round(1e3 * seconds, 6) for seconds in (other.weights_s, other.overhead_s, float(other.tokens_s(1)))]
        [15.0, 10.0, 13.03]
        """
        by_experts_s = self.weights_s * self.unread
        all_s = self.weights_s + self.overhead_s
        weights_s = min(by_experts_s / unread, all_s)
        share = by_experts_s / weights_s if weights_s > 0 else unread
        return replace(self, weights_s=weights_s, overhead_s=all_s - weights_s, unread=share)

    def with_values(self, **seconds: float) -> StepLaw:
        """A copy with some coefficients replaced; the bend stays."""
        changes: Any = seconds
        return replace(self, **changes)


COEFFICIENTS: tuple[str, ...] = tuple(
    field.name for field in fields(StepLaw) if field.name.endswith("_s") and field.name != "send_s"
)
"""The eight times of every law; `send_s` and the two shares are not among them."""

# --- One replica: an engine with its iteration-time law and the rules by which it forms batches

KvPolicy = Literal["guaranteed_no_evict", "max_utilization"]
KV_POLICIES: tuple[KvPolicy, ...] = get_args(KvPolicy)
Policy = Literal["chunked", "prefill_first", "whole_prompt", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)
UNLIMITED_KV_TOKENS = 10**9
"""A KV cache of unknown size: practically unlimited."""
MOST_LOOKAHEAD = 4.0
"""Iterations: engines in use fix one ahead; a number well beyond means that something else makes requests wait."""
MOST_INTERVAL = 10_000
"""Decode steps: published commands have 10 to 30."""


@dataclass(frozen=True, slots=True)
class Batching:
    """How an engine forms its iterations.

    `policy`: *chunked* mixes decodes with prompt chunks up to `token_budget` tokens an iteration; *whole_prompt* mixes
    decodes with whole prompts up to that budget, and one without room waits, unless no budget would hold it or
    `budget_guessed`; *prefill_first* runs waiting prompts alone, up to that budget and the
    last one cut to fill it, as SGLang does, and decodes when none is left;
    *static* admits a batch only when the last one has finished entirely (TensorRT-LLM's V1); its prompts are `padded`
    to the longest, or packed one after the other (an engine built with `remove_input_padding`).
    `max_batch_size` sequences run at once; `kv_tokens` tokens fit in the KV cache, allocated in blocks of
    `kv_block_tokens`. `kv_policy`: *guaranteed_no_evict* admits a request when its prompt and the most it may generate
    fit: `max_tokens` output tokens (0: the engine knows the true output length); *max_utilization* admits while the
    prompt fits, and when the cache is full pauses the request admitted last, whose tokens are computed again later.
    `max_waiting` requests may wait in the queue, others are rejected (0: no limit).
    `lookahead_steps` (0 to MOST_LOOKAHEAD): how many iterations before its start the contents of an iteration are
    fixed. 0 is a scheduler that waits for the tokens of one iteration before it forms the next; 1 one that submits the
    next iteration when the current one starts (asynchronous scheduling, overlap scheduler): a request that arrives at a
    busy engine then waits for one more iteration. 0.3: the next iteration is fixed when 30 % of the current one remain.
    An idle engine starts on a request at once, and static batches are formed when the last one is done, regardless of
    this value.
    `receive_interval_steps` (1 to MOST_INTERVAL): decode steps from one look at newly arrived requests to the next, as
    SGLang's `--scheduler-recv-interval` sets it. The engine also looks after every iteration with prompts, and when it
    has nothing to run. A request that it has seen waits for a slot and memory alone; static batches have no interval.
    `batch_wait_steps` (0 to MOST_INTERVAL): prompts that could run beside decodes wait for others, at most so many
    decode steps since prompts last ran, and not once they and the decodes make up `batch_wait_ratio` of the token
    budget, or a chunk of one has run: TensorRT-LLM's `batch_wait_timeout_iters` and `batch_wait_max_tokens_ratio`.
    With nothing to decode none wait. 0, the usual value: they start at once. Of *chunked* and *whole_prompt*.
    `prefix_cache`: blocks of `kv_block_tokens` that no request holds are kept, while memory lasts, for the next turn of
    their session (see Sessions; vLLM's blocks have 16 tokens). It requires a policy other than *static*. Requests
    without a session have a Prefix, which they are set to find or not.
    `budget_guessed`: a fit assumed the token budget. Whoever starts an engine leaves room for prompts beside the
    decodes, so the first prompt of an iteration then runs whole beside them, as on an engine with such a budget.
    """

    policy: Policy = "chunked"
    max_batch_size: int = 256
    token_budget: int = 8192
    kv_tokens: int = UNLIMITED_KV_TOKENS
    kv_policy: KvPolicy = "guaranteed_no_evict"
    max_tokens: int = 0
    kv_block_tokens: int = 1
    max_waiting: int = 0
    padded: bool = True
    lookahead_steps: float = 0.0
    receive_interval_steps: int = 1
    batch_wait_steps: int = 0
    batch_wait_ratio: float = 1.0
    prefix_cache: bool = False
    budget_guessed: bool = False

    def __post_init__(self) -> None:
        if self.prefix_cache and self.policy == "static":
            raise ScenarioError("a prefix cache takes in-flight batching, got static")
        if not 1 <= self.receive_interval_steps <= MOST_INTERVAL:
            raise ScenarioError(
                f"receive_interval_steps must be from 1 to {MOST_INTERVAL}, got {self.receive_interval_steps}"
            )
        if not 0 <= self.batch_wait_steps <= MOST_INTERVAL:
            raise ScenarioError(f"batch_wait_steps must be from 0 to {MOST_INTERVAL}, got {self.batch_wait_steps}")
        if not 0 < self.batch_wait_ratio <= 1:
            raise ScenarioError(f"batch_wait_ratio must be a share from 0 to 1, got {self.batch_wait_ratio:g}")
        if self.batch_wait_steps and self.policy not in ("chunked", "whole_prompt"):
            raise ScenarioError(
                "prompts that run beside decodes may wait for others (batch_wait_steps), not those of the policy "
                f"{self.policy}: choose another engine or policy"
            )
        if self.batch_wait_steps and self.receive_interval_steps > 1:
            raise ScenarioError("no engine has both a receive interval and a wait of prompts for others: give one")
        if not 0 <= self.lookahead_steps <= MOST_LOOKAHEAD:
            raise ScenarioError(f"lookahead_steps must be from 0 to {MOST_LOOKAHEAD:g}, got {self.lookahead_steps:g}")
        if self.kv_policy not in KV_POLICIES:
            raise ScenarioError(f"KV policy {self.kv_policy!r} is not one of {', '.join(KV_POLICIES)}")
        for name in ("max_tokens", "max_waiting"):
            if getattr(self, name) < 0:
                raise ScenarioError(f"{name} must be 0 (no limit) or more, got {getattr(self, name)}")
        if self.policy not in POLICIES:
            raise ScenarioError(f"batching policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        for name in ("max_batch_size", "token_budget", "kv_tokens", "kv_block_tokens"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"{name} must be at least 1, got {getattr(self, name)}")

    @property
    def cuts_prompts(self) -> bool:
        """True if a prompt that the token budget does not hold is computed in chunks."""
        return self.policy in ("chunked", "prefill_first")


MOST_DRAFT_TOKENS = 1000
"""Drafts in use have 1 to 10."""
FREE = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: a draft proposes `draft_tokens` tokens a step, the model checks them all in one pass.

    Each draft token is accepted with probability `acceptance` if all before it were; the model adds one of its own. A
    step yields (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan, Kalman, Matias 2023, arXiv 2211.17192) and puts
    k + 1 tokens per sequence through the matrix products. `draft`: law of the draft's own passes, k of them per step
    (all zero: the proposals are free).
    """

    draft_tokens: int
    acceptance: float
    draft: StepLaw = FREE

    def __post_init__(self) -> None:
        if not 1 <= self.draft_tokens <= MOST_DRAFT_TOKENS:
            raise ScenarioError(f"draft_tokens must be from 1 to {MOST_DRAFT_TOKENS}, got {self.draft_tokens:,}")
        if not 0 <= self.acceptance <= 1:
            raise ScenarioError(f"acceptance must be a share from 0 to 1, got {self.acceptance:g}")

    @property
    def tokens_per_step(self) -> float:
        """Mean tokens that one step yields for a sequence, long outputs."""
        k, a = self.draft_tokens, self.acceptance
        return float(k + 1) if a == 1 else (1 - a ** (k + 1)) / (1 - a)


@dataclass(frozen=True, slots=True)
class Roughness:
    """How an engine departs from its law; known to the simulator only, for studies of what a wrong law costs.

    `padding`: decode batches are computed as the next multiple of it (CUDA graphs). `knee`: sharpness of the change
    from memory-bound to compute-bound of a dense model (the law has 4). `jitter`: cv of a lognormal factor on every
    iteration.
    """

    padding: int = 1
    knee: float = KNEE
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if self.padding < 1 or self.knee <= 0 or self.jitter < 0:
            raise ScenarioError("padding must be 1 or more, knee above 0, jitter 0 or more")


@dataclass(frozen=True, slots=True)
class Replica:
    """A law and a batching rule: everything the queue and the simulator need to know of an engine."""

    law: StepLaw
    batching: Batching = Batching()
    speculation: Speculation | None = None
    rough: Roughness = Roughness()

    @property
    def lane_tokens(self) -> int:
        """Tokens that a running sequence has in an iteration: one, and what a draft proposes."""
        return 1 if self.speculation is None else self.speculation.draft_tokens + 1

    @property
    def draft_s(self) -> tuple[float, float, float]:
        """Seconds that the draft's passes add to a decode step: once, for each sequence, for each context token. Their
        arithmetic is taken as linear in the sequences."""
        if self.speculation is None:
            return 0.0, 0.0, 0.0
        passes, law = self.speculation.draft_tokens, self.speculation.draft
        return (
            passes * (law.overhead_s + law.weights_s),
            passes * (law.sequence_s + law.token_s),
            passes * law.kv_token_s,
        )

    def with_queue(self, most: int) -> Replica:
        """The replica with at most this many queued requests (0: no limit), or fewer if it has a lower limit itself."""
        limits = [limit for limit in (most, self.batching.max_waiting) if limit]
        if min(limits, default=0) == self.batching.max_waiting:
            return self
        return replace(self, batching=replace(self.batching, max_waiting=min(limits)))
