"""Day-zero candidates: the law of a replica nobody has measured yet, from kernel timings, else scaled from the law of a
relative, else from the data sheet."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from sizing import catalog
from sizing.catalog import (
    BITS,
    BUS_BYTES_PER_S,
    CONTEXT,
    Gpu,
    Layout,
    Model,
    Precision,
    gpus,
    layouts,
    of_layout,
    routed_parameters,
    unread_share,
)
from sizing.engine import FREE, Batching, Replica, StepLaw
from sizing.engine_defaults import engine_defaults, engine_named
from sizing.errors import CatalogueError, DoesNotFit, EstimateUnavailable
from sizing.estimate import kernels
from sizing.estimate.checkpoints import known
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.estimate.silicon import Server, corrected, estimated_policy, generation
from sizing.estimate.timed import RELATIVE_SIGMA, TWIN, Timed, distance, nearest, scaled
from sizing.files import resource
from sizing.plans import Candidate
from sizing.points import Deployment
from sizing.prediction import Caution
from sizing.stats import Z90
from sizing.workload import Lengths

# --- Laws and memory fitted beforehand to the kernel timings of every catalogued model, read from
# data/laws/day_zero.csv
#
# The planner runs on them alone. The kernel database is needed where they are written: sizing/estimate/build_laws.py.

LAWS = resource("data/laws/day_zero.csv")
KEY = ("model", "gpu", "tp", "dp", "ep", "precision", "engine")
TIMES = ("weights_s", "overhead_s", "token_s", "sequence_s", "kv_token_s", "attention_s", "prefill_s")
SHARES = ("unread", "unread_decay", "mean_error", "rms_error")
BYTES = ("fixed_bytes", "budget_token_bytes", *(f"kv_{length}_bytes" for length in KV_LENGTHS))
COLUMNS = (*KEY, "engine_version", *TIMES, *SHARES, *BYTES, "why_not")
"""`why_not`: why there are no timings; then all columns between the key and this one are empty."""
BUILD = "python -m sizing.estimate.build_laws"
ENGINES = kernels.BACKENDS
"""Engines of which kernels were timed; the first with timings answers where none is asked for."""
Key = tuple[str, str, int, int, int, str, str]


def shipped(model: Model, gpu: str, layout: Layout, precision: Precision, engine: str) -> Timed:
    """What the shipped table holds: the law of one rank, and memory of one GPU.

    Raises EstimateUnavailable, with the reason, where the kernels were not timed.
    """
    row = rows(model.id).get((gpu, replace(layout, pp=1), precision, engine))
    if row is None:
        raise EstimateUnavailable(f"{engine}: not among the shipped laws")
    if row["why_not"]:
        raise EstimateUnavailable(row["why_not"])
    found = timed_of(row)
    if layout.pp == 1:
        return found
    return replace(found, memory=found.memory.staged(layout.pp, weight_bytes(model, replace(layout, pp=1), precision)))


def timed_engines(model: Model, gpu: str, layout: Layout, precision: str) -> tuple[str, ...]:
    """The engines with timings of the model run so; none where it cannot be run so. Stages need no timings of their
    own."""
    try:
        form = _precision(model, catalog.gpu(gpu), precision)
    except EstimateUnavailable:
        return ()
    found, one = rows(model.id), replace(layout, pp=1)
    return tuple(engine for engine in ENGINES if (row := found.get((gpu, one, form, engine))) and not row["why_not"])


@lru_cache(maxsize=256)
def rows(model: str) -> Mapping[tuple[str, Layout, str, str], Mapping[str, str]]:
    """A model's rows as text, by GPU, layout, precision and engine. Raises CatalogueError if the file is faulty."""
    return {(row["gpu"], layout_of(row), row["precision"], row["engine"]): row for row in read_rows(LAWS, model)}


def layout_of(row: Mapping[str, str]) -> Layout:
    """The layout that a row was timed in."""
    return Layout(tp=int(row["tp"]), dp=int(row["dp"]), ep=int(row["ep"]))


def read_rows(path: Path, model: str = "") -> list[dict[str, str]]:
    """The rows of a table of laws, of one model or of all. Raises CatalogueError if the file is faulty."""
    return list(_rows_in(path, model))


def _rows_in(path: Path, model: str = "") -> Iterator[dict[str, str]]:
    """The same, one by one."""
    faulty = CatalogueError(f"{path}: its columns are not those of this version; write it again with {BUILD}")
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = (line for line in file if not line.startswith("#"))
            if next(csv.reader(lines), []) != list(COLUMNS):
                raise faulty
            wanted = f"{model},"
            for cells in csv.reader((line for line in file if line.startswith(wanted)) if model else lines):
                if len(cells) != len(COLUMNS):
                    raise faulty
                yield dict(zip(COLUMNS, cells, strict=True))
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read ({error.strerror}); write it with {BUILD}") from None


def timed_of(row: Mapping[str, str]) -> Timed:
    """A row's engine, law and memory."""
    law = FREE.with_values(**{name: float(row[name]) for name in (*TIMES, "unread", "unread_decay")})
    mean_error, rms_error = float(row["mean_error"]), float(row["rms_error"])
    return Timed(row["engine"], row["engine_version"], law, mean_error, rms_error, memory_of(row))


def memory_of(row: Mapping[str, str]) -> Memory:
    """Memory of one GPU of a row. The kernel database leaves the states of some models out."""
    fixed, budget_token, *sequence = (float(row[name]) for name in BYTES)
    memory = Memory(row["engine"], gpus()[row["gpu"]].memory_bytes, fixed, budget_token, tuple(sequence))
    model = catalog.models().get(row["model"])
    return memory.with_states(state_bytes(model, layout_of(row))) if model and model.state_values else memory


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
    return {**named, "engine_version": timed.version, **texts, "why_not": ""}


# --- A replica's law from the data sheet alone, where there are no kernel timings


@dataclass(frozen=True, slots=True)
class Efficiency:
    """What engines reach of the figures of a data sheet, and what a layer costs whatever is computed.

    `weights`, `cache`: shares of the memory bandwidth at which they are read; `arithmetic`: share of the dense FLOP/s.
    `layer_s`: seconds of a layer in each iteration, `prompt_layer_s`: in each with a prompt, beside them.
    """

    weights: float
    cache: float
    arithmetic: float
    layer_s: float
    prompt_layer_s: float


EFFICIENCY: Mapping[str, Efficiency] = MappingProxyType(
    {"dense": Efficiency(0.84, 0.87, 0.58, 68e-6, 72e-6), "moe": Efficiency(0.86, 0.75, 0.44, 103e-6, 101e-6)}
)
"""By the kind of the model: those with the least mean error over all shipped laws, ten GPUs and TP 1 to 8."""
EXCHANGED_BYTES = 4
"""Per token, layer and number of its width: the results of two matrix products, in 16 bits, that TP adds up."""
PCIE_SHARE = 0.18
"""The share of a bus's speed that was reached; of a switched network's, all of it."""
ROOFLINE_SIGMA = MappingProxyType({"dense": 0.31, "moe": 0.47})
"""Relative error of a roofline against the shipped laws of the ten timed GPUs, by kind: 1.645 of it covers 90 %."""
UNTIMED_SIGMA = 0.80
"""The same on a GPU without timings, and of weights that it unpacks: the largest error of the ten GPUs, that of the
L40S."""
RESERVED_BYTES = 5 * 2**30
"""Per GPU, for the runtime, communication buffers and activations. In the shipped memories of dense models 4.8 GiB are
neither weights nor cache in the median, 4.2 to 6.3 in eight of ten; of mixtures of experts 6.1, 4.2 to 22."""


def roofline(
    model: Model,
    gpu: Gpu,
    layout: Layout,
    precision: Precision,
    lengths: Lengths,
    batching: Batching,
    engine: str = "",
) -> Replica:
    """A rank whose steps take bytes over bandwidth and FLOPs over peak, at the efficiencies above, with the KV cache
    that `engine` would make.

    Raises DoesNotFit if the weights leave no room for one request's KV cache.
    """
    memory, length = sheet_memory(model, gpu, layout, precision, engine), math.ceil(lengths.isl + lengths.osl)
    if missing := memory.missing_bytes(length):
        named = f"{model.name} {precision} on {gpu.id} {layout}"
        raise DoesNotFit(f"{named} needs {missing / 1e9:.1f} GB more per GPU", missing)
    law = roofline_law(model, gpu, layout, precision)
    return Replica(law, replace(batching, kv_tokens=memory.kv_tokens(length)))


def sheet_memory(model: Model, gpu: Gpu, layout: Layout, precision: Precision, engine: str) -> Memory:
    """Memory of one GPU where no engine told of it: what `engine` shares out beside weights and RESERVED_BYTES.

    Against the shipped memories the cache is off by 2 % of the GPU's memory for dense models and by 7 % for mixtures of
    experts (root mean square).
    """
    growth, state = growth_bytes(model, gpu, layout, precision), state_bytes(model, layout)
    sequences = tuple(growth * length + state for length in KV_LENGTHS)
    return Memory(engine, gpu.memory_bytes, weight_bytes(model, layout, precision) + RESERVED_BYTES, 0.0, sequences)


def weight_bytes(model: Model, layout: Layout, precision: Precision) -> float:
    """Bytes of the weights on one GPU: each rank has its own attention, all share the experts."""
    routed = routed_parameters(model)
    parameters = (model.parameters - routed) / (layout.tp * layout.pp) + routed / layout.gpus
    return parameters * BITS[precision] / 8


def token_bytes(model: Model, gpu: Gpu, layout: Layout, precision: Precision) -> float:
    """Bytes of a token's KV cache on one GPU, at a context of CONTEXT."""
    return growth_bytes(model, gpu, layout, precision) + state_bytes(model, layout) / CONTEXT


class Room(NamedTuple):
    """Bytes of one GPU that an estimate leaves for the KV cache, negative if the model does not fit, and those of a
    token in it. `engine`: whose timings tell; empty where it is the roofline."""

    free_bytes: float
    token_bytes: float
    engine: str


def room(
    model: Model, gpu: Gpu, layout: Layout, precision: Precision, engine: str, length: int, token_budget: int
) -> Room:
    """Memory for the KV cache as `estimate` counts it, for sequences of `length` tokens and lanes with a
    `token_budget`: from the timings of `engine`, else of another, else from the roofline."""
    timed = timed_engines(model, gpu.id, layout, precision)
    own = next((each for each in (engine, *timed) if each in timed), "")
    if own:
        memory = shipped(model, gpu.id, layout, precision, own).memory
    else:
        memory = sheet_memory(model, gpu, layout, precision, engine)
    return Room(memory.kv_bytes(token_budget), memory.sequence_bytes(length) / length, own)


def growth_bytes(model: Model, gpu: Gpu, layout: Layout, precision: Precision) -> float:
    """Bytes by which a token lengthens a sequence's KV cache on one GPU; of layers with a window at a context of
    CONTEXT."""
    values = model.kv_values_per_token - model.state_values / CONTEXT
    return values * gpu.kv_bytes(precision) / min(layout.tp, model.kv_heads) / layout.pp


def state_bytes(model: Model, layout: Layout) -> float:
    """Bytes that a sequence keeps on one GPU whatever its length, at any precision of weights and cache."""
    return 2.0 * model.state_values / layout.tp / layout.pp


def roofline_law(model: Model, gpu: Gpu, layout: Layout, precision: Precision) -> StepLaw:
    """Reading the weights and the KV cache at a share of the bandwidth; 2 FLOPs a parameter and token; attention's
    4 FLOPs per head dimension and pair of tokens, in bf16; what TP exchanges, over the link."""
    reached, tp = EFFICIENCY[model.kind], layout.tp
    whole = replace(layout, pp=1)
    width = model.heads * model.head_size
    link = gpu.link_bytes_per_s * (1.0 if gpu.link_bytes_per_s > BUS_BYTES_PER_S else PCIE_SHARE)
    exchange_s = EXCHANGED_BYTES * model.layers * width * (tp - 1) / tp / link
    return StepLaw(
        weights_s=weight_bytes(model, whole, precision) / (gpu.bandwidth_bytes_per_s * reached.weights),
        overhead_s=reached.layer_s * model.layers,
        token_s=2 * model.active_parameters / tp / (gpu.peak_flops_per_s(precision) * reached.arithmetic) + exchange_s,
        sequence_s=state_bytes(model, whole) / (gpu.bandwidth_bytes_per_s * reached.cache),
        kv_token_s=growth_bytes(model, gpu, whole, precision) / (gpu.bandwidth_bytes_per_s * reached.cache),
        attention_s=4 * model.layers * width / tp / (gpu.peak_flops_per_s("bf16") * reached.arithmetic),
        prefill_s=reached.prompt_layer_s * model.layers,
        unread=unread_share(model, layout),
        unread_decay=model.unrouted**layout.dp,
    )


KERNEL_SIGMA = MappingProxyType({"dense": 0.17, "moe": 0.14, "moe_blackwell": 0.20})
"""Relative error of summed kernels' times per output token, for fits, which lean on the kernels alone: such that 1.645
of it covers 90 % of the sample of real servers in the kernel database, each row by its own engine and layout: 856 of
dense models (mean error 14 %), 272 of MoE models on Hopper (12 %), 503 on Blackwell (17 %)."""
ROUGH_FIT = 0.10
SLOW = 1.5
"""Factor over bf16 from which narrower weights, which should be faster, were timed with untuned kernels: MoE models in
fp8 by vLLM on H100 and H200, and in fp8_block on L40S."""


def estimate(
    model: str,
    gpu: str,
    layout: Layout | int,
    precision: str,
    lengths: Lengths,
    *,
    engine: str = "",
    max_batch_size: int = 256,
    token_budget: int = 8192,
) -> Candidate:
    """A candidate for `model` in a layout (a number is its TP), with the law fitted to kernel timings over batches and
    contexts that fit, and corrected by what measured servers of its kind have beyond their kernels (see
    sizing.estimate.silicon).

    `model` is a Hugging Face id of the catalogue or a folder or file with a config.json; `engine` is one of ENGINES, or
    empty for the first of them with timings. Where the one asked for has none, another answers, then the law of a
    relative, scaled, then the roofline. The warnings say where the answer stands on less than was asked. `lengths`
    decide how many tokens the KV cache holds if some layers keep a window only. Raises CatalogueError for an unknown
    model or GPU and a configuration that cannot be used, EstimateUnavailable if the pair cannot run so or there is no
    such engine, DoesNotFit if memory lacks for one request.
    """
    batching = Batching("chunked", max_batch_size, token_budget)
    asked = layout if isinstance(layout, Layout) else Layout(layout)
    return _estimated(model, gpu, asked, precision, lengths, batching, engine, as_measured=True)


def _estimated(
    model: str,
    gpu: str,
    layout: Layout,
    precision: str,
    lengths: Lengths,
    batching: Batching,
    engine: str,
    *,
    as_measured: bool,
) -> Candidate:
    if engine and engine not in ENGINES:
        raise EstimateUnavailable(f"engine {engine!r} is not one of {', '.join(ENGINES)}")
    chip = catalog.gpu(gpu)
    shape = known(model)
    form = _precision(shape, chip, precision)
    _check_split(shape, layout)
    case = _Case(shape, chip, layout, form, lengths, batching, engine, as_measured)
    try:
        case, timed = _timed(case)
    except EstimateUnavailable as error:
        return _from_relative(case, str(error)) or _from_roofline(case, str(error))
    return _from_timings(timed, case)


@dataclass(frozen=True, slots=True)
class _Case:
    model: Model
    gpu: Gpu
    layout: Layout
    precision: Precision
    lengths: Lengths
    batching: Batching
    engine: str
    as_measured: bool

    @property
    def length(self) -> int:
        """Tokens of a request at its end."""
        return math.ceil(self.lengths.isl + self.lengths.osl)


def _timed(case: _Case) -> tuple[_Case, Timed]:
    """Timings of the engine asked for, else of the first that has any; of experts split in another way where those
    split as asked were not timed. The case returned has the layout of the timings."""
    if not case.gpu.timed:
        raise EstimateUnavailable(f"nothing was timed on {case.gpu.name}")
    if case.model.id not in catalog.models():
        raise EstimateUnavailable("nobody has timed this model")
    if not _is_timed_form(case):
        raise EstimateUnavailable(f"{case.gpu.name} has no arithmetic in {case.precision} and unpacks the weights")
    reasons: list[str] = []
    for engine in _preferred(case):
        for each in _splits(case):
            try:
                return each, shipped(case.model, case.gpu.id, each.layout, case.precision, engine)
            except EstimateUnavailable as error:
                reasons.append(str(error))
    raise EstimateUnavailable("; ".join(dict.fromkeys(reasons)))


def _is_timed_form(case: _Case) -> bool:
    """True if kernels were timed with weights as packed as these."""
    return case.precision in case.gpu.precisions or bool(case.model.timed_on(case.gpu.id))


def _splits(case: _Case) -> list[_Case]:
    """As asked, then with experts split whole, then by matrix."""
    ways = case.layout.tp * case.layout.dp if case.model.kind == "moe" else 1
    splits = dict.fromkeys((case.layout.ep, ways, 1))
    return [replace(case, layout=replace(case.layout, ep=ep)) for ep in splits]


def _preferred(case: _Case) -> tuple[str, ...]:
    """The engines, the one asked for first."""
    return tuple(dict.fromkeys((case.engine, *ENGINES) if case.engine else ENGINES))


def _from_relative(case: _Case, why: str) -> Candidate | None:
    """With the law of the nearest model that was timed on as many of these GPUs in this precision; None without one.

    Memory is the roofline's: DoesNotFit as there.
    """
    way = replace(case.layout, pp=1), case.precision
    found_at = relative_of(case.model, case.gpu.id, [way], _preferred(case))
    if found_at is None:
        return None
    relative, engine = found_at
    replica = roofline(case.model, case.gpu, case.layout, case.precision, case.lengths, case.batching, engine)
    found = shipped(relative, case.gpu.id, *way, engine)
    extra = 0.0 if distance(case.model, relative) < TWIN else RELATIVE_SIGMA[case.model.kind]
    known = case.model if extra else relative
    law, ahead, error = _of_kind(scaled(found.law, relative, case.model, case.layout), found, case, known)
    sigma = math.hypot(error, extra)
    how = "scaled" if extra else "of the same shape"
    source = f"law of {relative.name}, {how} ({_timings_of(found, case)})"
    told = Caution("scaled_law", {"why": why, "relative": relative.name, "factor": _factor(extra)})
    slower = slower_than_bf16(found, relative, case.gpu.id, *way, case.length)
    warnings = (*_other_engine(found, case), *([told] if extra else []), *_doubts(case), *slower)
    replica = Replica(law, replace(replica.batching, lookahead_steps=ahead))
    return _candidate(case, replica, found.backend, source, sigma, warnings)


def relative_of(
    model: Model, gpu: str, ways: Sequence[tuple[Layout, Precision]], engines: Sequence[str]
) -> tuple[Model, str] | None:
    """The nearest model that was timed on the GPU in each of these layouts and precisions, by the first of the engines
    that has one, and that engine; None without one."""
    timed = [_timed_models().get((gpu, str(layout), precision), {}) for layout, precision in ways]
    for engine in engines:
        names = [each for each in timed[0].get(engine, ()) if all(each in other.get(engine, ()) for other in timed[1:])]
        if found := nearest(model, (catalog.models()[each] for each in names if each in catalog.models())):
            return found, engine
    return None


@cache
def _timed_models() -> Mapping[tuple[str, str, str], Mapping[str, list[str]]]:
    """By GPU, layout and precision, then by engine: names of the models with a shipped law. Names alone are kept: all
    rows take a hundred megabytes."""
    found: dict[tuple[str, str, str], dict[str, list[str]]] = {}
    for row in _rows_in(LAWS):
        if not row["why_not"]:
            key = row["gpu"], str(layout_of(row)), row["precision"]
            found.setdefault(key, {}).setdefault(row["engine"], []).append(row["model"])
    return found


def _factor(sigma: float) -> float:
    """By how much times may be longer or shorter in 9 of 10 cases."""
    return math.exp(Z90 * sigma)


def _from_roofline(case: _Case, why: str) -> Candidate:
    names = case.model, case.gpu, case.layout, case.precision
    replica = roofline(*names, case.lengths, case.batching, case.engine)
    source = f"roofline from the data sheet of {case.gpu.name}"
    extra = ROOFLINE_SIGMA[case.model.kind] if case.gpu.timed and _is_timed_form(case) else UNTIMED_SIGMA
    sigma = math.hypot(KERNEL_SIGMA[_sample(case)], extra)
    caution = Caution("no_timings", {"why": why, "factor": _factor(sigma)})
    return _candidate(case, replica, case.engine, source, sigma, (caution, *_doubts(case)))


def _from_timings(timed: Timed, case: _Case) -> Candidate:
    kv_tokens = timed.memory.kv_tokens(case.length, case.batching.token_budget)
    if kv_tokens < case.length:
        raise _does_not_fit(timed, case)
    law, ahead, sigma = _of_kind(timed.law, timed, case, case.model)
    replica = Replica(law, replace(case.batching, kv_tokens=kv_tokens, lookahead_steps=ahead))
    warnings = tuple(_warnings(timed, case))
    return _candidate(case, replica, timed.backend, _timings_of(timed, case), sigma, warnings)


def _timings_of(timed: Timed, case: _Case) -> str:
    """Where a law comes from, for `Candidate.source`."""
    measured = ", corrected by measured servers" if case.as_measured else ""
    return f"{kernels.LIBRARY}, {timed.backend} {timed.version}{measured}"


RANKS_SIGMA, STAGES_SIGMA = 0.35, 0.15
"""Relative error that data-parallel ranks and pipeline stages add. For ranks, measured servers give 21 usable rows from
four servers: predicted times per output token are 55 % too long in the median, and 90 % lie within 1.645 sigma with
this error. For stages there are none: that value is a guess."""


def _candidate(
    case: _Case, replica: Replica, engine: str, source: str, sigma: float, warnings: tuple[Caution, ...]
) -> Candidate:
    running = engine_named(case.engine or engine)
    usual = engine_defaults(running)
    rule = replace(
        replica.batching,
        policy=estimated_policy(running),
        kv_policy=usual.kv_policy,
        kv_block_tokens=usual.kv_block_tokens,
    )
    whole = of_layout(replace(replica, batching=rule), case.layout, case.model, case.lengths)
    sigma = math.hypot(sigma, RANKS_SIGMA if case.layout.dp > 1 else 0.0, STAGES_SIGMA if case.layout.pp > 1 else 0.0)
    names = (case.model.id, case.gpu.id, case.layout, case.precision)
    return Candidate(*names, whole, "estimated", source, sigma, engine=engine, warnings=warnings)


def _offered(model: Model, gpu: Gpu, asked: str) -> Precision | None:
    wanted = catalog.precision_of(model, asked)
    return wanted if wanted in catalog.precisions(gpu, model) else None


def _precision(model: Model, gpu: Gpu, asked: str) -> Precision:
    found = _offered(model, gpu, asked)
    if found is not None:
        return found
    if offered := catalog.precisions(gpu, model):
        raise EstimateUnavailable(f"{model.name} runs in {' or '.join(offered)} on {gpu.id}, not in {asked}")
    raise EstimateUnavailable(f"{model.name} is published in {model.checkpoint}, which {gpu.id} does not run")


def _check_split(model: Model, layout: Layout) -> None:
    if (layout.dp > 1 or layout.ep > 1) and model.kind == "dense":
        raise EstimateUnavailable(f"{model.name} has no experts, for which DP and EP are: use TP and PP")
    if layout.pp > model.layers:
        raise EstimateUnavailable(f"{model.name} has {model.layers} layers, too few for PP{layout.pp}")
    if model.heads % (tp := layout.tp):
        fits = [n for n in (1, 2, 4, 8, 16) if model.heads % n == 0]
        raise EstimateUnavailable(
            f"{model.name} has {model.heads} attention heads, which TP{tp} does not divide; use TP of {fits}"
        )


def _of_kind(law: StepLaw, timed: Timed, case: _Case, model: Model) -> tuple[StepLaw, float, float]:
    """The law, corrected by what measured servers of its kind have beyond their kernels; the steps that these look
    ahead, with which the corrections were learnt; and the law's relative error: of the corrections, larger for a
    `model` that was not measured, and of the law against its timings."""
    if not case.as_measured:
        return law, 0.0, math.hypot(KERNEL_SIGMA[_sample(case)], timed.rms_error)
    server = Server(timed.backend, case.gpu.id, case.precision, case.model.kind, timed.version, model.shape)
    law, sigma = corrected(law, server)
    return law, server.lookahead_steps, math.hypot(sigma, timed.rms_error)


def _sample(case: _Case) -> str:
    on_blackwell = generation(case.gpu) == "blackwell"
    return "moe_blackwell" if case.model.kind == "moe" and on_blackwell else case.model.kind


def _warnings(timed: Timed, case: _Case) -> Iterator[Caution]:
    yield from _other_engine(timed, case)
    yield from _doubts(case)
    yield from slower_than_bf16(timed, case.model, case.gpu.id, case.layout, case.precision, case.length)
    if timed.rms_error > ROUGH_FIT:
        yield Caution("rough_timings", {"rms_error": timed.rms_error})


def _other_engine(timed: Timed, case: _Case) -> Iterator[Caution]:
    if case.engine and timed.backend != case.engine:
        yield Caution("other_engine", {"asked": case.engine, "used": timed.backend})


def slower_than_bf16(
    timed: Timed, model: Model, gpu: str, layout: Layout, precision: Precision, context: float
) -> Iterator[Caution]:
    """The caution on kernels with which a decode step of 64 requests of `context` tokens takes much longer than with
    the same engine's in bf16; none where those were not timed."""
    try:
        in_bf16 = shipped(model, gpu, layout, "bf16", timed.backend)
    except EstimateUnavailable:
        return
    step = 64, 64 * context
    if (factor := timed.law.decode_s(*step) / in_bf16.law.decode_s(*step)) > SLOW:
        yield Caution("slower_than_bf16", {"precision": precision, "engine": timed.backend, "factor": factor})


def _doubts(case: _Case) -> Iterator[Caution]:
    """What kernel timings are known to get wrong."""
    if _sample(case) == "moe_blackwell":
        yield Caution("moe_on_blackwell")


def _does_not_fit(timed: Timed, case: _Case) -> DoesNotFit:
    def missing_bytes(memory: Memory) -> float:
        return memory.missing_bytes(case.length, case.batching.token_budget)

    missing, model, engine = missing_bytes(timed.memory), case.model, timed.backend
    larger = [each for each in layouts(model, case.gpu, case.precision) if each.gpus > case.layout.gpus]
    known = (each for each in larger if engine in timed_engines(model, case.gpu.id, each, case.precision))
    memories = ((each, shipped(model, case.gpu.id, each, case.precision, engine).memory) for each in known)
    enough = next((each for each, memory in memories if not missing_bytes(memory)), None)
    hint = f"{enough} is the smallest that fits" if enough else "no layout that is known fits"
    label = f"{model.name} {case.precision} on {case.gpu.id} {case.layout}"
    return DoesNotFit(f"{label} needs {missing / 1e9:.1f} GB more per GPU; {hint}", missing)


class DayZero(NamedTuple):
    """What is known about a deployment before it is measured: its law, the relative standard error of the law's times,
    and the size of the KV cache in tokens (None if unknown)."""

    law: StepLaw | None
    error: float
    kv_tokens: int | None


def prior_law(deployment: Deployment, lengths: Lengths) -> DayZero | None:
    """The day-zero law of a measured deployment, for its fit to lean on: from kernel timings, else the roofline. None
    where the catalogue lacks model or GPU. From kernels alone, without the corrections of an estimate: how far a fit
    trusts each coefficient was chosen for those, on servers from which the corrections were learnt."""
    model, precision = catalog.of_shape(deployment.model), catalog.precision_named(deployment.precision)
    gpu = catalog.known_gpu(deployment.gpu)
    if model is None or precision is None or gpu is None:
        return None
    model, layout = _packed(model, gpu, precision), Layout(deployment.tp, deployment.pp)
    try:
        engine = engine_named(deployment.engine)
        names = model.id, gpu.id, layout, precision
        own = engine if engine in ENGINES else ""
        known = _estimated(*names, lengths, Batching("chunked"), own, as_measured=False)
    except (CatalogueError, DoesNotFit, EstimateUnavailable):
        law = roofline_law(model, gpu, layout, precision)
        return DayZero(law, math.hypot(KERNEL_SIGMA[model.kind], UNTIMED_SIGMA), None)
    law = known.replica.law
    if law.attention_s == 0:  # too small to show in the timings of a prompt, so taken from the shape
        law = law.with_values(attention_s=law.token_s * attention_share(model))
    return DayZero(law, known.relative_sigma, known.replica.batching.kv_tokens)


def _packed(model: Model, gpu: Gpu, precision: Precision) -> Model:
    """The model; where it was not published in this precision, another of its shape that was: names of measured servers
    often leave out how the checkpoint was packed."""
    alike = (other for other in catalog.models().values() if other.shape == model.shape)
    return next((each for each in (model, *alike) if _offered(each, gpu, precision)), model)


def attention_share(model: Model) -> float:
    """The attention of a pair of a prompt's tokens over the arithmetic of a token: 4 FLOPs per head dimension over 2 a
    parameter, at the same efficiency. Too much for layers with a window or a state in place of a cache."""
    return 2 * model.layers * model.heads * model.head_size / model.active_parameters


def token_share(gpu_name: str, precision: str) -> float | None:
    """A token's arithmetic over the reading of the weights, of a dense model whose shape is unknown: bandwidth over
    FLOP/s, whatever its size and TP. None where the catalogue lacks GPU or precision.

    The kernel timings of the catalogue's dense models have 1.0 times this in the median, with a standard deviation of
    40 % on servers with NVLink; MoE models, which multiply by few of the weights that they read, have a third of it.
    """
    named, chip = catalog.precision_named(precision), catalog.known_gpu(gpu_name)
    if named is None or chip is None:
        return None
    return 2 * chip.bandwidth_bytes_per_s / (BITS[named] / 8 * chip.peak_flops_per_s(named))
