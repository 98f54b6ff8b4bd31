"""Day-zero candidates: the law of a replica nobody has measured yet, from kernel timings, else from the data sheet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from sizing import catalog
from sizing.catalog import Gpu, Model, Precision
from sizing.errors import DoesNotFit, EstimateUnavailable, FitError
from sizing.estimate import kernels
from sizing.estimate.checkpoints import describe
from sizing.estimate.roofline import RELATIVE_SIGMA, roofline
from sizing.estimate.step_grid import GridFit, fit_steps, observe
from sizing.plan import Candidate
from sizing.replica import Batching, Replica
from sizing.workload import Lengths

KERNEL_SIGMA = MappingProxyType({"dense": 0.16, "moe": 0.35})
"""Mean error of the kernel database's times per output token on the measured sample inside it."""
ROUGH_FIT = 0.10
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
    join the grid, so that the law is closest there. Raises CatalogueError for an unknown model or GPU,
    EstimateUnavailable if the pair cannot run so, DoesNotFit if memory lacks for one request.
    """
    chip = catalog.gpu(gpu)
    shape = describe(model) if kernels.is_folder(model) else catalog.model(model)
    form = _precision(shape, chip, precision)
    _check_split(shape, tp)
    batching = Batching("chunked", max_batch_size, token_budget)
    reasons: list[str] = []
    for name in _backends(shape, chip, backend):
        try:
            engine = kernels.open_engine(shape, chip.id, name, tp, form)
            return _from_kernels(engine, shape, chip, form, lengths, batching, backend)
        except (EstimateUnavailable, FitError) as error:
            reasons.append(str(error))
    replica = roofline(shape, chip, tp, form, lengths, batching)
    why = "; ".join(reasons) or "aiconfigurator-core is not installed on this platform"
    return Candidate(
        shape.id, chip.id, tp, form, replica, "estimated", f"roofline from the data sheet of {chip.name}",
        RELATIVE_SIGMA, warnings=(f"no kernel timings ({why}): a roofline, good to a factor of two",),
    )  # fmt: skip


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


def _backends(model: Model, gpu: Gpu, first: str) -> Iterator[str]:
    """The engine asked for, then those known to serve the model on this GPU, then the rest."""
    if first not in kernels.BACKENDS:
        raise EstimateUnavailable(f"engine {first!r} is not one of {', '.join(kernels.BACKENDS)}")
    if kernels.available():
        yield from dict.fromkeys((first, *model.timed_on(gpu.id), *kernels.BACKENDS))


def _from_kernels(
    engine: kernels.Engine,
    model: Model,
    gpu: Gpu,
    precision: Precision,
    lengths: Lengths,
    batching: Batching,
    asked: str,
) -> Candidate:
    length = math.ceil(lengths.isl + lengths.osl)
    memory = kernels.memory(engine, engine.tp, batching)
    kv_tokens = memory.kv_tokens(length)
    if kv_tokens < length:
        raise _does_not_fit(engine, model, gpu, precision, length, batching)
    batching = replace(batching, kv_tokens=kv_tokens)
    fit = _fit(engine, batching, lengths, model.kind == "moe")
    return Candidate(
        model.id,
        gpu.id,
        engine.tp,
        precision,
        Replica(fit.law, batching),
        "estimated",
        f"{kernels.LIBRARY}, {engine.backend} {engine.version} (step times), law within {fit.mean_error:.1%} of them",
        math.hypot(KERNEL_SIGMA[model.kind], fit.rms_error),
        warnings=tuple(_warnings(engine, model, fit, asked)),
    )


@lru_cache(maxsize=1024)
def _fit(engine: kernels.Engine, batching: Batching, lengths: Lengths, experts: bool) -> GridFit:
    return fit_steps(observe(engine, batching, lengths), experts=experts)


def _warnings(engine: kernels.Engine, model: Model, fit: GridFit, asked: str) -> Iterator[str]:
    if engine.backend != asked:
        yield f"no {asked} timings for this model, GPU and precision: those of {engine.backend} are used"
    if model.kind == "moe":
        yield "mixture of experts: steps of fewer than 16 sequences are estimated too slow, as if all experts were read"
    elif fit.rms_error > ROUGH_FIT:
        yield f"the law follows the kernel timings within {fit.rms_error:.0%} (rms) only"


def _does_not_fit(
    engine: kernels.Engine,
    model: Model,
    gpu: Gpu,
    precision: str,
    length: int,
    batching: Batching,
) -> DoesNotFit:
    missing = kernels.memory(engine, engine.tp, batching).missing_bytes(length)
    larger = [tp for tp in (2, 4, 8) if engine.tp < tp <= gpu.gpus_per_server and model.heads % tp == 0]
    enough = next((tp for tp in larger if kernels.fits(engine, tp, batching, length)), None)
    hint = f"TP{enough} is the smallest that fits" if enough else "no TP within one server fits"
    return DoesNotFit(
        f"{model.name} {precision} on {gpu.id} TP{engine.tp} needs {missing / 1e9:.1f} GB more per GPU; {hint}", missing
    )
