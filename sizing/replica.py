"""One replica: an engine with its iteration-time law and the rules by which it forms batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sizing.errors import ScenarioError
from sizing.steptime import KNEE, StepLaw

KvPolicy = Literal["guaranteed_no_evict", "max_utilization"]
KV_POLICIES: tuple[KvPolicy, ...] = get_args(KvPolicy)
Policy = Literal["chunked", "prefill_first", "whole_prompt", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Batching:
    """How an engine forms its iterations.

    `policy`: *chunked* mixes decodes with prompt chunks up to `token_budget` tokens an iteration; *whole_prompt* mixes
    decodes with whole prompts up to that budget; *prefill_first* runs waiting prompts alone, then decodes;
    *static* admits a batch only when the last one has finished entirely (TensorRT-LLM's V1); its prompts are `padded`
    to the longest, or packed one after the other (an engine built with `remove_input_padding`).
    `max_batch_size` sequences run at once; `kv_tokens` tokens fit in the KV cache, handed out in blocks of
    `kv_block_tokens`. `kv_policy`: *guaranteed_no_evict* admits a request when its prompt and the most it may generate
    fit: `max_tokens` output tokens (0: the engine is told the true output length); *max_utilization* admits while the
    prompt fits, and when the cache is full pauses the request admitted last, whose tokens are computed again later.
    `max_waiting` requests may wait in line, others are rejected (0: no limit).
    """

    policy: Policy = "chunked"
    max_batch_size: int = 256
    token_budget: int = 8192
    kv_tokens: int = 10**9
    kv_policy: KvPolicy = "guaranteed_no_evict"
    max_tokens: int = 0
    kv_block_tokens: int = 1
    max_waiting: int = 0
    padded: bool = True

    def __post_init__(self) -> None:
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


FREE = StepLaw(0.0, 0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative decoding: a draft proposes `draft_tokens` tokens a step, the model checks them all in one pass.

    Each draft token is accepted with chance `acceptance` if all before it were; the model adds one of its own. A step
    yields (1 - a^(k+1)) / (1 - a) tokens on average (Leviathan, Kalman, Matias 2023, arXiv 2211.17192) and puts
    k + 1 tokens a sequence through the matrix products. `draft`: law of the draft's own passes, k of them a step (all
    zero: the proposals are free).
    """

    draft_tokens: int
    acceptance: float
    draft: StepLaw = FREE

    def __post_init__(self) -> None:
        if self.draft_tokens < 1:
            raise ScenarioError(f"draft_tokens must be at least 1, got {self.draft_tokens}")
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
    from memory-bound to compute-bound (the law has 4). `jitter`: cv of a lognormal factor on every iteration.
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
