"""Start, watch and stop SGLang's OpenAI server at the pace of a GPU, as `lab.vllm.server` does vLLM's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from calibration.load import system
from lab.environment import Recipe
from lab.life import HOST
from lab.vllm.server import MODEL, VllmServer, check_torch, variables
from lab.vllm.settings import Settings

RECIPE = Recipe(
    "SGLang",
    Path(__file__).with_name("requirements.txt"),
    ".cache/sglang",
    "SIZING_SGLANG_ENV",
    lambda pins: [("SGLang and torch for CPUs", ["--no-deps", "--requirement", str(pins)])],
    check=check_torch,
)


class SglangServer(VllmServer):
    """A running SGLang as a context manager, ready when its model is loaded; its settings need a pace.

    Raises:
        ServerError: as VllmServer.
    """

    recipe = RECIPE
    program = Path(__file__).with_name("paced_server.py")
    kept_free = 1

    def _options(self) -> list[str]:
        named = options(self.settings, self.tokenizer)
        switches = ["--enable-metrics", "--disable-overlap-schedule"]  # the overlap takes the streams of a GPU
        if not self.settings.kv_reuse:
            switches.append("--disable-radix-cache")
        return [word for pair in named.items() for word in pair] + switches

    def _variables(self) -> dict[str, str]:
        engine = {"SGLANG_USE_CPU_ENGINE": "1", "CUDA_VISIBLE_DEVICES": "", "ENGINE_CORES": self._engine_cores}
        return variables(self.settings, self.work) | engine

    @property
    def _engine_cores(self) -> str:
        return system.written(system.of_engine(self.kept_free))


def options(settings: Settings, model: Path) -> dict[str, str]:
    """The options of SGLang's server that have a value."""
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
        "chunked-prefill-size": settings.token_budget if settings.chunked_prefill else -1,
        "served-model-name": MODEL,
        "host": HOST,
        "port": settings.http_port,
    }
    return {f"--{name}": str(value) for name, value in told.items()}
