"""Start, watch and stop vLLM's OpenAI server on a CPU.

Scheduler, paged KV cache, prefix cache, chunked prefill, preemption, HTTP server and metrics are vLLM's own; only the
kernels are a CPU's, and the weights are random. So what is measured here shows how a production engine behaves, not how
fast it is on a GPU.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from calibration.errors import ServerError
from lab.environment import Environment, Recipe, Step
from lab.life import HOST, Server, free_port, on_other_cores
from lab.pace import PACED
from lab.reference.settings import SPECIAL_TOKENS
from lab.reference.tokenizer import save_tokenizer
from lab.vllm.settings import KV_BLOCK_TOKENS, Settings

MODEL = "small"
"""Name under which the model is served."""
EXPERTS_PER_TOKEN = 2
GIB = 2**30
PACED_WORKER = "vllm_worker.PacedWorker"
IN_ENGINE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""Run the worker in the engine's process, as vLLM does for one GPU but never for a CPU: if it had its own process, the
engine would poll for its answer, which takes most of a core from API server and client."""
STEP_TIMES = "step-times.json"
_PAD, _END, _UNKNOWN = SPECIAL_TOKENS


def _steps(requirements: Path) -> Sequence[Step]:
    """One complete set of pins: pip installs nothing else, such as libraries that only images and audio need."""
    return [("vLLM and torch for CPUs (about 500 MB)", ["--no-deps", "--requirement", str(requirements)])]


def check_torch(environment: Environment) -> None:
    """Raises ServerError unless torch is built for CPUs: with another build, engines fail at start without a reason."""
    file = environment.site_packages / "torch" / "version.py"
    found = re.search(r"^__version__ = '(.+)'", file.read_text() if file.exists() else "", re.MULTILINE)
    version = found[1] if found else "none"
    if "+cpu" not in version:
        pip = f"bin/python -m pip install --force-reinstall --no-deps torch=={version.split('+')[0]} --index-url URL"
        raise ServerError(
            f"an engine here needs a CPU build of torch, {environment.venv} has {version}: there, run `{pip}` "
            "with the URL of PyTorch's CPU wheels"
        )


RECIPE = Recipe(
    "vLLM",
    Path(__file__).with_name("requirements.txt"),
    ".cache/vllm",
    "SIZING_VLLM_ENV",
    _steps,
    check=check_torch,
)


class VllmServer(Server):
    """A running vLLM as a context manager, ready when its model is loaded.

        with VllmServer(Settings(http_port=0)) as server:
            urllib.request.urlopen(f"{server.url}/v1/models")

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
    """

    recipe = RECIPE
    ready_within_s = 240.0
    program = Path(__file__).with_name("openai_server.py")
    kept_free = 0
    """Cores that the server leaves to its engine; vLLM's binds itself to one."""

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        super().__init__(settings.http_port, console)
        self.settings = settings

    @property
    def url(self) -> str:
        """The base URL of the OpenAI endpoints, without /v1."""
        return f"http://{HOST}:{self.settings.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"{self.url}/metrics"

    @property
    def tokenizer(self) -> Path:
        """Folder of the model's tokenizer; it exists while the server does."""
        return self.work / MODEL

    @property
    def _pages(self) -> tuple[str, ...]:
        return (f"{self.url}/health",)

    def _claim_ports(self) -> None:
        with free_port(self.settings.http_port, "--http-port") as probe:
            self.settings = replace(self.settings, http_port=probe.getsockname()[1])
        self.log = self.log.with_name(f"server-{self.settings.http_port}.log")

    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        write_model(self.tokenizer, self.settings)
        command = on_other_cores(self.kept_free, str(ready.python), "-P", str(self.program))  # -P: without its folder
        with self.log.open("wb") as log:
            return subprocess.Popen(
                [*command, *self._options()],
                cwd=work,
                env={**os.environ, **self._variables()},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches us alone, and stop() ends server and engine together
            )

    def _options(self) -> list[str]:
        return flags(self.settings, self.tokenizer)

    def _variables(self) -> dict[str, str]:
        return variables(self.settings, self.work)


def write_model(folder: Path, settings: Settings) -> Path:
    """Create `folder` and write the model of `settings` into it: a Llama, or with experts a Mixtral.

    vLLM draws the weights at random when it loads. The step times of a pace lie beside it. Raises ServerError where
    there are none.
    """
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(configuration(settings)))
    save_tokenizer(folder, settings.vocab_size)
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": _PAD, "eos_token": _END, "bos_token": _END}
    limits = {"unk_token": _UNKNOWN, "model_max_length": settings.max_sequence_tokens}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer | limits))
    if settings.pace:
        settings.pace.write(folder / STEP_TIMES)
    return folder


def configuration(settings: Settings) -> dict[str, Any]:
    """The fields of config.json.

    >>> configuration(Settings(experts=8))["architectures"]
    ['MixtralForCausalLM']
    """
    shape = {
        "hidden_size": settings.hidden,
        "intermediate_size": 11 * settings.hidden // 4,  # Llama's ratio, in whole numbers
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "num_key_value_heads": settings.kv_heads,
        "vocab_size": settings.vocab_size,
        "max_position_embeddings": settings.max_sequence_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 1,
    }
    if not settings.experts:
        return shape | {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    experts = {"num_local_experts": settings.experts, "num_experts_per_tok": EXPERTS_PER_TOKEN}
    return shape | experts | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}


def arguments(settings: Settings, model: Path) -> dict[str, Any]:
    """vLLM's engine arguments."""
    worker = {"worker_cls": PACED_WORKER} if settings.pace else {}
    return worker | {
        "distributed_executor_backend": IN_ENGINE,
        "model": str(model),
        "load_format": "dummy",
        "dtype": "float32",
        "seed": settings.seed,
        "max_model_len": settings.max_sequence_tokens,
        "max_num_seqs": settings.max_batch_size,
        "max_num_batched_tokens": settings.token_budget,
        "block_size": KV_BLOCK_TOKENS,
        "num_gpu_blocks_override": settings.kv_tokens // KV_BLOCK_TOKENS,
        "enforce_eager": True,
        "enable_chunked_prefill": settings.chunked_prefill,
        "async_scheduling": settings.look_ahead,
        "enable_prefix_caching": settings.kv_reuse,
    }


def flags(settings: Settings, model: Path) -> list[str]:
    """The options of vLLM's OpenAI server."""
    told = arguments(settings, model) | {"served_model_name": MODEL, "host": HOST, "port": settings.http_port}
    named = {name.replace("_", "-"): value for name, value in told.items()}
    switches = [f"--{'' if on else 'no-'}{name}" for name, on in named.items() if isinstance(on, bool)]
    values = [(f"--{name}", str(value)) for name, value in named.items() if not isinstance(value, bool)]
    return [word for pair in values for word in pair] + [*switches, "--disable-uvicorn-access-log"]


def variables(settings: Settings, work: Path) -> dict[str, str]:
    """Environment variables: the engine's memory and threads, no downloads, no telemetry."""
    bytes_per_token = 2 * settings.layers * settings.kv_heads * (settings.hidden // settings.heads) * 4
    paced = {"PACE": str(work / MODEL / STEP_TIMES)} if settings.pace else {}
    return paced | {
        "VLLM_CPU_KVCACHE_SPACE": str(max(1, -(-settings.kv_tokens * bytes_per_token // GIB))),
        "OMP_NUM_THREADS": str(settings.threads),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "HF_HOME": str(work / "huggingface"),
        "VLLM_CACHE_ROOT": str(work / "cache"),
        "PYTHONPATH": str(PACED) if settings.pace else "",
        "PYTHONDONTWRITEBYTECODE": "",  # as the reference server's
    }
