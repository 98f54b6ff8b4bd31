"""Day-zero candidates: the law of a replica nobody has measured yet, from kernel timings, else from the data sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType

from sizing import catalog
from sizing.catalog import Gpu, Model, Precision
from sizing.errors import DoesNotFit, EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.checkpoints import describe
from sizing.estimate.memory import Memory
from sizing.estimate.roofline import RELATIVE_SIGMA, roofline
from sizing.estimate.shipped import current, shipped
from sizing.estimate.timed import Timed, time_kernels
from sizing.numbers import percent
from sizing.plan import Candidate
from sizing.replica import Batching, Replica
from sizing.workload import Lengths

KERNEL_SIGMA = MappingProxyType({"dense": 0.20, "moe": 0.27, "moe_blackwell": 0.70})
"""Relative error of the kernel database's times per output token, such that 1.645 of it covers 90 % of the sample of
real servers inside it: 1,002 rows of dense models (mean error 16 %), 690 of mixtures of experts on Hopper (27 %), 725
on Blackwell (78 %, nearly always too slow)."""
ROUGH_FIT = 0.10
SHIPPED_FOR = "trtllm"
"""The engine that shipped laws prefer; where one is of another engine, this one has no timings."""
_SPELLINGS = MappingProxyType({"bfloat16": "bf16", "fp4": "nvfp4"})


def estimate(
    model: str,
    gpu: str,
    tp: int,
    precision: str,
    lengths: Lengths,
    *,
    backend: str = "trtllm",
    max_batch_size: int = 256,
    token_budget: int = 8192,
) -> Candidate:
    """A candidate for `model` on `tp` GPUs, with the law fitted to kernel timings over batches and contexts that fit.

    `model` is a Hugging Face id of the catalogue or a local folder with a config.json; `backend` is tried first, then
    the other engines, then the roofline. The warnings say where the answer stands on less than was asked. `lengths`
    decide how many tokens the KV cache holds where layers keep a window only. Raises CatalogueError for an unknown
    model or GPU, EstimateUnavailable if the pair cannot run so, DoesNotFit if memory lacks for one request.
    """
    if backend not in kernels.BACKENDS:
        raise EstimateUnavailable(f"engine {backend!r} is not one of {', '.join(kernels.BACKENDS)}")
    chip = catalog.gpu(gpu)
    shape = describe(model) if kernels.is_folder(model) else catalog.model(model)
    form = _precision(shape, chip, precision)
    _check_split(shape, tp)
    case = _Case(shape, chip, tp, form, lengths, Batching("chunked", max_batch_size, token_budget), backend)
    try:
        timed = _timed(case)
    except EstimateUnavailable as error:
        return _from_roofline(case, str(error))
    return _from_timings(timed, case)


@dataclass(frozen=True, slots=True)
class _Case:
    model: Model
    gpu: Gpu
    tp: int
    precision: Precision
    lengths: Lengths
    batching: Batching
    backend: str

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return math.ceil(self.lengths.isl + self.lengths.osl)


def _timed(case: _Case) -> Timed:
    """The shipped law, where there is one and it is of the engine asked for; else one fitted now, if that can be."""
    found = shipped(case.model.id, case.gpu.id, case.tp, case.precision) if current() else None
    if found and (case.backend in (found.backend, SHIPPED_FOR) or not kernels.available()):
        return found
    return time_kernels(case.model, case.gpu, case.tp, case.precision, case.backend)


def _from_roofline(case: _Case, why: str) -> Candidate:
    replica = roofline(case.model, case.gpu, case.tp, case.precision, case.lengths, case.batching)
    source = f"roofline from the data sheet of {case.gpu.name}"
    warning = f"no kernel timings ({why}): a roofline, good to a factor of two"
    return _candidate(case, replica, source, RELATIVE_SIGMA, (warning,))


def _from_timings(timed: Timed, case: _Case) -> Candidate:
    kv_tokens = timed.memory.kv_tokens(case.length, case.batching.token_budget)
    if kv_tokens < case.length:
        raise _does_not_fit(timed, case)
    engine = f"{kernels.LIBRARY}, {timed.backend} {timed.version}"
    return _candidate(
        case,
        Replica(timed.law, replace(case.batching, kv_tokens=kv_tokens)),
        f"{engine}, law within {percent(timed.mean_error, 1)} of the step times",
        math.hypot(KERNEL_SIGMA[_sample(case)], timed.rms_error),
        tuple(_warnings(timed, case)),
    )


def _candidate(case: _Case, replica: Replica, source: str, sigma: float, warnings: tuple[str, ...]) -> Candidate:
    names = (case.model.id, case.gpu.id, case.tp, case.precision)
    return Candidate(*names, replica, "estimated", source, sigma, warnings=warnings)


def _precision(model: Model, gpu: Gpu, asked: str) -> Precision:
    offered = catalog.precisions(gpu, model)
    wanted = _SPELLINGS.get(asked.strip().casefold(), asked.strip().casefold())
    if wanted == "fp8" and model.checkpoint == "fp8_block":
        wanted = "fp8_block"  # the only fp8 in which this checkpoint exists
    for precision in offered:
        if precision == wanted:
            return precision
    known = f"offers {', '.join(offered)}" if offered else f"cannot run its {model.checkpoint} checkpoint"
    raise EstimateUnavailable(f"{model.name} in {asked} on {gpu.id}: no such estimate; {gpu.id} {known} for this model")


def _check_split(model: Model, tp: int) -> None:
    if tp < 1 or model.heads % tp:
        fits = [n for n in (1, 2, 4, 8, 16) if model.heads % n == 0]
        raise EstimateUnavailable(
            f"{model.name} has {model.heads} attention heads, which TP{tp} does not divide; use TP of {fits}"
        )


def _sample(case: _Case) -> str:
    blackwell = "fp4" in case.gpu.flops_per_s
    return "moe_blackwell" if case.model.kind == "moe" and blackwell else case.model.kind


def _warnings(timed: Timed, case: _Case) -> Iterator[str]:
    if timed.backend != case.backend:
        yield f"no {case.backend} timings for this model, GPU and precision: those of {timed.backend} are used"
    if _sample(case) == "moe_blackwell":
        yield "mixture of experts on Blackwell: real servers were 1.5 times as fast as these timings on average"
    if timed.rms_error > ROUGH_FIT:
        yield f"the law follows the kernel timings within {percent(timed.rms_error)} (rms) only"


def _does_not_fit(timed: Timed, case: _Case) -> DoesNotFit:
    def missing_bytes(memory: Memory) -> float:
        return memory.missing_bytes(case.length, case.batching.token_budget)

    missing, most = missing_bytes(timed.memory), case.gpu.gpus_per_server
    larger = [tp for tp in (2, 4, 8) if case.tp < tp <= most and case.model.heads % tp == 0]
    memories = ((tp, timed.memory_at(tp)) for tp in larger)
    enough = next((tp for tp, memory in memories if memory and not missing_bytes(memory)), None)
    hint = f"TP{enough} is the smallest that fits" if enough else "no TP within one server fits"
    label = f"{case.model.name} {case.precision} on {case.gpu.id} TP{case.tp}"
    return DoesNotFit(f"{label} needs {missing / 1e9:.1f} GB more per GPU; {hint}", missing)
