"""How long one iteration lasts and how many prompt tokens it takes: the step law at mean contexts, with speculation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing.queueing.demand import Demand
from sizing.replica import Replica

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DecodeCost:
    """What running sequences add to an iteration: tokens a sequence in the matrix products, seconds a step (the draft's
    passes), seconds a sequence and seconds a context token. The draft's arithmetic is linear in the sequences."""

    tokens: int
    step_s: float
    sequence_s: float
    context_token_s: float

    @classmethod
    def of(cls, replica: Replica) -> DecodeCost:
        """Without speculation one token, and what the law says."""
        law, speculation = replica.law, replica.speculation
        if speculation is None:
            return cls(1, 0.0, law.sequence_s, law.kv_token_s)
        passes, draft = speculation.draft_tokens, speculation.draft
        return cls(
            passes + 1,
            passes * (draft.overhead_s + draft.weights_s),
            law.sequence_s + passes * (draft.sequence_s + draft.token_s),
            law.kv_token_s + passes * draft.kv_token_s,
        )


def iteration_s(replica: Replica, demand: Demand, batch: Floats, tokens: Floats, attention: Floats) -> Floats:
    """Seconds of an iteration with `tokens` (0 = decode only) prompt tokens while `batch` sequences run (elementwise).

    Under prefill_first prompts run alone; otherwise they join the decode step. Contexts have their mean length.
    """
    law, cost = replica.law, DecodeCost.of(replica)
    decoding = batch if replica.batching.policy != "prefill_first" else np.where(tokens > 0, 0.0, batch)
    seconds = law.tokens_s(cost.tokens * decoding + tokens)
    seconds = seconds + (cost.sequence_s + cost.context_token_s * demand.context_tokens) * decoding
    if cost.step_s > 0:
        seconds = seconds + np.where(decoding > 0, cost.step_s, 0.0)
    return np.asarray(seconds + np.where(tokens > 0, law.attention_s * attention + law.prefill_s, 0.0))


def prefill_room(replica: Replica, demand: Demand, batch: Floats) -> Floats:
    """Prompt tokens that one iteration takes while `batch` sequences run, for each value of `batch`.

    Chunks fill the budget to the brim. Whole prompts leave unused, on average, the mean remainder E[n^2]/(2 E[n]) of
    prompts of n tokens (equal prompts: what whole multiples leave); one prompt always fits. No more prompts than slots.
    """
    rule, one = replica.batching, demand.prompt_tokens
    decoding = 0.0 if rule.policy == "prefill_first" else DecodeCost.of(replica).tokens * batch
    room = rule.token_budget - decoding + 0.0 * batch
    if rule.policy != "chunked":
        remainder = one * (1 + demand.prompt_cv**2) / 2
        room = room - remainder if demand.prompt_cv > 0 else np.floor(room / one) * one
        room = np.maximum(room, one)
    return np.asarray(np.clip(room, 1.0, rule.max_batch_size * one))
