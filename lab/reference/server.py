"""Start, watch and stop the real tritonserver on a repository of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from rich.console import Console

from calibration.errors import ServerError
from calibration.load import system
from lab.reference import environment
from lab.reference.environment import PYTHON_VERSION, Environment
from lab.reference.settings import Settings
from triton_tools.repository import Machine, build, cpu_name
from triton_tools.repository.staging import stage

HOST = "127.0.0.1"
PORTS = ("grpc_port", "http_port", "metrics_port")
READY_WITHIN_S = 120.0
STOPPED_WITHIN_S = 15.0
LOADING_STOPPED_WITHIN_S = 2.0  # tritonserver does not listen to signals while it loads models
SHARED_MEMORY = Path("/dev/shm")
POLL_S = 0.05
LOGS_KEPT = 10
HARMLESS = ("cuda", "pinned", "dcgm")  # what tritonserver complains of on every machine without a GPU


class ReferenceServer:
    """A running reference server as a context manager.

    Enters when all models are ready, leaves when the server, its Python stubs and its work folder are gone.
    The server also ends when the thread that started it does.

        with ReferenceServer(Settings(grpc_port=0, http_port=0, metrics_port=0)) as server:
            client = tritonclient.grpc.InferenceServerClient(server.grpc_url)

    `log` is the server's log; it stays behind, one file per gRPC port, the newest ten. With `repository`, a copy of
    that TensorRT-LLM repository is served in the place of the server's own, the reference engine behind it.

    Raises:
        ServerError: on entering, in one line: a port in use, no usable environment, or a server that did not start.
        RepositoryError: on entering: `repository` cannot be made to run here.
    """

    ready_within_s = READY_WITHIN_S

    def __init__(self, settings: Settings, console: Console | None = None, repository: Path | None = None) -> None:
        self.settings = settings
        self._console = console
        self._repository = repository
        self._process: subprocess.Popen[bytes] | None = None
        self._work: Path | None = None
        self._is_up = False
        self.log = environment.default_folder() / "logs" / f"server-{settings.grpc_port}.log"

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
    def pid(self) -> int:
        """Process id of tritonserver."""
        return self._started.pid

    @property
    def tokenizer(self) -> Path:
        """The `tokenizer.json` its models read, unless they came with another; it exists while the server does."""
        assert self._work is not None
        return self._work / "repository" / "preprocessing" / "tokenizer.json"

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("the reference server is not running")
        return self._process

    def __enter__(self) -> Self:
        self.settings = claim_ports(self.settings)
        ready = environment.ensure(console=self._console)
        self._work = Path(tempfile.mkdtemp(prefix="reference-triton-"))
        try:
            self._start(ready, self._work)
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def check(self) -> None:
        """Raises ServerError if the server has died."""
        status = self._started.poll()
        if status is not None:
            raise ServerError(
                f"the reference server ended with status {status}: {_last_error(self.log)}; log: {self.log}"
            )

    def stop(self) -> None:
        """Ask the server to unload and exit, kill what is left of it, and remove its work folder and shared memory."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOPPED_WITHIN_S if self._is_up else LOADING_STOPPED_WITHIN_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
            _kill_group(self._process.pid)
            self._process.wait()
            self._process, self._is_up = None, False
        if self._work is not None:
            shutil.rmtree(self._work, ignore_errors=True)
            for region in SHARED_MEMORY.glob(f"{self._work.name}*"):  # a server that was killed leaves its own behind
                region.unlink(missing_ok=True)
            self._work = None

    def _start(self, ready: Environment, work: Path) -> None:
        machine = find_machine(ready, self.settings)
        repository = self._write_repository(work / "repository", machine)
        backends = _install_backend(ready, work / "backends")
        self.log = ready.folder / "logs" / f"server-{self.settings.grpc_port}.log"
        _make_room_for_log(self.log.parent)
        executable = ready.tritonserver / "bin" / "tritonserver"
        executable.chmod(0o755)
        rest = system.usable() - set(system.of_engine(self.settings.threads))
        command = [sys.executable, str(Path(__file__).with_name("launch.py")), system.written(rest), str(executable)]
        with self.log.open("wb") as log:
            self._process = _spawn([*command, *_flags(self.settings, repository, backends)], ready, self.settings, log)

    def _write_repository(self, folder: Path, machine: Machine) -> Path:
        """Write into `folder` what the server is to serve."""
        if self._repository is None:
            return build(folder, self.settings, machine)
        return stage(self._repository, folder, self.settings, machine)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_within_s
        while not is_ready(self.settings):
            if self._started.poll() is not None:
                raise ServerError(f"the reference server did not start: {_last_error(self.log)}; log: {self.log}")
            if time.monotonic() > deadline:
                within = f"{self.ready_within_s:.0f} s"
                raise ServerError(f"the reference server was not ready within {within}; log: {self.log}")
            time.sleep(POLL_S)
        self._is_up = True


def claim_ports(settings: Settings) -> Settings:
    """`settings` with every port 0 replaced by a free one.

    Raises:
        ServerError: a port is in use; the line names the port and its option.
    """
    chosen = {}
    sockets = []
    try:
        for name in PORTS:
            port = getattr(settings, name)
            probe = socket.socket()
            sockets.append(probe)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                option = "--" + name.replace("_", "-")
                raise ServerError(
                    f"port {port} ({option}) is not free on {HOST} ({error.strerror}): give {option} another"
                ) from error
            chosen[name] = probe.getsockname()[1]
    finally:
        for probe in sockets:
            probe.close()
    return replace(settings, **chosen)


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


def _make_room_for_log(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    logs = sorted(folder.glob("server-*.log"), key=lambda path: path.stat().st_mtime)
    for old in logs[: 1 - LOGS_KEPT]:
        old.unlink(missing_ok=True)


def is_ready(settings: Settings) -> bool:
    """True when all models are ready and the metrics, which tritonserver starts to serve after them, are there too."""
    pages = (f"{settings.http_port}/v2/health/ready", f"{settings.metrics_port}/metrics")
    try:
        for page in pages:
            urllib.request.urlopen(f"http://{HOST}:{page}", timeout=1.0).close()
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False
    return True


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def _last_error(log: Path) -> str:
    """What the server says went wrong: the first line of `log` that names a fault, else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if not any(word in line.lower() for word in HARMLESS)]
    faults = [line for line in telling if re.match(r"E\d{4} ", line)] or [line for line in telling if "rror" in line]
    fault = (faults or lines[-1:] or ["its log is empty"])[0]
    return re.sub(r"^[EWI]\d{4} .*?\] ", "", fault)[:300].strip('"')
