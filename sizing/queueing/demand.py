"""What requests ask of an engine: moments of their lengths, and how many of them fit at once."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sizing.errors import ScenarioError
from sizing.replica import Replica
from sizing.workload import Lengths

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Demand:
    """Moments of the length law that the queue needs; s = OSL - 1 is the number of decode steps of a request.

    A sequence seen *while decoding* is a length-biased one: long outputs are seen for longer. Hence
    `context_tokens` = E[s (ISL + (s - 1)/2)] / E[s], the mean context of a running sequence, `context_sd` its standard
    deviation between sequences, and `reserved_tokens` = E[s (ISL + OSL)] / E[s], the KV cache it holds reserved.
    `attention_per_token` = E[ISL^2] / (2 E[ISL]), the attention sum A of the step law per prompt token.
    `overlap` = E[min(s, s')] / E[s] for two requests: 1 for equal lengths, 1/2 for exponential ones.
    """

    prompt_tokens: float
    prompt_cv: float
    decode_steps: float
    decode_steps_cv: float
    context_tokens: float
    context_sd: float
    reserved_tokens: float
    attention_per_token: float
    overlap: float


@lru_cache(maxsize=256)
def demand_of(lengths: Lengths) -> Demand:
    """Moments of `lengths` by quadrature over the normal density: rounding to tokens included; error below 1e-4."""
    isl, weight_in = _token_law(lengths.isl, lengths.isl_cv)
    osl, weight_out = _token_law(lengths.osl, lengths.osl_cv)
    steps = osl - 1
    isl_mean, isl_square = float(weight_in @ isl), float(weight_in @ isl**2)
    steps_mean, steps_square = float(weight_out @ steps), float(weight_out @ steps**2)
    seen = weight_out * steps / steps_mean if steps_mean > 0 else weight_out
    age = (steps - 1) / 2
    context_variance = isl_square - isl_mean**2 + float(seen @ (age**2 + steps**2 / 12) - (seen @ age) ** 2)
    return Demand(
        prompt_tokens=isl_mean,
        prompt_cv=math.sqrt(max(isl_square / isl_mean**2 - 1, 0)),
        decode_steps=steps_mean,
        decode_steps_cv=math.sqrt(max(steps_square / steps_mean**2 - 1, 0)) if steps_mean > 0 else 0.0,
        context_tokens=isl_mean + float(seen @ age),
        context_sd=math.sqrt(max(context_variance, 0.0)),
        reserved_tokens=isl_mean + float(seen @ osl),
        attention_per_token=isl_square / (2 * isl_mean),
        overlap=_overlap(steps, weight_out),
    )


def _overlap(steps: Floats, weight: Floats) -> float:
    """E[min(s, s')] / E[s] of two independent draws, by E[min] = sum over t of P(s > t)^2; `steps` ascending."""
    reached = np.cumsum(weight[::-1])[::-1]
    increments = np.diff(steps, prepend=0.0)
    whole = float(increments @ reached)
    return float(increments @ reached**2) / whole if whole > 0 else 1.0


def _token_law(mean: float, cv: float) -> tuple[Floats, Floats]:
    """Token counts and their probabilities, as `Lengths.sample` draws them."""
    z = np.linspace(-8, 8, 4001) if cv > 0 else np.zeros(1)
    weight = np.exp(-z * z / 2)
    return lognormal_tokens(mean, cv, z), weight / weight.sum()


def lognormal_tokens(mean: float, cv: float, normal: Floats) -> Floats:
    """Whole tokens (at least 1) of a lognormal law at the standard normal deviates `normal`."""
    sigma = math.sqrt(math.log1p(cv * cv))
    return np.maximum(1.0, np.rint(mean * np.exp(sigma * normal - sigma * sigma / 2)))


def slots(replica: Replica, lengths: Lengths) -> int:
    """Sequences that run at once: the least of `max_batch_size` and what the KV cache holds.

    With guaranteed completion a sequence reserves ISL + OSL tokens; in steady state the running ones are length-biased,
    so KV / E[s (ISL + OSL)] E[s] of them fit, less half a mean request that does not fit any more when lengths vary.

    Raises ScenarioError when not even one mean request fits.

    >>> from sizing.replica import Batching
    >>> from sizing.steptime import StepLaw
    >>> law = StepLaw(weights_s=5e-3, overhead_s=0, token_s=0, sequence_s=0, kv_token_s=0)
    >>> slots(Replica(law, Batching(kv_tokens=100_000)), Lengths(isl=1500, osl=500))
    50
    """
    rule = replica.batching
    one = lengths.isl + lengths.osl
    if rule.kv_tokens < one:
        raise ScenarioError(
            f"a request of {one:g} tokens (ISL + OSL) does not fit the KV cache of {rule.kv_tokens} tokens; "
            "use shorter requests or more GPU memory per replica"
        )
    unusable = 0.0 if lengths.fixed else one / 2
    by_memory = math.floor((rule.kv_tokens - unusable) / demand_of(lengths).reserved_tokens)
    return max(1, min(rule.max_batch_size, by_memory))
