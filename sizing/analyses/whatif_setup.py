"""What a change starts from and leaves behind: a candidate, the question, and the assumptions made on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sizing import catalog
from sizing.catalog import Gpu, Model, Precision
from sizing.engine import StepLaw
from sizing.errors import CatalogueError, DoesNotFit, ScenarioError
from sizing.estimate.day_zero import held_bytes, shipped, timed_engines
from sizing.layout import Layout
from sizing.numbers import percent
from sizing.plans import Candidate
from sizing.question import Question
from sizing.workload import Lengths

OF_FREE = 0.9
"""Share of the memory that a change frees which the KV cache gets (TensorRT-LLM's default)."""
UNLIMITED = 10**9
"""A KV cache of this many tokens or more stands for one whose size is not known."""
_SPELLINGS: dict[str, Precision] = {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "fp4": "nvfp4"}


@dataclass(frozen=True, slots=True)
class Setup:
    """A candidate for a question, and what had to be assumed to get there, one line each."""

    candidate: Candidate
    question: Question
    assumptions: tuple[str, ...] = ()

    def changed(self, *assumptions: str, sigma: float, **fields: Any) -> Setup:
        """The setup with some of the candidate's fields replaced, its basis "what-if".

        `sigma`: the relative standard error that the change adds to the law's; the two add in quadrature. The laws a
        fit gives either side of its own are dropped: they know nothing of the change.
        """
        candidate = self.candidate
        widened = math.hypot(candidate.relative_sigma, sigma)
        band = f"the band is widened for this by {percent(sigma)} of the step times"
        changed = replace(candidate, basis="what-if", relative_sigma=widened, variants=(), open_loops=(), **fields)
        return replace(self, candidate=changed, assumptions=(*self.assumptions, *assumptions, band))

    def unchanged(self, why: str) -> Setup:
        """The same setup: the change asks for what is there already."""
        return replace(self, assumptions=(*self.assumptions, f"{why}: nothing changes"))


class WhatIf(Protocol):
    """A change of an engine, its model's weights or its requests."""

    def apply(self, setup: Setup) -> Setup:
        """The setup after the change; ScenarioError where it cannot be made, DoesNotFit where memory lacks."""
        ...


@dataclass(frozen=True, slots=True)
class Sheet:
    """What the catalogue says of a model in a layout at a precision, for one GPU."""

    model: Model
    gpu: Gpu
    precision: Precision
    layout: Layout
    engine: str = ""

    @property
    def weight_bytes(self) -> float:
        """Bytes of the weights on one GPU."""
        return held_bytes(self.model, self.layout, self.precision)[0]

    @property
    def reading_s(self) -> float:
        """Seconds to read the weights once at the data sheet's bandwidth; no engine is faster."""
        return self.weight_bytes / self.gpu.bandwidth_bytes_per_s * self.layout.pp

    @property
    def token_bytes(self) -> float:
        """Bytes that a token leaves in the KV cache of one GPU: two a value, one where weights and cache are fp8."""
        return held_bytes(self.model, self.layout, self.precision)[1]

    @property
    def hidden_size(self) -> int:
        """Width of the model, taken as that of its attention."""
        return self.model.heads * self.model.head_size


def sheet_of(candidate: Candidate) -> Sheet:
    """The candidate's data sheet. Raises ScenarioError where the catalogue lacks its model, GPU or precision."""
    try:
        model, gpu = catalog.model(candidate.model), catalog.gpu(candidate.gpu)
    except CatalogueError as error:
        raise ScenarioError(f"this what-if needs sizes from the catalogue: {error}") from None
    return Sheet(model, gpu, precision_named(candidate.precision), candidate.layout, candidate.engine)


def precision_named(name: str) -> Precision:
    """A precision of the catalogue from its common spellings, else ScenarioError with the choices."""
    wanted = name.strip().casefold()
    for precision in catalog.PRECISIONS:
        if precision == _SPELLINGS.get(wanted, wanted):
            return precision
    raise ScenarioError(f"precision {name!r} is not one of {', '.join(catalog.PRECISIONS)}")


def reading_s(law: StepLaw, sheet: Sheet) -> float:
    """Seconds of the law's floor (overhead and weights) that go into reading the weights.

    A fit may book part of the reading as overhead, where steps look alike. So at least the data sheet's time for it,
    where the floor is that long, is taken to be reading.
    """
    return max(law.weights_s, min(law.overhead_s + law.weights_s, sheet.reading_s))


def read_weights(law: StepLaw, share: float, sheet: Sheet) -> StepLaw:
    """The law of an engine that reads `share` of the bytes of the weights."""
    booked_s = reading_s(law, sheet) - law.weights_s
    return law.with_values(weights_s=share * law.weights_s, overhead_s=law.overhead_s + (share - 1) * booked_s)


def refilled(setup: Setup, before: Sheet, after: Sheet, *, taken_bytes: float = 0.0) -> int:
    """Tokens of the KV cache when the weights of `before` make place for those of `after`.

    `taken_bytes`: what else now lies in the memory of each GPU. Raises DoesNotFit if not one request fits.
    """
    batching, lengths = setup.candidate.replica.batching, setup.question.workload.lengths
    if batching.kv_tokens >= UNLIMITED:
        return batching.kv_tokens
    freed = (before.weight_bytes - after.weight_bytes - taken_bytes) * OF_FREE
    tokens = int((batching.kv_tokens * before.token_bytes + freed) / after.token_bytes)
    if (lacking := lengths.isl + lengths.osl - tokens) > 0:
        missing = lacking * after.token_bytes / OF_FREE
        where = f"{after.model.name} {after.precision} on {after.gpu.id} {after.layout}"
        raise DoesNotFit(f"{where} with this change needs {missing / 1e9:.1f} GB more per GPU", missing)
    return tokens


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
    engine = next((each for each in _engines(before) if each in _engines(after)), None)
    if engine is None or before.layout.lanes * after.layout.lanes != 1:
        return None
    one, other = (shipped(each.model, each.gpu.id, each.layout, each.precision, engine) for each in (before, after))
    context, isl = lengths.isl + lengths.osl / 2, lengths.isl

    def log_ratio(seconds: Callable[[StepLaw], float]) -> float:
        return math.log(seconds(other.law) / seconds(one.law))

    decode = [log_ratio(lambda law, n=n: law.decode_s(n, n * context)) for n in BATCHES]  # type: ignore[misc]
    alone = log_ratio(lambda law: law.prefill_alone_s(isl))
    beside = log_ratio(lambda law: law.mixed_s(32, 32 * context, CHUNK, CHUNK * isl / 2))
    return Ratios(math.exp(sum(decode) / len(decode)), math.exp((alone + beside) / 2))


def _engines(sheet: Sheet) -> tuple[str, ...]:
    """Those with timings, the candidate's own first."""
    timed = timed_engines(sheet.model, sheet.gpu.id, sheet.layout, sheet.precision)
    return tuple(sorted(timed, key=lambda engine: engine != sheet.engine))
