"""How much kernel timings say that decode and prefill steps change between two ways to run a model on a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sizing.errors import EstimateUnavailable
from sizing.estimate.shipped import shipped
from sizing.estimate.timed import Timed
from sizing.steptime import StepLaw
from sizing.whatif.setup import Sheet
from sizing.workload import Lengths

BATCHES = (1, 8, 32, 128)
CHUNK = 2048


@dataclass(frozen=True, slots=True)
class Ratios:
    """Times after over times before, of decode steps and of what prompts add."""

    decode: float
    prefill: float

    def of(self, law: StepLaw) -> StepLaw:
        """The law with what decodes pay scaled by one ratio and what prompts pay by the other."""
        return law.with_values(
            weights_s=law.weights_s * self.decode,
            overhead_s=law.overhead_s * self.decode,
            sequence_s=law.sequence_s * self.decode,
            kv_token_s=law.kv_token_s * self.decode,
            token_s=law.token_s * self.prefill,
            attention_s=law.attention_s * self.prefill,
            prefill_s=law.prefill_s * self.prefill,
        )


def timed_ratios(before: Sheet, after: Sheet, lengths: Lengths) -> Ratios | None:
    """Ratios of the shipped day-zero laws at these lengths; None unless one engine was timed both ways."""
    one, other = _timed(before), _timed(after)
    if one is None or other is None or one.backend != other.backend or before.pp != after.pp:
        return None
    context, isl = lengths.isl + lengths.osl / 2, lengths.isl

    def log_ratio(seconds: Callable[[StepLaw], float]) -> float:
        return math.log(seconds(other.law) / seconds(one.law))

    decode = [log_ratio(lambda law, n=n: law.decode_s(n, n * context)) for n in BATCHES]  # type: ignore[misc]
    alone = log_ratio(lambda law: law.prefill_alone_s(isl))
    beside = log_ratio(lambda law: law.mixed_s(32, 32 * context, CHUNK, CHUNK * isl / 2))
    return Ratios(math.exp(sum(decode) / len(decode)), math.exp((alone + beside) / 2))


def _timed(sheet: Sheet) -> Timed | None:
    try:
        return shipped(sheet.model.id, sheet.gpu.id, sheet.tp, sheet.precision)
    except EstimateUnavailable:
        return None
