"""The options that tell vLLM, SGLang and TensorRT-LLM what was simulated of them, and what they cannot be told."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from sizing.deploy.settings import Deployment, Pool
from sizing.engine import KvPolicy

Options = dict[str, "str | int | float | bool | None"]
"""Option -> value; True is a switch, None and False are left out."""
CONFIG = "trtllm-config.yaml"


class Told(NamedTuple):
    """What an engine is told: options, for TensorRT-LLM its configuration, and notes on what it cannot be told."""

    options: Options
    config: dict[str, Any]
    notes: tuple[str, ...]


def words(options: Options) -> list[str]:
    """Options as words of a command line.

    >>> words({"--tp": 2, "--on": True, "--off": None})
    ['--tp', '2', '--on']
    """
    given = {name: value for name, value in options.items() if value is not None and value is not False}
    return [word for name, value in given.items() for word in ([name] if value is True else [name, str(value)])]


def _notes(pool: Pool, engine: str) -> Iterator[str]:
    """What holds for every engine: what the plan rests on that no option says."""
    settings, title = pool.engine_settings, ENGINES[engine].title
    if pool.engine not in ("", engine):
        yield f"the plan was made for the engine {pool.engine}: the times of {title} are not those that were simulated"
    if settings.kv_tokens is None:
        yield f"the KV cache was simulated without a limit: {title} takes what its memory leaves"
    if settings.max_model_tokens is None:
        yield "lengths were simulated without an upper bound: the longest request is what model and memory allow"
    else:
        yield f"no request of more than {settings.max_model_tokens} tokens was simulated: longer ones are rejected"
    if not settings.prefix_cache:
        yield "simulated without a prefix cache, so it is off; on, it can only find what the plan did not count on"
    if settings.lookahead_steps == 0:
        yield "simulated with a scheduler that waits for each iteration; the engine's own scheduling is left as it is"
    if settings.draft_tokens:
        yield (
            f"simulated with speculative decoding of {settings.draft_tokens} draft tokens: add the draft model, which "
            "the plan does not name"
        )
    if pool.servers > 1:
        yield f"a replica of {pool.layout.gpus} GPUs spans {pool.servers} servers: start it on each with its rank"


def _vllm(pool: Pool) -> Told:
    settings, layout = pool.engine_settings, pool.layout
    notes = list(_notes(pool, "vllm"))
    if settings.policy in ("prefill_first", "static"):
        notes.append(f"batching was simulated as {settings.policy}; vLLM mixes prompts with decode steps instead")
    if settings.kv_policy == "guaranteed_no_evict":
        notes.append(
            "simulated so that a request starts only when all its tokens fit; vLLM starts it when its prompt does, and "
            "preempts where memory runs out"
        )
    if settings.policy == "whole_prompt" and settings.token_budget < (settings.max_model_tokens or math.inf):
        notes.append(
            "without chunks vLLM starts only where the longest request fits into one iteration: raise "
            "--max-num-batched-tokens to it, or lower --max-model-len"
        )
    if layout.ep not in (1, layout.tp * layout.dp):
        notes.append(f"simulated with experts split {layout.ep} ways; vLLM splits them {layout.tp * layout.dp} ways")
    quantization, asked = _quantization(pool, {"fp8": "fp8", "fp8_block": "fp8_per_block"})
    if settings.kv_bytes_per_gpu is None:
        blocks = None if settings.kv_tokens is None else settings.kv_tokens // VLLM_BLOCK_TOKENS + VLLM_OWN_BLOCKS
        cache: Options = {"--block-size": VLLM_BLOCK_TOKENS, "--num-gpu-blocks-override": blocks}
    else:
        cache = {"--kv-cache-memory-bytes": settings.kv_bytes_per_gpu}
    queue = settings.max_batch_size * layout.dp + settings.max_waiting if settings.max_waiting else None
    return Told(
        {
            "--tensor-parallel-size": layout.tp,
            "--pipeline-parallel-size": layout.pp if layout.pp > 1 else None,
            "--data-parallel-size": layout.dp if layout.dp > 1 else None,
            "--enable-expert-parallel": layout.ep > 1,
            "--dtype": "bfloat16" if pool.precision == "bf16" else None,
            "--quantization": quantization,
            "--kv-cache-dtype": "fp8" if settings.kv_cache_dtype == "fp8" else None,
            "--max-model-len": settings.max_model_tokens or "auto",
            "--max-num-seqs": settings.max_batch_size,
            "--max-num-batched-tokens": settings.token_budget,
            "--no-enable-chunked-prefill" if settings.policy == "whole_prompt" else "--enable-chunked-prefill": True,
            **cache,
            "--gpu-memory-utilization": settings.memory_share if settings.memory_of == "all" else None,
            "--enable-prefix-caching" if settings.prefix_cache else "--no-enable-prefix-caching": True,
            "--max-num-queued-reqs": queue,  # counts running ones too
        },
        {},
        (*notes, *asked),
    )


VLLM_BLOCK_TOKENS, VLLM_OWN_BLOCKS = 64, 1
"""Tokens of a block, of a size that latent attention (FlashMLA), others on GPUs and CPUs take; and blocks that hold no
request's tokens (the null block)."""


def _quantization(pool: Pool, online: Mapping[str, str]) -> tuple[str | None, list[str]]:
    """The option that quantizes published weights as they are loaded, or a note on the weights that are needed."""
    precision, published = pool.precision, pool.engine_settings.checkpoint
    if precision == published or precision == "bf16":
        return None, []
    if published == "bf16" and precision in online:
        return online[precision], []
    return None, [f"give weights in {precision} as the model: the engine reads from them how they are quantized"]


def _sglang(pool: Pool) -> Told:
    settings, layout = pool.engine_settings, pool.layout
    notes = list(_notes(pool, "sglang"))
    if settings.policy in ("whole_prompt", "static"):
        notes.append(f"batching was simulated as {settings.policy}; SGLang puts prompts between decode steps instead")
    notes.append(
        f"memory was simulated by {settings.kv_policy}; SGLang starts a request by what it expects it to need "
        "(--schedule-conservativeness), and retracts where memory runs out"
    )
    if settings.kv_bytes_per_gpu is not None:
        notes.append(f"the KV cache was simulated with {settings.kv_bytes_per_gpu} bytes a GPU; SGLang takes a share")
    quantization, asked = _quantization(pool, {"fp8": "fp8"})
    chunked = settings.policy != "whole_prompt"
    budget = settings.token_budget * layout.dp  # with DP attention SGLang divides both among its ranks
    return Told(
        {
            "--tp-size": layout.tp * layout.dp,
            "--pp-size": layout.pp if layout.pp > 1 else None,
            "--dp-size": layout.dp if layout.dp > 1 else None,
            "--enable-dp-attention": layout.dp > 1,
            "--ep-size": layout.ep if layout.ep > 1 else None,
            "--dtype": "bfloat16" if pool.precision == "bf16" else None,
            "--quantization": quantization,
            "--kv-cache-dtype": "fp8_e4m3" if settings.kv_cache_dtype == "fp8" else None,
            "--context-length": settings.max_model_tokens,
            "--max-running-requests": settings.max_batch_size * layout.dp,
            "--chunked-prefill-size": budget if chunked else -1,
            "--max-prefill-tokens": settings.token_budget,
            "--enable-mixed-chunk": settings.policy == "chunked",
            "--max-total-tokens": None if settings.kv_bytes_per_gpu else settings.kv_tokens,
            "--mem-fraction-static": settings.memory_share if settings.memory_of == "all" else None,
            "--disable-radix-cache": not settings.prefix_cache,
            "--max-queued-requests": max(1, settings.max_waiting // layout.dp) if settings.max_waiting else None,
            "--enable-metrics": True,
        },
        {},
        (*notes, *asked),
    )


TRTLLM_POLICIES: Mapping[KvPolicy, str] = MappingProxyType(
    {"guaranteed_no_evict": "GUARANTEED_NO_EVICT", "max_utilization": "MAX_UTILIZATION"}
)


def _trtllm(pool: Pool) -> Told:
    settings, layout = pool.engine_settings, pool.layout
    notes = list(_notes(pool, "trtllm"))
    if settings.policy == "prefill_first":
        notes.append("batching was simulated as prefill_first; TensorRT-LLM mixes prompts with decode steps instead")
    if layout.dp > 1 and layout.tp > 1:
        notes.append(
            f"simulated with {layout.dp} ranks of TP{layout.tp}; TensorRT-LLM's attention DP has a rank for each GPU: "
            "set enable_attention_dp and divide the limits by hand"
        )
    if settings.max_waiting:
        notes.append(f"simulated with at most {settings.max_waiting} requests waiting; trtllm-serve rejects none")
    if settings.kv_bytes_per_gpu is not None:
        notes.append(f"the KV cache was simulated with {settings.kv_bytes_per_gpu} bytes a GPU: a share of free memory")
    _, asked = _quantization(pool, {})
    policy = "STATIC_BATCH" if settings.policy == "static" else TRTLLM_POLICIES[settings.kv_policy]
    cache = {
        "enable_block_reuse": settings.prefix_cache,
        "max_tokens": None if settings.kv_bytes_per_gpu else settings.kv_tokens,
        "free_gpu_memory_fraction": settings.memory_share if settings.memory_of == "free" else None,
        "dtype": "fp8" if settings.kv_cache_dtype == "fp8" else None,
    }
    config = {
        "tensor_parallel_size": layout.tp * layout.dp,
        "pipeline_parallel_size": layout.pp,
        "moe_expert_parallel_size": layout.ep if layout.ep > 1 else None,
        "enable_attention_dp": layout.dp > 1 and layout.tp == 1,
        "max_batch_size": settings.max_batch_size,
        "max_num_tokens": settings.token_budget,
        "max_seq_len": settings.max_model_tokens,
        "enable_chunked_prefill": settings.policy == "chunked",
        "kv_cache_config": {name: value for name, value in cache.items() if value is not None},
        "scheduler_config": {"capacity_scheduler_policy": policy},
    }
    return Told({}, {name: value for name, value in config.items() if value is not None}, (*notes, *asked))


class Engine(NamedTuple):
    """An engine: the version whose options are used, its image, how its command begins, what it is told, and its
    gauges of requests that run and wait."""

    title: str
    version: str
    image: str
    start: Callable[[Deployment], list[str]]
    told: Callable[[Pool], Told]
    gauges: tuple[str, str]


PORT = 8000
LISTEN: tuple[str, ...] = ("--host", "0.0.0.0", "--port", str(PORT))  # inside a container, where a probe must reach it
VLLM_GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting")
ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "vllm": Engine(
            "vLLM",
            "0.32.0",
            "vllm/vllm-openai:v0.32.0",
            lambda plan: ["vllm", "serve", plan.path, "--served-model-name", plan.model, *LISTEN],
            _vllm,
            VLLM_GAUGES,
        ),
        "sglang": Engine(
            "SGLang",
            "0.5.17",
            "lmsysorg/sglang:v0.5.17",
            lambda plan: [
                *("python3", "-m", "sglang.launch_server", "--model-path", plan.path),
                *("--served-model-name", plan.model, *LISTEN),
            ],
            _sglang,
            ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        ),
        "trtllm": Engine(
            "TensorRT-LLM",
            "1.2.1",
            "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
            lambda plan: ["trtllm-serve", plan.path, *LISTEN, "--backend", "pytorch", "--extra_llm_api_options"],
            _trtllm,
            VLLM_GAUGES,
        ),
    }
)


def engine_of(pool: Pool) -> str:
    """The plan's engine where it is known here, else vLLM."""
    return pool.engine if pool.engine in ENGINES else "vllm"


def command(plan: Deployment, engine: str, config: str = CONFIG) -> list[str]:
    """The words that start one replica of the one fleet; `config`: where TensorRT-LLM finds its configuration."""
    found, told = ENGINES[engine], ENGINES[engine].told(plan.fleet)
    return [*found.start(plan), *([config] if told.config else []), *words(told.options)]
