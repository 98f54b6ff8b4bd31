"""The GPUs and models the planner knows, read from data/catalog/*.yaml; names, memory, speed, shapes, precisions.

Only estimates look names up here: measured points may carry any model and GPU name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sizing.errors import CatalogueError, YamlError, first_fault, quoted
from sizing.places import resource
from sizing.yaml_file import read_yaml

Precision = Literal["bf16", "fp8", "fp8_block", "nvfp4", "mxfp4", "int4"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
BITS: Mapping[Precision, float] = MappingProxyType(
    {"bf16": 16, "fp8": 8, "fp8_block": 8, "nvfp4": 4.5, "mxfp4": 4.25, "int4": 4}
)
"""Bits a weight takes, scales included: NVFP4 has an 8-bit scale per 16 weights, MXFP4 one per 32."""
CATALOG = resource("data/catalog")
NEAREST = 3

_Positive = Annotated[float, Field(gt=0)]
_Count = Annotated[int, Field(ge=1)]
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)
_Entry = TypeVar("_Entry", "Gpu", "Model")


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Gpu:
    """One GPU: memory in bytes, bandwidth in bytes/s, dense FLOP/s by format of the operands (bf16, fp8, fp4).

    `precisions`: formats in which models run, most accurate first. `power_w`: its thermal design power in watts, None
    = not known. `source` names where the figures come from. `timed`: kernels were timed on it; without, all that is
    known of its speed are these figures, and it is compared only where it is asked for by name.
    """

    id: str
    name: str
    memory_bytes: _Count
    bandwidth_bytes_per_s: _Positive
    link_bytes_per_s: _Positive = 64e9
    """To the other GPUs of the server, one direction; where a file does not say, PCIe 5 with 16 lanes."""
    flops_per_s: dict[Literal["bf16", "fp8", "fp4"], _Positive]
    precisions: tuple[Precision, ...]
    gpus_per_server: _Count
    source: str
    power_w: _Positive | None = None
    timed: bool = True

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Dense FLOP/s of matrix products at this precision; weight-only formats compute in bf16."""
        operand: Literal["fp8", "fp4", "bf16"] = (
            "fp8" if precision.startswith("fp8") else "fp4" if precision == "nvfp4" else "bf16"
        )
        return self.flops_per_s.get(operand, self.flops_per_s["bf16"])


@dataclass(frozen=True, slots=True, kw_only=True, config=_STRICT)
class Model:
    """One model: its Hugging Face id, its size and the shape of its attention.

    `active_parameters`: those a token passes through (all, if dense). `unrouted`: share of a mixture's experts that a
    token does not pass through (0, if dense). `checkpoint`: precision of the published
    weights. `kv_heads`: over how many GPUs the KV cache can be split (1 for latent attention).
    `kv_values_per_token`: numbers a token leaves in the KV cache, over all layers, at a context of 4,096.
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
    max_context_tokens: _Count | None = None
    timings: dict[str, tuple[str, ...]] = Field(default_factory=dict)

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
"""In the id of a model that was given by what its configuration holds, before a digest of that."""
MOST_OWN = 1000


def keep(model: Model) -> Model:
    """Let `model` be found by its id from now on, in this process: the planner names a model wherever it means one.

    Of more than MOST_OWN the first are forgotten.
    """
    _own.pop(model.id, None)
    _own[model.id] = model
    while len(_own) > MOST_OWN:
        _own.pop(next(iter(_own)), None)
    return model


def own(name: str) -> Model | None:
    """The model of that id that was kept in this process."""
    return _own.get(name)


def gpu(name: str) -> Gpu:
    """The GPU of that name, in any letter case; else CatalogueError with the nearest names.

    >>> gpu("H200_SXM").name
    'NVIDIA H200 SXM 141 GB'
    """
    return _find("GPU", name, gpus())


def model(name: str) -> Model:
    """The model of that Hugging Face id, or of its last part where that names one model; else CatalogueError.

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
    """The model of that name, else one of its shape: dates and precisions in a name do not change how many weights it
    has. None where the catalogue has none, or models of several shapes.

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
    """`unread` and `unread_decay` of the model's law by its shape alone, None for a model that the catalogue lacks.

    A lone token reads the parameters it passes through, n tokens all but unread x unread_decay^(n-1), if each passes
    through its experts independently; (0, 0) for a dense model.

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
"""Parts of a model's name that say how it was tuned, packed or once called, not how large it is."""


def _base_name(key: str) -> str:
    return SIBLING.sub("", _last(key))


def precisions(gpu: Gpu, model: Model) -> tuple[Precision, ...]:
    """How `model` can run on `gpu`: a bf16 checkpoint in every precision of the chip, any other only as published.

    A model of one's own with 4-bit integer weights runs on every chip, which unpacks them to bf16.

    >>> precisions(gpus()["h100_sxm"], models()["Qwen/Qwen3-32B"])
    ('bf16', 'fp8', 'fp8_block')
    """
    if model.checkpoint == "bf16":
        return gpu.precisions
    unpacked = model.checkpoint == "int4" and model.id in _own
    runs = unpacked or model.checkpoint in gpu.precisions or model.timed_on(gpu.id)
    return (model.checkpoint,) if runs else ()


def _find(what: str, name: str, known: Mapping[str, _Entry], alike: Callable[[str], str] | None = None) -> _Entry:
    """The entry of that name, else the only one with that last part, else the only one that `alike` calls the same."""
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
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(list(known)[:12])} ..."
    raise CatalogueError(f"unknown {what} {name!r}: {hint}")


def _last(key: str) -> str:
    return key.casefold().rpartition("/")[2]


def nearest(name: str, known: Mapping[str, object]) -> list[str]:
    """Up to three known names like `name`: those that contain it or that it contains, else the nearest in spelling."""
    wanted = _last(name.strip())
    inside = [key for key in known if len(wanted) > 1 and (wanted in key.casefold() or _last(key) in wanted)]
    if inside:
        return inside[:NEAREST]
    by_last = {_last(key): key for key in known}
    return [by_last[match] for match in difflib.get_close_matches(wanted, by_last, n=NEAREST, cutoff=0.5)]


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
