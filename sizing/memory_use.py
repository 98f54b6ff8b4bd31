"""What fills the memory of one GPU at the planned load: weights, KV cache in use and free, runtime, and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sizing import catalog
from sizing.candidates import Choice, catalogued, estimated, with_prefix_cache
from sizing.catalog import BITS, Gpu, Layout, Model, Precision, precision_named
from sizing.engine import UNLIMITED_KV_TOKENS
from sizing.engine_defaults import engine_named
from sizing.errors import DoesNotFit, EstimateUnavailable, SizingError
from sizing.estimate import estimate
from sizing.estimate.day_zero import sheet_memory, shipped, token_bytes, weight_bytes
from sizing.estimate.memory import Memory
from sizing.plans import Candidate, Fleet, Rejection
from sizing.workload import NO_PREFIX, Lengths, Prefix

WEIGHTS, KV_USED, KV_FREE = "Weights", "KV cache in use", "KV cache free"
RUNTIME, LEFT, UNKNOWN = "Activations and runtime", "Not given to the engine", "Not known"
PARTS = (WEIGHTS, KV_USED, KV_FREE, RUNTIME, LEFT, UNKNOWN)
"""Every possible part, in stacking order."""
FREE_PARTS = (KV_FREE, LEFT, UNKNOWN)
"""Parts that hold nothing, as far as is known."""


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of one GPU by part; they add up to `capacity_bytes`. `note`: how they are known, and what is unknown."""

    candidate: Candidate
    capacity_bytes: float
    parts: tuple[tuple[str, float], ...]
    note: str

    def of(self, part: str) -> float:
        """Bytes of a part, 0 where there is none."""
        return dict(self.parts).get(part, 0.0)


def mean_context_tokens(lengths: Lengths) -> float:
    """Tokens that a sequence holds in the KV cache on average over the time it generates.

    It begins with ISL and grows by one per step. Long outputs stay longer and count for more: seen at a random instant,
    an output is half done and E[OSL^2] / E[OSL] long (inspection paradox), so ISL + OSL (1 + cv^2) / 2.
    """
    return lengths.isl + lengths.osl * (1 + lengths.osl_cv**2) / 2


def memory_use(fleet: Fleet, lengths: Lengths, prefix: Prefix = NO_PREFIX) -> MemoryUse | str:
    """Memory of one GPU of the fleet at its planned load, or a sentence that says why it is unknown.

    Requests in the replica (Little's law) times their mean context are the KV cache in use, on average; waiting
    requests are counted as if they held theirs, and a prefix that some have found is counted once for them. For a
    measured engine only weights and KV in use are known.
    """
    candidate = fleet.candidate
    model, chip = catalogued(candidate.model), catalog.known_gpu(candidate.gpu)
    if model is None or chip is None:
        what = f"the model {candidate.model}" if model is None else f"the GPU {candidate.gpu}"
        return f"{what} is not in the catalogue, so neither its size nor its memory is known"
    precision = precision_named(candidate.precision)
    if precision is None:
        return f"bytes per weight at precision {candidate.precision} are not known"
    weights = weight_bytes(model, candidate.layout, precision)
    of_token = token_bytes(model, chip, candidate.layout, precision)
    sequences, context = fleet.in_flight / candidate.layout.dp, mean_context_tokens(lengths)
    saved = sequences * prefix.hit_rate * prefix.tokens - prefix.held_tokens(sequences)
    if not candidate.unmeasured:
        return _of_measured(candidate, chip, weights, (sequences * context - saved) * of_token)
    note = "counted for {} by the kernel database"
    known = kernel_memory(candidate, model, chip, precision)
    if known is None:
        known = sheet_memory(model, chip, candidate.layout, precision, candidate.engine)
        note = "from the data sheet, with 5 GiB set aside for the runtime"
    wanted = sequences * known.sequence_bytes(round(context))
    if saved:
        wanted -= saved / prefix.tokens * known.sequence_bytes(prefix.tokens)
    return _of_estimate(candidate, known, weights, wanted, note.format(known.backend))


def kv_cache_tokens(candidate: Candidate) -> int | None:
    """Tokens that the KV cache of a replica holds; None if neither the engine nor the catalogue gives them.

    The number that an estimate was made with, or a fit found. For a measured engine that never ran out of memory, what
    its engine would make of the memory beside weights and the runtime's reserve on each GPU, by the catalogue.
    """
    known = candidate.replica.batching.kv_tokens
    if known != UNLIMITED_KV_TOKENS:
        return known
    model, chip = catalogued(candidate.model), catalog.known_gpu(candidate.gpu)
    precision = precision_named(candidate.precision)
    if model is None or chip is None or precision is None:
        return None
    of_token = token_bytes(model, chip, candidate.layout, precision)
    left = sheet_memory(model, chip, candidate.layout, precision, candidate.engine).kv_bytes()
    return max(0, int(left / of_token)) * candidate.layout.dp


def caching(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Rejection]]:
    """Candidates with their prefix cache on, by vLLM's rules, and those that can have none."""
    ready: list[Candidate] = []
    left_out: list[Rejection] = []
    for one in candidates:
        kv_tokens = kv_cache_tokens(one)
        if one.replica.batching.policy == "static":
            left_out.append(Rejection.of(one, "no_data", "static batches have no prefix cache"))
        elif kv_tokens is None:
            why = "how many tokens its KV cache holds is not known, and hits depend on it"
            left_out.append(Rejection.of(one, "no_data", why))
        else:
            ready.append(with_prefix_cache(one, kv_tokens))
    return ready, left_out


def kernel_memory(candidate: Candidate, model: Model, chip: Gpu, precision: Precision) -> Memory | None:
    """Memory as the kernel database counts it for the estimate; None where it has none (a roofline)."""
    try:
        return shipped(model, chip.id, candidate.layout, precision, candidate.engine).memory
    except EstimateUnavailable:
        return None


def _of_estimate(candidate: Candidate, memory: Memory, weights: float, wanted: float, note: str) -> MemoryUse:
    budget = candidate.replica.batching.token_budget // candidate.layout.lanes
    kv = max(0.0, memory.kv_bytes(budget))
    used, weights = min(wanted, kv), min(weights, memory.fixed_bytes)
    left = memory.capacity_bytes - memory.fixed_bytes - kv
    parts = (
        (WEIGHTS, weights),
        (KV_USED, used),
        (KV_FREE, kv - used),
        (RUNTIME, memory.fixed_bytes - weights),
        (LEFT, left),
    )
    return MemoryUse(candidate, memory.capacity_bytes, parts, note)


def _of_measured(candidate: Candidate, chip: Gpu, weights: float, wanted: float) -> MemoryUse:
    rest = max(0.0, chip.memory_bytes - weights)
    used = min(wanted, rest)
    note = "weights and KV cache in use by arithmetic; how the engine divides the rest was not measured"
    return MemoryUse(candidate, chip.memory_bytes, ((WEIGHTS, weights), (KV_USED, used), (UNKNOWN, rest - used)), note)


# --- What would fit where a model does not: memory lacking per GPU, a larger TP, a smaller precision, another GPU


@dataclass(frozen=True, slots=True)
class Misfit:
    """A configuration that does not fit: bytes lacking on each GPU, and what would fit on the same GPU.

    `larger`: the fewest GPUs at the same precision. `smaller`: the fewest at a precision with fewer bits, and among
    these the one with the most bits. None if there is none.
    """

    gpu: str
    layout: Layout
    precision: str
    missing_bytes: float
    larger: Candidate | None
    smaller: Candidate | None


def misfits(model: str, lengths: Lengths, rejected: Sequence[Rejection]) -> tuple[Misfit, ...]:
    """For each configuration left out for memory, what would fit instead, starting with the least memory lacking."""
    too_large = [rejection for rejection in rejected if rejection.kind == "memory"]
    fitting = {gpu: fits_on(model, gpu, lengths) for gpu in {rejection.gpu for rejection in too_large}}
    found = (_misfit(model, lengths, rejection, fitting[rejection.gpu]) for rejection in too_large)
    return tuple(sorted(found, key=lambda misfit: misfit.missing_bytes))


def fits_on(model: str, gpu: str, lengths: Lengths) -> list[Candidate]:
    """Every estimated candidate of the model on one GPU type, at any precision and TP; empty where none fits."""
    return estimated(model, lengths, Choice(), [gpu], set())[0]


def elsewhere(model: str, lengths: Lengths, besides: Sequence[str]) -> Candidate | None:
    """The candidate with the fewest GPUs per replica on any other GPU of the catalogue; among equals, the least
    memory."""
    found = [
        candidate
        for gpu in catalog.gpus().values()
        if gpu.timed and gpu.id not in besides
        for candidate in fits_on(model, gpu.id, lengths)
    ]
    return min(found, key=lambda each: (each.gpus, catalog.gpu(each.gpu).memory_bytes), default=None)


def _misfit(model: str, lengths: Lengths, rejection: Rejection, fitting: Sequence[Candidate]) -> Misfit:
    gpu, layout, precision = rejection.gpu, rejection.layout, rejection.precision
    larger = min((each for each in fitting if each.precision == precision), key=lambda each: each.gpus, default=None)
    bits: dict[str, float] = dict(BITS.items())
    smaller = min(
        (each for each in fitting if bits[each.precision] < bits.get(precision, 0)),
        key=lambda each: (each.gpus, -bits[each.precision]),
        default=None,
    )
    return Misfit(gpu, layout, precision, _missing_bytes(model, lengths, rejection), larger, smaller)


def _missing_bytes(model: str, lengths: Lengths, rejection: Rejection) -> float:
    """Bytes lacking per GPU, 0 if the estimate that left it out cannot be repeated."""
    try:
        estimate(
            model, rejection.gpu, rejection.layout, rejection.precision, lengths, engine=engine_named(rejection.engine)
        )
    except DoesNotFit as error:
        return error.missing_bytes
    except SizingError:
        return 0.0
    return 0.0
