"""What was simulated of an engine, as the JSON of a plan holds it, and the fleets of a plan read out of that JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sizing.candidates import catalogued
from sizing.catalog import Layout, gpus, known_gpu, precision_named
from sizing.engine import UNLIMITED_KV_TOKENS, Batching, KvPolicy, Policy
from sizing.engine_defaults import engine_defaults
from sizing.errors import SizingError, first_fault, one_line
from sizing.estimate.memory import KV_LENGTHS, Memory
from sizing.memory_use import kernel_memory
from sizing.plans import Candidate, label_of, usual_server
from sizing.workload import Lengths, Workload

_Count = Annotated[int, Field(ge=1, le=10**15)]
_Ways = Annotated[int, Field(ge=1, le=1024)]
_Share = Annotated[float, Field(gt=0, le=1)]
_Name = Annotated[str, Field(max_length=1000)]


class DeployError(SizingError):
    """A plan cannot be exported: it is of an older version, no plan, or more than the format can say."""


# --- What was simulated of an engine


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The engine of one replica as it was simulated. Counts are those of one rank of data-parallel attention; without
    such ranks, of the replica.

    `max_batch_size` sequences run at once, and an iteration of one pipeline stage takes `token_budget` tokens.
    `kv_tokens` fit in the KV cache, None where no limit was known. Where layers keep a window or a state, a token takes
    fewer bytes the longer its sequence, and `kv_bytes_per_gpu` says how large the cache is; None where tokens do.
    `memory_share`: the share of a GPU's memory that the engine was given (`memory_of` "all") or that its KV cache has
    of what weights leave ("free"), None where the estimate has no such share. `kv_cache_dtype`: numbers of the KV
    cache, None as in the server that was measured. `checkpoint`: precision of the published weights, empty where not
    known. `max_model_tokens`: prompt and output of the longest request, None where lengths have no bound.
    `reserved_output_tokens`: 0 is an engine that knows the true output. `max_waiting`: requests in line in the whole
    replica, 0 is no limit. `queue_timeout_s`: seconds after which they leave it, None is never. `in_flight`: requests
    in a working replica on average at the planned load.
    """

    policy: Policy
    max_batch_size: _Count
    token_budget: _Count
    kv_tokens: _Count | None
    kv_block_tokens: _Count
    kv_bytes_per_gpu: _Count | None
    memory_share: _Share | None
    memory_of: Literal["all", "free"] | None
    kv_policy: KvPolicy
    kv_cache_dtype: Literal["bf16", "fp8"] | None
    prefix_cache: bool
    checkpoint: _Name
    max_model_tokens: _Count | None
    reserved_output_tokens: Annotated[int, Field(ge=0)]
    max_waiting: Annotated[int, Field(ge=0)]
    lookahead_steps: Annotated[float, Field(ge=0)]
    draft_tokens: Annotated[int, Field(ge=0)]
    in_flight: Annotated[float, Field(gt=0)] | None
    receive_interval_steps: _Count = 1
    batch_wait_steps: Annotated[int, Field(ge=0)] = 0
    batch_wait_ratio: _Share = 1.0
    queue_timeout_s: Annotated[float, Field(gt=0)] | None = None


def engine_settings(candidate: Candidate, workloads: Sequence[Workload], in_flight: float) -> EngineSettings:
    """What was simulated of the engine of replicas that serve these workloads, `in_flight` requests in each."""
    batching, layout = candidate.replica.batching, candidate.layout
    speculation, memory = candidate.replica.speculation, _memory(candidate)
    # An estimate is of all stages and ranks together (sizing.catalog.of_layout); a measured engine is as it was set.
    lanes = layout.lanes if candidate.unmeasured else layout.dp
    stages = layout.pp if candidate.engine == "trtllm" and not candidate.unmeasured else 1  # its setting is of a stage
    model = catalogued(candidate.model)
    longest = [longest_tokens(workload.lengths, batching.max_tokens) for workload in workloads]
    cached = any(workload.prefix.tokens * workload.prefix.hit_rate > 0 for workload in workloads)
    queues = [workload.queue_limit for workload in workloads]  # one without a limit fills the line of all
    timeout_s = max(workload.queue_timeout_s for workload in workloads)
    usual = None if memory is None else engine_defaults(memory.backend)
    return EngineSettings(
        policy=batching.policy,
        max_batch_size=max(1, batching.max_batch_size * stages // layout.dp),
        token_budget=max(1, batching.token_budget // lanes),
        kv_tokens=max(1, batching.kv_tokens // layout.dp) if batching.kv_tokens < UNLIMITED_KV_TOKENS else None,
        kv_block_tokens=batching.kv_block_tokens,
        kv_bytes_per_gpu=None if memory is None or _proportional(memory) else _kv_bytes(memory, batching, lanes),
        memory_share=usual.memory_share if usual else None,
        memory_of=usual.memory_of if usual else None,
        kv_policy=batching.kv_policy,
        kv_cache_dtype=_kv_cache_dtype(candidate),
        prefix_cache=batching.prefix_cache or cached,
        checkpoint=model.checkpoint if model else "",
        max_model_tokens=None if None in longest else max(filter(None, longest)),
        reserved_output_tokens=batching.max_tokens,
        max_waiting=candidate.replica.with_queue(max(queues) if all(queues) else 0).batching.max_waiting,
        lookahead_steps=batching.lookahead_steps,
        draft_tokens=speculation.draft_tokens if speculation else 0,
        in_flight=in_flight if math.isfinite(in_flight) and in_flight > 0 else None,
        receive_interval_steps=batching.receive_interval_steps,
        batch_wait_steps=batching.batch_wait_steps,
        batch_wait_ratio=batching.batch_wait_ratio,
        queue_timeout_s=timeout_s if math.isfinite(timeout_s) else None,
    )


def settings_json(candidate: Candidate, workloads: Sequence[Workload], in_flight: float) -> dict[str, Any]:
    """`engine_settings` as the JSON of an answer has it."""
    return asdict(engine_settings(candidate, workloads, in_flight))


def longest_tokens(lengths: Lengths, reserved_output_tokens: int = 0) -> int | None:
    """Prompt and output of the longest request that lengths allow; None for lognormal lengths, which have no bound.

    >>> longest_tokens(Lengths(2000, 256)), longest_tokens(Lengths(2000, 256), 512), longest_tokens(Lengths(10, 5, 1.0))
    (2256, 2512, None)
    """
    if any(cv and law is None for cv, law in ((lengths.isl_cv, lengths.isl_law), (lengths.osl_cv, lengths.osl_law))):
        return None
    at_most = np.array([math.inf])  # the normal deviate of the quantile 1
    isl = lengths.isl_at(at_most) if lengths.isl_law else np.array([lengths.isl])
    osl = lengths.osl_at(at_most) if lengths.osl_law else np.array([lengths.osl])
    return math.ceil(float(isl[0])) + max(math.ceil(float(osl[0])), reserved_output_tokens)


def _memory(candidate: Candidate) -> Memory | None:
    """Memory of one GPU where the kernel database counted it for the estimate."""
    model, chip = catalogued(candidate.model), gpus().get(candidate.gpu)
    precision = precision_named(candidate.precision)
    if not candidate.unmeasured or model is None or chip is None or precision is None:
        return None
    return kernel_memory(candidate, model, chip, precision)


def _proportional(memory: Memory) -> bool:
    """True where a sequence of twice the length takes twice the KV cache."""
    sizes = [size / length for size, length in zip(memory.sequence_bytes_at, KV_LENGTHS, strict=True)]
    return max(sizes) <= min(sizes) * (1 + 1e-6)


def _kv_cache_dtype(candidate: Candidate) -> Literal["bf16", "fp8"] | None:
    """As the estimate counts its cache; None for a measured engine, which keeps its own."""
    chip, precision = known_gpu(candidate.gpu), precision_named(candidate.precision)
    if not candidate.unmeasured or chip is None or precision is None:
        return None
    return "fp8" if chip.kv_bytes(precision) == 1 else "bf16"


def _kv_bytes(memory: Memory, batching: Batching, lanes: int) -> int:
    return max(1, int(memory.kv_bytes(max(1, batching.token_budget // lanes))))


# --- The fleets of a plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Equal replicas, spares included, of one layout, GPU type, precision and engine."""

    replicas: _Count
    spare: Annotated[int, Field(ge=0)]
    tp: _Ways
    gpu: _Name
    precision: _Name
    engine: _Name
    engine_settings: EngineSettings
    pp: _Ways = 1
    dp: _Ways = 1
    ep: _Ways = 1

    @property
    def layout(self) -> Layout:
        """How a replica's GPUs share the model."""
        return Layout(self.tp, self.pp, self.dp, self.ep)

    @property
    def servers(self) -> int:
        """Servers that one replica spans, 1 where the GPU is not in the catalogue."""
        return math.ceil(self.layout.gpus / (usual_server(self.gpu.casefold()) or self.layout.gpus))

    @property
    def line(self) -> str:
        """For a comment: how many replicas of what."""
        count = f"{self.replicas} replicas" if self.replicas > 1 else "1 replica"
        spares = f" ({self.replicas - self.spare} working + {self.spare} spare)" if self.spare else ""
        return f"{count}{spares} of {label_of(self.gpu, self.layout, self.precision, self.engine)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A plan to be exported: one fleet or, of a plan with prefill and decode apart, `prefill` and `decode` beside it.

    `path`: where the servers find the weights; `name`: of the Kubernetes objects; `namespace`: theirs, empty for that
    of the client; `routing`: of requests among the replicas, empty if the plan does not say.
    """

    model: Annotated[str, Field(min_length=1, max_length=1000)]
    sentence: _Name
    fleet: Pool
    prefill: Pool | None = None
    decode: Pool | None = None
    path: str = ""
    name: str = ""
    namespace: str = ""
    routing: _Name = ""


_POOL, _DEPLOYMENT = TypeAdapter(Pool), TypeAdapter(Deployment)
OLD_PLAN = (
    "it does not say how its engines were simulated: save the output of `python -m sizing plan ... --json` of this "
    "version"
)
NO_PLAN = "no plan: give what `python -m sizing plan ... --json` printed where it found a fleet"


def deployment_of(
    document: Mapping[str, Any], path: str | None = None, name: str | None = None, namespace: str = ""
) -> Deployment:
    """The plan of a JSON object, as `plan --json` prints it. Raises DeployError, one line, where it is none."""
    model, pools = document.get("model"), document.get("disaggregated")
    if not isinstance(model, str) or "replicas" not in document:
        raise DeployError(NO_PLAN)
    apart = pools if isinstance(pools, Mapping) and "prefill" in pools else {}
    found: dict[str, Pool] = {}
    for role, part in {"fleet": document, **{role: apart.get(role) for role in ("prefill", "decode") if apart}}.items():
        if not isinstance(part, Mapping) or part.get("engine_settings") is None:
            raise DeployError(OLD_PLAN)
        try:
            found[role] = _POOL.validate_python({key: part[key] for key in Pool.__dataclass_fields__ if key in part})
        except ValidationError as error:
            raise DeployError(f"{role}: {first_fault(error)}") from None
    for said, given in (("--name", name), ("--namespace", namespace)):
        if given and given != kubernetes_name(given):
            raise DeployError(f"{said} {one_line(given, 60)!r}: Kubernetes takes a-z, 0-9 and -, 50 at most")
    try:
        return _DEPLOYMENT.validate_python(
            {
                "model": model,
                "sentence": document.get("sentence", ""),
                **found,
                "path": path or model,
                "name": name or kubernetes_name(model.rpartition("/")[2]),
                "namespace": namespace,
                "routing": next(filter(None, map(_routing, (document.get("sessions"), document.get("question")))), ""),
            }
        )
    except ValidationError as error:
        raise DeployError(str(first_fault(error))) from None


def _routing(part: Any) -> str:
    return str(part.get("routing") or "") if isinstance(part, Mapping) else ""


MOST_NAME = 50
"""Characters of a name, so that what controllers append stays within the 63 of a DNS label."""


def kubernetes_name(text: str) -> str:
    """A DNS label (RFC 1035) made of a text: a-z, 0-9 and -, a letter first.

    >>> kubernetes_name("Qwen3-32B"), kubernetes_name("4o mini."), kubernetes_name("漢")
    ('qwen3-32b', 'm-4o-mini', 'model')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "model"
    return (plain if plain[0].isalpha() else f"m-{plain}")[:MOST_NAME].rstrip("-")
