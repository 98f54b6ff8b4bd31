"""The files of a deployment: command lines of engines, Helm values and Kubernetes objects.

An engine's options tell it what was simulated of it; what it cannot be told is a comment. Whatever comes from outside
is quoted: words of a command line by `shlex`, YAML by a safe dumper, comments on one line.
"""

from __future__ import annotations

import io
import json
import math
import re
import shlex
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from sizing.deploy.settings import DeployError, Deployment, Pool
from sizing.engine import KvPolicy
from sizing.engine_defaults import ENGINE_NAMES
from sizing.errors import one_line

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
    if settings.receive_interval_steps > 1 and engine != "sglang":
        yield (
            f"simulated with a look at new requests every {settings.receive_interval_steps} decode steps, for which "
            f"{title} has no setting: it looks more often"
        )
    if settings.batch_wait_steps > 0 and engine != "trtllm":
        yield (
            f"simulated with prompts that wait for others up to {settings.batch_wait_steps} decode steps, for which "
            f"{title} has no setting: they start at once"
        )
    if settings.queue_timeout_s is not None:
        yield (
            f"simulated with requests that leave the line after {settings.queue_timeout_s:g} s, for which {title} has "
            "no setting: end them in what sends them"
        )
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
            "--context-length": (longest := settings.max_model_tokens) and longest + SGLANG_OWN_TOKENS,
            "--max-running-requests": settings.max_batch_size * layout.dp,
            "--chunked-prefill-size": budget if chunked else -1,
            "--max-prefill-tokens": settings.token_budget,
            "--enable-mixed-chunk": settings.policy == "chunked",
            "--scheduler-recv-interval": interval if (interval := settings.receive_interval_steps) > 1 else None,
            "--max-total-tokens": None if settings.kv_bytes_per_gpu else settings.kv_tokens,
            "--mem-fraction-static": settings.memory_share if settings.memory_of == "all" else None,
            "--disable-radix-cache": not settings.prefix_cache,
            "--max-queued-requests": max(1, settings.max_waiting // layout.dp) if settings.max_waiting else None,
            "--enable-metrics": True,
        },
        {},
        (*notes, *asked),
    )


SGLANG_OWN_TOKENS = 7
"""Of its context SGLang leaves one token free, and a prompt ends six before what is left (managers/scheduler.py)."""
TRTLLM_POLICIES: Mapping[KvPolicy, str] = MappingProxyType(
    {"guaranteed_no_evict": "GUARANTEED_NO_EVICT", "max_utilization": "MAX_UTILIZATION"}
)


def _trtllm(pool: Pool) -> Told:
    settings, layout = pool.engine_settings, pool.layout
    notes = list(_notes(pool, "trtllm"))
    if settings.policy == "prefill_first":
        notes.append("batching was simulated as prefill_first; TensorRT-LLM mixes prompts with decode steps instead")
    if settings.policy == "whole_prompt" and settings.token_budget < (settings.max_model_tokens or math.inf):
        notes.append(
            "without chunks TensorRT-LLM rejects prompts of more than max_num_tokens: raise it to the longest, or "
            "enable chunks"
        )
    if layout.dp > 1 and layout.tp > 1:
        notes.append(
            f"simulated with {layout.dp} ranks of TP{layout.tp}; TensorRT-LLM's attention DP has a rank for each GPU: "
            "set enable_attention_dp and divide the limits by hand"
        )
    if layout.dp > 1 and settings.batch_wait_steps:
        notes.append(
            f"simulated with prompts that wait for others up to {settings.batch_wait_steps} decode steps; with "
            "enable_attention_dp TensorRT-LLM starts them at once"
        )
    if settings.policy == "static":
        notes.append(
            "simulated with a batch of max_batch_size whatever the tokens of its prompts; a STATIC_BATCH has the "
            "prompts that max_num_tokens holds, and no more: raise it to those of a batch"
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
        "max_batch_size": max(1, settings.max_batch_size // layout.pp),  # of each of the batches in its stages
        "max_num_tokens": settings.token_budget,
        "max_seq_len": settings.max_model_tokens,
        "enable_chunked_prefill": settings.policy == "chunked",
        "batch_wait_timeout_iters": settings.batch_wait_steps or None,
        "batch_wait_max_tokens_ratio": settings.batch_wait_ratio if settings.batch_wait_steps else None,
        "kv_cache_config": {name: value for name, value in cache.items() if value is not None},
        "scheduler_config": {"capacity_scheduler_policy": policy},
        "return_perf_metrics": True,  # without both there are no gauges at /prometheus/metrics
        "enable_iter_perf_stats": True,
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
ENGINES: Mapping[str, Engine] = MappingProxyType(
    {
        "vllm": Engine(
            ENGINE_NAMES["vllm"],
            "0.32.0",
            "vllm/vllm-openai:v0.32.0",
            lambda plan: ["vllm", "serve", plan.path, "--served-model-name", plan.model, *LISTEN],
            _vllm,
            ("vllm:num_requests_running", "vllm:num_requests_waiting"),
        ),
        "sglang": Engine(
            ENGINE_NAMES["sglang"],
            "0.5.17",
            "lmsysorg/sglang:v0.5.17",
            lambda plan: [
                *("python3", "-m", "sglang.launch_server", "--model-path", plan.path),
                *("--served-model-name", served_name(plan, "sglang"), *LISTEN),
            ],
            _sglang,
            ("sglang:num_running_reqs", "sglang:num_queue_reqs"),
        ),
        "trtllm": Engine(
            ENGINE_NAMES["trtllm"],
            "1.2.1",
            "nvcr.io/nvidia/tensorrt-llm/release:1.2.1",
            lambda plan: ["trtllm-serve", plan.path, *LISTEN, "--backend", "pytorch", "--extra_llm_api_options"],
            _trtllm,
            ("trtllm_num_requests_running", "trtllm_num_requests_waiting"),
        ),
    }
)


def engine_of(pool: Pool) -> str:
    """The plan's engine where it is known here, else vLLM."""
    return pool.engine if pool.engine in ENGINES else "vllm"


def command(plan: Deployment, engine: str, config: str = CONFIG) -> list[str]:
    """The words that start one replica of the one fleet; `config`: where TensorRT-LLM finds its configuration."""
    _no_option(plan)
    found, told = ENGINES[engine], ENGINES[engine].told(plan.fleet)
    return [*found.start(plan), *([config] if told.config else []), *words(told.options)]


def served_name(plan: Deployment, engine: str) -> str:
    """The name under which an engine serves the plan's model: SGLang takes what follows a colon for an adapter."""
    return plan.model.replace(":", "-") if engine == "sglang" else plan.model


def _name_note(plan: Deployment, engine: str) -> list[str]:
    """Where clients must ask for the model by another name than the plan's."""
    if (name := served_name(plan, engine)) != plan.model:
        return [f"the model is served as {name}: SGLang takes what follows a colon for an adapter"]
    if engine == "trtllm" and plan.path != plan.model:
        return ["trtllm-serve has no option for the model's name: it serves a folder under the folder's own"]
    return []


ROUTED: Mapping[str, str] = MappingProxyType(
    {
        "round_robin": "to the replicas in turn",
        "power_of_two": "to the less busy of two replicas drawn at random",
        "least_outstanding": "to the replica with the fewest requests outstanding",
        "affinity": "to the replica that has served the session before",
    }
)
"""By how the plan says that requests were routed; at random is what any load balancer does at least."""


def _routing_note(plan: Deployment) -> list[str]:
    how = ROUTED.get(plan.routing)
    if how is None or plan.fleet.replicas == 1:
        return []
    return [f"simulated with requests routed {how}: have the load balancer do so, at random they may miss the SLA"]


def _no_option(plan: Deployment) -> None:
    for name in (plan.path, plan.model):
        if name.startswith("-"):
            raise DeployError(f"model {one_line(name, 60)!r}: a server takes a name that begins with - for an option")


# --- Files

WIDEST = 500


def comment(lines: Iterable[str]) -> str:
    """Lines as comments of shell and YAML."""
    return "".join(f"# {one_line(line, WIDEST)}\n" for line in lines)


def _header(plan: Deployment, of: str, notes: Iterable[str], pools: Iterable[Pool] = ()) -> str:
    shown = [pool.line for pool in (*pools,) or (plan.fleet,)]
    first = f"Prefill and decode of {plan.model} apart" if len(shown) > 1 else plan.sentence or plan.model
    return comment([first, *shown, f"Written for {of}.", *(f"- {each}" for each in notes)])


def _apart_note(plan: Deployment) -> list[str]:
    """What formats without pools say of a plan that has them."""
    return [ONE_FLEET] if plan.prefill else []


ONE_FLEET = "the pools for prefill and decode are not in this file, which is for the one fleet of the plan: use dynamo"


def _one_server(plan: Deployment, of: str) -> None:
    if plan.fleet.servers > 1:
        raise DeployError(
            f"{of}: a replica of {plan.fleet.layout.gpus} GPUs spans {plan.fleet.servers} servers, a pod is in one: "
            "use dynamo, or the engine's command line on each server"
        )


def _shell(plan: Deployment, engine: str) -> dict[str, str]:
    found, told = ENGINES[engine], ENGINES[engine].told(plan.fleet)
    notes = [*told.notes, *_name_note(plan, engine), *_routing_note(plan), *_apart_note(plan)]
    header = _header(plan, f"{found.title} {found.version}", notes)
    run = " \\\n    ".join(map(shlex.join, _grouped(command(plan, engine))))
    balanced = comment([f"One replica; start {plan.fleet.replicas} of them behind a load balancer."])
    script = f"#!/bin/sh\n{header}{balanced}exec {run}\n"
    config = {CONFIG: header + yaml_text(told.config)} if told.config else {}
    return {f"{engine}.sh": script} | config


def _grouped(words: list[str]) -> Iterator[list[str]]:
    """The words of a command line, an option and its value together."""
    line: list[str] = []
    for word in words:
        if word.startswith("--") and line:
            yield line
            line = []
        line.append(word)
    yield line


class _FormatDumper(yaml.SafeDumper):
    """Text that YAML 1.1 or YAML 1.2 would read as something else is quoted; nothing is an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_FLOATS = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$")
_FormatDumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOATS, list("-+.0123456789"))
_FormatDumper.add_implicit_resolver("tag:yaml.org,2002:int", re.compile("0o[0-7]+$"), ["0"])


def yaml_text(*documents: Any) -> str:
    """Documents as YAML that readers of YAML 1.1 and 1.2 take for the same."""
    return str(yaml.dump_all(documents, Dumper=_FormatDumper, sort_keys=False, width=120))


RESOURCES: Mapping[str, str] = MappingProxyType(
    {"mi": "amd.com/gpu", "gaudi": "habana.ai/gaudi", "tpu": "google.com/tpu", "b60": "gpu.intel.com/xe"}
)
"""By how the GPU's name begins; others are NVIDIA's."""


def gpu_resource(gpu: str) -> str:
    """The resource by which Kubernetes counts such GPUs."""
    found = (name for start, name in RESOURCES.items() if gpu.casefold().startswith(start))
    return next(found, "nvidia.com/gpu")


def literal(text: str) -> str:
    """A word of a container's command, where Kubernetes puts variables, secrets too, in the place of $(NAME).

    >>> literal("a$(HF_TOKEN)")
    'a$$(HF_TOKEN)'
    """
    return text.replace("$", "$$")


def _image_notes(pool: Pool) -> list[str]:
    found = gpu_resource(pool.gpu)
    return [] if found == "nvidia.com/gpu" else [f"the image is built for CUDA: put one for {found} in its place"]


def _metadata(plan: Deployment, name: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name or plan.name, **({"namespace": plan.namespace} if plan.namespace else {}), **more}


HOST_CPUS, HOST_GIB = 8, 64
"""Of a server, for each GPU of a replica: requests that the chart asks for and no plan knows."""


def _helm(plan: Deployment) -> dict[str, str]:
    _one_server(plan, "helm")
    _no_option(plan)
    pool, found = plan.fleet, ENGINES["vllm"]
    settings, told = pool.engine_settings, found.told(pool)
    own = {
        "--tensor-parallel-size": "tensorParallelSize",
        "--max-num-seqs": "maxNumSeqs",
        "--dtype": "dtype",
        "--gpu-memory-utilization": "gpuMemoryUtilization",
    }
    config: dict[str, Any] = {key: told.options[name] for name, key in own.items() if told.options[name] is not None}
    if settings.max_model_tokens is not None:
        own["--max-model-len"] = "maxModelLen"
        config["maxModelLen"] = settings.max_model_tokens
    config |= {
        "enablePrefixCaching": settings.prefix_cache,
        "enableChunkedPrefill": "--enable-chunked-prefill" in told.options,
    }
    switches = ("prefix-caching", "chunked-prefill")
    rest = {name: value for name, value in told.options.items() if name not in own and not name.endswith(switches)}
    config["extraArgs"] = [*map(literal, ["--served-model-name", plan.model, *words(rest)])]
    image, _, tag = found.image.rpartition(":")
    spec = {
        "name": plan.name,
        "repository": image,
        "tag": tag,
        "modelURL": literal(plan.path),
        "replicaCount": pool.replicas,
        "requestCPU": HOST_CPUS * pool.layout.gpus,
        "requestMemory": f"{HOST_GIB * pool.layout.gpus}Gi",
        "requestGPU": pool.layout.gpus,
        "requestGPUType": gpu_resource(pool.gpu),
        "vllmConfig": config,
    }
    notes = [*told.notes, *_routing_note(plan), *_image_notes(pool), HOST_NOTE, *_apart_note(plan)]
    header = _header(plan, f"{CHARTS['helm']} with vLLM {found.version}", notes)
    return {"values.yaml": header + yaml_text({"servingEngineSpec": {"enableEngine": True, "modelSpec": [spec]}})}


AUTOSCALER = "serving.kserve.io/autoscalerClass"
HOST_NOTE = "requests for CPU and memory of the host are round figures: no plan knows them"
MOUNT = "/etc/sizing"


def _kserve(plan: Deployment) -> dict[str, str]:
    _one_server(plan, "kserve")
    pool, engine = plan.fleet, engine_of(plan.fleet)
    found, told = ENGINES[engine], ENGINES[engine].told(plan.fleet)
    resources = {gpu_resource(pool.gpu): str(pool.layout.gpus)}
    volumes: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]  # where NCCL exchanges
    objects: list[dict[str, Any]] = []
    if told.config:
        name = f"{plan.name}-engine"
        data = {CONFIG: yaml_text(told.config)}
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(plan, name), "data": data})
        volumes.append({"name": "engine", "configMap": {"name": name}})
        mounts.append({"name": "engine", "mountPath": MOUNT})
    container = {
        "name": "kserve-container",
        "image": found.image,
        "command": (run := command(plan, engine, f"{MOUNT}/{CONFIG}"))[:1],
        "args": [*map(literal, run[1:])],
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "resources": {"limits": resources, "requests": resources},
        "volumeMounts": mounts,
    }
    annotations = {
        "serving.kserve.io/deploymentMode": "Standard",
        AUTOSCALER: "none",  # the only class by which it makes minReplicas pods of itself
    }
    counts = {"minReplicas": pool.replicas, "maxReplicas": pool.replicas}
    service = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": _metadata(plan, annotations=annotations),
        "spec": {"predictor": {**counts, "containers": [container], "volumes": volumes}},
    }
    own = [*_name_note(plan, engine), *_routing_note(plan)]
    notes = [*told.notes, *own, *_image_notes(pool), *_apart_note(plan)]
    header = _header(plan, f"{CHARTS['kserve']} with {found.title} {found.version}", notes)
    return {"inferenceservice.yaml": header + yaml_text(*objects, service)}


def _dynamo(plan: Deployment) -> dict[str, str]:
    pools = {"prefill": plan.prefill, "decode": plan.decode} if plan.prefill and plan.decode else {"worker": plan.fleet}
    engine = engine_of(next(iter(pools.values())))
    _same_stages(plan, engine)
    image = DYNAMO_IMAGES[engine]
    front = {"containers": [{"name": "main", "image": image}]}
    workers = [_worker(plan, role, pool, engine, image) for role, pool in pools.items()]
    frontend = {"name": "Frontend", "type": "frontend", "replicas": 1, "podTemplate": {"spec": front}}
    graph = {
        "apiVersion": "nvidia.com/v1beta1",
        "kind": "DynamoGraphDeployment",
        "metadata": _metadata(plan),
        "spec": {"backendFramework": engine, "components": [frontend, *workers]},
    }
    notes = dict.fromkeys(note for role, pool in pools.items() for note in _worker_notes(role, pool, engine))
    notes |= dict.fromkeys([*(_name_note(plan, engine) if engine != "trtllm" else []), *_routing_note(plan)])
    title = f"{CHARTS['dynamo']} with {ENGINES[engine].title} {DYNAMO_ENGINES[engine]}"
    header = _header(plan, title, notes, pools.values())
    return {"dynamographdeployment.yaml": header + yaml_text(graph)}


def _same_stages(plan: Deployment, engine: str) -> None:
    """Raise DeployError where an engine cannot hand the KV cache over between the pools' pipeline stages: vLLM to none
    (its NIXL connector), SGLang to one or as many (disaggregation/common/conn.py)."""
    if plan.prefill is None or plan.decode is None:
        return
    before, after = plan.prefill.pp, plan.decode.pp
    if after > 1 and (engine == "vllm" or (engine == "sglang" and after != before)):
        raise DeployError(
            f"dynamo: {ENGINES[engine].title} cannot hand the KV cache of {before} pipeline stages to {after}: plan "
            "with layouts of one stage for tokens"
        )


DYNAMO_VERSION = "1.6.0"
DYNAMO_ENGINES: Mapping[str, str] = MappingProxyType({"vllm": "0.31.0", "sglang": "0.5.21", "trtllm": "1.3.0rc29"})
"""The engines in its images, as the package ai-dynamo pins them."""
DYNAMO_IMAGES: Mapping[str, str] = MappingProxyType(
    {
        engine: f"nvcr.io/nvidia/ai-dynamo/{name}-runtime:{DYNAMO_VERSION}"
        for engine, name in (("vllm", "vllm"), ("sglang", "sglang"), ("trtllm", "tensorrtllm"))
    }
)
_NIXL = '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'


def _ignored(role: str) -> frozenset[str]:
    """Options without effect in a worker: vLLM's limit on requests in line is that of its API server, which Dynamo does
    without, and SGLang has none where prefill and decode are apart."""
    return frozenset(("--max-num-queued-reqs", *(("--max-queued-requests",) if role != "worker" else ())))


def _worker_notes(role: str, pool: Pool, engine: str) -> list[str]:
    told, waiting = ENGINES[engine].told(pool), pool.engine_settings.max_waiting
    unlimited = any(told.options.get(name) for name in _ignored(role))
    limit = f"simulated with at most {waiting} requests waiting; {ENGINES[engine].title} as a worker rejects none"
    return [*told.notes, *([limit] if unlimited else [])]


def _worker(plan: Deployment, role: str, pool: Pool, engine: str, image: str) -> dict[str, Any]:
    """One component of the graph: `replicas` workers, each on the servers that it spans."""
    _no_option(plan)
    told, apart = ENGINES[engine].told(pool), role != "worker"
    model = "--model-path" if engine == "sglang" else "--model"
    options = {name: value for name, value in told.options.items() if name not in _ignored(role)}
    arguments = [model, plan.path, "--served-model-name", served_name(plan, engine), *words(options)]
    if told.config:
        transfer = {"cache_transceiver_config": {"backend": "DEFAULT"}} if apart else {}
        ahead = {"disable_overlap_scheduler": True} if role == "prefill" else {}  # prefill workers do without
        arguments += ["--override-engine-args", json.dumps({**told.config, **transfer, **ahead})]
    if apart:
        arguments += ["--disaggregation-mode", role, *DYNAMO_TRANSFER[engine]]
    per_server = math.ceil(pool.layout.gpus / pool.servers)
    container = {
        "name": "main",
        "image": image,
        "command": ["python3", "-m", f"dynamo.{engine}"],
        "args": [*map(literal, arguments)],
        "envFrom": [{"secretRef": {"name": "hf-token-secret", "optional": True}}],
        "resources": {"limits": {gpu_resource(pool.gpu): str(per_server)}},
    }
    return {
        "name": role,
        "type": role,
        "replicas": pool.replicas,
        **({"multinode": {"nodeCount": pool.servers}} if pool.servers > 1 else {}),
        "podTemplate": {"spec": {"containers": [container]}},
    }


DYNAMO_TRANSFER: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "vllm": ("--kv-transfer-config", _NIXL),
        "sglang": (
            *("--disaggregation-transfer-backend", "nixl", "--disaggregation-bootstrap-port", "12345"),
            *("--host", "0.0.0.0"),  # decode workers fetch from it
        ),
        "trtllm": (),
    }
)


def _target(plan: Deployment) -> tuple[float, str, str]:
    """Requests in a replica at the planned load, and the gauges whose sum they are, of the model's own pods."""
    in_flight = plan.fleet.engine_settings.in_flight
    if in_flight is None:
        raise DeployError("the plan has no requests in its replicas at the planned load: nothing to scale by")
    engine = engine_of(plan.fleet)
    running, waiting = ENGINES[engine].gauges
    model = f"model_name={json.dumps(served_name(plan, engine), ensure_ascii=False)}"
    of = f'pod=~"{_scale_of(plan)["name"]}-.*"' if engine == "trtllm" else model  # whose model_name is "undefined"
    return in_flight, f"{running}{{{of}}}", f"{waiting}{{{of}}}"


def _scale_of(plan: Deployment) -> dict[str, str]:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{plan.name}-predictor"}


SCALED = (
    "scales the Deployment that KServe makes of this plan's InferenceService; of the Helm chart it is called "
    "RELEASE-NAME-deployment-vllm"
)
PROMETHEUS = "http://prometheus-operated.monitoring.svc:9090"


def _keda(plan: Deployment) -> dict[str, str]:
    in_flight, running, waiting = _target(plan)
    pool, threshold = plan.fleet, _quantity(in_flight)
    spares = f" + {pool.spare} * {threshold}" if pool.spare else ""
    trigger = {
        "type": "prometheus",
        "metricType": "AverageValue",
        "metadata": {
            "serverAddress": PROMETHEUS,
            "query": f"sum({running}) + sum({waiting}){spares}",
            "threshold": threshold,
            "ignoreNullValues": "false",  # gauges that nobody scrapes are an error, not a load of 0
        },
    }
    scaled = {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _scale_of(plan),
            "minReplicaCount": min(pool.replicas, pool.spare + 1),
            "maxReplicaCount": pool.replicas,
            "triggers": [trigger],
        },
    }
    more = [f"the {pool.spare} spare stay on top at every load: the query adds what they would hold"] if spares else []
    notes = [*_scaling_notes(plan, in_flight), *more, f"Prometheus is expected at {PROMETHEUS}", *_apart_note(plan)]
    return {"scaledobject.yaml": _header(plan, CHARTS["keda"], notes) + yaml_text(scaled)}


def _scaling_notes(plan: Deployment, in_flight: float) -> list[str]:
    engine = engine_of(plan.fleet)
    gauges = " + ".join(ENGINES[engine].gauges)
    later = [
        f"{gauges}: of TensorRT-LLM later than 1.2, at /prometheus/metrics, with return_perf_metrics and "
        "enable_iter_perf_stats, as in this plan's configuration"
    ]
    return [
        f"{_quantity(in_flight)} requests run or wait in a working replica on average at the planned load ({gauges}): "
        "then all replicas of the plan are there, and never more",
        "the time that a new replica takes to load its weights was not simulated",
        SCALED,
        f"in that InferenceService {AUTOSCALER} must be external: with none KServe keeps the number of pods itself",
        *(later if engine == "trtllm" else []),
    ]


def _hpa(plan: Deployment) -> dict[str, str]:
    in_flight, _, _ = _target(plan)
    pool, (running, waiting) = plan.fleet, ENGINES[engine_of(plan.fleet)].gauges
    shared = in_flight * (pool.replicas - pool.spare) / pool.replicas
    metric = {"metric": {"name": HPA_METRIC}, "target": {"type": "AverageValue", "averageValue": _quantity(shared)}}
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(plan),
        "spec": {
            "scaleTargetRef": _scale_of(plan),
            "minReplicas": min(pool.replicas, pool.spare + 1),
            "maxReplicas": pool.replicas,
            "metrics": [{"type": "Pods", "pods": metric}],
        },
    }
    by = "{<<.LabelMatchers>>}) by (<<.GroupBy>>)"
    rule = {
        "seriesQuery": f'{running}{{namespace!="",pod!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"as": HPA_METRIC},
        "metricsQuery": f"sum({running}{by} + sum({waiting}{by}",
    }
    spares = [f"{pool.spare} spare share the load: {_quantity(shared)} requests a replica"] if pool.spare else []
    notes = [*_scaling_notes(plan, in_flight), *spares, f"{HPA_METRIC} comes from prometheus-adapter.yaml"]
    header = _header(plan, CHARTS["hpa"], [*notes, *_apart_note(plan)])
    adapter = comment([f"Values of the chart prometheus-adapter: {HPA_METRIC} is what runs and waits in a pod"])
    return {
        "hpa.yaml": header + yaml_text(scaler),
        "prometheus-adapter.yaml": adapter + yaml_text({"rules": {"custom": [rule]}}),
    }


HPA_METRIC = "llm_requests_in_flight"


def _quantity(value: float) -> str:
    """A number of three decimals at most, as Kubernetes and Prometheus read it.

    >>> _quantity(12.34567), _quantity(8.0), _quantity(0.0001)
    ('12.346', '8', '0.001')
    """
    return f"{max(value, 1e-3):.3f}".rstrip("0").rstrip(".")


CHARTS: Mapping[str, str] = MappingProxyType(
    {
        "helm": "the chart vllm-stack of vllm-project/production-stack 0.1.9",
        "kserve": "KServe 0.16 (serving.kserve.io/v1beta1)",
        "dynamo": f"NVIDIA Dynamo {DYNAMO_VERSION} (nvidia.com/v1beta1)",
        "keda": "KEDA 2.13 (keda.sh/v1alpha1)",
        "hpa": "Kubernetes (autoscaling/v2) with prometheus-adapter",
    }
)
"""What each file for Kubernetes was written against."""
FORMATS: Mapping[str, Callable[[Deployment], dict[str, str]]] = MappingProxyType(
    {
        "vllm": lambda plan: _shell(plan, "vllm"),
        "sglang": lambda plan: _shell(plan, "sglang"),
        "trtllm": lambda plan: _shell(plan, "trtllm"),
        "helm": _helm,
        "kserve": _kserve,
        "dynamo": _dynamo,
        "keda": _keda,
        "hpa": _hpa,
    }
)


def archive(plan: Deployment) -> bytes:
    """Every format in a folder of a ZIP file; the same plan makes the same bytes. A format that cannot hold the plan
    has a file that says why."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, files_of in FORMATS.items():
            try:
                files = files_of(plan)
            except DeployError as error:
                files = {"why-not.txt": f"{error}\n"}
            for file, text in files.items():
                packed.writestr(zipfile.ZipInfo(f"{name}/{file}"), text)
    return content.getvalue()
