"""The repository of the local reference server: four models of the v0.8 contract, with the small engine behind them."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc import model_config_pb2 as pb

from calibration.errors import ServerError
from calibration.load import system
from lab.reference import contract
from lab.reference.settings import KV_BLOCK_TOKENS, Settings
from lab.reference.tokenizer import save_tokenizer
from triton_tools.repository.messages import CONFIG_FILE, add_instances, add_steps, as_text, model_message

MODELS = Path(__file__).parents[2] / "lab" / "reference" / "models"
TRITON_VERSION = "2.51.0"


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the engine computes: `device` (cpu or cuda), its name, the version of torch, and the number format."""

    device: str
    gpu: str
    torch: str
    precision: str


def cpu_name() -> str:
    """The processor's name in /proc/cpuinfo."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def this_cpu() -> Machine:
    """This machine, without its GPU; the version of torch is not known from here."""
    return Machine(device="cpu", gpu=cpu_name(), torch="unknown", precision="fp32")


def build(folder: Path, settings: Settings, machine: Machine | None = None) -> Path:
    """Write the four-model repository into `folder` and return it.

    `folder` gets preprocessing, tensorrt_llm, postprocessing and ensemble, each with `config.pbtxt` and version 1, and
    in `preprocessing/` and `postprocessing/` the `tokenizer.json` that they read. Clients load either of the two.

    Raises:
        ServerError: `folder` exists and is not empty, or cannot be written.
    """
    folder = folder.resolve()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ServerError(f"{folder} exists and is not an empty folder: choose another for the model repository")
    try:
        for model in contract.MODELS:
            _write_model(folder / model.name, model, settings, machine or this_cpu())
    except OSError as error:
        raise ServerError(f"cannot write the model repository {folder}: {error.strerror or error}") from error
    return folder


def _write_model(folder: Path, model: contract.Model, settings: Settings, machine: Machine) -> None:
    version = folder / "1"
    version.mkdir(parents=True)
    source = MODELS / model.name / "model.py"
    if source.exists():
        shutil.copyfile(source, version / "model.py")
    else:
        (version / ".keep").touch()  # a version folder must exist, and some tools drop empty folders
    if model.name in ("preprocessing", "postprocessing"):
        save_tokenizer(folder, settings.vocab_size)
    config = model_config(model, settings)
    for key, value in _parameters(model.name, folder, settings, machine).items():
        config.parameters[key].string_value = value
    (folder / CONFIG_FILE).write_text(as_text(config))


def model_config(model: contract.Model, settings: Settings) -> pb.ModelConfig:
    """The configuration of one model, without its parameters."""
    config = model_message(model, settings.max_batch_size)
    if model.decoupled:
        config.model_transaction_policy.decoupled = True
        # delay 0: the engine batches, so the server must hand each request over at once
        config.dynamic_batching.preferred_batch_size.append(settings.max_batch_size)
        config.dynamic_batching.max_queue_delay_microseconds = 0
    if model is contract.ENSEMBLE:
        add_steps(config, contract.STEPS)
    else:
        config.backend = "python"
        add_instances(config, 1)  # with two instances of postprocessing, tokens of a stream overtake each other
    return config


def _parameters(name: str, folder: Path, settings: Settings, machine: Machine) -> dict[str, str]:
    if name == "preprocessing":
        return {"tokenizer_dir": str(folder), "tokenizer_type": "auto", "add_special_tokens": "False"}
    if name == "postprocessing":
        return {"tokenizer_dir": str(folder), "tokenizer_type": "auto", "skip_special_tokens": "True"}
    if name == "tensorrt_llm":
        return engine_parameters(settings, machine)
    return {}


def engine_parameters(settings: Settings, machine: Machine) -> dict[str, str]:
    """All parameters of `tensorrt_llm` with the reference engine behind it."""
    return _backend_parameters(settings, machine) | own_parameters(settings, machine) | {"decoupled": "True"}


def own_parameters(settings: Settings, machine: Machine) -> dict[str, str]:
    """Parameters that the reference engine needs, but the backend does not know."""
    return _deployment(settings, machine) | _engine(settings, machine)


def _backend_parameters(settings: Settings, machine: Machine) -> dict[str, str]:
    """The parameters of the v0.8.0 backend."""
    return {
        "gpt_model_type": "inflight_fused_batching" if settings.batching == "in_flight" else "V1",
        "gpt_model_path": "",
        "batch_scheduler_policy": settings.policy,
        "max_tokens_in_paged_kv_cache": str(settings.kv_tokens),
        "max_attention_window_size": str(settings.max_sequence_tokens),
        "kv_cache_free_gpu_mem_fraction": "1.0",
        "enable_kv_cache_reuse": str(settings.kv_reuse),
        "enable_chunked_context": "True",
        "enable_trt_overlap": "False",
        "exclude_input_in_output": "False",
        "normalize_log_probs": "True",
        "max_beam_width": "1",
        "gpu_device_ids": "0" if machine.device == "cuda" else "",
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
    }


def _deployment(settings: Settings, machine: Machine) -> dict[str, str]:
    """What clients store with each measured point."""
    return {
        "model": f"reference-{settings.hidden}x{settings.layers}",
        "precision": machine.precision,
        "gpu": machine.gpu,
        "tp": "1",
        "pp": "1",
        "engine": "reference-torch",
        "engine_version": f"triton {TRITON_VERSION} / torch {machine.torch}",
        "batching": settings.batching,
        "max_batch_size": str(settings.max_batch_size),
        "kv_tokens": str(settings.kv_tokens // KV_BLOCK_TOKENS * KV_BLOCK_TOKENS),
        "token_budget": str(settings.token_budget),
    }


def _engine(settings: Settings, machine: Machine) -> dict[str, str]:
    """Further parameters, which the engine needs to build its model."""
    names = (
        "max_sequence_tokens",
        "batch_delay_s",
        "hidden",
        "layers",
        "heads",
        "kv_heads",
        "vocab_size",
        "seed",
        "threads",
    )
    own_cores = system.of_engine(settings.threads) if machine.device == "cpu" else ()
    given = {name: str(getattr(settings, name)) for name in names}
    return {"device": machine.device, "engine_cores": system.written(own_cores)} | given
