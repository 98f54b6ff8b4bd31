"""The server's own view of a load level: means over the level from its metrics page, which is read every second."""

from __future__ import annotations

import json
import math
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Self

from prometheus_client.parser import text_string_to_metric_families

from calibration.errors import KEY, ServerError
from calibration.page import get

# --- What servers report: the families on their metrics pages, and the figures made of them


@dataclass(frozen=True, slots=True)
class Engine:
    """Families of one engine; the samples of each are added.

    `finished` counts requests, `iterations` passes ("" if the engine does not), and `counters` other events of a level.
    `gauges` are averaged over the level. `times` are histograms in seconds per request. `prefix`: pairs of counters of
    prompt tokens, looked up and found in the prefix cache; `prompts`: such a pair of an engine that counts no requests,
    prompt tokens computed and found.
    """

    finished: str
    gauges: Mapping[str, str]
    iterations: str = ""
    counters: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, str] = field(default_factory=dict)
    prefix: tuple[tuple[str, str], ...] = ()
    prompts: tuple[str, ...] = ()

    @property
    def totals(self) -> tuple[str, ...]:
        """All counters: they fall only when the engine restarts."""
        prefix = (name for pair in self.prefix for name in pair)
        return tuple(filter(None, (self.finished, self.iterations, *self.counters, *self.prompts, *prefix)))

    @property
    def families(self) -> tuple[str, ...]:
        """The names of all families on a page."""
        times = [f"{family}_{part}" for family in self.times for part in ("sum", "count")]
        return (*self.totals, *self.gauges, *times)


RUNNING, WAITING = "engine_requests_running_mean", "engine_requests_waiting_mean"
KV_SHARE, KV_TOKENS = "kv_cache_used_share_mean", "kv_cache_tokens"
BATCH_LIMIT, TOKEN_BUDGET = "engine_max_batch_size", "engine_token_budget"
ENGINES = (
    Engine(
        finished="vllm:request_success_total",
        iterations="vllm:iteration_tokens_total_count",
        gauges={
            "vllm:num_requests_running": RUNNING,
            "vllm:num_requests_waiting": WAITING,
            "vllm:kv_cache_usage_perc": KV_SHARE,  # a fraction of 1, despite its name
            "vllm:gpu_cache_usage_perc": KV_SHARE,  # before 0.10
        },
        counters={"vllm:num_preemptions_total": "preemptions"},
        times={
            "vllm:e2e_request_latency_seconds": "request_mean_s",
            "vllm:time_to_first_token_seconds": "first_response_mean_s",
            "vllm:request_queue_time_seconds": "engine_queue_mean_s",
            "vllm:request_prefill_time_seconds": "engine_prefill_mean_s",
            "vllm:request_decode_time_seconds": "engine_decode_mean_s",
        },
        prefix=(  # since 0.9.2, and before
            ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
            ("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
        ),
    ),
    Engine(
        finished="sglang:num_requests_total",
        iterations="sglang:cuda_graph_passes_total",  # by mode, also those without a graph
        gauges={
            "sglang:num_running_reqs": RUNNING,
            "sglang:num_queue_reqs": WAITING,
            "sglang:token_usage": KV_SHARE,
            "sglang:max_total_num_tokens": KV_TOKENS,
        },
        counters={"sglang:num_retracted_requests_total": "preemptions"},
        times={
            "sglang:e2e_request_latency_seconds": "request_mean_s",
            "sglang:time_to_first_token_seconds": "first_response_mean_s",
            "sglang:queue_time_seconds": "engine_queue_mean_s",
        },
        prefix=(("sglang:prompt_tokens_total", "sglang:cached_tokens_total"),),
    ),
    Engine(
        finished="trtllm_request_success_total",
        gauges={
            "trtllm_num_requests_running": RUNNING,
            "trtllm_num_requests_waiting": WAITING,
            "trtllm_kv_cache_utilization": KV_SHARE,
            "trtllm_kv_cache_max_blocks": "kv_cache_blocks_max_mean",
            "trtllm_kv_cache_tokens_per_block": "kv_cache_tokens_per_block",
            "trtllm_max_batch_size_static": BATCH_LIMIT,
            "trtllm_max_num_tokens_runtime": TOKEN_BUDGET,
            "trtllm_num_paused_requests": "engine_requests_paused_mean",
        },
        times={
            "trtllm_e2e_request_latency_seconds": "request_mean_s",
            "trtllm_time_to_first_token_seconds": "first_response_mean_s",
            "trtllm_request_queue_time_seconds": "engine_queue_mean_s",
            "trtllm_request_prefill_time_seconds": "engine_prefill_mean_s",
            "trtllm_request_decode_time_seconds": "engine_decode_mean_s",
        },
        prefix=(("trtllm_prompt_tokens_total", "trtllm_prompt_cached_tokens_total"),),
    ),
    Engine(
        finished="",
        iterations="llamacpp:n_decode_total",
        gauges={"llamacpp:requests_processing": RUNNING, "llamacpp:requests_deferred": WAITING},
        prompts=("llamacpp:prompt_tokens_total", "llamacpp:prompt_tokens_cached_total"),
    ),
)
"""vLLM, SGLang, TensorRT-LLM and llama.cpp. What the table cannot say is in the code: vLLM has its cache's size in
labels (`_vllm_cache`), SGLang's ranks repeat each other (`RANKS`) and its queues their total (`engine_gauges`),
TensorRT-LLM's PyTorch backend has 0 for limits (`engine_gauges`), its JSON a row for each rank (`_iteration_stats`).
"""
_VLLM_CACHE = "vllm:cache_config_info"
RANKS = ("tp_rank", "pp_rank", "moe_ep_rank")
"""Labels of SGLang's processes: all ranks of an engine report the same requests and the same cache."""
_BLOCK_TOKENS = "trtllm_kv_cache_tokens_per_block"
_ITERATION = {  # in TensorRT-LLM's JSON, which has one object for each pass since the page was last read
    "trtllm_num_requests_running": ("numActiveRequests",),
    "trtllm_num_requests_waiting": ("numQueuedRequests",),
    "trtllm_num_paused_requests": ("inflightBatchingStats", "numPausedRequests"),
    "trtllm_kv_cache_used_blocks": ("kvCacheStats", "usedNumBlocks"),
    "trtllm_kv_cache_max_blocks": ("kvCacheStats", "maxNumBlocks"),
    _BLOCK_TOKENS: ("kvCacheStats", "tokensPerBlock"),
}
PREFIX = "nv_"  # Triton's families, and those of its TensorRT-LLM backend
SUCCESS = "nv_inference_request_success"
DURATIONS = {
    "request": "nv_inference_request_duration_us",
    "queue": "nv_inference_queue_duration_us",
    "compute_input": "nv_inference_compute_input_duration_us",
    "compute_infer": "nv_inference_compute_infer_duration_us",
    "compute_output": "nv_inference_compute_output_duration_us",
}
ENGINE_FAMILIES = {
    # family of the TensorRT-LLM backend: its label, and the name of its values here
    "nv_trt_llm_request_metrics": ("request_type", "engine_requests_{}_mean"),
    "nv_trt_llm_runtime_memory_metrics": ("memory_type", "engine_memory_{}_mean_bytes"),
    "nv_trt_llm_kv_cache_block_metrics": ("kv_cache_block_type", "kv_cache_blocks_{}_mean"),
    "nv_trt_llm_inflight_batcher_metrics": ("inflight_batcher_specific_metric", "batcher_{}_mean"),
    "nv_trt_llm_v1_metrics": ("v1_specific_metric", "batcher_{}_mean"),
}
CALLED_OTHERWISE = {"kv_cache_blocks_tokens_per_mean": "kv_cache_tokens_per_block"}
NOT_MEANS = {"batcher_micro_batch_id_mean", "kv_cache_blocks_reused_mean", "kv_cache_blocks_fraction_mean"}
GPU_MEANS: dict[str, tuple[str, Callable[[Sequence[float]], float]]] = {
    "gpu_power_mean_w": ("nv_gpu_power_usage", sum),
    "gpu_utilization_mean": ("nv_gpu_utilization", lambda shares: sum(shares) / len(shares)),
    "gpu_memory_used_bytes": ("nv_gpu_memory_used_bytes", sum),
    "gpu_memory_total_bytes": ("nv_gpu_memory_total_bytes", sum),
    "cpu_utilization_mean": ("nv_cpu_utilization", sum),
}
_KV_BLOCKS = "nv_trt_llm_kv_cache_block_metrics"
_KEPT = (PREFIX, _VLLM_CACHE, *(family for engine in ENGINES for family in engine.families))

# --- A page

ANSWER_WITHIN_S = 3.0
LONGEST_LINE = 4096
Labels = Mapping[str, str]
Sample = tuple[Labels, float]


@dataclass(frozen=True, slots=True)
class Page:
    """A server's metrics at `at_s` (time.perf_counter): finite samples by name of the family.

    It has Triton's families and those of `ENGINES`, behind Triton or alone.
    """

    at_s: float
    families: Mapping[str, tuple[Sample, ...]]

    def by(self, family: str, label: str, **labels: str) -> dict[str, float]:
        """Values by `label`, of the samples that have all of `labels`; samples with the same label are added."""
        found: dict[str, float] = {}
        for given, value in self._matching(family, labels):
            if label in given:
                found[given[label]] = found.get(given[label], 0.0) + value
        return found

    def values(self, family: str, **labels: str) -> list[float]:
        """Values of the samples that have all of `labels`; [] if there are none. Ranks of one engine have one value."""
        engines: dict[frozenset[tuple[str, str]], float] = {}
        for given, value in self._matching(family, labels):
            engine = frozenset(each for each in given.items() if each[0] not in RANKS)
            engines[engine] = max(value, engines.get(engine, value))
        return list(engines.values())

    def total(self, family: str, **labels: str) -> float | None:
        """The sum of `values`; None if there are none."""
        values = self.values(family, **labels)
        return sum(values, 0.0) if values else None

    def _matching(self, family: str, labels: Labels) -> Iterable[Sample]:
        for given, value in self.families.get(family, ()):
            if labels.items() <= given.items():
                yield given, value


@dataclass(frozen=True, slots=True)
class Access:
    """What reading a metrics page requires: further headers, and certificates to trust."""

    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None


def read_page(url: str, access: Access | None = None) -> Page:
    """The page at `url`, at the time of its answer.

    Raises ServerError if it does not come within 3 s, is larger than 4 MiB, or is not a page of a known server.
    """
    access = access or Access()
    try:
        status, body = get(url, ANSWER_WITHIN_S, access.headers, access.tls)
    except OSError as error:
        raise _missing(url, str(error)) from None
    if status != 200:
        raise _missing(url, f"HTTP {status}")
    return parse_page(body.decode("utf-8", "replace"), url, time.perf_counter())


def _missing(url: str, reason: str) -> ServerError:
    return ServerError(f"{url}: no metrics there ({reason}); correct {KEY}", "server.metrics_url")


def parse_page(text: str, url: str, at_s: float) -> Page:
    """The known families in `text`, the Prometheus text format or TensorRT-LLM's JSON.

    Raises ServerError naming `url`.
    """
    if text.lstrip().startswith("["):
        return Page(at_s, _iteration_stats(text, url))
    # without comments: their TYPE lines would make the parser rename counters
    lines = [line for line in text.splitlines() if line.startswith(_KEPT)]
    if not lines:
        raise ServerError(
            f"{url}: no metrics of a known server there (Triton, vLLM, SGLang, TensorRT-LLM, llama.cpp); correct {KEY}",
            "server.metrics_url",
        )
    families: dict[str, list[Sample]] = {}
    for line in lines:
        if len(line) > LONGEST_LINE:
            raise ServerError(f"{url}: a line of {len(line)} characters is not a metric: {line[:40]!r}...")
        try:
            read = [sample for family in text_string_to_metric_families(line) for sample in family.samples]
        except (ValueError, IndexError):  # the parser raises both, for different errors in a line
            raise ServerError(f"{url}: not Prometheus text: {line[:80]!r}") from None
        for sample in read:
            if math.isfinite(sample.value):
                families.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    return Page(at_s, {name: tuple(samples) for name, samples in families.items()})


def _iteration_stats(text: str, url: str) -> dict[str, tuple[Sample, ...]]:
    """Means over the passes in TensorRT-LLM's JSON, as families; none if nothing ran since the page was last read.

    With attention data parallelism each pass has an object for each rank, whose requests and blocks are added. Rank 0
    has the whole queue; its other figures stand for every rank's, unless TLLM_METRICS_ALL_RANKS is set.
    """
    try:
        passes = json.loads(text, parse_int=float)  # of any length: beyond a float's range they are infinite
    except (ValueError, RecursionError):
        raise ServerError(f"{url}: neither Prometheus text nor JSON: {text[:40]!r}") from None
    found: dict[str, list[float]] = {}
    for each in passes:
        for family, path in _ITERATION.items():
            value: Any = each
            for key in path:
                value = value.get(key) if isinstance(value, dict) else None
            if isinstance(value, int | float) and math.isfinite(value):
                found.setdefault(family, []).append(float(value))
    ranks = len({str(each.get("attentionDpRank", each.get("rank"))) for each in passes if isinstance(each, dict)})
    means = {
        family: sum(values) / len(values) * (1 if family == _BLOCK_TOKENS else ranks)
        for family, values in found.items()
    }
    if means.get("trtllm_kv_cache_max_blocks") and "trtllm_kv_cache_used_blocks" in means:
        means["trtllm_kv_cache_utilization"] = (
            means["trtllm_kv_cache_used_blocks"] / means["trtllm_kv_cache_max_blocks"]
        )
    return {family: (({}, value),) for family, value in means.items()} or {"trtllm_num_requests_running": ()}


# --- Means over a load level: seconds per request, gauges over time, GPU figures


def increase(first: Page, last: Page, family: str, **labels: str) -> float:
    """The increase of a counter between two pages, over all its samples that have all of `labels`."""
    return (last.total(family, **labels) or 0.0) - (first.total(family, **labels) or 0.0)


def counter_means(first: Page, last: Page, model: str) -> dict[str, float]:
    """Seconds per finished request between two pages: of `model`, and of every other model that served requests.

    Those include the parts of an ensemble: their names have the prefix ``part.``, and ``part.requests_per_request`` is
    how often one request of `model` called them. For a decoupled model that is not an ensemble, Triton times only the
    hand-over to its backend, not the answer.
    """
    found = _durations(first, last, model) | engine_counters(first, last)
    finished = _finished_between(first, last, model)
    for part in sorted(set(last.by(SUCCESS, "model")) - {model}):
        calls = increase(first, last, SUCCESS, model=part)
        if calls > 0:
            found |= {f"{part}.{name}": value for name, value in _durations(first, last, part).items()}
            if finished > 0:
                found[f"{part}.requests_per_request"] = calls / finished
    if last.total(SUCCESS) is not None:
        found["requests_failed"] = increase(first, last, "nv_inference_request_failure", model=model)
    found |= _energy(first, last, finished) | _blocks_reused(first, last)
    found |= _prefix_found(first, last, finished)
    return found | _rates(first, last, finished)


def _energy(first: Page, last: Page, finished: float) -> dict[str, float]:
    spent_j = increase(first, last, "nv_energy_consumption")
    if spent_j <= 0:
        return {}
    return {"gpu_energy_j": spent_j} | ({"gpu_energy_per_request_j": spent_j / finished} if finished > 0 else {})


def _blocks_reused(first: Page, last: Page) -> dict[str, float]:
    """Blocks reused from the cache of earlier prompts: the TensorRT-LLM backend counts them in a gauge."""
    before, after = (page.total(_KV_BLOCKS, kv_cache_block_type="reused") for page in (first, last))
    return {} if before is None or after is None else {"kv_cache_blocks_reused": after - before}


def _prefix_found(first: Page, last: Page, finished: float) -> dict[str, float]:
    """Mean prompt tokens per request found in the prefix cache, and their fraction of those looked up.

    Engines count tokens looked up and found, and their requests; the TensorRT-LLM backend counts reused blocks.
    llama.cpp counts no requests, so only the fraction of all prompt tokens is known.
    """
    for engine in engines_of(last):
        if engine.prompts and last.total(engine.prompts[1]) is not None:
            computed, found = (increase(first, last, family) for family in engine.prompts)
            return {"prefix_tokens_found_share": found / (computed + found)} if computed + found > 0 else {}
        served = increase(first, last, engine.finished) if engine.finished else 0.0
        for looked_up, hits in engine.prefix:
            asked = increase(first, last, looked_up)
            if served > 0 and last.total(hits) is not None and asked > 0:
                found = increase(first, last, hits)
                return {"prefix_tokens_found_mean": found / served, "prefix_tokens_found_share": found / asked}
    reused = _blocks_reused(first, last).get("kv_cache_blocks_reused")
    block = last.total(_KV_BLOCKS, kv_cache_block_type="tokens_per")
    if reused is None or block is None or finished <= 0:
        return {}
    return {"prefix_tokens_found_mean": reused * block / finished}


def _rates(first: Page, last: Page, finished: float) -> dict[str, float]:
    apart_s = last.at_s - first.at_s
    if apart_s <= 0:
        return {}
    found = {"metrics_span_s": apart_s, "finished_per_s": finished / apart_s}
    passes = increase(first, last, "nv_trt_llm_general_metrics", general_type="iteration_counter")
    for engine in engines_of(last):
        passes += increase(first, last, engine.iterations) if engine.iterations else 0.0
    return found | ({"engine_iterations_per_s": passes / apart_s} if passes > 0 else {})


def _durations(first: Page, last: Page, model: str) -> dict[str, float]:
    finished = increase(first, last, SUCCESS, model=model)
    if finished <= 0:
        return {}
    found = {}
    for name, family in DURATIONS.items():
        if last.total(family, model=model) is not None:
            found[f"{name}_mean_s"] = increase(first, last, family, model=model) / finished * 1e-6
    executions = increase(first, last, "nv_inference_exec_count", model=model)
    if executions > 0:
        found["batch_mean"] = increase(first, last, "nv_inference_count", model=model) / executions
    first_responses = increase(first, last, "nv_inference_first_response_histogram_ms_count", model=model)
    if first_responses > 0:
        total_ms = increase(first, last, "nv_inference_first_response_histogram_ms_sum", model=model)
        found["first_response_mean_s"] = total_ms / first_responses * 1e-3
    return found


def gauge_means(pages: Iterable[Page], model: str) -> dict[str, float]:
    """Means over `pages` of pending requests, of the TensorRT-LLM backend's families, and of GPUs and CPU.

    Power and memory are sums over all GPUs that the server sees; utilisation is their mean.
    """
    columns: dict[str, list[float]] = {}
    for page in pages:
        for name, value in _gauges(page, model).items():
            columns.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in columns.items()}


def _gauges(page: Page, model: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part, pending in page.by("nv_inference_pending_request_count", "model").items():
        found["pending_requests_mean" if part == model else f"{part}.pending_requests_mean"] = pending
    for name, (family, together) in GPU_MEANS.items():
        if values := page.values(family):
            found[name] = together(values)
    return found | _with_size(_backend_gauges(page, model) | engine_gauges(page))


def _with_size(gauges: dict[str, float]) -> dict[str, float]:
    """With the KV cache's size in tokens, where only blocks and their size are told."""
    blocks, per_block = gauges.get("kv_cache_blocks_max_mean"), gauges.get("kv_cache_tokens_per_block")
    return ({KV_TOKENS: blocks * per_block} if blocks and per_block else {}) | gauges


def _backend_gauges(page: Page, model: str) -> dict[str, float]:
    """Gauges of the TensorRT-LLM backend's only engine on the page; of several, those of `model` itself."""
    found: dict[str, float] = {}
    for family, (label, name) in ENGINE_FAMILIES.items():
        engines = page.by(family, "model")
        engine = model if model in engines else next(iter(engines), None)
        if engine is None or (len(engines) > 1 and engine != model):
            continue
        found |= {name.format(key): value for key, value in page.by(family, label, model=engine).items()}
    kept = {CALLED_OTHERWISE.get(name, name): value for name, value in found.items() if name not in NOT_MEANS}
    return kept | _kv_share(kept)


def _kv_share(gauges: Mapping[str, float]) -> dict[str, float]:
    most, used = gauges.get("kv_cache_blocks_max_mean"), gauges.get("kv_cache_blocks_used_mean")
    return {"kv_cache_used_share_mean": used / most} if most and used is not None else {}


def engines_of(page: Page) -> list[Engine]:
    """The engines that have a family on the page."""
    return [engine for engine in ENGINES if any(family in page.families for family in engine.families)]


def engine_gauges(page: Page) -> dict[str, float]:
    """The engines' gauges, and what vLLM says of its KV cache."""
    found: dict[str, float] = {}
    for engine in engines_of(page):
        for family, name in engine.gauges.items():
            # with priorities, SGLang reports the total without one, and each priority beside it
            if values := page.values(family, priority="") or page.values(family):
                alike = name not in (RUNNING, WAITING, KV_TOKENS)  # these add up over several engines of a server
                found[name] = sum(values) / len(values) if alike else sum(values)
    for name in (BATCH_LIMIT, TOKEN_BUDGET):
        if found.get(name) == 0:  # TensorRT-LLM's PyTorch backend has no value for it
            del found[name]
    return found | _vllm_cache(page)


def _vllm_cache(page: Page) -> dict[str, float]:
    """The size of vLLM's cache, which is in the labels of a sample that is always 1, one for each engine.

    Each has the blocks of all engines together, but `kv_cache_size_tokens` of one. Versions that report the latter
    have it right for models whose layers share the blocks in groups, of which blocks times their size knows nothing.
    """
    infos = [
        labels
        for labels, _ in page.families.get(_VLLM_CACHE, ())
        if all(labels.get(name, "").isdecimal() for name in ("block_size", "num_gpu_blocks"))
    ]
    if not infos:
        return {}
    found = {
        "kv_cache_tokens_per_block": float(infos[0]["block_size"]),
        "kv_cache_blocks_max_mean": float(infos[0]["num_gpu_blocks"]),
    }
    tokens = [labels.get("kv_cache_size_tokens", "") for labels in infos]
    return found | ({KV_TOKENS: sum(map(float, tokens))} if all(map(str.isdecimal, tokens)) else {})


def engine_counters(first: Page, last: Page) -> dict[str, float]:
    """The engines' counters and times between two pages; seconds are means per request."""
    found: dict[str, float] = {}
    for engine in engines_of(last):
        for family, name in engine.counters.items():
            if last.total(family) is not None:
                found[name] = increase(first, last, family)
        for family, name in engine.times.items():
            requests = increase(first, last, f"{family}_count")
            if requests > 0:
                found[name] = increase(first, last, f"{family}_sum") / requests
    return found


# --- A level, watched

EVERY_S = 1.0
COUNTERS_SETTLE_S = 0.5
"""Triton counts a request a little after its last response, and later on a busy machine."""
MOST_SETTLING = 4
Window = tuple[float, float]


def requests_served(metrics_url: str, model: str, access: Access | None = None) -> int | None:
    """Requests that `model` has answered since the server started; None if its engine does not count them.

    Raises ServerError if the page cannot be read, or is Triton's and does not count the model's requests.
    """
    count = _served(read_page(metrics_url, access), metrics_url, model)
    return None if count is None else round(count)


def _served(page: Page, url: str, model: str) -> float | None:
    count = finished(page, model)
    if count is None and not engines_of(page):
        raise ServerError(f"{url}: it has no {SUCCESS} of model {model!r}; correct {KEY}", "server.metrics_url")
    return count


def finished(page: Page, model: str) -> float | None:
    """Requests answered since the server started: of the Triton model, else of the engine, which has one model."""
    if page.total(SUCCESS) is not None:
        return page.total(SUCCESS, model=model)
    counts = [page.total(engine.finished) for engine in engines_of(page) if engine.finished]
    return next((count for count in counts if count is not None), None)


def _finished_between(first: Page, last: Page, model: str) -> float:
    return (finished(last, model) or 0.0) - (finished(first, model) or 0.0)


@dataclass(slots=True)
class Scraper:
    """Reads the page at `metrics_url` at both ends of a ``with`` block and each second in between, on its own thread.

    Entering raises ServerError if the page cannot be used. A later reading that fails is a note, never an error.
    `engine` is a model that answers each request to `model` once, and that others may call directly. `before` is the
    last page of the previous level.
    """

    metrics_url: str
    model: str
    engine: str | None = None
    every_s: float = EVERY_S
    access: Access | None = None
    before: Page | None = None
    _pages: list[Page] = field(default_factory=list, init=False)
    _missed: list[str] = field(default_factory=list, init=False)
    _closed: bool = field(default=False, init=False)
    _stop: threading.Event = field(default_factory=threading.Event, init=False)
    _thread: threading.Thread | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        self._pages.append(self._settled())
        self._thread = threading.Thread(target=self._read_on, name="metrics scraper", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if kind is None:
            time.sleep(COUNTERS_SETTLE_S)
            self._closed = self._read()

    def _settled(self) -> Page:
        """A page that counts every request sent before: its count no longer rises, unless others send requests."""
        before = math.nan
        for _ in range(MOST_SETTLING):
            time.sleep(COUNTERS_SETTLE_S / 2)
            page = read_page(self.metrics_url, self.access)
            count = _served(page, self.metrics_url, self.model)
            if count is None or count == before:
                break
            before = count
        return page

    def _read_on(self) -> None:
        next_s = time.perf_counter() + self.every_s
        while not self._stop.wait(max(0.0, next_s - time.perf_counter())):
            self._read()
            next_s = max(next_s + self.every_s, time.perf_counter())

    def _read(self) -> bool:
        try:
            self._pages.append(read_page(self.metrics_url, self.access))
        except ServerError as error:
            self._missed.append(str(error))
            return False
        return True

    def means(self, window: Window | None = None) -> dict[str, float]:
        """The figures of the level that the pages have, by name with unit.

        Gauges are means over the readings inside `window` (start and stop in time.perf_counter seconds), counters are
        differences over all of it; without a window, or with fewer than two readings in it, over all pages.
        ``requests_served`` always counts the whole level. Durations are means per finished request.
        """
        pages = self._inside(window)
        found = gauge_means(pages, self.model)
        if not restarted(self._pages, self.model):
            found |= counter_means(pages[0], pages[-1], self.model)
            if self._closed and finished(self._pages[-1], self.model) is not None:
                found["requests_served"] = _finished_between(self._pages[0], self._pages[-1], self.model)
        return found

    def _inside(self, window: Window | None) -> Sequence[Page]:
        start_s, stop_s = window or (-math.inf, math.inf)
        inside = [page for page in self._pages if start_s <= page.at_s <= stop_s]
        return inside if len(inside) > 1 else self._pages

    def served(self) -> int | None:
        """Requests of all clients answered between the first and the last page; None if unknown."""
        if not self._closed or restarted(self._pages, self.model) or finished(self._pages[-1], self.model) is None:
            return None
        models = (self.model,) if self.engine is None else (self.model, self.engine)
        return max(round(_finished_between(self._pages[0], self._pages[-1], model)) for model in models)

    @property
    def last(self) -> Page:
        """The last page that was read."""
        return self._pages[-1]

    def notes(self) -> list[str]:
        """Remarks on the point."""
        found = []
        if self.before is not None and restarted((self.before, self._pages[0]), self.model):
            found.append("the server was restarted between the previous level and this one")
        if restarted(self._pages, self.model):
            found.append("the server was restarted during the level: its counters fell")
        if self._missed:
            tries = len(self._missed) + len(self._pages)
            found.append(f"{len(self._missed)} of {tries} readings of the metrics failed, first: {self._missed[0]}")
        return found


def restarted(pages: Iterable[Page], model: str) -> bool:
    """True if a counter of the model or of an engine ever fell, or vanished, from one page to a later one."""
    families = [family for engine in ENGINES for family in engine.totals]
    counts = [[finished(page, model), *map(page.total, families)] for page in pages]
    return any(
        (later or 0.0) < (earlier or 0.0) for rows in pairwise(counts) for earlier, later in zip(*rows, strict=True)
    )
