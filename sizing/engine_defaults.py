"""What an LLM server does unless it is told otherwise: a row for each engine that is known."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, NamedTuple

from sizing.engine import Batching, KvPolicy, Policy

ENGINE_NAMES: Mapping[str, str] = MappingProxyType({"trtllm": "TensorRT-LLM", "vllm": "vLLM", "sglang": "SGLang"})
"""Engines as their makers spell them, by the names that this program takes."""
_GIB = 2.0**30
_ByMemory = tuple[tuple[float, int], ...]
"""Values by a GPU's memory: each from so many bytes on."""


class _Row(NamedTuple):
    """`looks_ahead_since`: first version that schedules an iteration while the one before runs; none does if empty.
    `wide_since`: first version with `wide_token_budget` in place of `token_budget`. `small_gpus`: names start like this
    of GPUs that count as small whatever their memory. `cpu_token_budget`, `cpu_max_batch_size`, `cpu_kv_block_tokens`:
    of a server that computes on a CPU, 0 where they are not known. The other fields are those of EngineDefaults."""

    policy: Policy | None = None
    policies: tuple[Policy, ...] = ("chunked", "prefill_first", "whole_prompt")
    looks_ahead_since: tuple[int, ...] = ()
    kv_policy: KvPolicy = "guaranteed_no_evict"
    kv_block_tokens: int = 1
    max_batch_size: _ByMemory = ((0, Batching().max_batch_size),)
    token_budget: _ByMemory = ((0, Batching().token_budget),)
    wide_since: tuple[int, ...] = ()
    wide_token_budget: _ByMemory = ()
    cpu_token_budget: int = 0
    cpu_max_batch_size: int = 0
    cpu_kv_block_tokens: int = 0
    small_gpus: tuple[str, ...] = ()
    memory_share: float = 0.9
    memory_of: Literal["all", "free"] = "all"
    send_s: float = 0.0


_ROWS: Mapping[str, _Row] = MappingProxyType(
    {
        # Chunks of prompts beside decodes (V1); asynchronous scheduling is on since 0.14 (vllm-project/vllm#27614). A
        # request starts when its prompt fits, and the one admitted last is preempted when the cache is full (vLLM
        # documentation, "Preemption"). Batches: `EngineArgs`, max_num_seqs and max_num_batched_tokens, of which GPUs of
        # 160 GiB have more since 0.28; blocks on a CPU: `platforms/cpu.py`. gpu_memory_utilization is 0.92 since 0.21,
        # which deducts CUDA graphs, left out of estimates: about what 0.9 left before. Sending: fits to four servers
        # say 0.035 and 0.06 ms (published, H100), 0.15 ms (measured here beside an H200) and 0.17 ms (two slow cores);
        # this is their mean in logarithms, around which they scatter by 0.8.
        "vllm": _Row(
            "chunked",
            looks_ahead_since=(0, 14),
            kv_policy="max_utilization",
            kv_block_tokens=16,
            max_batch_size=((0, 256), (70 * _GIB, 1024)),
            token_budget=((0, 2048), (70 * _GIB, 8192)),
            wide_since=(0, 28),
            wide_token_budget=((0, 2048), (70 * _GIB, 8192), (160 * _GIB, 16_384)),
            cpu_token_budget=2048,
            cpu_max_batch_size=128,
            cpu_kv_block_tokens=128,
            small_gpus=("a100",),
            send_s=0.08e-3,
        ),
        # Prompts run apart unless mixed chunks are enabled; overlapped scheduling is on since 0.4
        # (lmsys.org/blog/2024-12-04-sglang-v0-4). The pool of requests has 2,048 to 4,096 slots unless memory limits
        # it first. Chunks of prompts: SGLang 0.5.23, `arg_groups/memory_hook.py`; mem_fraction_static.
        "sglang": _Row(
            "prefill_first",
            policies=("chunked", "prefill_first"),
            looks_ahead_since=(0, 4),
            max_batch_size=((0, 2048),),
            token_budget=((0, 2048), (20 * _GIB, 4096), (60 * _GIB, 8192), (160 * _GIB, 16_384)),
            memory_share=0.88,
        ),
        # Whole prompts beside decodes unless chunked context is enabled. PyTorch is the default backend since 1.0, and
        # its overlap scheduler is on. GUARANTEED_NO_EVICT reserves whole answers, in blocks of `tokens_per_block`;
        # `max_batch_size` of trtllm-serve and trtllm-build; free_gpu_memory_fraction.
        "trtllm": _Row(
            "whole_prompt",
            policies=("chunked", "whole_prompt"),
            looks_ahead_since=(1, 0),
            kv_block_tokens=32,
            max_batch_size=((0, 2048),),
            memory_of="free",
        ),
    }
)
_UNKNOWN_GPUS_BYTES = (80 * _GIB, 24 * _GIB)
"""Memory that a GPU of unknown memory may have."""
_SPELT = {"tensorrtllm": "trtllm"}


def engine_named(name: str) -> str:
    """An engine's name as the planner spells it.

    >>> engine_named("TensorRT-LLM"), engine_named("vLLM"), engine_named("SGLang"), engine_named("llama.cpp")
    ('trtllm', 'vllm', 'sglang', 'llamacpp')
    """
    letters = re.sub("[^a-z]", "", name.casefold())
    return _SPELT.get(letters, letters)


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """Settings of an engine that nobody set.

    `policy` (None: not known), `lookahead_steps`, `kv_policy`, `kv_block_tokens` and `max_batch_size` are those of
    Batching. `policies`: the ways of in-flight batching that the engine has. `token_budgets`: the likeliest first,
    more than one where it depends on a memory that is not known.
    The KV cache may have `memory_share` of a GPU's memory: of all of it, weights included, or of what weights and
    activations leave free, as `memory_of` says. `send_s` is what the front end takes to send a token
    (`StepLaw.send_s`), on which fits lean: 0 where no server has shown it.
    """

    policy: Policy | None
    policies: tuple[Policy, ...]
    lookahead_steps: float
    kv_policy: KvPolicy
    kv_block_tokens: int
    max_batch_size: int
    token_budgets: tuple[int, ...]
    memory_share: float
    memory_of: Literal["all", "free"]
    send_s: float

    @property
    def share_of_freed(self) -> float:
        """What the KV cache gets of memory that weights no longer take."""
        return self.memory_share if self.memory_of == "free" else 1.0


def engine_defaults(engine: str, version: str = "", gpu: str = "", memory_bytes: float = 0.0) -> EngineDefaults:
    """What `engine`, spelt in any way, does by its own defaults on a `gpu` with this much memory (0: unknown).

    Of an unknown `version` no look-ahead is assumed, nor of an engine on a CPU, which has nothing to compute ahead of
    itself. An unknown engine has the planner's own batch, reserves whole answers, as TensorRT-LLM does, and has 256
    slots, the limit most often set by hand; an engine on a GPU of unknown memory has as many as on a small one.

    >>> vllm = engine_defaults("vLLM", "v0.15.1", "h100_sxm", 80e9)
    >>> vllm.policy, vllm.lookahead_steps, vllm.max_batch_size, vllm.token_budgets, vllm.kv_policy
    ('chunked', 1.0, 1024, (8192,), 'max_utilization')
    >>> engine_defaults("vllm", "0.9.2").token_budgets, engine_defaults("vllm", "0.32.0", "cpu").lookahead_steps
    ((8192, 2048), 0.0)
    >>> engine_defaults("sglang", gpu="b200_sxm", memory_bytes=192e9).token_budgets, engine_defaults("mine").policy
    ((16384,), None)
    """
    row = _ROWS.get(engine_named(engine), _Row())
    is_cpu = gpu.casefold() == "cpu"
    if _is_since(version, row.wide_since):
        row = row._replace(token_budget=row.wide_token_budget)
    if is_cpu and row.cpu_token_budget:
        row = row._replace(
            token_budget=((0, row.cpu_token_budget),),
            max_batch_size=((0, row.cpu_max_batch_size),),
            kv_block_tokens=row.cpu_kv_block_tokens,
        )
    if gpu.casefold().startswith(row.small_gpus) and memory_bytes:
        memory_bytes = 1.0
    likely_bytes = (memory_bytes,) if memory_bytes else _UNKNOWN_GPUS_BYTES
    budgets = tuple(dict.fromkeys(_at(row.token_budget, each) for each in likely_bytes))
    return EngineDefaults(
        policy=row.policy,
        policies=row.policies,
        lookahead_steps=float(not is_cpu and _is_since(version, row.looks_ahead_since)),
        kv_policy=row.kv_policy,
        kv_block_tokens=row.kv_block_tokens,
        max_batch_size=_at(row.max_batch_size, memory_bytes),
        token_budgets=budgets,
        memory_share=row.memory_share,
        memory_of=row.memory_of,
        send_s=row.send_s,
    )


def _at(values: _ByMemory, memory_bytes: float) -> int:
    return [value for from_bytes, value in values if from_bytes <= memory_bytes][-1]


def _is_since(version: str, since: tuple[int, ...]) -> bool:
    """Whether a version, as its server tells it, is the one of `since` or later."""
    numbers = re.match(r"v?(\d{1,9})\.(\d{1,9})", version.strip())
    return bool(since) and numbers is not None and tuple(map(int, numbers.groups())) >= since
