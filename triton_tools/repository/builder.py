"""Write a TensorRT-LLM model repository: one folder per model with config.pbtxt, version 1 and its program."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from calibration.errors import RepositoryError
from lab.reference.contract import Model
from sizing.errors import quoted
from triton_tools.repository import legal
from triton_tools.repository.contracts import TEXT
from triton_tools.repository.messages import CONFIG_FILE, add_instances, add_steps, as_text, model_message
from triton_tools.repository.options import MODEL_TYPES, Options, Queueing

PROGRAMS = Path(__file__).with_name("programs")
NEEDS = {
    "preprocessing": ("wording.py",),
    "postprocessing": ("wording.py",),
    "tensorrt_llm_bls": (),
    "text": (),
}
DECOUPLED = ("tensorrt_llm", "tensorrt_llm_bls")


def build_repository(folder: Path, options: Options) -> Path:
    """Write the repository that `options` describe into `folder` and return it.

    v0.8: preprocessing, tensorrt_llm, postprocessing, ensemble and tensorrt_llm_bls; v0.5: the first four; with
    `text_model` one more. The engine itself is not copied: `tensorrt_llm` names its folder.

    Raises:
        RepositoryError: `folder` exists and is not empty, or cannot be written.
    """
    try:
        folder = folder.resolve()
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise RepositoryError(
                f"{folder} exists and is not an empty folder: choose another for the model repository"
            )
        for model in options.published.models:
            _write(folder / model.name, config_of(model, options), model.name)
        if options.text_model:
            _write(folder / options.text_model, _text_config(options), "text")
        if options.published.model("tensorrt_llm_bls"):
            _write_wiring(folder / "tensorrt_llm_bls" / "1" / "wiring.json", options)
    except UnicodeEncodeError as error:
        raise RepositoryError(f"an option is not text: {quoted(error.object)}") from error
    except OSError as error:
        raise RepositoryError(f"cannot write the model repository {folder}: {error.strerror or error}") from error
    return folder


def config_of(model: Model, options: Options) -> pb.ModelConfig:
    """The whole configuration of one model of the contract."""
    config = model_message(model, options.max_batch_size)
    if model.name == "ensemble":
        add_steps(config, options.published.steps)
        return config
    config.backend = "tensorrtllm" if model.name == "tensorrt_llm" else "python"
    add_instances(config, _instances(model.name, options))
    if model.name in DECOUPLED:
        config.model_transaction_policy.decoupled = options.decoupled
    if model.name == "tensorrt_llm":
        add_queue(config, options.queueing, options.published.batched)
    values = _values(options)
    for key, published in options.published.parameters.get(model.name, {}).items():
        config.parameters[key].string_value = values.get(key, published)
    return config


def add_queue(config: pb.ModelConfig, queue: Queueing, always: bool) -> None:
    """Give `config` Triton's dynamic batcher if `queue` needs it, or if `always` is set."""
    if queue == Queueing() and not always:
        return
    batcher = config.dynamic_batching
    batcher.preferred_batch_size.extend(queue.preferred_batch_sizes or (config.max_batch_size,))
    batcher.max_queue_delay_microseconds = queue.max_delay_us
    batcher.preserve_ordering = queue.preserve_ordering
    batcher.priority_levels = queue.priority_levels
    batcher.default_priority_level = queue.default_priority_level
    if queue.max_queue_size or queue.timeout_us or queue.allow_timeout_override:
        policy = batcher.default_queue_policy
        policy.max_queue_size = queue.max_queue_size
        policy.default_timeout_microseconds = queue.timeout_us
        policy.timeout_action = pb.ModelQueuePolicy.TimeoutAction.Value(queue.timeout_action)
        policy.allow_timeout_override = queue.allow_timeout_override


def _values(options: Options) -> Mapping[str, str]:
    """The value of every parameter; an empty one means "not given", and the backend uses its default."""
    return {
        "gpt_model_type": MODEL_TYPES[options.batching],
        "gpt_model_path": options.engine_dir,
        "batch_scheduler_policy": legal.POLICY_ALIASES.get(options.policy, options.policy),
        "max_tokens_in_paged_kv_cache": _said(options.max_tokens_in_paged_kv_cache),
        "kv_cache_free_gpu_mem_fraction": _said(options.kv_cache_free_gpu_mem_fraction),
        "max_num_sequences": _said(options.max_num_sequences),
        "max_attention_window_size": _said(options.max_attention_window_size),
        "max_beam_width": str(options.max_beam_width),
        "enable_trt_overlap": _said(options.enable_trt_overlap),
        "enable_kv_cache_reuse": _said(options.enable_kv_cache_reuse),
        "enable_chunked_context": _said(options.enable_chunked_context),
        "exclude_input_in_output": _said(options.exclude_input_in_output),
        "normalize_log_probs": _said(options.normalize_log_probs),
        "gpu_device_ids": ",".join(map(str, options.gpu_device_ids)),
        "tokenizer_dir": options.tokenizer_dir,
        "tokenizer_type": options.tokenizer_type,
        "accumulate_tokens": str(options.accumulate_tokens),
    }


def _said(value: bool | int | float | None) -> str:
    return "" if value is None else str(value)


def _instances(name: str, options: Options) -> int:
    counts = {
        "preprocessing": options.preprocessing_instances,
        "postprocessing": options.postprocessing_instances,
        "tensorrt_llm_bls": options.bls_instances,
    }
    return counts.get(name, 1)


def _text_config(options: Options) -> pb.ModelConfig:
    config = model_message(TEXT, 0)
    config.name = options.text_model
    config.backend = "python"
    config.instance_group.add(count=1, kind=pb.ModelInstanceGroup.KIND_AUTO)
    config.parameters["model_dir"].string_value = options.text_model_dir
    return config


def _write(folder: Path, config: pb.ModelConfig, program: str) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    (folder / CONFIG_FILE).write_text(as_text(config))
    if program not in NEEDS:
        (version / ".keep").touch()  # a version folder must exist, and some tools drop empty folders
        return
    shutil.copyfile(PROGRAMS / f"{program}.py", version / "model.py")
    for name in NEEDS[program]:
        shutil.copyfile(PROGRAMS / name, version / name)


def _write_wiring(path: Path, options: Options) -> None:
    """The ensemble's steps for the BLS model, which calls the three models in the same order."""
    steps = [
        {"model": step.model, "inputs": dict(step.inputs), "outputs": dict(step.outputs)}
        for step in options.published.steps
    ]
    path.write_text(json.dumps(steps, indent=1) + "\n")
