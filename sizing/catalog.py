"""The GPUs and models the planner knows, read from data/catalog/*.yaml: names, memory, speed, shapes, precisions.

Also the layouts in which GPUs share a model (tensor, pipeline, attention-data and expert parallelism), and the effect
of each on the law of one pass through the model.

Only estimates look names up here: measured points may carry any model and GPU name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from sizing.engine import Replica
from sizing.errors import LONGEST_QUOTE, CatalogueError, ScenarioError, YamlError, first_fault, quoted
from sizing.files import read_yaml, resource
from sizing.workload import Lengths

Precision = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BITS: Mapping[Precision, float] = MappingProxyType(
    {"bf16": 16, "fp8": 8, "fp8_block": 8, "nvfp4": 4.5, "mxfp4": 4.25, "int4": 4.15625}
)
"""Bits a weight takes, scales included: NVFP4 has an 8-bit scale per 16 weights, MXFP4 one per 32; AWQ and
GPTQ have one of 16 bits, and a zero of 4, per 128."""
_SPELLINGS: Mapping[str, Precision] = MappingProxyType(
    {"fp16": "bf16", "float16": "bf16", "bfloat16": "bf16", "fp4": "nvfp4"}
)
"""Other names of precisions; weights in FP16 take as many bytes and as long as in BF16."""
CATALOG = resource("data/catalog")
NEAREST = 3
ALIKE = 0.6
"""Similarity (difflib's ratio, and its default cutoff) from which a name is taken for a misspelling."""
CONTEXT = 4096
"""Tokens over which windows and states of fixed size are spread, in `Model.kv_values_per_token`."""

_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_Entry = TypeVar("_Entry", "Gpu", "Model")


@validated(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Gpu:
    """One GPU: memory in bytes, bandwidth in bytes/s, dense FLOP/s by operand format (bf16, fp8, fp4).

    `precisions`: formats of the matrix products that run, most accurate first. `unpacks`: formats of weights that run
    too, unpacked to bf16. `power_w`: its thermal design power in watts, None =
    not known. `source` names the origin of the figures. `timed`: kernels were timed on it; without timings, these
    figures are all that is known of its speed, and it is compared only if requested by name.
    """

    id: str
    name: str
    memory_bytes: _Count
    bandwidth_bytes_per_s: _Positive
    link_bytes_per_s: _Positive = 64e9
    """To the other GPUs of the server, in one direction; unless the file gives it, PCIe 5 with 16 lanes."""
    flops_per_s: dict[Literal["bf16", "fp8", "fp4"], _Positive]
    precisions: tuple[Precision, ...]
    gpus_per_server: _Count
    source: str
    unpacks: tuple[Precision, ...] = ()
    power_w: _Positive | None = None
    timed: bool = True

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Dense FLOP/s of matrix products at this precision; weights that are unpacked compute in bf16."""
        operand: Literal["fp8", "fp4", "bf16"] = (
            "fp8" if precision.startswith("fp8") else "fp4" if precision == "nvfp4" else "bf16"
        )
        return self.flops_per_s.get(operand, self.flops_per_s["bf16"])

    def kv_bytes(self, precision: Precision) -> float:
        """Bytes of a number of the KV cache, as engines choose it for weights of this precision unless told otherwise:
        two on a GPU without fp8."""
        return 1.0 if precision in ("fp8", "fp8_block", "nvfp4") and "fp8" in self.flops_per_s else 2.0


@validated(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Model:
    """One model: its Hugging Face id, its size and the shape of its attention.

    `active_parameters`: those a token passes through (all, if dense). `unrouted`: share of an MoE model's experts that
    a token does not pass through (0, if dense). `checkpoint`: precision of the published weights. `kv_heads`: over how
    many GPUs the KV cache can be split (1 for latent attention). `kv_values_per_token`: numbers a token leaves in the
    KV cache, over all layers, at a context of CONTEXT.
    `state_values`: numbers of 16 bits that a sequence keeps whatever its length, in layers with a recurrent state;
    their share of a token at that context is in `kv_values_per_token`.
    `max_context_tokens`: longest prompt and output together, None = not known.
    `timings`: engine -> GPUs for which the kernel database was checked to serve this model.
    """

    id: str
    name: str
    kind: Literal["dense", "moe"]
    checkpoint: Precision
    parameters: _Positive
    active_parameters: _Positive
    unrouted: Annotated[float, Field(ge=0, lt=1)] = 0.0
    layers: _Count
    heads: _Count
    kv_heads: _Count
    head_size: _Count
    kv_values_per_token: _Count
    state_values: Annotated[int, Field(ge=0)] = 0
    max_context_tokens: _Count | None = None
    timings: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    @property
    def shape(self) -> str:
        """Everything that determines the time of an iteration: models that differ only in their training share it."""
        return f"{self.kind} {self.parameters:.4g} {self.layers} {self.heads}"

    def timed_on(self, gpu: str) -> tuple[str, ...]:
        """Engines for which the kernel database was checked to serve this model on `gpu`."""
        return tuple(engine for engine, systems in self.timings.items() if gpu in systems)


@cache
def gpus() -> Mapping[str, Gpu]:
    """All GPUs by name. Raises CatalogueError, naming file and key, if the file is faulty."""
    return read(CATALOG / "gpus.yaml", Gpu)


@cache
def models() -> Mapping[str, Model]:
    """All models by Hugging Face id. Raises CatalogueError, naming file and key, if the file is faulty."""
    return read(CATALOG / "models.yaml", Model)


def timed_gpus() -> tuple[str, ...]:
    """Names of the GPUs on which kernels were timed."""
    return tuple(name for name, entry in gpus().items() if entry.timed)


_own: dict[str, Model] = {}
OWN = "config.json"
"""Used in the id of a model given by its configuration, before a digest of the contents."""
MOST_OWN = 1000


def keep(model: Model) -> Model:
    """Make `model` findable by its id from now on, in this process: the planner refers to every model by name.

    Beyond MOST_OWN models, the oldest are forgotten.
    """
    _own.pop(model.id, None)
    _own[model.id] = model
    while len(_own) > MOST_OWN:
        _own.pop(next(iter(_own)), None)
    return model


@contextmanager
def forgotten_after() -> Iterator[None]:
    """Forget models kept inside the block when it ends: a server's questions do not see each other's models."""
    before = dict(_own)
    try:
        yield
    finally:
        _own.clear()
        _own.update(before)


def own(name: str) -> Model | None:
    """The model with that id that was kept in this process."""
    return _own.get(name)


def gpu(name: str) -> Gpu:
    """The GPU of that name, in any letter case; else CatalogueError with the nearest names.

    >>> gpu("H200_SXM").name
    'NVIDIA H200 SXM 141 GB'
    """
    return _find("GPU", name, gpus())


def known_gpu(name: str) -> Gpu | None:
    """The GPU of that name, in any letter case; None if the catalogue does not know it."""
    try:
        return gpu(name)
    except CatalogueError:
        return None


def memory_bytes(gpu_name: str) -> float:
    """Memory of the GPU of that name; 0 if the catalogue does not know it."""
    found = known_gpu(gpu_name)
    return found.memory_bytes if found else 0.0


def model(name: str) -> Model:
    """The model of that Hugging Face id, or of its last part if that names one model; else CatalogueError.

    A fine-tuned sibling (Instruct, Chat) has the shape of its base, and timing does not depend on the weights' values.

    >>> model("qwen3-32b").id
    'Qwen/Qwen3-32B'
    >>> model("meta-llama/Llama-3.1-8B-Instruct").id
    'meta-llama/Meta-Llama-3.1-8B'
    """
    if name in _own:
        return _own[name]
    return _find("model", name, models(), _base_name)


def of_shape(name: str) -> Model | None:
    """The model of that name, else one of its shape: dates and precisions in a name do not change the number of
    weights. None if the catalogue has none, or models of several shapes.

    >>> of_shape("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8").active_parameters > 21e9, of_shape("my/own-model")
    (True, None)
    """
    try:
        return model(name)
    except CatalogueError:
        alike = [entry for key, entry in models().items() if _shape_name(key) == _shape_name(name)]
    shapes = {(entry.parameters, entry.active_parameters, entry.unrouted) for entry in alike}
    return alike[0] if len(shapes) == 1 else None


def unread_shares(name: str) -> tuple[float, float] | None:
    """`unread` and `unread_decay` of the model's law from its shape alone, None for a model that the catalogue lacks.

    A lone token reads the parameters it passes through; n tokens read all but unread x unread_decay^(n-1), if each
    passes through its experts independently; (0, 0) for a dense model.

    >>> [round(share, 3) for share in unread_shares("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8")]
    [0.908, 0.938]
    >>> unread_shares("meta-llama/Llama-3.1-70B-Instruct-FP8"), unread_shares("my/own-model")
    ((0.0, 0.0), None)
    """
    found = of_shape(name)
    if found is None:
        return None
    return (1 - found.active_parameters / found.parameters, found.unrouted) if found.unrouted else (0.0, 0.0)


PACKING = re.compile(r"-(fp8|fp4|nvfp4|mxfp4|int4|bf16|awq|w4a16|w8a8|quantized|dynamic|block|\d{4})(?=-|$)")
"""Parts of a model's name that say in which precision it was packed, or when."""


def _shape_name(key: str) -> str:
    return _base_name(PACKING.sub("", key.casefold()))


SIBLING = re.compile(r"^meta-|-(instruct|chat|it|hf)(?=-v?[\d.]+$|$)")
"""Parts of a model's name that say how it was tuned or once called, not how large it is."""


def _base_name(key: str) -> str:
    return SIBLING.sub("", _last(key))


def precisions(gpu: Gpu, model: Model) -> tuple[Precision, ...]:
    """How `model` can run on `gpu`: a bf16 checkpoint in every precision of the chip, any other only as published, with
    weights that are unpacked where the chip has no such arithmetic.

    >>> precisions(gpus()["h100_sxm"], models()["Qwen/Qwen3-32B"])
    ('bf16', 'fp8', 'fp8_block')
    >>> packed = models()["nvidia/Qwen3-235B-A22B-NVFP4"]
    >>> precisions(gpus()["h100_sxm"], packed), precisions(gpus()["mi300x"], packed)
    (('nvfp4',), ())
    """
    if model.checkpoint == "bf16":
        return gpu.precisions
    runs = model.checkpoint in (*gpu.precisions, *gpu.unpacks) or model.timed_on(gpu.id)
    return (model.checkpoint,) if runs else ()


def precision_named(name: str) -> Precision | None:
    """The precision that a name in use means; None for one that the catalogue does not know.

    >>> precision_named("FP16")
    'bf16'
    """
    wanted = name.strip().casefold()
    return next((each for each in PRECISIONS if each == _SPELLINGS.get(wanted, wanted)), None)


def precision_of(model: Model, name: str) -> Precision | None:
    """The precision that a name means of this model: fp8 is blockwise where its checkpoint exists in no other fp8."""
    precision = precision_named(name)
    return "fp8_block" if precision == "fp8" and model.checkpoint == "fp8_block" else precision


def _find(what: str, name: str, known: Mapping[str, _Entry], alike: Callable[[str], str] | None = None) -> _Entry:
    """The entry of that name, else the only one with that last part, else the only one that `alike` maps to the
    same."""
    wanted = name.strip().casefold()
    found = [entry for key, entry in known.items() if key.casefold() == wanted]
    found = found or [entry for key, entry in known.items() if _last(key) == wanted]
    if alike is not None:
        found = found or [entry for key, entry in known.items() if alike(key) == alike(wanted)]
    if len(found) == 1:
        return found[0]
    if re.search(rf"\({OWN} [0-9a-f]{{8}}\)$", name):
        raise CatalogueError(f"unknown {what} {name!r}: give its {OWN} again, which no link or file carries")
    near = nearest(name, known)
    hint = f"did you mean {_or(near)}?" if near else f"known: {', '.join(list(known)[:12])} ..."
    raise CatalogueError(f"unknown {what} {name!r}: {hint}")


def _last(key: str) -> str:
    return key.casefold().rpartition("/")[2]


def nearest(name: str, known: Mapping[str, object]) -> list[str]:
    """Up to three known names like `name`, the nearest in spelling first: of those that contain it or that it contains,
    else of all. A GPU is as near as what is before its form: ``h300`` is like ``h100_sxm``."""
    wanted = _last(name.strip())[:LONGEST_QUOTE]
    parts = {key: {_last(key), key.casefold().partition("_")[0] if "/" not in key else _last(key)} for key in known}
    near = {key: max(difflib.SequenceMatcher(None, part, wanted).ratio() for part in parts[key]) for key in known}
    inside = [
        key
        for key in known
        if len(wanted) > 1 and (wanted in key.casefold() or any(map(wanted.__contains__, parts[key])))
    ]
    return sorted(inside or [key for key in known if near[key] >= ALIKE], key=near.__getitem__, reverse=True)[:NEAREST]


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def read(path: Path, kind: type[_Entry]) -> Mapping[str, _Entry]:
    """The entries of one catalogue file. Raises CatalogueError with the file, the entry and the key at fault."""
    try:
        content = read_yaml(path, "catalogue file")
    except YamlError as error:
        raise CatalogueError(str(error)) from None
    if not isinstance(content, dict) or not content:
        raise CatalogueError(f"{path}: expected a mapping of names to entries")
    adapter = TypeAdapter(kind)
    return MappingProxyType({name: _entry(adapter, name, raw, path) for name, raw in content.items()})


def _entry(adapter: TypeAdapter[_Entry], name: str, raw: Any, path: Path) -> _Entry:
    if not isinstance(raw, dict):
        raise CatalogueError(f"{path}, {name}: expected a mapping of keys to values, got {quoted(raw)}")
    try:
        return adapter.validate_python({"id": name, **raw})
    except ValidationError as error:
        fault = first_fault(error)
        raise CatalogueError(f"{path}, {name}, key {fault.key!r}: {fault.reason}") from None


MOST_WAYS = 1024
"""GPUs along one kind of parallelism; layouts in use stay below this."""


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """`tp` GPUs share every matrix; `pp` stages of such groups hold consecutive layers; `dp` ranks of such groups
    compute attention for their own requests and share the experts, which are split `ep` ways whole and the rest of the
    way by matrix. A dense model has `dp` and `ep` 1.
    >>> Layout(tp=2, dp=4, ep=8).gpus, str(Layout(tp=2, dp=4, ep=8)), str(Layout(dp=8, ep=8)), str(Layout(4, 2))
    (8, 'TP2 DP4 EP8', 'DP8 EP8', 'TP4 PP2')
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    def __post_init__(self) -> None:
        for name in ("tp", "pp", "dp", "ep"):
            if not 1 <= getattr(self, name) <= MOST_WAYS:
                raise ScenarioError(f"{name} of a layout must be from 1 to {MOST_WAYS}, got {getattr(self, name)}")
        if self.tp * self.dp % self.ep:
            raise ScenarioError(f"layout {self}: {self.tp * self.dp} GPUs do not split experts {self.ep} ways")

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp * self.dp

    @property
    def lanes(self) -> int:
        """Batches that a replica works on at once: one per stage and one per rank."""
        return self.pp * self.dp

    def __str__(self) -> str:
        ways = {"TP": self.tp, "PP": self.pp, "DP": self.dp, "EP": self.ep}
        shown = [f"{name}{count}" for name, count in ways.items() if count > 1]
        return " ".join(shown) or "TP1"

    def as_dict(self) -> dict[str, int]:
        """The keys of JSON answers."""
        return {"tp": self.tp, "pp": self.pp, "dp": self.dp, "ep": self.ep}

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout of a word such as ``tp8``, ``tp4pp2``, ``dp8ep8`` or ``TP2 DP4 EP8``; else ScenarioError.

        >>> Layout.parse("tp2dp4ep8") == Layout(tp=2, dp=4, ep=8), Layout.parse("TP4 PP2").gpus
        (True, 8)
        """
        word = "".join(text.casefold().split())
        parts = re.findall(r"(tp|pp|dp|ep)(\d{1,4})", word)
        ways = dict(parts)
        if not parts or "".join(map("".join, parts)) != word or len(ways) < len(parts):
            raise ScenarioError(f"layout {text!r}: write it as tp8, tp4pp2, tp8ep8 or dp8ep8")
        return cls(**{name: int(count) for name, count in ways.items()})


TENSOR_PARALLEL = (1, 2, 4, 8)
BUS_BYTES_PER_S = 1e11
"""Below this, GPUs are connected by a bus, over which stages exchange far less than tensor parallelism does."""
LARGE = 0.4
"""Share of the memory of eight GPUs: models whose weights take more are also spread over several servers."""


def layouts(model: Model, gpu: Gpu, precision: Precision) -> list[Layout]:
    """The layouts commonly used with engines, smallest first, tensor parallelism before others.

    On up to eight GPUs (a server or part of a rack): tensor parallelism; also stages if the link is slow; for MoE
    models also whole experts, with either tensor-parallel or data-parallel attention. Beyond eight, for models that
    take LARGE of them: the same on 16, two and four stages of eight, and experts over 32.
    """
    most, weight_bytes = TENSOR_PARALLEL[-1], model.parameters * BITS[precision] / 8
    large = weight_bytes > LARGE * most * gpu.memory_bytes
    ways = (*TENSOR_PARALLEL, 2 * most) if large else TENSOR_PARALLEL
    found = [Layout(tp) for tp in ways]
    if gpu.link_bytes_per_s < BUS_BYTES_PER_S:
        found += [Layout(tp, pp) for tp in TENSOR_PARALLEL for pp in (2, 4, 8) if tp * pp <= most]
    if model.kind == "moe":
        for gpus in ways[1:]:
            found += [Layout(gpus, ep=gpus), Layout(dp=gpus, ep=gpus)]
        found += [Layout(2, dp=most // 2, ep=most), Layout(most // 2, dp=2, ep=most)]
    if large:
        found += [Layout(most, pp) for pp in (2, 4)]
        found += [Layout(dp=4 * most, ep=4 * most)] if model.kind == "moe" else []
    splits = [layout for layout in dict.fromkeys(found) if model.heads % layout.tp == 0]
    return sorted(splits, key=lambda each: (each.gpus, each.dp, each.pp, each.ep))


def of_layout(replica: Replica, layout: Layout, model: Model, lengths: Lengths) -> Replica:
    """The replica of all lanes, from that of one: the law of a whole pass through the model with one lane's batch.

    The lanes advance in lockstep, each with an equal part of the sequences, so a law of all tokens has each lane's part
    in every lane. The cost that one prompt adds is not divided: it runs in one lane. Other ranks wait for its attention
    and for the weights that every token passes through, but not for the experts, which all GPUs share; that part is
    charged to iterations with a prompt, for a chunk of the mean length. Other stages do not wait, so a prompt's own way
    through them is charged to its request. Ranks with unequal batches, and bubbles of a pipeline with fewer requests
    than stages, are not modelled.
    """
    if layout.lanes == 1:
        return replica
    law, batching, lanes = replica.law, replica.batching, layout.lanes
    chunk = min(lengths.isl, batching.token_budget)
    shared = 1 - routed_share(model)
    alone = 1 - 1 / layout.dp
    waits_s = alone * (law.token_s * chunk * shared + law.attention_s * chunk * (lengths.isl - chunk / 2))
    through_s = (1 - 1 / layout.pp) * (law.token_s * lengths.isl + law.attention_s * lengths.isl**2 / 2)
    decay = law.unread_decay ** (1 / layout.dp)
    others = decay ** (layout.dp - 1)  # what the tokens of the other ranks leave of what one leaves unread
    whole = law.with_values(
        token_s=law.token_s / lanes,
        sequence_s=law.sequence_s / lanes,
        kv_token_s=law.kv_token_s / lanes,
        attention_s=law.attention_s / lanes,
        prefill_s=law.prefill_s + waits_s,
        request_s=law.request_s + through_s,
        unread=min(max(law.unread, unread_share(model, layout) / others), law.unread / others) if decay else law.unread,
        unread_decay=decay,
    )
    together = replace(
        batching,
        max_batch_size=batching.max_batch_size * layout.dp,
        token_budget=batching.token_budget * lanes,
        kv_tokens=batching.kv_tokens * layout.dp,
    )
    return replace(replica, law=whole, batching=together)


def unread_share(model: Model, layout: Layout) -> float:
    """Share of a GPU's weights that one token in each rank leaves unread: of all its experts, and of nothing else.

    >>> qwen = models()["Qwen/Qwen3-235B-A22B"]
    >>> round(unread_share(qwen, Layout(8)), 3), round(unread_share(qwen, Layout(dp=8, ep=8)), 3)
    (0.908, 0.474)
    """
    routed = routed_parameters(model)
    experts, shared = routed / (layout.tp * layout.dp), (model.parameters - routed) / layout.tp
    return model.unrouted**layout.dp * experts / (experts + shared)


def routed_parameters(model: Model) -> float:
    """Parameters of the experts among which tokens are routed; 0 for a dense model.

    >>> round(routed_parameters(models()["deepseek-ai/DeepSeek-R1"]) / 1e9)
    655
    """
    return (model.parameters - model.active_parameters) / model.unrouted if model.unrouted else 0.0


def routed_share(model: Model) -> float:
    """Share of a token's arithmetic that is in the experts it is routed to."""
    return min(1.0, routed_parameters(model) * (1 - model.unrouted) / model.active_parameters)
