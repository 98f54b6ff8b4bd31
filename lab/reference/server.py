"""Start, watch and stop the real tritonserver on its own repository."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from rich.console import Console

from calibration.errors import ServerError
from lab.environment import Environment, Recipe, Step, import_folder, pins
from lab.reference.settings import Settings
from lab.tritonserver import TritonServer, check_python, spawn
from triton_tools.repository import Machine, build, cpu_name
from triton_tools.repository.staging import stage

SERVER_WHEEL = "nvidia-pytriton"


def _steps(requirements: Path) -> list[Step]:
    """Only the server's wheel is installed without its dependencies."""
    server, *others = sorted(pins(requirements), key=lambda pin: not pin.startswith(SERVER_WHEEL))
    return [("torch, numpy, tokenizers (about 200 MB)", others), ("Triton server (55 MB)", ["--no-deps", server])]


TRITON = Recipe(
    "the reference server",
    Path(__file__).with_name("requirements.txt"),
    ".cache/triton",
    "SIZING_TRITON_ENV",
    _steps,
    check_python,
)


class ReferenceServer(TritonServer[Settings]):
    """A running reference server as a context manager, ready when all its models are.

        with ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as server:
            client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    With `repository`, a copy of that TensorRT-LLM repository is served instead of the server's own, with the reference
    engine behind it.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
        RepositoryError: on entering: `repository` cannot be made to run here.
    """

    recipe = TRITON

    def __init__(self, settings: Settings, console: Console | None = None, repository: Path | None = None) -> None:
        super().__init__(settings, console)
        self._repository = repository

    @property
    def tokenizer(self) -> Path:
        """The `tokenizer.json` its models read, unless they came with another; it exists while the server does."""
        return self.work / "repository" / "preprocessing" / "tokenizer.json"

    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        machine = find_machine(ready, self.settings)
        repository = self._write_repository(work / "repository", machine)
        given = variables(ready, self.settings)
        return spawn(ready, self.settings, repository, work, self.log, given, self.settings.threads)

    def _write_repository(self, folder: Path, machine: Machine) -> Path:
        """Write the models to serve into `folder`."""
        if self._repository is None:
            return build(folder, self.settings, machine)
        return stage(self._repository, folder, self.settings, machine)


def find_machine(ready: Environment, settings: Settings) -> Machine:
    """The device on which the engine will compute, as seen by torch in the reference environment.

    Raises:
        ServerError: cuda was asked for and torch sees none, or torch does not load.
    """
    command = [str(ready.python), "-m", "lab.reference.engine.device", settings.device]
    found = subprocess.run(
        command, env={**os.environ, **variables(ready, settings)}, capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        why = (found.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServerError(f"the engine cannot use --device {settings.device}: {why}")
    facts = json.loads(found.stdout)
    return Machine(facts["device"], facts["gpu"] or cpu_name(), facts["torch"], facts["precision"])


def variables(ready: Environment, settings: Settings) -> dict[str, str]:
    """Environment variables of the reference environment's programs."""
    return {
        "PATH": f"{ready.venv / 'bin'}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(import_folder(ready)),
        "PYTHONDONTWRITEBYTECODE": "",  # the first start compiles its imports, because pip has compiled nothing
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
