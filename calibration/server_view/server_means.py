"""Pages of a server's metrics become means over a load level: seconds per request, gauges over time, GPU figures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from calibration.server_view.prometheus import Page

SUCCESS = "nv_inference_request_success"
DURATIONS = {
    "request": "nv_inference_request_duration_us",
    "queue": "nv_inference_queue_duration_us",
    "compute_input": "nv_inference_compute_input_duration_us",
    "compute_infer": "nv_inference_compute_infer_duration_us",
    "compute_output": "nv_inference_compute_output_duration_us",
}
ENGINE_FAMILIES = {
    # family of the TensorRT-LLM backend: its label, and how its values are called here
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


def increase(first: Page, last: Page, family: str, model: str | None = None) -> float:
    """How much a counter rose from one page to another, all its samples (of `model`) together."""
    labels = {} if model is None else {"model": model}
    return (last.total(family, **labels) or 0.0) - (first.total(family, **labels) or 0.0)


def counter_means(first: Page, last: Page, model: str) -> dict[str, float]:
    """Seconds per finished request between two pages: of `model`, and of each other model that worked meanwhile.

    The parts of an ensemble are such models: their names have ``part.`` before them, and ``part.requests_per_request``
    is how often one request of `model` called them. Of a decoupled model that is no ensemble Triton times only the
    hand-over to its backend, not the answer.
    """
    found = _durations(first, last, model)
    finished = increase(first, last, SUCCESS, model)
    for part in sorted(set(last.by(SUCCESS, "model")) - {model}):
        calls = increase(first, last, SUCCESS, part)
        if calls > 0:
            found |= {f"{part}.{name}": value for name, value in _durations(first, last, part).items()}
            if finished > 0:
                found[f"{part}.requests_per_request"] = calls / finished
    found["requests_failed"] = increase(first, last, "nv_inference_request_failure", model)
    found |= _energy(first, last, finished) | _blocks_reused(first, last)
    return found | _rates(first, last, finished)


def _energy(first: Page, last: Page, finished: float) -> dict[str, float]:
    spent_j = increase(first, last, "nv_energy_consumption")
    if spent_j <= 0:
        return {}
    return {"gpu_energy_j": spent_j} | ({"gpu_energy_per_request_j": spent_j / finished} if finished > 0 else {})


def _blocks_reused(first: Page, last: Page) -> dict[str, float]:
    """The TensorRT-LLM backend counts blocks taken from the cache of earlier prompts in a gauge that only rises."""
    before, after = (page.total(_KV_BLOCKS, kv_cache_block_type="reused") for page in (first, last))
    return {} if before is None or after is None else {"kv_cache_blocks_reused": after - before}


def _rates(first: Page, last: Page, finished: float) -> dict[str, float]:
    apart_s = last.at_s - first.at_s
    if apart_s <= 0:
        return {}
    found = {"metrics_span_s": apart_s, "finished_per_s": finished / apart_s}
    passes = _iterations(last) - _iterations(first)
    return found | ({"engine_iterations_per_s": passes / apart_s} if passes > 0 else {})


def _durations(first: Page, last: Page, model: str) -> dict[str, float]:
    finished = increase(first, last, SUCCESS, model)
    if finished <= 0:
        return {}
    found = {}
    for name, family in DURATIONS.items():
        if last.total(family, model=model) is not None:
            found[f"{name}_mean_s"] = increase(first, last, family, model) / finished * 1e-6
    executions = increase(first, last, "nv_inference_exec_count", model)
    if executions > 0:
        found["batch_mean"] = increase(first, last, "nv_inference_count", model) / executions
    first_responses = increase(first, last, "nv_inference_first_response_histogram_ms_count", model)
    if first_responses > 0:
        total_ms = increase(first, last, "nv_inference_first_response_histogram_ms_sum", model)
        found["first_response_mean_s"] = total_ms / first_responses * 1e-3
    return found


def _iterations(page: Page) -> float:
    return page.total("nv_trt_llm_general_metrics", general_type="iteration_counter") or 0.0


def gauge_means(pages: Iterable[Page], model: str) -> dict[str, float]:
    """Means over `pages` of the requests pending, of the TensorRT-LLM backend's families, and of GPUs and CPU.

    Power and memory are those of all GPUs that the server sees, the utilisation is their mean.
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
    return found | _engine_gauges(page, model)


def _engine_gauges(page: Page, model: str) -> dict[str, float]:
    """Of the one engine that the page knows; of several, that of `model` itself."""
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
