"""Start, watch and stop the real tritonserver on a repository of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import IO

from rich.console import Console

from calibration.errors import ServerError
from calibration.load import system
from lab.life import HOST, Server, free_port
from lab.reference import environment
from lab.reference.environment import PYTHON_VERSION, Environment
from lab.reference.settings import Settings
from triton_tools.repository import Machine, build, cpu_name
from triton_tools.repository.staging import stage

PORTS = ("grpc_port", "http_port", "metrics_port")


class ReferenceServer(Server):
    """A running reference server as a context manager, ready when all its models are.

        with ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as server:
            client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    With `repository`, a copy of that TensorRT-LLM repository is served in the place of the server's own, the reference
    engine behind it.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
        RepositoryError: on entering: `repository` cannot be made to run here.
    """

    recipe = environment.TRITON

    def __init__(self, settings: Settings, console: Console | None = None, repository: Path | None = None) -> None:
        super().__init__(settings.grpc_port, console)
        self.settings = settings
        self._repository = repository

    @property
    def grpc_url(self) -> str:
        return f"{HOST}:{self.settings.grpc_port}"

    @property
    def http_url(self) -> str:
        return f"{HOST}:{self.settings.http_port}"

    @property
    def metrics_url(self) -> str:
        return f"{HOST}:{self.settings.metrics_port}/metrics"

    @property
    def tokenizer(self) -> Path:
        """The `tokenizer.json` its models read, unless they came with another; it exists while the server does."""
        return self.work / "repository" / "preprocessing" / "tokenizer.json"

    @property
    def _pages(self) -> tuple[str, ...]:
        return ready_pages(self.settings)

    def _claim_ports(self) -> None:
        self.settings = claim_ports(self.settings)
        self.log = self.log.with_name(f"server-{self.settings.grpc_port}.log")

    def _start(self, ready: Environment, work: Path) -> subprocess.Popen[bytes]:
        machine = find_machine(ready, self.settings)
        repository = self._write_repository(work / "repository", machine)
        backends = _install_backend(ready, work / "backends")
        executable = ready.tritonserver / "bin" / "tritonserver"
        executable.chmod(0o755)
        command = on_other_cores(self.settings.threads, str(executable), *_flags(self.settings, repository, backends))
        with self.log.open("wb") as log:
            return _spawn(command, ready, self.settings, log)

    def _write_repository(self, folder: Path, machine: Machine) -> Path:
        """Write into `folder` what the server is to serve."""
        if self._repository is None:
            return build(folder, self.settings, machine)
        return stage(self._repository, folder, self.settings, machine)


def ready_pages(settings: Settings) -> tuple[str, str]:
    """Pages that answer when all models are ready: tritonserver starts to serve its metrics after that."""
    pages = (f"{settings.http_port}/v2/health/ready", f"{settings.metrics_port}/metrics")
    return f"http://{HOST}:{pages[0]}", f"http://{HOST}:{pages[1]}"


def claim_ports(settings: Settings) -> Settings:
    """`settings` with every port 0 replaced by a free one.

    Raises:
        ServerError: a port is in use; the line names the port and its option.
    """
    sockets = {}
    try:
        for name in PORTS:
            sockets[name] = free_port(getattr(settings, name), "--" + name.replace("_", "-"))
        return replace(settings, **{name: probe.getsockname()[1] for name, probe in sockets.items()})
    finally:
        for probe in sockets.values():
            probe.close()


def find_machine(ready: Environment, settings: Settings) -> Machine:
    """The device the engine will compute on, as torch in the reference environment sees it.

    Raises:
        ServerError: cuda was asked for and torch sees none, or torch does not load.
    """
    command = [str(ready.python), "-m", "lab.reference.engine.device", settings.device]
    found = subprocess.run(command, env=_variables(ready, settings), capture_output=True, text=True, check=False)
    if found.returncode != 0:
        why = (found.stderr.strip().splitlines() or ["no output"])[-1]
        raise ServerError(f"the engine cannot use --device {settings.device}: {why}")
    facts = json.loads(found.stdout)
    return Machine(facts["device"], facts["gpu"] or cpu_name(), facts["torch"], facts["precision"])


def _install_backend(ready: Environment, backends: Path) -> Path:
    """Lay out the Python backend with the stub of this Python version, as tritonserver looks for it."""
    stub = ready.tritonserver / "python_backend_stubs" / PYTHON_VERSION / "triton_python_backend_stub"
    if not stub.exists():
        raise ServerError(f"Triton's wheel has no Python backend for Python {PYTHON_VERSION}: use 3.11 or 3.12")
    target = backends / "python"
    target.mkdir(parents=True)
    for name in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copy(ready.tritonserver / "backends" / "python" / name, target)
    shutil.copy(stub, target)
    (target / stub.name).chmod(0o755)
    return backends


def on_other_cores(threads: int, *command: str) -> list[str]:
    """The command of a server that dies with its parent, and leaves the last `threads` cores to its engine."""
    rest = system.usable() - set(system.of_engine(threads))
    return [sys.executable, str(Path(__file__).with_name("launch.py")), system.written(rest), *command]


def _flags(settings: Settings, repository: Path, backends: Path) -> list[str]:
    ports = [f"--{kind}-port={getattr(settings, f'{kind}_port')}" for kind in ("grpc", "http", "metrics")]
    addresses = [f"--{kind}-address={HOST}" for kind in ("grpc", "http", "metrics")]
    places = [f"--model-repository={repository}", f"--backend-directory={backends}"]
    memory = f"--backend-config=python,shm-region-prefix-name={repository.parent.name}"
    return [*places, *ports, *addresses, memory, "--allow-gpu-metrics=false", "--exit-timeout-secs=10"]


def _variables(ready: Environment, settings: Settings) -> dict[str, str]:
    """Environment variables of the reference environment's programs."""
    return {
        **os.environ,
        "PATH": f"{ready.venv / 'bin'}:{os.environ.get('PATH', '')}",
        "PYTHONPATH": str(environment.import_folder(ready)),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": str(settings.threads),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _spawn(command: list[str], ready: Environment, settings: Settings, log: IO[bytes]) -> subprocess.Popen[bytes]:
    # this interpreter's libpython first: with the system's, the backend's stub finds another standard library and dies
    libraries = [environment.libpython_folder(), ready.site_packages / "nvidia_pytriton.libs"]
    given = os.environ.get("LD_LIBRARY_PATH", "")
    path = ":".join([*map(str, libraries), *([given] if given else [])])
    variables = {**_variables(ready, settings), "LD_LIBRARY_PATH": path}
    # a session of its own: Ctrl-C in the terminal reaches us alone, and stop() can end server and stubs together
    return subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
