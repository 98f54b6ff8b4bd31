"""Where a law is bound by memory and where by arithmetic, and what an iteration's time is spent on."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import NamedTuple

from sizing.steptime import KNEE, StepLaw


def knee_tokens(law: StepLaw) -> float:
    """Tokens in an iteration at which reading the weights takes as long as the arithmetic: weights_s / token_s.

    The ridge of the roofline (Williams, Waterman, Patterson 2009). Infinite for a law without arithmetic.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> round(knee_tokens(law))
    240
    """
    return law.weights_s / law.token_s if law.token_s > 0 else float("inf")


def is_compute_bound(law: StepLaw, tokens: float) -> bool:
    """True when the matrix products of `tokens` tokens (decodes and prompts of an iteration) wait for arithmetic."""
    return tokens > knee_tokens(law)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares of an iteration's time, adding up to 1.

    `weights` and `arithmetic` divide the matrix products: where the two limits meet, by their k-th powers, as the law
    joins them. `kv`: reading the cache. `sequences`: what each sequence costs beside. `prefill`: attention among the
    prompt's tokens and the fixed cost of an iteration with a prompt.
    """

    overhead: float
    weights: float
    arithmetic: float
    kv: float
    sequences: float
    prefill: float

    @property
    def bound(self) -> str:
        """What takes the most time: a field's name."""
        return max(self.__dataclass_fields__, key=lambda name: float(getattr(self, name)))


def shares(law: StepLaw, batch: float, context: float, prompt_tokens: float = 0.0) -> Shares:
    """What an iteration spends its time on: `batch` sequences with `context` cached tokens each, and a new prompt of
    `prompt_tokens` (0: decodes only). Either `batch` or `prompt_tokens` must be above 0.

    >>> law = StepLaw(weights_s=4.8e-3, overhead_s=1e-3, token_s=20e-6, sequence_s=10e-6, kv_token_s=49e-9)
    >>> shares(law, batch=1, context=1000).bound, shares(law, batch=256, context=4000).bound
    ('weights', 'kv')
    """
    tokens = batch + prompt_tokens
    weights_s, arithmetic_s = float(law.weights_of_s(tokens)), law.token_s * tokens
    powers = weights_s**KNEE + arithmetic_s**KNEE
    products_s = powers ** (1 / KNEE)
    by_weights, by_arithmetic = (
        products_s * part_s**KNEE / powers if powers > 0 else 0.0 for part_s in (weights_s, arithmetic_s)
    )
    prefill_s = law.attention_s * prompt_tokens**2 / 2 + law.prefill_s if prompt_tokens > 0 else 0.0
    parts = Shares(
        law.overhead_s,
        by_weights,
        by_arithmetic,
        law.kv_token_s * batch * context,
        law.sequence_s * batch,
        prefill_s,
    )
    total_s = sum(astuple(parts))
    return Shares(*(part / total_s for part in astuple(parts)))


class Regime(NamedTuple):
    """Where an engine works at a batch of `batch` sequences of `context` cached tokens each.

    `decode`: shares of an iteration that decodes them; `prompt`: of one that takes `prompt_tokens` of a prompt as well.
    `compute_bound`: whether the matrix products of a decode wait for arithmetic, and of one with a prompt.
    """

    batch: int
    context: float
    prompt_tokens: float
    knee_tokens: float
    decode: Shares
    prompt: Shares
    decode_compute_bound: bool
    prompt_compute_bound: bool


def regime(law: StepLaw, batch: int, isl: float, osl: float, token_budget: int) -> Regime:
    """The regime at a batch (1 or more) of requests with these mean lengths, halfway through their answers.

    A prompt is taken whole if an iteration has room for it beside the decodes (`token_budget` tokens in all).
    """
    context = isl + osl / 2
    prompt_tokens = max(1.0, min(isl, token_budget - batch))
    return Regime(
        batch,
        context,
        prompt_tokens,
        knee_tokens(law),
        shares(law, batch, context),
        shares(law, batch, context, prompt_tokens),
        is_compute_bound(law, batch),
        is_compute_bound(law, batch + prompt_tokens),
    )
