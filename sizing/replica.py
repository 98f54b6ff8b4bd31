"""One replica: an engine with its iteration-time law and the rules by which it forms batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from sizing.errors import ScenarioError
from sizing.steptime import StepLaw

Policy = Literal["chunked", "prefill_first", "whole_prompt", "static"]
POLICIES: tuple[Policy, ...] = get_args(Policy)


@dataclass(frozen=True, slots=True)
class Batching:
    """How an engine forms its iterations.

    `policy`: *chunked* mixes decodes with prompt chunks up to `token_budget` tokens an iteration; *whole_prompt* mixes
    decodes with whole prompts up to that budget; *prefill_first* runs waiting prompts alone, then decodes;
    *static* admits a batch only when the last one has finished entirely (TensorRT-LLM's V1).
    `max_batch_size` sequences run at once; `kv_tokens` tokens fit in the KV cache, reserved to the request's full
    length on admission (guaranteed_no_evict).
    """

    policy: Policy = "chunked"
    max_batch_size: int = 256
    token_budget: int = 8192
    kv_tokens: int = 10**9

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ScenarioError(f"batching policy {self.policy!r} is not one of {', '.join(POLICIES)}")
        for name in ("max_batch_size", "token_budget", "kv_tokens"):
            if getattr(self, name) < 1:
                raise ScenarioError(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True)
class Replica:
    """A law and a batching rule: everything the queue and the simulator need to know of an engine."""

    law: StepLaw
    batching: Batching = Batching()
