"""Start, watch and stop SGLang's OpenAI server at the pace of a GPU, as `lab.vllm.server` does vLLM's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from calibration.errors import ServerError
from calibration.load import system
from lab.environment import Recipe
from lab.life import HOST
from lab.pace import FORM, PACED
from lab.vllm.server import MODEL, VllmServer, check_torch, variables
from lab.vllm.settings import Settings

MEMORY_SHARE = 0.5
"""Of the machine's: more than the KV cache ever takes. SGLang by itself keeps so much for the activations of unchunked
prompts that nothing is left."""
RECIPE = Recipe(
    "SGLang",
    Path(__file__).with_name("requirements.txt"),
    ".cache/sglang",
    "SIZING_SGLANG_ENV",
    lambda pins: [("SGLang and torch for CPUs", ["--no-deps", "--requirement", str(pins)])],
    check=check_torch,
)


class SglangServer(VllmServer):
    """A running SGLang as a context manager, ready when its model is loaded.

    Raises:
        ServerError: at once, where the settings have no pace: SGLang's kernels for CPUs are not packaged, so its own
            says nothing; on entering, as VllmServer.
    """

    recipe = RECIPE
    program = PACED / "sglang_server.py"
    kept_free = 1

    def __init__(self, settings: Settings, console: Console | None = None) -> None:
        if settings.pace is None:
            raise ServerError(f"SGLang needs the pace of a GPU here: --pace {FORM}")
        super().__init__(replace(settings, pace=replace(settings.pace, engine="sglang")), console)

    def _options(self) -> list[str]:
        return flags(self.settings, self.tokenizer)

    def _variables(self) -> dict[str, str]:
        cores = system.written(system.of_engine(self.kept_free))
        engine = {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": "", "ENGINE_CORES": cores}
        return variables(self.settings, self.work) | engine


def flags(settings: Settings, model: Path) -> list[str]:
    """The options of SGLang's OpenAI server."""
    told: dict[str, Any] = {
        "model-path": model,
        "load-format": "dummy",
        "dtype": "float32",
        "random-seed": settings.seed,
        "device": "cpu",
        "attention-backend": "torch_native",
        "sampling-backend": "pytorch",
        "context-length": settings.max_sequence_tokens,
        "max-running-requests": settings.max_batch_size,
        "max-total-tokens": settings.kv_tokens,
        "mem-fraction-static": MEMORY_SHARE,
        "chunked-prefill-size": settings.token_budget if settings.chunked_prefill else -1,
        "scheduler-recv-interval": settings.receive_interval_steps,
        "served-model-name": MODEL,
        "host": HOST,
        "port": settings.http_port,
    }
    switches = ["--enable-metrics"]
    if not settings.look_ahead:
        switches.append("--disable-overlap-schedule")
    if not settings.kv_reuse:
        switches.append("--disable-radix-cache")
    return [word for name, value in told.items() for word in (f"--{name}", str(value))] + switches
