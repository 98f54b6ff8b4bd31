"""Day-zero candidates: the law of a replica nobody has measured yet, from kernel timings, else from the data sheet."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import NamedTuple

from sizing import catalog
from sizing.catalog import BITS, Gpu, Model, Precision, gpus
from sizing.engine import FREE, Batching, Replica, StepLaw
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.checkpoints import describe
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.silicon import Server, corrected
from sizing.estimate.timed import Timed, time_kernels
from sizing.numbers import percent
from sizing.places import resource
from sizing.plans import Candidate
from sizing.points import Deployment
from sizing.prediction import Caution
from sizing.workload import Lengths

# --- Laws and memory fitted beforehand to the kernel timings of every catalogued model, read from
# data/laws/day_zero.csv
#
# They answer at once, also where the kernel database cannot be installed. Written by sizing/estimate/build_laws.py.

LAWS = resource("data/laws/day_zero.csv")
KEY = ("model", "gpu", "tp", "precision")
TIMES = ("weights_s", "overhead_s", "token_s", "sequence_s", "kv_token_s", "attention_s", "prefill_s")
SHARES = ("unread", "unread_decay", "mean_error", "rms_error")
BYTES = ("fixed_bytes", "budget_token_bytes", *(f"kv_{length}_bytes" for length in KV_LENGTHS))
COLUMNS = (*KEY, "engine", "engine_version", *TIMES, *SHARES, *BYTES, "why_not")
"""`why_not`: why there are no timings; then all columns between the key and this one are empty."""
DISTRIBUTION, VERSION = "aiconfigurator-core", "0.12.0"
Key = tuple[str, str, int, str]


def current() -> bool:
    """True unless another version of the kernel database is installed, whose timings then count."""
    try:
        return version(DISTRIBUTION) == VERSION
    except PackageNotFoundError:
        return True


def shipped(model: str, gpu: str, tp: int, precision: str) -> Timed | None:
    """What the shipped table holds; None if it has no such row.

    Raises EstimateUnavailable, with the reason, where the database was asked and had no timings.
    """
    row = rows().get((model, gpu, tp, precision))
    if row is None:
        return None
    if row["why_not"]:
        raise EstimateUnavailable(row["why_not"])
    return timed_of(row)


@cache
def rows() -> Mapping[Key, Mapping[str, str]]:
    """All rows as text, by model, GPU, TP and precision. Raises CatalogueError if the file is faulty."""
    try:
        with LAWS.open(newline="", encoding="utf-8") as file:
            table = list(csv.DictReader(line for line in file if not line.startswith("#")))
    except OSError as error:
        raise CatalogueError(f"{LAWS}: cannot be read ({error.strerror}); write it with {BUILD}") from None
    if table and tuple(table[0]) != COLUMNS:
        raise CatalogueError(f"{LAWS}: its columns are not those of this version; write it again with {BUILD}")
    return {(row["model"], row["gpu"], int(row["tp"]), row["precision"]): row for row in table}


BUILD = "python -m sizing.estimate.build_laws"


def timed_of(row: Mapping[str, str]) -> Timed:
    """A row's engine, law and memory."""
    law = FREE.with_values(**{name: float(row[name]) for name in (*TIMES, "unread", "unread_decay")})
    mean_error, rms_error = float(row["mean_error"]), float(row["rms_error"])
    neighbour = partial(_memory_of, row["model"], row["gpu"], row["precision"], row["engine"])
    return Timed(row["engine"], row["engine_version"], law, mean_error, rms_error, memory_of(row), neighbour)


def memory_of(row: Mapping[str, str]) -> Memory:
    """Memory of one GPU of a row."""
    fixed, budget_token, *sequence = (float(row[name]) for name in BYTES)
    return Memory(row["engine"], gpus()[row["gpu"]].memory_bytes, fixed, budget_token, tuple(sequence))


def _memory_of(model: str, gpu: str, precision: str, engine: str, tp: int) -> Memory | None:
    row = rows().get((model, gpu, tp, precision))
    return memory_of(row) if row and row["engine"] == engine else None


def row_of(key: Key, timed: Timed) -> dict[str, str]:
    """The row that `timed_of` reads back: times with six digits, far more than any timing has, bytes with nine."""
    memory = timed.memory
    numbers = {
        **{name: getattr(timed.law, name) for name in (*TIMES, *SHARES[:2])},
        **{name: getattr(timed, name) for name in SHARES[2:]},
        **dict(zip(BYTES[:2], (memory.fixed_bytes, memory.budget_token_bytes), strict=True)),
        **dict(zip(BYTES[2:], memory.sequence_bytes_at, strict=True)),
    }
    texts = {name: f"{value:.9g}" if name in BYTES else f"{value:.6g}" for name, value in numbers.items()}
    named = dict(zip(KEY, map(str, key), strict=True))
    return {**named, "engine": timed.backend, "engine_version": timed.version, **texts, "why_not": ""}


# --- A replica's law from the data sheet alone, where there are no kernel timings. Good to a factor of two

DECODE_EFFICIENCY = (0.28, 0.94)
"""Share of the memory bandwidth that decode steps of one sequence reach, lowest (70B, TP8) and highest (8B, L40S)."""
PREFILL_EFFICIENCY = (0.21, 0.71)
"""Share of the peak FLOP/s that prefill steps reach, lowest and highest over models, chips and TP across NVLink.

TP across PCIe is slower still (0.09 for 32 billion parameters on four L40S).
"""
RELATIVE_SIGMA = 0.5
MEMORY_FRACTION = 0.9
RESERVED_BYTES = 5 * 2**30
"""Per GPU, for the runtime, communication buffers and activations."""


def roofline(
    model: Model,
    gpu: Gpu,
    tp: int,
    precision: Precision,
    lengths: Lengths,
    batching: Batching,
) -> Replica:
    """A replica whose steps take bytes over bandwidth and FLOPs over peak, at the middle of the ranges above.

    Raises DoesNotFit if the weights leave no room for one request's KV cache.
    """
    weight_bytes, token_bytes = _held_bytes(model, tp, precision)
    free_bytes = (gpu.memory_bytes - weight_bytes - RESERVED_BYTES) * MEMORY_FRACTION
    missing = token_bytes * (lengths.isl + lengths.osl) - free_bytes
    if missing > 0:
        raise DoesNotFit(
            f"{model.name} {precision} on {gpu.id} TP{tp} needs {missing / MEMORY_FRACTION / 1e9:.1f} GB more per GPU",
            missing / MEMORY_FRACTION,
        )
    law = roofline_law(model, gpu, tp, precision, weight_bytes, token_bytes)
    return Replica(law, replace(batching, kv_tokens=int(free_bytes / token_bytes)))


def _held_bytes(model: Model, tp: int, precision: Precision) -> tuple[float, float]:
    """Bytes of the weights, and of a token's KV cache, on one GPU."""
    cache_bytes = 2.0 if precision in ("bf16", "int4", "mxfp4") else 1.0
    token_bytes = model.kv_values_per_token * cache_bytes / min(tp, model.kv_heads)
    return model.parameters * BITS[precision] / 8 / tp, token_bytes


def roofline_law(
    model: Model, gpu: Gpu, tp: int, precision: Precision, weight_bytes: float, token_bytes: float
) -> StepLaw:
    """Reading the weights and the KV cache at a share of the bandwidth; 2 FLOPs a parameter and token; attention's
    4 FLOPs per head dimension and pair of tokens, in bf16."""
    bandwidth = gpu.bandwidth_bytes_per_s * math.sqrt(math.prod(DECODE_EFFICIENCY))
    efficiency = math.sqrt(math.prod(PREFILL_EFFICIENCY))
    pair_flops = 4 * model.layers * model.heads * model.head_size / tp
    return StepLaw(
        weights_s=weight_bytes / bandwidth,
        overhead_s=0.0,
        token_s=2 * model.active_parameters / tp / (gpu.peak_flops_per_s(precision) * efficiency),
        sequence_s=0.0,
        kv_token_s=token_bytes / bandwidth,
        attention_s=pair_flops / (gpu.peak_flops_per_s("bf16") * efficiency),
    )


KERNEL_SIGMA = MappingProxyType({"dense": 0.20, "moe": 0.27, "moe_blackwell": 0.70})
"""Relative error of summed kernels' times per output token, for fits, which lean on the kernels alone: such that 1.645
of it covers 90 % of the sample of real servers in the kernel database: 1,002 rows of dense models (mean error 16 %),
690 of mixtures of experts on Hopper (27 %), 725 on Blackwell (78 %, nearly always too slow)."""
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
    """A candidate for `model` on `tp` GPUs, with the law fitted to kernel timings over batches and contexts that fit,
    and corrected by what measured servers of its kind have beyond their kernels (see sizing.estimate.silicon).

    `model` is a Hugging Face id of the catalogue or a local folder with a config.json; `backend` is tried first, then
    the other engines, then the roofline. The warnings say where the answer stands on less than was asked. `lengths`
    decide how many tokens the KV cache holds where layers keep a window only. Raises CatalogueError for an unknown
    model or GPU, EstimateUnavailable if the pair cannot run so, DoesNotFit if memory lacks for one request.
    """
    batching = Batching("chunked", max_batch_size, token_budget)
    return _estimated(model, gpu, tp, precision, lengths, batching, backend, as_measured=True)


def _estimated(
    model: str,
    gpu: str,
    tp: int,
    precision: str,
    lengths: Lengths,
    batching: Batching,
    backend: str,
    *,
    as_measured: bool,
) -> Candidate:
    if backend not in kernels.BACKENDS:
        raise EstimateUnavailable(f"engine {backend!r} is not one of {', '.join(kernels.BACKENDS)}")
    chip = catalog.gpu(gpu)
    shape = describe(model) if kernels.is_folder(model) else catalog.model(model)
    form = _precision(shape, chip, precision)
    _check_split(shape, tp)
    case = _Case(shape, chip, tp, form, lengths, batching, backend, as_measured)
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
    as_measured: bool

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
    return _candidate(case, replica, source, RELATIVE_SIGMA, (Caution("no_timings", {"why": why}),))


def _from_timings(timed: Timed, case: _Case) -> Candidate:
    kv_tokens = timed.memory.kv_tokens(case.length, case.batching.token_budget)
    if kv_tokens < case.length:
        raise _does_not_fit(timed, case)
    law, sigma, source = timed.law, KERNEL_SIGMA[_sample(case)], f"{kernels.LIBRARY}, {timed.backend} {timed.version}"
    if case.as_measured:
        server = Server(timed.backend, case.gpu.id, case.precision, case.model.kind, timed.version, case.model.id)
        law, sigma = corrected(law, server)
        source = f"{source}, as servers of its kind were measured"
    return _candidate(
        case,
        Replica(law, replace(case.batching, kv_tokens=kv_tokens)),
        f"{source}, law within {percent(timed.mean_error, 1)} of the step times",
        math.hypot(sigma, timed.rms_error),
        tuple(_warnings(timed, case)),
    )


def _candidate(case: _Case, replica: Replica, source: str, sigma: float, warnings: tuple[Caution, ...]) -> Candidate:
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


def _warnings(timed: Timed, case: _Case) -> Iterator[Caution]:
    if timed.backend != case.backend:
        yield Caution("other_engine", {"asked": case.backend, "used": timed.backend})
    if _sample(case) == "moe_blackwell":
        yield Caution("moe_on_blackwell")
    if timed.rms_error > ROUGH_FIT:
        yield Caution("rough_timings", {"rms_error": timed.rms_error})


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


class DayZero(NamedTuple):
    """What is known of a deployment before it is measured: its law, the relative standard error of the law's times, and
    the KV cache, in tokens; None where nothing tells it."""

    law: StepLaw | None
    error: float
    kv_tokens: int | None


def prior_law(deployment: Deployment, lengths: Lengths) -> DayZero | None:
    """The day-zero law of a measured deployment, for its fit to lean on: from kernel timings, else the roofline. None
    where the catalogue lacks model or GPU. Of kernels alone: how far a fit trusts each coefficient was chosen for
    those, and on servers from which the corrections of an estimate were learnt."""
    model, precision = catalog.of_shape(deployment.model), _SPELLINGS.get(deployment.precision, deployment.precision)
    if model is None or deployment.gpu not in gpus() or deployment.pp > 1:
        return None
    try:
        names = model.id, deployment.gpu, deployment.tp, precision
        known = _estimated(*names, lengths, Batching("chunked"), "trtllm", as_measured=False)
    except (CatalogueError, DoesNotFit, EstimateUnavailable):
        bits = next((name for name in BITS if name == precision), None)
        if bits is None:
            return None
        weight_bytes, token_bytes = _held_bytes(model, deployment.tp, bits)
        chip = catalog.gpu(deployment.gpu)
        return DayZero(roofline_law(model, chip, deployment.tp, bits, weight_bytes, token_bytes), RELATIVE_SIGMA, None)
    return DayZero(known.replica.law, known.relative_sigma, known.replica.batching.kv_tokens)


def token_share(gpu_name: str, precision: str) -> float | None:
    """A token's arithmetic over the reading of the weights, of a dense model whose shape is unknown: bandwidth over
    FLOP/s, whatever its size and TP. None where the catalogue lacks GPU or precision.

    The kernel timings of the catalogue's dense models have 1.0 times this in the median, with a standard deviation of
    40 % on servers with NVLink; mixtures of experts, which multiply few of the weights they read, a third of it.
    """
    spelled = _SPELLINGS.get(precision, precision)
    bits = next((name for name in BITS if name == spelled), None)
    if bits is None or gpu_name not in gpus():
        return None
    chip = catalog.gpu(gpu_name)
    return 2 * chip.bandwidth_bytes_per_s / (BITS[bits] / 8 * chip.peak_flops_per_s(bits))
