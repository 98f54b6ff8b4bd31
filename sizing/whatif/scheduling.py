"""What if the engine formed its batches otherwise, or found part of the prompts in its cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sizing.errors import ScenarioError
from sizing.numbers import percent
from sizing.whatif.setup import Setup
from sizing.workload import Prefix

SCHEDULING_SIGMA = 0.03
REUSE_SIGMA = 0.05


@dataclass(frozen=True, slots=True)
class ChunkedPrefill:
    """Prompts computed in chunks beside the decodes, `chunk` tokens an iteration; 0: whole prompts (chunking off)."""

    chunk: int

    def apply(self, setup: Setup) -> Setup:
        """The policy and the token budget change; the law of an iteration stays."""
        if self.chunk < 0:
            raise ScenarioError(f"chunked_prefill: chunk must be 0 (off) or more tokens, got {self.chunk}")
        replica = setup.candidate.replica
        if self.chunk:
            batching = replace(replica.batching, policy="chunked", token_budget=self.chunk)
            line = f"prompts are computed in chunks of up to {self.chunk:,} tokens an iteration, decodes beside them"
        else:
            longest = math.ceil(setup.question.workload.lengths.isl)
            budget = max(replica.batching.token_budget, longest)
            batching = replace(replica.batching, policy="whole_prompt", token_budget=budget)
            line = f"each prompt is computed whole, in one iteration of up to {budget:,} tokens with decodes beside it"
        if batching == replica.batching:
            return setup.unchanged("batches are formed so already")
        memory = "the KV cache keeps its size, although activations grow and shrink with the chunk"
        return setup.changed(line, memory, sigma=SCHEDULING_SIGMA, replica=replace(replica, batching=batching))


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """At most `size` sequences run at once in a replica."""

    size: int

    def apply(self, setup: Setup) -> Setup:
        """The limit changes; the law of an iteration stays."""
        replica = setup.candidate.replica
        if self.size == replica.batching.max_batch_size:
            return setup.unchanged(f"the limit is already {self.size} sequences")
        batching = replace(replica.batching, max_batch_size=self.size)
        line = f"at most {self.size} sequences at once, before {replica.batching.max_batch_size}; the law stays"
        return setup.changed(line, sigma=SCHEDULING_SIGMA, replica=replace(replica, batching=batching))


@dataclass(frozen=True, slots=True)
class KvReuse:
    """The first `tokens` of a prompt are found in the KV cache with chance `hit_rate` (enable_kv_cache_reuse)."""

    tokens: int
    hit_rate: float = 1.0

    def apply(self, setup: Setup) -> Setup:
        """The workload gets a shared prefix; found tokens cost no arithmetic and no memory of their own."""
        prefix, workload = Prefix(self.tokens, self.hit_rate), setup.question.workload
        if self.tokens >= workload.lengths.isl:
            raise ScenarioError(
                f"kv_reuse: {self.tokens} tokens are not fewer than the prompt's {workload.lengths.isl:g}"
            )
        if not self.tokens * self.hit_rate or prefix == workload.prefix:
            return setup.unchanged("no more of the prompts is found in the cache")
        changed = setup.changed(
            f"the first {self.tokens:,} tokens of {percent(self.hit_rate)} of the prompts are found in the KV cache: "
            "not computed again, no memory of their own, but attended to",
            "the cache never drops the shared part, and routing finds it on every replica",
            sigma=REUSE_SIGMA,
        )
        question = replace(setup.question, workload=replace(workload, prefix=prefix))
        return replace(changed, question=question)
