"""The real Triton server with a repository whose `tensorrt_llm` runs a model of real shape on this machine's GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import text_format
from rich.console import Console
from tritonclient.grpc import model_config_pb2 as pb

from lab.environment import PROJECT, ensure
from lab.gpu.engine.shapes import SHAPES, RealShape
from lab.reference.server import TRITON, ReferenceServer
from lab.reference.settings import Batching, Settings
from triton_tools.repository import TRITON_VERSION, Machine
from triton_tools.repository.messages import CONFIG_FILE, as_text

MODELS = Path(__file__).with_name("models")
GPU_NAMES = {"NVIDIA H200": "h200_sxm", "NVIDIA H100 80GB HBM3": "h100_sxm"}
ENGINE = "reference-gpu"
MEMORY_SHARE = 0.9
WORKSPACE_BYTES = 8e9  # activations, logits, CUDA graphs, libraries
READY_WITHIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Setup:
    """What is served: the shape by its short name, its batching and limits, and the operations that compute it."""

    shape: str
    batching: Batching
    device: str
    ops: str
    max_batch_size: int = 256
    max_sequence_tokens: int = 8192
    token_budget: int = 2048
    memory_bytes: float = 0.0

    @property
    def real(self) -> RealShape:
        return SHAPES[self.shape]

    @property
    def value_bytes(self) -> int:
        """Bytes of one weight: bf16 on a GPU, float32 on a CPU."""
        return 2 if self.device == "cuda" else 4

    @property
    def kv_tokens(self) -> int:
        """Context tokens that fit beside the weights, at most those of all requests at their longest."""
        wanted = self.max_batch_size * self.max_sequence_tokens
        if self.device == "cpu":
            return min(wanted, 65_536)
        free = self.memory_bytes * MEMORY_SHARE - self.real.parameters * self.value_bytes - WORKSPACE_BYTES
        return min(wanted, int(free / (self.real.kv_values_per_token * self.value_bytes)))

    def settings(self) -> Settings:
        """Settings for the reference server, on any free ports; the tokenizer keeps its small vocabulary."""
        return Settings(
            batching=self.batching,
            grpc_port=0,
            http_port=0,
            metrics_port=0,
            max_batch_size=self.max_batch_size,
            kv_tokens=self.kv_tokens,
            max_sequence_tokens=self.max_sequence_tokens,
            token_budget=self.token_budget,
            vocab_size=min(2048, self.real.vocab_size),
            device="cuda" if self.device == "cuda" else "cpu",
        )


class GpuServer(ReferenceServer):
    """A reference server with the engine of lab/gpu/engine, whose step times are written to `steps_file`."""

    ready_within_s = READY_WITHIN_S

    def __init__(self, setup: Setup, steps_file: Path, console: Console | None = None) -> None:
        super().__init__(setup.settings(), console)
        self.setup, self.steps_file = setup, steps_file

    def _write_repository(self, folder: Path, machine: Machine) -> Path:
        super()._write_repository(folder, machine)
        engine = folder / "tensorrt_llm"
        shutil.copyfile(MODELS / "tensorrt_llm" / "model.py", engine / "1" / "model.py")
        config = text_format.Parse((engine / CONFIG_FILE).read_text(encoding="utf-8"), pb.ModelConfig())
        for key, value in parameters(self.setup, machine, self.steps_file).items():
            config.parameters[key].string_value = value
        (engine / CONFIG_FILE).write_text(as_text(config), encoding="utf-8")
        return folder


def parameters(setup: Setup, machine: Machine, steps_file: Path) -> dict[str, str]:
    """The parameters of `tensorrt_llm` that the reference engine does not have."""
    real = setup.real
    return {
        "shape": setup.shape,
        "ops": setup.ops,
        "steps_file": str(steps_file),
        "model": real.name,
        "gpu": GPU_NAMES.get(machine.gpu, machine.gpu),
        "engine": ENGINE,
        "engine_version": f"triton {TRITON_VERSION} / torch {machine.torch} / {setup.ops} kernels",
        "hidden": str(real.hidden),
        "layers": str(real.layers),
        "heads": str(real.heads),
        "kv_heads": str(real.kv_heads),
        "vocab_size": str(real.vocab_size),
        "FORCE_CPU_ONLY_INPUT_TENSORS": "yes",
    }


def kernels_agree(device: str) -> dict[str, float | str]:
    """Whether this machine's kernels compute the same as plain torch: {"difference": ...} or {"why": ...}.

    It runs in its own process, because a kernel that breaks the device ends its process.
    """
    precision = "bf16" if device == "cuda" else "fp32"
    return program("lab.gpu.engine.check", device, precision, within_s=180)


def program(module: str, *arguments: str, within_s: float) -> dict[str, float | str]:
    """The last line that a program of this project prints, from JSON; {"why": ...} if it fails or takes too long.

    It runs in the server's environment, which has torch.
    """
    ready = ensure(TRITON)
    command = [str(ready.python), "-m", module, *arguments]
    variables = {**os.environ, "PYTHONPATH": str(PROJECT)}
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=within_s, check=False)
    except subprocess.TimeoutExpired:
        return {"why": f"{module} took longer than {within_s:.0f} s"}
    if done.returncode:
        return {"why": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]}
    found: dict[str, float | str] = json.loads(done.stdout.strip().splitlines()[-1])
    return found
